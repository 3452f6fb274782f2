"""gpucost demo as a user starts it: one process, nothing but Python."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import sqlite3
import subprocess
import sys
import time
import urllib.request
from contextlib import closing
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from benchmarks.findings_recomputed import Recomputed
from gpucost.attribution.conservation import ConservationDifference
from gpucost.cli.application import app
from gpucost.reports.charges.charge_statements import CHARGE_WORDS
from gpucost.service.ingest.pipeline import PipelineOutcome
from gpucost.service.wiring.demo_month import DEMO_MONTH, DemoMonth
from gpucost.simulator.workloads import FORGOTTEN
from tests.cli.faces import Faces

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text("utf-8")
LAST_LINE = "conservation: difference 0 GPU-ms, 0 nano-USD"


def gpucost(*words: str) -> list[str]:
    return [sys.executable, "-c", "from gpucost.cli import main; main()", *words]


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The folder and the output of one run of ``demo --once``."""
    folder = tmp_path_factory.mktemp("demo")
    environ = {**os.environ, "PYTHONHASHSEED": "1", "TZ": "Asia/Kathmandu", "LC_ALL": "C"}
    done = subprocess.run(
        gpucost("demo", "--once", "--dir", str(folder)),
        capture_output=True,
        encoding="utf-8",
        cwd=ROOT,
        env=environ,
        check=False,
        timeout=800,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return folder, done.stdout


@pytest.mark.slow
def test_the_last_line_proves_conservation(demo: tuple[Path, str]) -> None:
    assert demo[1].splitlines()[-1] == LAST_LINE


@pytest.mark.slow
def test_the_report_is_printed_and_written(demo: tuple[Path, str]) -> None:
    folder, output = demo
    assert "GPU cost, October 2026" in output
    for model in ("H100", "A100-80GB", "L4"):
        assert model in output
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert page.startswith("<!DOCTYPE html>")
    assert "<svg" in page


@pytest.mark.slow
def test_the_sample_invoice_is_put_beside_the_month(demo: tuple[Path, str]) -> None:
    """As docs/focus.md shows it."""
    environ = {**os.environ, "GPUCOST_CONFIG": str(demo[0] / "config.yaml"), "COLUMNS": "120"}
    command = gpucost("import", "focus", "docs/examples/aws-october.csv")
    done = subprocess.run(
        command, capture_output=True, encoding="utf-8", cwd=ROOT, env=environ, check=True, timeout=120
    )
    page = (ROOT / "docs" / "focus.md").read_text("utf-8").split("```")
    [block] = [each for each in page if "aws-october.csv" in each and "beside the ledger" in each]
    shown = [line.strip() for line in block.splitlines()[2:] if line.strip() not in ("", "…")]
    printed = [line.strip() for line in (done.stdout + done.stderr).splitlines()]
    assert len(shown) > 8
    assert [line for line in shown if line not in printed] == []


@pytest.fixture(scope="module")
def report_json(demo: tuple[Path, str]) -> str:
    """What a command says that finds the files of the run by the line that it printed."""
    folder, _ = demo
    assert f"export GPUCOST_CONFIG={folder / 'config.yaml'}\n  gpucost report 2026-10\n" in demo[1]
    environ = {**os.environ, "GPUCOST_CONFIG": str(folder / "config.yaml")}
    command = gpucost("report", str(DEMO_MONTH), "--format", "json")
    done = subprocess.run(
        command, capture_output=True, encoding="utf-8", cwd=ROOT, env=environ, check=True, timeout=120
    )
    return done.stdout


@pytest.mark.slow
def test_the_commands_of_readme_work_one_after_the_other_in_one_shell(
    demo: tuple[Path, str], tmp_path: Path
) -> None:
    """From the checkout, on the demo's settings; the demo itself has run already."""
    [block] = [each for each in README.split("```") if "export GPUCOST_CONFIG=" in each]
    lines = [line for line in block.strip().splitlines() if not line.startswith(("make ", ". .venv/"))]
    assert lines[0] == "export GPUCOST_CONFIG=$PWD/demo-out/config.yaml"
    assert len(lines) >= 9
    (tmp_path / "gpucost").write_text(
        f'#!/bin/sh\nexec {sys.executable} -c "from gpucost.cli import main; main()" "$@"\n', encoding="utf-8"
    )
    (tmp_path / "gpucost").chmod(0o755)
    lines[0] = f"export GPUCOST_CONFIG={demo[0] / 'config.yaml'}"
    script = "set -e\n" + "\n".join(f"{line}\necho END" for line in lines)
    environ = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "HOME": str(tmp_path)}
    done = subprocess.run(
        ["bash", "-c", script],
        capture_output=True,
        encoding="utf-8",
        cwd=ROOT,
        env={name: value for name, value in environ.items() if name not in ("COLUMNS", "KUBECONFIG")},
        check=False,
        timeout=800,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr
    said = done.stdout.split("END\n")[1:-1]
    assert [len(text) > 20 for text in said] == [True] * (len(lines) - 1)
    assert [text for text in said if re.search(r"[ \t]$", text, re.MULTILINE)] == []
    assert "USD" in next(text for line, text in zip(lines[1:], said, strict=True) if " advise " in line)


@pytest.mark.slow
@pytest.mark.fault(71)
def test_the_files_of_a_run_are_a_ledger_like_any_other(report_json: str) -> None:
    report = json.loads(report_json)
    assert report["provenance"]["state"] == "settled"
    assert len(report["teams"]) >= 6
    assert len(report["capacity"]["models"]) == 3


@pytest.mark.slow
def test_charges_of_all_teams_and_what_is_kept_are_the_capacity(
    demo: tuple[Path, str], report_json: str, tmp_path: Path
) -> None:
    """Under every policy, against the capacity that the report says; the first is what teams held."""
    report = json.loads(report_json)
    models = ("H100", "A100-80GB", "L4")
    quotas = [
        {"team": team, "model": model, "gpus": gpus, "cohort": "demo"}
        for model in models
        for team, gpus in (("language", 12), ("vision", 4), ("speech", 4), ("ranking", 4), ("robotics", 2))
    ]
    texts: list[dict[str, object]] = [
        {},
        {"policies": [{"idle_of_nobody": "by_quota", "unavailable": "by_use", "unknown": "by_use"}]},
        {"policies": [{"base": "larger", "idle_of_nobody": "by_use"}], "quotas": quotas},
        {"policies": [{"base": "two_part", "fixed_part": "0.4", "mark_up": 3}], "quotas": quotas},
    ]
    words = ["chargeback", "preview", str(DEMO_MONTH), "--format", "json"]
    for n, text in enumerate(texts):
        (tmp_path / f"{n}.yaml").write_text(json.dumps({"version": 1, "name": f"policy {n}", **text}))
        words += ["--policy", str(tmp_path / f"{n}.yaml")]
    done = CliRunner().invoke(app, ["--config", str(demo[0] / "config.yaml"), *words])
    assert done.exit_code == 0, done.stderr
    found = json.loads(done.stdout)
    assert [team["team"] for team in found["teams"]] == [
        *("language", "vision", "speech", "ranking", "robotics", "platform", "__no_team__")
    ]
    buckets = report["capacity"]["buckets"]
    capacity = {
        unit: sum(part[unit] for name, part in buckets.items() if name != "overcommitted")
        for unit in ("nano", "board_ms")
    }
    for n, policy in enumerate(found["policies"]):
        for unit in ("nano", "board_ms"):
            everybody = [each["totals"][n][unit] for each in (*found["teams"], found["kept"])]
            assert sum(everybody) == capacity[unit] == policy["capacity"][unit]
            assert policy["difference"][unit] == 0
        for each in found["teams"]:
            assert each["totals"][n]["nano"] == sum(line["amounts"][n]["nano"] for line in each["lines"])
    rows = [each["row"] for each in report["teams"]]
    held = {row["group"]["team"]: row["held"]["nano"] for row in rows}
    assert {each["team"]: each["totals"][0]["nano"] for each in found["teams"]} == held
    assert len({policy["digest"] for policy in found["policies"]}) == len(texts)


STATEMENTS = (ROOT / "docs" / "statements.md").read_text("utf-8")


@pytest.fixture(scope="module")
def recomputed(demo: tuple[Path, str], tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """The statements of all teams under the policy of docs/statements.md."""
    policy = tmp_path_factory.mktemp("policy") / "equally.yaml"
    policy.write_text(STATEMENTS.partition("```yaml\n")[2].partition("```")[0])
    words = ("statement", str(DEMO_MONTH), "--all", "--policy", str(policy), "--format", "json")
    done = CliRunner().invoke(app, ["--config", str(demo[0] / "config.yaml"), *words])
    assert done.exit_code == 0, done.stderr
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


def decimals(nano: Fraction | int, places: int = 9) -> str:
    """As the page writes amounts."""
    return f"{Decimal(round(Fraction(nano) * 10**places / 10**9)).scaleb(-places):,}"


@pytest.mark.slow
def test_the_statements_of_seven_teams_are_the_capacity(
    recomputed: list[dict[str, Any]], report_json: str
) -> None:
    buckets = json.loads(report_json)["capacity"]["buckets"]
    capacity = sum(part["nano"] for name, part in buckets.items() if name != "overcommitted")
    assert len(recomputed) == 7
    assert sum(each["total_nano"] for each in recomputed) == capacity
    assert f"{decimals(capacity)} USD, which is the\ncapacity" in STATEMENTS


@pytest.mark.slow
def test_each_figure_of_the_page_is_what_its_arithmetic_gives(
    recomputed: list[dict[str, Any]], report_json: str
) -> None:
    """The page computes by hand; here it is done again from the report and from intervals and prices."""
    [vision] = [each for each in recomputed if each["team"] == "vision"]
    lines = {line["kind"]: line for line in vision["lines"]}
    shown = [" ".join(line.split()) for line in STATEMENTS.splitlines()]
    for price in vision["prices"]:
        product = Fraction(price["board_ms"] * price["price_nano"], 3_600_000)
        assert abs(product - price["nano"]) < 40_000
        ends = f"| {decimals(product)} | {decimals(price['nano'])} |"
        begins = f"| {price['board_ms']:,} | {price['price'].rstrip('0').ljust(4, '0')} "
        assert [row for row in shown if begins in row and row.endswith(ends)], (begins, ends)
    assert sum(price["nano"] for price in vision["prices"]) == lines["used"]["nano"]
    assert sum(rule["nano"] for rule in vision["rules"]) == lines["used"]["nano"]
    assert sum(rule["board_ms"] for rule in vision["rules"]) == lines["used"]["board_ms"]
    for rule in vision["rules"]:
        held = f"{float(rule['gpu_hours']):,.1f}"
        assert f"| {rule['rule']} | {held} | {decimals(rule['nano'])} |" in STATEMENTS
    buckets = json.loads(report_json)["capacity"]["buckets"]
    for bucket, kind in (("unallocated", "nobodys_idle"), ("unavailable",) * 2, ("unknown",) * 2):
        sixth, charged = Fraction(buckets[bucket]["nano"], 6), lines[kind]["nano"]
        assert abs(sixth - charged) < 744 * 3
        row = f"{decimals(buckets[bucket]['nano'])} | {decimals(sixth)} | {decimals(charged)} |"
        assert [each for each in shown if each.endswith(row)], row
    amounts = [decimals(lines[kind]["nano"]) for kind in lines]
    assert f"{' + '.join(amounts)} = {decimals(vision['total_nano'])}." in STATEMENTS
    for kind, words in CHARGE_WORDS.items():
        if kind in lines:
            hours, cost = f"{float(lines[kind]['gpu_hours']):,.1f}", decimals(lines[kind]["nano"], 2)
            assert f"| {words} | {hours} | {cost} |" in STATEMENTS
    assert f"{decimals(vision['avoidable']['nano'], 2)} USD for 871.8 GPU-hours" in STATEMENTS
    job = vision["jobs"][0]
    assert (job["job"], job["board_ms"]) == ("finetune-00095", 16 * 145_687_000)
    assert abs(job["nano"] - Fraction(16 * 145_687_000 * 6_200_000_000, 3_600_000)) < 100  # 42 windows
    assert f"{decimals(job['nano'], 2)} USD" in STATEMENTS
    assert vision["budget"]["part"] == pytest.approx(lines["used"]["nano"] / 30_000e9, abs=1e-6)


@pytest.fixture(scope="module")
def faces(demo: tuple[Path, str], report_json: str) -> Faces:
    return Faces.of(demo[0], {"report": demo[1].split("\nreport: ")[0], "report json": report_json})


@pytest.mark.slow
def test_equal_names_have_equal_numbers_on_every_face(faces: Faces) -> None:
    """Every amount that ``report``, ``waste``, ``findings`` and ``digest`` print, as text and as HTML, by the
    words that stand at it, against JSON, CSV and /metrics. One that no rule knows the name of fails as well.
    """
    shown = faces.shown()
    assert shown.conflicts() == []
    assert len(shown.shown) > 1_900
    assert {face for found in shown.shown.values() for face, _ in found} == {
        *("report", "report html", "waste", "findings", "digest", "digest html")
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    ("face", "said", "instead"),
    [
        ("report", "cost of it", "cost"),
        ("report", "of held", "of cost"),
        ("report", "not observed", "unknown"),
        ("report html", "Not observed<small>cost", "Unknown<small>cost"),
        ("report html", " USD in its last day", " USD a day at its rate of now"),
        ("digest", "Capacity", "Held by teams"),
        ("findings", "1,317.59", "1,317.95"),
    ],
)
def test_a_name_that_is_used_for_another_number_is_found(
    faces: Faces, face: str, said: str, instead: str
) -> None:
    text = faces.texts[face]
    assert said in text
    with pytest.raises(AssertionError):
        assert faces.shown({face: text.replace(said, instead.rjust(len(said)))}).conflicts() == []


@pytest.mark.slow
def test_what_findings_cost_follows_from_intervals_and_prices(demo: tuple[Path, str], faces: Faces) -> None:
    """Within a GPU-second, and within what that costs, of all findings: their last day and a day at their
    rate of now. All that a job's finding claims is in the waste ledger, which may have more."""
    folder, _ = demo
    found = list(Recomputed(folder / "ledger.db", folder / "recording").findings())
    listed = json.loads(faces.texts["findings json"])["findings"]
    assert {said.id for said, _ in found} == {row["id"] for row in listed}
    jobs = {row["finding"]: row for row in json.loads(faces.texts["report json"])["waste"]["jobs"]}
    whole = set[str]()
    for said, again in found:
        assert said.day.seconds == pytest.approx(again.day.seconds, abs=1), said
        assert said.day.money == pytest.approx(again.day.money, abs=0.002), said
        if said.daily is not None:
            assert said.daily == pytest.approx(again.daily, abs=0.002), said
        if said.id in jobs:
            board_s = jobs[said.id]["amount"]["board_ms"] / 1000
            assert again.life.seconds <= board_s + 1, said
            if again.life.seconds == pytest.approx(board_s, abs=1):
                cost = float(jobs[said.id]["amount"]["cost"])
                assert again.life.money == pytest.approx(cost, abs=0.002), said
                whole.add(said.name)
    assert {"embed-small", "finetune-five-of-eight"} <= whole


@pytest.mark.slow
def test_what_was_saved_is_what_the_simulator_took_away(demo: tuple[Path, str]) -> None:
    """Three servers that nobody called are deleted with September: GPUs x hours of October x the price that
    September's own intervals say, within 5 %; all else stands beside it, to the nano-unit."""
    done = CliRunner().invoke(
        app, ["--config", str(demo[0] / "config.yaml"), "savings", "2026-10", "-f", "json"]
    )
    assert done.exit_code == 0, done.stderr
    found = json.loads(done.stdout)
    with closing(sqlite3.connect(demo[0] / "ledger.db")) as connection:
        rows = connection.execute(
            "SELECT h.job, SUM(l.nano), SUM(l.board_ms) FROM usage_line l "
            "JOIN holder h ON h.id = l.holder_id GROUP BY h.job"
        )
        paid = {job: (nano, ms) for job, nano, ms in rows}
    removed = {
        each.name: Fraction(each.base * each.units * DEMO_MONTH.window.length_ms * paid[each.name][0])
        / paid[each.name][1]
        for each in FORGOTTEN
    }
    saved = {each["pattern"].rpartition("/")[2]: each for each in found["measured"]}
    assert saved.keys() == removed.keys()
    for name, each in saved.items():
        assert each["saved_nano"] == pytest.approx(float(removed[name]), rel=0.05)
        assert (each["now"]["nano"], each["why_not"]) == (0, "")
        others = sum(cause["nano"] for cause in each["others"])
        assert each["now"]["nano"] - each["before"]["nano"] == others - each["saved_nano"]
    assert found["saved_nano"] == sum(each["saved_nano"] for each in saved.values())
    assert found["saved_nano"] == sum(team["saved_nano"] for team in found["teams"])
    assert found["possible"]["nano"] == sum(team["possible"]["nano"] for team in found["teams"]) > 0


@pytest.mark.slow
def test_the_settings_of_a_run_name_its_prices_and_teams(demo: tuple[Path, str]) -> None:
    """Read again by the settings that the demo wrote, nothing changes."""
    words = ("ingest", "--from", "2026-10-15", "--to", "2026-10-17", "--again")
    done = CliRunner().invoke(app, ["--config", str(demo[0] / "config.yaml"), *words], catch_exceptions=False)
    assert done.exit_code == 0
    assert "48 of 48 windows read, 0 changed" in done.stdout
    assert done.stderr == ""


@pytest.mark.slow
def test_an_earlier_run_is_not_mixed_with_another(demo: tuple[Path, str]) -> None:
    done = CliRunner().invoke(app, ["demo", "--once", "--seed", "8", "--dir", str(demo[0])])
    assert done.exit_code == 2
    assert "ledger.db" in done.stderr


@pytest.mark.slow
def test_a_difference_is_not_hidden(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The line comes from the ledger: when a millisecond is missing, it says so and the exit code is 5."""
    monkeypatch.setattr(DemoMonth, "ingest", lambda *_: PipelineOutcome())
    # Findings have no part in it, and take most of the time.
    monkeypatch.setattr(DemoMonth, "detect", lambda *_: None)
    monkeypatch.setattr("gpucost.cli.commands.demo._show", lambda *_: None)
    result = CliRunner().invoke(app, ["demo", "--once", "--dir", str(tmp_path)])
    assert result.exit_code == 5
    last = result.stdout.splitlines()[-1]
    assert last.startswith("conservation: difference 299816640000 GPU-ms, ")
    assert last.endswith("nano-USD")
    assert last != LAST_LINE
    assert not ConservationDifference(1, 0, (), ()).is_zero


def wait_for_url(process: subprocess.Popen[str], part: str) -> str:
    assert process.stdout is not None
    for line in process.stdout:
        if part in line:
            return line.strip()
    raise AssertionError("the process ended without a URL")


@pytest.mark.slow
@pytest.mark.fault(69)
def test_serve_fills_a_ledger_answers_and_ends_on_sigterm(demo: tuple[Path, str], tmp_path: Path) -> None:
    folder, _ = demo
    (tmp_path / "settings.yaml").write_text(
        f"""
ledger: {{url: "sqlite:///{tmp_path / "l.db"}"}}
source: {{kind: recorded, path: {folder / "recording"}}}
pricing: {{book: {folder / "prices.yaml"}}}
teams: {{rules: {folder / "teams.yaml"}}}
ingest: {{start: 2026-10-31, batch: 6h}}
api: {{auth: "off", port: 0}}
""",
        encoding="utf-8",
    )
    process = subprocess.Popen(
        gpucost("--config", str(tmp_path / "settings.yaml"), "serve"),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        cwd=ROOT,
    )
    try:
        line = wait_for_url(process, "http://127.0.0.1:")
        base = line[line.index("http://") :].split()[0].rstrip("/")
        report = eventually(f"{base}/v1/reports/2026-10")
        assert report["capacity"]["difference_board_ms"] == 0
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.communicate()
    again = ["--config", str(tmp_path / "settings.yaml"), "month", "verify"]
    assert CliRunner().invoke(app, again).exit_code == 0


def eventually(url: str) -> dict[str, dict[str, int]]:
    """The JSON of ``url`` once it is there; the loop needs a moment for the first windows."""
    for _ in range(240):
        try:
            with urllib.request.urlopen(url, timeout=30) as response:
                found: dict[str, dict[str, int]] = json.load(response)
                return found
        except OSError:
            time.sleep(0.5)
    raise AssertionError(f"{url} never answered")


@pytest.mark.slow
@pytest.mark.fault(23)
def test_serve_ends_on_sigterm_though_the_source_hangs(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        (tmp_path / "settings.yaml").write_text(
            f"""
ledger: {{url: "sqlite:///{tmp_path / "ledger.db"}"}}
prometheus: {{url: "http://127.0.0.1:{silent.getsockname()[1]}"}}
api: {{port: 0, auth: "off"}}
""",
            encoding="utf-8",
        )
        process = subprocess.Popen(
            [sys.executable, "-c", _IMPATIENT, "--config", str(tmp_path / "settings.yaml"), "serve"],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            cwd=ROOT,
        )
        try:
            line = wait_for_url(process, "http://127.0.0.1:")
            with silent.accept()[0]:
                assert eventually(f"{line[line.index('http://') :].split()[0]}/healthz") == {"status": "ok"}
                process.send_signal(signal.SIGTERM)
                said, _ = process.communicate(timeout=50)
        finally:
            process.kill()
            process.wait()
    assert process.returncode == 0, said
    assert "the source does not answer" in said


_IMPATIENT = (
    "from gpucost.cli import main; from gpucost.cli.commands import serve; serve._GRACE_S = 1; main()"
)
