"""Two racks of one NVLink domain each: what ComputeDomains leave of them, and who can use it."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest

from gpucost.attribution.attribute import attribute
from gpucost.attribution.teams import TeamRules
from gpucost.attribution.waste import waste_parts
from gpucost.detectors.engine.evaluation import RuleEvaluation, evaluate
from gpucost.detectors.findings import Finding
from gpucost.detectors.inputs.detector_facts import ClusterHistory, DetectorFacts, GpuTimePrices
from gpucost.detectors.rule_settings import RuleSettings
from gpucost.domain.buckets import Bucket
from gpucost.domain.gpu import ResourceCatalog
from gpucost.domain.time import HOUR_MS, MINUTE_MS, Month, iso
from gpucost.reports.doctor.diagnose import diagnose
from gpucost.telemetry.doctor.cluster_probe import probe
from gpucost.telemetry.prometheus.api_client import PrometheusClient
from gpucost.telemetry.prometheus.source_settings import PrometheusSourceSettings
from tests.end_to_end.fixture_cluster import (
    CLUSTER,
    START_MS,
    USD_PER_HOUR,
    BilledCluster,
    ClusterScript,
)
from tests.support import crds
from tests.support.cluster import shapes
from tests.support.frames import FlatRates
from tests.support.objects import volcano
from tests.support.prometheus import needs_prometheus

pytestmark = [pytest.mark.slow, needs_prometheus, pytest.mark.prometheus]

GPU = "nvidia.com/gpu"
DRIVER, CHANNELS = "compute-domain.nvidia.com", "compute-domain-default-channel.nvidia.com"
CLIQUE = "nvidia.com/gpu.clique"
PRODUCT = "nvidia.com/gpu.product"
GB200, GB300 = "NVIDIA-GB200", "NVIDIA-GB300"
HOURS = 4
TRAYS = 18


def meta(name: str, namespace: str = "", **more: Any) -> dict[str, Any]:
    found = {"name": name, "uid": f"{name}-uid", "creationTimestamp": iso(START_MS), **more}
    return {**found, "namespace": namespace} if namespace else found


def tray(name: str, clique: str, product: str) -> list[dict[str, Any]]:
    """A node of four GPUs with one channel, as the driver publishes it beside the one for its daemon."""
    devices = [
        {"name": f"{kind}-0", "attributes": {"type": {"string": kind}, "id": {"int": 0}}}
        for kind in ("channel", "daemon")
    ]
    pool = {"name": name, "generation": 1, "resourceSliceCount": 1}
    labels = {CLIQUE: f"0a-0b.{clique}", PRODUCT: product, "nvidia.com/gpu.count": "4"}
    return [
        shapes.node(name, START_MS - 600_000, {GPU: 4}, labels),
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceSlice",
            "metadata": meta(f"{name}-slice"),
            "spec": {"driver": DRIVER, "nodeName": name, "pool": pool, "devices": devices},
        },
    ]


def domain(namespace: str, name: str) -> dict[str, Any]:
    return {
        "apiVersion": "resource.nvidia.com/v1beta1",
        "kind": "ComputeDomain",
        "metadata": meta(name, namespace),
        "spec": {
            "numNodes": 0,
            "channel": {"resourceClaimTemplate": {"name": f"{name}-channel"}, "allocationMode": "Single"},
        },
    }


def pod(
    namespace: str, name: str, units: int, made: int, node: str = "", bound: int = 0, **spec: Any
) -> list[dict[str, Any]]:
    """A pod with the claim on a channel that was made for it; given out where it has a node."""
    job, claim = name.rpartition("-")[0], f"{name}-channel"
    uid, owner = f"{name}-uid", ("batch/v1", "Job", job, f"job-{job}")
    at_ms, of_gang = START_MS + made * MINUTE_MS, {"scheduling.k8s.io/group-name": job}
    found = shapes.pod(namespace, name, uid, at_ms, GPU, units, owner=owner, annotations=of_gang)
    template = f"{namespace}-channel"
    found["spec"] |= {"resourceClaims": [{"name": "channel", "resourceClaimTemplateName": template}], **spec}
    found["status"]["resourceClaimStatuses"] = [{"name": "channel", "resourceClaimName": claim}]
    exactly = {"deviceClassName": CHANNELS, "allocationMode": "ExactCount", "count": 1}
    made_claim: dict[str, Any] = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": meta(claim, namespace),
        "spec": {"devices": {"requests": [{"name": "channel", "exactly": exactly}]}},
    }
    if node:
        found["spec"]["nodeName"] = node
        found["status"]["phase"] = "Running"
        shapes.set_condition(found, "PodScheduled", True, "", START_MS + bound * MINUTE_MS)
        result = {"request": "channel", "driver": DRIVER, "pool": node, "device": "channel-0"}
        reserved = [{"resource": "pods", "name": name, "uid": uid}]
        made_claim["status"] = {"allocation": {"devices": {"results": [result]}}, "reservedFor": reserved}
    else:
        shapes.set_condition(found, "PodScheduled", False, "Unschedulable", at_ms, "0/20 nodes are available")
    return [found, made_claim]


TOGETHER = {
    "podAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": [
            {"topologyKey": CLIQUE, "labelSelector": {"matchLabels": {"job-name": "wide"}}}
        ]
    }
}


def script() -> ClusterScript:
    """Two racks, for four hours:

    a   18 trays of 4 GB200. blue's ComputeDomain has 4 of them from 0:00 to 3:00, whole. From 1:00 on red
        wants 16, whole and in one clique: 14 are left, 14 x 4 GPUs are stranded until 3:00; then red has 16
    b   2 trays of 4 GB300. green's ComputeDomain has both, with a GPU of each. From 2:00 on grey wants a
        channel and 2 GPUs on each of two GB300: 3 GPUs are free on each, and 2 x 2 GPUs are stranded
    """
    made = ClusterScript(HOURS)
    for n in range(TRAYS):
        made.at(-5, *tray(f"a{n:02}", "1", GB200))
    made.at(-5, *tray("b0", "2", GB300), *tray("b1", "2", GB300))
    made.at(-5, *(domain(tenant, tenant) for tenant in ("blue", "red", "green", "grey")))
    for n in range(4):
        made.at(0, *pod("blue", f"small-{n}", 4, 0, f"a{n:02}", 0))
        made.remove(180, *pod("blue", f"small-{n}", 4, 0))
    for n in range(2):
        made.at(0, *pod("green", f"part-{n}", 1, 0, f"b{n}", 0))
    made.at(60, volcano.pod_group("wide", "red", min_member=16))
    for n in range(16):
        made.at(60, *pod("red", f"wide-{n}", 4, 60, affinity=TOGETHER))
        made.at(180, *pod("red", f"wide-{n}", 4, 60, f"a{n:02}", 180, affinity=TOGETHER))
    pair = {"nodeSelector": {PRODUCT: GB300}}
    made.at(120, volcano.pod_group("pair", "grey", min_member=2), *pod("grey", "pair-0", 2, 120, **pair))
    made.at(120, *pod("grey", "pair-1", 2, 120, **pair))
    return made


@pytest.fixture(scope="module")
def found(bill: BilledCluster) -> RuleEvaluation:
    history = ClusterHistory(bill.history, script().window, TeamRules.default())
    prices = GpuTimePrices(history, FlatRates(("2.50", 0)))
    return evaluate(DetectorFacts(CLUSTER, history, prices), RuleSettings())


def finding(found: RuleEvaluation, variant: str) -> Finding:
    (one,) = [each for each in found.findings if each.draft.variant == variant]
    return one


def test_the_objects_are_valid() -> None:
    """But for ComputeDomains, of which there is no CRD here."""
    ours = script()
    for minute, objects in ours.puts.items():
        ours.puts[minute] = [each for each in objects if each["kind"] not in ("ComputeDomain", "PodGroup")]
        for found in (each for each in objects if each["kind"] == "PodGroup"):
            crds.validate(found)
    ours.validate()


def test_channels_hold_no_gpu_and_are_no_problem(bill: BilledCluster) -> None:
    assert bill.held("namespace") == {("blue",): 4 * 4 * 3, ("green",): 2 * 4, ("red",): 16 * 4}
    assert bill.problems == ()
    capacity = 20 * 4 * HOURS
    assert bill.buckets() == {"held": 48 + 8 + 64, "unallocated": capacity - 120}


def test_the_rest_of_a_domain_is_stranded(found: RuleEvaluation) -> None:
    one = finding(found, "rest")
    assert one.draft.subject.name == "0a-0b.1"
    assert Fraction(one.wasted.board_ms, HOUR_MS) == 14 * 4 * 2
    assert one.wasted.nano is not None
    assert one.wasted.nano == round(one.wasted.board_ms * USD_PER_HOUR * 10**9 / HOUR_MS)
    shown = {each.name: each.value for each in one.draft.evidence}
    assert shown["who waits"] == "red/wide"
    assert shown["who has them"] == "blue/small (4 trays)"
    names = ("trays that it needs at once", "trays that it could have", "trays of the domain")
    assert [shown[name] for name in names] == [16, 14, 18]


def test_free_gpus_of_taken_trays_are_stranded(found: RuleEvaluation) -> None:
    one = finding(found, "taken_trays")
    assert one.draft.subject.name == "0a-0b.2"
    assert Fraction(one.wasted.board_ms, HOUR_MS) == 2 * 2 * 2
    shown = {each.name: each.value for each in one.draft.evidence}
    assert (shown["who waits"], shown["who has them"]) == ("grey/pair", "green/part (2 trays)")


def test_no_gpu_is_claimed_twice(found: RuleEvaluation) -> None:
    """While they are stranded, nothing on the trays is starved or fragmented; at other times nobody waits."""
    rows = found.pieces
    hours = {
        (waste, rack): Fraction(int((each["boards"] * (each["end_ms"] - each["start_ms"])).sum()), HOUR_MS)
        for (waste, rack), each in rows.groupby(["waste", rows["node"].str[0]])
    }
    assert hours == {("stranded", "a"): 112, ("stranded", "b"): 8}


def test_doctor_says_that_there_are_domains_and_what_is_read(bill: BilledCluster) -> None:
    now_ms = START_MS + HOURS * HOUR_MS
    with PrometheusClient(bill.url) as client:
        probed = probe(client, PrometheusSourceSettings(), ResourceCatalog(), Month.of(START_MS), now_ms)
    [cluster] = diagnose(probed).clusters
    facts = {each.what: each.found for each in cluster.facts}
    assert facts["NVLink domains"].startswith("4 computedomains; their channels hold no GPU")
    assert "ComputeDomains 2026-05" in facts["rules last checked"]


def test_the_waste_of_the_month_has_the_bucket(found: RuleEvaluation, bill: BilledCluster) -> None:
    """Usage lines of the same frames, divided by the pieces, to the nano-dollar: 120 stranded GPU-hours of
    the 200 that nobody held; what is left is without demand."""
    windows = list(script().window.split(HOUR_MS))
    lines = attribute(bill.history, windows, rates=FlatRates(("2.50", 0)), teams=TeamRules.default())
    parts = waste_parts(lines, found.pieces, bill.history.activity)
    sums = parts.groupby("waste")[["board_ms", "nano"]].sum()
    assert tuple(sums.loc["stranded"]) == (120 * HOUR_MS, 300 * 10**9)
    assert lines.totals()[Bucket.UNALLOCATED] == (200 * HOUR_MS, 500 * 10**9)
