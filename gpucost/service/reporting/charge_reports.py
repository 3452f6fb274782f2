"""What charge policies and contracts make of the ledger's lines. Nothing is written.

``preview_charges``: a month under policies that are not in force, read once, charged once for each policy.
``team_statements``: what teams pay for a month under one policy, all from one state of the ledger.

``CommitmentReporting``: use by the hour, and what contracts made of it. Days that were added up have no hours
any more, so months that were rolled up are refused; so is a ledger of windows longer than an hour. The
window is cut to the time that the ledger has: what has not happened yet is not unused.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

from gpucost.charges.charge_account import charges, charges_by_policy
from gpucost.charges.commitment_drawdown import UsageCell, reads_from, schedules_of
from gpucost.charges.commitment_report import CommitmentReport, UsageGaps, report_commitments
from gpucost.charges.contract_terms import ContractBook
from gpucost.charges.policy_file import PolicyBook
from gpucost.domain.buckets import Bucket, Waste
from gpucost.domain.errors import InputError
from gpucost.domain.money import round_half_even
from gpucost.domain.rates import Rate
from gpucost.domain.scope import Scope
from gpucost.domain.time import HOUR_MS, Month, Window
from gpucost.ledger import Ledger
from gpucost.reports.charges.charge_statements import (
    ChargebackPreview,
    PreviewAmount,
    TeamStatement,
    build_preview,
    build_statements,
)
from gpucost.service.reporting.report_service import ReportService


def preview_charges(
    reporting: ReportService,
    scope: Scope,
    month: Month,
    books: Sequence[PolicyBook],
    cost_centres: Mapping[str, str | None],
) -> ChargebackPreview:
    """The month, of which the ledger holds something, under each of ``books``.

    ``scope`` sees every team: idle time cannot be charged without all who could bear it. Raises ConfigError
    for a policy without a rate for the ledger's currency, InputError for policies of several currencies, and
    for a month whose hours were added up by day.
    """
    _check_chargeable(reporting, scope, month, books)

    def read() -> ChargebackPreview:
        cells = reporting.ledger.cells(scope, month.window)
        accounts = charges_by_policy(cells, books, reporting.currency)
        names = [(book.title, book.name) for book in books]
        own = all(account.currency == reporting.currency for account in accounts)
        whole = _capacity(reporting.ledger, scope, month) if own else None
        return build_preview(month, names, accounts, whole, cost_centres)

    return reporting.steady(scope, month.window, read).report


def team_statements(
    reporting: ReportService,
    scope: Scope,
    month: Month,
    book: PolicyBook,
    cost_centres: Mapping[str, str | None],
    teams: Collection[str],
) -> tuple[TeamStatement, ...]:
    """The statements of ``teams``, in their order, for a month of which the ledger holds something; all from
    one state of the ledger. Raises as ``preview_charges``."""
    _check_chargeable(reporting, scope, month, [book])

    def read() -> tuple[TeamStatement, ...]:
        account = charges(reporting.ledger.cells(scope, month.window), book, reporting.currency)
        answer = reporting.month(scope, month)
        if answer is None:
            return ()
        return build_statements(teams, book.title, account, answer.report, cost_centres)

    return reporting.steady(scope, month.window, read).report


def _check_chargeable(
    reporting: ReportService, scope: Scope, month: Month, books: Sequence[PolicyBook]
) -> None:
    """Raises ConfigError for a policy without a rate for the ledger's currency, InputError for a month whose
    hours were added up by day."""
    for book in books:
        book.currency_of(reporting.currency, month.window)
    folded = reporting.ledger.folded_days(scope, month.window)
    if folded:
        allowed = (
            f"a month with its hours: those of {len(folded)} days were added up by day, and quotas have hours"
        )
        raise InputError("month", str(month), allowed)


def _capacity(ledger: Ledger, scope: Scope, month: Month) -> PreviewAmount:
    """What the month's capacity cost by the sums that were recorded when its windows were written, which
    know nothing of cells: those that a closed month's digest covers."""
    windows = ledger.windows(month.window, scope=scope)
    return PreviewAmount(sum(each.board_ms for each in windows), sum(each.nano for each in windows))


_PLACE = ("cluster", "pool", "model", "capacity_type", "team", "rate_id")
_DIMS = (*_PLACE, "bucket")


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
        extent = self.ledger.extent(scope=self.scope)
        known = None if extent is None else window.intersect(_whole_hours(extent))
        if extent is None or known is None:
            return None
        first = reads_from(schedules_of(book.in_force), known)
        begins = max(first, _whole_hours(extent).start_ms)
        lines = self.ledger.aggregate(self.scope, Window(begins, known.end_ms), _DIMS, step_ms=HOUR_MS)
        lines = lines[lines["bucket"] != Bucket.OVERCOMMITTED]
        inside = lines["step_start_ms"] >= known.start_ms
        unknown = lines.loc[inside & (lines["bucket"] == Bucket.UNKNOWN), "board_ms"]
        gaps = UsageGaps(
            unknown_board_ms=int(unknown.sum()),
            missing_ms=self._missing(known),
            unread=Window(first, begins) if first < begins else None,
        )
        lost = self._lost(known) if book.spot else {}
        return report_commitments(book, self._cells(lines, lost), known, gaps)

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
