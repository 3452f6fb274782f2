"""MultiKueue's manager and a worker cluster; there also a workload that moves between flavors, and a queue
that goes by usage."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import kubernetes_validate
import pytest
from prometheus_client.parser import text_string_to_metric_families

from gpucost.domain.gpu import ResourceCatalog
from gpucost.domain.time import HOUR_MS, MINUTE_MS, Month, iso
from gpucost.reports.doctor.diagnose import diagnose
from gpucost.telemetry.doctor.cluster_probe import probe
from gpucost.telemetry.prometheus.api_client import PrometheusClient
from gpucost.telemetry.prometheus.source_settings import PrometheusSourceSettings
from tests.end_to_end.fixture_cluster import START_MS, BilledCluster, ClusterScript, billed, scrapes
from tests.support import crds
from tests.support.cluster import shapes
from tests.support.objects import condition, kueue
from tests.support.prometheus import needs_prometheus

pytestmark = [pytest.mark.slow, needs_prometheus, pytest.mark.prometheus]

GPU = "nvidia.com/gpu"
HOURS = 3
LABELS = {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3", "nvidia.com/gpu.count": "8"}
SHORT = "couldn't assign flavors to pod set main: insufficient unused quota for nvidia.com/gpu in flavor h100"
ORIGIN = {"kueue.x-k8s.io/multikueue-origin": "hub"}
PARENT = {"kueue.x-k8s.io/concurrent-admission-parent": "true"}
MIGRATION, GIVEN_UP = ("FlavorMigration", "", 1), ("Deactivated", "", 1)


def at(minute: int) -> str:
    return iso(START_MS + minute * MINUTE_MS)


def node(name: str) -> dict[str, Any]:
    return shapes.node(name, START_MS - 600_000, {GPU: 8}, LABELS)


def job(uid: str) -> dict[str, Any]:
    """``ships``, which wants four pods of one GPU; its uid differs between the clusters."""
    found = shapes.job("blue", "ships", START_MS, 4, shapes.template(GPU, 1))
    found["metadata"]["uid"] = uid
    return found


def pod(
    name: str, minute: int, node: str, namespace: str = "blue", gpus: int = 1, **meta: Any
) -> dict[str, Any]:
    """Bound at ``minute``."""
    at_ms = START_MS + minute * MINUTE_MS
    found = shapes.pod(namespace, name, f"{node}-{name}", at_ms, GPU, gpus, **meta)
    found["spec"]["nodeName"] = node
    found["status"]["phase"] = "Running"
    shapes.set_condition(found, "PodScheduled", True, "", at_ms)
    return found


def ended(found: dict[str, Any], began: int, minute: int) -> dict[str, Any]:
    containers = shapes.terminated(137, "Error", at(began), at(minute))
    return {**found, "status": {**found["status"], "phase": "Failed", "containerStatuses": containers}}


def mirrored(minute: int | None) -> dict[str, Any]:
    """The manager's own ``p0``: gated for ever, and with the status of the one that runs since ``minute``."""
    found = shapes.pod("blue", "p0", "m-p0", START_MS, GPU, 1)
    found["spec"]["schedulingGates"] = [{"name": "kueue.x-k8s.io/admission"}]
    if minute is None:
        shapes.set_condition(found, "PodScheduled", False, "SchedulingGated", START_MS)
        return found
    found["status"]["phase"] = "Running"
    shapes.set_condition(found, "PodScheduled", True, "", START_MS + minute * MINUTE_MS)
    return found


def workload(
    name: str, made: int, pods: int, reserved: int | None = None, admitted: int | None = None, **more: Any
) -> dict[str, Any]:
    """Of pods with one GPU each, of ``flavor`` of ``gpus``."""
    told = [("QuotaReserved", reserved), ("Admitted", admitted)]
    conditions = [condition(type_, since=at(minute)) for type_, minute in told if minute is not None]
    if reserved is None:
        conditions = [condition("QuotaReserved", False, "WaitingForQuota", SHORT, since=at(made))]
    given = kueue.assignment(flavors={GPU: more.pop("flavor", "h100")}, usage={GPU: str(pods)}, count=pods)
    more = {"namespace": "blue", "queue": "train", "uid": f"{name}-uid", **more}
    return kueue.workload(
        name,
        pod_sets=[kueue.pod_set(count=pods)],
        cluster_queue="gpus" if reserved is not None else "",
        assignments=[given] if reserved is not None else [],
        conditions=[*conditions, *more.pop("conditions", ())],
        created=at(made),
        **more,
    )


