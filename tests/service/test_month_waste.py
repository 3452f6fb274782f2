"""The waste section of the month from a real ledger: who looked, and whose findings it has."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd
import pytest

from gpucost.domain.scope import EVERYTHING, Scope
from gpucost.domain.time import HOUR_MS, Month
from gpucost.ledger.db.records import FindingRecord, WasteOfWindow
from gpucost.ledger.ledger import Ledger
from gpucost.ledger.waste.waste_writer import WASTE_LINES
from gpucost.reports.waste.waste_report import WasteReport
from gpucost.service.detection.finding_records import to_json
from gpucost.service.reporting.report_service import ReportService
from tests.ledger.builders import CLUSTER, MONTH, NOW_MS, hour, ingest, line
from tests.reports.waste_builders import known

RED = Scope(frozenset({"red"}))
HELD_H, IDLE_H = 4, 1


@pytest.fixture
def ledger(sqlite_url: str) -> Iterator[Ledger]:
    """Four hours of two teams, and two of a free GPU."""
    with Ledger.open(sqlite_url, now=lambda: NOW_MS) as opened:
        for number in range(HELD_H):
            window = hour(number)
            ingest(
                opened,
                window,
                line(window),
                line(window, team="blue", pod_uid="p2", job_uid="j2", job="other", node="n2"),
                line(window, bucket="unallocated", team="__unallocated__", node="n3"),
            )
        yield opened


def look(ledger: Ledger, hours: int = HELD_H) -> None:
    """Every one of the first hours; in the first, team red's GPU was idle."""
    for number in range(hours):
        window = hour(number)
        row = line(window)
        keys = [name for name in WASTE_LINES.column_names if name not in ("waste", "board_ms", "nano")]
        part = {name: row[name] for name in keys}
        part |= {"waste": "idle", "board_ms": row["board_ms"], "nano": row["nano"]}
        parts = pd.DataFrame([part] if number < IDLE_H else [], columns=list(WASTE_LINES.column_names))
        [info] = ledger.windows(window, CLUSTER)
        found = WasteOfWindow(window, info.digest, parts.astype(object), True)
        ledger.write_waste(CLUSTER, [found], code_version="1")


def find(ledger: Ledger, job: str, team: str, since_ms: int) -> None:
    finding = known(job=job, team=team).finding
    draft = finding.draft
    record = FindingRecord(
        cluster=CLUSTER,
        fingerprint=draft.fingerprint,
        episode=1,
        pattern=draft.pattern.value,
        variant=draft.variant,
        subject_kind=draft.subject.kind.value,
        subject_name=draft.subject.name,
        subject_namespace=draft.subject.namespace,
        subject_uid=draft.subject.uid,
        team=team,
        queue="",
        severity=finding.severity.value,
        opened_at_ms=since_ms,
        since_ms=since_ms,
        last_seen_ms=since_ms,
        content=to_json(finding),
        board_ms=finding.wasted.board_ms,
        nano=finding.wasted.nano,
        counted=True,
        boards_now=1,
    )
    ledger.save_findings(CLUSTER, [record])


def waste(ledger: Ledger, scope: Scope = EVERYTHING, month: Month = MONTH) -> WasteReport | None:
    answer = ReportService(ledger, "test", {}).month(scope, month)
    assert answer is not None
    return answer.report.waste


def test_a_month_has_a_waste_section_once_a_window_of_it_was_looked_at(ledger: Ledger) -> None:
    assert waste(ledger) is None
    look(ledger, hours=1)
    found = waste(ledger)
    assert found is not None
    assert (found.assessment.final, found.assessment.missing) == (1, HELD_H - 1)
    amounts = {row.waste: row.amount.board_ms // HOUR_MS for row in found.buckets if row.amount.board_ms}
    assert amounts == {"idle": 1, "productive": 1, "no_demand": 1, "unknown": 3 * (HELD_H - 1)}
    assert (found.difference_board_ms, found.difference_nano) == (0, 0)


def test_a_team_has_its_own_held_time_and_findings(ledger: Ledger) -> None:
    look(ledger)
    for job, team in (("mine", "red"), ("theirs", "blue"), ("ours", "")):
        find(ledger, job, team, hour(0).start_ms)
    found = waste(ledger, RED)
    assert found is not None
    assert [team.team for team in found.teams] == ["red"]
    assert [row.subject for row in found.to_do] == ["nlp/mine"]
    assert found.capacity.board_ms == HELD_H * HOUR_MS
    assert (found.wasted.board_ms, found.difference_board_ms, found.difference_nano) == (HOUR_MS, 0, 0)
    everybody = waste(ledger)
    assert everybody is not None
    assert {row.subject for row in everybody.to_do} == {"nlp/mine", "nlp/theirs", "nlp/ours"}


def test_a_finding_that_began_after_the_month_is_not_in_it(ledger: Ledger) -> None:
    look(ledger)
    find(ledger, "then", "red", MONTH.window.end_ms - 1)
    find(ledger, "later", "red", MONTH.window.end_ms)
    found = waste(ledger)
    assert found is not None
    assert [row.subject for row in found.to_do] == ["nlp/then"]
