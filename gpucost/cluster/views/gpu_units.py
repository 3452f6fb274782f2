"""GPU units that pods hold or request: extended resources, devices allocated to their claims, fractions of
GPUs that schedulers hand out without dynamic resource allocation; and which of them a kubelet calls
unhealthy.

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

**Health** (``DeviceHealth``): kubelets write ids of devices (``UnhealthyDevice``). NVIDIA's device plugin
gives a GPU its uuid as id, with ``::`` and a number where it hands a GPU out several times; of other ids,
MIG's among them, the GPU is not known. Devices of claims are looked up in their slices. A CDI id is only the
driver's name for a device: it is taken for the device of the claim with whose name it ends
(``k8s.gpu.nvidia.com/claim=UID-gpu-0``), or for the only one that the claim has. Of pods whose GPU a
scheduler of fractions chose, the kubelet's device is another one: they are left out.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from functools import cached_property
from types import MappingProxyType
from typing import NamedTuple, TypeAlias

from gpucost.cluster.objects.metadata import Labels, Resources, added, few
from gpucost.cluster.objects.nodes import DeviceId, Node
from gpucost.cluster.objects.pods import Pod, UnhealthyDevice
from gpucost.cluster.objects.state import ClusterState
from gpucost.cluster.views.device_claims import (
    NO_HISTORY,
    ClaimHistory,
    ClaimHoldings,
    DeviceUse,
    DeviceUseKey,
    DeviceUses,
    PublishedUnits,
    held_devices,
    newest_slices,
    published_units,
    wanted_units,
)
from gpucost.cluster.views.sharing_rules import DEFAULT_SHARING, KAI_RESERVATIONS, SharingRules
from gpucost.domain.gpu import ResourceCatalog, ShareMethod
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
_DRIVERS = {
    "nvidia.com/": "gpu.nvidia.com",
    "amd.com/": "gpu.amd.com",
    "gpu.intel.com/": "gpu.intel.com",
    "habana.ai/": "gaudi.intel.com",
}
"""Drivers whose slices publish what device plugins call ``<vendor>/...``."""
UnhealthyUnits: TypeAlias = Mapping[tuple[str, str], int]
"""Units by resource and uuid of the GPU, which is empty where it is not known."""
_NONE: UnhealthyUnits = MappingProxyType({})
_UUID = re.compile(r"GPU-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.ASCII)
_LONGEST_UUID = 64


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


class GpuUnits:
    """GPU units by resource name, never 0; ``catalog`` decides what a GPU is.

    ``ended`` are pods that are over, newer than ``state``, ``history`` is that of claims, ``sharing`` what an
    administrator says of GPUs that several pods have. Answers are
    cached, so that thousands of pods with equal requests cost one lookup each.
    """

    def __init__(
        self,
        state: ClusterState,
        catalog: ResourceCatalog,
        ended: Sequence[Pod] = (),
        history: ClaimHistory = NO_HISTORY,
        sharing: SharingRules = DEFAULT_SHARING,
    ) -> None:
        self.catalog, self._sharing = catalog, sharing
        self._state, self._ended, self._history = state, ended, history
        self._is_gpu: dict[str, bool] = {}
        # By identity, and with the mapping itself, so that no other mapping can take its address in memory.
        self._asked: dict[int, tuple[Resources, Resources]] = {}

    @cached_property
    def devices(self) -> ClaimHoldings:
        """What pods hold through claims."""
        return held_devices(self._state, self.catalog, self._ended, self._history, self._sharing)

    @cached_property
    def fractions(self) -> GpuFractions:
        """What pods hold of GPUs that a scheduler reserves for their fractions."""
        history, namespace = self._history, self._sharing.reservations
        return gpu_fractions(self._state, self._ended, history.fractions, history.firsts, namespace)

    def uses(self, pod: Pod) -> DeviceUses:
        """The devices that it holds and others may hold at the same time."""
        claimed, devices = self.devices.uses.get(pod.meta.uid, {}), self.devices.divided
        shared = {key: use for key, use in claimed.items() if key.device in devices}
        return {**shared, **self.fractions.uses.get(pod.meta.uid, {})}

    @cached_property
    def _claimed(self) -> Mapping[str, Resources]:
        """By uid, for pods that are or were bound, and for those that wait."""
        found: dict[str, Resources] = dict(wanted_units(self._state, self.devices))
        for uid, shares in self.devices.shares.items():
            units: dict[str, int] = {}
            for share in shares.values():
                units[share.resource] = units.get(share.resource, 0) + 1
            found[uid] = units
        return found

    @cached_property
    def _published(self) -> Mapping[str, PublishedUnits]:
        return published_units(self._state)

    def is_gpu(self, resource: str) -> bool:
        """Whether units of it are GPUs, or parts of them."""
        found = self._is_gpu.get(resource)
        if found is None:
            found = self._is_gpu[resource] = self.catalog.is_gpu(resource)
        return found

    def asked(self, resources: Resources) -> Resources:
        """The GPU units among ``resources``, of no more kinds than one object may request."""
        known = self._asked.get(id(resources))
        if known is None:
            found = {key: amount for key, amount in resources.items() if amount > 0 and self.is_gpu(key)}
            known = self._asked[id(resources)] = (resources, few(found))
        return known[1]

    def of(self, pod: Pod) -> Resources:
        """The units that a pod requests, and so holds while it is bound; devices of claims once it has them,
        and while it waits those that its claims request.

        Extended resources that a DRA driver provides are counted under the name the node has them by.
        """
        asked = self.asked(pod.template.requests)
        if pod.backing_claim and asked:
            asked = self._as_published(pod, asked)
        claimed = self._claimed.get(pod.meta.uid)
        return added(asked, claimed) if claimed else asked

    def held(self, pod: Pod) -> Resources:
        """As ``of`` for a pod that is or was bound, but every device that it uses, whoever uses it too, and
        nothing for one that only reserves GPUs for the fractions of others."""
        if pod.meta.uid in self.fractions.reservations:
            return {}
        uses = {
            **self.devices.uses.get(pod.meta.uid, {}),
            **self.fractions.uses.get(pod.meta.uid, {}),
        }
        if not uses:
            return self.of(pod)
        used = Counter({key.device: use.resource for key, use in uses.items()}.values())
        asked = self.asked(pod.template.requests)
        if pod.meta.uid in self.fractions.tickets:
            asked = {name: units for name, units in asked.items() if name not in TICKETS}
        return added(self._as_published(pod, asked) if pod.backing_claim and asked else asked, used)

    def having(self, pod: Pod) -> Resources:
        """As ``of``; where that is nothing, what it has of GPUs that a scheduler gave it parts of, each as
        one."""
        return self.of(pod) or self.held(pod)

    def is_gpu_pod(self, pod: Pod) -> bool:
        """Whether it has GPUs or parts of them, or wants some."""
        return bool(self.having(pod)) or wants_fraction(pod)

    def _as_published(self, pod: Pod, asked: Resources) -> Resources:
        node, published = self._state.node_by_name.get(pod.node), self._published.get(pod.node)
        if node is None or not published or _has_plugin(node, self.catalog):
            return asked
        return _named_as_published(asked)


def of_node(node: Node, published: PublishedUnits, catalog: ResourceCatalog) -> tuple[Resources, Resources]:
    """GPU units that a node has, and those it advertises; 0 is included, since such a node has lost them.

    ``published`` are units of its ResourceSlices. They count where no device plugin advertises GPUs: where
    both do, they are the same GPUs.
    """
    capacity = {name: amount for name, amount in node.capacity.items() if catalog.is_gpu(name)}
    allocatable = {name: amount for name, amount in node.allocatable.items() if catalog.is_gpu(name)}
    if _has_plugin(node, catalog):
        return capacity, allocatable
    return {**capacity, **published.there}, {**allocatable, **published.usable}


def expected_units(node: Node, published: PublishedUnits, catalog: ResourceCatalog) -> Resources:
    """GPU units that hardware and sharing settings of a node should give, named as the node has them.

    Labels name a device plugin's resources also where slices publish the GPUs instead.
    """
    if not node.expected or not published.there or _has_plugin(node, catalog):
        return node.expected
    return _named_as_published(node.expected)


def _has_plugin(node: Node, catalog: ResourceCatalog) -> bool:
    """Whether a device plugin advertises GPUs on it."""
    resources = (*node.capacity.items(), *node.allocatable.items())
    return any(amount > 0 and catalog.is_gpu(name) for name, amount in resources)


def _named_as_published(units: Resources) -> Resources:
    return added(*({_published_name(name): amount} for name, amount in units.items()))


def _published_name(resource: str) -> str:
    vendor, slash, unit = resource.partition("/")
    driver = _DRIVERS.get(vendor + slash)
    if driver is None:
        return resource
    return f"{driver}/{unit}" if unit.startswith("mig-") else driver


class DeviceHealth:
    """Answers for pods of ``state``; ``units`` says what they hold."""

    def __init__(self, state: ClusterState, units: GpuUnits) -> None:
        self._state, self._units = state, units

    def unhealthy(self, pod: Pod, held: Resources) -> UnhealthyUnits:
        """Of a pod that runs, no more than it has of ``held`` units; those with a uuid first."""
        if not pod.unhealthy or not pod.is_bound or pod.meta.uid in self._units.fractions.uses:
            return _NONE
        units: Counter[tuple[str, str]] = Counter()
        for resource, gpu, _ in {self._unit(pod, each) for each in pod.unhealthy}:
            units[resource, gpu] += 1
        left, found = Counter(held), dict[tuple[str, str], int]()
        for (resource, gpu), count in sorted(units.items(), key=lambda item: (not item[0][1], item[0])):
            if (most := min(count, left[resource])) > 0:
                found[resource, gpu] = most
                left[resource] -= most
        return found

    def _unit(self, pod: Pod, told: UnhealthyDevice) -> tuple[str, str, str]:
        """Its resource, its GPU, and by what it differs from the pod's other units; no resource where it is
        not known to be a GPU."""
        if told.resource:
            gpu, _, number = told.device_id.partition("::")
            is_known = _UUID.fullmatch(gpu) and (not number or number.isdecimal())
            return told.resource, gpu if is_known else "", told.device_id
        devices = self._devices(pod, told.claim)
        device = _named(told.device_id, [*devices])
        if device is not None:
            return devices[device], self._gpus.get(device, ""), "/".join(device)
        resources = {*devices.values()}
        return resources.pop() if len(resources) == 1 else "", "", told.device_id

    def _devices(self, pod: Pod, name: str) -> Mapping[DeviceId, str]:
        """Resources of the devices that the pod has through a claim. None where the claim has others than
        GPUs, unless its name tells which is which: those come as themselves, without a resource."""
        claim = self._state.claim_by_name.get((pod.meta.namespace, name))
        if claim is None:
            return {}
        uses = self._units.devices.uses.get(pod.meta.uid, {})
        of_claim = {key.device: use.resource for key, use in uses.items() if key.claim == claim.meta.uid}
        return {**dict.fromkeys(claim.devices, ""), **of_claim}

    @cached_property
    def _gpus(self) -> Mapping[DeviceId, str]:
        """Uuids of whole GPUs, and of those that MIG devices are parts of."""
        found: dict[DeviceId, str] = {}
        for each in newest_slices(self._state.slices.values()):
            for device in each.devices:
                uuid = device.attributes.get("parentUUID") or device.attributes.get("uuid", "")
                found[DeviceId(each.driver, each.pool, device.name)] = (
                    uuid if len(uuid) <= _LONGEST_UUID else ""
                )
        return found


def _named(device_id: str, devices: list[DeviceId]) -> DeviceId | None:
    """The one of ``devices`` that an id says; None where it could be several."""
    if len(devices) == 1:
        return devices[0]
    name = device_id.rpartition("=")[2]
    same = [each for each in devices if device_id == "/".join(each)]
    same = same or [each for each in devices if name == each.device]
    if not same:
        ends = [each for each in devices if name.endswith(f"-{each.device}")]
        longest = max((len(each.device) for each in ends), default=0)
        same = [each for each in ends if len(each.device) == longest]
    return same[0] if len(same) == 1 else None
