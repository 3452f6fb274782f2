"""Servers that idle: no request came, or, where requests are not counted, hardly any server worked again so
late.

How likely a server that has been idle for a while is to work again is estimated from past gaps of the servers
of this cluster. Traffic while the GPUs did nothing is requests where they are counted, else received bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from enum import Enum, StrEnum
from functools import cached_property
from math import sqrt
from typing import Literal

import numpy as np
import numpy.typing as npt
import pandas as pd

from gpucost.attribution.apportion import Flags, Ints
from gpucost.attribution.frames import empty_frame
from gpucost.attribution.segments import union
from gpucost.contract.frames import SERVING
from gpucost.detectors.allocation_pieces import lasting
from gpucost.detectors.inputs.activity_table import Floats
from gpucost.detectors.inputs.detector_facts import PastRest, PastWork
from gpucost.detectors.inputs.job_tables import JobTables
from gpucost.detectors.inputs.quiet_runs import LEAST_SEEN, JobSpans
from gpucost.detectors.rule_settings import LATELY_MS, IdleAllocationSettings
from gpucost.domain.time import DAY_MS, MINUTE_MS, iso
from gpucost.settings.types import milliseconds

_QUIET_PART = 0.1
_TIMES_QUIET = 3.0
_LEAST_BYTES_PER_MINUTE = 20_000
"""Bytes count as requests above three times the pod's own quiet floor (the rate that a tenth of its late
steps stay below: probes, scrapes, keep-alives), and above the floor by 20 kB a minute. Ours."""


class TrafficSignal(StrEnum):
    """The kind of signal that shows whether a server was called."""

    REQUESTS = "requests"
    BYTES = "received bytes"


@dataclass(frozen=True)
class ServerTraffic:
    """The traffic of a job in a stretch of time. ``signal`` is None where too little was read of some pod.

    ``calls`` are steps with traffic, merged and in order. They are known even without a signal, where a
    counter of the whole workload shows them: what such a counter does not see is not known to be none.
    """

    signal: TrafficSignal | None
    metrics: tuple[str, ...]
    calls: tuple[tuple[int, int], ...]

    def quiet(self, start_ms: int, end_ms: int) -> list[tuple[int, int]]:
        """The parts of ``[start, end)`` without traffic."""
        parts, reached = list[tuple[int, int]](), start_ms
        for begin, close in self.calls:
            if begin > reached:
                parts.append((reached, min(begin, end_ms)))
            reached = max(reached, close)
        parts.append((reached, end_ms))
        return [(begin, close) for begin, close in parts if begin < close]


@dataclass(frozen=True)
class _PodRows:
    """Rows of one pod, by their start: ``called`` and ``noisy`` where traffic came, by requests and by bytes;
    ``counted`` and ``measured`` where such a counter was read."""

    start: Ints
    end: Ints
    metric: npt.NDArray[np.object_]
    called: Flags
    counted: Flags
    noisy: Flags
    measured: Flags

    @classmethod
    def of(cls, rows: pd.DataFrame) -> _PodRows:
        start, end = rows["start_ms"].to_numpy(np.int64), rows["end_ms"].to_numpy(np.int64)
        calls, amount = (rows[name].to_numpy(np.float64) for name in ("requests", "received_bytes"))
        known: Flags = ~np.isnan(amount)
        rate = np.where(known, amount, 0.0) / ((end - start) / MINUTE_MS)
        floor = _floor(start // LATELY_MS, rate, known)
        most = np.maximum(_TIMES_QUIET * floor, floor + _LEAST_BYTES_PER_MINUTE)
        metric = rows["metric"].to_numpy(dtype=object)
        return cls(start, end, metric, calls > 0, ~np.isnan(calls), known & (rate > most), known)

    def within(self, start_ms: int, end_ms: int) -> _PodRows:
        keep = (self.start < end_ms) & (self.end > start_ms)
        return _PodRows(*(getattr(self, each.name)[keep] for each in fields(self)))

    def is_read(self, which: Flags, start_ms: int, end_ms: int) -> bool:
        """Whether rows ``which`` cover nine tenths of ``[start, end)``."""
        if not which.any():
            return False
        start, end = self.start[which], self.end[which]
        # Of several counters that overlap each instant counts once.
        begin = np.maximum(start, np.append(start_ms, np.maximum.accumulate(end)[:-1]))
        seen = (np.minimum(end, end_ms) - np.maximum(begin, start_ms)).clip(min=0).sum()
        return bool(seen >= LEAST_SEEN * (end_ms - start_ms))


def _floor(half_day: Ints, rate: Floats, known: Flags) -> Floats:
    """The quiet floor of a pod in each row, from what it received lately."""
    found = np.zeros(len(rate))
    for each in np.unique(half_day).tolist():
        lately = known & ((half_day == each) | (half_day == each - 1))
        if lately.any():
            found[half_day == each] = np.quantile(rate[lately], _QUIET_PART)
    return found


@dataclass(frozen=True)
class ServedPods:
    """The rows of the serving frame, by pod."""

    table: JobTables

    @cached_property
    def _by_pod(self) -> dict[str, _PodRows]:
        rows = self.table.history.frames.serving
        rows = rows[(rows["end_ms"] > rows["start_ms"]).to_numpy(bool)].sort_values("start_ms", kind="stable")
        return {str(uid): _PodRows.of(part) for uid, part in rows.groupby("pod_uid", observed=True)}

    @cached_property
    def _nothing(self) -> _PodRows:
        return _PodRows.of(empty_frame(SERVING))

    def of_job(self, job: int, start_ms: int, end_ms: int) -> ServerTraffic:
        """The traffic of a job's pods in ``[start, end)``."""
        table = self.table
        parts = list[tuple[_PodRows, int, int]]()
        for pod in table.pods_of_job[job].tolist():
            start, end = max(start_ms, int(table.start[pod])), min(end_ms, int(table.end[pod]))
            if start < end:
                rows = self._by_pod.get(table.uids[pod], self._nothing)
                parts.append((rows.within(start, end), start, end))
        signal: TrafficSignal | None = None
        if parts and all(rows.is_read(rows.measured, start, end) for rows, start, end in parts):
            signal = TrafficSignal.BYTES
        if parts and all(rows.is_read(rows.counted, start, end) for rows, start, end in parts):
            signal = TrafficSignal.REQUESTS
        by_bytes = signal is TrafficSignal.BYTES
        starts, ends, metrics = list[int](), list[int](), set[str]()
        for rows, _, _ in parts:
            heard = rows.called | (rows.noisy & by_bytes)
            starts += rows.start[heard].tolist()
            ends += rows.end[heard].tolist()
            metrics.update(map(str, rows.metric[rows.measured if by_bytes else rows.counted].tolist()))
        begun, ended = union(starts, ends)
        calls = tuple(zip(begun.tolist(), ended.tolist(), strict=True))
        return ServerTraffic(signal, tuple(sorted(metrics)), calls)


