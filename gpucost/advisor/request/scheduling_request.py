"""Who asks: a job that is not submitted yet, or one that is there and waits; the same to all layers.

``SchedulingRequest`` has all that a layer may ask: every pod set with its template, the Kueue workloads that
stand for the job (none where Kueue has nothing to do with it), the Volcano gang (None likewise), GPU units of
all pods, the deadline in seconds, and, of a job that is there, its pods that wait and those that are bound.

``request_from_manifest`` makes one as if the manifest were submitted now, and does what the cluster would do
on the way: a job without a queue gets LocalQueue ``default`` where Kueue's gate says so, an integration that
is switched off leaves the job without quota, a missing priority class or a kind that the cluster does not
serve refuses it before any layer (``refused``: a reason in one word, and a sentence). ``request_from_job``
makes the same type of a job that exists (``find_job``: by kind and name, with all objects that stand for it
in the cluster), so that a job gets the same answer before and after it is submitted.

What is said about the answer travels with the request, in three kinds:

- ``unknown``: it wants what nothing says; with any of it an answer would be a guess, so there is none;
- ``remarks``: shown as notes, and hold nothing;
- ``assumptions``: what was taken for granted where the manifest became a workload.

Pure. Called by ``advisor.advise`` for every question, and again for each suggestion that is tried. The team
comes from labels of the job, else of its namespace; it decides whose history of runs a wait is simulated
with.

A job that exists, found by kind and name, with all objects that stand for it in the cluster.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from gpucost.advisor.kueue.job_workloads import (
    FRAMEWORKS,
    SUSPENDED,
    as_workloads,
    assumptions,
    not_lifted,
    switched_off,
    unlifted,
)
from gpucost.advisor.kueue.messages import MISCONFIGURED
from gpucost.advisor.model.answers import AdviceSubject
from gpucost.advisor.request.context import AdvisorContext
from gpucost.advisor.volcano.gang import VolcanoGang, gang_of_manifest, is_for_volcano
from gpucost.cluster.objects.jobs import JobManifest, JobObject
from gpucost.cluster.objects.kueue import Workload, WorkloadState
from gpucost.cluster.objects.pods import Pod, PodSet
from gpucost.cluster.objects.state import grouped
from gpucost.cluster.objects.volcano import GroupKind, PodGroup
from gpucost.cluster.views.overview import ClusterOverview
from gpucost.cluster.views.ownership import KUEUE_QUEUES
from gpucost.cluster.views.queue_order import OF_KUEUE, OF_PODS, has_pod_class
from gpucost.domain.jobs import JobKind, JobReference

WORKLOAD, POD_GROUP = "Workload", "PodGroup"


@dataclass(frozen=True, slots=True)
class SchedulingRequest:
    """``pod_sets`` are all pods it wants, under any scheduler. ``workloads`` stand for it at Kueue, none
    where Kueue has nothing to do with it; ``gang`` is it at Volcano, None likewise. ``gpus`` are GPU units of
    all pods. ``deadline_s`` is the longest it may run. ``unknown`` is what it wants and no object specifies,
    in words: with any of it an answer would be a guess. ``remarks`` are shown, and hold nothing;
    ``assumptions`` are what was taken for granted where the manifest became a workload."""

    subject: AdviceSubject
    team: str
    pod_sets: tuple[PodSet, ...]
    workloads: tuple[Workload, ...] = ()
    gang: VolcanoGang | None = None
    gpus: int = 0
    deadline_s: int | None = None
    waiting: Mapping[str, tuple[Pod, ...]] = field(default_factory=dict)
    """Its pods that exist and have no node, by their pod set."""
    pod_group: str = ""
    """The PodGroup of its pods, where that is not Volcano's; empty for none."""
    own_pods: frozenset[str] = frozenset()
    """Uids of its pods that are bound already: what they hold is its own."""
    unknown: tuple[str, ...] = ()
    refused: tuple[str, str] | None = None
    """Why it can never be created as it is, before any layer: a reason in one word, and a sentence."""
    remarks: Sequence[str] = ()
    assumptions: tuple[str, ...] = ()
    reserved: Workload | None = None
    """Its workload that has quota, and that Kueue has not admitted."""
    until: str = ""
    """What has to be over before it can run, where that is not what the layers say."""


DEFAULT_QUEUE = "default"
NOT_SERVED = "KindNotServed"
_OF_PODS = ("pod", "deployment", "statefulset")
NO_QUEUE = (
    "it names no queue of Kueue (label kueue.x-k8s.io/queue-name): no quota holds it, and none is kept for it"
)


