"""Servers that idle: nobody called them, or, where calls are not counted, hardly any came back so late."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

from gpucost.detectors.held import lasting
from gpucost.detectors.rules.idle_hazard import LEAST_GAPS, Gap, GapEnd, Hazard, PastGaps
from gpucost.detectors.rules.idle_requests import ServedPods, Traffic
from gpucost.detectors.rules.idle_settings import Settings
from gpucost.detectors.rules.idle_stretches import LEAST_SEEN, JobSpans
from gpucost.detectors.rules.workloads import Workloads
from gpucost.domain.time import iso
from gpucost.settings.types import milliseconds

Runs = Sequence[tuple[int, int]]


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
    was seen, 0 to 1."""

    table: Workloads
    spans: JobSpans
    now_ms: int
    coverage: Callable[[int, int, int], float]

    @cached_property
    def _pods(self) -> ServedPods:
        return ServedPods(self.table)

    @cached_property
    def gaps(self) -> PastGaps:
        """Of all servers. What nobody saw is no gap, unless work is seen to end it."""
        found = list[Gap]()
        spans = self.spans
        for job, start, end in zip(spans.job.tolist(), spans.start.tolist(), spans.end.tolist(), strict=True):
            if self.table.row(job).workload_class != "serving":
                continue
            kind = self._end(job, end)
            if kind is GapEnd.WORK or (kind is not None and self.coverage(job, start, end) >= LEAST_SEEN):
                found.append(Gap(job, start, end - start, kind))
        return PastGaps(found)

    def _end(self, job: int, end_ms: int) -> GapEnd | None:
        """How a stretch of a job ended; None where it held nothing for a while, and nobody knows."""
        if end_ms >= self.now_ms:
            return GapEnd.OPEN
        pods = self.table.pods_of_job[job]
        start, end = self.table.start[pods], self.table.end[pods]
        if bool(((start <= end_ms) & (end > end_ms)).any()):
            return GapEnd.WORK
        return None if bool((start > end_ms).any()) else GapEnd.REMOVED

    def judge(self, job: int, start_ms: int, end_ms: int, runs: Runs, settings: Settings) -> ServerVerdict:
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
        present = Gap(job, start_ms, end_ms - start_ms, ended or GapEnd.REMOVED)
        ahead = milliseconds(settings.serving_ahead)
        chance = self.gaps.hazard(present, ahead)
        if traffic.signal is None:
            return self._without_signal(quiet, present, chance, settings)
        told = f"nobody called it for at least {lasting(needed)}, {_by(traffic)}"
        if chance.gaps >= LEAST_GAPS and chance.chance > settings.serving_risk and ended is GapEnd.OPEN:
            because = (
                f"{told}, but {100 * chance.chance:.0f} % of servers here that had been idle as long worked "
                f"again within {lasting(chance.ahead_ms)}"
            )
            return ServerVerdict(because=because)
        return ServerVerdict(quiet, checked=told)

    def _without_signal(self, quiet: Runs, present: Gap, chance: Hazard, settings: Settings) -> ServerVerdict:
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
                else f"by past gaps of servers here that were as long, {100 * chance.low:.0f} to "
                f"{100 * chance.high:.0f} %"
            )
            because = (
                f"{nothing}, and after {lasting(present.length_ms)} it may well work again within {ahead}: "
                f"{known}; {100 * settings.serving_risk:.3g} % would do"
            )
            return ServerVerdict(because=because, lacks_data=True)
        return ServerVerdict(
            quiet,
            checked=f"{nothing}; by what servers here did before, at most {100 * chance.high:.0f} % that "
            f"were idle as long work again within {ahead}",
        )


def _by(traffic: Traffic) -> str:
    names = ", ".join(traffic.metrics) or "a counter of its workload"
    return f"by {names}"