_Z = 1.645
"""One-sided 95 %."""
_SIDES: tuple[Literal["left", "right"], ...] = ("left", "right")
LEAST_GAPS = 10
"""With fewer past gaps, the part that ended in work proves nothing."""


class GapEnd(Enum):
    """How a stretch without work ended: in work, with its pods, or not yet."""

    WORK = "work"
    REMOVED = "removed"
    OPEN = "open"


@dataclass(frozen=True, slots=True)
class ServerGap:
    """A stretch in which a server did nothing. ``job`` is its job."""

    job: int
    start_ms: int
    length_ms: int
    end: GapEnd


@dataclass(frozen=True, slots=True)
class ReturnHazard:
    """Of ``gaps`` that lasted ``after_ms`` and were observed for ``ahead_ms`` longer, ``worked`` ended in
    work by then. The chance of the next one lies between ``low`` and ``high``, each with 95 % (Wilson's score
    interval, E. B. Wilson, JASA 22, 1927)."""

    gaps: int
    worked: int
    after_ms: int
    ahead_ms: int

    @property
    def chance(self) -> float:
        return self.worked / self.gaps if self.gaps else 1.0

    @property
    def low(self) -> float:
        return max(0.0, self._bound(-_Z)) if self.gaps else 0.0

    @property
    def high(self) -> float:
        return min(1.0, self._bound(_Z)) if self.gaps else 1.0

    def _bound(self, z: float) -> float:
        n, part = self.gaps, self.chance
        half = z * sqrt(part * (1 - part) / n + z * z / (4 * n * n))
        return (part + z * z / (2 * n) + half) / (1 + z * z / n)


class PastGaps:
    """Gaps of servers ordered by length, with how many from each on ended in which way, so that a query is a
    binary search however many there are."""

    def __init__(self, gaps: Iterable[ServerGap]) -> None:
        self._gaps = sorted(gaps, key=lambda gap: (gap.length_ms, gap.start_ms, gap.job))
        self._lengths = np.array([each.length_ms for each in self._gaps], np.int64)
        self._from = {
            end: np.append(np.cumsum([each.end is end for each in self._gaps][::-1])[::-1], 0)
            for end in GapEnd
        }

    def __len__(self) -> int:
        return len(self._gaps)

    def hazard(self, present: ServerGap, ahead_ms: int = DAY_MS, most_ms: int | None = None) -> ReturnHazard:
        """How gaps, of its own and of its peers, ended that lasted at least as long as ``present``, or
        ``most_ms`` where that is less: whether they ended in work within ``ahead_ms``, or within as long
        again where that is longer.

        A gap that is still open, and younger than that, is left out. Leaving it out can only make work look
        likelier than it is: those that ended in work are all included.
        """
        after = present.length_ms if most_ms is None else min(present.length_ms, most_ms)
        ahead = max(ahead_ms, after)
        first = int(np.searchsorted(self._lengths, after))
        followed = int(np.searchsorted(self._lengths, after + ahead))
        worked = self._between(GapEnd.WORK, first, followed)
        gaps = len(self) - first - self._between(GapEnd.OPEN, first, followed)
        # The present gap is not part of its own past.
        is_followed = present.length_ms >= after + ahead
        if self._has(present) and (is_followed or present.end is not GapEnd.OPEN):
            gaps, worked = gaps - 1, worked - (present.end is GapEnd.WORK and not is_followed)
        return ReturnHazard(gaps, worked, after, ahead)

    def _between(self, end: GapEnd, first: int, last: int) -> int:
        return int(self._from[end][first] - self._from[end][last])

    def _has(self, present: ServerGap) -> bool:
        first, last = (int(np.searchsorted(self._lengths, present.length_ms, side)) for side in _SIDES)
        return present in self._gaps[first:last]


