"""What a recording asserts of one workload, held against what the rules say, one fact at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import NamedTuple

from gpucost.advisor.kueue.results import Assigned, Outcome, PendingClass, WorkloadDecision
from gpucost.advisor.verify.schema import HEAP, PARKED, Case, Expected


class Answer(NamedTuple):
    """``decision`` names workloads by their keys, not their uids. ``cluster_queue`` is where the workload
    queues or holds quota, empty where its queue leads nowhere."""

    decision: WorkloadDecision
    cluster_queue: str


class Fact(NamedTuple):
    """One asserted fact, as text for a person."""

    name: str
    expected: str
    got: str
    agrees: bool


FACTS = (
    *("outcome", "clusterQueue", "flavors", "podSets", "borrowsFromCohort", "borrowingLevel"),
    *("nominated.mode", "nominated.podSets", "nominated.borrowingLevel", "preempts", "preemptedBy"),
    *("preemptedReason", "pendingClass", "requeuedTo", "quotaReservedReason", "messageContains"),
    "processingOrder",
)
"""Names of all facts, in the order in which they are listed."""

_Pair = tuple[object, Callable[[Answer], object]]


def facts(expected: Expected, answer: Answer | None) -> list[Fact]:
    """Of one workload; ``answer`` is None where the rules say nothing of it."""
    found = []
    for name, (wanted, of) in _pairs(expected).items():
        if wanted is None:
            continue
        got = None if answer is None else of(answer)
        agrees = wanted == got
        if name == "messageContains":
            agrees = isinstance(got, str) and str(wanted) in got
        found.append(Fact(name, _said(wanted), "no decision" if answer is None else _said(got), agrees))
    return found


def order_fact(expected: Iterable[tuple[str, ...]], got: Iterable[tuple[str, ...]]) -> Fact:
    """Heads in the order of processing, one tuple per cohort tree; the order of the tuples means nothing."""
    wanted, found = frozenset(expected), frozenset(got)
    return Fact("processingOrder", _orders(wanted - found), _orders(found - wanted), wanted == found)


def answers(case: Case, decisions: Mapping[str, WorkloadDecision]) -> dict[str, Answer]:
    """By key."""
    found = {}
    for uid, key in case.keys.items():
        decision = decisions.get(uid)
        if decision is not None:
            found[key] = Answer(_keyed(decision, case.keys), _cluster_queue(case, uid))
    return found


def _pairs(expected: Expected) -> dict[str, _Pair]:
    return {
        "outcome": (expected.outcome, lambda each: each.decision.outcome.value),
        "clusterQueue": (expected.cluster_queue, _where),
        "flavors": (expected.flavors, lambda each: _merged(each.decision.pod_sets)),
        "podSets": (_plain(expected.pod_sets), lambda each: _plain(each.decision.pod_sets)),
        "borrowsFromCohort": (expected.borrows, lambda each: each.decision.level > 0),
        "borrowingLevel": (expected.level, lambda each: each.decision.level),
        "nominated.mode": (expected.nominated_mode, lambda each: _nominated(each, "mode")),
        "nominated.podSets": (_plain(expected.nominated_pod_sets), lambda each: _nominated(each, "pod_sets")),
        "nominated.borrowingLevel": (expected.nominated_level, lambda each: _nominated(each, "level")),
        "preempts": (expected.preempts, lambda each: frozenset(each.decision.preempts)),
        "preemptedBy": (expected.preempted_by, lambda each: each.decision.preempted_by),
        "preemptedReason": (expected.preempted_reason, lambda each: each.decision.preempted_reason),
        "pendingClass": (expected.pending, _pending),
        "requeuedTo": (expected.requeued_to, lambda each: PARKED if each.decision.parked else HEAP),
        "quotaReservedReason": (expected.reason, lambda each: each.decision.reason),
        "messageContains": (expected.message, lambda each: each.decision.message),
    }


def _keyed(decision: WorkloadDecision, keys: Mapping[str, str]) -> WorkloadDecision:
    by = decision.preempted_by
    return replace(
        decision,
        preempts=tuple(keys.get(uid, uid) for uid in decision.preempts),
        preempted_by=keys.get(by, by),
    )


def _cluster_queue(case: Case, uid: str) -> str:
    workload = case.state.workloads[uid]
    queue = case.state.local_queue_by_name.get((workload.meta.namespace, workload.queue))
    return workload.cluster_queue or (queue.cluster_queue if queue is not None else "")


def _where(answer: Answer) -> str:
    """Where it has quota, or would have it."""
    pending = answer.decision.outcome is Outcome.PENDING
    return "" if pending and answer.decision.pending is PendingClass.INADMISSIBLE else answer.cluster_queue


def _pending(answer: Answer) -> str:
    """``needs-preemption`` goes without saying of one that is preempting."""
    decision = answer.decision
    if decision.pending is not None:
        return decision.pending.value
    return PendingClass.NEEDS_PREEMPTION.value if decision.outcome is Outcome.PREEMPTING else ""


def _nominated(answer: Answer, field: str) -> object:
    found = answer.decision.nominated
    if found is None:
        return None
    return {"mode": found.mode, "level": found.level, "pod_sets": _plain(found.pod_sets)}[field]


def _merged(sets: Iterable[Assigned]) -> dict[str, str] | None:
    """Over pod sets; None where two differ."""
    merged: dict[str, str] = {}
    for each in sets:
        for resource, flavor in each.flavors.items():
            if merged.setdefault(resource, flavor) != flavor:
                return None
    return merged


def _plain(sets: Iterable[Assigned] | None) -> dict[str, tuple[int, dict[str, str]]] | None:
    """By name: in which order pod sets are listed means nothing."""
    return None if sets is None else {each.name: (each.count, dict(each.flavors)) for each in sets}


def _said(value: object) -> str:
    if value is None or value in ("", {}, frozenset()):
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, frozenset):
        return ", ".join(sorted(map(str, value)))
    if isinstance(value, dict):
        return "; ".join(f"{key}: {_value(each)}" for key, each in sorted(value.items()))
    return str(value)


def _value(value: object) -> str:
    if isinstance(value, tuple):
        count, flavors = value
        return f"{count} of {_said(flavors)}"
    return str(value)


def _orders(orders: Iterable[tuple[str, ...]]) -> str:
    return "; ".join(sorted(" > ".join(each) for each in orders)) or "none"
