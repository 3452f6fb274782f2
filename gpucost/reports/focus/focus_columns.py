"""The columns of FOCUS 1.2, 1.3 and 1.4 as data: which version has which, its type, and what stands there.

FOCUS columns come first, by name, then those of our own (``x_``). A column that a version lacks is not in its
files. 1.2 has no columns for split allocation: there they are ``x_Allocated*``, of the same content.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache


class FocusVersion(StrEnum):
    """Versions that are written. 1.0 and 1.1 are only read."""

    V1_2 = "1.2"
    V1_3 = "1.3"
    V1_4 = "1.4"


class FocusDataset(StrEnum):
    """The tables of FOCUS that are written."""

    COST_AND_USAGE = "CostAndUsage"
    CONTRACT_COMMITMENT = "ContractCommitment"
    BILLING_PERIOD = "BillingPeriod"
    INVOICE_DETAIL = "InvoiceDetail"

    @property
    def since(self) -> FocusVersion:
        return _SINCE[self]


_SINCE = {
    FocusDataset.COST_AND_USAGE: FocusVersion.V1_2,
    FocusDataset.CONTRACT_COMMITMENT: FocusVersion.V1_3,
    FocusDataset.BILLING_PERIOD: FocusVersion.V1_4,
    FocusDataset.INVOICE_DETAIL: FocusVersion.V1_4,
}


def datasets_of(version: FocusVersion) -> tuple[FocusDataset, ...]:
    """The datasets of a version, the costs first."""
    return tuple(dataset for dataset in FocusDataset if dataset.since <= version)


class FocusType(StrEnum):
    """What a cell is in memory, and how it is written."""

    TEXT = "text"
    JSON = "json"
    """A JSON object or array, as text."""
    TIME = "time"
    """Milliseconds since 1970, written as RFC 3339 with Z, in whole seconds."""
    MONEY = "money"
    """Nano-units, an integer, written with nine decimals."""
    PRODUCT = "product"
    """A cost that is a unit price times a quantity in float64: nano-units where these have such a product,
    else the product itself, a float, which rounds to the nano-units."""
    NUMBER = "number"
    """A float, written so that it reads back as the same float."""
    SECONDS = "seconds"
    """Milliseconds, an integer, written as seconds with three decimals."""


FocusCell = str | int | float | None


@dataclass(frozen=True, slots=True)
class FocusColumn:
    """A column of one dataset. ``until`` is the last version that has it, None where there is none."""

    name: str
    type: FocusType
    nullable: bool
    meaning: str
    since: FocusVersion = FocusVersion.V1_2
    until: FocusVersion | None = None

    @property
    def is_own(self) -> bool:
        return self.name.startswith("x_")


@dataclass(frozen=True, slots=True)
class FocusBatch:
    """Rows by column: lists of ``rows`` cells. A column that is not there is null in every row."""

    rows: int
    columns: Mapping[str, Sequence[FocusCell]]

    def cells(self, name: str) -> Sequence[FocusCell]:
        found = self.columns.get(name)
        if found is None and name.startswith("x_Allocated"):
            found = self.columns.get(name.removeprefix("x_"))
        return found or [None] * self.rows

    def dicts(self) -> list[dict[str, FocusCell]]:
        """The rows, one by one: for small ones."""
        names = list(self.columns)
        return [dict(zip(names, row, strict=True)) for row in zip(*self.columns.values(), strict=True)]

    @classmethod
    def of(cls, rows: Sequence[Mapping[str, FocusCell]]) -> FocusBatch:
        """A column for each name in any of ``rows``."""
        names = list(dict.fromkeys(name for row in rows for name in row))
        return cls(len(rows), {name: [row.get(name) for row in rows] for name in names})


@cache
def columns_of(dataset: FocusDataset, version: FocusVersion) -> tuple[FocusColumn, ...]:
    """The columns of a dataset in a version, in the order in which they are written."""
    found = [
        column
        for column in _COLUMNS[dataset]
        if column.since <= version and (column.until is None or version <= column.until)
    ]
    return tuple(sorted(found, key=lambda column: (column.is_own, column.name)))


@cache
def known_columns() -> Mapping[str, FocusColumn]:
    """Every column of costs of any version, by name."""
    return {column.name: column for column in _COST}


_T, _J, _D, _M = FocusType.TEXT, FocusType.JSON, FocusType.TIME, FocusType.MONEY
_P, _N, _S = FocusType.PRODUCT, FocusType.NUMBER, FocusType.SECONDS
_3, _4 = FocusVersion.V1_3, FocusVersion.V1_4


def _column(name: str, kind: FocusType, nullable: bool, meaning: str) -> FocusColumn:
    return FocusColumn(name, kind, nullable, meaning)


_ALLOCATED = (
    ("AllocatedMethodDetails", _J, "`Elements`: the row's ratio of its origin, and the GPU-seconds it is of"),
    ("AllocatedMethodId", _T, "how the origin was divided: an anchor of docs/methodology.md"),
    ("AllocatedResourceId", _T, "the job or team; null where nobody held it"),
    ("AllocatedResourceName", _T, "namespace and name of the job, or the team"),
    ("AllocatedTags", _J, "team, namespace, project, user and queue"),
)

_COST = (
    *(FocusColumn(name, kind, True, meaning, _3) for name, kind, meaning in _ALLOCATED),
    *(
        FocusColumn(f"x_{name}", kind, True, f"as `{name}` from 1.3 on", until=FocusVersion.V1_2)
        for name, kind, meaning in _ALLOCATED
    ),
    _column("AvailabilityZone", _T, True, "zone of the node"),
    _column("BilledCost", _M, False, "what is on an invoice: 0 for what a commitment paid"),
    _column("BillingAccountId", _T, False, "`gpucost`"),
    _column("BillingAccountName", _T, True, "`gpucost`"),
    _column("BillingAccountType", _T, False, "`Platform`"),
    _column("BillingCurrency", _T, False, "the ledger's currency"),
    _column("BillingPeriodEnd", _D, False, "end of the month, exclusive"),
    _column("BillingPeriodStart", _D, False, "start of the month, UTC"),
    _column("CapacityReservationId", _T, True, "null: reservations are commitments here"),
    _column("CapacityReservationStatus", _T, True, "null"),
    _column("ChargeCategory", _T, False, "`Usage`; `Purchase` of a commitment; `Adjustment` of cost only"),
    _column("ChargeClass", _T, True, "`Correction` for adjustments of closed months"),
    _column("ChargeDescription", _T, True, "what was used, without whom"),
    _column("ChargeFrequency", _T, False, "`Usage-Based`, `One-Time` or `Recurring`"),
    _column("ChargePeriodEnd", _D, False, "end of the hour or day; of corrections, of the old month"),
    _column("ChargePeriodStart", _D, False, "its start; where a price changed in it, from that instant on"),
    _column("CommitmentDiscountCategory", _T, True, "`Spend` or `Usage`"),
    _column("CommitmentDiscountId", _T, True, "id of the contract that paid, or was bought"),
    _column("CommitmentDiscountName", _T, True, "the same"),
    _column("CommitmentDiscountQuantity", _N, True, "what was drawn, bought or left unused"),
    _column("CommitmentDiscountStatus", _T, True, "`Used` or `Unused`"),
    _column("CommitmentDiscountType", _T, True, "kind of the contract, such as `savings_plan`"),
    _column("CommitmentDiscountUnit", _T, True, "`GPU-Hours`, or the currency"),
    _column("ConsumedQuantity", _S, True, "GPU time; rows of an origin add up to it exactly"),
    _column("ConsumedUnit", _T, True, "`GPU-Seconds`"),
    FocusColumn("ContractApplied", _J, True, "the commitment, and cost and quantity applied to it", _3),
    _column("ContractedCost", _P, False, "at the book's prices with its discounts, before commitments"),
    _column("ContractedUnitPrice", _M, True, "the price of a GPU-hour, after discounts"),
    _column("EffectiveCost", _M, False, "what it cost with commitments spread over what they paid for"),
    FocusColumn("HostProviderName", _T, False, "`gpucost`: the ledger does not know the host", _3),
    FocusColumn("InvoiceDetailId", _T, True, "as `InvoiceId`, of the line of the invoice", _4),
    _column("InvoiceId", _T, True, "the team's invoice, in a file of one team; else see `x_InvoiceId`"),
    _column("InvoiceIssuerName", _T, False, "`gpucost`"),
    _column("ListCost", _P, False, "at list prices"),
    _column("ListUnitPrice", _M, True, "the list price of a GPU-hour"),
    _column("PricingCategory", _T, True, "`Standard`, `Dynamic` (spot), `Committed` or `Other` (owned)"),
    _column("PricingCurrency", _T, True, "as `BillingCurrency`"),
    _column("PricingCurrencyContractedUnitPrice", _M, True, "as `ContractedUnitPrice`"),
    _column("PricingCurrencyEffectiveCost", _M, True, "as `EffectiveCost`"),
    _column("PricingCurrencyListUnitPrice", _M, True, "as `ListUnitPrice`"),
    _column("PricingQuantity", _N, True, "GPU-hours, chosen so that price times quantity is the cost"),
    _column("PricingUnit", _T, True, "`GPU-Hours`"),
    FocusColumn("ProviderName", _T, False, "`gpucost`; not in 1.4", until=_3),
    FocusColumn("PublisherName", _T, False, "`gpucost`; not in 1.4", until=_3),
    _column("RegionId", _T, True, "region of the node"),
    _column("RegionName", _T, True, "the same"),
    _column(
        "ResourceId",
        _T,
        True,
        "cluster, node and GPU model, whoever held it; or what was bought",
    ),
    _column("ResourceName", _T, True, "the node, or the contract"),
    _column("ResourceType", _T, True, "`GPU node`, or `Commitment`"),
    _column("ServiceCategory", _T, False, "`Compute`"),
    _column("ServiceName", _T, False, "the node pool, or `GPU nodes`"),
    FocusColumn("ServiceProviderName", _T, False, "`gpucost`", _3),
    _column("ServiceSubcategory", _T, False, "`Virtual Machines`"),
    _column("SkuId", _T, True, "the GPU model, or the contract that was bought"),
    _column("SkuMeter", _T, True, "`GPU time`, or `Commitment`"),
    _column("SkuPriceDetails", _J, True, "`x_GpuModel`"),
    _column("SkuPriceId", _T, True, "the GPU model, and the id of the rate in the price book"),
    _column("SubAccountId", _T, True, "the cluster"),
    _column("SubAccountName", _T, True, "the cluster"),
    _column("SubAccountType", _T, True, "`Cluster`"),
    _column("Tags", _J, True, "`gpucost/cluster` and `gpucost/pool`"),
    _column("x_AdjustmentReference", _T, True, "reference of the adjustment that a correction is"),
    _column("x_Bucket", _T, True, "`held`, `unallocated`, `unavailable` or `unknown` (not observed)"),
    _column("x_CommitmentDraw", _T, True, "`used`, `idle`, `unused`, `at_price`, `overage`, `on_demand`"),
    _column("x_Confidence", _N, True, "the part of the time in which the cluster was observed, 0 to 1"),
    _column("x_Coverage", _N, True, "the part of the GPU time of which use was measured, 0 to 1"),
    FocusColumn("x_InvoiceDetailId", _T, True, "its line in `InvoiceDetail`", _4),
    _column("x_InvoiceId", _T, True, "the invoice of the team for the month"),
    _column("x_OriginId", _T, True, "rows with the same one are parts of one charge"),
    _column("x_Queue", _T, True, "ClusterQueue, else LocalQueue or Volcano queue"),
    _column("x_UsedCost", _M, True, "cost of the GPU time that was seen busy; null where never observed"),
    _column(
        "x_WaitHours", _N, True, "wait of the job's workload before it started, where the advisor saw it"
    ),
    _column("x_WasteBucket", _T, True, "bucket of the waste ledger that most of the GPU time is in"),
    _column("x_WasteCosts", _J, True, "cost by bucket of the waste ledger; adds up to `ContractedCost`"),
)

_COMMITMENT = tuple(
    FocusColumn(name, kind, nullable, meaning, since)
    for name, kind, nullable, meaning, since in (
        ("BillingCurrency", _T, True, "the contracts' currency", _3),
        ("ContractCommitmentApplicability", _J, True, "clusters, pools and models that it covers", _4),
        ("ContractCommitmentBenefitCategory", _T, True, "`Discount`", _4),
        ("ContractCommitmentCategory", _T, False, "`Spend` or `Usage`", _3),
        ("ContractCommitmentCost", _M, True, "what the whole term costs, used or not", _3),
        ("ContractCommitmentDescription", _T, True, "its kind, quantity and period in words", _3),
        ("ContractCommitmentFulfillmentInterval", _T, True, "`Hour`, `Day`, `Month` or `Term`", _4),
        ("ContractCommitmentId", _T, False, "id of the contract", _3),
        ("ContractCommitmentLifecycleStatus", _T, True, "`Active`, `Expired` or `Pending`, at the end", _4),
        ("ContractCommitmentModel", _T, True, "`Continuous` (hour, day) or `Discontinuous` (a pool)", _4),
        ("ContractCommitmentPaymentModel", _T, True, "`All Upfront`, `Partial Upfront` or `No Upfront`", _4),
        ("ContractCommitmentPaymentUpfrontPercentage", _N, True, "of the cost, 0 to 100", _4),
        ("ContractCommitmentPeriodEnd", _D, False, "end of its term, exclusive", _3),
        ("ContractCommitmentPeriodStart", _D, False, "start of its term", _3),
        ("ContractCommitmentQuantity", _N, True, "GPU-hours of the whole term; null for spend", _3),
        ("ContractCommitmentType", _T, False, "its kind, such as `savings_plan`", _3),
        ("ContractCommitmentUnit", _T, True, "`GPU-Hours`; null for spend", _3),
        ("ContractId", _T, False, "id of the contract", _3),
        ("ContractPeriodEnd", _D, False, "end of its term, exclusive", _3),
        ("ContractPeriodStart", _D, False, "start of its term", _3),
    )
)

_PERIOD = tuple(
    FocusColumn(name, kind, False, meaning, _4)
    for name, kind, meaning in (
        ("BillingPeriodCreated", _D, "start of the month"),
        ("BillingPeriodEnd", _D, "end of the month, exclusive"),
        ("BillingPeriodLastUpdated", _D, "when it was closed, else when it was last written to"),
        ("BillingPeriodStart", _D, "start of the month"),
        ("BillingPeriodStatus", _T, "`Open` or `Closed`"),
        ("InvoiceIssuerName", _T, "`gpucost`"),
    )
)

_INVOICE = tuple(
    FocusColumn(name, kind, nullable, meaning, _4)
    for name, kind, nullable, meaning in (
        ("BilledCost", _M, False, "what the team is billed on this line; lines of 0 are there too"),
        ("BillingAccountId", _T, False, "`gpucost`"),
        ("BillingCurrency", _T, False, "the ledger's currency"),
        ("BillingPeriodEnd", _D, False, "end of the month, exclusive"),
        ("BillingPeriodStart", _D, False, "start of the month"),
        ("ChargeCategory", _T, False, "as in `CostAndUsage`"),
        ("InvoiceDetailCreated", _D, False, "as `BillingPeriodLastUpdated`"),
        ("InvoiceDetailDescription", _T, True, "the line in words"),
        (
            "InvoiceDetailGrain",
            _J,
            True,
            "`SkuPriceId` where it has one, `x_Team`, and of a correction `x_Correction`",
        ),
        (
            "InvoiceDetailId",
            _T,
            False,
            "the line: invoice, category, and SKU price, or the month and reference of a correction",
        ),
        ("InvoiceDetailLastUpdated", _D, False, "as `BillingPeriodLastUpdated`"),
        ("InvoiceId", _T, False, "the invoice: month and team"),
        ("InvoiceIssueDate", _D, True, "when the month was closed; null while it is open"),
        ("InvoiceIssueStatus", _T, False, "`Issued` for a closed month, else `Open`"),
        ("InvoiceIssuerName", _T, False, "`gpucost`"),
        ("PaymentCurrency", _T, False, "as `BillingCurrency`"),
        ("PaymentCurrencyBilledCost", _M, False, "as `BilledCost`"),
        ("PaymentDueDate", _D, True, "null: charges between teams have none"),
        ("PaymentTerms", _T, False, "`Internal`"),
        ("PurchaseOrderNumber", _T, True, "null"),
        ("ReferenceInvoiceId", _T, False, "of a correction the invoice that it corrects, else this one"),
        ("x_GpuSeconds", _S, True, "GPU time of the line"),
    )
)

_COLUMNS: Mapping[FocusDataset, tuple[FocusColumn, ...]] = {
    FocusDataset.COST_AND_USAGE: _COST,
    FocusDataset.CONTRACT_COMMITMENT: _COMMITMENT,
    FocusDataset.BILLING_PERIOD: _PERIOD,
    FocusDataset.INVOICE_DETAIL: _INVOICE,
}
