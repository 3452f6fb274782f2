"""GPUs that several ResourceClaims, or several pods of one, have at the same time: objects in, bill out.

Every GPU costs 2.50 USD an hour. Of each cluster the arithmetic stands beside its objects.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest

from alerts.rules.recording import GROUP
from dashboards.nodes import FREE_UNITS
from gpucost.contract.frames import CAPACITY, NODES
from gpucost.domain.errors import DataProblemCode
from gpucost.domain.gpu import ResourceCatalog
from gpucost.domain.time import HOUR_MS, MINUTE_MS, Month, Window, iso
from gpucost.reports.doctor.diagnose import diagnose
from gpucost.telemetry import prometheus_source
from gpucost.telemetry.doctor.cluster_probe import probe
from gpucost.telemetry.prometheus.api_client import PrometheusClient
from gpucost.telemetry.prometheus.promql import PromQL
from gpucost.telemetry.prometheus.source_settings import PrometheusSourceSettings
from gpucost.telemetry.prometheus_source import PrometheusSource
from tests.end_to_end.fixture_cluster import (
    CLUSTER,
    START_MS,
    USD_PER_HOUR,
    BilledCluster,
    ClusterScript,
    rounded,
)
from tests.support.cluster import shapes
from tests.support.prometheus import needs_prometheus

pytestmark = [pytest.mark.slow, needs_prometheus, pytest.mark.prometheus]

DRIVER = "gpu.nvidia.com"
BY_CAPACITY, BY_TIME, BY_CLAIM, UNKNOWN = (
    f"{DRIVER}.{method}" for method in ("dra-capacity", "dra-time", "dra-claim", "unknown-part")
)
HOURS = 4


def node(name: str, gpus: int) -> dict[str, Any]:
    labels = {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3", "nvidia.com/gpu.count": str(gpus)}
    return shapes.node(name, START_MS - 600_000, {}, labels)


def a_slice(node_name: str, gpus: int, **capacity: str) -> dict[str, Any]:
    """GPUs that several claims may have, with 80 GiB each unless ``capacity`` says otherwise."""
    shown = {name: {"value": value} for name, value in (capacity or {"memory": "80Gi"}).items()}
    devices = [
        {
            "name": f"gpu-{n}",
            "allowMultipleAllocations": True,
            "attributes": {"type": {"string": "gpu"}, "uuid": {"string": f"GPU-{node_name}-{n}"}},
            "capacity": shown,
        }
        for n in range(gpus)
    ]
    pool = {"name": node_name, "generation": 1, "resourceSliceCount": 1}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {
            "name": f"{node_name}-slice",
            "uid": f"{node_name}-slice-uid",
            "creationTimestamp": iso(START_MS),
        },
        "spec": {"driver": DRIVER, "nodeName": node_name, "pool": pool, "devices": devices},
    }


def claim(
    name: str,
    namespace: str,
    node_name: str,
    *users: str,
    device: str = "gpu-0",
    share: bool = True,
    group: str = "",
    **consumed: str,
) -> dict[str, Any]:
    """Given out, and reserved for pods or for a PodGroup."""
    result: dict[str, Any] = {"request": "gpu", "driver": DRIVER, "pool": node_name, "device": device}
    if share:
        result |= {"shareID": f"{name}-share", "consumedCapacity": consumed}
    reserved: list[dict[str, Any]] = [
        {"resource": "pods", "name": user, "uid": f"{user}-uid"} for user in users
    ]
    if group:
        reserved = [
            {"apiGroup": "scheduling.k8s.io", "resource": "podgroups", "name": group, "uid": f"{group}-uid"}
        ]
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "uid": f"{name}-uid",
            "creationTimestamp": iso(START_MS),
        },
        "spec": {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": DRIVER}}]}},
        "status": {"allocation": {"devices": {"results": [result]}}, "reservedFor": reserved},
    }


def taint_rule(pool: str, device: str) -> dict[str, Any]:
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceTaintRule",
        "metadata": {"name": "repair", "uid": "repair-uid", "creationTimestamp": iso(START_MS)},
        "spec": {
            "deviceSelector": {"driver": DRIVER, "pool": pool, "device": device},
            "taint": {"key": "example.com/repair", "effect": "NoSchedule"},
        },
    }


def pod(
    namespace: str, name: str, node_name: str, claim_name: str, minute: int, group: str = ""
) -> dict[str, Any]:
    """A pod that is bound at ``minute``."""
    at_ms = START_MS + minute * MINUTE_MS
    found = shapes.pod(namespace, name, f"{name}-uid", at_ms, "cpu", 1)
    found["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "1"}}
    found["spec"]["resourceClaims"] = [{"name": "gpu", "resourceClaimName": claim_name}]
    if group:
        found["spec"]["schedulingGroup"] = {"podGroupName": group}
    found["spec"]["nodeName"] = node_name
    found["status"]["phase"] = "Running"
    shapes.set_condition(found, "PodScheduled", True, "", at_ms)
    return found


def over(found: dict[str, Any], minute: int) -> dict[str, Any]:
    at = iso(START_MS + minute * MINUTE_MS)
    done = shapes.terminated(0, "Completed", found["metadata"]["creationTimestamp"], at)
    return {**found, "status": {**found["status"], "phase": "Succeeded", "containerStatuses": done}}


def script() -> ClusterScript:
    """Six nodes, of which five share their first GPU in five ways, for four hours:

    memory   10 Gi by blue from 0:00, 70 Gi by red from 1:00 to 3:00, of 80 Gi
             blue 1/8 x 4 h = 0.5 h, red 7/8 x 2 h = 1.75 h; 1.75 h of 4 h are free
    time     no amounts: blue from 0:00, red from 1:30 to 3:30
             blue 1.5 + 1 + 0.5 = 3 h, red 1 h; nothing is free
    claim    one claim that blue's pods c0 (0:00 to 2:00), c1 (1:00 to the end) use: 1.5 h and 2.5 h
    group    a claim of a PodGroup of red, 3 pods from 1:00 to 2:00: 20 minutes each; 3 h are free
    cores    amounts of two capacities, neither of which is memory: unknown, equal parts
             blue from 0:00, red from 2:00: 3 h and 1 h, all of it in doubt: 2 h alone, 2 h of both

    tainted  an administrator taints gpu-1, which nobody has, from 1:00 on: 3 h are unavailable
             its driver taints gpu-0 from 2:00 on, which blue has: still blue's, 4 h

    lost     green's pod from 1:00 on, of a claim that no collector has seen: nobody knows what it gave

    Each node has a second GPU that nobody has, but ``memory``, where green has it whole from 2:00: 2 h.
    """
    made = ClusterScript(HOURS)
    for name in ("memory", "time", "claim", "group"):
        made.at(-5, node(name, 2), a_slice(name, 2))
    made.at(-5, node("cores", 2), a_slice("cores", 2, cores="100", engines="8"))

    red = pod("red", "m1", "memory", "m1", 60)
    made.at(0, claim("m0", "blue", "memory", "m0", memory="10Gi"), pod("blue", "m0", "memory", "m0", 0))
    made.at(60, claim("m1", "red", "memory", "m1", memory="70Gi"), red)
    made.at(120, claim("m2", "green", "memory", "m2", device="gpu-1", share=False))
    made.at(120, pod("green", "m2", "memory", "m2", 120))
    made.at(180, over(red, 180))
    made.remove(182, claim("m1", "red", "memory"))

    red = pod("red", "t1", "time", "t1", 90)
    made.at(0, claim("t0", "blue", "time", "t0", memory="0"), pod("blue", "t0", "time", "t0", 0))
    made.at(90, claim("t1", "red", "time", "t1", memory="0"), red)
    made.at(210, over(red, 210))

    blue = pod("blue", "c0", "claim", "c", 0)
    made.at(0, claim("c", "blue", "claim", "c0", share=False), blue)
    made.at(60, claim("c", "blue", "claim", "c0", "c1", share=False), pod("blue", "c1", "claim", "c", 60))
    made.at(120, over(blue, 120))
    made.at(121, claim("c", "blue", "claim", "c1", share=False))

    pods = [pod("red", f"g{n}", "group", "g", 60, "train") for n in range(3)]
    made.at(60, claim("g", "red", "group", group="train", share=False), *pods)
    made.at(120, *(over(each, 120) for each in pods))

    made.at(
        0, claim("k0", "blue", "cores", "k0", cores="25", engines="1"), pod("blue", "k0", "cores", "k0", 0)
    )
    made.at(120, claim("k1", "red", "cores", "k1", cores="50", engines="1"))
    made.at(120, pod("red", "k1", "cores", "k1", 120))
    made.at(60, pod("green", "lost", "group", "gone", 60))
    made.at(-5, node("tainted", 2), a_slice("tainted", 2))
    made.at(0, claim("b", "blue", "tainted", "b", share=False), pod("blue", "b", "tainted", "b", 0))
    made.at(60, taint_rule("tainted", "gpu-1"))
    broken = a_slice("tainted", 2)
    broken["spec"]["devices"][0]["taints"] = [{"key": f"{DRIVER}/xid", "value": "79", "effect": "NoExecute"}]
    made.at(120, broken)
    return made


def test_the_objects_are_valid() -> None:
    script().validate()


def test_shares_of_consumed_capacity(bill: BilledCluster) -> None:
    held = {
        key[1:]: hours for key, hours in bill.held("node", "pod", "resource").items() if key[0] == "memory"
    }
    assert held == {
        ("m0", BY_CAPACITY): Fraction(1, 8) * 4,
        ("m1", BY_CAPACITY): Fraction(7, 8) * 2,
        ("m2", DRIVER): 2,
    }


def test_shares_without_amounts(bill: BilledCluster) -> None:
    held = {key[1:]: hours for key, hours in bill.held("node", "pod", "resource").items() if key[0] == "time"}
    assert held == rounded(
        {("t0", DRIVER): Fraction(3, 2) + Fraction(1, 2), ("t0", BY_TIME): 1, ("t1", BY_TIME): 1}
    )


def test_pods_of_one_claim(bill: BilledCluster) -> None:
    held = {key[1:]: hours for key, hours in bill.held("node", "pod").items() if key[0] == "claim"}
    assert held == rounded({("c0",): Fraction(3, 2), ("c1",): Fraction(5, 2)})


def test_pods_of_a_group(bill: BilledCluster) -> None:
    held = {
        key[1:]: hours for key, hours in bill.held("node", "pod", "resource").items() if key[0] == "group"
    }
    assert held == rounded({(f"g{n}", BY_CLAIM): Fraction(1, 3) for n in range(3)})
    assert sum(held.values()) == 1


def test_amounts_of_no_known_capacity(bill: BilledCluster) -> None:
    held = {key[1:]: hours for key, hours in bill.held("node", "pod").items() if key[0] == "cores"}
    assert held == {("k0",): 3, ("k1",): 1}
    found = [each for each in bill.report.problems if each.code == DataProblemCode.SHARE_UNKNOWN]
    alone, both = sorted(found, key=lambda each: len(each.detail))
    assert [(each.subject, each.board_ms) for each in (alone, both)] == [("cores", 120 * MINUTE_MS)] * 2
    assert "held by blue/k0 in parts" in alone.detail
    assert "held by blue/k0, red/k1 in parts" in both.detail


def test_no_other_problem(bill: BilledCluster) -> None:
    known = {DataProblemCode.SHARE_UNKNOWN, DataProblemCode.CLAIM_UNKNOWN}
    assert {each.code for each in bill.problems} == known


def test_it_is_conserved_on_every_node_and_the_second_tenant_is_not_zero(bill: BilledCluster) -> None:
    """Twelve GPUs for four hours. What is free: 1.75 + 2 of memory, 4 of time, 4 of claim, 3 + 4 of group, 4
    of cores, 1 of tainted. What a node can hand out is known by the scrape, half a minute past 1:00."""
    held, late = sum(bill.held("node").values()), Fraction(1, 120)
    free = {"unallocated": Fraction("23.75") + late, "unavailable": 3 - late}
    assert bill.buckets() == {"held": held, **free}
    assert held + Fraction("26.75") == 12 * HOURS
    assert all(hours > 0 for hours in bill.held("namespace", "pod").values())
    assert bill.cost("namespace") == rounded(bill.held("namespace"), USD_PER_HOUR)


def test_what_teams_pay(bill: BilledCluster) -> None:
    """blue 0.5 + 3 + 4 + 3 + 4, red 1.75 + 1 + 1 + 1, green 2 hours."""
    costs = {each.row.group["team"]: each.adjusted.nano for each in bill.report.teams}
    paid = {team: Fraction(nano, 10**9) for team, nano in costs.items() if nano is not None}
    hours = {"blue": Fraction("14.5"), "red": Fraction("4.75"), "green": Fraction(2)}
    assert paid == rounded(hours, USD_PER_HOUR)
    assert sum(paid.values()) == sum(hours.values()) * USD_PER_HOUR


def test_who_asks_for_nodes_alone_asks_for_no_shares(
    bill: BilledCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("asked for shares")

    monkeypatch.setattr(prometheus_source, "read_shares", refuse)
    end_ms = START_MS + HOURS * HOUR_MS
    with PrometheusClient(bill.url) as client:
        source = PrometheusSource(client, PrometheusSourceSettings(), now=lambda: end_ms + HOUR_MS)
        found = source.history(CLUSTER, Window(START_MS, end_ms), only=(NODES.name,))
        assert found.nodes["node"].nunique() == bill.history.nodes["node"].nunique()
        with pytest.raises(AssertionError, match="asked for shares"):
            source.history(CLUSTER, Window(START_MS, end_ms), only=(CAPACITY.name,))


def test_doctor_says_what_of_it_the_cluster_has_and_what_is_read(bill: BilledCluster) -> None:
    now_ms = START_MS + HOURS * HOUR_MS
    with PrometheusClient(bill.url) as client:
        found = probe(client, PrometheusSourceSettings(), ResourceCatalog(), Month.of(START_MS), now_ms)
    [cluster] = diagnose(found).clusters
    facts = {each.what: each.found for each in cluster.facts}
    assert facts["dynamic resources"].startswith("9 resourceclaims, 6 resourceslices, 1 devicetaintrules; ")
    assert facts["GPUs in parts"] == (
        "1 by dra-claim, 1 by dra-capacity, 1 by dra-time, 2 by unknown-part; "
        "each divided among its pods at every moment"
    )
    assert facts["rules last checked"].startswith("2026-11-23: Kubernetes 1.37, Kueue 0.19.2")


HELD = next(
    each.expr for each in GROUP.rules if each.rule()["record"] == "node_resource:gpucost_pod_gpu_request:sum"
)
ONE_EACH = ("time", "claim", "cores", "tainted")


@pytest.mark.parametrize(
    ("expression", "units"),
    [
        (HELD, {"memory": 2, **dict.fromkeys(ONE_EACH, 1)}),
        # Of ``tainted`` no device takes pods any more.
        (FREE_UNITS, {"time": 1, "claim": 1, "cores": 1, "group": 2}),
    ],
)
def test_a_shared_gpu_is_taken_from_its_node_once(
    bill: BilledCluster, expression: str, units: dict[str, int]
) -> None:
    """At 2:30, of the recording rule and of the dashboard."""
    asked = expression.replace("$cluster", ".*").replace("$node", ".*")
    with PrometheusClient(bill.url) as client:
        found = client.query(PromQL(asked), START_MS + 150 * MINUTE_MS).result
    by_node = {each["metric"]["node"]: float(each["value"][1]) for each in found}
    assert {node: n for node, n in by_node.items() if n} == units


def test_what_a_claim_gave_that_is_gone_is_a_problem_without_gpu_hours(bill: BilledCluster) -> None:
    """In each of the three hours in which the pod had its node."""
    found = [each for each in bill.problems if each.code is DataProblemCode.CLAIM_UNKNOWN]
    assert {(each.subject, each.board_ms) for each in found} == {("green/lost", None)}
    assert (
        f"what ResourceClaim gone gave this pod, on its node since {iso(START_MS + HOUR_MS)}, "
        in found[0].detail
    )
    assert ("group", "lost") not in bill.held("node", "pod")
