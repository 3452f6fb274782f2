"""From the ledger to FOCUS: a month read a day at a time, so that memory is that of its largest day.

``FocusExports`` writes one dataset of a month for whoever may see a scope. Where the ledger was written to
meanwhile, the file is made anew; of a closed month it is the same bytes each time.
"""

from __future__ import annotations

from bisect import insort
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import IO, Any

import pandas as pd

from gpucost.charges.commitment_drawdown import DrawKind, schedules_of
from gpucost.charges.contract_terms import ContractBook, ContractTerms
from gpucost.domain.buckets import Bucket, Waste
from gpucost.domain.errors import InputError, LedgerUnavailable
from gpucost.domain.money import plain
from gpucost.domain.rates import Rate
from gpucost.domain.scope import EVERYTHING, Scope
from gpucost.domain.time import DAY_MS, HOUR_MS, SECOND_MS, Month, Window
from gpucost.ledger.ledger import Ledger
from gpucost.reports.focus.charge_corrections import (
    CorrectionStyle,
    UnusedCommitment,
    correction_rows,
    purchase_rows,
    unused_rows,
)
from gpucost.reports.focus.charge_rows import (
    CellKey,
    CommitmentPortion,
    CommitmentTerms,
    HeldUsage,
    HolderKey,
    PlaceKey,
    UsageStep,
    WorkloadKey,
    method_of,
    split_rows,
)
from gpucost.reports.focus.focus_columns import (
    FocusBatch,
    FocusDataset,
    FocusVersion,
    columns_of,
)
from gpucost.reports.focus.focus_files import csv_parts, write_parquet
from gpucost.reports.focus.supporting_datasets import (
    BillingMonth,
    InvoiceTotals,
    commitment_dataset,
    metadata_document,
    period_dataset,
)
from gpucost.service.reporting.commitment_reporting import CommitmentReporting, billed_part
from gpucost.service.reporting.focus_corrections import MonthCorrections

_PLACE = (
    *("cluster", "node", "model", "instance_type", "capacity_type", "region", "zone", "pool", "rate_id"),
)
_UNIT = ("resource", "profile", "basis", "share_num", "share_den")
_TEAM = ("bucket", "team")
_JOB = (*_TEAM, "namespace", "job_kind", "job", "job_uid")
_MORE = ("cluster_queue", "queue", "user", "project", "workload")
_SUMS = ("board_ms", "nano", "unpriced_ms", "busy_ms", "observed_ms", "first_ms", "last_ms")
_CAPACITY = tuple(str(bucket) for bucket in Bucket if bucket.is_capacity)
_OF_COSTS = frozenset((FocusDataset.COST_AND_USAGE, FocusDataset.INVOICE_DETAIL))
_TRIES = 3
_MOST_NAMED = 5


@dataclass(frozen=True, slots=True)
class FocusRequest:
    """What is asked for. ``by`` is job or team, ``grain`` hour or day, ``unpriced`` refuse or null: whether
    GPU time without a price is refused, or has rows without costs."""

    month: Month
    version: FocusVersion = FocusVersion.V1_3
    by: str = "job"
    grain: str = "day"
    corrections: CorrectionStyle = CorrectionStyle.DELTA
    unpriced: str = "refuse"

    def facts(self) -> dict[str, object]:
        """As metadata."""
        return {
            "x_Month": str(self.month),
            "x_By": self.by,
            "x_Grain": self.grain,
            "x_Corrections": self.corrections.value,
            "x_Unpriced": self.unpriced,
        }


