"""Our own checks of FOCUS 1.2 to 1.4, of rules that no validator we have can check: rows in, breaches out.

Each check names the rule in words. Rows are read as a finance system would read them: out of CSV, as text.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from decimal import Decimal

from gpucost.reports.focus.charge_rows import AllocationMethod
from gpucost.reports.focus.focus_columns import FocusDataset, FocusType, FocusVersion, columns_of

Row = Mapping[str, str]
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ\Z")
_DECIMAL = re.compile(r"-?\d+\.\d+\Z")
_METRICS = frozenset(
    (
        *("BilledCost", "EffectiveCost", "ContractedCost", "ListCost", "PricingCurrencyEffectiveCost"),
        *("ConsumedQuantity", "PricingQuantity", "CommitmentDiscountQuantity", "ContractApplied"),
    )
)
_CATEGORIES = frozenset(("Usage", "Purchase", "Tax", "Credit", "Adjustment"))


def rows_of(content: bytes) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(content.decode()), strict=True))


def breaches(version: FocusVersion, dataset: FocusDataset, rows: Sequence[Row]) -> Counter[str]:
    """Rule -> how many rows break it; empty where all hold."""
    found: Counter[str] = Counter()
    of_dataset = {
        FocusDataset.COST_AND_USAGE: lambda: _costs(version, rows),
        FocusDataset.CONTRACT_COMMITMENT: lambda: _commitments(version, rows),
        FocusDataset.BILLING_PERIOD: lambda: _periods(rows),
        FocusDataset.INVOICE_DETAIL: lambda: _invoices(rows),
    }
    for rule in (*_form(version, dataset, rows), *of_dataset[dataset]()):
        found[rule] += 1
    return found


def _form(version: FocusVersion, dataset: FocusDataset, rows: Sequence[Row]) -> Iterator[str]:
    columns = columns_of(dataset, version)
    for row in rows:
        if [*row] != [column.name for column in columns]:
            yield "the columns of the version, FOCUS's first"
        for column in columns:
            text = row[column.name]
            if not text:
                if not column.nullable:
                    yield f"{column.name} is not null"
            elif column.type is FocusType.TIME:
                if not _TIME.match(text):
                    yield f"{column.name} is UTC with Z"
            elif column.type is FocusType.JSON:
                if not isinstance(json.loads(text), dict):
                    yield f"{column.name} is a JSON object"
            elif column.type is not FocusType.TEXT and not _DECIMAL.match(text):
                yield f"{column.name} is a decimal, and does not look like an integer"


def _costs(version: FocusVersion, rows: Sequence[Row]) -> Iterator[str]:
    origins: dict[str, list[Row]] = defaultdict(list)
    prefix = "x_" if version is FocusVersion.V1_2 else ""
    seen: set[tuple[str, ...]] = set()
    for row in rows:
        yield from _row(row, prefix)
        resource = row[f"{prefix}AllocatedResourceId"]
        if row["x_OriginId"]:
            origins[row["x_OriginId"]].append(row)
            key = (row["x_OriginId"], row["ResourceId"], row["ChargePeriodStart"], resource)
            if resource and key in seen:
                yield "AllocatedResourceId is unique in resource and charge period"
            seen.add(key)
    for parts in origins.values():
        yield from _origin(parts, prefix)


def _row(row: Row, prefix: str) -> Iterator[str]:
    category, corrected = row["ChargeCategory"], row["ChargeClass"] == "Correction"
    if category not in _CATEGORIES:
        yield "ChargeCategory is one of FOCUS's"
    method = row[f"{prefix}AllocatedMethodId"]
    if method and method not in {*AllocationMethod}:
        yield "AllocatedMethodId is documented"
    related = row[f"{prefix}AllocatedResourceId"] or row["x_OriginId"]
    if bool(method) != bool(related):
        yield "AllocatedMethodId is there on every related row, and on no other"
    if method and not row[f"{prefix}AllocatedMethodDetails"]:
        yield "AllocatedMethodDetails is there where the method is"
    tags, allocated = (json.loads(row[name] or "{}") for name in ("Tags", f"{prefix}AllocatedTags"))
    if tags.keys() & allocated.keys():
        yield "AllocatedTags repeats no key of Tags"
    if not corrected and category in ("Usage", "Purchase") and row["BilledCost"]:
        for price, cost in (("ListUnitPrice", "ListCost"), ("ContractedUnitPrice", "ContractedCost")):
            if float(row[price]) * float(row["PricingQuantity"]) != float(row[cost]):
                yield f"{price} times PricingQuantity is {cost}, in float64"
    yield from _charged(row)
    yield from _objects(row, prefix)


def _objects(row: Row, prefix: str) -> Iterator[str]:
    for element in _elements(row, f"{prefix}AllocatedMethodDetails"):
        if not element.keys() >= _OF_METHOD:
            yield "an element of the method has ratio, unit and quantity"
        yield from _further(element, _OF_METHOD, "the method")
    if "ContractApplied" in row:
        yield from _applied(row)


_OF_METHOD = frozenset(("AllocatedRatio", "UsageUnit", "UsageQuantity"))
_OF_APPLIED = frozenset(
    (
        *("ContractId", "ContractCommitmentId", "ContractCommitmentAppliedCost"),
        *("ContractCommitmentAppliedQuantity", "ContractCommitmentAppliedUnit"),
    )
)


def _further(found: Iterable[str], known: Collection[str], where: str) -> Iterator[str]:
    if not all(name in known or name.startswith("x_") for name in found):
        yield f"further keys of {where} begin with x_"


def _elements(row: Row, name: str) -> list[dict[str, object]]:
    found: list[dict[str, object]] = json.loads(row[name])["Elements"] if row[name] else []
    return found


def _applied(row: Row) -> Iterator[str]:
    elements = _elements(row, "ContractApplied")
    if bool(elements) != bool(row["CommitmentDiscountId"]):
        yield "ContractApplied is there where a commitment is, and nowhere else"
    for element in elements:
        yield from _further(element, _OF_APPLIED, "ContractApplied")
        if any(isinstance(value, dict | list) for value in element.values()):
            yield "ContractApplied is not nested"
        if not (element.get("ContractId") and element.get("ContractCommitmentId")):
            yield "ContractApplied has the contract and its commitment"
        quantity, unit = (element.get(f"ContractCommitmentApplied{each}") for each in ("Quantity", "Unit"))
        if element.get("ContractCommitmentAppliedCost") is None and quantity is None:
            yield "ContractApplied has a cost or a quantity"
        if (quantity is None) != (unit is None):
            yield "a quantity of ContractApplied has a unit"
        if row["ChargeCategory"] == "Purchase" and element["ContractCommitmentId"] != row["ResourceId"]:
            yield "the resource of a purchase is the commitment"


def _charged(row: Row) -> Iterator[str]:
    category, corrected = row["ChargeCategory"], row["ChargeClass"] == "Correction"
    status, billed, effective = (row["CommitmentDiscountStatus"], row["BilledCost"], row["EffectiveCost"])
    if category == "Purchase" and (Decimal(effective) or status or row["PricingCategory"] == "Committed"):
        yield "a purchase is no cost of use"
    if status and (Decimal(billed) or row["PricingCategory"] != "Committed"):
        yield "what a commitment paid is not billed, and Committed"
    if bool(row["CommitmentDiscountId"]) != bool(status or category == "Purchase"):
        yield "usage of a commitment has a status"
    if status == "Unused" and (row["ResourceId"] or row["ConsumedQuantity"]):
        yield "what is unused is of no resource"
    later = row["ChargePeriodEnd"] <= row["BillingPeriodStart"]
    inside = row["BillingPeriodStart"] <= row["ChargePeriodStart"] < row["BillingPeriodEnd"]
    if later != corrected or (not corrected and not inside):
        yield "a correction is of an older month, and all else of this one"


def _origin(parts: Sequence[Row], prefix: str) -> Iterator[str]:
    ratios, quantities = [], []
    for part in parts:
        details = json.loads(part[f"{prefix}AllocatedMethodDetails"], parse_float=Decimal, parse_int=Decimal)
        ratios += [element["AllocatedRatio"] for element in details["Elements"]]
        quantities += [element["UsageQuantity"] for element in details["Elements"]]
        if details["Elements"][0]["UsageQuantity"] != Decimal(part["ConsumedQuantity"]):
            yield "the quantity of the method is what was consumed"
    if sum(ratios) != 1:
        yield "the ratios of an origin add up to 1"
    whole = sum(quantities)
    if whole and any(abs(r - q / whole) > Decimal("1e-12") for r, q in zip(ratios, quantities, strict=True)):
        yield "a ratio is the part of the origin's quantity"
    for name in parts[0]:
        if "Allocated" in name or name in _METRICS or name.startswith(("x_", "Invoice")):
            continue
        if len({part[name] for part in parts}) > 1:
            yield f"{name} of an allocated row is the origin's"
    if any((not part[f"{prefix}AllocatedResourceId"]) != (part["x_Bucket"] != "held") for part in parts):
        yield "what nobody held has no AllocatedResourceId, and only that"


def _commitments(version: FocusVersion, rows: Sequence[Row]) -> Iterator[str]:
    seen = Counter(row["ContractCommitmentId"] for row in rows)
    for row in rows:
        if seen[row["ContractCommitmentId"]] > 1:
            yield "a commitment has one row"
        category, has_quantity = row["ContractCommitmentCategory"], bool(row["ContractCommitmentQuantity"])
        if category not in ("Spend", "Usage"):
            yield "ContractCommitmentCategory is Spend or Usage"
        if not (row["ContractCommitmentCost"] or has_quantity):
            yield "a commitment has a cost or a quantity"
        if has_quantity != bool(row["ContractCommitmentUnit"]) or (category == "Usage" and not has_quantity):
            yield "a commitment of usage has a quantity, and that a unit"
        for name in ("ContractPeriod", "ContractCommitmentPeriod"):
            if row[f"{name}Start"] >= row[f"{name}End"]:
                yield f"{name} ends after it starts"
        if version is FocusVersion.V1_4:
            for column, allowed in _OF_COMMITMENT.items():
                if row[column] not in allowed:
                    yield f"{column} is one of FOCUS's"


_OF_COMMITMENT = {
    "ContractCommitmentModel": ("Continuous", "Discontinuous"),
    "ContractCommitmentFulfillmentInterval": ("Hour", "Day", "Month", "Term"),
    "ContractCommitmentPaymentModel": ("All Upfront", "Partial Upfront", "No Upfront"),
    "ContractCommitmentBenefitCategory": ("Discount",),
    "ContractCommitmentLifecycleStatus": (
        *("Proposed", "Pending", "Active", "Exhausted", "Expired", "Canceled", "Superseded"),
    ),
}


def _periods(rows: Sequence[Row]) -> Iterator[str]:
    for row in rows:
        if row["BillingPeriodStatus"] not in ("Open", "Closed"):
            yield "BillingPeriodStatus is Open or Closed"
    starts = [row["BillingPeriodStart"] for row in rows]
    ends = [row["BillingPeriodEnd"] for row in rows]
    if starts != sorted({*starts}) or starts[1:] != ends[:-1]:
        yield "billing periods follow each other"


def _invoices(rows: Sequence[Row]) -> Iterator[str]:
    for name in ("InvoiceDetailId", "InvoiceDetailGrain"):
        if len({(row[name], row["InvoiceId"], row["ChargeCategory"]) for row in rows}) < len(rows):
            yield f"{name} is of one line"
    for row in rows:
        issued = row["InvoiceIssueStatus"] == "Issued"
        if row["InvoiceIssueStatus"] not in ("Open", "Issued", "Voided") or issued != bool(
            row["InvoiceIssueDate"]
        ):
            yield "InvoiceIssueStatus is one of FOCUS's, and an issued invoice has its date"
        if row["ChargeCategory"] not in _CATEGORIES:
            yield "ChargeCategory is one of FOCUS's"
        if row["BilledCost"] != row["PaymentCurrencyBilledCost"]:
            yield "one currency is billed and paid"
        yield from _further(json.loads(row["InvoiceDetailGrain"]), {"SkuPriceId"}, "InvoiceDetailGrain")
        corrects = "/Correction/" in row["InvoiceDetailId"]
        if corrects != (row["ReferenceInvoiceId"] != row["InvoiceId"]):
            yield "ReferenceInvoiceId is the corrected invoice, else this one"
        if row["ReferenceInvoiceId"].split("-", 3)[3:] != row["InvoiceId"].split("-", 3)[3:]:
            yield "the corrected invoice is the same team's"
