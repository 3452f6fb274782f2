"""Nodes, and the devices that drivers publish on them (resource.k8s.io).

A node is what it has, advertises and should advertise, and what a price or a placement depends on. Of dynamic
resource allocation there are devices and claims on them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from types import MappingProxyType
from typing import NamedTuple

from gpucost.cluster.objects.metadata import (
    FieldFlaw,
    Labels,
    ObjectMeta,
    Resources,
)
from gpucost.cluster.objects.pods import Toleration
from gpucost.contract.metrics import UnavailableCause


@dataclass(frozen=True, slots=True)
class Taint:
    """``effect`` is NoSchedule, PreferNoSchedule (of nodes only) or NoExecute; of devices also None."""

    key: str
    value: str
    effect: str

    def tolerated_by(self, tolerations: tuple[Toleration, ...]) -> bool:
        """Whether one of ``tolerations`` matches (kubernetes, component-helpers, ToleratesTaint)."""
        return any(
            (not each.effect or each.effect == self.effect)
            and (not each.key or each.key == self.key)
            and (each.exists or (bool(each.key) and each.value == self.value))
            for each in tolerations
        )


CLOSING_CONDITIONS = ("GracefulNodeShutdownInProgress", "Drained", "DrainInProgress")
"""Conditions of a node that takes no new pods while one of them is True (KEP-5683, kubernetes v1.37,
core/v1 NodeConditionType), the most telling first. kubectl cordons a node that it drains, others may not."""
MAINTENANCE_CONDITIONS = ("MaintenanceInProgress", "MaintenancePlanned")
"""Conditions that say why a node is, or will be, closed: a live patch needs no drain, and pods stay."""
_CAUSES: Mapping[str, UnavailableCause] = {
    "GracefulNodeShutdownInProgress": UnavailableCause.SHUTDOWN,
    "Drained": UnavailableCause.DRAINED,
    "DrainInProgress": UnavailableCause.DRAINING,
    "MaintenanceInProgress": UnavailableCause.MAINTENANCE,
    "MaintenancePlanned": UnavailableCause.MAINTENANCE_PLANNED,
}


class SplitGpu(NamedTuple):
    """A GPU that HAMi gives to up to ``tenants`` pods at a time, each a part of its ``memory_mib``."""

    uuid: str
    memory_mib: int
    tenants: int


@dataclass(frozen=True, slots=True)
class Node:
    """A node. ``capacity`` and ``allocatable`` are all of its resources; the rest is about its GPUs.

    ``boards`` is how many physical GPUs its labels claim, None if unknown. ``expected`` are GPU units by
    resource that hardware and sharing settings should give, empty if unknown. ``replicas`` are time-slicing
    or MPS replicas by resource, where they are shared. ``is_ready`` is the Ready condition, ``is_cordoned``
    spec.unschedulable. ``drain`` is the first of CLOSING_CONDITIONS that holds, ``maintenance`` of
    MAINTENANCE_CONDITIONS: an administrator says so, and decides whether maintenance keeps pods from the
    node. ``split_gpus`` are those that HAMi
    hands out in parts. ``provider_id`` says which machine of a cloud it is. Times in ms.
    """

    meta: ObjectMeta
    capacity: Resources
    allocatable: Resources
    is_ready: bool
    ready_since_ms: int | None
    is_cordoned: bool
    product: str = ""
    instance_type: str = ""
    capacity_type: str = ""
    region: str = ""
    zone: str = ""
    pool: str = ""
    boards: int | None = None
    expected: Mapping[str, int] = field(default_factory=dict)
    replicas: Mapping[str, int] = field(default_factory=dict)
    taints: tuple[Taint, ...] = ()
    flaws: tuple[FieldFlaw, ...] = ()
    drain: str = ""
    maintenance: str = ""
    split_gpus: tuple[SplitGpu, ...] = ()
    provider_id: str = ""

    @property
    def labels(self) -> Labels:
        return self.meta.labels

    @property
    def is_schedulable(self) -> bool:
        """Whether new pods may be put on it at all."""
        return self.is_ready and not self.is_cordoned and not self.drain

    @property
    def unavailable_cause(self) -> UnavailableCause | None:
        """Why not; None where they may. Maintenance is the cause where something keeps pods off as well."""
        if self.is_schedulable:
            return None
        told = _CAUSES.get(self.drain) or _CAUSES.get(self.maintenance)
        return told or (UnavailableCause.CORDONED if self.is_ready else UnavailableCause.NOT_READY)


class DeviceId(NamedTuple):
    """A device by name."""

    driver: str
    pool: str
    device: str


class DeviceShare(NamedTuple):
    """What a claim has of a device that several claims may use at once.

    ``share_id`` tells the shares of one device apart (``shareID`` of the allocation result); ``consumed`` are
    amounts by name of the capacity (``consumedCapacity``: bytes of ``memory``), which driver and scheduler
    rounded up; 0 where the device does not limit it.
    """

    device: DeviceId
    share_id: str
    consumed: Mapping[str, int | Fraction] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class PublishedDevice:
    """``attributes`` as text by name without the driver's domain (``type``, ``uuid``, ``productName``);
    ``capacity`` is how much it has, by name, likewise; ``counter_sets`` are the sets of counters it draws
    on; ``taints`` are those of its driver."""

    name: str
    attributes: Mapping[str, str] = field(default_factory=dict)
    capacity: Mapping[str, int | Fraction] = field(default_factory=dict)
    counter_sets: tuple[str, ...] = ()
    taints: tuple[Taint, ...] = ()


@dataclass(frozen=True, slots=True)
class ResourceSlice:
    """Devices of one pool on one node (``node`` is empty for devices of several nodes).

    Of slices of one pool only those of the highest ``generation`` count.
    """

    meta: ObjectMeta
    driver: str
    pool: str
    generation: int
    node: str
    devices: tuple[PublishedDevice, ...] = ()
    flaws: tuple[FieldFlaw, ...] = ()


@dataclass(frozen=True, slots=True)
class DeviceTaintRule:
    """An administrator's taint of devices: of those of ``driver``, ``pool`` and ``device``, where they are
    not empty. Of none without ``selects``: such a rule only plans what it would do."""

    meta: ObjectMeta
    taint: Taint
    selects: bool
    driver: str = ""
    pool: str = ""
    device: str = ""
    flaws: tuple[FieldFlaw, ...] = ()

    def applies_to(self, device: DeviceId) -> bool:
        wanted = (self.driver, self.pool, self.device)
        return self.selects and all(
            not one or one == other for one, other in zip(wanted, device, strict=True)
        )


@dataclass(frozen=True, slots=True)
class ComputeDomain:
    """An NVLink domain of a workload over several nodes (resource.nvidia.com, ComputeDomain).

    Pods join it by a claim made from ``channel_template``, a ResourceClaimTemplate of its namespace.
    """

    meta: ObjectMeta
    channel_template: str
    flaws: tuple[FieldFlaw, ...] = ()


class DeviceRequest(NamedTuple):
    """``amount`` devices of a class; None where it is unknown beforehand how many, or of which class."""

    device_class: str
    amount: int | None


@dataclass(frozen=True, slots=True)
class ResourceClaim:
    """``devices`` are those allocated to it, without those for administrators, which hold nothing; ``shares``
    are those of them that other claims may have as well. ``reserved_for`` are uids of pods that may use it,
    ``groups`` those of PodGroups whose pods may if they name it; ``requests`` are those of its spec,
    ``named`` devices with the name of the request that they were given for."""

    meta: ObjectMeta
    devices: tuple[DeviceId, ...] = ()
    reserved_for: tuple[str, ...] = ()
    flaws: tuple[FieldFlaw, ...] = ()
    requests: tuple[DeviceRequest, ...] = ()
    shares: tuple[DeviceShare, ...] = ()
    groups: tuple[str, ...] = ()
    named: tuple[tuple[DeviceId, str], ...] = ()