def request_from_manifest(manifest: JobManifest, known: AdvisorContext) -> SchedulingRequest:
    """The request of a job as if it were submitted now."""
    state, config = known.state, known.state.schedulers.kueue
    remarks: list[str] = []
    if _is_defaulted(manifest, known):
        manifest = replace(manifest, queue=DEFAULT_QUEUE)
        remarks.append(f"it names no queue: Kueue gives it LocalQueue {DEFAULT_QUEUE} of its namespace")
    off = switched_off(manifest.job.job_kind, config)
    is_queued = bool(manifest.queue) and not off and not state.is_absent("cluster_queues")
    workloads = as_workloads(manifest, state, config) if is_queued else ()
    if manifest.queue and state.is_absent("cluster_queues"):
        remarks.append("Kueue is not in this cluster: the queue it names holds nothing")
    if manifest.queue and off:
        remarks.append(f"Kueue's integration {off} is switched off: no quota holds it")
    if state.cluster_queues and not manifest.queue and _asks_gpus(manifest.job.pod_sets, known):
        remarks.append(NO_QUEUE)
    gang = _gang(manifest, known)
    return SchedulingRequest(
        AdviceSubject(manifest.job.job_kind.value, manifest.namespace, manifest.name),
        team_of(manifest.job.meta.labels, manifest.job.meta.annotations, manifest.namespace, known),
        manifest.job.pod_sets,
        workloads,
        gang,
        sum(gpus_of(each, known) for each in manifest.job.pod_sets),
        manifest.deadline_s,
        pod_group=manifest.group_name if gang is None else "",
        unknown=manifest.unknown,
        refused=_refused(manifest, workloads, known),
        remarks=tuple(remarks),
        assumptions=assumptions(manifest) if workloads else (),
    )


def _refused(
    manifest: JobManifest, workloads: Sequence[Workload], known: AdvisorContext
) -> tuple[str, str] | None:
    """What keeps the job, or its Workload, from being created at all."""
    job, state = manifest.job, known.state
    group = job.as_owner.group
    collection = f"{job.kind.lower()}s.{group}" if group else f"{job.kind.lower()}s"
    if state.is_absent(collection):
        return NOT_SERVED, f"this cluster serves no {collection}"
    unlifted = not_lifted(job, manifest.queue, state)
    if unlifted:
        return SUSPENDED, unlifted
    flaw = next((flaw for each in workloads[:1] for flaw in each.flaws), None)
    of_kueue = bool(manifest.kueue_priority_class)
    if flaw is not None and not state.is_unread(OF_KUEUE if of_kueue else OF_PODS):
        kind = "WorkloadPriorityClass" if of_kueue else "PriorityClass"
        return MISCONFIGURED, f"there is no {kind} {flaw.value}, which it names"
    named = (each.template.priority_class for each in job.pod_sets)
    missing = next((name for name in named if name and not has_pod_class(state, name)), "")
    return (MISCONFIGURED, f"there is no PriorityClass {missing}, which its pods name") if missing else None


def _is_defaulted(manifest: JobManifest, known: AdvisorContext) -> bool:
    """Whether Kueue assigns a queue where the job names none: a LocalQueue of that name is in its namespace
    (gate LocalQueueDefaulting, on since v0.17). Pods of their own are left alone."""
    framework = FRAMEWORKS.get(manifest.job.job_kind, "pod")
    if manifest.queue or framework in _OF_PODS or manifest.job.meta.owner is not None:
        return False
    is_on = known.state.schedulers.kueue.gates.get("LocalQueueDefaulting", True)
    return is_on and (manifest.namespace, DEFAULT_QUEUE) in known.state.local_queue_by_name


def team_of(
    labels: Mapping[str, str], annotations: Mapping[str, str], namespace: str, known: AdvisorContext
) -> str:
    """By the job's own labels, else its namespace's; empty where neither names a team."""
    found = known.state.namespace_by_name.get(namespace)
    places = [labels, annotations, *([found.meta.labels, found.meta.annotations] if found else ())]
    return next(
        (place[key] for place in places for key in known.overview.owner_keys.team if place.get(key)), ""
    )


def gpus_of(pod_set: PodSet, known: AdvisorContext) -> int:
    """GPU units of all pods of a set."""
    requests = pod_set.template.requests
    catalog = known.overview.catalog
    return pod_set.count * sum(amount for name, amount in requests.items() if catalog.is_gpu(name))


