"""What contracts make of the ledger's lines. Nothing is written.

``CommitmentReporting``: use by the hour, and what contracts made of it. Days that were added up have no hours
any more, so months that were rolled up are refused; so is a ledger of windows longer than an hour. The
window is cut to the time that the ledger has: what has not happened yet is not unused. A month that is closed
is cut, and its pools have left, what it was closed with.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pandas as pd

from gpucost.charges.commitment_drawdown import (
    ContractDrawdown,
    DrawnPeriod,
    UsageCell,
    draw_down,
    reads_from,
    schedules_of,
)
from gpucost.charges.commitment_report import CommitmentReport, UsageGaps, report_commitments
from gpucost.charges.contract_terms import ContractBook
from gpucost.domain.buckets import Bucket, Waste
from gpucost.domain.money import round_half_even
from gpucost.domain.rates import Rate
from gpucost.domain.scope import Scope
from gpucost.domain.time import HOUR_MS, Month, Window
from gpucost.ledger.db.records import LedgerState
from gpucost.ledger.ledger import Ledger
from gpucost.service.reporting.closed_charges import ContractStand, closed_policy, contract_stand

_PLACE = ("cluster", "pool", "model", "capacity_type", "team", "rate_id")
_DIMS = (*_PLACE, "bucket")


@dataclass(frozen=True)
class _ContractUse:
    """What draws on contracts in ``known``, the part of a window that the ledger has, in whole hours:
    ``lines`` since use should be known (``unread`` is the part of that time before the ledger), or from
    ``known`` on, with what was drawn ``before`` it."""

    known: Window
    unread: Window | None
    before: Mapping[str, DrawnPeriod] | None
    lines: pd.DataFrame


@dataclass(frozen=True)
class CommitmentReporting:
    """Reports on contracts over one ledger. ``scope`` sees every team: contracts cannot be drawn down without
    all who use them."""

    ledger: Ledger
    scope: Scope

    def teams(self) -> frozenset[str]:
        """The teams that ever held something."""
        extent = self.ledger.extent(scope=self.scope)
        if extent is None:
            return frozenset()
        held = {"bucket": (str(Bucket.HELD),)}
        return frozenset(self.ledger.aggregate(self.scope, extent, ("team",), filters=held)["team"])

    def report(self, book: ContractBook, window: Window) -> CommitmentReport | None:
        """The report of ``window``; None where the ledger has none of it. Raises InputError where the ledger
        does not know the hours."""
        use = self._use(book, window)
        if use is None:
            return None
        inside = use.lines["step_start_ms"] >= use.known.start_ms
        unknown = use.lines.loc[inside & (use.lines["bucket"] == Bucket.UNKNOWN), "board_ms"]
        gaps = UsageGaps(
            unknown_board_ms=int(unknown.sum()), missing_ms=self._missing(use.known), unread=use.unread
        )
        lost = self._lost(use.known) if book.spot else {}
        billed = billed_part(self.ledger, window, use.known)
        cells = self._cells(use.lines, lost)
        return report_commitments(book, cells, use.known, gaps, use.before, billed)

    def drawdown(
        self, book: ContractBook, window: Window, stand: ContractStand | None = None
    ) -> ContractDrawdown | None:
        """What every hour of ``window`` drew, as far as the ledger knows it, or from ``stand`` on; None where
        it has none of it. Raises as ``report``."""
        use = self._use(book, window, stand)
        return None if use is None else self._drawn(book, use)

    def stand(self, book: ContractBook, month: Month) -> ContractStand:
        """What a close of ``month`` keeps of how its contracts stand. Raises as ``report``."""
        use = self._use(book, month.window)
        if use is None:
            return ContractStand(None, None, {})
        return ContractStand(use.known, use.unread, self._drawn(book, use).before)

    def _drawn(self, book: ContractBook, use: _ContractUse) -> ContractDrawdown:
        schedules, cells = schedules_of(book.in_force), self._cells(use.lines, {})
        return draw_down(book.file, schedules, cells, use.known, use.before)

    def _use(
        self, book: ContractBook, window: Window, stand: ContractStand | None = None
    ) -> _ContractUse | None:
        """The use that decides what ``window`` draws: of a month that was closed with these contracts, from
        how they stood then."""
        stand = stand or self._as_closed(book, window)
        if stand is not None:
            if stand.known is None:
                return None
            return _ContractUse(stand.known, stand.unread, stand.drawn, self._lines(stand.known))
        extent = self.ledger.extent(scope=self.scope)
        known = None if extent is None else window.intersect(_whole_hours(extent))
        if extent is None or known is None:
            return None
        first = reads_from(schedules_of(book.in_force), known)
        begins = max(first, _whole_hours(extent).start_ms)
        unread = Window(first, begins) if first < begins else None
        return _ContractUse(known, unread, None, self._lines(Window(begins, known.end_ms)))

    def _as_closed(self, book: ContractBook, window: Window) -> ContractStand | None:
        """None where ``window`` is no month that was closed with the contracts of ``book``."""
        month = Month.of(window.start_ms)
        kept = self.ledger.month_charges(month) if window == month.window else None
        stand = None if kept is None else contract_stand(kept)
        if kept is None or stand is None:
            return None
        contracts = closed_policy(kept).contracts
        return stand if contracts is not None and contracts.file == book.file else None

    def _lines(self, window: Window) -> pd.DataFrame:
        """Use by the hour."""
        lines = self.ledger.aggregate(self.scope, window, _DIMS, step_ms=HOUR_MS)
        return lines[lines["bucket"] != Bucket.OVERCOMMITTED]

    def _missing(self, window: Window) -> int:
        covered: dict[str, int] = {}
        for info in self.ledger.windows(window, scope=self.scope):
            covered[info.cluster] = covered.get(info.cluster, 0) + info.window.length_ms
        return sum(max(0, window.length_ms - length_ms) for length_ms in covered.values())

    def _lost(self, window: Window) -> dict[tuple[object, ...], int]:
        """GPU time of spot nodes that interruptions destroyed, by hour and place."""
        spot = {"capacity_type": ("spot",)}
        lines = self.ledger.waste(self.scope, window, _PLACE, filters=spot, step_ms=HOUR_MS)
        lines = lines[lines["waste"] == Waste.PREEMPTED]
        columns = [lines[name] for name in ("step_start_ms", *_PLACE)]
        return {
            (int(key[0]), *key[1:]): int(board_ms)
            for *key, board_ms in zip(*columns, lines["board_ms"], strict=True)
        }

    def _cells(self, lines: pd.DataFrame, lost: dict[tuple[object, ...], int]) -> list[UsageCell]:
        rates = self.ledger.rates(set(lines["rate_id"]))
        found = []
        columns = [lines[name] for name in ("step_start_ms", *_DIMS, "board_ms", "nano", "unpriced_ms")]
        for hour_ms, *place, team, rate_id, bucket, board_ms, nano, unpriced_ms in zip(*columns, strict=True):
            amount = None if pd.isna(nano) or unpriced_ms else int(nano)
            holder = team if bucket == Bucket.HELD else ""
            cluster, pool, model, capacity_type = place
            found.append(
                UsageCell(
                    hour_ms=int(hour_ms),
                    cluster=cluster,
                    pool=pool,
                    model=model,
                    capacity_type=capacity_type,
                    team=holder,
                    rate_id=rate_id,
                    board_ms=int(board_ms),
                    list_nano=_listed(int(board_ms), amount, rates.get(rate_id)),
                    nano=amount,
                    lost_board_ms=lost.get((int(hour_ms), *place, holder, rate_id), 0),
                )
            )
        return found


def billed_part(ledger: Ledger, window: Window, known: Window) -> Window:
    """The part of ``window``, of which the ledger has ``known``, whose payments are due: a closed month,
    else until the ledger ends. A payment is due whether or not the ledger had begun."""
    month = Month.of(window.start_ms)
    is_closed = window == month.window and ledger.month(month).state is LedgerState.CLOSED
    return window if is_closed else Window(window.start_ms, known.end_ms)


def _listed(board_ms: int, nano: int | None, rate: Rate | None) -> int | None:
    """What ``board_ms`` costs by the list; to the nano-unit what it costs where nothing is off."""
    if nano is None or rate is None:
        return None
    if rate.list_nano_per_board_hour == rate.nano_per_board_hour:
        return nano
    return round_half_even(board_ms * rate.list_nano_per_board_hour, HOUR_MS)


def _whole_hours(extent: Window) -> Window:
    """``extent`` with its edges at hours: the first one that it touches, and the last that it holds whole."""
    start_ms = extent.start_ms // HOUR_MS * HOUR_MS
    return Window(start_ms, max(extent.end_ms // HOUR_MS * HOUR_MS, start_ms + HOUR_MS))
