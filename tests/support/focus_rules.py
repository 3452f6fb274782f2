"""Our own checks of FOCUS 1.2 to 1.4, of rules that no validator we have can check: rows in, breaches out.

Each check names the rule in words. Rows are read as a finance system would read them: out of CSV, as text.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
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
    for rule in (
        *_form(version, dataset, rows),
        *(_costs(version, rows) if dataset == "CostAndUsage" else ()),
    ):
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
