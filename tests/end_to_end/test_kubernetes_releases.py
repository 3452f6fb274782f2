"""What Kubernetes 1.34 to 1.37 brought, one node for each of it: objects in, bill, stalls and causes out."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest

from gpucost.attribution.teams import TeamRules
from gpucost.detectors.inputs.detector_facts import ClusterHistory, DetectorFacts, GpuTimePrices
from gpucost.detectors.rule_settings import ScopedSettings, UnhealthyAllocatedSettings
from gpucost.detectors.rules import unhealthy_allocated
from gpucost.domain.errors import DataProblemCode
from gpucost.domain.gpu import ResourceCatalog
from gpucost.domain.time import HOUR_MS, MINUTE_MS, Month, iso
from gpucost.reports.doctor.diagnose import diagnose
from gpucost.telemetry.doctor.cluster_probe import probe
from gpucost.telemetry.prometheus.api_client import PrometheusClient
from gpucost.telemetry.prometheus.promql import PromQL
from gpucost.telemetry.prometheus.source_settings import PrometheusSourceSettings
from tests.detectors.worlds import four_dollars
from tests.end_to_end.fixture_cluster import (
    START_MS,
    USD_PER_HOUR,
    BilledCluster,
    ClusterScript,
    ScriptedExporter,
    rounded,
)
from tests.support.cluster import shapes
from tests.support.objects import condition
from tests.support.prometheus import needs_prometheus

pytestmark = [pytest.mark.slow, needs_prometheus, pytest.mark.prometheus]

GPU, NIC, DRIVER = "nvidia.com/gpu", "example.com/nic", "gpu.nvidia.com"
HOURS = 4
PAIR = ("batch/v1", "Job", "pair", "job-pair")
GPUS = {"tree": 6, "serviced": 2, "patched": 1, "backed": 3, "plain": 2, "steps": 8, "sick": 3}
BROKEN, SILENT = (f"GPU-{n * 8}-0000-4000-8000-{'0' * 12}" for n in "ab")


def at(minute: int) -> str:
    return iso(START_MS + minute * MINUTE_MS)


def node(name: str, *told: tuple[str, int], cordoned: bool = False, plugin: bool = True) -> dict[str, Any]:
    """Its GPUs are advertised by a device plugin, or by the slice of a driver; ``told`` are conditions with
    the minute in which each turned True."""
    count = GPUS.get(name, 0)
    labels = {f"{GPU}.product": "NVIDIA-H100-80GB-HBM3", f"{GPU}.count": str(count)}
    found = shapes.node(name, START_MS - 600_000, {GPU: count} if plugin else {}, labels if count else {})
    found["spec"] = {"unschedulable": True} if cordoned else {}
    found["status"]["conditions"] += [condition(type_, since=at(minute)) for type_, minute in told]
    return found


def asks(name: str, gpus: int = 0, *, always: bool = False, **more: str) -> dict[str, Any]:
    """A container; with ``always`` it is a sidecar among init containers."""
    amounts = {**({GPU: str(gpus)} if gpus else {}), **({NIC: more.pop("nic")} if "nic" in more else {})}
    made: dict[str, Any] = {"name": name, "image": shapes.IMAGE, "resources": {}}
    made["resources"] = {"requests": {"cpu": more.pop("cpu", "8"), "memory": "64Gi", **amounts}}
    made["resources"] |= {"limits": amounts} if amounts else {}
    return made | ({"restartPolicy": "Always"} if always else {})


def pod(
    namespace: str,
    name: str,
    node_name: str,
    minute: int,
    *containers: dict[str, Any],
    init: tuple[dict[str, Any], ...] = (),
    group: str = "",
    owner: tuple[str, str, str, str] | None = None,
    created: int | None = None,
    **status: Any,
) -> dict[str, Any]:
    """Bound at ``minute``, by default to one container with one GPU; without a node it waits."""
    made_ms = START_MS + (minute if created is None else created) * MINUTE_MS
    found = shapes.pod(namespace, name, f"{name}-uid", made_ms, GPU, 1, owner=owner)
    if containers:
        found["spec"]["containers"] = list(containers)
    found["spec"] |= {"initContainers": list(init)} if init else {}
    found["spec"] |= {"schedulingGroup": {"podGroupName": group}} if group else {}
    if node_name:
        found["spec"]["nodeName"] = node_name
        found["status"]["phase"] = "Running"
    told = (True, "") if node_name else (False, "Unschedulable")
    shapes.set_condition(found, "PodScheduled", *told, START_MS + minute * MINUTE_MS)
    found["status"] |= status
    return found


def ended(name: str, minute: int, code: int = 0) -> dict[str, Any]:
    """The status of a container."""
    found = shapes.terminated(code, "Completed" if not code else "Error", at(0), at(minute))[0]
    return {**found, "name": name}


def over(found: dict[str, Any], minute: int, code: int = 0, **status: Any) -> dict[str, Any]:
    phase = "Failed" if code else "Succeeded"
    done = {"phase": phase, "containerStatuses": [ended("main", minute, code)], **status}
    return {**found, "status": {**found["status"], **done}}


def native(kind: str, name: str, policy: dict[str, Any], parent: str = "") -> dict[str, Any]:
    """A group of Kubernetes; its mode of disruption is written as 1.37 writes it."""
    version = "v1alpha3" if kind == "CompositePodGroup" else "v1beta1"
    spec: dict[str, Any] = {
        "workloadRef": {"workloadName": "pair", "templateName": "t"},
        "schedulingPolicy": {"gang": policy},
        "disruptionMode": {"all": {}},
    }
    spec |= {"parentCompositePodGroupName": parent} if parent else {}
    meta = {"name": name, "namespace": "red", "uid": f"{name}-uid", "creationTimestamp": at(0)}
    return {"apiVersion": f"scheduling.k8s.io/{version}", "kind": kind, "metadata": meta, "spec": spec}


def a_slice() -> dict[str, Any]:
    devices = [{"name": f"gpu-{n}", "attributes": {"type": {"string": "gpu"}}} for n in range(GPUS["backed"])]
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": "backed", "uid": "slice-uid", "creationTimestamp": at(0)},
        "spec": {
            "driver": DRIVER,
            "nodeName": "backed",
            "pool": {"name": "backed", "generation": 1, "resourceSliceCount": 1},
            "devices": devices,
        },
    }


def claim(namespace: str, user: str, driver: str, pool: str, *devices: str) -> dict[str, Any]:
    """Of a pod, made by the scheduler for the extended resources that the pod requests, or by hand."""
    results = [{"request": "r", "driver": driver, "pool": pool, "device": each} for each in devices]
    wanted = {"deviceClassName": driver, "count": len(devices)}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {
            "name": f"{user}-claim",
            "namespace": namespace,
            "uid": f"{user}-claim-uid",
            "creationTimestamp": at(0),
        },
        "spec": {"devices": {"requests": [{"name": "r", "exactly": wanted}]}},
        "status": {
            "allocation": {"devices": {"results": results}},
            "reservedFor": [{"resource": "pods", "name": user, "uid": f"{user}-uid"}],
        },
    }


def backing(user: str, resource: str) -> dict[str, Any]:
    """Of the status of a pod whose extended resource is backed by a claim."""
    mapping = {"containerName": "main", "resourceName": resource, "requestName": "r"}
    found = {"resourceClaimName": f"{user}-claim", "requestMappings": [mapping]}
    return {"extendedResourceClaimStatus": found}


def resized(minute: int, asks_cores: str, has_cores: str, pending: str = "") -> dict[str, Any]:
    """The pod ``r`` as it is from ``minute`` on."""
    has = {"cpu": has_cores, "memory": "64Gi", GPU: "1"}
    main = asks("main", 1, cpu=asks_cores)
    stated = {**shapes.running(at(0))[0], "allocatedResources": has, "resources": {"requests": has}}
    found = pod("red", "r", "steps", 0, main, containerStatuses=[stated])
    if pending:
        shapes.set_condition(found, "PodResizePending", True, pending, START_MS + minute * MINUTE_MS)
    return found


def script() -> ClusterScript:
    """Eight nodes, for four hours:

    tree      6 GPUs. A job of red in a tree: both of its groups are needed, two pods of each. a has three
              pods, b two; b1 fails at 1:00, its successor has a node from 2:00 on. So the gang lacks one from
              1:00 to 2:00, although four pods run. a0, a1, a2, b0 4 h each, b1 1 h, b2 2 h: 19 h; 5 h free
    serviced  2 GPUs, of which blue has one until 1:30. An administrator drains it from 1:00, it is drained
              and in maintenance from 2:00 to 3:00, and nobody cordons it: 1.5 h held; 1 x 0.5 + 2 x 1.5 h
              = 3.5 h unavailable; 1 x 1 + 2 x 1 = 3 h free
    patched   1 GPU. Maintenance is planned, from 1:00 on in progress, and keeps nobody off: 3 h are free.
              From 3:00 on it is cordoned: 1 h is unavailable
    backed    3 GPUs of a DRA driver. blue requests 2 nvidia.com/gpu until 3:00, backed by a claim that the
              scheduler made: 6 h, not 12. red has the third by a claim of its own from 2:00 on: 2 h; 4 h free
    plain     2 GPUs of a device plugin. red has one, and a network card that is backed by a claim: 4 h; 4 h
              free
    steps     8 GPUs. By the order of init containers, all for the lives of their pods:
              k0  a step of 2, then a sidecar of 1, beside 1: max(2, 1 + 1) = 2 GPUs, 8 h
              k1  a sidecar of 1, then a step of 2, beside 1: max(1 + 2, 1 + 1) = 3 GPUs, 12 h
              k2  a sidecar of 1 beside none; the main container ends at 2:00, the sidecar at 2:30: 2.5 h
              w   cpu and memory of the whole pod, a GPU of its container: 4 h
              r   cpu is resized at 1:00 (later), 2:00 (done), 3:00 (never possible), its GPU is not: 4 h
              8 x 4 - 30.5 = 1.5 h are free
    sick      3 GPUs of a device plugin. red's h0 has two, blue's h1 one, all the time: 8 h and 4 h, billed
              whole. The kubelet calls one of red's unhealthy from 1:00 to 2:30, the GPU exporter the same GPU
              lost from 2:00 to 3:00: broken for 2 h, not 2.5. Of red's other GPU health is unknown: nothing.
              blue's, of which no id says which GPU it is, is unhealthy from 3:00 on: 1 h
    bare      red has a GPU through a claim, on a node of which no driver and no label says what it has: 4 h
              of a GPU of which nobody knows how many there are, and what it costs
    """
    made = ClusterScript(HOURS)
    made.at(-5, node("tree"), node("plain"), node("steps"), node("serviced"), node("bare", plugin=False))
    made.at(-5, node("patched", ("MaintenancePlanned", -10)), node("backed", plugin=False), a_slice())
    _tree(made)

    blue = pod("blue", "s", "serviced", 0)
    made.at(0, blue)
    made.at(60, node("serviced", ("DrainInProgress", 60)))
    made.at(90, over(blue, 90))
    made.at(120, node("serviced", ("Drained", 120), ("MaintenanceInProgress", 120)))
    made.at(180, node("serviced"))
    patching = ("MaintenancePlanned", -10), ("MaintenanceInProgress", 60)
    made.at(60, node("patched", *patching))
    made.at(180, node("patched", *patching, cordoned=True))

    blue = pod("blue", "e0", "backed", 0, asks("main", 2), **backing("e0", GPU))
    made.at(0, claim("blue", "e0", DRIVER, "backed", "gpu-0", "gpu-1"), blue)
    red = pod("red", "e1", "backed", 120, asks("main"))
    red["spec"]["resourceClaims"] = [{"name": "r", "resourceClaimName": "e1-claim"}]
    made.at(120, claim("red", "e1", DRIVER, "backed", "gpu-2"), red)
    made.at(180, over(blue, 180))
    made.remove(181, claim("blue", "e0", DRIVER, "backed"))
    made.at(0, claim("red", "n", "nic.example.com", "plain", "nic-0"))
    made.at(0, pod("red", "n", "plain", 0, asks("main", 1, nic="1"), **backing("n", NIC)))
    made.at(0, claim("red", "u", DRIVER, "bare", "gpu-0"))
    made.at(0, pod("red", "u", "bare", 0, asks("main", 1), **backing("u", GPU)))
    _steps(made)
    _sick(made)
    return made


def _sick(made: ClusterScript) -> None:
    made.at(-5, node("sick"))
    red, blue = pod("red", "h0", "sick", 0, asks("main", 2)), pod("blue", "h1", "sick", 0)
    made.at(0, red, blue)
    made.at(60, unwell(red, {BROKEN: "Unhealthy", SILENT: "Unknown"}))
    made.at(150, unwell(red, {BROKEN: "Healthy", SILENT: "Unknown"}))
    made.at(180, unwell(blue, {"0": "Unhealthy"}))
    made.exporters.append(ScriptedExporter("gpucost-gpu-exporter", "sick:9401", _gpus_of_sick))


def unwell(found: dict[str, Any], health: dict[str, str]) -> dict[str, Any]:
    """A pod whose kubelet says how devices of a device plugin are, by their ids."""
    units = [{"resourceID": device, "health": each} for device, each in health.items()]
    stated = {**shapes.running(at(0))[0], "allocatedResourcesStatus": [{"name": GPU, "resources": units}]}
    return {**found, "status": {**found["status"], "containerStatuses": [stated]}}


def _gpus_of_sick(minute: int) -> str:
    """What the GPU exporter says of two of the three."""
    rows = {BROKEN: int(not 120 <= minute < 180), SILENT: 1}
    told = [f'gpucost_gpu_up{{node="sick",gpu_uuid="{gpu}"}} {up}' for gpu, up in rows.items()]
    seconds = START_MS // 1000 + 60 * minute
    beats = f'gpucost_gpu_exporter_last_collection_timestamp_seconds{{node="sick"}} {seconds}'
    return "\n".join([*told, beats, 'gpucost_nvml_up{node="sick"} 1', ""])


def _tree(made: ClusterScript) -> None:
    made.at(0, native("CompositePodGroup", "both", {"minGroupCount": 2}))
    made.at(0, *(native("PodGroup", name, {"minCount": 2}, "both") for name in ("a", "b")))
    job = shapes.job("red", "pair", START_MS, 5, shapes.template(GPU, 1))
    members = {
        name: pod("red", name, "tree", 0, group=name[0], owner=PAIR)
        for name in ("a0", "a1", "a2", "b0", "b1")
    }
    made.at(0, {**job, "spec": {**job["spec"], "suspend": False}}, *members.values())
    made.at(60, over(members["b1"], 60, 1), pod("red", "b2", "", 60, group="b", owner=PAIR))
    made.at(120, pod("red", "b2", "tree", 120, group="b", owner=PAIR, created=60))


def _steps(made: ClusterScript) -> None:
    step, sidecar = asks("step", 2), asks("side", 1, always=True)
    made.at(0, pod("blue", "k0", "steps", 0, asks("main", 1), init=(step, sidecar)))
    made.at(0, pod("blue", "k1", "steps", 0, asks("main", 1), init=(sidecar, step)))
    red = pod("red", "k2", "steps", 0, asks("main"), init=(sidecar,))
    made.at(0, red)
    made.at(150, over(red, 120, initContainerStatuses=[ended("side", 150)]))
    whole = pod("red", "w", "steps", 0, asks("main", 1))
    whole["spec"]["resources"] = {"requests": {"cpu": "16", "memory": "128Gi"}}
    made.at(0, whole)
    made.at(0, resized(0, "8", "8"))
    made.at(60, resized(60, "16", "8", "Deferred"))
    made.at(120, resized(120, "16", "16"))
    made.at(180, resized(180, "10000", "16", "Infeasible"))


def test_the_objects_are_valid() -> None:
    script().validate()


def test_a_tree_of_groups_is_one_gang_that_lacks_what_one_of_its_groups_lacks(bill: BilledCluster) -> None:
    rows = bill.history.stalls
    names = ("gang", "job", "min_members", "running", "pending")
    assert {tuple(row) for row in rows[list(names)].itertuples(index=False)} == {
        ("both-uid", "pair", 5, 4, 1)
    }
    stalled = (rows["end_ms"] - rows["start_ms"]).sum()
    assert rows["start_ms"].min() == START_MS + HOUR_MS
    assert stalled == pytest.approx(HOUR_MS, abs=MINUTE_MS)


def test_what_pods_hold(bill: BilledCluster) -> None:
    assert bill.held("node", "pod") == {
        **{("tree", name): 4 for name in ("a0", "a1", "a2", "b0")},
        ("tree", "b1"): 1,
        ("tree", "b2"): 2,
        ("serviced", "s"): Fraction(3, 2),
        ("backed", "e0"): 2 * 3,
        ("backed", "e1"): 2,
        ("plain", "n"): 4,
        ("steps", "k0"): 2 * 4,
        ("steps", "k1"): 3 * 4,
        ("steps", "k2"): Fraction(5, 2),
        ("steps", "w"): 4,
        ("steps", "r"): 4,
        ("sick", "h0"): 2 * 4,
        ("sick", "h1"): 4,
        ("bare", "u"): 4,
    }
    assert {key[1] for key in bill.held("pod", "resource") if key[0] in ("e0", "e1")} == {DRIVER}


def test_a_pod_that_is_resized_has_one_interval(bill: BilledCluster) -> None:
    rows = bill.history.allocations
    mine = rows[rows["pod"] == "r"]
    spans = list(zip(mine["start_ms"], mine["end_ms"], mine["count"], strict=True))
    assert spans == [(START_MS, START_MS + HOURS * HOUR_MS, 1)]


CAUSES = {
    30: set(),
    75: {("serviced", "draining")},
    150: {("serviced", "drained")},
    210: {("patched", "maintenance")},
}


@pytest.mark.parametrize("minute", CAUSES)
def test_why_nodes_are_unavailable(bill: BilledCluster, minute: int) -> None:
    asked = PromQL("gpucost_node_unavailable_info")
    with PrometheusClient(bill.url) as client:
        found = client.query(asked, START_MS + minute * MINUTE_MS).result
    assert {(each["metric"]["node"], each["metric"]["cause"]) for each in found} == CAUSES[minute]


def test_it_is_conserved(bill: BilledCluster) -> None:
    """25 GPUs that are known, and one that is not, for four hours. That ``serviced`` closes for one GPU and
    opens for two, and that ``patched`` closes, is known by the scrape half a minute later."""
    late = Fraction(1, 120)
    assert sum(bill.held("node").values()) == 19 + Fraction("1.5") + 8 + 4 + Fraction("30.5") + 12 + 4
    buckets = bill.buckets()
    assert buckets == {
        "held": 79,
        "unavailable": Fraction("4.5") - late + 2 * late - late,
        "unallocated": 5 + 3 + 3 + 4 + 4 + Fraction("1.5"),
    }
    assert sum(buckets.values()) == (sum(GPUS.values()) + 1) * HOURS
    assert all(hours > 0 for hours in bill.held("namespace", "pod").values())


def test_units_that_a_kubelet_calls_unhealthy(bill: BilledCluster) -> None:
    rows = bill.history.health
    rows = rows[rows["pod_uid"] != ""].sort_values("start_ms")
    names = ("gpu", "reason", "pod_uid", "resource", "units")
    assert [tuple(row) for row in rows[list(names)].itertuples(index=False)] == [
        (BROKEN, "reported_unhealthy", "h0-uid", GPU, 1),
        ("", "reported_unhealthy", "h1-uid", GPU, 1),
    ]


def test_a_broken_gpu_is_wasted_once_whoever_says_it(bill: BilledCluster) -> None:
    """red's for 2 h: the first hour by the kubelet's word, then by the exporter's, until half an hour after
    the kubelet took its word back. blue's for 1 h."""
    history = ClusterHistory(bill.history, script().window, TeamRules.default())
    facts = DetectorFacts("default", history, GpuTimePrices(history, four_dollars))
    found = unhealthy_allocated.run(facts, ScopedSettings(UnhealthyAllocatedSettings()))
    wasted: dict[tuple[str, str], float] = {}
    for draft in found.drafts:
        for each in draft.episodes:
            key = draft.variant, each.pod_uid
            wasted[key] = wasted.get(key, 0) + (each.end_ms - each.start_ms) * (each.boards or 0)
    assert {key: ms / HOUR_MS for key, ms in wasted.items()} == pytest.approx(
        {("reported", "h0-uid"): 1, ("lost", "h0-uid"): 1, ("reported", "h1-uid"): 1}, abs=2 / 60
    )
    assert not found.withheld


