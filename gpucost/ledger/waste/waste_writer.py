"""Writing the waste of windows: the caller holds the transaction and the lock."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from sqlalchemy import Connection, delete, insert, select

from gpucost.contract.frames import LINE_MEASURES, USAGE_LINES, ColumnType, FrameColumn, FrameSpec
from gpucost.domain.buckets import WASTE_WHEN_UNCLAIMED, Bucket, Waste
from gpucost.domain.errors import InputError, LedgerConflict, LinesOutdated, MonthClosed
from gpucost.domain.time import Month, Window
from gpucost.ledger.db.database import insert_rows
from gpucost.ledger.db.digest import content_key, waste_digest
from gpucost.ledger.db.dimensions import known
from gpucost.ledger.db.records import LedgerState, WasteOfWindow
from gpucost.ledger.db.stored_values import check_text
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
from gpucost.ledger.sealed.sealed_reader import sealed_months
from gpucost.ledger.usage import reader
from gpucost.ledger.usage.lines import (
    HOLDER_KEY_COLUMNS,
    UNIT_COLUMNS,
    distinct,
    line_name,
    plain_columns,
)
from gpucost.ledger.usage.writer import record
from gpucost.ledger.waste.waste_reader import FINAL, PROVISIONAL

WASTE_LINES = FrameSpec(
    "waste_lines",
    "Parts of usage lines, each in one bucket of the waste ledger; what no part has is the line's rest. "
    "Parts of one line in one bucket are added up.",
    (
        *(column for column in USAGE_LINES.columns if column.name not in LINE_MEASURES),
        FrameColumn("waste", ColumnType.TEXT, "", "domain.waste.Waste"),
        *(column for column in USAGE_LINES.columns if column.name in ("board_ms", "nano")),
    ),
)

# Ids of unit, holder and rate, and the bucket: a usage line of a window.
_Line: TypeAlias = tuple[int, int, int, str]
_Amount: TypeAlias = tuple[int, int | None]

W, V, A, P, L = LEDGER_WINDOW.c, WINDOW_VERSION.c, WASTE_WINDOW.c, WASTE_LINE.c, USAGE_LINE.c


@dataclass(frozen=True, slots=True)
class AssessmentOrigin:
    """The author of an assessment, and the reason for repeating it."""

    code_version: str
    reason: str
    author: str
    now_ms: int


@dataclass(frozen=True, slots=True)
class _Parts:
    """The parts of one window's lines by line and bucket of waste, and the content keys behind the ids."""

    amounts: Mapping[tuple[_Line, str], _Amount]
    keys: Mapping[_Line, tuple[str, str, str]]

    def rows(self) -> list[tuple[Any, ...]]:
        """The rows to store, without the window."""
        return [(*line, waste, *amount) for (line, waste), amount in sorted(self.amounts.items())]

    def keyed(self) -> list[tuple[Any, ...]]:
        return [(*self.keys[line], line[3], waste, *amount) for (line, waste), amount in self.amounts.items()]


def write(
    connection: Connection, cluster: str, assessments: Sequence[WasteOfWindow], origin: AssessmentOrigin
) -> tuple[bool, ...]:
    """See Ledger.write_waste."""
    check_text("code_version", origin.code_version)
    check_text("reason", origin.reason)
    check_text("author", origin.author, empty=False)
    return tuple(_write_one(connection, cluster, one, origin) for one in assessments)


