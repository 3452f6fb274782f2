"""Nodes as the API gives them, and what the labels of GPU feature discovery say of their GPUs."""

from __future__ import annotations

import json
from fractions import Fraction
from typing import Any

import pytest

from gpucost.cluster.objects.nodes import Node, SplitGpu, Taint
from gpucost.domain.errors import InputError
from gpucost.domain.gpu import ResourceCatalog
from gpucost.kube.parse.core_objects import node

_GPU = "nvidia.com/gpu"
_H100 = "NVIDIA-H100-80GB-HBM3"
_NOON_MS = 1_790_856_000_000  # 2026-10-01T12:00:00Z


def _object(labels: dict[str, Any] | None = None, **parts: Any) -> dict[str, Any]:
    metadata = {"uid": "u", "name": "n", "creationTimestamp": "2026-10-01T00:00:00Z", "labels": labels or {}}
    return {"metadata": metadata, "spec": parts.get("spec", {}), "status": parts.get("status", {})}


def _node(labels: dict[str, Any] | None = None, **parts: Any) -> Node:
    read = node(_object(labels, **parts))
    assert read.flaws == ()
    return read


def _gpus(product: str | None = None, **numbers: object) -> dict[str, str]:
    named = {f"{_GPU}.{key}": str(value) for key, value in numbers.items()}
    return named if product is None else {f"{_GPU}.product": product, **named}


def test_a_gpu_node() -> None:
    labels = {
        "node.kubernetes.io/instance-type": "p5.48xlarge",
        "beta.kubernetes.io/instance-type": "old",
        "topology.kubernetes.io/region": "us-east-1",
        "topology.kubernetes.io/zone": "us-east-1a",
        "karpenter.sh/nodepool": "train",
        "karpenter.sh/capacity-type": "on-demand",
        "rack": "r7",
        **_gpus(_H100, count=8, replicas=1),
    }
    read = _node(
        labels,
        spec={
            "unschedulable": True,
            "taints": [
                {"key": _GPU, "value": "present", "effect": "NoSchedule"},
                {"key": "x", "effect": "NoExecute"},
            ],
        },
        status={
            "capacity": {"cpu": "192", "memory": "2Ti", _GPU: "8", "pods": "110"},
            "allocatable": {"cpu": "191500m", "memory": "2Ti", _GPU: "7", "pods": "110"},
            "conditions": [
                {"type": "Ready", "status": "True", "lastTransitionTime": "2026-10-01T12:00:00Z"},
                {"type": "DiskPressure", "status": "False"},
            ],
        },
    )
    assert (read.instance_type, read.region, read.zone) == ("p5.48xlarge", "us-east-1", "us-east-1a")
    assert (read.pool, read.capacity_type, read.product) == ("train", "on-demand", _H100)
    assert (read.boards, read.expected, read.replicas) == (8, {_GPU: 8}, {})
    assert read.capacity == {"cpu": 192_000, "memory": 2**41, _GPU: 8, "pods": 110}
    assert read.allocatable == {"cpu": 191_500, "memory": 2**41, _GPU: 7, "pods": 110}
    assert (read.is_ready, read.ready_since_ms, read.is_cordoned) == (True, _NOON_MS, True)
    assert read.taints == (Taint(_GPU, "present", "NoSchedule"), Taint("x", "", "NoExecute"))
    assert read.labels == labels
    assert not read.is_schedulable


@pytest.mark.parametrize(
    ("conditions", "drain"),
    [
        ({"GracefulNodeShutdownInProgress": "True", "Drained": "True"}, "GracefulNodeShutdownInProgress"),
        ({"DrainInProgress": "True"}, "DrainInProgress"),
        ({"DrainInProgress": "True", "Drained": "True"}, "Drained"),
        ({"DrainInProgress": "False", "Drained": "Unknown"}, ""),
        # The administrator decides whether maintenance needs a drain.
        ({"MaintenancePlanned": "True", "MaintenanceInProgress": "True"}, ""),
    ],
)
def test_a_node_that_is_drained_takes_no_pods(conditions: dict[str, str], drain: str) -> None:
    told = [{"type": type_, "status": status} for type_, status in ({"Ready": "True"} | conditions).items()]
    read = _node(status={"conditions": told})
    assert (read.drain, read.is_schedulable) == (drain, not drain)


