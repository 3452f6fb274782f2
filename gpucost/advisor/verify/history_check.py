"""Recorded histories, replayed from their arrivals and compared workload by workload, to the second.

A variation is replayed from what configuration A tells: the arrivals, and for how long each ran under A; only
of those that never ended there the run time is the file's. So it is the question "and if ...?", with its
answer.

A difference counts, save in configurations that carry one of two traps: ``fair-tree`` (Kueue draws lots
between sibling cohorts with equal shares, so several outcomes are right) and ``scan-phase`` (the outcome
hangs on how many idle cycles were run at an instant). Those are counted apart, by the name of their trap.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from gpucost.advisor.kueue.requests import QuotaRequest
from gpucost.advisor.replay.kueue_replay import KueueReplay
from gpucost.advisor.replay.replay_timeline import (
    ReplayArrival,
    ReplayOutcome,
    RestlessPreemption,
    WorkloadStory,
    play,
)
from gpucost.advisor.verify.case_schema import NOW_MS
from gpucost.advisor.verify.history_files import (
    FAIR_TREE,
    SCAN_PHASE,
    HistoryConfiguration,
    RecordedStory,
    RecordedUnrest,
    SchedulerHistory,
    recorded_admission,
)
from gpucost.advisor.verify.replay import FactTally
from gpucost.domain.time import SECOND_MS

EXCEPTED = (FAIR_TREE, SCAN_PHASE)


class StoryDifference(NamedTuple):
    """One workload that fares otherwise, as text for a person; from the second where the two part."""

    at_s: int
    workload: str
    recorded: str
    replayed: str


@dataclass(frozen=True, slots=True)
class HistoryReport:
    """One configuration of a history. ``exception`` is the trap for which its differences do not count, empty
    where all agree or where they do. ``restless`` is the preemption without rest that the replay met, and
    ``queues`` the queues of those who preempt in it. ``run_times_of_a`` counts the workloads whose run time
    is what the truth of A tells."""

    history: str
    configuration: str
    change: str
    traps: tuple[str, ...]
    workloads: FactTally
    admissions: FactTally
    evictions: FactTally
    ends: FactTally
    cycles: int
    run_times_of_a: int
    restless: RestlessPreemption | None
    queues: Mapping[str, str]
    exception: str
    differences: tuple[StoryDifference, ...]

    @property
    def name(self) -> str:
        return f"{self.history}/{self.configuration}"

    @property
    def agrees(self) -> bool:
        return not self.differences

    @property
    def passes(self) -> bool:
        """Whether it agrees, or differs for a trap that the file names."""
        return self.agrees or bool(self.exception)


def checked(history: SchedulerHistory) -> Iterator[HistoryReport]:
    """Each configuration, in its order; the first is A."""
    observed: Mapping[str, int] = {}
    for place, each in enumerate(history.configurations):
        arrivals = [
            replace(arrival, run_ms=observed.get(arrival.uid, arrival.run_ms)) for arrival in history.arrivals
        ]
        yield _compared(history, each, arrivals, replayed(each, arrivals), len(observed))
        if not place:
            observed = run_times(history, each)


def replayed(
    configuration: HistoryConfiguration, arrivals: list[ReplayArrival[QuotaRequest]]
) -> ReplayOutcome:
    """What becomes of the arrivals in the cluster of a configuration."""
    discipline = KueueReplay(configuration.state, configuration.config, configuration.timings)
    return play(arrivals, discipline, configuration.changes, as_recorded=True)


def run_times(history: SchedulerHistory, configuration: HistoryConfiguration) -> dict[str, int]:
    """How long each workload that ended ran, by uid: from its last start, and where an eviction costs it
    nothing, from all of them."""
    found = {}
    for arrival in history.arrivals:
        story = configuration.truth[arrival.uid]
        if story.ended_ms is None:
            continue
        found[arrival.uid] = story.ended_ms - story.admissions[-1].at_ms
        if arrival.keeps_progress:
            pairs = zip(story.admissions, story.evictions, strict=False)
            found[arrival.uid] += sum(told.at_ms - begun.at_ms for begun, told in pairs)
    return found


def _compared(
    history: SchedulerHistory,
    configuration: HistoryConfiguration,
    arrivals: list[ReplayArrival[QuotaRequest]],
    outcome: ReplayOutcome,
    run_times_of_a: int,
) -> HistoryReport:
    workloads, admissions, evictions, ends = FactTally(), FactTally(), FactTally(), FactTally()
    differences = list(_unrest(configuration.unrest, outcome.restless))
    for arrival in arrivals:
        truth = configuration.truth[arrival.uid]
        told = _told(outcome.stories[arrival.uid], arrival.ask)
        admissions = _tallied(admissions, truth.admissions, told.admissions)
        evictions = _tallied(evictions, truth.evictions, told.evictions)
        if (truth.ended_ms, told.ended_ms) != (None, None):
            ends = ends.with_one(truth.ended_ms == told.ended_ms)
        workloads = workloads.with_one(truth == told)
        if truth != told:
            differences.append(_difference(arrival.uid, truth, told))
    preemptors = {each.by for each in outcome.restless.pairs} if outcome.restless is not None else set()
    excepted = [trap for trap in EXCEPTED if trap in configuration.traps]
    return HistoryReport(
        history.id,
        configuration.name,
        configuration.change,
        configuration.traps,
        workloads,
        admissions,
        evictions,
        ends,
        outcome.cycles,
        run_times_of_a,
        outcome.restless,
        {each.uid: each.ask.queue for each in arrivals if each.uid in preemptors},
        excepted[0] if excepted and differences else "",
        tuple(sorted(differences)),
    )


def _told(story: WorkloadStory, ask: QuotaRequest) -> RecordedStory:
    admissions = tuple(recorded_admission(each.at_ms, each.given, ask) for each in story.admissions)
    return RecordedStory(admissions, tuple(story.evictions), story.ended_ms)


def _tallied(tally: FactTally, recorded: tuple[object, ...], told: tuple[object, ...]) -> FactTally:
    """Each that was recorded or told, by its place."""
    agree = sum(one == other for one, other in zip(recorded, told, strict=False))
    return FactTally(tally.of + max(len(recorded), len(told)), tally.agree + agree)


def _unrest(recorded: RecordedUnrest | None, told: RestlessPreemption | None) -> Iterator[StoryDifference]:
    got = None if told is None else RecordedUnrest(told.at_ms, told.why)
    if recorded != got:
        at_ms = min(each.at_ms for each in (recorded, got) if each is not None)
        yield StoryDifference(_second(at_ms), "", _said(recorded), _said(got))


def _difference(uid: str, recorded: RecordedStory, told: RecordedStory) -> StoryDifference:
    """From the first thing in which they differ."""
    facts, others = _facts(recorded), _facts(told)
    same = next((at for at, pair in enumerate(zip(facts, others, strict=False)) if pair[0] != pair[1]), None)
    at = min(len(facts), len(others)) if same is None else same
    rest, other = facts[at:], others[at:]
    first = min(each[0] for each in (*rest[:1], *other[:1]))
    return StoryDifference(first, uid, _joined(rest), _joined(other))


def _facts(story: RecordedStory) -> list[tuple[int, int, str]]:
    found = []
    for admission in story.admissions:
        flavors = "; ".join(f"{name}: {_flat(each)}" for name, each in sorted(admission.flavors.items()))
        fewer = f" with {_flat(admission.counts)}" if admission.counts else ""
        found.append((_second(admission.at_ms), 0, f"admitted ({flavors}){fewer}"))
    for told in story.evictions:
        found.append((_second(told.at_ms), 1, f"evicted ({told.reason}) by {told.by or 'nobody'}"))
    if story.ended_ms is not None:
        found.append((_second(story.ended_ms), 2, "ended"))
    return sorted(found)


def _flat(found: Mapping[str, object]) -> str:
    return ", ".join(f"{key} {value}" for key, value in sorted(found.items()))


def _joined(facts: list[tuple[int, int, str]]) -> str:
    return ", ".join(f"{what} at {at}" for at, _, what in facts[:3]) or "nothing more"


def _said(unrest: RecordedUnrest | None) -> str:
    return "at rest" if unrest is None else f"without rest at {_second(unrest.at_ms)} ({unrest.why})"


def _second(at_ms: int) -> int:
    return (at_ms - NOW_MS) // SECOND_MS
