"""A new stack over midnight and over a month's end, in both dialects: reports, the doctor, and the command it
prints, against plain sums over the script."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

import gpucost.cli.commands.doctor
import gpucost.cli.commands.reports
import gpucost.cli.terminal.context
from gpucost.cli.application import app
from gpucost.cli.terminal.exit_codes import ExitCode
from gpucost.domain.time import MINUTE_MS, SECOND_MS, Month, Window, iso, parse_instant
from tests.support.existing.script import scripted
from tests.support.existing.totals import truth_of
from tests.support.existing.variants import Variant, write_first, write_second
from tests.support.existing.world import World, at
from tests.support.prometheus import needs_prometheus, running_prometheus

pytestmark = [pytest.mark.slow, needs_prometheus, pytest.mark.prometheus]

MONTH_END = Month(2026, 10).window.end_ms
MIDNIGHT = at(48)
SCRAPE_MS = 30 * SECOND_MS
WRITERS = {"own": write_first, "existing": write_second}
Ask = Callable[..., Result]


def stack(name: str, edge_ms: int, before: int, after: int) -> Variant:
    """Scraped from so many minutes before an instant to so many after it."""
    hour = (edge_ms - at(0)) / (60 * MINUTE_MS)
    world = scripted((hour - 2, hour + 2), name=name)
    span = {"start_ms": edge_ms - before * MINUTE_MS, "end_ms": edge_ms + after * MINUTE_MS}
    return Variant(replace(world, **span), SCRAPE_MS)


STACKS = {each.name: each for each in (stack("month", MONTH_END, 10, 5), stack("midnight", MIDNIGHT, 30, 20))}


@pytest.fixture(scope="module", params=WRITERS)
def urls(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, str]]:
    with ExitStack() as servers:
        found: dict[str, str] = {}
        for name, variant in STACKS.items():
            data = tmp_path_factory.mktemp(name) / "blocks"
            WRITERS[request.param]([variant], data)
            found[name] = servers.enter_context(running_prometheus(data))
        yield found


@pytest.fixture
def ask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ask:
    """A command when the last scrape of a stack is over, in a folder without settings."""
    monkeypatch.chdir(tmp_path)

    def run(name: str, *words: str) -> Result:
        for module in (
            gpucost.cli.terminal.context,
            gpucost.cli.commands.reports,
            gpucost.cli.commands.doctor,
        ):
            monkeypatch.setattr(module, "now_ms", lambda: STACKS[name].world.end_ms)
        return CliRunner().invoke(app, list(words), env={"COLUMNS": "140"})

    return run


def document(result: Result) -> dict[str, Any]:
    assert result.exit_code == ExitCode.OK, result.stderr
    found: dict[str, Any] = json.loads(result.stdout)
    capacity = found["capacity"]
    assert capacity["difference_board_ms"] == capacity["difference_nano"] == 0
    return found


def cluster_of(found: dict[str, Any]) -> dict[str, Any]:
    (cluster,) = found["provenance"]["clusters"]
    return dict(cluster)


def check_held(world: World, found: dict[str, Any], span: Window) -> None:
    """Held time is that of the script, but for what the report says that it may be off."""
    (row,) = [row for row in found["methods"] if row["number"] == "held time and cost"]
    truth = truth_of(world, span)
    held = float(sum(truth.held.values()))
    assert held > 0
    # Parts of a GPU are dealt out in whole milliseconds.
    off_ms = (row["off_board_ms"] or 0) + len(truth.held)
    assert abs(found["totals"]["held"]["board_ms"] - held) <= off_ms
    assert found["capacity"]["capacity"]["board_ms"] == float(sum(truth.capacity.values()))


def until_ms(found: dict[str, Any]) -> int:
    return parse_instant(cluster_of(found)["until"])


def test_each_side_of_a_month_s_end_has_its_minutes(urls: dict[str, str], ask: Ask) -> None:
    world, url = STACKS["month"].world, urls["month"]
    before, after = (
        document(ask("month", "report", month, "--prometheus", url, "-f", "json"))
        for month in ("2026-10", "2026-11")
    )
    (gap,) = cluster_of(before)["gaps"]
    started_ms, last_ms = parse_instant(gap["end"]), until_ms(after)
    assert 0 <= started_ms - world.start_ms <= SCRAPE_MS
    assert 0 <= world.end_ms - last_ms <= SCRAPE_MS
    check_held(world, before, Window(started_ms, MONTH_END))
    check_held(world, after, Window(MONTH_END, last_ms))
    # News of the last minutes of October may still come.
    assert cluster_of(before)["provisional"] == [{"start": iso(started_ms), "end": iso(MONTH_END)}]
    assert cluster_of(after)["provisional"] == [{"start": iso(MONTH_END), "end": iso(last_ms)}]
    assert {day["day"] for day in (*before["days"], *after["days"])} == {"2026-10-31", "2026-11-01"}


def test_the_doctor_at_a_month_s_end_prints_a_command_that_works(urls: dict[str, str], ask: Ask) -> None:
    result = ask("month", "doctor", "--prometheus", urls["month"], "-f", "json")
    said = json.loads(result.stdout)
    assert (result.exit_code, said["month"], said["not_known"]) == (ExitCode.SOURCE, "2026-10", [])
    began = iso(STACKS["month"].world.start_ms)
    assert said["verdict"].startswith(
        f"The cost of October 2026 can be told in part only: samples begin {began[:16]}"
    )
    assert "the first whole month is 2026-11, over on 2026-12-01" in said["verdict"]
    words = shlex.split(said["command"])
    assert words[:3] == ["gpucost", "report", "2026-11"]
    document(ask("month", *words[1:], "-f", "json"))


def test_the_first_minutes_of_a_month_are_all_of_it_so_far(urls: dict[str, str], ask: Ask) -> None:
    result = ask("month", "doctor", "--prometheus", urls["month"], "--month", "2026-11")
    assert result.exit_code == ExitCode.OK, result.stdout
    assert result.stdout.startswith("The cost of November 2026 can be told so far")
    assert "all of the month, in 1 of 1 hour" in result.stdout


def test_over_midnight_what_is_over_is_settled(urls: dict[str, str], ask: Ask) -> None:
    world, url = STACKS["midnight"].world, urls["midnight"]
    found = document(ask("midnight", "report", "2026-10", "--prometheus", url, "-f", "json"))
    (gap,) = cluster_of(found)["gaps"]
    check_held(world, found, Window(parse_instant(gap["end"]), until_ms(found)))
    assert {day["day"] for day in found["days"]} == {"2026-10-02", "2026-10-03"}
    # A quarter of an hour after midnight no more is expected of the day before.
    assert cluster_of(found)["provisional"] == [{"start": iso(MIDNIGHT), "end": cluster_of(found)["until"]}]


def test_over_midnight_the_doctor_says_since_when(urls: dict[str, str], ask: Ask) -> None:
    result = ask("midnight", "doctor", "--prometheus", urls["midnight"])
    first = result.stdout.splitlines()[0]
    assert result.exit_code == ExitCode.SOURCE
    assert first.startswith("The cost of October 2026 can be told in part only, ")
    assert " 49 min of it: samples begin 2026-10-02T23:30:00Z" in first
    assert first.endswith(f"Next: gpucost report 2026-10 --prometheus {urls['midnight']}")
