"""How long jobs ran, out of the ledger: what the advisor's waits rest on."""

from __future__ import annotations

from gpucost.advisor.wait.runtimes import NO_HISTORY, PastRun, RunTimes
from gpucost.domain.holders import Bucket
from gpucost.domain.scope import EVERYTHING
from gpucost.domain.time import DAY_MS, Window
from gpucost.ledger import Ledger

HISTORY_MS = 30 * DAY_MS
"""How much of the ledger is read. Later runs count more, so what is older would change little."""


def run_times_of(ledger: Ledger, cluster: str) -> RunTimes:
    """Run times of the jobs that held GPUs in the last ``HISTORY_MS`` of what the ledger has of ``cluster``.

    A run is from the first to the last instant that a job held any; its GPUs are its mean over that time.
    One that was under way at the beginning or end of that time ran at least so long. Raises LedgerError.
    """
    extent = ledger.extent(cluster)
    if extent is None:
        return NO_HISTORY
    span = Window(max(extent.start_ms, extent.end_ms - HISTORY_MS), extent.end_ms)
    frame = ledger.aggregate(
        EVERYTHING,
        span,
        ("team", "job", "job_uid"),
        filters={"cluster": [cluster], "bucket": [Bucket.HELD.value]},
    ).sort_values(["last_ms", "job_uid"])
    columns = ("team", "job", "job_uid", "board_ms", "first_ms", "last_ms")
    return RunTimes(
        PastRun(
            str(team),
            str(name),
            max(1, round(board_ms / (last_ms - first_ms))),
            int(last_ms - first_ms),
            is_censored=bool(first_ms <= span.start_ms or last_ms >= span.end_ms),
        )
        for team, name, uid, board_ms, first_ms, last_ms in frame[[*columns]].itertuples(index=False)
        if uid and last_ms > first_ms
    )
