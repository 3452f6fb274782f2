"""Pods, and the templates that pods are made from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from gpucost.cluster.objects.metadata import (
    FieldFlaw,
    Labels,
    ObjectMeta,
    Resources,
)


class PodPhase(StrEnum):
    PENDING = "Pending"
    RUNNING = "Running"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    UNKNOWN = "Unknown"


@dataclass(frozen=True, slots=True)
class Toleration:
    """A toleration of a taint. Empty ``key`` tolerates every key, empty ``effect`` every effect; ``exists``
    any value."""

    key: str = ""
    exists: bool = False
    value: str = ""
    effect: str = ""


@dataclass(frozen=True, slots=True)
class SelectorRequirement:
    """One line of a node selector term: ``operator`` is In, NotIn, Exists, DoesNotExist, Gt or Lt.

    With ``of_field`` it selects by a field (``metadata.name``), not a label.
    """

    key: str
    operator: str
    values: tuple[str, ...] = ()
    of_field: bool = False


@dataclass(frozen=True, slots=True, weakref_slot=True)
class PodTemplate:
    """The requests of a pod, and where it may run.

    ``requests`` are those of the whole pod as the scheduler counts them: containers and sidecars together, or
    the largest init container, and the overhead; of a pod that is being resized also what it has.
    ``affinity`` are the required node affinity's terms, of which one must hold (all requirements of it);
    empty means anywhere. ``has_pod_affinity`` says that rules about other pods or topology spreading exist
    too, which gpucost does not evaluate. ``claims`` are names of ResourceClaims, or of the templates they are
    made from. ``never_preempts`` is ``preemptionPolicy: Never``,
    of its own: its PriorityClass may have it as well. ``together`` are labels of nodes of which all nodes of
    its pods must have the same value (topology keys of required podAffinity).
    """

    requests: Resources
    node_selector: Labels = field(default_factory=dict)
    affinity: tuple[tuple[SelectorRequirement, ...], ...] = ()
    tolerations: tuple[Toleration, ...] = ()
    priority_class: str = ""
    scheduler: str = ""
    claims: tuple[str, ...] = ()
    has_pod_affinity: bool = False
    never_preempts: bool = False
    together: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PodWaitReason:
    """Why a pod has no node: the PodScheduled condition while it is False."""

    reason: str
    message: str
    since_ms: int | None


PREEMPTED_BY_SCHEDULER = "PreemptionByScheduler"
"""Reason of a disruption by kube-scheduler (kubernetes, core/v1 PodReasonPreemptionByScheduler)."""
DISRUPTIONS = frozenset(
    {
        *(PREEMPTED_BY_SCHEDULER, "EvictionByEvictionAPI", "DeletionByTaintManager", "DeletionByPodGC"),
        "TerminationByKubelet",
    }
)
"""All reasons of Kubernetes itself (kubernetes v1.36, pkg/apis/core and pkg/controller/podgc)."""


@dataclass(frozen=True, slots=True)
class PodDisruption:
    """Why and when a pod was asked to stop: its condition DisruptionTarget, since Kubernetes 1.26 (core/v1).
    ``reason`` is Kubernetes' word, such as PreemptionByScheduler or EvictionByEvictionAPI."""

    reason: str
    since_ms: int | None


