"""The current state of a cluster, watched by the service itself: some detectors need it besides history."""

from __future__ import annotations

from dataclasses import dataclass

from gpucost.cluster.views.overview import ClusterOverview
from gpucost.cluster.views.ownership import OwnerKeys
from gpucost.domain.gpu import ResourceCatalog
from gpucost.kube.connect.httpx_transport import HttpxTransport
from gpucost.kube.parse.collections import collections
from gpucost.kube.watch.cluster_watch import ClusterWatch
from gpucost.kube.watch.scheduler_reader import (
    NAMES,
    AssumedConfigs,
    SchedulerNames,
    SchedulerReader,
    as_read,
)

LONGEST_SILENCE_S = 120.0
"""An older state is not used: advice about pods that are gone is worse than no advice."""


@dataclass(frozen=True)
class ClusterWatcher:
    """One watched cluster, under its name in the source."""

    cluster: str
    transport: HttpxTransport
    watch: ClusterWatch
    catalog: ResourceCatalog
    keys: OwnerKeys

    @classmethod
    def of(
        cls,
        cluster: str,
        transport: HttpxTransport,
        catalog: ResourceCatalog,
        keys: OwnerKeys,
        schedulers: SchedulerNames = NAMES,
        assume: AssumedConfigs = as_read,
    ) -> ClusterWatcher:
        """Nothing is read yet: see ``start``. ``schedulers`` names the objects with the schedulers'
        configurations, ``assume`` the configuration to use where these cannot be read."""
        reader = SchedulerReader(transport, schedulers, assume=assume)
        watch = ClusterWatch(transport, collections(keys.all), schedulers=reader)
        return cls(cluster, transport, watch, catalog, keys)

    def start(self) -> None:
        self.watch.start()

    def close(self) -> None:
        self.watch.close()
        self.transport.close()

    @property
    def version(self) -> tuple[int, ...]:
        """A value that changes whenever an overview would be of other objects."""
        return self.watch.version

    @property
    def is_current(self) -> bool:
        """Whether there is an overview now."""
        return self.watch.is_current(LONGEST_SILENCE_S)

    def overview(self, cluster: str) -> ClusterOverview | None:
        """The current overview; None for another cluster, and while the view is not current."""
        if cluster != self.cluster or not self.is_current:
            return None
        return ClusterOverview(self.watch.snapshot(), self.catalog, self.keys)