def _asks_gpus(pod_sets: Iterable[PodSet], known: AdvisorContext) -> bool:
    return any(gpus_of(each, known) for each in pod_sets)


def _gang(manifest: JobManifest, known: AdvisorContext) -> VolcanoGang | None:
    if not is_for_volcano(manifest):
        return None
    members = known.world.members if manifest.group_name else None
    return gang_of_manifest(manifest, known.state, members)


@dataclass(frozen=True, slots=True)
class ExistingJob:
    """``objects`` are jobs among its owners that are known, the outermost first; none for plain pods.
    ``workloads`` are its own at Kueue, newest last, finished ones only where there is no other."""

    subject: AdviceSubject
    job: JobReference
    team: str
    objects: tuple[JobObject, ...]
    workloads: tuple[Workload, ...]
    groups: tuple[PodGroup, ...]
    pods: tuple[Pod, ...]

    @property
    def object(self) -> JobObject | None:
        return self.objects[0] if self.objects else None

    @property
    def workload(self) -> Workload | None:
        """The one that matters: the first that waits or ends, else the newest."""
        order = (
            WorkloadState.PENDING,
            WorkloadState.EVICTING,
            WorkloadState.RESERVED,
            WorkloadState.INACTIVE,
        )
        for state in order:
            for each in self.workloads:
                if each.state is state:
                    return each
        return self.workloads[-1] if self.workloads else None

    @property
    def queue(self) -> str:
        """The LocalQueue of Kueue that it or its pods name; empty for none."""
        metas = [*(each.meta for each in self.objects[:1]), *(pod.meta for pod in self.pods)]
        places = [place for meta in metas for place in (meta.labels, meta.annotations)]
        return next((place[key] for place in places for key in KUEUE_QUEUES if place.get(key)), "")

    @property
    def standing(self) -> tuple[Pod, ...]:
        """Its pods that have not ended and are not being deleted: as many as its parallelism asks for, where
        a pod that is being deleted already has its successor."""
        return tuple(pod for pod in self.pods if not pod.has_ended and not pod.is_leaving)

    @property
    def bound(self) -> frozenset[str]:
        """Uids of its pods that have a node."""
        return frozenset(pod.meta.uid for pod in self.pods if pod.is_bound)

    @property
    def of_volcano(self) -> PodGroup | None:
        """Its PodGroup at Volcano."""
        return next((each for each in self.groups if each.group_kind is GroupKind.VOLCANO), None)


def find_job(kind: str, namespace: str, name: str, known: AdvisorContext) -> ExistingJob | None:
    """``kind`` is a JobKind, ``Workload`` or ``PodGroup``, in any case. None where nothing has that name."""
    job = _job_named(kind, namespace, name, known)
    if job is None:
        return None
    overview = known.overview
    pods = tuple(each for each in known.pods_by_job.get(job.uid, ()) if each.meta.namespace == namespace)
    objects = tuple(
        each
        for each in overview.state.jobs.values()
        if each.meta.namespace == namespace and overview.ownership.job_of(each).uid == job.uid
    )
    top = sorted(objects, key=lambda each: (each.meta.uid != job.uid, each.meta.created_ms, each.meta.uid))
    workloads = _workloads(overview, job, namespace)
    groups = tuple(
        group
        for group in overview.state.pod_groups.values()
        if group.meta.namespace == namespace and overview.ownership.job_of(group).uid == job.uid
    )
    subject = AdviceSubject(job.kind.value, namespace, job.name, job.uid)
    return ExistingJob(
        subject, job, _team(overview, top, workloads, groups, pods), tuple(top), workloads, groups, pods
    )


