"""Holders of this node's devices: from the kubelet's device ids to exact shares of GPUs and MIG instances.

``resolve`` is pure. The forms of a device id: ``GPU-…``; ``MIG-…``; ``MIG-GPU-…/gi/ci`` of drivers before
R470; a replica of any of these, ``…::2`` (NVIDIA/k8s-device-plugin, time-slicing and MPS); GKE's ``nvidia0``,
``nvidia0/gi3``, and their replicas ``…/vgpu1``; the ``driver/pool/device`` of a resource claim.

The shares of one device never add up to more than 1, whatever the kubelet lists: it can list a finished pod
beside the one that has its device now, and replicas beside the whole they were cut from.

``DeviceHolders`` puts the kubelet, the pod watch and the GPUs there are together. The kubelet is asked in a
thread of its own (``run``), every few seconds and at once when a pod appears, finishes or goes; ``current``
never waits.
"""

from __future__ import annotations

import logging
import re
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from fractions import Fraction
from typing import NamedTuple, Protocol

from gpucost_gpu_exporter.kubelet.client import KubeletDown, PodResources
from gpucost_gpu_exporter.metering.missing_parts import NODE, MissingPart
from gpucost_gpu_exporter.model.holdings import (
    SECOND_NS,
    WHOLE,
    DeviceClaim,
    DeviceHolding,
    DeviceKey,
    DraDevice,
    GpuTopology,
    KubeletState,
    PodRef,
)

_REPLICA = re.compile(r"(?P<base>.+?)(?:::|/vgpu)(?P<index>\d{1,6})\Z")
_OLD_MIG = re.compile(r"MIG-(?P<board>GPU-[^/]+)/(?P<instance>\d{1,6})/(?P<compute>\d{1,6})\Z")
_GKE = re.compile(r"nvidia(?P<minor>\d{1,6})(?:/gi(?P<instance>\d{1,6}))?\Z")


class ShareNoteKind(StrEnum):
    """Where a share rests on less than the kubelet's own answer."""

    REPLICAS_GUESSED = "replicas_guessed"
    """The kubelet does not list the replicas of a device; the largest number that was ever seen counts."""
    DISPUTED = "disputed"
    """Several pods claim a device id that only one can hold."""
    OVERSUBSCRIBED = "oversubscribed"
    """The claims on a device add up to more than the device; each was made smaller in proportion."""


class ShareNote(NamedTuple):
    """A remark on a share. ``subject`` is the device id, or for ``OVERSUBSCRIBED`` the GPU and
    GPU instance."""

    kind: ShareNoteKind
    subject: str


@dataclass(frozen=True, slots=True)
class NodeHoldings:
    """Who holds what, ordered by device and pod.

    ``unresolved`` are claims on ids that no GPU or instance of the node answers to. ``replicas`` says in how
    many parts each shared device is divided; passed to ``resolve`` again as ``remembered``, it is used while
    the kubelet does not list the device (it lists no unhealthy ones).
    """

    holdings: tuple[DeviceHolding, ...]
    unresolved: tuple[DeviceClaim, ...]
    notes: tuple[ShareNote, ...]
    replicas: Mapping[str, int]


class _Unit(NamedTuple):
    """What one device id stands for."""

    device: DeviceKey
    share: Fraction


def resolve(
    state: KubeletState,
    topology: GpuTopology,
    pod_uid: Callable[[str, str], str | None],
    finished: Callable[[str, str], bool],
    dra: Mapping[str, DraDevice],
    remembered: Mapping[str, int] | None = None,
) -> NodeHoldings:
    """Who holds which share of which device.

    ``pod_uid(namespace, name)`` is the UID of the pod that has the name now, None while the watch does not
    know it; ``finished(namespace, name)`` says that it has ended, and the kubelet merely keeps its devices. A
    pod that was given a device holds it from then on, whether it computes or still pulls its image.

    A device id that several pods claim: pods of one DRA claim share it equally. A device of the device plugin
    has one holder; then only the pods known to the watch count, and if more than one is left, each gets an
    equal part and a note is added, since they cannot be distinguished.
    """
    notes: set[ShareNote] = set()
    claims = [claim for claim in state.claims if not finished(claim.namespace, claim.pod)]
    replicas = _replicas(claims, state.allocatable, remembered or {}, notes)
    units = {claim.device_id: _unit(claim, topology, replicas, dra) for claim in claims}
    unresolved = tuple(claim for claim in claims if units[claim.device_id] is None)
    parts: dict[PodRef, dict[DeviceKey, Fraction]] = defaultdict(lambda: defaultdict(Fraction))
    listed: dict[tuple[PodRef, DeviceKey], list[DeviceClaim]] = defaultdict(list)
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
    return NodeHoldings(tuple(fitted), unresolved, tuple(sorted(notes)), replicas)


def _by_device(claims: Iterable[DeviceClaim]) -> dict[str, list[DeviceClaim]]:
    grouped: dict[str, list[DeviceClaim]] = defaultdict(list)
    for claim in claims:
        grouped[claim.device_id].append(claim)
    return grouped


