"""GPU units of dynamic resource allocation: what slices publish on nodes, and which pod holds which device.

Units are counted under names like those of extended resources: ``gpu.nvidia.com`` for whole GPUs of that
driver, ``gpu.nvidia.com/mig-1g.10gb`` for MIG devices. Attributes are those of NVIDIA's driver
(kubernetes-sigs/dra-driver-nvidia-gpu): ``type``, ``profile``, ``uuid``, ``parentUUID``.

There are two questions, and so two answers. What do pods take from a node? ``ClaimHoldings.shares`` counts a
device once at a time, so that what is free can be worked out: of the pods that share it for the one that was
bound first (then that of the smallest uid), until it ends; then for the next of those that have not ended,
from that end on. Who uses a device? ``ClaimHoldings.uses`` has every pod, from its own binding to its own
end, with its part where several claims have shares of the device (``ShareMethod``): bills divide the device
by it (``gpucost.telemetry.evidence.device_shares``).

The users of a claim are those in its ``reservedFor`` and the pods that name it, on the node that has the
device. A claim is taken from a pod once that has ended, and mostly deleted with it: claims as they were while
they were reserved (``ClaimHistory.seen``), and which devices pods were found to hold (``before``), stay true
for the pods' lives. Where the allocation of a claim was never seen, the requests of its spec count.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from itertools import pairwise
from math import inf
from types import MappingProxyType
from typing import NamedTuple, TypeAlias

from gpucost.cluster.objects.metadata import Resources
from gpucost.cluster.objects.nodes import (
    DeviceId,
    DeviceShare,
    DeviceTaintRule,
    PublishedDevice,
    ResourceClaim,
    ResourceSlice,
)
from gpucost.cluster.objects.pods import Pod
from gpucost.cluster.objects.state import ClusterState
from gpucost.cluster.views.sharing_rules import DEFAULT_SHARING, MEMORY, SharingRules
from gpucost.domain.gpu import ResourceCatalog, ShareMethod

GPU_DRIVERS = ("gpu.nvidia.com", "gpu.amd.com", "gpu.intel.com", "gaudi.intel.com")
"""Drivers whose devices are GPUs. Others publish network cards and memory domains."""

CHANNELS = "compute-domain-default-channel.nvidia.com"
NO_GPUS = (CHANNELS, "compute-domain-daemon.nvidia.com")
"""Classes of NVIDIA's driver for ComputeDomains, which has no GPUs (``views.nvlink_domains``)."""


def newest_slices(
    slices: Iterable[ResourceSlice], drivers: Collection[str] = GPU_DRIVERS
) -> list[ResourceSlice]:
    """Slices of ``drivers`` that count: those of the newest generation of their pool.

    While a driver publishes a pool anew, slices of two generations exist side by side; the older ones do not
    count.
    """
    ours = [each for each in slices if each.driver in drivers]
    newest: dict[tuple[str, str], int] = {}
    for each in ours:
        key = each.driver, each.pool
        newest[key] = max(each.generation, newest.get(key, each.generation))
    return [each for each in ours if each.generation == newest[each.driver, each.pool]]


class PublishedUnits(NamedTuple):
    """Units by resource name: all that are there, and those of them that no taint keeps pods from."""

    there: Resources = MappingProxyType({})
    usable: Resources = MappingProxyType({})


NOT_PUBLISHED = PublishedUnits()


def published_units(
    state: ClusterState, drivers: Collection[str] = GPU_DRIVERS
) -> Mapping[str, PublishedUnits]:
    """By node name. Devices that no single node has are left out.

    A GPU is counted once. Where its partitions are cut only when claimed, it is published as a whole and
    as every partition it could be, all drawing on one counter set: that is one whole GPU, whether or not
    the whole is among them. Where it is already cut, its parts count and it does not, though some versions
    of the driver publish it too.
    """
    by_node: dict[str, list[ResourceSlice]] = {}
    for each in newest_slices(state.slices.values(), drivers):
        if each.node:
            by_node.setdefault(each.node, []).append(each)
    found: dict[str, PublishedUnits] = {}
    rules = tuple(state.taint_rules.values())
    # What a taint keeps pods from is free: a device that is held is not, and is counted with those that are.
    held = {device for claim in state.claims.values() for device in claim.devices}
    for node, slices in by_node.items():
        devices = [(each, device) for each in slices for device in each.devices]
        there = _units(devices)
        if there:
            usable = _units([each for each in devices if _id(*each) in held or not _is_tainted(*each, rules)])
            found[node] = PublishedUnits(there, {name: usable.get(name, 0) for name in there})
    return found


