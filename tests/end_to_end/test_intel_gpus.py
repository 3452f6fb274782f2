"""GPUs of Intel and Gaudi: counted and priced, each unit its part of a GPU; their use is unknown."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest

from gpucost.domain.errors import DataProblemCode
from gpucost.domain.time import HOUR_MS, MINUTE_MS
from tests.end_to_end.fixture_cluster import START_MS, USD_PER_HOUR, BilledCluster, ClusterScript
from tests.end_to_end.test_amd_use import said
from tests.support.cluster import shapes
from tests.support.prometheus import needs_prometheus

pytestmark = [pytest.mark.slow, needs_prometheus, pytest.mark.prometheus]

I915, XE, GAUDI = "gpu.intel.com/i915", "gpu.intel.com/xe", "habana.ai/gaudi"
MONITORING = "gpu.intel.com/monitoring"
HOURS = 2


def node(name: str, resources: dict[str, int], **labels: str) -> dict[str, Any]:
    given = {f"gpu.intel.com/{key.replace('_', '.')}": text for key, text in labels.items()}
    return shapes.node(name, START_MS - 600_000, resources, given)


def pod(namespace: str, name: str, node_name: str, resource: str, units: int, minute: int) -> dict[str, Any]:
    at_ms = START_MS + minute * MINUTE_MS
    found = shapes.pod(namespace, name, f"{name}-uid", at_ms, resource, units)
    found["spec"]["nodeName"] = node_name
    found["status"]["phase"] = "Running"
    shapes.set_condition(found, "PodScheduled", True, "", at_ms)
    return found


def script() -> ClusterScript:
    """Four nodes, for two hours:

    max     4 GPUs under the driver xe: blue has 3 from 0:00, 6 h. What watches them has the monitoring
            resource, which is no GPU
    shared  2 GPUs under i915, each handed out ten times: blue has 5 of 20 units from 0:00, red 10 from 1:00:
            1 h and 1 h
    torn    2 GPUs of which 5 units are handed out: nobody knows which has how many. Unknown, and a problem
    gaudi   8 Gaudi: red has 8 from 1:00, 8 h
    """
    made = ClusterScript(HOURS)
    made.at(
        -5,
        node("max", {XE: 4, MONITORING: 1}, device_count="4", product="Max_1550"),
        node("shared", {I915: 20}, device_count="2", product="Flex_170"),
        node("torn", {I915: 5}, device_count="2", product="Flex_170"),
        node("gaudi", {GAUDI: 8}),
    )
    made.at(0, pod("blue", "x0", "max", XE, 3, 0), pod("watch", "w0", "max", MONITORING, 1, 0))
    made.at(0, pod("blue", "s0", "shared", I915, 5, 0), pod("red", "t0", "torn", I915, 2, 0))
    made.at(60, pod("red", "s1", "shared", I915, 10, 60), pod("red", "g0", "gaudi", GAUDI, 8, 60))
    return made


def test_the_objects_are_valid() -> None:
    script().validate()


def test_each_unit_is_its_part_of_a_gpu(bill: BilledCluster) -> None:
    assert bill.held("node", "namespace", "pod") == {
        ("max", "blue", "x0"): 6,
        ("shared", "blue", "s0"): Fraction(5, 10) * HOURS,
        ("shared", "red", "s1"): Fraction(10, 10) * 1,
        ("gaudi", "red", "g0"): 8,
    }


def test_both_tenants_pay(bill: BilledCluster) -> None:
    assert bill.cost("namespace") == {("blue",): 7 * USD_PER_HOUR, ("red",): 9 * USD_PER_HOUR}


def test_it_is_conserved(bill: BilledCluster) -> None:
    """4 and 2 GPUs and 8 Gaudi, for two hours; of the 2 GPUs of ``torn`` nobody knows what was held."""
    held = 6 + 1 + 1 + 8
    assert bill.buckets() == {"held": held, "unallocated": 14 * HOURS - held, "unknown": 2 * HOURS}


def test_what_is_unknown_is_a_problem_that_names_it(bill: BilledCluster) -> None:
    units = [each for each in bill.problems if each.code is not DataProblemCode.USE_UNKNOWN]
    assert {(each.code, each.subject) for each in units} == {
        (DataProblemCode.UNIT_UNKNOWN, "torn"),
        (DataProblemCode.UNIT_UNKNOWN, "t0-uid"),
    }


def test_their_use_is_unknown_with_its_gpu_hours(bill: BilledCluster) -> None:
    found: dict[str, Fraction] = {}
    for each in bill.problems:
        if each.code is DataProblemCode.USE_UNKNOWN:
            found[each.subject] = found.get(each.subject, Fraction(0)) + Fraction(each.board_ms or 0, HOUR_MS)
    assert found == {XE: 6, I915: 2, GAUDI: 8}
    assert bill.report.totals.utilisation.busy is None


def test_doctor_says_that_nobody_tells_their_use(bill: BilledCluster) -> None:
    facts, verdicts = said(bill, HOURS)
    assert facts["GPUs not of NVIDIA"] == (
        "25 gpu.intel.com/i915, 4 gpu.intel.com/xe, 8 habana.ai/gaudi; counted and priced; "
        "use: unknown: no series of it that is read"
    )
    assert verdicts["use of GPUs: busy"].startswith("no ")