READY, UNREADY = {"Ready": "True"}, {"Ready": "False"}
IN_MAINTENANCE, PLANNED = {"MaintenanceInProgress": "True"}, {"MaintenancePlanned": "True"}


@pytest.mark.parametrize(
    ("conditions", "is_cordoned", "cause"),
    [
        (READY, False, None),
        (READY, True, "cordoned"),
        (UNREADY, True, "not_ready"),
        ({}, False, "not_ready"),
        ({**READY, "DrainInProgress": "True"}, True, "draining"),
        ({**READY, "Drained": "True", **IN_MAINTENANCE}, True, "drained"),
        ({**UNREADY, "GracefulNodeShutdownInProgress": "True", **IN_MAINTENANCE}, False, "shutdown"),
        # Maintenance is a cause where something else keeps pods off: a live patch does not.
        ({**READY, **IN_MAINTENANCE}, False, None),
        ({**READY, **IN_MAINTENANCE, **PLANNED}, True, "maintenance"),
        ({**UNREADY, **IN_MAINTENANCE}, False, "maintenance"),
        ({**READY, **PLANNED}, True, "maintenance_planned"),
    ],
)
def test_why_a_node_is_unavailable(conditions: dict[str, str], is_cordoned: bool, cause: str | None) -> None:
    told = [{"type": type_, "status": status} for type_, status in conditions.items()]
    read = _node(spec={"unschedulable": is_cordoned}, status={"conditions": told})
    assert read.unavailable_cause == cause
    assert read.is_schedulable is (cause is None)


@pytest.mark.parametrize(
    ("labels", "product", "replicas", "flaws"),
    [
        ({"amd.com/gpu.device-id": "74b5"}, "MI300X", {}, []),
        (
            {"amd.com/gpu.device-id": "75A3", "amd.com/gpu.compute-memory-partition": "CPX_NPS2"},
            "MI355X",
            {"amd.com/gpu": 8},
            [],
        ),
        (
            {"amd.com/gpu.device-id": "74a1", "amd.com/compute-memory-partition": "dpx_nps2"},
            "MI300X",
            {"amd.com/gpu": 2},
            [],
        ),
        (
            {"amd.com/gpu.device-id": "74a1", "amd.com/gpu.compute-memory-partition": "spx_nps1"},
            "MI300X",
            {},
            [],
        ),
        (
            {"amd.com/gpu.device-id": "74a2", "amd.com/gpu.compute-memory-partition": "cpx_nps1"},
            "MI308X-SHARED",
            {},
            ["metadata.labels.amd.com/gpu.compute-memory-partition"],
        ),
        (
            {"amd.com/gpu.device-id": "ffff", "amd.com/gpu.compute-memory-partition": "cpx_nps1"},
            "AMD-GPU-SHARED",
            {},
            ["metadata.labels.amd.com/gpu.compute-memory-partition"],
        ),
    ],
)
def test_labels_of_amds_node_labeller(
    labels: dict[str, str], product: str, replicas: dict[str, int], flaws: list[str]
) -> None:
    read = node(_object(labels))
    assert (read.product, read.replicas, [each.field for each in read.flaws]) == (product, replicas, flaws)


@pytest.mark.parametrize("status", ["False", "Unknown", None])
def test_a_node_whose_ready_condition_is_not_true_is_not_ready(status: str | None) -> None:
    conditions = [{"type": "Ready", "status": status, "lastTransitionTime": "2026-10-01T12:00:00Z"}]
    read = _node(status={"conditions": conditions if status else []})
    assert (read.is_ready, read.ready_since_ms, read.is_schedulable) == (False, None, False)


