"""How long jobs ran, out of the ledger: what the advisor's waits rest on."""

from __future__ import annotations

from dataclasses import dataclass

from gpucost.advisor.wait.runtimes import NO_HISTORY, PastRun, RunTimes
from gpucost.domain.scope import EVERYTHING
from gpucost.domain.time import Window
from gpucost.ledger import Ledger
from gpucost.ledger.runs import LONGEST_MS


def run_times_of(ledger: Ledger, cluster: str) -> RunTimes:
    """Run times of the jobs that held GPUs in the last 90 days of what the ledger has of ``cluster``: the
    50,000 that ended last (gpucost.ledger.runs says how they are told from usage lines).

    Left out are runs of which only a part is seen: those that still go on, since together with those that
    ended last they would hold too many long ones, and those that began before. Teams are what labels say, as
    the advisor has them; who may read of a run is by the team rules. Raises LedgerError.
    """
    extent = ledger.extent(cluster)
    if extent is None:
        return NO_HISTORY
    span = Window(max(extent.start_ms, extent.end_ms - LONGEST_MS), extent.end_ms)
    found = ledger.runs(EVERYTHING, cluster, span)
    return RunTimes(
        PastRun(run.team_label, run.job, run.gpus, run.held_ms, owner=run.team)
        for run in found
        if run.is_whole
    )


@dataclass
class History:
    """``run_times_of`` a cluster, read again only when the ledger has got later windows: to sum three months
    takes long, and windows that are written again change little."""

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
