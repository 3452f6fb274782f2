"""The report of one month: what was held, by whom, what it cost, and what nobody held.

``build_month`` turns ``MonthInputs`` (sums out of the ledger, by window and dimension, with rates,
adjustments, problems and the month before) into a ``MonthReport``: totals, capacity, waste, tables by team,
project, job kind, queue, model and cluster, the costliest jobs, days, how each number was measured, problems
and provenance. ``model`` beside this module declares every field; the renderers in ``gpucost.reports.render``
add none.

Why it is one pure function of frames: the same rows in any order give the same report, byte for byte, from
SQLite and from PostgreSQL, and a report can be made again from the windows whose digest it prints. It knows
no clock, so whether a month is over comes with its inputs.

Amounts are whole GPU milliseconds and nano-units until a renderer writes them; ratios are exact fractions;
what could not be computed is None, with a problem. The capacity section compares the sum of its buckets with
capacity as the ledger wrote it beside the windows; the difference is printed and must be 0. Two months are
compared only where the ledger covers enough of both, or of this one so far (``inputs.compare``).

A report for some teams only (its scope) has no capacity section: there is no total of everybody in it to
subtract from. One for some clusters has no adjustments, which are of no cluster.

Called by ``gpucost.service.reporting.report_service``, which reads the inputs and keeps answers while the
ledger stays the same; behind it stand ``gpucost report``, ``GET /v1/reports/…`` and the message about a
closed month.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pandas as pd

from gpucost.domain.buckets import HOLDER_OF_BUCKET, Bucket
from gpucost.domain.time import Window, iso
from gpucost.reports.base import display
from gpucost.reports.base.frame_sums import prepare, summed, sums, total
from gpucost.reports.base.values import (
    EMPTY,
    NOTHING,
    STEP,
    CostAmount,
    CostChange,
    costliest_first,
    ratio,
)
from gpucost.reports.month.change_causes import change_causes
from gpucost.reports.month.inputs import (
    DAY_DIMS,
    JOB_KEY,
    MONTH_DIMS,
    PREVIOUS_DIMS,
    AdjustmentFacts,
    MonthComparison,
    MonthInputs,
    TeamAccount,
    compare,
    span_time,
)
from gpucost.reports.month.model import (
    CapacityBuckets,
    CapacitySummary,
    DayCost,
    GroupRow,
    GroupTables,
    ModelCapacity,
    MonthReport,
    MonthTotals,
    ShareBasisTime,
    TeamBudget,
    TeamRow,
    job_rows,
    job_rows_with_teams,
    ranked,
)
from gpucost.reports.month.provenance import (
    MethodRow,
    ReportNumber,
    method_rows,
    problem_rows,
    provenance,
    without_bounds,
)
from gpucost.reports.waste.waste_report import WasteReport, build_waste

TOP = 5
_OF_JOBS = ("namespace", "job", "job_uid")
OBSERVED_KEY = "node"
"""What a rate is keyed by that is of one node: prices observed in OpenCost's series."""


def build_month(inputs: MonthInputs, *, top: int = TOP, every_job: bool = False) -> MonthReport:
    """The report of ``inputs``; the same for any order of rows.

    ``jobs`` lists every job when asked for (a row per job and team, so that it adds up by team), else it is
    None, since a month can have hundreds of thousands. Raises InputError for a frame that lacks a
    column, for sums beyond 64 bits and for a rate id without a rate.
    """
    by_day = inputs.days is inputs.lines and STEP in inputs.lines.columns
    dims = (*MONTH_DIMS, STEP) if by_day else MONTH_DIMS
    lines = prepare(inputs.lines, dims, "lines")
    held = lines[lines["bucket"] == Bucket.HELD]
    # Nearly all rows are of jobs: most sections sum up a few rows in their place.
    few = summed(lines, [name for name in dims if name not in _OF_JOBS])
    before = () if inputs.previous is None else inputs.previous_windows
    comparison = compare(inputs.month, inputs.windows, before)
    previous = None if comparison.reason else _previous(inputs)
    tables = GroupTables(held, few[few["bucket"] == Bucket.HELD], previous)
    adjustments = tuple(sorted(inputs.adjustments, key=_adjustment_order))
    return MonthReport(
        month=inputs.month,
        currency=inputs.currency,
        teams_in_scope=None if inputs.scope.teams is None else tuple(sorted(inputs.scope.teams)),
        clusters_in_scope=None if inputs.scope.clusters is None else tuple(sorted(inputs.scope.clusters)),
        totals=_totals(few, tables, adjustments),
        comparison=comparison,
        capacity=_capacity(inputs, few) if inputs.scope.sees_every_team else None,
        waste=_waste(inputs, tables),
        teams=_teams(inputs, tables, adjustments, comparison, top),
        projects=tables.by("team", "project"),
        job_kinds=tables.by("job_kind"),
        queues=tables.by("cluster", "cluster_queue", "queue"),
        models=tables.by("model"),
        clusters=tables.by("cluster"),
        top_jobs=job_rows_with_teams(ranked(held, JOB_KEY).head(top), held),
        jobs=job_rows(ranked(held, (*JOB_KEY, "team"))) if every_job else None,
        adjustments=adjustments,
        share_bases=tuple(
            ShareBasisTime(basis, found.amount)
            for (basis,), found in sorted(sums(tables.few[tables.few["profile"] != ""], ["basis"]).items())
        ),
        days=_days(few if by_day else inputs.days),
        methods=_methods(inputs, tables, comparison),
        problems=problem_rows(without_bounds(inputs.problems)),
        provenance=provenance(inputs, few),
        causes=None
        if previous is None
        else change_causes(
            held,
            previous,
            span_time(inputs.windows, inputs.month.window),
            span_time(inputs.previous_windows, inputs.month.previous().window),
        ),
    )