def _holders(
    device_id: str,
    claims: list[DeviceClaim],
    pod_uid: Callable[[str, str], str | None],
    notes: set[ShareNote],
) -> dict[PodRef, list[DeviceClaim]]:
    """The pods that hold a device id, each once, with the claims of their containers."""
    pods: dict[PodRef, list[DeviceClaim]] = defaultdict(list)
    for claim in claims:
        pods[PodRef(claim.namespace, claim.pod, pod_uid(claim.namespace, claim.pod) or "")].append(claim)
    if len(pods) == 1 or claims[0].is_dra:
        return pods
    notes.add(ShareNote(ShareNoteKind.DISPUTED, device_id))
    return {pod: claims for pod, claims in pods.items() if pod.uid} or pods


def _holding(pod: PodRef, device: DeviceKey, share: Fraction, claims: list[DeviceClaim]) -> DeviceHolding:
    containers = tuple(dict.fromkeys(claim.container for claim in claims))
    return DeviceHolding(pod, device, share, min(claim.resource for claim in claims), containers)


def _fitted(holdings: list[DeviceHolding], notes: set[ShareNote]) -> list[DeviceHolding]:
    """The holdings, made smaller where those of one device add up to more than 1."""
    totals: dict[DeviceKey, Fraction] = defaultdict(Fraction)
    for holding in holdings:
        totals[holding.device] += holding.share
    over = {device for device, total in totals.items() if total > WHOLE}
    notes |= {ShareNote(ShareNoteKind.OVERSUBSCRIBED, "/".join(device).rstrip("/")) for device in over}
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
    notes: set[ShareNote],
) -> dict[str, int]:
    """Into how many replicas each shared device is divided.

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
            notes.add(ShareNote(ShareNoteKind.REPLICAS_GUESSED, base))
    return found


def _unit(
    claim: DeviceClaim, topology: GpuTopology, replicas: Mapping[str, int], dra: Mapping[str, DraDevice]
) -> _Unit | None:
    """What a device id stands for; None when the node has no such device."""
    if claim.is_dra:
        device = dra.get(claim.device_id)
        return _whole(device.uuid, topology) if device else None
    base, index = _split(claim.device_id)
    unit = _whole(base, topology)
    return unit._replace(share=unit.share / replicas[base]) if unit and index is not None else unit


def _whole(device_id: str, topology: GpuTopology) -> _Unit | None:
    """What an id that is no replica stands for."""
    if found := topology.mig(device_id):  # before R470 the driver's own UUIDs are MIG-GPU-…/gi/ci
        return _Unit(*found)
    if match := _OLD_MIG.match(device_id):
        return _old_mig(topology, match["board"], int(match["instance"]))
    if match := _GKE.match(device_id):
        uuid = topology.by_minor(int(match["minor"])) or ""
        return _instance(topology, uuid, match["instance"]) if match["instance"] else _board(topology, uuid)
    return _board(topology, device_id)


def _board(topology: GpuTopology, uuid: str) -> _Unit | None:
    """A whole GPU; none once it is cut into MIG instances: the claim is then from before."""
    board = topology.boards.get(uuid)
    return _Unit(DeviceKey(uuid), WHOLE) if board and not board.instances else None


def _instance(topology: GpuTopology, uuid: str, number: str) -> _Unit | None:
    board = topology.boards.get(uuid)
    found = board is not None and int(number) in board.instances
    return _Unit(DeviceKey(uuid, str(int(number))), WHOLE) if found else None


def _old_mig(topology: GpuTopology, uuid: str, number: int) -> _Unit | None:
    """A compute instance named by its number, when all of its GPU instance are of one size."""
    board = topology.boards.get(uuid)
    instance = board.instances.get(number) if board else None
    sizes = set(instance.compute_instances.values()) if instance else set()
    if instance is None or len(sizes) != 1:
        return None
    return _Unit(DeviceKey(uuid, str(number)), instance.share(sizes.pop()))


logger = logging.getLogger(__name__)

# How long the kubelet's last answer is used: a restart of the kubelet takes less.
STANDS_NS = 30 * SECOND_NS
# After a wake: 8 s at two questions a second, of the hundred that the kubelet answers.
HASTE_S, HASTY_QUESTIONS = 0.5, 16
# However often something changes on the node: the kubelet refuses more than a hundred questions a second.
LEAST_PAUSE_S = 0.1


class PodNames(Protocol):
    """What the pod watch knows of the pods of the node."""

    def uid(self, namespace: str, name: str) -> str | None: ...

    def is_finished(self, namespace: str, name: str) -> bool: ...

    def devices(self) -> Mapping[str, DraDevice]: ...

    @property
    def version(self) -> object: ...

    @property
    def problem(self) -> str: ...


class NoPodNames:
    """Used without an API server: UIDs are unknown, and only the kubelet's list counts."""

    version = 0
    problem = "off"

    def uid(self, namespace: str, name: str) -> str | None:  # noqa: ARG002 no pod is known
        return None

    def is_finished(self, namespace: str, name: str) -> bool:  # noqa: ARG002 no pod is known
        return False

    def devices(self) -> Mapping[str, DraDevice]:
        return {}


