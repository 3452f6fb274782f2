"""Series of pods and gangs: when pods hold GPUs, for whom, which pods wait, and since when gangs are partial.

While a gang stays partial its since never gets earlier, and becomes later only where its pods show that it
was whole in between: the object that recorded the loss may be gone long before the gang is whole again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import NamedTuple

from gpucost.cluster.objects.metadata import Resources
from gpucost.cluster.objects.pods import DISRUPTIONS, Pod
from gpucost.cluster.views.device_claims import DeviceUses
from gpucost.cluster.views.gangs import PodGang
from gpucost.cluster.views.gpu_units import DeviceHealth, UnhealthyUnits
from gpucost.cluster.views.overview import ClusterOverview
from gpucost.cluster.views.ownership import PodAffiliation, PodOwnership
from gpucost.cluster.views.wait_causes import pod_reason, pod_since_ms
from gpucost.contract import queue_metrics as m
from gpucost.contract.metrics import (
    POD_CLAIM_SHARE,
    POD_CLAIM_UNKNOWN,
    POD_GPU_END,
    POD_GPU_REQUEST,
    POD_GPU_START,
    POD_OWNER_INFO,
    POD_RESOURCE_LABELS,
)
from gpucost.contract.queue_metrics import (
    POD_DISRUPTED,
    POD_GPU_UNHEALTHY,
    POD_GPU_WAITING,
    POD_GPU_WAITING_SINCE,
)
from gpucost.domain.jobs import JobKind, JobReference
from gpucost_queue_collector.page import OTHERS, NamespaceLimit, labels, line, others_uid, sample

HELD = (
    *(POD_GPU_REQUEST, POD_GPU_START, POD_GPU_END, POD_CLAIM_SHARE, POD_OWNER_INFO, POD_DISRUPTED),
    POD_GPU_UNHEALTHY,
)
WAITING = (POD_GPU_WAITING, POD_GPU_WAITING_SINCE)


class HeldPod(NamedTuple):
    """A pod that holds GPU ``units`` since it was bound, or held them until its end; ``uses`` are the devices
    among them that other pods use as well, ``unhealthy`` units those that are broken while it runs."""

    pod: Pod
    units: Resources
    belonging: PodAffiliation
    uses: DeviceUses = MappingProxyType({})
    unhealthy: UnhealthyUnits = MappingProxyType({})


class WaitingPod(NamedTuple):
    """A pod that wants GPU ``units``, and why it does not get a node."""

    pod: Pod
    units: Resources


class OtherPods(NamedTuple):
    """Waiting pods of a namespace that have no rows of their own: GPU ``units`` they want, by resource and
    reason, and since when the first of them waits."""

    namespace: str
    units: Mapping[tuple[str, str], int]
    since_ms: int


def held_pods(overview: ClusterOverview, before: Mapping[str, HeldPod]) -> dict[str, HeldPod]:
    """By uid. Owners that have gone are as ``before``. Units of extended resources stay under their name: the
    node may have lost them since."""
    units, ownership = overview.units, overview.ownership
    health = DeviceHealth(overview.state, units)
    found: dict[str, HeldPod] = {}

    def add(pod: Pod) -> None:
        uid = pod.meta.uid
        known = before.get(uid) or found.get(uid)
        held = units.held(pod)
        if known and pod.backing_claim and sum(held.values()) <= sum(known.units.values()):
            held = known.units  # by another name, or with devices of its claims that went
        if held:
            belonging = _belonging(known, pod, ownership)
            found[uid] = HeldPod(pod, held, belonging, units.uses(pod), health.unhealthy(pod, held))

    for pod in overview.state.pods.values():
        if pod.is_bound:
            add(pod)
    for pod in overview.ended:  # newer than the state where the two differ
        add(pod)
    return {uid: held for uid, held in found.items() if _has_held(held.pod) or uid in before}


def _belonging(known: HeldPod | None, pod: Pod, ownership: PodOwnership) -> PodAffiliation:
    """As ``known`` where the pod's owners have gone before it, as they do when deleted.

    A pod keeps the place in Kueue that it was bound with: while it is being stopped, its workload loses the
    flavor, gets another, or is deleted.
    """
    found = ownership.of(pod)
    if known is None:
        return found if _is_given(pod, ownership) else replace(found, flavor="")
    given = known.belonging
    if given.is_checked and not found.is_checked and known.pod.meta.owner == pod.meta.owner:
        return given
    if _is_given(pod, ownership):
        return found
    if not given.flavor:
        return replace(found, flavor="")
    return replace(
        found,
        workload=given.workload,
        workload_uid=given.workload_uid,
        queue=given.queue,
        cluster_queue=given.cluster_queue,
        flavor=given.flavor,
    )


def _is_given(pod: Pod, ownership: PodOwnership) -> bool:
    """Whether its workload's quota is the one it was bound with, not one that was reserved later."""
    workload = ownership.workload_of(pod)
    reserved_ms = workload.reserved_ms if workload is not None else None
    return reserved_ms is not None and pod.bound_ms is not None and reserved_ms <= pod.bound_ms