class UnhealthyDevice(NamedTuple):
    """A device of a pod that its kubelet calls unhealthy (KEP-4680): a unit of an extended ``resource``, or
    of the pod's ResourceClaim of the name ``claim``; the other is empty. ``device_id`` is the kubelet's: the
    id that a device plugin gave it, or the first CDI id of a claim's device, else ``driver/pool/device``."""

    resource: str
    claim: str
    device_id: str


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod. Its GPUs are held in ``[bound_ms, ended_ms)``.

    ``bound_ms`` is when it was given its node (None: it has none); ``ended_ms`` when its last container
    ended, or it was refused by its node (None: it has not, or that is unknown: see ``has_ended``).
    ``ready_ms`` is since when all its containers are ready. ``stuck`` is the reason of a container that waits
    or of status.reason (ContainerCreating, CrashLoopBackOff, UnexpectedAdmissionError). ``gates`` are
    scheduling gates. ``claims`` are the names of the ResourceClaims it uses, in its namespace;
    ``backing_claim`` is one that the scheduler made for extended resources it requests, ``backed`` are these,
    each after the claim's name for its request. ``group`` is its native PodGroup (``spec.schedulingGroup`` or
    ``spec.workloadRef``). ``started_ms`` is when its kubelet took it (None: not yet), ``grace_ms`` how long
    it may take to stop. ``nominated`` is the node that kube-scheduler makes room for it on,
    ``disruption`` that it was asked to stop. ``unhealthy`` are devices that it has, as its kubelet last
    wrote it.
    """

    meta: ObjectMeta
    phase: PodPhase
    template: PodTemplate
    node: str = ""
    bound_ms: int | None = None
    ended_ms: int | None = None
    ready_ms: int | None = None
    waiting: PodWaitReason | None = None
    stuck: str = ""
    gates: tuple[str, ...] = ()
    priority: int = 0
    claims: tuple[str, ...] = ()
    group: str = ""
    flaws: tuple[FieldFlaw, ...] = ()
    backing_claim: str = ""
    backed: tuple[tuple[str, str], ...] = ()
    started_ms: int | None = None
    grace_ms: int | None = None
    nominated: str = ""
    disruption: PodDisruption | None = None
    unhealthy: tuple[UnhealthyDevice, ...] = ()

    @property
    def requests(self) -> Resources:
        return self.template.requests

    @property
    def has_ended(self) -> bool:
        """Whether it will never run again and so holds nothing, though the time of its end may be unknown."""
        return self.phase in (PodPhase.SUCCEEDED, PodPhase.FAILED)

    @property
    def is_bound(self) -> bool:
        """Whether it holds its requests now."""
        return self.bound_ms is not None and not self.has_ended

    @property
    def is_leaving(self) -> bool:
        """Whether it was deleted and is not gone yet: its replacement is another pod beside it. While it is
        bound it holds its requests."""
        return self.meta.deleted_ms is not None and not self.has_ended

    @property
    def is_unplaced(self) -> bool:
        """Whether it has no node and waits for one, now or once its gates are gone.

        kube-scheduler skips pods that are being deleted (kubernetes v1.36, pkg/scheduler/schedule_one.go,
        skipPodSchedule).
        """
        return self.bound_ms is None and not self.has_ended and not self.is_leaving

    @property
    def is_gated(self) -> bool:
        """Whether scheduling gates hold it back from the scheduler."""
        return bool(self.gates)


@dataclass(frozen=True, slots=True)
class DisruptionBudget:
    """A PodDisruptionBudget. ``selector`` are requirements on labels of pods of its namespace that must all
    hold; None, and one without any, matches none for kube-scheduler. ``allowed`` is how many of them may be
    disrupted now; ``disrupted`` names pods that count as such already."""

    meta: ObjectMeta
    selector: tuple[SelectorRequirement, ...] | None
    allowed: int
    disrupted: frozenset[str] = frozenset()
    flaws: tuple[FieldFlaw, ...] = ()


@dataclass(frozen=True, slots=True)
class ContainerRequest:
    """The requests of one container of a template, as written."""

    name: str
    requests: Resources
    limits: Resources


@dataclass(frozen=True, slots=True)
class PodSet:
    """``count`` equal pods of a job. ``min_count`` is the least number that can start, None: all are
    needed."""

    name: str
    count: int
    template: PodTemplate
    min_count: int | None = None
    topology: Mapping[str, str] = field(default_factory=dict)
    """Of a Kueue topology request: ``required``, ``preferred``, ``unconstrained``, ``group``, ``slice``,
    ``slice_size``."""
    containers: tuple[ContainerRequest, ...] = field(default=(), compare=False)
    """The containers of the template, as far as they are known: a change of the pods' requests is written
    there."""
    stated: Mapping[str, int | str] = field(default_factory=dict, compare=False)
    """The fields of the object from which ``count`` is computed (parallelism and completions, copies and
    hosts), as far as they are known: a change of the count changes one of these."""
