"""Use of AMD GPUs by AMD's own exporter, beside gpucost's collector: whole GPUs, and partitions, of which
only the first is measured."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import pytest

from gpucost.domain.errors import DataProblemCode
from gpucost.domain.gpu import ResourceCatalog
from gpucost.domain.time import HOUR_MS, Month
from gpucost.reports.doctor.diagnose import diagnose
from gpucost.telemetry.doctor.cluster_probe import probe
from gpucost.telemetry.prometheus.api_client import PrometheusClient
from gpucost.telemetry.prometheus.source_settings import PrometheusSourceSettings
from tests.end_to_end.fixture_cluster import (
    START_MS,
    BilledCluster,
    ClusterScript,
    ScriptedExporter,
)
from tests.end_to_end.test_amd_partitions import GPU, node, pod
from tests.support.prometheus import needs_prometheus

pytestmark = [pytest.mark.slow, needs_prometheus, pytest.mark.prometheus]

HOURS = 2
MODEL = "102-G30211-0C"
MICRO = 10**6


def rows(name: str, values: dict[str, tuple[dict[str, str], float]]) -> Iterator[str]:
    """Of one metric, as the exporter writes it: ``values`` by gpu_id."""
    yield f"# TYPE {name} gauge\n"
    for number, (labels, value) in values.items():
        given = {
            "card_model": MODEL,
            "gpu_id": number,
            "gpu_memory_partition_type": "nps1",
            "deployment_mode": "baremetal",
            "job_id": "",
            "job_user": "",
            "job_partition": "",
            **labels,
        }
        written = ",".join(f'{key}="{text}"' for key, text in sorted(given.items()))
        yield f"{name}{{{written}}} {value!r}\n"


def held_by(namespace: str = "", name: str = "") -> dict[str, str]:
    return {"namespace": namespace, "pod": name, "container": "main" if name else ""}


def whole_page(minute: int) -> str:
    """Two GPUs. The first at 50 % and 300 W for blue/w0, the other at 80 % and 500 W for red/w1 from 1:00 on,
    before that at rest with 100 W."""
    first = held_by("blue", "w0") if minute >= 0 else held_by()
    other = held_by("red", "w1") if minute >= 60 else held_by()
    place = {"hostname": "whole", "gpu_compute_partition_type": "spx", "gpu_partition_id": "0"}
    of = {"0": {**place, "serial_number": "S0", **first}, "1": {**place, "serial_number": "S1", **other}}
    seconds, late = (minute + 5) * 60, max(0, minute - 60) * 60
    text = [
        *rows("amd_gpu_gfx_activity", {"0": (of["0"], 50), "1": (of["1"], 80 if minute >= 60 else 0)}),
        *rows("amd_gpu_umc_activity", {"0": (of["0"], 30), "1": (of["1"], 0)}),
        *rows("amd_gpu_package_power", {"0": (of["0"], 300), "1": (of["1"], 500 if minute >= 60 else 100)}),
        *rows(
            "amd_gpu_energy_consumed",
            {
                "0": (of["0"], 10**12 + 300.0 * MICRO * seconds),
                "1": (of["1"], 10**12 + (100.0 * seconds + 400.0 * late) * MICRO),
            },
        ),
        *rows("amd_gpu_used_vram", {"0": (of["0"], 98304.0), "1": (of["1"], 0.0)}),
        *rows("amd_gpu_total_vram", {"0": (of["0"], 196608.0), "1": (of["1"], 196608.0)}),
    ]
    return "".join(text)


def parts_page(minute: int) -> str:
    """One GPU in CPX: eight rows. blue/p0 has partition 0, red/p1 three others. 40 % and 400 W of the GPU
    stand on partition 0; of the others activity is 0, power is 0, and energy is not there at all."""
    of: dict[str, dict[str, str]] = {}
    for number in range(8):
        who = held_by("blue", "p0") if number == 0 else held_by("red", "p1") if number < 4 else held_by()
        of[str(number)] = {
            "hostname": "parts",
            "serial_number": "S2",
            "gpu_compute_partition_type": "cpx",
            "gpu_partition_id": str(number),
            **(who if minute >= 0 else held_by()),
        }
    zero = {number: (labels, 0.0) for number, labels in of.items()}
    energy = 10**12 + 400.0 * MICRO * (minute + 5) * 60
    text = [
        *rows("amd_gpu_gfx_activity", {**zero, "0": (of["0"], 40.0)}),
        *rows("amd_gpu_package_power", {**zero, "0": (of["0"], 400.0)}),
        *rows("amd_gpu_energy_consumed", {"0": (of["0"], energy)}),
        *rows("amd_gpu_used_vram", {number: (labels, 1024.0) for number, labels in of.items()}),
        *rows("amd_gpu_total_vram", {number: (labels, 196608.0) for number, labels in of.items()}),
    ]
    return "".join(text)


def script() -> ClusterScript:
    """Two hours. ``whole``: 2 MI300X, blue/w0 has one from 0:00, red/w1 the other from 1:00. ``parts``: 1
    MI300X in CPX, blue/p0 has one partition, red/p1 three."""
    made = ClusterScript(HOURS)
    made.at(
        -5,
        node("whole", {GPU: 2}, device_id="74a1", compute_memory_partition="spx_nps1"),
        node("parts", {GPU: 8}, device_id="74a1", compute_memory_partition="cpx_nps1"),
    )
    made.at(0, pod("blue", "w0", "whole", GPU, 1, 0))
    made.at(0, pod("blue", "p0", "parts", GPU, 1, 0), pod("red", "p1", "parts", GPU, 3, 0))
    made.at(60, pod("red", "w1", "whole", GPU, 1, 60))
    made.exporters.append(ScriptedExporter("amd-metrics-exporter", "10.0.0.1:5000", whole_page))
    made.exporters.append(ScriptedExporter("amd-metrics-exporter", "10.0.0.2:5000", parts_page))
    return made


def by_pod(bill: BilledCluster, column: str, per: int) -> dict[str, float]:
    """Sums of what was measured; pods of which nothing was are not in it."""
    found: dict[str, float] = {}
    for row in bill.lines:
        value: Any = row[column]
        if row["bucket"] == "held" and value is not None and value == value:
            found[str(row["pod"])] = found.get(str(row["pod"]), 0) + float(value) / per
    return found


def test_the_objects_are_valid() -> None:
    script().validate()


def test_what_was_measured_is_of_the_pod_that_held_it(bill: BilledCluster) -> None:
    """GPU-hours observed: 2, 1 and 1/8 x 2; busy: 50 %, 80 % and 40 % of them."""
    assert by_pod(bill, "observed_ms", HOUR_MS) == pytest.approx({"w0": 2, "w1": 1, "p0": 0.25}, rel=0.01)
    assert by_pod(bill, "busy_ms", HOUR_MS) == pytest.approx({"w0": 1, "w1": 0.8, "p0": 0.1}, rel=0.01)


def test_other_partitions_are_not_measured_which_is_not_0(bill: BilledCluster) -> None:
    assert "p1" not in by_pod(bill, "observed_ms", HOUR_MS)
    assert "p1" not in by_pod(bill, "energy_observed_ms", HOUR_MS)
    assert bill.held("pod") == {
        ("w0",): 2,
        ("w1",): 1,
        ("p0",): Fraction(1, 8) * 2,
        ("p1",): Fraction(3, 8) * 2,
    }


def test_coverage_falls_and_the_mean_is_of_what_was_measured(bill: BilledCluster) -> None:
    """3.25 of 4 GPU-hours; 1.9 of them busy."""
    busy = bill.report.totals.utilisation.busy
    assert busy is not None
    assert float(busy.coverage or 0) == pytest.approx(3.25 / 4, abs=0.02)


def test_energy_is_the_counters(bill: BilledCluster) -> None:
    """Watt-hours: 300 W x 2 h, 500 W x 1 h, and of 400 W x 2 h the eighth that partition 0 is."""
    found = by_pod(bill, "energy_mj", 3_600_000)
    assert found == pytest.approx({"w0": 600, "w1": 500, "p0": 100}, rel=0.02)


def test_memory_of_partitions_is_not_read(bill: BilledCluster) -> None:
    """Nothing says whether 1 GiB on each row is the partition's or the GPU's. Of w0: 96 GiB x 2 h."""
    found = by_pod(bill, "memory_used_mib_s", 3600 * 1024)
    assert found.keys() == {"w0", "w1"}
    assert found["w0"] == pytest.approx(96 * 2, rel=0.02)


def test_the_unknown_has_a_problem_with_its_gpu_hours(bill: BilledCluster) -> None:
    """red/p1: 3/8 x 2 h. What partition 0 shows may be of all eight: 1/8 x 2 h."""
    found: dict[DataProblemCode, float] = {}
    for each in bill.problems:
        found[each.code] = found.get(each.code, 0) + (each.board_ms or 0) / HOUR_MS
    assert found.keys() == {
        DataProblemCode.USE_UNKNOWN,
        DataProblemCode.USE_UNSPLIT,
        DataProblemCode.USE_SAMPLED,
    }
    assert found[DataProblemCode.USE_UNKNOWN] == 0.75
    assert found[DataProblemCode.USE_UNSPLIT] >= 0.25


def test_it_is_conserved(bill: BilledCluster) -> None:
    """Three GPUs for two hours."""
    assert bill.buckets() == {"held": 4, "unallocated": 3 * HOURS - 4}


def test_detectors_see_the_same(bill: BilledCluster) -> None:
    activity = bill.history.activity
    of_pods = (activity.groupby("pod_uid", observed=True)["busy_ms"].sum() / HOUR_MS).to_dict()
    seen = {str(uid): value for uid, value in of_pods.items() if value > 0}
    assert seen == pytest.approx({"w0-uid": 1, "w1-uid": 0.8, "p0-uid": 0.1}, rel=0.05)


def test_doctor_says_what_is_read(bill: BilledCluster) -> None:
    facts, verdicts = said(bill, HOURS)
    assert facts["AMD's device-metrics-exporter"] == (
        "10 GPUs and partitions, 6 held by pods; busy, memory_used, memory_total, energy, power; "
        "of a GPU in partitions the first is measured, the others are not"
    )
    assert facts["GPUs not of NVIDIA"] == "10 amd.com/gpu; counted and priced; use: above"
    assert verdicts["use of GPUs: busy"].startswith("in part AMD's device-metrics-exporter: of whole GPUs")
    assert verdicts["use of GPUs: SM"].startswith("no ")


def said(bill: BilledCluster, hours: int) -> tuple[dict[str, str], dict[str, str]]:
    """Facts and verdicts of the doctor at the end of a script."""
    now_ms = START_MS + hours * HOUR_MS
    with PrometheusClient(bill.url) as client:
        found = probe(client, PrometheusSourceSettings(), ResourceCatalog(), Month.of(START_MS), now_ms)
    [cluster] = diagnose(found).clusters
    verdicts = {name.value: f"{each.verdict.value} {each.why}" for name, each in cluster.features.items()}
    return {each.what: each.found for each in cluster.facts}, verdicts
