"""What kube-state-metrics exports about the pods that request GPUs and the nodes that advertise them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from gpucost.contract import kube_state as ksm
from gpucost.contract.opencost import CONTAINER_RUNNING
from gpucost.contract.probe import DuplicateSeries, NodeSeries, PodSeries
from gpucost.domain.time import DAY_MS, HOUR_MS
from gpucost.telemetry.doctor.probe_reader import (
    ProbeReader,
    duplicate_series,
    grouped,
    some,
)
from gpucost.telemetry.prometheus.cluster_reader import own_label, renamed
from gpucost.telemetry.prometheus.promql import (
    PromQL,
    by,
    one_of,
    one_of_or_like,
    over_time,
    union,
    union_by,
)
from gpucost.telemetry.prometheus.query_response import ResultSeries

EXPORTER = "kube-state-metrics"
_NAMES = ("namespace", "pod", "container", "node", "uid")
_OF_PODS = (
    *(ksm.POD_INFO, ksm.POD_OWNER, ksm.PHASE),
    *(ksm.SCHEDULED, ksm.STARTED, ksm.CREATED, ksm.COMPLETED, CONTAINER_RUNNING),
)
_OF_NODES = (
    *(ksm.NODE_INFO, ksm.NODE_CREATED, ksm.NODE_LABELS, ksm.NODE_CAPACITY),
    *(ksm.NODE_CONDITION, ksm.NODE_UNSCHEDULABLE),
)
_OF_OWNERS = frozenset({ksm.JOB_OWNER, ksm.REPLICASET_OWNER})
_PRODUCT = ksm.label_name("nvidia.com/gpu.product")


def gpu_matcher(known: Iterable[str]) -> PromQL:
    """A matcher of GPU resources by their sanitised names, MIG resources included."""
    return one_of_or_like("resource", sorted(known), ksm.PARTS)


def read_pods(
    asker: ProbeReader, known: Mapping[str, str], at_ms: int
) -> tuple[dict[str, PodSeries], dict[str, DuplicateSeries]] | None:
    """By cluster, the facts about its pods, and the subjects with duplicate series. None where the requests
    cannot be read."""
    selector = asker.select(ksm.REQUESTS, gpu_matcher(known))
    requests = asker.vector("GPU requests of pods", selector, at_ms)
    if requests == []:
        requests = asker.vector("GPU requests of pods", over_time("last_over_time", selector, DAY_MS), at_ms)
    if requests is None:
        return None
    requests = asker.of_believed(requests)
    clusters = grouped(asker, requests)
    details = _details(asker, requests, at_ms)
    owners = None if details is None else _owners(asker, details, at_ms)
    of_pods, of_owners = grouped(asker, details), grouped(asker, owners)
    pods, twice = {}, {}
    for cluster, found in clusters.items():
        more = None if details is None else [*of_pods.get(cluster, ()), *of_owners.get(cluster, ())]
        unread = _OF_OWNERS if owners is None else frozenset[str]()
        pods[cluster] = replace(_pods(asker, cluster, found, more, known, at_ms), unread=unread)
        double = duplicate_series(EXPORTER, found, _request_key, asker.settings.replica_labels)
        if double is not None:
            twice[cluster] = double
    return pods, twice


def _request_key(series: ResultSeries) -> tuple[str, ...]:
    return (*(own_label(series, name) for name in _NAMES), series["metric"].get("resource", ""))


def _pod_key(series: ResultSeries) -> tuple[str, str, str]:
    return own_label(series, "namespace"), own_label(series, "pod"), own_label(series, "uid")


def _details(asker: ProbeReader, requests: list[ResultSeries], at_ms: int) -> list[ResultSeries] | None:
    """All series about a sample of the pods, found under the label that holds pod names. None where any of it
    cannot be read."""
    by_label: dict[str, set[str]] = {}
    for series in requests:
        label = renamed("pod") if renamed("pod") in series["metric"] else "pod"
        by_label.setdefault(label, set()).add(own_label(series, "pod"))
    return _closely(asker, "start, end, phase and owner of pods", _OF_PODS, by_label, at_ms)


def _closely(
    asker: ProbeReader, what: str, metrics: Sequence[str], by_label: Mapping[str, set[str]], at_ms: int
) -> list[ResultSeries] | None:
    """These metrics for a few subjects; None where any of them cannot be read."""
    found: list[ResultSeries] = []
    for label, names in by_label.items():
        answer = asker.vector(what, asker.select(metrics, one_of(label, some(names))), at_ms)
        if answer is None:
            return None
        found += asker.of_believed(answer)
    return found


def _owners(asker: ProbeReader, details: list[ResultSeries], at_ms: int) -> list[ResultSeries] | None:
    names: dict[str, set[str]] = {}
    for series in details:
        if series["metric"].get("__name__") == ksm.POD_OWNER:
            kind = series["metric"].get("owner_kind", "")
            names.setdefault(kind, set()).add(series["metric"].get("owner_name", ""))
    wanted = [
        asker.select(metric, one_of(label, some(names[kind])))
        for kind, metric, label in (
            ("ReplicaSet", ksm.REPLICASET_OWNER, "replicaset"),
            ("Job", ksm.JOB_OWNER, "job_name"),
        )
        if names.get(kind)
    ]
    found = asker.vector("owners of jobs and replica sets", union(*wanted), at_ms) if wanted else []
    return None if found is None else asker.of_believed(found)


def _pods(
    asker: ProbeReader,
    cluster: str,
    requests: list[ResultSeries],
    details: list[ResultSeries] | None,
    known: Mapping[str, str],
    at_ms: int,
) -> PodSeries:
    keys = {_pod_key(series): series for series in requests}
    metrics = [series["metric"] for series in details or ()]

    def labels(metric: str, prefix: str) -> frozenset[str] | None:
        selector = asker.select(metric, cluster=cluster)
        return asker.label_names(f"labels of {metric}", selector, max(0, at_ms - HOUR_MS), at_ms, prefix)

    return PodSeries(
        pods=len(keys),
        with_uid=sum(bool(own_label(series, "uid")) for series in keys.values()),
        with_node=sum(bool(own_label(series, "node")) for series in keys.values()),
        resources=_resources(requests, known),
        namespaces=tuple(some(key[0] for key in keys)),
        names=None if details is None else _names(metrics),
        owners=frozenset(labels["owner_kind"] for labels in metrics if labels.get("owner_kind")),
        labels=labels(ksm.POD_LABELS, "label_"),
        annotations=labels(ksm.POD_ANNOTATIONS, "annotation_"),
        namespace_labels=labels(ksm.NAMESPACE_LABELS, "label_"),
        job_labels=labels(ksm.JOB_LABELS, "label_"),
        renamed=frozenset(
            name for name in _NAMES if any(renamed(name) in series["metric"] for series in requests)
        ),
    )


def read_nodes(asker: ProbeReader, known: Mapping[str, str], at_ms: int) -> dict[str, NodeSeries] | None:
    """By cluster, the facts about the nodes that advertise GPUs. None where they cannot be read."""
    found = asker.vector("GPUs of nodes", asker.select(ksm.NODE_ALLOCATABLE, gpu_matcher(known)), at_ms)
    if found is None:
        return None
    found = asker.of_believed(found)
    by_label: dict[str, set[str]] = {}
    for series in found:
        label = renamed("node") if renamed("node") in series["metric"] else "node"
        by_label.setdefault(label, set()).add(own_label(series, "node"))
    details = _closely(asker, "facts of nodes", _OF_NODES, by_label, at_ms)
    closely = grouped(asker, details)
    return {
        cluster: _nodes(
            asker, cluster, each, None if details is None else closely.get(cluster, []), known, at_ms
        )
        for cluster, each in grouped(asker, found).items()
    }


def _nodes(
    asker: ProbeReader,
    cluster: str,
    advertised: list[ResultSeries],
    details: list[ResultSeries] | None,
    known: Mapping[str, str],
    at_ms: int,
) -> NodeSeries:
    metrics = [series["metric"] for series in details or ()]
    selector = asker.select(ksm.NODE_LABELS, cluster=cluster)
    return NodeSeries(
        nodes=len({own_label(series, "node") for series in advertised}),
        resources=_resources(advertised, known),
        names=None if details is None else _names(metrics),
        labels=asker.label_names("labels of nodes", selector, max(0, at_ms - HOUR_MS), at_ms, "label_"),
        products=tuple(some(labels.get(_PRODUCT, "") for labels in metrics)),
    )


def _names(metrics: Iterable[Mapping[str, str]]) -> frozenset[str]:
    return frozenset(labels["__name__"] for labels in metrics if "__name__" in labels)


def _resources(result: list[ResultSeries], known: Mapping[str, str]) -> tuple[str, ...]:
    """GPU resources under their Kubernetes names."""
    found = {ksm.resource_name(series["metric"].get("resource", ""), known) for series in result}
    return tuple(sorted(name for name in found if name))


def counted(asker: ProbeReader, names: Iterable[str], *labels: str, range_ms: int = 0) -> PromQL:
    """The number of series of each name, by cluster and ``labels``, of the jobs that the settings name:
    series that exist now, or that had any sample in ``range_ms``."""
    told_by = ("__name__", asker.settings.cluster_label, *labels)
    selectors = [asker.given(each) for each in asker.alike(names)]
    if range_ms:
        selectors = [over_time("last_over_time", each, range_ms) for each in selectors]
    return union_by(told_by, *(by("count", told_by, each) for each in selectors))
