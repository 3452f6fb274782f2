"""A big cluster as kube-state-metrics and dcgm-exporter would have shown it, of tests.support.existing."""

from __future__ import annotations

import json
import shutil
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TypeAlias

import cramjam
import numpy as np
import numpy.typing as npt

from gpucost.contract.kube_state import REQUESTS
from gpucost.domain.time import DAY_MS, HOUR_MS, MINUTE_MS, SECOND_MS, Window
from tests.support.existing.dcgm_series import CLASSIC, V49, dcgm_series, dcgm_target, exporter_pod
from tests.support.existing.kube_series import kube_series, kube_target
from tests.support.existing.nodes import GPU, MIG_1G, MIG_2G, MIG_3G, SHARED, sliced, whole
from tests.support.existing.text import Ints, Scrapes, Series, Slope, Steps, Target, Value
from tests.support.existing.world import T0, Box, End, Gpu, Node, Pod, World, stable
from tests.support.prometheus import running_prometheus

Floats: TypeAlias = npt.NDArray[np.float64]
CLUSTER = "big"
MARGIN_MS = HOUR_MS
_PART_MS = HOUR_MS // 2  # a server takes what is less than an hour late
_REQUEST_BYTES = 4 << 20
_SAMPLE_BYTES = 18
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
    ``with_opencost`` all that its queries look for; ``done`` is called with the share that is finished.

    By remote write: of a big cluster, a text of all samples would be a hundred gigabytes."""
    targets = tuple(_targets(world, with_use))
    if with_opencost:
        targets += (*_kubelets(world), (_OPENCOST, tuple(_of_opencost(world))))
    whole_of = Window(world.start_ms, world.end_ms)
    up = Series("up", {}, 1, 0, world.end_ms)
    series = [
        (_labels(each.name, target.stored(each.labels)), each)
        for target, found in targets
        for each in (up, *found)
    ]
    series.sort(key=lambda each: each[1].start_ms, reverse=True)
    going = list[tuple[bytes, Series]]()
    flags = "--web.enable-remote-write-receiver", "--web.enable-admin-api"
    written = data.parent / f"{data.name}.written"
    with running_prometheus(written, *flags) as url:
        for part in whole_of.split(_PART_MS):
            going = [each for each in going if each[1].end_ms > part.start_ms]
            while series and series[-1][1].start_ms < part.end_ms:
                going.append(series.pop())
            _send(url, _requests(going, Scrapes(part, scrape_ms).instants()))
            done((part.end_ms - world.start_ms) / whole_of.length_ms)
        with urllib.request.urlopen(f"{url}/api/v1/admin/tsdb/snapshot", b"") as answer:
            name = json.load(answer)["data"]["name"]
    (written / "snapshots" / name).rename(data)
    shutil.rmtree(written)


def _send(url: str, requests: Iterator[bytes]) -> None:
    headers = {"Content-Type": "application/x-protobuf", "Content-Encoding": "snappy"}
    for body in requests:
        packed = bytes(cramjam.snappy.compress_raw(body))
        urllib.request.urlopen(urllib.request.Request(f"{url}/api/v1/write", packed, headers)).close()


def _requests(series: Iterable[tuple[bytes, Series]], at: Ints) -> Iterator[bytes]:
    """Messages ``WriteRequest`` of some megabytes with all samples at these instants."""
    rows = np.zeros((len(at), _SAMPLE_BYTES), dtype=np.uint8)
    rows[:, :3], rows[:, 11] = (0x12, _SAMPLE_BYTES - 2, 0x09), 0x10
    for place in range(6):  # instants of these decades have six times seven bits
        rows[:, 12 + place] = (at >> 7 * place & 127) | (128 if place < 5 else 0)
    parts, size = list[bytes](), 0
    for labels, each in series:
        low, high = np.searchsorted(at, [each.start_ms, each.end_ms]).tolist()
        if low < high:
            own = rows[low:high].copy()
            own[:, 3:11] = _values(each.value, at[low:high]).view(np.uint8).reshape(-1, 8)
            body = labels + own.tobytes()
            parts += (b"\x0a", _varint(len(body)), body)
            size += len(body)
        if size > _REQUEST_BYTES:
            yield b"".join(parts)
            parts, size = [], 0
    yield b"".join(parts)


def _values(value: Value, at: Ints) -> Floats:
    if isinstance(value, Steps):
        return np.array(value.value, dtype=float)[np.searchsorted(value.since_ms[1:], at, "right")]
    if isinstance(value, Slope):
        return np.interp(at, value.at_ms, value.value).round(value.digits)
    return np.full(len(at), value, dtype=float)


def _labels(name: str, labels: Mapping[str, str]) -> bytes:
    """Fields ``Label`` of a message ``TimeSeries``."""
    texts = [(key.encode(), value.encode()) for key, value in sorted({"__name__": name, **labels}.items())]
    pairs = (
        b"\x0a" + _varint(len(key)) + key + b"\x12" + _varint(len(value)) + value for key, value in texts
    )
    return b"".join(b"\x0a" + _varint(len(pair)) + pair for pair in pairs)


def _varint(number: int) -> bytes:
    found = bytearray()
    while number > 127:
        found.append(number & 127 | 128)
        number >>= 7
    return bytes([*found, number])


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