def manager() -> ClusterScript:
    """A node of eight GPUs and a queue that sends what it admits to other clusters, for three hours.

    ships    a job of 4 pods: waits 10 minutes for quota, 10 until clusters are named, 20 in these; then it
             runs in west
    p0       the same, a plain pod; its object here stays gated, and is said to run
    local    2 GPUs of the node itself, all the time
    """
    made = ClusterScript(HOURS)
    made.at(
        -5,
        node("m"),
        kueue.resource_flavor("h100"),
        kueue.admission_check("mk", "kueue.x-k8s.io/multikueue"),
        kueue.cluster_queue("gpus", quotas={"h100": {GPU: ("8", None, None)}}, checks={"mk": []}),
        kueue.local_queue("train", "gpus", "blue"),
    )
    made.at(0, job("m-ships"), mirrored(None), pod("local", 0, "m", "red", 2))
    owners = {
        "job-ships": (4, ("batch/v1", "Job", "ships", "m-ships")),
        "pod-p0": (1, ("v1", "Pod", "p0", "m-p0")),
    }
    pending, ready = (kueue.check_state("mk", each, since=at(10)) for each in ("Pending", "Ready"))
    for name, (pods, owner) in owners.items():
        made.at(0, workload(name, 0, pods, owner=owner))
        made.at(10, workload(name, 0, pods, 10, owner=owner, checks=[pending]))
        named = {"nominated": ["west", "east"], "checks": [pending]}
        made.at(20, workload(name, 0, pods, 10, owner=owner, **named))
        made.at(40, workload(name, 0, pods, 10, 40, owner=owner, on_cluster="west", checks=[ready]))
    made.at(40, mirrored(40))
    return made


def worker() -> ClusterScript:
    """West, a node of eight GPUs, for three hours.

    ships    came at 0:20, waits 20 minutes for 4 GPUs, and runs from 0:40 on: 4 x 140 minutes
    p0       the same, with one GPU: 140 minutes
    moves    a job with two variants, one for each flavor: from 0:30 on spot, from 1:32 on h100; it is
             evicted at 1:30
    local    1 GPU, all the time
    more, less    wait for 8 GPUs each, more of the queue that used more, and with the higher priority
    """
    made = ClusterScript(HOURS)
    quota = {each: {GPU: ("8", None, None)} for each in ("h100", "spot")}
    made.at(
        -5,
        node("w"),
        *(kueue.resource_flavor(each) for each in quota),
        kueue.cluster_queue("gpus", quotas=quota, admission_mode="UsageBasedAdmissionFairSharing"),
        kueue.local_queue("train", "gpus", "blue", consumed={GPU: "7500m"}, weight="2"),
        kueue.local_queue("train", "gpus", "red", consumed={GPU: "3"}),
    )
    made.at(0, pod("local", 0, "w", "red"))
    made.at(0, workload("more", 0, 8, priority=5), workload("less", 0, 8, namespace="red"))
    ships = {"owner": ("batch/v1", "Job", "ships", "w-ships"), "labels": ORIGIN}
    single = {"owner": ("v1", "Pod", "p0", "w-p0"), "labels": ORIGIN}
    made.at(20, job("w-ships"), workload("job-ships", 20, 4, **ships), workload("pod-p0", 20, 1, **single))
    made.at(40, workload("job-ships", 20, 4, 40, 40, **ships), workload("pod-p0", 20, 1, 40, 40, **single))
    owner = ships["owner"]
    made.at(40, pod("p0", 40, "w"), *(pod(f"s{n}", 40, "w", owner=owner) for n in range(4)))
    moves(made)
    return made


