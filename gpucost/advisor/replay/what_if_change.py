"""What is different in a replay, as data: one file is one scenario (docs/what-if.md has every field).

Everything in it may have a ``from``: it holds from then on, and without one from the begin. Amounts of
quota are in units of the resource. What it is about (queues, cohorts, pools) must be in the history;
``scenario_run`` says so with the names there are. Pure: the caller hands over text.
"""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, WithJsonSchema, model_validator

from gpucost.advisor.kueue.rule_set import OLDEST, RULES, release_of
from gpucost.domain.configfile import (
    MISSING,
    ConfigModel,
    Instant,
    NanoAmount,
    Text,
    Version,
    load_yaml,
    wrong,
)
from gpucost.domain.errors import ErrorRemark

UNLIMITED = "unlimited"
_MOST = 10**9
_FROM = "a day such as 2026-10-12 or an RFC 3339 instant; left out, the begin of the history"
_RELEASES = f"v{OLDEST[0]}.{OLDEST[1]}.0 to v{'.'.join(map(str, RULES))}"
_AMOUNT = "a whole number of units, 0 or more"
_LIMIT = f"a whole number of units, 0 or more, or {UNLIMITED}"


def _fraction(value: object) -> object:
    if isinstance(value, int) and not isinstance(value, bool):
        return Fraction(value)
    if isinstance(value, Decimal):
        return Fraction(value)
    if isinstance(value, Fraction):
        return value
    raise wrong(value, "a plain decimal number, such as 1.5")


def _release(value: object) -> object:
    found = release_of(value) if isinstance(value, str) else None
    if found is None or found.release[:2] < OLDEST or found.release > RULES:
        raise wrong(value, f"a release whose rules are known: {_RELEASES}")
    return value


def _limit(value: object) -> object:
    if value != UNLIMITED and not (type(value) is int and 0 <= value <= _MOST):
        raise wrong(value, _LIMIT)
    return value


Number = Annotated[Fraction, BeforeValidator(_fraction)]
QuotaAmount = Annotated[int, Field(ge=0, le=_MOST)]
QuotaLimit = Annotated[
    int | str,
    BeforeValidator(_limit),
    WithJsonSchema({"anyOf": [{"type": "integer", "minimum": 0, "maximum": _MOST}, {"const": UNLIMITED}]}),
]
VolcanoAmounts = dict[str, QuotaAmount]
_AMOUNTS = "whole numbers of units by resource, such as {nvidia.com/gpu: 16}"
FairWeight = Annotated[Number, Field(ge=0), WithJsonSchema({"type": "number", "minimum": 0})]
RunSpeed = Annotated[Number, Field(gt=0), WithJsonSchema({"type": "number", "exclusiveMinimum": 0})]


class DatedChange(ConfigModel):
    """Something that holds from ``from_ms`` (``from`` in a file) on."""

    from_ms: Instant | None = Field(None, alias="from", description=_FROM)


class QuotaChange(ConfigModel):
    """Quota of one flavor and resource. What is left out stays; ``add`` is on top of what there is then."""

    flavor: Text = Field(description="name of a ResourceFlavor")
    resource: Text = Field("nvidia.com/gpu", description="name of a resource, such as nvidia.com/gpu")
    nominal: QuotaAmount | None = Field(None, description=_AMOUNT)
    add: Annotated[int, Field(ge=-_MOST, le=_MOST)] | None = Field(
        None, description="units that are added to the nominal quota; below 0 to take some away"
    )
    borrowing_limit: QuotaLimit | None = Field(None, description=_LIMIT)
    lending_limit: QuotaLimit | None = Field(None, description=_LIMIT)

    @model_validator(mode="after")
    def _has_one_amount(self) -> QuotaChange:
        if self.nominal is not None and self.add is not None:
            raise wrong(ErrorRemark("beside nominal"), "one of nominal and add", "add")
        if {self.nominal, self.add, self.borrowing_limit, self.lending_limit} == {None}:
            raise wrong(MISSING, "at least one of nominal, add, borrowing_limit and lending_limit", "nominal")
        return self


