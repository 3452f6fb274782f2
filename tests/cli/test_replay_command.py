"""gpucost replay on the command line: files in, an answer out, the same bytes each time."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pandas as pd
import pytest
from typer.testing import CliRunner, Result

from gpucost.cli.application import app
from gpucost.cli.terminal.exit_codes import ExitCode
from gpucost.domain.time import Month

BEGIN_MS = Month.parse("2026-10").window.start_ms


@pytest.fixture
def history(tmp_path: Path) -> Path:
    jobs = [
        {
            "uid": f"j{n:02d}", "created_ms": BEGIN_MS + n * 60_000, "run_ms": 600_000, "gpus": 8,
            "queue": "a", "team": "vision", "user": "u",
            "started_ms": BEGIN_MS + n * 600_000, "ended_ms": BEGIN_MS + (n + 1) * 600_000,
        }
        for n in range(12)
    ]  # fmt: skip
    pd.DataFrame(jobs).to_parquet(tmp_path / "jobs.parquet")
    pools = [
        {
            "pool": "a",
            "at_ms": BEGIN_MS,
            "nodes": 1,
            "gpus": 8,
            "model": "H100",
            "gpu_hour_nano": 2_000_000_000,
        }
    ]
    pd.DataFrame(pools).to_parquet(tmp_path / "pools.parquet")
    (tmp_path / "more.yaml").write_text("nodes: [{pool: a, add: 1}]\n", encoding="utf-8")
    return tmp_path


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["replay", *map(str, arguments)])


def test_the_baseline_comes_first_then_each_change_then_the_limits(history: Path) -> None:
    found = run("--history", history, "--change", history / "more.yaml")
    assert found.exit_code == ExitCode.OK, found.output
    shown = found.output
    parts = [
        "Baseline: the replay",
        "12 of 12",
        "Scenario baseline: waits",
        "Scenario more: waits",
        "cannot know",
    ]
    assert [shown.index(each) for each in parts] == sorted(shown.index(each) for each in parts)
    assert "team vision" in shown


def test_every_start_in_every_form_and_the_same_bytes_again(history: Path) -> None:
    options = "--history", history, "--change", history / "more.yaml"
    first = run(*options, "--format", "json")
    assert first.stdout == run(*options, "--format", "json").stdout
    document = json.loads(first.stdout)
    assert document["schema"] == "gpucost/ReplayReport/v1"
    assert document["baseline"]["exact"] == 12
    assert len(document["starts"]) == 24
    assert document["scenarios"][1]["cluster"]["conservation_nano"] == 0
    csv = pd.read_csv(io.StringIO(run(*options, "--format", "csv").stdout))
    assert len(csv) == 24
    out = history / "starts.parquet"
    assert run(*options, "--format", "parquet", "-o", out).exit_code == ExitCode.OK
    assert pd.read_parquet(out)["wait_ms"].tolist() == csv["wait_ms"].tolist()


POLICY = (
    "version: 1\nname: use\ncurrency: USD\npolicies: [{base: use, idle_of_nobody: platform, mark_up: 5}]\n"
)
CONTRACTS = """
version: 1
currency: USD
contracts:
  - id: r
    kind: reservation
    scope: {models: [H100]}
    start: 2026-10-01T00:00:00Z
    end: 2026-11-01T00:00:00Z
    gpus: 8
    price: 1.2
"""


def test_a_charge_policy_and_contracts_beside_a_change(history: Path) -> None:
    """By hand: 12 runs of 10 minutes on 8 GPUs are 16 GPU-hours, at 2 USD each: with five in a hundred on top
    33.6, of which the contract takes off 12.8, as what it makes of 32 is 19.2."""
    (history / "policy.yaml").write_text(POLICY, encoding="utf-8")
    (history / "contracts.yaml").write_text(CONTRACTS, encoding="utf-8")
    (history / "paid.yaml").write_text(
        "charges: policy.yaml\ncommitments: contracts.yaml\n", encoding="utf-8"
    )
    found = run("--history", history, "--change", history / "paid.yaml", "--format", "json")
    assert found.exit_code == ExitCode.OK, found.output
    base, paid = (
        next(each for each in scenario["groups"] if each["name"] == "vision")
        for scenario in json.loads(found.stdout)["scenarios"]
    )
    assert (base["nano"], base["charged_nano"], base["contracts_nano"]) == (32 * 10**9, None, None)
    assert (paid["nano"], paid["charged_nano"]) == (32 * 10**9, 208 * 10**8)
    assert paid["contracts_nano"] == 192 * 10**8


def test_the_schema_of_a_change_is_printed() -> None:
    found = run("--schema")
    assert found.exit_code == ExitCode.OK
    assert set(json.loads(found.stdout)["properties"]) >= {"queues", "cohorts", "nodes", "prices", "from"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "MONTH: missing; allowed: one of MONTH, --trace and --history"),
        (("2026-10", "--trace", "philly"), "MONTH: MONTH and --trace"),
        (("--history", "{}", "--hold", "nodes"), "--hold: 'nodes'"),
        (("--history", "{}", "--price", "x"), "--price"),
        (("--history", "{}", "--change", "{}/more.yaml", "--change", "{}/more.yaml"), "--change: 'more'"),
        (("--history", "{}", "--change", "{}/none.yaml"), "none.yaml"),
    ],
)
def test_what_is_wrong_is_said(history: Path, arguments: tuple[str, ...], message: str) -> None:
    found = run(*(each.format(history) for each in arguments))
    assert found.exit_code == ExitCode.USAGE
    assert message in found.output
