"""What one scheduling cycle of a real cluster did, from two states of it, or why that cannot be worked out.

A state has the workloads with quota and the second in which they got it, not the number of cycles. So a case
is recorded only where all that was decided can be of one cycle; what the API does not show is left open.

``inexpressible_features`` lists what decides in a cluster and has no field in the schema of recorded cases.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from gpucost.advisor.kueue.rule_set import release_of
from gpucost.advisor.verify.case_schema import MOST_TEXT, SCHEMA_VERSION, VERSION, RecordingOrigin
from gpucost.advisor.verify.case_writer import CaseDocument, CaseNames, CaseWriter
from gpucost.cluster.objects.kueue import Workload, WorkloadState
from gpucost.cluster.objects.metadata import (
    StatusCondition,
    is_false,
    is_true,
    times,
)
from gpucost.cluster.objects.scheduler_config import KueueConfig
from gpucost.cluster.objects.state import ClusterState
from gpucost.cluster.views.queue_order import is_tried, positions
from gpucost.domain.time import iso

_FIELDS = ("workloads", "cluster_queues", "local_queues", "cohorts", "flavors")


def inexpressible_features(state: ClusterState, config: KueueConfig) -> Iterator[str]:
    """What a case cannot express, in words for a person; empty where it can express everything."""
    for field in _FIELDS:
        if state.is_unread(field):
            yield f"{field.replace('_', ' ')} could not be read"
    yield from _of_config(config)
    yield from _of_queues(state)
    for each in state.workloads.values():
        what = _of_workload(each)
        if what:
            yield f"workload {each.meta.namespace}/{each.meta.name}: {what}"


def _of_config(config: KueueConfig) -> Iterator[str]:
    if config.block_admission:
        yield "waitForPodsReady.blockAdmission is on"
    if config.excluded_prefixes or config.ignores_undeclared:
        yield "resources that Kueue is told not to count"
    for each in config.unread:
        yield f"a setting of Kueue that gpucost does not follow: {each}"


def _of_queues(state: ClusterState) -> Iterator[str]:
    for queue in state.cluster_queues.values():
        has_all = {flavor for group in queue.groups for flavor in group.flavors} <= set(state.flavor_by_name)
        if queue.stop_policy != "None" or (has_all and is_false(queue.conditions, "Active")):
            yield f"ClusterQueue {queue.name} is stopped or not active"
        if queue.checks:
            yield f"ClusterQueue {queue.name} has admission checks"
        if queue.admission_mode:
            yield f"ClusterQueue {queue.name} has admission fair sharing"
    for local in state.local_queues.values():
        if local.stop_policy != "None":
            yield f"LocalQueue {local.meta.namespace}/{local.meta.name} is stopped"
    for flavor in state.flavors.values():
        if flavor.topology:
            yield f"flavor {flavor.meta.name} has a topology"


def _of_workload(each: Workload) -> str:
    if each.on_cluster:
        return "it runs on another cluster"
    if any(pods.topology for pods in each.pod_sets):
        return "it asks for a topology"
    if any(len(pods.template.affinity) > 1 for pods in each.pod_sets):
        return "its node affinity has more than one term"
    if any(line.of_field for pods in each.pod_sets for term in pods.template.affinity for line in term):
        return "its node affinity is about fields of nodes"
    asked = {pods.name: pods.template.requests for pods in each.pod_sets}
    for given in each.assignments if each.has_quota else ():
        wanted = times(asked.get(given.name, {}), given.count)
        counted = {key: amount for key, amount in given.usage.items() if key != "pods" and amount}
        if counted != {key: amount for key, amount in wanted.items() if amount}:
            return "its quota is not what its pods ask for"
    if each.has_quota and each.reclaimable:
        return "it gave back the quota of some pods"
    return ""


NO_DECISION = "no decision of the scheduler between the two states"
_VAGUE = "Pending"
PREEMPTING = "Pending the preemption of"
"""In the message of a workload whose victims are on their way out (kueue v0.19.2, pkg/scheduler)."""
_MOST_SAID = 5


class RecordedCase(NamedTuple):
    """One case, None where there is none; then ``why`` is the reason, and else what was left out of it."""

    case: CaseDocument | None
    why: tuple[str, ...] = ()


class _Step(NamedTuple):
    """Workloads as they are afterwards, by uid: those that got quota, and those that were evicted."""

    admitted: Mapping[str, Workload]
    preempted: Mapping[str, Workload]


def record(
    before: ClusterState, after: ClusterState, config: KueueConfig, names: CaseNames, id_: str
) -> RecordedCase:
    """The case of what happened between two states of one cluster, if that can be one cycle."""
    step = _step(before, after)
    if not step.admitted and not step.preempted:
        return RecordedCase(None, (NO_DECISION,))
    doubts = [*inexpressible_features(before, config), *_doubts(before, after, step)]
    places = positions(before)
    parked, wrong = _parked(before, step, places)
    doubts.extend(wrong)
    if doubts:
        more = len(doubts) - _MOST_SAID
        return RecordedCase(None, (*doubts[:_MOST_SAID], *([f"and {more} more"] if more > 0 else [])))
    writer = CaseWriter(before, names)
    taking_part = [
        each
        for uid, each in before.workloads.items()
        if uid not in parked and (each.has_quota or _may_be_tried(each, before.at_ms))
    ]
    document: CaseDocument = {"id": id_, "source": f"gpucost advisor record, rules of Kueue {VERSION}"}
    document |= writer.case(taking_part, config)
    document["expected"] = {
        writer.key(each): _expected(each, after.workloads.get(each.meta.uid), step, writer, names, places)
        for each in taking_part
    }
    left = f"{len(parked)} that waited before a later one of their queue, and so outside its heap"
    return RecordedCase(document, (left,) if parked else ())


def document(cases: list[CaseDocument], origin: RecordingOrigin | None = None) -> CaseDocument:
    """A file of them, with the Kueue whose decisions they are."""
    about = "Recorded by gpucost advisor record; what is not in expected could not be seen from outside."
    found: CaseDocument = {"schemaVersion": SCHEMA_VERSION, "about": about}
    if origin is not None:
        found["recorded"] = _recorded(origin)
    return {**found, "cases": cases}


def _recorded(origin: RecordingOrigin) -> CaseDocument:
    config = origin.config
    return {
        "from": iso(origin.from_ms),
        "to": iso(origin.to_ms),
        "kueueVersion": config.version or None,
        "configurationRead": config.is_read,
        "fairSharing": config.fair_sharing,
        "preemptionStrategies": list(config.strategies) if config.fair_sharing else None,
        "featureGates": dict(sorted(config.gates.items())),
    }


def public_version(version: str) -> str:
    """Without what a build of one's own is called."""
    known = release_of(version)
    return "" if known is None else f"v{'.'.join(map(str, known.release))}"


