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


@pytest.fixture
def history(tmp_path: Path) -> Path:
    jobs = [
        {
            "uid": f"j{n:02d}", "created_ms": n * 60_000, "run_ms": 600_000, "gpus": 8, "queue": "a",
            "team": "vision", "user": "u", "started_ms": n * 600_000, "ended_ms": (n + 1) * 600_000,
        }
        for n in range(12)
    ]  # fmt: skip
    pd.DataFrame(jobs).to_parquet(tmp_path / "jobs.parquet")
    pools = [
        {"pool": "a", "at_ms": 0, "nodes": 1, "gpus": 8, "model": "H100", "gpu_hour_nano": 2_000_000_000}
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
