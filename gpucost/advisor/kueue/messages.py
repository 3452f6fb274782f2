"""Kueue's own messages and reasons (v0.19.2), and the quota fields that an answer cites as evidence.

``FlavorReason``, ``merged`` and ``granular`` give what Kueue writes into a workload's QuotaReserved
condition. ``quota_path`` and ``quota_evidence`` say where in which object it stands that a request fits a
ClusterQueue or not.

The rules of quota do not know what Kueue says itself of a workload that exists: that it is not let in now,
and when it is again (``hold_of``, ``as_held``); that it has quota, and what it waits for with it
(``reserved_answer``).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from gpucost.advisor.kueue.snapshot import KueueSnapshot, SnapshotQueue
from gpucost.advisor.model.answers import AdviceEvidence, LayerResult, SchedulingDecision, SchedulingLayer
from gpucost.cluster.objects.kueue import FlavorResource, ResourceGroup, Workload
from gpucost.cluster.objects.metadata import CPU
from gpucost.cluster.objects.state import ClusterState
from gpucost.cluster.views.quota import (
    ADMISSION_GATED,
    FOR_PODS_READY,
    FOR_REPLACEMENTS,
    ON_HOLD,
    PREEMPTION_GATED,
    TOPOLOGY_OUTSTANDING,
    WAITING_FOR_REQUEUE,
    HeldBack,
    checks_reason,
    held_back,
    not_admitted,
    open_checks,
    quota_reason,
)
from gpucost.cluster.views.workload_families import multi_kueue_checks
from gpucost.domain.text import counted
from gpucost.domain.time import DAY_MS, MINUTE_MS, iso

WAITING_FOR_QUOTA = "WaitingForQuota"
EXCEEDS_MAX = "ExceedsMaxQuota"
NO_FLAVOR = "NoMatchingFlavor"
FOR_VICTIMS = "WaitingForPreemptedWorkloads"
MISCONFIGURED = "Misconfigured"
NO_LONGER_FITS = "Workload no longer fits after processing another workload"
OVERLAPPING = "Workload has overlapping preemption targets with another workload"
_SEVERITY = ("", WAITING_FOR_QUOTA, EXCEEDS_MAX, NO_FLAVOR)
_BINARY = ("memory", "ephemeral-storage", "storage")
_SUFFIXES = ("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei")
_DECIMAL = ("", "k", "M", "G", "T", "P", "E")


class FlavorReason(NamedTuple):
    """Why one flavor does not serve a pod set as it is: Kueue's granular reason, the flavor, and what
    ``message`` is made of. For quota: what earlier pod sets ``used``, what is ``asked``, and what there is
    (``left``)."""

    reason: str
    flavor: str
    said: str = ""
    resource: str = ""
    used: int = 0
    asked: int = 0
    left: int = 0

    @property
    def message(self) -> str:
        """Kueue's sentence; made only when it is read, for there are many."""
        name = self.resource
        if self.said:
            return self.said
        if self.reason == EXCEEDS_MAX:
            return (
                f"insufficient quota for {name} in flavor {self.flavor}, previously considered podsets "
                f"requests ({quantity(name, self.used)}) + current podset request "
                f"({quantity(name, self.asked)}) > maximum capacity ({quantity(name, self.left)})"
            )
        short = quantity(name, self.used + self.asked - self.left)
        return f"insufficient unused quota for {name} in flavor {self.flavor}, {short} more needed"


def joined(reasons: Sequence[FlavorReason]) -> str:
    """As Kueue lists them: sorted, so that the order of trial does not show."""
    return ", ".join(sorted(each.message for each in reasons))


def merged(tried: dict[str, str], more: Mapping[str, str], group: ResourceGroup) -> None:
    """Adds to the flavors ``tried`` for earlier resources those of one more, which ``group`` covers: by
    flavor the granular reason why it does not fit, empty where it could be had.

    Of two groups that name one flavor both must have it; a flavor that the scan of the second did not reach
    counts as refused (flavor_assigner_attempts.go, mergeFlavorAttemptsForResource).
    """
    for flavor, reason in more.items():
        before = tried.get(flavor)
        tried[flavor] = most_severe((before, reason)) if before else reason
    if more:
        for flavor in tried.keys() - more.keys():
            if flavor in group.flavors:
                tried[flavor] = NO_FLAVOR


