"""Alembic's entry: runs the revisions on the connection of LedgerDatabase, in its transaction."""

from __future__ import annotations

from alembic import context

from gpucost.ledger.db.tables import METADATA

context.configure(
    connection=context.config.attributes["connection"], target_metadata=METADATA, render_as_batch=True
)
with context.begin_transaction():
    context.run_migrations()
