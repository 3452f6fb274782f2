"""The rows of a price book: list prices, owned hardware, commitments. docs/prices.md explains each key.

``NodeMatch`` says what a row applies to, and when: shared by prices, owned hardware, discounts.
``check_rows`` returns warnings about a book that is valid but needs a person's attention.

Amounts are what people pay: per instance, per month, by purchase, by commitment. All arithmetic is exact:
functions return Fractions of nano-units, rounded once, half to even, when a Rate is made. A month is 730
hours and a year 8,760, as in cloud price lists, whatever the calendar month. ``CURRENCIES`` are the ISO 4217
codes of money in use; test codes, metals and withdrawn currencies are left out.

By default the whole node's price follows its GPUs: the holder of the GPUs blocks the node, whatever CPUs it
requests. A price-book row may say otherwise and divide by weights, as OpenCost does; then only the GPU part
is priced, and the rest of the bill is for a tool that bills CPUs and memory.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from enum import StrEnum
from fractions import Fraction
from functools import cached_property
from itertools import pairwise
from statistics import median
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from gpucost.domain.configfile import MISSING, ConfigModel, DatedConfigModel, NanoAmount, Text, checked, wrong
from gpucost.domain.errors import ErrorRemark, InputError
from gpucost.domain.gpu import KNOWN_MODELS, parse_product
from gpucost.domain.money import NANO, plain
from gpucost.domain.rates import MAX_NANO_PER_BOARD_HOUR, NodeFacts
from gpucost.domain.time import iso

HOURS_PER_MONTH = 730


def owned_node_hour(
    *,
    purchase: int,
    residual: int,
    months: int,
    power_watts: int,
    kwh_price: int,
    pue: int,
    hosting_per_month: int,
) -> Fraction:
    """Nano-units per node-hour of hardware that was bought.

    Straight-line amortisation over ``months``, plus power, plus hosting. Money is in nano-units, ``pue`` in
    units of 1e-9; power is the node's draw at the wall over PUE, billed whether busy or not.
    """
    amortised = Fraction(purchase - residual, months * HOURS_PER_MONTH)
    power = Fraction(power_watts, 1000) * kwh_price * Fraction(pue, NANO)
    return amortised + power + Fraction(hosting_per_month, HOURS_PER_MONTH)


_CODES = """
    AED AFN ALL AMD AOA ARS AUD AWG AZN BAM BBD BDT BHD BIF BMD BND BOB BRL BSD BTN BWP BYN BZD CAD CDF CHF
    CLP CNY COP CRC CUP CVE CZK DJF DKK DOP DZD EGP ERN ETB EUR FJD FKP GBP GEL GHS GIP GMD GNF GTQ GYD HKD
    HNL HTG HUF IDR ILS INR IQD IRR ISK JMD JOD JPY KES KGS KHR KMF KPW KRW KWD KYD KZT LAK LBP LKR LRD LSL
    LYD MAD MDL MGA MKD MMK MNT MOP MRU MUR MVR MWK MXN MYR MZN NAD NGN NIO NOK NPR NZD OMR PAB PEN PGK PHP
    PKR PLN PYG QAR RON RSD RUB RWF SAR SBD SCR SDG SEK SGD SHP SLE SOS SRD SSP STN SVC SYP SZL THB TJS TMT
    TND TOP TRY TTD TWD TZS UAH UGX USD UYU UZS VES VND VUV WST XAF XCD XCG XOF XPF YER ZAR ZMW ZWG
"""
CURRENCIES = frozenset(_CODES.split())


CostParts = dict[str, Fraction]
"""Amount or weight per kind of resource: ``gpu``, ``vcpu``, ``gib``."""


def gpu_fraction(amounts: CostParts, weights: CostParts) -> Fraction:
    """The fraction of the node's price that its GPUs carry under a split by ratio."""
    whole = sum((amounts[kind] * weights[kind] for kind in amounts), Fraction(0))
    if whole <= 0:
        raise InputError("weights", weights, "weights of which at least one is above 0")
    return amounts["gpu"] * weights["gpu"] / whole


CapacityType = Literal["on-demand", "spot", "reserved", "owned"]
_NAMED = ("instance_type", "model", "capacity_type", "region", "zone", "pool", "cluster")


def _model_name(text: str) -> str:
    product = parse_product(text)
    if product.profile or product.shared:
        raise InputError("model", text, f"a whole GPU, such as {product.model}: slices follow their GPU")
    return product.model


ModelName = Annotated[Text, checked(_model_name)]


def _labels(value: object) -> object:
    if isinstance(value, Mapping) and not value:
        raise wrong(value, "at least one label, or no labels key at all")
    return value