@pytest.mark.parametrize(
    ("labels", "boards", "expected", "replicas"),
    [
        pytest.param({}, None, {}, {}, id="no labels"),
        pytest.param(_gpus(_H100, count=8), 8, {_GPU: 8}, {}, id="whole"),
        pytest.param(_gpus(_H100, count=8, replicas=1), 8, {_GPU: 8}, {}, id="whole, one replica"),
        pytest.param(_gpus(f"{_H100}-SHARED", count=8, replicas=4), 8, {_GPU: 32}, {_GPU: 4}, id="shared"),
        pytest.param(
            _gpus(_H100, count=8, replicas=4),
            8,
            {f"{_GPU}.shared": 32},
            {f"{_GPU}.shared": 4},
            id="shared and renamed",
        ),
        pytest.param(
            {"nvidia.com/mig.strategy": "single", **_gpus(f"{_H100}-MIG-1g.10gb", count=56, replicas=1)},
            8,
            {_GPU: 56},
            {},
            id="single strategy: slices are counted",
        ),
        pytest.param(_gpus(f"{_H100}-MIG-1g.20gb", count=32), 8, {_GPU: 32}, {}, id="four by memory"),
        pytest.param(_gpus(f"{_H100}-MIG-3g.40gb", count=4), 2, {_GPU: 4}, {}, id="two"),
        pytest.param(_gpus("NVIDIA-A30-MIG-2g.12gb", count=8), 4, {_GPU: 8}, {}, id="A30"),
        pytest.param(_gpus(f"{_H100}-MIG-1g.10gb.me", count=2), 2, {_GPU: 2}, {}, id="media engines"),
        pytest.param(_gpus(f"{_H100}-MIG-1g.10gb", count=55), None, {_GPU: 55}, {}, id="does not come out"),
        pytest.param(_gpus("Some-Board-MIG-1g.10gb", count=56), None, {_GPU: 56}, {}, id="unknown board"),
        pytest.param(
            _gpus("NVIDIA-H200-MIG-1c.3g.71gb", count=6), None, {_GPU: 6}, {}, id="compute instance"
        ),
        pytest.param(
            _gpus(f"{_H100}-MIG-1g.10gb-SHARED", count=56, replicas=2), 8, {_GPU: 112}, {_GPU: 2}, id="both"
        ),
        pytest.param(
            {"nvidia.com/mig.strategy": "single", **_gpus(f"{_H100}-MIG-INVALID", count=0, replicas=0)},
            None,
            {},
            {},
            id="geometry does not suit the strategy",
        ),
        pytest.param(
            {
                "nvidia.com/mig.strategy": "mixed",
                **_gpus(_H100, count=2, replicas=0),
                "nvidia.com/mig-1g.10gb.count": "8",
                "nvidia.com/mig-1g.10gb.replicas": "2",
                "nvidia.com/mig-1g.10gb.product": f"{_H100}-MIG-1g.10gb-SHARED",
                "nvidia.com/mig-3g.40gb.count": "2",
                "nvidia.com/mig-3g.40gb.replicas": "4",
                "nvidia.com/mig-3g.40gb.product": f"{_H100}-MIG-3g.40gb",
                "nvidia.com/mig-1g.10gb.me.count": "1",
                "nvidia.com/mig-1g.10gb.me.product": f"{_H100}-MIG-1g.10gb.me",
            },
            2,
            {
                "nvidia.com/mig-1g.10gb": 16,
                "nvidia.com/mig-3g.40gb.shared": 8,
                "nvidia.com/mig-1g.10gb.me": 1,
            },
            {"nvidia.com/mig-1g.10gb": 2, "nvidia.com/mig-3g.40gb.shared": 4},
            id="mixed strategy: boards are counted, and slices beside",
        ),
    ],
)
def test_what_labels_say_of_gpus(
    labels: dict[str, str], boards: int | None, expected: dict[str, int], replicas: dict[str, int]
) -> None:
    read = _node(labels)
    assert (read.boards, read.expected, read.replicas) == (boards, expected, replicas)


@pytest.mark.parametrize(
    ("labels", "shares"),
    [
        (_gpus(f"{_H100}-SHARED", count=8, replicas=4), {_GPU: Fraction(1, 4)}),
        (_gpus(_H100, count=8, replicas=4), {f"{_GPU}.shared": Fraction(1, 4)}),
        (_gpus(f"{_H100}-MIG-1g.10gb-SHARED", count=56, replicas=2), {_GPU: Fraction(1, 14)}),
    ],
)
def test_units_have_the_share_that_attribution_gives_them(
    labels: dict[str, str], shares: dict[str, Fraction]
) -> None:
    read = _node(labels)
    catalog = ResourceCatalog()
    found = {
        resource: catalog.unit(resource, read.product, read.replicas.get(resource, 1)).share
        for resource in read.expected
    }
    assert found == shares
    assert read.boards is not None
    assert all(share * read.expected[resource] == read.boards for resource, share in found.items())


