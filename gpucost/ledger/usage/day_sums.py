"""Usage by UTC day: what reports of days and longer read in place of the lines.

A row of ``day_line`` sums the lines of a cluster's day that differ in pod and node alone, with every measure
that ``query.aggregate`` has. A day has such rows, all of them, or none: then it has no row in ``usage_day``,
and the lines themselves are read. So a ledger of before needs no long migration, and a day that cannot be
added up does no harm.

``day_totals`` adds up lines that are to be written. ``write`` is called in the transaction that writes the
lines, by the cluster's one writer. New windows are added to their day. Where a window was replaced the day is
added up anew from its lines: a least or a largest value cannot be taken back.

``add_up`` does a day of before; ``pending`` says which there are. ``close`` gives the days of a month that is
closed a digest, with which the triggers let nobody change them any more; ``verify`` adds every day up again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from sqlalchemy import Connection, Select, and_, delete, func, insert, select, update

from gpucost.attribution.apportion import Ints
from gpucost.contract.frames import SIGNAL_MEASURES
from gpucost.domain.money import INT64_MAX
from gpucost.domain.time import DAY_MS, Month, Window
from gpucost.ledger.db.database import add_rows, insert_filled
from gpucost.ledger.db.digest import usage_day_digest
from gpucost.ledger.db.dimensions import among, known, resolve
from gpucost.ledger.db.records import VerifyFinding
from gpucost.ledger.db.tables import (
    DAY_LINE,
    HOLDER,
    LEDGER_WINDOW,
    RATE,
    UNIT,
    USAGE_DAY,
    USAGE_LINE,
    WINDOW_VERSION,
)
from gpucost.ledger.sealed.sealed_reader import sealed_months
from gpucost.ledger.usage import query, reader
from gpucost.ledger.usage.day_totals import (
    DAY_MEASURES,
    LARGEST,
    LEAST,
    MOST_OF_DAY,
    NO_LINES,
    AddedLines,
    DaySums,
    Names,
)
from gpucost.ledger.usage.lines import LineMeasure

W, V, L, D, S = LEDGER_WINDOW.c, WINDOW_VERSION.c, USAGE_LINE.c, USAGE_DAY.c, DAY_LINE.c


def write(
    connection: Connection,
    cluster: str,
    added: Mapping[int, int],
    replaced: set[int],
    sums: Mapping[int, DaySums] | None,
) -> None:
    """After lines were written: ``added`` says how many windows of a day are new, ``sums`` what they sum to,
    and ``replaced`` are the days of which a window has other lines than before."""
    for day in sorted(added.keys() | replaced):
        day_id = _day_id(connection, cluster, day)
        is_new = day_id is None and _windows_in(connection, cluster, day) == added.get(day, 0)
        if sums is None or day in replaced or (day_id is None and not is_new):
            add_up(connection, cluster, day)
        elif day_id is None:
            insert_filled(
                connection, DAY_LINE, _rows(connection, _begin(connection, cluster, day), sums[day])
            )
        else:
            add_rows(connection, DAY_LINE, _rows(connection, day_id, sums[day]), merged=_MERGED)


# How a row that is there takes in another one. Either may be null.
_MERGED = {
    name: "CASE WHEN {0} <= {1} THEN {0} ELSE {1} END"
    if name in LEAST
    else "CASE WHEN {0} >= {1} THEN {0} ELSE coalesce({1}, {0}) END"
    if name in LARGEST
    else "coalesce({0} + {1}, {0}, {1})"
    for name in DAY_MEASURES
}


def _day_id(connection: Connection, cluster: str, day: int) -> int | None:
    statement = select(D.id).where(D.cluster == cluster, D.start_ms == day)
    return connection.execute(statement).scalar_one_or_none()


def _begin(connection: Connection, cluster: str, day: int) -> int:
    values = {"cluster": cluster, "start_ms": day, "month": str(Month.of(day)), "digest": ""}
    return int(connection.execute(insert(USAGE_DAY).values(values).returning(D.id)).scalar_one())


def _in_day(cluster: str, day: int) -> tuple[Any, ...]:
    return W.cluster == cluster, W.start_ms >= day, W.start_ms < day + DAY_MS


def _windows_in(connection: Connection, cluster: str, day: int) -> int:
    statement = select(func.count()).select_from(LEDGER_WINDOW).where(*_in_day(cluster, day))
    return int(connection.execute(statement).scalar_one())


def _rows(connection: Connection, day_id: int, sums: DaySums) -> list[tuple[Any, ...]]:
    """In the order of the table's key."""
    used = [{row[at] for row in sums.rows} for at in (0, 1)]
    units = resolve(connection, UNIT, {key: sums.units[key] for key in used[0]})
    holders = resolve(connection, HOLDER, {key: sums.holders[key] for key in used[1]})
    rates = known(connection, RATE, {row[2] for row in sums.rows} - {""}) | {"": 0}  # 0 is "no price"
    # No two have the same key, so that measures are never compared.
    return sorted(
        (day_id, units[unit], holders[holder], rates[rate], *rest) for unit, holder, rate, *rest in sums.rows
    )


