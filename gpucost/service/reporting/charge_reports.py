"""What charge policies and contracts make of the ledger's lines. Nothing is written.

``preview_charges``: a month under policies that are not in force, read once, charged once for each policy.
``team_statements``: what teams pay for a month under one policy, all from one state of the ledger;
``kept_statements``: the same of every team, made once for all who ask.
``PolicyCharging``: what every team pays, beside the report of a month.
"""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property

import pandas as pd

from gpucost.charges.capacity_cells import CapacityCell
from gpucost.charges.cell_charges import ChargeAmount
from gpucost.charges.charge_account import (
    ChargeAccount,
    ChargeLine,
    charges,
    charges_by_policy,
    commitment_lines,
    unmatched_quotas,
)
from gpucost.charges.commitment_drawdown import ContractDrawdown, reads_from, schedules_of
from gpucost.charges.commitment_report import team_views
from gpucost.charges.policy_file import PolicyBook
from gpucost.domain.buckets import NO_TEAM, Bucket
from gpucost.domain.errors import ChargesChanged, InputError, LedgerConflict
from gpucost.domain.scope import EVERYTHING, Scope
from gpucost.domain.time import Month, Window
from gpucost.ledger.db.records import LedgerState, MonthCharges
from gpucost.ledger.ledger import Ledger
from gpucost.reports.charges.charge_previews import (
    ChargebackPreview,
    PreviewAmount,
    PreviewGrouping,
    WaitingTime,
    build_preview,
    idle_quotas,
    preview_table,
)
from gpucost.reports.charges.charge_statements import (
    MonthStatements,
    StatementContracts,
    StatementPrice,
    StatementRule,
    build_statements,
    build_summary,
)
from gpucost.reports.month.model import MonthReport, StatementSummary
from gpucost.reports.render.tables import ReportTable
from gpucost.service.reporting.closed_charges import (
    ContractStand,
    adjustment_rate,
    contract_stand,
    files_kept,
    policy_in_force,
)
from gpucost.service.reporting.commitment_reporting import CommitmentReporting
from gpucost.service.reporting.report_service import ReportAnswer, ReportService
from gpucost.service.reporting.team_names import known_teams
from gpucost.service.reporting.unit_reports import unit_costs_by_team


def preview_charges(
    reporting: ReportService,
    scope: Scope,
    month: Month,
    books: Sequence[PolicyBook],
    cost_centres: Mapping[str, str | None],
    waiting: WaitingTime | None = None,
    grouping: PreviewGrouping = PreviewGrouping.TEAM,
) -> ChargebackPreview:
    """The month, of which the ledger holds something, under each of ``books``. ``waiting`` stands beside idle
    quota.

    ``scope`` sees every team: idle time cannot be charged without all who could bear it. Raises ConfigError
    for a policy without a rate for the ledger's currency, InputError for policies of several currencies, and
    for a month whose hours were added up by day.
    """
    check_chargeable(reporting, scope, month, books)

    def read() -> ChargebackPreview:
        cells = reporting.ledger.cells(scope, month.window)
        windows: dict[str, set[Window]] = defaultdict(set)
        commitments = [_commitment_lines(reporting, month, book) for book in books]
        accounts = charges_by_policy(_noted(cells, windows), books, reporting.currency, commitments)
        names = [(book.title, book.name) for book in books]
        remarks = [
            f"{book.title}: {remark}"
            for book, account in zip(books, accounts, strict=True)
            for remark in unmatched_quotas(account, book, month.window)
        ]
        own = all(account.currency == reporting.currency for account in accounts)
        whole = _capacity(reporting.ledger, scope, month) if own else None
        observed = {model: _length(spans) for model, spans in windows.items()}
        quotas = [
            quota
            for n, (account, book) in enumerate(zip(accounts, books, strict=True))
            for quota in idle_quotas(n, account, book, observed, waiting)
        ]
        missing = () if waiting is None else waiting.missing
        return build_preview(month, names, accounts, whole, cost_centres, grouping, quotas, missing, remarks)

    return reporting.steady(scope, month.window, read).report


def charge_table(
    reporting: ReportService,
    scope: Scope,
    month: Month,
    books: Sequence[PolicyBook],
    cost_centres: Mapping[str, str | None],
) -> ReportTable:
    """All charges of the month under each of ``books``, by day. Raises as ``preview_charges``."""
    check_chargeable(reporting, scope, month, books)

    def read() -> ReportTable:
        commitments = [_commitment_lines(reporting, month, book) for book in books]
        cells = reporting.ledger.cells(scope, month.window)
        accounts = charges_by_policy(cells, books, reporting.currency, commitments)
        return preview_table(month, [(book.title, book.name) for book in books], accounts, cost_centres)

    return reporting.steady(scope, month.window, read).report


