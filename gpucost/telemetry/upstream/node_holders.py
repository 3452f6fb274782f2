"""Whose a GPU is where its series name no pod, as OpenTelemetry's: of a pod that held every GPU of the node.

A row names its node by a label, or by ``target_info`` of its target (Prometheus, OTLP: resource attributes
become labels of ``target_info``). A scrape's own label for the node counts where the target shows one host:
a collector of several need not run on any of them. Nothing says which GPU of a node a pod has, so only a pod
with all units that the node has is known to have this one. All other use is of nobody, and what pods held
there a problem.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence

from gpucost.contract.device_dialects import DeviceDialect
from gpucost.contract.otel_hardware import HOSTS, NODES, PARTS, TARGET_INFO, TASK, TYPE
from gpucost.domain.errors import DataProblem, DataProblemCode
from gpucost.domain.gpu import WHOLE, is_nvidia
from gpucost.domain.time import Window
from gpucost.telemetry.prometheus.promql import by, one_of, over_time
from gpucost.telemetry.upstream.device_subjects import (
    ClusterHoldings,
    PodHolding,
    SeriesLabels,
    first_of,
)
from gpucost.telemetry.upstream.kube_reader import TARGET_LABELS, KubeStateReader

_UNNAMED = (
    "series of GPUs by OpenTelemetry name no pod: use is known of those pods alone that held every GPU of "
    "their node"
)


class NodeHolders:
    """Of the GPUs that ``dialect`` shows in ``window``; ``known`` are pods whose use others tell."""

    def __init__(
        self,
        reader: KubeStateReader,
        window: Window,
        holdings: ClusterHoldings,
        dialect: DeviceDialect,
        names: Sequence[str],
        known: Collection[str] = (),
    ) -> None:
        self._cluster, self._window, self._holdings = reader.cluster, window, holdings
        self._catalog = reader.existing.catalog
        self._known = known
        latest = over_time("last_over_time", reader.select(names), window.length_ms)
        labels = ("__name__", *dialect.keys, TYPE, TASK, *PARTS, *NODES, *TARGET_LABELS)
        found = [each["metric"] for each in reader.vector(by("group", labels, latest), window.end_ms)]
        rows = [row for row in found if _is_of_gpu(dialect, row)]
        self._gateways = _gateways(rows)
        self._of_target = self._targets(reader, rows)
        seen: dict[str, set[str]] = defaultdict(set)
        for row in rows:
            if node := self._node(row):
                seen[node].update([first_of(row, dialect.keys)] if dialect.device(row) else [])
        held: dict[str, list[PodHolding]] = defaultdict(list)
        for hold in holdings:
            if hold.node in seen:
                held[hold.node].append(hold)
        self._alone = {node: self._holders(node, len(gpus), held[node]) for node, gpus in seen.items()}

    def of(self, labels: SeriesLabels) -> tuple[str, ...]:
        """The uids of the pods that held the GPU of a row, one after the other."""
        return self._alone.get(self._node(labels), ())

    def problems(self) -> list[DataProblem]:
        """GPU time held on nodes with such rows by pods whose use nothing tells. Of other makers' GPUs
        attribution names it (``conservation.unmeasured``)."""
        told = {uid for uids in self._alone.values() for uid in uids}.union(self._known)
        lost = sum(
            self._held_ms(hold)
            for hold in self._holdings
            if hold.node in self._alone and hold.pod_uid not in told and is_nvidia(hold.resource)
        )
        if lost < 1:
            return []
        code, at_ms = DataProblemCode.USE_UNSPLIT, self._window.start_ms
        return [DataProblem(code, self._cluster, self._cluster, _UNNAMED, round(lost), at_ms)]

    def _node(self, labels: SeriesLabels) -> str:
        target = _target(labels)
        return self._named(labels, target in self._gateways) or self._of_target.get(target, "")

    def _named(self, labels: SeriesLabels, is_gateway: bool) -> str:
        """The node that labels name; empty for none."""
        names = HOSTS if is_gateway or labels.get(HOSTS[0]) else NODES
        return next((labels[name] for name in names if labels.get(name) in self._holdings.units), "")

    def _targets(
        self, reader: KubeStateReader, rows: Sequence[SeriesLabels]
    ) -> Mapping[tuple[str, str], str]:
        """The node of each target that no label of its rows names, where ``target_info`` has just one."""
        unnamed = {_target(row) for row in rows if not first_of(row, NODES)}
        if not unnamed:
            return {}
        jobs = one_of("job", sorted({job for job, _ in unnamed}))
        latest = over_time("last_over_time", reader.select(TARGET_INFO, jobs), self._window.length_ms)
        found = reader.vector(by("group", (*NODES, *TARGET_LABELS), latest), self._window.end_ms)
        gateways = _gateways([each["metric"] for each in found])
        nodes: dict[tuple[str, str], set[str]] = defaultdict(set)
        for each in found:
            target = _target(each["metric"])
            if target in unnamed and target not in gateways:
                nodes[target].add(self._named(each["metric"], is_gateway=False))
        return {target: min(named) for target, named in nodes.items() if len(named) == 1}

    def _holders(self, node: str, gpus: int, held: Sequence[PodHolding]) -> tuple[str, ...]:
        units = {name: count for name, count in self._holdings.units[node].items() if count > 0}
        if len(units) != 1:
            return ()
        [(resource, count)] = units.items()
        if not 0 < gpus <= count or self._catalog.shares.get(resource) != WHOLE:
            return ()
        found = [
            hold.pod_uid
            for hold in held
            if hold.resource == resource
            and hold.replicas == 1
            and hold.count >= count
            and self._window.overlap_ms(hold.start_ms, hold.end_ms)
        ]
        return tuple(dict.fromkeys(uid for uid in found if uid not in self._known))

    def _held_ms(self, hold: PodHolding) -> float:
        share = self._catalog.shares.get(hold.resource, WHOLE) / hold.replicas
        return self._window.overlap_ms(hold.start_ms, hold.end_ms) * hold.count * float(share)


def _target(labels: SeriesLabels) -> tuple[str, str]:
    return labels.get("job", ""), labels.get("instance", "")


def _is_of_gpu(dialect: DeviceDialect, row: SeriesLabels) -> bool:
    """Whether a row is of a GPU or a part of one: collectors export CPUs and disks under the same names."""
    field = dialect.meaning(row["__name__"]).field
    return row.get(TYPE, "gpu") == "gpu" and dialect.is_measured(field, row)


def _gateways(rows: Sequence[SeriesLabels]) -> set[tuple[str, str]]:
    """Targets with rows of several hosts."""
    hosts: dict[tuple[str, str], set[str]] = defaultdict(set)
    for row in rows:
        if host := first_of(row, HOSTS):
            hosts[_target(row)].add(host)
    return {target for target, found in hosts.items() if len(found) > 1}
