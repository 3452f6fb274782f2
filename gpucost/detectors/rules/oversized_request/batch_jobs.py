"""Batch jobs that are too large: of one GPU that would fit a slice of it, and of several GPUs of which half
work.

The second kind uses at most half of its GPUs, while the others do a little: two groups with a gap between
them. Where activity falls off evenly the job has low efficiency, and it cannot be decided which GPUs are too
many. Servers are judged by their peak: ``servers``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from gpucost.attribution.apportion import Flags, Ints
from gpucost.cluster.views.node_fit import MigSliceFit, smallest_fit
from gpucost.detectors.allocation_pieces import LEAST_COVERAGE, amount
from gpucost.detectors.findings import FindingAction, FindingDraft, FindingEvidence
from gpucost.detectors.inputs.activity_table import Floats
from gpucost.detectors.inputs.job_tables import JobAttributes
from gpucost.detectors.request_patches import RESTART, RequestingPod, request_action
from gpucost.detectors.rule_settings import OversizedRequestSettings
from gpucost.detectors.rules.oversized_request.candidates import (
    GIB,
    NAME,
    OOM_UNKNOWN,
    OversizedCandidate,
    OversizedSearch,
    quantile,
)
from gpucost.domain.gpu import MIG_TABLES
from gpucost.domain.time import MINUTE_MS
from gpucost.settings.types import milliseconds

SLICE_VARIANT = "fits_smaller"
_HANDOVER_MS = 10 * MINUTE_MS
"""How long a pod and its replacement may run side by side in a job of one GPU."""


@dataclass(frozen=True)
class _ObservedUse:
    """What was observed of one job: rows that count and have values, and their summary."""

    rows: Ints
    mean: float
    sm_p95: float
    memory_p99: float
    memory_total: float


def fits_smaller(search: OversizedSearch) -> Iterator[OversizedCandidate]:
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
            search.hold_back(row.subject, because, SLICE_VARIANT, lacks_data=True)
            continue
        if not np.isnan(mean[job]) and mean[job] > 0 and _one_after_another(search, job):
            found = _judge(search, job, row, settings, float(mean[job]))
            if found is not None:
                yield found


def _of_one_gpu(search: OversizedSearch) -> Flags:
    """Jobs whose pods each have one whole GPU of a model that can be divided."""
    table = search.table
    divisible = {node for node, model in search.models.items() if model in MIG_TABLES}
    fits = table.whole & (table.gpus == 1) & table.pods["node"].isin(list(divisible)).to_numpy(np.bool_)
    others = np.bincount(table.job, weights=~fits, minlength=len(table.jobs))
    found: Flags = others == 0
    return found


def _one_after_another(search: OversizedSearch, job: int) -> bool:
    pods = search.table.pods_of_job[job]
    if len(pods) == 1:
        return True
    order = pods[np.argsort(search.table.start[pods], kind="stable")]
    start, end = search.table.start[order], search.table.end[order]
    return bool((np.maximum.accumulate(end)[:-1] <= start[1:] + _HANDOVER_MS).all())


def _judge(
    search: OversizedSearch, job: int, row: JobAttributes, settings: OversizedRequestSettings, mean: float
) -> OversizedCandidate | None:
    seen = _seen(search, job, mean)
    model = search.models[search.table.nodes[int(search.table.pods_of_job[job][-1])]]
    basis = search.facts.history.basis
    fit = smallest_fit(model, seen.memory_total, seen.memory_p99, seen.sm_p95, settings.memory_room, basis)
    if fit is None:
        return None
    return OversizedCandidate(
        _draft(search, job, row, settings, seen, fit, _host_words(search.host_share(job), settings)),
        settings,
        float(search.expected[job]),
    )


def _host_words(host: tuple[float, float] | None, settings: OversizedRequestSettings) -> str:
    """Cores and host memory, as text. They decide nothing: they are not in the history, and a finding of now
    must be what the waste ledger counts."""
    if host is None:
        return "what it asks of cores and host memory is not known"
    if host[0] > settings.most_cores or host[1] > settings.most_host_gib:
        return f"it asks for {host[0]:g} cores and {host[1]:.0f} GiB of host memory: ask for less of them too"
    return "it asks for no more than a GPU's share of cores and host memory"


def _seen(search: OversizedSearch, job: int, mean: float) -> _ObservedUse:
    use, values = search.use, search.table.activity.values
    rows = use.rows(search.table.series_of_job[job])
    rows = rows[use.sm_seen[rows] & use.memory_seen[rows]]
    weights = use.length[rows]
    sm = values["sm_active_ms"][rows] / values["sm_observed_ms"][rows]
    memory = values["memory_used_bytes"][rows]
    total = float(values["memory_total_bytes"][rows].min())
    return _ObservedUse(rows, mean, quantile(sm, weights, 0.95), quantile(memory, weights, 0.99), total)


def _draft(
    search: OversizedSearch,
    job: int,
    row: JobAttributes,
    settings: OversizedRequestSettings,
    seen: _ObservedUse,
    fit: MigSliceFit,
    host: str,
) -> FindingDraft:
    freed = float(1 - fit.share)
    episodes = search.episodes(row.cluster, seen.rows, freed)
    resource = f"nvidia.com/mig-{fit.profile}"
    offering = search.nodes_offering.get(resource, 0)
    where = "" if offering else "; no node offers it now: divide a GPU"
    ended = search.ended(job)
    memory, room = seen.memory_p99 / GIB, fit.memory / GIB
    return FindingDraft(
        NAME,
        SLICE_VARIANT,
        row.subject,
        min(each.start_ms for each in episodes),
        f"{row.job_kind} {row.subject} uses {100 * seen.mean:.1f} % of its GPU's SMs and {memory:.1f} GiB of "
        f"its memory: it fits {fit.profile}, {fit.share} of the GPU",
        (
            FindingEvidence("SM activity, mean", round(100 * seen.mean, 2), "%", "DCGM_FI_PROF_SM_ACTIVE"),
            FindingEvidence("SM activity, 95th percentile", round(100 * seen.sm_p95, 2), "%", "of steps"),
            FindingEvidence("GPU memory, 99th percentile", round(memory, 2), "GiB", "DCGM_FI_DEV_FB_USED"),
            FindingEvidence("smallest slice that fits", fit.profile, "", f"{room:.1f} GiB"),
            FindingEvidence("nodes that offer it", offering, "", f"{resource} in status.capacity"),
        ),
        FindingAction(
            f"Ask for one {fit.profile} slice instead of a whole GPU{where}",
            f'resources:\n  limits:\n    "{resource}": 1',
            freed if ended is None else 0.0,
        ),
        f"GPU time observed after the warm-up x (1 - {fit.share})",
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


COUNT_VARIANT = "too_many_gpus"
_TOGETHER_MS = 5 * MINUTE_MS
"""Pods of a job that end this close to one another ran side by side."""
_GAP = 3.0
"""How many times as much the least busy of the GPUs in use must do as the busiest of the others, by their
95th percentiles. Ours."""


@dataclass(frozen=True)
class _Activity:
    """Per series: whether it was observed well enough, in what part of that it was used, and if at all."""

    seen: Flags
    above: Floats
    time: Floats
    worked: Flags
    level: Floats
    """Per row."""

    @property
    def is_used(self) -> Flags:
        """Its 95th percentile reaches the threshold: more than a twentieth of the time is at or above it."""
        found: Flags = self.above > 0.05 * self.time
        return found


def too_many_gpus(search: OversizedSearch) -> Iterator[OversizedCandidate]:
    table = search.table
    if not len(table.activity):
        return
    activities = dict[float, _Activity]()
    last = np.zeros(len(table.jobs), np.int64)
    np.maximum.at(last, table.job, table.end)
    current = table.end >= last[table.job] - _TOGETHER_MS
    several = np.bincount(table.job, weights=table.gpus * current, minlength=len(table.jobs)) > 1
    for job in np.flatnonzero(several).tolist():
        row = table.row(job)
        settings = search.settings(row)
        activity = activities.get(settings.used_activity)
        if activity is None:
            activity = activities[settings.used_activity] = _activity(search, settings.used_activity)
        pods = table.pods_of_job[job]
        pods = pods[current[pods]]
        length = int(table.end[pods].min() - search.use.ready[pods].max())
        if length < milliseconds(settings.unused_for) or search.held_ms[job] < milliseconds(
            settings.least_run
        ):
            continue
        series = table.series_of_job[job]
        series = series[current[table.pod[series]]]
        found = _judge_count(search, row, job, pods, series, activity, settings)
        if found is not None:
            yield found


def _activity(search: OversizedSearch, threshold: float) -> _Activity:
    use, activity = search.use, search.table.activity
    level = use.share("busy_ms", "observed_ms", activity.is_observed)
    time = use.time(activity.is_observed)
    above = use.time(np.nan_to_num(level) >= threshold)
    worked = use.busy_by_series > 0
    return _Activity(time >= LEAST_COVERAGE * use.expected, above, time, worked, level)


def _judge_count(
    search: OversizedSearch,
    row: JobAttributes,
    job: int,
    pods: Ints,
    series: Ints,
    activity: _Activity,
    settings: OversizedRequestSettings,
) -> OversizedCandidate | None:
    n = int(search.table.gpus[pods].sum())
    worked = search.use.expected[series]
    if len(series) and worked.max() < milliseconds(settings.unused_for):
        return None
    seen = series[activity.seen[series]]
    used = int(activity.is_used[seen].sum())
    if 2 * used > n:
        return None
    little = seen[~activity.is_used[seen] & activity.worked[seen]]
    if len(seen) < n and 2 * (used + n - len(seen)) > n:
        # Whether the job is too large depends on GPUs that were not observed.
        because = (
            f"data are missing: {n - len(seen)} of its {n} GPUs were observed for too little of the time"
        )
        search.hold_back(row.subject, because, COUNT_VARIANT, lacks_data=True)
        return None
    if used == 0 or not len(little):
        return None
    if row.workload_class == "serving" and search.held_ms[job] < milliseconds(settings.serving_history):
        because = f"a server must be seen for {settings.serving_history} to know its busiest hours"
        search.hold_back(row.subject, because, COUNT_VARIANT, lacks_data=True)
        return None
    often = {each: _often(search, activity, each) for each in seen.tolist()}
    least = min(often[each] for each in seen[activity.is_used[seen]].tolist())
    most = max(often[each] for each in seen[~activity.is_used[seen]].tolist())
    if _GAP * most > least * (1 + 1e-9):
        return None
    groups = _Groups(n, used, len(little), len(seen) - used - len(little), least, most)
    return _candidate(search, row, job, groups, little, activity, settings)


def _often(search: OversizedSearch, activity: _Activity, series: int) -> float:
    """The 95th percentile of a GPU's activity, 0 to 1."""
    rows = search.use.rows(np.array([series], np.int64))
    return quantile(activity.level[rows], search.use.length[rows], 0.95)


