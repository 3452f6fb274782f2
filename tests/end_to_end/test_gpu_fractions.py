"""Fractions of GPUs handed out by KAI Scheduler and HAMi: their owners are billed, and for their parts."""

from __future__ import annotations

import json
from fractions import Fraction
from typing import Any

import pytest

from gpucost.domain.errors import DataProblemCode
from gpucost.domain.time import MINUTE_MS, iso
from tests.end_to_end.fixture_cluster import (
    START_MS,
    USD_PER_HOUR,
    BilledCluster,
    ClusterScript,
    rounded,
)
from tests.support.cluster import shapes
from tests.support.prometheus import needs_prometheus

pytestmark = [pytest.mark.slow, needs_prometheus, pytest.mark.prometheus]

GPU = "nvidia.com/gpu"
KAI = "kai-resource-reservation"
GROUP = "runai-gpu-group"
HOURS = 4


def node() -> dict[str, Any]:
    labels = {"product": "NVIDIA-H100-80GB-HBM3", "count": "4", "memory": "81920"}
    return shapes.node(
        "kai", START_MS - 600_000, {GPU: 4}, {f"nvidia.com/gpu.{key}": text for key, text in labels.items()}
    )


def split_node() -> dict[str, Any]:
    """Two GPUs, each handed out ten times."""
    gpus = [
        {"id": f"GPU-{name}", "index": n, "count": 10, "devmem": 81920, "devcore": 100, "health": True}
        for n, name in enumerate("ab")
    ]
    found = shapes.node("hami", START_MS - 600_000, {GPU: 20}, {})
    listed = [{**each, "type": "NVIDIA-NVIDIA H100 80GB HBM3"} for each in gpus]
    found["metadata"]["annotations"] = {"hami.io/node-nvidia-register": json.dumps(listed)}
    return found


def pod(
    namespace: str,
    name: str,
    minute: int,
    gpus: int = 0,
    labels: dict[str, str] | None = None,
    annotations: dict[str, str] | None = None,
    node_name: str = "kai",
) -> dict[str, Any]:
    """A pod that is bound at ``minute``."""
    at_ms = START_MS + minute * MINUTE_MS
    found = shapes.pod(
        namespace, name, f"{name}-uid", at_ms, GPU, gpus, labels=labels or {}, annotations=annotations or {}
    )
    if not gpus:
        found["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "1"}}
    found["spec"]["nodeName"] = node_name
    found["status"]["phase"] = "Running"
    shapes.set_condition(found, "PodScheduled", True, "", at_ms)
    return found


def reserves(namespace: str, group: str, minute: int) -> dict[str, Any]:
    return pod(namespace, f"gpu-reservation-{group}", minute, 1, {"app": KAI, GROUP: group})


def over(found: dict[str, Any], minute: int) -> dict[str, Any]:
    at = iso(START_MS + minute * MINUTE_MS)
    done = shapes.terminated(0, "Completed", found["metadata"]["creationTimestamp"], at)
    return {**found, "status": {**found["status"], "phase": "Succeeded", "containerStatuses": done}}


def script() -> ClusterScript:
    """A node of KAI's with four GPUs of 80 GiB each, for four hours:

    g0  blue has 0.25 of it from 0:00, red 40 GiB from 1:00 to 3:00: 1 h and 1 h, 2 h are free
    g1  is reserved from 2:00 for a pod that does not say what it asked for: the reservation's own, 2 h
    g2  green says in its own namespace that its pod reserves a GPU: it pays that itself, 4 h
    -   the fourth GPU is nobody's, 4 h

    From 3:00 on blue writes that its fraction is 0.01: it was given 0.25. A node of HAMi's, with two:

    a   blue has 20 GiB of it from 0:00, red 40 GiB from 2:00: 1 h and 1 h
    b   red has all of it from 2:00: 2 h
    """
    made = ClusterScript(HOURS)
    made.at(-5, node())
    quarter = pod("blue", "quarter", 0, labels={GROUP: "g0"}, annotations={"gpu-fraction": "0.25"})
    half = pod("red", "half", 60, labels={GROUP: "g0"}, annotations={"gpu-memory": "40960"})
    made.at(0, reserves(KAI, "g0", 0), quarter, reserves("green", "g2", 0))
    made.at(60, half)
    made.at(120, reserves(KAI, "g1", 120), pod("red", "some", 120, labels={GROUP: "g1"}))
    made.at(180, over(half, 180))
    cheaper = pod("blue", "quarter", 0, labels={GROUP: "g0"}, annotations={"gpu-fraction": "0.01"})
    made.at(180, cheaper)
    made.at(-5, split_node())
    allocated = "hami.io/vgpu-devices-allocated"
    small, large = "GPU-a,NVIDIA,20480,0:;", "GPU-a,NVIDIA,40960,30:GPU-b,NVIDIA,81920,100:;"
    made.at(0, pod("blue", "small", 0, 1, annotations={allocated: small}, node_name="hami"))
    made.at(120, pod("red", "large", 120, 2, annotations={allocated: large}, node_name="hami"))
    return made


def test_the_objects_are_valid() -> None:
    script().validate()


def test_owners_of_fractions_are_billed_and_the_reservation_is_not(bill: BilledCluster) -> None:
    by_fraction = f"{GPU}.gpu-fraction"
    expected = {
        ("blue", "quarter", by_fraction): Fraction(1, 4) * 4,
        ("red", "half", by_fraction): Fraction(1, 2) * 2,
        (KAI, "gpu-reservation-g1", GPU): 2,
        ("green", "gpu-reservation-g2", GPU): 4,
        ("blue", "small", by_fraction): Fraction(1, 4) * 4,
        ("red", "large", by_fraction): Fraction(1, 2) * 2,
        ("red", "large", GPU): 2,
    }
    assert bill.held("namespace", "pod", "resource") == rounded(expected)


def test_it_is_conserved_and_the_second_tenant_is_not_zero(bill: BilledCluster) -> None:
    """Six GPUs for four hours."""
    assert bill.buckets() == rounded({"held": 12, "unallocated": 6 * HOURS - 12})
    assert sum(bill.buckets().values()) == 6 * HOURS
    hours = {("blue",): 2, ("red",): 4, ("green",): 4, (KAI,): 2}
    assert bill.cost("namespace") == rounded(hours, USD_PER_HOUR)


def test_no_fraction_is_in_doubt(bill: BilledCluster) -> None:
    assert DataProblemCode.SHARE_UNKNOWN not in {each.code for each in bill.problems}