@dataclass(frozen=True)
class FocusExports:
    """Exports of one ledger for ``scope``. ``contracts`` are None where there are none."""

    ledger: Ledger
    scope: Scope
    code_version: str
    contracts: ContractBook | None = None

    def write(
        self,
        request: FocusRequest,
        dataset: FocusDataset,
        format_: str,
        target: IO[bytes],
        *,
        author: str = "",
    ) -> None:
        """One dataset as ``csv`` or ``parquet`` to ``target``, which is empty and can be sought. The audit
        trail says that ``author`` had it.

        Raises InputError for a dataset that the version lacks, a month of which the ledger holds nothing,
        GPU time without a price, and hours of a month whose lines were added up by day; LedgerUnavailable
        where the ledger keeps being written to.
        """
        self.check(request, dataset)
        if author:
            self._note(request, dataset, format_, author)
        for _ in range(_TRIES):
            state = self.ledger.month_state(request.month), self.ledger.mark()
            made = _MonthExport(self, request)
            columns = columns_of(dataset, request.version)
            if format_ == "csv":
                for part in csv_parts(columns, made.batches(dataset)):
                    target.write(part)
            else:
                facts = {name: str(value) for name, value in request.facts().items()}
                facts |= {"x_Dataset": dataset.value, "x_FocusVersion": request.version.value}
                write_parquet(columns, made.batches(dataset), target, facts)
            same = self.ledger.mark() == state[1] or self.ledger.month_state(request.month) == state[0]
            if same:
                return
            target.seek(0)
            target.truncate()
        raise LedgerUnavailable(f"{request.month} is being written to; try again")

    def metadata(self, request: FocusRequest) -> dict[str, object]:
        """The metadata of all datasets of the version. Raises as ``write``."""
        self.check(request, FocusDataset.COST_AND_USAGE)
        period = self.period(request.month)
        facts = request.facts()
        if self.scope.teams is not None:
            facts["x_Teams"] = ",".join(sorted(self.scope.teams))
        if self.scope.clusters is not None:
            facts["x_Clusters"] = ",".join(sorted(self.scope.clusters))
        return metadata_document(request.version, period, self.code_version, facts)

    def check(self, request: FocusRequest, dataset: FocusDataset) -> None:
        """Raises InputError as ``write``, before anything is written."""
        if dataset.since > request.version:
            allowed = f"a version from {dataset.since} on, which has {dataset}"
            raise InputError("version", request.version.value, allowed)
        window = request.month.window
        if not self.ledger.windows(window, scope=self.scope):
            raise InputError("month", str(request.month), "a month of which the ledger holds something")
        if dataset is FocusDataset.CONTRACT_COMMITMENT and self.scope.clusters is not None:
            raise InputError("dataset", dataset.value, "CostAndUsage: contracts are of all clusters")
        if request.unpriced == "refuse" and dataset in _OF_COSTS:
            self._refuse_unpriced(request)

    def _note(self, request: FocusRequest, dataset: FocusDataset, format_: str, author: str) -> None:
        seen = (
            f"{name} {', '.join(sorted(names))}"
            for name, names in (("teams", self.scope.teams), ("clusters", self.scope.clusters))
            if names is not None
        )
        asked = f"FOCUS {request.version}, by {request.by} and {request.grain}, {format_}"
        self.ledger.note(author, "focus export", f"{request.month} {dataset}", "; ".join((asked, *seen)))

    def _refuse_unpriced(self, request: FocusRequest) -> None:
        dims = ("model", "instance_type")
        found = self.ledger.aggregate(self.scope, request.month.window, dims, filters={"bucket": _CAPACITY})
        found = found[found["unpriced_ms"] > 0]
        if found.empty:
            return
        names = [
            f"{model or 'unknown model'}{f' ({kind})' if kind else ''}: {plain(ms * 10**9 // HOUR_MS, 3)}"
            for model, kind, ms in zip(
                found["model"], found["instance_type"], found["unpriced_ms"], strict=True
            )
        ]
        shown = ", ".join(names[:_MOST_NAMED]) + (" and more" if len(names) > _MOST_NAMED else "")
        allowed = (
            f"a month in which every GPU has a price; GPU-hours without one: {shown}. FOCUS allows no cost "
            "to be null: add the price and ingest again, or ask for unpriced=null"
        )
        raise InputError("month", str(request.month), allowed)

    def period(self, month: Month) -> BillingMonth:
        info = self.ledger.month(month)
        written = [each.written_at_ms for each in self.ledger.windows(month.window, scope=self.scope)]
        return BillingMonth(month, info.closed_at_ms, max(written, default=month.window.start_ms))


