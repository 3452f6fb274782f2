"""A cloud's invoice beside the ledger: per node and month what each says, the difference, and why.

The difference of a node, invoice less ledger, is taken apart so that the parts add up to it:

``not_observed``   hours on the invoice in which no source watched the cluster
``overlap``        hours of lines whose periods lie in one another: an hour and its day, a restated month
``missing_hours``  hours on the invoice that the ledger does not have of the node, or the other way round
``commitment``     what commitments took off, or added
``tax``            taxes on the node
``no_price``       the rest of a node of which the ledger has time without a price: nothing is booked of it
``price``          the rest of others: the hours that both have, at another price

Hours cost what they cost on the invoice before commitments. What is on the invoice and belongs to no node is
``not_in_cluster``, or a tax or commitment of its own; a node that no line names is ``not_on_invoice``. What
corrects an earlier invoice, which is not in the file, is a ``correction``.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from fractions import Fraction

from gpucost.domain.errors import InputError
from gpucost.domain.money import NANO
from gpucost.domain.rates import NodeIdentity
from gpucost.domain.time import Month, Window
from gpucost.reports.focus.invoice_lines import InvoiceLine, RefusedLine, resource_keys

_MOST_REFUSED = 100


class InvoiceCause(StrEnum):
    """Why an invoice differs from the ledger."""

    PRICE = "price"
    NO_PRICE = "no_price"
    OVERLAP = "overlap"
    MISSING_HOURS = "missing_hours"
    COMMITMENT = "commitment"
    TAX = "tax"
    NOT_IN_CLUSTER = "not_in_cluster"
    NOT_OBSERVED = "not_observed"
    NOT_ON_INVOICE = "not_on_invoice"
    CORRECTION = "correction"


class InvoiceCost(StrEnum):
    """Which cost of the invoice is compared."""

    EFFECTIVE = "effective"
    BILLED = "billed"
    CONTRACTED = "contracted"


NodeKey = tuple[str, str]
"""Cluster and node."""


@dataclass(frozen=True, slots=True)
class LedgerNode:
    """What the ledger has of a node in a month: its cost, the time for which it has lines of it, and its GPU
    time without a price, which is in no cost."""

    cluster: str
    node: str
    nano: int
    present_ms: int
    unpriced_ms: int = 0


@dataclass(frozen=True, slots=True)
class WatchedCluster:
    """The observed windows of a cluster in a month, joined and in their order."""

    cluster: str
    windows: tuple[Window, ...]


@dataclass(frozen=True, slots=True)
class LedgerNodes:
    """What the ledger has of a month, for an invoice to be put beside: its nodes, which machines they are,
    and all clusters that it has. ``currency`` is None before the first price."""

    month: Month
    currency: str | None
    clusters: tuple[str, ...]
    nodes: tuple[LedgerNode, ...]
    watched: tuple[WatchedCluster, ...]
    identities: tuple[NodeIdentity, ...]


@dataclass(frozen=True, slots=True)
class NodeDifference:
    """What is to be booked of a node: by how much its invoice differs, and why, in words."""

    cluster: str
    node: str
    resource: str
    nano: int
    why: str


@dataclass(frozen=True, slots=True)
class CauseAmount:
    """A part of a difference, in nano-units, and hours where it is of hours."""

    cause: InvoiceCause
    nano: int
    hours_ms: int | None = None


@dataclass(frozen=True, slots=True)
class ReconciledNode:
    """A node in a month. ``difference_nano`` is invoice less ledger, and the sum of ``causes``;
    ``unpriced_ms`` is GPU time of the ledger without a price, which is in no cost."""

    month: Month
    cluster: str
    node: str
    resource: str
    invoice_nano: int
    ledger_nano: int
    difference_nano: int
    causes: tuple[CauseAmount, ...]
    invoice_ms: int
    ledger_ms: int
    unpriced_ms: int = 0


@dataclass(frozen=True, slots=True)
class OutsideCharge:
    """What is on the invoice and belongs to no node, by cause and resource."""

    month: Month
    cause: InvoiceCause
    resource: str
    service: str
    invoice_nano: int
    lines: int


@dataclass(frozen=True, slots=True)
class InvoiceReconciliation:
    """An invoice beside the ledger. ``digest`` is of the file; ``refused`` are the first rows that were not
    read, ``refused_count`` all of them. ``repeated_lines`` are rows that say in every column what another row
    says, and were left out; ``repeated_nano`` is what they cost."""

    file: str
    digest: str
    currency: str
    cost: InvoiceCost
    lines: int
    nodes: tuple[ReconciledNode, ...]
    outside: tuple[OutsideCharge, ...]
    invoice_nano: int
    ledger_nano: int
    difference_nano: int
    causes: tuple[CauseAmount, ...]
    refused: tuple[RefusedLine, ...]
    refused_count: int
    repeated_lines: int
    repeated_nano: int


class NodeEvidence(IntEnum):
    """Who says which machine a node is, the best first."""

    CLUSTER = 0
    """The cluster did, when its windows were read."""
    GIVEN = 1
    """A file of nodes."""
    NAME = 2
    """Nobody: the machine has the node's name."""