def moves(made: ClusterScript) -> None:
    """As Kueue writes it: why and how often is told of the variant only."""
    found = shapes.job("blue", "moves", START_MS + 30 * MINUTE_MS, 1, shapes.template(GPU, 1))
    of_job = {"owner": shapes.reference(found), "labels": PARENT}
    of_parent = {"owner": ("kueue.x-k8s.io/v1beta2", "Workload", "moves", "moves-uid")}
    first = pod("v0", 30, "w", owner=of_job["owner"])
    made.at(
        30,
        found,
        first,
        workload("moves", 30, 1, 30, 30, flavor="spot", **of_job),
        workload("moves-spot", 30, 1, 30, 30, flavor="spot", **of_parent),
        workload("moves-h100", 30, 1, **of_parent),
    )
    evicted, told = (
        [condition("Evicted", True, reason, since=at(90))] for reason in ("FlavorMigration", "VariantEvicted")
    )
    gone = {"evictions": [MIGRATION], "conditions": evicted}
    made.at(
        90,
        workload("moves-spot", 30, 1, 30, 30, flavor="spot", **of_parent, **gone),
        workload("moves", 30, 1, 30, 30, flavor="spot", conditions=told, **of_job),
        ended(first, 30, 90),
    )
    made.at(
        92,
        workload(
            "moves-spot", 30, 1, **of_parent, active=False, evictions=[MIGRATION, ("Deactivated", "", 1)]
        ),
        workload("moves-h100", 30, 1, 92, 92, **of_parent),
        workload("moves", 30, 1, 92, 92, **of_job),
        pod("v1", 92, "w", owner=of_job["owner"]),
    )


@pytest.fixture(scope="module")
def managed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BilledCluster]:
    with billed(manager(), tmp_path_factory.mktemp("manager")) as found:
        yield found


@pytest.fixture(scope="module")
def west(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BilledCluster]:
    with billed(worker(), tmp_path_factory.mktemp("west")) as found:
        yield found


def waited(bill: BilledCluster, workload: str) -> list[tuple[Fraction, Fraction, int]]:
    """Of the stretches in which a workload waited: hours after the start, from when to when, and GPUs."""
    rows = bill.history.demand
    rows = rows[rows["workload"] == workload].sort_values("start_ms")
    columns = (rows[name].tolist() for name in ("start_ms", "end_ms", "pods", "units"))
    return [
        (Fraction(start - START_MS, HOUR_MS), Fraction(end - START_MS, HOUR_MS), pods * units)
        for start, end, pods, units in zip(*columns, strict=True)
    ]


def seen(script: ClusterScript, *minutes: int) -> dict[int, defaultdict[str, set[tuple[str, ...]]]]:
    """Labels and values of some series at some minutes, without those that name the workload by uid."""
    found: dict[int, defaultdict[str, set[tuple[str, ...]]]] = {}
    for at_ms, page in scrapes(script):
        minute = (at_ms - START_MS) // MINUTE_MS
        if minute in minutes:
            found[minute] = defaultdict(set)
            found[minute] |= {
                family.name.removeprefix("gpucost_"): {
                    (
                        *(value for name, value in each.labels.items() if not name.endswith("_uid")),
                        str(each.value),
                    )
                    for each in family.samples
                }
                for family in text_string_to_metric_families(page)
            }
    return found


@pytest.mark.parametrize("script", [manager(), worker()], ids=["manager", "worker"])
def test_the_objects_are_valid(script: ClusterScript) -> None:
    for found in (each for objects in script.puts.values() for each in objects):
        if found["apiVersion"].startswith("kueue"):
            crds.validate(found)
        else:
            kubernetes_validate.validate(dict(found), kubernetes_validate.latest_version(), strict=True)


def test_what_runs_elsewhere_is_not_billed_by_the_manager(managed: BilledCluster) -> None:
    assert managed.held("namespace", "pod") == {("red", "local"): Fraction(6)}
    assert managed.buckets() == {"held": Fraction(6), "unallocated": Fraction(18)}
    assert managed.problems == ()


def test_in_the_manager_it_waits_for_quota_only(managed: BilledCluster) -> None:
    """Not for GPUs of the manager, six of which are free. No gang stalls, and nothing is preempted."""
    assert waited(managed, "job-ships") == [(Fraction(0), Fraction(1, 6), 4)]
    assert waited(managed, "pod-p0") == [(Fraction(0), Fraction(1, 6), 1)]
    assert set(managed.history.demand["products"]) == {"__unknown__"}
    assert managed.history.stalls.empty
    assert managed.history.evictions.empty


