"""AMD GPUs, whole and cut into partitions: each partition is its part of a GPU, under either naming."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest

from gpucost.domain.errors import DataProblemCode
from gpucost.domain.time import HOUR_MS, MINUTE_MS
from tests.end_to_end.fixture_cluster import START_MS, BilledCluster, ClusterScript
from tests.support.cluster import shapes
from tests.support.prometheus import needs_prometheus

pytestmark = [pytest.mark.slow, needs_prometheus, pytest.mark.prometheus]

GPU, CPX, SPX = "amd.com/gpu", "amd.com/cpx_nps1", "amd.com/spx_nps1"
HOURS = 4


def node(name: str, resources: dict[str, int], **labels: str) -> dict[str, Any]:
    given = {f"amd.com/gpu.{key.replace('_', '-')}": text for key, text in labels.items()}
    return shapes.node(name, START_MS - 600_000, resources, given)


def pod(namespace: str, name: str, node_name: str, resource: str, units: int, minute: int) -> dict[str, Any]:
    at_ms = START_MS + minute * MINUTE_MS
    found = shapes.pod(namespace, name, f"{name}-uid", at_ms, resource, units)
    found["spec"]["nodeName"] = node_name
    found["status"]["phase"] = "Running"
    shapes.set_condition(found, "PodScheduled", True, "", at_ms)
    return found


def script() -> ClusterScript:
    """Four nodes, for four hours:

    whole   8 MI355X: blue has 2 of them from 1:00, 6 h
    single  8 MI300X in CPX, which the plugin calls amd.com/gpu: 64 eighths. blue has 3 from 0:00, red 8 from
            2:00: 1.5 h and 2 h
    mixed   8 MI325X, of which 3 are in CPX: 24 eighths and 5 whole. red has 4 eighths and a whole one: 2 h
            and 4 h
    odd     8 MI308X in CPX, of which nothing says how many dies they have: unknown, and a problem
    hidden  the same 8 MI308X under the name amd.com/gpu: unknown as well, and not 32 whole GPUs

    No exporter measures any of it.
    """
    made = ClusterScript(HOURS)
    made.at(
        -5,
        node("whole", {GPU: 8}, device_id="75a3"),
        node("single", {GPU: 64}, device_id="74b5", compute_memory_partition="cpx_nps4"),
        node("mixed", {CPX: 24, SPX: 5}, device_id="74a5"),
        node("odd", {CPX: 32}, device_id="74a2"),
        node("hidden", {GPU: 32}, device_id="74a2", compute_memory_partition="cpx_nps1"),
    )
    made.at(0, pod("blue", "s0", "single", GPU, 3, 0), pod("red", "o0", "odd", CPX, 4, 0))
    made.at(0, pod("red", "h0", "hidden", GPU, 4, 0))
    made.at(0, pod("red", "m0", "mixed", CPX, 4, 0), pod("red", "m1", "mixed", SPX, 1, 0))
    made.at(60, pod("blue", "w0", "whole", GPU, 2, 60))
    made.at(120, pod("red", "s1", "single", GPU, 8, 120))
    return made


def test_the_objects_are_valid() -> None:
    script().validate()


def test_a_partition_is_its_part_of_a_gpu(bill: BilledCluster) -> None:
    assert bill.held("node", "pod") == {
        ("single", "s0"): Fraction(3, 8) * 4,
        ("single", "s1"): 2,
        ("mixed", "m0"): Fraction(4, 8) * 4,
        ("mixed", "m1"): 4,
        ("whole", "w0"): 6,
    }


def test_it_is_conserved(bill: BilledCluster) -> None:
    """Three nodes of eight GPUs for four hours."""
    held = Fraction("15.5")
    assert bill.buckets() == {"held": held, "unallocated": 3 * 8 * HOURS - held}


def test_what_is_unknown_is_a_problem_that_names_it(bill: BilledCluster) -> None:
    units = [each for each in bill.problems if each.code is not DataProblemCode.USE_UNKNOWN]
    assert {(each.code, each.subject) for each in units} == {
        *((DataProblemCode.UNIT_UNKNOWN, name) for name in ("odd", "hidden")),
        *((DataProblemCode.COUNT_UNKNOWN, name) for name in ("odd", "hidden")),
        *((DataProblemCode.UNIT_UNKNOWN, uid) for uid in ("o0-uid", "h0-uid")),
    }
    for name, what in (("o0", f"{CPX} on odd"), ("h0", f"{GPU} on hidden")):
        [said] = {each.detail for each in units if each.subject == f"{name}-uid"}
        assert said.startswith(f"red/{name} held 4 x {what} for 3600000 ms: share of a board unknown")


def test_use_that_nobody_measured_is_named_with_its_gpu_hours(bill: BilledCluster) -> None:
    """All that is held: 3/8 x 4 h + 2 h + 6 h of amd.com/gpu, 4/8 x 4 h in CPX, 4 h in SPX."""
    found: dict[str, Fraction] = {}
    for each in bill.problems:
        if each.code is DataProblemCode.USE_UNKNOWN:
            found[each.subject] = found.get(each.subject, Fraction(0)) + Fraction(each.board_ms or 0, HOUR_MS)
    assert found == {GPU: Fraction("9.5"), CPX: 2, SPX: 4}
