"""A job of as many pod sets as Kueue takes (18 since 0.19, 10 in 0.18, 8 before): read, shown by the
collector, asked about."""

from __future__ import annotations

from typing import Any

import pytest

from gpucost.advisor.kueue.job_workloads import as_workloads, assumptions
from gpucost.advisor.model.answers import SchedulingDecision
from gpucost.cluster.objects.scheduler_config import KueueConfig
from gpucost.cluster.views.overview import ClusterOverview
from gpucost.cluster.views.quota import workload_usage
from gpucost.kube.manifests import manifest_of
from gpucost.kube.parse.kueue import workload as parsed
from gpucost_queue_collector.workload_series import SPECS, shown_workloads, write_workload
from tests.advisor.test_advise import ask, nodes
from tests.advisor.worlds import queue
from tests.cluster import builders
from tests.exporters.queue.series import read_back
from tests.support import crds
from tests.support.objects import condition, kueue

GPU = builders.GPU
SETS = 18


def made(**status: Any) -> dict[str, Any]:
    """Of one pod with a GPU for each pod set."""
    sets = [kueue.pod_set(f"set-{n}") for n in range(SETS)]
    found = kueue.workload("wl", "team-a", queue="lq", pod_sets=sets, **status)
    crds.validate(found)
    return found


def test_every_pod_set_that_waits_is_shown() -> None:
    waits = parsed(made(conditions=[condition("QuotaReserved", False, "Pending")]))
    state = builders.state(
        builders.cluster_queue("cq"), builders.local_queue("lq", "cq"), builders.node("n", 8), waits
    )
    [shown] = shown_workloads(ClusterOverview(state), {}).values()
    assert len(shown.wants) == SETS
    assert shown.units == {GPU: SETS}
    told = read_back(SPECS, write_workload(shown))
    assert {each["pod_set"] for each in told if "pod_set" in each} == {f"set-{n}" for n in range(SETS)}


@pytest.mark.parametrize(("returned", "left"), [((), 18), ((0, 8, 17), 15), (range(SETS), 0)])
def test_pods_that_are_done_give_their_quota_back(returned: Any, left: int) -> None:
    """Of the first, the last and one between: whatever pod set they are of."""
    found = parsed(
        made(
            cluster_queue="cq",
            assignments=[
                kueue.assignment(f"set-{n}", flavors={GPU: "h100"}, usage={GPU: "1"}) for n in range(SETS)
            ],
            conditions=[condition("QuotaReserved"), condition("Admitted")],
            reclaimable={f"set-{n}": 1 for n in returned},
        )
    )
    assert sum(workload_usage(found).values()) == left
    views = ClusterOverview(
        builders.state(builders.cluster_queue("cq"), builders.local_queue("lq", "cq", "team-a"), found)
    ).queues
    assert sum(quota.reserved or 0 for quota in views.cluster_queues["cq"].quotas.values()) == left
    assert sum(views.local_queues["team-a", "lq"].used.values()) == left


@pytest.mark.parametrize("sets", [SETS, SETS + 1])
def test_it_is_asked_about_whole(sets: int) -> None:
    pod = {"containers": [{"name": "c", "image": "i", "resources": {"limits": {GPU: 1}}}]}
    part = {"parallelism": 1, "completions": 1, "template": {"spec": {**pod, "restartPolicy": "Never"}}}
    manifest = manifest_of(
        {
            "apiVersion": "jobset.x-k8s.io/v1alpha2",
            "kind": "JobSet",
            "metadata": {
                "name": "llm",
                "namespace": "ml",
                "labels": {"kueue.x-k8s.io/queue-name": "main"},
            },
            "spec": {
                "replicatedJobs": [
                    {"name": f"r{n}", "replicas": 1, "template": {"spec": part}} for n in range(sets)
                ]
            },
        },
        "job.yaml",
        builders.T0,
    )
    [found] = as_workloads(manifest, builders.state(), KueueConfig())
    assert len(found.pod_sets) == sets
    told = f"Kueue takes at most 18 pod sets; this job has {sets}"
    assert (told in assumptions(manifest)) is (sets > SETS)
    if sets == SETS:
        fits = ask(manifest, queue("ml", SETS), *nodes(3))
        assert (fits.decision, len(fits.pod_sets)) == (SchedulingDecision.NOW, SETS)
        assert ask(manifest, queue("ml", SETS - 1), *nodes(3)).decision is SchedulingDecision.NEVER
