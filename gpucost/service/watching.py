"""The state of a cluster now, watched by the service itself: what some detectors need besides history."""

from __future__ import annotations

from dataclasses import dataclass

from gpucost.cluster.overview import Overview
from gpucost.cluster.ownership import OwnerKeys
from gpucost.domain.gpu import ResourceCatalog
from gpucost.kube.collections import collections
from gpucost.kube.connect.httpx_transport import HttpxTransport
from gpucost.kube.scheduler_configs import NAMES, Assume, SchedulerNames, SchedulerReader, as_read
from gpucost.kube.watch import ClusterWatch

LONGEST_SILENCE_S = 120.0
"""A state that is older is none: an advice about pods that are gone is worse than no advice."""


@dataclass(frozen=True)
class Watching:
    """One watched cluster, by the name it has in the source."""

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
        assume: Assume = as_read,
    ) -> Watching:
        """Nothing is read yet: see ``start``. ``schedulers`` says where their configurations are, ``assume``
        what holds where these cannot be read."""
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
        """Another one whenever an overview would be of other objects."""
        return self.watch.version

    @property
    def is_current(self) -> bool:
        """Whether there is an overview now."""
        return self.watch.is_current(LONGEST_SILENCE_S)

    def overview(self, cluster: str) -> Overview | None:
        """What is known now; None for another cluster, and while the view is not current."""
        if cluster != self.cluster or not self.is_current:
            return None
        return Overview(self.watch.snapshot(), self.catalog, self.keys)
