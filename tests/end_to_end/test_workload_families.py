"""Jobs for which Kueue has several workloads: an elastic one that grows, one that tries flavors."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import kubernetes_validate
import pytest
from prometheus_client.parser import text_string_to_metric_families

from gpucost.domain.time import HOUR_MS, MINUTE_MS, iso
from tests.end_to_end.fixture_cluster import START_MS, BilledCluster, ClusterScript, scrapes
from tests.support import crds
from tests.support.cluster import shapes
from tests.support.objects import condition, kueue
from tests.support.prometheus import needs_prometheus

pytestmark = [pytest.mark.slow, needs_prometheus, pytest.mark.prometheus]

GPU = "nvidia.com/gpu"
HOURS = 4
SHORT = "couldn't assign flavors to pod set main: insufficient unused quota for nvidia.com/gpu in flavor h100"
GROWS = ("batch/v1", "Job", "grows", "job-grows")
TRIES = ("batch/v1", "Job", "tries", "job-tries")
PARENT = ("kueue.x-k8s.io/v1beta2", "Workload", "tries", "tries-uid")
REPLACES = "kueue.x-k8s.io/workload-slice-replacement-for"
LABELS = {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3", "nvidia.com/gpu.count": "8"}


def at(minute: int) -> str:
    return iso(START_MS + minute * MINUTE_MS)


def queues() -> list[dict[str, Any]]:
    quota = {"h100": {GPU: ("8", None, None)}}
    return [
        kueue.resource_flavor("h100"),
        kueue.cluster_queue("gpus", quotas=quota),
        kueue.local_queue("train", "gpus", "blue"),
    ]


def workload(
    name: str, made: int, pods: int, admitted: int | None = None, replaced: int | None = None, **meta: Any
) -> dict[str, Any]:
    """Of pods with one GPU each."""
    told = [("QuotaReserved", admitted), ("Admitted", admitted)] if admitted is not None else []
    conditions = [condition(type_, since=at(minute)) for type_, minute in told]
    if admitted is None:
        conditions = [condition("QuotaReserved", False, "WaitingForQuota", SHORT, since=at(made))]
    if replaced is not None:
        conditions.append(condition("Finished", True, "WorkloadSliceReplaced", since=at(replaced)))
    given = kueue.assignment(flavors={GPU: "h100"}, usage={GPU: str(pods)}, count=pods)
    return kueue.workload(
        name,
        "blue",
        queue="train",
        cluster_queue="gpus" if admitted is not None else "",
        pod_sets=[kueue.pod_set(count=pods)],
        assignments=[given] if admitted is not None else [],
        conditions=conditions,
        uid=f"{name}-uid",
        created=at(made),
        **meta,
    )


def script() -> ClusterScript:
    """A node of eight GPUs, for four hours.

    grows    an elastic job: 2 pods, made at 0:00 and admitted at 0:10; from 1:00 on it wants 4, which it gets
             at 1:30. It waits 10 minutes for 2 GPUs and 30 for 2 more; it holds 2 x 230 and 2 x 150 minutes
    tries    a job of 4 pods with three variants, one for each flavor, none of which gets quota: it waits from
             2:00 on for 4 GPUs, not for 16
    """
    made = ClusterScript(HOURS)
    made.at(-5, shapes.node("n", START_MS - 600_000, {GPU: 8}, LABELS), *queues())
    first = {"owner": GROWS}
    second = {"owner": GROWS, "annotations": {REPLACES: "blue/first"}}
    made.at(0, job("grows", 0, 2), workload("first", 0, 2, **first))
    made.at(10, workload("first", 0, 2, 10, **first), pod("g0", 10), pod("g1", 10))
    made.at(60, workload("second", 60, 4, **second))
    made.at(90, workload("second", 60, 4, 90, **second), workload("first", 0, 2, 10, 90, **first))
    made.at(90, pod("g2", 90), pod("g3", 90))
    made.at(120, job("tries", 120, 4))
    parent = {"kueue.x-k8s.io/concurrent-admission-parent": "true"}
    made.at(120, workload("tries", 120, 4, owner=TRIES, labels=parent))
    made.at(120, *(workload(f"tries-{n}", 120, 4, owner=PARENT) for n in range(3)))
    return made


def job(name: str, minute: int, pods: int) -> dict[str, Any]:
    return shapes.job("blue", name, START_MS + minute * MINUTE_MS, pods, shapes.template(GPU, 1))


def pod(name: str, minute: int) -> dict[str, Any]:
    """Of the job that grows, bound at ``minute``."""
    at_ms = START_MS + minute * MINUTE_MS
    found = shapes.pod("blue", name, f"{name}-uid", at_ms, GPU, 1, owner=GROWS)
    found["spec"]["nodeName"] = "n"
    found["status"]["phase"] = "Running"
    shapes.set_condition(found, "PodScheduled", True, "", at_ms)
    return found


def waited(bill: BilledCluster, job: str) -> list[tuple[Fraction, Fraction, int]]:
    """Of the stretches in which a job waited: hours after the start, from when to when, and GPUs."""
    rows = bill.history.demand
    rows = rows[rows["job"] == job].sort_values("start_ms")
    columns = (rows[name].tolist() for name in ("start_ms", "end_ms", "pods", "units"))
    return [
        (Fraction(start - START_MS, HOUR_MS), Fraction(end - START_MS, HOUR_MS), pods * units)
        for start, end, pods, units in zip(*columns, strict=True)
    ]


def test_the_objects_are_valid() -> None:
    for found in (each for objects in script().puts.values() for each in objects):
        if found["apiVersion"].startswith("kueue"):
            crds.validate(found)
        else:
            kubernetes_validate.validate(dict(found), kubernetes_validate.latest_version(), strict=True)


def test_a_job_that_grows_waits_for_what_it_wants_more_only(bill: BilledCluster) -> None:
    assert waited(bill, "grows") == [(Fraction(0), Fraction(1, 6), 2), (Fraction(1), Fraction(3, 2), 2)]


def test_a_job_with_variants_waits_once(bill: BilledCluster) -> None:
    assert waited(bill, "tries") == [(Fraction(2), Fraction(4), 4)]
    assert set(bill.history.demand["job"]) == {"grows", "tries"}


def test_nothing_ends_or_leaves_in_between(bill: BilledCluster) -> None:
    assert bill.history.evictions.empty
    hours = {f"g{n}": Fraction(230, 60) if n < 2 else Fraction(150, 60) for n in range(4)}
    assert bill.held("pod") == {(pod,): each for pod, each in hours.items()}
    [job] = [each for team in bill.report.teams for each in team.top_jobs]
    assert (job.job, job.held.board_ms) == ("grows", (2 * 230 + 2 * 150) * MINUTE_MS)
    assert bill.problems == ()


def test_a_slice_is_no_workload_of_its_own_once_it_has_quota() -> None:
    """What Prometheus is told at 0:30, 1:15, 2:30 and at the end, by workload: GPUs, and the state."""
    seen: dict[str, dict[str, tuple[float, str]]] = {}
    for at_ms, page in scrapes(script()):
        minute = (at_ms - START_MS) // MINUTE_MS
        if minute in (30, 75, 150, 239):
            families = {each.name: each.samples for each in text_string_to_metric_families(page)}
            states = {
                each.labels["workload"]: each.labels["state"] for each in families["gpucost_workload_state"]
            }
            units = {each.labels["workload"]: each.value for each in families["gpucost_workload_units"]}
            seen[at(minute)] = {name: (units[name], state) for name, state in states.items()}
    assert list(seen.values()) == [
        {"first": (2, "admitted")},
        {"first": (2, "admitted"), "second": (2, "pending")},
        {"first": (4, "admitted"), "tries": (4, "pending")},
        {"first": (4, "admitted"), "tries": (4, "pending")},
    ]
