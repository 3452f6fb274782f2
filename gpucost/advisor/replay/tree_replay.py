"""A replay of Kueue tree by tree: queues that share no quota know nothing of each other, and what a change
does not touch need not be played again.

It is exact where no flavor scan can stop on its way, that is, where every resource group has one flavor:
scheduling cycles are common to all trees, and how many idle ones there are decides where a scan goes on, but
nothing else. Elsewhere, and where preemption has no rest (which ends all), the whole is played at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from gpucost.advisor.kueue.requests import QuotaRequest
from gpucost.advisor.replay.kueue_replay import KueueChange, KueueReplay, ReplayTimings
from gpucost.advisor.replay.replay_timeline import ReplayArrival, ReplayOutcome, WorkloadStory, play
from gpucost.cluster.objects.kueue import ClusterQueue
from gpucost.cluster.objects.scheduler_config import KueueConfig
from gpucost.cluster.objects.state import ClusterState

MOST_KEPT = 3
"""Outcomes of one tree that are kept: the first, and those that were played last."""


@dataclass(frozen=True)
class _TreePart:
    """All that decides what becomes of a tree."""

    state: ClusterState
    config: KueueConfig
    timings: ReplayTimings
    arrivals: Sequence[ReplayArrival[QuotaRequest]]
    changes: Sequence[tuple[int, ClusterQueue]]

    def is_as(self, other: _TreePart) -> bool:
        return (
            (self.config, self.timings, self.changes) == (other.config, other.timings, other.changes)
            and self.state.cluster_queues == other.state.cluster_queues
            and self.state.cohorts == other.state.cohorts
            and self.arrivals == other.arrivals
        )


@dataclass
class TreeMemory:
    """What became of trees that were played, of one history."""

    kept: dict[frozenset[str], list[tuple[_TreePart, ReplayOutcome]]] = field(default_factory=dict)

    def outcome(self, names: frozenset[str], part: _TreePart) -> ReplayOutcome:
        known = self.kept.setdefault(names, [])
        for other, outcome in known:
            if part.is_as(other):
                return outcome
        # Where only queues differ, what came is kept once.
        same = (other.arrivals for other, _ in known if other.arrivals == part.arrivals)
        part = replace(part, arrivals=next(same, part.arrivals))
        found = play(part.arrivals, KueueReplay(part.state, part.config, part.timings), part.changes)
        if len(known) == MOST_KEPT:
            del known[1]
        known.append((part, found))
        return found


def play_trees(
    state: ClusterState,
    config: KueueConfig,
    timings: ReplayTimings,
    arrivals: Sequence[ReplayArrival[QuotaRequest]],
    changes: Sequence[tuple[int, KueueChange]],
    memory: TreeMemory,
) -> ReplayOutcome | None:
    """The outcome of ``play``, but that its cycles are counted for each tree; None where the trees cannot be
    played one by one."""
    dated = [(at_ms, each) for at_ms, each in changes if isinstance(each, ClusterQueue)]
    queues = [*state.cluster_queues.values(), *(each for _, each in dated)]
    if len(dated) < len(changes) or any(len(group.flavors) > 1 for each in queues for group in each.groups):
        return None
    roots = _roots(state, queues)
    names: dict[str, list[str]] = {}
    for each in state.cluster_queues.values():
        names.setdefault(roots["queue", each.name], []).append(each.name)
    if len(names) < 2:
        return None
    coming: dict[str, list[ReplayArrival[QuotaRequest]]] = {root: [] for root in names}
    for arrival in arrivals:
        coming[roots["queue", arrival.ask.queue]].append(arrival)
    stories: dict[str, WorkloadStory] = {}
    outcomes = []
    for root, own in names.items():
        part = _TreePart(
            replace(
                state,
                workloads={},
                cluster_queues={uid: each for uid, each in state.cluster_queues.items() if each.name in own},
                cohorts={
                    uid: each for uid, each in state.cohorts.items() if roots["cohort", each.name] == root
                },
            ),
            config,
            timings,
            coming[root],
            [(at_ms, each) for at_ms, each in dated if each.name in own],
        )
        outcome = memory.outcome(frozenset(own), part)
        if outcome.restless is not None:
            return None
        outcomes.append(outcome)
        stories.update(outcome.stories)
    ordered = sorted(arrivals, key=lambda each: (each.at_ms, each.uid))
    return ReplayOutcome(
        {each.uid: stories[each.uid] for each in ordered},
        sum(each.cycles for each in outcomes),
        max(each.end_ms for each in outcomes),
        None,
        tuple(sorted(ring for each in outcomes for ring in each.rings)),
    )


def _roots(state: ClusterState, queues: Iterable[ClusterQueue]) -> Mapping[tuple[str, str], str]:
    """For each queue and cohort a name of all that ever share quota with it."""
    above: dict[tuple[str, str], tuple[str, str]] = {}

    def root(node: tuple[str, str]) -> tuple[str, str]:
        while (over := above.setdefault(node, node)) != node:
            node = over
        return node

    pairs = [(("queue", each.name), ("cohort", each.cohort)) for each in queues if each.cohort]
    pairs += [
        (("cohort", each.name), ("cohort", each.parent)) for each in state.cohorts.values() if each.parent
    ]
    for one, other in pairs:
        above[root(one)] = root(other)
    for queue in state.cluster_queues.values():
        root(("queue", queue.name))
    for cohort in state.cohorts.values():
        root(("cohort", cohort.name))
    return {node: " ".join(root(node)) for node in list(above)}
