"""GPUs that are held and do nothing: whole jobs, and some of a job's GPUs (antipatterns, section 5.1)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

import numpy as np

from gpucost.attribution.apportion import Ints
from gpucost.detectors.allocation_pieces import joined, lasting, pieces
from gpucost.detectors.findings import RuleDetection, WastePattern, WithheldFinding
from gpucost.detectors.inputs.detector_facts import DetectorFacts
from gpucost.detectors.inputs.job_tables import JobAttributes, JobTables
from gpucost.detectors.inputs.quiet_runs import (
    LEAST_SEEN,
    IdleRows,
    JobSpans,
    QuietRuns,
    all_quiet,
    quiet_runs,
)
from gpucost.detectors.rule_settings import LATELY_MS, IdleAllocationSettings, ScopedSettings
from gpucost.detectors.rules.idle_allocation.drafts import (
    PARTLY,
    WHOLE,
    GpuSlot,
    IdleCandidate,
    IdleDrafter,
    IdleSpan,
    span,
)
from gpucost.detectors.rules.idle_allocation.servers import IdleServers
from gpucost.settings.types import milliseconds

__all__ = ["NAME", "run"]

NAME = WastePattern.IDLE_ALLOCATION


def run(facts: DetectorFacts, settings: ScopedSettings[IdleAllocationSettings]) -> RuleDetection:
    return _IdleSearch(facts, settings, JobTables.of(facts.history)).detection()


@dataclass(frozen=True)
class _IdleInterval:
    """A job's stretch with its settings; ``from_start``: the job began with it."""

    job: int
    row: JobAttributes
    start: int
    end: int
    from_start: bool
    settings: IdleAllocationSettings


