"""Reader of kube-state-metrics' series: which scrapes there were, and which resources are GPUs.

``UpstreamSettings`` are the settings of this dialect beside prometheus.source_settings.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from gpucost.cluster.views.ownership import OwnerKeys
from gpucost.contract import kube_state as ksm
from gpucost.domain.gpu import ResourceCatalog, ShareBasis
from gpucost.domain.time import HOUR_MS, Window
from gpucost.telemetry.evidence.evidence_rule import ScrapeEvidence
from gpucost.telemetry.prometheus.api_client import PrometheusClient
from gpucost.telemetry.prometheus.cluster_reader import (
    ClusterReader,
    numbers,
    own_column,
    with_renamed,
)
from gpucost.telemetry.prometheus.promql import (
    PromQL,
    by,
    one_of,
    one_of_or_like,
    over_time,
)
from gpucost.telemetry.prometheus.query_response import ResultSeries, whole_count
from gpucost.telemetry.prometheus.source_settings import PrometheusSourceSettings


@dataclass(frozen=True, slots=True)
class UpstreamSettings:
    """``catalog`` decides what a GPU resource is; ``owners`` which labels and annotations of pods (and labels
    of their namespaces) name team, project and user; ``basis`` is the measure of a part of a GPU.
    ``custom_resources`` are series of owners of other kinds that kube-state-metrics was configured to give:
    kind, metric, and the label that holds the name."""

    catalog: ResourceCatalog = field(default_factory=ResourceCatalog)
    owners: OwnerKeys = field(default_factory=OwnerKeys)
    basis: ShareBasis = ShareBasis.COMPUTE
    custom_resources: tuple[tuple[str, str, str], ...] = ()


TARGET_LABELS = ("job", "instance")
_OF_NODE = with_renamed(("node",))
_NOWHERE = " "
"""A value that no label has, so that a matcher of it matches nothing."""


class KubeStateReader(ClusterReader):
    """A ClusterReader whose heartbeats are the scrapes of kube-state-metrics.

    Prometheus writes ``up`` at each scrape of a target, with the time of that scrape. Where ``up`` was not
    kept (relabelled or federated series), the scrapes are those that show one node.
    """

    def __init__(
        self,
        client: PrometheusClient,
        settings: PrometheusSourceSettings,
        cluster: str,
        window: Window,
        existing: UpstreamSettings,
    ) -> None:
        super().__init__(client, settings, cluster, window)
        self.existing = existing

    @classmethod
    def beside(cls, reader: ClusterReader, existing: UpstreamSettings) -> KubeStateReader:
        """For what other exporters say of the same cluster and window, where pods and nodes are known from
        gpucost's own series."""
        found = cls(reader._client, reader.settings, reader.cluster, reader._window, existing)
        found._known = reader._known
        return found

    @cached_property
    def known(self) -> Mapping[str, str]:
        """GPU resources by their sanitised names."""
        return ksm.by_sanitised(self.existing.catalog.shares)

    @cached_property
    def is_gpu(self) -> PromQL:
        """The matcher of GPU resources."""
        return one_of_or_like("resource", sorted(self.known), ksm.PARTS)

    @property
    def of_gpus(self) -> tuple[PromQL, ...]:
        return (self.is_gpu,)

    def raw(self, selector: PromQL, start_ms: int, end_ms: int) -> list[ResultSeries]:
        found = super().raw(selector, start_ms, end_ms)
        if selector == self.heartbeat and not selector.startswith(ksm.UP):
            return _scrapes(found)
        return found

    def _lasting(self) -> list[str]:
        """Nodes that exist at the ends of the window; only those that exist at both, if there are any."""
        start, end = self.around
        range_ms = max(2 * HOUR_MS, self.settings.max_gap_ms)
        latest = over_time("last_over_time", self.select(ksm.NODE_CREATED), range_ms)
        there = [
            set(own_column(self.vector(latest, at), "node")) for at in (start + range_ms, max(end, range_ms))
        ]
        return sorted(there[0] & there[1])[:1] or sorted(min(each) for each in there if each)

    def is_whole(self, evidence: ScrapeEvidence, targets: Sequence[Sequence[str]] = ()) -> bool:
        """Whether some node was in every scrape of these targets, or of all: after a restart
        kube-state-metrics begins empty."""
        nodes = self.select(ksm.NODE_CREATED, *self.of_targets(targets))
        counted = by("sum", _OF_NODE, over_time("count_over_time", nodes, evidence.range_ms))
        (most, *_) = *numbers(self.vector(by("max", (), counted), evidence.end_ms)), 0.0
        return whole_count(most) >= len(evidence.scrapes)

    def of_targets(self, targets: Sequence[Sequence[str]]) -> list[PromQL]:
        """Matchers for series of these targets, by the values of TARGET_LABELS; for all without any."""
        values = zip(*targets, strict=True)
        return [one_of(name, sorted({*each})) for name, each in zip(TARGET_LABELS, values, strict=False)]

    def resource(self, found: str) -> str | None:
        """The resource that a value of the label ``resource`` stands for; None if it is not a GPU."""
        return ksm.resource_name(found, self.known)

    @cached_property
    def heartbeat(self) -> PromQL:
        """``up`` of the targets that show nodes or namespaces; else the creation times of one node."""
        found = self.label_sets(self.select(ksm.LASTING))
        targets = sorted({tuple(labels.get(name, "") for name in TARGET_LABELS) for labels in found})
        up = self.select(ksm.UP, *self.of_targets(targets or [[_NOWHERE] * len(TARGET_LABELS)]))
        if not found or self.label_sets(up):
            return up
        return self.select(ksm.NODE_CREATED, one_of("node", self._lasting()))

    @property
    def heartbeat_name(self) -> str:
        return "up of kube-state-metrics"

    @property
    def _own(self) -> PromQL:
        return self.select((ksm.REQUESTS, ksm.NODE_CAPACITY), self.is_gpu)


def _scrapes(found: list[ResultSeries]) -> list[ResultSeries]:
    """One series for each target, with a 1 at each of its scrapes, whichever node it showed."""
    times: dict[tuple[tuple[str, str], ...], set[float]] = {}
    for one in found:
        labels = tuple(sorted(item for item in one["metric"].items() if item[0] not in _OF_NODE))
        times.setdefault(labels, set()).update(at for at, _ in one["values"])
    return [
        {"metric": dict(labels), "values": [(at, "1") for at in sorted(each)]}
        for labels, each in times.items()
    ]
