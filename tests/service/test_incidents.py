"""Incidents: what opens one, what ends it, what is none; and one conversation over restarts."""

from __future__ import annotations

import io
from collections.abc import Iterator

import pandas as pd
import pytest
from fastapi.testclient import TestClient
from rich.console import Console

from benchmarks.incidents import CAUSES, injected
from benchmarks.report import PRICE, lines_of
from gpucost.api.app import create_app
from gpucost.domain.money import NANO
from gpucost.domain.scope import EVERYTHING, Scope
from gpucost.domain.time import DAY_MS, HOUR_MS, Month, Window, iso
from gpucost.ledger.ledger import Ledger
from gpucost.notify.compose.links import MessageLinks
from gpucost.notify.notices import DeliveryAct
from gpucost.reports.month.change_causes import CauseKind, ChangeCause
from gpucost.reports.month.cost_incidents import IncidentRule, IncidentSign, incidents, sign_of
from gpucost.reports.render.terminal_budgets import print_incident, print_incidents
from gpucost.service.notifications.incidents import IncidentNotices
from gpucost.service.reporting.incident_reports import incident_report
from gpucost.service.reporting.report_service import ReportService
from gpucost.service.settings.api import ApiSettings
from tests.service.test_telling import World
from tests.service.worlds import Clock
from tests.support.ledgers import new_ledger

RULE = IncidentRule()
RUNS = ChangeCause(CauseKind.RUNS, "team", "", "", 0, 0)
MODELS = ChangeCause(CauseKind.MODELS, "team", "", "", 0, 0)
FIRST_MS = Month(2026, 9).window.start_ms
USUAL, MUCH = 35, 5
"""Days as usual, and days with new jobs on nine times as many GPUs."""


def signs(*excess: int, cause: ChangeCause | None = RUNS) -> list[IncidentSign]:
    """A day each; in currency units, of a usual week of 1,000."""
    return [IncidentSign(n * DAY_MS, each * NANO, 1000 * NANO, cause) for n, each in enumerate(excess)]


