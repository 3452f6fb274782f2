"""The receipt of a job: what it held, cost and wasted, how long it waited, how it ended, and the one change
that matters most for its next run.

Made of a JobReport, so that it says the same numbers. The ledger knows when a job held GPUs and when it held
none any more, but not how it ended: that comes from a watched cluster or from telemetry (JobEndFacts), and is
unknown without them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction

from gpucost.attribution.segments import union
from gpucost.domain.buckets import Waste
from gpucost.domain.time import Window
from gpucost.reports.base import display
from gpucost.reports.base.values import CostAmount, UsageSignal, costliest_first
from gpucost.reports.job.job_report import JobReport
from gpucost.reports.job.job_waste import JobFinding, JobObservation
from gpucost.reports.waste.recommendations import HABITS, PATTERN_OF_HELD_WASTE, page_of
from gpucost.reports.waste.waste_report import WasteAssessment, WasteRow
from gpucost.reports.waste.waste_table import LABELS


class JobEnding(StrEnum):
    """How a job came to hold no GPU any more."""

    HOLDS = "holds"
    """It held GPUs when the ledger ended: it may go on."""
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    PREEMPTED = "preempted"
    """Others took its quota, or its place on a node."""
    EVICTED = "evicted"
    """It was told to stop for another reason."""
    STOPPED = "stopped"
    """It was suspended or scaled to nothing, and can go on later."""
    GONE = "gone"
    """Its object is no longer in the cluster: deleted, or cleaned up after its end."""
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class JobEndFacts:
    """What a watched cluster, or telemetry, knows of the end of a job. ``reason`` is in words, empty where
    nothing says more; ``waited_ms`` is the wait before it ran last, None where that is not known."""

    ending: JobEnding = JobEnding.UNKNOWN
    reason: str = ""
    waited_ms: int | None = None


NO_END = JobEndFacts()


@dataclass(frozen=True, slots=True)
class NextRunChange:
    """What to change for the next run. ``wasted`` is what the job wasted for want of it, None where no bucket
    has it. ``finding`` is the finding that says so, with its ``patch``; without one the advice follows from
    the bucket alone, and ``documentation`` is the page of the detector that claims it."""

    pattern: str
    text: str
    patch: str
    finding: int | None
    documentation: str
    wasted: CostAmount | None


@dataclass(frozen=True, slots=True)
class JobReceipt:
    """One job, over or so far. ``span`` is from the first to the last instant it held GPUs; ``gpus`` how many
    it held at once, the mean over the time in which it held any.

    ``busy`` is None where its use was not observed. ``wasted`` and ``wasted_share`` are None where no
    detector has looked at it; ``buckets`` are those of waste, the dearest first. ``waited_ms`` is the wait
    before it ran last, None where none is known: it never waited, or nothing recorded all of that wait.
    ``change`` is None where there is nothing to change. ``assessment`` says how much of its time was
    assessed.
    """

    job_uid: str
    job: str
    job_kind: str
    namespace: str
    currency: str
    code_version: str
    clusters: tuple[str, ...]
    teams: tuple[str, ...]
    users: tuple[str, ...]
    models: tuple[str, ...]
    span: Window
    ending: JobEnding
    ending_reason: str
    gpus: Fraction
    held: CostAmount
    busy: UsageSignal | None
    wasted: CostAmount | None
    wasted_share: Fraction | None
    buckets: tuple[WasteRow, ...]
    waited_ms: int | None
    change: NextRunChange | None
    assessment: WasteAssessment | None


@dataclass(frozen=True, slots=True)
class DayReceipts:
    """Jobs of a ``team`` that ended on a ``day`` of UTC (``2026-10-05``): ``count`` of them, which held
    ``held`` in all; ``receipts`` are those of the dearest, the dearest first."""

    day: str
    team: str
    currency: str
    count: int
    held: CostAmount
    receipts: tuple[JobReceipt, ...]


def build_receipt(report: JobReport, end: JobEndFacts = NO_END, *, holds: bool = False) -> JobReceipt:
    """``holds`` says that it still held GPUs when the ledger ended, whatever ``end`` knows."""
    account = report.account
    rows = () if account is None else tuple(row for row in account.buckets if row.is_waste)
    ranked = tuple(sorted(rows, key=lambda row: costliest_first(row.amount, row.waste)))
    return JobReceipt(
        job_uid=report.job_uid,
        job=report.job,
        job_kind=report.job_kind,
        namespace=report.namespace,
        currency=report.currency,
        code_version=report.code_version,
        clusters=report.clusters,
        teams=report.teams,
        users=report.users,
        models=report.models,
        span=report.span,
        ending=JobEnding.HOLDS if holds else end.ending,
        ending_reason="" if holds else end.reason,
        gpus=_at_once(report),
        held=report.held,
        busy=report.utilisation.busy,
        wasted=None if account is None or _unseen(account.assessment) else account.wasted,
        wasted_share=None if account is None or _unseen(account.assessment) else account.share,
        buckets=tuple(row for row in ranked if row.amount.board_ms),
        waited_ms=end.waited_ms,
        change=_change(report, ranked),
        assessment=None if account is None else account.assessment,
    )


def _unseen(assessment: WasteAssessment) -> bool:
    return not (assessment.final or assessment.provisional)


def _at_once(report: JobReport) -> Fraction:
    spans = [line.span for line in report.lines]
    starts, ends = union([each.start_ms for each in spans], [each.end_ms for each in spans])
    return Fraction(report.held.board_ms, max(1, int((ends - starts).sum())))


def _change(report: JobReport, rows: Sequence[WasteRow]) -> NextRunChange | None:
    """By the dearest bucket of waste that has one: the finding that claims it, else what avoids such waste in
    general. Without any waste, the first finding that only shows something."""
    said: list[JobFinding | JobObservation] = [*report.findings]
    said += () if report.look is None else report.look.findings
    for row in rows:
        if not row.amount.board_ms or row.waste not in HABITS:
            continue
        pattern = PATTERN_OF_HELD_WASTE[Waste(row.waste)]
        found = next((each for each in said if each.pattern == pattern and each.action), None)
        if found is not None:
            return _said(found, row.amount)
        text = HABITS[Waste(row.waste)]
        return NextRunChange(
            pattern.value, f"{text[0].upper()}{text[1:]}", "", None, page_of(pattern), row.amount
        )
    first = next((each for each in said if each.action), None)
    return None if first is None else _said(first, None)


def _said(found: JobFinding | JobObservation, wasted: CostAmount | None) -> NextRunChange:
    number = found.finding if isinstance(found, JobFinding) else None
    return NextRunChange(found.pattern, found.action, found.patch, number, page_of(found.pattern), wasted)


ENDINGS = {
    JobEnding.HOLDS: "It holds GPUs up to the end of the ledger",
    JobEnding.SUCCEEDED: "It succeeded",
    JobEnding.FAILED: "It failed",
    JobEnding.PREEMPTED: "It was preempted",
    JobEnding.EVICTED: "It was evicted",
    JobEnding.STOPPED: "It was stopped, and can go on later",
    JobEnding.GONE: "It is gone from the cluster: deleted, or cleaned up after its end",
    JobEnding.UNKNOWN: "It holds no GPU any more; how it ended is not known",
}
"""How a job ended, as the beginning of a sentence."""


def ending_words(receipt: JobReceipt) -> str:
    """``It was preempted: others needed its quota``."""
    reason = f": {display.visible(receipt.ending_reason, 200)}" if receipt.ending_reason else ""
    return f"{ENDINGS[receipt.ending]}{reason}"


def gpus_words(receipt: JobReceipt) -> str:
    """``8 GPUs of H100``: how many at once, with a decimal where that was not the same all the time."""
    count = display.trimmed(f"{float(receipt.gpus):,.1f}")
    models = f" of {', '.join(map(display.name, receipt.models))}" if receipt.models else ""
    return f"{count} {'GPU' if count == '1' else 'GPUs'}{models}"


def wasted_words(receipt: JobReceipt) -> str:
    """``68.80 USD, 10.0 GPU-hours (42%): idle 60.00, preempted 8.80``."""
    found = receipt.wasted
    if found is None:
        return "not known: no detector has looked at it"
    if not found.board_ms:
        return "nothing that was seen"
    why = ", ".join(
        f"{LABELS[Waste(row.waste)].lower()} {display.money(row.amount.nano)}" for row in receipt.buckets
    )
    share = display.percent(receipt.wasted_share)
    hours = display.hours(found.board_ms)
    return f"{display.money(found.nano)} {receipt.currency}, {hours} GPU-hours ({share}): {why}"
