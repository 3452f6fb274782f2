"""/metrics for somebody who is bound to some clusters."""

from __future__ import annotations

from collections.abc import Iterator
from copy import copy

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from gpucost.domain.scope import Scope
from gpucost.service import metrics as m

_CLUSTER = "gpu_cluster"
# Of the process and of the ledger as a whole. What else has no cluster is of all of them together, or of the
# one that is watched (the advisor's), and may not be of the reader's.
_OF_NO_CLUSTER = frozenset(
    each.name.removesuffix("_total") for each in (m.BUILD, m.LEDGER_UP, m.LAST_TURN, m.MONTH_CLOSED)
)


class _Bounded(Collector):
    def __init__(self, whole: CollectorRegistry, scope: Scope) -> None:
        self._whole, self._scope = whole, scope

    def collect(self) -> Iterator[Metric]:
        for family in self._whole.collect():
            seen = copy(family)
            if family.name not in _OF_NO_CLUSTER:
                seen.samples = [each for each in family.samples if self._sees(each.labels)]
            yield seen

    def _sees(self, labels: dict[str, str]) -> bool:
        return _CLUSTER in labels and self._scope.sees_cluster(labels[_CLUSTER])


def of_clusters(whole: CollectorRegistry, scope: Scope) -> CollectorRegistry:
    """What ``whole`` tells of the clusters of ``scope``, and of none at all. Families are there in full."""
    found = CollectorRegistry(auto_describe=False)
    found.register(_Bounded(whole, scope))
    return found
