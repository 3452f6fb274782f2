"""What charge policies and contracts make of the ledger's lines. Nothing is written.

``preview_charges``: a month under policies that are not in force, read once, charged once for each policy.
``team_statements``: what teams pay for a month under one policy, all from one state of the ledger;
``kept_statements``: the same of every team, made once for all who ask.
``QuotaReader``: the quotas that a source saw, as quotas of a policy; and who waited for how many GPUs.

``CommitmentReporting``: use by the hour, and what contracts made of it. Days that were added up have no hours
any more, so months that were rolled up are refused; so is a ledger of windows longer than an hour. The
window is cut to the time that the ledger has: what has not happened yet is not unused.
"""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from math import isnan
from typing import Any

import pandas as pd

from gpucost.attribution.frames import ClusterFrames
from gpucost.attribution.teams import CONDITIONS, TeamRules
from gpucost.charges.capacity_cells import CapacityCell
from gpucost.charges.charge_account import charges, charges_by_policy
from gpucost.charges.commitment_drawdown import UsageCell, reads_from, schedules_of
from gpucost.charges.commitment_report import CommitmentReport, UsageGaps, report_commitments
from gpucost.charges.contract_terms import ContractBook
from gpucost.charges.policy_file import PolicyBook
from gpucost.charges.quota_history import (
    CohortSpan,
    FlavorKey,
    QuotaHistory,
    QuotaSpan,
    UnitModel,
    quota_file,
)
from gpucost.contract.frames import DEMAND
from gpucost.domain.buckets import Bucket, Waste
from gpucost.domain.errors import ErrorRemark, InputError
from gpucost.domain.gpu import ResourceCatalog, ShareBasis, parse_product
from gpucost.domain.money import round_half_even
from gpucost.domain.rates import Rate
from gpucost.domain.scope import EVERYTHING, Scope
from gpucost.domain.time import DAY_MS, HOUR_MS, Month, Window
from gpucost.ledger import Ledger
from gpucost.reports.charges.charge_previews import (
    ChargebackPreview,
    PreviewAmount,
    PreviewGrouping,
    WaitingDemand,
    WaitingTime,
    build_preview,
    idle_quotas,
    preview_table,
)
from gpucost.reports.charges.charge_statements import (
    StatementPrice,
    StatementRule,
    TeamStatement,
    build_statements,
)
from gpucost.reports.render.tables import ReportTable
from gpucost.service.reporting.month_closing import known_teams
from gpucost.service.reporting.report_service import ReportAnswer, ReportService
from gpucost.telemetry.interval_source import IntervalSource


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
    _check_chargeable(reporting, scope, month, books)

    def read() -> ChargebackPreview:
        cells = reporting.ledger.cells(scope, month.window)
        windows: dict[str, set[Window]] = defaultdict(set)
        accounts = charges_by_policy(_noted(cells, windows), books, reporting.currency)
        names = [(book.title, book.name) for book in books]
        own = all(account.currency == reporting.currency for account in accounts)
        whole = _capacity(reporting.ledger, scope, month) if own else None
        observed = {model: _length(spans) for model, spans in windows.items()}
        quotas = [
            quota
            for n, (account, book) in enumerate(zip(accounts, books, strict=True))
            for quota in idle_quotas(n, account, book, observed, waiting)
        ]
        missing = () if waiting is None else waiting.missing
        return build_preview(month, names, accounts, whole, cost_centres, grouping, quotas, missing)

    return reporting.steady(scope, month.window, read).report


def charge_table(
    reporting: ReportService,
    scope: Scope,
    month: Month,
    books: Sequence[PolicyBook],
    cost_centres: Mapping[str, str | None],
) -> ReportTable:
    """All charges of the month under each of ``books``, by day. Raises as ``preview_charges``."""
    _check_chargeable(reporting, scope, month, books)

    def read() -> ReportTable:
        accounts = charges_by_policy(reporting.ledger.cells(scope, month.window), books, reporting.currency)
        return preview_table(month, [(book.title, book.name) for book in books], accounts, cost_centres)

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
) -> tuple[TeamStatement, ...]:
    account = charges(reporting.ledger.cells(scope, month.window), book, reporting.currency)
    answer = reporting.month(scope, month)
    if answer is None:
        return ()
    prices, rules = _prices(reporting.ledger, scope, month), _rules(reporting.ledger, scope, month)
    return build_statements(teams, book.title, account, answer.report, cost_centres, prices, rules)


