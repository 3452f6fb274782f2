"""Ownership of a pod: its job, Kueue workload, queues, flavor, and its team, project and user.

Links are those that Kueue and Volcano leave on objects (kueue, pkg/controller/constants and
apis/kueue/v1beta2; volcano, apis/batch/v1alpha1/labels.go); the chain of owners ends in
``domain.jobs.resolve_job``.

All of these links are written by tenants, in their own namespaces, and the API server checks none of them. So
a link holds within its namespace only, and an owner is believed where the object of that uid matches the
reference. The uid of any other owner is only what the reference claims: the job of that name is then one of
the pod's namespace, ``namespace:uid``, and never that of the object which really has the uid.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from gpucost.cluster.objects.jobs import JobObject
from gpucost.cluster.objects.kueue import PodSetAssignment, Workload, WorkloadState
from gpucost.cluster.objects.metadata import Labels, ObjectMeta, OwnerKeys
from gpucost.cluster.objects.pods import Pod
from gpucost.cluster.objects.state import ClusterState
from gpucost.cluster.objects.volcano import CompositePodGroup, GroupKind, PodGroup
from gpucost.domain.gpu import ResourceCatalog
from gpucost.domain.jobs import JobKind, JobReference, OwnerReference, resolve_job

WORKLOAD = "kueue.x-k8s.io/workload"
POD_SET = "kueue.x-k8s.io/podset"
KUEUE_GROUP = "kueue.x-k8s.io/pod-group-name"
JOB_UID = "kueue.x-k8s.io/job-uid"
KUEUE_QUEUES = ("kueue.x-k8s.io/local-queue-name", "kueue.x-k8s.io/queue-name")
VOLCANO_QUEUES = ("scheduling.volcano.sh/queue-name", "volcano.sh/queue-name")
OTHER_QUEUES: Mapping[str, tuple[str, ...]] = {
    "kai-scheduler": ("kai.scheduler/queue",),
    "yunikorn": ("yunikorn.apache.org/queue", "queue"),
}
"""By name of the scheduler that a pod asks for (KAI-Scheduler, pkg/common/constants; yunikorn-k8shim,
pkg/common/constants: the old label is ``queue`` alone)."""
UNVERIFIED = "unverified:"
"""Begins the queue of a pod of which only the pod itself says it. No queue has a colon in its name, so that
what a tenant writes never counts for the queue of another."""
_NOT_BOUND_BY_IT = ("yunikorn",)
"""Schedulers that may put a pod into another queue than it names, and leave no object that says which:
YuniKorn by its placement rules. KAI puts it into the one that it names, or nowhere."""
VOLCANO_GROUPS = ("scheduling.k8s.io/group-name", "scheduling.volcano.sh/group-name")
COSCHEDULING_GROUP = "scheduling.x-k8s.io/pod-group"
LINKS = (
    *(WORKLOAD, POD_SET, KUEUE_GROUP, COSCHEDULING_GROUP),
    *(*KUEUE_QUEUES, *VOLCANO_QUEUES, *VOLCANO_GROUPS),
    *(key for keys in OTHER_QUEUES.values() for key in keys),
)
"""Labels and annotations of pods that this module reads, independent of the settings."""

GroupKey = tuple[str, str, str]
"""Kind of group, namespace and name, as in ``ClusterState.pod_group_by_name``."""

MOST_OWNERS = 16
"""Longer chains of owners are cut off; those of real jobs have five at most."""


@dataclass(frozen=True, slots=True)
class PodAffiliation:
    """What a pod belongs to; empty where unknown.

    ``queue`` is a LocalQueue, or for pods that Kueue does not manage one of Volcano, KAI or YuniKorn.
    ``flavor`` is that of the GPUs of its pod set. ``is_checked`` is False where an owner is not known, or
    does not match the reference to it; the uid of ``job`` is then ``namespace:uid`` if the job is that owner.
    """

    job: JobReference
    workload: str = ""
    workload_uid: str = ""
    queue: str = ""
    cluster_queue: str = ""
    flavor: str = ""
    team: str = ""
    project: str = ""
    user: str = ""
    is_checked: bool = True


@dataclass(frozen=True, slots=True)
class _Chain:
    """Owners from the direct one outwards, and those objects among them that are known.

    ``owners`` are as a job is named after them, ``uids`` as references claim them. They differ in the last
    of a chain that is not ``is_checked``.
    """

    owners: tuple[OwnerReference, ...] = ()
    uids: tuple[str, ...] = ()
    metas: tuple[ObjectMeta, ...] = ()
    jobs: tuple[JobObject, ...] = ()
    is_checked: bool = True


_NO_CHAIN = _Chain()


class PodOwnership:
    """Ownership of the pods of one state, or pods that were in it; equal questions are answered once."""

    def __init__(
        self,
        state: ClusterState,
        keys: OwnerKeys | None = None,
        catalog: ResourceCatalog | None = None,
    ) -> None:
        self._state = state
        self._keys = keys or OwnerKeys()
        self._catalog = catalog or ResourceCatalog()
        self._watched = frozenset((*LINKS, *self._keys.all))
        self._chains: dict[tuple[str, OwnerReference], _Chain] = {}
        self._by_pod: dict[str, tuple[Pod, PodAffiliation]] = {}
        self._answers: dict[tuple[object, ...], PodAffiliation] = {}
        self._workload_by_job = workload_by_job(state.workloads.values())

    def of(self, pod: Pod) -> PodAffiliation:
        """What the pod belongs to."""
        last = self._by_pod.get(pod.meta.uid)
        if last is None or last[0] is not pod:
            last = self._by_pod[pod.meta.uid] = (pod, self._of(pod))
        return last[1]

    def jobs_of(self, pod: Pod) -> tuple[JobObject, ...]:
        """The known jobs among its owners, from the direct one outwards."""
        return self._chain(pod.meta).jobs

    def workload_of(self, pod: Pod) -> Workload | None:
        """The Kueue workload it was made for, while that is known."""
        return self._state.workloads.get(self.of(pod).workload_uid)

    def pod_group_of(self, pod: Pod) -> PodGroup | None:
        """The PodGroup it names, while that is known."""
        key = group_key(pod)
        return None if key is None else self._state.pod_group_by_name.get(key)

    def job_of(self, made_for: Workload | PodGroup | CompositePodGroup | JobObject) -> JobReference:
        """The job that a Kueue workload or a group was made for, or that a job is part of.

        A group of plain pods has no single owner: it stands for them, as a job of kind Pod.
        """
        meta = made_for.meta
        if isinstance(made_for, JobObject):
            return self._job((made_for.as_owner,), meta)
        if meta.owner is not None:
            return self._job((), meta)
        known = self.maker_of(made_for)
        if known is not None:
            return self._job((known.as_owner,), known.meta)
        return JobReference(JobKind.POD, meta.name, meta.uid)

    def team_of(self, made_for: Workload | PodGroup | JobObject) -> str:
        """The team of the object that pods are made for, from its labels, those of its owners, or its
        namespace's."""
        known = None if isinstance(made_for, JobObject) else self.maker_of(made_for)
        meta = made_for.meta if known is None or made_for.meta.owner is not None else known.meta
        return _first(tuple(self._places(meta, self._chain(meta))), self._keys.team)

    def maker_of(self, made_for: Workload | PodGroup | CompositePodGroup) -> JobObject | None:
        """The job that a Kueue workload or a group was made for, while that is known: its direct owner,
        or, where it has none, the one that its label names."""
        meta = made_for.meta
        if meta.owner is not None:
            known = self._known(meta.namespace, meta.owner)
            return known if isinstance(known, JobObject) else None
        named = self._state.jobs.get(meta.labels.get(JOB_UID, ""))
        return named if named is not None and named.meta.namespace == meta.namespace else None

    def _job(self, own: tuple[OwnerReference, ...], meta: ObjectMeta) -> JobReference:
        """What ``own`` and the owners of an object stand for."""
        return resolve_job((*own, *self._chain(meta).owners))

    def _of(self, pod: Pod) -> PodAffiliation:
        meta = pod.meta
        labels, annotations, watched = meta.labels, meta.annotations, self._watched
        # A pod of a Deployment can have a workload of its own.
        owner = None if (meta.namespace, meta.uid) in self._workload_by_job else meta.owner
        key = (
            meta.uid if owner is None else owner,
            meta.namespace,
            pod.group,
            pod.template.scheduler,
            *[(each, labels[each]) for each in labels if each in watched],
            "annotations",
            *[(each, annotations[each]) for each in annotations if each in watched],
        )
        found = self._answers.get(key)
        if found is None:
            found = self._answers[key] = self._belonging(pod)
        return found

    def _belonging(self, pod: Pod) -> PodAffiliation:
        meta = pod.meta
        chain = self._chain(meta)
        places = tuple(self._places(meta, chain))
        workload = self._workload(pod, chain)
        queue, cluster_queue = self._queues(pod, chain, workload)
        return PodAffiliation(
            self._job((OwnerReference("v1", "Pod", meta.name, meta.uid),), meta),
            "" if workload is None else workload.meta.name,
            "" if workload is None else workload.meta.uid,
            queue,
            cluster_queue,
            self._flavor(meta, workload),
            _first(places, self._keys.team),
            _first(places, self._keys.project),
            _first(places, self._keys.user),
            chain.is_checked,
        )

    def _chain(self, meta: ObjectMeta) -> _Chain:
        """Of the owners of an object."""
        if meta.owner is None:
            return _NO_CHAIN
        key = meta.namespace, meta.owner
        found = self._chains.get(key)
        if found is None:
            found = self._chains[key] = self._climb(*key)
        return found

    def _climb(self, namespace: str, first: OwnerReference) -> _Chain:
        """Up to an owner that is not known, that has none, or that was visited before."""
        owners: list[OwnerReference] = []
        metas: list[ObjectMeta] = []
        jobs: list[JobObject] = []
        uids: dict[str, None] = {}
        owner: OwnerReference | None = first
        while owner is not None and owner.uid not in uids and len(uids) < MOST_OWNERS:
            uids[owner.uid] = None
            known = self._known(namespace, owner)
            if known is None:
                owners.append(replace(owner, uid=f"{namespace}:{owner.uid}"))
                return _Chain(tuple(owners), tuple(uids), tuple(metas), tuple(jobs), False)
            owners.append(owner)
            metas.append(known.meta)
            if isinstance(known, JobObject):
                jobs.append(known)
            owner = known.meta.owner
        return _Chain(tuple(owners), tuple(uids), tuple(metas), tuple(jobs))

    def _known(self, namespace: str, owner: OwnerReference) -> JobObject | Pod | None:
        """The object of that uid, where it matches the reference of an object in ``namespace``.

        Versions may differ: a reference has that which its writer used.
        """
        # A pod can own: workers of a LeaderWorkerSet belong to their leader's.
        known = self._state.jobs.get(owner.uid) or self._state.pods.get(owner.uid)
        if known is None or known.meta.namespace not in (namespace, ""):
            return None
        own = (
            known.as_owner
            if isinstance(known, JobObject)
            else OwnerReference("v1", "Pod", known.meta.name, "")
        )
        claimed = owner.group, owner.kind, owner.name
        return known if claimed == (own.group, own.kind, known.meta.name) else None

    def _places(self, meta: ObjectMeta, chain: _Chain) -> Iterator[Labels]:
        """Labels and annotations that may name a team, the nearest first."""
        for each in (meta, *chain.metas):
            yield each.labels
            yield each.annotations
        namespace = self._state.namespace_by_name.get(meta.namespace)
        if namespace is not None:
            yield namespace.meta.labels
            yield namespace.meta.annotations

    def _workload(self, pod: Pod, chain: _Chain) -> Workload | None:
        meta, by_name = pod.meta, self._state.workload_by_name
        named = by_name.get((meta.namespace, meta.annotations.get(WORKLOAD, "")))
        if named is not None:
            return named
        for uid in (meta.uid, *chain.uids):
            found = self._workload_by_job.get((meta.namespace, uid))
            if found is not None:
                return found
        group = meta.labels.get(KUEUE_GROUP) or meta.annotations.get(KUEUE_GROUP, "")
        return by_name.get((meta.namespace, group))

    def _queues(self, pod: Pod, chain: _Chain, workload: Workload | None) -> tuple[str, str]:
        """Its LocalQueue and ClusterQueue, or its queue of another scheduler and none.

        The ClusterQueue comes only from its workload or its LocalQueue, since anyone may write labels.
        """
        meta = pod.meta
        queue, given = (workload.queue, workload.cluster_queue) if workload is not None else ("", "")
        if queue and given:
            return queue, given
        near = [place for each in (meta, *chain.metas) for place in (each.labels, each.annotations)]
        queue = queue or _first(near, KUEUE_QUEUES)
        if queue or given:
            local = self._state.local_queue_by_name.get((meta.namespace, queue))
            return queue, given or (local.cluster_queue if local is not None else "")
        group = self.pod_group_of(pod)
        queue = (group.queue if group is not None else "") or _first(near, VOLCANO_QUEUES)
        scheduler = pod.template.scheduler
        said = "" if queue else _first(near, OTHER_QUEUES.get(scheduler, ()))
        return queue or (f"{UNVERIFIED}{said}" if said and scheduler in _NOT_BOUND_BY_IT else said), ""

    def _flavor(self, meta: ObjectMeta, workload: Workload | None) -> str:
        if workload is None:
            return ""
        assignment = _assignment(workload, meta.labels.get(POD_SET, ""))
        if assignment is None:
            return ""
        flavors = assignment.flavors
        of_gpus = [flavors[resource] for resource in sorted(flavors) if self._catalog.is_gpu(resource)]
        # Devices of claims count under a name that the administrator chose: the only flavor covers them too.
        only = set(flavors.values())
        return of_gpus[0] if of_gpus else only.pop() if len(only) == 1 else ""


