"""Writing windows: the usage lines of a batch of windows into the tables, as versions.

``ingest`` is given a ``PreparedBatch`` (``prepared_batch``: checked, names once, a digest per window) and
compares the digest of each window with the one stored. The same digest: nothing is written, at most the
window is settled. No window yet: version 1. Another digest: the next version replaces lines, progress,
problems and the waste assessment of the window, and the audit trail gets who, why and both digests. The row
of the older version stays, with its totals and digest, so that a report can be told from the one before it.

Why by digest: the pipeline reads each window twice, when it ends and once late data can no longer come, and
may be killed in between. Writing again must change nothing, and a change must be seen.

What is refused, before anything is written:

- windows that overlap others of the cluster without being the same (LedgerConflict);
- any change in a closed month (LateLines), with the difference per team as proposed adjustments, in GPU
  milliseconds and nano-units; MonthClosed where the day was folded, so that no difference can be told;
- a second currency (InputError), and a rate id with other values than the ledger has (LedgerConflict): the id
  is printed on reports of closed months.

Dimensions (units, holders, rates, team rules) are stored once and named by number; lines are inserted in the
order of their key, so that the pages of the table fill from one side. The rule that gave a line's holder its
team is in no digest: where nothing else differs, the line keeps the rule that it was written with.

The caller holds the transaction and the lock: ``Ledger.ingest``, ``Ledger.write_batch`` and
``Ledger.settle`` in ``gpucost.ledger.ledger``. ``record`` adds to the audit trail, for other writers too.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass
from typing import Any

import numpy as np
from sqlalchemy import Connection, delete, insert, select, update

from gpucost.attribution.usage_lines import storable_text
from gpucost.domain.buckets import Bucket
from gpucost.domain.errors import InputError, LedgerConflict, MonthClosed
from gpucost.domain.time import DAY_MS, Month, Window
from gpucost.ledger.db.database import insert_rows
from gpucost.ledger.db.dimensions import insert_new, resolve
from gpucost.ledger.db.records import (
    IngestResult,
    LateLines,
    LedgerState,
    ProposedAdjustment,
)
from gpucost.ledger.db.tables import (
    AUDIT,
    HOLDER,
    LEDGER_META,
    LEDGER_WINDOW,
    PROGRESS_LINE,
    RATE,
    TEAM_RULE,
    UNIT,
    USAGE_LINE,
    WASTE_LINE,
    WASTE_WINDOW,
    WINDOW_PROBLEM,
    WINDOW_VERSION,
)
from gpucost.ledger.sealed.sealed_reader import sealed_months
from gpucost.ledger.usage import day_sums, reader
from gpucost.ledger.usage.day_totals import day_of
from gpucost.ledger.usage.lines import BUCKET_NAMES, Objects
from gpucost.ledger.usage.prepared_batch import PreparedBatch, PreparedWindow


@dataclass(frozen=True, slots=True)
class IngestOrigin:
    """Where a version of a window comes from."""

    source: str
    code_version: str
    reason: str
    author: str
    now_ms: int


@dataclass(frozen=True, slots=True)
class _Stored:
    """A window as the ledger has it."""

    id: int
    state: str
    version: int
    digest: str


@dataclass(frozen=True, slots=True)
class _WindowChange:
    """A window of the batch, by its position there, that is new or differs from the ``old`` one."""

    position: int
    new: PreparedWindow
    old: _Stored | None
    state: LedgerState

    @property
    def version(self) -> int:
        return 1 if self.old is None else self.old.version + 1


def ingest(
    connection: Connection, prepared: PreparedBatch, origin: IngestOrigin, settled: Collection[Window]
) -> tuple[IngestResult, ...]:
    """The results in the order of the windows; ``settled`` are those for which no more lines are expected."""
    stored = _stored(connection, prepared)
    results, changes = [], list[_WindowChange]()
    for position, new in enumerate(prepared.windows):
        old = stored.get(new.window)
        version, same = old.version if old else 0, old is not None and old.digest == new.digest
        results.append(IngestResult(version + (not same), not same, new.digest))
        state = LedgerState.SETTLED if new.window in settled else LedgerState.OPEN
        if not same:
            changes.append(_WindowChange(position, new, old, state))
        elif old and state is LedgerState.SETTLED and old.state == LedgerState.OPEN:
            _update_window(connection, old.id, state=state)
    if changes:
        _refuse_closed(connection, prepared, changes)
        _keep_currency(connection, prepared.currency, origin.now_ms)
        _keep_rates(connection, prepared)
        _write(connection, prepared, changes, origin)
    return tuple(results)


def settle(connection: Connection, cluster: str, window: Window) -> None:
    stored = _stored_windows(connection, cluster, window).get(window)
    if stored is None:
        raise InputError("window", f"{cluster} {window}", "a window of the ledger")
    if stored.state == LedgerState.OPEN:
        _update_window(connection, stored.id, state=LedgerState.SETTLED)


def record(
    connection: Connection, *, at_ms: int, author: str, action: str, subject: str, reason: str, detail: str
) -> None:
    """Add to the audit trail."""
    values = {"author": author, "action": action, "subject": subject, "reason": reason, "detail": detail}
    connection.execute(insert(AUDIT).values(at_ms=at_ms, **values))


def note(connection: Connection, author: str, action: str, subject: str, detail: str, now_ms: int) -> bool:
    """See Ledger.note."""
    given = {"author": author, "action": action, "subject": subject, "detail": detail}
    values = {name: storable_text(value) for name, value in given.items()}
    same = [AUDIT.c[name] == value for name, value in values.items()]
    recent = select(AUDIT.c.id).where(AUDIT.c.at_ms > now_ms - DAY_MS, *same).limit(1)
    if connection.execute(recent).first() is not None:
        return False
    record(connection, at_ms=now_ms, reason="", **values)
    return True


def _stored(connection: Connection, prepared: PreparedBatch) -> dict[Window, _Stored]:
    """The windows that the ledger has. Raises LedgerConflict when it has other windows at their time."""
    windows = [one.window for one in prepared.windows]
    span = Window(min(window.start_ms for window in windows), max(window.end_ms for window in windows))
    stored = _stored_windows(connection, prepared.cluster, span)
    for other in sorted(stored.keys() - windows):
        for window in windows:
            if other.overlap_ms(window.start_ms, window.end_ms):
                raise LedgerConflict(
                    f"{prepared.cluster} {window} overlaps {other}, which the ledger has: windows of a "
                    "cluster keep one length and alignment within a month"
                )
    return stored


def _stored_windows(connection: Connection, cluster: str, span: Window) -> dict[Window, _Stored]:
    """The windows that meet ``span``. None starts before the month that it starts in."""
    w, v = LEDGER_WINDOW.c, WINDOW_VERSION.c
    earliest_ms = Month.of(span.start_ms).window.start_ms
    statement = (
        select(w.start_ms, w.end_ms, w.id, w.state, w.version, v.digest)
        .join(WINDOW_VERSION, reader.CURRENT_VERSION)
        .where(w.cluster == cluster, w.start_ms >= earliest_ms)
        .where(w.start_ms < span.end_ms, w.end_ms > span.start_ms)
    )
    rows = connection.execute(statement)
    return {Window(start_ms, end_ms): _Stored(*rest) for start_ms, end_ms, *rest in rows}


def _refuse_closed(connection: Connection, prepared: PreparedBatch, changes: Sequence[_WindowChange]) -> None:
    closed = {month for month in {c.new.month for c in changes} if reader.is_closed(connection, month)}
    for month in sorted(closed & sealed_months(connection).keys()):
        raise MonthClosed(
            f"{month} is closed and sealed: {prepared.cluster} stays as it is; gpucost ledger unseal {month} "
            "first, to be told how late lines differ by team"
        )
    for change in changes:
        if change.new.month in closed:
            if change.old is not None and reader.holds_rollup_days(connection, change.old.id):
                raise MonthClosed(
                    f"{change.new.month} is closed: {prepared.cluster} {change.new.window} stays as it is; "
                    "its day was folded, so nobody knows how it differs by team"
                )
            proposal = _proposal(connection, prepared, change)
            raise LateLines(change.new.month, f"{prepared.cluster} {change.new.window}", proposal)


def _keep_currency(connection: Connection, currency: str | None, now_ms: int) -> None:
    if currency is None:
        return
    if reader.currency(connection) is None:
        values = {"id": 1, "currency": currency, "created_at_ms": now_ms}
        connection.execute(insert_new(connection, LEDGER_META), values)
    known = reader.currency(connection)
    if currency != known:
        raise InputError("currency", currency, f"{known}, the currency of this ledger")


def _keep_rates(connection: Connection, prepared: PreparedBatch) -> None:
    """A rate_id is printed on reports of closed months: its value must not change."""
    given = {row[0]: row for row in prepared.rates.values() if row}
    for rate_id, known in reader.rates(connection, given).items():
        if astuple(known) != given[rate_id]:
            raise LedgerConflict(f"rate {rate_id!r} is in the ledger as {known}, not as {given[rate_id]}")


def _write(
    connection: Connection, prepared: PreparedBatch, changes: Sequence[_WindowChange], origin: IngestOrigin
) -> None:
    ids = _add_windows(connection, prepared.cluster, [change for change in changes if change.old is None])
    for change in changes:
        if change.old is not None:
            ids[change.new.window] = change.old.id
            _replace(connection, prepared.cluster, change, change.old, origin)
    names = [column.name for column in WINDOW_VERSION.columns]
    versions = [
        (
            ids[change.new.window],
            change.version,
            change.new.digest,
            origin.reason,
            *astuple(change.new.totals),
            change.new.observed_ms,
            origin.source,
            origin.code_version,
            origin.now_ms,
        )
        for change in changes
    ]
    connection.execute(insert(WINDOW_VERSION), [dict(zip(names, row, strict=True)) for row in versions])
    _write_lines(connection, prepared, {change.position: ids[change.new.window] for change in changes})
    _write_days(connection, prepared, changes)
    progress, problems = list[tuple[Any, ...]](), list[tuple[Any, ...]]()
    for change in changes:
        window_id = ids[change.new.window]
        progress += ((window_id, *row) for row in change.new.progress)
        problems += ((window_id, seq, *row) for seq, row in enumerate(change.new.problems))
    insert_rows(connection, PROGRESS_LINE, progress)
    insert_rows(connection, WINDOW_PROBLEM, problems)


def _add_windows(connection: Connection, cluster: str, changes: Sequence[_WindowChange]) -> dict[Window, int]:
    if not changes:
        return {}
    rows = [
        {
            "cluster": cluster,
            "start_ms": change.new.window.start_ms,
            "end_ms": change.new.window.end_ms,
            "month": str(change.new.month),
            "state": str(change.state),
            "version": change.version,
        }
        for change in changes
    ]
    w = LEDGER_WINDOW.c
    added = connection.execute(insert(LEDGER_WINDOW).returning(w.start_ms, w.end_ms, w.id), rows)
    return {Window(start_ms, end_ms): window_id for start_ms, end_ms, window_id in added}


def _replace(
    connection: Connection, cluster: str, change: _WindowChange, old: _Stored, origin: IngestOrigin
) -> None:
    """A settled window stays settled."""
    state = LedgerState.SETTLED if old.state == LedgerState.SETTLED else change.state
    _update_window(connection, old.id, state=state, version=change.version)
    for table in (USAGE_LINE, PROGRESS_LINE, WINDOW_PROBLEM, WASTE_LINE, WASTE_WINDOW):
        connection.execute(delete(table).where(table.c.window_id == old.id))
    record(
        connection,
        at_ms=origin.now_ms,
        author=origin.author,
        action="window version",
        subject=f"{cluster} {change.new.window}",
        reason=origin.reason,
        detail=f"version {change.version} {change.new.digest} replaces {old.digest}",
    )


def _update_window(connection: Connection, window_id: int, state: LedgerState, **values: int) -> None:
    connection.execute(
        update(LEDGER_WINDOW).where(LEDGER_WINDOW.c.id == window_id).values(state=str(state), **values)
    )


def _write_lines(connection: Connection, prepared: PreparedBatch, window_ids: Mapping[int, int]) -> None:
    """The lines of the windows that have an id, by their position."""
    lines = prepared.lines
    id_of_window = np.array([window_ids.get(n, -1) for n in range(len(prepared.windows))], np.int64)
    written = np.flatnonzero(id_of_window[lines.window] >= 0)
    units, holders, rates = (
        np.array([ids[key] for key in keyed], np.int64)
        for ids, keyed in (
            (resolve(connection, UNIT, prepared.units), prepared.units),
            (resolve(connection, HOLDER, prepared.holders), prepared.holders),
            (_rate_ids(connection, prepared), prepared.rates),
        )
    )
    ids = [id_of_window[lines.window], units[lines.unit], holders[lines.holder], rates[lines.rate]]
    # In key order, so that the pages of the table fill from one side.
    order = written[np.lexsort([column[written] for column in reversed(ids)])]
    columns = [*ids, BUCKET_NAMES[lines.bucket], *lines.measures.values()]
    columns.append(_rule_ids(connection, prepared)[lines.rule])
    names = [*list(USAGE_LINE.columns)[:5], *(USAGE_LINE.c[name] for name in lines.measures)]
    names.append(USAGE_LINE.c.team_rule_id)
    rows = list(zip(*(column[order].tolist() for column in columns), strict=True))
    insert_rows(connection, USAGE_LINE, rows, columns=names)


def _write_days(connection: Connection, prepared: PreparedBatch, changes: Sequence[_WindowChange]) -> None:
    """The sums of the days that have new lines."""
    new = [change for change in changes if change.old is None]
    added = Counter(day_of(change.new.window) for change in new)
    replaced = {day_of(change.new.window) for change in changes if change.old is not None}
    sums = prepared.sums_of([change.position for change in new]) if new else {}
    day_sums.write(connection, prepared.cluster, added, replaced, sums)


def _rate_ids(connection: Connection, prepared: PreparedBatch) -> dict[str, int]:
    priced = {key: row for key, row in prepared.rates.items() if key}
    return resolve(connection, RATE, priced) | {"": 0}


def _rule_ids(connection: Connection, prepared: PreparedBatch) -> Objects:
    """Of each of the batch's rules; None where it is not known."""
    ids = resolve(connection, TEAM_RULE, {key: row for key, row in prepared.rules.items() if key})
    return np.array([ids.get(key) for key in prepared.rules], dtype=object)