def _write_one(connection: Connection, cluster: str, given: WasteOfWindow, origin: AssessmentOrigin) -> bool:
    stored = _stored(connection, cluster, given)
    month = Month.of(given.window.start_ms)
    if stored.state == LedgerState.CLOSED and month in sealed_months(connection):
        raise MonthClosed(
            f"{month} is closed and sealed: the waste of {cluster} {given.window} stays as it is"
        )
    parts = _parts(connection, cluster, given, stored.id)
    place = (cluster, given.window.start_ms, given.window.end_ms, given.digest)
    digest = waste_digest(place, parts.keyed())
    same, was_final = stored.recorded == digest, stored.assessed == FINAL
    if same and (was_final or not given.final):
        return False
    if stored.state == LedgerState.CLOSED:
        raise MonthClosed(f"{month} is closed: the waste of {cluster} {given.window} stays as it is")
    if was_final:
        _replaces_final(connection, cluster, given.window, f"{digest} replaces {stored.recorded}", origin)
    for table in (WASTE_LINE, WASTE_WINDOW):
        connection.execute(delete(table).where(table.c.window_id == stored.id))
    # A final assessment stays final, whatever replaces it.
    state = FINAL if given.final or was_final else PROVISIONAL
    row = (stored.id, stored.version, state, digest, origin.now_ms, origin.code_version)
    names = [column.name for column in WASTE_WINDOW.columns]
    connection.execute(insert(WASTE_WINDOW), dict(zip(names, row, strict=True)))
    insert_rows(connection, WASTE_LINE, [(stored.id, *part) for part in parts.rows()])
    return True


def _stored(connection: Connection, cluster: str, given: WasteOfWindow) -> Any:
    """The window with the waste it has. Raises InputError for none, LedgerConflict for one with other
    lines."""
    window = given.window
    statement = (
        select(W.id, W.state, W.version, V.digest, A.state.label("assessed"), A.digest.label("recorded"))
        .join(WINDOW_VERSION, reader.CURRENT_VERSION)
        .outerjoin(WASTE_WINDOW, (A.window_id == W.id) & (A.version == W.version))
        .where(W.cluster == cluster, W.start_ms == window.start_ms, W.end_ms == window.end_ms)
    )
    row = connection.execute(statement).first()
    if row is None:
        raise InputError("window", f"{cluster} {window}", "a window of the ledger")
    if row.digest != given.digest:
        raise LedgerConflict(
            f"{cluster} {window} has other lines by now (digest {row.digest}) than were assessed "
            f"({given.digest})"
        )
    return row


def _replaces_final(
    connection: Connection, cluster: str, window: Window, detail: str, origin: AssessmentOrigin
) -> None:
    subject = f"{cluster} {window}"
    if not origin.reason.strip():
        raise LedgerConflict(f"the waste of {subject} is final: other waste needs a reason ({detail})")
    record(
        connection,
        at_ms=origin.now_ms,
        author=origin.author,
        action="waste",
        subject=subject,
        reason=origin.reason,
        detail=detail,
    )


def _parts(connection: Connection, cluster: str, given: WasteOfWindow, window_id: int) -> _Parts:
    """The parts of the window's lines. Raises InputError, naming the line, for parts that cannot be right."""
    columns = plain_columns(given.lines, WASTE_LINES)
    names, lines, keys = _lines(connection, columns)
    whole = _whole_lines(connection, window_id, lines)
    start_ms, end_ms = given.window.start_ms, given.window.end_ms
    amounts = defaultdict[tuple[_Line, str], list[_Amount]](list)
    named: dict[_Line, str] = {}
    key_of: dict[_Line, tuple[str, str, str]] = {}
    place = zip(columns["cluster"], columns["window_start_ms"], columns["window_end_ms"], strict=True)
    measures = zip(columns["waste"], columns["board_ms"], columns["nano"], strict=True)
    for name, line, key, at, (waste, *part) in zip(names, lines, keys, place, measures, strict=True):
        if at != (cluster, start_ms, end_ms) or line not in whole:
            allowed = f"parts of lines that the ledger has of {cluster} {given.window}, as it was ingested"
            refused = InputError if at != (cluster, start_ms, end_ms) else LinesOutdated
            raise refused("waste_lines", name, allowed)
        amount = (part[0], part[1])
        _check_part(name, line[3], waste, amount, whole[line])
        amounts[line, waste].append(amount)
        named[line], key_of[line] = name, key
    for line, name in named.items():
        _check_sum(name, [a for waste in Waste for a in amounts.get((line, waste), ())], whole[line])
    summed = {
        key: _sum(parts)
        for key, parts in amounts.items()
        if key[1] != WASTE_WHEN_UNCLAIMED[Bucket(key[0][3])]
    }
    return _Parts({key: amount for key, amount in summed.items() if amount[0] or amount[1]}, key_of)