def granular(tried: Mapping[str, str], groups: Sequence[ResourceGroup]) -> str:
    """The granular reason of a pod set that does not fit, from the flavors ``tried`` for it (as in
    ``merged``), of all resource groups down to the one that failed: flavors of a group are alternatives, of
    which the mildest refusal counts; groups must all be served, so the most severe counts. A group that could
    be had, but not with each of its flavors, counts as well. Empty where all that was tried could be had, and
    a resource that no group covers failed (flavorassigner.go, resolveNoFitReason).
    """
    if not tried:
        return NO_FLAVOR
    refused = [[tried[flavor] for flavor in group.flavors if tried.get(flavor)] for group in groups]
    return most_severe([min(each, key=_SEVERITY.index) for each in refused if each])


def most_severe(reasons: Sequence[str]) -> str:
    """Of several; the empty reason is the mildest."""
    if len(reasons) == 1:
        return reasons[0]
    return max(reasons, key=_SEVERITY.index, default="")


def quantity(resource: str, amount: int) -> str:
    """As Kubernetes writes an amount (apimachinery, pkg/api/resource, CanonicalizeBytes)."""
    if resource == CPU:
        return _decimal(amount // 1000) if amount % 1000 == 0 else f"{amount}m"
    if resource in _BINARY or resource.startswith("hugepages-"):
        return _scaled(amount, 1024, _SUFFIXES) if amount >= 1024 else str(amount)
    return _decimal(amount)


def _decimal(amount: int) -> str:
    return _scaled(amount, 1000, _DECIMAL)


def _scaled(amount: int, base: int, suffixes: Sequence[str]) -> str:
    power = 0
    while amount and amount % base == 0 and power + 1 < len(suffixes):
        amount //= base
        power += 1
    return f"{amount}{suffixes[power]}"


NO_CEILING = "none"


def quota_path(queue: SnapshotQueue, key: FlavorResource, field: str) -> str:
    """The path of a quota field in the ClusterQueue, empty where there is no such quota."""
    for at, group in enumerate(queue.spec.groups):
        if key.resource in group.resources and key.flavor in group.flavors:
            flavor, resource = group.flavors.index(key.flavor), group.resources.index(key.resource)
            return f"spec.resourceGroups[{at}].flavors[{flavor}].resources[{resource}].{field}"
    return ""


def quota_evidence(
    snapshot: KueueSnapshot, queue: SnapshotQueue, key: FlavorResource, amount: int
) -> Iterator[AdviceEvidence]:
    """Nominal quota, what is used of it, what may be borrowed, and what is left, for one flavor and
    resource of which ``amount`` is asked."""
    name, node = f"clusterqueue/{queue.name}", queue.node
    quota = queue.spec.quotas.get(key)
    if quota is None:
        return
    what = f"{key.resource} of flavor {key.flavor}"
    said = quantity(key.resource, quota.nominal)
    yield AdviceEvidence(name, quota_path(queue, key, "nominalQuota"), said, f"its own quota of {what}")
    yield from _in_use(queue, key)
    if queue.spec.cohort:
        limit = NO_CEILING if quota.borrowing_limit is None else quantity(key.resource, quota.borrowing_limit)
        meaning = f"the most it may borrow from cohort {queue.spec.cohort}"
        yield AdviceEvidence(name, quota_path(queue, key, "borrowingLimit"), limit, meaning)
        yield from _of_cohorts(snapshot, queue, key)
    left = quantity(key.resource, node.available(key))
    asked = quantity(key.resource, amount)
    yield AdviceEvidence(
        name, "", left, f"{what} left for it, worked out with what it may borrow; {asked} asked"
    )


def _in_use(queue: SnapshotQueue, key: FlavorResource) -> Iterator[AdviceEvidence]:
    """Usage as the object's status has it, and the sum over the workloads that hold it where the
    two differ."""
    name, what = f"clusterqueue/{queue.name}", f"{key.resource} of flavor {key.flavor}"
    said, used = queue.spec.reserved.get(key), queue.node.usage.get(key, 0)
    if said is not None:
        field = f"status.flavorsReservation[{key.flavor}]"
        yield AdviceEvidence(name, field, quantity(key.resource, said.total), f"{what} in use")
    if said is None or said.total != used:
        meaning = f"{what} in use, worked out from the workloads that hold it"
        yield AdviceEvidence(name, "", quantity(key.resource, used), meaning)


def _of_cohorts(
    snapshot: KueueSnapshot, queue: SnapshotQueue, key: FlavorResource
) -> Iterator[AdviceEvidence]:
    parent = queue.node.parent
    if parent is None:
        return
    for child in parent.children:
        spec = snapshot.queues[child.name].spec if child.is_queue else None
        quota = spec.quotas.get(key) if spec is not None else None
        if spec is None or quota is None or child is queue.node or not quota.nominal:
            continue
        used = quantity(key.resource, child.usage.get(key, 0))
        nominal = quantity(key.resource, quota.nominal)
        limit = quota.lending_limit
        lends = "all that is unused" if limit is None else f"at most {quantity(key.resource, limit)}"
        yield AdviceEvidence(
            f"clusterqueue/{child.name}",
            quota_path(snapshot.queues[child.name], key, "lendingLimit"),
            "none" if limit is None else quantity(key.resource, limit),
            f"uses {used} of its {nominal} and lends {lends}",
        )


CHECKS = "AdmissionChecks"
REJECTED = "Rejected"
NOT_YET = "Kueue has not admitted it yet"
_MULTI_KUEUE = " (MultiKueue: another cluster must admit it, and runs it)"
_LIFTS = {
    ON_HOLD: "until its job wants it again (a StatefulSet that is scaled up, a RayJob that is valid)",
    ADMISSION_GATED: "until the annotation kueue.x-k8s.io/admission-gated-by is taken away",
    FOR_REPLACEMENTS: "until all pods of its group are there again",
}
NOT_TRIED = frozenset((*_LIFTS, WAITING_FOR_REQUEUE, PREEMPTION_GATED))
"""Reasons of answers that are not known because Kueue holds the workload back."""
PODS_READY = "the pods of all admitted workloads are ready"
"""Until then nobody is let in, where waitForPodsReady.blockAdmission says so."""


class KueueHold(NamedTuple):
    """What keeps a waiting workload out besides quota: Kueue's ``reason`` for that, what its object says of
    it (``evidence``), and ``until`` when; empty where no object knows. ``says`` is all of that in words."""

    reason: str
    says: str
    evidence: tuple[AdviceEvidence, ...] = ()
    until: str = ""


def hold_of(workload: Workload, state: ClusterState) -> KueueHold | None:
    """Why Kueue does not let a waiting workload in now, whatever quota and nodes are there for it; None where
    it may."""
    held = held_back(workload, state.at_ms)
    if held is not None:
        says, facts = held_says(held, workload, state.at_ms), tuple(held_evidence(held, workload))
        until = "" if held.until_ms is None else _backed_off(held.until_ms, workload, state.at_ms)
        return KueueHold(held.reason, says, facts, until)
    reason, said = quota_reason(state, workload)
    if reason != FOR_PODS_READY:
        return None
    says = f"nobody is let in before {PODS_READY} (waitForPodsReady.blockAdmission)"
    return KueueHold(reason, says, _told(workload, said), PODS_READY)


def as_held(found: LayerResult, workload: Workload, state: ClusterState) -> LayerResult:
    """The answer of the rules, for a workload that Kueue may hold back. Where it is known what ends that,
    quota that is there stays so: the other layers are asked first (``advise_asking``). One that is not tried
    has no place in its queue."""
    hold = hold_of(workload, state)
    if hold is None:
        return _as_gated(found, workload, state)
    found = replace(found, ahead=found.ahead if hold.reason == FOR_PODS_READY else None)
    is_unknown = found.decision is SchedulingDecision.UNKNOWN
    if found.decision is not SchedulingDecision.NEVER and not hold.until:
        return _not_now(found, SchedulingDecision.UNKNOWN, hold, hold.says)
    found = replace(found, why=(*found.why, f"kueue: {hold.says}"))
    says = f"by the rules it {found.says}"
    return _not_now(found, SchedulingDecision.WAITS, hold, says) if is_unknown else found


def held_says(held: HeldBack, workload: Workload, at_ms: int) -> str:
    """That it is not tried, why, and what ends that, as far as it is known."""
    if held.until_ms is not None:
        return f"Kueue does not try it before {_backed_off(held.until_ms, workload, at_ms)}"
    said = f": {held.said}" if held.said else ""
    return f"Kueue does not try it ({held.reason}{said}) {_LIFTS.get(held.reason, '')}".rstrip()


def held_evidence(held: HeldBack, workload: Workload) -> Iterator[AdviceEvidence]:
    """What its object says of that."""
    name = f"workload/{workload.meta.name}"
    if held.until_ms is None:
        yield AdviceEvidence(
            name, held.field, held.value, held.said or "Kueue does not try it while it is so"
        )
        return
    yield AdviceEvidence(name, held.field, held.value, "Kueue puts it back into its queue then")
    if workload.requeue_count:
        count = str(workload.requeue_count)
        yield AdviceEvidence(name, "status.requeueState.count", count, "how often it was put back")


def check_named(name: str, elsewhere: Collection[str]) -> str:
    """An admission check; those of ``elsewhere`` are MultiKueue's."""
    return f"admission check {name}{_MULTI_KUEUE if name in elsewhere else ''}"


def reserved_answer(workload: Workload, state: ClusterState) -> LayerResult:
    """Of a workload that has quota and is not admitted: no rule says what a check will answer. One that was
    rejected ends it."""
    elsewhere, waits_for = multi_kueue_checks(state), open_checks(workload)
    rejected = [each for each in waits_for if each.state == REJECTED]
    named = ", ".join(sorted(check_named(each.name, elsewhere) for each in rejected or waits_for))
    reason, says = CHECKS, f"has quota; then {named} must agree, which is not followed"
    if rejected:
        says = f"has quota; {named} rejected it, and Kueue deactivates it"
    elif not waits_for:
        reason = checks_reason(workload)[0]
        is_delayed = reason == TOPOLOGY_OUTSTANDING
        says = f"has quota; {'it waits for its topology assignment' if is_delayed else NOT_YET}"
    return LayerResult(
        SchedulingDecision.NEVER if rejected else SchedulingDecision.UNKNOWN,
        SchedulingLayer.QUOTA,
        reason,
        says,
        queue=workload.cluster_queue,
        evidence=tuple(reserved_evidence(workload)),
    )


def reserved_evidence(workload: Workload) -> Iterator[AdviceEvidence]:
    """What the object of one with quota says of what it waits for."""
    name, condition = f"workload/{workload.meta.name}", not_admitted(workload)
    if condition is not None:
        yield AdviceEvidence(name, "status.conditions[Admitted]", condition.reason, condition.message)
    for each in open_checks(workload):
        said = each.message or "it has not agreed"
        yield AdviceEvidence(name, f"status.admissionChecks[{each.name}]", each.state, said)
    for given in workload.assignments:
        if given.awaits_topology:
            field = f"status.admission.podSetAssignments[{given.name}].delayedTopologyRequest"
            yield AdviceEvidence(name, field, "Pending", "Kueue chooses its domains once all checks agree")


def _as_gated(found: LayerResult, workload: Workload, state: ClusterState) -> LayerResult:
    """Of one that is tried, and that may not preempt: it keeps its place."""
    reason, said = quota_reason(state, workload)
    ends = found.decision in (SchedulingDecision.NEVER, SchedulingDecision.WAITS)
    if reason != PREEMPTION_GATED or ends or not found.victims:
        return found
    hold = KueueHold(reason, f"Kueue does not let it preempt now: {said}", _told(workload, said))
    return _not_now(found, SchedulingDecision.UNKNOWN, hold, hold.says)


def _told(workload: Workload, said: str) -> tuple[AdviceEvidence, ...]:
    """What Kueue says where it gives no quota."""
    name, field = f"workload/{workload.meta.name}", "status.conditions[QuotaReserved]"
    return (AdviceEvidence(name, field, workload.conditions["QuotaReserved"].reason, said),)


def _not_now(found: LayerResult, decision: SchedulingDecision, hold: KueueHold, says: str) -> LayerResult:
    """Nobody leaves for it, and nobody gets quota before it, while it is not tried."""
    return replace(
        found,
        decision=decision,
        layer=SchedulingLayer.QUOTA,
        reason=hold.reason,
        says=says,
        evidence=hold.evidence,
        until=hold.until,
        victims=(),
        others={},
        leaving=frozenset(),
        partly="",
    )


def _backed_off(until_ms: int, workload: Workload, at_ms: int) -> str:
    count = workload.requeue_count
    backoff = f"backoff after {counted(count, 'requeue')}" if count else "backoff"
    return f"{_clock(until_ms, at_ms)} ({backoff})"


def _clock(instant_ms: int, at_ms: int) -> str:
    """The minute at which an instant has passed, with its day where that is more than a day off."""
    text = iso(-(-instant_ms // MINUTE_MS) * MINUTE_MS)
    minute = text[11:16]
    return f"{minute} UTC" if instant_ms - at_ms < DAY_MS else f"{text[:10]} {minute} UTC"
