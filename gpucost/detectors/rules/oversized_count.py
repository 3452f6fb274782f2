"""Jobs that use at most half of their GPUs, while the others do a little: two groups with a gap between them.
Where activity falls off evenly the job has low efficiency, and nobody can say which GPUs are too many."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from gpucost.attribution.deal import Flags, Ints
from gpucost.detectors.activity import Floats
from gpucost.detectors.findings import Action, Draft, Evidence
from gpucost.detectors.held import LEAST_COVERAGE, amount
from gpucost.detectors.rule_settings import OversizedRequestSettings
from gpucost.detectors.rules.gpu_use import quantile
from gpucost.detectors.rules.oversized_common import NAME, Candidate, Search
from gpucost.detectors.rules.pod_templates import RESTART, Asker, ask
from gpucost.detectors.rules.workloads import JobRow
from gpucost.domain.time import MINUTE_MS
from gpucost.settings.types import milliseconds

VARIANT = "too_many_gpus"
_TOGETHER_MS = 5 * MINUTE_MS
"""Pods of a job that end this close to one another ran side by side."""
_GAP = 3.0
"""How many times as much the least busy of the GPUs in use must do as the busiest of the others, by their
95th percentiles. Ours."""


@dataclass(frozen=True)
class _Activity:
    """Of each series: whether it was seen well enough, in what part of that it was used, and if at all."""

    seen: Flags
    above: Floats
    time: Floats
    worked: Flags
    level: Floats
    """Of each row."""

    @property
    def is_used(self) -> Flags:
        """Its 95th percentile reaches the threshold: more than a twentieth of the time is at or above it."""
        found: Flags = self.above > 0.05 * self.time
        return found


def too_many_gpus(search: Search) -> Iterator[Candidate]:
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
        found = _judge(search, row, job, pods, series, activity, settings)
        if found is not None:
            yield found


def _activity(search: Search, threshold: float) -> _Activity:
    use, activity = search.use, search.table.activity
    level = use.share("busy_ms", "observed_ms", activity.is_observed)
    time = use.time(activity.is_observed)
    above = use.time(np.nan_to_num(level) >= threshold)
    worked = use.busy_by_series > 0
    return _Activity(time >= LEAST_COVERAGE * use.expected, above, time, worked, level)


def _judge(
    search: Search,
    row: JobRow,
    job: int,
    pods: Ints,
    series: Ints,
    activity: _Activity,
    settings: OversizedRequestSettings,
) -> Candidate | None:
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
        # Whether the job is too large depends on GPUs that nobody saw.
        because = (
            f"data are missing: {n - len(seen)} of its {n} GPUs were observed for too little of the time"
        )
        search.hold_back(row.subject, because, VARIANT, lacks_data=True)
        return None
    if used == 0 or not len(little):
        return None
    if row.workload_class == "serving" and search.held_ms[job] < milliseconds(settings.serving_history):
        because = f"a server must be seen for {settings.serving_history} to know its busiest hours"
        search.hold_back(row.subject, because, VARIANT, lacks_data=True)
        return None
    often = {each: _often(search, activity, each) for each in seen.tolist()}
    least = min(often[each] for each in seen[activity.is_used[seen]].tolist())
    most = max(often[each] for each in seen[~activity.is_used[seen]].tolist())
    if _GAP * most > least * (1 + 1e-9):
        return None
    groups = _Groups(n, used, len(little), len(seen) - used - len(little), least, most)
    return _candidate(search, row, job, groups, little, activity, settings)


def _often(search: Search, activity: _Activity, series: int) -> float:
    """The 95th percentile of a GPU's activity, 0 to 1."""
    rows = search.use.rows(np.array([series], np.int64))
    return quantile(activity.level[rows], search.use.length[rows], 0.95)


@dataclass(frozen=True, slots=True)
class _Groups:
    """The GPUs of a job: how many of ``all`` were in use, did a little, and did nothing; of the rest nobody
    knows. ``least`` and ``most`` are the 95th percentiles on both sides of the gap, 0 to 1."""

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
        """All of them, so that the numbers add up."""
        parts = [f"{self.little} hardly ever {'works' if self.little == 1 else 'work'}"]
        if self.nothing:
            parts.append(f"{self.nothing} never {'does' if self.nothing == 1 else 'do'}")
        if self.unseen:
            parts.append(f"{self.unseen} {'was' if self.unseen == 1 else 'were'} not observed well enough")
        return f"uses {self.used} of its {amount(self.all, 'GPU')}; of the others {', '.join(parts)}"


def _candidate(
    search: Search,
    row: JobRow,
    job: int,
    groups: _Groups,
    little: Ints,
    activity: _Activity,
    settings: OversizedRequestSettings,
) -> Candidate:
    rows = search.use.rows(little)
    rows = rows[search.table.activity.is_observed[rows]]
    episodes = search.episodes(row.cluster, rows, 1.0)
    ended = search.ended(job)
    names = ", ".join(sorted({search.table.gpu_names[each] for each in little.tolist()})[:8])
    above = 100 * float((activity.above[little] / activity.time[little]).max())
    threshold = 100 * settings.used_activity
    draft = Draft(
        NAME,
        VARIANT,
        row.subject,
        min(each.start_ms for each in episodes),
        f"{row.job_kind} {row.subject} {groups}",
        (
            Evidence("GPUs", groups.all),
            Evidence("GPUs in use", groups.used, "", f"95th percentile of activity at least {threshold:g} %"),
            Evidence("GPUs that do nothing at all", groups.nothing, "", "idle_allocation has their time"),
            *([Evidence("GPUs not observed well enough", groups.unseen)] if groups.unseen else []),
            Evidence("95th percentile of the least busy in use", round(100 * groups.least, 2), "%"),
            Evidence("95th percentile of the busiest other", round(100 * groups.most, 2), "%"),
            Evidence("GPUs that do a little", names),
            Evidence("time they work more than that", round(above, 2), "%", "of the busiest of them"),
        ),
        _action(search, row, job, groups, len(little) if ended is None else 0),
        "board time of the GPUs that do a little, observed after the warm-up; those that do nothing at all "
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
    return Candidate(draft, settings, float(search.use.length[rows].sum()))


def _action(search: Search, row: JobRow, job: int, groups: _Groups, freed: int) -> Action:
    table = search.table
    pods = table.pods_of_job[job]
    per_pod, last = int(table.gpus[pods].max()), int(pods[-1])
    if per_pod >= groups.all:
        who = Asker(row.job_kind, row.namespace, row.job, table.names[last])
        text = f"Ask for {amount(groups.used, 'GPU')} instead of {groups.all}"
        return ask(text, who, table.resources[last], groups.used, float(freed))
    left = -(-groups.used // per_pod)
    text = f"Run it with {amount(left, 'pod')} of {amount(per_pod, 'GPU')}: {groups.all} GPUs are too many. "
    return Action(text + RESTART, "", float(min(freed, groups.all - left * per_pod)))