def _lines(
    connection: Connection, columns: Mapping[str, list[Any]]
) -> tuple[list[str], list[_Line], list[tuple[str, str, str]]]:
    """For every row: its line in words, the line's ids (-1 where the ledger has none) and content keys."""
    buckets, rates = columns["bucket"], columns["rate_id"]
    ids, keys, rows = [], [], []
    for table, names in ((UNIT, UNIT_COLUMNS), (HOLDER, HOLDER_KEY_COLUMNS)):
        found, position = distinct(columns, names)
        of_row = [_key(row) for row in found]
        by_key = known(connection, table, sorted(set(of_row)))
        at = position.tolist()
        ids.append([by_key.get(of_row[n], -1) for n in at])
        keys.append([of_row[n] for n in at])
        rows.append([found[n] for n in at])
    rate_of = _rates(connection, set(rates))
    ids.append([rate_of.get(rate, (-1, ""))[0] for rate in rates])
    keys.append([rate_of.get(rate, (-1, ""))[1] for rate in rates])
    names_of_lines = [line_name(*row) for row in zip(*rows, buckets, rates, strict=True)]
    return names_of_lines, list(zip(*ids, buckets, strict=True)), list(zip(*keys, strict=True))


def _key(row: Sequence[Any]) -> str:
    """Text that is not Unicode is in no ledger; nor is the empty key, among units and holders."""
    try:
        return content_key(row)
    except UnicodeEncodeError:
        return ""


def _rates(connection: Connection, rate_ids: Iterable[str]) -> dict[str, tuple[int, str]]:
    """Id and content key of every rate of the ledger; rates are few."""
    statement = select(RATE.c.rate_id, RATE.c.id, RATE.c.content_key)
    wanted = set(rate_ids)
    return {rate: (row_id, key) for rate, row_id, key in connection.execute(statement) if rate in wanted}


def _whole_lines(connection: Connection, window_id: int, lines: Iterable[_Line]) -> dict[_Line, _Amount]:
    wanted = set(lines)
    statement = select(L.unit_id, L.holder_id, L.rate_id, L.bucket, L.board_ms, L.nano).where(
        L.window_id == window_id
    )
    rows = connection.execute(statement) if wanted else ()
    return {(*ids,): (board_ms, nano) for *ids, board_ms, nano in rows if (*ids,) in wanted}


def _check_part(name: str, bucket: str, waste: str, amount: _Amount, whole: _Amount) -> None:
    board_ms, nano = amount
    if bucket == Bucket.OVERCOMMITTED:
        raise InputError("waste_lines", name, "lines of capacity")
    if waste not in list(Waste):
        raise InputError(f"waste of {name}", waste, ", ".join(Waste))
    if board_ms < 0:
        raise InputError(f"waste board_ms of {name}", board_ms, "at least 0")
    if (nano is None) != (whole[1] is None):
        allowed = "null for a line without a price" if whole[1] is None else "a number: the line has a price"
        raise LinesOutdated(f"waste nano of {name}", nano, allowed)
    if nano is not None and nano < 0:
        raise InputError(f"waste nano of {name}", nano, "at least 0")


def _check_sum(name: str, parts: Sequence[_Amount], whole: _Amount) -> None:
    board_ms, nano = _sum(parts)
    if board_ms > whole[0]:
        raise LinesOutdated(f"waste board_ms of {name}", board_ms, f"at most {whole[0]}, what the line has")
    if nano is not None and whole[1] is not None and nano > whole[1]:
        raise LinesOutdated(f"waste nano of {name}", nano, f"at most {whole[1]}, what the line has")


def _sum(parts: Sequence[_Amount]) -> _Amount:
    """A line has a price or none, and so have all its parts."""
    priced = [nano for _, nano in parts if nano is not None]
    return sum(board_ms for board_ms, _ in parts), sum(priced) if priced else None
