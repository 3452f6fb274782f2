"""Who asks: a job that is not submitted yet, or one that is there and waits; the same to all layers.

``SchedulingRequest`` has all that a layer may ask: every pod set with its template, the Kueue workloads that
stand for the job (none where Kueue has nothing to do with it), the Volcano gang (None likewise), GPU units of
all pods, the deadline in seconds, and, of a job that is there, its pods that wait and those that are bound.

``request_from_manifest`` makes one as if the manifest were submitted now, and does what the cluster would do
on the way: a job without a queue gets LocalQueue ``default`` where Kueue's gate says so, an integration that
is switched off leaves the job without quota, a missing priority class or a kind that the cluster does not
serve refuses it before any layer (``refused``: a reason in one word, and a sentence).
``request.existing_job`` makes the same type of an object of the cluster, so that a job gets the same answer
before and after it is submitted.

What is said about the answer travels with the request, in three kinds:

- ``unknown``: it wants what nothing says; with any of it an answer would be a guess, so there is none;
- ``remarks``: shown as notes, and hold nothing;
- ``assumptions``: what was taken for granted where the manifest became a workload.

Pure. Called by ``advisor.advise`` for every question, and again for each suggestion that is tried. The team
comes from labels of the job, else of its namespace; it decides whose history of runs a wait is simulated
with.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from gpucost.advisor.kueue.job_workloads import (
    FRAMEWORKS,
    SUSPENDED,
    as_workloads,
    assumptions,
    not_lifted,
    switched_off,
)
from gpucost.advisor.kueue.messages import MISCONFIGURED
from gpucost.advisor.model.answers import AdviceSubject
from gpucost.advisor.request.context import AdvisorContext
from gpucost.advisor.volcano.gang import VolcanoGang, gang_of_manifest, is_for_volcano
from gpucost.cluster.objects.jobs import JobManifest
from gpucost.cluster.objects.kueue import Workload
from gpucost.cluster.objects.pods import Pod, PodSet
from gpucost.cluster.views.queue_order import OF_KUEUE, OF_PODS, has_pod_class


@dataclass(frozen=True, slots=True)
class SchedulingRequest:
    """``pod_sets`` are all pods it wants, under any scheduler. ``workloads`` stand for it at Kueue, none
    where Kueue has nothing to do with it; ``gang`` is it at Volcano, None likewise. ``gpus`` are GPU units of
    all pods. ``deadline_s`` is the longest it may run. ``unknown`` is what it wants and no object specifies,
    in words: with any of it an answer would be a guess. ``remarks`` are shown, and hold nothing;
    ``assumptions`` are what was taken for granted where the manifest became a workload."""

    subject: AdviceSubject
    team: str
    pod_sets: tuple[PodSet, ...]
    workloads: tuple[Workload, ...] = ()
    gang: VolcanoGang | None = None
    gpus: int = 0
    deadline_s: int | None = None
    waiting: Mapping[str, tuple[Pod, ...]] = field(default_factory=dict)
    """Its pods that exist and have no node, by their pod set."""
    pod_group: str = ""
    """The PodGroup of its pods, where that is not Volcano's; empty for none."""
    own_pods: frozenset[str] = frozenset()
    """Uids of its pods that are bound already: what they hold is its own."""
    unknown: tuple[str, ...] = ()
    refused: tuple[str, str] | None = None
    """Why it can never be created as it is, before any layer: a reason in one word, and a sentence."""
    remarks: Sequence[str] = ()
    assumptions: tuple[str, ...] = ()


DEFAULT_QUEUE = "default"
NOT_SERVED = "KindNotServed"
_OF_PODS = ("pod", "deployment", "statefulset")
NO_QUEUE = (
    "it names no queue of Kueue (label kueue.x-k8s.io/queue-name): no quota holds it, and none is kept for it"
)


