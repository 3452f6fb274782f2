"""Months that were rolled up: which windows were joined, and whether their sums are still the same."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass
from typing import Any

from sqlalchemy import Connection, Row, select

from gpucost.contract.frames import LINE_MEASURES
from gpucost.domain.time import DAY_MS, Month, Window
from gpucost.ledger.db.digest import folded_day_digest, folded_month_digest, line_texts
from gpucost.ledger.db.records import MonthRollup, VerifyFinding
from gpucost.ledger.db.tables import (
    FOLD_BEGUN,
    FOLDED_DAY,
    HOLDER,
    LEDGER_WINDOW,
    MONTH,
    MONTH_FOLD,
    PROGRESS_LINE,
    RATE,
    UNIT,
    USAGE_LINE,
    WASTE_LINE,
    WASTE_WINDOW,
    WINDOW_PROBLEM,
    WINDOW_VERSION,
)
from gpucost.ledger.sealed.sealed_reader import sealed_months
from gpucost.ledger.usage import reader
from gpucost.ledger.usage.lines import CapacityTotals, totals
from gpucost.ledger.usage.months import SUMS

W, V, A, P, F = LEDGER_WINDOW.c, WINDOW_VERSION.c, WASTE_WINDOW.c, WASTE_LINE.c, FOLDED_DAY.c

# What the digest of a day covers of each of its windows.
_OF_WINDOW = (
    *("start_ms", "end_ms", "version", "digest", "observed_ms"),
    *("assessed_version", "state", "waste_digest"),
)


@dataclass(frozen=True, slots=True)
class RollupPiece:
    """Windows of a cluster that lie in one UTC day and have the same assessment, in order of their start.

    ``sums`` are those that were recorded with the windows, in the order of months.SUMS.
    """

    cluster: str
    start_ms: int
    assessed: str
    windows: tuple[Row[Any], ...]

    @property
    def end_ms(self) -> int:
        return self.start_ms + DAY_MS

    @property
    def ids(self) -> list[int]:
        return [row.id for row in self.windows]

    @property
    def carrier(self) -> int:
        return int(self.windows[0].id)

    @property
    def key(self) -> tuple[str, int, str]:
        return self.cluster, self.start_ms, self.assessed

    @property
    def subject(self) -> str:
        return f"{self.cluster} {Window(self.start_ms, self.end_ms)}"

    @property
    def sums(self) -> tuple[int, ...]:
        each = [[row._mapping[column.name] for row in self.windows] for column in SUMS]
        return tuple(map(sum, each))


def of_month(connection: Connection, month: Month) -> MonthRollup | None:
    f = MONTH_FOLD.c
    row = connection.execute(select(MONTH_FOLD).where(f.month == str(month))).one_or_none()
    if row is None:
        return None
    return MonthRollup(
        month,
        row.digest,
        row.folded_at_ms,
        row.author,
        row.lines_before,
        row.lines,
        row.waste_before,
        row.waste_lines,
    )


def pieces(connection: Connection, month: str) -> list[RollupPiece]:
    """The pieces that can be rolled up. Days whose edge a window crosses are left out."""
    statement = (
        select(W.id, W.cluster, W.start_ms, W.end_ms, W.version, V.digest, V.observed_ms, *SUMS)
        .add_columns(A.version.label("assessed_version"), A.state, A.digest.label("waste_digest"))
        .join(WINDOW_VERSION, reader.CURRENT_VERSION)
        .outerjoin(WASTE_WINDOW, A.window_id == W.id)
        .where(W.month == month)
    )
    found: dict[tuple[str, int, str], list[Row[Any]]] = {}
    crossed = set[tuple[str, int]]()
    for row in sorted(connection.execute(statement), key=lambda row: (row.cluster, row.start_ms)):
        first, last = row.start_ms // DAY_MS, (row.end_ms - 1) // DAY_MS
        if first != last:
            crossed |= {(row.cluster, day * DAY_MS) for day in range(first, last + 1)}
        assessed = row.state if row.assessed_version == row.version else ""
        found.setdefault((row.cluster, first * DAY_MS, assessed), []).append(row)
    return [RollupPiece(*key, tuple(rows)) for key, rows in sorted(found.items()) if key[:2] not in crossed]


def content(connection: Connection, piece: RollupPiece) -> tuple[str, CapacityTotals]:
    """Digest and sums of all that the windows of a piece hold."""
    lines = _columns(connection, piece.ids)
    waste = (
        select(UNIT.c.content_key, HOLDER.c.content_key, RATE.c.content_key.label("rate_key"))
        .add_columns(P.bucket, P.waste, P.board_ms, P.nano)
        .join(UNIT, UNIT.c.id == P.unit_id)
        .join(HOLDER, HOLDER.c.id == P.holder_id)
        .join(RATE, RATE.c.id == P.rate_id)
        .where(P.window_id.in_(piece.ids))
    )
    p, o = PROGRESS_LINE.c, WINDOW_PROBLEM.c
    progress = select(p.pod_uid, p.name, p.amount).where(p.window_id.in_(piece.ids))
    problems = select(o.code, o.cluster, o.subject, o.detail, o.board_ms).where(o.window_id.in_(piece.ids))
    windows = [tuple(row._mapping[name] for name in _OF_WINDOW) for row in piece.windows]
    digest = folded_day_digest(
        (piece.cluster, piece.start_ms, piece.end_ms, piece.assessed),
        windows,
        line_texts(lines),
        {
            kind: [tuple(row) for row in connection.execute(statement)]
            for kind, statement in (("progress", progress), ("problem", problems), ("waste", waste))
        },
    )
    return digest, totals(*lines[3:6])


def _columns(connection: Connection, window_ids: Sequence[int]) -> list[tuple[Any, ...]]:
    line = USAGE_LINE.c
    statement = (
        select(UNIT.c.content_key, HOLDER.c.content_key, RATE.c.content_key, line.bucket)
        .add_columns(*(line[name] for name in LINE_MEASURES))
        .join(UNIT, UNIT.c.id == line.unit_id)
        .join(HOLDER, HOLDER.c.id == line.holder_id)
        .join(RATE, RATE.c.id == line.rate_id)
        .where(line.window_id.in_(window_ids))
    )
    return list(zip(*connection.execute(statement), strict=True)) or [()] * (4 + len(LINE_MEASURES))


def day_row(row: Mapping[Any, Any]) -> tuple[Any, ...]:
    """A rolled up day as the digest of its month covers it."""
    names = ("cluster", "start_ms", "end_ms", "assessed", "windows", "lines", "waste_lines", "digest")
    return tuple(row[name] for name in names)


def window_ids(connection: Connection, month: str) -> set[int]:
    """The windows whose content is in a rolled up day of ``month``."""
    folded = {(row.cluster, row.start_ms, row.assessed) for row in _days(connection, month)}
    if not folded:
        return set()
    return {at for piece in pieces(connection, month) if piece.key in folded for at in piece.ids}


def months_begun(connection: Connection) -> set[str]:
    """The months for which the triggers were ever opened, by any process."""
    return set(connection.execute(select(FOLD_BEGUN.c.month)).scalars())


def _days(connection: Connection, month: str) -> list[Row[Any]]:
    rows = connection.execute(select(FOLDED_DAY).where(F.month == month)).all()
    return sorted(rows, key=lambda row: (row.cluster, row.start_ms, row.assessed))


def verify(connection: Connection, name: str) -> Iterator[VerifyFinding]:
    """Findings about a month's rolled up days. Their sums must be those of the windows, which the digest that
    the month was closed with covers."""
    month, f = Month.parse(name), MONTH_FOLD.c
    record = connection.execute(select(MONTH_FOLD).where(f.month == name)).one_or_none()
    rows = _days(connection, name)
    by_key = {piece.key: piece for piece in pieces(connection, name)} if rows else {}
    is_sealed = month in sealed_months(connection)  # then the hashes of its files say it
    for row in rows:
        piece = by_key.get((row.cluster, row.start_ms, row.assessed))
        if piece is None or piece.carrier != row.window_id:
            subject = f"{row.cluster} {Window(row.start_ms, row.end_ms)}"
            yield VerifyFinding(month, subject, "a folded day of other windows than the ledger has")
            continue
        if not is_sealed:
            yield from _changed(month, piece, row, *content(connection, piece))
    begun = connection.execute(select(FOLD_BEGUN.c.month).where(FOLD_BEGUN.c.month == name)).first()
    if record is None:
        if begun is not None:
            yield VerifyFinding(month, name, "begun to be folded, and no record of the folding")
        if rows:
            yield VerifyFinding(month, name, f"{len(rows)} folded days, and no record of the folding")
        return
    closed = connection.execute(select(MONTH.c.digest).where(MONTH.c.month == name)).scalar_one_or_none()
    digest = folded_month_digest(name, str(closed), [day_row(row._mapping) for row in rows])
    if (record.digest, record.month_digest) != (digest, closed):
        detail = f"{len(rows)} folded days give digest {digest} on {closed}, folded with {record.digest}"
        yield VerifyFinding(month, name, f"{detail} on {record.month_digest}")
    if begun is None:
        yield VerifyFinding(month, name, "folded, and never begun to be")


def _changed(
    month: Month, piece: RollupPiece, row: Row[Any], digest: str, found: CapacityTotals
) -> Iterator[VerifyFinding]:
    if digest != row.digest:
        yield VerifyFinding(
            month, piece.subject, f"folded day changed: digest {digest}, recorded {row.digest}"
        )
    elif astuple(found)[1:] != piece.sums[1:]:
        detail = f"folded day sums to {astuple(found)[1:]}, its windows to {piece.sums[1:]}"
        yield VerifyFinding(month, piece.subject, detail)
