"""The table of API keys: what each may do, and never its secret."""

from __future__ import annotations

from sqlalchemy import CheckConstraint, Text
from sqlmodel import Field

from gpucost.ledger.tables import LedgerModel, big_int, table_of


class ApiKeyRow(LedgerModel, table=True):
    """A key. ``teams`` and ``clusters`` are JSON lists, sorted; without ``clusters`` it is for all of them.

    A row is never deleted, so that no id is given twice, and but for its revocation and last use it does not
    change (triggers of revision 0007).
    """

    __tablename__ = "api_key"
    __table_args__ = (
        CheckConstraint("created_ms >= 0", name="created"),
        CheckConstraint("(revoked_ms IS NULL) = (revoked_by = '')", name="revoked"),
    )
    id: str = Field(primary_key=True)
    sha256: str
    role: str
    teams: str = Field(sa_type=Text)
    clusters: str | None = Field(sa_type=Text)
    expires_ms: int | None = big_int()
    created_ms: int = big_int()
    created_by: str
    revoked_ms: int | None = big_int()
    revoked_by: str
    last_used_ms: int | None = big_int()
    note: str


API_KEY = table_of(ApiKeyRow)
