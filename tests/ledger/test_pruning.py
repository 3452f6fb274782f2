"""Findings that were resolved long ago go with their events; what is live, or newer, stays."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import create_engine, insert, text
from sqlalchemy.exc import DBAPIError

from gpucost.domain.scope import EVERYTHING
from gpucost.domain.time import DAY_MS
from gpucost.ledger.db.records import PruningResult
from gpucost.ledger.db.store_tables import FINDING, FINDING_EVENT
from gpucost.ledger.ledger import Ledger
from tests.ledger.builders import NOW_MS


def finding(number: int, state: str, closed_at_ms: int | None) -> dict[str, Any]:
    texts = ("cluster", "pattern", "variant", "subject_kind", "subject_name", "subject_namespace")
    more = ("subject_uid", "team", "queue", "severity", "content")
    instants = ("opened_at_ms", "since_ms", "last_seen_ms", "board_ms")
    return {
        **dict.fromkeys((*texts, *more), "x"),
        **dict.fromkeys(instants, 1),
        "id": number,
        "revision": 1,
        "fingerprint": f"f-{number}",
        "episode": 1,
        "state": state,
        "closed_at_ms": closed_at_ms,
        "clean_evaluations": 0,
        "rehearsal": False,
        "counted": True,
        "boards_now": 0.0,
    }


def test_only_what_was_resolved_before_then_is_forgotten(ledger_url: str) -> None:
    rows = [
        finding(1, "resolved", NOW_MS - 400 * DAY_MS - 1),
        finding(2, "resolved", NOW_MS - 400 * DAY_MS),
        finding(3, "open", None),
        finding(4, "muted", NOW_MS - 500 * DAY_MS),
    ]
    events = [
        {"finding_id": number, "at_ms": 1, "author": "ann", "action": "open", "detail": ""}
        for number in (1, 1, 2, 3, 4)
    ]
    with Ledger.open(ledger_url, now=lambda: NOW_MS) as ledger:
        engine = create_engine(ledger_url)
        with engine.begin() as connection:
            connection.execute(insert(FINDING), rows)
            connection.execute(insert(FINDING_EVENT), events)
        before_ms = NOW_MS - 400 * DAY_MS
        wanted = PruningResult(findings=1, events=2, posts=0, conversations=0, alert_groups=0)
        assert ledger.forget(before_ms, dry_run=True) == wanted
        assert ledger.finding(EVERYTHING, 1) is not None
        assert ledger.forget(before_ms) == wanted
        assert ledger.forget(before_ms) == PruningResult(0, 0, 0, 0, 0)
        assert ledger.finding(EVERYTHING, 1) is None
        assert [len(ledger.finding_events(EVERYTHING, number)) for number in (2, 3, 4)] == [1, 1, 1]
        for statement in (
            "DELETE FROM finding_event",
            "UPDATE finding_event SET author = 'x'",
            "DELETE FROM finding_event WHERE finding_id = 2",
        ):
            with (
                pytest.raises(DBAPIError, match="append-only"),
                engine.begin() as connection,
            ):
                connection.execute(text(statement))
        engine.dispose()