def _id(of: ResourceSlice, device: PublishedDevice) -> DeviceId:
    return DeviceId(of.driver, of.pool, device.name)


def _is_tainted(of: ResourceSlice, device: PublishedDevice, rules: Sequence[DeviceTaintRule]) -> bool:
    """Whether its driver, or a rule of an administrator, keeps new pods from it."""
    taints = (*device.taints, *(rule.taint for rule in rules if rule.applies_to(_id(of, device))))
    return any(taint.effect in ("NoSchedule", "NoExecute") for taint in taints)


def _units(devices: Sequence[tuple[ResourceSlice, PublishedDevice]]) -> dict[str, int]:
    """What devices of one node come to."""
    cut = {device.attributes.get("parentUUID", "") for _, device in devices if _is_cut(device)} - {""}
    units = Counter(resource_of(each.driver, device) for each, device in devices if _is_cut(device))
    boards: dict[tuple[str, str], list[tuple[set[str], set[str]]]] = {}  # counter sets, whole GPUs on them
    for each, device in devices:
        identity = device.attributes.get("uuid") or device.name
        if not _is_cut(device) and identity not in cut:
            drawn = set(device.counter_sets) or {f"board {identity}"}
            _join(
                boards.setdefault((each.driver, each.pool), []),
                drawn,
                set() if _is_mig(device) else {identity},
            )
    for (driver, _), found in boards.items():
        units[driver] += sum(max(1, len(wholes)) for _, wholes in found)
    return dict(units)


def _join(boards: list[tuple[set[str], set[str]]], drawn: set[str], wholes: set[str]) -> None:
    """Devices that draw on a counter set in common are of one GPU, which may have several sets."""
    for board in [each for each in boards if each[0] & drawn]:
        boards.remove(board)
        drawn, wholes = drawn | board[0], wholes | board[1]
    boards.append((drawn, wholes))


def _is_mig(device: PublishedDevice) -> bool:
    return device.attributes.get("type") == "mig"


def _is_cut(device: PublishedDevice) -> bool:
    """Whether it is a MIG device that exists, not one that could be created."""
    return _is_mig(device) and not device.counter_sets


def resource_of(driver: str, device: PublishedDevice | None) -> str:
    """The name under which a device is counted; one that no slice names (any more) is a whole GPU."""
    if device is None or not _is_mig(device):
        return driver
    profile = device.attributes.get("profile") or "unknown"
    return f"{driver}/mig-{profile.lower().replace('+', '.')}"


class ClaimedDevice(NamedTuple):
    """A device that a pod holds from ``start_ms`` until its end, counted as a unit of ``resource``.

    ``is_named`` is whether a slice describes the device; else it counts as a whole GPU.
    """

    resource: str
    start_ms: int
    is_named: bool = True


ClaimedDevices: TypeAlias = Mapping[DeviceId, ClaimedDevice]


class DeviceUse(NamedTuple):
    """How a pod uses a device through a claim.

    ``part`` of the device is the claim's, measured by its capacity ``dimension``; 1 for other methods.
    """

    resource: str
    method: ShareMethod
    part: Fraction = Fraction(1)
    dimension: str = ""
    is_named: bool = True


class DeviceUseKey(NamedTuple):
    """One use of a pod: a pod may have a device through several claims."""

    device: DeviceId
    claim: str


DeviceUses: TypeAlias = Mapping[DeviceUseKey, DeviceUse]


