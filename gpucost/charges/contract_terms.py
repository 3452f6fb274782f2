"""Contracts for GPU capacity as data: what is committed, where, from when to when, and what it costs.

``ContractBook.parse`` reads YAML (docs/contracts.md). It is refused as a whole, with file, line, key, value
and what is allowed: two contracts that could cover the same use at the same time without an order between
them, an owner or account that does not exist, unknown keys, and times without an offset.

The price book (``gpucost.pricing``) says what a GPU-hour of a node costs by the list and by agreement, and
its ``commitments`` turn an amount into a unit price. What it cannot know is how much of a commitment is used
up: that is here. Field names follow FOCUS's commitment discounts (FOCUS_Spec, columns/commitmentdiscount*.md)
where it has one: spend or usage, upfront and recurring, used and unused.

Pure: the caller hands over text. ``contract_schedule`` says what a contract costs and commits over time,
``commitment_drawdown`` who uses it up.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from typing import Annotated, Literal, TypeVar

from pydantic import AfterValidator, Field, model_validator

from gpucost.domain.buckets import RESERVED
from gpucost.domain.configfile import (
    MISSING,
    ConfigModel,
    NanoAmount,
    Text,
    Version,
    checked,
    dotted,
    load_yaml,
    read_yaml,
    wrong,
)
from gpucost.domain.errors import ConfigError, ErrorRemark
from gpucost.domain.money import NANO
from gpucost.domain.time import HOUR_MS, Window, iso, parse_instant
from gpucost.pricing.price_rows import CapacityType, Currency, ModelName

T = TypeVar("T")

SHARED = "shared"
"""The owner of a contract that belongs to no team."""

ContractKind = Literal[
    "reservation", "savings_plan", "committed_use", "capacity_block", "neocloud", "owned", "spot"
]
UnusedPolicy = Literal["owner", "by_use", "platform"]
_QUANTITIES = ("gpus", "gpu_hours", "spend")
_PAYMENTS = ("upfront", "recurring", "residual")
_MONEY = "a plain decimal amount of at least 0 with at most 9 decimals, such as 459024"
_INSTANT = "an instant with an offset, such as 2026-10-01T00:00:00Z or 2026-10-01T06:00:00+02:00"

OffsetInstant = Annotated[int, checked(parse_instant)]
"""RFC 3339 with an offset, as milliseconds: a contract begins at a time of day, so a bare day is refused."""


def _not_empty(values: tuple[T, ...]) -> tuple[T, ...]:
    if not values:
        raise wrong(ErrorRemark("an empty list"), "a list of at least one, or no such key at all")
    return values


# A least length beside items would hide what is wrong with an item: those that are wrong do not count.
Names = Annotated[tuple[Text, ...], AfterValidator(_not_empty)]
Percent = Annotated[NanoAmount, Field(gt=0, le=100 * NANO)]
Gpus = Annotated[int, Field(ge=1, le=1_000_000)]
Positive = Annotated[NanoAmount, Field(gt=0)]


@dataclass(frozen=True, slots=True)
class ScopeReach:
    """The use that a contract can cover, all of these at once; None covers every value."""

    clusters: frozenset[str] | None
    pools: frozenset[str] | None
    models: frozenset[str] | None
    capacity_types: frozenset[str] | None

    def covers(self, cluster: str, pool: str, model: str, capacity_type: str) -> bool:
        return all(
            allowed is None or value in allowed
            for allowed, value in (
                (self.clusters, cluster),
                (self.pools, pool),
                (self.models, model),
                (self.capacity_types, capacity_type),
            )
        )

    def meets(self, other: ScopeReach) -> bool:
        """Whether some use could be covered by both."""
        pairs = (
            (self.clusters, other.clusters),
            (self.pools, other.pools),
            (self.models, other.models),
            (self.capacity_types, other.capacity_types),
        )
        return all(one is None or two is None or bool(one & two) for one, two in pairs)


class ContractAccount(ConfigModel):
    """A billing account of a provider: which clusters, or pools of them, are paid by it. Kubernetes does not
    say."""

    name: Text = Field(description="text, the account as the provider names it")
    clusters: Names = Field(description="a list of clusters whose nodes are paid by this account")
    pools: Names | None = Field(None, description="a list of node pools, where it pays for these only")


class ContractScope(ConfigModel):
    """What a contract covers. A key that is left out covers everything, but spot, and what was bought."""

    clusters: Names | None = Field(None, description="a list of clusters")
    pools: Names | None = Field(None, description="a list of node pools")
    models: Annotated[tuple[ModelName, ...], AfterValidator(_not_empty)] | None = Field(
        None, description="a list of GPU models, such as [H100]"
    )
    accounts: Names | None = Field(None, description="a list of names of the file's accounts")
    capacity_types: Annotated[tuple[CapacityType, ...], AfterValidator(_not_empty)] | None = Field(
        None, description="a list of on-demand, spot, reserved or owned"
    )


class RecurringPayment(ConfigModel):
    """An amount that is due again and again from start to end."""

    amount: Positive = Field(description="above 0: what is due each time")
    every: Literal["hour", "day", "month"] = Field(
        description="hour, day (24 hours) or month (of the calendar, in UTC)"
    )


class ContractChange(ConfigModel):
    """A change in the middle of a contract's life; what was before stays as it was."""

    at: OffsetInstant = Field(description=_INSTANT)
    gpus: Gpus | None = Field(None, description="the number of GPUs from then on, at least 1")
    gpu_hours: Positive | None = Field(None, description="the GPU-hours per period from then on, above 0")
    spend: Positive | None = Field(None, description="the committed amount per period from then on, above 0")
    amount: NanoAmount = Field(0, description=f"what is paid then, beside all else: {_MONEY}")
    end: OffsetInstant | None = Field(None, description=f"the new end: {_INSTANT}")


