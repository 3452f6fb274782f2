"""A month straight from a Prometheus that has what clusters scrape anyway."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from gpucost.cli.application import app
from gpucost.cli.terminal.exit_codes import ExitCode
from gpucost.domain.time import HOUR_MS, MINUTE_MS, Window, iso, parse_instant
from tests.support.existing.text import Scrapes, Series, Target, Writer
from tests.support.existing.totals import truth_of
from tests.support.existing.variants import Variant, variants, write_second
from tests.support.prometheus import create_blocks, needs_prometheus, running_prometheus

pytestmark = [needs_prometheus, pytest.mark.prometheus, pytest.mark.slow]

Run = Callable[..., Result]
VARIANT: Variant = next(each for each in variants(MINUTE_MS) if each.name == "restarted")
"""Half of the second of October."""
OPENCOST = Target({"cluster": "restarted", "job": "opencost", "instance": "10.2.0.77:9003"}, True)
L4_HOUR = 4.60
UNSET = "h100-1"
"""A node of eight GPUs with 0.00396 for each by OpenCost, and 6.88 by the price book."""


def prices() -> Iterator[Series]:
    """Of the node whose model the book has no price for."""
    node = {"node": "l4-1", "instance": "l4-1", "instance_type": "g6.12xlarge", "region": "eu-west-1"}
    for name, value in (("node_total_hourly_cost", L4_HOUR), ("node_gpu_hourly_cost", 0.4)):
        yield Series(name, node, value, VARIANT.window.start_ms, VARIANT.window.end_ms)
    # No price of this one was set.
    unset = {"node": UNSET, "instance": UNSET, "instance_type": "p5.48xlarge", "region": "eu-west-1"}
    yield Series("node_total_hourly_cost", unset, 0.03168, VARIANT.window.start_ms, VARIANT.window.end_ms)


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("month")
    write_second([VARIANT], folder / "blocks")
    writer = Writer()
    writer.add(OPENCOST, Scrapes(VARIANT.window, MINUTE_MS), prices())
    create_blocks(writer.text(), folder / "blocks")
    with running_prometheus(folder / "blocks") as found:
        yield found


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """In a folder without settings: nothing is installed."""
    monkeypatch.chdir(tmp_path)
    return lambda *words: CliRunner().invoke(app, list(words), env={"COLUMNS": None})


def test_the_month_comes_out_of_the_series_alone(url: str, run: Run, tmp_path: Path) -> None:
    result = run("report", "2026-10", "--prometheus", url, "-f", "json")
    assert result.exit_code == ExitCode.OK, result.stderr
    report = json.loads(result.stdout)
    (cluster,) = report["provenance"]["clusters"]
    last_ms = parse_instant(cluster["until"])
    assert VARIANT.window.end_ms - MINUTE_MS <= last_ms < VARIANT.window.end_ms
    truth = truth_of(VARIANT.world, Window(VARIANT.window.start_ms, last_ms))
    held = report["totals"]["held"]["board_ms"]
    assert held == pytest.approx(float(sum(truth.held.values())), rel=0.005)
    rows = {row["number"]: row for row in report["methods"]}
    off = rows["held time and cost"]["off_board_ms"]
    assert 0 < off < 0.005 * held
    assert abs(held - float(sum(truth.held.values()))) <= off
    assert "kube-state-metrics" in rows["held time and cost"]["method"]
    (source,) = report["provenance"]["sources"]
    assert source.startswith("kube-state-metrics and dcgm-exporter in prometheus http://127.0.0.1:")
    assert report["capacity"]["difference_board_ms"] == report["capacity"]["difference_nano"] == 0
    assert report["waste"] is None
    assert list(tmp_path.iterdir()) == []


def test_what_the_book_has_no_price_for_is_priced_by_opencost(url: str, run: Run) -> None:
    report = json.loads(run("report", "2026-10", "--prometheus", url, "-f", "json").stdout)
    (found,) = [rate for rate in report["provenance"]["rates"] if rate["matched_by"] == "node"]
    boards = VARIANT.world.node("l4-1").boards
    assert found["price_nano"] == round(L4_HOUR / boards * 10**9)
    assert found["source"] == f"OpenCost node_total_hourly_cost / {boards} boards"


def test_on_a_terminal_cost_comes_first_and_then_the_whole(url: str, run: Run, tmp_path: Path) -> None:
    piped = run("report", "2026-10", "--prometheus", url)
    assert FIRST not in piped.stdout
    shown = on_terminal(("report", "2026-10", "--prometheus", url), tmp_path)
    first, _, rest = shown.partition(FIRST)
    said = re.search(r"([\d,.]+) USD for ([\d,.]+ GPU-hours)", piped.stdout)
    assert said is not None
    assert all(each in part for each in said.groups() for part in (first, rest))
    assert "Use was not read" in first
    assert "How exact this is" not in first
    assert "Use was not read" not in rest
    assert "How exact this is" in rest


FIRST = "That is what is paid, without use yet."


def on_terminal(words: tuple[str, ...], folder: Path) -> str:
    """What a terminal of 120 columns shows of a command that runs in ``folder``."""
    ours, its = pty.openpty()
    command = [sys.executable, "-c", "from gpucost.cli import main; main()", *words]
    environment = {**os.environ, "COLUMNS": "120", "TERM": "dumb", "XDG_CACHE_HOME": str(folder / "cache")}
    with subprocess.Popen(command, stdout=its, stderr=subprocess.DEVNULL, cwd=folder, env=environment):
        os.close(its)
        parts = []
        with suppress(OSError):  # how a terminal says that nobody writes to it any more
            while part := os.read(ours, 65_536):
                parts.append(part)
    os.close(ours)
    return b"".join(parts).decode()


def test_cost_only_is_the_same_cost_and_says_that_use_was_not_read(url: str, run: Run) -> None:
    full, cost = (
        json.loads(run("report", "2026-10", "--prometheus", url, "-f", "json", *words).stdout)
        for words in ((), ("--cost-only",))
    )
    for part in ("capacity", "comparison"):
        assert cost[part] == full[part]
    assert cost["totals"]["held"] == full["totals"]["held"]
    assert [each["row"]["held"] for each in cost["teams"]] == [each["row"]["held"] for each in full["teams"]]
    assert full["totals"]["utilisation"]["busy"] is not None
    assert cost["totals"]["utilisation"]["busy"] is None
    rows = {row["number"]: row for row in cost["methods"]}
    assert rows["busy time"]["method"] == rows["energy"]["method"] == "not read"
    assert [row["coverage"] for row in cost["methods"][:2]] == [
        row["coverage"] for row in full["methods"][:2]
    ]
    assert rows["capacity"]["method"] == "capacity and allocatable of kube-state-metrics"
    [source] = cost["provenance"]["sources"]
    assert source.startswith("kube-state-metrics in prometheus http://127.0.0.1:")
    assert not [each for each in cost["problems"] if each["code"].startswith("use_")]
    page = run("report", "2026-10", "--prometheus", url, "--cost-only", "-f", "html").stdout
    assert "Use was not read (--cost-only)" in page.partition("</header>")[0]
    assert "never observed</dd>" not in page
    for words in ((), ("--short",)):
        table = run("report", "2026-10", "--prometheus", url, "--cost-only", *words)
        assert "Use was not read (--cost-only)" in table.stdout
        assert "--waste" not in table.stderr


@pytest.mark.parametrize("words", [("--prometheus", "http://127.0.0.1:1", "--waste"), ()])
def test_cost_only_is_of_a_prometheus_and_without_waste(run: Run, words: tuple[str, ...]) -> None:
    result = run("report", "2026-10", "--cost-only", *words)
    assert result.exit_code == ExitCode.USAGE
    assert "--cost-only" in result.stderr


@pytest.mark.parametrize("option", ["--waste", "--refresh"])
def test_what_is_of_a_prometheus_is_refused_without_one(run: Run, option: str) -> None:
    result = run("report", "2026-10", option)
    assert result.exit_code == ExitCode.USAGE
    assert f"{option}: given; allowed: with --prometheus only" in result.stderr


def test_a_table_says_how_exact_it_is(url: str, run: Run) -> None:
    result = run("report", "2026-10", "--prometheus", url)
    assert result.exit_code == ExitCode.OK
    assert "How exact this is" in result.stdout
    assert "with --waste, where the capacity went is said too" in result.stderr


def test_with_waste_what_nobody_tells_is_not_zero(url: str, run: Run) -> None:
    result = run("report", "2026-10", "--prometheus", url, "--waste")
    assert result.exit_code == ExitCode.OK, result.stderr
    assert "Not told by what was read: gang stall, preempted, starved" in " ".join(result.stdout.split())
    assert "Starved" not in result.stdout


def test_opencost_is_compared_with_a_month_that_is_read_now(url: str, run: Run) -> None:
    result = run("compare", "opencost", "2026-10", "--prometheus", url, "-f", "json")
    assert result.exit_code == ExitCode.OK, result.stderr
    assert json.loads(result.stdout)["rows"]


@pytest.fixture
def first(tmp_path: Path, url: str) -> Path:
    """Settings in which OpenCost's prices are first."""
    file = tmp_path / "first.yaml"
    ledger = f"ledger: {{url: 'sqlite:///{tmp_path / 'ledger.db'}'}}"
    source = f"source: {{kind: prometheus}}\nprometheus: {{url: '{url}'}}"
    file.write_text(f"{ledger}\n{source}\npricing: {{opencost: first}}\n", encoding="utf-8")
    return file


