"""The jobs that run where the ledger ends, and those that wait with a foretold start: what a forecast knows
of the days to come.

No live source is asked. A job runs on that held GPUs until the end of its cluster's last window; a wait is
known where ``gpucost serve`` foretold it, and it has neither started nor gone.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple

import pandas as pd

from gpucost.advisor.wait.run_times import PastRun, RunTimes
from gpucost.domain.buckets import Bucket
from gpucost.domain.scope import EVERYTHING, Scope
from gpucost.domain.time import DAY_MS, Window
from gpucost.ledger.stores.predictions import WaitPrediction
from gpucost.ledger.usage.run_history import JobRun
from gpucost.reports.month.work_ahead import AheadJob, times_left
from gpucost.service.reporting.report_service import ReportService

LEARNT_MS = 30 * DAY_MS
"""How far back runs are read, from the last midnight: once a day, since it takes seconds."""
_DIMS = ("team", "project", "cluster_queue", "job", "job_uid")


@dataclass(frozen=True, slots=True)
class WorkAhead:
    """``jobs`` that go on after ``end_ms``, where the ledger ends. ``not_counted`` says which are left out,
    and why; empty where none is."""

    end_ms: int
    jobs: tuple[AheadJob, ...]
    not_counted: str

    @property
    def waiting(self) -> int:
        return sum(job.waits for job in self.jobs)

    @property
    def running(self) -> int:
        return len(self.jobs) - self.waiting


def work_ahead(reporting: ReportService, scope: Scope, *, as_of_ms: int | None = None) -> WorkAhead:
    """Of the clusters that the ledger still follows, and the teams in ``scope``. Where the ledger ends after
    ``as_of_ms``, what ran then is not known."""
    ledger, extent = reporting.ledger, reporting.ledger.extent(scope=scope)
    if extent is None:
        return WorkAhead(0, (), "")
    if as_of_ms is not None and extent.end_ms > as_of_ms:
        lacks = "jobs, as the ledger knows what runs where it ends, later than this"
        return WorkAhead(extent.end_ms, (), lacks)
    ends = {name: ledger.extent(name, scope=scope) for name in ledger.clusters(scope=scope)}
    # A cluster without windows of the last day is followed no more.
    followed = {name: own for name, own in ends.items() if own and own.end_ms > extent.end_ms - DAY_MS}
    waits = {name: _waits(reporting, scope, name, own.end_ms) for name, own in followed.items()}

    def made() -> WorkAhead:
        found = [_ClusterAhead.read(reporting, scope, name, own) for name, own in followed.items()]
        jobs = [job for each in found for job in (*each.running(), *each.waiting(waits[each.cluster]))]
        unpriced = sum(each.left_out for each in found)
        lacks = [f"{unpriced:,} running jobs without a price or a uid"] if unpriced else []
        known, counted = sum(map(len, waits.values())), sum(job.waits for job in jobs)
        if not known:
            lacks.append("waiting jobs: no start is foretold")
        elif counted < known:
            lacks.append(f"{known - counted:,} waiting jobs: their team has held nothing of late")
        return WorkAhead(extent.end_ms, tuple(jobs), "; ".join(lacks))

    span = Window(max(extent.start_ms, extent.end_ms - LEARNT_MS), extent.end_ms)
    beside = tuple((name, each.workload_uid) for name, found in waits.items() for each in found)
    return reporting.steady(scope, span, made, asked=("work ahead",), beside=lambda: beside).report


def waits_ahead(reporting: ReportService) -> tuple[tuple[str, str], ...]:
    """By cluster and uid, the workloads whose start is foretold: what ``work_ahead`` is made from besides the
    windows."""
    ledger = reporting.ledger
    clusters = ledger.clusters(scope=EVERYTHING)
    known = ((name, ledger.foretold(name, most=1, scope=EVERYTHING)) for name in clusters)
    return tuple((name, each.workload_uid) for name, found in known for each in found if not each.is_decided)


def _waits(reporting: ReportService, scope: Scope, cluster: str, end_ms: int) -> tuple[WaitPrediction, ...]:
    """Those whose start is foretold, asked before the ledger's end; within a day of it, where it is later."""
    return tuple(
        each
        for each in reporting.ledger.foretold(cluster, most=1, scope=scope)
        if not each.is_decided and each.p50_ms is not None and each.gpus and each.asked_ms < end_ms + DAY_MS
    )