class ContractTerms(ConfigModel):
    """One contract. ``gpus`` are committed at every moment, ``gpu_hours`` and ``spend`` per period."""

    id: Text = Field(description="text, once in the file")
    kind: ContractKind = Field(
        description="reservation, savings_plan, committed_use, capacity_block, neocloud, owned or spot"
    )
    scope: ContractScope = Field(
        ContractScope(), description="a mapping of clusters, pools, models, accounts, capacity_types"
    )
    start: OffsetInstant = Field(description=_INSTANT)
    end: OffsetInstant = Field(description=f"{_INSTANT}; exclusive")
    order: int | None = Field(
        None, ge=1, le=1_000_000, description="a whole number; the smallest draws first"
    )
    gpus: Gpus | None = Field(None, description="the number of GPUs, at least 1")
    gpu_hours: Positive | None = Field(None, description="GPU-hours per period, above 0, in whole ms")
    spend: Positive | None = Field(None, description="the committed amount per period, above 0")
    per: Literal["hour", "day", "month", "term"] = Field(
        "hour", description="hour or day (use it or lose it), month or term (a pool), in UTC"
    )
    upfront: NanoAmount = Field(0, description=f"what is paid at the start: {_MONEY}")
    recurring: tuple[RecurringPayment, ...] = Field((), description="a list of amount and every")
    residual: NanoAmount = Field(0, description="what owned hardware is worth at the end, at most upfront")
    spread: Literal["as_paid", "term", "cash"] = Field(
        "as_paid",
        description="as_paid (each payment over the time it pays for), term (all of it evenly from start to "
        "end) or cash (each payment in the month in which it is due)",
    )
    price: Positive | None = Field(None, description="above 0, per GPU-hour by the contract")
    percent_off: Percent | None = Field(None, description="off the list price, above 0, at most 100")
    take_or_pay: Percent | None = Field(
        None, description="percent of the quantity that is paid used or not, above 0, at most 100"
    )
    overage_price: Positive | None = Field(
        None, description="above 0, per GPU-hour beyond the quantity; without it, the price book's price"
    )
    owner: Text = Field(SHARED, description="text, a team, or shared")
    unused: UnusedPolicy | None = Field(
        None, description="owner, by_use or platform: who pays for what was not used"
    )
    planned: bool = Field(
        False, description="true for a contract that is only considered: nothing draws on it"
    )
    changes: tuple[ContractChange, ...] = Field((), description="a list of changes, by their instants")
    notes: Text | None = Field(None, description="text for whoever reads the file")

    @property
    def last_ms(self) -> int:
        """The end, changes included."""
        return next((change.end for change in reversed(self.changes) if change.end is not None), self.end)

    @property
    def term(self) -> Window:
        return Window(self.start, self.last_ms)

    @property
    def quantity(self) -> str:
        """``gpus``, ``gpu_hours`` or ``spend``; empty for spot, which commits nothing."""
        return next((name for name in _QUANTITIES if getattr(self, name) is not None), "")

    @property
    def is_spend(self) -> bool:
        return self.spend is not None

    @property
    def team(self) -> str:
        """The team that owns it, or empty text."""
        return "" if self.owner == SHARED else self.owner

    @property
    def payer_of_unused(self) -> UnusedPolicy:
        """Where the contract does not say: its owner, or the platform for a shared one."""
        return self.unused or ("owner" if self.team else "platform")

    @property
    def has_payments(self) -> bool:
        return bool(self.upfront or self.recurring or any(change.amount for change in self.changes))

    @model_validator(mode="after")
    def _has_time(self) -> ContractTerms:
        if self.start >= self.end:
            raise wrong(iso(self.end), f"a time after start, {iso(self.start)}", "end")
        before, end = self.start, self.end
        for n, change in enumerate(self.changes):
            if not before < change.at < end:
                allowed = f"a time after {iso(before)} and before {iso(end)}: changes in their order"
                raise wrong(iso(change.at), allowed, "changes", n, "at")
            if change.end is not None and change.end <= change.at:
                raise wrong(
                    iso(change.end), f"a time after the change, {iso(change.at)}", "changes", n, "end"
                )
            before, end = change.at, change.end or end
        return self

    @model_validator(mode="after")
    def _has_a_quantity(self) -> ContractTerms:
        given = [name for name in _QUANTITIES if getattr(self, name) is not None]
        if self.kind == "spot":
            self._refuse_all("spot commits nothing and is paid by use", *_QUANTITIES, *_PAYMENTS, "price")
            return self
        if len(given) != 1:
            found = ErrorRemark(f"{' and '.join(given)} are given") if given else MISSING
            raise wrong(found, "exactly one of gpus, gpu_hours and spend", given[1] if given else "gpus")
        for n, change in enumerate(self.changes):
            for name in _QUANTITIES:
                if name != given[0] and getattr(change, name) is not None:
                    allowed = f"a change of {given[0]}, the contract's quantity"
                    raise wrong(getattr(change, name), allowed, "changes", n, name)
        for path, hours in (
            (("gpu_hours",), self.gpu_hours),
            *((("changes", n, "gpu_hours"), change.gpu_hours) for n, change in enumerate(self.changes)),
        ):
            if hours is not None and hours * HOUR_MS % NANO:
                raise wrong(ErrorRemark("no whole number of milliseconds"), "whole milliseconds", *path)
        return self

    @model_validator(mode="after")
    def _has_a_price(self) -> ContractTerms:
        if self.kind == "spot":
            return self
        if self.residual > self.upfront:
            raise wrong(ErrorRemark("more than upfront"), "at most upfront", "residual")
        if self.residual and self.spread == "cash":
            raise wrong(
                ErrorRemark("given beside spread: cash"), "no residual: cash is what is paid", "residual"
            )
        if self.is_spend:
            if (self.price is None) == (self.percent_off is None):
                found = MISSING if self.price is None else ErrorRemark("both are given")
                raise wrong(found, "exactly one of price and percent_off: what use costs of it", "price")
            self._refuse_all("spend is paid whole, used or not", "take_or_pay")
            return self
        self._refuse_all("only spend is drawn at a percentage", "percent_off")
        if self.price is None:
            self._refuse_all("it needs a price", "take_or_pay")
            if not self.has_payments:
                raise wrong(MISSING, "what it costs: upfront, recurring, or price", "upfront")
        elif self.has_payments:
            raise wrong(ErrorRemark("given beside payments"), "a price, or upfront and recurring", "price")
        return self

    @model_validator(mode="after")
    def _is_of_its_kind(self) -> ContractTerms:
        if self.kind == "savings_plan" and not self.is_spend:
            raise wrong(MISSING, "spend: a savings plan commits an amount", "spend")
        if self.kind in ("reservation", "capacity_block", "owned") and self.is_spend:
            raise wrong(ErrorRemark("given"), f"gpus or gpu_hours: {self.kind} commits GPUs", "spend")
        if self.kind == "owned" and self.gpus is None:
            raise wrong(MISSING, "the number of GPUs that were bought", "gpus")
        if self.kind != "owned":
            self._refuse_all("only owned hardware is worth something at the end", "residual")
        if self.kind == "capacity_block":
            self._refuse_all(
                "a capacity block is paid whole at the start and never changes", "recurring", "changes"
            )
        if self.per == "term" and any(getattr(change, self.quantity) for change in self.changes):
            raise wrong(
                ErrorRemark("changes the quantity"),
                "no new quantity: it is that of the whole term",
                "changes",
            )
        if self.unused == "owner" and not self.team:
            raise wrong("owner", "by_use or platform: the contract is shared", "unused")
        if self.team.startswith(RESERVED):
            raise wrong(self.owner, f"a team, or shared; no team's name begins with {RESERVED}", "owner")
        if self.spread == "term" and any(change.end is not None for change in self.changes):
            allowed = "as_paid or cash: with a new end, all of it evenly would change months that are over"
            raise wrong("term", allowed, "spread")
        if self.planned and self.per not in ("hour", "day"):
            raise wrong(self.per, "hour or day: a pool cannot be tried on a part of its time", "per")
        if self.planned:
            self._refuse_all("a planned contract is tried on other months", "changes")
        return self

    def _refuse_all(self, why: str, *names: str) -> None:
        for name in names:
            if getattr(self, name):
                raise wrong(ErrorRemark("given"), f"no {name}: {why}", name)


