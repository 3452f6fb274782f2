"""GPU units of dynamic resource allocation: what slices publish on nodes.

Units are counted under names like those of extended resources: ``gpu.nvidia.com`` for whole GPUs of that
driver, ``gpu.nvidia.com/mig-1g.10gb`` for MIG devices. Attributes are those of NVIDIA's driver
(kubernetes-sigs/dra-driver-nvidia-gpu): ``type``, ``profile``, ``uuid``, ``parentUUID``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping

from gpucost.cluster.dra import Device, ResourceSlice
from gpucost.cluster.objects import Resources
from gpucost.cluster.state import ClusterState

GPU_DRIVERS = ("gpu.nvidia.com", "gpu.amd.com", "gpu.intel.com", "gaudi.intel.com")
"""Drivers whose devices are GPUs. Others publish network cards and memory domains."""

COUNTER_SET = "consumesCounters"
"""The attribute under which a parsed device has the name of the counter set it draws on, if it does."""


def newest_slices(
    slices: Iterable[ResourceSlice], drivers: Collection[str] = GPU_DRIVERS
) -> list[ResourceSlice]:
    """Slices of ``drivers`` that count: those of the newest generation of their pool.

    While a driver publishes a pool anew, slices of two generations exist side by side; the older are void.
    """
    ours = [each for each in slices if each.driver in drivers]
    newest: dict[tuple[str, str], int] = {}
    for each in ours:
        key = each.driver, each.pool
        newest[key] = max(each.generation, newest.get(key, each.generation))
    return [each for each in ours if each.generation == newest[each.driver, each.pool]]


def published_units(state: ClusterState, drivers: Collection[str] = GPU_DRIVERS) -> Mapping[str, Resources]:
    """Units by node name and resource name. Devices that no single node has are left out.

    A board is counted once. Where its partitions are cut only when claimed, it is published as a whole and
    as every partition it could be, all drawing on one counter set: that is one whole GPU, whether or not
    the whole is among them. Where it is already cut, its parts count and it does not, though some versions
    of the driver publish it too.
    """
    by_node: dict[str, list[ResourceSlice]] = {}
    for each in newest_slices(state.slices.values(), drivers):
        if each.node:
            by_node.setdefault(each.node, []).append(each)
    return {node: units for node, slices in by_node.items() if (units := _units(slices))}


def _units(slices: Iterable[ResourceSlice]) -> dict[str, int]:
    """What the slices of one node publish."""
    devices = [(each, device) for each in slices for device in each.devices]
    cut = {device.attributes.get("parentUUID", "") for _, device in devices if _is_cut(device)} - {""}
    units = Counter(resource_of(each.driver, device) for each, device in devices if _is_cut(device))
    boards: dict[tuple[str, str, str], set[str]] = {}
    for each, device in devices:
        identity = device.attributes.get("uuid") or device.name
        if not _is_cut(device) and identity not in cut:
            board = device.attributes.get(COUNTER_SET) or f"board {identity}"
            wholes = boards.setdefault((each.driver, each.pool, board), set())
            wholes.update([] if _is_mig(device) else [identity])
    for (driver, _, _), wholes in boards.items():
        units[driver] += max(1, len(wholes))
    return dict(units)


def _is_mig(device: Device) -> bool:
    return device.attributes.get("type") == "mig"


def _is_cut(device: Device) -> bool:
    """Whether it is a MIG device that is there, not one that could be."""
    return _is_mig(device) and COUNTER_SET not in device.attributes


def resource_of(driver: str, device: Device | None) -> str:
    """The name under which a device is counted; one that no slice names (any more) is a whole GPU."""
    if device is None or not _is_mig(device):
        return driver
    profile = device.attributes.get("profile") or "unknown"
    return f"{driver}/mig-{profile.lower().replace('+', '.')}"