def team_statements(
    reporting: ReportService,
    scope: Scope,
    month: Month,
    book: PolicyBook,
    cost_centres: Mapping[str, str | None],
    teams: Collection[str],
) -> MonthStatements:
    """The statements of ``teams``, in their order, for a month of which the ledger holds something, and the
    summary of all; all from one state of the ledger. A closed month is charged by the policy that it was
    closed with. Raises as ``preview_charges``."""
    check_chargeable(reporting, scope, month, [policy_in_force(reporting.ledger, month, book)[0]])
    return reporting.steady(
        scope, month.window, lambda: _statements(reporting, scope, month, book, cost_centres, teams)
    ).report


def _statements(
    reporting: ReportService,
    scope: Scope,
    month: Month,
    book: PolicyBook,
    cost_centres: Mapping[str, str | None],
    teams: Collection[str],
) -> MonthStatements:
    book, kept = policy_in_force(reporting.ledger, month, book)
    account = month_account(reporting, scope, month, book, kept)
    answer = replace(reporting, charging=None).month(scope, month)
    if answer is None:
        raise InputError("month", str(month), "a month of which the ledger holds something")
    report = answer.report
    prices, rules = _prices(reporting.ledger, scope, month), _rules(reporting.ledger, scope, month)
    return MonthStatements(
        build_statements(
            teams,
            book.title,
            account,
            report,
            cost_centres,
            prices,
            rules,
            as_closed=kept is not None,
            contracts=_contract_views(reporting, month, book, None if kept is None else contract_stand(kept)),
            units=unit_costs_by_team(reporting.ledger, scope, month.window),
            rate=adjustment_rate(book, reporting.currency, month),
        ),
        _summary(reporting, book, account, report, cost_centres, kept),
    )


def month_account(
    reporting: ReportService,
    scope: Scope,
    month: Month,
    book: PolicyBook,
    kept: MonthCharges | None,
    stand: ContractStand | None = None,
) -> ChargeAccount:
    """The charges of a month by the policy in force, and by how its contracts stand. Raises ChargesChanged
    where a closed month is not charged as it was."""
    without: set[str] = set()
    if kept is not None:
        stand = contract_stand(kept)
        if stand is None:
            # The release that closed it left out whom any policy of the file has among its overhead teams.
            without.update(*(policy.overhead_teams for policy in book.file.policies))
    lines = _commitment_lines(reporting, month, book, stand, without)
    cells = reporting.ledger.cells(scope, month.window)
    account = charges(cells, book, reporting.currency, lines)
    if kept is not None and account.digest != kept.digest:
        changed = set(kept.amounts) ^ set(_amounts(account))
        teams = ", ".join(sorted({team for team, _, _ in changed})) or "no team in sum"
        raise ChargesChanged(str(month), f"digest {account.digest}, then {kept.digest}: {teams}")
    return account


def _drawdown(
    reporting: ReportService, month: Month, book: PolicyBook, stand: ContractStand | None = None
) -> ContractDrawdown | None:
    """What the contracts of a policy made of the month; None without any."""
    if book.contracts is None:
        return None
    return CommitmentReporting(reporting.ledger, EVERYTHING).drawdown(book.contracts, month.window, stand)


def open_before(reporting: ReportService, month: Month, book: PolicyBook) -> tuple[str, ...]:
    """Why ``month`` should not be closed yet under the contracts of ``book``: a sentence for each earlier
    month that is open, and of which they were drawn."""
    if book.contracts is None:
        return ()
    first_ms = reads_from(schedules_of(book.contracts.in_force), month.window)
    if first_ms == month.window.start_ms:
        return ()
    before = reporting.ledger.windows(Window(first_ms, month.window.start_ms), scope=EVERYTHING)
    months = {Month.of(each.window.start_ms) for each in before if each.state is not LedgerState.CLOSED}
    return tuple(
        f"contracts: {each} is open, and decides what is left for {month}" for each in sorted(months)
    )


def charges_beside(reporting: ReportService, month: Month, book: PolicyBook) -> Hashable:
    """What charges of an open month are made from, besides its report: under contracts also what was used in
    months before, since the first hour that may matter for what was left of them. Those of a closed month
    stay as they are."""
    if book.contracts is None or reporting.ledger.month_charges(month) is not None:
        return None
    first_ms = reads_from(schedules_of(book.contracts.in_force), month.window)
    span = Window(first_ms, month.window.end_ms)
    return reporting.ledger.extent(scope=EVERYTHING), reporting.stand(EVERYTHING, span).digest


