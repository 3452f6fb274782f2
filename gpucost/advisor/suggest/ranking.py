"""All kinds of suggestions, tried in order, and the best of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from gpucost.advisor.answers import Advice, ChangeKind, Decision, Suggestion
from gpucost.advisor.knowledge import Knowledge
from gpucost.advisor.suggest import (
    flavors,
    gangs,
    limits,
    priorities,
    queue_names,
    repairs,
    shapes,
    sizes,
    switches,
)
from gpucost.advisor.suggest.case import MOST_OF_RULE, RANK, Ask, Case, Tried, is_cheaper
from gpucost.cluster.manifest import JobManifest


@dataclass(frozen=True, slots=True)
class Rule:
    """One kind of suggestion. It may ask ``most`` times; with ``takes_last``, of candidates that do equally
    well the last one is meant."""

    name: str
    find: Callable[[Case], Iterator[Tried | None]]
    most: int = MOST_OF_RULE
    takes_last: bool = False
    changes: ChangeKind = ChangeKind.MANIFEST


_CLUSTER = ChangeKind.CLUSTER
RULES: Sequence[Rule] = (
    Rule("suspend", switches.suspends, 1),
    Rule("queue-name", queue_names.misspelt, 3),
    Rule("other-queue", queue_names.other),
    Rule("toleration", flavors.tolerations, 3),
    Rule("other-flavor", flavors.flavors),
    Rule("gang", gangs.gangs, 2),
    Rule("spot", flavors.spot, 2),
    Rule("priority-class", priorities.priorities, 3),
    Rule("mig-profile", sizes.mig_profiles, 2),
    Rule("preferred-topology", shapes.topologies, 2),
    Rule("smaller-pods", shapes.smaller_pods),
    Rule("min-count", sizes.min_counts, sizes.MOST_OF_SIZE + 1, True),
    Rule("fewer-gpus-per-pod", sizes.fewer_gpus, 3),
    Rule("fewer-pods", sizes.fewer_pods, sizes.MOST_OF_SIZE, True),
    Rule("node-repair", repairs.repairs, 1, changes=_CLUSTER),
    Rule("stop-policy", switches.stop_policies, 1, changes=_CLUSTER),
    Rule("preference", limits.preference, 1, changes=_CLUSTER),
    Rule("borrowing-limit", limits.borrowing, limits.MOST_OF_LIMIT, True, _CLUSTER),
    Rule("lending-limit", limits.lending, limits.MOST_OF_LIMIT, True, _CLUSTER),
    Rule("nominal-quota", limits.nominal, limits.MOST_OF_LIMIT, True, _CLUSTER),
    Rule("capability", repairs.capabilities, limits.MOST_OF_LIMIT, True, _CLUSTER),
)
"""In the order of how much each intrudes on the job, then those for administrators."""


def suggestions(manifest: JobManifest, advice: Advice, known: Knowledge, ask: Ask) -> tuple[Suggestion, ...]:
    """What to change so that it runs, earlier or for less; each asked about again after the change. At most
    as many as the settings say; at most ``MOST_ASKED`` changed manifests and ``MOST_OF_CLUSTER`` changed
    clusters are looked at."""
    most = known.settings.most_suggestions
    if most < 1 or advice.decision is Decision.UNKNOWN:
        return ()
    case = Case(manifest, advice, known, ask)
    found: list[tuple[int, Rule, Tried]] = []
    waiting: list[tuple[int, Rule, Tried]] = []
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


def _soon(found: Sequence[tuple[int, Rule, Tried]]) -> int:
    """How many different changes of the manifest let it run now."""
    runs = (each for _, _, each in found if each.answer.decision is Decision.NOW)
    return len({repr(each.change.operations) for each in runs if each.change.kind is ChangeKind.MANIFEST})


def _best(case: Case, rule: Rule) -> tuple[Tried | None, Tried | None]:
    """What helps most; and where nothing does, the first that might shorten the wait."""
    case.begin(rule.changes, rule.most)
    best: Tried | None = None
    same: Tried | None = None
    was_now = case.advice.decision is Decision.NOW
    for tried in rule.find(case):
        if tried is None:
            continue
        if case.helps(tried):
            if best is None or _beats(tried, best, rule.takes_last):
                best = tried
            if best.answer.decision is Decision.NOW and not was_now and not rule.takes_last:
                break
        elif same is None and tried.answer.decision is case.advice.decision is Decision.WAITS:
            same = tried
    return best, same


def _beats(one: Tried, other: Tried, takes_last: bool) -> bool:
    mine, theirs = RANK[one.answer.decision], RANK[other.answer.decision]
    if mine != theirs:
        return mine < theirs
    return takes_last or is_cheaper(one.answer, other.answer)


def _rank(at: int, tried: Tried) -> tuple[bool, int, int, int]:
    """For whom, how soon, how much it intrudes, and the price."""
    price = tried.answer.price.per_hour if tried.answer.price is not None else 0
    is_for_admins = tried.change.kind is ChangeKind.CLUSTER
    return is_for_admins, RANK[tried.answer.decision], at, price


def _suggestion(rule: Rule, tried: Tried) -> Suggestion:
    answer = tried.answer
    price = answer.price.per_hour if answer.price is not None else None
    return Suggestion(rule.name, tried.says, tried.change, answer.decision, price, answer.wait, tried.caveat)
