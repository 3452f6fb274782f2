"""The command line: what it prints, where, and with which exit code."""

from __future__ import annotations

import csv
import io
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner, Result

from benchmarks.report import PRICE, lines_of
from gpucost.cli.application import app
from gpucost.cli.docs import render
from gpucost.cli.terminal.exit_codes import EPILOG, ExitCode
from gpucost.domain.time import DAY_MS, MINUTE_MS, Month, Window
from gpucost.ledger.ledger import Ledger
from gpucost.telemetry.recorded_source import record
from tests.ledger.builders import ingest, line
from tests.service.worlds import frames
from tests.support.ledgers import new_ledger

ROOT = Path(__file__).parents[2]
Run = Callable[..., Result]

TEAMS = """
version: 1
teams: [{name: research, quota_gpus: 8}, {name: vision, quota_gpus: 8}]
rules:
  - {team: research, namespace: research}
  - {team: vision, namespace: vision}
"""
PRICES = """
version: 1
currency: USD
prices:
  - {model: H100, per_hour: "2.50", source: a test, retrieved: 2026-10-01}
"""


def _furnish(folder: Path) -> Run:
    """Prices, teams, and settings that name them and the recording; the command with these settings."""
    (folder / "teams.yaml").write_text(TEAMS, encoding="utf-8")
    (folder / "prices.yaml").write_text(PRICES, encoding="utf-8")
    (folder / "settings.yaml").write_text(
        f"""
ledger: {{url: "sqlite:///{folder / "ledger.db"}"}}
source: {{kind: recorded, path: {folder / "recording"}}}
pricing: {{book: {folder / "prices.yaml"}}}
teams: {{rules: {folder / "teams.yaml"}}}
""",
        encoding="utf-8",
    )

    def call(*words: str, config: bool = True) -> Result:
        first = ("--config", str(folder / "settings.yaml")) if config else ()
        return CliRunner().invoke(app, [*first, *words])

    return call


