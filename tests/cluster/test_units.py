"""GPU units of pods."""

from __future__ import annotations

from gpucost.cluster.objects.metadata import Resources
from gpucost.cluster.objects.nodes import (
    DeviceId,
    PublishedDevice,
    ResourceClaim,
    ResourceSlice,
)
from gpucost.cluster.objects.state import ClusterState
from gpucost.cluster.views.gpu_units import GpuUnits
from gpucost.domain.gpu import ResourceCatalog
from tests.cluster.builders import GPU, T0, meta, pod, state, template

CATALOG = ResourceCatalog()
MIG = "nvidia.com/mig-1g.10gb"


def held_units(state: ClusterState, catalog: ResourceCatalog) -> dict[str, Resources]:
    """The GPU units of every pod that holds some now, by its uid."""
    units = GpuUnits(state, catalog)
    held = ((pod.meta.uid, units.of(pod)) for pod in state.pods.values() if pod.is_bound)
    return {uid: found for uid, found in held if found}


def test_asked_are_gpus_only_and_never_zero() -> None:
    units = GpuUnits(state(), CATALOG)
    asked = {GPU: 2, MIG: 3, "amd.com/gpu": 0, "cpu": 4000, "nvidia.com/mig.config": 1}
    assert units.asked(asked) == {GPU: 2, MIG: 3}
    assert units.asked({"cpu": 1000}) == {}
    # The same mapping again, and another that may stand in its place in memory.
    assert units.asked(asked) == {GPU: 2, MIG: 3}
    assert [units.asked({GPU: count}) for count in range(1, 4)] == [{GPU: 1}, {GPU: 2}, {GPU: 3}]


def test_the_catalog_says_what_a_gpu_is() -> None:
    units = GpuUnits(state(), ResourceCatalog({"example.com/npu": CATALOG.shares[GPU]}))
    assert units.of(pod("a", asks=template(1, requests={"example.com/npu": 4, GPU: 1}))) == {
        "example.com/npu": 4
    }


def test_devices_of_claims_are_added_to_extended_resources() -> None:
    driver = "gpu.nvidia.com"
    published = ResourceSlice(
        meta("slice", ""), driver, "node-1", 1, "node-1", (PublishedDevice("gpu-0", {"type": "gpu"}),)
    )
    claim = ResourceClaim(meta("claim"), (DeviceId(driver, "node-1", "gpu-0"),), ("both-uid",))
    both = pod("both", 2, bound_ms=T0, claims=("claim",))
    plain, waits = pod("plain", 1, bound_ms=T0), pod("waits", 8)
    cpu, over = pod("cpu", bound_ms=T0), pod("over", 1, bound_ms=T0, ended_ms=T0 + 1)
    now = state(both, plain, waits, cpu, over, claims=[claim], slices=[published])

    units = GpuUnits(now, CATALOG)
    assert units.of(both) == {GPU: 2, driver: 1}
    assert units.of(waits) == {GPU: 8}
    assert held_units(now, CATALOG) == {"both-uid": {GPU: 2, driver: 1}, "plain-uid": {GPU: 1}}