class ContractFile(ConfigModel):
    """A whole file of contracts."""

    version: Version = Field(description="1, the version of this format")
    currency: Currency = Field(description="a currency code of ISO 4217 in use, such as USD, EUR or JPY")
    accounts: tuple[ContractAccount, ...] = Field((), description="a list of billing accounts")
    contracts: Annotated[tuple[ContractTerms, ...], AfterValidator(_not_empty)] = Field(
        description="a list of contracts, at least one"
    )

    @model_validator(mode="after")
    def _names_exist(self) -> ContractFile:
        for section, key, names in (
            ("accounts", "name", [account.name for account in self.accounts]),
            ("contracts", "id", [terms.id for terms in self.contracts]),
        ):
            for n, name in enumerate(names):
                if name in names[:n]:
                    there = dotted((section, names.index(name)))
                    raise wrong(name, f"each once; {there} has it already", section, n, key)
        accounts = [account.name for account in self.accounts]
        for n, terms in enumerate(self.contracts):
            for name in terms.scope.accounts or ():
                if name not in accounts:
                    allowed = f"an account of the file: {', '.join(accounts) or 'there is none'}"
                    raise wrong(name, allowed, "contracts", n, "scope", "accounts")
            if not self.reach(terms):
                found = ErrorRemark("covers nothing")
                raise wrong(found, "clusters and pools that its accounts pay for", "contracts", n, "scope")
        return self

    @model_validator(mode="after")
    def _is_ordered(self) -> ContractFile:
        real = [
            (n, terms) for n, terms in enumerate(self.contracts) if not terms.planned and terms.kind != "spot"
        ]
        for (m, one), (n, two) in combinations(real, 2):
            if one.order is not None and two.order is not None and one.order != two.order:
                continue
            if one.term.intersect(two.term) is None:
                continue
            if any(a.meets(b) for a in self.reach(one) for b in self.reach(two)):
                here, there = dotted(("contracts", n)), dotted(("contracts", m))
                found = f"{two.id} in {here} and {one.id} in {there} cover the same use at the same time"
                allowed = "order in both, two different numbers: the smaller one draws first"
                raise wrong(ErrorRemark(found), allowed, "contracts", n, "order")
        return self

    def reach(self, terms: ContractTerms) -> tuple[ScopeReach, ...]:
        """The use that a contract covers, an alternative for each account; none where nothing fits."""
        scope, kind = terms.scope, terms.kind
        # Without a word on it: no provider's plan covers spot, nor hardware that was bought.
        types: frozenset[str] = frozenset({"spot"} if kind == "spot" else {"", "on-demand", "reserved"})
        types |= {"owned"} if kind == "owned" else frozenset()
        whole = ScopeReach(
            _set(scope.clusters),
            _set(scope.pools),
            _set(scope.models),
            _set(scope.capacity_types) or types,
        )
        if scope.accounts is None:
            return (whole,)
        found = []
        for account in self.accounts:
            if account.name in scope.accounts:
                clusters = _both(whole.clusters, _set(account.clusters))
                pools = _both(whole.pools, _set(account.pools))
                if clusters != frozenset() and pools != frozenset():
                    found.append(ScopeReach(clusters, pools, whole.models, whole.capacity_types))
        return tuple(found)