@dataclass(frozen=True, slots=True)
class ClaimHistory:
    """Facts from before a state, by uid of the pod.

    ``seen`` are claims as they were when they were last reserved for it, by their uid; ``before`` what it was
    found to hold, ``used`` to use. They never change, except that a device is named once its slice is seen.
    ``fractions`` are those of GPUs that a scheduler gave them, ``firsts`` pods as they were when first seen
    bound, None for those without a fraction.
    """

    seen: Mapping[str, Mapping[str, ResourceClaim]] = field(default_factory=dict)
    before: Mapping[str, ClaimedDevices] = field(default_factory=dict)
    used: Mapping[str, DeviceUses] = field(default_factory=dict)
    fractions: Mapping[str, DeviceUses] = field(default_factory=dict)
    firsts: Mapping[str, Pod | None] = field(default_factory=dict)


NO_HISTORY = ClaimHistory()


@dataclass(frozen=True, slots=True)
class ClaimHoldings:
    """``shares`` and ``uses`` by uid of the pod; ``divided`` are devices that have several users at a time,
    or may have; ``unknown`` are pods with the name of a claim of theirs whose devices are unknown."""

    shares: Mapping[str, ClaimedDevices] = field(default_factory=dict)
    unknown: Sequence[tuple[Pod, str]] = ()
    uses: Mapping[str, DeviceUses] = field(default_factory=dict)
    divided: frozenset[DeviceId] = frozenset()


def held_devices(
    state: ClusterState,
    catalog: ResourceCatalog,
    ended: Sequence[Pod] = (),
    history: ClaimHistory = NO_HISTORY,
    sharing: SharingRules = DEFAULT_SHARING,
) -> ClaimHoldings:
    """The devices of all pods that were ever bound, of ``state`` and ``ended``, which is newer where the two
    differ.

    Claims that the scheduler made for extended resources of ``catalog`` are left out: these are counted.
    """
    over = {pod.meta.uid: pod for pod in ended}
    users = _Users(state, catalog, over, history)
    for claim in state.claims.values():
        for uid in (*claim.reserved_for, *users.of_groups(claim)):
            users.add(uid, claim)
    for uid, claims in history.seen.items():
        for claim in claims.values():
            users.add(uid, claim)
    for pod in (*over.values(), *(each for each in state.pods.values() if each.meta.uid not in over)):
        if pod.claims and pod.bound_ms is not None:
            users.add_named(pod, is_news=pod.meta.uid in over or pod.is_bound)
    names = _names(state) if users.by_device or history.before else {}
    shares, uses = _once(users, names), _uses(users, names, sharing)
    return ClaimHoldings(shares, users.unknown, uses, _divided(users, uses))


def wanted_units(state: ClusterState, held: ClaimHoldings) -> dict[str, Resources]:
    """The units that pods without a node request through their claims, by uid.

    What several of them share counts for the first that was made; what a pod holds already, for none.
    """
    waiting = [p for p in state.pods.values() if p.claims and p.bound_ms is None and not p.has_ended]
    taken: set[str] = set()
    wanted: dict[str, Resources] = {}
    names = _names(state)
    for pod in sorted(waiting, key=lambda each: (each.meta.created_ms, each.meta.uid)):
        units: dict[str, int] = {}
        for claim in filter(None, (state.claim_by_name.get((pod.meta.namespace, n)) for n in pod.claims)):
            if claim.meta.uid in taken or any(uid in held.shares for uid in claim.reserved_for):
                continue
            taken.add(claim.meta.uid)
            given = [resource_of(each.driver, names.get(each)) for each in _gpus(claim)]
            for resource in given or [each.driver for each in _requested(claim)]:
                units[resource] = units.get(resource, 0) + 1
        if units:
            wanted[pod.meta.uid] = units
    return wanted