def add_up(connection: Connection, cluster: str, day: int) -> bool:
    """Add up the lines of a day anew. False where that cannot be: a sum would leave 64 bits, or lines do not
    sum to what was recorded of their windows. The day then has no sums, and its lines are read."""
    day_id = _day_id(connection, cluster, day)
    if day_id is not None:
        connection.execute(delete(DAY_LINE).where(S.day_id == day_id))
    sums = _of_lines(connection, cluster, day)
    if sums is None or sums.capacity != _recorded(connection, cluster, day):
        connection.execute(delete(USAGE_DAY).where(D.id == day_id))
        return False
    if day_id is None:
        day_id = _begin(connection, cluster, day)
    insert_filled(connection, DAY_LINE, _rows(connection, day_id, sums))
    if reader.is_closed(connection, Month.of(day)):
        _seal(connection, day_id, cluster, day)
    return True


def _recorded(connection: Connection, cluster: str, day: int) -> tuple[int, ...]:
    """What was recorded of the day's windows, as DaySums.capacity."""
    statement = select(V.board_ms, V.unknown_ms, V.unpriced_ms, V.nano).join(
        LEDGER_WINDOW, reader.CURRENT_VERSION
    )
    rows = connection.execute(statement.where(*_in_day(cluster, day))).all()
    return tuple(map(sum, zip(*rows, strict=True))) if rows else (0, 0, 0, 0)


def _of_lines(connection: Connection, cluster: str, day: int) -> DaySums | None:
    """The sums of a day's lines; None where one of them could leave 64 bits."""
    windows = select(W.id).where(*_in_day(cluster, day))
    count, *largest = connection.execute(
        select(func.count(), *(func.max(L[name]) for name in ("board_ms", "nano", *SIGNAL_MEASURES))).where(
            L.window_id.in_(windows)
        )
    ).one()
    if count * max((value for value in largest if value is not None), default=0) > INT64_MAX:
        return None
    query.sum_by_hash(connection)
    rows = connection.execute(_line_sums(windows)).all()
    columns = list(zip(*rows, strict=True)) or [()] * (4 + len(DAY_MEASURES))
    unit_ids, holder_ids, rate_ids, buckets = (list(dict.fromkeys(column)) for column in columns[:4])
    unit, holder, rate, bucket = (
        _positions(values, column)
        for values, column in zip((unit_ids, holder_ids, rate_ids, buckets), columns[:4], strict=True)
    )
    numbers = {
        name: LineMeasure.of_plain(column) for name, column in zip(DAY_MEASURES, columns[4:], strict=True)
    }
    units, holders = _named(connection, UNIT, unit_ids), _named(connection, HOLDER, holder_ids)
    by_id = select(RATE.c.id, RATE.c.content_key).where(among(connection, RATE.c.id, rate_ids))
    key_of = {row.id: row.content_key for row in connection.execute(by_id)}
    rates = [key_of[rate_id] for rate_id in rate_ids]
    days = np.full(len(rows), day, np.int64)
    lines = AddedLines(days, unit, holder, rate, bucket, units, holders, rates, buckets, numbers)
    try:
        return lines.by_day(MOST_OF_DAY).get(day, NO_LINES)
    except OverflowError:
        return None


def _line_sums(windows: Select[Any]) -> Select[Any]:
    keys = (L.unit_id, L.holder_id, L.rate_id, L.bucket)
    measures = query.line_measures()
    return (
        select(*keys, *(measures[name] for name in DAY_MEASURES))
        .where(L.window_id.in_(windows))
        .group_by(*keys)
    )


