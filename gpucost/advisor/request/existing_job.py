"""A job that exists, found by kind and name, with all objects that stand for it in the cluster."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from gpucost.advisor.kueue.job_workloads import SUSPENDED, unlifted
from gpucost.advisor.model.answers import AdviceSubject
from gpucost.advisor.request.context import AdvisorContext
from gpucost.advisor.request.scheduling_request import SchedulingRequest, gpus_of
from gpucost.cluster.objects.jobs import JobObject
from gpucost.cluster.objects.kueue import Workload, WorkloadState
from gpucost.cluster.objects.pods import Pod, PodSet
from gpucost.cluster.objects.state import grouped
from gpucost.cluster.objects.volcano import GroupKind, PodGroup
from gpucost.cluster.views.overview import ClusterOverview
from gpucost.cluster.views.ownership import KUEUE_QUEUES
from gpucost.domain.jobs import JobKind, JobReference

WORKLOAD, POD_GROUP = "Workload", "PodGroup"


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
    """The request of what still waits of it: its pending workload, or its pods without a node. Where all of
    them have one, the request as if it asked for other nodes."""
    workload = found.workload
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
        refused=_refused(found, known),
    )


def _refused(found: ExistingJob, known: AdvisorContext) -> tuple[str, str] | None:
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
