"""Lines of a cloud's invoice, read from its FOCUS file (1.0 on) or from a Cost and Usage Report of AWS.

A row that makes no sense is refused with the field, the value and what is allowed, and the others are read.
Costs are kept as exact fractions: clouds write more decimals than a nano-unit has, and only sums are rounded.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal, InvalidOperation
from fractions import Fraction

from gpucost.domain.errors import InputError
from gpucost.domain.money import check_currency
from gpucost.domain.time import HOUR_MS, Month, Window, parse_instant

_NULLS = frozenset(("", "NULL", "null", "(null)"))
_LOCAL = re.compile(r"(\d{4}-\d\d-\d\d)[ T](\d\d:\d\d:\d\d)(?:\.\d+)?(?:Z| UTC)?\Z")
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?\Z")
_CATEGORIES = frozenset(("Usage", "Purchase", "Tax", "Credit", "Adjustment"))
_MOST = Decimal(10) ** 15


@dataclass(frozen=True, slots=True)
class InvoiceLine:
    """One row. ``row`` counts from 1, the head is row 1. Amounts are in ``currency``; ``hours_ms`` is the
    time of a whole resource that it is for, None where its unit is none of time. ``is_split`` is a pod's
    part of a node, in reports that have both; ``is_correction`` of an invoice that was sent before.
    ``content`` is the same for rows that are the same in every column, while this process runs."""

    row: int
    content: int
    resource: str
    name: str
    period: Window
    category: str
    currency: str
    billed: Fraction
    effective: Fraction
    contracted: Fraction
    hours_ms: int | None
    commitment: str = ""
    is_unused: bool = False
    is_split: bool = False
    is_correction: bool = False
    service: str = ""

    @property
    def is_bought(self) -> bool:
        """Whether it pays for a commitment: for the time of no machine."""
        return self.category == "Purchase" and bool(self.commitment)

    def by_month(self) -> Iterator[tuple[Month, InvoiceLine]]:
        """The months in which it lies, with its part of each by time; the parts add up to it. A commitment is
        bought in the month in which its line begins."""
        month, last = (Month.of(at) for at in (self.period.start_ms, self.period.end_ms - 1))
        if self.is_bought or month == last:
            yield month, self
            return
        while (span := self.period.intersect(month.window)) is not None:
            yield month, self._during(span)
            month = month.next()

    def _during(self, span: Window) -> InvoiceLine:
        whole, time_ms = self.period.length_ms, self.hours_ms
        part = Fraction(span.length_ms, whole)
        if time_ms is not None:
            # Rounded down at the edges of parts, so that these add up.
            start, end = span.start_ms - self.period.start_ms, span.end_ms - self.period.start_ms
            time_ms = time_ms * end // whole - time_ms * start // whole
        return replace(
            self,
            period=span,
            billed=self.billed * part,
            effective=self.effective * part,
            contracted=self.contracted * part,
            hours_ms=time_ms,
        )


@dataclass(frozen=True, slots=True)
class RefusedLine:
    """A row that was not read, and why."""

    row: int
    field: str
    value: str
    allowed: str


FOCUS_COLUMNS = (
    *("BilledCost", "EffectiveCost", "BillingCurrency", "ChargePeriodStart", "ChargePeriodEnd"),
    *("ChargeCategory", "ResourceId"),
)
CUR_COLUMNS = (
    *("line_item_resource_id", "line_item_usage_start_date", "line_item_usage_end_date"),
    *("line_item_line_item_type", "line_item_unblended_cost", "line_item_currency_code"),
)


def invoice_lines(
    names: Sequence[str], rows: Iterable[Sequence[str | None]]
) -> Iterator[InvoiceLine | RefusedLine]:
    """Every row as a line, or refused. Raises InputError for a file that is neither FOCUS nor a report of
    AWS with the columns that are needed."""
    read = _reader(names)
    for number, cells in enumerate(rows, 2):
        if len(cells) != len(names):
            yield RefusedLine(number, "row", f"{len(cells)} cells", f"{len(names)} cells, as the head has")
            continue
        try:
            line = read(number, hash((*cells,)), dict(zip(names, cells, strict=True)))
        except InputError as error:
            yield RefusedLine(number, error.field, str(error.value), error.allowed)
        else:
            if line is not None:
                yield line


_Reader = Callable[[int, int, Mapping[str, "str | None"]], "InvoiceLine | None"]
"""Of the number of a row, its content, and its cells by column."""


def _reader(names: Sequence[str]) -> _Reader:
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise InputError("columns", ", ".join(twice[:20]), "each column once")
    plain = {_plain(name): name for name in names}
    if "line_item_line_item_type" in plain:
        _require(CUR_COLUMNS, plain, "a Cost and Usage Report of AWS")
        return lambda number, content, cells: _of_aws(
            number, content, {known: cells[name] for known, name in plain.items()}
        )
    _require(FOCUS_COLUMNS, names, "a FOCUS file of 1.0 or later, or a Cost and Usage Report of AWS")
    return _of_focus


def _plain(name: str) -> str:
    """``lineItem/UsageStartDate`` of older reports as ``line_item_usage_start_date``."""
    if "/" not in name:
        return name
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|/", "_", name).replace("__", "_").lower()


def _require(wanted: Iterable[str], given: Iterable[str], what: str) -> None:
    there = {*given}
    missing = [name for name in wanted if name not in there]
    if missing:
        raise InputError("columns", ", ".join(sorted(there)[:20]) or "none", f"{what}: {', '.join(missing)}")


def _of_focus(number: int, content: int, row: Mapping[str, str | None]) -> InvoiceLine:
    category = _text(row, "ChargeCategory")
    if category not in _CATEGORIES:
        raise InputError("ChargeCategory", category, ", ".join(sorted(_CATEGORIES)))
    period = _period(row, "ChargePeriodStart", "ChargePeriodEnd")
    billed, effective = _cost(row, "BilledCost"), _cost(row, "EffectiveCost")
    status = _text(row, "CommitmentDiscountStatus")
    return InvoiceLine(
        row=number,
        content=content,
        resource=_text(row, "ResourceId"),
        name=_text(row, "ResourceName"),
        period=period,
        category=category,
        currency=check_currency(_text(row, "BillingCurrency"), "BillingCurrency"),
        billed=billed,
        effective=effective,
        contracted=_cost(row, "ContractedCost") if _text(row, "ContractedCost") else effective,
        hours_ms=_hours(row, "ConsumedQuantity", "ConsumedUnit")
        or _hours(row, "PricingQuantity", "PricingUnit"),
        commitment=_text(row, "CommitmentDiscountId"),
        is_unused=status == "Unused",
        is_correction=_text(row, "ChargeClass") == "Correction",
        service=_text(row, "ServiceName"),
    )


_AWS_CATEGORIES = {
    "Usage": "Usage",
    "DiscountedUsage": "Usage",
    "SavingsPlanCoveredUsage": "Usage",
    "Tax": "Tax",
    "Credit": "Credit",
    "Refund": "Credit",
    "Fee": "Purchase",
    "RIFee": "Purchase",
    "SavingsPlanRecurringFee": "Purchase",
    "SavingsPlanUpfrontFee": "Purchase",
    "EdpDiscount": "Credit",
    "BundledDiscount": "Credit",
    "PrivateRateDiscount": "Credit",
}


def _of_aws(number: int, content: int, row: Mapping[str, str | None]) -> InvoiceLine | None:
    kind = _text(row, "line_item_line_item_type")
    if kind == "SavingsPlanNegation":
        return None  # it takes back what covered usage would have cost; effective cost has no such line
    category = _AWS_CATEGORIES.get(kind)
    if category is None:
        raise InputError("line_item_line_item_type", kind, ", ".join(_AWS_CATEGORIES))
    parent = _text(row, "split_line_item_parent_resource_id")
    billed, effective, commitment = _aws_costs(row, kind)
    listed = category == "Usage" and commitment and _text(row, "pricing_public_on_demand_cost")
    contracted = _cost(row, "pricing_public_on_demand_cost") if listed else effective
    if parent:
        billed = effective = contracted = _sum(row, _SPLIT_COSTS)
    return InvoiceLine(
        row=number,
        content=content,
        resource=parent or _text(row, "line_item_resource_id"),
        name="",
        period=_period(row, "line_item_usage_start_date", "line_item_usage_end_date"),
        category=category,
        currency=check_currency(_text(row, "line_item_currency_code"), "line_item_currency_code"),
        billed=billed,
        effective=effective,
        contracted=contracted,
        hours_ms=None if parent else _hours(row, "line_item_usage_amount", "pricing_unit"),
        commitment=commitment,
        is_split=bool(parent),
        service=_text(row, "product_servicecode") or _text(row, "line_item_product_code"),
    )


_SPLIT_COSTS = ("split_line_item_split_cost", "split_line_item_unused_cost")
_UNUSED_COSTS = (
    "reservation_unused_amortized_upfront_fee_for_billing_period",
    "reservation_unused_recurring_fee",
)


def _aws_costs(row: Mapping[str, str | None], kind: str) -> tuple[Fraction, Fraction, str]:
    """Billed and effective cost, and the commitment: AWS's amortized cost. What paid for a commitment is no
    cost but for what of it was not used; other fees are."""
    cost = _cost(row, "line_item_unblended_cost")
    plan = _arn(row, "savings_plan_savings_plan") or "savings plan"
    reservation = _arn(row, "reservation_reservation")
    if kind == "SavingsPlanCoveredUsage":
        return Fraction(), _cost(row, "savings_plan_savings_plan_effective_cost"), plan
    if kind == "DiscountedUsage":
        return Fraction(), _cost(row, "reservation_effective_cost"), reservation or "reservation"
    if kind == "SavingsPlanUpfrontFee":
        return cost, Fraction(), plan
    if kind == "SavingsPlanRecurringFee":
        total, used = (_sum(row, (f"savings_plan_{name}",)) for name in _OF_PLAN)
        return cost, total - used, plan
    if kind == "RIFee":
        return cost, _sum(row, _UNUSED_COSTS), reservation or "reservation"
    return cost, Fraction() if kind == "Fee" and reservation else cost, reservation if kind == "Fee" else ""


_OF_PLAN = ("total_commitment_to_date", "used_commitment")


def _arn(row: Mapping[str, str | None], name: str) -> str:
    return _text(row, f"{name}_a_r_n") or _text(row, f"{name}_arn")


def _sum(row: Mapping[str, str | None], names: Iterable[str]) -> Fraction:
    return sum((_cost(row, name) for name in names if _text(row, name)), Fraction())


_HOURS = frozenset(("hours", "hour", "1 hour", "hrs", "hr", "h", "instance-hours", "instance hours"))
_SECONDS = frozenset(("seconds", "second", "instance-seconds"))


def _hours(row: Mapping[str, str | None], quantity: str, unit: str) -> int | None:
    """A quantity of time in ms; None for other units."""
    named = _text(row, unit).lower()
    scale = HOUR_MS if named in _HOURS else 1000 if named in _SECONDS else 0
    if not scale or not _text(row, quantity):
        return None
    return round(_cost(row, quantity) * scale)


def _text(row: Mapping[str, str | None], name: str) -> str:
    value = row.get(name)
    return "" if value is None or value in _NULLS else value.strip()


def _cost(row: Mapping[str, str | None], name: str) -> Fraction:
    text = _text(row, name)
    allowed = "a decimal number, such as 12.5, below 1e15"
    try:
        value = Decimal(text) if _NUMBER.match(text) else None
    except InvalidOperation:
        value = None
    if value is None or not -40 < value.adjusted() < 20 or abs(value) >= _MOST:
        if value is not None and not value:
            return Fraction()
        raise InputError(name, text, allowed)
    return Fraction(value)


def _period(row: Mapping[str, str | None], start: str, end: str) -> Window:
    at = [_instant(_text(row, name), name) for name in (start, end)]
    if at[0] >= at[1]:
        raise InputError(end, _text(row, end), f"a time after {start}")
    return Window(*at)


def _instant(text: str, field: str) -> int:
    """FOCUS has UTC only; files of 1.0 leave the Z out, and BigQuery writes ``UTC`` for it."""
    found = _LOCAL.match(text)
    return parse_instant(f"{found[1]}T{found[2]}Z" if found else text, field)


_SCHEME = re.compile(r"^[a-z][a-z0-9+.-]*:/+|^/+")
# How providers write resources, lower-case and without a scheme; a machine's name is unique in what stands
# before it. Disks and network cards may have the name of their machine.
_AWS = re.compile(r"arn:aws[a-z-]*:([^:]*):[^:]*:[^:]*:(?:([^/:]+)[/:])?([^/]+)")
_GOOGLE = re.compile(
    r"[a-z.]*googleapis\.com/(?:compute/\w+/)?projects/([^/]+)/zones/([^/]+)/([^/]+)/([^/]+)"
)
_AZURE = re.compile(r"subscriptions/.+/providers/microsoft\.compute/(.+)")
_AZURE_MACHINE = re.compile(r"(?:virtualmachinescalesets/([^/]+)/)?virtualmachines/([^/]+)")


def resource_keys(resource: str) -> tuple[str, ...]:
    """What a machine can be found by that a ResourceId of an invoice, or a node's ``spec.providerID``, names;
    the most exact key first. Of a resource that is no machine only the whole.

    ``aws:///eu-1a/i-1``, ``arn:aws:ec2:eu-1:1:instance/i-1`` and ``i-1`` share ``i-1``; ``gce://p/z/n`` and
    ``//compute.googleapis.com/projects/p/zones/z/instances/n`` share ``p/z/n``; of Azure the ids are the
    same, but for their case.
    """
    whole = _SCHEME.sub("", resource.strip().lower())
    if found := _AWS.fullmatch(whole):
        service, kind, name = found.groups()
        keys = (whole, name) if (service, kind) == ("ec2", "instance") else (whole,)
    elif found := _GOOGLE.fullmatch(whole):
        project, zone, kind, name = found.groups()
        keys = (f"{project}/{zone}/{name}", name) if kind in ("instances", "instance") else (whole,)
    elif found := _AZURE.fullmatch(whole):
        machine = _AZURE_MACHINE.fullmatch(found[1])
        keys = (whole, "/".join(filter(None, machine.groups()))) if machine is not None else (whole,)
    elif whole.startswith(("subscriptions/", "arn:")):
        keys = (whole,)
    else:
        keys = (whole, re.split(r"[/:]", whole)[-1])
    return tuple(dict.fromkeys(key for key in keys if key))
