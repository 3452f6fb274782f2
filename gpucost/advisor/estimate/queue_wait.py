"""How long a job waits: the jobs that run and wait now, what has to become free, and the simulation."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from gpucost.advisor.estimate.placement_layer import rooms_for, wanted_of
from gpucost.advisor.estimate.preempted_pods import passed
from gpucost.advisor.kueue.admission import disciplines
from gpucost.advisor.kueue.answer import BLOCKED, MOST_BESIDE
from gpucost.advisor.kueue.flavor_assigner import AssignmentMode
from gpucost.advisor.kueue.pending_queues import standing
from gpucost.advisor.kueue.requests import QuotaRequest
from gpucost.advisor.model.answers import LayerResult, SchedulingLayer, WaitEstimate
from gpucost.advisor.placement.free_capacity import FreeCapacity
from gpucost.advisor.placement.gang_placement import place
from gpucost.advisor.placement.pod_demand import PlacementDemand
from gpucost.advisor.request.context import AdvisorContext
from gpucost.advisor.request.scheduling_request import SchedulingRequest, gpus_of
from gpucost.advisor.volcano.gang import VolcanoGang
from gpucost.advisor.volcano.queue_simulation import VolcanoDiscipline, VolcanoWaitInput, run_id
from gpucost.advisor.wait.forecast_skill import corrected
from gpucost.advisor.wait.simulation import (
    JobArrival,
    SimulatedRun,
    WaitSampling,
    WaitSimulationInput,
    simulate,
)
from gpucost.cluster.objects.kueue import Workload, WorkloadState
from gpucost.cluster.objects.pods import Pod
from gpucost.domain.time import HOUR_MS, SECOND_MS

GRAIN_MS = 60_000
"""Ends are rounded up to a minute: answers are given in minutes, and fewer steps have to be simulated."""
LEAVING_MS = 60_000
"""What a workload that is being evicted still needs to stop its pods, at most."""
EVENTS = 400
"""Jobs to look at for each sample that the settings ask for: where fewer run and wait, there are up to ten
times as many samples, since 40 carry no more than the order of magnitude."""
_SEED = 1


def wait_of(asking: SchedulingRequest, found: LayerResult, known: AdvisorContext) -> WaitEstimate | None:
    """None where the simulation does not cover what holds it: a queue whose head can never be served; and
    where it was late before the first sample."""
    settings = known.settings
    if not settings.samples:
        return None
    horizon_ms = round(settings.horizon_hours * HOUR_MS)
    sampling = WaitSampling(settings.samples, horizon_ms, _SEED, GRAIN_MS)
    if asking.workloads and found.queue:
        asks = [standing(known.kueue.snapshot, each) for each in asking.workloads[:MOST_BESIDE]]
        if found.reason == BLOCKED and _is_stuck(known, asks[-1]):
            return None
        wait = _at_kueue(asking, found, known, asks, sampling)
        if wait is None:
            return None
        skill = None if known.skill is None else known.skill()
        told = corrected(wait, skill, found.queue, asking.gpus, known.state.at_ms)
        return _with_calibration(told, known, found.queue)
    if asking.gang is not None and asking.gang.queue in known.world.queues:
        wait = _at_volcano(asking, asking.gang, known, sampling)
    else:
        wait = _for_nodes(asking, known, sampling)
    # Outcomes of waits are kept for queues of Kueue only.
    return None if wait is None else corrected(wait, None, "", asking.gpus, known.state.at_ms)


def _simulated(
    scene: WaitSimulationInput, known: AdvisorContext, sampling: WaitSampling
) -> WaitEstimate | None:
    jobs = len(scene.running) + len(scene.waiting)
    times = max(1, min(10, EVENTS // max(1, jobs)))
    return simulate(
        scene, known.run_times, replace(sampling, samples=times * sampling.samples), known.is_late
    )


def _is_stuck(known: AdvisorContext, ask: QuotaRequest) -> bool:
    """Whether the head of its queue can never be admitted, so that none behind it is."""
    head = known.kueue.lines_of(ask.queue)[ask.queue].head
    if head is None or head.uid == ask.uid:
        return False
    return known.kueue.nominated_alone(head).assignment.mode is not AssignmentMode.FIT


def _at_kueue(
    asking: SchedulingRequest,
    found: LayerResult,
    known: AdvisorContext,
    asks: Sequence[QuotaRequest],
    sampling: WaitSampling,
) -> WaitEstimate | None:
    """Until the last of its workloads starts. Simulated are the workloads that hold quota in the tree, those
    that come back to their queues (``KueueView.later_of``) and, where quota is there and nodes are not, those
    that hold the nodes. None where the simulation would start all of them now: it knows fewer rules than the
    answer, which says that they wait."""
    view, ask = known.kueue, asks[-1]
    tree = view.tree(ask.queue)
    members = {uid for name in tree for uid in view.snapshot.queues[name].members}
    lines = view.lines_of(ask.queue)
    waiting = {each.uid for line in lines.values() for each in (*line.heap, *line.parked)} - {
        each.uid for each in asks
    }
    wanted = wanted_of(known, asking, found if found.pod_sets else None)
    others = _on_nodes(asking, known, wanted, members) if found.layer is not SchedulingLayer.QUOTA else {}
    pods = {**known.pods_by_workload, **_uids(others)}
    running = [_run_of(known.state.workloads[uid], known) for uid in sorted(members)]
    running += [_run_of_pods(job, its, known) for job, its in sorted(others.items())]
    target = SimulatedRun(ask.uid, asking.team, asking.subject.name, asking.gpus)
    behind = [_run_of(known.state.workloads[uid], known) for uid in sorted(waiting)]
    arrivals = [
        JobArrival(each.from_ms - known.state.at_ms, _run_of(known.state.workloads[uid], known))
        for uid, each in sorted(view.later_of(ask.queue).items())
    ]
    rooms = rooms_for(known, asking, wanted).without(asking.own_pods)
    lower = passed(known, asking, rooms, wanted)
    with disciplines(view, ask, lambda: _Nodes(rooms, wanted, pods, lower), asks[:-1]) as make:
        scene = WaitSimulationInput(ask.uid, running, [*behind, target], make, lambda _: arrivals)
        wait = _simulated(scene, known, sampling)
    return wait if wait is not None and wait.samples else None


def _at_volcano(
    asking: SchedulingRequest, gang: VolcanoGang, known: AdvisorContext, sampling: WaitSampling
) -> WaitEstimate | None:
    """A gang at Volcano: its queue, and nodes. Every job that holds either may end."""
    jobs: dict[str, list[Pod]] = {}
    for job, pods in sorted(known.pods_by_job.items()):
        bound = [pod for pod in pods if pod.is_bound and pod.node and not _stays(pod)]
        is_own = job == asking.subject.uid or any(pod.meta.uid in asking.own_pods for pod in bound)
        if bound and not is_own:
            jobs[job] = bound
    stage = VolcanoWaitInput(gang, known.world, jobs)
    running = [_run_of_pods(job, pods, known) for job, pods in jobs.items()]
    running += [_run_of_gang(each, known) for each in stage.begun_gangs]
    waiting = [_run_of_gang(each, known) for each in stage.rivals]
    target = SimulatedRun(stage.id, asking.team, asking.subject.name, asking.gpus)
    scene = WaitSimulationInput(stage.id, running, [*waiting, target], lambda: VolcanoDiscipline(stage))
    wait = _simulated(scene, known, sampling)
    if wait is None:
        return None
    return replace(wait, basis="; ".join(filter(None, (wait.basis, stage.assumed))))


def _run_of_gang(gang: VolcanoGang, known: AdvisorContext) -> SimulatedRun:
    group = known.world.groups[gang.uid]
    catalog = known.overview.catalog
    gpus = round(sum(amount for name, amount in gang.wants.items() if catalog.is_gpu(name)))
    ownership = known.overview.ownership
    return SimulatedRun(run_id(gang), ownership.team_of(group), ownership.job_of(group).name, gpus)


def _for_nodes(
    asking: SchedulingRequest, known: AdvisorContext, sampling: WaitSampling
) -> WaitEstimate | None:
    """A job without a queue: it starts when enough others have ended on nodes that it may use."""
    wanted = wanted_of(known, asking, None)
    jobs = _on_nodes(asking, known, wanted, frozenset())
    running = [_run_of_pods(job, pods, known) for job, pods in sorted(jobs.items())]
    target = SimulatedRun(f"asking/{asking.subject.name}", asking.team, asking.subject.name, asking.gpus)
    rooms, pods = rooms_for(known, asking, wanted).without(asking.own_pods), _uids(jobs)

    lower = passed(known, asking, rooms, wanted)

    def make() -> _Gated:
        return _Gated(_Nodes(rooms, wanted, pods, lower), target.id)

    return _simulated(WaitSimulationInput(target.id, running, [target], make), known, sampling)


def _on_nodes(
    asking: SchedulingRequest, known: AdvisorContext, wanted: Sequence[PlacementDemand], but: Collection[str]
) -> dict[str, list[Pod]]:
    """Pods by job, of those on nodes that the pods may use, without what stays as long as its node, and
    without workloads ``but``. What the asking job holds itself does not end before it has begun."""
    may_use = {known.rooms.name(at) for each in wanted for at in known.rooms.base.admits(each.asks)}
    jobs: dict[str, list[Pod]] = {}
    for node in sorted(may_use):
        for pod in known.state.pods_by_node.get(node, ()):
            belongs = known.overview.ownership.of(pod)
            is_own = pod.meta.uid in asking.own_pods or belongs.job.uid == asking.subject.uid
            if not is_own and belongs.workload_uid not in but and not _stays(pod):
                jobs.setdefault(belongs.job.uid, []).append(pod)
    return jobs


def _uids(jobs: Mapping[str, Sequence[Pod]]) -> dict[str, list[str]]:
    return {job: [pod.meta.uid for pod in pods] for job, pods in jobs.items()}


class _Nodes:
    """Room for the target as others end. Jobs that start meanwhile are taken to go elsewhere. Pods that
    kube-scheduler preempts for it occupy nodes only until preempting them makes enough room."""

    def __init__(
        self,
        rooms: FreeCapacity,
        wanted: Sequence[PlacementDemand],
        pods: Mapping[str, Sequence[str]],
        passed_over: frozenset[str],
    ) -> None:
        self._passed = passed_over
        self._rooms, self._wanted, self._pods = rooms.without(passed_over), wanted, pods
        self._gone: list[str] = []
        self._fits: bool | None = None

    def leave(self, ended: Iterable[str]) -> None:
        left = (uid for job in ended for uid in self._pods.get(job, ()))
        self._gone += [uid for uid in left if uid not in self._passed]

    def is_open(self) -> bool:
        """Whether the pods of the target would find nodes now; asked of nodes only where that may be new."""
        if self._fits is None or (self._gone and not self._fits):
            self._rooms = self._rooms.without(self._gone)
            self._gone = []
            self._fits = place(self._rooms, self._wanted, ask_empty=False).fits
        return self._fits


class _Gated:
    """The discipline without a queue."""

    def __init__(self, nodes: _Nodes, target: str) -> None:
        self._nodes, self._target = nodes, target

    def start(self, _now_ms: int, ended: Sequence[str], _arrived: Sequence[str], /) -> Sequence[str]:
        self._nodes.leave(ended)
        return [self._target] if self._nodes.is_open() else []


def _run_of(workload: Workload, known: AdvisorContext) -> SimulatedRun:
    """A workload that holds quota, or waits for it, as a run of the simulation."""
    job = known.overview.ownership.job_of(workload)
    team = known.overview.ownership.team_of(workload)
    since = workload.admitted_ms if workload.admitted_ms is not None else workload.reserved_ms
    elapsed = max(0, known.state.at_ms - since) if since is not None and workload.has_quota else 0
    gpus = sum(gpus_of(each, known) for each in workload.pod_sets)
    limits = []
    if workload.max_execution_s is not None:
        limits.append((workload.max_execution_s - workload.past_execution_s) * SECOND_MS - elapsed)
    maker = known.overview.ownership.maker_of(workload)
    if maker is not None and maker.deadline_s is not None:
        limits.append(maker.deadline_s * SECOND_MS - elapsed)
    left = max(1, min(limits)) if limits else None
    if workload.state is WorkloadState.EVICTING:
        left = LEAVING_MS
    return SimulatedRun(workload.meta.uid, team, job.name, gpus, elapsed, left)


def _run_of_pods(job: str, pods: Sequence[Pod], known: AdvisorContext) -> SimulatedRun:
    belonging = known.overview.ownership.of(pods[0])
    since = min((pod.bound_ms for pod in pods if pod.bound_ms is not None), default=known.state.at_ms)
    gpus = sum(sum(known.overview.units.of(pod).values()) for pod in pods)
    elapsed = max(0, known.state.at_ms - since)
    limits = [each.deadline_s for each in known.overview.ownership.jobs_of(pods[0])]
    deadline = min((each for each in limits if each is not None), default=None)
    left = None if deadline is None else max(1, deadline * SECOND_MS - elapsed)
    leaving = [pod.meta.deleted_ms for pod in pods if pod.meta.deleted_ms is not None]
    if len(leaving) == len(pods):
        left = max(1, max(leaving) - known.state.at_ms)
    return SimulatedRun(job, belonging.team, belonging.job.name, gpus, elapsed, left)


def _stays(pod: Pod) -> bool:
    """Whether it runs as long as its node: DaemonSets and static pods."""
    return pod.meta.owner is not None and pod.meta.owner.kind in ("DaemonSet", "Node")


def _with_calibration(wait: WaitEstimate, known: AdvisorContext, queue: str) -> WaitEstimate:
    """The wait, with how many of the ranges given so far held."""
    found = known.calibration(queue) if known.calibration is not None else None
    if found is None or not found.p90.given:
        return wait
    return replace(wait, held=found.p90.held, given=found.p90.given)
