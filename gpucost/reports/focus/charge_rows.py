"""Usage lines as rows of CostAndUsage: what a node's GPUs cost in an hour or a day, divided among who held
them.

An *origin* is the GPU time of one model on one node in one charge period at one price; with contracts, the
part of it that one commitment paid for. Every row of it has the same dimensions and unit prices, and says who
held it in Allocated* only; what nobody held is a row without AllocatedResourceId. The rows of an origin add
up to it, in nano-units and milliseconds, and their ratios to exactly 1.

Rows are made of sums of lines of one step of time (``UsageStep``): everything that is known of it is passed
in. A reader of some teams has their rows only, and ratios of what they held: what the others held cannot be
worked out.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import pairwise
from operator import itemgetter

from gpucost.domain.buckets import ORDER, Bucket, Waste
from gpucost.domain.gpu import ShareMethod
from gpucost.domain.rates import Rate
from gpucost.domain.time import HOUR_MS, Month, Window
from gpucost.reports.focus.exact_products import (
    dealt,
    exact_quantity,
    exact_ratios,
    json_text,
    plain_number,
    product_of,
    ratio_text,
)
from gpucost.reports.focus.focus_columns import FocusBatch, FocusCell

PROVIDER = "gpucost"
GPU_HOURS, GPU_SECONDS = "GPU-Hours", "GPU-Seconds"
REMAINDER = "__remainder__"


class AllocationMethod(StrEnum):
    """How an origin is divided: each an anchor of docs/methodology.md."""

    WHOLE = "whole"
    MIG_COMPUTE = "mig-compute"
    MIG_MEMORY = "mig-memory"
    SHARED_EQUAL = "shared-equal"
    DRA_CAPACITY = "dra-capacity"
    NODE_SPLIT = "node-split"
    """GPUs of one model on one node that are handed out in several of these ways."""
    DIRECT = "direct"
    """Not divided: corrections, and what commitments cost beside use."""


METHOD_VERSION = "1"


def method_of(resource: str, profile: str, basis: str, share: tuple[int, int]) -> AllocationMethod | None:
    """How units of a resource divide a GPU; None for what they leave of it, which says nothing."""
    if resource == REMAINDER:
        return None
    ending = resource.rpartition(".")[2]
    if ending in (ShareMethod.CAPACITY, ShareMethod.FRACTION):
        return AllocationMethod.DRA_CAPACITY
    if ending in (ShareMethod.TIME, ShareMethod.CLAIM, ShareMethod.UNKNOWN):
        return AllocationMethod.SHARED_EQUAL
    if profile:
        return AllocationMethod.MIG_MEMORY if basis == "memory" else AllocationMethod.MIG_COMPUTE
    return AllocationMethod.WHOLE if share[0] == share[1] else AllocationMethod.SHARED_EQUAL


@dataclass(frozen=True, slots=True, order=True)
class PlaceKey:
    """What the dimensions of an origin are made of."""

    cluster: str
    node: str
    model: str
    instance_type: str
    capacity_type: str
    region: str
    zone: str
    pool: str
    rate_id: str


@dataclass(frozen=True, slots=True, order=True)
class HolderKey:
    """Who held it; all empty but ``bucket`` for what nobody held. ``job`` and what is beside it are empty
    where rows are by team."""

    bucket: str
    team: str = ""
    namespace: str = ""
    job_kind: str = ""
    job: str = ""
    job_uid: str = ""


@dataclass(slots=True)
class HeldUsage:
    """Sums of the lines of one holder on one place. ``nano`` is None where nothing has a price; times in GPU
    milliseconds. ``busy_ms`` and ``observed_ms`` are None where use was never observed."""

    board_ms: int = 0
    nano: int | None = None
    unpriced_ms: int = 0
    busy_ms: int | None = None
    observed_ms: int | None = None
    first_ms: int = 0
    last_ms: int = 0
    queue: str = ""
    user: str = ""
    project: str = ""
    workload: str = ""
    methods: set[AllocationMethod] = field(default_factory=set)
    waste: dict[Waste, list[int]] = field(default_factory=dict)
    """Bucket of the waste ledger -> GPU milliseconds and nano-units."""


@dataclass(frozen=True, slots=True)
class CommitmentPortion:
    """A part of the use of one cell (``CellKey``) in a step: what one contract paid for, or what none did.
    ``quantity`` is in the unit of the contract, GPU-ms or nano-units; ``nano`` is what it cost."""

    contract: str
    draw: str
    board_ms: int
    quantity: int
    nano: int


WorkloadKey = tuple[str, str, str, str]
"""Cluster, namespace, name and team: teams may share a name, and a team may use it again."""
CellKey = tuple[str, str, str, str, str, str]
"""Cluster, pool, model, capacity type, rate, and the team that held it (empty for nobody)."""


@dataclass(frozen=True, slots=True)
class CommitmentTerms:
    """What a row says of the contract that paid for it."""

    contract: str
    kind: str
    is_spend: bool


@dataclass(frozen=True)
class UsageStep:
    """All that is known of a charge period of a month. ``confidence`` is the observed part by cluster,
    ``waits`` says when runs of a workload started, in order, and how many hours each had waited. ``portions``
    is None where there are no contracts."""

    period: Window
    month: Window
    currency: str
    usage: Mapping[PlaceKey, Mapping[HolderKey, HeldUsage]]
    rates: Mapping[str, Rate]
    confidence: Mapping[str, float] = field(default_factory=dict)
    waits: Mapping[WorkloadKey, Sequence[tuple[int, float]]] = field(default_factory=dict)
    portions: Mapping[CellKey, Sequence[CommitmentPortion]] | None = None
    terms: Mapping[str, CommitmentTerms] = field(default_factory=dict)
    invoices: bool = False
    """Whether ``InvoiceId`` is filled: in files of one team, where no other team's rows have another one."""