def _contract_views(
    reporting: ReportService, month: Month, book: PolicyBook, stand: ContractStand | None
) -> Mapping[str, StatementContracts] | None:
    found = _drawdown(reporting, month, book, stand)
    if found is None:
        return None
    return {
        each.team: StatementContracts(
            each.list_nano,
            each.contracted_nano,
            each.effective_nano,
            each.unused_nano,
            each.unpriced_board_ms,
        )
        for each in team_views(found.entries)
    }


def _commitment_lines(
    reporting: ReportService,
    month: Month,
    book: PolicyBook,
    stand: ContractStand | None = None,
    without: Collection[str] = (),
) -> tuple[ChargeLine, ...]:
    found = _drawdown(reporting, month, book, stand)
    if found is None or book.contracts is None:
        return ()
    return commitment_lines(month, found.entries, book.contracts, book, without)


def _amounts(account: ChargeAccount) -> tuple[tuple[str, int, int], ...]:
    return tuple(
        (team, sum(each.board_ms for each in kinds.values()), sum(each.nano for each in kinds.values()))
        for team, kinds in account.by_team().items()
    )


def close_month(
    reporting: ReportService,
    month: Month,
    book: PolicyBook,
    *,
    author: str,
    min_coverage: Fraction,
    reason: str | None,
) -> None:
    """Close ``month`` for good, with what teams are charged for it under ``book``; a closed one stays as it
    is. Raises as ``Ledger.close_month``, and as ``preview_charges``; LedgerConflict where the month keeps
    being written to."""
    ledger = reporting.ledger
    for left in reversed(range(_CLOSE_TRIES)):
        if ledger.month(month).state is LedgerState.CLOSED:
            return
        state = ledger.month_state(month)
        check_chargeable(reporting, EVERYTHING, month, [book])
        book.check_teams(known_teams(ledger, reporting.accounts.keys(), month))
        stand = None
        if book.contracts is not None:
            stand = CommitmentReporting(ledger, EVERYTHING).stand(book.contracts, month)
        account = month_account(reporting, EVERYTHING, month, book, None, stand)
        weights = {team: str(weight) for team, weight in sorted(book.team_quotas.items())}
        kept = MonthCharges(
            policy_name=book.name,
            policy=book.text,
            files=files_kept(book, stand),
            weights=json.dumps(weights, ensure_ascii=False),
            currency=account.currency,
            digest=account.digest,
            amounts=_amounts(account),
        )
        try:
            ledger.close_month(
                month,
                author=author,
                min_coverage=min_coverage,
                reason=reason,
                charges=kept,
                state=state,
                more=open_before(reporting, month, book),
            )
        except LedgerConflict:
            if not left:
                raise


_CLOSE_TRIES = 3


def _summary(
    reporting: ReportService,
    book: PolicyBook,
    account: ChargeAccount,
    report: MonthReport,
    cost_centres: Mapping[str, str | None],
    kept: MonthCharges | None,
) -> StatementSummary:
    month, capacity = report.month, account.capacity
    if account.currency == reporting.currency:
        whole = _capacity(reporting.ledger, EVERYTHING, month)
        capacity = ChargeAmount(whole.board_ms, whole.nano)
    adjustments = reporting.month_adjustments(month)
    remarks = unmatched_quotas(account, book, month.window)
    rate = adjustment_rate(book, reporting.currency, month)
    summary = build_summary(account, capacity, book.title, report, adjustments, cost_centres, remarks, rate)
    return replace(summary, as_closed=kept is not None)


@dataclass(frozen=True)
class PolicyCharging:
    """What teams pay under ``book``, beside a month's report."""

    book: PolicyBook

    @cached_property
    def digest(self) -> str:
        return policy_digest(self.book)

    def beside(self, reporting: ReportService, month: Month) -> Hashable:
        """See MonthCharging."""
        return charges_beside(reporting, month, self.book)

    def blockers(self, reporting: ReportService, month: Month) -> tuple[str, ...]:
        """See MonthCharging."""
        return open_before(reporting, month, self.book)

    def summary(self, reporting: ReportService, month: Month, report: MonthReport) -> StatementSummary | None:
        """See MonthCharging. Raises ConfigError, InputError and ChargesChanged."""
        book, kept = policy_in_force(reporting.ledger, month, self.book)
        if book.is_plain:
            return None
        check_chargeable(reporting, EVERYTHING, month, [book])
        centres = {team: account.cost_centre for team, account in reporting.accounts.items()}
        if kept is None:
            book.check_teams(known_teams(reporting.ledger, centres.keys(), month))
        account = month_account(reporting, EVERYTHING, month, book, kept)
        return _summary(reporting, book, account, report, centres, kept)