def group_key(pod: Pod) -> GroupKey | None:
    """The PodGroup that a pod names, whether it exists or not; None when it names none."""
    meta = pod.meta
    if pod.group:
        return GroupKind.NATIVE.value, meta.namespace, pod.group.partition("/")[0]
    if meta.annotations:
        name = _first((meta.annotations,), VOLCANO_GROUPS)
        if name:
            return GroupKind.VOLCANO.value, meta.namespace, name
    name = meta.labels.get(COSCHEDULING_GROUP, "")
    return (GroupKind.COSCHEDULING.value, meta.namespace, name) if name else None


def group_index(pod: Pod) -> str:
    """Which of the groups of its Workload it is in, with Kubernetes 1.35: ``workers``, or ``workers/0`` where
    there are several of them. Empty for a PodGroup, which is one."""
    return pod.group.partition("/")[2]


def workload_by_job(workloads: Iterable[Workload]) -> Mapping[tuple[str, str], Workload]:
    """By namespace and uid of what it was made for. Of several (an elastic job that wants to grow, one left
    over after a change) the newest that has not finished, of those with quota if there are any."""
    best: dict[tuple[str, str], tuple[tuple[bool, bool, int, str], Workload]] = {}
    for workload in workloads:
        meta = workload.meta
        unfinished = workload.state is not WorkloadState.FINISHED
        rank = (unfinished, unfinished and workload.has_quota, meta.created_ms, meta.uid)
        for uid in {meta.owner.uid if meta.owner is not None else "", meta.labels.get(JOB_UID, "")} - {""}:
            key = meta.namespace, uid
            if key not in best or rank > best[key][0]:
                best[key] = (rank, workload)
    return {key: workload for key, (_, workload) in best.items()}


def _assignment(workload: Workload, pod_set: str) -> PodSetAssignment | None:
    """The assignment of the pod set, or the only one."""
    given = workload.assignments
    named = [each for each in given if each.name == pod_set]
    return named[0] if named else given[0] if len(given) == 1 else None


def _first(places: Iterable[Labels], keys: Sequence[str]) -> str:
    """The first value that is not empty, of the first place that has one."""
    for place in places:
        if place:
            for key in keys:
                if value := place.get(key):
                    return value
    return ""
