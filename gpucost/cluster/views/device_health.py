"""Which GPU units of a pod its kubelet calls unhealthy, and of which GPU they are.

Kubelets write ids of devices (``UnhealthyDevice``). NVIDIA's device plugin gives a GPU its uuid as id, with
``::`` and a number where it hands a GPU out several times; of other ids, MIG's among them, the GPU is not
known. Devices of claims are looked up in their slices. A CDI id is only the driver's name for a device: it is
taken for the device of the claim with whose name it ends (``k8s.gpu.nvidia.com/claim=UID-gpu-0``), or for the
only one that the claim has.

Of pods whose GPU a scheduler of fractions chose, the kubelet's device is another one: they are left out.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from functools import cached_property
from types import MappingProxyType
from typing import TypeAlias

from gpucost.cluster.objects.metadata import Resources
from gpucost.cluster.objects.nodes import DeviceId
from gpucost.cluster.objects.pods import Pod, UnhealthyDevice
from gpucost.cluster.objects.state import ClusterState
from gpucost.cluster.views.device_claims import newest_slices
from gpucost.cluster.views.gpu_units import GpuUnits

UnhealthyUnits: TypeAlias = Mapping[tuple[str, str], int]
"""Units by resource and uuid of the GPU, which is empty where it is not known."""
_NONE: UnhealthyUnits = MappingProxyType({})
_UUID = re.compile(r"GPU-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.ASCII)
_LONGEST_UUID = 64


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
