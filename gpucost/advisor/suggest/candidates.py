"""One question and how much may be spent on it: every candidate is evaluated, and kept only if it helps.

Candidates that change the cluster are evaluated in one with the change in it, which is as cheap to evaluate
as the one it was made from: only what the change touches is worked out again, of quota the tree of one queue,
of nodes the room on those that are repaired.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, TypeVar

from gpucost.advisor.model.answers import (
    Advice,
    SchedulingDecision,
    SuggestedChange,
    SuggestedChangeKind,
    WaitEstimate,
    pods_named,
)
from gpucost.advisor.placement.repaired_nodes import NodeRepair, repaired
from gpucost.advisor.request.context import AdvisorContext
from gpucost.advisor.suggest.patches import ManifestEdit, merge_patch, operations
from gpucost.advisor.volcano.session import VolcanoSession
from gpucost.cluster.objects.jobs import JobManifest
from gpucost.cluster.objects.kueue import ClusterQueue, Cohort, LocalQueue
from gpucost.cluster.objects.state import ClusterState
from gpucost.cluster.objects.volcano import VolcanoQueue
from gpucost.domain.errors import InputError
from gpucost.domain.jobs import JobKind
from gpucost.domain.time import MINUTE_MS

T = TypeVar("T", ClusterQueue, Cohort, LocalQueue)

_OF_STATE = ("node_by_name", "pods_by_node", "flavor_by_name", "local_queue_by_name", "namespace_by_name")
_OF_OVERVIEW = ("units", "ownership", "published")
_OF_WORLD = ("members", "groups", "gangs")
AdvisorQuestion = Callable[[JobManifest, AdvisorContext, bool], Advice]
"""Asks the advisor again, without suggestions; the last argument is whether the wait is wanted, which is slow
to work out."""

MOST_ASKED = 24
"""Changed manifests that one answer evaluates, all rules together."""
MOST_OF_CLUSTER = 16
"""Changed clusters that one answer evaluates."""
MOST_OF_RULE = 4
"""The same for one rule, unless the rule sets its own."""
MOST_WAITS = 3
"""Waits of changed jobs that one answer works out: first roughly, accurately only where they seem to be
shorter."""
_ROUGH = 3
"""Samples of a rough wait; these take as long as all the rest together."""
_FEWER = 4
"""The wait of a suggestion has fewer samples than that of the job, by this factor: there are many
suggestions."""
RANK: Mapping[SchedulingDecision, int] = {
    SchedulingDecision.NOW: 0,
    SchedulingDecision.LATER: 1,
    SchedulingDecision.WAITS: 2,
    SchedulingDecision.NEVER: 3,
}
"""The lower the better; an unknown decision is no improvement on anything."""
_CHEAPER = Fraction(9, 10)
_SHORTER = Fraction(3, 4)
_LEAST_MS = 10 * MINUTE_MS


def with_quota(
    known: AdvisorContext, queue: str, queues: Iterable[ClusterQueue] = (), cohorts: Iterable[Cohort] = ()
) -> AdvisorContext:
    """With these in place of those of their names, which share quota with ``queue``; of the cluster's
    workloads only those of that tree are there."""
    state, view = known.state, known.kueue
    names = view.tree(queue)
    uids = {uid for name in names for uid in view.snapshot.queues[name].members}
    for line in view.lines_of(queue).values():
        uids.update(ask.uid for ask in (*line.heap, *line.parked))
    uids.update(view.later_of(queue))
    own = {each.meta.uid: each for name in names if (each := state.cluster_queue_by_name[name])}
    changed = replace(
        state,
        cluster_queues=_put(own, queues),
        cohorts=_put(state.cohorts, cohorts),
        workloads={uid: state.workloads[uid] for uid in sorted(uids)},
    )
    _carry(state, changed, _OF_STATE)
    return _with_state(known, changed, ("rooms", "world", "pods_by_workload"))


def with_queues(
    known: AdvisorContext,
    cluster_queues: Iterable[ClusterQueue] = (),
    local_queues: Iterable[LocalQueue] = (),
) -> AdvisorContext:
    """With these queues in place of those of their names, and all workloads: also those that were in no
    queue."""
    state = known.state
    changed = replace(
        state,
        cluster_queues=_put(state.cluster_queues, cluster_queues),
        local_queues=_put(state.local_queues, local_queues),
    )
    _carry(state, changed, [each for each in _OF_STATE if each != "local_queue_by_name"])
    return _with_state(known, changed, ("rooms", "world", "pods_by_workload"))


def with_volcano_queue(known: AdvisorContext, queue: VolcanoQueue) -> AdvisorContext:
    """With this in place of the one of its name."""
    state = known.state
    queues = {uid: each for uid, each in state.volcano_queues.items() if each.name != queue.name}
    changed = replace(state, volcano_queues={**queues, queue.meta.uid: queue})
    _carry(state, changed, _OF_STATE)
    found = _with_state(known, changed, ("rooms", "kueue", "pods_by_workload"))
    world = VolcanoSession(found.overview, changed.schedulers.volcano, known.rooms)
    _carry(known.world, world, _OF_WORLD)
    vars(found)["world"] = world
    return found


def with_repairs(known: AdvisorContext, repairs: Mapping[str, NodeRepair]) -> AdvisorContext:
    """With these nodes as they would be once they are repaired."""
    rooms = repaired(known.rooms, repairs)
    found = replace(known)
    _carry(known, found, ("kueue", "pods_by_workload"))
    world = VolcanoSession(known.overview, known.state.schedulers.volcano, rooms)
    _carry(known.world, world, _OF_WORLD)
    vars(found).update(rooms=rooms, world=world)
    return found


def with_samples(known: AdvisorContext, samples: int) -> AdvisorContext:
    """The same cluster, its waits from fewer samples."""
    found = replace(known, settings=replace(known.settings, samples=samples))
    _carry(known, found, ("rooms", "kueue", "world", "pods_by_workload"))
    return found


def _with_state(known: AdvisorContext, state: ClusterState, kept: Iterable[str]) -> AdvisorContext:
    overview = replace(known.overview, state=state)
    _carry(known.overview, overview, _OF_OVERVIEW)
    found = replace(known, overview=overview)
    vars(found)["rooms"] = known.rooms
    _carry(known, found, kept)
    return found


def _put(objects: Mapping[str, T], changed: Iterable[T]) -> dict[str, T]:
    return {**objects, **{each.meta.uid: each for each in changed}}


def _carry(one: object, other: object, names: Iterable[str]) -> None:
    """Takes over what was worked out for one cluster already and is the same for the other."""
    known = vars(one)
    vars(other).update({name: known[name] for name in names if name in known})


@dataclass(frozen=True, slots=True)
class SuggestionCandidate:
    """A candidate, and the advice for it. With ``completes`` it is suggested even where the decision is no
    better: the job then starts whole or not at all. With ``same_work`` the job does the same work, so that a
    lower price is a gain."""

    says: str
    change: SuggestedChange
    answer: Advice
    manifest: JobManifest
    known: AdvisorContext
    caveat: str = ""
    same_work: bool = False
    completes: bool = False


class SuggestionCase:
    """A question that suggestions are sought for. ``advice`` is the answer for ``manifest``."""

    def __init__(
        self, manifest: JobManifest, advice: Advice, known: AdvisorContext, ask: AdvisorQuestion
    ) -> None:
        self.manifest, self.advice, self.known = manifest, advice, known
        self._ask = ask
        self._left = {SuggestedChangeKind.MANIFEST: MOST_ASKED, SuggestedChangeKind.CLUSTER: MOST_OF_CLUSTER}
        self._left_of_rule, self._waits, self._kind = 0, MOST_WAITS, SuggestedChangeKind.MANIFEST

    def begin(self, kind: SuggestedChangeKind, most: int = MOST_OF_RULE) -> None:
        """Begins another rule, whose candidates are changes of ``kind``, ``most`` of them at most."""
        self._kind, self._left_of_rule = kind, most

    @property
    def may_ask(self) -> bool:
        return self._left[self._kind] > 0 and self._left_of_rule > 0 and not self.known.is_late()

    @property
    def is_asked_of_kueue(self) -> bool:
        """Whether the job names a queue, existing or not, and the answer is Kueue's."""
        return bool(self.manifest.queue) and "kueue" in self.advice.scheduler

    @property
    def is_at_kueue(self) -> bool:
        """Whether its queue leads to a ClusterQueue that exists."""
        return self.advice.queue in self.known.kueue.snapshot.queues and bool(self.manifest.queue)

    @property
    def is_at_volcano(self) -> bool:
        return "volcano" in self.advice.scheduler

    def of_manifest(
        self,
        says: str,
        edit: ManifestEdit,
        caveat: str = "",
        same_work: bool = False,
        completes: bool = False,
    ) -> SuggestionCandidate | None:
        """The manifest after ``edit``, with the advice for it; None where the edit makes no sense, or no more
        may be evaluated."""
        if not self.may_ask:
            return None
        before = self.manifest.document
        after: dict[str, Any] = deepcopy(dict(before))
        try:
            edit(after)
            changed = self.known.read(self.manifest, after)
        except (InputError, LookupError):
            return None
        steps = tuple(operations(before, after))
        if not steps:
            return None
        job = self.manifest.job
        kind = "vcjob" if job.job_kind is JobKind.VOLCANO_JOB else job.kind.lower()
        target = f"{kind}/{self.manifest.name}"
        change = SuggestedChange(SuggestedChangeKind.MANIFEST, target, merge_patch(before, after), steps, "")
        answer = self._asked(changed, self.known)
        caveat = "; ".join(filter(None, (caveat, self._split(changed, answer), self._preempts(answer))))
        return SuggestionCandidate(says, change, answer, changed, self.known, caveat, same_work, completes)

    def of_cluster(
        self, says: str, change: SuggestedChange, known: AdvisorContext, caveat: str = ""
    ) -> SuggestionCandidate | None:
        """The same manifest in a cluster that was changed, with the advice for it; None where no more may be
        evaluated."""
        if not self.may_ask:
            return None
        answer = self._asked(self.manifest, known)
        caveat = "; ".join(filter(None, (caveat, self._preempts(answer))))
        return SuggestionCandidate(says, change, answer, self.manifest, known, caveat)

    def helps(self, tried: SuggestionCandidate) -> bool:
        """Whether the change is a real improvement."""
        first, second = self.advice, tried.answer
        if second.decision not in RANK or first.decision not in RANK:
            return False
        if tried.completes:
            starts_whole_as_it_is = first.decision is second.decision is SchedulingDecision.NOW
            return second.decision is not SchedulingDecision.NEVER and not starts_whole_as_it_is
        if RANK[second.decision] != RANK[first.decision]:
            return RANK[second.decision] < RANK[first.decision]
        if (
            not tried.same_work
            or second.decision is SchedulingDecision.NEVER
            or (second.later_ms or 0) > (first.later_ms or 0)
        ):
            return False
        return is_cheaper(second, first)

    def waits_less(self, tried: SuggestionCandidate) -> SuggestionCandidate | None:
        """The candidate with its wait, where that is clearly shorter than before; else None, also where too
        many waits were worked out already."""
        if self._waits <= 0 or tried.answer.decision is not SchedulingDecision.WAITS or self.known.is_late():
            return None
        self._waits -= 1
        is_rough = self.known.settings.samples > _ROUGH
        if is_rough and not self._is_shorter(self._waiting(tried, _ROUGH)):
            return None
        found = self._waiting(tried, self._samples)
        return found if self._is_shorter(found) else None

    def finished(self, tried: SuggestionCandidate) -> SuggestionCandidate | None:
        """The candidate with its wait, where waits are simulated; None where that turns out to be longer than
        without the change."""
        first, second = self.advice, tried.answer
        if second.decision is SchedulingDecision.WAITS and second.wait is None and first.wait is not None:
            tried = self._waiting(tried, self._samples)
        both_wait = first.decision is second.decision is SchedulingDecision.WAITS
        return None if both_wait and is_longer(tried.answer.wait, first.wait) else tried

    def _is_shorter(self, tried: SuggestionCandidate) -> bool:
        return is_shorter(tried.answer.wait, self.advice.wait)

    def _split(self, manifest: JobManifest, answer: Advice) -> str:
        """What speaks against a placement on several models of GPUs, where it was not so before."""
        products = self._products(manifest, answer)
        if len(products) < 2 or products == self._products(self.manifest, self.advice):
            return ""
        named = " and ".join(sorted(products))
        return f"its pods are then on {named}, which differ in speed and memory"

    def _preempts(self, answer: Advice) -> str:
        """That it preempts pods of others, where it did not before."""
        before = {each.subject.uid for each in self.advice.victims}
        pods = [e for e in answer.victims if e.is_of_scheduler and e.subject.uid not in before]
        return f"kube-scheduler then preempts {pods_named(pods)}" if pods else ""

    def _products(self, manifest: JobManifest, answer: Advice) -> set[str]:
        """Of the nodes on which pods are that ask for GPUs."""
        is_gpu, nodes = self.known.overview.catalog.is_gpu, self.known.state.node_by_name
        asking = {
            each.name
            for each in (*manifest.quota_sets, *manifest.job.pod_sets)
            if any(map(is_gpu, each.template.requests))
        }
        used = {name for each in answer.pod_sets if each.name in asking for name in each.nodes}
        return {nodes[name].product for name in used if name in nodes and nodes[name].product}

    @property
    def _samples(self) -> int:
        samples = self.known.settings.samples
        return min(samples, max(_ROUGH, samples // _FEWER))

    def _waiting(self, tried: SuggestionCandidate, samples: int) -> SuggestionCandidate:
        """With its wait from so many samples; the change is asked about in the same cluster as before."""
        if samples == tried.known.settings.samples:
            return with_wait(tried, self._ask)
        found = with_wait(replace(tried, known=with_samples(tried.known, samples)), self._ask)
        return replace(found, known=tried.known)

    def _asked(self, manifest: JobManifest, known: AdvisorContext) -> Advice:
        self._left[self._kind] -= 1
        self._left_of_rule -= 1
        return self._ask(manifest, known, False)


def is_as_good(one: SuggestionCandidate, other: SuggestionCandidate) -> bool:
    """Whether the decision of ``one`` is at least as good."""
    worst = len(RANK)
    return RANK.get(one.answer.decision, worst) <= RANK.get(other.answer.decision, worst)


def with_wait(tried: SuggestionCandidate, ask: AdvisorQuestion) -> SuggestionCandidate:
    """The same with its wait."""
    return replace(tried, answer=ask(tried.manifest, tried.known, True))


def is_shorter(one: WaitEstimate | None, other: WaitEstimate | None) -> bool:
    """Whether it is clearly shorter: by a quarter and ten minutes at least. What is past the horizon counts
    as long as that.

    By the range that is given, and by the simulated one: waits that ended say little of a queue that the
    change makes a different one.
    """
    if one is None or other is None or not _is_less(one.p50_ms, other.p50_ms, other.horizon_ms):
        return False
    if one.simulated is None or other.simulated is None:
        return True
    return _is_less(one.simulated.p50_ms, other.simulated.p50_ms, other.horizon_ms)


def _is_less(one_ms: int | None, other_ms: int | None, horizon_ms: int) -> bool:
    before = horizon_ms if other_ms is None else other_ms
    return one_ms is not None and one_ms <= before * _SHORTER and before - one_ms >= _LEAST_MS


def is_longer(one: WaitEstimate | None, other: WaitEstimate | None) -> bool:
    """Whether it is as clearly longer: two simulations of similar waits differ by chance."""
    return is_shorter(other, one)


def is_cheaper(one: Advice, other: Advice) -> bool:
    """Whether the price is clearly lower: by a tenth."""
    if one.price is None or other.price is None or one.price.currency != other.price.currency:
        return False
    return is_clearly_less(one.price.per_hour, other.price.per_hour)


def is_clearly_less(one: int, other: int) -> bool:
    """Of prices: by a tenth."""
    return one <= other * _CHEAPER


def most_that_helps(
    case: SuggestionCase, low: int, high: int, make: Callable[[int], SuggestionCandidate | None]
) -> Iterator[SuggestionCandidate | None]:
    """Candidates for the largest number between ``low`` and ``high`` that helps: by halving, as long as more
    may be evaluated; every one that was evaluated is returned, in order."""
    first = make(low)
    yield first
    if first is None or not case.helps(first):
        return
    while low < high and case.may_ask:
        middle = (low + high + 1) // 2
        found = make(middle)
        yield found
        if found is not None and is_as_good(found, first):
            low = middle
        else:
            high = middle - 1
