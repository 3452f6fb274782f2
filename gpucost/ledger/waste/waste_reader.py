"""Reads of the waste ledger: what became of capacity, and how much of it has been assessed.

Stored are the parts of usage lines that detectors claim; the rest of a line is its bucket in
WASTE_WHEN_UNCLAIMED. In a window that was not assessed, or whose lines have changed since, time that
detectors could have claimed is unknown. ``final_waste`` sums windows whose waste is final, for a caller that
adds them up as they come.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd
from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Connection,
    Select,
    String,
    case,
    cast,
    func,
    literal,
    select,
    union_all,
)
from sqlalchemy.sql.selectable import Subquery

from gpucost.domain.buckets import (
    ORDER,
    WASTE_WHEN_UNCLAIMED,
    Bucket,
    Waste,
)
from gpucost.domain.scope import EVERYTHING, Scope
from gpucost.domain.time import Month, Window
from gpucost.ledger.db.digest import waste_digest
from gpucost.ledger.db.dimensions import clusters_of, in_clusters
from gpucost.ledger.db.records import (
    AssessmentCounts,
    LedgerState,
    VerifyFinding,
    WindowInfo,
)
from gpucost.ledger.db.tables import (
    HOLDER,
    LEDGER_WINDOW,
    RATE,
    UNIT,
    USAGE_LINE,
    WASTE_LINE,
    WASTE_WINDOW,
    WINDOW_VERSION,
)
from gpucost.ledger.sealed.sealed_reader import SealedStore, sealed_months
from gpucost.ledger.usage import reader, rollups
from gpucost.ledger.usage.coded_sums import added
from gpucost.ledger.usage.query import (
    OF_JOBS,
    as_frame,
    check_dims,
    refuse_cut,
    sums_by_id,
    sums_by_name,
    window_ids,
)

FINAL, PROVISIONAL = "final", "provisional"
WASTE_MEASURES = ("board_ms", "nano", "unpriced_ms")

# The waste buckets in a window that was not assessed.
_UNSEEN = {**WASTE_WHEN_UNCLAIMED, Bucket.HELD: Waste.UNKNOWN, Bucket.UNALLOCATED: Waste.UNKNOWN}
_CAPACITY = [str(bucket) for bucket in Bucket if bucket.is_capacity]

W, V, A, P = LEDGER_WINDOW.c, WINDOW_VERSION.c, WASTE_WINDOW.c, WASTE_LINE.c
_CURRENT = (A.window_id == W.id) & (A.version == W.version)


def waste(
    connection: Connection,
    scope: Scope,
    window: Window,
    dims: Sequence[str],
    filters: Mapping[str, Collection[str]],
    step_ms: int | None,
    sealed: SealedStore,
) -> pd.DataFrame:
    """See Ledger.waste. Lines and parts are summed by id; names come after, as in query.aggregate."""
    check_dims(dims, filters)
    refuse_cut(connection, window, clusters_of(scope, filters), step_ms)
    return summed(connection, scope, window, dims, filters, step_ms, sealed)


def summed(
    connection: Connection,
    scope: Scope,
    window: Window,
    dims: Sequence[str],
    filters: Mapping[str, Collection[str]],
    step_ms: int | None,
    sealed: SealedStore,
) -> pd.DataFrame:
    """The same over the windows of the ledger that lie in ``window``, without a check for windows that its
    edges cut."""
    lines = _by_id(scope, window, dims, filters, step_ms)
    measures = [cast(func.sum(lines.c[name]), BigInteger) for name in WASTE_MEASURES]
    others = [*(["step"] if step_ms is not None else []), "waste"]
    rows = sums_by_name(connection, lines, measures, dims, others)
    span = sealed.span(connection, window, clusters_of(scope, filters))
    if span is not None:
        rows = added(rows, span.waste(scope, dims, filters, step_ms), WASTE_MEASURES)
    # Lines that are claimed to the last millisecond have no rest.
    left = [row for row in rows if row[-3] or row[-2]]
    frame = as_frame(left, dims, window, step_ms, WASTE_MEASURES, ["waste"])
    nobody_paid = (frame["board_ms"] == frame["unpriced_ms"]) & (frame["nano"] == 0)
    frame["nano"] = frame["nano"].mask(nobody_paid)
    keys = list(frame.columns[: -len(WASTE_MEASURES)])
    return frame.sort_values(
        keys, key=lambda column: column.map(ORDER) if column.name == "waste" else column, ignore_index=True
    )


def _by_id(
    scope: Scope,
    window: Window,
    dims: Sequence[str],
    filters: Mapping[str, Collection[str]],
    step_ms: int | None,
) -> Subquery:
    """Lines of windows not assessed, lines of assessed ones as if all were rest, and the parts, which are
    added where they belong and taken from the rest."""
    keyed = list(dict.fromkeys((*dims, "bucket")))
    capacity = dict(filters) | {"bucket": sorted({*filters.get("bucket", _CAPACITY)} & {*_CAPACITY})}
    assessed = select(A.window_id).join(LEDGER_WINDOW, _CURRENT)
    of_window = window_ids(window, clusters_of(scope, filters))
    seen, unseen = of_window.where(W.id.in_(assessed)), of_window.where(W.id.not_in(assessed))

    def sums(table: Any, windows: Select[int], *more: ColumnElement[Any]) -> Select[Any]:
        line = table.c
        unpriced = case((line.nano.is_(None), line.board_ms), else_=0)
        by_name = {"board_ms": line.board_ms, "nano": func.coalesce(line.nano, 0), "unpriced_ms": unpriced}
        measures = [cast(func.sum(column), BigInteger).label(name) for name, column in by_name.items()]
        # By job few pods of some days are alike, and to find them all holders are compared.
        alike = OF_JOBS.isdisjoint(dims)
        return sums_by_id(table, measures, windows, scope, keyed, capacity, step_ms, more, one_of_alike=alike)

    parts = sums(WASTE_LINE, seen, P.waste).cte("parts")
    unassessed, rest = sums(USAGE_LINE, unseen).subquery(), sums(USAGE_LINE, seen).subquery()
    return union_all(
        _select(unassessed, _label(unassessed.c.bucket, _UNSEEN)),
        _select(rest, _label(rest.c.bucket, WASTE_WHEN_UNCLAIMED)),
        _select(parts, parts.c.waste),
        _select(parts, _label(parts.c.bucket, WASTE_WHEN_UNCLAIMED), sign=-1),
    ).subquery("waste_sums")


def _select(lines: Any, waste: ColumnElement[str], sign: int = 1) -> Select[Any]:
    keys = [column for column in lines.c if column.name not in (*WASTE_MEASURES, "waste")]
    return select(*keys, waste.label("waste"), *((lines.c[n] * sign).label(n) for n in WASTE_MEASURES))


def _label(bucket: ColumnElement[str], names: Mapping[Bucket, Waste]) -> ColumnElement[str]:
    whens = {str(key): literal(str(name), String) for key, name in names.items()}
    return case(whens, value=bucket)


def unassessed(connection: Connection, cluster: str, span: Window) -> tuple[WindowInfo, ...]:
    """See Ledger.unassessed."""
    statement = select(W.start_ms).join(WASTE_WINDOW, _CURRENT).where(W.cluster == cluster, A.state == FINAL)
    statement = statement.where(W.start_ms < span.end_ms, W.end_ms > span.start_ms)
    final = set(connection.execute(statement).scalars())
    return tuple(
        info
        for info in reader.windows(connection, EVERYTHING, span, cluster)
        if info.window.start_ms not in final and info.state is not LedgerState.CLOSED
    )


def assessed(connection: Connection, scope: Scope, window: Window, cluster: str | None) -> AssessmentCounts:
    """See Ledger.assessed."""
    columns = (A.state, A.digest, W.cluster, W.start_ms)
    statement = select(*columns).select_from(LEDGER_WINDOW).outerjoin(WASTE_WINDOW, _CURRENT)
    statement = statement.where(W.start_ms < window.end_ms, W.end_ms > window.start_ms)
    statement = statement.where(*in_clusters(scope, W.cluster))
    if cluster is not None:
        statement = statement.where(W.cluster == cluster)
    every = connection.execute(statement).all()
    rows = sorted(tuple(row) for row in every if row.state is not None)
    found = Counter(row[0] for row in rows)
    missing = len(every) - len(rows)
    digest = hashlib.sha256(repr(rows).encode()).hexdigest() if rows else ""
    return AssessmentCounts(
        final=found[FINAL], provisional=found[PROVISIONAL], missing=missing, digest=digest
    )


def verify(connection: Connection, month: str) -> Iterator[VerifyFinding]:
    """Findings about the windows of a month whose waste is not what was written."""
    statement = (
        select(W.id, W.cluster, W.start_ms, W.end_ms, W.version, V.digest)
        .add_columns(A.version.label("assessed"), A.digest.label("recorded"))
        .join(WINDOW_VERSION, reader.CURRENT_VERSION)
        .outerjoin(WASTE_WINDOW, A.window_id == W.id)
        .where(W.month == month)
    )
    if Month.parse(month) in sealed_months(connection):
        return  # the hashes of the files say it
    in_days = rollups.window_ids(connection, month)
    for row in sorted(connection.execute(statement), key=lambda row: (row.cluster, row.start_ms)):
        if row.id in in_days:
            continue
        lines = _keyed_parts(connection, row.id)
        digest = waste_digest((row.cluster, row.start_ms, row.end_ms, row.digest), lines)
        subject = f"{row.cluster} {Window(row.start_ms, row.end_ms)}"
        if row.recorded is None:
            if lines:
                detail = f"{len(lines)} waste lines of a window that was not assessed"
                yield VerifyFinding(Month.parse(month), subject, detail)
        elif row.assessed != row.version:
            detail = f"waste of version {row.assessed}, the window has {row.version}"
            yield VerifyFinding(Month.parse(month), subject, detail)
        elif row.recorded != digest:
            detail = f"waste changed: digest {digest}, recorded {row.recorded}"
            yield VerifyFinding(Month.parse(month), subject, detail)


def _keyed_parts(connection: Connection, window_id: int) -> list[tuple[Any, ...]]:
    statement = (
        select(UNIT.c.content_key, HOLDER.c.content_key, RATE.c.content_key)
        .add_columns(P.bucket, P.waste, P.board_ms, P.nano)
        .join(UNIT, UNIT.c.id == P.unit_id)
        .join(HOLDER, HOLDER.c.id == P.holder_id)
        .join(RATE, RATE.c.id == P.rate_id)
        .where(P.window_id == window_id)
    )
    return [tuple(row) for row in connection.execute(statement)]


@dataclass(frozen=True, slots=True)
class FinalWaste:
    """GPU milliseconds by team and bucket over windows with final waste, which ``starts`` (ms) name.

    ``complete`` says that there are no others.
    """

    starts: tuple[int, ...]
    board_ms: Mapping[tuple[str, Waste], int]
    complete: bool


def final_waste(
    connection: Connection, cluster: str, known: Collection[int], most: int, sealed: SealedStore
) -> FinalWaste:
    """See Ledger.final_waste."""
    statement = (
        select(W.start_ms, W.end_ms)
        .join(WASTE_WINDOW, (A.window_id == W.id) & (A.version == W.version))
        .where(W.cluster == cluster, A.state == FINAL)
        .order_by(W.start_ms)
    )
    fresh = [Window(*row) for row in connection.execute(statement) if row.start_ms not in known]
    taken = fresh[:most]
    sums: Counter[tuple[str, Waste]] = Counter()
    for run in runs(taken):
        # A run may lie in a part of a rolled up day: what the day holds counts with its first window.
        frame = summed(connection, EVERYTHING, run, ["team"], {"cluster": [cluster]}, None, sealed)
        for team, bucket, board_ms in zip(frame["team"], frame["waste"], frame["board_ms"], strict=True):
            sums[team, Waste(bucket)] += int(board_ms)
    return FinalWaste(tuple(window.start_ms for window in taken), dict(sums), len(taken) == len(fresh))


def runs(windows: Sequence[Window]) -> list[Window]:
    """Adjacent windows joined: to sum them takes one query."""
    found: list[Window] = []
    for window in windows:
        if found and found[-1].end_ms == window.start_ms:
            found[-1] = Window(found[-1].start_ms, window.end_ms)
        else:
            found.append(window)
    return found