class _Users:
    """Collects which pods used which device."""

    def __init__(
        self, state: ClusterState, catalog: ResourceCatalog, over: Mapping[str, Pod], history: ClaimHistory
    ) -> None:
        self._state, self._catalog, self._over, self._history = state, catalog, over, history
        self._claims: dict[str, set[str]] = {}  # uids of claims by uid of the pod
        self.by_device: dict[DeviceId, dict[str, Pod]] = {}
        self.by_claim: dict[DeviceUseKey, tuple[Sequence[DeviceShare], set[str]]] = {}
        self.unknown: list[tuple[Pod, str]] = []

    def pod(self, uid: str) -> Pod | None:
        return self._over.get(uid) or self._state.pods.get(uid)

    def add(self, uid: str, claim: ResourceClaim) -> None:
        """A claim that is or was reserved for a pod."""
        pod = self.pod(uid)
        if pod is None or pod.bound_ms is None or pod.meta.namespace != claim.meta.namespace:
            return
        self._claims.setdefault(uid, set()).add(claim.meta.uid)
        self._use(pod, claim, self._beside_counted(pod, claim))

    def _beside_counted(self, pod: Pod, claim: ResourceClaim) -> Sequence[DeviceId]:
        """The GPUs of a claim, without those that back an extended resource by which they are counted. Of one
        pod some of the resources may be called GPUs and others like the class of their devices."""
        devices = _gpus(claim)
        if pod.backing_claim != claim.meta.name or not any(map(self._catalog.is_gpu, pod.requests)):
            return devices
        others = {name for name, resource in pod.backed if not self._catalog.is_gpu(resource)}
        beside = {device for device, name in claim.named if name in others}
        return [device for device in devices if device in beside]

    def of_groups(self, claim: ResourceClaim) -> Iterator[str]:
        """Pods of the PodGroups that it is reserved for, of those that name it (KEP-5729)."""
        names = {group.meta.name for uid in claim.groups if (group := self._state.pod_groups.get(uid))}
        for name in sorted(names):
            for pod in self._by_group.get((claim.meta.namespace, name), ()):
                if claim.meta.name in pod.claims:
                    yield pod.meta.uid

    @cached_property
    def _nodes(self) -> Mapping[DeviceId, str]:
        """Of the devices that one node has."""
        return {
            _id(each, device): each.node
            for each in newest_slices(self._state.slices.values())
            for device in each.devices
            if each.node
        }

    @cached_property
    def _by_group(self) -> Mapping[tuple[str, str], Sequence[Pod]]:
        """Pods by namespace and name of their group: thousands of claims may be reserved for groups."""
        found: dict[tuple[str, str], list[Pod]] = {}
        for pod in (*self._over.values(), *self._state.pods.values()):
            if pod.group:
                found.setdefault((pod.meta.namespace, pod.group), []).append(pod)
        return found

    def add_named(self, pod: Pod, is_news: bool) -> None:
        """Claims that a pod names and that were never seen reserved for it."""
        uid, known = pod.meta.uid, self._claims.get(pod.meta.uid, set())
        for name in pod.claims:
            claim = self._state.claim_by_name.get((pod.meta.namespace, name))
            if claim is not None and claim.meta.uid not in known:
                self._use(pod, claim, self._used_by(pod, claim))
            is_told = claim is not None and (not pod.has_ended or claim.devices or _is_told(claim))
            if is_news and not is_told and not self._is_remembered(uid, name):
                self.unknown.append((pod, name))

    def before(self) -> Iterator[tuple[Pod, DeviceId, ClaimedDevice]]:
        """The devices that pods were found to hold. Those taken from a spec give way to what is observed
        now."""
        for uid, shares in self._history.before.items():
            pod, known = self.pod(uid), self._claims.get(uid, set())
            for device, share in shares.items() if pod is not None else ():
                if pod is not None and not (device.pool == "" and device.device.split("/")[0] in known):
                    yield pod, device, share

    def _use(self, pod: Pod, claim: ResourceClaim, devices: Iterable[DeviceId]) -> None:
        for device in devices:
            if self._nodes.get(device, pod.node) != pod.node:
                continue  # whoever names a node in a pod gets the claim reserved, and nothing of the device
            self.by_device.setdefault(device, {})[pod.meta.uid] = pod
            key = DeviceUseKey(device, claim.meta.uid)
            if key not in self.by_claim:
                self.by_claim[key] = [each for each in claim.shares if each.device == device], set()
            self.by_claim[key][1].add(pod.meta.uid)

    def remembered(self) -> Iterator[tuple[str, DeviceUseKey, DeviceUse]]:
        """The uses that pods were found to have, as ``before``."""
        for uid, uses in self._history.used.items():
            known = self._claims.get(uid, set())
            for key, use in uses.items() if self.pod(uid) is not None else ():
                if not (key.device.pool == "" and key.claim in known):
                    yield uid, key, use

    def _used_by(self, pod: Pod, claim: ResourceClaim) -> Sequence[DeviceId]:
        """The allocation of now, unless all present users were bound after the pod ended."""
        known = [self._state.pod_groups.get(uid) for uid in claim.groups]
        if known and all(group is not None and group.meta.name != pod.group for group in known):
            return ()  # it is of none of the groups that the claim is reserved for
        if not pod.has_ended and (claim.reserved_for or claim.groups) and not (claim.groups and pod.group):
            return ()  # it only names it: kube-scheduler reserves a claim before it binds a pod
        others = [other for uid in claim.reserved_for if (other := self.pod(uid)) is not None]
        bound = [other.bound_ms for other in others if other.bound_ms is not None]
        if not pod.has_ended or pod.ended_ms is None:
            return _gpus(claim)
        if claim.devices and (not bound or pod.ended_ms > min(bound)):
            return _gpus(claim)
        return _requested(claim)

    def _is_remembered(self, uid: str, name: str) -> bool:
        seen = self._history.seen.get(uid, {})
        return uid in self._history.before or any(each.meta.name == name for each in seen.values())


