"""Hypothesis strategies for small GPU clusters in the manner of the recorded ones.

One to four ClusterQueues, alone, in one cohort or in a tree; one or two flavors, some with labels and taints;
workloads that hold quota, within quota unless a test asks otherwise, some of them evicted; and others that
wait. All times differ, so that only Kueue's rules decide.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from fractions import Fraction
from random import Random
from typing import Any

from hypothesis import strategies as st

from gpucost.cluster.objects.kueue import (
    ClusterQueue,
    Cohort,
    FlavorQuota,
    FlavorResource,
    ResourceFlavor,
    Workload,
)
from gpucost.cluster.objects.pods import PodSet
from gpucost.cluster.objects.scheduler_config import (
    FINAL_SHARE,
    INITIAL_SHARE,
    STRATEGIES,
    KueueConfig,
)
from gpucost.cluster.objects.state import ClusterState
from gpucost.cluster.views.cohorts import QuotaTree, quota_tree
from tests.advisor import worlds

Draw = st.DrawFn
Ages = Iterator[int]
"""Seconds before now; no two are the same."""
PRIORITIES = (100, 500, 1000)
FLAVORS = ("h100", "l4")
QUEUES = ("ads", "nlp", "search", "vision")
_TREES: tuple[tuple[dict[str, str], tuple[str, ...]], ...] = (
    ({}, ("",)),
    ({"org": ""}, ("org",)),
    ({"org": "", "apps": "org", "labs": "org"}, ("apps", "labs")),
    ({"org": "", "apps": "org", "labs": "org"}, ("org", "apps", "labs")),
    ({"org": "", "labs": "org", "deep": "labs"}, ("org", "deep", "labs")),
)
"""Cohorts with their parents, and where ClusterQueues may be."""


def configs(fair_sharing: bool | None = None) -> st.SearchStrategy[KueueConfig]:
    """Classical preemption or fair sharing, as ``fair_sharing`` says, with any list of strategies."""
    fair = st.booleans() if fair_sharing is None else st.just(fair_sharing)
    strategies = st.sampled_from([STRATEGIES, (FINAL_SHARE,), (INITIAL_SHARE,)])
    return st.builds(
        lambda is_fair, chosen: KueueConfig(
            "v0.19.2", is_fair, chosen if is_fair else STRATEGIES, is_read=True
        ),
        fair,
        strategies,
    )


@st.composite
def clusters(
    draw: Draw,
    *,
    fair_sharing: bool | None = None,
    preemption: bool | None = None,
    most_queues: int = 4,
    most_holding: int = 8,
    most_pending: int = 5,
    above_quota: bool = False,
    partial: bool = True,
    evicted: bool = True,
) -> ClusterState:
    """A state whose ``schedulers.kueue`` is its configuration.

    With ``preemption`` False no queue may preempt, with True each may do so in its own queue at least. Only
    with ``above_quota`` may holdings be more than there is quota for.
    """
    names = FLAVORS[: draw(st.sampled_from([1, 1, 2]))]
    flavors = [draw(resource_flavors(name)) for name in names]
    parents, places = draw(st.sampled_from(_TREES))
    cohorts = [draw(cohort_objects(name, parent, names)) for name, parent in parents.items()]
    queues = [
        draw(cluster_queues(name, draw(st.sampled_from(places)), names, preemption))
        for name in QUEUES[: min(most_queues, draw(st.sampled_from([2, 1, 3, 4])))]
    ]
    ages = _ages(draw, 2 * (most_holding + most_pending))
    held = [
        draw(holdings(f"held-{place}", queues, names, ages, evicted))
        for place in range(draw(_up_to(most_holding)))
    ]
    if not above_quota:
        held = list(_within(quota_tree(queues, cohorts), held))
    waiting = [
        draw(waiters(f"wait-{place}", queues, ages, partial)) for place in range(draw(_up_to(most_pending)))
    ]
    config = draw(configs(fair_sharing))
    return worlds.state(*flavors, *cohorts, *queues, *held, *waiting, kueue=config)


@st.composite
def resource_flavors(draw: Draw, name: str) -> ResourceFlavor:
    labels = {"gpu": name} if draw(st.booleans()) else {}
    tainted = draw(st.sampled_from(["", "", "", "PreferNoSchedule", "NoSchedule"]))
    taints = (worlds.taint("spot", "true", tainted),) if tainted else ()
    return worlds.flavor(name, labels, taints=taints)


@st.composite
def cluster_queues(
    draw: Draw, name: str, cohort: str, flavors: Iterable[str], preemption: bool | None = None
) -> ClusterQueue:
    """Quota of GPUs, of cpu too or not, in all flavors."""
    gpu = {each: draw(quotas(in_cohort=bool(cohort))) for each in flavors}
    cpu = dict.fromkeys(gpu, draw(st.sampled_from([None, 64, 256])))
    policies = draw(_policies(preemption, bool(cohort)))
    return worlds.queue(
        name,
        gpu,
        cohort=cohort,
        cpu=None if None in cpu.values() else {key: amount for key, amount in cpu.items() if amount},
        strict=draw(st.booleans()),
        can_borrow=draw(st.sampled_from(["MayStopSearch", "TryNextFlavor"])),
        can_preempt=draw(st.sampled_from(["MayStopSearch", "TryNextFlavor"])),
        preference=draw(st.sampled_from(["", "BorrowingOverPreemption", "PreemptionOverBorrowing"])),
        weight=draw(st.sampled_from([Fraction(1), Fraction(2), Fraction(1, 2), Fraction(0)])),
        **policies,
    )


@st.composite
def cohort_objects(draw: Draw, name: str, parent: str, flavors: Iterable[str]) -> Cohort:
    """With quota of its own or without; limits only below the root, as Kueue demands."""
    has_quota = draw(st.booleans())
    gpu = {each: draw(quotas(in_cohort=bool(parent))) for each in flavors} if has_quota else None
    return worlds.cohort(name, gpu, parent=parent, weight=draw(st.sampled_from([1, 2])))


@st.composite
def quotas(draw: Draw, *, in_cohort: bool) -> FlavorQuota:
    """Of GPUs. Limits only in a cohort; what is lent is at most what there is."""
    nominal = draw(st.sampled_from([8, 4, 16, 0]))
    if not in_cohort:
        return FlavorQuota(nominal)
    borrowing = draw(st.sampled_from([None, None, 0, 4, 8]))
    lending = draw(st.sampled_from([None, None, 0, 2, 4]))
    return FlavorQuota(nominal, borrowing, None if lending is None else min(lending, nominal))


@st.composite
def holdings(
    draw: Draw, name: str, queues: list[ClusterQueue], flavors: Iterable[str], ages: Ages, evicted: bool
) -> Workload:
    """Admitted in any flavor; one of six has been evicted."""
    queue = draw(st.sampled_from(queues))
    pods = draw(pod_sets(queue, partial=False))
    reserved, created = sorted((next(ages), next(ages)))
    is_evicted = evicted and draw(st.integers(0, 5)) == 5
    return worlds.workload(
        name,
        queue.name,
        priority=draw(st.sampled_from((100, *PRIORITIES))),
        pod_sets=pods,
        holding=True,
        flavor=draw(st.sampled_from(tuple(flavors))),
        created=created,
        reserved=reserved,
        evicted=reserved / 2 if is_evicted else None,
    )


@st.composite
def waiters(draw: Draw, name: str, queues: list[ClusterQueue], ages: Ages, partial: bool = True) -> Workload:
    queue = draw(st.sampled_from(queues))
    pods = draw(pod_sets(queue, partial=partial))
    priority = draw(st.sampled_from(PRIORITIES[::-1]))
    return worlds.workload(name, queue.name, priority=priority, pod_sets=pods, created=next(ages))


@st.composite
def pod_sets(draw: Draw, queue: ClusterQueue, *, partial: bool) -> tuple[PodSet, ...]:
    """One, or a launcher without GPUs before it; cpu only where the queue has quota of it."""
    has_cpu = any(key.resource == "cpu" for key in queue.quotas)
    count = draw(st.sampled_from([1, 2, 1, 4]))
    tolerations = () if draw(st.integers(0, 2)) == 2 else (worlds.tolerates("spot"),)
    selector = {"gpu": draw(st.sampled_from(FLAVORS))} if draw(st.integers(0, 5)) == 5 else {}
    least = draw(st.integers(1, count)) if partial and draw(st.integers(0, 3)) == 3 else None
    workers = worlds.pod_set(
        "workers",
        count,
        draw(st.sampled_from([4, 2, 8, 1])),
        cpu=draw(st.sampled_from([0, 1, 3.5, 16])) if has_cpu else 0,
        least=least,
        tolerations=tolerations,
        selector=selector,
    )
    if not has_cpu or draw(st.integers(0, 3)) < 3:
        return (workers,)
    return worlds.pod_set("launcher", 1, 0, cpu=1, tolerations=tolerations), workers


def _up_to(most: int) -> st.SearchStrategy[int]:
    """Crowded more often than not: in an empty cluster nothing is decided."""
    return st.sampled_from([most, max(0, most - 1), most // 2, 1, 0])


def _ages(draw: Draw, count: int) -> Ages:
    return iter(draw(st.permutations([60 * each for each in range(1, count + 1)])))


@st.composite
def _policies(draw: Draw, preemption: bool | None, in_cohort: bool) -> dict[str, Any]:
    """Kueue allows borrowWithinCohort only beside reclaimWithinCohort."""
    if preemption is False:
        return {}
    within = ["LowerPriority", "LowerOrNewerEqualPriority", "Never"][: 2 if preemption else 3]
    reclaim = draw(st.sampled_from(["Any", "LowerPriority", "Never"])) if in_cohort else "Never"
    may_borrow = reclaim != "Never" and draw(st.booleans())
    return {
        "within": draw(st.sampled_from(within)),
        "reclaim": reclaim,
        "borrow": "LowerPriority" if may_borrow else "Never",
        "threshold": draw(st.sampled_from([None, *PRIORITIES])) if may_borrow else None,
    }


def _within(tree: QuotaTree, held: Iterable[Workload]) -> Iterable[Workload]:
    """Those that there is quota for, one after the other."""
    for each in held:
        node = tree.queues[each.cluster_queue]
        asked: dict[FlavorResource, int] = {}
        for given in each.assignments:
            for resource, amount in given.usage.items():
                key = FlavorResource(given.flavors[resource], resource)
                asked[key] = asked.get(key, 0) + amount
        if all(node.available(key) >= amount for key, amount in asked.items()):
            for key, amount in asked.items():
                node.add_usage(key, amount)
            yield each


def reordered(state: ClusterState, seed: int) -> ClusterState:
    """The same objects, each collection in another order."""
    chance = Random(seed)
    changed: dict[str, Any] = {}
    for field in ("cluster_queues", "local_queues", "cohorts", "flavors", "workloads", "namespaces"):
        items = list(getattr(state, field).items())
        chance.shuffle(items)
        changed[field] = dict(items)
    return replace(state, **changed)
