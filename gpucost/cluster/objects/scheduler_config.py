"""The configuration of a cluster's schedulers, as far as it decides which pods run."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import astuple, dataclass, field
from fractions import Fraction

from gpucost.domain.errors import InputError

_NAME = re.compile(r"[a-z0-9][-a-z0-9]{0,62}/[a-z0-9][-.a-z0-9]{0,252}")
FINAL_SHARE = "LessThanOrEqualToFinalShare"
INITIAL_SHARE = "LessThanInitialShare"
STRATEGIES = (FINAL_SHARE, INITIAL_SHARE)
"""Kueue's preemption strategies under fair sharing, in the only order it allows for both."""


@dataclass(frozen=True, slots=True)
class FairAdmission:
    """Kueue's admissionFairSharing (kueue v0.19.2, apis/config/v1beta2/configuration_types.go): after
    ``half_life_ms`` half of what a LocalQueue consumed is forgotten (0: all of it at once); every
    ``sampling_ms`` it is counted. ``weights`` of resources are 1 where they are not given."""

    half_life_ms: int = 0
    sampling_ms: int = 300_000
    weights: Mapping[str, Fraction] = field(default_factory=dict)

    @property
    def entry_part(self) -> Fraction:
        """The part of what a workload asks that it is charged at once, when it gets quota (calculateAlphaRate
        of pkg/util/admissionfairsharing)."""
        if not self.half_life_ms:
            return Fraction(0)
        return Fraction(1 - 0.5 ** (self.sampling_ms / self.half_life_ms))


@dataclass(frozen=True, slots=True)
class KueueConfig:
    """Kueue's Configuration (config.kueue.x-k8s.io), with its defaults where it was not read.

    ``version`` is what the cluster runs (``v0.19.2``), empty where unknown. ``gates`` are feature gates that
    were set, by name. ``strategies`` count with ``fair_sharing`` only. ``block_admission`` is
    waitForPodsReady.blockAdmission. ``excluded_prefixes`` are resources Kueue does not count;
    ``ignores_undeclared`` is quotaCheckStrategy IgnoreUndeclared. ``frameworks`` are the integrations that
    are switched on, None where unknown. ``fair_admission`` is None where it is not set. ``unread`` are
    settings that change decisions and that gpucost does not follow, in words. With ``is_read`` it was read
    from the cluster or a file.
    """

    version: str = ""
    fair_sharing: bool = False
    strategies: tuple[str, ...] = STRATEGIES
    gates: Mapping[str, bool] = field(default_factory=dict)
    block_admission: bool = False
    excluded_prefixes: tuple[str, ...] = ()
    ignores_undeclared: bool = False
    frameworks: tuple[str, ...] | None = None
    fair_admission: FairAdmission | None = None
    unread: tuple[str, ...] = ()
    is_read: bool = False


VOLCANO_ACTIONS = ("enqueue", "allocate", "backfill")
VOLCANO_TIERS = (
    ("priority", "gang", "conformance"),
    ("overcommit", "drf", "predicates", "proportion", "nodeorder", "binpack"),
)


@dataclass(frozen=True, slots=True)
class VolcanoConfig:
    """volcano-scheduler.conf; the defaults are those of its chart (v1.15.1), which has no preempt or reclaim.

    ``tiers`` are names of plugins, in order. ``arguments`` are of plugins, by name, as text. Otherwise as
    ``KueueConfig``.
    """

    version: str = ""
    actions: tuple[str, ...] = VOLCANO_ACTIONS
    tiers: tuple[tuple[str, ...], ...] = VOLCANO_TIERS
    arguments: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    unread: tuple[str, ...] = ()
    is_read: bool = False

    @property
    def plugins(self) -> frozenset[str]:
        return frozenset(name for tier in self.tiers for name in tier)


@dataclass(frozen=True, slots=True)
class SchedulerConfigs:
    """Of one cluster."""

    kueue: KueueConfig = KueueConfig()
    volcano: VolcanoConfig = VolcanoConfig()


@dataclass(frozen=True, slots=True)
class SchedulerNames:
    """The names of the objects, as ``namespace/name``: the ConfigMap of each scheduler and its Deployment."""

    kueue_config: str = "kueue-system/kueue-manager-config"
    kueue_manager: str = "kueue-system/kueue-controller-manager"
    volcano_config: str = "volcano-system/volcano-scheduler-configmap"
    volcano_scheduler: str = "volcano-system/volcano-scheduler"

    def __post_init__(self) -> None:
        for name, value in zip(self.__slots__, astuple(self), strict=True):
            checked_name(value, name)


def checked_name(text: str, field: str = "name") -> str:
    """``namespace/name`` as it is. Raises InputError."""
    if not _NAME.fullmatch(text):
        raise InputError(field, text, "a namespace and a name, such as kueue-system/kueue-manager-config")
    return text


NAMES = SchedulerNames()