@pytest.mark.parametrize("text", ["eight", "-1", "8.0", "", "1000000", "٨"])
def test_a_count_that_is_no_number_is_a_flaw(text: str) -> None:
    read = node(_object(_gpus(_H100, count=text)))
    assert (read.product, read.boards, read.expected) == (_H100, None, {})
    assert [flaw.field for flaw in read.flaws] == [f"metadata.labels.{_GPU}.count"]


@pytest.mark.parametrize("replicas", [{}, {"replicas": 1}, {"replicas": 0}])
def test_a_shared_product_without_a_replica_count_says_nothing_of_units(replicas: dict[str, int]) -> None:
    read = node(_object(_gpus(f"{_H100}-SHARED", count=8, **replicas)))
    assert (read.boards, read.expected, read.replicas) == (8, {}, {})
    assert [flaw.field for flaw in read.flaws] == [f"metadata.labels.{_GPU}.replicas"]


@pytest.mark.parametrize(
    ("labels", "product"),
    [
        ({"amd.com/gpu.product-name": "AMD_Instinct_MI300X_OAM"}, "AMD_Instinct_MI300X_OAM"),
        ({"gpu.intel.com/product": "Max_1550"}, "Max_1550"),
        ({"cloud.google.com/gke-accelerator": "nvidia-l4"}, "nvidia-l4"),
        ({"cloud.google.com/gke-accelerator": "nvidia-l4", **_gpus("NVIDIA-L4")}, "NVIDIA-L4"),
    ],
)
def test_products_of_others(labels: dict[str, str], product: str) -> None:
    assert _node(labels).product == product


@pytest.mark.parametrize(
    ("labels", "capacity_type"),
    [
        ({}, ""),
        ({"karpenter.sh/capacity-type": "spot"}, "spot"),
        ({"karpenter.sh/capacity-type": "reserved"}, "reserved"),
        ({"node.kubernetes.io/lifecycle": "owned"}, "owned"),
        ({"eks.amazonaws.com/capacityType": "ON_DEMAND"}, "on-demand"),
        ({"eks.amazonaws.com/capacityType": "SPOT"}, "spot"),
        ({"eks.amazonaws.com/capacityType": "CAPACITY_BLOCK"}, "reserved"),
        ({"cloud.google.com/gke-spot": "true"}, "spot"),
        ({"cloud.google.com/gke-spot": "false"}, ""),
        ({"cloud.google.com/gke-preemptible": "true"}, "spot"),
        ({"cloud.google.com/gke-provisioning": "standard"}, "on-demand"),
        ({"kubernetes.azure.com/scalesetpriority": "spot"}, "spot"),
        ({"kubernetes.azure.com/scalesetpriority": "regular"}, "on-demand"),
    ],
)
def test_capacity_types_are_those_of_prices(labels: dict[str, str], capacity_type: str) -> None:
    assert _node(labels).capacity_type == capacity_type


def test_a_capacity_type_nobody_knows_is_a_flaw() -> None:
    read = node(_object({"karpenter.sh/capacity-type": "borrowed"}))
    assert read.capacity_type == ""
    assert [flaw.field for flaw in read.flaws] == ["metadata.labels.karpenter.sh/capacity-type"]


@pytest.mark.parametrize(
    ("labels", "place"),
    [
        (
            {"beta.kubernetes.io/instance-type": "t", "failure-domain.beta.kubernetes.io/zone": "z"},
            ("t", "z", ""),
        ),
        ({"eks.amazonaws.com/nodegroup": "ng", "agentpool": "ap"}, ("", "", "ng")),
        ({"cloud.google.com/gke-nodepool": "gk"}, ("", "", "gk")),
        ({"agentpool": "ap", "node.kubernetes.io/pool": "p"}, ("", "", "ap")),
    ],
)
def test_older_labels_and_other_clouds(labels: dict[str, str], place: tuple[str, str, str]) -> None:
    read = _node(labels)
    assert (read.instance_type, read.zone, read.pool) == place


