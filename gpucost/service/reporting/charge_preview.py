"""A month of the ledger under charge policies that are not in force: read once, charged once for each
policy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gpucost.charges.charge_account import charges
from gpucost.charges.policy_file import PolicyBook
from gpucost.domain.buckets import Bucket
from gpucost.domain.errors import InputError
from gpucost.domain.scope import Scope
from gpucost.domain.time import Month
from gpucost.ledger import Ledger
from gpucost.reports.charges.chargeback_preview import ChargebackPreview, PreviewAmount, build_preview
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
    for book in books:
        book.currency_of(reporting.currency, month.window)
    folded = reporting.ledger.folded_days(scope, month.window)
    if folded:
        allowed = (
            f"a month with its hours: those of {len(folded)} days were added up by day, and quotas have hours"
        )
        raise InputError("month", str(month), allowed)

    def read() -> ChargebackPreview:
        cells = reporting.ledger.cells(scope, month.window)
        accounts = [charges(cells, book, reporting.currency) for book in books]
        names = [(book.title, book.name) for book in books]
        own = all(account.currency == reporting.currency for account in accounts)
        whole = _capacity(reporting.ledger, scope, month) if own else None
        return build_preview(month, names, accounts, whole, cost_centres)

    return reporting.steady(scope, month.window, read).report


def _capacity(ledger: Ledger, scope: Scope, month: Month) -> PreviewAmount:
    """What the month's capacity cost by the ledger's sums by bucket, which know nothing of cells."""
    sums = ledger.aggregate(scope, month.window, ("bucket",))
    sums = sums[sums["bucket"].map(lambda name: Bucket(name).is_capacity)]
    return PreviewAmount(int(sums["board_ms"].sum()), int(sums["nano"].fillna(0).sum()))