def _step(before: ClusterState, after: ClusterState) -> _Step:
    admitted, preempted = {}, {}
    for uid, now in after.workloads.items():
        then = before.workloads.get(uid)
        if then is None:
            continue
        if now.has_quota and (not then.has_quota or then.reserved_ms != now.reserved_ms):
            admitted[uid] = now
        elif then.has_quota and not is_true(then.conditions, "Evicted") and preemption(then, now):
            preempted[uid] = now
    return _Step(admitted, preempted)


def preemption(then: Workload, now: Workload) -> StatusCondition | None:
    """The Preempted condition that it got in between."""
    found = now.conditions.get("Preempted")
    is_new = found is not None and found.status is True and found != then.conditions.get("Preempted")
    return found if is_new else None


def _doubts(before: ClusterState, after: ClusterState, step: _Step) -> Iterator[str]:
    """Why this cannot be one cycle on the state before."""
    for what in ("cluster_queues", "cohorts", "local_queues", "flavors"):
        if _specs(getattr(before, what)) != _specs(getattr(after, what)):
            yield f"{what.replace('_', ' ')} changed in between"
    seconds = sorted(_seconds_of(step))
    if len(seconds) != 1 or -1 in seconds:
        said = "not dated" if -1 in seconds else f"{seconds[-1] - seconds[0]} s apart"
        yield f"decisions that are {said}: more than one cycle"
    queues = [each.cluster_queue for each in step.admitted.values()]
    for name in sorted(set(queues)):
        if queues.count(name) > 1:
            yield f"{queues.count(name)} admissions in ClusterQueue {name}: one cycle has one"
    last_ms = (seconds[-1] + 1) * 1000
    for uid in sorted(before.workloads.keys() | after.workloads.keys()):
        doubt = _doubt(before.workloads.get(uid), after.workloads.get(uid), uid in step.preempted, last_ms)
        if doubt:
            yield doubt


