"""What changed within a month by decision: prices of the price book, and quotas of the charge policy.

Marks on a chart of days, so that a step in it need not be guessed at. A price changed where what a model cost
before no longer holds for the same kind of capacity; a quota where one of the policy ends or begins.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from gpucost.charges.policy_file import PolicyBook
from gpucost.domain.scope import Scope
from gpucost.domain.time import DAY_MS, Month, iso
from gpucost.ledger import Ledger
from gpucost.reports.base import display

_PRICED = ("cluster", "model", "capacity_type", "instance_type", "region", "rate_id")


@dataclass(frozen=True, slots=True)
class MonthMark:
    """A change from ``day`` on (UTC): ``kind`` is price or quota, ``text`` says from what to what."""

    day: str
    kind: str
    text: str


def month_marks(ledger: Ledger, scope: Scope, month: Month, policy: PolicyBook) -> tuple[MonthMark, ...]:
    """The changes of ``month`` that ``scope`` may see, by day: prices of what its teams held, or of all
    capacity, and quotas of its teams."""
    found = {*_prices(ledger, scope, month), *_quotas(scope, month, policy)}
    return tuple(sorted(found, key=lambda mark: (mark.day, mark.kind, mark.text)))


def _prices(ledger: Ledger, scope: Scope, month: Month) -> Iterator[MonthMark]:
    lines = ledger.aggregate(scope, month.window, _PRICED, step_ms=DAY_MS)
    lines = lines[lines["rate_id"] != ""]
    rates = ledger.rates(frozenset(lines["rate_id"]))
    columns = [*_PRICED[:-1], "step_start_ms", "rate_id"]
    days: dict[tuple[str, ...], dict[int, set[int]]] = defaultdict(lambda: defaultdict(set))
    for *key, day_ms, rate_id in lines[columns].itertuples(index=False, name=None):
        days[tuple(map(str, key))][int(day_ms)].add(rates[rate_id].nano_per_board_hour)
    for (_, model, capacity_type, *_), by_day in days.items():
        before: set[int] = set()
        for day_ms, prices in sorted(by_day.items()):
            # A change within a day has both prices on it, and the new one alone on the next.
            new = prices - before
            if before and new and len(before) == len(new) == 1:
                old = before - prices or before
                change = " to ".join(f"{display.price(min(each))}" for each in (old, new))
                kind = f" {capacity_type}" if capacity_type else ""
                text = f"{display.name(model)}{display.visible(kind)}: {change} an hour"
                yield MonthMark(iso(day_ms)[:10], "price", text)
            before = new or prices


def _quotas(scope: Scope, month: Month, policy: PolicyBook) -> Iterator[MonthMark]:
    window = month.window
    for quota in policy.file.quotas:
        if not scope.sees_every_team and quota.team not in (scope.teams or ()):
            continue
        who = display.name(quota.queue or quota.team or quota.cohort or "")
        what = f"quota of {who}: {display.trimmed(f'{quota.gpus / 10**9:.3f}')} {display.name(quota.model)}"
        for edge, word in ((quota.valid_from, "from here"), (quota.valid_to, "until here")):
            if edge is not None and window.start_ms < edge < window.end_ms:
                yield MonthMark(iso(edge)[:10], "quota", f"{what} {word}")