class NodeMatch(DatedConfigModel):
    """The nodes and the time a row applies to. A key that is left out matches everything."""

    instance_type: Text | None = Field(None, description="text, as in node.kubernetes.io/instance-type")
    model: ModelName | None = Field(None, description="a GPU model, such as H100 or its product label")
    capacity_type: CapacityType | None = Field(None, description="on-demand, spot, reserved or owned")
    region: Text | None = Field(None, description="text, as in topology.kubernetes.io/region")
    zone: Text | None = Field(None, description="text, as in topology.kubernetes.io/zone")
    pool: Text | None = Field(None, description="text, the name of a node pool")
    cluster: Text | None = Field(None, description="text, the name of a cluster")
    labels: Annotated[dict[Text, Text] | None, BeforeValidator(_labels)] = Field(
        None, description="a mapping of node labels to values, all of which the node must have"
    )

    @cached_property
    def constraints(self) -> dict[str, str]:
        """Everything a node must be: ``{"model": "H100", "region": "eu-west-1", "label:rack": "r1"}``."""
        named = {name: value for name in _NAMED if (value := getattr(self, name)) is not None}
        return named | {f"label:{name}": value for name, value in (self.labels or {}).items()}

    @property
    def key(self) -> tuple[str, str]:
        """The look-up key: instance type before model, before neither."""
        for name in ("instance_type", "model"):
            if name in self.constraints:
                return name, self.constraints[name]
        return "", ""

    @property
    def rank(self) -> tuple[int, int]:
        """Larger is more specific: the instance type first, then the number of constraints."""
        return ("", "model", "instance_type").index(self.key[0]), len(self.constraints)

    def fits(self, known: Mapping[str, str]) -> bool:
        """Whether the row applies to a node with the facts ``known`` (see ``known_of``)."""
        return self.constraints.items() <= known.items()


def known_of(facts: NodeFacts, assumed_capacity_type: str) -> dict[str, str]:
    """The known facts of a node, under the names of ``NodeMatch.constraints``; unknown ones are left out."""
    known = {name: getattr(facts, name) for name in _NAMED}
    known["capacity_type"] = facts.capacity_type or assumed_capacity_type
    known |= {f"label:{name}": value for name, value in facts.labels.items()}
    return {name: value for name, value in known.items() if value}


_MONEY = "a plain decimal amount of at least 0 with at most 9 decimals, such as 6.88"
_CATEGORIES = {"spot": "Dynamic", "reserved": "Committed", "owned": "Other"}


