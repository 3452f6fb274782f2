"""What is said of a server that could do with less: summary, evidence, what was checked, and what to do."""

from __future__ import annotations

import numpy as np

from gpucost.cluster.commands import kubectl
from gpucost.detectors.findings import Action, Evidence
from gpucost.detectors.held import amount, lasting, with_names
from gpucost.detectors.rule_settings import OversizedRequestSettings
from gpucost.detectors.rules.oversized_common import GIB, OOM_UNKNOWN, Search
from gpucost.detectors.rules.oversized_server_load import ServerLoad
from gpucost.detectors.rules.oversized_server_needs import Part, ServerNeed
from gpucost.detectors.rules.pod_templates import Asker, ask
from gpucost.detectors.rules.workloads import JobRow
from gpucost.domain.jobs import JobKind
from gpucost.domain.time import DAY_MS, iso

_SCALED = {JobKind.DEPLOYMENT: "deployments.apps", JobKind.REPLICA_SET: "replicasets.apps"}


def needed(need: ServerNeed) -> str:
    """Such as ``2 GPUs per pod``."""
    if need.fit is not None:
        return f"{need.fit.profile}, {need.fit.share} of the board"
    return (
        amount(need.needs, "replica")
        if need.part is Part.REPLICAS
        else f"{amount(need.needs, 'GPU')} per pod"
    )


def _held(need: ServerNeed) -> str:
    whole = {Part.REPLICAS: amount(need.has, "replica"), Part.SLICE: "GPU"}
    return whole.get(need.part, amount(need.has, "GPU"))


def summary(row: JobRow, load: ServerLoad, need: ServerNeed) -> str:
    step, memory = lasting(load.search.table.step_ms), f"{need.memory / GIB:.1f} GiB"
    used = (
        f"{row.job_kind} {row.subject} uses {100 * need.peak:.1f} % of the SMs of its {_held(need)} in its "
    )
    used += f"busiest {step}, and {100 * load.mean(load.sm):.1f} % on average: "
    if need.only_memory:
        return f"{used}{needed(need)} would do, if its memory, {memory} at most, were less"
    if need.part is Part.REPLICAS:
        return f"{used}{needed(need)} would do"
    return f"{used}{needed(need)} would do, and hold its {memory} of memory"


def evidence(load: ServerLoad, need: ServerNeed, coverage: float) -> tuple[Evidence, ...]:
    sm, by_sm = load.mean(load.sm), "DCGM_FI_PROF_SM_ACTIVE"
    of = "of a pod's GPUs" if need.part is Part.GPUS else "of the fullest GPU"
    busy = load.mean(load.busy)
    known = [] if np.isnan(busy) else [Evidence("busy time, mean", round(100 * busy, 2), "%")]
    return (
        Evidence("has", _held(need), "", "at most, side by side" if need.part is Part.REPLICAS else ""),
        Evidence("its peak needs", needed(need), "", "by its SMs" if need.only_memory else ""),
        Evidence("SM activity at the peak", round(100 * need.peak, 2), "%", by_sm),
        Evidence("peak", iso(need.peak_ms)),
        Evidence("SM activity, mean", round(100 * sm, 2), "%", by_sm),
        *known,
        Evidence("GPU memory, most", round(need.memory / GIB, 2), "GiB", f"{of}, DCGM_FI_DEV_FB_USED"),
        Evidence("observed", round(100 * coverage, 1), "%", "of the time after the warm-up"),
    )


def checked(
    search: Search, load: ServerLoad, need: ServerNeed, settings: OversizedRequestSettings
) -> tuple[str, ...]:
    days = search.facts.history.window.length_ms / DAY_MS
    room, memory = 100 * settings.peak_room, f"{100 * settings.memory_room:g} %"
    step = lasting(search.table.step_ms)
    return (
        f"its busiest {step} take at most {room:g} % of the SMs of what it needs; bursts within are not seen",
        "its memory does not fit less: whether it needs all that it takes is not known"
        if need.only_memory
        else {
            Part.REPLICAS: "each replica keeps its GPUs, and so the memory it has",
            Part.SLICE: f"the most memory in use is at most {memory} of the slice's",
            Part.GPUS: f"the most memory in use is at most {memory} of what is left",
        }[need.part],
        "that calls are spread over the replicas evenly is assumed"
        if need.part is Part.REPLICAS
        else "how much longer a call takes on less of a GPU is not known",
        f"whether there are busier days than in the {days:.3g} that were read is not known"
        if load.busier is None or search.facts.past is None
        else f"in the {search.facts.past.days:.3g} days before the {days:.3g} that were read its busiest "
        f"hour was at most {load.busier:.3g} times as busy: room for that is kept",
        OOM_UNKNOWN,
    )


def action(search: Search, job: int, need: ServerNeed, freed: float) -> Action:
    table, row = search.table, search.table.row(job)
    last = int(table.pods_of_job[job][-1])
    if need.only_memory:
        return Action(
            "Find out how much of its memory it needs: servers of language models take a set part of each "
            "GPU for their cache, whatever the load (vLLM: --gpu-memory-utilization; "
            "vllm:kv_cache_usage_perc says how much of it is in use). If less is enough, ask for "
            f"{needed(need)}",
            "",
            freed,
        )
    if need.part is Part.REPLICAS:
        text = (
            f"Run {needed(need)} instead of {need.has}; where an autoscaler decides, that is its maxReplicas"
        )
        resource = f"{_SCALED[JobKind(row.job_kind)]}/{row.job}"
        patch = kubectl("-n", row.namespace, "scale", resource, f"--replicas={need.needs}")
        return with_names(Action(text, patch, freed), row.namespace, row.job)
    who = Asker(row.job_kind, row.namespace, row.job, table.names[last])
    if need.fit is None:
        text = f"Ask for {needed(need)} instead of {need.has}, and let it divide its model over as many"
        return ask(text, who, table.resources[last], need.needs, freed)
    resource = f"nvidia.com/mig-{need.fit.profile}"
    where = "" if search.nodes_offering.get(resource) else "; no node offers it now: divide a board"
    return ask(f"Ask for one {need.fit.profile} slice instead of a whole GPU{where}", who, resource, 1, freed)