def _has_held(pod: Pod) -> bool:
    """Whether it held anything for any time. A pod that was exported as holding needs its end in any case."""
    return pod.ended_ms != pod.bound_ms


def waiting_pods(overview: ClusterOverview) -> dict[str, WaitingPod]:
    """By uid. Pods of a workload that MultiKueue sent to another cluster never get a node here."""
    pods = (pod for pod in overview.state.pods.values() if pod.bound_ms is None and not pod.has_ended)
    if sent := overview.dispatches:
        pods = (pod for pod in pods if overview.ownership.of(pod).workload_uid not in sent)
    return {pod.meta.uid: WaitingPod(pod, wanted) for pod in pods if (wanted := overview.units.of(pod))}


def write_held(held: HeldPod) -> Sequence[bytes]:
    """One text for each of HELD."""
    pod = held.pod
    requests, starts, ends = [], [], []
    for resource, count in held.units.items():
        written = labels(
            POD_RESOURCE_LABELS, (pod.meta.namespace, pod.meta.name, pod.meta.uid, pod.node, resource)
        )
        requests.append(sample(POD_GPU_REQUEST, written, count))
        starts.append(sample(POD_GPU_START, written, (pod.bound_ms or 0) / 1000))
        if pod.ended_ms is not None:
            ends.append(sample(POD_GPU_END, written, pod.ended_ms / 1000))
    others = _shares(held), _owner(held), _disrupted(pod), _unhealthy(held)
    return b"".join(requests), b"".join(starts), b"".join(ends), *others


def _shares(held: HeldPod) -> bytes:
    pod = held.pod
    identity = (pod.meta.namespace, pod.meta.name, pod.meta.uid, pod.node)
    return b"".join(
        line(
            POD_CLAIM_SHARE,
            (
                *identity,
                use.resource,
                f"{key.device.pool}/{key.device.device}",
                key.claim,
                use.method.value,
                use.dimension,
            ),
            float(use.part),
        )
        for key, use in held.uses.items()
    )


def _disrupted(pod: Pod) -> bytes:
    """The reason of a disruption, from a fixed list: any user who may write a pod's status may write any
    reason."""
    found = pod.disruption
    if found is None or found.since_ms is None:
        return b""
    reason = found.reason if found.reason in DISRUPTIONS else "other"
    values = (pod.meta.namespace, pod.meta.name, pod.meta.uid, pod.node, reason)
    return line(POD_DISRUPTED, values, found.since_ms / 1000)


def _unhealthy(held: HeldPod) -> bytes:
    pod = held.pod
    identity = (pod.meta.namespace, pod.meta.name, pod.meta.uid, pod.node)
    return b"".join(
        line(POD_GPU_UNHEALTHY, (*identity, resource, gpu), units)
        for (resource, gpu), units in held.unhealthy.items()
    )


def _owner(held: HeldPod) -> bytes:
    pod, of = held.pod, held.belonging
    values = (
        pod.node,
        pod.meta.namespace,
        pod.meta.name,
        pod.meta.uid,
        of.job.kind.value,
        of.job.name,
        of.job.uid,
        of.workload,
        of.queue,
        of.cluster_queue,
        of.flavor,
        of.team,
        of.project,
        of.user,
    )
    return line(POD_OWNER_INFO, values, 1)


def _others(pods: Sequence[WaitingPod]) -> Mapping[str, OtherPods]:
    wanted: Counter[tuple[str, str]] = Counter()
    for each in pods:
        for resource, count in each.units.items():
            wanted[resource, pod_reason(each.pod)] += count
    since_ms = min(pod_since_ms(each.pod) for each in pods)
    namespace = pods[0].pod.meta.namespace
    return {others_uid(namespace): OtherPods(namespace, dict(sorted(wanted.items())), since_ms)}


WAITING_LIMIT = NamespaceLimit[WaitingPod](
    lambda waiting: waiting.pod.meta.namespace,
    lambda waiting: (waiting.pod.meta.created_ms, waiting.pod.meta.uid),
    _others,
)


class UnknownClaim(NamedTuple):
    """A pod on a node, and the name of a claim of it of which nobody knows what it gave."""

    pod: Pod
    claim: str


class MoreUnknownClaims(NamedTuple):
    """Those of a namespace that have no row of their own: since when the first pod had its node."""

    namespace: str
    since_ms: int


def unknown_claims(overview: ClusterOverview) -> dict[str, UnknownClaim]:
    """By uid of the pod and name of the claim."""
    found = (UnknownClaim(pod, claim) for pod, claim in overview.units.devices.unknown)
    return {f"{each.pod.meta.uid}/{each.claim}": each for each in found}


def _more_unknown(more: Sequence[UnknownClaim]) -> Mapping[str, MoreUnknownClaims]:
    namespace = more[0].pod.meta.namespace
    since_ms = min(each.pod.bound_ms or 0 for each in more)
    return {others_uid(namespace): MoreUnknownClaims(namespace, since_ms)}


