"""The waste ledger of ``builders.small_month``, by hand: 140 GPU-hours of capacity in ten buckets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pandas as pd

from gpucost.detectors.findings import (
    Finding,
    FindingAction,
    FindingDraft,
    FindingEvidence,
    FindingSeverity,
    FindingSubject,
    FindingWaste,
    SubjectKind,
    WastePattern,
)
from gpucost.domain.rates import Rate
from gpucost.domain.scope import Scope
from gpucost.domain.time import DAY_MS, HOUR_MS
from gpucost.reports.base.values import STEP, CostAmount
from gpucost.reports.waste.recommendations import KnownFinding
from gpucost.reports.waste.waste_report import (
    WASTE_DIMS,
    WASTE_MEASURES,
    WasteAssessment,
    WasteInputs,
)
from tests.reports.builders import A100, H100, MONTH, START_MS

CAPACITY = CostAmount(140 * HOUR_MS, 825_240_000_000)
NLP = Scope(frozenset({"nlp"}))


def part(waste: str, hours: float, rate: Rate | None = H100, *, day: int = 0, **names: str) -> dict[str, Any]:
    """One row of ``Ledger.waste``: ``hours`` in a bucket, held unless ``bucket`` says otherwise."""
    board_ms = round(hours * HOUR_MS)
    job = names.get("job", "")
    found: dict[str, Any] = dict.fromkeys(WASTE_DIMS, "")
    found |= {"cluster": "east", "bucket": "held", "job_kind": "Job", "job_uid": f"uid-{job}"} | names
    return found | {
        STEP: START_MS + day * DAY_MS,
        "waste": waste,
        "board_ms": board_ms,
        "nano": None if rate is None else rate.nano_per_board_hour * board_ms // HOUR_MS,
        "unpriced_ms": 0 if rate else board_ms,
    }


def waste_frame(rows: Sequence[dict[str, Any]]) -> pd.DataFrame:
    """The rows with the dtypes of ``Ledger.waste``."""
    dtypes = dict.fromkeys((*WASTE_DIMS, "waste"), "str") | dict.fromkeys((STEP, *WASTE_MEASURES), "int64")
    dtypes["nano"] = "Int64"
    return pd.DataFrame(
        {name: pd.Series([row[name] for row in rows], dtype=dtype) for name, dtype in dtypes.items()}
    )


def waste_lines() -> list[dict[str, Any]]:
    """The lines of ``builders.small_lines`` without over-committed ones, divided among buckets and two days.

    41 hours are wasted: 29 of H100 and 12 of A100.
    """
    train, evaluation = ({"team": "nlp", "namespace": "nlp", "job": job} for job in ("train-1", "eval-1"))
    one, two = ({"team": "vision", "namespace": "vis", "job": job} for job in ("seg-1", "seg-2"))
    free, broken, unseen = (
        {"bucket": bucket, "team": f"__{bucket}__"} for bucket in ("unallocated", "unavailable", "unknown")
    )
    return [
        part("productive", 50, **train),
        part("gang_stall", 4, **train),
        part("preempted", 2, **train),
        part("idle", 4, day=1, **train),
        part("idle", 6, **evaluation),
        part("unknown", 4, **evaluation),
        part("oversized", 5, A100, **one),
        part("productive", 5, A100, **one),
        part("productive", 20, A100, **two),
        part("starved", 8, **free),
        part("no_demand", 12, **free),
        part("unavailable", 5, **broken),
        part("unknown", 5, **unseen),
        part("fragmented", 7, A100, day=1, **free),
        part("no_demand", 3, A100, day=1, **free),
    ]


def known(
    number: int = 7,
    *,
    job: str = "train-1",
    team: str = "nlp",
    hourly: int | None = 6_880_000_000,
    **texts: str,
) -> KnownFinding:
    """An idle job that holds a GPU; ``texts`` are its summary, action and patch."""
    draft = FindingDraft(
        pattern=WastePattern.IDLE_ALLOCATION,
        variant="batch",
        subject=FindingSubject(SubjectKind.JOB, "east", job, "nlp", f"uid-{job}"),
        since_ms=START_MS,
        summary=texts.get("summary", f"Job nlp/{job} holds 1 GPU and does nothing"),
        evidence=(FindingEvidence("busy", 0.0, "%"),),
        action=FindingAction(
            texts.get("action", "Stop it"), texts.get("patch", f"kubectl -n nlp delete job {job}"), 1
        ),
        formula="boards x time",
        team=team,
    )
    wasted = FindingWaste(4 * HOUR_MS, None if hourly is None else 4 * hourly, draft.formula, True)
    return KnownFinding(number, "open", Finding(draft, FindingSeverity.LOW, wasted, 1, hourly), START_MS)


def small_waste(**changes: Any) -> WasteInputs:
    """``waste_lines`` with two findings, 29 windows of a day looked at for good and one for now."""
    inputs = WasteInputs(
        window=MONTH.window,
        currency="USD",
        lines=waste_frame(waste_lines()),
        capacity=CAPACITY,
        assessment=WasteAssessment(29, 1, 0),
        findings=(known(), known(8, job="seg-1", team="vision", hourly=3_431_000_000)),
    )
    return replace(inputs, **changes)


def waste_of_nlp(**changes: Any) -> WasteInputs:
    """What the ledger gives a reader who may see the team ``nlp`` only."""
    mine = [row for row in waste_lines() if row["team"] == "nlp"]
    inputs = small_waste(lines=waste_frame(mine), capacity=None, findings=(known(),), scope=NLP)
    return replace(inputs, **changes)