@dataclass(frozen=True, slots=True)
class _Answer:
    state: KubeletState
    at_ns: int


@dataclass(frozen=True, slots=True)
class _Inputs:
    """The inputs of a resolution, which is valid for as long as these are the same."""

    state: KubeletState
    topology: GpuTopology
    version: object
    slices: Mapping[str, DraDevice]


class DeviceHolders:
    """Reads the kubelet and resolves its answer."""

    def __init__(
        self,
        kubelet: PodResources,
        pods: PodNames,
        clock_ns: Callable[[], int],
    ) -> None:
        self._kubelet = kubelet
        self._pods = pods
        self._clock_ns = clock_ns
        self._changed: Callable[[], None] = lambda: None
        self._wake = threading.Event()
        self._closed = threading.Event()
        self.asked = threading.Event()
        """Set once the kubelet was asked, with or without success."""
        self._answer: _Answer | None = None
        self._problem = "starting"
        self._resolved: NodeHoldings | None = None
        self._resolved_from: _Inputs | None = None
        self._topology = GpuTopology()
        self._replicas: Mapping[str, int] = {}
        self.errors: Counter[str] = Counter()

    def on_change(self, changed: Callable[[], None]) -> None:
        """Call ``changed``, which must be quick, when the kubelet's answer is another one than before."""
        self._changed = changed

    def refresh(self) -> None:
        """Ask the kubelet once. A failure leaves its last answer standing for 30 s."""
        now_ns = self._clock_ns()
        try:
            self._take(self._kubelet.read(now_ns), now_ns)
        except KubeletDown as error:
            self._failed(str(error.code), error)
        except Exception as error:  # after any error, the kubelet is asked again
            self._failed("failed", error)
        self.asked.set()

    def _failed(self, reason: str, error: Exception) -> None:
        if reason != self._problem:
            logger.info("no answer from the kubelet: %s", error, exc_info=reason == "failed")
        self._problem = reason
        self.errors[reason] += 1

    def _take(self, state: KubeletState, now_ns: int) -> None:
        before, self._problem = self._answer, ""
        # The same answer keeps its identity, so that it is not resolved again.
        same = before is not None and before.state == state
        self._answer = _Answer(before.state if same and before else state, now_ns)
        if not same:
            self._changed()

    def current(self, now_ns: int, topology: GpuTopology) -> NodeHoldings | None:
        """Who holds what now; None when the kubelet has not answered for a while."""
        answer = self._answer
        self._topology = topology
        if answer is None or now_ns - answer.at_ns > STANDS_NS:
            self._resolved = self._resolved_from = None
            self._problem = self._problem or "failed"
            return None
        slices, version = self._pods.devices(), self._pods.version
        known = self._resolved_from
        is_same = known is not None and known.state is answer.state and known.slices is slices
        if not (is_same and known and (known.topology, known.version) == (topology, version)):
            self._resolved = resolve(
                answer.state, topology, self._pods.uid, self._pods.is_finished, slices, self._replicas
            )
            self._replicas = self._resolved.replicas
            self._resolved_from = _Inputs(answer.state, topology, version, slices)
        return self._resolved

    def lacks(self) -> Iterator[MissingPart]:
        """What is missing to know the holders."""
        if self._problem:
            yield MissingPart(NODE, "kubelet", self._problem)
        if self._pods.problem:
            yield MissingPart(NODE, "pods", self._pods.problem)
        if self._kubelet.allocatable_problem:
            yield MissingPart(NODE, "allocatable", self._kubelet.allocatable_problem)
        if self._resolved is not None:
            if self._resolved.unresolved and self._topology.boards:
                yield MissingPart(NODE, "holders", "unknown_device")
            if not self._pods.problem and any(not held.pod.uid for held in self._resolved.holdings):
                yield MissingPart(NODE, "pods", "uid_unknown")
            for note in self._resolved.notes:
                yield MissingPart(NODE, "holders", str(note.kind))

    def wake(self) -> None:
        """Ask the kubelet now: something changed on the node."""
        self._wake.set()

    def run(self, interval_s: float) -> None:
        """Ask the kubelet at once, then again and again, until ``close``.

        The API server reports a pod before the kubelet has given it its devices, so after a wake the kubelet
        is asked several times: otherwise a short job could lose its first seconds.
        """
        hasty = 0
        while not self._closed.is_set():
            self.refresh()
            self._closed.wait(LEAST_PAUSE_S)
            hasty = HASTY_QUESTIONS if self._wake.is_set() else max(0, hasty - 1)
            self._wake.clear()
            self._wake.wait(min(interval_s, HASTE_S) if hasty else interval_s)

    def close(self) -> None:
        self._closed.set()
        self._wake.set()
        self._kubelet.close()
