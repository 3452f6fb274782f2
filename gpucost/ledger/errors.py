"""Refusals of the ledger that carry what the caller needs to go on."""

from __future__ import annotations

from collections.abc import Sequence

from gpucost.domain.errors import LedgerError, MonthClosed
from gpucost.domain.time import Month
from gpucost.ledger.records import ProposedAdjustment


class LateLines(MonthClosed):
    """Other lines arrived for a closed month. Nothing was touched.

    ``proposal`` is what adjustments would say: per team, by name, what the new lines have more (or less)
    than the closed ones.
    """

    def __init__(self, month: Month, window: str, proposal: tuple[ProposedAdjustment, ...]) -> None:
        self.month = month
        self.proposal = proposal
        changed = ", ".join(str(item) for item in proposal) or "no team's sum changes"
        super().__init__(f"{month} is closed: {window} stays as it is; to correct it, adjust: {changed}")


class MonthOpen(LedgerError):
    """An adjustment of a month that is not closed."""

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
    """A closed month is not what was closed: it keeps its windows as they are."""

    def __init__(self, month: Month, findings: Sequence[str]) -> None:
        self.month = month
        more = f"; and {len(findings) - 5} more" if len(findings) > 5 else ""
        super().__init__(
            f"{month} is not folded, for it does not verify (gpucost month verify {month}): "
            f"{'; '.join(findings[:5])}{more}"
        )


class LedgerTooNew(LedgerError):
    """A newer gpucost has migrated this ledger; this one does not know its tables."""