@pytest.fixture(scope="module")
def day(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recording of one day, and the ledger that becomes of it: made once, and copied for each test."""
    folder = tmp_path_factory.mktemp("day")
    record(folder / "recording", frames())
    result = _furnish(folder)("ingest", "--from", "2026-10-01", "--to", "2026-10-02")
    assert result.exit_code == ExitCode.OK, result.stderr
    return folder


@pytest.fixture
def folder(day: Path, tmp_path: Path) -> Path:
    """A recording of one day, prices, teams, and settings that name them."""
    shutil.copytree(day / "recording", tmp_path / "recording")
    _furnish(tmp_path)
    return tmp_path


@pytest.fixture
def run(folder: Path) -> Run:
    return _furnish(folder)


@pytest.fixture
def filled(run: Run, day: Path, folder: Path) -> Run:
    for file in day.glob("ledger.db*"):
        shutil.copy2(file, folder / file.name)
    return run


def test_ingest_reads_what_is_missing_and_says_so(run: Run) -> None:
    short = run("ingest", "--from", "2026-10-01T02:10:00Z", "--to", "2026-10-01T02:50:00Z")
    assert "c: no whole window of 1 h has ended in that time" in short.stdout
    first = run("ingest", "--from", "2026-10-01", "--to", "2026-10-02")
    assert "24 of 24 windows read, 24 changed" in first.stdout
    second = run("ingest", "--from", "2026-10-01", "--to", "2026-10-02")
    assert "0 of 0 windows read" in second.stdout
    assert "the ledger has all of it already" in second.stdout
    outside = run("ingest", "--from", "2026-10-05")
    assert "the source holds 2026-10-01T00:00:00Z/2026-10-02T00:00:00Z" in outside.stderr
    assert outside.exit_code == ExitCode.SOURCE
    again = run("ingest", "--from", "2026-10-01", "--to", "2026-10-02", "--again")
    assert "24 of 24 windows read, 0 changed" in again.stdout
    assert (first.exit_code, second.exit_code, again.exit_code) == (0, 0, 0)


def test_ingest_keeps_what_the_month_is_expected_to_cost(
    run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A day of October after August and September: thirty days are left of it."""

    def now() -> int:
        return Month(2026, 10).window.start_ms + DAY_MS

    monkeypatch.setattr("gpucost.cli.commands.ingest.now_ms", now)
    with Ledger.open(new_ledger(folder / "ledger.db"), now=now) as ledger:
        for day, window in enumerate(
            Window(Month(2026, 8).window.start_ms, Month(2026, 10).window.start_ms).split(DAY_MS)
        ):
            made = {"source": "test", "code_version": "test", "observed_ms": DAY_MS, "settle": True}
            ledger.ingest("c", window, lines_of(window, 8, day, 1), rates={PRICE.rate_id: PRICE}, **made)
    for _ in range(2):
        done = run("ingest", "--from", "2026-10-01", "--to", "2026-10-02")
        assert done.exit_code == ExitCode.OK, done.stderr
    with Ledger.open(f"sqlite:///{folder / 'ledger.db'}", now=now) as ledger:
        kept = {each.team: (each.month, each.days_left) for each in ledger.kept_forecasts()}
    assert kept["team-00"] == ("2026-10", 30)


def test_ingest_ends_with_how_much_of_it_has_no_price(run: Run, folder: Path) -> None:
    """The nodes of 16 H100 have no price for a day: 16 x 24 = 384 GPU-hours, all there are, in no cost."""
    (folder / "prices.yaml").write_text(PRICES.replace("H100", "A100-80GB"), encoding="utf-8")
    day = ("ingest", "--from", "2026-10-01", "--to", "2026-10-02")
    first = run(*day)
    assert first.exit_code == ExitCode.OK
    assert first.stderr.splitlines()[-1] == (
        "gpucost: c: 384.0 of 384.0 GPU-hours have no price, and are in no cost (100.0%): "
        "384.0 of H100 (n1, n2)"
    )
    assert "no price" not in run(*day).stderr, "nothing was read"
    (folder / "prices.yaml").write_text(PRICES, encoding="utf-8")
    assert "no price" not in run(*day, "--again").stderr


def test_the_report_names_the_cost_centre_and_the_budget_of_the_rules(filled: Run, folder: Path) -> None:
    rules = TEAMS.replace("{name: research,", "{name: research, cost_centre: CC-7, monthly_budget: 1000,")
    (folder / "teams.yaml").write_text(rules, encoding="utf-8")
    found = json.loads(filled("report", "2026-10", "--format", "json").stdout)["teams"]
    own = {row["row"]["group"]["team"]: (row["cost_centre"], row["budget"]) for row in found}
    centre, budget = own["research"]
    assert (centre, budget["monthly"], budget["currency"]) == ("CC-7", "1000.000000000", "USD")
    assert (own["vision"], budget["provisional"]) == ((None, None), True)
    assert "CC-7" in filled("report", "2026-10").stdout


def test_again_rates_an_open_month_anew(filled: Run, folder: Path) -> None:
    (folder / "prices.yaml").write_text(PRICES.replace("2.50", "5.00"), encoding="utf-8")
    result = filled("ingest", "--from", "2026-10-01", "--to", "2026-10-02", "--again")
    assert "24 changed" in result.stdout
    assert f"prices: {folder / 'prices.yaml'}; teams: {folder / 'teams.yaml'}" in result.stdout
    assert "1 rate in these windows that this price book does not give (H100@" in result.stderr
    again = filled("ingest", "--from", "2026-10-01", "--to", "2026-10-02", "--again")
    assert again.stderr == "", "now the ledger has the rates of this book"
    report = json.loads(filled("report", "2026-10", "--format", "json").stdout)
    assert report["totals"]["held"]["cost"] == "463.750000000"


def test_the_report_in_every_format(filled: Run, folder: Path) -> None:
    table = filled("report", "2026-10")
    assert table.exit_code == 0
    for text in ("research", "81.88", "vision", "150.00", "H100", "difference 0 GPU-ms"):
        assert text in table.stdout
    assert json.loads(filled("report", "2026-10", "-f", "json").stdout)["month"] == "2026-10"
    rows = list(csv.DictReader(io.StringIO(filled("report", "2026-10", "-f", "csv").stdout)))
    assert {row["section"] for row in rows} >= {"team", "job", "model"}
    for format_ in ("html", "parquet"):
        target = folder / f"r.{format_}"
        result = filled("report", "2026-10", "-f", format_, "-o", str(target))
        assert (result.exit_code, result.stdout) == (0, "")
        assert target.stat().st_size > 1000
    assert not list(folder.glob(".r.*")), "no half-written file is left"


def test_allocations_and_job(filled: Run) -> None:
    window = "2026-10-01T00:00:00Z/2026-10-02T00:00:00Z"
    table = filled("allocations", window, "--group-by", "team,model", "--idle", "by_quota")
    assert table.exit_code == 0, table.stderr
    assert "research" in table.stdout
    found = json.loads(
        filled("allocations", window, "--filter", "team=vision", "--step", "12h", "-f", "json").stdout
    )
    assert {row["group"]["team"] for row in found["rows"]} == {"vision"}
    job = filled("job", "job-train", "--progress", "steps")
    assert "train" in job.stdout
    # 500 steps in the one hour in which they were counted, of eight: 10 USD of 80.
    assert "steps: 0.020000000 USD each" in job.stdout
    assert "500 counted by 1 pod in 12% of its GPU time" in job.stdout
    assert json.loads(filled("job", "job-train", "-f", "json").stdout)["held"]["cost"] == "80.000000000"


def test_a_job_of_a_folded_month_is_told_by_day(filled: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its sums and its trace stay; that its window is whole days is said."""
    before = json.loads(filled("job", "job-train", "-f", "json").stdout)
    assert before["folded_days"] == []
    assert "kept by day" not in filled("job", "job-train").stdout
    filled("month", "close", "2026-10", "--reason", "one day", "--author", "ada")
    monkeypatch.setattr("gpucost.cli.commands.ledger.now_ms", lambda: 2_000_000_000_000)
    assert "2026-10 folded by day" in filled("ledger", "prune").stdout
    found = json.loads(filled("job", "job-train", "-f", "json").stdout)
    day = {"start": "2026-10-01T00:00:00Z", "end": "2026-10-02T00:00:00Z"}
    assert found["folded_days"] == [day]
    assert found["window"] == day != before["window"]
    changed = {name for name in before if before[name] != found[name]}
    assert changed == {"folded_days", "window", "account", "ledger", "progress"}
    # In which hours it counted is gone with the hours: all of the day is what was counted in.
    [hour], [whole] = before["progress"], found["progress"]
    assert (hour["coverage"], hour["counted"]) == (0.125, "10.000000000")
    assert (whole["coverage"], whole["counted"], whole["amount"]) == (1.0, "80.000000000", hour["amount"])
    assert found["account"] | {"assessment": None} == before["account"] | {"assessment": None}
    told = filled("job", "job-train").stdout
    assert "2026-10-01 is kept by day: the sums are whole, the hours are gone." in told


def test_a_filter_that_matches_nothing_is_said(filled: Run) -> None:
    words = ("allocations", "2026-10", "--filter", "team=vision", "--filter", "model=none")
    assert filled(*words).stdout == "nothing matches --filter team=vision --filter model=none in 2026-10\n"
    document = filled(*words, "-f", "json")
    assert json.loads(document.stdout)["rows"] == []
    assert "nothing matches" in document.stderr


def test_a_key_for_a_team_that_nobody_knows_is_remarked_on(filled: Run) -> None:
    made = filled("key", "add", "ada", "--team", "reserach", "--team", "vision")
    assert made.exit_code == ExitCode.OK
    first, *_ = made.stderr.splitlines()
    known = "is neither in the team rules nor in 2026-10 of the ledger; did you mean research?"
    assert first == f"gpucost: the team 'reserach' {known}"
    assert made.stdout.startswith("gpc_ada_")
    assert "team rules" not in filled("key", "add", "eve", "--team", "vision").stderr


def test_an_adjustment_names_what_is_known(filled: Run) -> None:
    def adjust(team: str, *more: str) -> Result:
        words = ("--amount=1", "--reason=r", "--reference=T-1", "--author=ada")
        return filled("month", "adjust", "2026-10", f"--team={team}", *words, *more)

    opened = adjust("research")
    assert opened.exit_code == ExitCode.LEDGER
    assert opened.stderr.startswith("gpucost: 2026-10 is open")
    close = ("month", "close", "2026-10", "--author", "ada", "--reason", "a test month")
    assert "\n2026-10 closed by ada" in filled(*close).stdout
    again = filled(*close)
    assert again.stdout.startswith("2026-10 already closed by ada")
    assert again.stderr == "gpucost: 2026-10 stays as it was closed: this --reason is not recorded\n"
    misspelt = adjust("reserach")
    assert misspelt.exit_code == ExitCode.USAGE
    near = "research (did you mean this?), or another of: research, vision; another one"
    assert f"--team: 'reserach' is not allowed; allowed: {near}" in misspelt.stderr
    assert "--job: 'nobody'" in adjust("research", "--job=nobody").stderr
    assert adjust("research", "--job=job-train").stdout.startswith("2026-10 research: 1.000000000 USD, T-1")
    assert adjust("research", "--job=job-train").stdout.startswith("already recorded: 2026-10 research")
    assert adjust("newcomers", "--new-team").exit_code == ExitCode.OK


def test_a_month_without_windows_has_nothing_to_verify(filled: Run) -> None:
    verified = filled("month", "verify", "2026-01")
    assert verified.stdout.startswith(
        "2026-01: nothing to verify, no windows in the ledger: it holds 2026-10-01"
    )
    assert verified.exit_code == ExitCode.OK
    assert filled("month", "status", "2026-01").stdout.startswith("2026-01 no windows in the ledger")


@pytest.mark.parametrize(
    "words",
    [
        ("report", "2026-10"),
        ("allocations", "2026-10"),
        ("job", "x"),
        ("month", "status"),
        ("month", "verify"),
    ],
)
def test_reading_makes_no_ledger(words: tuple[str, ...], run: Run, folder: Path) -> None:
    result = run(*words)
    assert result.exit_code == ExitCode.LEDGER
    assert result.stderr.startswith(f"gpucost: ledger.url sqlite:///{folder / 'ledger.db'}: no such ledger")
    assert not (folder / "ledger.db").exists()


def test_errors_of_the_database_name_the_setting_without_secrets(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = "postgresql+psycopg://ann:hunter2@127.0.0.1:9/costs?application_name=hunter2"
    monkeypatch.setenv("GPUCOST_LEDGER__URL", url)
    result = run("report", "2026-10")
    assert result.exit_code == ExitCode.LEDGER
    assert result.stderr.startswith("gpucost: ledger.url postgresql+psycopg://127.0.0.1:9/costs: ")
    assert "hunter2" not in result.stderr
    monkeypatch.setenv("GPUCOST_LEDGER__URL", "oracle://ann:hunter2@h/x")
    assert run("report", "2026-10").stderr.startswith("gpucost: ledger.url: 'oracle://")


def test_the_argument_parser_speaks_plainly(filled: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "Value error" not in filled("report", "2026-10", "-f", "xml").stderr
    assert "it is a global option and stands before" in filled("report", "2026-10", "--config", "x").stderr
    monkeypatch.setenv("GPUCOST_API__AUTH", "maybe")
    assert filled("report", "2026-10").stderr.endswith("allowed: required or off\n")


@pytest.mark.parametrize("columns", [80, 120])
def test_no_number_is_cut(columns: int, filled: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    from rich.console import Console

    from gpucost.cli.terminal.output import stdout

    def narrow(*, whole: bool = False) -> Console:
        return stdout(whole=True) if whole else Console(width=columns, highlight=False)

    for module in ("reports", "prices"):
        monkeypatch.setattr(f"gpucost.cli.commands.{module}.stdout", narrow)
    job = filled("job", "job-train").stdout
    assert "2.50 USD/h = 80" in " ".join(job.split())
    assert "on 1 node" in job
    assert "1 nodes" not in job
    dims = "--group-by=team,model,namespace"
    table = filled("allocations", "2026-10", dims, "--idle=proportional", "--filter=team=research").stdout
    assert "81.88" in table
    assert "…" not in table
    shown = filled("prices", "show").stdout
    assert "2.5000" in shown
    assert "2026-10-01" in shown


def test_what_a_close_would_leave_open_is_shown_and_nothing_is_closed(filled: Run) -> None:
    shown = filled("month", "close", "2026-10", "--dry-run")
    assert shown.exit_code == ExitCode.OK, shown.stderr
    said = shown.stdout.splitlines()
    assert any(" ".join(line.split()) == "vision 60.0 GPU-h 150.00" for line in said), shown.stdout
    assert "  gap: c: 1 h of 2026-10-01T10:00:00Z/2026-10-01T11:00:00Z not observed, no team's" in said
    assert "  provisional: 24 windows: detectors may still find other waste in them" in said
    assert "  not ready: c: no window in 2026-10-02T00:00:00Z/2026-11-01T00:00:00Z" in said
    assert said[-1] == "nothing was closed; closing needs --reason"
    assert "2026-10 open" in filled("month", "status").stdout
    # Warnings are one thing, windows that are not there another.
    assert filled("month", "close", "2026-10", "--yes").exit_code == ExitCode.LEDGER


def test_a_whole_month_with_time_that_nobody_saw_is_closed_with_a_yes(run: Run, folder: Path) -> None:
    """Days of one line each; of the twelfth 40 minutes were not observed, and the last has no price."""
    october = Month(2026, 10)
    days = [
        Window(october.window.start_ms + n * DAY_MS, october.window.start_ms + (n + 1) * DAY_MS)
        for n in range(31)
    ]
    with Ledger.open(new_ledger(folder / "ledger.db"), now=lambda: october.window.end_ms) as ledger:
        for n, each in enumerate(days):
            unpriced = {"rate_id": "", "nano": None, "unpriced_ms": each.length_ms} if n == 30 else {}
            row = line(each, **unpriced)
            ingest(ledger, each, row, observed_ms=each.length_ms - (n == 11) * 40 * MINUTE_MS)
    warned = run("month", "close", "2026-10", "--author", "ada")
    assert warned.exit_code == ExitCode.LEDGER
    assert "2 warnings above; --yes closes it all the same" in warned.stderr
    said = warned.stdout.splitlines()
    cluster = "alpha"
    assert (
        f"  gap: {cluster}: 40 min of 2026-10-12T00:00:00Z/2026-10-13T00:00:00Z not observed, no team's"
        in said
    )
    assert "  unpriced: 24.0 GPU-hours have no price and are in no amount" in said
    shown = run("month", "close", "2026-10", "--dry-run")
    assert shown.stdout.splitlines()[-1] == "nothing was closed; closing needs --yes or --reason"
    closed = run("month", "close", "2026-10", "--author", "ada", "--yes")
    assert closed.exit_code == ExitCode.OK, closed.stderr
    assert "2026-10 closed by ada, digest " in closed.stdout
    again = run("month", "close", "2026-10", "--dry-run")
    assert again.stdout.splitlines()[-1] == "2026-10 is already closed"


def test_months_are_closed_adjusted_and_verified(filled: Run, folder: Path) -> None:
    status = filled("month", "status")
    assert "2026-10 open" in status.stdout
    refused = filled("month", "close", "2026-10", "--author", "ada")
    assert refused.exit_code == ExitCode.LEDGER
    assert "2026-10 cannot be closed without a reason" in refused.stderr
    closed = filled("month", "close", "2026-10", "--author", "ada", "--reason", "a test month")
    assert closed.exit_code == ExitCode.OK, closed.stderr
    words = (
        "--team",
        "research",
        "--amount=-10.5",
        "--reason",
        "credit",
        "--reference",
        "T-1",
        "--author",
        "ada",
    )
    assert filled("month", "adjust", "2026-10", *words).exit_code == ExitCode.OK
    report = json.loads(filled("report", "2026-10", "-f", "json").stdout)
    assert report["provenance"]["state"] == "closed"
    assert report["totals"]["adjustments"]["cost"] == "-10.500000000"
    assert filled("month", "verify").exit_code == ExitCode.OK
    late = filled("ingest", "--from", "2026-10-01", "--to", "2026-10-02", "--again")
    assert late.exit_code == ExitCode.OK, "the same content is no change, even of a closed month"
    assert filled("month", "verify", "2026-10").exit_code == ExitCode.OK
    del folder


@pytest.mark.fault(41)
def test_verify_finds_what_was_changed_behind_the_ledgers_back(filled: Run, folder: Path) -> None:
    import sqlite3

    with sqlite3.connect(folder / "ledger.db") as connection:
        connection.execute("UPDATE usage_line SET nano = nano + 1 WHERE bucket = 'held'")
    connection.close()
    result = filled("month", "verify")
    assert result.exit_code == ExitCode.VERIFICATION
    assert "2026-10" in result.stderr


def test_late_data_for_a_closed_month_is_refused_with_a_proposal(filled: Run, folder: Path) -> None:
    filled("month", "close", "2026-10", "--author", "ada", "--reason", "a test month")
    (folder / "prices.yaml").write_text(PRICES.replace("2.50", "5.00"), encoding="utf-8")
    result = filled("ingest", "--from", "2026-10-01", "--to", "2026-10-02", "--again")
    assert result.exit_code == ExitCode.LEDGER
    assert "to correct it, adjust" in result.stderr


AWAY = "--source=prometheus:http://127.0.0.1:9"
WRONG = {
    "month": (("report", "2026-13"), "MONTH: '2026-13'"),
    "team": (("report", "2026-10", "--team", "visoin"), "--team: 'visoin'"),
    "empty month": (("report", "2031-01"), "MONTH: '2031-01'"),
    "job": (("job", "nobody"), "NAME: 'nobody'"),
    "dimension": (("allocations", "2026-10", "--group-by", "tea"), "--group-by: 'tea'"),
    "filter": (("allocations", "2026-10", "--filter", "team"), "--filter: 'team'"),
    "step": (("allocations", "2026-10", "--step", "1"), "--step: '1'"),
    "two filters in one": (
        ("allocations", "2026-10", "--filter", "team=vision,model=H100"),
        "--filter: 'team=vision,model=H100'",
    ),
    "filter by what is no dimension": (("allocations", "2026-10", "--filter", "tea=x"), "--filter: 'tea'"),
    "window without windows": (("allocations", "2031-01"), "WINDOW: '2031-01'"),
    "window": (("allocations", "x"), "WINDOW: 'x'"),
    "progress": (("job", "job-train", "--progress", "x"), "--progress: 'x'"),
    "url": (("ingest", "--source", "prometheus:ftp://x"), "prometheus.url: 'ftp://x'"),
    "key without a team": (("key", "add", "a"), "--team: missing"),
    "key with role and team": (("key", "add", "a", "--role", "finance", "--team", "x"), "--team: 'x'"),
    "expired key": (
        ("key", "add", "a", "--team", "x", "--expires", "2020-01-01"),
        "--expires: '2020-01-01'",
    ),
    "source": (("ingest", "--source", "graphite:x"), "--source: 'graphite:x'"),
    "time": (("ingest", "--from", "yesterday"), "--from: 'yesterday'"),
    "time of a source that is away": (("ingest", AWAY, "--to", "x"), "--to: 'x'"),
    "times": (("ingest", AWAY, "--from=2026-10-02", "--to=2026-10-01"), "window: '2026-10-02T00:00:00Z/"),
    "cluster": (("ingest", "--cluster", "x"), "--cluster: 'x'"),
    "amount": (
        ("month", "adjust", "2026-10", "--team=a", "--amount=1e3", "--reason=r", "--reference=t"),
        "--amount: '1e3'",
    ),
    "output": (("report", "2026-10", "-f", "json", "-o", "/nonexistent/x"), "--output: '/nonexistent/x'"),
    "table to a file": (("report", "2026-10", "-o", "x"), "--output: 'x'"),
    "key id": (("key", "hash", "A B", "--team", "x"), "ID: 'A B'"),
    "serve elsewhere": (("serve", "--host", "999.1.1.1"), "api.host and api.port: '999.1.1.1:8080'"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_input_is_one_sentence_and_exit_code_2(case: str, filled: Run) -> None:
    words, start = WRONG[case]
    result = filled(*words)
    assert result.exit_code == ExitCode.USAGE
    assert result.stderr.startswith(f"gpucost: {start}") or f": {start}" in result.stderr
    assert "allowed: " in result.stderr
    assert result.stderr.count("\n") == 1
    assert result.stdout == ""


@pytest.mark.parametrize(
    "words",
    [("report", "--nope", "2026-10"), ("nope",), ("report",), ("month", "close"), ("serve", "--port", "x")],
)
def test_unknown_and_missing_words_are_named(words: tuple[str, ...], run: Run) -> None:
    result = run(*words)
    assert result.exit_code == ExitCode.USAGE
    assert any(word.lstrip("-") in result.stderr for word in (*words, "MONTH"))
    assert "Traceback" not in result.stderr


@pytest.mark.fault(67)
def test_wrong_settings_stop_every_command(run: Run, folder: Path) -> None:
    (folder / "settings.yaml").write_text("ledger: {urll: x}", encoding="utf-8")
    for words in (("report", "2026-10"), ("ingest",), ("serve",), ("month", "status"), ("prices", "check")):
        result = run(*words)
        assert result.exit_code == ExitCode.USAGE
        assert f"{folder / 'settings.yaml'}:1: ledger.urll: unknown key" in result.stderr


@pytest.mark.fault(67)
def test_wrong_prices_and_teams_stop_the_start(run: Run, folder: Path) -> None:
    (folder / "prices.yaml").write_text(PRICES.replace("per_hour", "per_our"), encoding="utf-8")
    assert "prices.yaml:5: prices[0].per_our" in run("ingest").stderr
    (folder / "prices.yaml").write_text(PRICES, encoding="utf-8")
    (folder / "teams.yaml").write_text(TEAMS.replace("name: vision", "name: research"), encoding="utf-8")
    result = run("ingest")
    assert result.exit_code == ExitCode.USAGE
    assert "teams.yaml" in result.stderr


def test_a_source_that_does_not_answer_is_exit_code_3(run: Run) -> None:
    result = run("ingest", AWAY)
    assert result.exit_code == ExitCode.SOURCE
    assert "127.0.0.1:9 cannot be reached: connection refused; is prometheus.url right?" in result.stderr


def test_an_unexpected_error_is_a_sentence_unless_debug(filled: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Ledger, "month", lambda *_, **__: 1 / 0)
    result = filled("month", "status")
    assert result.exit_code == ExitCode.UNEXPECTED
    assert result.stderr.startswith("gpucost: unexpected ZeroDivisionError")
    assert "Traceback" not in result.stderr


def test_prices_are_checked_and_shown(run: Run, folder: Path) -> None:
    checked = run("prices", "check")
    assert "valid, 1 row in USD" in checked.stdout
    shown = run("prices", "show", "--model", "h100")
    assert "2.5000" in shown.stdout
    assert "a test" in run("prices", "show", "--sources").stdout
    assert "nothing matches 'FOO' among 1 row" in run("prices", "show", "--model", "FOO").stdout
    assert run("prices", "check", str(folder / "teams.yaml")).exit_code == ExitCode.USAGE


def test_a_key_is_shown_once_and_its_settings_hold_the_hash(run: Run, folder: Path) -> None:
    from gpucost.access.keys import hash_secret
    from gpucost.service.settings.loader import load_settings

    result = run("key", "hash", "ada", "--team", "research")
    key = result.stderr.strip().rpartition(" ")[2]
    (folder / "keys.yaml").write_text(result.stdout, encoding="utf-8")
    (stored,) = load_settings(folder / "keys.yaml").api.keys
    assert (stored.id, stored.teams) == ("ada", frozenset({"research"}))
    assert key.startswith("gpc_ada_")
    assert stored.sha256 == hash_secret(key.removeprefix("gpc_ada_"))
    assert key.removeprefix("gpc_ada_") not in result.stdout


def test_the_documentation_is_up_to_date() -> None:
    page = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    assert page == render(), "run: python -m gpucost.cli.docs > docs/cli.md"


def test_the_documentation_leaves_out_hidden_options(monkeypatch: pytest.MonkeyPatch) -> None:
    small = typer.Typer(add_completion=False)

    @small.command()
    def show(
        seen: Annotated[bool, typer.Option("--seen", help="What it does.")] = False,
        unseen: Annotated[bool, typer.Option("--unseen", hidden=True)] = False,
    ) -> None:
        """Show it."""
        print(seen, unseen)

    monkeypatch.setattr("gpucost.cli.docs.app", small)
    page = render()
    assert "| `--seen` | What it does. |" in page
    assert "unseen" not in page


def test_help_lists_the_exit_codes(run: Run) -> None:
    text = " ".join(run("--help", config=False).stdout.split())
    assert " ".join(EPILOG.split()) in text
    assert all(f"{code.value} " in EPILOG for code in ExitCode)


def test_the_version_needs_no_settings(run: Run, folder: Path) -> None:
    (folder / "settings.yaml").write_text("nonsense: 1", encoding="utf-8")
    assert run("--version").stdout.startswith("gpucost ")


def test_help_does_not_load_pandas_or_sql() -> None:
    program = (
        "import sys; from gpucost.cli.application import app; from typer.testing import CliRunner;"
        "assert CliRunner().invoke(app, ['ingest', '--help']).exit_code == 0;"
        "print([name for name in ('pandas', 'sqlalchemy', 'fastapi', 'pyarrow') if name in sys.modules])"
    )
    found = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert found.stdout.strip() == "[]"
