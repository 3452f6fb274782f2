"""What findings are worth: what the open ones could give back, and what was saved since some were acted upon.

What could be had back is that of the waste ledger's last day, of the rows that any open finding claims: two
findings on one GPU-hour count once, since a GPU-hour is one row. A month is as many such days as it has.

A finding was acted upon once somebody answered for it (acknowledged it). What that saved is measured on all
runs of the job's pattern, in the ledger: the whole days since, of a month, beside up to 28 whole days before
(from the first one in which the pattern held anything). Of the causes of that change, those that an action
can be behind count: fewer GPUs of a run, shorter runs, cheaper models; and a server that is gone. All others
(prices, how often it ran, the length of the spans, missing data) stand beside it: together they are the whole
change. A job that only ended counts as nothing, and what got worse counts below 0.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

import pandas as pd

from gpucost.domain.buckets import NO_TEAM, Bucket, Waste
from gpucost.domain.jobs import JobKind, WorkloadClass, workload_class
from gpucost.domain.time import Month, Window
from gpucost.reports.base.values import NOTHING, CostAmount
from gpucost.reports.month.change_causes import CauseKind, ChangeCause, SpanLines, explain
from gpucost.reports.waste.recommendations import PATTERN_OF_HELD_WASTE, PATTERN_OF_UNHELD_WASTE

OPEN_DIMS = ("cluster", "bucket", "team", "node", "job_uid")
SAVED_BY = (CauseKind.GPUS, CauseKind.LENGTH, CauseKind.MODELS)
"""The causes that count as saved: what a run costs at the prices of before."""
_UNKNOWN = CostAmount(0, None)
_SERVES = frozenset(kind.value for kind in JobKind if workload_class(kind) is WorkloadClass.SERVING)


@dataclass(frozen=True, slots=True)
class OpenClaim:
    """An open finding: ``subject`` is the uid of its job, the name of its node, or empty for free time of the
    whole cluster."""

    finding: int
    cluster: str
    pattern: str
    subject: str


@dataclass(frozen=True, slots=True)
class TeamSavings:
    """``possible`` is what open findings could give back in a month, ``findings`` how many of them claim any
    of it; ``saved_nano`` what was saved in the month by what was acted upon. ``team`` is whose time it is,
    empty for time that nobody held."""

    team: str
    findings: int
    possible: CostAmount
    saved_nano: int


@dataclass(frozen=True, slots=True)
class MeasuredSaving:
    """What acting upon ``findings`` saved: of ``pattern``, runs of the team's job by its name with ``*`` for
    what varies. ``before`` and ``now`` are what these cost in the two spans; ``saved_nano`` and the amounts
    of ``others`` add up to the change between them: now less before = others - saved. ``observed_before`` and
    ``observed`` are the observed parts of the spans. Where nothing can be said, ``why_not`` says why."""

    findings: tuple[int, ...]
    pattern: str
    cluster: str
    team: str
    acted_at_ms: int
    acted_by: str
    before_span: Window | None = None
    span: Window | None = None
    before: CostAmount = NOTHING
    now: CostAmount = NOTHING
    saved_nano: int = 0
    saved_board_ms: int = 0
    others: tuple[ChangeCause, ...] = ()
    observed_before: Fraction | None = None
    observed: Fraction | None = None
    why_not: str = ""


@dataclass(frozen=True, slots=True)
class SavingsReport:
    """``possible`` and ``saved_nano`` are the sums of ``teams``; ``possible`` is worked out from the day
    ``looked_at``, the last one that detectors looked at whole: None, and no amount, where there is none in
    the month. ``unanswered`` findings about a job ended in the month without an answer: nothing of them
    counts. ``unmeasured`` were acted upon and are about no job: what that saved is in no pattern."""

    month: str
    currency: str
    teams_in_scope: tuple[str, ...] | None
    looked_at: Window | None
    possible: CostAmount
    saved_nano: int
    teams: tuple[TeamSavings, ...]
    measured: tuple[MeasuredSaving, ...]
    unanswered: int
    unmeasured: int


@dataclass(frozen=True, slots=True)
class PossibleSavings:
    """By team, in one day: what open findings claim, and how many of them."""

    amounts: dict[str, CostAmount]
    findings: dict[str, int]


def possible_savings(rows: pd.DataFrame, claims: Sequence[OpenClaim]) -> PossibleSavings:
    """Rows of the waste ledger by OPEN_DIMS of a day, each counted once whoever claims it."""
    amounts: dict[str, CostAmount] = {}
    claiming: dict[str, set[int]] = defaultdict(set)
    known: dict[tuple[str, str | None, str], set[int]] = defaultdict(set)
    for each in claims:
        known[each.cluster, each.pattern, each.subject].add(each.finding)
    columns = (*OPEN_DIMS, "waste", "board_ms", "nano", "unpriced_ms")
    for cluster, bucket, team, node, uid, waste, ms, nano, unpriced in zip(
        *(rows[name].tolist() for name in columns), strict=True
    ):
        held = bucket == Bucket.HELD
        pattern = (PATTERN_OF_HELD_WASTE if held else PATTERN_OF_UNHELD_WASTE).get(Waste(waste))
        found = {
            each for subject in ((uid if held else ""), node) for each in known[cluster, pattern, subject]
        }
        if found:
            amount = CostAmount(ms, None if pd.isna(nano) else int(nano), unpriced)
            amounts[team] = amounts.get(team, NOTHING) + amount
            claiming[team] |= found
    return PossibleSavings(amounts, {team: len(ids) for team, ids in claiming.items()})


def measured_saving(
    found: MeasuredSaving, before: SpanLines, now: SpanLines, kinds: Iterable[str]
) -> MeasuredSaving:
    """``found`` with what was saved. The lines are of one pattern, and of all teams: what moved to another
    team was not saved. ``kinds`` are the kinds of its jobs."""
    moved = _other_hours(now, found) > _other_hours(before, found) * _longer(now, before)
    before, now = (
        replace(each, lines=each.lines[each.lines["team"] == found.team]) for each in (before, now)
    )
    amounts = [_amount(each.lines) for each in (before, now)]
    parts = [_observed(each, found.cluster) for each in (before, now)]
    told = replace(
        found, before=amounts[0], now=amounts[1], observed_before=parts[0], observed=parts[1], others=()
    )
    causes = explain(now, before).get(found.team, ())
    if not amounts[0].board_ms:
        return replace(told, others=causes, why_not="it held nothing in the days before")
    if moved:
        return replace(told, others=causes, why_not="another team holds such jobs since")
    if any(each.unpriced_board_ms for each in amounts):
        return replace(told, others=causes, why_not="parts of it have no price")
    if amounts[1].board_ms:
        saved = [each for each in causes if each.kind in SAVED_BY]
        return replace(
            told,
            saved_nano=-sum(each.nano for each in saved),
            saved_board_ms=-sum(each.board_ms for each in saved),
            others=tuple(each for each in causes if each.kind not in SAVED_BY),
        )
    if not _SERVES.issuperset(kinds):
        return replace(told, others=causes, why_not="no such job ran since: it may have had its end")
    return _gone(told, before, now)


def _gone(told: MeasuredSaving, before: SpanLines, now: SpanLines) -> MeasuredSaving:
    """A server that is no more: what it would have cost in a span as long as that of now, observed whole."""
    paid, part = told.before.nano or 0, told.observed_before or Fraction(1)
    longer = _longer(now, before)
    whole, wanted = round(paid / part), round(paid / part * longer)
    cause = ChangeCause(CauseKind.SPAN, told.team, "", "", 0, 0)
    others = (
        replace(cause, kind=CauseKind.MISSING_DATA, nano=whole - paid, before=part, now=told.observed),
        replace(cause, nano=wanted - whole),
    )
    return replace(
        told,
        saved_nano=wanted,
        saved_board_ms=round(told.before.board_ms / part * longer),
        others=tuple(each for each in others if each.nano),
    )


def _longer(now: SpanLines, before: SpanLines) -> Fraction:
    lengths = [each.time.length_ms if each.time is not None else 0 for each in (now, before)]
    return Fraction(*lengths) if all(lengths) else Fraction(1)


def _observed(span: SpanLines, cluster: str) -> Fraction | None:
    return None if span.time is None else span.time.part(cluster, held=True)


def _other_hours(span: SpanLines, found: MeasuredSaving) -> int:
    return int(span.lines.loc[span.lines["team"] != found.team, "board_ms"].sum())


def _amount(lines: pd.DataFrame) -> CostAmount:
    nano = lines["nano"].dropna()
    return CostAmount(
        int(lines["board_ms"].sum()),
        None if nano.empty and len(lines) else int(nano.sum()),
        int(lines["unpriced_ms"].sum()),
    )


def savings_report(
    month: Month,
    currency: str,
    teams_in_scope: tuple[str, ...] | None,
    looked_at: Window | None,
    day: PossibleSavings,
    measured: Sequence[MeasuredSaving],
    unanswered: int,
    unmeasured: int,
) -> SavingsReport:
    """All of it, by team; a team that has nothing of either is left out."""
    days = month.window.length_ms // (
        looked_at.length_ms if looked_at is not None else month.window.length_ms
    )
    saved: dict[str, int] = defaultdict(int)
    for each in measured:
        saved[each.team] += each.saved_nano
    teams = tuple(
        TeamSavings(
            team,
            day.findings.get(team, 0),
            _UNKNOWN if looked_at is None else _times(day.amounts.get(team, NOTHING), days),
            saved.get(team, 0),
        )
        for team in sorted({*day.amounts, *saved}, key=lambda team: (team in ("", NO_TEAM), team))
    )
    return SavingsReport(
        month=str(month),
        currency=currency,
        teams_in_scope=teams_in_scope,
        looked_at=looked_at,
        possible=_UNKNOWN if looked_at is None else sum((each.possible for each in teams), NOTHING),
        saved_nano=sum(each.saved_nano for each in teams),
        teams=teams,
        measured=tuple(sorted(measured, key=lambda each: (-each.saved_nano, each.pattern, each.findings))),
        unanswered=unanswered,
        unmeasured=unmeasured,
    )


def _times(amount: CostAmount, days: int) -> CostAmount:
    return CostAmount(
        amount.board_ms * days,
        None if amount.nano is None else amount.nano * days,
        amount.unpriced_board_ms * days,
    )