def kept_statements(
    reporting: ReportService, month: Month, book: PolicyBook
) -> ReportAnswer[tuple[TeamStatement, ...]] | None:
    """The statements of every team that is known in the month, by name, kept until the ledger changes; None
    for a month of which the ledger holds nothing.

    Idle time cannot be charged without all who could bear it, so this is of all teams whoever asks: who may
    see some of them only is given these alone. Raises as ``preview_charges``, and ConfigError for a policy
    that names a team that is not known.
    """
    if not reporting.stand(EVERYTHING, month.window).windows:
        return None
    _check_chargeable(reporting, EVERYTHING, month, [book])
    centres = {team: account.cost_centre for team, account in reporting.accounts.items()}

    def read() -> tuple[TeamStatement, ...]:
        known = known_teams(reporting.ledger, centres.keys(), month)
        book.check_teams(known)
        return _statements(reporting, EVERYTHING, month, book, centres, sorted(known))

    return reporting.steady(
        EVERYTHING,
        month.window,
        read,
        asked=("statements", policy_digest(book)),
        beside=lambda: reporting.beside_month(EVERYTHING, month),
    )


def policy_digest(book: PolicyBook) -> str:
    """Of all that a policy says, and of the weights beside it."""
    weights = sorted(book.team_quotas.items())
    return hashlib.sha256(repr((book.name, book.file, weights)).encode()).hexdigest()


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


def waiting_time(
    source: IntervalSource, scope: Scope, month: Month, teams: TeamRules, basis: ShareBasis
) -> WaitingTime:
    """Who waited in the month for how many GPUs, as far as ``source`` knows. Raises SourceError.

    A unit is the part of a GPU that the products say that would have done; where these differ, or are
    replicas of a GPU, whose number nothing says, the time is left out, and named.
    """
    sums: dict[tuple[str, str, frozenset[str]], Fraction] = defaultdict(Fraction)
    missing: dict[str, None] = {}
    for cluster in source.clusters():
        if scope.clusters is not None and cluster not in scope.clusters:
            continue
        known, days = _days_of(source, cluster, month, (DEMAND.name,))
        if known != month.window:
            missing[f"cluster {cluster}: the source holds {known or 'nothing'} of the month"] = None
        for day in days:
            if DEMAND.name in day.lacks:
                missing[f"cluster {cluster}: {day.lacks[DEMAND.name]}"] = None
        for row in _rows([day.demand for day in days]):
            share, models = _asked(row["resource"], row["products"], basis)
            if share is None:
                why = f"jobs waited for {row['resource']}, and nothing says what part of a GPU that is"
                missing[f"cluster {cluster}: {why}"] = None
                continue
            holder = {name: str(row.get(name, "")) for name in CONDITIONS}
            team = teams.team_of(holder, row["start_ms"])
            units = row["pods"] * row["units"] * (row["end_ms"] - row["start_ms"])
            sums[team, row["cluster_queue"], models] += units * share
    return WaitingTime(
        tuple(WaitingDemand(*key, int(board_ms)) for key, board_ms in sums.items()), tuple(missing)
    )


def _asked(resource: str, products: str, basis: ShareBasis) -> tuple[Fraction | None, frozenset[str]]:
    """The part of a GPU that a unit is, and the models that would do."""
    catalog = ResourceCatalog()
    if not products:
        return catalog.shares.get(resource), frozenset()
    shares: set[Fraction | None] = set()
    for product in products.split("|"):
        try:
            shares.add(catalog.unit(resource, product, basis=basis).share)
        except InputError:
            shares.add(None)
    models = frozenset(parse_product(product).model for product in products.split("|"))
    return (shares.pop() if len(shares) == 1 else None), models