class PreemptionChange(ConfigModel):
    """Fields of ``spec.preemption``; what is left out stays."""

    within_cluster_queue: Literal["Never", "LowerPriority", "LowerOrNewerEqualPriority"] | None = Field(
        None, description="Never, LowerPriority or LowerOrNewerEqualPriority"
    )
    reclaim_within_cohort: Literal["Never", "LowerPriority", "Any"] | None = Field(
        None, description="Never, LowerPriority or Any"
    )
    borrow_within_cohort: Literal["Never", "LowerPriority"] | None = Field(
        None, description="Never or LowerPriority"
    )
    max_priority_threshold: int | None = Field(
        None, description="a whole number: the highest priority that is preempted while borrowing"
    )


class QueueChange(DatedChange):
    """A ClusterQueue; a field that is left out stays. ``cohort`` may be empty: it shares with nobody."""

    name: Text = Field(description="name of a ClusterQueue of the history")
    quotas: tuple[QuotaChange, ...] = Field((), description="a list of quotas")
    cohort: str | None = Field(None, description='name of a cohort, or "" for none')
    preemption: PreemptionChange | None = Field(None, description="fields of spec.preemption")
    strategy: Literal["StrictFIFO", "BestEffortFIFO"] | None = Field(
        None, description="StrictFIFO or BestEffortFIFO"
    )
    weight: FairWeight | None = Field(None, description="fair-sharing weight: 0 or more")
    stop: Literal["None", "Hold", "HoldAndDrain"] | None = Field(
        None, description="None, Hold or HoldAndDrain (in quotes)"
    )


class CohortChange(DatedChange):
    """A cohort; one that is not there is made."""

    name: Text = Field(description="name of a cohort")
    parent: str | None = Field(None, description='name of the cohort above it, or "" for none')
    quotas: tuple[QuotaChange, ...] = Field((), description="a list of quotas of its own")
    weight: FairWeight | None = Field(None, description="fair-sharing weight: 0 or more")


class VolcanoQueueChange(DatedChange):
    """A queue of Volcano; a field that is left out stays. Amounts are units by resource."""

    name: Text = Field(description="name of a Volcano queue of the history")
    weight: Annotated[int, Field(ge=1, le=_MOST)] | None = Field(None, description="a whole number from 1")
    capability: VolcanoAmounts | None = Field(None, description=_AMOUNTS)
    deserved: VolcanoAmounts | None = Field(None, description=_AMOUNTS)
    guarantee: VolcanoAmounts | None = Field(None, description=_AMOUNTS)


class SchedulerChange(DatedChange):
    """Of Kueue as a whole. ``rules`` on a history of plain first in, first out: ``kueue`` makes a
    ClusterQueue of each pool, all in one cohort where ``cohort`` names it."""

    rules: Literal["kueue"] | None = Field(None, description="kueue, where the history is of plain FIFO")
    cohort: str = Field("", description="with rules: the cohort of all queues; left out, none lends")
    fair_sharing: bool | None = Field(None, description="true or false")
    version: Annotated[str, BeforeValidator(_release)] | None = Field(
        None, description=f"a release whose rules are known: {_RELEASES}"
    )


class PriorityChange(DatedChange):
    """The priority of jobs that all given names fit; ``set`` to a value, or ``add`` to it."""

    queue: Text | None = Field(None, description="name of a queue")
    team: Text | None = Field(None, description="name of a team")
    user: Text | None = Field(None, description="name of a user")
    job: Text | None = Field(None, description="begin of a job's name")
    set: int | None = Field(None, description="a whole number")
    add: int | None = Field(None, description="a whole number")

    @model_validator(mode="after")
    def _is_about_something(self) -> PriorityChange:
        if (self.set is None) == (self.add is None):
            raise wrong(
                MISSING if self.set is None else ErrorRemark("beside add"), "one of set and add", "set"
            )
        if (self.queue, self.team, self.user, self.job) == (None,) * 4:
            raise wrong(MISSING, "at least one of queue, team, user and job", "queue")
        return self


