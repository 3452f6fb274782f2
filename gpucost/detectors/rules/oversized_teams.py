"""Teams whose jobs use little of what they hold: shown, and counted by nobody."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from gpucost.detectors.activity import Floats
from gpucost.detectors.findings import Action, Draft, Evidence, Subject, SubjectKind, ViewTime
from gpucost.detectors.held import LEAST_COVERAGE, hours
from gpucost.detectors.rules.oversized_common import NAME, Search
from gpucost.domain.time import HOUR_MS

VARIANT = "low_efficiency"


@dataclass(frozen=True)
class _Team:
    """GPU milliseconds that were held and not at rest, those of them that were seen, and used."""

    held: float
    seen: float
    used: float
    jobs: list[int]

    @property
    def mean(self) -> float:
        return self.used / self.seen if self.seen else float("nan")


def low_efficiency(search: Search) -> Iterator[Draft]:
    settings = search.scoped.default
    total = _cluster_ms(search)
    found = list[Draft]()
    for team, each in _teams(search, settings.low_most_memory).items():
        enough = max(settings.low_gpu_hours * HOUR_MS, settings.low_part_of_cluster * total)
        if each.held < enough:
            continue
        subject = Subject(SubjectKind.TEAM, search.facts.cluster, team)
        if each.seen < LEAST_COVERAGE * each.held:
            part = 100 * each.seen / each.held
            because = f"data are missing: SM activity was observed for {part:.0f} % of its GPU-hours"
            search.hold_back(subject, because, VARIANT, lacks_data=True)
        elif each.seen >= enough and each.mean <= settings.low_sm:
            found.append(_draft(search, subject, each, total))
    found.sort(key=lambda draft: (-(draft.view_ms or 0), draft.subject))
    yield from found[: settings.low_top]


def _cluster_ms(search: Search) -> float:
    held = search.facts.history.held
    return float((held["boards"] * (held["end_ms"] - held["start_ms"])).sum())


def _teams(search: Search, most_memory: float) -> dict[str, _Team]:
    """Without jobs that never worked, which are idle, and those that fill the memory of their GPUs."""
    use, table = search.use, search.table
    jobs = len(table.jobs)
    if not len(table.activity) or not jobs:
        return {}
    boards = (table.pods["boards"] / table.pods["units"].clip(lower=1)).to_numpy(np.float64)
    per_series = np.where(table.pod >= 0, boards[table.pod], 0.0) * use.expected
    missing = (table.gpus - table.series_count) * (table.end - use.ready) * boards
    held = use.of_job(per_series) + np.bincount(table.job, weights=np.nan_to_num(missing), minlength=jobs)
    seen, used, busy = use.sm_ms, use.sm_active_ms, use.busy_ms
    memory = _mean_memory(search)
    dead = (seen > 0) & (used == 0) & (busy == 0)
    counted = ~dead & ~(memory > most_memory)
    of_team: dict[str, list[int]] = {}
    for job in np.flatnonzero(counted).tolist():
        of_team.setdefault(table.row(job).team, []).append(job)
    return {
        team: _Team(float(held[which].sum()), float(seen[which].sum()), float(used[which].sum()), which)
        for team, which in of_team.items()
    }


def _mean_memory(search: Search) -> Floats:
    use = search.use
    time = use.memory_ms
    taken = use.of_job(use.by_series(np.nan_to_num(use.memory_part) * use.length))
    found: Floats = np.full(len(time), np.nan)
    np.divide(taken, time, out=found, where=time > 0)
    return found


def _lost(search: Search, team: _Team, part: float) -> Iterator[ViewTime]:
    """``part`` of what was seen, over what the jobs' pods held, where they held it."""
    table = search.table
    pods = table.pods[np.isin(table.job, team.jobs) & table.pods["boards"].notna().to_numpy(bool)]
    held = float((pods["boards"] * (pods["end"] - pods["start"])).sum())
    for node, start, end, boards in zip(
        *(pods[name].tolist() for name in ("node", "start", "end", "boards")), strict=True
    ):
        if held and end > start:
            yield ViewTime(start, end, part * team.seen * boards * (end - start) / held, (node,))


def _draft(search: Search, subject: Subject, team: _Team, total: float) -> Draft:
    settings, table = search.scoped.default, search.table
    series = np.concatenate([table.series_of_job[job] for job in team.jobs])
    begun = int(table.activity.start[table.activity.begin[series]].min())
    end = max(search.last_end(job) for job in team.jobs)
    lost = max(0.0, 1 - team.mean / settings.target_sm)
    mean, target = 100 * team.mean, 100 * settings.target_sm
    return Draft(
        NAME,
        VARIANT,
        subject,
        begun,
        f"Team {subject.name} uses {mean:.1f} % of the SMs of the {hours(team.seen)} it holds",
        (
            Evidence("SM activity, mean", round(mean, 2), "%", "DCGM_FI_PROF_SM_ACTIVE"),
            Evidence("held and observed", round(team.seen / HOUR_MS, 2), "GPU-hours"),
            Evidence("part of the cluster", round(100 * team.held / total, 2) if total else 0.0, "%"),
            Evidence("jobs", len(team.jobs)),
        ),
        Action(
            "Look at the data loaders and batch sizes of its largest jobs: nearly half of all low use comes "
            "from waiting for data"
        ),
        f"GPU-hours observed x (1 - {mean:.1f} % / {target:g} %)",
        team=subject.name,
        ended_ms=None if end >= search.facts.now_ms else end,
        view=tuple(_lost(search, team, lost)),
        checked=(
            "jobs that never worked are left to idle_allocation",
            f"jobs with more than {100 * settings.low_most_memory:g} % of GPU memory in use are left out",
        ),
    )