@dataclass
class _MonthExport:
    """One run over a month."""

    exports: FocusExports
    request: FocusRequest
    rates: dict[str, Rate] = field(default_factory=dict)

    @property
    def month(self) -> Window:
        return self.request.month.window

    @cached_property
    def currency(self) -> str:
        return self.exports.ledger.currency or "XXX"

    @property
    def one_team(self) -> bool:
        teams = self.exports.scope.teams
        return teams is not None and len(teams) == 1

    def batches(self, dataset: FocusDataset) -> Iterator[FocusBatch]:
        exports = self.exports
        if dataset is FocusDataset.COST_AND_USAGE:
            yield from self.cost_and_usage()
        elif dataset is FocusDataset.CONTRACT_COMMITMENT:
            rows = commitment_dataset(self._visible_schedules(), self.currency, self.month.end_ms)
            yield FocusBatch.of(rows)
        elif dataset is FocusDataset.BILLING_PERIOD:
            extent = exports.ledger.extent(scope=exports.scope)
            month = Month.of(extent.start_ms) if extent is not None else self.request.month
            months = []
            while month <= self.request.month:
                months.append(exports.period(month))
                month = month.next()
            yield FocusBatch.of(period_dataset(months))
        else:
            totals = InvoiceTotals()
            for batch in self.cost_and_usage():
                totals.add(batch)
            period = exports.period(self.request.month)
            yield FocusBatch.of(totals.dataset(period, self.currency))

    def cost_and_usage(self) -> Iterator[FocusBatch]:
        """Use by hour or day, then corrections, then what commitments cost beside use."""
        step_ms = HOUR_MS if self.request.grain == "hour" else DAY_MS
        portions = self._portions(step_ms)
        waits = self._waits()
        confidence = self._confidence(step_ms)
        for day_ms in sorted({step // DAY_MS * DAY_MS for step in confidence}):
            day = Window(day_ms, day_ms + DAY_MS)
            yield from self._day(day, step_ms, portions, waits, confidence)
        rows = correction_rows(
            MonthCorrections(self.exports.ledger, self.exports.scope, self.request.month).found(),
            self.request.corrections,
            self.month,
            self.currency,
            invoices=self.one_team,
        )
        if self.exports.contracts is not None and self.exports.scope.clusters is None:
            rows += self._beside_use(step_ms)
        if rows:
            yield FocusBatch.of(rows)

    def _day(
        self,
        day: Window,
        step_ms: int,
        portions: Mapping[int, Mapping[CellKey, Sequence[CommitmentPortion]]] | None,
        waits: Mapping[WorkloadKey, Sequence[tuple[int, float]]],
        confidence: Mapping[int, Mapping[str, float]],
    ) -> Iterator[FocusBatch]:
        exports, by_job = self.exports, self.request.by == "job"
        ledger, scope = exports.ledger, exports.scope
        holder = _JOB if by_job else _TEAM
        dims = (*_PLACE, *_UNIT, *holder, *(_MORE if by_job else ()))
        whole = {"bucket": _CAPACITY}
        lines = ledger.aggregate(scope, day, dims, filters=whole, step_ms=step_ms)
        if lines.empty:
            return
        waste = None
        counts = ledger.assessed(day, scope=scope)
        if counts.final or counts.provisional:
            waste = ledger.waste(scope, day, (*_PLACE, *holder), step_ms=step_ms)
        missing = set(lines["rate_id"].unique()) - {""} - self.rates.keys()
        self.rates |= ledger.rates(missing)
        usage = _usage_of(lines, by_job=by_job)
        if waste is not None:
            _add_waste(usage, waste, holder)
        for start_ms in sorted(usage):
            period = Window(start_ms, start_ms + step_ms)
            own = None if portions is None else portions.get(start_ms, {})
            step = UsageStep(
                period=period,
                month=self.month,
                currency=self.currency,
                usage=usage[start_ms],
                rates=self.rates,
                confidence=confidence.get(start_ms, {}),
                waits=waits if by_job else {},
                portions=own,
                terms=self._terms,
                invoices=self.one_team,
            )
            yield split_rows(step)

    def _confidence(self, step_ms: int) -> dict[int, dict[str, float]]:
        """Step -> cluster -> the observed part of its windows."""
        observed: dict[int, dict[str, list[int]]] = defaultdict(lambda: defaultdict(lambda: [0, 0]))
        for info in self.exports.ledger.windows(self.month, scope=self.exports.scope):
            found = observed[info.window.start_ms // step_ms * step_ms][info.cluster]
            found[0] += info.observed_ms
            found[1] += info.window.length_ms
        return {
            step: {cluster: round(seen / whole, 6) for cluster, (seen, whole) in clusters.items()}
            for step, clusters in observed.items()
        }

    def _waits(self) -> dict[WorkloadKey, list[tuple[int, float]]]:
        """Waits that ended in a start, in the order of starts: the advisor recorded when it was asked and
        when the job started."""
        found: dict[WorkloadKey, list[tuple[int, float]]] = defaultdict(list)
        for cluster in self.exports.ledger.clusters(scope=self.exports.scope):
            for each in self.exports.ledger.foretold(cluster):
                if each.started_ms is not None:
                    hours = max(0, each.started_ms - each.asked_ms) / HOUR_MS
                    # Times of pods are whole seconds.
                    start = each.started_ms // SECOND_MS * SECOND_MS, round(hours, 6)
                    insort(found[cluster, each.namespace, each.name, each.team], start)
        return found

    # --- commitments -----------------------------------------------------------------------------------

    @cached_property
    def _drawn(self) -> Any:
        contracts = self.exports.contracts
        if contracts is None:
            return None
        return CommitmentReporting(self.exports.ledger, EVERYTHING).drawdown(contracts, self.month)

    @cached_property
    def _terms(self) -> dict[str, CommitmentTerms]:
        contracts = self.exports.contracts
        found = () if contracts is None else contracts.in_force
        return {each.id: CommitmentTerms(each.id, each.kind, each.is_spend) for each in found}

    def _visible_schedules(self) -> Sequence[Any]:
        """Contracts that the reader may see: their own where they see some teams."""
        contracts, teams = self.exports.contracts, self.exports.scope.teams
        if contracts is None:
            return ()

        def visible(terms: ContractTerms) -> bool:
            return teams is None or terms.team in teams

        return schedules_of(terms for terms in contracts.in_force if visible(terms))

    def _portions(self, step_ms: int) -> dict[int, dict[CellKey, list[CommitmentPortion]]] | None:
        """Step -> cell -> what contracts paid of it."""
        drawn = self._drawn
        if drawn is None:
            return None
        sums: dict[tuple[int, CellKey, str, str], list[int]] = defaultdict(lambda: [0, 0, 0])
        for entry in drawn.entries:
            if entry.kind is DrawKind.UNUSED:
                continue
            cell = (
                *(entry.cluster, entry.pool, entry.model, entry.capacity_type, entry.rate_id),
                entry.holder,
            )
            found = sums[entry.hour_ms // step_ms * step_ms, cell, entry.contract, entry.kind.value]
            for at, amount in enumerate((entry.board_ms, entry.quantity, entry.nano or 0)):
                found[at] += amount
        portions: dict[int, dict[CellKey, list[CommitmentPortion]]] = defaultdict(lambda: defaultdict(list))
        for (start_ms, cell, contract, draw), (board_ms, quantity, nano) in sorted(sums.items()):
            portions[start_ms][cell].append(CommitmentPortion(contract, draw, board_ms, quantity, nano))
        return portions

    def _beside_use(self, step_ms: int) -> list[dict[str, Any]]:
        drawn, teams = self._drawn, self.exports.scope.teams
        if drawn is None:
            return []
        lost: dict[tuple[int, str, str], list[int]] = defaultdict(lambda: [0, 0])
        for entry in drawn.entries:
            if entry.kind is DrawKind.UNUSED and (teams is None or entry.payer in teams):
                found = lost[entry.hour_ms // step_ms * step_ms, entry.contract, entry.payer]
                found[0] += entry.quantity
                found[1] += entry.nano or 0
        unused = [
            UnusedCommitment(
                Window(start_ms, start_ms + step_ms), self._terms[contract], payer, quantity, nano
            )
            for (start_ms, contract, payer), (quantity, nano) in sorted(lost.items())
        ]
        passed = billed_part(self.exports.ledger, self.month, drawn.window)
        # It is the platform's, or its owner's.
        schedules, own = self._visible_schedules(), self.one_team
        bought = purchase_rows(schedules, self.month, self.currency, passed, invoices=own)
        return bought + unused_rows(unused, self.month, self.currency, invoices=own)


def _usage_of(lines: pd.DataFrame, *, by_job: bool) -> dict[int, dict[PlaceKey, dict[HolderKey, HeldUsage]]]:
    """Sums of lines by step, place and holder."""
    found: dict[int, dict[PlaceKey, dict[HolderKey, HeldUsage]]] = defaultdict(lambda: defaultdict(dict))
    holder_names = _JOB if by_job else _TEAM
    places = _keys(lines, _PLACE, PlaceKey)
    holders = _keys(lines, holder_names, lambda *names: _holder(*names))
    methods = [
        method_of(resource, profile, basis, (int(num), int(den)))
        for resource, profile, basis, num, den in zip(*(lines[name].tolist() for name in _UNIT), strict=True)
    ]
    more = [lines[name].tolist() for name in _MORE] if by_job else [[""] * len(lines)] * len(_MORE)
    sums = [_plain(lines[name]) for name in _SUMS]
    for start_ms, place, holder, method, cluster_queue, queue, user, project, workload, *numbers in zip(
        lines["step_start_ms"].tolist(), places, holders, methods, *more, *sums, strict=True
    ):
        of_place = found[start_ms][place]
        usage = of_place.get(holder)
        if usage is None:
            usage = of_place[holder] = HeldUsage(first_ms=numbers[5], last_ms=numbers[6])
            usage.queue, usage.user = cluster_queue or queue, user
            usage.project, usage.workload = project, workload
        _add(usage, method, numbers)
    return found


def _add(usage: HeldUsage, method: Any, numbers: Sequence[Any]) -> None:
    board_ms, nano, unpriced_ms, busy_ms, observed_ms, first_ms, last_ms = numbers
    usage.board_ms += board_ms
    usage.unpriced_ms += unpriced_ms
    if nano is not None:
        usage.nano = nano + (usage.nano or 0)
    if busy_ms is not None:
        usage.busy_ms = busy_ms + (usage.busy_ms or 0)
    if observed_ms is not None:
        usage.observed_ms = observed_ms + (usage.observed_ms or 0)
    usage.first_ms, usage.last_ms = min(usage.first_ms, first_ms), max(usage.last_ms, last_ms)
    if method is not None:
        usage.methods.add(method)


def _holder(bucket: str, team: str, *job: str) -> HolderKey:
    return HolderKey(bucket, team, *job) if bucket == Bucket.HELD else HolderKey(bucket)


def _keys(frame: pd.DataFrame, names: Sequence[str], make: Any) -> list[Any]:
    """One object for each combination of names: rows are many, and these few."""
    known: dict[tuple[str, ...], Any] = {}
    found = []
    for row in zip(*(frame[name].tolist() for name in names), strict=True):
        key = known.get(row)
        if key is None:
            key = known[row] = make(*row)
        found.append(key)
    return found


def _plain(column: pd.Series[Any]) -> list[Any]:
    if column.dtype == "int64":
        return list(column.tolist())
    return [None if value is pd.NA else value for value in column.tolist()]


def _add_waste(
    usage: Mapping[int, Mapping[PlaceKey, Mapping[HolderKey, HeldUsage]]],
    waste: pd.DataFrame,
    holder: Sequence[str],
) -> None:
    places, holders = _keys(waste, _PLACE, PlaceKey), _keys(waste, holder, _holder)
    sums = [_plain(waste[name]) for name in ("step_start_ms", "waste", "board_ms", "nano")]
    for place, who, start_ms, bucket, board_ms, nano in zip(places, holders, *sums, strict=True):
        found = usage.get(start_ms, {}).get(place, {}).get(who)
        if found is not None:
            parts = found.waste.setdefault(Waste(bucket), [0, 0])
            parts[0] += board_ms
            parts[1] += nano or 0