def invoice_id(month: Window, team: str) -> str:
    """The id of a team's invoice for a month."""
    return f"INV-{Month.of(month.start_ms)}-{team}"


def detail_id(invoice: str, category: str, what: str) -> str:
    """The id of a line of an invoice."""
    return f"{invoice}/{category}/{what}"


def constant_cells(month: Window, currency: str) -> dict[str, FocusCell]:
    """What every row of a month's file has."""
    return {
        "BillingAccountId": PROVIDER,
        "BillingAccountName": PROVIDER,
        "BillingAccountType": "Platform",
        "BillingCurrency": currency,
        "BillingPeriodStart": month.start_ms,
        "BillingPeriodEnd": month.end_ms,
        "HostProviderName": PROVIDER,
        "InvoiceIssuerName": PROVIDER,
        "PricingCurrency": currency,
        "ProviderName": PROVIDER,
        "PublisherName": PROVIDER,
        "ServiceCategory": "Compute",
        "ServiceProviderName": PROVIDER,
        "ServiceSubcategory": "Virtual Machines",
    }


@dataclass(slots=True)
class SplitPart:
    """What becomes one row: a holder's part of an origin. Amounts as in HeldUsage; ``effective`` and
    ``billed`` are None where there is no price, and no contract paid."""

    holder: HolderKey
    usage: HeldUsage
    board_ms: int
    nano: int | None
    effective: int | None
    billed: int | None
    used: int | None
    quantity: int = 0


def split_rows(step: UsageStep) -> FocusBatch:
    """The rows of a step, in the order of place, contract and holder."""
    columns: dict[str, list[FocusCell]] = defaultdict(list)
    constant, rows = constant_cells(step.month, step.currency), 0
    origins = [
        (place, period, resource, _pieces(step, place, holders))
        for place, period, resource, holders in _origins(step)
    ]
    if step.portions is not None:
        _pay(step.portions, [(place, pieces) for place, _, _, pieces in origins])
    for place, period, resource, pieces in origins:
        for (contract, draw), parts in sorted(pieces.items(), key=lambda item: item[0]):
            for name, values in _origin_cells(step, place, period, resource, contract, draw, parts).items():
                columns[name] += values
            rows += len(parts)
    return FocusBatch(rows, columns | {name: [value] * rows for name, value in constant.items()})


