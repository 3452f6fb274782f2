"""What dcgm-exporter shows of a world's GPUs, as its releases and the ways of scraping it differ.

Rows carry the pod that holds the GPU, so each change of pods begins new series. Gauges stand for an hour,
as ``world.use_of`` has it; energy rises evenly in between.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise

from gpucost.domain.time import HOUR_MS
from tests.support.existing.kube_series import DEVICE_PLUGIN_NAMESPACE
from tests.support.existing.text import Series, Slope, Steps, Target
from tests.support.existing.world import Gpu, Node, Pod, Use, World, part_of, use_of


class Shared(StrEnum):
    """What rows of a GPU that several pods share are."""

    LAST_POD = "last"  # one arbitrary pod has all of it
    COPIES = "copies"  # each pod has a copy of the whole, with label vgpu (KUBERNETES_VIRTUAL_GPUS)
    PER_POD = "per-pod"  # copies, but use and memory are each pod's own, beside a row of the device


@dataclass(frozen=True, slots=True)
class Release:
    """One kind of exporter: how it names things, where it says which node, and how it is scraped."""

    host_label: str = "Hostname"
    host_is_pod: bool = False
    base_units: bool = False
    shared: Shared = Shared.COPIES
    has_uid: bool = False
    honors: bool = False
    driver_label: str = "DCGM_FI_DRIVER_VERSION"


CLASSIC = Release()
CLASSIC_HONORS = Release(honors=True)
POD_NAMED = Release(host_is_pod=True, honors=True)
PLAIN_SHARED = Release(shared=Shared.LAST_POD)
V483 = Release("hostname", shared=Shared.PER_POD, has_uid=True)
V49 = Release(
    "hostname", base_units=True, shared=Shared.PER_POD, has_uid=True,
    driver_label="DCGM_FI_SYSTEM_DRIVER_VERSION",
)  # fmt: skip

_CLASSIC_NAMES = {
    "busy": ("DCGM_FI_DEV_GPU_UTIL", 100.0, 0),
    "graphics": ("DCGM_FI_PROF_GR_ENGINE_ACTIVE", 1.0, 6),
    "sm": ("DCGM_FI_PROF_SM_ACTIVE", 1.0, 6),
    "tensor": ("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", 1.0, 6),
    "used": ("DCGM_FI_DEV_FB_USED", 1.0, 0),
    "free": ("DCGM_FI_DEV_FB_FREE", 1.0, 0),
    "energy": ("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", 1.0, 0),
    "power": ("DCGM_FI_DEV_POWER_USAGE", 1.0, 3),
    "xid": ("DCGM_FI_DEV_XID_ERRORS", 1.0, 0),
}
_NEW_NAMES = {
    "busy": ("DCGM_FI_DEV_GPU_UTIL_RATIO", 1.0, 6),
    "graphics": ("DCGM_FI_PROF_GR_ENGINE_UTIL_RATIO", 1.0, 6),
    "sm": ("DCGM_FI_PROF_SM_UTIL_RATIO", 1.0, 6),
    "tensor": ("DCGM_FI_PROF_TENSOR_UTIL_RATIO", 1.0, 6),
    "used": ("DCGM_FI_DEV_FB_USED_BYTES", 2.0**20, 0),
    "free": ("DCGM_FI_DEV_FB_FREE_BYTES", 2.0**20, 0),
    "energy": ("DCGM_FI_DEV_GPU_ENERGY_JOULES_TOTAL", 1e-3, 3),
    "power": ("DCGM_FI_DEV_BOARD_POWER_WATTS", 1.0, 3),
    "xid": ("DCGM_FI_DEV_XID_ERROR", 1.0, 0),
}
_PER_POD = ("busy", "used")
_IDLE = Use(0.0, 0.0, 0.0, 0)


def exporter_pod(node: str) -> str:
    """The name of the exporter's own pod on a node."""
    return f"nvidia-dcgm-exporter-{round(part_of(node) * 90_000_000) + 10_000_000}"


