"""Sums of usage lines by UTC day. The tables are empty: days of before are added up one by one, later.

On PostgreSQL the names of usage lines are looked up once for a statement, by a trigger. Foreign keys lock a
row for each of five names of each line: four fifths of the time that the server took to write lines. Nothing
that a line names is ever deleted: triggers of before refuse that.
"""

from __future__ import annotations

from collections.abc import Iterator

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None

_ROW_ID = sa.BigInteger().with_variant(sa.Integer, "sqlite")
_BUCKETS = "'held', 'unallocated', 'unavailable', 'unknown', 'overcommitted'"
_KEYS = ("day_id", "unit_id", "holder_id", "rate_id")
_NEEDED = ("board_ms", "unpriced_ms", "first_ms", "last_ms")
_MEASURES = (
    *("board_ms", "nano", "unpriced_ms", "first_ms", "last_ms", "observed_ms", "busy_ms", "sm_observed_ms"),
    *("sm_active_ms", "tensor_active_ms", "tensor_observed_ms", "memory_observed_ms", "memory_used_mib_s"),
    *("memory_total_mib_s", "memory_peak_mib", "energy_observed_ms", "energy_mj", "busy_over_ms"),
    *("sm_over_ms", "tensor_over_ms"),
)
_CLOSED = "the month is closed"
_NAMED = {
    "window_id": "ledger_window",
    "unit_id": "unit",
    "holder_id": "holder",
    "rate_id": "rate",
    "team_rule_id": "team_rule",
}


def upgrade() -> None:
    op.create_table(
        "usage_day",
        sa.Column("id", _ROW_ID, nullable=False, primary_key=True),
        sa.Column("cluster", sa.String, nullable=False),
        sa.Column("start_ms", sa.BigInteger, nullable=False),
        sa.Column("month", sa.String, nullable=False),
        sa.Column("digest", sa.String, nullable=False),
        sa.UniqueConstraint("cluster", "start_ms"),
    )
    op.create_index(None, "usage_day", ["month"])
    op.create_index(None, "usage_day", ["start_ms"])
    parents = ("usage_day", "unit", "holder", "rate")
    op.create_table(
        "day_line",
        *(
            sa.Column(
                name, sa.BigInteger, sa.ForeignKey(f"{parent}.id"), primary_key=True, autoincrement=False
            )
            for name, parent in zip(_KEYS, parents, strict=True)
        ),
        sa.Column("bucket", sa.String, primary_key=True),
        *(sa.Column(name, sa.BigInteger, nullable=name not in _NEEDED) for name in _MEASURES),
        sa.CheckConstraint(f"bucket IN ({_BUCKETS})", name="bucket"),
        sqlite_with_rowid=False,
    )
    connection = op.get_bind()
    for statement in _sqlite() if connection.dialect.name == "sqlite" else _postgres():
        connection.exec_driver_sql(statement)


# A day of a closed month may still be added up where it was not: its digest then ends that.
def _sqlite() -> Iterator[str]:
    day = "SELECT 1 FROM usage_day d JOIN month m ON m.month = d.month WHERE d.id = {}.day_id"
    yield _guard("day_line", "INSERT", f"EXISTS ({day.format('NEW')} AND d.digest <> '')", _CLOSED)
    closed = f"EXISTS ({day.format('OLD')})"
    yield _guard("day_line", "UPDATE", f"NEW.day_id <> OLD.day_id OR {closed}", _CLOSED)
    yield _guard("day_line", "DELETE", closed, _CLOSED)
    same = "id = NEW.id OR (cluster, start_ms) = (NEW.cluster, NEW.start_ms)"
    known = f"EXISTS (SELECT 1 FROM usage_day WHERE {same})"
    yield _guard("usage_day", "INSERT", known, "a day is never replaced")
    yield _guard("usage_day", "UPDATE", _moved(), "a day does not change")
    in_closed = "EXISTS (SELECT 1 FROM month WHERE month = OLD.month)"
    yield _guard("usage_day", "DELETE", in_closed, _CLOSED)


def _moved() -> str:
    """Only an empty digest is ever filled in."""
    names = ("id", "cluster", "start_ms", "month")
    return " OR ".join((*(f"NEW.{name} <> OLD.{name}" for name in names), "OLD.digest <> ''"))


def _guard(table: str, event: str, when: str, message: str) -> str:
    return (
        f"CREATE TRIGGER {table}_{event.lower()}_guard BEFORE {event} ON {table} FOR EACH ROW "
        f"WHEN {when} BEGIN SELECT RAISE(ABORT, 'gpucost: {message}'); END"
    )


def _postgres() -> Iterator[str]:
    yield _function(
        "gpucost_day_line_guard",
        "IF EXISTS (SELECT 1 FROM (SELECT DISTINCT day_id FROM changed) c JOIN usage_day d ON d.id = c.day_id"
        " JOIN month m ON m.month = d.month WHERE TG_OP <> 'INSERT' OR d.digest <> '')"
        f" THEN RAISE EXCEPTION 'gpucost: {_CLOSED}'; END IF; RETURN NULL;",
    )
    for event, rows in (("INSERT", "NEW"), ("UPDATE", "OLD"), ("UPDATE", "NEW"), ("DELETE", "OLD")):
        yield (
            f"CREATE TRIGGER day_line_{event.lower()}_{rows.lower()} AFTER {event} ON day_line "
            f"REFERENCING {rows} TABLE AS changed FOR EACH STATEMENT "
            "EXECUTE FUNCTION gpucost_day_line_guard()"
        )
    yield _function(
        "gpucost_usage_day_guard",
        "IF TG_OP = 'DELETE' THEN"
        " IF EXISTS (SELECT 1 FROM month WHERE month = OLD.month)"
        f" THEN RAISE EXCEPTION 'gpucost: {_CLOSED}'; END IF; RETURN OLD;"
        f" ELSIF {_moved()} THEN RAISE EXCEPTION 'gpucost: a day does not change'; END IF; RETURN NEW;",
    )
    yield (
        "CREATE TRIGGER usage_day_guard BEFORE UPDATE OR DELETE ON usage_day "
        "FOR EACH ROW EXECUTE FUNCTION gpucost_usage_day_guard()"
    )
    gone = " OR ".join(
        f"EXISTS (SELECT 1 FROM (SELECT DISTINCT {column} AS id FROM changed) c LEFT JOIN {table} t"
        " ON t.id = c.id WHERE c.id IS NOT NULL AND t.id IS NULL)"
        for column, table in _NAMED.items()
    )
    yield _function(
        "gpucost_usage_line_names",
        f"IF {gone} THEN RAISE EXCEPTION 'gpucost: a line names what is not there'; END IF; RETURN NULL;",
    )
    for event in ("INSERT", "UPDATE"):
        yield (
            f"CREATE TRIGGER usage_line_names_{event.lower()} AFTER {event} ON usage_line "
            "REFERENCING NEW TABLE AS changed FOR EACH STATEMENT EXECUTE FUNCTION gpucost_usage_line_names()"
        )
    for column in _NAMED:
        yield f"ALTER TABLE usage_line DROP CONSTRAINT fk_usage_line_{column}"
    for table in ("day_line", "usage_day"):
        yield (
            f"CREATE TRIGGER {table}_truncate BEFORE TRUNCATE ON {table} "
            "FOR EACH STATEMENT EXECUTE FUNCTION gpucost_append_only()"
        )


def _function(name: str, body: str) -> str:
    return f"CREATE FUNCTION {name}() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {body} END $$"
