"""What the advisor answers from: the cluster, history, prices and settings."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from gpucost.advisor.kueue.admission import KueueView
from gpucost.advisor.model.settings import AdvisorSettings
from gpucost.advisor.placement.free_capacity import FreeCapacity, positive
from gpucost.advisor.placement.gang_placement import reserve
from gpucost.advisor.placement.pod_demand import PlacementDemand
from gpucost.advisor.volcano.session import VolcanoSession
from gpucost.advisor.wait.forecast_skill import WaitCalibration, WaitSkill
from gpucost.advisor.wait.run_times import NO_HISTORY, PastUse, RunTimes
from gpucost.cluster.objects.jobs import Document, JobManifest, JobObject
from gpucost.cluster.objects.kueue import Workload
from gpucost.cluster.objects.pods import Pod
from gpucost.cluster.objects.state import ClusterState, grouped
from gpucost.cluster.objects.volcano import PodGroup
from gpucost.cluster.views.node_fit import FreeNodes
from gpucost.cluster.views.overview import ClusterOverview
from gpucost.pricing.price_book import PriceBook

MOST_UNPLACED = 200
"""Kinds of pods without a node that are placed before the question is answered."""
LEAST_PRIORITY = -(2**31)


def never() -> bool:
    """The default of ``is_late``: no caller waits for the answer."""
    return False


@dataclass(frozen=True, slots=True)
class OpenJobFinding:
    """A finding that is open on a job: ``rule`` found it, ``action`` is what to do."""

    id: str
    rule: str
    says: str
    action: str
    since_ms: int | None


@dataclass(frozen=True)
class AdvisorContext:
    """A cluster as it is now, its history and prices, and what is worked out of them once for many questions.
    Not for two threads at once.

    ``cluster`` is its name, by which prices may differ; empty where nobody said it.
    ``read`` makes a manifest of a document that was changed, as it was made of the first; ``write`` makes a
    document of a job that exists, its workload and its PodGroup, and ``read_new`` a manifest of that.
    ``calibration`` says how often ranges of waits held so far, by ClusterQueue, and ``skill`` corrects them
    by that; ``troubles`` are the open findings on a job that runs, by its uid. Each is None where it is not
    known. ``is_late`` is asked between two samples of a wait and before each suggestion: once it returns
    True, what is there by then is the answer.
    """

    overview: ClusterOverview
    read: Callable[[JobManifest, Document], JobManifest]
    prices: PriceBook | None = None
    cluster: str = ""
    run_times: RunTimes = NO_HISTORY
    settings: AdvisorSettings = field(default_factory=AdvisorSettings)
    calibration: Callable[[str], WaitCalibration] | None = None
    skill: Callable[[], WaitSkill | None] | None = None
    write: Callable[[JobObject, Workload | None, PodGroup | None], Document] | None = None
    read_new: Callable[[Document], JobManifest] | None = None
    troubles: Callable[[str], Sequence[OpenJobFinding]] | None = None
    used: Callable[[JobManifest], PastUse | None] | None = None
    is_late: Callable[[], bool] = never

    @property
    def state(self) -> ClusterState:
        return self.overview.state

    def warm(self) -> None:
        """Works out now what the first question would have to wait for."""
        base = self.rooms.base
        _ = base.empty, base.largest, base.by_importance
        _ = self.kueue, self.rooms_left, self.pods_by_workload
        if self.state.volcano_queues:
            self.world.warm()

    @cached_property
    def kueue(self) -> KueueView:
        return KueueView(self.state, self.state.schedulers.kueue)

    @cached_property
    def rooms(self) -> FreeCapacity:
        """What is free on nodes; to be copied before anything is taken."""
        return FreeCapacity.of(self.overview)

    @cached_property
    def unplaced(self) -> Mapping[str, list[Pod]]:
        """Pods that the scheduler may put on a node at any moment, by the uid of their job."""
        pods = (each for each in self.state.pods.values() if each.is_unplaced and not each.is_gated)
        return grouped(pods, lambda pod: self.overview.ownership.of(pod).job.uid)

    @cached_property
    def rooms_left(self) -> FreeCapacity:
        """``rooms`` once ``unplaced`` pods have the nodes that they can have."""
        return self._reserved(self.unplaced)

    def rooms_for(self, job_uid: str, priority: int = LEAST_PRIORITY) -> FreeCapacity:
        """What is left for a job of this priority and above: its own pods are not in its way, nor those below
        it, which kube-scheduler tries after it (kubernetes v1.36,
        pkg/scheduler/framework/plugins/queuesort/priority_sort.go)."""
        first = bisect_left(self._priorities, priority)
        if job_uid in self.unplaced:
            others = {uid: pods for uid, pods in self.unplaced.items() if uid != job_uid}
            return self._reserved(others, priority)
        if not first:
            return self.rooms_left
        found = self._rooms_from.get(first)
        if found is None:
            found = self._rooms_from[first] = self._reserved(self.unplaced, priority)
        return found

    @cached_property
    def _priorities(self) -> Sequence[int]:
        """Of ``unplaced`` pods, each once."""
        return sorted({pod.priority for pods in self.unplaced.values() for pod in pods})

    @cached_property
    def _rooms_from(self) -> dict[int, FreeCapacity]:
        """By how many of ``_priorities`` are passed over."""
        return {}

    def _reserved(self, pods: Mapping[str, list[Pod]], priority: int = LEAST_PRIORITY) -> FreeCapacity:
        """Of those not below ``priority``: nodes that are being cleared are kept for the pods they are
        cleared for (kubernetes v1.36, pkg/scheduler/framework/runtime/framework.go, addNominatedPods). Then
        the oldest first, of at most ``MOST_UNPLACED`` kinds."""
        kinds: dict[int, list[Pod]] = {}
        waiting = [pod for each in pods.values() for pod in each if pod.priority >= priority]
        rooms = self.rooms.copy()
        for pod in sorted(waiting, key=lambda pod: pod.meta.created_ms):
            at = rooms.at(pod.nominated) if pod.nominated else None
            if at is None:
                kinds.setdefault(id(pod.template), []).append(pod)
            else:
                rooms.take_at(at, positive(pod.template.requests), 1)
        wanted = [
            PlacementDemand(f"{at:06}", len(same), len(same), same[0].template)
            for at, same in enumerate(list(kinds.values())[:MOST_UNPLACED])
        ]
        return reserve(rooms, wanted)

    @cached_property
    def world(self) -> VolcanoSession:
        """The cluster as Volcano sees it."""
        return VolcanoSession(self.overview, self.state.schedulers.volcano, self.rooms)

    @cached_property
    def free_nodes(self) -> FreeNodes:
        return FreeNodes(self.state, self.overview.catalog)

    @cached_property
    def pods_by_job(self) -> Mapping[str, list[Pod]]:
        """All pods by the uid of their job."""
        return grouped(self.state.pods.values(), lambda pod: self.overview.ownership.of(pod).job.uid)

    @cached_property
    def pods_by_workload(self) -> Mapping[str, list[str]]:
        """Uids of bound pods by the uid of their Kueue workload."""
        found: dict[str, list[str]] = {}
        for pod in self.state.pods.values():
            workload = self.overview.ownership.workload_of(pod) if pod.is_bound else None
            if workload is not None:
                found.setdefault(workload.meta.uid, []).append(pod.meta.uid)
        return found
