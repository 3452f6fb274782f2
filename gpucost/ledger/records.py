"""What the ledger tells: plain values, no rows of tables."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from gpucost.domain.money import plain
from gpucost.domain.time import Month, Window


class LedgerState(StrEnum):
    """The life of a window: lines may still come, came in full, are final. A month is open or closed."""

    OPEN = "open"
    SETTLED = "settled"
    CLOSED = "closed"


@dataclass(frozen=True, slots=True)
class IngestResult:
    """``changed`` is False when the window held the same content already; ``digest`` is of that content."""

    version: int
    changed: bool
    digest: str


@dataclass(frozen=True, slots=True)
class WindowInfo:
    """A window as it stands. ``observed_ms`` is how much of ``window.length_ms`` the source observed.

    ``board_ms`` is its capacity, ``unpriced_ms`` the part of it without a price and ``nano`` the cost of the
    rest, as they were written down beside the lines.
    """

    cluster: str
    window: Window
    state: LedgerState
    version: int
    digest: str
    observed_ms: int
    source: str
    code_version: str
    written_at_ms: int
    board_ms: int
    nano: int
    unpriced_ms: int


@dataclass(frozen=True, slots=True)
class WindowVersion:
    """One version that a window ever had. ``board_ms``, ``unknown_ms``, ``nano`` are sums over capacity."""

    version: int
    digest: str
    reason: str
    line_count: int
    board_ms: int
    unknown_ms: int
    unpriced_ms: int
    nano: int
    observed_ms: int
    source: str
    code_version: str
    written_at_ms: int


@dataclass(frozen=True, slots=True)
class MonthInfo:
    """A month. ``version`` counts the window versions written in it; the fields after it are of a closed one.

    ``previous_digest`` is that of the month closed before this one, empty for the first.
    """

    month: Month
    state: LedgerState
    version: int
    digest: str | None = None
    previous_digest: str | None = None
    closed_at_ms: int | None = None
    author: str | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Adjustment:
    """A correction of a closed month; ``reference`` names its ticket, once per month, team and job."""

    month: Month
    team: str
    job_uid: str
    board_ms: int
    nano: int
    currency: str
    reason: str
    author: str
    reference: str
    created_at_ms: int


@dataclass(frozen=True, slots=True, order=True)
class ProposedAdjustment:
    """What late lines would change for a team; ``nano`` is None where a side has time without a price."""

    team: str
    board_ms: int
    nano: int | None

    def __str__(self) -> str:
        cost = "without a price" if self.nano is None else plain(self.nano)
        return f"{self.team} {self.board_ms:+d} ms, {cost}"


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """Who did what to which month or window, when and why."""

    at_ms: int
    author: str
    action: str
    subject: str
    reason: str
    detail: str


@dataclass(frozen=True, slots=True)
class VerifyFinding:
    """Something stored is not what was written; ``subject`` is a window, month, dimension or adjustment."""

    month: Month | None
    subject: str
    detail: str