def spans(found: list[IncidentSign], expected: tuple[Window, ...] = ()) -> list[tuple[int, int | None]]:
    return [
        (each.began_ms // DAY_MS, None if each.ended_ms is None else each.ended_ms // DAY_MS)
        for each in incidents("team", found, RULE, expected)
    ]


@pytest.mark.parametrize(
    ("found", "told"),
    [
        (signs(900, 900), []),
        (signs(900, 900, 900), [(0, None)]),
        (signs(0, 900, 900, 900, 600, 300, 200), [(1, 6)]),
        (signs(900, 900, 0, 900, 900, 900), [(3, None)]),
        (signs(499, 499, 499), []),
        (signs(900, 900, 900, cause=None), []),
        (signs(900, 900, 900, 0, *[900] * 28), [(0, 3)]),
        (signs(900, 900, 900, 0, *[0] * 28, 900, 900, 900), [(0, 3), (32, None)]),
    ],
)
def test_what_is_an_incident(found: list[IncidentSign], told: list[tuple[int, int | None]]) -> None:
    assert spans(found) == told


def test_another_cause_each_day_does_not_last() -> None:
    mixed = [*signs(900), *signs(900, 900, cause=MODELS)[1:], *signs(900, 900, 900)[2:]]
    assert spans(mixed) == []


def test_what_was_announced_is_none() -> None:
    assert spans(signs(900, 900, 900), (Window(0, DAY_MS // 2),)) == [], "its week touches every sign"
    assert spans(signs(*[0] * 8, 900, 900, 900), (Window(0, DAY_MS // 2),)) == [(8, None)]


def test_one_cause_must_carry_half_of_it() -> None:
    causes = [
        ChangeCause(CauseKind.RUNS, "t", "", "", 0, 40),
        ChangeCause(CauseKind.MODELS, "t", "", "", 0, 30),
        ChangeCause(CauseKind.PRICE, "t", "", "", 0, 30),
        ChangeCause(CauseKind.MISSING_DATA, "t", "", "", 0, -1000),
        ChangeCause(CauseKind.SPAN, "t", "", "", 0, 5000),
    ]
    assert sign_of(0, causes, 1, RULE) == IncidentSign(0, 100, 1, None)
    more = [*causes, ChangeCause(CauseKind.RUNS, "t", "", "", 0, 40, "t/train-*")]
    found = sign_of(0, more, 1, RULE)
    assert found.excess_nano == 140
    assert found.cause is not None
    assert (found.cause.kind, found.cause.nano) == (CauseKind.RUNS, 80)


@pytest.mark.parametrize("kind", CAUSES)
def test_what_was_injected_is_named(kind: str) -> None:
    """Two of twenty: benchmarks/incidents.py runs them all, and the untouched trace."""
    assert [injected(kind, seed) for seed in (100, 101)] == [(True, True)] * 2


def lines(window: Window, day: int) -> pd.DataFrame:
    """Eight GPUs of old jobs; later 72 more of new ones."""
    found = lines_of(window, 8 if day < USUAL else 80, day, 1)
    is_new = found.index >= 8
    for name in ("pod", "pod_uid", "job", "job_uid"):
        found.loc[is_new, name] = "sweep-" + found.loc[is_new, name]
    return found


@pytest.fixture(scope="module")
def ledger(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ledger]:
    url = new_ledger(tmp_path_factory.mktemp("incidents") / "ledger.db")
    end_ms = FIRST_MS + (USUAL + MUCH) * DAY_MS
    with Ledger.open(url, now=lambda: end_ms + HOUR_MS) as found:
        for n, window in enumerate(Window(FIRST_MS, end_ms).split(DAY_MS)):
            found.ingest(
                "c",
                window,
                lines(window, n),
                observed_ms=DAY_MS,
                rates={PRICE.rate_id: PRICE},
                source="test",
                code_version="test",
                settle=True,
            )
        yield found


def test_one_conversation_over_restarts(ledger: Ledger) -> None:
    def source(**expected: tuple[Window, ...]) -> IncidentNotices:
        return IncidentNotices(ReportService(ledger, "test", {}), MessageLinks(), expected)

    clock = Clock(FIRST_MS + (USUAL + MUCH) * DAY_MS + HOUR_MS)
    announced = {"team-00": (Window(FIRST_MS, clock.now_ms),)}
    assert not list(source(**announced)(clock.now_ms, ()))
    world = World(ledger, clock, sources={"incidents": source()})
    world.turn(minutes=1)
    world.sources = {"incidents": source()}
    world.restart()
    world.turn(minutes=30)
    [(act, title)] = world.room.of("platform")
    assert (act, title) == (DeliveryAct.OPEN, "team-00 costs more than usual")
    [message] = [message for name, _, message in world.room.posts if name == "platform"]
    assert "Most of it: new jobs of team-00/sweep-job-*" in message.summary


def test_the_list_says_what_chat_says_and_to_whom_it_may(ledger: Ledger) -> None:
    """The week before the end costs ten times the usual one: 72 GPUs more on each of its days."""
    end_ms = FIRST_MS + (USUAL + MUCH) * DAY_MS
    app = create_app(ledger, ApiSettings(auth="off"), now=lambda: end_ms)
    found = TestClient(app, base_url="http://localhost").get("/v1/incidents").json()
    [incident] = found["incidents"]
    began = iso(FIRST_MS + (USUAL + 1) * DAY_MS)
    assert (incident["team"], incident["ended"]) == ("team-00", None)
    assert incident["incident"] == f"team-00/{incident['began'][:10]}"
    assert incident["began"] >= began
    assert incident["why"].startswith("new jobs of team-00/sweep-job-*")
    assert [day["excess_nano"] for day in incident["days"]] == sorted(
        day["excess_nano"] for day in incident["days"]
    )
    reporting = ReportService(ledger, "test", {})
    other = incident_report(reporting, Scope(frozenset({"nobody"})), {}, end_ms)
    assert other.incidents == ()
    own = incident_report(reporting, Scope(frozenset({"team-00"})), {}, end_ms)
    assert [each.incident for each in own.incidents] == [incident["incident"]]
    announced = {"team-00": (Window(FIRST_MS, end_ms),), "other": (Window(0, 1),)}
    calm = incident_report(reporting, Scope(frozenset({"team-00"})), announced, end_ms)
    assert (calm.incidents, [each.team for each in calm.expected]) == ((), ["team-00"])
    before = incident_report(reporting, EVERYTHING, {}, FIRST_MS + 30 * DAY_MS)
    assert (before.since, before.incidents) == (None, ())
    console = Console(file=io.StringIO(), width=160)
    print_incidents(own, console)
    print_incident(own.incidents[0], own.currency, console)
    text = console.file.getvalue()
    assert incident["incident"] in text
    assert "goes on" in text
    assert "gpucost compare" in text
