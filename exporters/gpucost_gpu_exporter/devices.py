"""From the kubelet's device ids to exact shares of boards and MIG instances. Pure.

The forms of a device id: ``GPU-…``; ``MIG-…``; ``MIG-GPU-…/gi/ci`` of drivers before R470; a replica of any
of these, ``…::2`` (NVIDIA/k8s-device-plugin, time-slicing and MPS); GKE's ``nvidia0``, ``nvidia0/gi3``, and
their replicas ``…/vgpu1``; the ``driver/pool/device`` of a resource claim.

The shares of one device never add up to more than 1, whatever the kubelet says: it can list a finished pod
beside the one that has its device now, and replicas beside the whole they were cut from.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from fractions import Fraction
from typing import NamedTuple

from gpucost_gpu_exporter.dra import DraDevice
from gpucost_gpu_exporter.holdings import DeviceClaim, DeviceKey, Holding, KubeletState, Pod
from gpucost_gpu_exporter.topology import WHOLE, Topology

_REPLICA = re.compile(r"(?P<base>.+?)(?:::|/vgpu)(?P<index>\d{1,6})\Z")
_OLD_MIG = re.compile(r"MIG-(?P<board>GPU-[^/]+)/(?P<instance>\d{1,6})/(?P<compute>\d{1,6})\Z")
_GKE = re.compile(r"nvidia(?P<minor>\d{1,6})(?:/gi(?P<instance>\d{1,6}))?\Z")


class NoteKind(StrEnum):
    """Where a share rests on less than the kubelet's own word."""

    REPLICAS_GUESSED = "replicas_guessed"
    """The kubelet does not list the replicas of a device; the most that was ever seen counts."""
    DISPUTED = "disputed"
    """Several pods claim a device id that only one can hold."""
    OVERSUBSCRIBED = "oversubscribed"
    """The claims on a device add up to more than the device; each was made smaller in proportion."""


class Note(NamedTuple):
    """``subject`` is the device id, or for ``OVERSUBSCRIBED`` the board and GPU instance."""

    kind: NoteKind
    subject: str


@dataclass(frozen=True, slots=True)
class Resolved:
    """Who holds what, ordered by device and pod.

    ``unresolved`` are claims on ids that no board or instance of the node answers to. ``replicas`` says in
    how many parts each shared device is cut; given back to ``resolve`` as ``remembered``, it holds while
    the kubelet does not say (it lists no unhealthy devices).
    """

    holdings: tuple[Holding, ...]
    unresolved: tuple[DeviceClaim, ...]
    notes: tuple[Note, ...]
    replicas: Mapping[str, int]


class _Unit(NamedTuple):
    """What one device id stands for."""

    device: DeviceKey
    share: Fraction


def resolve(
    state: KubeletState,
    topology: Topology,
    pod_uid: Callable[[str, str], str | None],
    finished: Callable[[str, str], bool],
    dra: Mapping[str, DraDevice],
    remembered: Mapping[str, int] | None = None,
) -> Resolved:
    """Who holds which share of which device.

    ``pod_uid(namespace, name)`` is the UID of the pod that has the name now, None while the watch does not
    know it; ``finished(namespace, name)`` says that it has ended, and the kubelet merely keeps its devices.
    A pod that was given a device holds it from then on, whether it computes or still pulls its image.

    A device id that several pods claim: pods of one DRA claim share it equally. A device of the device
    plugin has one holder; then only the pods known to the watch count, and if more than one is left, each
    gets an equal part and a note says so, since nothing tells them apart.
    """
    notes: set[Note] = set()
    claims = [claim for claim in state.claims if not finished(claim.namespace, claim.pod)]
    replicas = _replicas(claims, state.allocatable, remembered or {}, notes)
    units = {claim.device_id: _unit(claim, topology, replicas, dra) for claim in claims}
    unresolved = tuple(claim for claim in claims if units[claim.device_id] is None)
    parts: dict[Pod, dict[DeviceKey, Fraction]] = defaultdict(lambda: defaultdict(Fraction))
    listed: dict[tuple[Pod, DeviceKey], list[DeviceClaim]] = defaultdict(list)
    for device_id, on_device in _by_device(claims).items():
        if (unit := units[device_id]) is None:
            continue
        holders = _holders(device_id, on_device, pod_uid, notes)
        for pod, pod_claims in holders.items():
            parts[pod][unit.device] += unit.share / len(holders)
            listed[pod, unit.device] += pod_claims
    holdings = [
        _holding(pod, device, share, listed[pod, device])
        for pod, shares in parts.items()
        for device, share in shares.items()
    ]
    fitted = sorted(_fitted(holdings, notes), key=lambda holding: (holding.device, holding.pod))
    return Resolved(tuple(fitted), unresolved, tuple(sorted(notes)), replicas)


def _by_device(claims: Iterable[DeviceClaim]) -> dict[str, list[DeviceClaim]]:
    grouped: dict[str, list[DeviceClaim]] = defaultdict(list)
    for claim in claims:
        grouped[claim.device_id].append(claim)
    return grouped