def kept_statements(
    reporting: ReportService, month: Month, book: PolicyBook
) -> ReportAnswer[MonthStatements] | None:
    """The statements of every team that is known in the month, by name (no team comes last), and their
    summary, kept until the ledger changes; None for a month of which the ledger holds nothing.

    Idle time cannot be charged without all who could bear it, so this is of all teams whoever asks: who may
    see some of them only is given these alone. Raises as ``preview_charges``, and ConfigError for a policy
    that names a team that is not known.
    """
    if not reporting.stand(EVERYTHING, month.window).windows:
        return None
    closed_by, kept = policy_in_force(reporting.ledger, month, book)
    check_chargeable(reporting, EVERYTHING, month, [closed_by])
    centres = {team: account.cost_centre for team, account in reporting.accounts.items()}

    def read() -> MonthStatements:
        known = known_teams(reporting.ledger, centres.keys(), month)
        if kept is None:
            book.check_teams(known)
        everyone = sorted(known, key=lambda name: (name == NO_TEAM, name))
        return _statements(reporting, EVERYTHING, month, book, centres, everyone)

    return reporting.steady(
        EVERYTHING,
        month.window,
        read,
        asked=("statements", policy_digest(book)),
        beside=lambda: (
            reporting.beside_month(EVERYTHING, month),
            charges_beside(reporting, month, book),
        ),
    )


def policy_digest(book: PolicyBook) -> str:
    """Of all that a policy says, and of the weights beside it."""
    weights = sorted(book.team_quotas.items())
    return hashlib.sha256(repr((book.name, book.file, book.contracts, weights)).encode()).hexdigest()


def _prices(ledger: Ledger, scope: Scope, month: Month) -> dict[str, list[StatementPrice]]:
    """What each team held at which prices."""
    dims = ("team", "model", "capacity_type", "rate_id")
    held = ledger.aggregate(scope, month.window, dims, filters={"bucket": (str(Bucket.HELD),)})
    held = held[held["rate_id"] != ""]
    rates = ledger.rates(set(held["rate_id"]))
    found: dict[str, list[StatementPrice]] = defaultdict(list)
    columns = (*dims, "first_ms", "last_ms", "board_ms", "nano")
    for team, model, capacity_type, rate_id, first_ms, last_ms, board_ms, nano in zip(
        *(held[name] for name in columns), strict=True
    ):
        rate = rates[rate_id]
        price = StatementPrice(
            model=model,
            capacity_type=capacity_type,
            rate_id=rate_id,
            price_nano=rate.nano_per_board_hour,
            list_price_nano=rate.list_nano_per_board_hour,
            discount=rate.discount,
            source=rate.source,
            held=Window(int(first_ms), int(last_ms)),
            board_ms=int(board_ms),
            nano=int(nano),
        )
        found[team].append(price)
    return found


def _noted(cells: Iterable[CapacityCell], windows: dict[str, set[Window]]) -> Iterator[CapacityCell]:
    """``cells`` as they pass, with the windows of each model's GPUs noted."""
    for cell in cells:
        windows[cell.model].add(cell.window)
        yield cell


def _length(windows: Iterable[Window]) -> int:
    """How long ``windows``, which may overlap, last together."""
    length_ms = reached_ms = 0
    for window in sorted(windows):
        length_ms += max(0, window.end_ms - max(window.start_ms, reached_ms))
        reached_ms = max(reached_ms, window.end_ms)
    return length_ms


def _rules(ledger: Ledger, scope: Scope, month: Month) -> dict[str, list[StatementRule]]:
    """Which rules of the team rules gave each team what it held."""
    held = ledger.aggregate(
        scope, month.window, ("team", "team_rule"), filters={"bucket": (str(Bucket.HELD),)}
    )
    found: dict[str, list[StatementRule]] = defaultdict(list)
    columns = ("team", "team_rule", "board_ms", "nano", "unpriced_ms")
    for team, rule, board_ms, nano, unpriced_ms in zip(*(held[name] for name in columns), strict=True):
        amount = None if pd.isna(nano) else int(nano)
        found[team].append(StatementRule(rule or None, int(board_ms), amount, int(unpriced_ms)))
    return found


def check_chargeable(
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
