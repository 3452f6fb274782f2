"""Reports as one flat table each, for CSV and Parquet: integers, ratios and text, no rounding.

A month is one tidy table: ``section``, the first column, says what a row is (``team``, ``model``, ``job`` …),
and the columns that do not apply to it are empty. Each section divides the same time in another way: the rows
of one add up to the report's total (the costliest jobs aside), and rows of two must not be added. Jobs,
findings and the waste ledger have tables of the same kind.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction

from gpucost.domain.buckets import Bucket
from gpucost.domain.time import DAY_MS, iso, parse_instant
from gpucost.reports.base.values import CostAmount, CostChange, GpuUtilisation
from gpucost.reports.job.job_report import JobReport
from gpucost.reports.job.job_waste import JobFinding, JobObservation
from gpucost.reports.month.allocations import Allocations
from gpucost.reports.month.model import (
    CAPACITY_BUCKETS,
    CapacityBuckets,
    CapacitySummary,
    GroupRow,
    JobCostRow,
    MonthReport,
    TeamRow,
)
from gpucost.reports.month.provenance import provisional_of
from gpucost.reports.waste.findings import FindingEntry, FindingsReport
from gpucost.reports.waste.recommendations import Recommendation, page_of
from gpucost.reports.waste.waste_report import WasteReport, WasteRow
from gpucost.reports.waste.waste_table import shown_buckets

Cell = str | int | Fraction | None
Cells = dict[str, Cell]


class CellType(StrEnum):
    TEXT = "text"
    INTEGER = "integer"
    RATIO = "ratio"


@dataclass(frozen=True, slots=True)
class TableColumn:
    name: str
    type: CellType


@dataclass(frozen=True)
class ReportTable:
    """``facts`` name what the table is of. Every row has a cell per column; a missing number is None."""

    facts: Mapping[str, str]
    columns: tuple[TableColumn, ...]
    rows: tuple[tuple[Cell, ...], ...]


_SIGNALS = ("busy", "sm", "tensor")
_SIGNAL_RATIOS = tuple(
    f"{signal}{suffix}" for signal in (*_SIGNALS, "memory") for suffix in ("", "_coverage")
)
_SIGNAL_COLUMNS = (*_SIGNAL_RATIOS, "memory_peak_mib", "energy_mj", "energy_coverage")
_AMOUNT_COLUMNS = ("board_ms", "nano", "unpriced_board_ms")
_MONTH_COLUMNS = (
    *("section", "month", "cluster", "cluster_queue", "queue", "model", "bucket", "team", "project"),
    *("namespace", "job_kind", "job", "job_uid", "start", "end", "reference", "reason", "author"),
    *_AMOUNT_COLUMNS,
    *("currency", "jobs", "share_of_cost", "previous_cost_nano", "cost_change_nano", "relative_change"),
    *_SIGNAL_COLUMNS,
    # New columns come last, for readers that address columns by position.
    *("waste", "share_of_time", "provisional_from"),
    *("cost_centre", "monthly_budget_nano", "budget_used", "budget_covered"),
)
_RATIOS = frozenset(
    {
        "budget_used",
        "budget_covered",
        "share_of_cost",
        "share_of_time",
        "relative_change",
        *_SIGNAL_RATIOS,
        "energy_coverage",
    }
)
_TRACE_COLUMNS = (
    *("job_uid", "start", "end", "cluster", "node", "pod", "resource", "model", "profile", "team", "rate_id"),
    *("price_nano", *_AMOUNT_COLUMNS, "currency", "formula"),
    *("section", "waste", "wasted_board_ms", "wasted_nano", "counted"),
    *("finding", "pattern", "variant", "severity", "state", "summary", "action", "patch"),
)
_JOB_NAMES = ("namespace", "job_kind", "job", "job_uid")
_PARTS = ("total", "held", "shared_idle", *(bucket.value for bucket in Bucket if bucket is not Bucket.HELD))


def month_table(report: MonthReport) -> ReportTable:
    """Every section of the month; jobs are all of them where the report has them, else the costliest."""
    provisional = provisional_of(report.provenance.clusters)
    common: Cells = {
        "month": str(report.month),
        "currency": report.currency,
        "provisional_from": "" if provisional is None else iso(provisional.start_ms),
    }
    rows = (common | row for row in _month_rows(report))
    facts = {
        "schema": "gpucost/MonthTable/v1",
        "month": str(report.month),
        "currency": report.currency,
        "state": report.provenance.state,
        "digest": report.provenance.digest,
    }
    return _table(facts, _MONTH_COLUMNS, rows)


def allocations_table(allocations: Allocations) -> ReportTable:
    """One row per step and group; each part of the total has its time, its cost and its unpriced time."""
    columns = (
        *("start", "end", *allocations.group_by),
        *(f"{part}_{unit}" for part in _PARTS for unit in ("board_ms", "cost_nano", "unpriced_board_ms")),
        "currency",
        *_SIGNAL_COLUMNS,
    )
    rows = []
    for row in allocations.rows:
        cells: Cells = {"start": iso(row.window.start_ms), "end": iso(row.window.end_ms), **row.group}
        for part in _PARTS:
            amount: CostAmount = getattr(row, part)
            cells[f"{part}_board_ms"] = amount.board_ms
            cells[f"{part}_cost_nano"] = amount.nano
            cells[f"{part}_unpriced_board_ms"] = amount.unpriced_board_ms
        rows.append(cells | {"currency": allocations.currency} | _signals(row.utilisation))
    facts = {
        "schema": "gpucost/AllocationsTable/v1",
        "window": str(allocations.window),
        "currency": allocations.currency,
        "idle": allocations.idle.value,
    }
    return _table(facts, columns, rows)


def job_table(report: JobReport) -> ReportTable:
    """The trace of a job, one row per line, ``section`` ``line``; they alone have ``board_ms`` and ``nano``,
    which add up to what it held. Then its buckets (``waste``), what was found about it (``finding``), and
    what the detectors say of its time (``look``), with what was wasted in columns of its own.
    """
    common: Cells = {"job_uid": report.job_uid, "currency": report.currency}
    facts = {"schema": "gpucost/JobTable/v1", "job_uid": report.job_uid, "currency": report.currency}
    return _table(facts, _TRACE_COLUMNS, (common | row for row in _job_rows(report)))


def _job_rows(report: JobReport) -> Iterator[Cells]:
    for line in report.lines:
        names: Cells = {name: getattr(line, name) for name in _TRACE_COLUMNS if hasattr(line, name)}
        span: Cells = {"start": iso(line.span.start_ms), "end": iso(line.span.end_ms)}
        yield {"section": "line", **names, **span, **_amount(line.amount)}
    for row in () if report.account is None else report.account.buckets:
        yield {"section": "waste", "waste": row.waste, **_wasted(row.amount)}
    for found in report.findings:
        about: Cells = {"finding": str(found.finding), "state": found.state}
        yield {"section": "finding", **about, **_found(found)}
    for each in () if report.look is None else report.look.findings:
        yield {"section": "look", **_found(each)}


def _found(found: JobFinding | JobObservation) -> Cells:
    names = ("pattern", "variant", "severity", "summary", "formula", "action", "patch")
    span: Cells = {"start": found.since, "end": found.until or "", "counted": str(found.counted).lower()}
    return {**{name: getattr(found, name) for name in names}, **span, **_wasted(found.wasted)}


def _wasted(amount: CostAmount) -> Cells:
    return {"wasted_board_ms": amount.board_ms, "wasted_nano": amount.nano}


def column_type(name: str) -> CellType:
    if name in _RATIOS:
        return CellType.RATIO
    is_integer = name in ("nano", "jobs") or name.endswith(("_nano", "board_ms", "_mib", "_mj"))
    return CellType.INTEGER if is_integer else CellType.TEXT


def _table(facts: Mapping[str, str], names: Sequence[str], rows: Iterable[Cells]) -> ReportTable:
    columns = tuple(TableColumn(name, column_type(name)) for name in names)
    blank = [("" if column.type is CellType.TEXT else None) for column in columns]
    empty = dict(zip(names, blank, strict=True))
    return ReportTable(facts, columns, tuple(tuple((empty | row).values()) for row in rows))


def _month_rows(report: MonthReport) -> Iterator[Cells]:
    if report.capacity is not None:
        yield from _bucket_rows("capacity", report.capacity.buckets, {})
        for model in report.capacity.models:
            yield from _bucket_rows("model_capacity", model.buckets, {"model": model.model})
        yield from _overcommitted(report.capacity)
    else:
        yield {"section": "total", "bucket": Bucket.HELD.value, **_amount(report.totals.held)}
    for team in report.teams:
        yield _group("team", team.row) | _account(team)
    for section, rows in (
        ("project", report.projects),
        ("job_kind", report.job_kinds),
        ("queue", report.queues),
        ("model", report.models),
        ("cluster", report.clusters),
    ):
        yield from (_group(section, row) for row in rows)
    if report.jobs is None:
        yield from (_job("top_job", job) | {"jobs": 1} for job in report.top_jobs)
    else:
        yield from _every_job(report.jobs)
    for item in report.adjustments:
        yield {
            "section": "adjustment",
            "team": item.team,
            "job_uid": item.job_uid,
            "reference": item.reference,
            "reason": item.reason,
            "author": item.author,
            "board_ms": item.board_ms,
            "nano": item.nano,
        }
    if report.waste is not None:
        yield from _waste_rows(report.waste)
    if report.charges is not None:
        for each in report.charges.teams:
            pays: Cells = {"team": each.team, "board_ms": each.board_ms, "nano": each.total_nano}
            names: Cells = {"cost_centre": each.cost_centre or "", "currency": report.charges.currency}
            yield {"section": "to_pay", **names, **pays}


def _waste_rows(report: WasteReport) -> Iterator[Cells]:
    """``waste`` is the bucket of the waste ledger; ``bucket`` stays that of the lines, and is empty here."""
    for row in shown_buckets(report):
        yield _waste("waste", row.waste, row.amount) | {"share_of_time": row.share}
    for team in report.teams:
        for row in team.buckets:
            yield _waste("team_waste", row.waste, row.amount) | {
                "team": team.team,
                "share_of_time": row.share,
            }
    for day in report.days:
        start_ms = parse_instant(f"{day.day}T00:00:00Z")
        span: Cells = {"start": iso(start_ms), "end": iso(start_ms + DAY_MS)}
        yield _waste("day_waste", day.waste, day.amount) | span
    for job in report.jobs:
        names: Cells = {name: getattr(job, name) for name in ("cluster", *_JOB_NAMES, "team")}
        yield _waste("top_job_waste", job.waste, job.amount) | names


def _waste(section: str, waste: str, amount: CostAmount) -> Cells:
    return {"section": section, "waste": waste, **_amount(amount)}


def _bucket_rows(section: str, buckets: CapacityBuckets, group: Cells) -> Iterator[Cells]:
    """The four parts of capacity: they add up to it."""
    for bucket in CAPACITY_BUCKETS:
        amount: CostAmount = getattr(buckets, bucket.value)
        yield {"section": section, "bucket": bucket.value, **group, **_amount(amount)}


def _overcommitted(capacity: CapacitySummary) -> Iterator[Cells]:
    """What was held beyond capacity, by model: it is not capacity, so it is in no section of capacity."""
    for model in capacity.models:
        row: Cells = {"section": "overcommitted", "bucket": Bucket.OVERCOMMITTED.value, "model": model.model}
        yield row | _amount(model.buckets.overcommitted)


def _group(section: str, row: GroupRow) -> Cells:
    return {
        "section": section,
        "bucket": Bucket.HELD.value,
        **row.group,
        **_amount(row.held),
        "jobs": row.jobs,
        "share_of_cost": row.share_of_cost,
        **_change(row.change),
        **_signals(row.utilisation),
    }


def _account(team: TeamRow) -> Cells:
    cells: Cells = {"cost_centre": team.cost_centre or ""}
    if team.budget is not None:
        budget = team.budget
        cells |= {"monthly_budget_nano": budget.monthly_nano, "budget_used": budget.part}
        cells["budget_covered"] = budget.covered
    return cells


def _every_job(jobs: Sequence[JobCostRow]) -> Iterator[Cells]:
    """A job of several teams has a row for each: ``jobs`` is 1 in the first of them, and 0 in the others, so
    that it adds up to the number of jobs."""
    seen = set[tuple[str, ...]]()
    for job in jobs:
        key = (job.cluster, job.namespace, job.job_kind, job.job, job.job_uid)
        yield _job("job", job) | {"jobs": int(key not in seen)}
        seen.add(key)


def _job(section: str, job: JobCostRow) -> Cells:
    span = job.span
    return {
        "section": section,
        "bucket": Bucket.HELD.value,
        "cluster": job.cluster,
        "namespace": job.namespace,
        "job_kind": job.job_kind,
        "job": job.job,
        "job_uid": job.job_uid,
        "team": ", ".join(job.teams),
        "start": iso(span.start_ms) if span else "",
        "end": iso(span.end_ms) if span else "",
        **_amount(job.held),
        **_signals(job.utilisation),
    }


def _amount(amount: CostAmount) -> Cells:
    return {
        "board_ms": amount.board_ms,
        "nano": amount.nano,
        "unpriced_board_ms": amount.unpriced_board_ms,
    }


def _change(change: CostChange | None) -> Cells:
    if change is None:
        return {}
    return {
        "previous_cost_nano": change.previous.nano,
        "cost_change_nano": change.nano,
        "relative_change": change.relative,
    }


def _signals(utilisation: GpuUtilisation) -> Cells:
    cells: Cells = {}
    for name in _SIGNALS:
        signal = getattr(utilisation, name)
        cells[name] = signal.mean if signal else None
        cells[f"{name}_coverage"] = signal.coverage if signal else None
    memory, energy = utilisation.memory, utilisation.energy
    return cells | {
        "memory": memory.mean if memory else None,
        "memory_coverage": memory.coverage if memory else None,
        "memory_peak_mib": memory.peak_mib if memory else None,
        "energy_mj": energy.mj if energy else None,
        "energy_coverage": energy.coverage if energy else None,
    }


_TEXT, _INTEGER, _RATIO = CellType.TEXT, CellType.INTEGER, CellType.RATIO
_WASTE = {
    **dict.fromkeys(("section", "start", "end", "waste", "team", "cluster"), _TEXT),
    **dict.fromkeys(("namespace", "job_kind", "job", "job_uid"), _TEXT),
    "finding": _INTEGER,
    **dict.fromkeys(("pattern", "severity", "state", "subject", "since", "summary", "action"), _TEXT),
    **dict.fromkeys(("board_ms", "nano", "unpriced_board_ms"), _INTEGER),
    "currency": _TEXT,
    "share": _RATIO,
    "daily_nano": _INTEGER,
    **dict.fromkeys(("variant", "alike", "documentation"), _TEXT),
    "alike_daily_nano": _INTEGER,
}
_FINDINGS = {
    "id": _INTEGER,
    **dict.fromkeys(("fingerprint", "pattern", "variant", "severity", "state", "cluster"), _TEXT),
    **dict.fromkeys(("subject_kind", "namespace", "subject", "subject_uid", "team", "queue", "user"), _TEXT),
    **dict.fromkeys(("since", "opened_at", "last_seen", "closed_at", "summary", "action", "patch"), _TEXT),
    **dict.fromkeys(("board_ms", "nano"), _INTEGER),
    "counted": _TEXT,
    "boards_now": _RATIO,
    "hourly_nano": _INTEGER,
    **dict.fromkeys(("currency", "acknowledged_by", "muted_until", "exempt_until", "rehearsal"), _TEXT),
    "daily_nano": _INTEGER,
}


def waste_table(report: WasteReport) -> ReportTable:
    """``section`` says what a row is: ``bucket`` (they add up to capacity), ``team``, ``day``, ``job``,
    ``cause`` or ``to_do``. Each divides the same time in another way: rows of two sections must not be added.
    """
    common: Cells = {"currency": report.currency}
    facts = {
        "schema": "gpucost/WasteTable/v1",
        "window": str(report.window),
        "currency": report.currency,
    }
    return typed_table(facts, _WASTE, (common | row for row in _waste_report_rows(report)))


def findings_table(report: FindingsReport) -> ReportTable:
    """One row per finding; evidence is left out."""
    facts = {"schema": "gpucost/FindingsTable/v1", "currency": report.currency}
    common: Cells = {"currency": report.currency}
    return typed_table(facts, _FINDINGS, (common | _finding(row) for row in report.findings))


def _waste_report_rows(report: WasteReport) -> Iterator[Cells]:
    span: Cells = {"start": iso(report.window.start_ms), "end": iso(report.window.end_ms)}
    for bucket in report.buckets:
        yield {"section": "bucket", **span, **_bucket(bucket)}
    for team in report.teams:
        for bucket in team.buckets:
            yield {"section": "team", **span, "team": team.team, **_bucket(bucket)}
    for day in report.days:
        yield {"section": "day", "start": day.day, "waste": day.waste, **_amount(day.amount)}
    for job in report.jobs:
        names = {name: getattr(job, name) for name in ("cluster", "namespace", "job_kind", "job", "job_uid")}
        about: Cells = {"team": job.team, "waste": job.waste, "finding": job.finding}
        yield {"section": "job", **span, **names, **about, **_amount(job.amount)}
    for row in report.causes:
        cause: Cells = {"team": row.team, "waste": row.waste, "documentation": row.documentation}
        yield {"section": "cause", **span, **cause, **_amount(row.amount)}
    for each in report.to_do:
        yield {"section": "to_do", **_to_do(each)}


def _to_do(row: Recommendation) -> Cells:
    names = ("pattern", "variant", "severity", "state", "team", "subject", "job_uid", "since", "summary")
    alike: Cells = {}
    if row.alike is not None:
        numbers = " ".join(map(str, row.alike.findings))
        alike = {"alike": numbers, "alike_daily_nano": row.alike.daily_nano}
    cost: Cells = {"daily_nano": row.daily_nano, **_amount(row.wasted)}
    about: Cells = {"finding": row.finding, "action": row.action, "documentation": page_of(row.pattern)}
    return {**{name: getattr(row, name) for name in names}, **about, **cost, **alike}


def _bucket(row: WasteRow) -> Cells:
    return {"waste": row.waste, "share": row.share, **_amount(row.amount)}


def _finding(row: FindingEntry) -> Cells:
    names = ("id", "fingerprint", "pattern", "variant", "severity", "state", "team", "queue", "user")
    times = ("since", "opened_at", "last_seen", "summary")
    return {
        **{name: getattr(row, name) for name in (*names, *times)},
        **{name: getattr(row, name) or "" for name in ("closed_at", "muted_until", "exempt_until")},
        "cluster": row.subject.cluster,
        "subject_kind": row.subject.kind,
        "namespace": row.subject.namespace,
        "subject": row.subject.name,
        "subject_uid": row.subject.uid,
        "action": row.action.text,
        "patch": row.action.patch,
        "board_ms": row.wasted.board_ms,
        "nano": row.wasted.nano,
        "counted": str(row.wasted.counted).lower(),
        "boards_now": row.now.boards,
        "hourly_nano": row.now.hourly_nano,
        "daily_nano": row.now.daily_nano,
        "acknowledged_by": row.acknowledged.by if row.acknowledged else "",
        "rehearsal": str(row.rehearsal).lower(),
    }


def typed_table(
    facts: Mapping[str, str], types: Mapping[str, CellType], rows: Iterable[Cells]
) -> ReportTable:
    """A table of the columns that ``types`` names; a cell that a row lacks is empty."""
    columns = tuple(TableColumn(name, type_) for name, type_ in types.items())
    empty: dict[str, Cell] = {name: "" if type_ is _TEXT else None for name, type_ in types.items()}
    return ReportTable(facts, columns, tuple(tuple((empty | row).values()) for row in rows))
