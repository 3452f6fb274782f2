"""All kinds of suggestions, tried in order, and the best of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from gpucost.advisor.model.answers import (
    Advice,
    JobSuggestion,
    SchedulingDecision,
    SuggestedChangeKind,
)
from gpucost.advisor.request.context import AdvisorContext
from gpucost.advisor.suggest import (
    job_shapes,
    node_choice,
    queue_choice,
    quota_limits,
    repairs,
)
from gpucost.advisor.suggest.candidates import (
    MOST_OF_RULE,
    RANK,
    AdvisorQuestion,
    SuggestionCandidate,
    SuggestionCase,
    is_cheaper,
)
from gpucost.cluster.objects.jobs import JobManifest


@dataclass(frozen=True, slots=True)
class SuggestionRule:
    """One kind of suggestion. It may evaluate ``most`` candidates; with ``takes_last``, of candidates that do
    equally well the last one is used."""

    name: str
    find: Callable[[SuggestionCase], Iterator[SuggestionCandidate | None]]
    most: int = MOST_OF_RULE
    takes_last: bool = False
    changes: SuggestedChangeKind = SuggestedChangeKind.MANIFEST


_CLUSTER = SuggestedChangeKind.CLUSTER
RULES: Sequence[SuggestionRule] = (
    SuggestionRule("suspend", repairs.suspends, 1),
    SuggestionRule("queue-name", queue_choice.misspelt, 3),
    SuggestionRule("other-queue", queue_choice.other),
    SuggestionRule("toleration", node_choice.tolerations, 3),
    SuggestionRule("other-flavor", node_choice.flavors),
    SuggestionRule("gang", job_shapes.gangs, 2),
    SuggestionRule("spot", node_choice.spot, 2),
    SuggestionRule("priority-class", queue_choice.priorities, 3),
    SuggestionRule("mig-profile", job_shapes.mig_profiles, 2),
    SuggestionRule("preferred-topology", job_shapes.topologies, 2),
    SuggestionRule("smaller-pods", job_shapes.smaller_pods),
    SuggestionRule("min-count", job_shapes.min_counts, job_shapes.MOST_OF_SIZE + 1, True),
    SuggestionRule("fewer-gpus-per-pod", job_shapes.fewer_gpus, 3),
    SuggestionRule("fewer-pods", job_shapes.fewer_pods, job_shapes.MOST_OF_SIZE, True),
    SuggestionRule("node-repair", repairs.repairs, 1, changes=_CLUSTER),
    SuggestionRule("stop-policy", repairs.stop_policies, 1, changes=_CLUSTER),
    SuggestionRule("preference", quota_limits.preference, 1, changes=_CLUSTER),
    SuggestionRule("borrowing-limit", quota_limits.borrowing, quota_limits.MOST_OF_LIMIT, True, _CLUSTER),
    SuggestionRule("lending-limit", quota_limits.lending, quota_limits.MOST_OF_LIMIT, True, _CLUSTER),
    SuggestionRule("nominal-quota", quota_limits.nominal, quota_limits.MOST_OF_LIMIT, True, _CLUSTER),
    SuggestionRule("capability", repairs.capabilities, quota_limits.MOST_OF_LIMIT, True, _CLUSTER),
)
"""In the order of how much each changes the job, then those for administrators."""


def suggestions(
    manifest: JobManifest, advice: Advice, known: AdvisorContext, ask: AdvisorQuestion
) -> tuple[JobSuggestion, ...]:
    """What to change so that it runs, earlier or for less; each was evaluated with the change. At most as
    many as the settings allow; at most ``MOST_ASKED`` changed manifests and ``MOST_OF_CLUSTER`` changed
    clusters are evaluated."""
    most = known.settings.most_suggestions
    if most < 1 or advice.decision is SchedulingDecision.UNKNOWN:
        return ()
    case = SuggestionCase(manifest, advice, known, ask)
    found: list[tuple[int, SuggestionRule, SuggestionCandidate]] = []
    waiting: list[tuple[int, SuggestionRule, SuggestionCandidate]] = []
    for at, rule in enumerate(RULES):
        if _soon(found) >= most:
            break  # what comes now would stand below all of these
        best, same = _best(case, rule)
        if best is not None:
            found.append((at, rule, best))
        elif same is not None:
            waiting.append((at, rule, same))
    may_wait_less = advice.wait is not None and len(found) < most
    for at, rule, tried in waiting if may_wait_less else ():
        shorter = case.waits_less(tried)
        if shorter is not None:
            found.append((at, rule, shorter))
    found.sort(key=lambda each: _rank(each[0], each[2]))
    changes = [tried.change.operations for _, _, tried in found]
    distinct = [each for at, each in enumerate(found) if not changes[at] or changes[at] not in changes[:at]]
    finished = ((rule, case.finished(tried)) for _, rule, tried in distinct)
    better = (_suggestion(rule, tried) for rule, tried in finished if tried is not None)
    return tuple(islice(better, most))


def _soon(found: Sequence[tuple[int, SuggestionRule, SuggestionCandidate]]) -> int:
    """How many different changes of the manifest let it run now."""
    runs = (each for _, _, each in found if each.answer.decision is SchedulingDecision.NOW)
    return len(
        {repr(each.change.operations) for each in runs if each.change.kind is SuggestedChangeKind.MANIFEST}
    )


def _best(
    case: SuggestionCase, rule: SuggestionRule
) -> tuple[SuggestionCandidate | None, SuggestionCandidate | None]:
    """The candidate that helps most; where none does, the first that might shorten the wait."""
    case.begin(rule.changes, rule.most)
    best: SuggestionCandidate | None = None
    same: SuggestionCandidate | None = None
    was_now = case.advice.decision is SchedulingDecision.NOW
    for tried in rule.find(case):
        if tried is None:
            continue
        if case.helps(tried):
            if best is None or _beats(tried, best, rule.takes_last):
                best = tried
            if best.answer.decision is SchedulingDecision.NOW and not was_now and not rule.takes_last:
                break
        elif same is None and tried.answer.decision is case.advice.decision is SchedulingDecision.WAITS:
            same = tried
    return best, same


def _beats(one: SuggestionCandidate, other: SuggestionCandidate, takes_last: bool) -> bool:
    mine, theirs = RANK[one.answer.decision], RANK[other.answer.decision]
    if mine != theirs:
        return mine < theirs
    return takes_last or is_cheaper(one.answer, other.answer)


def _rank(at: int, tried: SuggestionCandidate) -> tuple[bool, int, int, int]:
    """The sort key: for whom it is, how soon the job runs, how much it changes the job, and the price."""
    price = tried.answer.price.per_hour if tried.answer.price is not None else 0
    is_for_admins = tried.change.kind is SuggestedChangeKind.CLUSTER
    return is_for_admins, RANK[tried.answer.decision], at, price


def _suggestion(rule: SuggestionRule, tried: SuggestionCandidate) -> JobSuggestion:
    return JobSuggestion.of(rule.name, tried.says, tried.change, tried.answer, tried.caveat)
