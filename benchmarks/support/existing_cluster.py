"""A big cluster as kube-state-metrics and dcgm-exporter would have shown it, of tests.support.existing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from gpucost.contract.kube_state import REQUESTS
from gpucost.domain.time import DAY_MS, HOUR_MS, MINUTE_MS, SECOND_MS, Window
from tests.support.existing.dcgm_series import CLASSIC, V49, dcgm_series, dcgm_target, exporter_pod
from tests.support.existing.kube_series import kube_series, kube_target
from tests.support.existing.nodes import GPU, MIG_1G, MIG_2G, MIG_3G, SHARED, sliced, whole
from tests.support.existing.text import Scrapes, Series, Slope, Steps, Target, Writer
from tests.support.existing.world import T0, Box, End, Gpu, Node, Pod, World, stable
from tests.support.prometheus import create_blocks

CLUSTER = "big"
MARGIN_MS = HOUR_MS
_PART_MS = 3 * HOUR_MS  # of text that lies on the disk at once
_BOARDS = 8
_MEAN_HOURS = 10.0
_LINGERS = (10 * MINUTE_MS, 2 * HOUR_MS, 6 * HOUR_MS)


def big_world(gpus: int, pods_a_day: float, days: float, seed: int = 7) -> World:
    """``gpus`` GPUs in nodes of eight, eight in ten of them whole, one shared, one cut; pods that last
    ten hours in the mean. What goes on for days was begun before."""
    window = Window(T0 - MARGIN_MS, T0 + round(days * DAY_MS) + MARGIN_MS)
    nodes = tuple(_node(number) for number in range(-(-gpus // _BOARDS)))
    pods = tuple(_pods(nodes, pods_a_day, window, np.random.default_rng(seed)))
    return World(CLUSTER, window.start_ms, window.end_ms, nodes, pods)


def _node(number: int) -> Node:
    if number % 10 == 8:
        return whole(f"t4-{number}", "Tesla-T4", _BOARDS, 15360, 70.0, "g4dn.metal", replicas=4)
    if number % 10 == 9:
        return sliced(f"a100-{number}", _BOARDS)
    return whole(f"h100-{number}", "NVIDIA-H100-80GB-HBM3", _BOARDS, 81559, 650.0, "p5.48xlarge")


def _pods(nodes: tuple[Node, ...], a_day: float, window: Window, rng: np.random.Generator) -> Iterator[Pod]:
    """One after the other, each where there is room; one that finds none is not submitted."""
    warm_ms = 2 * DAY_MS
    count = round(a_day * (window.length_ms + warm_ms) / DAY_MS)
    begun = np.sort(rng.uniform(window.start_ms - warm_ms, window.end_ms, count).astype(np.int64))
    lasts = rng.lognormal(np.log(_MEAN_HOURS) - 0.5, 1.0, count) * HOUR_MS
    free: dict[tuple[str, str], list[tuple[Gpu, int]]] = {
        (node.name, offer.resource): [(gpu, 0) for gpu in offer.gpus for _ in range(offer.replicas)]
        for node in nodes
        for offer in node.offers
    }
    for number, (start, length) in enumerate(zip(begun.tolist(), lasts.tolist(), strict=True)):
        bound = start // SECOND_MS * SECOND_MS
        end = bound + max(20 * SECOND_MS, round(length) // SECOND_MS * SECOND_MS)
        for choice in rng.permutation(len(nodes))[:12].tolist():
            node = nodes[choice]
            resource = _resource(node, number)
            units = int(rng.choice([1, 1, 2, 4, 8])) if resource == GPU else 1
            slots = free[node.name, resource]
            usable = [at for at, (_, until) in enumerate(slots) if until <= bound][:units]
            if len(usable) == units:
                for at in usable:
                    slots[at] = slots[at][0], end
                if end > window.start_ms:
                    yield _pod(number, node, resource, bound, end, tuple(slots[at][0] for at in usable))
                break


def _resource(node: Node, number: int) -> str:
    if node.name.startswith("a100"):
        return (MIG_3G, MIG_2G, MIG_1G)[number % 3]
    return SHARED if node.name.startswith("t4") else GPU


def _pod(number: int, node: Node, resource: str, bound: int, end: int, gpus: tuple[Gpu, ...]) -> Pod:
    how = End.DELETED if number % 4 == 0 else End.FAILED if number % 11 == 0 else End.COMPLETED
    gone = end if how is End.DELETED else end + _LINGERS[number % 3]
    owner = ("ReplicaSet", f"server-{number % 40}-7f9d") if how is End.DELETED else ("Job", f"job-{number}")
    team, namespace = ((0, f"team-{number % 25:02}"),), f"space-{number % 25:02}"
    return Pod(
        *(f"pod-{number:05}", namespace, node.name, resource, len(gpus)),
        *(bound - 20 * SECOND_MS, bound, end, gone, how, team, owner, gpus),
        boxes=(Box("main", len(gpus)), Box("proxy", 0)),
        busy=0.2 if resource == SHARED else 0.7,
        uid=stable(f"pod-{number}"),
    )


def write_blocks(
    world: World,
    scrape_ms: int,
    data: Path,
    done: Callable[[float], None],
    *,
    with_use: bool = True,
    with_opencost: bool = False,
) -> None:
    """Every series of the world into ``data``, those of dcgm-exporter ``with_use`` only, and
    ``with_opencost`` all that its queries look for; ``done`` is called with the share that is finished."""
    targets = tuple(_targets(world, with_use))
    if with_opencost:
        targets += (*_kubelets(world), (_OPENCOST, tuple(_of_opencost(world))))
    whole_of = Window(world.start_ms, world.end_ms)
    for part in whole_of.split(_PART_MS):
        writer = Writer()
        for target, series in targets:
            writer.add(target, Scrapes(part, scrape_ms), series)
        create_blocks(writer.text(), data)
        done((part.end_ms - world.start_ms) / whole_of.length_ms)


def _targets(world: World, with_use: bool) -> Iterator[tuple[Target, tuple[Series, ...]]]:
    exporters = {node.name: exporter_pod(node.name) for node in world.nodes}
    yield kube_target(world), tuple(kube_series(world, exporters))
    for number, node in enumerate(world.nodes if with_use else ()):
        release = V49 if number % 3 == 0 else CLASSIC
        yield dcgm_target(world, node.name, release), tuple(dcgm_series(world, node, release))


_OPENCOST = Target(
    {"cluster": CLUSTER, "job": "opencost", "instance": "10.3.0.4:9003", "namespace": "opencost"}, honors=True
)
_GIB = 2.0**30


def _kubelets(world: World) -> Iterator[tuple[Target, tuple[Series, ...]]]:
    """What cAdvisor shows of the containers of each node: CPUs, memory, and the network."""
    pods: dict[str, list[Series]] = {node.name: [] for node in world.nodes}
    for number, pod in enumerate(world.pods):
        span, there = (pod.bound_ms, pod.end_ms), {"namespace": pod.namespace, "pod": pod.name}
        seconds = (pod.end_ms - pod.bound_ms) / SECOND_MS
        found = pods[pod.node]
        for box in pod.boxes:
            labels = {**there, "container": box.name, "image": f"registry/{pod.owner[1]}", "id": pod.uid}
            cores = Slope(span, (0.0, seconds * (1 + number % 7)), 3)
            found.append(Series("container_cpu_usage_seconds_total", labels, cores, *span))
            grown = Slope(span, (_GIB, _GIB * (1 + number % 64)))
            found.append(Series("container_memory_working_set_bytes", labels, grown, *span))
        for way in ("receive", "transmit"):
            sent = Slope(span, (0.0, seconds * 1e6))
            labels = {**there, "interface": "eth0", "id": pod.uid}
            found.append(Series(f"container_network_{way}_bytes_total", labels, sent, *span))
    for node, series in pods.items():
        labels = {"cluster": CLUSTER, "job": "kubelet", "instance": f"{node}:10250", "node": node}
        yield Target({**labels, "metrics_path": "/metrics/cadvisor"}, honors=True), tuple(series)


def _of_opencost(world: World) -> Iterator[Series]:
    """OpenCost's own series: prices of nodes, what containers have of them; and what kube-state-metrics tells
    of containers and namespaces that only OpenCost reads."""
    for node in world.nodes:
        labels = {
            "node": node.name,
            "instance_type": "p5.48xlarge",
            "provider_id": node.name,
            "arch": "amd64",
        }
        prices = {"node_cpu": 0.03, "node_ram": 0.004, "node_gpu": 2.3, "node_total": 55.0}
        for name, price in prices.items():
            yield Series(f"{name}_hourly_cost", labels, price, node.start_ms, node.end_ms)
        yield Series("node_gpu_count", labels, float(node.boards), node.start_ms, node.end_ms)
        yield Series("kubecost_node_is_spot", labels, 0.0, node.start_ms, node.end_ms)
    for way in ("zone", "region", "internet"):
        yield Series(f"kubecost_network_{way}_egress_cost", {}, 0.01, world.start_ms, world.end_ms)
    for namespace in sorted({pod.namespace for pod in world.pods}):
        name = {"namespace": namespace, "label_kubernetes_io_metadata_name": namespace}
        yield Series("kube_namespace_labels", name, 1, world.start_ms, world.end_ms)
    for pod in world.pods:
        span, there = (
            (pod.bound_ms, pod.end_ms),
            {"namespace": pod.namespace, "pod": pod.name, "uid": pod.uid},
        )
        running = Steps((pod.bound_ms, pod.end_ms), (1, 0))
        for box in pod.boxes:
            labels = {**there, "container": box.name}
            yield Series("kube_pod_container_status_running", labels, running, pod.bound_ms, pod.gone_ms)
            memory = {**labels, "node": pod.node, "resource": "memory", "unit": "byte"}
            yield Series(REQUESTS, memory, 8 * _GIB, pod.bound_ms, pod.gone_ms)
            labels = {"namespace": pod.namespace, "pod": pod.name, "container": box.name, "node": pod.node}
            had = {"container_cpu_allocation": 0.5, "container_memory_allocation_bytes": 8 * _GIB}
            for name, amount in (*had.items(), ("container_gpu_allocation", float(box.units))):
                yield Series(name, labels, amount, *span)