def _holders(
    device_id: str,
    claims: list[DeviceClaim],
    pod_uid: Callable[[str, str], str | None],
    notes: set[Note],
) -> dict[Pod, list[DeviceClaim]]:
    """The pods that hold a device id, each once, with the claims of their containers."""
    pods: dict[Pod, list[DeviceClaim]] = defaultdict(list)
    for claim in claims:
        pods[Pod(claim.namespace, claim.pod, pod_uid(claim.namespace, claim.pod) or "")].append(claim)
    if len(pods) == 1 or claims[0].is_dra:
        return pods
    notes.add(Note(NoteKind.DISPUTED, device_id))
    return {pod: claims for pod, claims in pods.items() if pod.uid} or pods


def _holding(pod: Pod, device: DeviceKey, share: Fraction, claims: list[DeviceClaim]) -> Holding:
    containers = tuple(dict.fromkeys(claim.container for claim in claims))
    return Holding(pod, device, share, min(claim.resource for claim in claims), containers)


def _fitted(holdings: list[Holding], notes: set[Note]) -> list[Holding]:
    """The holdings, made smaller where those of one device add up to more than 1."""
    totals: dict[DeviceKey, Fraction] = defaultdict(Fraction)
    for holding in holdings:
        totals[holding.device] += holding.share
    over = {device for device, total in totals.items() if total > WHOLE}
    notes |= {Note(NoteKind.OVERSUBSCRIBED, "/".join(device).rstrip("/")) for device in over}
    return [
        replace(holding, share=holding.share / totals[holding.device]) if holding.device in over else holding
        for holding in holdings
    ]


def _split(device_id: str) -> tuple[str, int | None]:
    """A device id without its replica, and the number of the replica, counted from 0."""
    match = _REPLICA.match(device_id)
    return (match["base"], int(match["index"])) if match else (device_id, None)


def _indexes(device_ids: Iterable[str]) -> dict[str, set[int]]:
    """The replicas among these ids, by what they are replicas of."""
    found: dict[str, set[int]] = defaultdict(set)
    for base, index in map(_split, device_ids):
        if index is not None:
            found[base].add(index)
    return found


def _replicas(
    claims: Iterable[DeviceClaim],
    allocatable: Mapping[str, Iterable[str]] | None,
    remembered: Mapping[str, int],
    notes: set[Note],
) -> dict[str, int]:
    """In how many replicas each shared device is cut.

    As many as the kubelet could hand out. Where it does not list the device, the largest of the highest
    replica number held, the replicas held, and what was known before: a count that is too low would charge
    the holders for more than they have, so this is noted.
    """
    held = _indexes(claim.device_id for claim in claims if not claim.is_dra)
    listed = _indexes(device_id for ids in (allocatable or {}).values() for device_id in ids)
    found = {base: len(indexes | held.get(base, set())) for base, indexes in listed.items()}
    for base, indexes in held.items():
        if base not in found:
            found[base] = max(max(indexes) + 1, len(indexes), remembered.get(base, 0))
            notes.add(Note(NoteKind.REPLICAS_GUESSED, base))
    return found


def _unit(
    claim: DeviceClaim, topology: Topology, replicas: Mapping[str, int], dra: Mapping[str, DraDevice]
) -> _Unit | None:
    """What a device id stands for; None when the node has no such device."""
    if claim.is_dra:
        device = dra.get(claim.device_id)
        return _whole(device.uuid, topology) if device else None
    base, index = _split(claim.device_id)
    unit = _whole(base, topology)
    return unit._replace(share=unit.share / replicas[base]) if unit and index is not None else unit


def _whole(device_id: str, topology: Topology) -> _Unit | None:
    """What an id that is no replica stands for."""
    if found := topology.mig(device_id):  # before R470 the driver itself says MIG-GPU-…/gi/ci
        return _Unit(*found)
    if match := _OLD_MIG.match(device_id):
        return _old_mig(topology, match["board"], int(match["instance"]))
    if match := _GKE.match(device_id):
        uuid = topology.by_minor(int(match["minor"])) or ""
        return _instance(topology, uuid, match["instance"]) if match["instance"] else _board(topology, uuid)
    return _board(topology, device_id)


def _board(topology: Topology, uuid: str) -> _Unit | None:
    """A whole board; none once it is cut into MIG instances: the claim is then from before."""
    board = topology.boards.get(uuid)
    return _Unit(DeviceKey(uuid), WHOLE) if board and not board.instances else None


def _instance(topology: Topology, uuid: str, number: str) -> _Unit | None:
    board = topology.boards.get(uuid)
    found = board is not None and int(number) in board.instances
    return _Unit(DeviceKey(uuid, str(int(number))), WHOLE) if found else None


def _old_mig(topology: Topology, uuid: str, number: int) -> _Unit | None:
    """A compute instance named by its number, when all of its GPU instance are of one size."""
    board = topology.boards.get(uuid)
    instance = board.instances.get(number) if board else None
    sizes = set(instance.compute_instances.values()) if instance else set()
    if instance is None or len(sizes) != 1:
        return None
    return _Unit(DeviceKey(uuid, str(number)), instance.share(sizes.pop()))
