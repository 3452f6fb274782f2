"""A state and all that follows from it, each view computed once, on first use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from gpucost.cluster.objects.metadata import OwnerKeys
from gpucost.cluster.objects.nodes import Node
from gpucost.cluster.objects.pods import Pod
from gpucost.cluster.objects.state import ClusterState
from gpucost.cluster.views.device_claims import (
    NO_HISTORY,
    NOT_PUBLISHED,
    ClaimHistory,
    PublishedUnits,
    published_units,
)
from gpucost.cluster.views.gangs import PodGang, gangs
from gpucost.cluster.views.gpu_units import GpuUnits
from gpucost.cluster.views.ownership import PodOwnership
from gpucost.cluster.views.problems import StateProblem, problems
from gpucost.cluster.views.queue_order import positions
from gpucost.cluster.views.queues import QueueViews, queue_views
from gpucost.cluster.views.sharing_rules import DEFAULT_SHARING, SharingRules
from gpucost.cluster.views.volcano_queues import VolcanoQueueView, volcano_queue_views
from gpucost.cluster.views.wait_causes import WaitCause, waiting, waiting_jobs
from gpucost.cluster.views.workload_families import WorkloadDispatch, dispatches
from gpucost.domain.gpu import ResourceCatalog
from gpucost.domain.jobs import JobReference


@dataclass(frozen=True)
class ClusterOverview:
    """What the collector exports, ``gpucost state show`` prints and the advisor uses.

    ``catalog`` decides what a GPU is, ``owner_keys`` which labels name teams. ``ended`` are pods that are
    over, with their ``ended_ms``: they date what is partial now. ``history`` is that of claims,
    ``sharing`` how GPUs in parts are divided.
    """

    state: ClusterState
    catalog: ResourceCatalog = field(default_factory=ResourceCatalog)
    owner_keys: OwnerKeys = field(default_factory=OwnerKeys)
    ended: Sequence[Pod] = ()
    history: ClaimHistory = NO_HISTORY
    sharing: SharingRules = DEFAULT_SHARING

    @cached_property
    def units(self) -> GpuUnits:
        return GpuUnits(self.state, self.catalog, self.ended, self.history, self.sharing)

    @cached_property
    def ownership(self) -> PodOwnership:
        return PodOwnership(self.state, self.owner_keys, self.catalog)

    @cached_property
    def published(self) -> Mapping[str, PublishedUnits]:
        """GPU units of ResourceSlices by node."""
        return published_units(self.state)

    def published_on(self, node: Node) -> PublishedUnits:
        return self.published.get(node.meta.name, NOT_PUBLISHED)

    @cached_property
    def queues(self) -> QueueViews:
        return queue_views(self.state, self.catalog)

    @cached_property
    def volcano_queues(self) -> Mapping[str, VolcanoQueueView]:
        """By name."""
        return volcano_queue_views(self.state, self.catalog)

    @cached_property
    def dispatches(self) -> Mapping[str, WorkloadDispatch]:
        """Workloads that MultiKueue sends to other clusters, by uid."""
        return dispatches(self.state)

    @cached_property
    def positions(self) -> Mapping[str, int]:
        """By uid of the workload, from 1."""
        return positions(self.state)

    @cached_property
    def holds(self) -> Mapping[str, WaitCause]:
        """The cause of each waiting workload, by its uid."""
        return waiting(self.state, self.units, self.ownership)

    @cached_property
    def job_holds(self) -> Mapping[JobReference, WaitCause]:
        """The cause of each waiting job that no workload stands for."""
        return waiting_jobs(self.state, self.units, self.ownership)

    @cached_property
    def gangs(self) -> Sequence[PodGang]:
        return gangs(self.state, self.units, self.ownership, self.ended)

    @cached_property
    def problems(self) -> Sequence[StateProblem]:
        return problems(self.state, self.catalog, self.units)
