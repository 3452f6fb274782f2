"""Compares the audit trail with the tables: where one has what the other lacks, the ledger was bypassed.

Digests find what was changed; rows that were deleted without a trace leave no digest to compare. Closes and
adjustments are therefore recorded twice, in their table and in the trail, and the two are compared both ways.
So are API keys and login sessions, which no digest covers: what each may do, and that it was revoked.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterator
from typing import Any

from sqlalchemy import Connection, literal, select

from gpucost.domain.time import Month, iso
from gpucost.ledger.db.records import VerifyFinding
from gpucost.ledger.db.store_tables import API_KEY, LOGIN_SESSION
from gpucost.ledger.db.tables import (
    ADJUSTMENT,
    AUDIT,
    LEDGER_META,
    MONTH,
    MONTH_CHARGES,
    MONTH_FOLD,
    MONTH_SEAL,
    RATE,
)

CLOSES = ("month close", "month close override")
ADJUSTS = ("adjustment",)
CHARGES = ("month charges",)
FOLDS = ("month fold",)
SEALS, UNSEALS = ("month seal",), ("month unseal",)
ISSUE, REVOCATION = "key issue", "key revocation"
LOGIN, LOGOUT = "session login", "session end"

# (at_ms, author, subject, reason, detail): one event as the audit trail records it.
_Event = tuple[int, str, str, str, str]


def adjustment_event(
    at_ms: int,
    author: str,
    month: str,
    team: str,
    job_uid: str,
    reason: str,
    reference: str,
    board_ms: int,
    nano: int,
    currency: str,
) -> _Event:
    """The event that the audit trail has of an adjustment."""
    subject = f"{month} {team} {job_uid}".strip()
    return at_ms, author, subject, reason, f"{reference}: {board_ms:+d} ms, {nano:+d} nano-{currency}"


def fold_detail(
    digest: str, month_digest: str, lines_before: int, lines: int, waste_before: int, waste_lines: int
) -> str:
    """The detail that the audit trail has of a rollup."""
    return (
        f"{digest} of {month_digest}: {lines_before} usage lines became {lines}, "
        f"{waste_before} waste lines {waste_lines}"
    )


def seal_detail(digest: str, manifest: str, lines: int) -> str:
    """The detail that the audit trail has of a month's move into files, or back."""
    return f"{digest}: {lines} usage lines" + (f" in files, listed in {manifest}" if manifest else "")


def grants(role: str, teams: str, clusters: str | None, expires_ms: int | None) -> str:
    """The text that the audit trail has of what a key may do; ``teams`` and ``clusters`` are JSON lists."""
    words = {
        "role": json.dumps(role),
        "teams": teams,
        "clusters": '"all"' if clusters is None else clusters,
        "expires": json.dumps("never" if expires_ms is None else iso(expires_ms)),
    }
    return "; ".join(f"{name} {value}" for name, value in words.items())


def _fold(month: str, folded_at_ms: int, author: str, **values: Any) -> _Event:
    return folded_at_ms, author, month, "", fold_detail(**values)


def _seals(connection: Connection, kind: str) -> Counter[_Event]:
    s = MONTH_SEAL.c
    rows = connection.execute(select(MONTH_SEAL).where(s.kind == kind))
    return Counter(
        (row.sealed_at_ms, row.author, row.month, "", seal_detail(row.digest, row.manifest, row.lines))
        for row in rows
    )


def trail(connection: Connection, wanted: Collection[str]) -> Iterator[VerifyFinding]:
    """Findings about closes and adjustments of the ``wanted`` months, the ledger's currency, and its keys."""
    m, a = MONTH.c, ADJUSTMENT.c
    closes = select(m.closed_at_ms, m.author, m.month, m.reason, m.digest)
    adjusts = select(
        *(a.created_at_ms, a.author, a.month, a.team, a.job_uid, a.reason),
        *(a.reference, a.board_ms, a.nano, a.currency),
    )
    c = MONTH_CHARGES.c
    charges = select(m.closed_at_ms, m.author, m.month, literal(""), c.content_key).join(
        MONTH_CHARGES, c.month == m.month
    )
    f = MONTH_FOLD.c
    folds = select(MONTH_FOLD).order_by(f.month)
    held = {
        CLOSES: Counter(_event(row, CLOSES) for row in connection.execute(closes)),
        CHARGES: Counter(_event(row, CHARGES) for row in connection.execute(charges)),
        ADJUSTS: Counter(adjustment_event(*tuple(row)) for row in connection.execute(adjusts)),
        FOLDS: Counter(_fold(**row._mapping) for row in connection.execute(folds)),
        SEALS: _seals(connection, "seal"),
        UNSEALS: _seals(connection, "unseal"),
    }
    for actions, events in held.items():
        told = _told(connection, actions)
        for event in sorted(((events - told) + (told - events)).elements()):
            if event[2][:7] in wanted:
                yield _finding(actions[0], event, is_told=told[event] > events[event])
    yield from _currency(connection)
    yield from _keys(connection)
    yield from _sessions(connection)


