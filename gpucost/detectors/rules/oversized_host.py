"""Pods that take so many cores or so much memory that GPUs of their node can be given to nobody."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from gpucost.cluster.fit import FreeNodes
from gpucost.cluster.nodes import Node
from gpucost.cluster.overview import Overview
from gpucost.cluster.pods import Pod
from gpucost.cluster.quantities import CPU, base_units
from gpucost.detectors.findings import Action, Draft, Evidence, Subject, SubjectKind, ViewTime
from gpucost.detectors.held import amount, lasting, since
from gpucost.detectors.rules.oversized_common import GIB, NAME, Search
from gpucost.settings.types import milliseconds

VARIANT = "host_share"
_MEMORY = "memory"


@dataclass(frozen=True)
class _Stranded:
    """GPUs of a node that are free and have too little of ``resource`` left for them."""

    node: Node
    resource: str
    gpus: int
    free: int
    per_gpu: float


def host_share(search: Search) -> Iterator[Draft]:
    overview = search.facts.overview
    if overview is None:
        subject = Subject(SubjectKind.CLUSTER, search.facts.cluster, search.facts.cluster)
        because = "nobody watches the state of the cluster: what pods ask of cores and memory is not known"
        search.hold_back(subject, because, VARIANT, lacks_data=True)
        return
    free = FreeNodes(overview.state, overview.catalog)
    for node in overview.state.nodes.values():
        if node.is_schedulable:
            for stranded in _stranded(overview, free, node):
                draft = _of_node(search, overview, stranded)
                if draft is not None:
                    yield draft
                    break


def _stranded(overview: Overview, free: FreeNodes, node: Node) -> Iterator[_Stranded]:
    have = sum(overview.units.asked(node.allocatable).values())
    left = free.free(node)
    open_gpus = sum(left.get(name, 0) for name in overview.units.asked(node.allocatable))
    if have <= 0 or open_gpus <= 0:
        return
    for resource in (CPU, _MEMORY):
        all_of_it = node.allocatable.get(resource, 0)
        if all_of_it > 0:
            usable = max(0, left.get(resource, 0)) * have // all_of_it
            if usable < open_gpus:
                yield _Stranded(node, resource, open_gpus - usable, open_gpus, all_of_it / have)


def _of_node(search: Search, overview: Overview, found: _Stranded) -> Draft | None:
    """The pod that asks for the most per GPU, if that is too much and for long enough."""
    worst: tuple[float, str, Pod, int] | None = None
    for pod in overview.state.pods_by_node.get(found.node.meta.name, []):
        gpus = sum(overview.units.of(pod).values())
        if gpus > 0 and pod.is_bound:
            asked = pod.requests.get(found.resource, 0) / gpus
            if worst is None or (asked, pod.meta.uid) > worst[:2]:
                worst = (asked, pod.meta.uid, pod, gpus)
    if worst is None:
        return None
    asked, uid, pod, gpus = worst
    at = next((n for n, known in enumerate(search.table.uids) if known == uid), None)
    if at is None or pod.bound_ms is None:
        return None
    row = search.table.row(int(search.table.job[at]))
    settings = search.settings(row)
    limit = settings.cores_over_ratio if found.resource == CPU else settings.memory_over_ratio
    run_ms = search.facts.now_ms - pod.bound_ms
    if asked <= limit * found.per_gpu or run_ms < milliseconds(settings.least_run):
        return None
    return _draft(search, found, row.subject, at, asked, gpus)


def _free_since(search: Search, node: str, start: int) -> int:
    """Since when what the node has free is as it is now: nobody came or went."""
    held = search.facts.history.held
    here = held[held["node"] == node]
    now = search.facts.now_ms
    changes = [each for name in ("start_ms", "end_ms") for each in here[name].tolist() if each < now]
    return int(max([start, *changes]))


def _draft(search: Search, found: _Stranded, subject: Subject, at: int, asked: float, gpus: int) -> Draft:
    row = search.table.row(int(search.table.job[at]))
    begun = _free_since(search, found.node.meta.name, int(search.table.start[at]))
    is_cpu = found.resource == CPU
    name, unit = ("cores", "cores") if is_cpu else ("host memory", "GiB")
    scale = base_units(CPU, 1) if is_cpu else 1 / GIB
    fair = int(found.per_gpu * gpus * scale)
    patch_value = str(fair) if is_cpu else f"{fair}Gi"
    length = search.facts.now_ms - begun
    return Draft(
        NAME,
        VARIANT,
        subject,
        begun,
        f"{row.job_kind} {subject} asks for {asked * scale:.0f} {unit} per GPU, where node "
        f"{found.node.meta.name} has {found.per_gpu * scale:.0f}: {amount(found.gpus, 'free GPU')} there "
        f"can be given to nobody, for {lasting(length)} since {since(begun)}",
        (
            Evidence(f"{name} per GPU, asked", round(asked * scale, 1), unit, "spec.containers[].resources"),
            Evidence(f"{name} per GPU, node", round(found.per_gpu * scale, 1), unit, "status.allocatable"),
            Evidence("free GPUs of the node", found.free),
            Evidence("free GPUs without their share", found.gpus),
            Evidence("node", found.node.meta.name),
        ),
        Action(
            f"Ask for at most {patch_value} {'cores' if is_cpu else 'of memory'} for {amount(gpus, 'GPU')}",
            f'resources:\n  requests:\n    {found.resource}: "{patch_value}"',
            float(found.gpus),
        ),
        "free GPUs whose share of the node is taken x time since anybody last came or left; a view: the time "
        "itself is free, and is counted where somebody waits for it",
        team=row.team,
        queue=row.queue,
        user=row.user,
        view=(ViewTime(begun, search.facts.now_ms, float(found.gpus * length), (found.node.meta.name,)),),
        checked=(f"how much of the {name} it uses is not known",),
    )
