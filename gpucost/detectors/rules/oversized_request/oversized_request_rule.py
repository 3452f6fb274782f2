"""Jobs that hold more GPU than they have use for (antipatterns, section 5.2).

``fits_smaller``, ``too_many_gpus`` and ``serving_peak`` claim time of the waste ledger; ``serving_memory``,
``low_efficiency``, ``host_share`` and ``memory_over_ask`` are views. A job gets one of them at most, in this
order. The views in this module:

- ``host_share``: pods that take so many cores or so much memory that GPUs of their node can be used by no
  pod;
- ``low_efficiency``: teams whose jobs use little of what they hold;
- ``memory_over_ask``: jobs on GPUs with twice the memory they ever use, where only the price differs.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

import numpy as np

from gpucost.cluster.objects.metadata import CPU, base_units
from gpucost.cluster.objects.nodes import Node
from gpucost.cluster.objects.pods import Pod
from gpucost.cluster.views.node_fit import FreeNodes
from gpucost.cluster.views.overview import ClusterOverview
from gpucost.detectors.allocation_pieces import (
    LEAST_COVERAGE,
    amount,
    hours,
    lasting,
    since,
)
from gpucost.detectors.findings import (
    FindingAction,
    FindingDraft,
    FindingEvidence,
    FindingSubject,
    RuleDetection,
    SubjectKind,
    ViewTime,
)
from gpucost.detectors.inputs.activity_table import Floats
from gpucost.detectors.inputs.detector_facts import DetectorFacts
from gpucost.detectors.inputs.job_tables import JobAttributes, JobTables
from gpucost.detectors.rule_settings import OversizedRequestSettings, ScopedSettings
from gpucost.detectors.rules.oversized_request.batch_jobs import fits_smaller, too_many_gpus
from gpucost.detectors.rules.oversized_request.candidates import (
    GIB,
    NAME,
    OOM_UNKNOWN,
    OversizedSearch,
    quantile,
)
from gpucost.detectors.rules.oversized_request.servers import serving_peak
from gpucost.domain.gpu import parse_product
from gpucost.domain.time import HOUR_MS
from gpucost.settings.types import milliseconds

MEMORY_VARIANT = "memory_over_ask"
_SMALLER = {"A100-80GB": "A100-40GB", "V100-32GB": "V100-16GB"}
"""The GPU of the same family with half the memory, where there is one."""


def memory_over_ask(search: OversizedSearch, told: Collection[FindingSubject]) -> Iterator[FindingDraft]:
    """``told`` are jobs that another variant already reports as too large."""
    table, use = search.table, search.use
    large = {node for node, model in search.models.items() if model in _SMALLER}
    if not large or not len(table.activity):
        return
    busy, time = use.busy_ms, use.memory_ms
    there = table.whole & table.pods["node"].isin(list(large)).to_numpy(np.bool_)
    elsewhere = np.bincount(table.job, weights=~there, minlength=len(table.jobs))
    for job in np.flatnonzero(elsewhere == 0).tolist():
        row = table.row(job)
        settings = search.settings(row)
        least = milliseconds(settings.least_run)
        if row.subject in told or search.held_ms[job] < least or busy[job] == 0:
            continue
        if time[job] < LEAST_COVERAGE * search.expected[job]:
            because = "data are missing: GPU memory was not observed"
            search.hold_back(row.subject, because, MEMORY_VARIANT, lacks_data=True)
            continue
        draft = _judge_memory(search, job, row, settings)
        if draft is not None:
            yield draft


def _judge_memory(
    search: OversizedSearch, job: int, row: JobAttributes, settings: OversizedRequestSettings
) -> FindingDraft | None:
    use, activity = search.use, search.table.activity
    rows = use.rows(search.table.series_of_job[job])
    rows = rows[use.memory_seen[rows]]
    # The maximum over all GPUs: the fullest decides, and it may be one of many.
    full = [
        quantile(use.memory_part[mine], use.length[mine], 0.99)
        for mine in np.split(rows, np.flatnonzero(np.diff(activity.code[rows])) + 1)
    ]
    part = max(full)
    if part > settings.half_memory:
        return None
    total = float(activity.values["memory_total_bytes"][rows].max()) / GIB
    model = search.models[search.table.nodes[int(search.table.pods_of_job[job][-1])]]
    smaller = _SMALLER[model]
    ended = search.ended(job)
    products = search.facts.history.frames.nodes["product"].unique().tolist()
    label = next((each for each in sorted(products) if parse_product(each).model == smaller), "")
    there = "" if label else "; this cluster has none now"
    patch = f'nodeSelector:\n  "nvidia.com/gpu.product": "{label}"' if label else ""
    return FindingDraft(
        NAME,
        MEMORY_VARIANT,
        row.subject,
        int(use.start[rows].min()),
        f"{row.job_kind} {row.subject} has at most {100 * part:.0f} % of the memory of its {model} in use: "
        f"{smaller} would do",
        (
            FindingEvidence(
                "GPU memory, 99th percentile", round(part * total, 2), "GiB", "of the fullest GPU"
            ),
            FindingEvidence("GPU memory", round(total, 1), "GiB"),
            FindingEvidence("GPUs", amount(len(full), "GPU")),
        ),
        FindingAction(f"Ask for {smaller} where it is cheaper{there}", patch),
        f"nothing is counted: it is the difference in price between {model} and {smaller}",
        team=row.team,
        queue=row.queue,
        user=row.user,
        ended_ms=ended,
        checked=(OOM_UNKNOWN,),
    )


TEAM_VARIANT = "low_efficiency"


@dataclass(frozen=True)
class _Team:
    """GPU milliseconds that were held and not at rest, those of them that were measured, and those used."""

    held: float
    seen: float
    used: float
    jobs: list[int]

    @property
    def mean(self) -> float:
        return self.used / self.seen if self.seen else float("nan")


def low_efficiency(search: OversizedSearch) -> Iterator[FindingDraft]:
    settings = search.scoped.default
    total = _cluster_ms(search)
    found = list[FindingDraft]()
    for team, each in _teams(search, settings.low_most_memory).items():
        enough = max(settings.low_gpu_hours * HOUR_MS, settings.low_part_of_cluster * total)
        if each.held < enough:
            continue
        subject = FindingSubject(SubjectKind.TEAM, search.facts.cluster, team)
        if each.seen < LEAST_COVERAGE * each.held:
            part = 100 * each.seen / each.held
            because = f"data are missing: SM activity was observed for {part:.0f} % of its GPU-hours"
            search.hold_back(subject, because, TEAM_VARIANT, lacks_data=True)
        elif each.seen >= enough and each.mean <= settings.low_sm:
            found.append(_team_draft(search, subject, each, total))
    found.sort(key=lambda draft: (-(draft.view_ms or 0), draft.subject))
    yield from found[: settings.low_top]


def _cluster_ms(search: OversizedSearch) -> float:
    held = search.facts.history.held
    return float((held["boards"] * (held["end_ms"] - held["start_ms"])).sum())


def _teams(search: OversizedSearch, most_memory: float) -> dict[str, _Team]:
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


def _mean_memory(search: OversizedSearch) -> Floats:
    use = search.use
    time = use.memory_ms
    taken = use.of_job(use.by_series(np.nan_to_num(use.memory_part) * use.length))
    found: Floats = np.full(len(time), np.nan)
    np.divide(taken, time, out=found, where=time > 0)
    return found


def _lost(search: OversizedSearch, team: _Team, part: float) -> Iterator[ViewTime]:
    """``part`` of what was measured, spread over what the jobs' pods held, where they held it."""
    table = search.table
    pods = table.pods[np.isin(table.job, team.jobs) & table.pods["boards"].notna().to_numpy(bool)]
    held = float((pods["boards"] * (pods["end"] - pods["start"])).sum())
    for node, start, end, boards in zip(
        *(pods[name].tolist() for name in ("node", "start", "end", "boards")), strict=True
    ):
        if held and end > start:
            yield ViewTime(start, end, part * team.seen * boards * (end - start) / held, (node,))


