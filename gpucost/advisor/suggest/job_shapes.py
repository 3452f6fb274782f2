"""Suggestions that change the size or the shape of a job.

A smaller job: a smaller minimum, fewer pods, fewer GPUs in a pod, a slice instead of a GPU. The same job in
another shape: topology as a preference instead of a condition, as many GPUs in smaller pods. All at once or
not at all, for pods that need each other and may start in part.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from gpucost.advisor.model.answers import SchedulingDecision, SchedulingLayer
from gpucost.advisor.suggest.candidates import SuggestionCandidate, SuggestionCase, most_that_helps
from gpucost.advisor.suggest.patches import (
    DocumentPath,
    GpuRequestField,
    ManifestEdit,
    drop,
    get,
    gpu_asks,
    largest_count,
    metadata,
    pod_specs,
    put,
)
from gpucost.advisor.suggest.queue_choice import kueue_queue
from gpucost.advisor.volcano.gang import MIN_MEMBER, SCHEDULER, gang_of_manifest
from gpucost.cluster.objects.jobs import Document, JobObject
from gpucost.cluster.views.node_fit import fits
from gpucost.cluster.views.volcano_queues import ROOT_QUEUE
from gpucost.domain.gpu import MEMORY_ROOM
from gpucost.domain.jobs import JobKind, WorkloadClass, workload_class
from gpucost.domain.text import counted

LEAST_PARALLELISM = "kueue.x-k8s.io/job-min-parallelism"
WHOLE_GPU = "nvidia.com/gpu"
MOST_OF_SIZE = 7
"""Candidates that one of these rules evaluates: halving finds the largest of up to 64."""


def min_counts(case: SuggestionCase) -> Iterator[SuggestionCandidate | None]:
    """The largest minimum with which the job starts; it still asks for all its pods."""
    if case.advice.decision is SchedulingDecision.NOW:
        return
    if case.manifest.job.job_kind in (JobKind.JOB, JobKind.CRON_JOB) and case.is_at_kueue:
        yield from _of_kueue(case)
    elif case.is_at_volcano:
        yield from _of_volcano(case)


def _of_kueue(case: SuggestionCase) -> Iterator[SuggestionCandidate | None]:
    """Kueue takes the largest number of pods that fits: evaluated once to find that number, which becomes the
    minimum."""
    total = case.manifest.job.pods_wanted
    own = case.manifest.job.pod_sets[0].min_count if case.manifest.job.pod_sets else None
    least = total if own is None else own
    if least < 2:
        return
    first = case.of_manifest("", _annotation(case, LEAST_PARALLELISM, "1"))
    if first is None or not case.helps(first):
        return
    given = sum(each.count for each in first.answer.pod_sets)
    count = max(1, min(given or 1, least - 1))
    says = f"let it start with {count} of its {total} pods (annotation job-min-parallelism)"
    caveat = f"the job must work with {counted(count, 'pod')}: Kueue lowers its parallelism to what fits"
    yield case.of_manifest(says, _annotation(case, LEAST_PARALLELISM, str(count)), caveat)


def _of_volcano(case: SuggestionCase) -> Iterator[SuggestionCandidate | None]:
    """Only for jobs that already state that a part of them is enough, since those that start in part hold
    GPUs while the rest waits; and only where there could be room for the rest at some time."""
    gang = gang_of_manifest(case.manifest, case.known.state)
    if not 1 < gang.min_member < gang.size:
        return
    is_job = case.manifest.job.job_kind is JobKind.VOLCANO_JOB
    name = "minAvailable" if is_job else MIN_MEMBER

    def make(least: int) -> SuggestionCandidate | None:
        edit = _min_available(least) if is_job else _annotation(case, MIN_MEMBER, str(least))
        says = f"{name} {least} instead of {gang.min_member}"
        caveat = f"the job must work with {counted(least, 'pod')}; the rest follows as room allows"
        return case.of_manifest(says, edit, caveat)

    whole = make(gang.size)
    if whole is not None and whole.answer.decision is not SchedulingDecision.NEVER:
        yield from most_that_helps(case, 1, gang.min_member - 1, make)


def _min_available(least: int) -> ManifestEdit:
    """With minimums of tasks that are above it, none starts: they go."""

    def edit(document: dict[str, Any]) -> None:
        put(document, ("spec", "minAvailable"), least)
        tasks = get(document, ("spec", "tasks"))
        minimums = [get(each, ("minAvailable",)) for each in tasks]
        if sum(each for each in minimums if isinstance(each, int)) > least:
            for at in range(len(tasks)):
                drop(document, ("spec", "tasks", at, "minAvailable"))

    return edit


def _annotation(case: SuggestionCase, key: str, value: str) -> ManifestEdit:
    places = [(*at, "annotations", key) for at in metadata(case.manifest.document)]

    def edit(document: dict[str, Any]) -> None:
        for path in places:
            put(document, path, value)

    return edit


def fewer_pods(case: SuggestionCase) -> Iterator[SuggestionCandidate | None]:
    """The largest number of pods that helps."""
    if case.advice.decision is SchedulingDecision.NOW:
        return
    count = largest_count(case.manifest.document, case.manifest.job.job_kind)
    if count is None:
        return
    serves = workload_class(case.manifest.job.job_kind) is WorkloadClass.SERVING
    slower = "serves less" if serves else "takes longer"

    def make(amount: int) -> SuggestionCandidate | None:
        says = f"{count.field} {amount} instead of {count.amount}"
        caveat = f"it must work with {amount}, and then {slower}"
        return case.of_manifest(says, _fewer(case, amount), caveat)

    yield from most_that_helps(case, 1, count.amount - 1, make)


def _fewer(case: SuggestionCase, amount: int) -> ManifestEdit:
    """With minimums that would then be above it."""
    count = largest_count(case.manifest.document, case.manifest.job.job_kind)
    assert count is not None
    less = count.amount - amount
    minimum: DocumentPath = ("spec", "minAvailable")
    policy: DocumentPath = ("spec", "runPolicy", "schedulingPolicy", "minAvailable")

    def edit(document: dict[str, Any]) -> None:
        count.change(document, amount)
        total = case.manifest.job.pods_wanted - less
        for path in (minimum, policy):
            least = get(document, path)
            if isinstance(least, int) and least > total:
                put(document, path, max(1, total))
        for at in metadata(document):
            path = (*at, "annotations", LEAST_PARALLELISM)
            least = get(document, path)
            if isinstance(least, str) and least.isdecimal() and int(least) >= amount:
                drop(document, path)

    return edit


def fewer_gpus(case: SuggestionCase) -> Iterator[SuggestionCandidate | None]:
    """Fewer GPUs in each pod: as many as similar runs used, as a node has, or half as many as long as more
    may be evaluated."""
    asks = _asked(case)
    if not asks or asks[0].amount < 2:
        return
    ask = asks[0]
    used = case.known.used(case.manifest) if case.known.used is not None else None
    most = case.known.rooms.base.largest.get(ask.resource, 0)
    wanted = [used.gpus] if used is not None and used.gpus is not None else []
    halves = [ask.amount >> by for by in range(1, ask.amount.bit_length())]
    if case.advice.decision is not SchedulingDecision.NOW:
        wanted += [most, *halves]
    for amount in dict.fromkeys(each for each in wanted if 0 < each < ask.amount):
        from_past = used is not None and used.gpus is not None and amount >= used.gpus
        says = f"{amount} {ask.resource} in each pod instead of {ask.amount}"
        caveat = f"the job must work with {counted(amount, 'GPU')} in a pod"
        if from_past and used is not None:
            says += f": {counted(used.runs, 'earlier run')} used {used.gpus}"
            caveat = ""
        yield case.of_manifest(says, _asks(asks, ask.resource, amount), caveat, same_work=from_past)


def mig_profiles(case: SuggestionCase) -> Iterator[SuggestionCandidate | None]:
    """The smallest slice in which similar runs would fit, of those that nodes have."""
    asks = _asked(case)
    used = case.known.used(case.manifest) if case.known.used is not None else None
    if used is None or not asks or (asks[0].resource, asks[0].amount) != (WHOLE_GPU, 1):
        return
    for fit in fits(used.model, used.board_bytes, used.memory_bytes, used.sm_activity, MEMORY_ROOM):
        resource = f"nvidia.com/mig-{fit.profile}"
        if case.known.rooms.base.largest.get(resource, 0) < 1:
            continue
        says = f"a slice {fit.profile} instead of a whole {used.model}: earlier runs fit in it"
        caveat = (
            f"they took {used.memory_bytes / 10**9:.1f} GB and {used.sm_activity:.0%} of the SMs at most; "
            "a slice has no more"
        )
        yield case.of_manifest(says, _asks(asks, resource, 1), caveat, same_work=True)


def _asked(case: SuggestionCase) -> list[GpuRequestField]:
    """Where its pods ask for GPUs; empty where they ask for several different amounts, or a pod
    asks twice."""
    asks = gpu_asks(case.manifest.document, case.known.overview.catalog)
    kinds = {(each.resource, each.amount) for each in asks}
    holders = {each.path[:-2] for each in asks}
    return asks if len(kinds) == 1 and len(holders) == len(asks) else []


def _asks(asks: list[GpuRequestField], resource: str, amount: int) -> ManifestEdit:
    def edit(document: dict[str, Any]) -> None:
        for each in asks:
            each.change(document, resource, amount)

    return edit


REQUIRED = "kueue.x-k8s.io/podset-required-topology"
PREFERRED = "kueue.x-k8s.io/podset-preferred-topology"
_MINIMUMS: tuple[DocumentPath, ...] = (
    ("spec", "minAvailable"),
    ("spec", "runPolicy", "schedulingPolicy", "minAvailable"),
    ("spec", "elasticPolicy", "minReplicas"),
)
_MODE: DocumentPath = ("spec", "networkTopology", "mode")


def topologies(case: SuggestionCase) -> Iterator[SuggestionCandidate | None]:
    """Kueue's required topology as a preferred one, Volcano's hard network topology as a soft one."""
    if case.advice.decision is SchedulingDecision.NOW or case.advice.layer not in (
        SchedulingLayer.PLACEMENT,
        SchedulingLayer.QUOTA,
    ):
        return
    document = case.manifest.document
    places = [(*spec[:-1], "metadata", "annotations") for spec in pod_specs(document)]
    levels = [str(found) for each in places if (found := get(document, (*each, REQUIRED))) is not None]
    caveat = "its pods may then be far from each other, and talk more slowly"
    if levels:
        names = ", ".join(dict.fromkeys(levels))
        says = f"prefer one {names} for its pods instead of requiring it"
        yield case.of_manifest(says, _preferred(places), caveat)
    is_of_volcano = case.manifest.job.job_kind is JobKind.VOLCANO_JOB
    if is_of_volcano and get(document, _MODE[:-1]) and get(document, _MODE) != "soft":
        yield case.of_manifest("a soft networkTopology instead of a hard one", _soft, caveat)


def smaller_pods(case: SuggestionCase) -> Iterator[SuggestionCandidate | None]:
    """As many GPUs in more pods, the largest pods first; with as many times the completions, of which each
    then does less. Only for jobs whose pods are all alike: for others it is not known which part may be
    divided."""
    if case.advice.decision is SchedulingDecision.NOW or case.advice.layer is not SchedulingLayer.PLACEMENT:
        return
    document, kind = case.manifest.document, case.manifest.job.job_kind
    asks = gpu_asks(document, case.known.overview.catalog)
    count = largest_count(document, kind, least=1)
    if count is None or len(asks) != 1 or len(pod_specs(document)) != 1:
        return
    (ask,) = asks
    for times in (each for each in range(2, ask.amount + 1) if ask.amount % each == 0):
        pods, gpus = count.amount * times, ask.amount // times

        def edit(changed: dict[str, Any], times: int = times, pods: int = pods, gpus: int = gpus) -> None:
            ask.change(changed, ask.resource, gpus)
            if count.completions is not None:
                put(changed, count.completions, get(document, count.completions) * times)
            count.change(changed, pods)
            _multiply(changed, times)

        says = (
            f"{pods} pods with {gpus} {ask.resource} each instead of {count.amount} with {ask.amount}: "
            "as many in smaller pods"
        )
        caveat = f"the job must work with {pods} pods; each still asks for as much CPU and memory"
        if count.completions is not None and get(document, count.completions) != count.amount:
            caveat += ", and is to do a smaller part of the work"
        yield case.of_manifest(says, edit, caveat)


def _preferred(places: list[DocumentPath]) -> ManifestEdit:
    def edit(changed: dict[str, Any]) -> None:
        for each in places:
            level = get(changed, (*each, REQUIRED))
            if level is not None:
                drop(changed, (*each, REQUIRED))
                put(changed, (*each, PREFERRED), level)

    return edit


def _soft(changed: dict[str, Any]) -> None:
    """Without the tier, which only a hard one has."""
    put(changed, _MODE[:-1], {"mode": "soft"})


def _multiply(document: dict[str, Any], times: int) -> None:
    """Multiplies the field that states how many pods must be there at least."""
    tasks = get(document, ("spec", "tasks"))
    of_tasks = [("spec", "tasks", at, "minAvailable") for at in range(len(tasks or ()))]
    for path in (*_MINIMUMS, *of_tasks):
        least = get(document, path)
        if isinstance(least, int):
            put(document, path, least * times)
    for at in metadata(document):
        path = (*at, "annotations", LEAST_PARALLELISM)
        least = get(document, path)
        if isinstance(least, str) and least.isdecimal():
            put(document, path, str(int(least) * times))


def gangs(case: SuggestionCase) -> Iterator[SuggestionCandidate | None]:
    """A minimum as large as the job, at Volcano; else a queue or a scheduler that supports gangs."""
    job = case.manifest.job
    total = job.pods_wanted
    if total < 2 or case.advice.decision in (SchedulingDecision.NEVER, SchedulingDecision.UNKNOWN):
        return
    if case.is_at_volcano:
        yield from _minimum(case, total)
    elif _is_gang(job) and case.advice.layer is not SchedulingLayer.NONE:
        yield from _scheduled(case, total)


def _minimum(case: SuggestionCase, total: int) -> Iterator[SuggestionCandidate | None]:
    gang = gang_of_manifest(case.manifest, case.known.state)
    if gang.min_member >= total:
        return
    is_job = case.manifest.job.job_kind is JobKind.VOLCANO_JOB
    field = "minAvailable" if is_job else MIN_MEMBER
    says = f"{field} {total} instead of {gang.min_member}: all its pods start, or none does"
    caveat = f"as it is, {counted(gang.min_member, 'pod')} can start and hold GPUs while the rest waits"
    edit = _of_job(total) if is_job else _annotated(case.manifest.document, total)
    yield case.of_manifest(says, edit, caveat, completes=True)


def _scheduled(case: SuggestionCase, total: int) -> Iterator[SuggestionCandidate | None]:
    """Hands the job to a gang scheduler: the default scheduler places pods one by one."""
    state, document = case.known.state, case.manifest.document
    if case.manifest.queue or case.manifest.group_name:
        return
    caveat = f"as it is, some of its {total} pods can start, hold their GPUs and wait for the rest"
    for namespace, name in sorted(state.local_queue_by_name):
        if namespace == case.manifest.namespace:
            says = f"submit it to queue {name}: Kueue lets all its pods in at once"
            yield case.of_manifest(says, kueue_queue(document, name), caveat, completes=True)
    if any(name != ROOT_QUEUE for name in state.volcano_queue_by_name):
        says = f"let Volcano schedule it, with a minimum of {total} pods: all start, or none does"
        yield case.of_manifest(says, _by_volcano(document, total), caveat, completes=True)


def _is_gang(job: JobObject) -> bool:
    """Whether its pods need each other."""
    return job.gang_size is not None and job.gang_size > 1


def _of_job(total: int) -> ManifestEdit:
    def edit(changed: dict[str, Any]) -> None:
        put(changed, ("spec", "minAvailable"), total)

    return edit


def _annotated(document: Document, total: int) -> ManifestEdit:
    def edit(changed: dict[str, Any]) -> None:
        for at in metadata(document):
            put(changed, (*at, "annotations", MIN_MEMBER), str(total))

    return edit


def _by_volcano(document: Document, total: int) -> ManifestEdit:
    def edit(changed: dict[str, Any]) -> None:
        _annotated(document, total)(changed)
        for spec in pod_specs(document):
            put(changed, (*spec, "schedulerName"), SCHEDULER)

    return edit
