"""Use of GPUs by OpenTelemetry's series, which name no pod: known of pods with whole nodes, else unknown."""

from __future__ import annotations

import pytest

from gpucost.domain.errors import DataProblemCode
from gpucost.domain.time import HOUR_MS
from tests.end_to_end.fixture_cluster import START_MS, BilledCluster, ClusterScript, ScriptedExporter
from tests.end_to_end.test_amd_partitions import pod
from tests.end_to_end.test_amd_use import by_pod, said
from tests.support.cluster import shapes
from tests.support.prometheus import needs_prometheus

pytestmark = [pytest.mark.slow, needs_prometheus, pytest.mark.prometheus]

GPU = "nvidia.com/gpu"
HOURS = 2
H100 = "NVIDIA-H100-80GB-HBM3"


def page(minute: int) -> str:
    """Two GPUs of ``n1``, at 50 % and at 100 %, 200 W each, as the collector's Prometheus exporter has them
    (resource attributes on ``target_info``); a CPU, an encoder and a MIG slice, which are no GPUs."""
    text = [
        "# TYPE target_info gauge\n",
        'target_info{host_name="n1",k8s_pod_name="otel-x",k8s_namespace_name="otel",service_name="gpu"} 1\n',
        "# TYPE hw_gpu_utilization_ratio gauge\n",
    ]
    of = {"GPU-a": 0.5, "GPU-b": 1.0}
    for number, value in of.items():
        own = f'hw_id="{number}",hw_type="gpu",hw_vendor="NVIDIA",hw_model="NVIDIA H100"'
        text.append(f'hw_gpu_utilization_ratio{{{own},hw_gpu_task="general"}} {value}\n')
        text.append(f'hw_gpu_utilization_ratio{{{own},hw_gpu_task="encoder"}} 0.0\n')
        text.append(f'hw_gpu_utilization_ratio{{{own},hw_gpu_partition="1g.10gb"}} 0.0\n')
    for name, value in (("usage", 2**33), ("limit", 2**36)):
        text.append(f"# TYPE hw_gpu_memory_{name}_bytes gauge\n")
        text += [f'hw_gpu_memory_{name}_bytes{{hw_id="{number}",hw_type="gpu"}} {value}\n' for number in of]
    joules = 10**6 + 200 * (minute + 5) * 60
    text.append("# TYPE hw_energy_joules counter\n")
    text += [f'hw_energy_joules_total{{hw_id="{number}",hw_type="gpu"}} {joules}\n' for number in of]
    text.append(f'hw_energy_joules_total{{hw_id="GPU-a",hw_type="cpu"}} {10 * joules}\n')
    return "".join(text)


def script() -> ClusterScript:
    """Two hours on a node of 2 GPUs: blue/a has both for the first, blue/b and red/c one each for the second.
    A second node, ``n2``, has no series: red/d has its only GPU all the time."""
    made = ClusterScript(HOURS)
    labels = {"nvidia.com/gpu.product": H100}
    for name, units in (("n1", 2), ("n2", 1)):
        given = {**labels, "nvidia.com/gpu.count": str(units)}
        made.at(-5, shapes.node(name, START_MS - 600_000, {GPU: units}, given))
    first = pod("blue", "a", "n1", GPU, 2, 0)
    made.at(0, first, pod("red", "d", "n2", GPU, 1, 0))
    made.remove(60, first)
    made.at(60, pod("blue", "b", "n1", GPU, 1, 60), pod("red", "c", "n1", GPU, 1, 60))
    made.exporters.append(ScriptedExporter("otel-collector", "otel-x:8889", page))
    return made


def test_the_objects_are_valid() -> None:
    script().validate()


def test_a_pod_with_the_whole_node_has_the_use_of_its_gpus(bill: BilledCluster) -> None:
    """50 % and 100 % for an hour: 1.5 of 2 GPU-hours; 2 x 200 Wh; 2 x 8 GiB for an hour."""
    assert by_pod(bill, "observed_ms", HOUR_MS) == pytest.approx({"a": 2}, rel=0.02)
    assert by_pod(bill, "busy_ms", HOUR_MS) == pytest.approx({"a": 1.5}, rel=0.02)
    assert by_pod(bill, "energy_mj", 3_600_000) == pytest.approx({"a": 400}, rel=0.03)
    assert by_pod(bill, "memory_used_mib_s", 3600 * 1024) == pytest.approx({"a": 16}, rel=0.02)


def test_two_pods_on_a_node_have_unknown_use_and_a_problem_names_it(bill: BilledCluster) -> None:
    """blue/b and red/c: 2 GPU-hours. Of n2 there is no series, so it is not in it."""
    [unsplit] = [each for each in bill.problems if each.code is DataProblemCode.USE_UNSPLIT]
    assert unsplit.detail.startswith("series of GPUs by OpenTelemetry name no pod")
    assert (unsplit.board_ms or 0) / HOUR_MS == pytest.approx(2, rel=0.01)


def test_everybody_pays_all_the_same(bill: BilledCluster) -> None:
    held = {key[0]: float(hours) for key, hours in bill.held("pod").items()}
    assert held == pytest.approx({"a": 2, "b": 1, "c": 1, "d": 2}, rel=0.01)


def test_it_is_conserved(bill: BilledCluster) -> None:
    assert sum(bill.buckets().values()) == 3 * HOURS


def test_coverage_is_of_the_one_pod(bill: BilledCluster) -> None:
    busy = bill.report.totals.utilisation.busy
    assert busy is not None
    assert float(busy.coverage or 0) == pytest.approx(2 / 6, abs=0.01)


def test_doctor_says_what_is_read(bill: BilledCluster) -> None:
    facts, verdicts = said(bill, HOURS)
    assert facts["OpenTelemetry"] == (
        "2 GPUs; busy, memory_used, memory_total, energy; "
        "names no pod: read of pods that have a whole node, unknown of others"
    )
    assert verdicts["use of GPUs: energy"].startswith("in part of pods that have a whole node")