def _day(text: str) -> date:
    if not re.fullmatch(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", text):
        raise InputError("date", text, "a day, such as 2026-11-21")
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise InputError("date", text, "a day of the calendar, such as 2026-11-21") from None


def _currency(code: str) -> str:
    if code not in CURRENCIES:
        raise wrong(code, "a currency code of ISO 4217 in use, such as USD, EUR or JPY")
    return code


Day = Annotated[date, checked(_day)]
Currency = Annotated[Text, AfterValidator(_currency)]
Gpus = Annotated[int, Field(ge=1, le=1024)]


class SourcedRow(NodeMatch):
    """A row with its source, which every row has to name."""

    name: Text | None = Field(None, description="text, a name for the row in invoices and messages")
    source: Text = Field(description="text, where the number was read: a price list, contract or invoice")
    retrieved: Day = Field(description="the day the number was read, such as 2026-11-21")
    dated: bool = Field(True, description="true, or false when the source itself bears no date")
    flags: tuple[Text, ...] = Field((), description="a list of short texts that are shown beside the price")
    notes: Text | None = Field(None, description="text for whoever reads the book")

    @property
    def title(self) -> str:
        """The row's name, or what it matches: ``p5.48xlarge/on-demand/us-east-1``."""
        rest = [value for name, value in self.constraints.items() if name not in ("instance_type", "model")]
        return self.name or "/".join([self.key[1], *rest])

    @property
    def provenance(self) -> str:
        """The source with its flags, as an invoice shows it."""
        flags = (*self.flags, *(() if self.dated else ("undated",)))
        return f"{self.source} ({', '.join(flags)})" if flags else self.source


class PriceRow(SourcedRow):
    """A row that prices GPUs: keyed by instance type, or by model."""

    @property
    def board_hour(self) -> Fraction:
        """Nano-units per GPU-hour before discounts, not yet rounded."""
        raise NotImplementedError

    @property
    def category(self) -> str:
        """FOCUS's pricing category."""
        return _CATEGORIES.get(self.capacity_type or "", "Standard")

    @model_validator(mode="after")
    def _is_keyed_and_bounded(self) -> PriceRow:
        if not self.key[0]:
            raise wrong(MISSING, "an instance_type, or a model", "instance_type")
        if self.board_hour > MAX_NANO_PER_BOARD_HOUR:
            found = plain(round(self.board_hour))
            raise wrong(ErrorRemark(f"{found} per GPU-hour"), "up to 1,000,000 per GPU-hour; is gpus right?")
        return self


class HostWeights(ConfigModel):
    gpu: NanoAmount = Field(description="the weight of one GPU, at least 0")
    vcpu: NanoAmount = Field(description="the weight of one vCPU, at least 0")
    gib: NanoAmount = Field(description="the weight of one GiB of memory, at least 0")


class HostPrice(ConfigModel):
    """A node whose price does not follow its GPUs alone."""

    vcpu: int = Field(ge=0, description="the number of vCPUs of the instance")
    gib: NanoAmount = Field(description="the GiB of memory of the instance")
    weights: HostWeights = Field(description="a mapping of gpu, vcpu and gib to weights")

    @model_validator(mode="after")
    def _weighs(self) -> HostPrice:
        if self.weights.gpu == 0:
            raise wrong(
                "0", "a weight above 0: a GPU that carries no price cannot be billed", "weights", "gpu"
            )
        return self

    def gpu_fraction(self, gpus: int) -> Fraction:
        amounts: CostParts = {
            "gpu": Fraction(gpus),
            "vcpu": Fraction(self.vcpu),
            "gib": Fraction(self.gib, NANO),
        }
        return gpu_fraction(amounts, {kind: Fraction(getattr(self.weights, kind)) for kind in amounts})


class ListPrice(PriceRow):
    """A list price, per instance or per GPU, by the hour or by the month of 730 hours."""

    per: Literal["instance", "gpu"] = Field("gpu", description="instance or gpu")
    gpus: Gpus | None = Field(None, description="the number of GPUs of the instance, 1 to 1024")
    per_hour: NanoAmount | None = Field(None, description=_MONEY)
    per_month: NanoAmount | None = Field(None, description=f"{_MONEY}; a month is 730 hours")
    currency: Currency | None = Field(None, description="the currency of the book")
    host: HostPrice | None = Field(None, description="a mapping of vcpu, gib and weights")

    @model_validator(mode="after")
    def _is_complete(self) -> ListPrice:
        if (self.per_hour is None) == (self.per_month is None):
            found = MISSING if self.per_hour is None else ErrorRemark("both are given")
            raise wrong(found, "exactly one of per_hour and per_month", "per_hour")
        if self.per == "instance" and self.gpus is None:
            raise wrong(MISSING, "the number of GPUs, which per: instance divides by", "gpus")
        for key in ("gpus", "host"):
            if self.per == "gpu" and getattr(self, key) is not None:
                raise wrong(ErrorRemark("given beside per: gpu"), f"{key} only where per: instance", key)
        return self

    @property
    def board_hour(self) -> Fraction:
        amount = Fraction(self.per_month or 0, HOURS_PER_MONTH) if self.per_hour is None else self.per_hour
        gpus = self.gpus or 1
        return Fraction(amount, gpus) * (self.host.gpu_fraction(gpus) if self.host else 1)


class OwnedHardware(PriceRow):
    """Bought hardware: amortisation, power and hosting of one node, divided by its GPUs."""

    gpus: Gpus = Field(description="the number of GPUs of the node, 1 to 1024")
    purchase: NanoAmount = Field(description=f"the purchase price of the node: {_MONEY}")
    residual: NanoAmount = Field(0, description="what it is worth at the end, at most the purchase price")
    months: int = Field(ge=1, le=240, description="the months it is written off over, 1 to 240")
    power_watts: int = Field(0, ge=0, le=1_000_000, description="the node's draw in whole watts")
    kwh_price: NanoAmount = Field(0, description=f"the price of a kilowatt-hour: {_MONEY}")
    pue: Annotated[NanoAmount, Field(ge=NANO, le=5 * NANO)] = Field(
        NANO, description="power usage effectiveness, 1 to 5"
    )
    hosting_per_month: NanoAmount = Field(0, description=f"space, network and hands per node: {_MONEY}")

    @model_validator(mode="after")
    def _is_consistent(self) -> OwnedHardware:
        if self.residual > self.purchase:
            raise wrong(plain(self.residual), "at most the purchase price", "residual")
        if (self.power_watts == 0) != (self.kwh_price == 0):
            key = "kwh_price" if self.power_watts else "power_watts"
            raise wrong(0, "power_watts and kwh_price together, or neither", key)
        return self

    @property
    def board_hour(self) -> Fraction:
        node_hour = owned_node_hour(
            purchase=self.purchase,
            residual=self.residual,
            months=self.months,
            power_watts=self.power_watts,
            kwh_price=self.kwh_price,
            pue=self.pue,
            hosting_per_month=self.hosting_per_month,
        )
        return node_hour / self.gpus

    @property
    def category(self) -> str:
        return "Other"


class Commitment(PriceRow):
    """An amount paid per period for so many GPU-hours, used or not."""

    amount: NanoAmount = Field(description=f"what is paid per period: {_MONEY}")
    period: Literal["hour", "day", "month"] = Field(description="hour, day or month (of 730 hours)")
    gpu_hours: int = Field(ge=1, description="the whole number of GPU-hours per period, at least 1")

    @property
    def board_hour(self) -> Fraction:
        return Fraction(self.amount, self.gpu_hours)

    @property
    def category(self) -> str:
        return "Committed"


FAR = 3
"""A price is far from others when it is over this many times their median, or under one in this many."""


class WarningCode(StrEnum):
    STALE = "stale"
    UNDATED = "undated"
    FUTURE = "future"
    EXPIRED = "expired"
    GAP = "gap"
    FAR_FROM_OTHERS = "far_from_others"
    UNKNOWN_MODEL = "unknown_model"


@dataclass(frozen=True, slots=True, order=True)
class BookWarning:
    """One thing to check: the titles of the rows it is about, and a sentence."""

    code: WarningCode
    rows: tuple[str, ...]
    detail: str


def check_rows(rows: Sequence[PriceRow], today: date, stale_after_days: int) -> tuple[BookWarning, ...]:
    """All warnings, sorted by code. Rows that share a source share a warning about its age."""
    return tuple(
        sorted([*_ages(rows, today, stale_after_days), *_validity(rows, today), *_far(rows), *_models(rows)])
    )


def _ages(rows: Sequence[PriceRow], today: date, stale_after_days: int) -> Iterable[BookWarning]:
    groups: dict[tuple[WarningCode, str], list[PriceRow]] = defaultdict(list)
    for row in rows:
        if row.retrieved > today:
            groups[(WarningCode.FUTURE, row.source)].append(row)
        if isinstance(row, ListPrice) and (today - row.retrieved).days > stale_after_days:
            groups[(WarningCode.STALE, row.source)].append(row)
        if not row.dated:
            groups[(WarningCode.UNDATED, row.source)].append(row)
    for (code, source), group in groups.items():
        oldest = min(row.retrieved for row in group)
        detail = {
            WarningCode.FUTURE: f"{source} was read on {oldest}, which is after {today}",
            WarningCode.STALE: f"{source} was read on {oldest}, {(today - oldest).days} days ago; "
            f"prices are called stale after {stale_after_days}",
            WarningCode.UNDATED: f"{source} bears no date of its own; it was read on {oldest}",
        }[code]
        yield BookWarning(code, _titles(group), detail)


def _validity(rows: Sequence[PriceRow], today: date) -> Iterable[BookWarning]:
    now = int(datetime(today.year, today.month, today.day, tzinfo=UTC).timestamp()) * 1000
    groups: dict[frozenset[tuple[str, str]], list[PriceRow]] = defaultdict(list)
    for row in rows:
        groups[frozenset(row.constraints.items())].append(row)
    for group in groups.values():
        group.sort(key=lambda row: row.start_ms)
        if group[-1].end_ms <= now:
            detail = f"{group[-1].title} ended at {iso(group[-1].end_ms)} and nothing follows it"
            yield BookWarning(WarningCode.EXPIRED, _titles(group), detail)
        for before, after in pairwise(group):
            if before.end_ms < after.start_ms:
                detail = f"nothing prices {after.title} from {iso(before.end_ms)} to {iso(after.start_ms)}"
                yield BookWarning(WarningCode.GAP, _titles([before, after]), detail)


def _far(rows: Sequence[PriceRow]) -> Iterable[BookWarning]:
    groups: dict[tuple[str, str], list[PriceRow]] = defaultdict(list)
    for row in rows:
        if isinstance(row, ListPrice) and row.model:
            groups[(row.model, row.capacity_type or "any capacity type")].append(row)
    for (model, capacity_type), group in groups.items():
        middle: Fraction = median(row.board_hour for row in group)
        for row in group:
            if len(group) >= 3 and not middle / FAR <= row.board_hour <= middle * FAR:
                detail = (
                    f"{plain(round(row.board_hour), 3)} per GPU-hour; the median of the {len(group)} rows "
                    f"for {model}, {capacity_type}, is {plain(round(middle), 3)}"
                )
                yield BookWarning(WarningCode.FAR_FROM_OTHERS, (row.title,), detail)


def _models(rows: Sequence[PriceRow]) -> Iterable[BookWarning]:
    unknown = {row.model for row in rows if row.model} - KNOWN_MODELS
    for model in unknown:
        detail = (
            f"{model} is no model that gpucost knows; it matches only nodes whose label says exactly that"
        )
        yield BookWarning(WarningCode.UNKNOWN_MODEL, _titles(r for r in rows if r.model == model), detail)


def _titles(rows: Iterable[PriceRow]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(row.title for row in rows))
