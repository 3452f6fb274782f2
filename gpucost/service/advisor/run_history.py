"""Past runs of jobs, from the ledger: how long they ran, and how much of their GPUs they used.

The advisor's wait predictions rest on the run times, and its suggestions of smaller sizes on the usage.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from gpucost.advisor.wait.run_times import (
    NO_HISTORY,
    PastUse,
    RunTimes,
    name_pattern,
)
from gpucost.domain.scope import EVERYTHING, Scope
from gpucost.domain.time import DAY_MS, Window
from gpucost.ledger.ledger import Ledger
from gpucost.ledger.usage.run_history import LONGEST_MS, JobUse, learnt


def run_times_of(ledger: Ledger, cluster: str) -> RunTimes:
    """Run times of the jobs that held GPUs in the last 90 days of what the ledger has of ``cluster``: the
    50,000 that ended last (gpucost.ledger.usage.run_history says how runs are derived from usage lines).
    Raises LedgerError.
    """
    extent = ledger.extent(cluster)
    if extent is None:
        return NO_HISTORY
    span = Window(max(extent.start_ms, extent.end_ms - LONGEST_MS), extent.end_ms)
    return learnt(ledger.runs(EVERYTHING, cluster, span))


@dataclass
class RunHistory:
    """``run_times_of`` a cluster, read again only when the ledger has got later windows: adding up three
    months takes long, and windows that are written again change little."""

    ledger: Ledger
    cluster: str
    _end_ms: int | None = None
    _run_times: RunTimes = NO_HISTORY

    def __call__(self) -> RunTimes:
        """Raises LedgerError."""
        extent = self.ledger.extent(self.cluster)
        end_ms = None if extent is None else extent.end_ms
        if end_ms != self._end_ms:
            self._run_times = run_times_of(self.ledger, self.cluster)
            self._end_ms = end_ms
        return self._run_times


HISTORY_MS = 30 * DAY_MS
LEAST_RUNS = 3
"""Ended runs that are needed: a single one may have failed before it used anything."""
MOST_RUNS = 20
"""Runs of similar jobs that are read, those that ended last."""
LEAST_SEEN = 0.9
"""Least part of a run's GPU time in which memory and SM activity were observed: the peak may lie in the rest.
"""
_MIB = 2**20


@dataclass(frozen=True, slots=True)
class PastUses:
    """``runs`` by namespace and name pattern, the newest first."""

    runs: Mapping[tuple[str, str], Sequence[JobUse]]

    def like(self, namespace: str, name: str, teams: Collection[str] | None = None) -> PastUse | None:
        """What jobs with a similar name in the same namespace used, those of ``teams`` only, where given: a
        namespace may be of several. None where there are too few.

        Runs on another model than the last one are left out: they are not comparable. Usage lines have sums
        by window, no quantiles: the peak stands for the 99th percentile of memory, and the highest of the
        windows' SM activity while anything ran for the 95th of SM activity. Both err on the high side. The
        sums do not say how many of a pod's GPUs were busy.
        """
        found = self.runs.get((namespace, name_pattern(name)), ())
        return _joined([run for run in found if teams is None or run.team in teams])


def past_uses_of(ledger: Ledger, cluster: str, extent: Window) -> PastUses:
    """Whole runs on whole GPUs of the last 30 days of ``extent``: those after its last rolled-up day. Raises
    LedgerError."""
    span = Window(max(extent.start_ms, extent.end_ms - HISTORY_MS), extent.end_ms)
    folded = ledger.folded_days(Scope(None, frozenset({cluster})), span)
    start_ms = max((span.start_ms, *(day.end_ms for day in folded)))
    like: dict[tuple[str, str], list[JobUse]] = {}
    for use in reversed(ledger.uses(EVERYTHING, cluster, span)):
        is_whole = start_ms < use.first_ms and use.last_ms < span.end_ms
        if is_whole and min(use.memory_seen, use.sm_seen) >= LEAST_SEEN:
            like.setdefault((use.namespace, name_pattern(use.job)), []).append(use)
    return PastUses(like)


def _joined(runs: Sequence[JobUse]) -> PastUse | None:
    """The most that any of ``runs``, the newest first, used; None where there are too few."""
    same = [run for run in runs if run.model == runs[0].model][:MOST_RUNS]
    if len(same) < LEAST_RUNS:
        return None
    return PastUse(
        same[0].model,
        min(run.memory_total_mib for run in same) * _MIB,
        float(max(run.memory_peak_mib for run in same) * _MIB),
        max(run.sm_busy for run in same),
        runs=len(same),
    )
