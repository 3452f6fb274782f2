"""What else was measured on a usage line: coverage of the tensor signal, memory, energy, use beyond a share.

Lines written before have null in them, which is what a digest leaves out: see digest.py.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

_MEASURES = (
    "tensor_observed_ms",
    "memory_observed_ms",
    "memory_used_mib_s",
    "memory_total_mib_s",
    "memory_peak_mib",
    "energy_observed_ms",
    "energy_mj",
    "busy_over_ms",
    "sm_over_ms",
    "tensor_over_ms",
)


def upgrade() -> None:
    # Plain ADD COLUMN: a table that is copied loses its triggers, and copying a year of lines takes minutes.
    for name in _MEASURES:
        op.add_column("usage_line", sa.Column(name, sa.BigInteger, nullable=True))