def _set(names: tuple[str, ...] | None) -> frozenset[str] | None:
    return None if names is None else frozenset(names)


def _both(one: frozenset[str] | None, two: frozenset[str] | None) -> frozenset[str] | None:
    return two if one is None else one if two is None else one & two


@dataclass(frozen=True)
class ContractBook:
    """Validated contracts, in the order in which they draw: by ``order``, then by id."""

    file: ContractFile

    @classmethod
    def parse(cls, text: str, file: str, teams: Collection[str] | None = None) -> ContractBook:
        """YAML text -> ContractBook; ``file`` is named in errors. With ``teams``, owners must be among them.

        Raises ConfigError for the first error.
        """
        found = load_yaml(text, file, ContractFile)
        for n, terms in enumerate(found.contracts):
            if teams is not None and terms.team and terms.team not in teams:
                _, lines = read_yaml(text, file)
                key = ("contracts", n, "owner")
                allowed = f"{SHARED}, or a team: {', '.join(sorted(teams)) or 'there is none'}"
                raise ConfigError(file, dotted(key), terms.owner, allowed, lines.get(key))
        return cls(found)

    @property
    def currency(self) -> str:
        return self.file.currency

    @cached_property
    def in_force(self) -> tuple[ContractTerms, ...]:
        """Contracts that commit something, planned ones left out."""
        return self._sorted(terms for terms in self.file.contracts if not terms.planned and terms.quantity)

    @cached_property
    def planned(self) -> tuple[ContractTerms, ...]:
        return self._sorted(terms for terms in self.file.contracts if terms.planned and terms.quantity)

    @cached_property
    def spot(self) -> tuple[ContractTerms, ...]:
        return self._sorted(terms for terms in self.file.contracts if terms.kind == "spot")

    @staticmethod
    def _sorted(found: Iterable[ContractTerms]) -> tuple[ContractTerms, ...]:
        return tuple(sorted(found, key=lambda terms: (terms.order or 0, terms.id)))