DOUBT = (
    "0.00396 USD per GPU-hour by OpenCost node_total_hourly_cost / 8 boards, but 6.88 by the price book "
    "(H100/on-demand): more than 5 times apart"
)


def test_a_price_that_nobody_set_is_told_wherever_it_is_used(url: str, run: Run, first: Path) -> None:
    words = ("--config", str(first))
    report = json.loads(run(*words, "report", "2026-10", "--prometheus", url, "-f", "json").stdout)
    (told,) = [each for each in report["problems"] if each["code"] == "price_doubtful"]
    assert told["subject"] == UNSET
    assert told["detail"].startswith(DOUBT)
    assert told["detail"].endswith("set OpenCost's prices, or pricing.opencost to fallback")
    compared = run(*words, "compare", "opencost", "2026-10", "--prometheus", url, "-f", "json")
    hour = VARIANT.window.start_ms // HOUR_MS * HOUR_MS + HOUR_MS
    span = ("--from", iso(hour), "--to", iso(hour + HOUR_MS))
    for said in (compared, run(*words, "ingest", *span)):
        assert said.exit_code == ExitCode.OK, said.stderr
        assert said.stderr.count(f"the price of {UNSET}: {DOUBT}") == 1


def test_without_that_setting_the_book_is_used_and_nothing_is_said(url: str, run: Run) -> None:
    report = json.loads(run("report", "2026-10", "--prometheus", url, "-f", "json").stdout)
    assert "price_doubtful" not in {each["code"] for each in report["problems"]}