def _runs(reporting: ReportService, cluster: str, extent: Window, midnight_ms: int) -> tuple[JobRun, ...]:
    if midnight_ms <= extent.start_ms:
        return ()
    span = Window(max(extent.start_ms, midnight_ms - LEARNT_MS), midnight_ms)
    return reporting.steady(
        EVERYTHING,
        span,
        lambda: reporting.ledger.runs(EVERYTHING, cluster, span),
        asked=("runs ahead", cluster),
    ).report


def _run_times(runs: Iterable[JobRun]) -> RunTimes:
    """Of whole runs, by their team by the team rules: the advisor has a label only, which any author may
    write."""
    return RunTimes(PastRun(run.team, run.job, run.gpus, run.held_ms) for run in runs if run.is_whole)


class _JobLine(NamedTuple):
    """What a job held on its cluster's last day."""

    team: str
    project: str
    cluster_queue: str
    job: str
    job_uid: str
    nano: int
    priced_ms: int
    first_ms: int
    last_ms: int


@dataclass(frozen=True, slots=True)
class _ClusterAhead:
    """One cluster where the ledger ends: ``lines`` since its last midnight, ``runs`` of all teams before."""

    cluster: str
    end_ms: int
    lines: tuple[_JobLine, ...]
    left_out: int
    runs: Mapping[tuple[str, str], JobRun]
    learnt: RunTimes

    @classmethod
    def read(cls, reporting: ReportService, scope: Scope, cluster: str, extent: Window) -> _ClusterAhead:
        ledger, end_ms = reporting.ledger, extent.end_ms
        midnight_ms = max(extent.start_ms, (end_ms - 1) // DAY_MS * DAY_MS)
        filters = {"bucket": frozenset({Bucket.HELD.value}), "cluster": frozenset({cluster})}
        rows = ledger.aggregate(scope, Window(midnight_ms, end_ms), _DIMS, filters=filters)
        runs = _runs(reporting, cluster, extent, midnight_ms)
        lines, times = tuple(_lines(rows)), _run_times(runs)
        return cls(
            cluster,
            end_ms,
            lines,
            int((rows["last_ms"] >= end_ms).sum()) - sum(line.last_ms >= end_ms for line in lines),
            {(run.job_uid, run.team): run for run in runs},
            times if scope.teams is None else times.seen_by(scope.teams),
        )

    def running(self) -> Iterator[AheadJob]:
        for line in self.lines:
            held_ms = line.last_ms - line.first_ms
            if line.last_ms < self.end_ms or held_ms <= 0:
                continue
            run = self.runs.get((line.job_uid, line.team))
            gpus, elapsed_ms = max(1, round(line.priced_ms / held_ms)), held_ms
            if run is not None:
                gpus, elapsed_ms = run.gpus, held_ms + run.held_ms
            yield AheadJob(
                *line[:3],
                self.cluster,
                self.end_ms,
                times_left(self.learnt.like(line.team, line.job, gpus), elapsed_ms),
                Fraction(line.nano, held_ms),
            )

    def waiting(self, waits: tuple[WaitPrediction, ...]) -> Iterator[AheadJob]:
        """At the mean price of what its team holds."""
        nano, priced_ms = defaultdict[str, int](int), defaultdict[str, int](int)
        for line in self.lines:
            nano[line.team] += line.nano
            priced_ms[line.team] += line.priced_ms
        for each in waits:
            if not priced_ms[each.team] or not each.gpus or each.p50_ms is None:
                continue
            yield AheadJob(
                each.team,
                "",
                each.queue,
                self.cluster,
                max(self.end_ms, each.asked_ms + each.p50_ms),
                times_left(self.learnt.like(each.team, each.name, each.gpus), 0),
                Fraction(each.gpus * nano[each.team], priced_ms[each.team]),
                waits=True,
            )


def _lines(rows: pd.DataFrame) -> Iterator[_JobLine]:
    """Those of jobs with a uid and a price."""
    columns = (*_DIMS, "nano", "board_ms", "unpriced_ms", "first_ms", "last_ms")
    priced = rows[rows["nano"].notna() & (rows["job_uid"] != "") & (rows["unpriced_ms"] < rows["board_ms"])]
    for team, project, queue, job, uid, nano, board_ms, unpriced_ms, first_ms, last_ms in zip(
        *(priced[name].tolist() for name in columns), strict=True
    ):
        yield _JobLine(
            team, project, queue, job, uid, int(nano), board_ms - unpriced_ms, int(first_ms), int(last_ms)
        )
