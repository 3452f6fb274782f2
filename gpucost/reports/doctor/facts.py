"""What was found in one cluster, in words; names of others' are made safe to look at where they are shown."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from gpucost.cluster.node_labels import PLACE_LABELS
from gpucost.contract import kube_state as ksm
from gpucost.contract.dcgm import Field
from gpucost.contract.probe import (
    KUBE_JOBS,
    KUEUE_QUEUES,
    KUEUE_QUOTAS,
    OPENCOST_PRICES,
    VOLCANO_QUEUES,
    Probe,
    Seen,
)
from gpucost.domain.time import HOUR_MS
from gpucost.domain.words import counted
from gpucost.reports.display import span_of_days
from gpucost.reports.doctor.features import Case
from gpucost.reports.doctor.model import Fact
from gpucost.reports.doctor.steps import JOBS, beside_kube_state, gap_words, replica_labels
from gpucost.reports.doctor.wanted import (
    GPU_LABELS,
    PRODUCTS,
    Wanted,
    annotations_in,
    labels_in,
)

_MOST = 6
_KINDS = (("own", "gpucost's collector"), ("state", "kube-state-metrics"), ("gpus", "dcgm-exporter"))


def facts(case: Case, probe: Probe) -> tuple[Fact, ...]:
    """In the order in which they are shown."""
    return (
        *_when(case, probe),
        *_pods(case, case.wanted),
        *_nodes(case),
        *_gpus(case),
        *_queues(case),
        *_scrapes(case),
        *_jobs(case),
        *_doubles(case),
    )


def _when(case: Case, probe: Probe) -> Iterator[Fact]:
    for kind, name in _KINDS:
        seen = case.seen(kind)
        if kind == "own" and seen is None:
            continue
        yield Fact(name, _seen(case, seen) if case.probe.seen is not None else "not known")
    kept = probe.retention or "not known: the server does not say (Thanos, Mimir)"
    yield Fact("retention", kept)
    yield Fact("gaps between scrapes", gap_words(case))


def _seen(case: Case, seen: Seen | None) -> str:
    if seen is None:
        return "nothing in the month"
    extent = "all of the month" if case.is_whole(seen) else case.bounds(seen)
    hours = -(-case.asked.length_ms // HOUR_MS)
    return f"{extent}, in {min(seen.instants, hours)} of {counted(hours, 'hour')}"


def _pods(case: Case, wanted: Wanted) -> Iterator[Fact]:
    pods = case.probe.pods
    if pods is None or not pods.pods:
        yield Fact("GPU requests", "not known" if pods is None else "none")
        return
    uid = "with uid" if pods.with_uid == pods.pods else f"{pods.with_uid} of them with uid"
    yield Fact("GPU requests", f"{counted(pods.pods, 'pod')}, {uid}; {_listed(pods.resources)}")
    if claims := case.probe.series.get(ksm.RESOURCE_CLAIMS):
        yield Fact("DRA claims", f"{claims} of pods; no series says which devices they got")
    labels = labels_in(wanted.pod_keys, pods.labels or ())
    beside = annotations_in(wanted.pod_keys, pods.annotations or ())
    of_namespaces = labels_in(wanted.owners.all, pods.namespace_labels or ())
    yield Fact("labels of pods", "not known" if pods.labels is None else _listed((*labels, *beside)))
    yield Fact(
        "labels of namespaces", "not known" if pods.namespace_labels is None else _listed(of_namespaces)
    )
    if pods.renamed:
        names = _listed(f"exported_{name}" for name in sorted(pods.renamed))
        yield Fact("honor_labels", f"false for kube-state-metrics ({names}); gpucost reads both")
    else:
        yield Fact("honor_labels", "true for kube-state-metrics, or no label was in the way")


def _nodes(case: Case) -> Iterator[Fact]:
    nodes = case.probe.nodes
    if nodes is None:
        yield Fact("GPU nodes", "not known")
        return
    yield Fact("GPU nodes", f"{counted(nodes.nodes, 'node')}; {_listed(nodes.resources)}")
    wanted = tuple(dict.fromkeys((*GPU_LABELS, *PRODUCTS, *PLACE_LABELS)))
    labels = labels_in(wanted, nodes.labels or ())
    yield Fact("labels of nodes", "not known" if nodes.labels is None else _listed(labels))


def _gpus(case: Case) -> Iterator[Fact]:
    gpus = case.probe.gpus
    if gpus is None:
        if case.probe.gpus_unread:
            yield Fact("dcgm-exporter rows", "not known")
        return
    slices = " and slices" if gpus.profiles else ""
    yield Fact(
        "dcgm-exporter rows",
        f"{counted(gpus.rows, 'GPU')}{slices}, {gpus.held} held by pods; {_listed(gpus.models)}",
    )
    fields = [each.value for each in Field if gpus.fields.get(each.value)]
    yield Fact("dcgm-exporter fields", _listed(fields, len(Field)))
    yield Fact("dcgm-exporter dialect", "; ".join(gpus.versions) or "none that is known")
    if gpus.profiles:
        yield Fact("MIG", _listed(gpus.profiles))
    if gpus.replicas:
        yield Fact("shared GPUs", f"{gpus.replicas} rows with vgpu; copies of a GPU are counted once")
    if gpus.renamed:
        yield Fact("honor_labels", "false for dcgm-exporter (exported_pod): busy GPUs by exported_pod")
    if gpus.own_pod:
        yield Fact(
            "idle GPUs", f"{gpus.own_pod} carry the exporter's own pod; gpucost takes them as held by nobody"
        )
    for name in gpus.unclear_units:
        yield Fact("unit", f"{name}: ratio or percentage, no value tells yet")


def _queues(case: Case) -> Iterator[Fact]:
    probe = case.probe
    names = (
        ("Kueue", KUEUE_QUOTAS + KUEUE_QUEUES),
        ("Volcano", VOLCANO_QUEUES),
        ("OpenCost", OPENCOST_PRICES),
    )
    for what, wanted in names:
        found = [name for name in wanted if probe.has(name)]
        if found:
            yield Fact(what, _listed(found))


def _scrapes(case: Case) -> Iterator[Fact]:
    for each in case.probe.scrapes:
        often = f"every {span_of_days(each.interval_ms)}" if each.interval_ms else "interval not known"
        down = f", {each.down} down" if each.down else ""
        yield Fact(f"job {each.job}", f"{counted(each.targets, 'target')}{down}, {often}")


def _jobs(case: Case) -> Iterator[Fact]:
    for setting, what in JOBS.items():
        found = case.probe.jobs.get(setting, {})
        if len(found) > 1:
            most = sorted(found, key=lambda job: (-found[job], job))
            unit = "node" if setting == KUBE_JOBS else "target"
            listed = _listed(f"{job or 'no job'} ({counted(found[job], unit)})" for job in most)
            yield Fact(f"jobs of {what}", f"{len(found)} give its series: {listed}; only one can be right")
    for each in beside_kube_state(case.probe):
        kind = "OpenCost's own" if each.is_opencost else "not kube-state-metrics'"
        yield Fact(f"kube_* of job {each.job}", f"{kind}, not counted: {_listed(each.names)}")


def _doubles(case: Case) -> Iterator[Fact]:
    for each in case.probe.doubles:
        kind = "HA members" if replica_labels(each) else "two scrapes of it"
        labels = _listed(each.labels)
        yield Fact(
            "duplicates",
            f"{each.exporter}: {counted(each.subjects, 'subject')} twice, {kind}; {labels} differ",
        )


def _listed(names: Iterable[str], most: int = _MOST) -> str:
    listed = list(names)
    more = f" and {len(listed) - most} more" if len(listed) > most else ""
    return ", ".join(listed[:most]) + more or "none"