def _proposal(
    connection: Connection, prepared: PreparedBatch, change: _WindowChange
) -> tuple[ProposedAdjustment, ...]:
    """Per team, new minus stored, over capacity: over-commitment costs nothing and is billed to no team."""
    sides: dict[str, list[tuple[int, int | None]]] = defaultdict(list)
    for team, board_ms, nano in _by_team(prepared, change.new.part):
        sides[team].append((board_ms, nano))
    if change.old is not None:
        line, holder = USAGE_LINE.c, HOLDER.c
        statement = (
            select(holder.team, line.board_ms, line.nano)
            .join(HOLDER, holder.id == line.holder_id)
            .where(line.window_id == change.old.id, line.bucket != str(Bucket.OVERCOMMITTED))
        )
        for team, board_ms, nano in connection.execute(statement):
            sides[team].append((-board_ms, None if nano is None else -nano))
    proposal = []
    for team, parts in sorted(sides.items()):
        board_ms = sum(part for part, _ in parts)
        nano = None if any(part is None for _, part in parts) else sum(part or 0 for _, part in parts)
        if board_ms or nano or nano is None:
            proposal.append(ProposedAdjustment(team, board_ms, nano))
    return tuple(proposal)


def _by_team(prepared: PreparedBatch, part: slice) -> Iterator[tuple[str, int, int | None]]:
    lines, teams = prepared.lines, [row[-1] for row in prepared.holders.values()]
    board_ms, nano = lines.measure("board_ms"), lines.measure("nano")
    for at in range(part.start, part.stop):
        if BUCKET_NAMES[lines.bucket[at]] != Bucket.OVERCOMMITTED:
            yield teams[lines.holder[at]], board_ms[at], nano[at]
