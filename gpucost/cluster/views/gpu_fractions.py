"""Fractions of GPUs that schedulers hand out without dynamic resource allocation.

**KAI Scheduler** (NVIDIA/KAI-Scheduler, pkg/common/constants, pkg/binder): a pod asks for a fraction with an
annotation and requests no GPU. KAI makes a pod of its own that holds the whole GPU, the reservation, and
labels both with the name of the GPU's group. Who holds the GPU are the owners of fractions, never the
reservation: it is what the scheduler takes from the node for them, and in a namespace of KAI's own, where no
tenant can make a pod (``SharingRules.reservations``). What no owner has of the GPU is free for other
fractions. ``gpu-fraction`` is the part itself; ``gpu-memory`` is in MiB, of the memory that the node's label
``nvidia.com/gpu.memory`` says each of its GPUs has.

**HAMi** (Project-HAMi/HAMi, pkg/device): a node advertises each GPU as several ``nvidia.com/gpu``, of which a
pod requests one for each GPU that it wants a part of. HAMi's scheduler writes to the pod which GPUs it got,
and how much of their memory: that part is what it holds, its requests are mere tickets.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from fractions import Fraction
from typing import NamedTuple

from gpucost.cluster.objects.metadata import Labels
from gpucost.cluster.objects.nodes import DeviceId, Node
from gpucost.cluster.objects.pods import Pod
from gpucost.cluster.objects.state import ClusterState
from gpucost.cluster.views.device_claims import DeviceUse, DeviceUseKey, DeviceUses
from gpucost.cluster.views.sharing_rules import KAI_RESERVATIONS
from gpucost.domain.gpu import ShareMethod
from gpucost.domain.time import MINUTE_MS

RESERVATIONS = "kai-resource-reservation"
"""The label ``app`` of reservations."""
SCHEDULER = "kai-scheduler"
GROUP = "runai-gpu-group"
FRACTION, MEMORY = "gpu-fraction", "gpu-memory"
ALLOCATED = "hami.io/vgpu-devices-allocated"
GPU = "nvidia.com/gpu"
TICKETS = (GPU, "nvidia.com/gpucores")
_LONGEST_LIST = 16_384
_SPLIT_BY = "memory"
"""The dimension of parts of HAMi. KAI's have none."""
_MEMORY_LABEL = "nvidia.com/gpu.memory"
_NUMBER = re.compile(r"\+?(?=\.?[0-9])[0-9]{0,20}(\.[0-9]{0,20})?([eE][+-]?[0-9]{1,2})?", re.ASCII)
OWNERS_LATE_MS = 2 * MINUTE_MS
"""KAI waits 40 s for a reservation to get its GPU, and binds the owner then."""


class GpuFractions(NamedTuple):
    """``uses`` of owners by uid; ``reservations`` are uids of pods that hold GPUs for them, ``tickets`` those
    of owners whose requests count no GPUs."""

    uses: Mapping[str, DeviceUses] = {}
    reservations: frozenset[str] = frozenset()
    tickets: frozenset[str] = frozenset()


def gpu_fractions(
    state: ClusterState,
    ended: Iterable[Pod] = (),
    before: Mapping[str, DeviceUses] | None = None,
    firsts: Mapping[str, Pod | None] | None = None,
    namespace: str = KAI_RESERVATIONS,
) -> GpuFractions:
    """Of all pods that were ever bound, of ``state`` and ``ended``.

    What an owner had ``before`` stays so: its labels and annotations are its own to change, and its group's
    reservation may be gone. ``firsts`` are pods as they were when they were first seen bound, None for those
    that had no fraction then: schedulers write labels and annotations before they bind. A reservation of
    which nobody has a part holds its GPU itself, a while after it was made: its owner is bound after it.
    """
    pods = [*ended, *state.pods.values()]
    reserved = {pod.meta.uid: pod for pod in pods if is_reservation(pod, namespace)}
    groups = {(pod.node, group) for pod in reserved.values() for group in _groups(pod.meta.labels)}
    uses: dict[str, DeviceUses] = {}
    for now in pods:
        uid, known = now.meta.uid, (before or {}).get(now.meta.uid)
        pod = (firsts or {}).get(uid, now)
        if known is not None:
            uses[uid] = known
        elif pod is not None and now.bound_ms is not None and uid not in reserved:
            node = state.node_by_name.get(now.node)
            mine = [group for group in _groups(pod.meta.labels) if (now.node, group) in groups]
            found = dict(_uses(pod, mine, node) if mine else _parts_of_split(pod, node))
            if found:
                uses[uid] = found
    held = {(key.device.pool, key.device.device) for each in uses.values() for key in each}
    late_ms = state.at_ms - OWNERS_LATE_MS
    mere = frozenset(
        uid
        for uid, pod in reserved.items()
        if (pod.bound_ms or 0) > late_ms
        or any((pod.node, group) in held for group in _groups(pod.meta.labels))
    )
    tickets = (uid for uid, each in uses.items() if any(use.dimension for use in each.values()))
    return GpuFractions(uses, mere, frozenset(tickets))