def _methods(inputs: MonthInputs, tables: GroupTables, comparison: MonthComparison) -> tuple[MethodRow, ...]:
    """Time without a window is not covered either; for a running month, up to where the ledger ends."""
    windows, month = inputs.windows, inputs.month.window
    clusters = {item.cluster for item in (*windows, *inputs.previous_windows)}
    goes_on = comparison.in_progress or any(not item.settled for item in windows)
    until_ms = month.end_ms
    if goes_on and not inputs.facts.closed:
        until_ms = min(until_ms, max((item.end_ms for item in windows), default=until_ms))
    so_far = _not_yet(month, until_ms)
    observed_ms = sum(item.observed_ms for item in windows)
    covered = ratio(observed_ms, len(clusters) * (until_ms - month.start_ms))
    return method_rows(
        {item.source for item in windows},
        tables.total.utilisation,
        tables.total.board_ms,
        covered,
        inputs.problems,
        {item.cluster for item in windows},
        {
            ReportNumber.HELD: (*so_far, *_priced_by_opencost(inputs, tables.few)),
            ReportNumber.CAPACITY: so_far,
        },
    )


def _not_yet(month: Window, until_ms: int) -> tuple[str, ...]:
    """A report has no clock: whether the rest is still to come, or was never read, is for its reader to
    know."""
    if until_ms >= month.end_ms:
        return ()
    rest = display.span_of_days(month.end_ms - until_ms)
    return (f"up to {iso(until_ms)}; of {rest} of the month after that, nothing was read",)


def _priced_by_opencost(inputs: MonthInputs, held: pd.DataFrame) -> tuple[str, ...]:
    """How much of the cost is by OpenCost's prices, each of which is of one node; empty where none is."""
    rates = {rate_id for rate_id, rate in inputs.rates.items() if rate.matched_by == OBSERVED_KEY}
    found = total(held[held["rate_id"].isin(rates)]).amount
    if not found.nano:
        return ()
    return (f"{display.money(found.nano)} {inputs.currency} of the cost is by OpenCost's prices",)


def _previous(inputs: MonthInputs) -> pd.DataFrame | None:
    if inputs.previous is None:
        return None
    frame = prepare(inputs.previous, PREVIOUS_DIMS, "previous")
    return frame[frame["bucket"] == Bucket.HELD]


def _totals(lines: pd.DataFrame, tables: GroupTables, adjustments: Sequence[AdjustmentFacts]) -> MonthTotals:
    held, corrections = tables.total.amount, _adjusted(adjustments)
    return MonthTotals(
        held=held,
        adjustments=corrections,
        adjusted=held + corrections,
        overcommitted=total(lines[lines["bucket"] == Bucket.OVERCOMMITTED]).amount,
        jobs=tables.jobs,
        utilisation=tables.total.utilisation,
        change=tables.change_of_total(),
    )


def _adjusted(adjustments: Sequence[AdjustmentFacts]) -> CostAmount:
    return CostAmount(sum(item.board_ms for item in adjustments), sum(item.nano for item in adjustments))


