"""What a closed month keeps of its charges: the policy that it was charged by, and what contracts had drawn
before it.

No change of the settings reaches a month that is closed, and no growth of the ledger either: how far the
ledger reached, and what earlier months had left of a contract, are kept as they were at the close.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from fractions import Fraction

from gpucost.charges.commitment_drawdown import DrawnPeriod
from gpucost.charges.policy_file import PolicyBook
from gpucost.domain.time import Month, Window
from gpucost.ledger.db.records import MonthCharges
from gpucost.ledger.ledger import Ledger

# Among the files of a policy; no file has an empty name.
_STAND = ""


@dataclass(frozen=True, slots=True)
class ContractStand:
    """What decides, besides a month's own use, what contracts make of the month: the part of it that the
    ledger had (``known``), the time before the ledger in which a period of a contract had begun (``unread``),
    and what was drawn before ``known`` of periods that go on in it, by contract."""

    known: Window | None
    unread: Window | None
    drawn: Mapping[str, DrawnPeriod]

    def to_text(self) -> str:
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def parse(cls, text: str) -> ContractStand:
        """What ``to_text`` made."""
        found = json.loads(text)
        known, unread = (
            None if found[name] is None else Window(**found[name]) for name in ("known", "unread")
        )
        return cls(known, unread, {name: DrawnPeriod(**each) for name, each in found["drawn"].items()})


def files_kept(book: PolicyBook, stand: ContractStand | None) -> str:
    """The files of a policy with the stand of its contracts, as a closed month keeps them."""
    files = dict(sorted(book.files.items()))
    if stand is not None:
        files[_STAND] = stand.to_text()
    return json.dumps(files, ensure_ascii=False)


def contract_stand(kept: MonthCharges) -> ContractStand | None:
    """None without contracts, and where the month was closed by a release that kept no such thing."""
    text = json.loads(kept.files).get(_STAND)
    return None if text is None else ContractStand.parse(text)


def closed_policy(kept: MonthCharges) -> PolicyBook:
    """The policy that a closed month was charged by."""
    weights = {team: Fraction(weight) for team, weight in json.loads(kept.weights).items()}
    files = json.loads(kept.files)
    return PolicyBook.parse(kept.policy, kept.policy_name, weights, lambda name: (files[name], name))


def policy_in_force(ledger: Ledger, month: Month, book: PolicyBook) -> tuple[PolicyBook, MonthCharges | None]:
    """The policy that a closed month was charged by, with what was charged; else ``book``, which is that of
    the settings."""
    kept = ledger.month_charges(month)
    return (book, None) if kept is None else (closed_policy(kept), kept)


def adjustment_rate(book: PolicyBook, ledger_currency: str, month: Month) -> int:
    """What adjustments of ``month`` are converted by where its charges are in another currency: nano-units of
    that for one unit of the ledger's, as of the end of the month. ``book`` has charged the month."""
    return book.rate_at(ledger_currency, month.window.end_ms - 1)
