"""The clock of a replay: events in their order, cycles at each instant until rest, and a bound on both.

The order at an instant is that of the recorded histories (docs/decisions/0021-replay.md): runs that end,
quota of evicted workloads that comes back, changes, arrivals, parked workloads that are looked at again; then
scheduling cycles in no time, and after each of them what became due by it.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Generic, NamedTuple, Protocol, TypeVar

MOST_CYCLES = 1_500
"""Scheduling cycles at one instant, after which it counts as one without rest."""
MOST_EVICTIONS = 100
"""Evictions of one workload, after which it counts as one without rest."""

Ask = TypeVar("Ask")
Change = TypeVar("Change")
Ask_contra = TypeVar("Ask_contra", contravariant=True)
Change_contra = TypeVar("Change_contra", contravariant=True)


@dataclass(frozen=True, slots=True)
class ReplayArrival(Generic[Ask]):
    """A workload that is submitted at ``at_ms`` and, once it runs, runs ``run_ms``. An eviction throws its
    run away, unless it ``keeps_progress``. ``ask`` is what the discipline knows of it.

    With ``after`` (a uid) it is submitted ``think_ms`` after that one ended, whenever that is; ``at_ms`` then
    only orders it, and where that one never ends it never comes."""

    uid: str
    at_ms: int
    run_ms: int
    ask: Ask
    keeps_progress: bool = False
    after: str = ""
    think_ms: int = 0


class StoryAdmission(NamedTuple):
    """A start. ``given`` is what it got, in the words of the discipline."""

    at_ms: int
    given: object = None


class StoryEviction(NamedTuple):
    """When a workload was told to leave, why, and for whom (uid; empty where for none)."""

    at_ms: int
    reason: str
    by: str = ""


@dataclass(slots=True)
class WorkloadStory:
    """What became of one workload. ``ended_ms`` is None for one that runs or waits at the end."""

    admissions: list[StoryAdmission] = field(default_factory=list)
    evictions: list[StoryEviction] = field(default_factory=list)
    ended_ms: int | None = None


class RepeatedPreemption(NamedTuple):
    """Who preempted whom (uids), by what right (``StoryEviction.reason``), and how often."""

    by: str
    victim: str
    reason: str
    times: int


class RestlessPreemption(NamedTuple):
    """Preemption that goes on without end: too many cycles at one ``instant``, or ``evictions`` of one
    workload; ``why`` says which. The replay ends before ``at_ms``. ``pairs`` are those that repeat, in the
    instant or over the whole replay, the most frequent first."""

    at_ms: int
    why: str
    pairs: tuple[RepeatedPreemption, ...]


class CycleEffects(NamedTuple):
    """What one cycle did: who starts, and who is told to leave, by uid. ``is_at_rest``: another cycle at this
    instant would change nothing. Where no cycle was run since none waits, ``was_run`` is False."""

    admitted: Mapping[str, object]
    evicted: Mapping[str, StoryEviction]
    is_at_rest: bool
    was_run: bool = True


class ReplayDiscipline(Protocol[Ask_contra, Change_contra]):
    """Who starts and who leaves. It keeps count of what is free. ``wake_ms`` is when it wants ``wake`` next,
    and ``leaves_ms`` how long an evicted workload holds what it has."""

    @property
    def wake_ms(self) -> int | None: ...

    @property
    def leaves_ms(self) -> int: ...

    def end(self, now_ms: int, uid: str, /) -> None:
        """Its run is over: what it held is free."""

    def release(self, now_ms: int, uid: str, /) -> None:
        """The pods of an evicted workload are gone: what it held is free, and it waits again."""

    def change(self, now_ms: int, change: Change_contra, /) -> Mapping[str, StoryEviction]:
        """The cluster is another from now on. Who has to leave for it, by uid."""
        ...

    def arrive(self, now_ms: int, uid: str, ask: Ask_contra, /) -> None:
        """It waits from now on."""

    def wake(self, now_ms: int, /) -> None:
        """Its ``wake_ms`` is reached."""

    def cycle(self, now_ms: int, /) -> CycleEffects: ...


class ReplayOutcome(NamedTuple):
    """``stories`` by uid, of all arrivals in their order. ``restless`` is why it ended early; then nothing of
    its instant is told. ``end_ms`` is the instant of the last event."""

    stories: Mapping[str, WorkloadStory]
    cycles: int
    end_ms: int
    restless: RestlessPreemption | None = None


class _Due(IntEnum):
    """Kinds of events, in the order in which those of one instant are applied."""

    ENDED = 0
    RELEASED = 1
    CHANGED = 2
    ARRIVED = 3


_Event = tuple[int, _Due, str, int]
"""Instant, kind, uid (of a change empty), and the number of the run, the eviction or the change."""


def play(
    arrivals: Iterable[ReplayArrival[Ask]],
    discipline: ReplayDiscipline[Ask, Change],
    changes: Sequence[tuple[int, Change]] = (),
) -> ReplayOutcome:
    """Everything until nothing is due any more; who waits then waits for ever. Events of one instant and kind
    are applied by uid, changes in their order: the order of ``arrivals`` means nothing.

    ``changes`` are (instant, change).
    Raises ValueError for two arrivals with one uid, and for one after another that is none.
    """
    return _Play(arrivals, discipline, changes).run()


class _Play(Generic[Ask, Change]):
    def __init__(
        self,
        arrivals: Iterable[ReplayArrival[Ask]],
        discipline: ReplayDiscipline[Ask, Change],
        changes: Sequence[tuple[int, Change]],
    ) -> None:
        ordered = sorted(arrivals, key=lambda each: (each.at_ms, each.uid))
        self._known = {each.uid: each for each in ordered}
        if len(self._known) < len(ordered):
            raise ValueError("two arrivals have one uid")
        self._discipline, self._changes = discipline, changes
        self._stories = {uid: WorkloadStory() for uid in self._known}
        self._left = {uid: each.run_ms for uid, each in self._known.items()}
        self._running: set[str] = set()
        self._events: list[_Event] = [
            (each.at_ms, _Due.ARRIVED, each.uid, 0) for each in ordered if not each.after
        ]
        self._followers: dict[str, list[ReplayArrival[Ask]]] = {}
        for each in ordered:
            if each.after:
                self._followers.setdefault(each.after, []).append(each)
        if not self._followers.keys() <= self._known.keys():
            raise ValueError("an arrival comes after another that is none")
        self._events += [(at_ms, _Due.CHANGED, "", at) for at, (at_ms, _) in enumerate(changes)]
        heapq.heapify(self._events)
        self._cycles = self._most_evictions = 0

    def run(self) -> ReplayOutcome:
        end_ms = 0
        while (now_ms := self._next_ms()) is not None:
            why = self._instant(now_ms)
            if why:
                return self._restless(now_ms, why)
            end_ms = now_ms
        return ReplayOutcome(self._stories, self._cycles, end_ms)

    def _next_ms(self) -> int | None:
        """When something is due; the end of a run that an eviction cut short is not."""
        while self._events and self._is_cut_short(self._events[0]):
            heapq.heappop(self._events)
        due = [self._events[0][0]] if self._events else []
        if self._discipline.wake_ms is not None:
            due.append(self._discipline.wake_ms)
        return min(due, default=None)

    def _instant(self, now_ms: int) -> str:
        """Why it has no rest; empty where it has."""
        cycles = 0
        while True:
            self._apply(now_ms)
            done = self._discipline.cycle(now_ms)
            if done.was_run:
                self._cycles += 1
                cycles += 1
                if cycles > MOST_CYCLES:
                    return "instant"
            for uid, given in done.admitted.items():
                self._admit(now_ms, uid, given)
            self._evict(done.evicted)
            next_ms = self._next_ms()
            if done.is_at_rest and (next_ms is None or next_ms > now_ms):
                return "evictions" if self._most_evictions > MOST_EVICTIONS else ""

    def _apply(self, now_ms: int) -> None:
        """All that is due."""
        while self._events and self._events[0][0] <= now_ms:
            event = heapq.heappop(self._events)
            _, kind, uid, number = event
            if self._is_cut_short(event):
                continue
            if kind is _Due.ENDED:
                self._end(now_ms, uid)
            elif kind is _Due.RELEASED:
                self._discipline.release(now_ms, uid)
            elif kind is _Due.CHANGED:
                self._evict(self._discipline.change(now_ms, self._changes[number][1]))
            else:
                self._discipline.arrive(now_ms, uid, self._known[uid].ask)
        if self._discipline.wake_ms is not None and self._discipline.wake_ms <= now_ms:
            self._discipline.wake(now_ms)

    def _is_cut_short(self, event: _Event) -> bool:
        _, kind, uid, run = event
        is_its_run = uid in self._running and run == len(self._stories[uid].admissions)
        return kind is _Due.ENDED and not is_its_run

    def _end(self, now_ms: int, uid: str) -> None:
        self._running.remove(uid)
        self._stories[uid].ended_ms = now_ms
        self._discipline.end(now_ms, uid)
        for each in self._followers.get(uid, ()):
            heapq.heappush(self._events, (now_ms + each.think_ms, _Due.ARRIVED, each.uid, 0))

    def _admit(self, now_ms: int, uid: str, given: object) -> None:
        story = self._stories[uid]
        story.admissions.append(StoryAdmission(now_ms, given))
        self._running.add(uid)
        event = now_ms + self._left[uid], _Due.ENDED, uid, len(story.admissions)
        heapq.heappush(self._events, event)

    def _evict(self, evicted: Mapping[str, StoryEviction]) -> None:
        for uid, told in evicted.items():
            story = self._stories[uid]
            story.evictions.append(told)
            ran = uid in self._running
            self._running.discard(uid)
            if ran and self._known[uid].keeps_progress:
                self._left[uid] -= told.at_ms - story.admissions[-1].at_ms
            gone_ms = told.at_ms + self._discipline.leaves_ms
            heapq.heappush(self._events, (gone_ms, _Due.RELEASED, uid, len(story.evictions)))
            self._most_evictions = max(self._most_evictions, len(story.evictions))

    def _restless(self, now_ms: int, why: str) -> ReplayOutcome:
        counts: dict[tuple[str, str, str], int] = {}
        for uid, story in self._stories.items():
            for told in story.evictions:
                if told.by and (why == "evictions" or told.at_ms == now_ms):
                    key = told.by, uid, told.reason
                    counts[key] = counts.get(key, 0) + 1
        pairs = sorted(counts.items(), key=lambda each: (-each[1], each[0]))
        repeated = tuple(RepeatedPreemption(*pair, times) for pair, times in pairs if times > 1)
        for story in self._stories.values():
            story.admissions = [each for each in story.admissions if each.at_ms < now_ms]
            story.evictions = [each for each in story.evictions if each.at_ms < now_ms]
            if story.ended_ms is not None and story.ended_ms >= now_ms:
                story.ended_ms = None
        last_ms = max((ms for each in self._stories.values() for ms in _instants(each)), default=0)
        return ReplayOutcome(self._stories, self._cycles, last_ms, RestlessPreemption(now_ms, why, repeated))


def _instants(story: WorkloadStory) -> list[int]:
    found = [each.at_ms for each in story.admissions] + [each.at_ms for each in story.evictions]
    return found if story.ended_ms is None else [*found, story.ended_ms]