def _adjustment_order(item: AdjustmentFacts) -> tuple[str, str, str, str, int, int, str]:
    return (item.team, item.job_uid, item.reference, item.reason, item.nano, item.board_ms, item.author)


def _buckets(lines: pd.DataFrame) -> CapacityBuckets:
    found = sums(lines, ["bucket"])
    return CapacityBuckets(**{bucket.value: found.get((bucket.value,), EMPTY).amount for bucket in Bucket})


def _capacity(inputs: MonthInputs, lines: pd.DataFrame) -> CapacitySummary:
    buckets = _buckets(lines)
    if inputs.capacity is not None:
        measured_by, capacity = "windows", inputs.capacity
    elif inputs.days is not None:
        days = prepare(inputs.days, (STEP, *DAY_DIMS), "days")
        measured_by = "days"
        capacity = total(days[days["bucket"] != Bucket.OVERCOMMITTED]).amount
    else:
        measured_by, capacity = "lines", buckets.capacity
    models = sorted(
        (
            ModelCapacity(model, split.capacity, split)
            for model, split in (
                (str(model), _buckets(part)) for model, part in lines.groupby("model", observed=True)
            )
        ),
        key=lambda item: costliest_first(item.capacity, item.model),
    )
    return CapacitySummary(
        measured_by=measured_by,
        capacity=capacity,
        buckets=buckets,
        difference_board_ms=capacity.board_ms - buckets.capacity.board_ms,
        difference_nano=(capacity.nano or 0) - (buckets.capacity.nano or 0),
        models=tuple(models),
    )


def _waste(inputs: MonthInputs, tables: GroupTables) -> WasteReport | None:
    """The month's waste; None, not zeros, where the detectors have not assessed any window of the month."""
    waste = inputs.waste
    if waste is None or not waste.assessment.final + waste.assessment.provisional:
        return None
    # The waste of some teams is compared with what the lines say they held: teams have no capacity of their
    # own.
    capacity = tables.total.amount if waste.capacity is None else waste.capacity
    return build_waste(replace(waste, capacity=capacity, held_busy=tables.total.utilisation.busy))


def _teams(
    inputs: MonthInputs,
    tables: GroupTables,
    adjustments: Sequence[AdjustmentFacts],
    comparison: MonthComparison,
    top: int,
) -> tuple[TeamRow, ...]:
    tops = job_rows(ranked(tables.held, (*JOB_KEY, "team")).groupby("team", observed=True).head(top))
    by_team = {row.group["team"]: row for row in tables.by("team")}
    for team in sorted({item.team for item in adjustments} - set(by_team)):
        none = CostChange.between(NOTHING, NOTHING) if tables.previous is not None else None
        by_team[team] = GroupRow(
            {"team": team}, NOTHING, 0, ratio(0, tables.total.nano), EMPTY.utilisation, none
        )
    rows = []
    for team, row in by_team.items():
        corrections = _adjusted([item for item in adjustments if item.team == team])
        own = tuple(job for job in tops if job.teams == (team,))
        centre = inputs.accounts.get(team, TeamAccount()).cost_centre
        budget = _budget(inputs, team, row.held, comparison)
        rows.append(TeamRow(row, corrections, row.held + corrections, own, centre, budget))
    return tuple(rows)


def _budget(
    inputs: MonthInputs, team: str, held: CostAmount, comparison: MonthComparison
) -> TeamBudget | None:
    monthly_nano = inputs.accounts.get(team, TeamAccount()).monthly_nano
    if monthly_nano is None:
        return None
    part = None if inputs.scope.clusters is not None else ratio(held.nano, monthly_nano)
    is_whole = comparison.covered == 1 and all(item.settled for item in inputs.windows)
    return TeamBudget(
        inputs.currency, monthly_nano, part, comparison.covered, not (inputs.facts.closed or is_whole)
    )


def _days(frame: pd.DataFrame | None) -> tuple[DayCost, ...]:
    """Days of the daily frame by bucket and team; time that no pod held has no team."""
    if frame is None or frame.empty:
        return ()
    days: dict[tuple[str, str, str], CostAmount] = {}
    for (start, bucket, team), found in sums(
        prepare(frame, (STEP, *DAY_DIMS), "days"), [STEP, *DAY_DIMS]
    ).items():
        key = (iso(int(start))[:10], bucket, "" if bucket in HOLDER_OF_BUCKET else team)
        days[key] = days.get(key, NOTHING) + found.amount
    return tuple(DayCost(*key, amount) for key, amount in sorted(days.items(), key=lambda item: item[0]))
