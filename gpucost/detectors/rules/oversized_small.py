"""Jobs of one GPU that would fit a slice of it. Servers are judged by their peak: ``oversized_servers``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from gpucost.attribution.deal import Flags, Ints
from gpucost.cluster.mig_fit import Fit, smallest_fit
from gpucost.detectors.findings import Action, Draft, Evidence
from gpucost.detectors.held import LEAST_COVERAGE
from gpucost.detectors.rule_settings import OversizedRequestSettings
from gpucost.detectors.rules.gpu_use import quantile
from gpucost.detectors.rules.oversized_common import GIB, NAME, OOM_UNKNOWN, Candidate, Search
from gpucost.detectors.rules.workloads import JobRow
from gpucost.domain.gpu import MIG_TABLES
from gpucost.domain.time import MINUTE_MS
from gpucost.settings.types import milliseconds

VARIANT = "fits_smaller"
_HANDOVER_MS = 10 * MINUTE_MS
"""How long a pod and the one that replaces it may run side by side in a job of one GPU."""


@dataclass(frozen=True)
class _Seen:
    """What was seen of one job: rows that count and say something, and their summary."""

    rows: Ints
    mean: float
    sm_p95: float
    memory_p99: float
    memory_total: float


def fits_smaller(search: Search) -> Iterator[Candidate]:
    table, use = search.table, search.use
    if not len(table.activity):
        return
    sm_ms, active, busy = use.sm_ms, use.sm_active_ms, use.busy_ms
    both = use.of_job(use.time(use.sm_seen & use.memory_seen))
    mean = np.divide(active, sm_ms, out=np.full(len(active), np.nan), where=sm_ms > 0)
    for job in np.flatnonzero(_of_one_gpu(search)).tolist():
        row = table.row(job)
        settings = search.settings(row)
        least = milliseconds(settings.least_run)
        worked = search.expected[job]
        if (
            row.workload_class == "serving"
            or search.held_ms[job] < least
            or worked < least - milliseconds(settings.warm_up)
        ):
            continue
        if (active[job] == 0 and busy[job] == 0 and both[job] > 0) or mean[job] > settings.small_sm:
            continue
        if both[job] < LEAST_COVERAGE * worked:
            part = 100 * both[job] / worked
            because = f"data are missing: SM activity and memory were observed for {part:.0f} % of the time"
            search.hold_back(row.subject, because, VARIANT, lacks_data=True)
            continue
        if not np.isnan(mean[job]) and mean[job] > 0 and _one_after_another(search, job):
            found = _judge(search, job, row, settings, float(mean[job]))
            if found is not None:
                yield found


def _of_one_gpu(search: Search) -> Flags:
    """Jobs whose pods each have one whole board of a model that can be divided."""
    table = search.table
    divisible = {node for node, model in search.models.items() if model in MIG_TABLES}
    fits = table.whole & (table.gpus == 1) & table.pods["node"].isin(list(divisible)).to_numpy(np.bool_)
    others = np.bincount(table.job, weights=~fits, minlength=len(table.jobs))
    found: Flags = others == 0
    return found


def _one_after_another(search: Search, job: int) -> bool:
    pods = search.table.pods_of_job[job]
    if len(pods) == 1:
        return True
    order = pods[np.argsort(search.table.start[pods], kind="stable")]
    start, end = search.table.start[order], search.table.end[order]
    return bool((np.maximum.accumulate(end)[:-1] <= start[1:] + _HANDOVER_MS).all())


def _judge(
    search: Search, job: int, row: JobRow, settings: OversizedRequestSettings, mean: float
) -> Candidate | None:
    seen = _seen(search, job, mean)
    model = search.models[search.table.nodes[int(search.table.pods_of_job[job][-1])]]
    basis = search.facts.history.basis
    fit = smallest_fit(model, seen.memory_total, seen.memory_p99, seen.sm_p95, settings.memory_room, basis)
    if fit is None:
        return None
    return Candidate(
        _draft(search, job, row, settings, seen, fit, _host_words(search.host_share(job), settings)),
        settings,
        float(search.expected[job]),
    )


def _host_words(host: tuple[float, float] | None, settings: OversizedRequestSettings) -> str:
    """What is known of cores and host memory. It decides nothing: history does not say it, and what is found
    now must be what the waste ledger counts."""
    if host is None:
        return "what it asks of cores and host memory is not known"
    if host[0] > settings.most_cores or host[1] > settings.most_host_gib:
        return f"it asks for {host[0]:g} cores and {host[1]:.0f} GiB of host memory: ask for less of them too"
    return "it asks for no more than a GPU's share of cores and host memory"


def _seen(search: Search, job: int, mean: float) -> _Seen:
    use, values = search.use, search.table.activity.values
    rows = use.rows(search.table.series_of_job[job])
    rows = rows[use.sm_seen[rows] & use.memory_seen[rows]]
    weights = use.length[rows]
    sm = values["sm_active_ms"][rows] / values["sm_observed_ms"][rows]
    memory = values["memory_used_bytes"][rows]
    total = float(values["memory_total_bytes"][rows].min())
    return _Seen(rows, mean, quantile(sm, weights, 0.95), quantile(memory, weights, 0.99), total)


def _draft(
    search: Search,
    job: int,
    row: JobRow,
    settings: OversizedRequestSettings,
    seen: _Seen,
    fit: Fit,
    host: str,
) -> Draft:
    freed = float(1 - fit.share)
    episodes = search.episodes(row.cluster, seen.rows, freed)
    resource = f"nvidia.com/mig-{fit.profile}"
    offering = search.nodes_offering.get(resource, 0)
    where = "" if offering else "; no node offers it now: divide a board"
    ended = search.ended(job)
    memory, room = seen.memory_p99 / GIB, fit.memory / GIB
    return Draft(
        NAME,
        VARIANT,
        row.subject,
        min(each.start_ms for each in episodes),
        f"{row.job_kind} {row.subject} uses {100 * seen.mean:.1f} % of its GPU's SMs and {memory:.1f} GiB of "
        f"its memory: it fits {fit.profile}, {fit.share} of the board",
        (
            Evidence("SM activity, mean", round(100 * seen.mean, 2), "%", "DCGM_FI_PROF_SM_ACTIVE"),
            Evidence("SM activity, 95th percentile", round(100 * seen.sm_p95, 2), "%", "of steps"),
            Evidence("GPU memory, 99th percentile", round(memory, 2), "GiB", "DCGM_FI_DEV_FB_USED"),
            Evidence("smallest slice that fits", fit.profile, "", f"{room:.1f} GiB"),
            Evidence("nodes that offer it", offering, "", f"{resource} in status.capacity"),
        ),
        Action(
            f"Ask for one {fit.profile} slice instead of a whole GPU{where}",
            f'resources:\n  limits:\n    "{resource}": 1',
            freed if ended is None else 0.0,
        ),
        f"board time observed after the warm-up x (1 - {fit.share})",
        team=row.team,
        queue=row.queue,
        user=row.user,
        ended_ms=ended,
        episodes=episodes,
        checked=(
            search.floor_in_words(settings),
            host,
            OOM_UNKNOWN,
            f"{100 * seen.sm_p95:.1f} % of the SMs are enough for all but its busiest 5 % of steps",
        ),
    )