def test_the_doctor_tells_of_it_too(url: str, run: Run, first: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpucost.cli.commands.doctor.now_ms", lambda: VARIANT.window.end_ms)
    answer = run("--config", str(first), "doctor", "--prometheus", url, "--month", "2026-10", "-f", "json")
    (cluster,) = json.loads(answer.stdout)["clusters"]
    found = cluster["features"]["prices"]
    assert (found["works"], found["why"].partition(": ")[0]) == ("in part", f"of 1 node, such as {UNSET}")
    assert DOUBT in found["why"]


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        (("--prometheus", "nonsense"), ExitCode.USAGE, "--prometheus: 'nonsense' is not allowed"),
        (("--prometheus", "http://127.0.0.1:1"), ExitCode.SOURCE, "connection refused"),
        (("--prometheus", "URL", "--cluster", "other"), ExitCode.USAGE, "--cluster: 'other' is not allowed"),
    ],
)
def test_what_is_wrong_is_one_sentence(
    words: tuple[str, ...], code: ExitCode, sentence: str, url: str, run: Run
) -> None:
    result = run("report", "2026-10", *(url if word == "URL" else word for word in words))
    assert (result.exit_code, result.stdout) == (code, "")
    assert sentence in " ".join(result.stderr.split())


def test_a_month_that_is_not_there_leads_to_the_doctor(url: str, run: Run) -> None:
    result = run("report", "2026-08", "--prometheus", url)
    assert (result.exit_code, result.stdout) == (ExitCode.SOURCE, "")
    command = f"gpucost doctor --prometheus {url} --month 2026-08"
    assert f"nothing of 2026-08 could be read; {command} says why" in result.stderr


def test_the_doctor_is_called_with_the_same_settings(url: str, run: Run, tmp_path: Path) -> None:
    """A login may stand there; and a name with a space is one word."""
    file = tmp_path / "my settings.yaml"
    file.write_text("pricing: {opencost: 'off'}\n", encoding="utf-8")
    result = run("--config", str(file), "report", "2026-08", "--prometheus", url)
    command = f"gpucost --config '{file}' doctor --prometheus {url} --month 2026-08"
    assert f"nothing of 2026-08 could be read; {command} says why" in result.stderr


@pytest.mark.parametrize("command", [("report",), ("compare", "opencost")])
def test_a_month_to_come_is_refused(command: tuple[str, ...], run: Run) -> None:
    """The doctor would refuse it as well, and is not named."""
    result = run(*command, "2099-12", "--prometheus", "http://127.0.0.1:1")
    assert (result.exit_code, result.stdout) == (ExitCode.USAGE, "")
    assert "MONTH: '2099-12' is not allowed; allowed: a month that has begun" in result.stderr
    assert "doctor" not in result.stderr


@pytest.mark.parametrize("command", [("report",), ("compare", "opencost")])
@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("nowhere/x.csv", "No such file or directory"),
        ("there", "Is a directory"),
        ("file/x.csv", "Not a directory"),
    ],
)
def test_a_file_that_cannot_be_written_is_told_before_all_is_read(
    command: tuple[str, ...], name: str, reason: str, run: Run, tmp_path: Path
) -> None:
    """A month takes minutes: it is not read before the file can be written."""
    (tmp_path / "there").mkdir()
    (tmp_path / "file").write_text("")
    result = run(*command, "2026-10", "--prometheus", "http://127.0.0.1:1", "-f", "csv", "-o", name)
    assert (result.exit_code, result.stdout) == (ExitCode.USAGE, "")
    allowed = f"a file that can be written ({reason})"
    assert f"--output: '{name}' is not allowed; allowed: {allowed}" in result.stderr


def test_one_is_asked_not_two(url: str, run: Run) -> None:
    result = run("--server", "http://127.0.0.1:1", "report", "2026-10", "--prometheus", url)
    assert result.exit_code == ExitCode.USAGE
    assert "one of the two" in result.stderr
