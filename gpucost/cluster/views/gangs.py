"""Gangs: pods that must run together, and since when one is partial.

A pod's gang is given by the first of these that applies: its PodGroup, the Kueue workload it was made for, a
job of a kind whose pods work together. One that needs a single pod is not a gang: Volcano makes a PodGroup
with ``minMember`` 1 for every owner of plain pods under its scheduler (volcano, pkg/controllers/podgroup),
and the next in turn decides then. ``minMember`` below the number of replicas is legal and is the need.
PodGroups in a tree of groups that must start together are one gang (``group_trees``): it is partial as long
as any level of the tree lacks what it needs, however many pods there are elsewhere.

A workload counts all pods of a job, also those that need not be there at once: tasks of an array, pods that
are made when others are ready or done. Where its job is known, the job's shape decides: one that is not a
gang makes none of its workload, and of a gang the smaller of both needs counts (a workload may be admitted in
part). Pods of a Job that a RayJob or MPIJob makes beside its workers, the submitter or launcher, come when
the workers are ready: a submitter is not a member, a launcher is one once it is made.

Partial means: a member holds GPUs, and members that are bound or have done their part are fewer than needed.
A gang is not partial while every missing member exists and is held back by a scheduling gate: Kueue or its
user lets it go later, and the scheduler has not failed. A gate that was removed left no trace: such a member
counts as one that never had it. A gang that is being ended is never partial: its workload is evicted or
finished, its job is finished or deleted, or all of it that is bound is being deleted. Pods of a workload that
MultiKueue sent to another cluster are members of no gang here: they only mirror those that run there.

The start of being partial is exact to the millisecond where objects are. It follows from members that are
known to have ended, from those that wait, and from the gang's own object where that shows that it never was
whole. A member that was lost without a trace and without a successor leaves none of these: then it is
unknown.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from gpucost.cluster.objects.jobs import JobObject
from gpucost.cluster.objects.kueue import Workload, WorkloadState
from gpucost.cluster.objects.metadata import ObjectMeta, Resources, added, is_false
from gpucost.cluster.objects.pods import Pod, PodPhase
from gpucost.cluster.objects.state import ClusterState
from gpucost.cluster.objects.volcano import CompositePodGroup, DisruptionMode, GroupKind, PodGroup
from gpucost.cluster.views.gpu_units import GpuUnits
from gpucost.cluster.views.group_trees import TREE_SCHEDULED, GroupNeed, GroupTrees
from gpucost.cluster.views.ownership import PodOwnership, group_index
from gpucost.cluster.views.workload_families import dispatches
from gpucost.contract.queue_metrics import GangKind
from gpucost.domain.jobs import JobKind, JobReference, job_kind


class GangNeed(NamedTuple):
    """``members`` it needs at once, or to have done their part, of which ``done`` have according to its own
    object. With ``stays_done`` none of these ever needs a successor. ``never_whole``: according to its own
    object it has not been whole since its first member was bound. ``wanted``: how many members it has in all,
    where that may be more than it needs. ``tree`` is the need of a tree of groups, level by level:
    ``members`` is the least number that could fulfil it."""

    members: int
    done: int = 0
    stays_done: bool = False
    never_whole: bool = False
    wanted: int = 0
    tree: GroupNeed | None = None


class GangPartiality(NamedTuple):
    """Since when a gang is partial, None where unknown; ``was_whole``: whether its pods show that it was
    whole before."""

    since_ms: int | None
    was_whole: bool = False


def partial(
    need: GangNeed, members: Sequence[Pod], gone: Sequence[Pod], holds_gpus: Callable[[Pod], bool]
) -> GangPartiality | None:
    """Whether the gang is partial, and the last moment at which it became so; None while it is not.

    ``members`` are its pods in the API, ``gone`` those no longer there, which only date its changes. Where a
    member is gone whose end was not seen, the gang is partial from the creation of the earliest pod that
    waits in its place, if there is one. Where the pods that wait are as old as its first binding, it never
    was whole; unless they may be those that it can do without.
    """
    present = sum(pod.is_bound and pod.ended_ms is None for pod in members)
    if need.tree is None and present >= need.members:
        return None
    now = _Counts(done=_unseen_done(need, members))
    for change in _changes(members, holds_gpus):
        now.add(change)
    if not now.is_partial(need):
        return None
    since_ms, was_whole = _last_start(need, (*members, *gone), holds_gpus)
    if since_ms is None or was_whole or need.never_whole:
        return GangPartiality(since_ms, was_whole)
    waiting = [pod for pod in members if pod.bound_ms is None and not pod.has_ended and not pod.is_gated]
    if need.wanted > need.members:
        are_all_made = sum(pod.phase is not PodPhase.FAILED for pod in members) >= need.wanted
        late = [pod for pod in waiting if pod.meta.created_ms > since_ms]
        waiting = late or (waiting if are_all_made else [])
    if not waiting:
        return GangPartiality(None)
    return GangPartiality(max(since_ms, min(pod.meta.created_ms for pod in waiting)))


class _GangChange(NamedTuple):
    """The effect of a member on the counts of its gang, at one instant."""

    at_ms: int
    bound: int = 0
    holding: int = 0
    pending: int = 0
    gated: int = 0
    done: int = 0
    group: str = ""


@dataclass(slots=True)
class _Counts:
    """Members at one instant; ``holding`` are those of ``bound`` that hold GPUs. ``there`` are by group those
    that are bound, have done their part, or are gated."""

    bound: int = 0
    holding: int = 0
    pending: int = 0
    gated: int = 0
    done: int = 0
    there: Counter[str] = field(default_factory=Counter)

    def add(self, change: _GangChange) -> None:
        if change.group:
            self.there[change.group] += change.bound + change.done + change.gated
        self.bound += change.bound
        self.holding += change.holding
        self.pending += change.pending
        self.gated += change.gated
        self.done += change.done

    def is_partial(self, need: GangNeed) -> bool:
        """A member that succeeded while another waits in its place was only one of many to come (a Job with
        more completions than parallelism): it does not count as done."""
        if need.tree is not None:
            return self.holding > 0 and not need.tree.is_met(self.there)
        rest = need.members - self.bound
        done = self.done if need.stays_done else min(self.done, max(0, rest - self.pending))
        return self.holding > 0 and rest - done > max(0, self.gated)


def _last_start(
    need: GangNeed, pods: Sequence[Pod], holds_gpus: Callable[[Pod], bool]
) -> tuple[int | None, bool]:
    """When the last stretch of being partial began, and whether the gang was seen whole before."""
    by_instant: dict[int, list[_GangChange]] = {}
    for change in _changes(pods, holds_gpus):
        by_instant.setdefault(change.at_ms, []).append(change)
    counts = _Counts(done=_unseen_done(need, pods))
    since_ms, was_whole = None, False
    for at_ms in sorted(by_instant):
        for change in by_instant[at_ms]:
            counts.add(change)
        if not counts.is_partial(need):
            since_ms = None
            was_whole = was_whole or counts.holding > 0
        elif since_ms is None:
            since_ms = at_ms
    return since_ms, was_whole


def _unseen_done(need: GangNeed, pods: Iterable[Pod]) -> int:
    """Members that are done and no longer in the API: they count as done from the beginning."""
    return max(0, need.done - sum(pod.phase is PodPhase.SUCCEEDED for pod in pods))


def _changes(pods: Iterable[Pod], holds_gpus: Callable[[Pod], bool]) -> Iterator[_GangChange]:
    """Creation, binding and end of each member. One that ended at an unknown time never counts as bound."""
    for pod in pods:
        done = int(pod.phase is PodPhase.SUCCEEDED)
        gated, group = int(pod.is_gated), pod.group
        created_ms, bound_ms, ended_ms = pod.meta.created_ms, pod.bound_ms, pod.ended_ms
        if pod.has_ended and ended_ms is None:
            yield _GangChange(created_ms, done=done, group=group)
        elif bound_ms is None:
            yield _GangChange(created_ms, pending=1, gated=gated, group=group)
            if ended_ms is not None:
                over_ms = max(created_ms, ended_ms)
                yield _GangChange(over_ms, pending=-1, gated=-gated, done=done, group=group)
        else:
            holding = int(holds_gpus(pod))
            yield _GangChange(min(created_ms, bound_ms), pending=1, gated=gated, group=group)
            yield _GangChange(bound_ms, bound=1, holding=holding, pending=-1, gated=-gated, group=group)
            if ended_ms is not None:
                over_ms = max(bound_ms, ended_ms)
                yield _GangChange(over_ms, bound=-1, holding=-holding, done=done, group=group)


GROUP_INDEX = "leaderworkerset.sigs.k8s.io/group-index"
_ENDING = (WorkloadState.EVICTING, WorkloadState.FINISHED, WorkloadState.INACTIVE)
_NOT_STARTED = ("", "Pending", "Inqueue")
_LAUNCHER = "launcher"
_ROLES = ("training.kubeflow.org/job-role", "training.kubeflow.org/replica-type")


@dataclass(frozen=True, slots=True)
class PodGang:
    """Pods that must run together.

    ``uid`` is that of the PodGroup, of the root of a tree of groups, of the workload or job, with the index
    of the group for a LeaderWorkerSet. ``min_members`` is how many it needs at once from now on; of a tree
    that lacks some, those that run and the fewest that must come. ``running`` are bound, ``pending`` have no
    node; ``held`` are GPU units of those that are bound. ``partial_since_ms`` is None where it is not
    partial, or since when is unknown. ``was_whole``: its pods show that it was whole before it became
    partial.
    """

    kind: GangKind
    namespace: str
    name: str
    uid: str
    job: JobReference
    queue: str
    min_members: int
    running: int
    pending: int
    succeeded: int
    held: Resources
    is_partial: bool = False
    partial_since_ms: int | None = None
    was_whole: bool = False
    disruption: DisruptionMode | None = None
    """How much of it kube-scheduler preempts at once; None where another scheduler places it, or it is no
    PodGroup."""
    leaving: int = 0
    """Those of ``running`` that are being deleted, and hold their nodes until they are gone."""


_Source = PodGroup | CompositePodGroup | Workload | JobObject


@dataclass(slots=True)
class _GangDraft:
    """A gang while its members are collected. ``returned`` of those needed have given their quota back.
    ``launchers`` of those needed come when the others are ready. ``shape`` is the job that decides the need
    of a workload, where it is known."""

    kind: GangKind
    meta: ObjectMeta
    source: _Source
    need: GangNeed
    returned: int = 0
    launchers: int = 0
    shape: JobObject | None = None
    is_ending: bool = False
    wants_gpus: bool = False
    index: str = ""
    members: list[Pod] = field(default_factory=list)
    gone: list[Pod] = field(default_factory=list)


_Key = tuple[GangKind, str, str]


def gangs(
    state: ClusterState, units: GpuUnits, ownership: PodOwnership, ended: Sequence[Pod] = ()
) -> list[PodGang]:
    """Gangs that want GPUs and have members that run or wait, by namespace, name and uid.

    A PodGroup whose pods are not made yet counts when its ``minResources`` want GPUs. ``ended`` are pods
    that are no longer in the API, with their ``ended_ms``: they date what is partial now, and count for
    nothing else.
    """
    drafts = _Drafts(units, ownership, GroupTrees(state), dispatches(state))
    for pod in state.pods.values():
        draft = drafts.of(pod)
        if draft is not None:
            draft.members.append(pod)
    for pod in ended:
        draft = None if pod.meta.uid in state.pods else drafts.of(pod)
        if draft is not None:
            draft.gone.append(pod)
    for group in state.pod_groups.values():
        drafts.add_waiting(group)
    for draft in drafts.found.values():
        if draft.launchers and not any(map(drafts.is_launcher, draft.members)):
            draft.need = draft.need._replace(members=draft.need.members - draft.launchers)
    found = [_gang(draft, units, ownership) for draft in drafts.found.values()]
    return sorted(
        (gang for gang in found if gang is not None), key=lambda gang: (gang.namespace, gang.name, gang.uid)
    )


class _Drafts:
    """Finds the gang of a pod."""

    def __init__(
        self, units: GpuUnits, ownership: PodOwnership, trees: GroupTrees, sent: Collection[str]
    ) -> None:
        """``sent`` are uids of workloads that run in other clusters."""
        self._units = units
        self._ownership = ownership
        self._trees = trees
        self._sent = sent
        self.found: dict[_Key, _GangDraft] = {}

    def of(self, pod: Pod) -> _GangDraft | None:
        # One with a node here is of this cluster, whatever workload its labels name.
        if self._sent and pod.bound_ms is None and self._ownership.of(pod).workload_uid in self._sent:
            return None
        group = self._ownership.pod_group_of(pod)
        root = None if group is None else self._trees.root_of(group)
        if root is not None:
            return self._get(GangKind.GROUP_TREE, root.meta.uid) or self._of_tree(root)
        index = group_index(pod)
        if group is not None and index:
            least = group.min_task_member.get(index.partition("/")[0], 1)
            if least > 1:
                known = self._get(GangKind.POD_GROUP, group.meta.uid, index)
                return known or self._of_group(group, least, index)
        elif group is not None and group.min_member > 1:
            return self._get(GangKind.POD_GROUP, group.meta.uid) or self._of_group(group, group.min_member)
        workload = self._ownership.workload_of(pod)
        if workload is not None:
            draft = self._get(GangKind.WORKLOAD, workload.meta.uid) or self._of_workload(workload)
            if draft.need.members > 1:
                return None if draft.shape is not None and self._is_submitter(pod) else draft
        return self._of_job(pod)

    def add_waiting(self, group: PodGroup) -> None:
        """A PodGroup without pods: Volcano makes those of a job only when it is admitted."""
        asked = self._units.asked(group.min_resources or {})
        key = (GangKind.POD_GROUP, group.meta.uid, "")
        is_waiting = group.phase in _NOT_STARTED and group.min_member > 1
        if asked and is_waiting and key not in self.found:
            self._of_group(group, group.min_member)

    def _get(self, kind: GangKind, uid: str, index: str = "") -> _GangDraft | None:
        return self.found.get((kind, uid, index))

    def _add(self, draft: _GangDraft) -> _GangDraft:
        return self.found.setdefault((draft.kind, draft.meta.uid, draft.index), draft)

    def _of_tree(self, root: CompositePodGroup) -> _GangDraft:
        tree = self._trees.need_of(root)
        need = GangNeed(
            tree.missing({}) if tree is not None else 1,
            stays_done=True,
            # It turns True once, when the tree is placed, and stays so (scheduling/v1alpha3 types.go).
            never_whole=is_false(root.conditions, TREE_SCHEDULED),
            tree=tree,
        )
        is_ending = root.meta.deleted_ms is not None
        return self._add(_GangDraft(GangKind.GROUP_TREE, root.meta, root, need, is_ending=is_ending))

    def _of_group(self, group: PodGroup, least: int, index: str = "") -> _GangDraft:
        draft = _GangDraft(
            GangKind.POD_GROUP,
            group.meta,
            group,
            # Volcano counts members that succeeded as ready for good (gang plugin).
            GangNeed(
                least,
                group.succeeded or 0,
                stays_done=True,
                # Volcano writes another phase once as many are placed as it needs (session.go, jobStatus).
                never_whole=group.phase in _NOT_STARTED and bool(group.phase),
            ),
            is_ending=group.phase == "Completed" or group.meta.deleted_ms is not None,
            wants_gpus=bool(self._units.asked(group.min_resources or {})),
            index=index,
        )
        return self._add(draft)

    def _of_workload(self, workload: Workload) -> _GangDraft:
        counts = workload.assignments or workload.pod_sets
        needed = sum(each.count for each in counts)
        returned = min(needed, sum(workload.reclaimable.values()))
        shape = self._shape_of(workload)
        size = needed if shape is None else min(needed, shape.gang_size or 0)
        # Those that it can do without may be among those that gave their quota back.
        returned = max(0, returned - (needed - size))
        draft = _GangDraft(
            GangKind.WORKLOAD,
            workload.meta,
            workload,
            GangNeed(size, returned),
            returned,
            _launchers(shape),
            shape,
            is_ending=workload.state in _ENDING or workload.meta.deleted_ms is not None,
            wants_gpus=any(self._units.asked(each.template.requests) for each in workload.pod_sets),
        )
        return self._add(draft)

    def _shape_of(self, workload: Workload) -> JobObject | None:
        """The job it was made for, where that is known and determines its need."""
        job = self._ownership.maker_of(workload)
        return job if job is not None and (job.pod_sets or job.gang_size) else None

    def _is_submitter(self, pod: Pod) -> bool:
        return _is_made_by(self._ownership.jobs_of(pod), JobKind.RAY_JOB)

    def is_launcher(self, pod: Pod) -> bool:
        """Whether it starts the program on the workers of an MPIJob."""
        has_role = any(pod.meta.labels.get(role) == _LAUNCHER for role in _ROLES)
        return has_role or _is_made_by(self._ownership.jobs_of(pod), JobKind.MPI_JOB)

    def _of_job(self, pod: Pod) -> _GangDraft | None:
        """The gang of the outermost job that determines how many it needs at once."""
        if self._is_submitter(pod):
            return None
        for job in reversed(self._ownership.jobs_of(pod)):
            if job.gang_size is not None and job.gang_size > 1:
                of_groups = job.job_kind is JobKind.LEADER_WORKER_SET
                index = pod.meta.labels.get(GROUP_INDEX, "") if of_groups else ""
                found = self._get(GangKind.JOB, job.meta.uid, index)
                return found or self._add(_of_job_object(job, job.gang_size, index))
        return None


def _of_job_object(job: JobObject, size: int, index: str) -> _GangDraft:
    done = 0 if index else job.succeeded or 0
    is_ending = job.ended_ms is not None or job.is_suspended or job.meta.deleted_ms is not None
    return _GangDraft(
        GangKind.JOB,
        job.meta,
        job,
        GangNeed(size, done),
        launchers=_launchers(job),
        is_ending=is_ending,
        index=index,
    )


def _launchers(job: JobObject | None) -> int:
    if job is None or job.job_kind is not JobKind.MPI_JOB:
        return 0
    return sum(each.count for each in job.pod_sets if each.name == _LAUNCHER)


def _is_made_by(jobs: Sequence[JobObject], kind: JobKind) -> bool:
    """Whether the innermost is a plain Job that a job of another kind made."""
    owner = jobs[0].meta.owner if jobs and jobs[0].job_kind is JobKind.JOB else None
    return owner is not None and job_kind(owner.api_version, owner.kind) is kind


def _gang(draft: _GangDraft, units: GpuUnits, ownership: PodOwnership) -> PodGang | None:
    """The gang of a draft; None where no member is left, or it wants no GPUs."""
    alive = [pod for pod in draft.members if not pod.has_ended]
    bound = [pod for pod in alive if pod.is_bound]
    wants = draft.wants_gpus or any(units.is_gpu_pod(pod) for pod in alive)
    is_over = not alive and (draft.is_ending or draft.kind is not GangKind.POD_GROUP or draft.members)
    if draft.need.members <= 1 or not wants or is_over:
        return None
    first = min(draft.members, key=lambda pod: (pod.meta.created_ms, pod.meta.uid), default=None)
    stall = None
    if not draft.is_ending and any(pod.meta.deleted_ms is None for pod in bound):
        need = draft.need._replace(wanted=_wanted(draft, first, ownership))
        stall = partial(need, draft.members, draft.gone, lambda pod: bool(units.having(pod)))
    suffix = f"-{draft.index.replace('/', '-')}" if draft.index else ""
    queue = "" if isinstance(draft.source, (JobObject, CompositePodGroup)) else draft.source.queue
    if first is not None and not queue:
        queue = ownership.of(first).queue
    return PodGang(
        draft.kind,
        draft.meta.namespace,
        draft.meta.name + suffix,
        draft.meta.uid + suffix,
        _job(draft.source, first, ownership),
        queue,
        _least(draft, len(bound)) - draft.returned,
        len(bound),
        sum(pod.is_unplaced for pod in alive),
        sum(pod.phase is PodPhase.SUCCEEDED for pod in draft.members),
        added(*(units.having(pod) for pod in bound)),
        stall is not None,
        None if stall is None else stall.since_ms,
        stall is not None and stall.was_whole,
        disruption=_disruption(draft.source),
        leaving=sum(pod.is_leaving for pod in bound),
    )


def _disruption(source: _Source) -> DisruptionMode | None:
    if isinstance(source, CompositePodGroup):
        return source.disruption
    is_native = isinstance(source, PodGroup) and source.group_kind is GroupKind.NATIVE
    return source.disruption if isinstance(source, PodGroup) and is_native else None


def _least(draft: _GangDraft, bound: int) -> int:
    """How many it needs at once: pods too many in one group of a tree are no help to another."""
    tree = draft.need.tree
    if tree is None:
        return draft.need.members
    there = Counter(p.group for p in draft.members if p.is_bound or p.phase is PodPhase.SUCCEEDED)
    lack = tree.missing(there)
    return max(draft.need.members, bound + lack) if lack else draft.need.members


def _wanted(draft: _GangDraft, first: Pod | None, ownership: PodOwnership) -> int:
    """How many pods Volcano's job has in all: a PodGroup may need fewer of them."""
    jobs = ownership.jobs_of(first) if first is not None and draft.kind is GangKind.POD_GROUP else ()
    return sum(job.pods_wanted for job in jobs if job.job_kind is JobKind.VOLCANO_JOB)


def _job(source: _Source, first: Pod | None, ownership: PodOwnership) -> JobReference:
    """A group need not have an owner; its pods have."""
    if isinstance(source, (PodGroup, CompositePodGroup)) and first is not None:
        return ownership.of(first).job
    return ownership.job_of(source)