def _pay(
    portions: Mapping[CellKey, Sequence[CommitmentPortion]],
    pieces: Sequence[tuple[PlaceKey, _Pieces]],
) -> None:
    """Deals what each portion cost, and drew, to the rows it is spread over, by their GPU time. What is so
    small that no holder had a whole millisecond of it is a row of the one that had most of the cell."""
    spread: dict[CellKey, _Pieces] = defaultdict(lambda: defaultdict(list))
    for place, found in pieces:
        for key, parts in found.items():
            for part in parts:
                spread[cell_key(place, part.holder)][key].append(part)
    for cell, of_cell in spread.items():
        for portion in portions.get(cell, ()):
            key = portion.contract, portion.draw
            parts = of_cell.get(key, [])
            if not parts and (portion.nano or portion.quantity):
                parts = [_part_of_most(pieces, cell, key)]
            weights = [part.board_ms for part in parts]
            costs, drawn = dealt(portion.nano, weights), dealt(portion.quantity, weights)
            for part, nano, quantity in zip(parts, costs, drawn, strict=True):
                if part.nano is None and portion.draw == "on_demand":
                    continue
                part.effective, part.quantity = nano, quantity
                part.billed = 0 if portion.draw in _COMMITTED else nano


def _part_of_most(pieces: Sequence[tuple[PlaceKey, _Pieces]], cell: CellKey, key: _PieceKey) -> SplitPart:
    """A part without GPU time for ``key``, of the holder that has the largest one of the cell."""
    members = (
        (part, found)
        for place, found in pieces
        for parts in found.values()
        for part in parts
        if cell_key(place, part.holder) == cell
    )
    most, found = max(members, key=lambda member: member[0].board_ms)
    nano, used = (None if amount is None else 0 for amount in (most.nano, most.used))
    part = replace(most, board_ms=0, nano=nano, used=used)
    insort(found.setdefault(key, []), part, key=lambda each: _by_holder(each.holder))
    return part


_COMMITTED = frozenset(("used", "idle"))


_Holders = Sequence[tuple[HolderKey, HeldUsage]]


def _origins(step: UsageStep) -> Iterator[tuple[PlaceKey, Window, str, _Holders]]:
    """Places with their charge period and the id of their resource. Where a node's GPUs had one price after
    another, each has its part of the time; where they had two at once, they are two resources."""
    nodes: dict[tuple[str, str, str], list[PlaceKey]] = defaultdict(list)
    for place, holders in step.usage.items():
        if any(each.board_ms or each.nano for each in holders.values()):
            nodes[place.cluster, place.node, place.model].append(place)
    for node in sorted(nodes):
        places = sorted(nodes[node])
        spans = {place: _span(step.usage[place].values()) for place in places}
        apart = sorted(places, key=lambda place: (spans[place], place))
        follow = all(spans[a][1] <= spans[b][0] for a, b in pairwise(apart))
        for place in places:
            resource = "/".join(each for each in node if each)
            period = step.period
            if len(places) > 1 and not follow:
                resource = f"{resource}@{place.rate_id or 'no price'}"
                more = [each for each in places if each.rate_id == place.rate_id]
                if len(more) > 1:
                    resource += f"#{more.index(place) + 1}"
            elif len(places) > 1:
                period = _cut(step.period, spans, apart, place)
            held = [
                (holder, usage)
                for holder, usage in sorted(step.usage[place].items(), key=lambda item: _by_holder(item[0]))
                if usage.board_ms or usage.nano
            ]
            yield place, period, resource, held


def _by_holder(holder: HolderKey) -> tuple[bool, HolderKey]:
    """Those that held something first."""
    return holder.bucket != Bucket.HELD, holder


def _span(usages: Iterable[HeldUsage]) -> tuple[int, int]:
    known = [each for each in usages if each.board_ms]
    if not known:
        return 0, 0
    return min(each.first_ms for each in known), max(each.last_ms for each in known)


def _cut(
    period: Window,
    spans: Mapping[PlaceKey, tuple[int, int]],
    apart: Sequence[PlaceKey],
    place: PlaceKey,
) -> Window:
    """The part of ``period`` of one of several prices: from its first line to that of the next, in seconds;
    the first and the last reach to the edges."""
    at = apart.index(place)
    start = period.start_ms if at == 0 else spans[place][0] // 1000 * 1000
    end = period.end_ms if at == len(apart) - 1 else spans[apart[at + 1]][0] // 1000 * 1000
    return Window(start, end) if period.start_ms <= start < end <= period.end_ms else period


_PieceKey = tuple[str, str]
"""Contract and draw."""
_Pieces = dict[_PieceKey, list[SplitPart]]