def request_from_manifest(manifest: JobManifest, known: AdvisorContext) -> SchedulingRequest:
    """The request of a job as if it were submitted now."""
    state, config = known.state, known.state.schedulers.kueue
    remarks: list[str] = []
    if _is_defaulted(manifest, known):
        manifest = replace(manifest, queue=DEFAULT_QUEUE)
        remarks.append(f"it names no queue: Kueue gives it LocalQueue {DEFAULT_QUEUE} of its namespace")
    off = switched_off(manifest.job.job_kind, config)
    is_queued = bool(manifest.queue) and not off and not state.is_absent("cluster_queues")
    workloads = as_workloads(manifest, state, config) if is_queued else ()
    if manifest.queue and state.is_absent("cluster_queues"):
        remarks.append("Kueue is not in this cluster: the queue it names holds nothing")
    if manifest.queue and off:
        remarks.append(f"Kueue's integration {off} is switched off: no quota holds it")
    if state.cluster_queues and not manifest.queue and _asks_gpus(manifest.job.pod_sets, known):
        remarks.append(NO_QUEUE)
    gang = _gang(manifest, known)
    return SchedulingRequest(
        AdviceSubject(manifest.job.job_kind.value, manifest.namespace, manifest.name),
        team_of(manifest.job.meta.labels, manifest.job.meta.annotations, manifest.namespace, known),
        manifest.job.pod_sets,
        workloads,
        gang,
        sum(gpus_of(each, known) for each in manifest.job.pod_sets),
        manifest.deadline_s,
        pod_group=manifest.group_name if gang is None else "",
        unknown=manifest.unknown,
        refused=_refused(manifest, workloads, known),
        remarks=tuple(remarks),
        assumptions=assumptions(manifest) if workloads else (),
    )


def _refused(
    manifest: JobManifest, workloads: Sequence[Workload], known: AdvisorContext
) -> tuple[str, str] | None:
    """What keeps the job, or its Workload, from being created at all."""
    job, state = manifest.job, known.state
    group = job.as_owner.group
    collection = f"{job.kind.lower()}s.{group}" if group else f"{job.kind.lower()}s"
    if state.is_absent(collection):
        return NOT_SERVED, f"this cluster serves no {collection}"
    unlifted = not_lifted(job, manifest.queue, state)
    if unlifted:
        return SUSPENDED, unlifted
    flaw = next((flaw for each in workloads[:1] for flaw in each.flaws), None)
    of_kueue = bool(manifest.kueue_priority_class)
    if flaw is not None and not state.is_unread(OF_KUEUE if of_kueue else OF_PODS):
        kind = "WorkloadPriorityClass" if of_kueue else "PriorityClass"
        return MISCONFIGURED, f"there is no {kind} {flaw.value}, which it names"
    named = (each.template.priority_class for each in job.pod_sets)
    missing = next((name for name in named if name and not has_pod_class(state, name)), "")
    return (MISCONFIGURED, f"there is no PriorityClass {missing}, which its pods name") if missing else None


def _is_defaulted(manifest: JobManifest, known: AdvisorContext) -> bool:
    """Whether Kueue assigns a queue where the job names none: a LocalQueue of that name is in its namespace
    (gate LocalQueueDefaulting, on since v0.17). Pods of their own are left alone."""
    framework = FRAMEWORKS.get(manifest.job.job_kind, "pod")
    if manifest.queue or framework in _OF_PODS or manifest.job.meta.owner is not None:
        return False
    is_on = known.state.schedulers.kueue.gates.get("LocalQueueDefaulting", True)
    return is_on and (manifest.namespace, DEFAULT_QUEUE) in known.state.local_queue_by_name


def team_of(
    labels: Mapping[str, str], annotations: Mapping[str, str], namespace: str, known: AdvisorContext
) -> str:
    """By the job's own labels, else its namespace's; empty where neither names a team."""
    found = known.state.namespace_by_name.get(namespace)
    places = [labels, annotations, *([found.meta.labels, found.meta.annotations] if found else ())]
    return next(
        (place[key] for place in places for key in known.overview.owner_keys.team if place.get(key)), ""
    )


def gpus_of(pod_set: PodSet, known: AdvisorContext) -> int:
    """GPU units of all pods of a set."""
    requests = pod_set.template.requests
    catalog = known.overview.catalog
    return pod_set.count * sum(amount for name, amount in requests.items() if catalog.is_gpu(name))


def _asks_gpus(pod_sets: Iterable[PodSet], known: AdvisorContext) -> bool:
    return any(gpus_of(each, known) for each in pod_sets)


def _gang(manifest: JobManifest, known: AdvisorContext) -> VolcanoGang | None:
    if not is_for_volcano(manifest):
        return None
    members = known.world.members if manifest.group_name else None
    return gang_of_manifest(manifest, known.state, members)
