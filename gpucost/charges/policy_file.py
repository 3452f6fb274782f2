"""The charge policy as data: who pays for what, dated and versioned like the price book.

``PolicyBook.parse`` reads YAML (docs/charges.md): policies by cluster and time, quotas by pool and time,
cohorts, reservations, rates of exchange, floors and caps of teams. Quotas, cohorts and reservations may stand
in a file of their own (``QuotaFile``), as ``gpucost chargeback quotas`` writes it. What is wrong stops it
with file, line, key, value and what is allowed; so does a policy by which a GPU-hour could be paid out that
nobody pays in.

``rule_at`` gives the policy of a cluster at an instant, and the plain one (by use, all idle time kept by the
platform) where the file has none. ``edges`` are the instants at which something changes: charges are divided
there, to the millisecond. Pure: the caller hands over text.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from enum import StrEnum
from fractions import Fraction
from functools import cached_property
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from gpucost.charges.contract_terms import ContractBook
from gpucost.charges.quota_balance import PoolQuota, QuotaCohort
from gpucost.charges.quota_history import QueueReservation, by_pool, double_reservation, inside
from gpucost.domain.buckets import RESERVED
from gpucost.domain.configfile import (
    MISSING,
    ConfigModel,
    DatedConfigModel,
    NanoAmount,
    Text,
    Version,
    checked,
    dotted,
    load_yaml,
    wrong,
)
from gpucost.domain.errors import ConfigError, ErrorRemark
from gpucost.domain.money import NANO, check_currency
from gpucost.domain.time import Window, iso

CurrencyCode = Annotated[str, checked(check_currency)]
Factor = Annotated[NanoAmount, Field(le=100 * NANO)]
Percent = Annotated[NanoAmount, Field(gt=0, le=100 * NANO)]
_SPREAD = "platform (it keeps the cost), by_quota, by_use or equally (among the teams of access)"
_CLUSTERS = "names of clusters; left out, all that no other policy names"


class ChargeBase(StrEnum):
    """What a team pays for."""

    USE = "use"
    """What its pods held."""
    NOMINAL = "nominal"
    """Its quota, whether it used it or not; time beyond it is free unless ``borrowed_factor`` says
    otherwise."""
    LARGER = "larger"
    """The larger of the two at every moment: its quota, and what it held beyond it."""
    TWO_PART = "two_part"
    """``fixed_part`` of the price on the quota, the rest of it on use."""


class SpreadRule(StrEnum):
    """Who bears time that is nobody's."""

    PLATFORM = "platform"
    BY_QUOTA = "by_quota"
    BY_USE = "by_use"
    EQUALLY = "equally"


def _as_list(value: object) -> object:
    return (value,) if isinstance(value, str) else value


class WorkDiscount(ConfigModel):
    """A reduction for work that can be interrupted: on capacity that can be taken away, or in queues whose
    work is preempted first."""

    capacity_type: Literal["spot", "on-demand", "reserved", "owned"] | None = Field(
        None, description="capacity type of the node, such as spot"
    )
    queue: Annotated[tuple[Text, ...], BeforeValidator(_as_list), Field(min_length=1)] | None = Field(
        None, description="name of a ClusterQueue, or a list of names"
    )
    percent: Percent = Field(description="above 0, at most 100")

    @model_validator(mode="after")
    def _is_of_one_thing(self) -> WorkDiscount:
        if (self.capacity_type is None) == (self.queue is None):
            found = MISSING if self.queue is None else ErrorRemark("so is queue")
            raise wrong(found, "exactly one of capacity_type and queue", "capacity_type")
        return self

    def covers(self, capacity_type: str, queue: str) -> bool:
        return capacity_type == self.capacity_type if self.queue is None else queue in self.queue


