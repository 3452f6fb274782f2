"""ResourceSlices and ResourceClaims, the same from every version of their API."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucost.cluster.objects.nodes import DeviceId, DeviceRequest, DeviceShare, PublishedDevice, Taint
from gpucost.kube.parse.core_objects import compute_domain, device_taint_rule, resource_claim, resource_slice
from gpucost.kube.parse.events import Unreadable
from tests.kube.parse.json_values import JSON, objects_of

DRIVER = "gpu.nvidia.com"
ATTRIBUTES = {
    "type": {"string": "mig"},
    f"{DRIVER}/profile": {"string": "1g.10gb"},
    "parentUUID": {"string": "GPU-1"},
    "index": {"int": 3},
    "healthy": {"bool": True},
    "shared": {"bool": False},
    "driverVersion": {"version": "580.95.5"},
    "resource.kubernetes.io/pcieRoot": {"string": "pci0000:00"},
    "later": {"strings": ["a", "b"]},
}
READ = {
    "type": "mig",
    "profile": "1g.10gb",
    "parentUUID": "GPU-1",
    "index": "3",
    "healthy": "true",
    "shared": "false",
    "driverVersion": "580.95.5",
    "resource.kubernetes.io/pcieRoot": "pci0000:00",
}


CAPACITY = {
    f"{DRIVER}/memory": {"value": "9856Mi", "requestPolicy": {"default": "1Gi"}},
    "example.com/cores": {"value": "100"},
}
TAINT = Taint("health", "xid", "NoExecute")


def flat(name: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "attributes": ATTRIBUTES, "capacity": CAPACITY, **more}


def v1beta1(name: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "basic": {"attributes": ATTRIBUTES, "capacity": CAPACITY, **more}}


def a_slice(*devices: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": "node-1-gpu.nvidia.com-abcde", "uid": "s"},
        "spec": {
            "driver": DRIVER,
            "nodeName": "node-1",
            "pool": {"name": "node-1", "generation": 4, "resourceSliceCount": 1},
            "devices": list(devices),
        },
    }


@pytest.mark.parametrize("version", [flat, v1beta1])
def test_a_slice_is_the_same_in_every_version(version: Any) -> None:
    counters = [{"counterSet": "gpu-0-counter-set", "counters": {"memory": {"value": "9856Mi"}}}]
    counters.append({"counterSet": "gpu-0-cores"})
    taints = [{"key": "health", "value": "xid", "effect": "NoExecute", "timeAdded": "2026-11-01T00:00:00Z"}]
    last = version("gpu-0", consumesCounters=counters, taints=taints)
    found = resource_slice(a_slice(version("gpu-0-mig-9"), last))
    capacity = {"memory": 9856 * 2**20, "example.com/cores": 100}
    assert (found.driver, found.pool, found.generation, found.node) == (DRIVER, "node-1", 4, "node-1")
    assert found.devices == (
        PublishedDevice("gpu-0-mig-9", READ, capacity),
        PublishedDevice("gpu-0", READ, capacity, ("gpu-0-cores", "gpu-0-counter-set"), (TAINT,)),
    )
    assert not found.flaws


def test_devices_that_make_no_sense_are_left_out_with_a_flaw() -> None:
    found = resource_slice(a_slice("gpu", {"name": 7}, {"name": "ok", "attributes": {"type": "gpu"}}))
    assert found.devices == (PublishedDevice("ok", {}),)
    assert [each.field for each in found.flaws] == [
        "spec.devices[0]",
        "spec.devices[1].name",
        "spec.devices[2].attributes.type",
    ]


def test_a_claim_holds_what_it_was_given_but_not_as_administrator() -> None:
    found = resource_claim(
        {
            "metadata": {"name": "train-gpus", "namespace": "team-a", "uid": "c"},
            "spec": {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": DRIVER}}]}},
            "status": {
                "allocation": {
                    "devices": {
                        "results": [
                            {"request": "gpu", "driver": DRIVER, "pool": "node-1", "device": "gpu-0"},
                            {
                                "request": "all",
                                "driver": DRIVER,
                                "pool": "node-1",
                                "device": "gpu-1",
                                "adminAccess": True,
                            },
                        ]
                    }
                },
                "reservedFor": [
                    {"resource": "pods", "name": "train-0", "uid": "p0"},
                    {"apiGroup": "scheduling.k8s.io", "resource": "podgroups", "name": "g", "uid": "pg"},
                    {"resource": "services", "name": "s", "uid": "s"},
                    {"resource": "pods", "name": "train-1", "uid": "p1"},
                ],
            },
        }
    )
    assert found.devices == (DeviceId(DRIVER, "node-1", "gpu-0"),)
    assert found.reserved_for == ("p0", "p1")
    assert found.groups == ("pg",)
    assert found.shares == ()
    assert not found.flaws


def test_shares_of_a_device_that_several_claims_may_have() -> None:
    def result(share: str, **consumed: str) -> dict[str, Any]:
        given = {"request": share, "driver": DRIVER, "pool": "node-1", "device": "gpu-0", "shareID": share}
        return {**given, "consumedCapacity": {f"{DRIVER}/{name}": each for name, each in consumed.items()}}

    results = [result("s1", memory="10Gi", cores="0"), result("s2"), result("s3", memory="lots")]
    allocation = {"devices": {"results": results}}
    found = resource_claim({"metadata": {"name": "c", "uid": "c"}, "status": {"allocation": allocation}})
    device = DeviceId(DRIVER, "node-1", "gpu-0")
    assert found.devices == (device,)
    assert found.shares == (
        DeviceShare(device, "s1", {"memory": 10 * 2**30, "cores": 0}),
        DeviceShare(device, "s2", {}),
        DeviceShare(device, "s3", {}),
    )
    assert [each.field for each in found.flaws] == [
        f"status.allocation.devices.results[2].consumedCapacity.{DRIVER}/memory"
    ]


@pytest.mark.parametrize(
    ("of", "consumed", "part"),
    [
        ("80Gi", "10Gi", Fraction(1, 8)),
        ("80G", "10G", Fraction(1, 8)),
        ("80Gi", "10G", Fraction(10**10, 80 * 2**30)),
        ("1", "500m", Fraction(1, 2)),
        ("2500m", "1250m", Fraction(1, 2)),
        ("1", "250m", Fraction(1, 4)),
        ("1k", "1", Fraction(1, 1000)),
    ],
)
def test_parts_of_a_unit_are_no_whole_units(of: str, consumed: str, part: Fraction) -> None:
    """Quantities of resources are rounded up to whole units; what devices have is divided exactly."""
    published = resource_slice(a_slice({"name": "gpu-0", "capacity": {"slots": {"value": of}}}))
    named = {"driver": DRIVER, "pool": "node-1", "device": "gpu-0", "shareID": "s"}
    allocation = {"devices": {"results": [{**named, "consumedCapacity": {"slots": consumed}}]}}
    found = resource_claim({"metadata": {"name": "c", "uid": "c"}, "status": {"allocation": allocation}})
    [share], [device] = found.shares, published.devices
    assert Fraction(share.consumed["slots"]) / Fraction(device.capacity["slots"]) == part


@pytest.mark.parametrize("is_flat", [False, True])
def test_what_a_claim_asks_for_is_the_same_in_every_version(is_flat: bool) -> None:
    def request(**fields: Any) -> dict[str, Any]:
        return {"name": "r", **fields} if is_flat else {"name": "r", "exactly": fields}

    requests = [
        request(deviceClassName=DRIVER, allocationMode="ExactCount", count=4),
        request(deviceClassName="mig.nvidia.com"),
        request(deviceClassName=DRIVER, allocationMode="All"),
        request(deviceClassName=DRIVER, adminAccess=True),
        {"name": "any", "firstAvailable": [{"name": "a", "deviceClassName": DRIVER, "count": 2}]},
    ]
    found = resource_claim(
        {"metadata": {"name": "c", "uid": "c"}, "spec": {"devices": {"requests": requests}}}
    )
    assert found.requests == (
        DeviceRequest(DRIVER, 4),
        DeviceRequest("mig.nvidia.com", 1),
        DeviceRequest(DRIVER, None),
        DeviceRequest("", None),
    )
    assert not found.flaws


def test_a_claim_that_waits_holds_nothing() -> None:
    found = resource_claim({"metadata": {"name": "c", "uid": "c"}, "status": {}})
    assert (found.devices, found.reserved_for, found.flaws) == ((), (), ())


RULE = {
    "deviceSelector": {"driver": DRIVER, "pool": "node-1", "device": "gpu-0"},
    "taint": {"key": "dra.example.com/repair", "value": "a", "effect": "NoSchedule"},
}


DOMAIN = {"numNodes": 0, "channel": {"resourceClaimTemplate": {"name": "imex"}, "allocationMode": "Single"}}
"""The spec of a ComputeDomain."""


def test_a_compute_domain_names_the_template_of_its_channels() -> None:
    found = compute_domain({"metadata": {"name": "d", "uid": "d", "namespace": "blue"}, "spec": DOMAIN})
    assert (found.meta.namespace, found.channel_template, found.flaws) == ("blue", "imex", ())


@pytest.mark.parametrize(
    ("selector", "hits"),
    [
        ({"driver": DRIVER, "pool": "node-1", "device": "gpu-0"}, {"gpu-0"}),
        ({"pool": "node-1"}, {"gpu-0", "gpu-1"}),
        ({"driver": "gpu.amd.com"}, set()),
        ({}, {"gpu-0", "gpu-1"}),
        (None, set()),
    ],
)
def test_which_devices_a_taint_rule_is_for(selector: Any, hits: set[str]) -> None:
    """The empty selector is all devices, no selector none (resource/v1 types.go, DeviceTaintSelector)."""
    spec = {**RULE, "deviceSelector": selector} if selector is not None else {"taint": RULE["taint"]}
    found = device_taint_rule({"metadata": {"name": "r", "uid": "r"}, "spec": spec})
    assert found.taint == Taint("dra.example.com/repair", "a", "NoSchedule")
    devices = [DeviceId(DRIVER, "node-1", name) for name in ("gpu-0", "gpu-1")]
    assert {each.device for each in devices if found.applies_to(each)} == hits
    assert not found.flaws


@pytest.mark.parametrize("parse", [resource_slice, resource_claim, device_taint_rule, compute_domain])
def test_an_object_without_an_identity(parse: Any) -> None:
    with pytest.raises(Unreadable):
        parse({"metadata": {"name": "x"}, "spec": {}})


@given(found=objects_of("spec", "status"), device=st.dictionaries(st.sampled_from(list(flat("x"))), JSON))
def test_no_json_breaks_a_parser(found: Any, device: Any) -> None:
    parsers = (resource_slice, resource_claim, device_taint_rule, compute_domain)
    assert [parse(found).meta.uid for parse in parsers] == ["u"] * 4
    devices = resource_slice(a_slice(device, {"name": "b", "basic": device})).devices
    assert all(isinstance(value, str) for each in devices for value in each.attributes.values())