def dcgm_target(world: World, node: str, release: Release) -> Target:
    """As the GPU operator's ServiceMonitor scrapes it: the target has namespace, pod and container too."""
    index = [each.name for each in world.nodes].index(node)
    labels = {
        "cluster": world.name,
        "job": "nvidia-dcgm-exporter",
        "instance": f"10.2.1.{index}:9400",
        "namespace": DEVICE_PLUGIN_NAMESPACE,
        "pod": exporter_pod(node),
        "container": "nvidia-dcgm-exporter",
        "service": "nvidia-dcgm-exporter",
        "endpoint": "gpu-metrics",
    }
    return Target(labels, release.honors)


@dataclass(frozen=True, slots=True)
class _Stretch:
    """One GPU while the same pods hold it; ``labelled`` are the pods that its rows name."""

    start_ms: int
    end_ms: int
    holding: tuple[Pod, ...]
    labelled: tuple[Pod, ...]


def dcgm_series(world: World, node: Node, release: Release) -> Iterator[Series]:
    """What the exporter of one node says."""
    on_node = [pod for pod in world.pods if pod.node == node.name]
    gpus = [gpu for offer in node.offers for gpu in offer.gpus]
    start, end = max(node.start_ms, world.start_ms), min(node.end_ms, world.end_ms)
    energies = {
        uuid: _energy(node, [gpu for gpu in gpus if gpu.uuid == uuid], on_node, start, end)
        for uuid in sorted({gpu.uuid for gpu in gpus})
    }
    for gpu in gpus:
        pods = [pod for pod in on_node if gpu in pod.gpus]
        for stretch in _stretches(pods, start, end):
            yield from _rows(node, gpu, stretch, release, energies[gpu.uuid])


def _stretches(pods: Sequence[Pod], start: int, end: int) -> Iterator[_Stretch]:
    last = {pod.uid: min(pod.end_ms + pod.keeps_label_ms, end) for pod in pods}
    edges = {start, end}
    for pod in pods:
        edges |= {min(max(each, start), end) for each in (pod.bound_ms, pod.end_ms, last[pod.uid])}
    for low, high in pairwise(sorted(edges)):
        holding = tuple(pod for pod in pods if pod.bound_ms <= low < pod.end_ms)
        lingering = tuple(pod for pod in pods if pod.end_ms <= low < last[pod.uid])
        yield _Stretch(low, high, holding, holding or lingering)