def _pieces(step: UsageStep, place: PlaceKey, holders: _Holders) -> _Pieces:
    """The parts of a place, by contract and draw: all of them in one where there are no contracts."""
    if step.portions is None:
        return {
            ("", ""): [
                SplitPart(holder, usage, usage.board_ms, usage.nano, usage.nano, usage.nano, _used(usage))
                for holder, usage in holders
            ]
        }
    found: _Pieces = defaultdict(list)
    for holder, usage in holders:
        for key, part in _of_contracts(step, place, holder, usage):
            found[key].append(part)
    return found


def _of_contracts(
    step: UsageStep, place: PlaceKey, holder: HolderKey, usage: HeldUsage
) -> Iterator[tuple[tuple[str, str], SplitPart]]:
    """One holder's part of a place, cut by what contracts paid of its cell: in proportion to GPU time."""
    shares = step.portions and step.portions.get(cell_key(place, holder))
    if not shares:
        yield ("", ""), SplitPart(holder, usage, usage.board_ms, usage.nano, usage.nano, usage.nano, None)
        return
    weights = [portion.board_ms for portion in shares]
    boards = dealt(usage.board_ms, weights)
    money: Sequence[int | None] = [None] * len(shares) if usage.nano is None else dealt(usage.nano, weights)
    used = _used(usage)
    uses: Sequence[int | None] = [None] * len(shares) if used is None else dealt(used, weights)
    for portion, board_ms, nano, busy in zip(shares, boards, money, uses, strict=True):
        if board_ms or nano:
            yield (
                (portion.contract, portion.draw),
                SplitPart(holder, usage, board_ms, nano, nano, nano, busy),
            )


def cell_key(place: PlaceKey, holder: HolderKey) -> CellKey:
    """The cell of the drawdown that a row's use is in."""
    team = holder.team if holder.bucket == Bucket.HELD else ""
    return place.cluster, place.pool, place.model, place.capacity_type, place.rate_id, team


def _used(usage: HeldUsage) -> int | None:
    if usage.nano is None or usage.busy_ms is None or not usage.board_ms:
        return None
    return usage.nano * min(usage.busy_ms, usage.board_ms) // usage.board_ms


def _origin_cells(
    step: UsageStep,
    place: PlaceKey,
    period: Window,
    resource: str,
    contract: str,
    draw: str,
    parts: Sequence[SplitPart],
) -> dict[str, list[FocusCell]]:
    rows, rate = len(parts), step.rates.get(place.rate_id)
    methods = {method for part in parts for method in part.usage.methods}
    method = AllocationMethod.NODE_SPLIT if len(methods) > 1 else next(iter(methods), AllocationMethod.WHOLE)
    origin = f"{resource}|{period.start_ms // 1000}|{place.rate_id}"
    same: dict[str, FocusCell] = dict.fromkeys(_PRICED) | {
        "AllocatedMethodId": method.value,
        "AvailabilityZone": place.zone or None,
        "ChargeCategory": "Usage",
        "ChargeDescription": f"GPU time of {place.model or 'an unknown model'} on node {place.node or '-'}",
        "ChargeFrequency": "Usage-Based",
        "ChargePeriodStart": period.start_ms,
        "ChargePeriodEnd": period.end_ms,
        "ConsumedUnit": GPU_SECONDS,
        "PricingUnit": GPU_HOURS,
        "RegionId": place.region or None,
        "RegionName": place.region or None,
        "ResourceId": resource,
        "ResourceName": place.node or place.model,
        "ResourceType": "GPU node",
        "ServiceName": place.pool or "GPU nodes",
        "SubAccountId": place.cluster,
        "SubAccountName": place.cluster,
        "SubAccountType": "Cluster",
        "Tags": json_text(
            {"gpucost/cluster": place.cluster, **({"gpucost/pool": place.pool} if place.pool else {})}
        ),
        "x_CommitmentDraw": draw or None,
        "x_OriginId": origin + (f"|{contract}|{draw}" if draw else ""),
    }
    if rate is not None:
        same |= {
            "ContractedUnitPrice": rate.nano_per_board_hour,
            "ListUnitPrice": rate.list_nano_per_board_hour,
            "PricingCategory": rate.pricing_category,
            "PricingCurrencyContractedUnitPrice": rate.nano_per_board_hour,
            "PricingCurrencyListUnitPrice": rate.list_nano_per_board_hour,
            "SkuId": place.model or "GPU",
            "SkuMeter": "GPU time",
            "SkuPriceDetails": json_text({"x_GpuModel": place.model}),
            "SkuPriceId": sku_price(place.model, rate.rate_id),
        }
    terms = step.terms.get(contract) if draw in _COMMITTED else None
    if terms is not None:
        same |= commitment_cells(terms, step.currency, "Used") | {"PricingCategory": "Committed"}
    cells: dict[str, list[FocusCell]] = {name: [value] * rows for name, value in same.items()}
    return cells | _own_cells(step, place, rate, terms, parts)


