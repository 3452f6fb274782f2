"""The first hour of a stack: what a user sees who tries gpucost at once, against the recorded truth.

Prometheus holds an hour of a real kube-state-metrics, from 21:06:36 on; the clock is set to ten minutes after
its start, and to an hour and one minute.
"""

from __future__ import annotations

import csv
import io
import json
import re
import shlex
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

import gpucost.cli.commands.doctor
import gpucost.cli.commands.ingest
import gpucost.cli.commands.reports
import gpucost.cli.terminal.context
from gpucost.cli.application import app
from gpucost.cli.terminal.exit_codes import ExitCode
from gpucost.domain.time import SECOND_MS, iso, parse_instant
from gpucost.ledger.ledger import Ledger
from tests.support.prometheus import needs_prometheus
from tests.support.recorded import SERVERS, recorded_json, recorded_prometheus

pytestmark = [needs_prometheus, pytest.mark.prometheus, pytest.mark.slow]

STARTED, TEN_MINUTES, AN_HOUR = "2026-11-22T21:06:34Z", "2026-11-22T21:17:00Z", "2026-11-22T22:07:40Z"
SCRAPE_MS = 30 * SECOND_MS
CLOCKS = (
    gpucost.cli.terminal.context,
    gpucost.cli.commands.reports,
    gpucost.cli.commands.doctor,
    gpucost.cli.commands.ingest,
)
URLS = Callable[[str], str]
At = Callable[..., Result]


@pytest.fixture(scope="module")
def urls(tmp_path_factory: pytest.TempPathFactory) -> Iterator[URLS]:
    """A recorded server, started when it is first asked for."""
    with ExitStack() as stack:
        started: dict[str, str] = {}

        def url(server: str) -> str:
            if server not in started:
                folder = tmp_path_factory.mktemp(server)
                started[server] = stack.enter_context(recorded_prometheus(server, folder))
            return started[server]

        yield url


@pytest.fixture
def at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> At:
    """A command at an instant, in a folder without settings."""
    monkeypatch.chdir(tmp_path)

    def run(instant: str, *words: str) -> Result:
        for module in CLOCKS:
            monkeypatch.setattr(module, "now_ms", lambda: parse_instant(instant))
        return CliRunner().invoke(app, list(words), env={"COLUMNS": "140"})

    return run


def report(at: At, instant: str, url: str, kind: str = "json") -> str:
    """What does not change: the recording and the clock say all of it, so each is asked for once."""
    if (instant, url, kind) not in _REPORTS:
        result = at(instant, "report", "2026-11", "--prometheus", url, "-f", kind)
        assert result.exit_code == ExitCode.OK, result.stderr
        _REPORTS[instant, url, kind] = result.stdout
    return _REPORTS[instant, url, kind]


_REPORTS: dict[tuple[str, str, str], str] = {}


def held_ms(since: str, until: str) -> float:
    """GPU milliseconds of the pods of the truth between two instants."""
    start, end = parse_instant(since), parse_instant(until)
    total = 0.0
    for pod in recorded_json("truth.json"):
        if pod["scheduled"] is None:  # the one without waits all the time
            continue
        ended = end if pod["ended"] is None else min(end, pod["ended"] * SECOND_MS)
        lasted = max(0, ended - max(start, pod["scheduled"] * SECOND_MS))
        total += lasted * sum(pod["units"].values()) * pod["shareOfAGpu"]
    return total


def off_ms(found: Any) -> int:
    (row,) = [row for row in found["methods"] if row["number"] == "held time and cost"]
    off: int = row["off_board_ms"]
    return off


@pytest.mark.parametrize("server", SERVERS)
@pytest.mark.parametrize("instant", [TEN_MINUTES, AN_HOUR])
def test_what_was_held_is_there_up_to_the_last_scrape(instant: str, server: str, urls: URLS, at: At) -> None:
    found = json.loads(report(at, instant, urls(server)))
    (cluster,) = found["provenance"]["clusters"]
    (gap,) = cluster["gaps"]
    until, since = cluster["until"], gap["end"]
    assert parse_instant(since) - parse_instant(STARTED) <= SCRAPE_MS
    # The recording goes on: nothing after the clock is looked at.
    assert parse_instant(min(instant, "2026-11-22T22:07:06Z")) - SCRAPE_MS <= parse_instant(until)
    assert parse_instant(until) <= parse_instant(instant)
    # What was deleted between two scrapes was never seen: two pods of 20 s at most.
    held, truth = found["totals"]["held"]["board_ms"], held_ms(since, until)
    assert abs(held - truth) <= off_ms(found) + 2 * SCRAPE_MS
    assert abs(held - truth) <= 0.01 * truth
    assert found["capacity"]["difference_board_ms"] == found["capacity"]["difference_nano"] == 0
    assert found["totals"]["held"]["nano"] > 0


def test_ten_minutes_are_provisional_in_every_format(urls: URLS, at: At) -> None:
    url = urls("p2")
    found = json.loads(report(at, TEN_MINUTES, url))
    (cluster,) = found["provenance"]["clusters"]
    since, until = cluster["gaps"][0]["end"], cluster["until"]
    assert cluster["provisional"] == [{"start": since, "end": until}]
    assert found["provenance"]["state"] == "open"
    rows = list(csv.DictReader(io.StringIO(report(at, TEN_MINUTES, url, "csv"))))
    assert {row["provisional_from"] for row in rows} == {since}
    words = f"Provisional from {since} to {until}: what happened then may not all be told yet"
    assert words in report(at, TEN_MINUTES, url, "html")
    result = at(TEN_MINUTES, "report", "2026-11", "--prometheus", url)
    assert result.exit_code == ExitCode.OK
    assert words in " ".join(result.stdout.split())
    assert "10 min 15 s of the month's 30 days were read" in " ".join(result.stdout.split())


