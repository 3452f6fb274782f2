"""Servers that idle: nobody called them, or, where calls are not counted, hardly any came back so late."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from gpucost.detectors.held import lasting
from gpucost.detectors.past import PastRest, PastWork
from gpucost.detectors.rule_settings import IdleAllocationSettings
from gpucost.detectors.rules.idle_hazard import LEAST_GAPS, Gap, GapEnd, Hazard, PastGaps
from gpucost.detectors.rules.idle_requests import ServedPods, Traffic
from gpucost.detectors.rules.idle_stretches import LEAST_SEEN, JobSpans
from gpucost.detectors.rules.workloads import Workloads
from gpucost.domain.time import iso
from gpucost.settings.types import milliseconds

Runs = Sequence[tuple[int, int]]
_PARTS = 4
"""Of a server that has been idle for longer than this part of what is known of servers, nobody knows what
became of others that idled as long. It is asked what became of them after that part: those that were idle
for longer come back less often, not more. Ours."""


@dataclass(frozen=True, slots=True)
class ServerVerdict:
    """The parts of a server's stretch that count as idle, and what speaks for it; or why there are none."""

    runs: Runs = ()
    because: str = ""
    lacks_data: bool = False
    checked: str = ""


@dataclass(frozen=True)
class Servers:
    """``spans`` are the quiet stretches of all jobs; ``coverage`` says how well one (job, start, end) of them
    was seen, 0 to 1. ``past`` is what is known from before the history."""

    table: Workloads
    spans: JobSpans
    now_ms: int
    coverage: Callable[[int, int, int], float]
    past: PastWork | None = None

    @cached_property
    def _pods(self) -> ServedPods:
        return ServedPods(self.table)

    @cached_property
    def gaps(self) -> PastGaps:
        """Of all servers. What nobody saw is no gap, unless work is seen to end it."""
        found = [*self._ended_before()]
        spans = self.spans
        for job, start, end in zip(spans.job.tolist(), spans.start.tolist(), spans.end.tolist(), strict=True):
            if self.table.row(job).workload_class != "serving":
                continue
            kind = self._end(job, end)
            if kind is GapEnd.WORK or (kind is not None and self.coverage(job, start, end) >= LEAST_SEEN):
                found.append(self._gap(job, start, end, kind))
        return PastGaps(found)

    def _gap(self, job: int, start_ms: int, end_ms: int, end: GapEnd) -> Gap:
        """With what is known of it from before the history."""
        begun = (
            min(start_ms, self._begun_before.get(job, start_ms)) if start_ms <= self._begin_ms else start_ms
        )
        return Gap(job, begun, end_ms - begun, end)

    @property
    def _begin_ms(self) -> int:
        return self.table.history.window.start_ms

    @property
    def _known_ms(self) -> int:
        """How long the servers have been looked at."""
        return self.now_ms - (
            self._begin_ms if self.past is None else min(self._begin_ms, self.past.since_ms)
        )

    @cached_property
    def _rests(self) -> Sequence[tuple[int | None, PastRest]]:
        """Those of the past, with the job's position where it is in the history."""
        if self.past is None:
            return ()
        jobs = {(row.namespace, row.job_uid): n for n, row in enumerate(self.table.rows)}
        return [(jobs.get((each.namespace, each.job_uid)), each) for each in self.past.rests()]

    @cached_property
    def _begun_before(self) -> Mapping[int, int]:
        """Of jobs that did nothing when the history began: since when."""
        return {
            job: rest.start_ms
            for job, rest in self._rests
            if job is not None and rest.is_last and rest.end_ms >= self._begin_ms
        }

    def _ended_before(self) -> Iterator[Gap]:
        """Gaps that were over when the history began. Of one between two steps with work nobody knows how
        much of these it was: it counts as long as it may have been, which makes work likelier."""
        quiet = set(self.spans.job[self.spans.start <= self._begin_ms].tolist())
        for n, (job, rest) in enumerate(self._rests):
            reaches = rest.is_last and rest.end_ms >= self._begin_ms
            if reaches and job in quiet:
                continue
            worked = rest.is_before_work or (reaches and job is not None)
            if not worked and (not rest.is_last or job is not None):
                continue
            step = 0 if self.past is None else self.past.step_ms
            start = rest.start_ms - step * (worked and rest.is_after_work)
            end = min(rest.end_ms, self._begin_ms) + step * worked
            yield Gap(-1 - n, start, end - start, GapEnd.WORK if worked else GapEnd.REMOVED)

    def _end(self, job: int, end_ms: int) -> GapEnd | None:
        """How a stretch of a job ended; None where it held nothing for a while, and nobody knows."""
        if end_ms >= self.now_ms:
            return GapEnd.OPEN
        pods = self.table.pods_of_job[job]
        start, end = self.table.start[pods], self.table.end[pods]
        if bool(((start <= end_ms) & (end > end_ms)).any()):
            return GapEnd.WORK
        return None if bool((start > end_ms).any()) else GapEnd.REMOVED

    def judge(
        self, job: int, start_ms: int, end_ms: int, runs: Runs, settings: IdleAllocationSettings
    ) -> ServerVerdict:
        """``runs`` are the parts of the stretch ``[start, end)`` that were seen well enough."""
        needed = milliseconds(settings.serving)
        traffic = self._pods.of_job(job, start_ms, end_ms)
        quiet = [part for run in runs for part in traffic.quiet(*run) if part[1] - part[0] >= needed]
        if not quiet:
            by = _by(traffic)
            return ServerVerdict(
                because=f"it was called meanwhile, last at {iso(traffic.calls[-1][1])}, {by}"
            )
        ended = self._end(job, end_ms)
        present = self._gap(job, start_ms, end_ms, ended or GapEnd.REMOVED)
        ahead = milliseconds(settings.serving_ahead)
        chance = self.gaps.hazard(present, ahead, max(needed, self._known_ms // _PARTS))
        if traffic.signal is None:
            return self._without_signal(quiet, present, chance, settings)
        told = f"nobody called it for at least {lasting(needed)}, {_by(traffic)}"
        if chance.gaps >= LEAST_GAPS and chance.chance > settings.serving_risk and ended is GapEnd.OPEN:
            because = (
                f"{told}, but {100 * chance.chance:.0f} % of servers here that had been idle "
                f"{_as_long(chance, present)} worked again within {lasting(chance.ahead_ms)}"
            )
            return ServerVerdict(because=because)
        return ServerVerdict(quiet, checked=told)

    def _without_signal(
        self, quiet: Runs, present: Gap, chance: Hazard, settings: IdleAllocationSettings
    ) -> ServerVerdict:
        nothing = "nothing says how many requests it served"
        if present.end is GapEnd.WORK:
            return ServerVerdict(
                because=f"{nothing}, and it worked again after {lasting(present.length_ms)}", lacks_data=True
            )
        ahead = lasting(chance.ahead_ms)
        if chance.high > settings.serving_risk:
            known = (
                "no past gap of servers here was that long and followed as far"
                if not chance.gaps
                else f"by past gaps of servers here that were {_as_long(chance, present)}, "
                f"{100 * chance.low:.0f} to {100 * chance.high:.0f} %"
            )
            because = (
                f"{nothing}, and after {lasting(present.length_ms)} it may well work again within {ahead}: "
                f"{known}; {100 * settings.serving_risk:.3g} % would do"
            )
            return ServerVerdict(because=because, lacks_data=True)
        return ServerVerdict(
            quiet,
            checked=f"{nothing}; by what servers here did before, at most {100 * chance.high:.0f} % that "
            f"were idle {_as_long(chance, present)} work again within {ahead}",
        )


def _as_long(chance: Hazard, present: Gap) -> str:
    return "as long" if chance.after_ms == present.length_ms else f"for {lasting(chance.after_ms)}"


def _by(traffic: Traffic) -> str:
    names = ", ".join(traffic.metrics) or "a counter of its workload"
    return f"by {names}"
