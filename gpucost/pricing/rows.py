"""The rows of a price book: list prices, owned hardware, commitments. docs/prices.md explains each key."""

from __future__ import annotations

import re
from datetime import date
from fractions import Fraction
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from gpucost.domain.configfile import MISSING, Amount, ConfigModel, Text, checked, wrong
from gpucost.domain.errors import InputError, Remark
from gpucost.domain.money import NANO, plain
from gpucost.domain.rates import MAX_NANO_PER_BOARD_HOUR
from gpucost.domain.time import HOUR_MS
from gpucost.pricing.amounts import (
    HOURS_PER_MONTH,
    HOURS_PER_PERIOD,
    CommitmentSplit,
    owned_node_hour,
    split_commitment,
)
from gpucost.pricing.currencies import CURRENCIES
from gpucost.pricing.match import Match
from gpucost.pricing.node_split import Parts, gpu_fraction

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


class Sourced(Match):
    """Where a row comes from; every row says so."""

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


class Row(Sourced):
    """A row that prices boards: keyed by instance type, or by model."""

    @property
    def board_hour(self) -> Fraction:
        """Nano-units per board-hour before discounts, not yet rounded."""
        raise NotImplementedError

    @property
    def category(self) -> str:
        """FOCUS's pricing category."""
        return _CATEGORIES.get(self.capacity_type or "", "Standard")

    @model_validator(mode="after")
    def _is_keyed_and_bounded(self) -> Row:
        if not self.key[0]:
            raise wrong(MISSING, "an instance_type, or a model", "instance_type")
        if self.board_hour > MAX_NANO_PER_BOARD_HOUR:
            found = plain(round(self.board_hour))
            raise wrong(Remark(f"{found} per board-hour"), "up to 1,000,000 per board-hour; is gpus right?")
        return self


class Weights(ConfigModel):
    gpu: Amount = Field(description="the weight of one GPU, at least 0")
    vcpu: Amount = Field(description="the weight of one vCPU, at least 0")
    gib: Amount = Field(description="the weight of one GiB of memory, at least 0")


class Host(ConfigModel):
    """A node whose price does not follow its GPUs alone."""

    vcpu: int = Field(ge=0, description="the number of vCPUs of the instance")
    gib: Amount = Field(description="the GiB of memory of the instance")
    weights: Weights = Field(description="a mapping of gpu, vcpu and gib to weights")

    @model_validator(mode="after")
    def _weighs(self) -> Host:
        if self.weights.gpu == 0:
            raise wrong(
                "0", "a weight above 0: a GPU that carries no price cannot be billed", "weights", "gpu"
            )
        return self

    def gpu_fraction(self, gpus: int) -> Fraction:
        amounts: Parts = {"gpu": Fraction(gpus), "vcpu": Fraction(self.vcpu), "gib": Fraction(self.gib, NANO)}
        return gpu_fraction(amounts, {kind: Fraction(getattr(self.weights, kind)) for kind in amounts})


class Price(Row):
    """A list price, per instance or per GPU, by the hour or by the month of 730 hours."""

    per: Literal["instance", "gpu"] = Field("gpu", description="instance or gpu")
    gpus: Gpus | None = Field(None, description="the number of GPUs of the instance, 1 to 1024")
    per_hour: Amount | None = Field(None, description=_MONEY)
    per_month: Amount | None = Field(None, description=f"{_MONEY}; a month is 730 hours")
    currency: Currency | None = Field(None, description="the currency of the book")
    host: Host | None = Field(None, description="a mapping of vcpu, gib and weights")

    @model_validator(mode="after")
    def _is_complete(self) -> Price:
        if (self.per_hour is None) == (self.per_month is None):
            found = MISSING if self.per_hour is None else Remark("both are given")
            raise wrong(found, "exactly one of per_hour and per_month", "per_hour")
        if self.per == "instance" and self.gpus is None:
            raise wrong(MISSING, "the number of GPUs, which per: instance divides by", "gpus")
        for key in ("gpus", "host"):
            if self.per == "gpu" and getattr(self, key) is not None:
                raise wrong(Remark("given beside per: gpu"), f"{key} only where per: instance", key)
        return self

    @property
    def board_hour(self) -> Fraction:
        amount = Fraction(self.per_month or 0, HOURS_PER_MONTH) if self.per_hour is None else self.per_hour
        gpus = self.gpus or 1
        return Fraction(amount, gpus) * (self.host.gpu_fraction(gpus) if self.host else 1)


class Owned(Row):
    """Bought hardware: amortisation, power and hosting of one node, divided by its GPUs."""

    gpus: Gpus = Field(description="the number of GPUs of the node, 1 to 1024")
    purchase: Amount = Field(description=f"the purchase price of the node: {_MONEY}")
    residual: Amount = Field(0, description="what it is worth at the end, at most the purchase price")
    months: int = Field(ge=1, le=240, description="the months it is written off over, 1 to 240")
    power_watts: int = Field(0, ge=0, le=1_000_000, description="the node's draw in whole watts")
    kwh_price: Amount = Field(0, description=f"the price of a kilowatt-hour: {_MONEY}")
    pue: Annotated[Amount, Field(ge=NANO, le=5 * NANO)] = Field(
        NANO, description="power usage effectiveness, 1 to 5"
    )
    hosting_per_month: Amount = Field(0, description=f"space, network and hands per node: {_MONEY}")

    @model_validator(mode="after")
    def _is_consistent(self) -> Owned:
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


class Commitment(Row):
    """An amount paid per period for so many GPU-hours, used or not."""

    amount: Amount = Field(description=f"what is paid per period: {_MONEY}")
    period: Literal["hour", "day", "month"] = Field(description="hour, day or month (of 730 hours)")
    gpu_hours: int = Field(ge=1, description="the whole number of GPU-hours per period, at least 1")

    @property
    def board_hour(self) -> Fraction:
        return Fraction(self.amount, self.gpu_hours)

    @property
    def category(self) -> str:
        return "Committed"

    @property
    def boards(self) -> Fraction:
        """How many boards the commitment pays for around the clock."""
        return Fraction(self.gpu_hours, HOURS_PER_PERIOD[self.period])

    def split(self, used_board_ms: int) -> CommitmentSplit:
        """One period's bill, divided by the board time that was used of it."""
        return split_commitment(self.amount, self.gpu_hours * HOUR_MS, used_board_ms)
