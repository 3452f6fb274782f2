"""A smaller job: a smaller minimum, fewer pods, fewer GPUs in a pod, a slice instead of a board."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from gpucost.advisor.answers import Decision
from gpucost.advisor.suggest.case import Case, Tried, most_that_helps
from gpucost.advisor.suggest.patching import Path, drop, get, put
from gpucost.advisor.suggest.places import GpuAsk, gpu_asks, largest_count, metadata
from gpucost.advisor.volcano.gang import MIN_MEMBER, gang_of_manifest
from gpucost.cluster.mig_fit import MEMORY_ROOM, fits
from gpucost.domain.jobs import JobKind, WorkloadClass, workload_class
from gpucost.domain.words import counted

LEAST_PARALLELISM = "kueue.x-k8s.io/job-min-parallelism"
WHOLE_GPU = "nvidia.com/gpu"
MOST_OF_SIZE = 7
"""Candidates of one of these rules: halving finds the largest of up to 64."""

Edit = Callable[[dict[str, Any]], None]


def min_counts(case: Case) -> Iterator[Tried | None]:
    """The largest minimum with which it starts, all its pods wanted still."""
    if case.advice.decision is Decision.NOW:
        return
    if case.manifest.job.job_kind in (JobKind.JOB, JobKind.CRON_JOB) and case.is_at_kueue:
        yield from _of_kueue(case)
    elif case.is_at_volcano:
        yield from _of_volcano(case)


def _of_kueue(case: Case) -> Iterator[Tried | None]:
    """Kueue takes the largest number of pods that fits: asked once what that is, it becomes the minimum."""
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


def _of_volcano(case: Case) -> Iterator[Tried | None]:
    """Only of jobs that say already that a part of them is enough, since those that start in part hold GPUs
    while the rest waits; and only where there could be room for the rest some time."""
    gang = gang_of_manifest(case.manifest, case.known.state)
    if not 1 < gang.min_member < gang.size:
        return
    is_job = case.manifest.job.job_kind is JobKind.VOLCANO_JOB
    name = "minAvailable" if is_job else MIN_MEMBER

    def make(least: int) -> Tried | None:
        edit = _min_available(least) if is_job else _annotation(case, MIN_MEMBER, str(least))
        says = f"{name} {least} instead of {gang.min_member}"
        caveat = f"the job must work with {counted(least, 'pod')}; the rest follows as room allows"
        return case.of_manifest(says, edit, caveat)

    whole = make(gang.size)
    if whole is not None and whole.answer.decision is not Decision.NEVER:
        yield from most_that_helps(case, 1, gang.min_member - 1, make)


def _min_available(least: int) -> Edit:
    """With minimums of tasks that are above it, none starts: they go."""

    def edit(document: dict[str, Any]) -> None:
        put(document, ("spec", "minAvailable"), least)
        tasks = get(document, ("spec", "tasks"))
        minimums = [get(each, ("minAvailable",)) for each in tasks]
        if sum(each for each in minimums if isinstance(each, int)) > least:
            for at in range(len(tasks)):
                drop(document, ("spec", "tasks", at, "minAvailable"))

    return edit


def _annotation(case: Case, key: str, value: str) -> Edit:
    places = [(*at, "annotations", key) for at in metadata(case.manifest.document)]

    def edit(document: dict[str, Any]) -> None:
        for path in places:
            put(document, path, value)

    return edit


def fewer_pods(case: Case) -> Iterator[Tried | None]:
    """The most that helps."""
    if case.advice.decision is Decision.NOW:
        return
    count = largest_count(case.manifest.document, case.manifest.job.job_kind)
    if count is None:
        return
    serves = workload_class(case.manifest.job.job_kind) is WorkloadClass.SERVING
    slower = "serves less" if serves else "takes longer"

    def make(amount: int) -> Tried | None:
        says = f"{count.field} {amount} instead of {count.amount}"
        caveat = f"it must work with {amount}, and then {slower}"
        return case.of_manifest(says, _fewer(case, amount), caveat)

    yield from most_that_helps(case, 1, count.amount - 1, make)


def _fewer(case: Case, amount: int) -> Edit:
    """With minimums that would then be above it."""
    count = largest_count(case.manifest.document, case.manifest.job.job_kind)
    assert count is not None
    less = count.amount - amount
    minimum: Path = ("spec", "minAvailable")
    policy: Path = ("spec", "runPolicy", "schedulingPolicy", "minAvailable")

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


def fewer_gpus(case: Case) -> Iterator[Tried | None]:
    """In each pod: as many as like runs used, as a node has, or half as often as may be."""
    asks = _asked(case)
    if not asks or asks[0].amount < 2:
        return
    ask = asks[0]
    used = case.known.used(case.manifest) if case.known.used is not None else None
    most = case.known.rooms.base.largest.get(ask.resource, 0)
    wanted = [used.gpus] if used is not None and used.gpus is not None else []
    halves = [ask.amount >> by for by in range(1, ask.amount.bit_length())]
    if case.advice.decision is not Decision.NOW:
        wanted += [most, *halves]
    for amount in dict.fromkeys(each for each in wanted if 0 < each < ask.amount):
        from_past = used is not None and used.gpus is not None and amount >= used.gpus
        says = f"{amount} {ask.resource} in each pod instead of {ask.amount}"
        caveat = f"the job must work with {counted(amount, 'GPU')} in a pod"
        if from_past and used is not None:
            says += f": {counted(used.runs, 'earlier run')} used {used.gpus}"
            caveat = ""
        yield case.of_manifest(says, _asks(asks, ask.resource, amount), caveat, same_work=from_past)


def mig_profiles(case: Case) -> Iterator[Tried | None]:
    """The smallest slice in which like runs fit, of those that nodes have."""
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


def _asked(case: Case) -> list[GpuAsk]:
    """Where its pods ask for GPUs; none where they ask for several different amounts, or a pod asks twice."""
    asks = gpu_asks(case.manifest.document, case.known.overview.catalog)
    kinds = {(each.resource, each.amount) for each in asks}
    holders = {each.path[:-2] for each in asks}
    return asks if len(kinds) == 1 and len(holders) == len(asks) else []


def _asks(asks: list[GpuAsk], resource: str, amount: int) -> Edit:
    def edit(document: dict[str, Any]) -> None:
        for each in asks:
            each.change(document, resource, amount)

    return edit