@dataclass(frozen=True, slots=True)
class _Groups:
    """The GPUs of a job: how many of ``all`` were in use, did a little, and did nothing; the rest is unknown.
    ``least`` and ``most`` are the 95th percentiles on both sides of the gap, 0 to 1."""

    all: int
    used: int
    little: int
    nothing: int
    least: float
    most: float

    @property
    def unseen(self) -> int:
        return self.all - self.used - self.little - self.nothing

    def __str__(self) -> str:
        """All groups, so that the numbers add up."""
        parts = [f"{self.little} hardly ever {'works' if self.little == 1 else 'work'}"]
        if self.nothing:
            parts.append(f"{self.nothing} never {'does' if self.nothing == 1 else 'do'}")
        if self.unseen:
            parts.append(f"{self.unseen} {'was' if self.unseen == 1 else 'were'} not observed well enough")
        return f"uses {self.used} of its {amount(self.all, 'GPU')}; of the others {', '.join(parts)}"


def _candidate(
    search: OversizedSearch,
    row: JobAttributes,
    job: int,
    groups: _Groups,
    little: Ints,
    activity: _Activity,
    settings: OversizedRequestSettings,
) -> OversizedCandidate:
    rows = search.use.rows(little)
    rows = rows[search.table.activity.is_observed[rows]]
    episodes = search.episodes(row.cluster, rows, 1.0)
    ended = search.ended(job)
    names = ", ".join(sorted({search.table.gpu_names[each] for each in little.tolist()})[:8])
    above = 100 * float((activity.above[little] / activity.time[little]).max())
    threshold = 100 * settings.used_activity
    draft = FindingDraft(
        NAME,
        COUNT_VARIANT,
        row.subject,
        min(each.start_ms for each in episodes),
        f"{row.job_kind} {row.subject} {groups}",
        (
            FindingEvidence("GPUs", groups.all),
            FindingEvidence(
                "GPUs in use", groups.used, "", f"95th percentile of activity at least {threshold:g} %"
            ),
            FindingEvidence(
                "GPUs that do nothing at all", groups.nothing, "", "idle_allocation has their time"
            ),
            *([FindingEvidence("GPUs not observed well enough", groups.unseen)] if groups.unseen else []),
            FindingEvidence("95th percentile of the least busy in use", round(100 * groups.least, 2), "%"),
            FindingEvidence("95th percentile of the busiest other", round(100 * groups.most, 2), "%"),
            FindingEvidence("GPUs that do a little", names),
            FindingEvidence("time they work more than that", round(above, 2), "%", "of the busiest of them"),
        ),
        _action(search, row, job, groups, len(little) if ended is None else 0),
        "GPU time of the GPUs that do a little, observed after the warm-up; those that do nothing at all "
        "are with idle_allocation",
        team=row.team,
        queue=row.queue,
        user=row.user,
        ended_ms=ended,
        episodes=episodes,
        checked=(
            search.floor_in_words(settings),
            "every GPU that decides it was observed",
            f"those in use do at least {_GAP:g} times as much as the others",
        ),
    )
    return OversizedCandidate(draft, settings, float(search.use.length[rows].sum()))


def _action(
    search: OversizedSearch, row: JobAttributes, job: int, groups: _Groups, freed: int
) -> FindingAction:
    table = search.table
    pods = table.pods_of_job[job]
    per_pod, last = int(table.gpus[pods].max()), int(pods[-1])
    if per_pod >= groups.all:
        who = RequestingPod(row.job_kind, row.namespace, row.job, table.names[last])
        text = f"Ask for {amount(groups.used, 'GPU')} instead of {groups.all}"
        return request_action(text, who, table.resources[last], groups.used, float(freed))
    left = -(-groups.used // per_pod)
    text = f"Run it with {amount(left, 'pod')} of {amount(per_pod, 'GPU')}: {groups.all} GPUs are too many. "
    return FindingAction(text + RESTART, "", float(min(freed, groups.all - left * per_pod)))