def _days_of(
    source: IntervalSource, cluster: str, month: Month, only: tuple[str, ...]
) -> tuple[Window | None, list[ClusterFrames]]:
    """The part of the month that the source has, and its days: a source looks at longer times in larger
    steps."""
    covered = source.covered(cluster)
    known = None if covered is None else covered.intersect(month.window)
    days = [] if known is None else known.split(DAY_MS)
    return known, [source.history(cluster, day, only) for day in days]


@dataclass(frozen=True)
class QuotaReader:
    """What ``source`` saw of queues in a month.

    What a unit of a flavor is (GPU model, and share of a GPU) is what the ledger's lines say of the pods that
    held it; ``models`` are flavors whose model a person named.
    """

    source: IntervalSource
    ledger: Ledger
    scope: Scope
    month: Month
    models: Mapping[str, str] = field(default_factory=dict)

    def queues(self) -> tuple[str, ...]:
        """The ClusterQueues with quota of GPUs in the month, sorted."""
        return tuple(sorted({span.queue for span in self._spans}))

    def cohorts(self) -> tuple[str, ...]:
        """The cohorts with quota of their own, sorted."""
        return tuple(sorted({span.cohort for span in self._cohorts if span.flavor}))

    def text(self, teams: Mapping[str, str], cohort_teams: Mapping[str, str]) -> str:
        """The quotas of the month as a file of quotas; ``teams`` pay for the queues. Raises InputError for a
        queue without one."""
        lacking = [queue for queue in self.queues() if queue not in teams]
        if lacking:
            allowed = f"QUEUE=TEAM for each of: {', '.join(lacking)} (no team rule is about the queue alone)"
            raise InputError("--team", ErrorRemark("missing"), allowed)
        history = QuotaHistory(
            window=self.month.window,
            spans=self._spans,
            cohorts=self._cohorts,
            units=self._units,
            observed=self._observed,
            teams=teams,
            cohort_teams=cohort_teams,
            remarks=tuple(self._remarks()),
            cells=self._cells(),
        )
        return quota_file(history)

    @cached_property
    def _frames(self) -> Mapping[str, tuple[Window | None, list[ClusterFrames]]]:
        return {
            cluster: _days_of(self.source, cluster, self.month, ("quotas", "cohorts", "observed"))
            for cluster in self.source.clusters()
            if self.scope.clusters is None or cluster in self.scope.clusters
        }

    @cached_property
    def _spans(self) -> list[QuotaSpan]:
        found = []
        has_tree = {span.cluster for span in self._cohorts}
        for _, days in self._frames.values():
            for row in _rows([day.quotas for day in days]):
                nominal = _units_of(row["nominal"])
                if row["scheduler"] != "kueue" or nominal is None:
                    continue
                is_told = row["cluster"] in has_tree and row["own_cohort"]
                found.append(
                    QuotaSpan(
                        cluster=row["cluster"],
                        queue=row["queue"],
                        cohort=row["own_cohort"] if is_told else row["cohort"],
                        flavor=row["flavor"],
                        resource=row["resource"],
                        start_ms=row["start_ms"],
                        end_ms=row["end_ms"],
                        nominal=nominal,
                        lending_limit=_units_of(row["lending_limit"]),
                        used=_units_of(row["used"]),
                    )
                )
        return found

    @cached_property
    def _cohorts(self) -> list[CohortSpan]:
        amounts = ("nominal", "lending_limit")
        return [
            CohortSpan(**{**row, **{name: _units_of(row[name]) for name in amounts}})
            for _, days in self._frames.values()
            for row in _rows([day.cohorts for day in days])
        ]

    @cached_property
    def _observed(self) -> Mapping[str, Sequence[Window]]:
        return {
            cluster: [
                Window(int(start), int(end))
                for day in days
                for start, end in zip(day.observed["start_ms"], day.observed["end_ms"], strict=True)
            ]
            for cluster, (_, days) in self._frames.items()
        }

    @cached_property
    def _units(self) -> Mapping[FlavorKey, frozenset[UnitModel]]:
        dims = ("cluster", "flavor", "resource", "model", "share_num", "share_den")
        held = {"bucket": (str(Bucket.HELD),)}
        rows = self.ledger.aggregate(self.scope, self.month.window, dims, filters=held)
        found: dict[FlavorKey, set[UnitModel]] = defaultdict(set)
        for cluster, flavor, resource, model, num, den in zip(*(rows[name] for name in dims), strict=True):
            found[cluster, flavor, resource].add(UnitModel(model, Fraction(int(num), int(den))))
        whole = ResourceCatalog().shares
        keys = {(each.cluster, each.flavor, each.resource) for each in self._spans}
        for key in keys | {(each.cluster, each.flavor, each.resource) for each in self._cohorts}:
            named = self.models.get(key[1])
            if named is not None:
                shares = {unit.share for unit in found[key]}
                if not shares and key[2] in whole:
                    shares = {whole[key[2]]}
                found[key] = {UnitModel(named, share) for share in shares}
        return {key: frozenset(units) for key, units in found.items()}

    @cached_property
    def _folded(self) -> int:
        """Days whose hours were added up: when pods held something in them is not known any more."""
        return len(self.ledger.folded_days(self.scope, self.month.window))

    def _cells(self) -> Iterable[CapacityCell]:
        """What pods held in the month, where that is of use."""
        if self._folded or not any(span.used for span in self._spans):
            return ()
        return self.ledger.cells(self.scope, self.month.window)

    def _remarks(self) -> Iterator[str]:
        yield (
            f"Of {self.month}, from {self.source.name}: a change is dated by the minute in which the source "
            "first showed it, up to a minute and one scrape after it was made."
        )
        if self._folded:
            yield f"No reservations: the ledger has {self._folded} days of this month without their hours."
        for cluster, (known, days) in self._frames.items():
            name = json.dumps(cluster, ensure_ascii=False)
            if known != self.month.window:
                held = f"the source holds {known or 'nothing'} of the month"
                yield f"Cluster {name}: {held}; no quota is known before or after."
            if any((day.quotas["scheduler"] != "kueue").any() for day in days):
                yield (
                    f"Left out: the queues of Volcano in cluster {name}: their quota is of no model, and "
                    "what is held counts by ClusterQueue."
                )
            other = any((day.quotas["own_cohort"] != day.quotas["cohort"]).any() for day in days)
            if other and cluster not in {each.cluster for each in self._cohorts}:
                yield (
                    f"Cluster {name}: the source does not say which cohorts stand below others; each queue "
                    "is in the root of its tree."
                )


def _rows(frames: Iterable[pd.DataFrame]) -> Iterator[dict[str, Any]]:
    for frame in frames:
        names = [str(name) for name in frame.columns]
        for values in zip(*(frame[name].tolist() for name in names), strict=True):
            yield dict(zip(names, values, strict=True))


def _units_of(amount: float) -> Fraction | None:
    return None if isnan(amount) else Fraction(amount)


def _rules(ledger: Ledger, scope: Scope, month: Month) -> dict[str, list[StatementRule]]:
    """Which rules of the team rules gave each team what it held."""
    held = ledger.aggregate(
        scope, month.window, ("team", "team_rule"), filters={"bucket": (str(Bucket.HELD),)}
    )
    found: dict[str, list[StatementRule]] = defaultdict(list)
    columns = ("team", "team_rule", "board_ms", "nano", "unpriced_ms")
    for team, rule, board_ms, nano, unpriced_ms in zip(*(held[name] for name in columns), strict=True):
        amount = 0 if pd.isna(nano) else int(nano)
        found[team].append(StatementRule(rule or None, int(board_ms), amount, int(unpriced_ms)))
    return found


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
