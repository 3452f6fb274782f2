"""Jobs of every kind, their manifests, priority classes and namespaces.

A ``JobObject`` is reduced to what all kinds have in common: pods it wants, pods it has, and when. A
``JobManifest`` is a job as a user would submit it, before it has a uid: what its manifest asks of which
scheduler.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gpucost.cluster.objects.metadata import FieldFlaw, ObjectMeta
from gpucost.cluster.objects.pods import PodSet
from gpucost.cluster.objects.volcano import PodGroup
from gpucost.domain.jobs import JobKind, OwnerReference


@dataclass(frozen=True, slots=True)
class JobObject:
    """An object that makes pods, or makes objects that make pods.

    ``api_version`` and ``kind`` are as in the owner references that point to it (``batch/v1``, ``Job``).
    ``pod_sets`` are what it wants at full size; empty for those that only group others, or whose templates
    are elsewhere (a TrainJob's runtime). ``gang_size`` is how many pods must be there at once for the job to
    make progress, None where pods are independent (Deployments) or it is unknown. ``active``, ``ready``,
    ``succeeded`` and ``failed`` count pods as its status does, None where it does not. A LeaderWorkerSet has
    as many gangs as replicas: ``gangs``; each of ``gang_size``. ``failure`` is why it failed for good, in one
    word of its controller, None where it has not.
    """

    meta: ObjectMeta
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
    failure: str | None = None
    priority_class: str = ""
    deadline_s: int | None = None
    """How long it may be active (activeDeadlineSeconds), None for ever."""
    flaws: tuple[FieldFlaw, ...] = ()

    @property
    def as_owner(self) -> OwnerReference:
        """As a link of an owner chain."""
        return OwnerReference(self.api_version, self.kind, self.meta.name, self.meta.uid)

    @property
    def pods_wanted(self) -> int:
        return sum(each.count for each in self.pod_sets)


@dataclass(frozen=True, slots=True)
class PriorityClass:
    """A PriorityClass of Kubernetes, or (``of_kueue``) a WorkloadPriorityClass. ``never_preempts``: its pods
    have ``preemptionPolicy: Never``."""

    meta: ObjectMeta
    value: int
    is_default: bool = False
    of_kueue: bool = False
    flaws: tuple[FieldFlaw, ...] = ()
    never_preempts: bool = False


@dataclass(frozen=True, slots=True)
class Namespace:
    """A namespace: its labels decide which ClusterQueues it may use, and may name its team."""

    meta: ObjectMeta
    flaws: tuple[FieldFlaw, ...] = ()


Document = Mapping[str, Any]
LONGEST_RUN = "kueue.x-k8s.io/max-exec-time-seconds"
"""Label of a job: after so many seconds Kueue stops it for good."""


@dataclass(frozen=True, slots=True)
class JobManifest:
    """One document of a file, or the pods of one group.

    ``job`` is read as the API server's object would be; its uid is ``manifest/<place>`` and its
    ``created_ms`` the instant of the question. ``queue`` is the LocalQueue of Kueue that it names, empty for
    none; ``kueue_priority_class`` the WorkloadPriorityClass it names. ``volcano_queue`` and ``scheduler`` are
    Volcano's queue and the schedulerName of its pods, empty where they are not set. ``document`` is what was
    read, for patches; ``place`` says where, for a person (``job.yaml, document 2``). ``checkpoints`` is
    whether it can be stopped and resumed, None where the manifest does not say.
    """

    job: JobObject
    queue: str = ""
    kueue_priority_class: str = ""
    volcano_queue: str = ""
    scheduler: str = ""
    deadline_s: int | None = None
    """The longest it may run (activeDeadlineSeconds, Kueue's max-exec-time-seconds); None for no limit."""
    checkpoints: bool | None = None
    document: Document = field(default_factory=dict, compare=False)
    place: str = ""
    quota_sets: tuple[PodSet, ...] = ()
    """Pod sets of one Workload that Kueue would make of it, in Kueue's order and with its names; empty: those
    of the job."""
    workloads: int = 1
    """How many such Workloads: one, except for kinds of which each pod or each group of pods has its own, and
    none for jobs that Kueue does not manage."""
    group_name: str = ""
    """The PodGroup that its pods name, whether it is given or not."""
    pod_group: PodGroup | None = None
    """That PodGroup, where it is given beside the manifest. ``job.gang_size`` is its minimum then."""
    unknown: tuple[str, ...] = ()
    """What it needs and the manifest does not contain, in words: with any of it, an answer would be a
    guess."""
    beside: tuple[Document, ...] = field(default=(), compare=False)
    """Documents it was read with: its PodGroup, the runtime of a TrainJob."""

    @property
    def name(self) -> str:
        return self.job.meta.name

    @property
    def namespace(self) -> str:
        return self.job.meta.namespace


@dataclass(frozen=True, slots=True)
class JobManifests:
    """All manifests of a file. ``skipped`` are documents that make no pods, in words, in the order of the
    file."""

    jobs: tuple[JobManifest, ...]
    skipped: tuple[str, ...] = ()