_Keys = dict[str, set[NodeKey]]


@dataclass
class NodeLedger:
    """Nodes by what resources and provider ids are found by, and by who says it."""

    by_key: Mapping[NodeEvidence, _Keys] = field(
        default_factory=lambda: {each: defaultdict(set) for each in NodeEvidence}
    )

    def add(self, node: NodeKey, identity: str, evidence: NodeEvidence) -> None:
        for key in resource_keys(identity):
            self.by_key[evidence][key].add(node)

    def find(self, resource: str, name: str) -> NodeKey | None:
        """The one node that a line is about; what fits two nodes fits none."""
        keys = (*resource_keys(resource), *resource_keys(name))
        for evidence in NodeEvidence:
            for key in keys:
                found = self.by_key[evidence].get(key, set())
                if len(found) == 1:
                    return next(iter(found))
        return None


@dataclass(slots=True)
class _NodeSums:
    resource: str = ""
    cost: Fraction = Fraction()
    contracted: Fraction = Fraction()
    commitment: Fraction = Fraction()
    tax: Fraction = Fraction()
    split: Fraction = Fraction()
    own_lines: int = 0
    timed: Counter[Window] = field(default_factory=Counter)
    """Period of lines -> the time of the machine that they are for: months have few hours, and any number of
    lines."""
    untimed: set[Window] = field(default_factory=set)
    """Periods of lines in other units."""

    @property
    def spans(self) -> dict[Window, int]:
        """Period -> the time of the machine in it, which is no longer than the period: a machine has lines
        for its disk, its parts and its network beside its own. Without any in a unit of time, all of it."""
        if not self.timed:
            return {span: span.length_ms for span in self.untimed}
        return {span: min(ms, span.length_ms) for span, ms in self.timed.items()}


@dataclass(slots=True)
class _OutsideSums:
    cost: Fraction = Fraction()
    lines: int = 0


