"""The current state of a cluster, watched by the service itself: some detectors need it besides history. Or
the state that a dump holds, to try things where there is no cluster."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from gpucost.cluster.objects.metadata import OwnerKeys
from gpucost.cluster.objects.scheduler_config import NAMES, SchedulerNames
from gpucost.cluster.views.overview import ClusterOverview
from gpucost.domain.gpu import ResourceCatalog
from gpucost.kube.connect.httpx_transport import HttpxTransport
from gpucost.kube.dumps.dump import ClusterStateBuilder, read_dump
from gpucost.kube.parse.collections import collections
from gpucost.kube.watch.cluster_watch import ClusterWatch
from gpucost.kube.watch.scheduler_reader import AssumedConfigs, SchedulerReader, as_read

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


@dataclass(frozen=True)
class DumpedCluster:
    """The cluster of a dump, which never changes and never ages."""

    cluster: str
    read: ClusterOverview

    @classmethod
    def of(
        cls,
        cluster: str,
        dump: Path,
        catalog: ResourceCatalog,
        keys: OwnerKeys,
        at_ms: int,
        assume: AssumedConfigs = as_read,
    ) -> DumpedCluster:
        """``at_ms`` is the time of a dump that does not say when it was taken. Raises InputError naming the
        file."""
        gathering = ClusterStateBuilder(collections(keys.all))
        read_dump(dump, gathering)
        state = gathering.loaded(at_ms).state
        state = replace(state, schedulers=assume(state.schedulers))
        return cls(cluster, ClusterOverview(state, catalog, keys))

    def start(self) -> None:
        """Nothing has to be followed."""

    def close(self) -> None:
        """Nothing is open."""

    @property
    def version(self) -> int:
        return self.read.state.at_ms

    @property
    def is_current(self) -> bool:
        return True

    def overview(self, cluster: str) -> ClusterOverview | None:
        """None for another cluster."""
        return self.read if cluster == self.cluster else None
