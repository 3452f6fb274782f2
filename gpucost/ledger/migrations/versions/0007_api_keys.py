"""API keys."""

from __future__ import annotations

from collections.abc import Iterator

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

_FIXED = ("id", "sha256", "role", "teams", "clusters", "expires_ms", "created_ms", "created_by", "note")


def upgrade() -> None:
    op.create_table(
        "api_key",
        sa.Column("id", sa.String, primary_key=True),
        sa.Column("sha256", sa.String, nullable=False),
        sa.Column("role", sa.String, nullable=False),
        sa.Column("teams", sa.Text, nullable=False),
        sa.Column("clusters", sa.Text, nullable=True),
        sa.Column("expires_ms", sa.BigInteger, nullable=True),
        sa.Column("created_ms", sa.BigInteger, nullable=False),
        sa.Column("created_by", sa.String, nullable=False),
        sa.Column("revoked_ms", sa.BigInteger, nullable=True),
        sa.Column("revoked_by", sa.String, nullable=False),
        sa.Column("last_used_ms", sa.BigInteger, nullable=True),
        sa.Column("note", sa.String, nullable=False),
        sa.CheckConstraint("created_ms >= 0", name="created"),
        sa.CheckConstraint("(revoked_ms IS NULL) = (revoked_by = '')", name="revoked"),
    )
    is_sqlite = op.get_bind().dialect.name == "sqlite"
    for statement in _sqlite() if is_sqlite else _postgres():
        op.execute(statement)


def _sqlite() -> Iterator[str]:
    changed = " OR ".join(f"NEW.{column} IS NOT OLD.{column}" for column in _FIXED)
    again = "OLD.revoked_ms IS NOT NULL AND NEW.revoked_ms IS NOT OLD.revoked_ms"
    # INSERT OR REPLACE deletes without asking the DELETE trigger.
    known = "EXISTS (SELECT 1 FROM api_key WHERE id = NEW.id)"
    for event, name, when, words in (
        ("UPDATE", "fixed", changed, "a key does not change"),
        ("UPDATE", "revoked", again, "a revocation is for good"),
        ("DELETE", "guard", "1", "a key is never deleted"),
        ("INSERT", "known", known, "a key is never replaced"),
    ):
        yield (
            f"CREATE TRIGGER api_key_{event.lower()}_{name} BEFORE {event} ON api_key FOR EACH ROW "
            f"WHEN {when} BEGIN SELECT RAISE(ABORT, 'gpucost: {words}'); END"
        )


def _postgres() -> Iterator[str]:
    changed = " OR ".join(f"NEW.{column} IS DISTINCT FROM OLD.{column}" for column in _FIXED)
    again = "OLD.revoked_ms IS NOT NULL AND NEW.revoked_ms IS DISTINCT FROM OLD.revoked_ms"
    yield (
        "CREATE FUNCTION gpucost_key_guard() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        " IF TG_OP <> 'UPDATE' THEN RAISE EXCEPTION 'gpucost: a key is never deleted';"
        f" ELSIF {changed} THEN RAISE EXCEPTION 'gpucost: a key does not change';"
        f" ELSIF {again} THEN RAISE EXCEPTION 'gpucost: a revocation is for good'; END IF;"
        " RETURN NEW; END $$"
    )
    for when, each, name in (
        ("UPDATE OR DELETE", "ROW", "guard"),
        ("TRUNCATE", "STATEMENT", "truncate"),
    ):
        yield (
            f"CREATE TRIGGER api_key_{name} BEFORE {when} ON api_key "
            f"FOR EACH {each} EXECUTE FUNCTION gpucost_key_guard()"
        )
