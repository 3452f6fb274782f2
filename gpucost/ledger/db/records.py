"""The records that the ledger hands out: plain values, no rows of tables.

Also its errors that carry what the caller needs to go on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TypeAlias

import pandas as pd

from gpucost.detectors.engine.lifecycle import FindingLifeState
from gpucost.domain.errors import LedgerError, MonthClosed
from gpucost.domain.money import plain
from gpucost.domain.time import Month, Window

JOB_KEY_COLUMNS = ("cluster", "team", "namespace", "job", "job_kind", "job_uid")
"""One job, as one team held it."""


class LedgerState(StrEnum):
    """The life of a window: lines may still arrive (open), all have arrived (settled), they are final
    (closed). A month is open or closed."""

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
    """The state of a window. ``observed_ms`` is how much of ``window.length_ms`` the source observed.

    ``board_ms`` is its capacity, ``unpriced_ms`` the part of it without a price and ``nano`` the cost of the
    rest, as they were recorded beside the lines.
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
    """One of the versions that a window had. ``board_ms``, ``unknown_ms``, ``nano`` are sums over
    capacity."""

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


@dataclass(frozen=True, slots=True, eq=False)
class WasteOfWindow:
    """The waste of a window: the parts of its lines that are not their rest
    (domain.buckets.WASTE_WHEN_UNCLAIMED).

    ``digest`` is that of the window's usage lines (WindowInfo.digest) which were assessed. ``lines`` are
    WASTE_LINES (ledger/waste/waste_writer.py): the natural key of a usage line, and a part of it. ``final``
    says that no later observation can change it.
    """

    window: Window
    digest: str
    lines: pd.DataFrame
    final: bool


@dataclass(frozen=True, slots=True)
class AssessmentCounts:
    """How many windows have a final, a provisional or no waste that fits their lines.

    ``digest`` changes whenever any of it changes; empty while there is none.
    """

    final: int
    provisional: int
    missing: int
    digest: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class MonthInfo:
    """A month. ``version`` counts the window versions written in it; the fields after it are those of a
    closed one.

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
class MonthCharges:
    """What teams were charged when a month was closed, and all that it was computed from besides the lines:
    the charge policy, the files that it names (JSON, name to text; under an empty name how its contracts
    stood), and the weights of teams, as JSON. ``amounts`` are (team, GPU-milliseconds, nano-units of
    ``currency``), the platform's among them; ``digest`` is of every charge."""

    policy_name: str
    policy: str
    files: str
    weights: str
    currency: str
    digest: str
    amounts: tuple[tuple[str, int, int], ...]


@dataclass(frozen=True, slots=True)
class MonthRollup:
    """A closed month whose lines were added up by day: how many they were before, and are."""

    month: Month
    digest: str
    folded_at_ms: int
    author: str
    lines_before: int
    lines: int
    waste_before: int
    waste_lines: int


@dataclass(frozen=True, slots=True)
class MonthSeal:
    """A closed month whose lines are in files: how many lines, in how many files of how many bytes.
    ``manifest`` is the SHA-256 of the list of them, ``digest`` covers it, the digest of the month and the
    seal before it. ``left`` says of each other file of the month that could not be removed, why."""

    month: Month
    digest: str
    manifest: str
    sealed_at_ms: int
    author: str
    lines: int
    files: int
    size: int
    left: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class MonthUnseal:
    """A month whose lines are in the database again: how many, and of each of its files that could not be
    removed, why."""

    lines: int
    left: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PruningResult:
    """How many rows were deleted because they had been over for long."""

    findings: int
    events: int
    posts: int
    conversations: int
    alert_groups: int


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
    """The correction that late lines would make for a team; ``nano`` is None where a side has time without a
    price."""

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


FindingState: TypeAlias = FindingLifeState
NEXT_EPISODE = 0
"""As the ``episode`` of a new record and its events: one more than the last."""