def audited_months(connection: Connection) -> set[str]:
    """The months that the trail names, whether or not a table still has them."""
    of_months = (CLOSES, CHARGES, ADJUSTS, FOLDS, SEALS, UNSEALS)
    return {event[2][:7] for actions in of_months for event in _told(connection, actions)}


def _told(connection: Connection, actions: Collection[str]) -> Counter[_Event]:
    t = AUDIT.c
    statement = select(t.at_ms, t.author, t.subject, t.reason, t.detail).where(t.action.in_(actions))
    return Counter(_event(row, actions) for row in connection.execute(statement))


def _event(row: Collection[object], actions: Collection[str]) -> _Event:
    at_ms, author, subject, reason, detail = row
    # For a close in spite of blockers, these follow the digest line by line.
    told = str(detail).partition("\n")[0] if actions is CLOSES else str(detail)
    return int(str(at_ms)), str(author), str(subject), str(reason or ""), told


def _finding(what: str, event: _Event, *, is_told: bool) -> VerifyFinding:
    at_ms, author, subject, _, detail = event
    where = "in the audit trail only" if is_told else "not in the audit trail"
    text = f"{what} of {iso(at_ms)} by {author} is {where}: {detail}"
    return VerifyFinding(Month.parse(subject[:7]), subject, text)


def _keys(connection: Connection) -> Iterator[VerifyFinding]:
    """API keys: without this check, anyone with write access to the database could add a key, or undo a
    revocation, unnoticed."""
    k = API_KEY.c
    rows = connection.execute(select(API_KEY).order_by(k.id)).all()
    issues = Counter(
        (
            row.created_ms,
            row.created_by,
            row.id,
            row.note,
            grants(row.role, row.teams, row.clusters, row.expires_ms),
        )
        for row in rows
    )
    revocations = Counter(
        (row.revoked_ms, row.revoked_by, row.id, "", "") for row in rows if row.revoked_ms is not None
    )
    # The reason for a revocation is in the trail only.
    told = Counter((*event[:3], "", "") for event in _told(connection, (REVOCATION,)).elements())
    for action, held, said in ((ISSUE, issues, _told(connection, (ISSUE,))), (REVOCATION, revocations, told)):
        for key_id in sorted({event[2] for event in ((held - said) + (said - held)).elements()}):
            here, there = (
                "; ".join(_words(event) for event in events if event[2] == key_id) for events in (held, said)
            )
            yield VerifyFinding(
                None,
                f"key {key_id}",
                f"{action}: the ledger has {here or 'none'}, the audit trail {there or 'none'}",
            )


def _sessions(connection: Connection) -> Iterator[VerifyFinding]:
    """Login sessions, for the same reason. Rows go when they have ended, so that the trail may have
    more."""
    s = LOGIN_SESSION.c
    logins = {(event[0], event[2]) for event in _told(connection, (LOGIN,))}
    ends = {(event[0], event[1], event[2]) for event in _told(connection, (LOGOUT,))}
    ended = {session_id for _, _, session_id in ends}
    for row in connection.execute(select(LOGIN_SESSION).order_by(s.id)):
        is_begun = (row.created_ms, row.id) in logins
        is_end_told = (row.revoked_ms, row.revoked_by, row.id) in ends
        if not is_begun or (row.id in ended if row.revoked_ms is None else not is_end_told):
            text = f"the ledger has a session of {row.subject} that the audit trail tells otherwise"
            yield VerifyFinding(None, f"session {row.id}", text)


def _words(event: _Event) -> str:
    at_ms, author, _, note, detail = event
    return ", ".join(filter(None, (f"{iso(at_ms)} by {author}", detail, note)))


def _currency(connection: Connection) -> Iterator[VerifyFinding]:
    fixed = connection.execute(select(LEDGER_META.c.currency)).scalars().all()
    used = connection.execute(select(RATE.c.currency).where(RATE.c.rate_id != "").distinct()).scalars().all()
    if used and sorted(fixed) != sorted(used):
        detail = f"the ledger says {', '.join(fixed) or 'nothing'}, its rates {', '.join(sorted(used))}"
        yield VerifyFinding(None, "currency", detail)