@dataclass(frozen=True)
class _IdleSearch:
    facts: DetectorFacts
    scoped: ScopedSettings[IdleAllocationSettings]
    table: JobTables

    def detection(self) -> RuleDetection:
        found, withheld = list[IdleCandidate](), dict[int, WithheldFinding]()
        spans = self._whole_stretches
        for stretch in self._long_enough(spans):
            self._judge_whole(stretch, found, withheld)
        claimed: dict[int, list[tuple[int, int]]] = {}
        for each in found:
            claimed.setdefault(each.job, []).append((each.span.begin_ms, each.span.end_ms))
        self._partly(spans, claimed, found, withheld)
        rows = pieces(self.facts.history.held, "job_uid", {self._job_uid(each.job) for each in found})
        drafts = [
            IdleDrafter(self._idle[each.settings.idle_watts], each, rows[self._job_uid(each.job)]).draft()
            for each in found
        ]
        order = sorted(drafts, key=lambda draft: (draft.subject, draft.since_ms, draft.variant))
        told = sorted(withheld.values(), key=lambda each: each.subject)
        return RuleDetection(tuple(order), tuple(told))

    def _job_uid(self, job: int) -> str:
        return self.table.row(job).job_uid

    @cached_property
    def _least_ms(self) -> int:
        every = [self.scoped.default, *(each.settings for each in self.scoped.overrides)]
        return milliseconds(min(each.shortest for each in every))

    @cached_property
    def _quiet(self) -> QuietRuns:
        return quiet_runs(self.table, self._least_ms)

    @cached_property
    def _by_job(self) -> tuple[Ints, Ints]:
        """Positions of quiet runs ordered by job, and the jobs in that order."""
        job = self.table.job[self.table.pod[self._quiet.series]]
        order = np.lexsort([self._quiet.start, self._quiet.series, job])
        return order.astype(np.int64), job[order]

    @cached_property
    def _whole_stretches(self) -> JobSpans:
        spans = all_quiet(self.table, self._quiet)
        keep = spans.end - spans.start >= self._least_ms
        return JobSpans(spans.job[keep], spans.start[keep], spans.end[keep])

    @cached_property
    def _idle(self) -> dict[float | None, IdleRows]:
        every = [self.scoped.default, *(each.settings for each in self.scoped.overrides)]
        return {each.idle_watts: IdleRows(self.table, each.idle_watts) for each in every}

    def _grace_end(self, pod: int, settings: IdleAllocationSettings) -> int:
        start = int(self.table.start[pod])
        return start if self.table.is_cut[pod] else start + milliseconds(settings.start_grace)

    def _long_enough(self, spans: JobSpans) -> Iterator[_IdleInterval]:
        begun = self.facts.history.window.start_ms
        for job, start, end in zip(spans.job.tolist(), spans.start.tolist(), spans.end.tolist(), strict=True):
            row = self.table.row(job)
            settings = self.scoped.at(row.namespace, row.queue)
            from_start = start > begun and self._begins(job, start)
            grace = milliseconds(settings.start_grace) if from_start else 0
            oldest = milliseconds(settings.longest_start) if from_start else 0
            needed = milliseconds(settings.after(row.workload_class, from_start))
            if end - start >= max(needed + grace, oldest):
                yield _IdleInterval(job, row, start, end, from_start, settings)

    def _begins(self, job: int, instant_ms: int) -> bool:
        """Whether a job begins at an instant, or begins anew: none of its pods held GPUs shortly before."""
        pods = self.table.pods_of_job[job]
        start, end = self.table.start[pods], self.table.end[pods]
        before = (start < instant_ms) & (end > instant_ms - LATELY_MS)
        return bool((start == instant_ms).any() and not before.any())

    def _runs_of(self, job: int) -> Ints:
        order, jobs = self._by_job
        first, last = np.searchsorted(jobs, [job, job + 1])
        return order[first:last]

    def _slot(self, run_: int, settings: IdleAllocationSettings, start: int, end: int) -> GpuSlot | None:
        quiet = self._quiet
        series = int(quiet.series[run_])
        pod = int(self.table.pod[series])
        a = max(int(quiet.start[run_]), start, self._grace_end(pod, settings))
        b = min(int(quiet.end[run_]), end)
        first, last = int(quiet.first[run_]), int(quiet.last[run_])
        return GpuSlot(pod, series, a, b, first, last) if a < b else None

    def _slots(self, stretch: _IdleInterval) -> list[GpuSlot]:
        runs = (
            self._slot(run_, stretch.settings, stretch.start, stretch.end)
            for run_ in self._runs_of(stretch.job).tolist()
        )
        found = [slot for slot in runs if slot is not None]
        missing = self.table.gpus - self.table.series_count
        for pod in self.table.pods_of_job[stretch.job].tolist():
            start = max(stretch.start, self._grace_end(pod, stretch.settings))
            end = min(stretch.end, int(self.table.end[pod]))
            if start < end:
                found += [GpuSlot(pod, -1, start, end)] * int(missing[pod])
        return found

    def _judge_whole(
        self, stretch: _IdleInterval, found: list[IdleCandidate], withheld: dict[int, WithheldFinding]
    ) -> None:
        idle, slots = self._idle[stretch.settings.idle_watts], self._slots(stretch)
        seen, after = span(idle, slots), partial(stretch.settings.after, stretch.row.workload_class)
        needed = milliseconds(after(stretch.from_start))
        runs = seen.covered_runs(milliseconds(after(False)))
        if stretch.from_start:
            # Only near the start: a day whose start is not read must give the same result.
            runs = joined([*runs, *seen.covered_runs(needed, stretch.start + milliseconds(after(False)))])
        checked = ""
        if not runs:
            problem = WithheldFinding(
                NAME, stretch.row.subject, _problem(seen, needed), seen.contradicted == 0
            )
            withheld.setdefault(stretch.job, problem)
        elif stretch.row.workload_class == "serving":
            verdict = self._servers.judge(stretch.job, stretch.start, stretch.end, runs, stretch.settings)
            runs, checked = [*verdict.runs], verdict.checked
            if verdict.because:
                problem = WithheldFinding(NAME, stretch.row.subject, verdict.because, verdict.lacks_data)
                withheld.setdefault(stretch.job, problem)
        for n, run_ in enumerate(runs):
            part = span(idle, _cut(slots, *run_))
            ended = self._ended(part, stretch.end)
            from_start = stretch.from_start and n == 0
            found.append(
                IdleCandidate(
                    stretch.job, WHOLE, part, stretch.settings, from_start, ended, len(part.slots), checked
                )
            )

    @cached_property
    def _servers(self) -> IdleServers:
        def coverage(job: int, start_ms: int, end_ms: int) -> float:
            settings = self.scoped.default
            row = self.table.row(job)
            seen = span(
                self._idle[settings.idle_watts],
                self._slots(_IdleInterval(job, row, start_ms, end_ms, False, settings)),
            )
            return seen.coverage() if len(seen.row) else 0.0

        facts = self.facts
        return IdleServers(self.table, self._whole_stretches, facts.now_ms, coverage, facts.past)

    def _ended(self, seen: IdleSpan, end: int) -> int | None:
        now = self.facts.now_ms
        goes_on = end >= now and now - seen.end_ms <= self.table.step_ms
        return None if goes_on else seen.end_ms

    def _partly(
        self,
        spans: JobSpans,
        claimed: dict[int, list[tuple[int, int]]],
        found: list[IdleCandidate],
        withheld: dict[int, WithheldFinding],
    ) -> None:
        """GPUs that were quiet while others of their job were not."""
        order, jobs = self._by_job
        quiet = self._quiet
        long = quiet.end[order] - quiet.start[order] >= self._least_ms
        several = self.table.gpus_of_job[jobs] > 1 if len(jobs) else long
        candidates = np.flatnonzero(long & several)
        by_job: dict[int, list[int]] = {}
        for job, run_ in zip(jobs[candidates].tolist(), order[candidates].tolist(), strict=True):
            by_job.setdefault(job, []).append(run_)
        for job, runs in by_job.items():
            first, last = np.searchsorted(spans.job, [job, job + 1])
            whole = list(zip(spans.start[first:last].tolist(), spans.end[first:last].tolist(), strict=True))
            self._judge_partly(job, runs, whole, claimed.get(job, []), found, withheld)

    def _judge_partly(
        self,
        job: int,
        runs: Sequence[int],
        whole: Sequence[tuple[int, int]],
        claimed: Sequence[tuple[int, int]],
        found: list[IdleCandidate],
        withheld: dict[int, WithheldFinding],
    ) -> None:
        row = self.table.row(job)
        settings = self.scoped.at(row.namespace, row.queue)
        needed = milliseconds(settings.partly_after(row.workload_class))
        idle = self._idle[settings.idle_watts]
        accepted = list[tuple[GpuSlot, IdleSpan]]()
        for run_ in runs:
            slot = self._slot(run_, settings, 0, self.facts.now_ms)
            if slot is None or slot.end - slot.start - _inside(slot, whole) < needed:
                continue
            seen = span(idle, [slot]).without(claimed)
            covered = seen.covered_runs(needed)
            for part in covered:
                (own,) = _cut([slot], *part)
                accepted.append((own, span(idle, [own]).without(claimed)))
            if not covered:
                problem = WithheldFinding(NAME, row.subject, _problem(seen, needed), seen.contradicted == 0)
                withheld.setdefault(job, problem)
        for group in _groups(accepted):
            slots = [slot for slot, _ in group]
            seen = span(idle, slots).without(claimed)
            ended = self._ended(seen, max(slot.end for slot in slots))
            gang = self._gpus_at(job, seen.end_ms - 1)
            found.append(IdleCandidate(job, PARTLY, seen, settings, False, ended, gang))

    def _gpus_at(self, job: int, instant_ms: int) -> int:
        pods = self.table.pods_of_job[job]
        here = (self.table.start[pods] <= instant_ms) & (instant_ms < self.table.end[pods])
        return int(self.table.gpus[pods][here].sum())


