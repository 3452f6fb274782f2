"""Names are found fast, however many there are, on PostgreSQL.

A function of a trigger keeps the plan that it made when the ledger was empty: then all rows of ``holder``
were read for every statement that writes lines. And keys, uids and teams, which are only ever compared for
being the same, were compared by the rules of a language. SQLite does neither.
"""

from __future__ import annotations

from alembic import op

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None

_LOOK_UP = ("gpucost_usage_line_names", "gpucost_content_guard")
_BY_BYTES = {
    "unit": ("content_key",),
    "holder": ("content_key", "pod_uid", "job_uid", "team"),
    "rate": ("content_key",),
    "team_rule": ("content_key",),
}


def upgrade() -> None:
    connection = op.get_bind()
    if connection.dialect.name == "sqlite":
        return
    for function in _LOOK_UP:
        for kind in ("seqscan", "hashjoin", "mergejoin"):
            connection.exec_driver_sql(f"ALTER FUNCTION {function}() SET enable_{kind} = off")
    for table, columns in _BY_BYTES.items():
        changes = (f'ALTER COLUMN {column} TYPE varchar COLLATE "C"' for column in columns)
        connection.exec_driver_sql(f"ALTER TABLE {table} {', '.join(changes)}")
