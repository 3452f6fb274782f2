"""Servers that are busy a little all the time: the replicas, GPUs or slice that their busiest steps need.

What is proposed holds the peak of the SMs with room to spare, and the peak of the memory. Where only memory
keeps a server on its GPUs, that is shown and counted nowhere: what a server takes of memory may be a setting
of its own and no need.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

import numpy as np

from gpucost.attribution.deal import Flags
from gpucost.detectors.activity import Floats
from gpucost.detectors.findings import Draft, Episode, Subject, ViewTime
from gpucost.detectors.held import LEAST_COVERAGE
from gpucost.detectors.rule_settings import OversizedRequestSettings
from gpucost.detectors.rules import oversized_server_words as words
from gpucost.detectors.rules.idle_stretches import quiet_runs
from gpucost.detectors.rules.oversized_common import NAME, Candidate, Search
from gpucost.detectors.rules.oversized_server_load import ServerLoad
from gpucost.detectors.rules.oversized_server_needs import ServerNeed, server_needs
from gpucost.detectors.rules.workloads import JobRow
from gpucost.domain.time import HOUR_MS
from gpucost.settings.types import milliseconds

COUNTED, SHOWN = "serving_peak", "serving_memory"
_HALF = 0.5
"""Part that a server must be able to do without by its SMs, to be shown where its memory holds it. Ours."""
_IDLE_MS = 4 * HOUR_MS
"""GPUs that rest for so long while others of the server work are idle_allocation's (its ``serving``)."""


def serving_peak(search: Search, told: Collection[Subject]) -> Iterator[Candidate]:
    """``told`` are jobs of which another variant already says that they are too large."""
    table, use = search.table, search.use
    if not len(table.activity):
        return
    counts = use.sm_seen & use.memory_seen
    coverage, active = _coverage(search, counts), use.sm_active_ms
    counts = counts & ~_idles(search)
    for job in range(len(table.jobs)):
        row = table.row(job)
        settings, pods = search.settings(row), table.pods_of_job[job]
        if row.workload_class != "serving" or row.subject in told or table.is_shared[pods].any():
            continue
        run_ms = int(table.end[pods].max() - table.start[pods].min())
        if run_ms < milliseconds(settings.least_run):
            continue
        if not coverage[job] >= LEAST_COVERAGE:
            part = f"{100 * coverage[job]:.0f} % of the time"
            because = f"data are missing: SM activity and memory were observed for {part}"
            search.hold_back(row.subject, because, lacks_data=True)
        elif active[job] > 0:
            rows = use.rows(table.series_of_job[job])
            load = ServerLoad.of(search, rows[counts[rows]])
            need = _best(search, load, row, settings) if len(load.rows) else None
            if need is None:
                continue
            if run_ms >= milliseconds(settings.serving_history):
                draft = _draft(search, job, load, need, float(coverage[job]), settings)
                yield Candidate(draft, settings, float(search.expected[job]))
                continue
            because = f"a server must be seen for {settings.serving_history} to know its busiest hours"
            search.hold_back(row.subject, because, SHOWN if need.only_memory else COUNTED, lacks_data=True)


def _coverage(search: Search, counts: Flags) -> Floats:
    """Of each job: the part of what it held after the warm-up, rests too, that was seen."""
    table, use = search.table, search.use
    length = (table.activity.end - use.start).clip(min=0)
    seen = use.of_job(use.by_series(np.where(counts, length, 0).astype(np.float64)))
    held = np.bincount(table.job, table.gpus * (table.end - use.ready), len(table.jobs))
    return np.divide(seen, held, out=np.zeros(len(seen)), where=held > 0).clip(max=1.0)


def _idles(search: Search) -> Flags:
    """Rows of GPUs that idle, whatever others of their job do."""
    quiet = quiet_runs(search.table, _IDLE_MS)
    long = quiet.end - quiet.start >= _IDLE_MS
    steps = np.zeros(len(search.table.activity) + 1, np.int64)
    np.add.at(steps, quiet.first[long], 1)
    np.add.at(steps, quiet.last[long], -1)
    found: Flags = np.cumsum(steps[:-1]) > 0
    return found


def _best(
    search: Search, load: ServerLoad, row: JobRow, settings: OversizedRequestSettings
) -> ServerNeed | None:
    """What saves most; what only memory forbids where nothing else is worth it."""
    needs = [(load.mean(each.saved), each) for each in server_needs(search, load, row.job_kind, settings)]
    worth = [(saved, each) for saved, each in needs if saved >= settings.serving_saves]
    counted = [pair for pair in worth if not pair[1].only_memory]
    shown = [pair for pair in worth if pair[1].only_memory and pair[0] >= _HALF]
    return max(counted or shown, key=lambda pair: pair[0], default=(0.0, None))[1]


def _draft(
    search: Search,
    job: int,
    load: ServerLoad,
    need: ServerNeed,
    coverage: float,
    settings: OversizedRequestSettings,
) -> Draft:
    row, ended = search.table.row(job), search.ended(job)
    episodes = _claims(search, row.cluster, load, need)
    now = load.now(need.saved) if ended is None else 0.0
    at_most = "; at most, and nothing for certain while that memory is needed" if need.only_memory else ""
    return Draft(
        NAME,
        SHOWN if need.only_memory else COUNTED,
        row.subject,
        min(each.start_ms for each in episodes),
        words.summary(row, load, need),
        words.evidence(load, need, coverage),
        words.action(search, job, need, now),
        f"board time observed after the warm-up, without GPUs that idle, x {100 * load.mean(need.saved):.1f} "
        f"%: what it held beyond {words.needed(need)}{at_most}",
        team=row.team,
        queue=row.queue,
        user=row.user,
        ended_ms=ended,
        episodes=() if need.only_memory else episodes,
        view=tuple(_shown(each) for each in episodes) if need.only_memory else None,
        boards_now=now if need.only_memory else None,
        checked=(search.floor_in_words(settings), *words.checked(search, load, need, settings)),
    )


def _claims(search: Search, cluster: str, load: ServerLoad, need: ServerNeed) -> tuple[Episode, ...]:
    """By what is saved: rows that touch are one claim, and must not be evened out."""
    return tuple(
        episode
        for saved in np.unique(need.saved[need.saved > 0]).tolist()
        for episode in search.episodes(cluster, load.rows[need.saved == saved], saved)
    )


def _shown(episode: Episode) -> ViewTime:
    start, end = episode.start_ms, episode.end_ms
    return ViewTime(start, end, (episode.boards or 0.0) * (end - start), (episode.node,))