_PRICED = (
    *("CommitmentDiscountCategory", "CommitmentDiscountId", "CommitmentDiscountName"),
    *("CommitmentDiscountStatus", "CommitmentDiscountType", "CommitmentDiscountUnit"),
    *("ContractedUnitPrice", "ListUnitPrice", "PricingCategory", "PricingCurrencyContractedUnitPrice"),
    *("PricingCurrencyListUnitPrice", "SkuId", "SkuMeter", "SkuPriceDetails", "SkuPriceId"),
)
"""What not every origin has."""


def sku_price(model: str, rate_id: str) -> str:
    """A rate may price several models: a SKU price has one SKU."""
    return f"{model}/{rate_id}" if model else rate_id


def commitment_cells(terms: CommitmentTerms, currency: str, status: str | None) -> dict[str, FocusCell]:
    """The columns of a commitment, but for the quantity."""
    return {
        "CommitmentDiscountCategory": "Spend" if terms.is_spend else "Usage",
        "CommitmentDiscountId": terms.contract,
        "CommitmentDiscountName": terms.contract,
        "CommitmentDiscountStatus": status,
        "CommitmentDiscountType": terms.kind,
        "CommitmentDiscountUnit": currency if terms.is_spend else GPU_HOURS,
    }


def commitment_quantity(terms: CommitmentTerms, quantity: int) -> float:
    """GPU-ms as GPU-hours, nano-units as money."""
    return quantity / (10**9 if terms.is_spend else HOUR_MS)


def contract_applied(terms: CommitmentTerms, nano: int, quantity: int) -> str:
    """The JSON of ContractApplied."""
    element: dict[str, object] = {
        "ContractCommitmentId": terms.contract,
        "ContractId": terms.contract,
        "ContractCommitmentAppliedCost": nano / 10**9,
    }
    if not terms.is_spend:
        element["ContractCommitmentAppliedQuantity"] = commitment_quantity(terms, quantity)
        element["ContractCommitmentAppliedUnit"] = GPU_HOURS
    return json_text({"Elements": [element]})


def _own_cells(
    step: UsageStep,
    place: PlaceKey,
    rate: Rate | None,
    terms: CommitmentTerms | None,
    parts: Sequence[SplitPart],
) -> dict[str, list[FocusCell]]:
    """The columns in which the rows of an origin differ."""
    confidence = step.confidence.get(place.cluster)
    ratios = exact_ratios([part.board_ms for part in parts])
    found: dict[str, list[FocusCell]] = {name: [None] * len(parts) for name in _OWN}
    for at, (part, ratio) in enumerate(zip(parts, ratios, strict=True)):
        usage, holder = part.usage, part.holder
        coverage = None
        if usage.observed_ms is not None and usage.board_ms:
            coverage = round(min(1.0, usage.observed_ms / usage.board_ms), 6)
        found["AllocatedMethodDetails"][at] = _details(ratio, part.board_ms, coverage, confidence)
        found["ConsumedQuantity"][at] = part.board_ms
        found["x_Confidence"][at] = confidence
        found["x_Coverage"][at] = coverage
        found["x_Bucket"][at] = holder.bucket
        found["x_UsedCost"][at] = part.used
        if usage.waste:
            bucket, costs = _waste_cells(usage, part)
            found["x_WasteBucket"][at], found["x_WasteCosts"][at] = bucket, costs
        if holder.bucket == Bucket.HELD:
            invoice = invoice_id(step.month, holder.team)
            detail = detail_id(invoice, "Usage", sku_price(place.model, place.rate_id))
            found["AllocatedResourceId"][at] = resource_of(place.cluster, holder)
            found["AllocatedResourceName"][at] = (
                f"{holder.namespace}/{holder.job}" if holder.job else holder.team
            )
            found["AllocatedTags"][at] = _tags(holder, usage)
            found["x_InvoiceId"][at], found["x_InvoiceDetailId"][at] = invoice, detail
            if step.invoices:
                found["InvoiceId"][at], found["InvoiceDetailId"][at] = invoice, detail
            found["x_Queue"][at] = usage.queue or None
            starts = step.waits.get((place.cluster, holder.namespace, usage.workload, holder.team), ())
            begun = bisect_right(starts, usage.first_ms, key=itemgetter(0))
            found["x_WaitHours"][at] = starts[begun - 1][1] if begun else None
        # What a contract paid is known, whether or not its GPUs have a price.
        found["BilledCost"][at] = part.billed
        found["EffectiveCost"][at] = found["PricingCurrencyEffectiveCost"][at] = part.effective
        if terms is not None:
            found["CommitmentDiscountQuantity"][at] = commitment_quantity(terms, part.quantity)
            found["ContractApplied"][at] = contract_applied(terms, part.effective or 0, part.quantity)
        if part.nano is None or rate is None:
            continue
        quantity = exact_quantity(part.nano, rate.nano_per_board_hour, part.board_ms / HOUR_MS)
        contracted = product_of(quantity, rate.nano_per_board_hour)
        found["PricingQuantity"][at] = quantity
        found["ContractedCost"][at] = contracted
        found["ListCost"][at] = (
            contracted
            if rate.list_nano_per_board_hour == rate.nano_per_board_hour
            else product_of(quantity, rate.list_nano_per_board_hour)
        )
    return found