QuietSpans = Sequence[tuple[int, int]]
_PARTS = 4
"""The greatest age of a gap, as a part of the history of servers, for which the history shows how gaps of
that age ended. For a server that has been idle for longer, the gaps of this age are used: servers that were
idle for longer come back less often, not more. Ours."""


@dataclass(frozen=True, slots=True)
class ServerVerdict:
    """The parts of a server's stretch that count as idle, and the evidence; or why there are none."""

    runs: QuietSpans = ()
    because: str = ""
    lacks_data: bool = False
    checked: str = ""


@dataclass(frozen=True)
class IdleServers:
    """``spans`` are the quiet stretches of all jobs; ``coverage`` is how well one (job, start, end) of them
    was observed, 0 to 1. ``past`` comes from before the history."""

    table: JobTables
    spans: JobSpans
    now_ms: int
    coverage: Callable[[int, int, int], float]
    past: PastWork | None = None

    @cached_property
    def _pods(self) -> ServedPods:
        return ServedPods(self.table)

    @cached_property
    def gaps(self) -> PastGaps:
        """Gaps of all servers. A stretch that was not observed is not a gap, unless observed work ends it."""
        found = [*self._ended_before()]
        spans = self.spans
        for job, start, end in zip(spans.job.tolist(), spans.start.tolist(), spans.end.tolist(), strict=True):
            if self.table.row(job).workload_class != "serving":
                continue
            kind = self._end(job, end)
            if kind is GapEnd.WORK or (kind is not None and self.coverage(job, start, end) >= LEAST_SEEN):
                found.append(self._gap(job, start, end, kind))
        return PastGaps(found)

    def _gap(self, job: int, start_ms: int, end_ms: int, end: GapEnd) -> ServerGap:
        """The gap, extended by what is known from before the history."""
        begun = (
            min(start_ms, self._begun_before.get(job, start_ms)) if start_ms <= self._begin_ms else start_ms
        )
        return ServerGap(job, begun, end_ms - begun, end)

    @property
    def _begin_ms(self) -> int:
        return self.table.history.window.start_ms

    @property
    def _known_ms(self) -> int:
        """The length of time for which servers have been observed."""
        return self.now_ms - (
            self._begin_ms if self.past is None else min(self._begin_ms, self.past.since_ms)
        )

    @cached_property
    def _rests(self) -> Sequence[tuple[int | None, PastRest]]:
        """The rests of the past, with the job's position where it is in the history."""
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

    def _ended_before(self) -> Iterator[ServerGap]:
        """Gaps that were over when the history began. How much of the two steps with work around a gap
        belongs to it is unknown: it counts as long as it may have been, which makes work likelier."""
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
            yield ServerGap(-1 - n, start, end - start, GapEnd.WORK if worked else GapEnd.REMOVED)

    def _end(self, job: int, end_ms: int) -> GapEnd | None:
        """How a stretch of a job ended; None where the job held nothing for a while, so that the end is
        unknown."""
        if end_ms >= self.now_ms:
            return GapEnd.OPEN
        pods = self.table.pods_of_job[job]
        start, end = self.table.start[pods], self.table.end[pods]
        if bool(((start <= end_ms) & (end > end_ms)).any()):
            return GapEnd.WORK
        return None if bool((start > end_ms).any()) else GapEnd.REMOVED

    def judge(
        self, job: int, start_ms: int, end_ms: int, runs: QuietSpans, settings: IdleAllocationSettings
    ) -> ServerVerdict:
        """``runs`` are the parts of the stretch ``[start, end)`` that were observed well enough."""
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
        self, quiet: QuietSpans, present: ServerGap, chance: ReturnHazard, settings: IdleAllocationSettings
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


def _as_long(chance: ReturnHazard, present: ServerGap) -> str:
    return "as long" if chance.after_ms == present.length_ms else f"for {lasting(chance.after_ms)}"


def _by(traffic: ServerTraffic) -> str:
    names = ", ".join(traffic.metrics) or "a counter of its workload"
    return f"by {names}"