def _hours(start: int, end: int) -> list[int]:
    return [start, *range((start // HOUR_MS + 1) * HOUR_MS, end, HOUR_MS)]


def _together(uses: Sequence[Use]) -> Use:
    return Use(
        min(1.0, sum(use.busy for use in uses)),
        min(1.0, sum(use.sm for use in uses)),
        min(1.0, sum(use.tensor for use in uses)),
        sum(use.memory_mib for use in uses),
    )


def _energy(
    node: Node, gpus: Sequence[Gpu], pods: Sequence[Pod], start: int, end: int
) -> tuple[list[int], list[float], list[float]]:
    """Of one GPU: instants, millijoules since long ago at each, and the watts that follow."""
    held = [(gpu, pod) for gpu in gpus for pod in pods if gpu in pod.gpus]
    edges = {start, end, *_hours(start, end)}
    edges |= {each for _, pod in held for each in (pod.bound_ms, pod.end_ms) if start < each < end}
    times, total, watts = sorted(edges), [1e9], []
    for low, high in pairwise(times):
        busy = sum(
            float(gpu.share) * use_of(pod, low // HOUR_MS).busy
            for gpu, pod in held
            if pod.bound_ms <= low < pod.end_ms
        )
        watts.append(node.watts * (0.2 + 0.8 * busy))
        total.append(total[-1] + watts[-1] * (high - low))
    return times, total, watts


def _rows(
    node: Node,
    gpu: Gpu,
    stretch: _Stretch,
    release: Release,
    energy: tuple[list[int], list[float], list[float]],
) -> Iterator[Series]:
    hours = _hours(stretch.start_ms, stretch.end_ms)
    by_pod = {pod.uid: [use_of(pod, at // HOUR_MS) for at in hours] for pod in stretch.holding}
    whole = [_together([uses[at] for uses in by_pod.values()]) for at in range(len(hours))]
    device = _device_labels(node, gpu, release)
    names = _NEW_NAMES if release.base_units else _CLASSIC_NAMES

    def series(what: str, labels: Mapping[str, str], value: Sequence[float] | Slope) -> Series:
        name, scale, digits = names[what]
        if isinstance(value, Slope):
            said: Slope | Steps = Slope(value.at_ms, [each * scale for each in value.value], digits)
        else:
            numbers = [round(each * scale, digits) for each in value]
            said = Steps(hours, numbers if digits else [int(number) for number in numbers])
        return Series(name, {**device, **labels}, said, stretch.start_ms, stretch.end_ms)

    times, total, watts = energy
    cuts = [next(i for i in range(len(times) - 1, -1, -1) if times[i] <= at) for at in hours]
    for labels, pod in _holders(stretch, gpu, release, node):
        own = by_pod.get(pod.uid, [_IDLE] * len(hours)) if pod is not None else whole
        is_own = release.shared is Shared.PER_POD and _is_shared(node, gpu)
        values = {
            "busy": [use.busy for use in (own if is_own else whole)],
            "graphics": [use.busy for use in whole],
            "sm": [use.sm for use in whole],
            "tensor": [use.tensor for use in whole],
            "used": [use.memory_mib for use in (own if is_own else whole)],
            "free": [max(0, gpu.memory_mib - use.memory_mib) for use in whole],
            "power": [watts[min(cut, len(watts) - 1)] for cut in cuts],
            "energy": Slope(times, total),
        }
        if is_own and pod is None:
            values = {what: values[what] for what in _PER_POD}
        for what, value in values.items():
            if what != "busy" or not gpu.instance:
                yield series(what, labels, value)  # type: ignore[arg-type]
        if gpu.index == 0 and pod is None:
            yield series("xid", {**labels, "err_code": "31", "err_msg": "page fault"}, [31.0] * len(hours))


def _device_labels(node: Node, gpu: Gpu, release: Release) -> dict[str, str]:
    host = exporter_pod(node.name) if release.host_is_pod else node.name
    labels = {
        "gpu": str(gpu.index),
        "UUID": gpu.uuid,
        "pci_bus_id": f"00000000:{gpu.index:02X}:00.0",
        "device": f"nvidia{gpu.index}",
        "modelName": node.product.replace("-", " "),
        release.host_label: host,
        release.driver_label: "580.105.08",
    }
    return labels | ({"GPU_I_PROFILE": gpu.profile, "GPU_I_ID": gpu.instance} if gpu.instance else {})


def _is_shared(node: Node, gpu: Gpu) -> bool:
    return any(gpu in offer.gpus and offer.replicas > 1 for offer in node.offers)


def _holders(
    stretch: _Stretch, gpu: Gpu, release: Release, node: Node
) -> Iterator[tuple[dict[str, str], Pod | None]]:
    """The labels of each row there is of one GPU, and whose it is; None for the device's own."""
    pods = stretch.labelled
    if not pods:
        yield {}, None
        return
    if not _is_shared(node, gpu):
        yield _pod_labels(pods[0], release), pods[0]
        return
    if release.shared is Shared.LAST_POD:
        yield _pod_labels(max(pods, key=lambda pod: pod.uid), release), None
        return
    numbered = ((pod, unit) for pod in pods for unit in range(pod.gpus.count(gpu)))
    for number, (pod, _) in enumerate(numbered):
        yield _pod_labels(pod, release) | {"vgpu": str(number)}, pod
    if release.shared is Shared.PER_POD:
        yield {}, None


def _pod_labels(pod: Pod, release: Release) -> dict[str, str]:
    labels = {"container": pod.boxes[0].name, "namespace": pod.namespace, "pod": pod.name}
    return labels | ({"pod_uid": pod.uid} if release.has_uid else {})