def wants_fraction(pod: Pod) -> bool:
    """Whether it asks KAI Scheduler for a part of a GPU: it requests none, and has it once it is bound."""
    asks = not pod.meta.annotations.keys().isdisjoint((FRACTION, MEMORY))
    return asks and pod.template.scheduler == SCHEDULER


def has_fraction(pod: Pod) -> bool:
    """Whether a scheduler wrote to it that it has a part of a GPU."""
    return ALLOCATED in pod.meta.annotations or any(True for _ in _groups(pod.meta.labels))


def is_reservation(pod: Pod, namespace: str = KAI_RESERVATIONS) -> bool:
    return pod.meta.namespace == namespace and pod.meta.labels.get("app") == RESERVATIONS


def _groups(labels: Labels) -> Iterator[str]:
    """Of one GPU, or of several (``runai-gpu-group/<group>``)."""
    for key, value in labels.items():
        if value and (key == GROUP or key.startswith(f"{GROUP}/")):
            yield value


def _uses(pod: Pod, groups: Iterable[str], node: Node | None) -> Iterator[tuple[DeviceUseKey, DeviceUse]]:
    """None of a pod that asks for no fraction: anybody may write the name of a group."""
    if pod.meta.annotations.keys() & {FRACTION, MEMORY}:
        part = _part(pod, node)
        for group in groups:
            yield DeviceUseKey(DeviceId(GPU, pod.node, group), pod.meta.uid), _use(part)


def _use(part: Fraction | None, dimension: str = "") -> DeviceUse:
    if part is None:
        return DeviceUse(GPU, ShareMethod.UNKNOWN, dimension=dimension)
    return DeviceUse(GPU, ShareMethod.FRACTION, part, dimension)


def _parts_of_split(pod: Pod, node: Node | None) -> Iterator[tuple[DeviceUseKey, DeviceUse]]:
    """Containers are apart by semicolons, their GPUs by colons: ``uuid,type,MiB,cores``. Parts of one GPU add
    up."""
    memory = {each.uuid: each.memory_mib for each in node.split_gpus} if node is not None else {}
    text = pod.meta.annotations.get(ALLOCATED, "") if memory else ""
    listed = [part.split(",") for part in text[:_LONGEST_LIST].replace(";", ":").split(":") if part]
    used: dict[str, Fraction | None] = {}
    given = [each for each in listed if len(each) == 4]
    if len(given) < pod.template.requests.get(GPU, 0):
        return  # HAMi lists one for each GPU that is requested: somebody else wrote this
    for uuid, *_, mib, _cores in given:
        if uuid in memory:
            more, had = _number(mib), used.get(uuid, Fraction(0))
            used[uuid] = None if more is None or had is None else had + more
    for uuid, mib_used in used.items():
        part = None if mib_used is None or not 0 < mib_used <= memory[uuid] else mib_used / memory[uuid]
        yield DeviceUseKey(DeviceId(GPU, pod.node, uuid), pod.meta.uid), _use(part, _SPLIT_BY)


def _part(pod: Pod, node: Node | None) -> Fraction | None:
    """Of each of its GPUs; None where nothing says it. KAI takes fractions below 1 only."""
    if FRACTION in pod.meta.annotations:
        fraction = _number(pod.meta.annotations[FRACTION])
        return fraction if fraction is not None and 0 < fraction < 1 else None
    memory = _number(pod.meta.annotations.get(MEMORY, ""))
    whole = _number(node.labels.get(_MEMORY_LABEL, "")) if node is not None else None
    if memory is None or not whole or not 0 < memory <= whole:
        return None
    return memory / whole


def _number(text: str) -> Fraction | None:
    """A decimal number as Go reads it, of few digits."""
    return Fraction(text) if _NUMBER.fullmatch(text) else None
