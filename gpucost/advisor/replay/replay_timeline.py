"""The clock of a replay: events in their order, cycles at each instant until rest, and what has no rest.

The order at an instant is that of the recorded histories (docs/decisions/0021-replay.md): runs that end,
quota of evicted workloads that comes back, changes, arrivals, parked workloads that are looked at again; then
scheduling cycles in no time, and after each of them what became due by it.

**Preemption without rest.** A long job may be reclaimed a hundred times in a month, each time for another;
that is no ring. A ring is proven: the very state that was there before is there again (who waits, who is
parked, who runs, who is leaving since how long, where scans stopped), nothing came from outside in between
(no arrival, no end, no change), workloads were evicted, and none of them kept a part of its run. A replay is
a function of its state, so that goes on until something does come. All turns until then are told without
being played; where nothing ever comes, the replay ends. States are compared as Brent's search for cycles
does: with one that is kept, which is replaced after twice as many steps each time.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Generic, NamedTuple, Protocol, TypeVar

MOST_CYCLES = 1_500
"""Scheduling cycles at one instant, after which recorded histories count it as one without rest."""
MOST_EVICTIONS = 100
"""Evictions of one workload, after which they do."""
FIRST_STEPS = 8
"""Instants, or cycles at an instant, without anything from outside, after which states are kept: an ordinary
replay pays nothing."""

NEVER_ENDS = 2**62
"""``run_ms`` of a run without an end."""

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


class PreemptionRing(NamedTuple):
    """A ring that was proven: the same again and again from ``from_ms`` on, until something else came at
    ``to_ms``."""

    from_ms: int
    to_ms: int
    pairs: tuple[RepeatedPreemption, ...]


class RestlessPreemption(NamedTuple):
    """Preemption that goes on without end. The replay ends before ``at_ms``. ``pairs`` are those that repeat,
    the most frequent first. ``why``: at one ``instant``; as a ``ring``, over time; or, by the bound of
    recorded histories, by too many ``evictions`` of one workload."""

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

    def state_key(self, now_ms: int, /) -> Hashable | None:
        """All that decides what it will do, times counted from now; None where it never preempts."""
        ...

    def pass_over(self, span_ms: int, /) -> None:
        """So much time went by with the same turns again and again; what it waits for is later by as much."""


class ReplayOutcome(NamedTuple):
    """``stories`` by uid, of all arrivals in their order. ``restless`` is why it ended early; then nothing of
    its instant is told. ``end_ms`` is the instant of the last event. ``rings`` are those that something from
    outside ended."""

    stories: Mapping[str, WorkloadStory]
    cycles: int
    end_ms: int
    restless: RestlessPreemption | None = None
    rings: tuple[PreemptionRing, ...] = ()


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
    as_recorded: bool = False,
    begun: Mapping[str, int] | None = None,
    most_cycles: int | None = None,
) -> ReplayOutcome:
    """Everything until nothing is due any more; who waits then waits for ever. Events of one instant and kind
    are applied by uid, changes in their order: the order of ``arrivals`` means nothing.

    ``changes`` are (instant, change). ``as_recorded`` ends it where recorded histories end, by counting
    (``MOST_CYCLES``, ``MOST_EVICTIONS``), and not where a ring is proven. ``begun`` are those that run
    already, with since when; the discipline knows them. After ``most_cycles`` it stops with what is there.
    Raises ValueError for two arrivals with one uid, and for one after another that is none.
    """
    return _Play(arrivals, discipline, changes, as_recorded, begun or {}, most_cycles).run()


class _RingWatch:
    """``log`` is what was done since the state that is kept: uid, and whether it was evicted."""

    def __init__(self) -> None:
        self.log: list[tuple[str, bool]] = []
        self.forget()

    def forget(self) -> None:
        """Something came from outside."""
        self.log.clear()
        self._steps, self._next = 0, FIRST_STEPS
        self._kept: tuple[int, Hashable] | None = None

    def met_ms(self, now_ms: int, state: Callable[[], Hashable | None]) -> int | None:
        """One step more. When the state of now was there before, if it is the one that is kept."""
        self._steps += 1
        found: Hashable | None = None
        if self._kept is not None and any(is_evicted for _, is_evicted in self.log):
            found = state()
            if found is not None and found == self._kept[1]:
                return self._kept[0]
        if self._steps >= self._next:
            self._next *= 2
            found = state() if found is None else found
            self._kept = None if found is None else (now_ms, found)
            self.log.clear()
        return None


class _Play(Generic[Ask, Change]):
    def __init__(
        self,
        arrivals: Iterable[ReplayArrival[Ask]],
        discipline: ReplayDiscipline[Ask, Change],
        changes: Sequence[tuple[int, Change]],
        as_recorded: bool,
        begun: Mapping[str, int],
        most_cycles: int | None,
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
            (each.at_ms, _Due.ARRIVED, each.uid, 0)
            for each in ordered
            if not each.after and each.uid not in begun
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
        self._as_recorded, self._most_cycles = as_recorded, most_cycles
        for uid, since_ms in begun.items():
            self._stories[uid].admissions.append(StoryAdmission(since_ms))
            self._running.add(uid)
            self._push_end(uid)
        self._leaving: dict[str, tuple[int, int]] = {}
        self._watch, self._within = _RingWatch(), _RingWatch()
        self._rings: list[PreemptionRing] = []

    def run(self) -> ReplayOutcome:
        end_ms = 0
        while (now_ms := self._next_ms()) is not None:
            why = self._instant(now_ms)
            if why:
                return self._restless(now_ms, why)
            if self._is_over():
                break
            end_ms = now_ms
            met_ms = None if self._as_recorded else self._watch.met_ms(now_ms, lambda: self._state(now_ms))
            if met_ms is not None and self._is_ring(met_ms, now_ms):
                first_ms = self._first_ms()
                if not self._skip(met_ms, now_ms):
                    return self._restless(first_ms, "ring")
        return ReplayOutcome(self._stories, self._cycles, end_ms, None, tuple(self._rings))

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
        self._within.forget()
        while True:
            self._apply(now_ms)
            done = self._discipline.cycle(now_ms)
            if done.was_run:
                self._cycles += 1
                cycles += 1
                if self._as_recorded and cycles > MOST_CYCLES:
                    return "instant"
            for uid, given in done.admitted.items():
                self._admit(now_ms, uid, given)
            self._evict(done.evicted)
            if self._is_over():
                return ""
            next_ms = self._next_ms()
            if done.is_at_rest and (next_ms is None or next_ms > now_ms):
                has_too_many = self._as_recorded and self._most_evictions > MOST_EVICTIONS
                return "evictions" if has_too_many else ""
            if done.evicted and not self._as_recorded:
                self._within.log += [(uid, True) for uid in done.evicted]
            if self._within.log and self._within.met_ms(now_ms, lambda: self._state(now_ms)) is not None:
                return "instant"

    def _is_over(self) -> bool:
        return self._most_cycles is not None and self._cycles >= self._most_cycles

    def _apply(self, now_ms: int) -> None:
        """All that is due."""
        while self._events and self._events[0][0] <= now_ms:
            event = heapq.heappop(self._events)
            _, kind, uid, number = event
            if self._is_cut_short(event):
                continue
            if kind is not _Due.RELEASED:
                self._watch.forget()
                self._within.forget()
            if kind is _Due.ENDED:
                self._end(now_ms, uid)
            elif kind is _Due.RELEASED:
                del self._leaving[uid]
                self._discipline.release(now_ms, uid)
            elif kind is _Due.CHANGED:
                self._evict(self._discipline.change(now_ms, self._changes[number][1]))
            else:
                self._discipline.arrive(now_ms, uid, self._known[uid].ask)
        if self._discipline.wake_ms is not None and self._discipline.wake_ms <= now_ms:
            self._discipline.wake(now_ms)

    def _is_cut_short(self, event: _Event) -> bool:
        at_ms, kind, uid, run = event
        if kind is _Due.ENDED:
            return uid not in self._running or run != len(self._stories[uid].admissions)
        return kind is _Due.RELEASED and self._leaving.get(uid) != (at_ms, run)

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
        self._watch.log.append((uid, False))
        self._push_end(uid)

    def _push_end(self, uid: str) -> None:
        """Of its last run, where that ever ends."""
        left_ms, begun = self._left[uid], self._stories[uid].admissions
        if left_ms < NEVER_ENDS:
            heapq.heappush(self._events, (begun[-1].at_ms + left_ms, _Due.ENDED, uid, len(begun)))

    def _evict(self, evicted: Mapping[str, StoryEviction]) -> None:
        for uid, told in evicted.items():
            story = self._stories[uid]
            story.evictions.append(told)
            ran = uid in self._running
            self._running.discard(uid)
            if ran and self._known[uid].keeps_progress:
                ran_ms = told.at_ms - story.admissions[-1].at_ms
                self._left[uid] -= ran_ms
                if ran_ms:
                    self._watch.forget()  # it came further
            self._watch.log.append((uid, True))
            gone_ms = told.at_ms + self._discipline.leaves_ms
            self._leaving[uid] = gone_ms, len(story.evictions)
            heapq.heappush(self._events, (gone_ms, _Due.RELEASED, uid, len(story.evictions)))
            self._most_evictions = max(self._most_evictions, len(story.evictions))

    def _state(self, now_ms: int) -> Hashable | None:
        """All that decides what comes, save what comes from outside; how long who runs has run is looked at
        apart (``_is_ring``)."""
        known = self._discipline.state_key(now_ms)
        if known is None:
            return None
        return known, tuple(sorted((uid, gone_ms - now_ms) for uid, (gone_ms, _) in self._leaving.items()))

    def _turn(self) -> dict[str, tuple[int, int]]:
        """Starts and evictions of each workload since the state that is kept."""
        counts: dict[str, tuple[int, int]] = {}
        for uid, is_evicted in self._watch.log:
            starts, evictions = counts.get(uid, (0, 0))
            counts[uid] = (starts, evictions + 1) if is_evicted else (starts + 1, evictions)
        return counts

    def _is_ring(self, met_ms: int, now_ms: int) -> bool:
        """Whether nobody came further since the same state: who runs ran as long then."""
        for uid, (starts, _) in self._turn().items():
            story = self._stories[uid]
            if uid in self._running:
                before = story.admissions[: len(story.admissions) - starts]
                if not before or now_ms - story.admissions[-1].at_ms != met_ms - before[-1].at_ms:
                    return False
        return True

    def _first_ms(self) -> int:
        """Of the first thing in the turn."""
        found: list[int] = []
        for uid, (starts, evictions) in self._turn().items():
            story = self._stories[uid]
            found += [each.at_ms for each in story.admissions[len(story.admissions) - starts :]]
            found += [each.at_ms for each in story.evictions[len(story.evictions) - evictions :]]
        return min(found)

    def _skip(self, met_ms: int, now_ms: int) -> bool:
        """Tells all whole turns until something comes from outside, and goes on after them; False where
        nothing ever comes."""
        turn = self._turn()
        outside_ms = self._outside_ms(turn)
        if outside_ms is None:
            return False
        span_ms, from_ms = now_ms - met_ms, self._first_ms()
        turns = (outside_ms - 1 - now_ms) // span_ms
        evictions = []
        for uid, (starts, evicted) in turn.items():
            story = self._stories[uid]
            begun = story.admissions[len(story.admissions) - starts :]
            told = story.evictions[len(story.evictions) - evicted :]
            for ahead_ms in range(span_ms, (turns + 1) * span_ms, span_ms):
                story.admissions += [each._replace(at_ms=each.at_ms + ahead_ms) for each in begun]
                story.evictions += [each._replace(at_ms=each.at_ms + ahead_ms) for each in told]
            evictions += [(uid, each) for each in told]
            if uid in self._running:
                self._push_end(uid)
            if uid in self._leaving:
                gone_ms = self._leaving[uid][0] + turns * span_ms
                self._leaving[uid] = gone_ms, len(story.evictions)
                heapq.heappush(self._events, (gone_ms, _Due.RELEASED, uid, len(story.evictions)))
        self._discipline.pass_over(turns * span_ms)
        self._watch.forget()
        _add_ring(self._rings, PreemptionRing(from_ms, outside_ms, _repeated(evictions, turns + 1)))
        return True

    def _outside_ms(self, turn: Mapping[str, object]) -> int | None:
        """When the next thing comes that no workload of the turn does."""
        own: list[_Event] = []
        found: int | None = None
        while self._events and found is None:
            event = heapq.heappop(self._events)
            if self._is_cut_short(event):
                continue
            own.append(event)
            if event[2] not in turn:
                found = event[0]
        for event in own:
            heapq.heappush(self._events, event)
        return found

    def _restless(self, now_ms: int, why: str) -> ReplayOutcome:
        is_whole = why == "evictions"
        evictions = [
            (uid, told)
            for uid, story in self._stories.items()
            for told in story.evictions
            if is_whole or (told.at_ms == now_ms if why == "instant" else told.at_ms >= now_ms)
        ]
        repeated = tuple(each for each in _repeated(evictions) if each.times > 1 or why == "ring")
        for story in self._stories.values():
            story.admissions = [each for each in story.admissions if each.at_ms < now_ms]
            story.evictions = [each for each in story.evictions if each.at_ms < now_ms]
            if story.ended_ms is not None and story.ended_ms >= now_ms:
                story.ended_ms = None
        last_ms = max((ms for each in self._stories.values() for ms in _instants(each)), default=0)
        restless = RestlessPreemption(now_ms, why, repeated)
        return ReplayOutcome(self._stories, self._cycles, last_ms, restless, tuple(self._rings))


def _repeated(
    evictions: Iterable[tuple[str, StoryEviction]], turns: int = 1
) -> tuple[RepeatedPreemption, ...]:
    """Who preempts whom in them, ``turns`` times over, the most frequent first."""
    counts: dict[tuple[str, str, str], int] = {}
    for uid, told in evictions:
        if told.by:
            key = told.by, uid, told.reason
            counts[key] = counts.get(key, 0) + turns
    pairs = sorted(counts.items(), key=lambda each: (-each[1], each[0]))
    return tuple(RepeatedPreemption(*pair, times) for pair, times in pairs)


def _add_ring(rings: list[PreemptionRing], ring: PreemptionRing) -> None:
    """To the last one, where the same preempt the same."""
    if rings and {each[:3] for each in rings[-1].pairs} == {each[:3] for each in ring.pairs}:
        last, more = rings.pop(), {each[:3]: each.times for each in ring.pairs}
        pairs = tuple(each._replace(times=each.times + more[each[:3]]) for each in last.pairs)
        ring = PreemptionRing(last.from_ms, ring.to_ms, pairs)
    rings.append(ring)


def _instants(story: WorkloadStory) -> list[int]:
    found = [each.at_ms for each in story.admissions] + [each.at_ms for each in story.evictions]
    return found if story.ended_ms is None else [*found, story.ended_ms]
