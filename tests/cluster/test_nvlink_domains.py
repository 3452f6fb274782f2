"""Which nodes' channels ComputeDomains have, and which waiting pods need one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gpucost.cluster.objects.nodes import (
    ComputeDomain,
    DeviceId,
    DeviceRequest,
    PublishedDevice,
    ResourceClaim,
    ResourceSlice,
)
from gpucost.cluster.objects.state import ClusterState
from gpucost.cluster.views.device_claims import CHANNELS
from gpucost.cluster.views.gpu_units import GpuUnits
from gpucost.cluster.views.nvlink_domains import (
    CLIQUE,
    DRIVER,
    RESERVED_BY,
    ChannelNeed,
    ChannelNeeds,
    domain_trays,
)
from gpucost.cluster.views.ownership import PodOwnership
from gpucost.domain.gpu import ResourceCatalog
from tests.cluster.builders import T0, meta, node, pod, state, template

DOMAIN = ComputeDomain(meta("imex"), "imex-channel")


def channels(name: str, *kinds: str) -> ResourceSlice:
    devices = tuple(PublishedDevice(f"{kind}-0", {"type": kind}) for kind in kinds)
    return ResourceSlice(meta(f"{name}-slice", ""), DRIVER, name, 1, name, devices)


def claim(name: str, node_name: str = "", user: str = "", device: str = "channel-0") -> ResourceClaim:
    devices = (DeviceId(DRIVER, node_name, device),) if node_name else ()
    users = (f"{user}-uid",) if user else ()
    return ResourceClaim(meta(name), devices, users, (), (DeviceRequest(CHANNELS, 1),))


def cluster(*objects: object, claims: tuple[ResourceClaim, ...] = (), label: str = "") -> ClusterState:
    made = state(
        node("t0", labels={CLIQUE: "rack"} | ({RESERVED_BY: label} if label else {})),
        node("t1", labels={CLIQUE: "rack"}),
        node("plain"),
        *objects,
    )
    slices = (
        channels("t0", "channel", "daemon"),
        channels("t1", "channel", "daemon"),
        channels("plain", "daemon"),
    )
    return replace(
        made,
        slices={each.meta.uid: each for each in slices},
        claims={each.meta.uid: each for each in claims},
        compute_domains={DOMAIN.meta.uid: DOMAIN},
    )


def trays(found: ClusterState) -> dict[str, tuple[str, bool, str, str]]:
    seen = domain_trays(found, PodOwnership(found))
    return {
        name: (each.clique, each.is_reserved, each.domain, each.job.name if each.job else "")
        for name, each in seen.items()
    }


def test_a_tray_is_taken_by_whoever_has_its_channel_and_is_no_gpu() -> None:
    holds = pod("holds", node="t0", claims=("c",))
    found = cluster(
        holds, claims=(claim("c", "t0", "holds"), claim("daemon", "t1", device="daemon-0")), label="imex-uid"
    )
    assert trays(found) == {
        "t0": ("rack", True, "team-a/imex", "holds"),
        "t1": ("rack", False, "", ""),
    }
    units = GpuUnits(found, ResourceCatalog())
    assert (units.of(holds), units.held(holds), units.devices.unknown) == ({}, {}, [])


def test_a_label_that_stays_behind_keeps_others_away() -> None:
    assert trays(cluster(label="gone-uid"))["t0"] == ("rack", True, "gone-uid", "")


def test_a_pod_that_ended_has_channels_of_no_unknown_gpus() -> None:
    """Its claim was given back, and never seen with a device: its class says that these were no GPUs."""
    over = replace(pod("over", node="t0", claims=("c",)), ended_ms=T0 + 60_000)
    found = cluster(over, claims=(claim("c"),))
    ended = replace(over, phase=over.phase.SUCCEEDED)
    assert list(GpuUnits(found, ResourceCatalog(), (ended,)).devices.unknown) == []


@pytest.mark.parametrize(
    ("fields", "claims", "topology", "need"),
    [
        ({}, (), {}, ChannelNeed.NONE),
        ({"claims": ("imex-channel",)}, (), {}, ChannelNeed.NODE),
        ({}, ("c",), {}, ChannelNeed.NODE),
        ({}, ("other",), {}, ChannelNeed.NONE),
        ({"claims": ("imex-channel",), "together": (CLIQUE,)}, (), {}, ChannelNeed.CLIQUE),
        ({"claims": ("imex-channel",), "together": ("zone",)}, (), {}, ChannelNeed.NODE),
        ({"claims": ("imex-channel",)}, (), {"required": CLIQUE}, ChannelNeed.CLIQUE),
        ({"claims": ("imex-channel",)}, (), {"preferred": CLIQUE}, ChannelNeed.NODE),
    ],
)
def test_what_a_pod_needs(
    fields: Any, claims: tuple[str, ...], topology: dict[str, str], need: ChannelNeed
) -> None:
    needs = ChannelNeeds(cluster(claims=(claim("c"),)))
    assert needs.of(meta("p"), template(4, **fields), claims, topology) is need


def test_templates_of_other_namespaces_are_not_believed() -> None:
    needs = ChannelNeeds(cluster())
    assert needs.of(meta("p", "team-b"), template(4, claims=("imex-channel",))) is ChannelNeed.NONE