def _cut(slots: Sequence[GpuSlot], start_ms: int, end_ms: int) -> list[GpuSlot]:
    """The parts of slots that lie in ``[start, end)``."""
    return [
        replace(slot, start=max(slot.start, start_ms), end=min(slot.end, end_ms))
        for slot in slots
        if slot.start < end_ms and slot.end > start_ms
    ]


def _problem(seen: IdleSpan, needed_ms: int) -> str:
    """Why a stretch that is long enough cannot be called idle."""
    if len(seen.row):
        share = (
            f"the GPU that was seen least was observed for only {100 * max(seen.coverage(), 0):.0f} % of the "
            f"time, and for {100 * LEAST_SEEN:g} % of no {lasting(needed_ms)} of it"
        )
        if seen.end_ms - seen.begin_ms < needed_ms:
            share = f"only {lasting(seen.end_ms - seen.begin_ms)} of it were observed"
    else:
        share = "no GPU of it was observed"
    if seen.contradicted:
        return "power contradicts it: no kernel was seen, but the GPUs drew what only work draws"
    return f"data are missing: {share}"


def _inside(slot: GpuSlot, spans: Sequence[tuple[int, int]]) -> int:
    return sum(max(0, min(slot.end, end) - max(slot.start, start)) for start, end in spans)


def _groups(accepted: Sequence[tuple[GpuSlot, IdleSpan]]) -> Iterator[list[tuple[GpuSlot, IdleSpan]]]:
    """GPUs grouped by idle stretches that overlap in time."""
    group, reach = list[tuple[GpuSlot, IdleSpan]](), 0
    for slot, seen in sorted(accepted, key=lambda each: (each[1].begin_ms, each[0].series)):
        if group and seen.begin_ms >= reach:
            yield group
            group = []
        group.append((slot, seen))
        reach = max(reach, seen.end_ms)
    if group:
        yield group