def test_it_is_billed_where_it_runs_under_the_same_name(west: BilledCluster) -> None:
    """4 x 140 and 140 minutes of what came from the manager, 60 and 88 of what moved, 180 of the other
    tenant."""
    minutes = {"p0": 140, "v0": 60, "v1": 88, **{f"s{n}": 140 for n in range(4)}}
    expected = {("blue", name): Fraction(each, 60) for name, each in minutes.items()}
    assert west.held("namespace", "pod") == expected | {("red", "local"): Fraction(3)}
    held = sum(expected.values()) + 3
    assert west.buckets() == {"held": held, "unallocated": 24 - held}
    jobs = {each.job: each.held.board_ms for team in west.report.teams for each in team.top_jobs}
    assert jobs["ships"] == 4 * 140 * MINUTE_MS
    assert west.problems == ()


def test_in_the_worker_cluster_it_waits_for_the_gpus_there(west: BilledCluster) -> None:
    assert waited(west, "job-ships") == [(Fraction(1, 3), Fraction(2, 3), 4)]
    assert waited(west, "pod-p0") == [(Fraction(1, 3), Fraction(2, 3), 1)]
    assert set(west.history.demand["products"]) == {""}


def test_a_migration_between_flavors_is_an_eviction_with_its_reason(west: BilledCluster) -> None:
    """Deactivating the variant that it left is none."""
    [row] = west.history.evictions.to_dict("records")
    assert (row["pod_uid"], row["reason"]) == ("w-v0", "FlavorMigration")
    assert (row["start_ms"], row["end_ms"]) == (START_MS + 30 * MINUTE_MS, START_MS + 90 * MINUTE_MS)


def test_what_the_manager_tells_of_its_way() -> None:
    pages = seen(manager(), 5, 15, 30, 150)
    who = ("blue", "job-ships")
    told = {
        minute: {each[2:4] for each in of.get("workload_dispatched", ()) if each[:2] == who}
        for minute, of in pages.items()
    }
    assert told == {
        5: set(),
        15: {("", "seeking")},
        30: {("east", "nominated"), ("west", "nominated")},
        150: {("west", "assigned")},
    }
    waits = {
        minute: {each[2:4] for each in of.get("workload_waiting", ()) if each[:2] == who}
        for minute, of in pages.items()
    }
    assert waits == {
        5: {("quota", "WaitingForQuota")},
        15: {("quota", "NoWorkerCluster")},
        30: set(),
        150: set(),
    }
    assert pages[5]["pod_gpu_waiting"] == {("blue", "p0", GPU, "gated", "1.0")}
    assert not any(pages[minute]["pod_gpu_waiting"] for minute in (15, 30, 150))


def test_what_the_worker_tells_of_origin_order_and_reasons() -> None:
    """Of 7.5 by weight 2 and 3 by weight 1 the second is less, whatever the priority."""
    pages = seen(worker(), 60, 91, 150)
    assert pages[60]["workload_origin_info"] == {
        ("blue", "job-ships", "hub", "1.0"),
        ("blue", "pod-p0", "hub", "1.0"),
    }
    places = {each[:2]: each[-1] for each in pages[60]["workload_queue_position"]}
    assert places == {("red", "less"): "1.0", ("blue", "more"): "2.0"}
    assert pages[60]["local_queue_fair_usage"] == {
        ("blue", "train", GPU, "7.5"),
        ("red", "train", GPU, "3.0"),
    }
    assert pages[60]["local_queue_fair_weight"] == {("blue", "train", "2.0"), ("red", "train", "1.0")}
    assert ("blue", "moves", "evicting", "FlavorMigration", "1.0") in pages[91]["workload_state"]
    assert pages[150]["workload_evictions"] == {("blue", "moves", "FlavorMigration", "1.0")}


@pytest.mark.parametrize(
    ("cluster", "says"),
    [
        ("managed", "2 workloads sent to other clusters (2 assigned); pods are billed where they have nodes"),
        ("west", "2 workloads came from managers; pods are billed where they have nodes"),
    ],
)
def test_doctor_says_what_is_read_of_it(cluster: str, says: str, request: pytest.FixtureRequest) -> None:
    bill: BilledCluster = request.getfixturevalue(cluster)
    now_ms = START_MS + HOURS * HOUR_MS
    with PrometheusClient(bill.url) as client:
        found = probe(client, PrometheusSourceSettings(), ResourceCatalog(), Month.of(START_MS), now_ms)
    [of_cluster] = diagnose(found).clusters
    facts = {each.what: each.found for each in of_cluster.facts}
    assert facts["MultiKueue"] == says
    assert facts.get("admission fair sharing") == (
        None
        if cluster == "managed"
        else "2 LocalQueues are ordered by what they used lately; read from their status"
    )