def request_from_job(found: ExistingJob, known: AdvisorContext) -> SchedulingRequest:
    """The request of what still waits of it: its workload, pending or not admitted yet, or its pods without a
    node. Where all of them have one, the request as if it asked for other nodes."""
    workload = found.workload
    is_reserved = workload is not None and workload.state is WorkloadState.RESERVED
    waits = workload is not None and workload.state in (WorkloadState.PENDING, WorkloadState.INACTIVE)
    volcano = found.of_volcano
    gang = known.world.gangs.get(volcano.meta.uid) if volcano is not None else None
    pod_sets = found.object.pod_sets if found.object is not None else ()
    if not pod_sets:
        pod_sets = workload.pod_sets if workload is not None else _as_sets(found.pods)
    own: frozenset[str] = frozenset()
    waiting: dict[str, tuple[Pod, ...]] = {}
    if not waits:
        unbound = [pod for pod in found.pods if pod.is_unplaced]
        waiting = {same[0].meta.name: tuple(same) for same in _alike(unbound)}
        pod_sets = _as_sets(unbound) or pod_sets
        own = frozenset() if unbound else found.bound
    return SchedulingRequest(
        found.subject,
        found.team,
        pod_sets,
        (replace(workload, is_active=True),) if waits and workload is not None else (),
        gang,
        sum(gpus_of(each, known) for each in pod_sets),
        waiting=waiting,
        pod_group=found.groups[0].meta.name if found.groups and gang is None else "",
        own_pods=own,
        refused=_job_refused(found, known),
        reserved=workload if is_reserved else None,
    )


def _job_refused(found: ExistingJob, known: AdvisorContext) -> tuple[str, str] | None:
    """That it is suspended, and that no queue or controller in the cluster lifts that."""
    job = found.object
    if job is None or found.workloads:
        return None
    says = unlifted(job, found.queue, known.state)
    return (SUSPENDED, says) if says else None


def whole_of(
    found: ExistingJob, asking: SchedulingRequest, known: AdvisorContext
) -> SchedulingRequest | None:
    """The request as if all of it asked, also for the nodes that it has in part; None where it has none, and
    where a queue is asked too."""
    own = found.bound
    if not own or own == asking.own_pods or asking.workloads or asking.gang is not None:
        return None
    pod_sets = found.object.pod_sets if found.object is not None else ()
    if not pod_sets:
        pod_sets = _as_sets(found.standing)
    gpus = sum(gpus_of(each, known) for each in pod_sets)
    return replace(asking, pod_sets=pod_sets, own_pods=own, gpus=gpus)


def _job_named(kind: str, namespace: str, name: str, known: AdvisorContext) -> JobReference | None:
    state, ownership, wanted = known.state, known.overview.ownership, kind.lower()
    if wanted == WORKLOAD.lower():
        workload = state.workload_by_name.get((namespace, name))
        return ownership.job_of(workload) if workload is not None else None
    if wanted == POD_GROUP.lower():
        groups = (
            each
            for each in state.pod_groups.values()
            if (each.meta.namespace, each.meta.name) == (namespace, name)
        )
        group = next(groups, None)
        return ownership.job_of(group) if group is not None else None
    if wanted == JobKind.POD.value.lower():
        pods = (
            each for each in state.pods.values() if (each.meta.namespace, each.meta.name) == (namespace, name)
        )
        pod = next(pods, None)
        return ownership.of(pod).job if pod is not None else None
    named = (
        each
        for each in state.jobs.values()
        if (each.meta.namespace, each.meta.name) == (namespace, name)
        and wanted in (each.kind.lower(), each.job_kind.value.lower())
    )
    found = next(named, None)
    return ownership.job_of(found) if found is not None else None


def _workloads(overview: ClusterOverview, job: JobReference, namespace: str) -> tuple[Workload, ...]:
    own = [
        each
        for each in overview.state.workloads.values()
        if each.meta.namespace == namespace and overview.ownership.job_of(each).uid == job.uid
    ]
    alive = [each for each in own if each.state is not WorkloadState.FINISHED]
    return tuple(sorted(alive or own, key=lambda each: (each.meta.created_ms, each.meta.uid)))


def _team(
    overview: ClusterOverview,
    objects: Iterable[JobObject],
    workloads: Iterable[Workload],
    groups: Iterable[PodGroup],
    pods: Iterable[Pod],
) -> str:
    named = [overview.ownership.of(pod).team for pod in pods]
    made_for: list[JobObject | Workload | PodGroup] = [*objects, *workloads, *groups]
    named += [overview.ownership.team_of(each) for each in made_for]
    return next(filter(None, named), "")


def _as_sets(pods: Iterable[Pod]) -> tuple[PodSet, ...]:
    """Equal pods as one set."""
    return tuple(PodSet(same[0].meta.name, len(same), same[0].template) for same in _alike(pods))


def _alike(pods: Iterable[Pod]) -> list[list[Pod]]:
    """Equal pods together, by name."""
    in_order = sorted(pods, key=lambda each: each.meta.name)
    return [*grouped(in_order, lambda pod: (id(pod.template), pod.priority)).values()]