def _team_draft(search: OversizedSearch, subject: FindingSubject, team: _Team, total: float) -> FindingDraft:
    settings, table = search.scoped.default, search.table
    series = np.concatenate([table.series_of_job[job] for job in team.jobs])
    begun = int(table.activity.start[table.activity.begin[series]].min())
    end = max(search.last_end(job) for job in team.jobs)
    lost = max(0.0, 1 - team.mean / settings.target_sm)
    mean, target = 100 * team.mean, 100 * settings.target_sm
    return FindingDraft(
        NAME,
        TEAM_VARIANT,
        subject,
        begun,
        f"Team {subject.name} uses {mean:.1f} % of the SMs of the {hours(team.seen)} it holds",
        (
            FindingEvidence("SM activity, mean", round(mean, 2), "%", "DCGM_FI_PROF_SM_ACTIVE"),
            FindingEvidence("held and observed", round(team.seen / HOUR_MS, 2), "GPU-hours"),
            FindingEvidence("part of the cluster", round(100 * team.held / total, 2) if total else 0.0, "%"),
            FindingEvidence("jobs", len(team.jobs)),
        ),
        FindingAction(
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


HOST_VARIANT = "host_share"
_MEMORY = "memory"


@dataclass(frozen=True)
class _Stranded:
    """GPUs of a node that are free and have too little of ``resource`` left for them."""

    node: Node
    resource: str
    gpus: int
    free: int
    per_gpu: float


def host_share(search: OversizedSearch) -> Iterator[FindingDraft]:
    overview = search.facts.overview
    if overview is None:
        subject = FindingSubject(SubjectKind.CLUSTER, search.facts.cluster, search.facts.cluster)
        because = "nobody watches the state of the cluster: what pods ask of cores and memory is not known"
        search.hold_back(subject, because, HOST_VARIANT, lacks_data=True)
        return
    free = FreeNodes(overview.state, overview.catalog)
    for node in overview.state.nodes.values():
        if node.is_schedulable:
            for stranded in _stranded(overview, free, node):
                draft = _of_node(search, overview, stranded)
                if draft is not None:
                    yield draft
                    break


def _stranded(overview: ClusterOverview, free: FreeNodes, node: Node) -> Iterator[_Stranded]:
    have = sum(overview.units.asked(node.allocatable).values())
    left = free.free(node)
    open_gpus = sum(left.get(name, 0) for name in overview.units.asked(node.allocatable))
    if have <= 0 or open_gpus <= 0:
        return
    for resource in (CPU, _MEMORY):
        all_of_it = node.allocatable.get(resource, 0)
        if all_of_it > 0:
            usable = max(0, left.get(resource, 0)) * have // all_of_it
            if usable < open_gpus:
                yield _Stranded(node, resource, open_gpus - usable, open_gpus, all_of_it / have)


def _of_node(search: OversizedSearch, overview: ClusterOverview, found: _Stranded) -> FindingDraft | None:
    """The pod with the largest request per GPU, if that is too much and for long enough."""
    worst: tuple[float, str, Pod, int] | None = None
    for pod in overview.state.pods_by_node.get(found.node.meta.name, []):
        gpus = sum(overview.units.of(pod).values())
        if gpus > 0 and pod.is_bound:
            asked = pod.requests.get(found.resource, 0) / gpus
            if worst is None or (asked, pod.meta.uid) > worst[:2]:
                worst = (asked, pod.meta.uid, pod, gpus)
    if worst is None:
        return None
    asked, uid, pod, gpus = worst
    at = next((n for n, known in enumerate(search.table.uids) if known == uid), None)
    if at is None or pod.bound_ms is None:
        return None
    row = search.table.row(int(search.table.job[at]))
    settings = search.settings(row)
    limit = settings.cores_over_ratio if found.resource == CPU else settings.memory_over_ratio
    run_ms = search.facts.now_ms - pod.bound_ms
    if asked <= limit * found.per_gpu or run_ms < milliseconds(settings.least_run):
        return None
    return _host_draft(search, found, row.subject, at, asked, gpus)


def _free_since(search: OversizedSearch, node: str, start: int) -> int:
    """Since when the free units of the node are unchanged: no pod came or left."""
    held = search.facts.history.held
    here = held[held["node"] == node]
    now = search.facts.now_ms
    changes = [each for name in ("start_ms", "end_ms") for each in here[name].tolist() if each < now]
    return int(max([start, *changes]))


def _host_draft(
    search: OversizedSearch, found: _Stranded, subject: FindingSubject, at: int, asked: float, gpus: int
) -> FindingDraft:
    row = search.table.row(int(search.table.job[at]))
    begun = _free_since(search, found.node.meta.name, int(search.table.start[at]))
    is_cpu = found.resource == CPU
    name, unit = ("cores", "cores") if is_cpu else ("host memory", "GiB")
    scale = base_units(CPU, 1) if is_cpu else 1 / GIB
    fair = int(found.per_gpu * gpus * scale)
    patch_value = str(fair) if is_cpu else f"{fair}Gi"
    length = search.facts.now_ms - begun
    return FindingDraft(
        NAME,
        HOST_VARIANT,
        subject,
        begun,
        f"{row.job_kind} {subject} asks for {asked * scale:.0f} {unit} per GPU, where node "
        f"{found.node.meta.name} has {found.per_gpu * scale:.0f}: {amount(found.gpus, 'free GPU')} there "
        f"can be given to nobody, for {lasting(length)} since {since(begun)}",
        (
            FindingEvidence(
                f"{name} per GPU, asked", round(asked * scale, 1), unit, "spec.containers[].resources"
            ),
            FindingEvidence(
                f"{name} per GPU, node", round(found.per_gpu * scale, 1), unit, "status.allocatable"
            ),
            FindingEvidence("free GPUs of the node", found.free),
            FindingEvidence("free GPUs without their share", found.gpus),
            FindingEvidence("node", found.node.meta.name),
        ),
        FindingAction(
            f"Ask for at most {patch_value} {'cores' if is_cpu else 'of memory'} for {amount(gpus, 'GPU')}",
            f'resources:\n  requests:\n    {found.resource}: "{patch_value}"',
            float(found.gpus),
        ),
        "free GPUs whose share of the node is taken x time since anybody last came or left; a view: the time "
        "itself is free, and is counted where somebody waits for it",
        team=row.team,
        queue=row.queue,
        user=row.user,
        view=(ViewTime(begun, search.facts.now_ms, float(found.gpus * length), (found.node.meta.name,)),),
        checked=(f"how much of the {name} it uses is not known",),
    )


__all__ = ["NAME", "run"]


def run(facts: DetectorFacts, settings: ScopedSettings[OversizedRequestSettings]) -> RuleDetection:
    search = OversizedSearch(facts, settings, JobTables.of(facts.history))
    drafts = search.of_teams(list(fits_smaller(search)))
    drafts += search.of_teams(list(too_many_gpus(search)))
    drafts += search.of_teams(list(serving_peak(search, {draft.subject for draft in drafts})))
    drafts += low_efficiency(search)
    drafts += memory_over_ask(search, {draft.subject for draft in drafts})
    drafts += host_share(search)
    found = sorted(drafts, key=lambda draft: (draft.subject, draft.variant, draft.since_ms))
    told = {draft.subject for draft in drafts}
    withheld = sorted(search.withheld.values(), key=lambda each: each.subject)
    return RuleDetection(tuple(found), tuple(each for each in withheld if each.subject not in told))
