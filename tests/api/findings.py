"""A ledger with findings of two teams and of the platform, for tests of what is said about them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from gpucost.detectors.engine.lifecycle import FindingLife, FindingLifeState
from gpucost.detectors.findings import (
    Finding,
    FindingAction,
    FindingDraft,
    FindingEvidence,
    FindingSeverity,
    FindingSubject,
    FindingWaste,
    WastePattern,
)
from gpucost.detectors.findings import SubjectKind as Kind
from gpucost.domain.money import NANO
from gpucost.domain.time import HOUR_MS
from gpucost.ledger.db.records import FindingEvent, FindingRecord
from gpucost.ledger.ledger import Ledger
from gpucost.service.detection.finding_records import record_of
from tests.service.worlds import NOW_MS, Clock, filled_ledger

CLUSTER = "c"
FOREIGN = {"vision", "detect", "uid-detect", "job-detect", "serve", "node-9"}
"""Names that team research must not see."""


def finding(name: str, team: str, dollars: int | None, **values: Any) -> Finding:
    """An idle job of ``team`` that wasted 5 GPU-hours, unless ``values`` say otherwise."""
    given: dict[str, Any] = {
        "pattern": WastePattern.IDLE_ALLOCATION,
        "variant": "batch",
        "subject": FindingSubject(Kind.JOB, CLUSTER, name, team, f"uid-{name}"),
        "since_ms": NOW_MS - 5 * HOUR_MS,
        "summary": f"{name} held a GPU for 5 h and did nothing with it",
        "evidence": (
            FindingEvidence("busy", 0.0125, "ratio", "gpucost_pod_gpu_busy_ratio"),
            FindingEvidence("pods", 3),
            FindingEvidence("class", "batch"),
        ),
        "action": FindingAction("Delete the job.", f"kubectl delete job {name}", 1.5),
        "formula": "boards × time without use",
        "team": team,
        "queue": "batch",
        "checked": ("no checkpoint was written",),
    }
    draft = FindingDraft(**(given | values))
    wasted = FindingWaste(5 * HOUR_MS, None if dollars is None else dollars * NANO, draft.formula, True)
    return Finding(
        draft, FindingSeverity.MEDIUM, wasted, 1.0, None if dollars is None else dollars * NANO // 5
    )


def life(found: Finding, **values: Any) -> FindingLife:
    return replace(
        FindingLife(found, FindingLifeState.OPEN, NOW_MS - HOUR_MS, found.draft.since_ms, NOW_MS), **values
    )


def save(ledger: Ledger, *lives: FindingLife) -> list[FindingRecord]:
    records = [record_of(CLUSTER, each, None) for each in lives]
    events = [
        FindingEvent(each.fingerprint, each.episode, NOW_MS - HOUR_MS, "gpucost", "opened")
        for each in records
    ]
    return list(ledger.save_findings(CLUSTER, records, events))


def lives() -> tuple[FindingLife, ...]:
    """Ids 1 to 7, in this order. 1 and 4 are research's; 5 is the platform's own; 7 is over."""
    platform = FindingSubject(Kind.NODE, CLUSTER, "node-9")
    bad = finding("node-9", "", 50, pattern=WastePattern.NOT_ADVERTISED, variant="", subject=platform)
    return (
        life(finding("train", "research", 40)),
        life(finding("detect", "vision", 100)),
        life(finding("serve", "vision", None), rehearsal=True),
        life(finding("tune", "research", 10), exempt_until_ms=NOW_MS + HOUR_MS),
        life(bad),
        life(finding("label", "vision", 20), state=FindingLifeState.MUTED, muted_until_ms=NOW_MS + HOUR_MS),
        life(finding("old", "research", 70), state=FindingLifeState.RESOLVED, closed_at_ms=NOW_MS - 60_000),
    )


def ledger_with_findings(folder: Path, clock: Clock) -> Ledger:
    """The day of tests/service/worlds.py and the findings of ``lives``."""
    ledger = filled_ledger(folder, clock)
    for each in lives():
        save(ledger, each)
    return ledger
