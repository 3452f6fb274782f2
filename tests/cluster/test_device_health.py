"""Units that kubelets call unhealthy: of which resource, and which GPU."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpucost.cluster.objects.metadata import Resources
from gpucost.cluster.objects.nodes import DeviceId
from gpucost.cluster.objects.pods import Pod, PodPhase, UnhealthyDevice
from gpucost.cluster.objects.state import ClusterState
from gpucost.cluster.views.gpu_units import DeviceHealth, GpuUnits
from gpucost.domain.gpu import ResourceCatalog
from tests.cluster.builders import GPU, T0, pod
from tests.cluster.test_claims import claim, state
from tests.cluster.test_devices import DRIVER, MIG, a_slice, gpu, mig
from tests.cluster.test_gpu_fractions import owner, reservation

ONE, TWO = (f"GPU-{n}{n}{n}{n}{n}{n}{n}{n}-0000-4000-8000-000000000000" for n in (1, 2))
CATALOG = ResourceCatalog()


def unhealthy(found: ClusterState, mine: Pod) -> dict[tuple[str, str], int]:
    units = GpuUnits(found, CATALOG)
    return dict(DeviceHealth(found, units).unhealthy(mine, units.held(mine)))


def plugged(*ids: str, gpus: int = 8, resource: str = GPU) -> Pod:
    told = tuple(UnhealthyDevice(resource, "", each) for each in ids)
    return replace(pod("p", gpus, node="n", bound_ms=T0), unhealthy=told)


@pytest.mark.parametrize(
    ("ids", "units"),
    [
        ([ONE, TWO], {(GPU, ONE): 1, (GPU, TWO): 1}),
        # Handed out several times.
        ([f"{ONE}::0", f"{ONE}::11"], {(GPU, ONE): 2}),
        # MIG, by index, by PCI address, and what HAMi's plugin makes of a uuid: no GPU is known.
        (["MIG-1", "3", "0:2", "0000:0c:00.0", f"{ONE}-7"], {(GPU, ""): 5}),
        ([f"{ONE}::", f"{ONE}::x", "GPU-1"], {(GPU, ONE): 1, (GPU, ""): 2}),
        ([f"{ONE}\n", f"{ONE}{ONE}"], {(GPU, ""): 2}),
    ],
)
def test_ids_of_device_plugins(ids: list[str], units: Resources) -> None:
    mine = plugged(*ids)
    assert unhealthy(state(mine), mine) == units


def test_no_more_than_a_pod_holds_and_gpus_that_are_known_first() -> None:
    mine = plugged("a", ONE, "b", TWO, gpus=3)
    assert unhealthy(state(mine), mine) == {(GPU, ONE): 1, (GPU, TWO): 1, (GPU, ""): 1}


def test_other_resources_and_pods_that_hold_nothing() -> None:
    nic = plugged("eth0", resource="example.com/nic")
    assert unhealthy(state(nic), nic) == {}
    ended = replace(plugged(ONE), phase=PodPhase.SUCCEEDED, ended_ms=T0 + 1)
    assert unhealthy(state(ended), ended) == {}


def of_claim(*ids: str) -> Pod:
    told = tuple(UnhealthyDevice("", "c", each) for each in ids)
    return replace(pod("p", node="node-1", bound_ms=T0, claims=("c",)), unhealthy=told)


SLICE = a_slice(gpu(1), gpu(2), gpu(11), mig(1, 3), mig(2, 3))


@pytest.mark.parametrize(
    ("told", "devices", "units"),
    [
        # The kubelet's own name, and CDI ids of a device, of a claim's device, and of nothing that is known.
        ([f"{DRIVER}/node-1/gpu-2"], ["gpu-1", "gpu-2"], {(DRIVER, "GPU-2"): 1}),
        (["k8s.gpu.nvidia.com/device=gpu-1"], ["gpu-1", "gpu-11"], {(DRIVER, "GPU-1"): 1}),
        (["k8s.gpu.nvidia.com/claim=c-uid-gpu-11"], ["gpu-1", "gpu-11"], {(DRIVER, "GPU-11"): 1}),
        (["k8s.gpu.nvidia.com/device=opaque"], ["gpu-1", "gpu-2"], {(DRIVER, ""): 1}),
        (["k8s.gpu.nvidia.com/device=opaque"], ["gpu-2"], {(DRIVER, "GPU-2"): 1}),
        # Of a MIG device the GPU that it is a part of.
        ([f"{DRIVER}/node-1/gpu-3-mig-2"], ["gpu-3-mig-1", "gpu-3-mig-2"], {(MIG, "GPU-3"): 1}),
        # One of two kinds: which, nobody says.
        (["vendor.com/gpu=opaque"], ["gpu-1", "gpu-3-mig-1"], {}),
        # A device that no slice describes.
        ([f"{DRIVER}/node-1/gpu-9"], ["gpu-9"], {(DRIVER, ""): 1}),
    ],
)
def test_devices_of_claims(told: list[str], devices: list[str], units: Resources) -> None:
    mine = of_claim(*told)
    assert unhealthy(state(mine, SLICE, claim("c", "p-uid", devices=devices)), mine) == units


def test_a_claim_of_gpus_and_network_cards() -> None:
    made = claim("c", "p-uid", devices=["gpu-1"])
    both = replace(made, devices=(*made.devices, DeviceId("nic.example.com", "node-1", "nic-0")))
    for device, units in (("gpu-1", {(DRIVER, "GPU-1"): 1}), ("nic-0", {}), ("opaque", {})):
        mine = of_claim(f"k8s.example.com/device={device}")
        assert unhealthy(state(mine, SLICE, both), mine) == units


def test_a_claim_that_is_not_known() -> None:
    mine = of_claim(f"{DRIVER}/node-1/gpu-1")
    assert unhealthy(state(mine, SLICE), mine) == {}


def test_a_gpu_that_a_scheduler_of_fractions_chose_is_not_the_kubelets() -> None:
    owned = replace(reservation("g"), unhealthy=plugged(ONE).unhealthy)
    mine = replace(owner("a", "g", gpu_fraction="0.25"), unhealthy=plugged(ONE).unhealthy)
    found = state(mine, owned)
    assert [unhealthy(found, each) for each in (mine, owned)] == [{}, {}]