@dataclass(frozen=True, slots=True)
class FindingRecord:
    """An episode of an anti-pattern of one subject, identified by ``fingerprint`` and ``episode`` (from 1).

    The enumerations of detectors are kept as text. ``content`` is the whole finding as JSON text;
    ``board_ms``, ``nano`` (None where any has no price), ``counted`` and ``boards_now`` are of its waste.
    ``rehearsal`` findings are never sent. ``state`` is as it was written: an expired mute stays until the
    next evaluation. ``id`` and ``revision`` are the ledger's: None and 0 for a new one.
    """

    cluster: str
    fingerprint: str
    episode: int
    pattern: str
    variant: str
    subject_kind: str
    subject_name: str
    subject_namespace: str
    subject_uid: str
    team: str
    queue: str
    severity: str
    opened_at_ms: int
    since_ms: int
    last_seen_ms: int
    content: str
    board_ms: int
    nano: int | None
    counted: bool
    boards_now: float
    state: FindingState = FindingState.OPEN
    closed_at_ms: int | None = None
    clean_evaluations: int = 0
    rehearsal: bool = False
    exempt_until_ms: int | None = None
    muted_until_ms: int | None = None
    acknowledged_by: str | None = None
    acknowledged_at_ms: int | None = None
    acknowledged_note: str | None = None
    id: int | None = None
    revision: int = 0


@dataclass(frozen=True, slots=True)
class FindingSum:
    """Findings of one pattern, team and state: how many, how many of them somebody acknowledged, and what
    those that the waste ledger counts wasted in the last day of each; ``nano`` is None where none of these
    has a price."""

    pattern: str
    team: str
    state: FindingState
    count: int
    acknowledged: int
    board_ms: int
    nano: int | None


@dataclass(frozen=True, slots=True)
class FindingEvent:
    """Who did what to a finding, when."""

    fingerprint: str
    episode: int
    at_ms: int
    author: str
    action: str
    detail: str = ""


class LateLines(MonthClosed):
    """Other lines arrived for a closed month. Nothing was changed.

    ``proposal`` is what adjustments would contain: per team, by name, what the new lines have more (or less)
    than the closed ones.
    """

    def __init__(self, month: Month, window: str, proposal: tuple[ProposedAdjustment, ...]) -> None:
        self.month = month
        self.proposal = proposal
        changed = ", ".join(str(item) for item in proposal) or "no team's sum changes"
        super().__init__(f"{month} is closed: {window} stays as it is; to correct it, adjust: {changed}")


class MonthOpen(LedgerError):
    """An adjustment was made for a month that is not closed."""

    def __init__(self, month: Month) -> None:
        self.month = month
        super().__init__(
            f"{month} is open: an adjustment corrects a closed month; an open one takes new lines instead"
        )


class CloseRefused(LedgerError):
    """A month is not ready to be closed; ``blockers`` says why, one sentence each."""

    def __init__(self, month: Month, blockers: tuple[str, ...]) -> None:
        self.month = month
        self.blockers = blockers
        shown = "; ".join(blockers[:20]) + (f"; and {len(blockers) - 20} more" if len(blockers) > 20 else "")
        super().__init__(f"{month} cannot be closed without a reason: {shown}")


class FoldRefused(LedgerError):
    """A closed month does not match its digest: its windows are kept as they are."""

    def __init__(self, month: Month, findings: Sequence[str]) -> None:
        self.month = month
        more = f"; and {len(findings) - 5} more" if len(findings) > 5 else ""
        super().__init__(
            f"{month} is not folded, for it does not verify (gpucost month verify {month}): "
            f"{'; '.join(findings[:5])}{more}"
        )


class SealRefused(LedgerError):
    """A closed month cannot be moved into files, or back, without changing: it stays where it is."""

    def __init__(self, month: Month, findings: Sequence[str]) -> None:
        self.month = month
        more = f"; and {len(findings) - 5} more" if len(findings) > 5 else ""
        super().__init__(
            f"{month} stays as it is, for it does not verify (gpucost ledger verify {month}): "
            f"{'; '.join(findings[:5])}{more}"
        )


class SealTooNew(LedgerError):
    """A newer gpucost has sealed this month; this one does not know its files."""


class LedgerTooNew(LedgerError):
    """A newer gpucost has migrated this ledger; this one does not know its tables."""