@dataclass
class InvoiceReader:
    """Adds up lines as they come: memory is by node and by resource, not by line. ``rates`` are what one unit
    of another currency is in that of the ledger; ``repeated`` the contents that stand in several rows, each
    of which counts once. With ``month`` only what of a line lies in it counts."""

    names: NodeLedger
    currency: str
    cost: InvoiceCost = InvoiceCost.EFFECTIVE
    rates: Mapping[str, Fraction] = field(default_factory=dict)
    repeated: Collection[int] = frozenset()
    month: Month | None = None
    counted: set[int] = field(default_factory=set)
    """Those of ``repeated`` that were read."""
    repeated_lines: int = 0
    repeated_cost: Fraction = Fraction()
    lines: int = 0
    refused_count: int = 0
    refused: list[RefusedLine] = field(default_factory=list)
    nodes: dict[tuple[Month, NodeKey], _NodeSums] = field(default_factory=lambda: defaultdict(_NodeSums))
    outside: dict[tuple[Month, InvoiceCause, str, str], _OutsideSums] = field(
        default_factory=lambda: defaultdict(_OutsideSums)
    )

    def add(self, found: Iterable[InvoiceLine | RefusedLine]) -> None:
        for line in found:
            if isinstance(line, RefusedLine):
                self._refuse(line)
                continue
            parts = [(month, part) for month, part in line.by_month() if self.month in (None, month)]
            if not parts:
                continue
            rate = Fraction(1) if line.currency == self.currency else self.rates.get(line.currency)
            if rate is None:
                allowed = f"{self.currency}, the ledger's currency, or a --rate for it"
                self._refuse(RefusedLine(line.row, "BillingCurrency", line.currency, allowed))
                continue
            self.lines += 1
            if line.content in self.counted:
                self.repeated_lines += 1
                self.repeated_cost += sum(self._cost(part) for _, part in parts) * rate
                continue
            if line.content in self.repeated:
                self.counted.add(line.content)
            for month, part in parts:
                self._count(month, part, rate)

    def _refuse(self, line: RefusedLine) -> None:
        self.refused_count += 1
        if len(self.refused) < _MOST_REFUSED:
            self.refused.append(line)

    def _cost(self, line: InvoiceLine) -> Fraction:
        if self.cost is InvoiceCost.BILLED:
            return line.billed
        is_contracted = self.cost is InvoiceCost.CONTRACTED and line.category == "Usage"
        return line.contracted if is_contracted else line.effective

    def _count(self, month: Month, line: InvoiceLine, rate: Fraction) -> None:
        cost = self._cost(line) * rate
        apart = line.is_bought or line.is_unused or line.is_correction
        node = None if apart else self.names.find(line.resource, line.name)
        if node is None:
            cause = InvoiceCause.NOT_IN_CLUSTER
            if line.is_correction:
                cause = InvoiceCause.CORRECTION
            elif line.category == "Tax":
                cause = InvoiceCause.TAX
            elif line.is_bought or line.is_unused:
                cause = InvoiceCause.COMMITMENT
            if cost:
                sums = self.outside[month, cause, line.resource or line.commitment, line.service]
                sums.cost += cost
                sums.lines += 1
            return
        found = self.nodes[month, node]
        found.resource = found.resource or line.resource
        if line.is_split:
            found.split += cost
            return
        found.own_lines += 1
        found.cost += cost
        if line.category == "Tax":
            found.tax += cost
        elif line.category == "Usage":
            contracted = line.contracted * rate
            found.contracted += contracted
            found.commitment += (cost - contracted) if line.commitment else 0
            if line.hours_ms is None:
                found.untimed.add(line.period)
            else:
                found.timed[line.period] += line.hours_ms


def node_differences(found: InvoiceReconciliation) -> dict[Month, tuple[NodeDifference, ...]]:
    """What is to be booked, by month: of nodes that the invoice names, and of which the ledger has a price
    for all GPU time. Whose the rest would be is not known."""
    wanted: dict[Month, list[NodeDifference]] = defaultdict(list)
    for each in found.nodes:
        if each.resource and each.difference_nano and not each.unpriced_ms:
            why = ", ".join(part.cause.value for part in each.causes)
            wanted[each.month].append(
                NodeDifference(each.cluster, each.node, each.resource, each.difference_nano, why)
            )
    return {month: tuple(nodes) for month, nodes in sorted(wanted.items())}


def reconcile(
    read: InvoiceReader, ledger: Mapping[Month, LedgerNodes], file: str, digest: str
) -> InvoiceReconciliation:
    """The invoice that was read beside what the ledger has in the same months. Raises InputError for a file
    without a single line that could be read."""
    if not read.lines:
        first = read.refused[0] if read.refused else None
        why = "" if first is None else f"; row {first.row}: {first.field}: {first.value!r}, {first.allowed}"
        raise InputError("FILE", file, f"an invoice with a line that can be read{why}")
    months = {month for month, _ in read.nodes}
    found = []
    for month in sorted(months):
        there = ledger.get(month)
        known = {} if there is None else {(each.cluster, each.node): each for each in there.nodes}
        watched = {} if there is None else {each.cluster: each.windows for each in there.watched}
        for key in sorted({*known, *(node for at, node in read.nodes if at == month)}):
            billed = read.nodes.get((month, key))
            found.append(_node(month, key, billed, known.get(key), watched.get(key[0], ())))
    outside = tuple(
        OutsideCharge(*key, _nano(sums.cost), sums.lines)
        for key, sums in sorted(read.outside.items(), key=lambda item: item[0])
    )
    totals: dict[InvoiceCause, int] = defaultdict(int)
    for node in found:
        for part in node.causes:
            totals[part.cause] += part.nano
    for each in outside:
        totals[each.cause] += each.invoice_nano
    invoice = sum(node.invoice_nano for node in found) + sum(each.invoice_nano for each in outside)
    ours = sum(node.ledger_nano for node in found)
    return InvoiceReconciliation(
        file=file,
        digest=digest,
        currency=read.currency,
        cost=read.cost,
        lines=read.lines,
        nodes=tuple(found),
        outside=outside,
        invoice_nano=invoice,
        ledger_nano=ours,
        difference_nano=invoice - ours,
        causes=tuple(CauseAmount(cause, totals[cause]) for cause in InvoiceCause if totals.get(cause)),
        refused=tuple(read.refused),
        refused_count=read.refused_count,
        repeated_lines=read.repeated_lines,
        repeated_nano=_nano(read.repeated_cost),
    )


