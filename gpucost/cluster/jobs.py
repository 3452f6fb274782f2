"""Jobs of every kind, reduced to what they have in common: pods they want, pods they have, and when."""

from __future__ import annotations

from dataclasses import dataclass

from gpucost.cluster.objects import Flaw, Meta
from gpucost.cluster.pods import PodSet
from gpucost.domain.jobs import JobKind, Owner


@dataclass(frozen=True, slots=True)
class JobObject:
    """An object that makes pods, or makes objects that make pods.

    ``api_version`` and ``kind`` are as in the owner references that point to it (``batch/v1``, ``Job``).
    ``pod_sets`` are what it wants at full size; empty for those that only group others, or whose templates
    are elsewhere (a TrainJob's runtime). ``gang_size`` is how many pods must be there at once for the job to
    get on, None where pods are independent (Deployments) or nothing says. ``active``, ``ready``,
    ``succeeded`` and ``failed`` count pods as its status does, None where it does not say. A
    LeaderWorkerSet has as many gangs as replicas: ``gangs``; each of ``gang_size``.
    """

    meta: Meta
    api_version: str
    kind: str
    job_kind: JobKind
    pod_sets: tuple[PodSet, ...] = ()
    gang_size: int | None = None
    gangs: int = 1
    is_suspended: bool = False
    active: int | None = None
    ready: int | None = None
    succeeded: int | None = None
    failed: int | None = None
    started_ms: int | None = None
    ended_ms: int | None = None
    priority_class: str = ""
    deadline_s: int | None = None
    """How long it may be active (activeDeadlineSeconds), None for ever."""
    flaws: tuple[Flaw, ...] = ()

    @property
    def as_owner(self) -> Owner:
        """As a link of an owner chain."""
        return Owner(self.api_version, self.kind, self.meta.name, self.meta.uid)

    @property
    def pods_wanted(self) -> int:
        return sum(each.count for each in self.pod_sets)


@dataclass(frozen=True, slots=True)
class PriorityClass:
    """A PriorityClass of Kubernetes, or (``of_kueue``) a WorkloadPriorityClass. ``never_preempts``: its pods
    have ``preemptionPolicy: Never``."""

    meta: Meta
    value: int
    is_default: bool = False
    of_kueue: bool = False
    flaws: tuple[Flaw, ...] = ()
    never_preempts: bool = False


@dataclass(frozen=True, slots=True)
class Namespace:
    """A namespace: its labels decide which ClusterQueues it may use, and may name its team."""

    meta: Meta
    flaws: tuple[Flaw, ...] = ()
