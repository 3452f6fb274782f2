"""What the simulation alone said of a wait, beside what was told: the difference is learnt from."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    for name in ("gpus", "p10_ms", "simulated_p10_ms", "simulated_p50_ms", "simulated_p90_ms"):
        op.add_column("wait_prediction", sa.Column(name, sa.BigInteger, nullable=True))