def test_a_later_look_at_the_same_minutes_has_no_less(urls: URLS, at: At) -> None:
    """What is read again is counted once: the hour holds the ten minutes, and no more than the truth."""
    first, later = (json.loads(report(at, instant, urls("p2"))) for instant in (TEN_MINUTES, AN_HOUR))
    assert first["totals"]["held"]["board_ms"] < later["totals"]["held"]["board_ms"]
    assert first["capacity"]["capacity"]["board_ms"] < later["capacity"]["capacity"]["board_ms"]
    (day,) = {day["day"] for day in later["days"]}
    assert day == "2026-11-22"


def test_with_one_scrape_there_is_nothing_to_tell(urls: URLS, at: At) -> None:
    result = at("2026-11-22T21:06:37Z", "report", "2026-11", "--prometheus", urls("p1"))
    assert (result.exit_code, result.stdout) == (ExitCode.SOURCE, "")
    assert "nothing of 2026-11 could be read" in result.stderr


@pytest.mark.parametrize("server", SERVERS)
@pytest.mark.parametrize(("instant", "length"), [(TEN_MINUTES, "10 min"), (AN_HOUR, "60 min")])
def test_the_doctor_names_the_first_scrape_and_a_command_that_works(
    instant: str, length: str, server: str, urls: URLS, at: At
) -> None:
    result = at(instant, "doctor", "--prometheus", urls(server), "-f", "json")
    said = json.loads(result.stdout)
    # Nothing is of last month, so it is about this one, of which a part is there.
    assert (result.exit_code, said["month"], said["not_known"]) == (ExitCode.SOURCE, "2026-11", [])
    start = f"The cost of November 2026 can be told in part only, {length} of it: samples begin "
    assert said["verdict"].startswith(f"{start}2026-11-22T21:06:")
    assert "Nothing mends what was before; the first whole month is 2026-12" in said["verdict"]
    words = shlex.split(said["command"])
    assert words == ["gpucost", "report", "2026-11", "--prometheus", urls(server)]
    found = json.loads(at(instant, *words[1:], "-f", "json").stdout)
    assert found["totals"]["held"]["nano"] > 10 * 10**9
    assert found["totals"]["utilisation"]["busy"]["coverage"] > 0.5
    cost = said["clusters"][0]["features"]["cost"]["why"]
    (began,) = re.findall(r"samples begin (\S+?Z)", cost)
    first = parse_instant(found["provenance"]["clusters"][0]["gaps"][0]["end"])
    assert 0 <= parse_instant(began) - first < SECOND_MS


def test_the_doctor_about_the_month_before_leads_to_this_one(urls: URLS, at: At) -> None:
    url = urls("p2")
    result = at(TEN_MINUTES, "doctor", "--prometheus", url, "--month", "2026-10")
    first = result.stdout.splitlines()[0]
    assert result.exit_code == ExitCode.SOURCE
    assert first.startswith("The cost of October 2026 cannot be told: no sample is of that month")
    assert first.endswith(f"Next: gpucost report 2026-11 --prometheus {url}")


def test_after_one_scrape_the_doctor_has_no_command_yet(urls: URLS, at: At) -> None:
    result = at("2026-11-22T21:06:37Z", "doctor", "--prometheus", urls("p1"), "-f", "json")
    said = json.loads(result.stdout)
    assert (result.exit_code, said["command"]) == (ExitCode.SOURCE, None)
    assert "samples begin 2026-11-22T21:06:37Z" in said["verdict"]


def test_nothing_provisional_gets_into_a_ledger(urls: URLS, at: At, tmp_path: Path) -> None:
    """The hour is written once, when it is over and complete; the minutes after it are not."""
    url, file = urls("p2"), tmp_path / "gpucost.yaml"
    file.write_text(f'ledger: {{url: "sqlite:///{tmp_path}/gpucost.db"}}\n', encoding="utf-8")
    ingest = ("--config", str(file), "ingest", "--source", f"prometheus:{url}")
    first = at(TEN_MINUTES, *ingest)
    assert first.exit_code == ExitCode.OK
    said = " ".join(first.stdout.split())
    assert "0 of 0 windows read" in said
    command = said.partition("until one has: ")[2]
    assert command == f"gpucost --config {file} report 2026-11 --prometheus {url}"
    assert at(TEN_MINUTES, *shlex.split(command)[1:]).exit_code == ExitCode.OK
    with Ledger.open(f"sqlite:///{tmp_path}/gpucost.db", now=lambda: 0) as ledger:
        assert ledger.extent() is None
    assert "1 of 1 windows read" in at(AN_HOUR, *ingest).stdout
    assert "the ledger has all of it already" in at(AN_HOUR, *ingest).stdout
    with Ledger.open(f"sqlite:///{tmp_path}/gpucost.db", now=lambda: 0) as ledger:
        extent = ledger.extent()
        assert extent is not None
        assert iso(extent.end_ms) == "2026-11-22T22:00:00Z"
        (info,) = ledger.windows(extent)
        assert info.version == 1
    kept = json.loads(at(AN_HOUR, "--config", str(file), "report", "2026-11", "-f", "json").stdout)
    now = json.loads(report(at, AN_HOUR, url))
    assert kept["totals"]["held"]["board_ms"] < now["totals"]["held"]["board_ms"]
    assert kept["capacity"]["difference_board_ms"] == 0
