"""The same job in another shape: topology as a wish instead of a condition, as many GPUs in smaller pods."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from gpucost.advisor.answers import Decision, Layer
from gpucost.advisor.suggest.case import Case, Tried
from gpucost.advisor.suggest.patching import Path, drop, get, put
from gpucost.advisor.suggest.places import gpu_asks, largest_count, metadata, pod_specs
from gpucost.advisor.suggest.sizes import LEAST_PARALLELISM
from gpucost.domain.jobs import JobKind

REQUIRED = "kueue.x-k8s.io/podset-required-topology"
PREFERRED = "kueue.x-k8s.io/podset-preferred-topology"
_MINIMUMS: tuple[Path, ...] = (
    ("spec", "minAvailable"),
    ("spec", "runPolicy", "schedulingPolicy", "minAvailable"),
    ("spec", "elasticPolicy", "minReplicas"),
)
_MODE: Path = ("spec", "networkTopology", "mode")


def topologies(case: Case) -> Iterator[Tried | None]:
    """Kueue's required topology as a preferred one, Volcano's hard network topology as a soft one."""
    if case.advice.decision is Decision.NOW or case.advice.layer not in (Layer.PLACEMENT, Layer.QUOTA):
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


def smaller_pods(case: Case) -> Iterator[Tried | None]:
    """As many GPUs in more pods, the largest pods first; with as many times the completions, of which each
    then does less. Only of jobs whose pods are all alike: of others nobody knows which part may be divided.
    """
    if case.advice.decision is Decision.NOW or case.advice.layer is not Layer.PLACEMENT:
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


def _preferred(places: list[Path]) -> Callable[[dict[str, Any]], None]:
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
    """What is said of how many pods must be there at least."""
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
