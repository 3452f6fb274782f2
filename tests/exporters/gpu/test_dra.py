"""ResourceSlices to devices, in the three versions of the API."""

from __future__ import annotations

from typing import Any

import pytest

from gpucost_gpu_exporter.model.holdings import DraDevice, devices

DRIVER = "gpu.nvidia.com"
GPU = {"type": {"string": "gpu"}, "uuid": {"string": "GPU-a"}, "index": {"int": 0}}
MIG = {
    "type": {"string": "mig"},
    "uuid": {"string": "MIG-b"},
    "parentUUID": {"string": "GPU-b"},
    "profile": {"string": "1g.10gb"},
}


def a_slice(
    *listed: dict[str, Any], generation: Any = 1, pool: str = "node-1", driver: str = DRIVER
) -> dict[str, Any]:
    return {
        "metadata": {"name": f"{pool}-{generation}", "uid": f"{pool}-{generation}-uid"},
        "spec": {
            "driver": driver,
            "nodeName": "node-1",
            "pool": {"name": pool, "generation": generation, "resourceSliceCount": 1},
            "devices": list(listed),
        },
    }


def v1(name: str, attributes: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "attributes": attributes}


def v1beta1(name: str, attributes: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "basic": {"attributes": attributes, "capacity": {"memory": {"value": "80Gi"}}}}


@pytest.mark.parametrize("version", [v1, v1beta1])
def test_boards_and_mig_devices(version: Any) -> None:
    assert devices([a_slice(version("gpu-0", GPU), version("gpu-1-mig-9", MIG))]) == {
        "gpu.nvidia.com/node-1/gpu-0": DraDevice("GPU-a", "gpu"),
        "gpu.nvidia.com/node-1/gpu-1-mig-9": DraDevice("MIG-b", "mig"),
    }


def test_an_empty_basic_is_not_v1beta1() -> None:
    assert devices([a_slice({**v1("gpu-0", GPU), "basic": None})])


def test_attributes_with_their_domain() -> None:
    qualified = {f"{DRIVER}/{name}": value for name, value in MIG.items()}
    assert devices([a_slice(v1("m", qualified))]) == {f"{DRIVER}/node-1/m": DraDevice("MIG-b", "mig")}


@pytest.mark.fault(7)
@pytest.mark.parametrize("order", [1, -1])
def test_only_the_newest_generation_of_a_pool_counts(order: int) -> None:
    slices = [
        a_slice(v1("gpu-0", GPU), v1("gone", {"uuid": {"string": "GPU-gone"}}), generation=3),
        a_slice(v1("gpu-0", {"uuid": {"string": "GPU-new"}}), generation=4),
        a_slice(v1("gpu-1", {"uuid": {"string": "GPU-c"}}), generation=4),
        a_slice(v1("gpu-0", GPU), generation=1, pool="other"),
    ][::order]
    assert devices(slices) == {
        f"{DRIVER}/node-1/gpu-0": DraDevice("GPU-new", "gpu"),
        f"{DRIVER}/node-1/gpu-1": DraDevice("GPU-c", "gpu"),
        f"{DRIVER}/other/gpu-0": DraDevice("GPU-a", "gpu"),
    }


def test_other_drivers_are_left_out() -> None:
    channel = a_slice(v1("channel-0", {"uuid": {"string": "x"}}), driver="compute-domain.nvidia.com")
    ours = a_slice(v1("gpu-0", GPU), driver="gpu.example.com")
    assert devices([channel, ours]) == {}
    assert devices([ours], drivers=["gpu.example.com"]) == {
        "gpu.example.com/node-1/gpu-0": DraDevice("GPU-a", "gpu")
    }


def test_a_mig_device_not_cut_yet_has_no_uuid() -> None:
    assert devices([a_slice(v1("gpu-0-mig-1g10gb-0", {"type": {"string": "mig"}}))]) == {}


@pytest.mark.parametrize(
    "broken",
    [
        {},
        {"spec": None},
        a_slice(v1("d", GPU), generation="new"),
        a_slice() | {"spec": {"driver": DRIVER, "pool": {"name": "p", "generation": 1}, "devices": None}},
        a_slice({"attributes": GPU}, {"name": 7, "attributes": GPU}, {"name": "d", "attributes": []}),
        a_slice(v1("d", {"uuid": "GPU-a"}), v1("e", {"uuid": {"string": 5}})),
    ],
)
def test_what_is_not_of_the_form_is_left_out(broken: dict[str, Any]) -> None:
    good = a_slice(v1("gpu-0", GPU))
    assert list(devices([broken, good])) == [f"{DRIVER}/node-1/gpu-0"]