class ChargePolicy(DatedConfigModel):
    """One policy: for these clusters, from one instant to another. Factors are nano-units of 1."""

    clusters: tuple[Text, ...] = Field((), description=_CLUSTERS)
    base: ChargeBase = Field(ChargeBase.USE, strict=False, description="use, nominal, larger or two_part")
    fixed_part: Annotated[NanoAmount, Field(le=NANO)] | None = Field(
        None, description="0 to 1: with base two_part, the part of the price that is charged on the quota"
    )
    borrowed_factor: Factor | None = Field(
        None, description="0 to 100, on the price of use beyond the quota; 1, with base nominal 0"
    )
    lent_credit: Factor | None = Field(
        None, description="0 to 100, on what its owner pays for quota that others used"
    )
    idle_of_quota: Literal["owner", "platform"] | None = Field(
        None, description="owner or platform: who bears quota that its owner did not use (base use only)"
    )
    idle_of_nobody: SpreadRule = Field(SpreadRule.PLATFORM, strict=False, description=_SPREAD)
    unavailable: SpreadRule = Field(SpreadRule.PLATFORM, strict=False, description=_SPREAD)
    unknown: SpreadRule = Field(SpreadRule.PLATFORM, strict=False, description=_SPREAD)
    overhead: SpreadRule = Field(SpreadRule.PLATFORM, strict=False, description=_SPREAD)
    spread_over: Literal["hour", "month"] = Field(
        "hour",
        description="hour or month: whether time that is nobody's goes to those of its own ledger window or "
        "to those of the whole calendar month",
    )
    spread_seen_by: Literal["platform", "teams"] = Field(
        "platform",
        description="platform or teams: who sees, beside its own share, the whole that was spread",
    )
    overhead_teams: tuple[Text, ...] = Field(
        (), description="names of teams whose use is overhead: they are not charged, others may be"
    )
    access: tuple[Text, ...] = Field((), description="names of the teams among which time is shared equally")
    discounts: tuple[WorkDiscount, ...] = Field((), description="a list of discounts")
    mark_up: Percent | None = Field(None, description="per cent on every charge, above 0, at most 100")

    @property
    def own_factor(self) -> int:
        """The part of the price that an owner pays for quota it did not use, in nano-units of 1."""
        if self.base is ChargeBase.USE:
            return NANO if self.idle_of_quota == "owner" else 0
        return (self.fixed_part or 0) if self.base is ChargeBase.TWO_PART else NANO

    @property
    def use_factor(self) -> int:
        """The part of the price that is paid for use beyond the quota, in nano-units of 1."""
        asked = self.borrowed_factor
        if self.base is ChargeBase.TWO_PART:
            return (NANO - (self.fixed_part or 0)) * (NANO if asked is None else asked) // NANO
        if self.base is ChargeBase.NOMINAL:
            return asked or 0
        return NANO if asked is None else asked

    @property
    def credit_factor(self) -> int:
        """Of what an owner pays for quota that others used, the part it gets back, in nano-units of 1.

        Left out, it is what makes borrower and owner pay the lent GPU once between them, as far as that is
        at least 0: borrowed + own - own x credit = 1.
        """
        if self.lent_credit is not None:
            return self.lent_credit
        own = self.own_factor
        return 0 if own == 0 else max(0, min(NANO, (self.use_factor + own - NANO) * NANO // own))

    @property
    def spreads(self) -> Mapping[str, SpreadRule]:
        """The keys that say how time that is nobody's is spread, in the order of the file's description."""
        keys = ("idle_of_nobody", "unavailable", "unknown", "overhead")
        return {key: getattr(self, key) for key in keys}

    def discount_of(self, capacity_type: str, queue: str) -> int:
        """Nano-units of 1 that are taken off the price of work on such a node and of this ClusterQueue: the
        larger, where two discounts are for it."""
        return max(
            (each.percent // 100 for each in self.discounts if each.covers(capacity_type, queue)), default=0
        )

    @model_validator(mode="after")
    def _makes_sense(self) -> ChargePolicy:
        if (self.fixed_part is None) == (self.base is ChargeBase.TWO_PART):
            found: object = MISSING if self.fixed_part is None else ErrorRemark("given")
            raise wrong(found, "given with base two_part, and only there", "fixed_part")
        if self.idle_of_quota is not None and self.base is not ChargeBase.USE:
            allowed = f"left out: with base {self.base.value} owners pay their quota, used or not"
            raise wrong(self.idle_of_quota, allowed, "idle_of_quota")
        if self.lent_credit and not self.own_factor:
            allowed = (
                "0: without idle_of_quota: owner nobody pays for the quota that the credit would be paid for"
            )
            raise wrong(_shown(self.lent_credit), allowed, "lent_credit")
        if self.lent_credit is not None and self.own_factor * self.lent_credit > self.use_factor * NANO:
            most = Fraction(self.use_factor, self.own_factor)
            allowed = (
                f"at most {_shown(int(most * NANO))}: of a lent GPU-hour borrowers pay "
                f"{_shown(self.use_factor)}; a policy that pays out more does not conserve"
            )
            raise wrong(_shown(self.lent_credit), allowed, "lent_credit")
        for key, rule in self.spreads.items():
            if rule is SpreadRule.EQUALLY and not self.access:
                raise wrong(rule.value, "with access: the teams among which it is shared", key)
        if self.overhead is not SpreadRule.PLATFORM and not self.overhead_teams:
            raise wrong(
                self.overhead.value, "with overhead_teams: the teams whose use is overhead", "overhead"
            )
        for key in ("access", "overhead_teams", "clusters"):
            _once(getattr(self, key), key)
        for name in sorted({*self.access} & {*self.overhead_teams}):
            raise wrong(name, "teams that are not in overhead_teams", "access")
        return self

    @model_validator(mode="after")
    def _discounts_once(self) -> ChargePolicy:
        types, queues = set[str](), set[str]()
        for n, each in enumerate(self.discounts):
            if each.capacity_type is not None and each.capacity_type in types:
                raise wrong(each.capacity_type, "each capacity type once", "discounts", n, "capacity_type")
            types |= set() if each.capacity_type is None else {each.capacity_type}
            for name in each.queue or ():
                if name in queues:
                    raise wrong(name, "each queue once", "discounts", n, "queue")
                queues.add(name)
        return self


def _once(names: tuple[str, ...], key: str) -> None:
    for n, name in enumerate(names):
        if name in names[:n] or name.startswith(RESERVED):
            raise wrong(name, f"each name once, not beginning with {RESERVED}", key, n)


def _shown(nano: int) -> str:
    whole, rest = divmod(nano, NANO)
    return f"{whole}.{rest:09d}".rstrip("0").rstrip(".")


class ExchangeRate(DatedConfigModel):
    """What one unit of the ledger's currency is in the currency of the charges."""

    from_currency: CurrencyCode = Field(alias="from", description="currency of the ledger, such as USD")
    rate: Annotated[NanoAmount, Field(gt=0)] = Field(description="above 0, such as 0.92")


class TeamLimit(ConfigModel):
    """The least and the most that a team pays for a calendar month, in the currency of the charges."""

    team: Text = Field(description="text, the team's name")
    floor: NanoAmount | None = Field(None, description="the least for a month, such as 1000")
    cap: NanoAmount | None = Field(None, description="the most for a month, such as 50000")

    @model_validator(mode="after")
    def _is_a_range(self) -> TeamLimit:
        if self.floor is None and self.cap is None:
            raise wrong(MISSING, "a floor, a cap or both", "floor")
        if self.floor is not None and self.cap is not None and self.floor > self.cap:
            raise wrong(_shown(self.cap), f"at least the floor, {_shown(self.floor)}", "cap")
        return self


class QuotaFile(ConfigModel):
    """A file of quotas, cohorts and reservations alone, which a file of policies names."""

    version: Version = Field(description="1, the version of this format")
    quotas: tuple[PoolQuota, ...] = Field((), description="a list of quotas")
    cohorts: tuple[QuotaCohort, ...] = Field((), description="a list of cohorts")
    reservations: tuple[QueueReservation, ...] = Field((), description="a list of reservations")


class PolicyFile(ConfigModel):
    """A whole file of charge policies."""

    version: Version = Field(description="1, the version of this format")
    name: Text = Field(description="text, such as 'by use, idle spread': previews name it")
    currency: CurrencyCode | None = Field(
        None, description="a currency code of ISO 4217; left out, the ledger's own"
    )
    rates: tuple[ExchangeRate, ...] = Field((), description="a list of rates of exchange")
    policies: tuple[ChargePolicy, ...] = Field((), description="a list of policies")
    quotas: tuple[PoolQuota, ...] = Field((), description="a list of quotas")
    cohorts: tuple[QuotaCohort, ...] = Field((), description="a list of cohorts")
    reservations: tuple[QueueReservation, ...] = Field((), description="a list of reservations")
    quotas_file: Text | None = Field(
        None,
        description="text, a file of more quotas, cohorts and reservations, as seen from the folder of this "
        "file",
    )
    contracts_file: Text | None = Field(
        None,
        description="text, a file of contracts, as seen from the folder of this file",
    )
    limits: tuple[TeamLimit, ...] = Field((), description="a list of floors and caps of teams")

    @model_validator(mode="after")
    def _is_unambiguous(self) -> PolicyFile:
        self.check()
        return self

    def check(self) -> None:
        """Raises pydantic's error for parts that contradict each other."""
        self._refuse_clashes()
        for n, limit in enumerate(self.limits):
            if limit.team in [each.team for each in self.limits[:n]]:
                raise wrong(limit.team, "each team once", "limits", n, "team")
        if self.rates and self.currency is None:
            raise wrong(MISSING, "the currency of the charges, where there are rates", "currency")
        self._check_cohorts()

    def _refuse_clashes(self) -> None:
        for n, policy in enumerate(self.policies):
            for m, other in enumerate(self.policies[:n]):
                both = not policy.clusters and not other.clusters
                same = both or {*policy.clusters} & {*other.clusters}
                if same and policy.coincides(other):
                    found = ErrorRemark(f"the same cluster and time as {dotted(('policies', m))}")
                    raise wrong(found, "one policy for a cluster at a time", "policies", n)
        alike: dict[object, list[tuple[int, PoolQuota]]] = defaultdict(list)
        for n, quota in enumerate(self.quotas):
            earlier_ones = alike[quota.account, quota.model]
            for m, before in earlier_ones:
                here = quota.cluster is None or before.cluster is None or quota.cluster == before.cluster
                if here and quota.coincides(before):
                    found = ErrorRemark(f"the same quota and time as {dotted(('quotas', m))}")
                    raise wrong(
                        found, "one quota of a team or queue, model and cluster at a time", "quotas", n
                    )
            earlier_ones.append((n, quota))
        twice = double_reservation(self.reservations)
        if twice is not None:
            found = ErrorRemark(f"the same queue and time as {dotted(('reservations', twice[0]))}")
            allowed = "one reservation of a queue, model and cluster at a time"
            raise wrong(found, allowed, "reservations", twice[1])
        for n, rate in enumerate(self.rates):
            for m, earlier in enumerate(self.rates[:n]):
                if rate.from_currency == earlier.from_currency and rate.coincides(earlier):
                    found = ErrorRemark(f"the same time as {dotted(('rates', m))}")
                    raise wrong(found, "one rate of a currency at a time", "rates", n)

    def _check_cohorts(self) -> None:
        parents = {each.name: each.parent for each in self.cohorts}
        for n, cohort in enumerate(self.cohorts):
            if cohort.name in [each.name for each in self.cohorts[:n]]:
                raise wrong(cohort.name, "each cohort once", "cohorts", n, "name")
            seen, above = {cohort.name}, cohort.parent
            while above is not None:
                if above in seen:
                    raise wrong(cohort.parent, "a tree: this leads back to itself", "cohorts", n, "parent")
                seen.add(above)
                above = parents.get(above)


def _joined(file: PolicyFile, name: str, text: str, beside: str) -> PolicyFile:
    """``file`` with the lists of the file ``beside`` it after its own. Raises ConfigError."""
    more = load_yaml(text, beside, QuotaFile)
    sections = ("quotas", "cohorts", "reservations")
    both = file.model_copy(update={name: getattr(file, name) + getattr(more, name) for name in sections})
    try:
        both.check()
    except PydanticCustomError as error:
        context = error.context or {}
        section, n, *rest = context["key"]
        own = len(getattr(file, section))
        # Of two that clash, the later one is named, and that is the other file's where either is.
        raise ConfigError(
            beside if n >= own else name,
            dotted((section, n - own if n >= own else n, *rest)),
            context["value"],
            context["allowed"],
        ) from None
    return both


PLAIN = ChargePolicy.model_validate({})
"""By use, and all idle time is kept by the platform."""


def files_named(text: str, name: str) -> tuple[str, ...]:
    """The files that a policy (YAML) names. Raises ConfigError."""
    file = load_yaml(text, name, PolicyFile)
    return tuple(each for each in (file.quotas_file, file.contracts_file) if each is not None)


@dataclass(frozen=True)
class PolicyBook:
    """A validated file. ``team_quotas`` (GPUs, of the team rules) weigh ``by_quota`` where the file has no
    quotas of a pool; they are no quotas that anybody pays for."""

    file: PolicyFile
    name: str = "policy"
    team_quotas: Mapping[str, Fraction] = field(default_factory=dict)
    text: str = field(default="", repr=False)
    files: Mapping[str, str] = field(default_factory=dict, repr=False)
    """The texts of the files that it names, by the names that it gives them."""
    contracts: ContractBook | None = None

    @classmethod
    def parse(
        cls,
        text: str,
        name: str,
        team_quotas: Mapping[str, Fraction] | None = None,
        beside: Callable[[str], tuple[str, str]] | None = None,
    ) -> PolicyBook:
        """YAML text -> PolicyBook; ``name`` is the file's, for errors. ``beside`` gives text and name of a
        file that it names. Raises ConfigError for the first error."""
        file, files, contracts = load_yaml(text, name, PolicyFile), {}, None

        def other(key: str, named: str) -> tuple[str, str]:
            if beside is None:
                raise ConfigError(name, key, named, "left out: no other file is read here")
            found = beside(named)
            files[named] = found[0]
            return found

        if file.quotas_file is not None:
            file = _joined(file, name, *other("quotas_file", file.quotas_file))
        if file.contracts_file is not None:
            contracts = ContractBook.parse(*other("contracts_file", file.contracts_file))
        book = cls(file, name, dict(team_quotas or {}), text, files, contracts)
        book._check_contracts()
        book._check_quotas()
        return book

    def _check_contracts(self) -> None:
        """By quota, a team pays for GPUs that others used: what contracts made of its own use is no part of
        that."""
        for n, policy in enumerate(self.file.policies if self.contracts else ()):
            if policy.base is not ChargeBase.USE:
                allowed = "use, where contracts_file says what use cost"
                raise ConfigError(self.name, f"policies[{n}].base", policy.base.value, allowed)
        if self.contracts is not None and self.file.currency not in (None, self.contracts.currency):
            allowed = f"{self.contracts.currency}, the currency of the contracts; or left out"
            raise ConfigError(self.name, "currency", self.file.currency or "", allowed)

    def _check_quotas(self) -> None:
        if self.file.quotas or any(weight > 0 for weight in self.team_quotas.values()):
            weights = True
        else:
            weights = False
        for n, policy in enumerate(self.file.policies):
            if not self.file.quotas and policy.base is not ChargeBase.USE:
                key, value = "base", policy.base.value
            elif not self.file.quotas and policy.idle_of_quota == "owner":
                key, value = "idle_of_quota", "owner"
            elif not weights and SpreadRule.BY_QUOTA in policy.spreads.values():
                key = next(key for key, rule in policy.spreads.items() if rule is SpreadRule.BY_QUOTA)
                value = SpreadRule.BY_QUOTA.value
            else:
                continue
            raise ConfigError(
                self.name, f"policies[{n}].{key}", value, "with quotas: a list of the teams' GPUs"
            )

    @property
    def title(self) -> str:
        return self.file.name

    @property
    def is_plain(self) -> bool:
        """Whether it says nothing: teams pay what their pods held."""
        return not (self.file.policies or self.file.limits or self.file.currency or self.contracts)

    def check_teams(self, known: Set[str]) -> None:
        """Raises ConfigError for a team that is not ``known``: nobody would be sent its bill."""
        named = [
            *((self._place_of_quota(n), each.team) for n, each in enumerate(self.file.quotas) if each.team),
            *((f"limits[{n}].team", each.team) for n, each in enumerate(self.file.limits)),
            *(
                (f"policies[{n}].{key}[{m}]", team)
                for n, policy in enumerate(self.file.policies)
                for key in ("access", "overhead_teams")
                for m, team in enumerate(getattr(policy, key))
            ),
        ]
        if self.contracts is not None:
            terms = self.contracts.file.contracts
            named += [(f"contracts[{n}].owner", each.team) for n, each in enumerate(terms) if each.team]
        for key, team in named:
            if team not in known:
                allowed = f"a team of the team rules or of the ledger: {', '.join(sorted(known))}"
                raise ConfigError(self.name, key, team, allowed)

    def _place_of_quota(self, n: int) -> str:
        """Those of the other file stand after the policy's own."""
        own = len(load_yaml(self.text, self.name, PolicyFile).quotas) if self.text else n + 1
        return f"quotas[{n}].team" if n < own else f"{self.file.quotas_file}: quotas[{n - own}].team"

    def currency_of(self, ledger_currency: str, window: Window) -> str:
        """The currency of the charges. Raises ConfigError where a rate is missing at some time of
        ``window``, and for contracts in another currency than the ledger's."""
        if self.contracts is not None and self.contracts.currency != ledger_currency:
            allowed = f"{ledger_currency}, the currency of the ledger"
            raise ConfigError(self.file.contracts_file or "", "currency", self.contracts.currency, allowed)
        wanted = self.file.currency
        if wanted is None or wanted == ledger_currency:
            return ledger_currency
        at = window.start_ms
        rates = sorted(
            (each for each in self.file.rates if each.from_currency == ledger_currency),
            key=lambda each: each.start_ms,
        )
        for rate in rates:
            if rate.start_ms <= at:
                at = max(at, rate.end_ms)
        if at < window.end_ms:
            missing = f"none holds at {iso(at)}"
            allowed = f"a rate from {ledger_currency} to {wanted} at every instant of {window}; {missing}"
            raise ConfigError(self.name, "rates", MISSING, allowed)
        return wanted

    def rate_at(self, ledger_currency: str, instant_ms: int) -> int:
        """Nano-units of the charges' currency for one unit of the ledger's; see ``currency_of``."""
        if self.file.currency in (None, ledger_currency):
            return NANO
        return next(
            each.rate
            for each in self.file.rates
            if each.from_currency == ledger_currency and each.holds_at(instant_ms)
        )

    def rule_at(self, cluster: str, instant_ms: int) -> ChargePolicy:
        """The policy in force: one that names the cluster before one that names none; else PLAIN."""
        held = [each for each in self.file.policies if each.holds_at(instant_ms)]
        named = next((each for each in held if cluster in each.clusters), None)
        return named or next((each for each in held if not each.clusters), PLAIN)

    def quotas_of(self, cluster: str, model: str, window: Window) -> tuple[PoolQuota, ...]:
        """The quotas of a pool that hold at some time of ``window``, in the order of the file."""
        return tuple(
            each
            for each in self._by_model.get(model, ())
            if each.cluster in (None, cluster)
            and each.start_ms < window.end_ms
            and window.start_ms < each.end_ms
        )

    @cached_property
    def _by_model(self) -> Mapping[str, tuple[PoolQuota, ...]]:
        # In an order of their own: what ties are settled by must not be their place in a file.
        quotas = sorted(self.file.quotas, key=repr)
        return {
            model: tuple(each for each in quotas if each.model == model)
            for model in {q.model for q in quotas}
        }

    def edges_of(self, cluster: str, model: str, window: Window) -> Sequence[int]:
        """The instants inside ``window`` at which a policy, a rate, or a quota of the pool changes,
        ascending: quotas that are more than the GPUs are scaled between two of them."""
        quotas = self.quotas_of(cluster, model, window)
        found = {*self.edges, *(at for quota in quotas for at in quota.edges)}
        return sorted(at for at in found if window.start_ms < at < window.end_ms)

    def reservations_of(self, cluster: str, model: str, window: Window) -> tuple[QueueReservation, ...]:
        """What was reserved in a pool at some time of ``window``, in order of queue and time."""
        return tuple(each for own in self._reserved.get((cluster, model), ()) for each in inside(own, window))

    @cached_property
    def _reserved(self) -> Mapping[tuple[str, str], list[list[QueueReservation]]]:
        return by_pool(self.file.reservations)

    @cached_property
    def cohorts(self) -> Mapping[str, QuotaCohort]:
        return {each.name: each for each in self.file.cohorts}

    @cached_property
    def edges(self) -> tuple[int, ...]:
        """The instants at which a policy or a rate changes, ascending."""
        dated = (*self.file.policies, *self.file.rates)
        return tuple(sorted({edge for each in dated for edge in each.edges}))

    def limit_of(self, team: str) -> TeamLimit | None:
        """The floor and the cap of a team, for every calendar month."""
        return next((each for each in self.file.limits if each.team == team), None)