def _seconds_of(step: _Step) -> set[int]:
    """The seconds in which something was decided; -1 where it has no date."""
    times = [each.reserved_ms for each in step.admitted.values()]
    for each in step.preempted.values():
        times.append(each.conditions["Preempted"].since_ms)
    return {-1 if ms is None else ms // 1000 for ms in times}


def _doubt(then: Workload | None, now: Workload | None, was_preempted: bool, last_ms: int) -> str:
    if then is None:
        assert now is not None
        came = now.meta.created_ms < last_ms or now.has_quota
        return f"workload {_name(now)} came in between" if came else ""
    if now is None:
        counts = then.state not in (WorkloadState.FINISHED, WorkloadState.INACTIVE)
        return f"workload {_name(then)} went away in between" if counts else ""
    same = ("pod_sets", "queue", "priority", "is_active", "reclaimable", "unhealthy_nodes")
    if any(getattr(then, each) != getattr(now, each) for each in same):
        return f"workload {_name(then)} changed in between"
    if then.has_quota and not now.has_quota and not was_preempted:
        return f"workload {_name(then)} gave its quota back in between"
    was_evicted = is_true(then.conditions, "Evicted")
    if now.has_quota and not was_preempted and is_true(now.conditions, "Evicted") and not was_evicted:
        return f"workload {_name(then)} was evicted in between, and not by the scheduler"
    return ""


def _name(workload: Workload) -> str:
    return f"{workload.meta.namespace}/{workload.meta.name}"


def _specs(found: Mapping[str, Any]) -> dict[str, Any]:
    """Objects without their status."""
    empty: dict[str, Any] = {each: {} for each in ("conditions", "reserved", "used", "fair_usage")}
    status = empty | dict.fromkeys(("pending", "reserving", "admitted", "weighted_share"))
    return {
        uid: replace(each, **{name: value for name, value in status.items() if hasattr(each, name)})
        for uid, each in found.items()
    }


def _may_be_tried(workload: Workload, at_ms: int) -> bool:
    """Of one without quota; a case has no word for one that is held back."""
    return workload.state is WorkloadState.PENDING and is_tried(workload, at_ms)


def _parked(before: ClusterState, step: _Step, places: Mapping[str, int]) -> tuple[set[str], list[str]]:
    """The workloads that waited ahead of one that was admitted, and so outside the heap of a BestEffortFIFO
    queue; and what cannot be: a StrictFIFO queue passes no workload over."""
    parked: set[str] = set()
    wrong = []
    lines: dict[str, list[str]] = {}
    for uid in places:
        each = before.workloads[uid]
        local = before.local_queue_by_name[each.meta.namespace, each.queue]
        lines.setdefault(local.cluster_queue, []).append(uid)
    for uid, each in step.admitted.items():
        place, queue = places.get(uid), before.cluster_queue_by_name.get(each.cluster_queue)
        if place is None or queue is None:
            wrong.append(f"workload {_name(each)} got quota and was in no queue before")
            continue
        ahead = {other for other in lines[queue.name] if places[other] < place}
        if ahead and queue.strategy == "StrictFIFO":
            wrong.append(f"workload {_name(each)} was not the head of {queue.name}: more than one cycle")
        parked |= ahead
    return parked, wrong


def _expected(
    then: Workload,
    now: Workload | None,
    step: _Step,
    writer: CaseWriter,
    names: CaseNames,
    places: Mapping[str, int],
) -> CaseDocument:
    """The decision about one workload, as far as the states show it."""
    uid = then.meta.uid
    if uid in step.admitted:
        return admitted_as(step.admitted[uid], writer)
    if uid in step.preempted:
        reason = step.preempted[uid].conditions["Preempted"].reason
        return {"outcome": "preempted", "preemptedReason": reason or None}
    if then.has_quota:
        return {"outcome": "being-evicted" if is_true(then.conditions, "Evicted") else "keeps-running"}
    said = now.conditions.get("QuotaReserved") if now is not None else None
    is_new = said is not None and said != then.conditions.get("QuotaReserved")
    if said is None or not is_new:
        return {"outcome": None if step.preempted else "pending"}
    preempting = PREEMPTING in said.message
    outcome = "preempting" if preempting else None if step.preempted and not said.message else "pending"
    queue = writer.cluster_queue(then)
    tried_again = any(each.cluster_queue == queue for each in step.admitted.values())
    if places.get(uid) != 1 or tried_again:
        return {"outcome": outcome}
    return {"outcome": outcome, **said_of(said, names)}


def said_of(said: StatusCondition, names: CaseNames) -> CaseDocument:
    """Reason and message of a workload that waits; no vague reason, and no message among aliases."""
    return {
        "quotaReservedReason": said.reason if said.reason not in ("", _VAGUE) else None,
        "messageContains": None if names.is_anonymous else said.message[:MOST_TEXT] or None,
    }


def admitted_as(now: Workload, writer: CaseWriter) -> CaseDocument:
    """The expected decision for a workload that got quota."""
    sets = writer.pod_sets(now)
    flavors: dict[str, set[str]] = {}
    for each in sets:
        for resource, flavor in each["flavors"].items():
            flavors.setdefault(resource, set()).add(flavor)
    is_same = all(len(each) == 1 for each in flavors.values())
    return {
        "outcome": "admitted",
        "clusterQueue": writer.named("queue", now.cluster_queue),
        "flavors": {key: min(each) for key, each in flavors.items()} if is_same else None,
        "podSets": sets,
    }
