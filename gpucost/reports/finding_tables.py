"""Findings and the waste ledger as one flat table each, for CSV."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from gpucost.domain.time import iso
from gpucost.reports.causes import page_of
from gpucost.reports.findings import FindingRow, FindingsReport
from gpucost.reports.tables import Cell, Cells, CellType, Table, TableColumn
from gpucost.reports.to_do import ToDo
from gpucost.reports.values import Amount
from gpucost.reports.waste import WasteReport, WasteRow

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


def waste_table(report: WasteReport) -> Table:
    """``section`` says what a row is: ``bucket`` (they add up to capacity), ``team``, ``day``, ``job``,
    ``cause`` or ``to_do``. Each tells the same time by another cut: rows of two sections must not be added.
    """
    common: Cells = {"currency": report.currency}
    facts = {
        "schema": "gpucost/WasteTable/v1",
        "window": str(report.window),
        "currency": report.currency,
    }
    return _table(facts, _WASTE, (common | row for row in _waste_rows(report)))


def findings_table(report: FindingsReport) -> Table:
    """One row per finding; evidence is left out."""
    facts = {"schema": "gpucost/FindingsTable/v1", "currency": report.currency}
    common: Cells = {"currency": report.currency}
    return _table(facts, _FINDINGS, (common | _finding(row) for row in report.findings))


def _waste_rows(report: WasteReport) -> Iterator[Cells]:
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


def _to_do(row: ToDo) -> Cells:
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


def _amount(amount: Amount) -> Cells:
    return {
        "board_ms": amount.board_ms,
        "nano": amount.nano,
        "unpriced_board_ms": amount.unpriced_board_ms,
    }


def _finding(row: FindingRow) -> Cells:
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


def _table(facts: Mapping[str, str], types: Mapping[str, CellType], rows: Iterable[Cells]) -> Table:
    columns = tuple(TableColumn(name, type_) for name, type_ in types.items())
    empty: dict[str, Cell] = {name: "" if type_ is _TEXT else None for name, type_ in types.items()}
    return Table(facts, columns, tuple(tuple((empty | row).values()) for row in rows))
