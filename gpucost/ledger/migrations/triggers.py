"""Triggers that keep closed months closed and append-only tables append-only, in both databases.

They prevent mistakes and casual edits. A user who may drop a trigger can still change a row: the digests
detect that. A later revision that changes a trigger has its own text; this one stays as released.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

# Table -> the columns that identify a row. SQLite's INSERT OR REPLACE deletes without asking the DELETE
# trigger, so there an insert of a row that exists is refused too.
APPEND_ONLY: dict[str, tuple[str, ...]] = {
    "ledger_meta": ("id",),
    "unit": ("id", "content_key"),
    "holder": ("id", "content_key"),
    "rate": ("id", "content_key", "rate_id"),
    "window_version": ("window_id, version",),
    "month": ("seq", "month"),
    "adjustment": ("id", "month, team, job_uid, reference"),
    "audit": ("id",),
}
WINDOW_CONTENT = ("usage_line", "progress_line", "window_problem")
_IDENTITY = ("id", "cluster", "start_ms", "end_ms", "month")


def sqlite_triggers() -> Iterator[str]:
    for table, keys in APPEND_ONLY.items():
        yield from sqlite_append_only(table, keys)
    for table in WINDOW_CONTENT:
        yield from sqlite_content(table)
    moved = " OR ".join(f"NEW.{column} <> OLD.{column}" for column in _IDENTITY)
    yield _sqlite("ledger_window", "UPDATE", "OLD.state = 'closed'", "the month is closed")
    yield _sqlite("ledger_window", "UPDATE", moved, "a window does not move", name="moved")
    yield _sqlite("ledger_window", "DELETE", "1", "a window is never deleted")
    in_closed = "EXISTS (SELECT 1 FROM month WHERE month = NEW.month)"
    same = "id = NEW.id OR (cluster, start_ms) = (NEW.cluster, NEW.start_ms)"
    known = f"EXISTS (SELECT 1 FROM ledger_window WHERE {same})"
    yield _sqlite("ledger_window", "INSERT", in_closed, "the month is closed")
    yield _sqlite("ledger_window", "INSERT", known, "a window is never replaced", name="known")


def sqlite_append_only(table: str, keys: tuple[str, ...]) -> Iterator[str]:
    for event in ("UPDATE", "DELETE"):
        yield _sqlite(table, event, "1", f"{table} is append-only")
    same = " OR ".join(
        "({}) = ({})".format(key, ", ".join(f"NEW.{column}" for column in key.split(", "))) for key in keys
    )
    yield _sqlite(table, "INSERT", f"EXISTS (SELECT 1 FROM {table} WHERE {same})", f"{table} is append-only")


def sqlite_content(table: str) -> Iterator[str]:
    """Rows with a ``window_id`` stay as they are once its month is closed."""
    for event, rows in (("INSERT", "NEW"), ("UPDATE", "OLD NEW"), ("DELETE", "OLD")):
        closed = " OR ".join(
            f"(SELECT state FROM ledger_window WHERE id = {row}.window_id) = 'closed'" for row in rows.split()
        )
        yield _sqlite(table, event, closed, "the month is closed")


def _sqlite(table: str, event: str, when: str, message: str, name: str = "guard") -> str:
    return (
        f"CREATE TRIGGER {table}_{event.lower()}_{name} BEFORE {event} ON {table} FOR EACH ROW "
        f"WHEN {when} BEGIN SELECT RAISE(ABORT, 'gpucost: {message}'); END"
    )


def postgres_triggers() -> Iterator[str]:
    yield _function(
        "gpucost_append_only",
        "RAISE EXCEPTION USING MESSAGE = 'gpucost: ' || TG_TABLE_NAME || ' is append-only';",
    )
    closed = (
        "EXISTS (SELECT 1 FROM changed c JOIN ledger_window w ON w.id = c.window_id WHERE w.state = 'closed')"
    )
    yield _function(
        "gpucost_content_guard",
        f"IF {closed} THEN RAISE EXCEPTION 'gpucost: the month is closed'; END IF; RETURN NULL;",
    )
    moved = " OR ".join(f"NEW.{column} <> OLD.{column}" for column in _IDENTITY)
    yield _function(
        "gpucost_window_guard",
        "IF TG_OP = 'INSERT' THEN"
        " IF EXISTS (SELECT 1 FROM month WHERE month = NEW.month)"
        " THEN RAISE EXCEPTION 'gpucost: the month is closed'; END IF;"
        " ELSIF OLD.state = 'closed' THEN RAISE EXCEPTION 'gpucost: the month is closed';"
        " ELSIF TG_OP = 'DELETE' THEN RAISE EXCEPTION 'gpucost: a window is never deleted';"
        f" ELSIF {moved} THEN RAISE EXCEPTION 'gpucost: a window does not move'; END IF;"
        " RETURN NEW;",
    )
    for table in APPEND_ONLY:
        yield postgres_append_only(table)
    for table in WINDOW_CONTENT:
        yield from postgres_content(table)
    yield _postgres("ledger_window", "BEFORE INSERT OR UPDATE OR DELETE", "ROW", "gpucost_window_guard")
    yield _postgres("ledger_window", "BEFORE TRUNCATE", "STATEMENT", "gpucost_append_only", name="truncate")


def postgres_append_only(table: str) -> str:
    return _postgres(table, "BEFORE UPDATE OR DELETE OR TRUNCATE", "STATEMENT", "gpucost_append_only")


def postgres_content(table: str) -> Iterator[str]:
    for event, rows in (("INSERT", "NEW"), ("UPDATE", "OLD"), ("UPDATE", "NEW"), ("DELETE", "OLD")):
        yield _postgres(
            table,
            f"AFTER {event}",
            "STATEMENT",
            "gpucost_content_guard",
            f"REFERENCING {rows} TABLE AS changed ",
            f"{event}_{rows}".lower(),
        )
    yield _postgres(table, "BEFORE TRUNCATE", "STATEMENT", "gpucost_append_only", name="truncate")


def _function(name: str, body: str) -> str:
    return f"CREATE FUNCTION {name}() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {body} END $$"


def _postgres(
    table: str, when: str, each: str, function: str, referencing: str = "", name: str = "guard"
) -> str:
    return (
        f"CREATE TRIGGER {table}_{name} {when} ON {table} {referencing}"
        f"FOR EACH {each} EXECUTE FUNCTION {function}()"
    )


def guard(name: str, event: str, table: str, when: str, message: str) -> str:
    """A trigger of SQLite under a name of its own."""
    return (
        f"CREATE TRIGGER {name} BEFORE {event} ON {table} FOR EACH ROW "
        f"WHEN {when} BEGIN SELECT RAISE(ABORT, 'gpucost: {message}'); END"
    )


def sqlite_content_but(tables: Iterable[str], is_open: Callable[[str], str]) -> Iterator[str]:
    """Rows of closed months in ``tables`` may come and go where ``is_open`` says so of their month."""
    for table in tables:
        for event, row in (("INSERT", "NEW"), ("DELETE", "OLD")):
            name = f"{table}_{event.lower()}_guard"
            month = f"(SELECT month FROM ledger_window WHERE id = {row}.window_id)"
            closed = f"(SELECT state FROM ledger_window WHERE id = {row}.window_id) = 'closed'"
            yield f"DROP TRIGGER {name}"
            yield guard(name, event, table, f"{closed} AND NOT {is_open(month)}", "the month is closed")


def postgres_content_but(is_open: Callable[[str], str]) -> str:
    """The same; waste windows stay as they are."""
    return replaced_function(
        "gpucost_content_guard",
        "IF EXISTS (SELECT 1 FROM changed c JOIN ledger_window w ON w.id = c.window_id"
        f" WHERE w.state = 'closed' AND (TG_OP = 'UPDATE' OR TG_TABLE_NAME = 'waste_window'"
        f" OR NOT {is_open('w.month')}))"
        " THEN RAISE EXCEPTION 'gpucost: the month is closed'; END IF; RETURN NULL;",
    )


def replaced_function(name: str, body: str) -> str:
    return f"CREATE OR REPLACE FUNCTION {name}() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {body} END $$"