HAMI = "hami.io/node-nvidia-register"
_SPLIT = {"id": "GPU-a", "index": 0, "count": 10, "devmem": 81920, "devcore": 100, "health": True}


def _hami(*gpus: Any, text: str = "") -> Node:
    found = _object({})
    found["metadata"]["annotations"] = {HAMI: text or json.dumps(gpus)}
    return node(found)


_I915, _XE = "gpu.intel.com/i915", "gpu.intel.com/xe"
_MAX = "Max_1550"


@pytest.mark.parametrize(
    ("count", "capacity", "product", "boards", "share"),
    [
        ("4", {_I915: 4}, _MAX, 4, 1),
        ("4", {_XE: 4}, _MAX, 4, 1),
        # -shared-dev-num=10; the monitoring resource is of all GPUs, and none.
        ("4", {_I915: 40, "gpu.intel.com/i915_monitoring": 1}, _MAX, 4, Fraction(1, 10)),
        ("3", {_I915: 4, _XE: 2, "gpu.intel.com/monitoring": 1}, _MAX, 3, Fraction(1, 2)),
        # Two of four are denied to the plugin.
        ("4", {_XE: 2}, _MAX, 4, 1),
        # Not a multiple: nobody knows how often which GPU is handed out.
        ("4", {_I915: 10}, f"{_MAX}-SHARED", 4, None),
        ("four", {_I915: 40}, _MAX, None, 1),
        (None, {_I915: 40}, _MAX, None, 1),
    ],
)
def test_intel_gpus_handed_out_several_times(
    count: str | None, capacity: dict[str, int], product: str, boards: int | None, share: Fraction | None
) -> None:
    labels = {"gpu.intel.com/product": _MAX, "gpu.intel.com/family": "Max_Series"}
    labels |= {} if count is None else {"gpu.intel.com/device.count": count}
    read = node(_object(labels, status={"capacity": {name: str(n) for name, n in capacity.items()}}))
    assert (read.product, read.boards) == (product, boards)
    for resource in {_I915, _XE} & capacity.keys():
        try:
            unit = ResourceCatalog().unit(resource, read.product, read.replicas.get(resource, 1))
            found: Fraction | None = unit.share
        except InputError:
            found = None
        assert found == share
    assert not any(ResourceCatalog().is_gpu(name) for name in capacity.keys() - {_I915, _XE})


def test_gpus_that_hami_hands_out_in_parts() -> None:
    model = {"type": "NVIDIA-NVIDIA H100 80GB HBM3"}
    read = _hami({**_SPLIT, **model}, {**_SPLIT, **model, "id": "GPU-b"})
    assert read.split_gpus == (SplitGpu("GPU-a", 81920, 10), SplitGpu("GPU-b", 81920, 10))
    assert (read.boards, read.expected, read.replicas) == (2, {_GPU: 20}, {_GPU: 10})
    assert read.product == "NVIDIA H100 80GB HBM3"
    # Different numbers of tenants have no common share.
    odd = _hami(_SPLIT, {**_SPLIT, "id": "GPU-b", "count": 4})
    assert (odd.expected, odd.replicas, odd.product) == ({_GPU: 14}, {}, "")


@pytest.mark.parametrize(
    "text",
    [
        "GPU-a,10,81920,100,NVIDIA,0,true:",
        "[]",
        "7",
        "null",
        json.dumps([{**_SPLIT, "devmem": 0}]),
        json.dumps([{**_SPLIT, "count": "ten"}]),
        json.dumps([_SPLIT, {}]),
        json.dumps([_SPLIT] * 65),
        "[" * 5000,
    ],
)
def test_a_list_of_hami_that_cannot_be_read_is_a_flaw(text: str) -> None:
    read = _hami(text=text)
    assert (read.split_gpus, read.boards, [each.field for each in read.flaws]) == (
        (),
        None,
        [f"metadata.annotations.{HAMI}"],
    )