UNKNOWN_CLAIM_LIMIT = NamespaceLimit[UnknownClaim](
    lambda unknown: unknown.pod.meta.namespace,
    lambda unknown: (unknown.pod.bound_ms or 0, f"{unknown.pod.meta.uid}/{unknown.claim}"),
    _more_unknown,
)


def write_unknown_claim(unknown: UnknownClaim | MoreUnknownClaims) -> Sequence[bytes]:
    if isinstance(unknown, MoreUnknownClaims):
        identity = (unknown.namespace, OTHERS, others_uid(unknown.namespace), "", OTHERS)
        return (line(POD_CLAIM_UNKNOWN, identity, unknown.since_ms / 1000),)
    pod = unknown.pod
    identity = (pod.meta.namespace, pod.meta.name, pod.meta.uid, pod.node, unknown.claim)
    return (line(POD_CLAIM_UNKNOWN, identity, (pod.bound_ms or 0) / 1000),)


def write_waiting(waiting: WaitingPod | OtherPods) -> Sequence[bytes]:
    """One text for each of WAITING."""
    if isinstance(waiting, OtherPods):
        identity = (waiting.namespace, OTHERS, others_uid(waiting.namespace))
        units = [line(POD_GPU_WAITING, (*identity, *of), count) for of, count in waiting.units.items()]
        return b"".join(units), line(POD_GPU_WAITING_SINCE, identity, waiting.since_ms / 1000)
    pod = waiting.pod
    identity = (pod.meta.namespace, pod.meta.name, pod.meta.uid)
    why = pod_reason(pod)
    wanted = [line(POD_GPU_WAITING, (*identity, resource, why), n) for resource, n in waiting.units.items()]
    return b"".join(wanted), line(POD_GPU_WAITING_SINCE, identity, pod_since_ms(pod) / 1000)


SPECS = (
    m.GANG_INFO,
    m.GANG_MIN_MEMBERS,
    m.GANG_RUNNING,
    m.GANG_PENDING,
    m.GANG_HELD_UNITS,
    m.GANG_PARTIAL_SINCE,
)


class GangStalls:
    """Remembers since when gangs are partial, for as long as they are."""

    def __init__(self) -> None:
        self._since: dict[str, int] = {}

    def find(self, gangs: Iterable[PodGang], at_ms: int) -> Mapping[str, PodGang]:
        """By uid, as they are at ``at_ms``. Where no object records since when one is partial, it is since it
        was first found so."""
        found = {gang.uid: gang for gang in gangs}
        self._since = {
            uid: _since(gang, self._since.get(uid), at_ms) for uid, gang in found.items() if gang.is_partial
        }
        for uid, since_ms in self._since.items():
            if found[uid].partial_since_ms != since_ms:
                found[uid] = replace(found[uid], partial_since_ms=since_ms)
        return found


def _since(gang: PodGang, before_ms: int | None, at_ms: int) -> int:
    since_ms = gang.partial_since_ms
    if before_ms is None:
        return at_ms if since_ms is None else since_ms
    return since_ms if since_ms is not None and since_ms > before_ms and gang.was_whole else before_ms


def _other_gangs(gangs: Sequence[PodGang]) -> Mapping[str, PodGang]:
    """Sums over several gangs. That some of them are partial is left out: the row could not show which."""
    first, held = gangs[0], Counter[str]()
    for each in gangs:
        held.update(each.held)
    uid = others_uid(first.namespace)
    one = replace(
        first,
        name=OTHERS,
        uid=uid,
        job=JobReference(JobKind.OTHER, OTHERS, uid),
        queue="",
        min_members=sum(each.min_members for each in gangs),
        running=sum(each.running for each in gangs),
        pending=sum(each.pending for each in gangs),
        held=dict(sorted(held.items())),
        is_partial=False,
        partial_since_ms=None,
    )
    return {uid: one}


# Those that hold GPUs first: what they waste when they are partial is attributed to a team.
LIMIT = NamespaceLimit[PodGang](
    lambda gang: gang.namespace, lambda gang: (int(not any(gang.held.values())), gang.uid), _other_gangs
)


def write_gang(gang: PodGang) -> Sequence[bytes]:
    """One text for each of SPECS."""
    identity = (gang.namespace, gang.name, gang.uid, gang.kind.value)
    written = labels(m.GANG_LABELS, identity)
    since_ms = gang.partial_since_ms
    held = (line(m.GANG_HELD_UNITS, (*identity, resource), n) for resource, n in gang.held.items())
    return (
        line(m.GANG_INFO, (*identity, gang.job.kind.value, gang.job.name, gang.job.uid, gang.queue), 1),
        sample(m.GANG_MIN_MEMBERS, written, gang.min_members),
        sample(m.GANG_RUNNING, written, gang.running),
        sample(m.GANG_PENDING, written, gang.pending),
        b"".join(held),
        b"" if since_ms is None else sample(m.GANG_PARTIAL_SINCE, written, since_ms / 1000),
    )
