"""Servers with a low constant load: the replicas, GPUs or slice that their busiest steps need.

The proposal holds the peak of the SMs with room to spare, and the peak of the memory. Where only memory keeps
a server on its GPUs, that is shown and not counted: the memory that a server takes may be a setting of its
own and not a need. The module also writes the finding: summary, evidence, what was checked, and what to do.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

import numpy as np

from gpucost.attribution.apportion import Flags
from gpucost.cluster.views.commands import kubectl
from gpucost.detectors.allocation_pieces import (
    LEAST_COVERAGE,
    amount,
    lasting,
    with_names,
)
from gpucost.detectors.findings import (
    FindingAction,
    FindingDraft,
    FindingEvidence,
    FindingSubject,
    ViewTime,
    WasteEpisode,
)
from gpucost.detectors.inputs.activity_table import Floats
from gpucost.detectors.inputs.job_tables import JobAttributes
from gpucost.detectors.inputs.quiet_runs import quiet_runs
from gpucost.detectors.request_patches import RequestingPod, request_action
from gpucost.detectors.rule_settings import OversizedRequestSettings
from gpucost.detectors.rules.oversized_request.candidates import (
    GIB,
    NAME,
    OOM_UNKNOWN,
    OversizedCandidate,
    OversizedSearch,
)
from gpucost.detectors.rules.oversized_request.server_load import (
    ServerLoad,
    ServerNeed,
    ServerPart,
    server_needs,
)
from gpucost.domain.jobs import JobKind
from gpucost.domain.time import DAY_MS, HOUR_MS, iso
from gpucost.settings.types import milliseconds

_SCALED = {JobKind.DEPLOYMENT: "deployments.apps", JobKind.REPLICA_SET: "replicasets.apps"}


def server_need_text(need: ServerNeed) -> str:
    """Such as ``2 GPUs per pod``."""
    if need.fit is not None:
        return f"{need.fit.profile}, {need.fit.share} of the GPU"
    return (
        amount(need.needs, "replica")
        if need.part is ServerPart.REPLICAS
        else f"{amount(need.needs, 'GPU')} per pod"
    )


def _held(need: ServerNeed) -> str:
    whole = {ServerPart.REPLICAS: amount(need.has, "replica"), ServerPart.SLICE: "GPU"}
    return whole.get(need.part, amount(need.has, "GPU"))


def server_summary(row: JobAttributes, load: ServerLoad, need: ServerNeed) -> str:
    step, memory = lasting(load.search.table.step_ms), f"{need.memory / GIB:.1f} GiB"
    used = (
        f"{row.job_kind} {row.subject} uses {100 * need.peak:.1f} % of the SMs of its {_held(need)} in its "
    )
    used += f"busiest {step}, and {100 * load.mean(load.sm):.1f} % on average: "
    if need.only_memory:
        return f"{used}{server_need_text(need)} would do, if its memory, {memory} at most, were less"
    if need.part is ServerPart.REPLICAS:
        return f"{used}{server_need_text(need)} would do"
    return f"{used}{server_need_text(need)} would do, and hold its {memory} of memory"


def server_evidence(load: ServerLoad, need: ServerNeed, coverage: float) -> tuple[FindingEvidence, ...]:
    sm, by_sm = load.mean(load.sm), "DCGM_FI_PROF_SM_ACTIVE"
    of = "of a pod's GPUs" if need.part is ServerPart.GPUS else "of the fullest GPU"
    busy = load.mean(load.busy)
    known = [] if np.isnan(busy) else [FindingEvidence("busy time, mean", round(100 * busy, 2), "%")]
    return (
        FindingEvidence(
            "has", _held(need), "", "at most, side by side" if need.part is ServerPart.REPLICAS else ""
        ),
        FindingEvidence(
            "its peak needs", server_need_text(need), "", "by its SMs" if need.only_memory else ""
        ),
        FindingEvidence("SM activity at the peak", round(100 * need.peak, 2), "%", by_sm),
        FindingEvidence("peak", iso(need.peak_ms)),
        FindingEvidence("SM activity, mean", round(100 * sm, 2), "%", by_sm),
        *known,
        FindingEvidence("GPU memory, most", round(need.memory / GIB, 2), "GiB", f"{of}, DCGM_FI_DEV_FB_USED"),
        FindingEvidence("observed", round(100 * coverage, 1), "%", "of the time after the warm-up"),
    )


def server_checks(
    search: OversizedSearch, load: ServerLoad, need: ServerNeed, settings: OversizedRequestSettings
) -> tuple[str, ...]:
    days = search.facts.history.window.length_ms / DAY_MS
    room, memory = 100 * settings.peak_room, f"{100 * settings.memory_room:g} %"
    step = lasting(search.table.step_ms)
    return (
        f"its busiest {step} take at most {room:g} % of the SMs of what it needs; bursts within are not seen",
        "its memory does not fit less: whether it needs all that it takes is not known"
        if need.only_memory
        else {
            ServerPart.REPLICAS: "each replica keeps its GPUs, and so the memory it has",
            ServerPart.SLICE: f"the most memory in use is at most {memory} of the slice's",
            ServerPart.GPUS: f"the most memory in use is at most {memory} of what is left",
        }[need.part],
        "that calls are spread over the replicas evenly is assumed"
        if need.part is ServerPart.REPLICAS
        else "how much longer a call takes on less of a GPU is not known",
        f"whether there are busier days than in the {days:.3g} that were read is not known"
        if load.busier is None or search.facts.past is None
        else f"in the {search.facts.past.days:.3g} days before the {days:.3g} that were read its busiest "
        f"hour was at most {load.busier:.3g} times as busy: room for that is kept",
        OOM_UNKNOWN,
    )


def server_action(search: OversizedSearch, job: int, need: ServerNeed, freed: float) -> FindingAction:
    table, row = search.table, search.table.row(job)
    last = int(table.pods_of_job[job][-1])
    if need.only_memory:
        return FindingAction(
            "Find out how much of its memory it needs: servers of language models take a set part of each "
            "GPU for their cache, whatever the load (vLLM: --gpu-memory-utilization; "
            "vllm:kv_cache_usage_perc says how much of it is in use). If less is enough, ask for "
            f"{server_need_text(need)}",
            "",
            freed,
        )
    if need.part is ServerPart.REPLICAS:
        text = f"Run {server_need_text(need)} instead of {need.has}; where an autoscaler decides, that is its"
        text += " maxReplicas"
        resource = f"{_SCALED[JobKind(row.job_kind)]}/{row.job}"
        patch = kubectl("-n", row.namespace, "scale", resource, f"--replicas={need.needs}")
        return with_names(FindingAction(text, patch, freed), row.namespace, row.job)
    who = RequestingPod(row.job_kind, row.namespace, row.job, table.names[last])
    if need.fit is None:
        text = f"Ask for {server_need_text(need)} instead of {need.has}, and let it divide its model over as"
        text += " many"
        return request_action(text, who, table.resources[last], need.needs, freed)
    resource = f"nvidia.com/mig-{need.fit.profile}"
    where = "" if search.nodes_offering.get(resource) else "; no node offers it now: divide a GPU"
    return request_action(
        f"Ask for one {need.fit.profile} slice instead of a whole GPU{where}", who, resource, 1, freed
    )


COUNTED, SHOWN = "serving_peak", "serving_memory"
_HALF = 0.5
"""The part that a server must be able to do without by its SMs, to be shown where its memory prevents it.
Ours."""
_IDLE_MS = 4 * HOUR_MS
"""GPUs that rest for so long while others of the server work belong to idle_allocation (its ``serving``)."""


def serving_peak(search: OversizedSearch, told: Collection[FindingSubject]) -> Iterator[OversizedCandidate]:
    """``told`` are jobs that another variant already reports as too large."""
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
                yield OversizedCandidate(draft, settings, float(search.expected[job]))
                continue
            because = f"a server must be seen for {settings.serving_history} to know its busiest hours"
            search.hold_back(row.subject, because, SHOWN if need.only_memory else COUNTED, lacks_data=True)


def _coverage(search: OversizedSearch, counts: Flags) -> Floats:
    """Per job: the part of what it held after the warm-up, rests included, that was measured."""
    table, use = search.table, search.use
    length = (table.activity.end - use.start).clip(min=0)
    seen = use.of_job(use.by_series(np.where(counts, length, 0).astype(np.float64)))
    held = np.bincount(table.job, table.gpus * (table.end - use.ready), len(table.jobs))
    return np.divide(seen, held, out=np.zeros(len(seen)), where=held > 0).clip(max=1.0)


def _idles(search: OversizedSearch) -> Flags:
    """Rows of GPUs that idle, whatever others of their job do."""
    quiet = quiet_runs(search.table, _IDLE_MS)
    long = quiet.end - quiet.start >= _IDLE_MS
    steps = np.zeros(len(search.table.activity) + 1, np.int64)
    np.add.at(steps, quiet.first[long], 1)
    np.add.at(steps, quiet.last[long], -1)
    found: Flags = np.cumsum(steps[:-1]) > 0
    return found


def _best(
    search: OversizedSearch, load: ServerLoad, row: JobAttributes, settings: OversizedRequestSettings
) -> ServerNeed | None:
    """The option that saves most; one that only memory prevents where no other is worth it."""
    needs = [(load.mean(each.saved), each) for each in server_needs(search, load, row.job_kind, settings)]
    worth = [(saved, each) for saved, each in needs if saved >= settings.serving_saves]
    counted = [pair for pair in worth if not pair[1].only_memory]
    shown = [pair for pair in worth if pair[1].only_memory and pair[0] >= _HALF]
    return max(counted or shown, key=lambda pair: pair[0], default=(0.0, None))[1]


def _draft(
    search: OversizedSearch,
    job: int,
    load: ServerLoad,
    need: ServerNeed,
    coverage: float,
    settings: OversizedRequestSettings,
) -> FindingDraft:
    row, ended = search.table.row(job), search.ended(job)
    episodes = _claims(search, row.cluster, load, need)
    now = load.now(need.saved) if ended is None else 0.0
    at_most = "; at most, and nothing for certain while that memory is needed" if need.only_memory else ""
    return FindingDraft(
        NAME,
        SHOWN if need.only_memory else COUNTED,
        row.subject,
        min(each.start_ms for each in episodes),
        server_summary(row, load, need),
        server_evidence(load, need, coverage),
        server_action(search, job, need, now),
        f"GPU time observed after the warm-up, without GPUs that idle, x {100 * load.mean(need.saved):.1f} "
        f"%: what it held beyond {server_need_text(need)}{at_most}",
        team=row.team,
        queue=row.queue,
        user=row.user,
        ended_ms=ended,
        episodes=() if need.only_memory else episodes,
        view=tuple(_shown(each) for each in episodes) if need.only_memory else None,
        boards_now=now if need.only_memory else None,
        checked=(search.floor_in_words(settings), *server_checks(search, load, need, settings)),
    )


def _claims(
    search: OversizedSearch, cluster: str, load: ServerLoad, need: ServerNeed
) -> tuple[WasteEpisode, ...]:
    """Claims by what is saved: rows that touch are one claim, and must not be averaged."""
    return tuple(
        episode
        for saved in np.unique(need.saved[need.saved > 0]).tolist()
        for episode in search.episodes(cluster, load.rows[need.saved == saved], saved)
    )


def _shown(episode: WasteEpisode) -> ViewTime:
    start, end = episode.start_ms, episode.end_ms
    return ViewTime(start, end, (episode.boards or 0.0) * (end - start), (episode.node,))
