"""What a team's findings saved, over a real ledger: what others held in the namespace changes nothing of it,
but for jobs that moved to them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from gpucost.detectors.findings import FindingSubject, SubjectKind
from gpucost.domain.money import NANO
from gpucost.domain.scope import Scope
from gpucost.domain.time import DAY_MS, HOUR_MS, Month, Window
from gpucost.ledger.db.records import FindingEvent
from gpucost.ledger.ledger import Ledger
from gpucost.reports.month.savings_report import MeasuredSaving
from gpucost.service.detection.finding_records import record_of
from gpucost.service.reporting.finding_savings import savings
from gpucost.service.reporting.report_service import ReportService
from tests.api.findings import finding, life
from tests.ledger.builders import ingest, line
from tests.service.worlds import Clock
from tests.support.ledgers import new_ledger

MONTH = Month(2026, 10)
FIRST_MS = MONTH.window.start_ms - 20 * DAY_MS
BEGUN_MS = MONTH.window.start_ms - 5 * DAY_MS
ACTED_MS = MONTH.window.start_ms + 5 * DAY_MS
END_MS = MONTH.window.start_ms + 15 * DAY_MS
VISION = Scope(frozenset({"vision"}))
DAILY = 72 * NANO

Kinds = Callable[[int], tuple[str, ...]]
"""The kinds of the servers ``ml/server`` that another team holds on a day, by when it begins."""


def measured(folder: Path, others: Kinds) -> MeasuredSaving:
    """Vision holds ``ml/server`` for ten days, until it answers for a finding about it."""
    clock = Clock(FIRST_MS)
    with Ledger.open(new_ledger(folder / "ledger.db"), now=clock) as ledger:
        for day in Window(FIRST_MS, END_MS).split(DAY_MS):
            held = [("nlp", kind) for kind in others(day.start_ms)]
            if BEGUN_MS <= day.start_ms < ACTED_MS:
                held.append(("vision", "Deployment"))
            idle = line(day, cluster="c", bucket="unallocated", node="free", board_ms=DAY_MS, nano=DAILY)
            ingest(ledger, day, idle, *(server(day, *each) for each in held), cluster="c")
        acknowledged(ledger, clock)
        clock.now_ms = END_MS + HOUR_MS
        found = savings(ReportService(ledger, "test", {}), VISION, MONTH)
    assert found is not None
    [told] = found.report.measured
    return told


def server(day: Window, team: str, kind: str) -> dict[str, object]:
    uid = f"{team}-{kind}"
    names = {"namespace": "ml", "job": "server", "job_uid": uid, "pod": uid, "pod_uid": uid}
    return line(day, cluster="c", team=team, job_kind=kind, board_ms=DAY_MS, nano=DAILY, **names)


def acknowledged(ledger: Ledger, clock: Clock) -> None:
    subject = FindingSubject(SubjectKind.JOB, "c", "server", "ml", "vision-Deployment")
    open_one = replace(
        life(finding("server", "vision", 40, subject=subject)),
        opened_at_ms=ACTED_MS - DAY_MS,
        since_ms=ACTED_MS - 2 * DAY_MS,
        last_seen_ms=ACTED_MS,
    )
    record, clock.now_ms = record_of("c", open_one, None), ACTED_MS
    event = FindingEvent(record.fingerprint, record.episode, ACTED_MS - DAY_MS, "gpucost", "opened")
    [saved] = ledger.save_findings("c", [record], [event])
    assert saved.id is not None
    ledger.acknowledge(VISION, saved.id, "ann", "done")


def test_a_server_that_is_gone_is_saved(tmp_path: Path) -> None:
    found = measured(tmp_path, lambda _: ())
    assert (found.saved_nano, found.why_not) == (10 * DAILY, "")
    assert found.before_span == Window(BEGUN_MS, ACTED_MS)
    assert found.observed_before == 1


@pytest.mark.parametrize(
    "others",
    [
        lambda day_ms: ("Deployment",) if day_ms == FIRST_MS else (),
        lambda day_ms: ("Job",) if day_ms == BEGUN_MS else (),
    ],
    ids=["held earlier", "of another kind"],
)
def test_what_others_held_before_is_in_nothing_of_it(others: Kinds, tmp_path: Path) -> None:
    """Neither when the days before begin, nor whether all its jobs are servers."""
    for name in ("alone", "together"):
        (tmp_path / name).mkdir()
    assert measured(tmp_path / "together", others) == measured(tmp_path / "alone", lambda _: ())


def test_what_moved_to_others_is_not_saved(tmp_path: Path) -> None:
    found = measured(tmp_path, lambda day_ms: ("Deployment",) if day_ms >= ACTED_MS else ())
    assert (found.saved_nano, found.why_not) == (0, "another team holds such jobs since")