class NodeChange(DatedChange):
    """Nodes of a pool. ``model`` is that of the nodes that are added, or with none added of all of them, at
    ``price`` a GPU-hour; a job that comes from then on takes the recorded time divided by ``speed``."""

    pool: Text = Field(description="name of a pool of the history")
    add: Annotated[int, Field(ge=-(10**6), le=10**6)] | None = Field(
        None,
        description="a whole number, nodes that are added; below 0 nodes that are gone, the last ones first",
    )
    model: Text | None = Field(None, description="name of a GPU model, such as H200")
    speed: RunSpeed | None = Field(
        None, description="how much faster than recorded its jobs run: above 0, such as 1.5"
    )
    price: NanoAmount | None = Field(None, description="of a GPU-hour, a plain decimal number")

    @model_validator(mode="after")
    def _changes_something(self) -> NodeChange:
        if {self.add, self.model, self.speed, self.price} == {None}:
            raise wrong(MISSING, "at least one of add, model, speed and price", "add")
        if self.has_guests and self.speed is not None:
            raise wrong(
                ErrorRemark("beside add and model"), "left out: a job may stand on nodes of either", "speed"
            )
        return self

    @property
    def has_guests(self) -> bool:
        """Whether its nodes stand beside others of another model."""
        return self.model is not None and (self.add or 0) > 0


class PriceChange(DatedChange):
    """What a GPU-hour of a model, or of a pool, costs."""

    model: Text | None = Field(None, description="name of a GPU model of the history")
    pool: Text | None = Field(None, description="name of a pool of the history")
    gpu_hour: NanoAmount = Field(description="a plain decimal number, such as 2.10")

    @model_validator(mode="after")
    def _is_of_one(self) -> PriceChange:
        if (self.model is None) == (self.pool is None):
            found = MISSING if self.model is None else ErrorRemark("beside pool")
            raise wrong(found, "exactly one of model and pool", "model")
        return self


class WhatIfChange(DatedChange):
    """One scenario. ``from`` of the whole is that of every part that has none of its own. ``charges`` and
    ``commitments`` name files (a charge policy, contracts), as in the settings."""

    version: Version = Field(1, description="1, the version of this format")
    name: str = Field("", description="what it is called in answers; left out, the name of the file")
    queues: tuple[QueueChange, ...] = Field((), description="a list of changes of ClusterQueues")
    cohorts: tuple[CohortChange, ...] = Field((), description="a list of changes of cohorts")
    volcano: tuple[VolcanoQueueChange, ...] = Field((), description="a list of changes of Volcano queues")
    scheduler: SchedulerChange | None = Field(None, description="what holds for Kueue as a whole")
    priorities: tuple[PriorityChange, ...] = Field((), description="a list of changes of priorities")
    nodes: tuple[NodeChange, ...] = Field((), description="a list of changes of pools of nodes")
    prices: tuple[PriceChange, ...] = Field((), description="a list of prices")
    charges: Text | None = Field(None, description="a file with a charge policy (docs/charges.md)")
    commitments: Text | None = Field(None, description="a file with contracts (docs/contracts.md)")

    @classmethod
    def parse(cls, text: str, file: str) -> WhatIfChange:
        """Raises ConfigError with file, line, field, value and what is allowed."""
        return load_yaml(text, file, cls)

    @classmethod
    def file_schema(cls) -> dict[str, Any]:
        """The JSON Schema (2020-12) of a file, for editors; ``parse`` checks a little more."""
        found = {**cls.model_json_schema(), "title": "gpucost replay --change", "description": cls.__doc__}
        return {"$schema": "https://json-schema.org/draft/2020-12/schema", **found}

    @property
    def moves_jobs(self) -> bool:
        """Whether any start could be another one: prices, policies and contracts move none."""
        return bool(
            self.queues
            or self.cohorts
            or self.volcano
            or self.scheduler
            or self.priorities
            or any(each.add or each.speed is not None for each in self.nodes)
        )

    def since_ms(self, part: DatedChange, begin_ms: int) -> int:
        """From when a part of it holds."""
        found = part.from_ms if part.from_ms is not None else self.from_ms
        return begin_ms if found is None else max(begin_ms, found)