def _node(
    month: Month,
    key: NodeKey,
    billed: _NodeSums | None,
    known: LedgerNode | None,
    watched: Sequence[Window],
) -> ReconciledNode:
    ledger = 0 if known is None else known.nano
    present, unpriced = (0, 0) if known is None else (known.present_ms, known.unpriced_ms)
    cluster, node = key
    if billed is None:
        cause = CauseAmount(InvoiceCause.NOT_ON_INVOICE, -ledger, -present)
        return ReconciledNode(
            month, cluster, node, "", 0, ledger, -ledger, (cause,) if ledger else (), 0, present, unpriced
        )
    # A report with the parts of pods has the node's own lines too: one of them counts.
    is_split = not billed.own_lines
    cost = billed.split if is_split else billed.cost
    difference = _nano(cost) - ledger
    parts: dict[InvoiceCause, tuple[int, int | None]] = {}
    if billed.tax:
        parts[InvoiceCause.TAX] = _nano(billed.tax), None
    if billed.commitment:
        parts[InvoiceCause.COMMITMENT] = _nano(billed.commitment), None
    spans = billed.spans
    hours_ms = sum(spans.values())
    if hours_ms:
        hourly = billed.contracted / hours_ms
        twice = max(0, hours_ms - _covered_ms(spans))
        if twice:
            parts[InvoiceCause.OVERLAP] = _nano(hourly * twice), twice
        absent = hours_ms - twice - present
        unseen = min(max(absent, 0), _unwatched(spans, () if known is None else watched))
        if unseen:
            parts[InvoiceCause.NOT_OBSERVED] = _nano(hourly * unseen), unseen
        if absent - unseen:
            parts[InvoiceCause.MISSING_HOURS] = _nano(hourly * (absent - unseen)), absent - unseen
    if not (difference or billed.timed):
        parts.clear()  # hours that the invoice does not say explain nothing
    rest = difference - sum(nano for nano, _ in parts.values())
    if rest:
        parts[InvoiceCause.NO_PRICE if unpriced else InvoiceCause.PRICE] = rest, None
    causes = tuple(CauseAmount(cause, *parts[cause]) for cause in InvoiceCause if cause in parts)
    return ReconciledNode(
        month,
        cluster,
        node,
        billed.resource,
        _nano(cost),
        ledger,
        difference,
        causes,
        hours_ms,
        present,
        unpriced,
    )


def _covered_ms(spans: Iterable[Window]) -> int:
    """The time that lies in any of them."""
    found = upto_ms = 0
    for span in sorted(spans, key=lambda each: each.start_ms):
        found += max(0, span.end_ms - max(upto_ms, span.start_ms))
        upto_ms = max(upto_ms, span.end_ms)
    return found


def _unwatched(spans: Mapping[Window, int], watched: Sequence[Window]) -> int:
    """How much of the machine's time lies where no source watched: of each span in proportion."""
    lost = 0
    for span, time_ms in spans.items():
        seen = sum(span.overlap_ms(window.start_ms, window.end_ms) for window in watched)
        lost += time_ms * max(0, span.length_ms - seen) // span.length_ms
    return lost


def _nano(amount: Fraction) -> int:
    return round(amount * NANO)