_OWN = (
    *("AllocatedMethodDetails", "AllocatedResourceId", "AllocatedResourceName", "AllocatedTags"),
    *("BilledCost", "CommitmentDiscountQuantity", "ConsumedQuantity", "ContractApplied", "ContractedCost"),
    *("EffectiveCost", "InvoiceDetailId", "InvoiceId", "ListCost", "PricingCurrencyEffectiveCost"),
    *("PricingQuantity", "x_Bucket", "x_Confidence", "x_Coverage", "x_InvoiceDetailId", "x_InvoiceId"),
    *("x_Queue", "x_UsedCost", "x_WaitHours", "x_WasteBucket", "x_WasteCosts"),
)


def resource_of(cluster: str, holder: HolderKey) -> str:
    """The id of who held it: a job of two teams is two, and clones of a cluster have the same uids."""
    if not holder.job and not holder.job_uid:
        return holder.team
    names = (holder.team, cluster, holder.namespace, holder.job_kind, holder.job, holder.job_uid)
    return "/".join(names)


def _details(ratio: int, board_ms: int, coverage: float | None, confidence: float | None) -> str:
    more = "" if coverage is None else f',"x_Coverage":{coverage}'
    more += "" if confidence is None else f',"x_Confidence":{confidence}'
    return (
        f'{{"Elements":[{{"AllocatedRatio":{ratio_text(ratio)},"UsageUnit":"{GPU_SECONDS}",'
        f'"UsageQuantity":{plain_number(board_ms, 3)}{more}}}],"x_MethodVersion":"{METHOD_VERSION}"}}'
    )


def _tags(holder: HolderKey, usage: HeldUsage) -> str:
    named = {
        "gpucost/team": holder.team,
        "gpucost/namespace": holder.namespace,
        "gpucost/job_kind": holder.job_kind,
        "gpucost/project": usage.project,
        "gpucost/user": usage.user,
        "gpucost/queue": usage.queue,
    }
    return json_text({name: value for name, value in named.items() if value})


def _waste_cells(usage: HeldUsage, part: SplitPart) -> tuple[str, str]:
    """The bucket with most GPU time, the first of equal ones, and the cost of each."""
    order = sorted(usage.waste, key=ORDER.__getitem__)
    most = max(order, key=lambda waste: usage.waste[waste][0])
    weights = [usage.waste[waste][1] if part.nano is not None else 0 for waste in order]
    if part.nano is None or not any(weights):
        return most.value, json_text({})
    costs = weights if part.nano == sum(weights) else dealt(part.nano, weights)
    texts = (f'"{waste}":{plain_number(nano, 9)}' for waste, nano in zip(order, costs, strict=True) if nano)
    return most.value, "{" + ",".join(texts) + "}"
