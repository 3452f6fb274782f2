"""Fractions of GPUs that schedulers hand out without dynamic resource allocation.

**KAI Scheduler** (NVIDIA/KAI-Scheduler, pkg/common/constants, pkg/binder): a pod asks for a fraction with an
annotation and requests no GPU. KAI makes a pod of its own that holds the whole GPU, the reservation, and
labels both with the name of the GPU's group. Who holds the GPU are the owners of fractions, never the
reservation: it is what the scheduler takes from the node for them, and in a namespace of KAI's own, where no
tenant can make a pod. What no owner has of the GPU is free for other fractions. ``gpu-fraction`` is the part
itself; ``gpu-memory`` is in MiB, of the memory that the node's label ``nvidia.com/gpu.memory`` says each of
its GPUs has.

**HAMi** (Project-HAMi/HAMi, pkg/device): a node advertises each GPU as several ``nvidia.com/gpu``, of which a
pod requests one for each GPU that it wants a part of. HAMi's scheduler writes to the pod which GPUs it got,
and how much of their memory: that part is what it holds, its requests are mere tickets.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from fractions import Fraction
from typing import NamedTuple

from gpucost.cluster.objects.metadata import Labels
from gpucost.cluster.objects.nodes import DeviceId, Node
from gpucost.cluster.objects.pods import Pod
from gpucost.cluster.objects.state import ClusterState
from gpucost.cluster.views.device_claims import DeviceUse, DeviceUseKey, DeviceUses
from gpucost.domain.gpu import ShareMethod

RESERVATIONS = "kai-resource-reservation"
"""The namespace and the label ``app`` of reservations, as KAI is installed."""
GROUP = "runai-gpu-group"
FRACTION, MEMORY = "gpu-fraction", "gpu-memory"
ALLOCATED = "hami.io/vgpu-devices-allocated"
GPU = "nvidia.com/gpu"
TICKETS = (GPU, "nvidia.com/gpucores")
_LONGEST_LIST = 16_384
_MEMORY_LABEL = "nvidia.com/gpu.memory"
_LONGEST = 12


class GpuFractions(NamedTuple):
    """``uses`` of owners by uid; ``reservations`` are uids of pods that hold GPUs for them, ``tickets`` those
    of owners whose requests count no GPUs."""

    uses: Mapping[str, DeviceUses] = {}
    reservations: frozenset[str] = frozenset()
    tickets: frozenset[str] = frozenset()


def gpu_fractions(
    state: ClusterState, ended: Iterable[Pod] = (), before: Mapping[str, DeviceUses] | None = None
) -> GpuFractions:
    """Of all pods that were ever bound, of ``state`` and ``ended``. What an owner had ``before`` stays so:
    its annotations are its own to change, and its group's reservation may be gone."""
    pods = [*ended, *state.pods.values()]
    reserved = {pod.meta.uid: pod for pod in pods if is_reservation(pod)}
    groups = {(pod.node, group) for pod in reserved.values() for group in _groups(pod.meta.labels)}
    uses: dict[str, DeviceUses] = {}
    for pod in pods:
        uid, known = pod.meta.uid, (before or {}).get(pod.meta.uid)
        if known is not None:
            uses[uid] = known
        elif pod.bound_ms is not None and uid not in reserved:
            node = state.node_by_name.get(pod.node)
            mine = [group for group in _groups(pod.meta.labels) if (pod.node, group) in groups]
            found = dict(_uses(pod, mine, node) if mine else _parts_of_split(pod, node))
            if found:
                uses[uid] = found
    tickets = {pod.meta.uid for pod in pods if ALLOCATED in pod.meta.annotations}
    return GpuFractions(uses, frozenset(reserved), frozenset(tickets & uses.keys()))


def is_reservation(pod: Pod) -> bool:
    return pod.meta.namespace == RESERVATIONS and pod.meta.labels.get("app") == RESERVATIONS


def _groups(labels: Labels) -> Iterator[str]:
    """Of one GPU, or of several (``runai-gpu-group/<group>``)."""
    for key, value in labels.items():
        if value and (key == GROUP or key.startswith(f"{GROUP}/")):
            yield value


def _uses(pod: Pod, groups: Iterable[str], node: Node | None) -> Iterator[tuple[DeviceUseKey, DeviceUse]]:
    part = _part(pod, node)
    use = DeviceUse(GPU, ShareMethod.UNKNOWN) if part is None else DeviceUse(GPU, ShareMethod.FRACTION, part)
    for group in groups:
        yield DeviceUseKey(DeviceId(GPU, pod.node, group), pod.meta.uid), use


def _parts_of_split(pod: Pod, node: Node | None) -> Iterator[tuple[DeviceUseKey, DeviceUse]]:
    """Containers are apart by semicolons, their GPUs by colons: ``uuid,type,MiB,cores``."""
    memory = {each.uuid: each.memory_mib for each in node.split_gpus} if node is not None else {}
    text = pod.meta.annotations.get(ALLOCATED, "") if memory else ""
    parts = [part.split(",") for part in text[:_LONGEST_LIST].replace(";", ":").split(":") if part]
    for number, (uuid, *_, mib, _cores) in enumerate(each for each in parts if len(each) == 4):
        if uuid in memory:
            used = _number(mib)
            key = DeviceUseKey(DeviceId(GPU, pod.node, uuid), pod.meta.uid, str(number))
            if used is None or not 0 < used <= memory[uuid]:
                yield key, DeviceUse(GPU, ShareMethod.UNKNOWN)
            else:
                yield key, DeviceUse(GPU, ShareMethod.FRACTION, used / memory[uuid])


def _part(pod: Pod, node: Node | None) -> Fraction | None:
    """Of each of its GPUs; None where nothing says it."""
    fraction = _number(pod.meta.annotations.get(FRACTION, ""))
    if fraction is not None:
        return fraction if 0 < fraction <= 1 else None
    memory = _number(pod.meta.annotations.get(MEMORY, ""))
    whole = _number(node.labels.get(_MEMORY_LABEL, "")) if node is not None else None
    if memory is None or not whole or not 0 < memory <= whole:
        return None
    return memory / whole


def _number(text: str) -> Fraction | None:
    """A decimal number, without an exponent; such numbers are short."""
    if not text or len(text) > _LONGEST or not set(text) <= set("0123456789."):
        return None
    try:
        return Fraction(text)
    except ValueError:
        return None