def _gpus(claim: ResourceClaim) -> list[DeviceId]:
    return [each for each in claim.devices if each.driver in GPU_DRIVERS]


def _requested(claim: ResourceClaim) -> list[DeviceId]:
    """The GPUs that its spec asks for, as devices of no pool.

    Drivers install a class of their own name for whole GPUs. The devices of other classes are unknown.
    """
    classes = [
        each.device_class
        for each in claim.requests
        if each.device_class in GPU_DRIVERS
        for _ in range(each.amount or 0)
    ]
    return [DeviceId(name, "", f"{claim.meta.uid}/{number}") for number, name in enumerate(classes)]


def _is_told(claim: ResourceClaim) -> bool:
    """Whether its spec determines how many GPUs, and which, it gets; none of classes of ComputeDomains."""
    return all(
        each.device_class in NO_GPUS or (each.device_class in GPU_DRIVERS and each.amount is not None)
        for each in claim.requests
    )


def _names(state: ClusterState) -> dict[DeviceId, PublishedDevice]:
    return {
        DeviceId(each.driver, each.pool, device.name): device
        for each in newest_slices(state.slices.values())
        for device in each.devices
    }


def _once(
    users: _Users, names: Mapping[DeviceId, PublishedDevice]
) -> dict[str, dict[DeviceId, ClaimedDevice]]:
    """Each device for one user at a time: present holders keep it, the others get what they leave."""
    held: dict[str, dict[DeviceId, ClaimedDevice]] = {}
    spans: dict[DeviceId, list[tuple[int, int | None]]] = {}

    def keep(pod: Pod, device: DeviceId, start_ms: int, known: ClaimedDevice | None = None) -> None:
        if known is None or not known.is_named:
            named = device in names or device.pool == ""
            known = ClaimedDevice(resource_of(device.driver, names.get(device)), start_ms, named)
        held.setdefault(pod.meta.uid, {})[device] = known
        end_ms = _end(pod)
        if end_ms is None or start_ms < end_ms:
            spans.setdefault(device, []).append((start_ms, end_ms))

    for pod, device, share in users.before():
        keep(pod, device, share.start_ms, share)
    for device, pods in users.by_device.items():
        for pod in sorted(pods.values(), key=lambda each: (each.bound_ms or 0, each.meta.uid)):
            if device not in held.get(pod.meta.uid, ()):
                start_ms = _start(pod, spans.get(device, ()))
                if start_ms is not None:
                    keep(pod, device, start_ms)
    return held


