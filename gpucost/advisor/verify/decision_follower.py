"""Decisions of a real scheduler, found in the writes of its Workloads one after the other, tree by tree.

A decision is a write of its own: quota is reserved for a workload, workloads are evicted for one, or a head
is told why it gets none. What was written before it is the input. That is the order of the API server (of
resource versions, in which a watch delivers them), and an assumption: Kueue decides on what it has read,
counts its own admissions before they are written, and writes those of one cycle side by side. So the order of
writes within ``MOMENT_MS`` is not certain; decisions that the rules answer differently in another order of
these writes are left out, and counted.

A tree is a part of a cluster that decides on its own (``tree_names``): a cohort tree with its queues, or a
ClusterQueue alone.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice, product
from typing import Any

from gpucost.advisor.verify.case_files import read_cases
from gpucost.advisor.verify.case_recording import (
    PREEMPTING,
    admitted_as,
    document,
    preemption,
    said_of,
)
from gpucost.advisor.verify.case_schema import VERSION
from gpucost.advisor.verify.case_writer import CaseDocument, CaseNames, CaseWriter
from gpucost.advisor.verify.replay import ReplayReport, verify
from gpucost.cluster.objects.kueue import ClusterQueue, Workload, WorkloadState
from gpucost.cluster.objects.metadata import is_true
from gpucost.cluster.objects.scheduler_config import KueueConfig
from gpucost.cluster.objects.state import ClusterState
from gpucost.cluster.views.queue_order import is_tried, queue_timestamp_ms
from gpucost.domain.errors import InputError

_QUEUE = "queue/"
"""Before the name of a ClusterQueue without a cohort, which no cohort may have."""


def tree_names(state: ClusterState) -> dict[str, str]:
    """By ClusterQueue the name of its tree: of its topmost cohort, or its own. In a circle of cohorts, in
    which nothing is scheduled, the least of their names."""
    parents = {name: each.parent for name, each in state.cohort_by_name.items()}
    return {
        name: _root(each.cohort, parents) if each.cohort else _QUEUE + name
        for name, each in state.cluster_queue_by_name.items()
    }


def queue_of(state: ClusterState, workload: Workload) -> str:
    """The ClusterQueue where it has quota or asks for it; empty where its LocalQueue leads nowhere."""
    local = state.local_queue_by_name.get((workload.meta.namespace, workload.queue))
    return workload.cluster_queue or (local.cluster_queue if local is not None else "")


def of_tree(state: ClusterState, tree: str, workloads: Collection[Workload]) -> ClusterState:
    """The state without all that is no part of one tree; ``workloads`` are those that take part."""
    names = tree_names(state)
    queues = {uid: each for uid, each in state.cluster_queues.items() if names.get(each.name) == tree}
    own = {each.name for each in queues.values()}
    parents = {name: each.parent for name, each in state.cohort_by_name.items()}
    cohorts = {uid: each for uid, each in state.cohorts.items() if _root(each.name, parents) == tree}
    named = {key.flavor for each in queues.values() for key in each.quotas}
    named |= {key.flavor for each in cohorts.values() for key in each.quotas}
    named |= {flavor for queue in queues.values() for group in queue.groups for flavor in group.flavors}
    spaces = {each.meta.namespace for each in workloads}
    return replace(
        state,
        pods={},
        nodes={},
        cluster_queues=queues,
        cohorts=cohorts,
        local_queues={uid: each for uid, each in state.local_queues.items() if each.cluster_queue in own},
        flavors={uid: each for uid, each in state.flavors.items() if each.meta.name in named},
        namespaces={uid: each for uid, each in state.namespaces.items() if each.meta.name in spaces},
        workloads={each.meta.uid: each for each in workloads},
    )


def _root(cohort: str, parents: Mapping[str, str]) -> str:
    seen = [cohort]
    while parents.get(seen[-1]):
        if parents[seen[-1]] in seen:
            return min(seen[seen.index(parents[seen[-1]]) :])
        seen.append(parents[seen[-1]])
    return seen[-1]


MOMENT_MS = 1_000
"""Conditions are dated to the second, and Kueue tries queues again a second after quota came back."""
MOST_ORDERS = 64
MOST_REFUSALS = 3
"""Recorded of one workload: its message changes with every GPU that others take or give back."""
_STRICT = "StrictFIFO"
_GIVEN = ("QuotaReserved", "Admitted")
_FOR = re.compile(r"\(UID: ([^,)]+)")
"""Of the message of a Preempted condition (kueue v0.19.2, pkg/scheduler/preemption/preemption.go)."""
_NO_FLAVOR = "couldn't assign flavors to pod set "
"""The begin of what Kueue says of a head without quota (kueue v0.19.2, pkg/scheduler/flavorassigner)."""
_OF_OTHERS = ("no longer fits after", "overlapping preemption targets")
"""Of a head that others of its cycle came before."""
_SPECS = ("cluster_queues", "cohorts", "local_queues", "flavors")

ORDER = "the rules disagree, and agree in another order of what was written within a second"
CHANGED = "a queue, cohort or flavor of its tree changed within two seconds"
UNREAD = "its queue, or what it asks for, could not be read"
TOPOLOGY = "topology-aware scheduling decides"
AFFINITY = "its node affinity has no place in a case"
NO_PLACE = "what its objects say has no place in a case"
ELSEWHERE = "it runs on another cluster"
UNEVEN = "quota of its tree is not a whole amount per pod"
UNNAMED = "its victims do not say whom they left for"
UNSEEN = "its preemptor was not seen waiting"
FAIR_QUEUES = "admission fair sharing decides"
RESUMED = "it waits in a queue of several flavors, at any of which its search may have begun"
BY_OTHERS = "it waits for others of its cycle, which no object tells"
AGAIN = f"it was told so more than {MOST_REFUSALS} times"
MISSED = "several writes were read at once, after a break"
CONFIG = "Kueue's configuration: "


@dataclass(frozen=True, slots=True)
class WorkloadWrite:
    """One write of a Workload. ``then`` is None where it was made by it, ``now`` where it is gone."""

    at_ms: int
    uid: str
    then: Workload | None
    now: Workload | None


@dataclass(slots=True)
class _DecisionDraft:
    """A decision until its moment has passed. ``before`` are all workloads as they were, by uid; ``victims``
    by uid as they were evicted, none of an admission. ``refused`` is one that waits on, as it was told."""

    at_ms: int
    subject: str
    tree: str
    state: ClusterState
    before: Mapping[str, Workload]
    admitted: Workload | None = None
    refused: Workload | None = None
    victims: dict[str, Workload] = field(default_factory=dict)


@dataclass(slots=True)
class ObservedCases:
    """The decisions that became cases. ``left_out`` counts the others by reason. ``refusals`` are heads that
    got no quota and wait on."""

    admissions: int = 0
    preemptions: int = 0
    refusals: int = 0
    cases: list[CaseDocument] = field(default_factory=list)
    left_out: Counter[str] = field(default_factory=Counter)

    @property
    def decisions(self) -> int:
        return self.admissions + self.preemptions + self.refusals


class DecisionFollower:
    """Takes every write in order; ``kept`` has the cases of the decisions whose moment has passed."""

    def __init__(self, config: KueueConfig, names: CaseNames) -> None:
        self._config, self._names = config, names
        self._workloads: dict[str, Workload] = {}
        self._drafts: list[_DecisionDraft] = []
        self._writes: list[WorkloadWrite] = []
        self._specs: dict[str, Any] = {}
        self._changed_ms: dict[str, int] = {}
        self._told: Counter[str] = Counter()
        self.kept = ObservedCases()

    def look(self, state: ClusterState, at_ms: int) -> None:
        """Notes which trees changed since the last call."""
        names = tree_names(state)
        specs: dict[str, Any] = {}
        for queue, tree in names.items():
            specs.setdefault(tree, []).append(_spec(state.cluster_queue_by_name[queue]))
        for tree in specs:
            part = of_tree(state, tree, ())
            others = [sorted(map(_spec, getattr(part, each).values()), key=repr) for each in _SPECS[1:]]
            specs[tree] = [sorted(specs[tree], key=repr), *others]
        for tree, found in specs.items():
            if self._specs and self._specs.get(tree) != found:
                self._changed_ms[tree] = at_ms
        self._specs = specs

    def take(self, write: WorkloadWrite, state: ClusterState, is_alone: bool = True) -> None:
        """The next write; ``state`` has queues, cohorts, flavors and namespaces as they are known then.
        Without ``is_alone`` it was read with others, and their order is not known."""
        self.pass_by(write.at_ms)
        then = self._workloads.get(write.uid)
        write = replace(write, then=then)
        if then is not None and write.now is not None:
            if write.now.has_quota and (not then.has_quota or then.reserved_ms != write.now.reserved_ms):
                self._admitted(write, state, is_alone)
            elif then.has_quota and not is_true(then.conditions, "Evicted") and preemption(then, write.now):
                self._preempted(write, state, is_alone)
            elif _is_refused(then, write.now):
                self._refused(write, write.now, state, is_alone)
        self._writes.append(write)
        if write.now is None:
            self._workloads.pop(write.uid, None)
        else:
            self._workloads[write.uid] = write.now

    def pass_by(self, at_ms: int | None = None) -> None:
        """Closes decisions whose moment has passed by ``at_ms``; all of them where that is None."""
        due = [each for each in self._drafts if at_ms is None or at_ms > each.at_ms + MOMENT_MS]
        for each in due:
            self._drafts.remove(each)
            self._close(each)
        oldest = min((each.at_ms for each in self._drafts), default=at_ms or 0) - 2 * MOMENT_MS
        self._writes = [each for each in self._writes if each.at_ms >= oldest]

    def _admitted(self, write: WorkloadWrite, state: ClusterState, is_alone: bool) -> None:
        assert write.now is not None
        self.kept.admissions += 1
        if not is_alone:
            self.kept.left_out[MISSED] += 1
            return
        tree = tree_names(state).get(write.now.cluster_queue, "")
        draft = _DecisionDraft(write.at_ms, write.uid, tree, state, dict(self._workloads), write.now)
        self._drafts.append(draft)

    def _preempted(self, write: WorkloadWrite, state: ClusterState, is_alone: bool) -> None:
        """Victims of one preemptor are evicted one by one; the first of them begins the case."""
        assert write.then is not None
        assert write.now is not None
        named = _FOR.search(write.now.conditions["Preempted"].message)
        by = named[1] if named else ""
        for each in self._drafts:
            held = each.before.get(write.uid)
            is_same = held is not None and held.has_quota and held.reserved_ms == write.then.reserved_ms
            if each.subject == by and each.victims and is_same:
                each.victims[write.uid] = write.now
                return
        self.kept.preemptions += 1
        if not is_alone:
            self.kept.left_out[MISSED] += 1
            return
        if by not in self._workloads or self._workloads[by].has_quota:
            self.kept.left_out[UNSEEN if by else UNNAMED] += 1
            return
        tree = tree_names(state).get(write.then.cluster_queue, "")
        draft = _DecisionDraft(write.at_ms, by, tree, state, dict(self._workloads))
        draft.victims[write.uid] = write.now
        self._drafts.append(draft)

    def _refused(self, write: WorkloadWrite, now: Workload, state: ClusterState, is_alone: bool) -> None:
        self.kept.refusals += 1
        self._told[write.uid] += 1
        by_others = any(said in now.conditions["QuotaReserved"].message for said in _OF_OTHERS)
        queue = state.cluster_queue_by_name.get(queue_of(state, now))
        for why, holds in (
            (MISSED, not is_alone),
            (BY_OTHERS, by_others),
            (UNREAD, queue is None),
            (RESUMED, queue is not None and any(len(group.flavors) > 1 for group in queue.groups)),
            (AGAIN, self._told[write.uid] > MOST_REFUSALS),
        ):
            if holds:
                self.kept.left_out[why] += 1
                return
        tree = tree_names(state).get(queue_of(state, now), "")
        draft = _DecisionDraft(write.at_ms, write.uid, tree, state, dict(self._workloads), refused=now)
        self._drafts.append(draft)

    def _close(self, draft: _DecisionDraft) -> None:
        why = _why_not(draft, self._config)
        changed_ms = self._changed_ms.get(draft.tree)
        if not why and changed_ms is not None and abs(changed_ms - draft.at_ms) <= 2 * MOMENT_MS:
            why = CHANGED
        if why:
            self.kept.left_out[why] += 1
            return
        id_ = f"rec-{len(self.kept.cases) + 1:03}"
        found = _case(draft, draft.before, self._config, self._names, id_)
        try:
            is_vague = found and not checked([found]).agrees and self._agrees_in_another_order(draft, id_)
        except InputError:  # nobody checks the templates of jobs of other kinds than Kubernetes' own
            self.kept.left_out[NO_PLACE] += 1
            return
        if found is None:
            self.kept.left_out[UNEVEN] += 1
        elif is_vague:
            self.kept.left_out[ORDER] += 1
        else:
            self.kept.cases.append(found)

    def _agrees_in_another_order(self, draft: _DecisionDraft, id_: str) -> bool:
        """Whether the rules agree when some of what was written within a moment of the decision is put on its
        other side."""
        near = [
            each
            for each in self._writes
            if abs(each.at_ms - draft.at_ms) <= MOMENT_MS
            and each.uid != draft.subject
            and each.uid not in draft.victims
            and _is_of_quota(each)
        ]
        moved = [_before(each, draft) for each in near]
        for chosen in islice(_choices(len(moved)), MOST_ORDERS):
            before = dict(draft.before)
            for is_moved, (uid, workload) in zip(chosen, moved, strict=True):
                if is_moved and workload is None:
                    before.pop(uid, None)
                elif is_moved and workload is not None:
                    before[uid] = workload
            found = _case(draft, before, self._config, self._names, id_)
            if found is not None and checked([found]).agrees:
                return True
        return False


def checked(cases: list[CaseDocument]) -> ReplayReport:
    """Of cases as they were written."""
    return verify(read_cases(json.dumps(document(cases)).encode(), "recorded").cases)


def _choices(count: int) -> Iterator[Sequence[bool]]:
    """Each one moved, and all of them; then any combination."""
    singles = [[at == one for at in range(count)] for one in range(count)]
    yield from singles
    yield [True] * count
    yield from (each for each in product((False, True), repeat=min(count, 6)) if len(each) == count)


def _before(write: WorkloadWrite, draft: _DecisionDraft) -> tuple[str, Workload | None]:
    """The workload as it is on the other side of the decision."""
    is_earlier = draft.before.get(write.uid) is write.now
    return write.uid, write.then if is_earlier else write.now


def _is_of_quota(write: WorkloadWrite) -> bool:
    """Whether the write changed what a workload holds, or evicted one. What is first seen with quota was
    written at some time before."""
    if write.then is None:
        return False
    holds = [each is not None and each.has_quota for each in (write.then, write.now)]
    if write.now is None or holds[0] != holds[1]:
        return any(holds)
    told = [is_true(each.conditions, "Evicted") for each in (write.then, write.now)]
    return holds[0] and (told[0] != told[1] or write.then.reclaimable != write.now.reclaimable)


def _why_not(draft: _DecisionDraft, config: KueueConfig) -> str:
    """Why a decision cannot become a case; empty where it can."""
    state, then = draft.state, draft.before[draft.subject]
    subject = draft.admitted or draft.refused or then
    queue = state.cluster_queue_by_name.get(queue_of(state, subject))
    if queue is None or tree_names(state).get(queue.name) != draft.tree:
        return UNREAD
    if config.unread:
        return CONFIG + config.unread[0]
    if draft.victims and (config.excluded_prefixes or config.ignores_undeclared):
        return f"{CONFIG}resources that Kueue is told not to count"
    names = tree_names(state)
    if any(each.admission_mode and names[each.name] == draft.tree for each in state.cluster_queues.values()):
        return FAIR_QUEUES
    topologies = {each.meta.name for each in state.flavors.values() if each.topology}
    flavors = {flavor for group in queue.groups for flavor in group.flavors}
    if topologies & flavors:
        return TOPOLOGY
    return _why_not_it(subject)


def _why_not_it(subject: Workload) -> str:
    if subject.on_cluster:
        return ELSEWHERE
    if any(_asks_for_topology(pods.topology) for pods in subject.pod_sets):
        return TOPOLOGY
    terms = [pods.template.affinity for pods in subject.pod_sets]
    if any(len(each) > 1 or any(line.of_field for term in each for line in term) for each in terms):
        return AFFINITY
    return "" if subject.pod_sets else UNREAD


def _asks_for_topology(request: Mapping[str, str]) -> bool:
    """Whether it asks for more than the numbering of its pods."""
    return any(request.get(key) for key in ("required", "preferred", "unconstrained", "slice"))


def _case(
    draft: _DecisionDraft, before: Mapping[str, Workload], config: KueueConfig, names: CaseNames, id_: str
) -> CaseDocument | None:
    """None where what others hold cannot be written."""
    state, then = draft.state, before.get(draft.subject, draft.before[draft.subject])
    queue = state.cluster_queue_by_name[queue_of(state, draft.admitted or then)]
    trees = tree_names(state)
    held = [
        each
        for uid, each in before.items()
        if each.has_quota and uid != draft.subject and trees.get(each.cluster_queue) == draft.tree
    ]
    counted = [_as_counted(each) for each in held]
    asks = _as_asked(draft.refused or then, draft.admitted)
    ahead = _ahead(draft, before, queue) if queue.strategy == _STRICT else []
    if asks is None or any(each is None for each in counted):
        return None
    taking_part = [asks, *ahead, *(each for each in counted if each is not None and each.pod_sets)]
    decided_ms = _decided_ms(draft)
    limited = replace(of_tree(state, draft.tree, taking_part), at_ms=decided_ms)
    writer = CaseWriter(limited, names)
    found: CaseDocument = {"id": id_, "source": f"gpucost advisor record --watch, rules of Kueue {VERSION}"}
    found |= writer.case(taking_part, config)
    found["expected"] = {
        writer.key(each): _expected(each, draft, writer, names) for each in taking_part if each not in ahead
    }
    return found


def _decided_ms(draft: _DecisionDraft) -> int:
    """As the objects have it."""
    if draft.admitted is not None and draft.admitted.reserved_ms is not None:
        return draft.admitted.reserved_ms
    told = [each.conditions["Preempted"].since_ms for each in draft.victims.values()]
    return min((each for each in told if each is not None), default=draft.at_ms)


def _is_refused(then: Workload, now: Workload) -> bool:
    """Whether the scheduler told it anew why it gets no quota; what it waits for once it preempts others is
    told by their evictions."""
    said, before = now.conditions.get("QuotaReserved"), then.conditions.get("QuotaReserved")
    if then.has_quota or now.has_quota or now.state is not WorkloadState.PENDING or said is None:
        return False
    if before is not None and (before.status, before.message) == (said.status, said.message):
        return False
    is_of_cycle = any(each in said.message for each in _OF_OTHERS)
    return (said.message.startswith(_NO_FLAVOR) or is_of_cycle) and PREEMPTING not in said.message


def _expected(each: Workload, draft: _DecisionDraft, writer: CaseWriter, names: CaseNames) -> CaseDocument:
    uid = each.meta.uid
    if uid == draft.subject:
        if draft.refused is not None:
            return {"outcome": "pending", **said_of(draft.refused.conditions["QuotaReserved"], names)}
        if draft.admitted is not None:
            return admitted_as(draft.admitted, writer)
        victims = [writer.key(draft.before[victim]) for victim in sorted(draft.victims)]
        # One that was evicted before may be among its targets, and nothing is written then.
        trees = tree_names(draft.state)
        is_whole = not any(
            is_true(one.conditions, "Evicted")
            for one in draft.before.values()
            if one.has_quota and trees.get(one.cluster_queue) == draft.tree
        )
        return {"outcome": "preempting", "preempts": victims if is_whole else None}
    if uid in draft.victims:
        reason = draft.victims[uid].conditions["Preempted"].reason
        by = writer.key(draft.before[draft.subject])
        return {"outcome": "preempted", "preemptedReason": reason or None, "preemptedBy": by}
    return {"outcome": "being-evicted" if is_true(each.conditions, "Evicted") else "keeps-running"}


def _as_counted(held: Workload) -> Workload | None:
    """A workload that holds quota, asking for exactly that; None where it is no whole amount per pod."""
    pod_sets, assignments = [], []
    sets = {each.name: each for each in held.pod_sets}
    for given in held.assignments:
        per_pod = _per_pod(given.usage, given.count)
        pods = sets.get(given.name)
        if per_pod is None or pods is None:
            return None
        # As kueue, pkg/workload/workload.go, totalRequestsFromAdmission: pods that are done give theirs back.
        left = min(given.count, max(0, pods.count - held.reclaimable.get(given.name, 0)))
        flavors = {key: flavor for key, flavor in given.flavors.items() if key in given.usage}
        usage = {key: amount * left for key, amount in per_pod.items()}
        if "pods" in given.usage:
            usage["pods"] = left
        # Where its pods may go matters no more, and may be nothing that a case can say.
        template = replace(pods.template, requests=per_pod, affinity=(), tolerations=(), node_selector={})
        pod_sets.append(replace(pods, count=left, min_count=None, template=template, topology={}))
        assignments.append(replace(given, count=left, usage=usage, flavors=flavors))
    return replace(held, pod_sets=tuple(pod_sets), assignments=tuple(assignments), reclaimable={})


def _as_asked(then: Workload, now: Workload | None) -> Workload | None:
    """A workload that waits, asking for what Kueue counted once it had quota: defaults and overhead are
    included."""
    given = {each.name: each for each in now.assignments} if now is not None else {}
    pod_sets = []
    for pods in then.pod_sets:
        requests = pods.template.requests
        if pods.name in given:
            found = _per_pod(given[pods.name].usage, given[pods.name].count)
            if found is None:
                return None
            requests = found
        elif pods.name in then.asked:
            requests = _per_pod(then.asked[pods.name], pods.count) or requests
        template = replace(pods.template, requests=requests)
        pod_sets.append(replace(pods, template=template, topology={}))
    conditions = {key: each for key, each in then.conditions.items() if key not in _GIVEN}
    return replace(then, pod_sets=tuple(pod_sets), conditions=conditions, cluster_queue="", assignments=())


def _per_pod(usage: Mapping[str, int], count: int) -> dict[str, int] | None:
    amounts = {key: amount for key, amount in usage.items() if key != "pods"}
    if not count:
        return dict.fromkeys(amounts, 0)
    if any(amount % count for amount in amounts.values()):
        return None
    return {key: amount // count for key, amount in amounts.items()}


def _ahead(draft: _DecisionDraft, before: Mapping[str, Workload], queue: ClusterQueue) -> list[Workload]:
    """Workloads that should have been tried first in a StrictFIFO queue, and were there for longer than a
    moment."""
    state, place = draft.state, _place(before.get(draft.subject, draft.before[draft.subject]))
    return [
        each
        for uid, each in sorted(before.items())
        if uid != draft.subject
        and each.state is WorkloadState.PENDING
        and is_tried(each, _decided_ms(draft))
        and queue_of(state, each) == queue.name
        and state.local_queue_by_name[each.meta.namespace, each.queue].stop_policy == "None"
        and each.requeue_at_ms is None
        and each.waiting_since_ms + 2 * MOMENT_MS < _decided_ms(draft)
        and _place(each) < place
        and not _why_not_it(each)
    ]


def _place(each: Workload) -> tuple[int, int, str]:
    return -each.priority, queue_timestamp_ms(each), each.meta.uid


def _spec(found: Any) -> Any:
    """An object without its status."""
    empty: dict[str, Any] = {each: {} for each in ("conditions", "reserved", "used", "fair_usage")}
    status = empty | dict.fromkeys(("pending", "reserving", "admitted", "weighted_share"))
    return replace(found, **{name: value for name, value in status.items() if hasattr(found, name)})
