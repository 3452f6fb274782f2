"""A diagnosis: what works, what does not, why, and what to turn on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from gpucost.contract.probe import Unread


class Verdict(StrEnum):
    YES = "yes"
    PART = "in part"
    NO = "no"
    UNKNOWN = "not known"


class Feature(StrEnum):
    """In the order in which they are shown."""

    COST = "month's cost"
    TEAMS = "cost by team, project and user"
    QUEUES = "cost by queue"
    JOBS = "cost by job"
    SHARING = "MIG and shared GPUs"
    BUSY = "use of GPUs: busy"
    SM = "use of GPUs: SM"
    TENSOR = "use of GPUs: tensor"
    MEMORY = "use of GPUs: memory"
    ENERGY = "use of GPUs: energy"
    IDLE = "idle and oversized detectors"
    QUOTAS = "queue and quota detectors"
    UNADVERTISED = "nodes that advertise no GPUs"
    BROKEN = "broken GPUs"
    PRICES = "OpenCost prices"
    COMPARE = "comparison with OpenCost"
    LIVE = "live findings and advisor"


@dataclass(frozen=True, slots=True)
class Finding:
    """The verdict on one feature, and why in a sentence."""

    verdict: Verdict
    why: str


@dataclass(frozen=True, slots=True)
class Setting:
    """One way to set it: ``where`` it stands, and ``text``, to be copied as it is."""

    where: str
    text: str


@dataclass(frozen=True, slots=True)
class Step:
    """What to turn on, and what for. ``gains`` is empty for what is only tidier."""

    title: str
    settings: tuple[Setting, ...]
    gains: tuple[Feature, ...] = ()
    note: str = ""


@dataclass(frozen=True, slots=True)
class Fact:
    """Something that was found, in words."""

    what: str
    found: str


@dataclass(frozen=True, slots=True)
class ClusterDiagnosis:
    """One cluster. ``can_tell`` is whether the cost of the month can be told; ``first_whole`` is the first
    month of which there will be all, where the one asked for has a part only."""

    cluster: str
    can_tell: bool
    features: Mapping[Feature, Finding]
    steps: tuple[Step, ...] = ()
    facts: tuple[Fact, ...] = ()
    first_whole: str | None = None


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """``sentence`` is the verdict, ``command`` what to run next; where there is nothing to run yet it is
    empty, and ``first`` the number of the step to begin with, from 1; 0 for none."""

    url: str
    month: str
    can_tell: bool
    sentence: str
    command: str = ""
    first: int = 0
    clusters: tuple[ClusterDiagnosis, ...] = ()
    steps: tuple[Step, ...] = ()
    unread: tuple[Unread, ...] = field(default=())

    @property
    def first_step(self) -> Step | None:
        return self.steps[self.first - 1] if self.first else None

    @property
    def turn_on(self) -> str:
        """The first setting of that step."""
        step = self.first_step
        return "" if step is None else step.settings[0].text