def _end(pod: Pod) -> int | None:
    """None while it holds; a pod with an unknown end held nothing that could be counted."""
    return (pod.bound_ms if pod.ended_ms is None else pod.ended_ms) if pod.has_ended else None


def _start(pod: Pod, spans: Iterable[tuple[int, int | None]]) -> int | None:
    """From when on no other pod has the device; None where that is never."""
    start_ms, end_ms = pod.bound_ms or 0, _end(pod)
    for other_start_ms, other_end_ms in sorted(spans, key=lambda span: span[0]):
        begins_before = end_ms is None or other_start_ms < end_ms
        if begins_before and (other_end_ms is None or start_ms < other_end_ms):
            if other_end_ms is None:
                return None
            start_ms = other_end_ms
    return start_ms if end_ms is None or start_ms < end_ms else None


def _uses(
    users: _Users, names: Mapping[DeviceId, PublishedDevice], sharing: SharingRules
) -> dict[str, dict[DeviceUseKey, DeviceUse]]:
    """All users of each device, by uid."""
    found: dict[str, dict[DeviceUseKey, DeviceUse]] = {}
    for uid, key, use in users.remembered():
        found.setdefault(uid, {})[key] = use
    for key, (shares, uids) in users.by_claim.items():
        device = names.get(key.device)
        now = DeviceUse(
            resource_of(key.device.driver, device),
            *_part(shares, device, sharing.dimensions.get(key.device.driver, "")),
            device is not None or key.device.pool == "",
        )
        for uid in uids:
            before = found.setdefault(uid, {}).get(key)
            found[uid][key] = before if before is not None and before.is_named else now
    return found


def _part(
    shares: Sequence[DeviceShare], device: PublishedDevice | None, dimension: str
) -> tuple[ShareMethod, Fraction, str]:
    """What a claim has of a device, by what method, and by which capacity: ``dimension``, or where none is
    said memory, or the only one that it consumes."""
    whole = Fraction(1)
    if not shares:
        return ShareMethod.CLAIM, whole, ""
    consumed: dict[str, Fraction] = {}
    for share in shares:
        for name, amount in share.consumed.items():
            if amount > 0:
                consumed[name] = consumed.get(name, Fraction(0)) + amount
    if not consumed:
        return ShareMethod.TIME, whole, ""
    capacity = device.capacity if device is not None else {}
    known = [name for name in consumed if capacity.get(name, 0) > 0]
    name = dimension or (MEMORY if MEMORY in known or len(known) != 1 else known[0])
    if name not in known or consumed[name] > capacity[name]:
        return ShareMethod.UNKNOWN, whole, ""
    return ShareMethod.CAPACITY, consumed[name] / Fraction(capacity[name]), name


def _divided(users: _Users, uses: Mapping[str, DeviceUses]) -> frozenset[DeviceId]:
    """Devices with shares, and those that two uses had at the same time."""
    shared = {
        key.device
        for each in uses.values()
        for key, use in each.items()
        if use.method is not ShareMethod.CLAIM
    }
    spans: dict[DeviceId, list[tuple[int, float]]] = {}
    for uid, each in uses.items():
        pod = users.pod(uid)
        if pod is not None and pod.bound_ms is not None:
            end_ms = _end(pod)
            span = pod.bound_ms, inf if end_ms is None else float(end_ms)
            for device in {key.device for key in each} - shared if span[0] < span[1] else ():
                spans.setdefault(device, []).append(span)
    for device, held in spans.items():
        held.sort()
        if any(after[0] < before[1] for before, after in pairwise(held)):
            shared.add(device)
    return frozenset(shared)