def _positions(values: Sequence[Any], column: Sequence[Any]) -> Ints:
    place = {value: at for at, value in enumerate(values)}
    return np.array([place[value] for value in column], np.int64)


def _named(connection: Connection, table: Any, ids: Sequence[int]) -> list[Names]:
    """The rows of ``ids`` in a table of names, without id and key."""
    columns = list(table.columns)[2:]
    statement = select(table.c.id, *columns).where(among(connection, table.c.id, ids))
    found = {row_id: tuple(names) for row_id, *names in connection.execute(statement)}
    return [found[row_id] for row_id in ids]


def pending(connection: Connection, month: Month | None = None) -> tuple[tuple[str, int], ...]:
    """Cluster and start of the days with windows that are not added up, the newest first. Those of sealed
    months never are: their sums are in files."""
    day = (W.start_ms - W.start_ms % DAY_MS).label("day")
    sealed = [str(each) for each in sealed_months(connection)]
    windows = select(W.cluster, day).where(W.month.not_in(sealed))
    windows = windows if month is None else windows.where(W.month == str(month))
    days = windows.distinct().subquery()
    known = and_(D.cluster == days.c.cluster, D.start_ms == days.c.day)
    statement = select(days.c.cluster, days.c.day).outerjoin(USAGE_DAY, known).where(D.id.is_(None))
    return tuple(sorted(((row.cluster, row.day) for row in connection.execute(statement)), key=_newest))


def _newest(found: tuple[str, int]) -> tuple[int, str]:
    return -found[1], found[0]


def add_up_pending(connection: Connection, cluster: str, day: int) -> bool:
    """The same for a day of before, unless it was done meanwhile."""
    return _day_id(connection, cluster, day) is not None or add_up(connection, cluster, day)


def close(connection: Connection, month: Month) -> None:
    """Give the days of a month their digest."""
    days = select(D.id, D.cluster, D.start_ms).where(D.month == str(month), D.digest == "")
    for day_id, cluster, day in connection.execute(days).all():
        _seal(connection, day_id, cluster, day)


def _seal(connection: Connection, day_id: int, cluster: str, day: int) -> None:
    digest = usage_day_digest((cluster, day), _stored(connection, day_id))
    connection.execute(update(USAGE_DAY).where(D.id == day_id).values(digest=digest))


def _stored(connection: Connection, day_id: int) -> Iterator[tuple[Any, ...]]:
    """The rows of a day as DaySums has them."""
    statement = (
        select(UNIT.c.content_key, HOLDER.c.content_key.label("holder"), RATE.c.content_key.label("rate"))
        .add_columns(S.bucket, *(S[name] for name in DAY_MEASURES))
        .join(UNIT, UNIT.c.id == S.unit_id)
        .join(HOLDER, HOLDER.c.id == S.holder_id)
        .join(RATE, RATE.c.id == S.rate_id)
        .where(S.day_id == day_id)
    )
    yield from map(tuple, connection.execute(statement))


def verify(connection: Connection, name: str) -> Iterator[VerifyFinding]:
    """Findings about the days of a month whose sums are not those of its lines."""
    month = Month.parse(name)
    closed = reader.is_closed(connection, month)
    days = connection.execute(select(USAGE_DAY).where(D.month == name)).all()
    for row in sorted(days, key=lambda row: (row.cluster, row.start_ms)):
        subject = f"{row.cluster} {Window(row.start_ms, row.start_ms + DAY_MS)}"
        stored = list(_stored(connection, row.id))
        digest = usage_day_digest((row.cluster, row.start_ms), stored)
        if row.digest != (digest if closed else ""):
            detail = f"day sums changed: digest {digest}, recorded {row.digest or 'none'}"
            yield VerifyFinding(month, subject, detail)
        found = _of_lines(connection, row.cluster, row.start_ms)
        wanted = set() if found is None else set(found.rows)
        wrong = wanted.symmetric_difference(stored)
        if wrong:
            kinds = {row[:4] for row in wrong}
            yield VerifyFinding(month, subject, f"day sums are not those of the lines, in {len(kinds)} rows")