def test_what_teams_pay(bill: BilledCluster) -> None:
    """blue 1.5 + 6 + 8 + 12 + 4, red 19 + 2 + 4 + 2.5 + 4 + 4 + 8 hours; what ``bare`` costs nobody knows."""
    hours = {("blue",): Fraction("31.5"), ("red",): Fraction("43.5")}
    assert bill.cost("namespace") == rounded(hours, USD_PER_HOUR)


def test_what_is_unknown_is_a_problem_with_its_gpu_hours(bill: BilledCluster) -> None:
    found = {(each.code, each.subject): each.board_ms for each in bill.report.problems if each.board_ms}
    assert found == {
        (DataProblemCode.COUNT_UNKNOWN, "bare"): HOURS * HOUR_MS,
        (DataProblemCode.PRICE_MISSING, "unknown model"): HOURS * HOUR_MS,
    }
    assert {each.subject for each in bill.problems} == {"bare", "unknown model"}


def test_doctor_says_what_of_it_the_cluster_has_and_what_is_read(bill: BilledCluster) -> None:
    now_ms = START_MS + HOURS * HOUR_MS
    with PrometheusClient(bill.url) as client:
        found = probe(client, PrometheusSourceSettings(), ResourceCatalog(), Month.of(START_MS), now_ms)
    [cluster] = diagnose(found).clusters
    facts = {each.what: each.found for each in cluster.facts}
    assert facts["gangs of Kubernetes"].startswith(
        "2 podgroups, 1 compositepodgroups; a tree of groups is one"
    )
    assert facts["pods"].startswith("18 pods; sidecars and init containers in their order")
    assert facts["pods with unhealthy GPUs"].startswith("1 pod; billed as held")
    assert facts["nodes that take no pods"] == "1 maintenance; their free GPUs are unavailable"
