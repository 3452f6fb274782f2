"""One scripted hour through the real exporter and a real Prometheus: the parts are right, and add up."""

from __future__ import annotations

import pytest

from tests.exporters.gpu import hour
from tests.exporters.gpu.played import Played
from tests.support.prometheus import needs_prometheus

TOLERANCE = 0.01

pytestmark = [needs_prometheus]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("metric", "measure"),
    [
        ("gpucost_pod_gpu_held_seconds_total", "held"),
        ("gpucost_pod_gpu_busy_seconds_total", "busy"),
        ("gpucost_pod_gpu_energy_joules_total", "joules"),
    ],
)
@pytest.mark.trap(16, 26)
def test_every_pod_is_within_a_hundredth_of_the_truth(played: Played, metric: str, measure: str) -> None:
    # All counters began in the hour, so the last value of each series is what the pod had.
    found = played.by_pod(f'sum by (pod) (last_over_time({metric}{{holder="pod"}}[2h]))')
    expected: dict[str, float] = getattr(hour.truth(), measure)

    assert set(found) == {pod.name for pod in hour.PODS}
    for pod, value in expected.items():
        assert found[pod] == pytest.approx(value, rel=TOLERANCE), pod
    assert found["short"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("measure", ["held_seconds", "busy_seconds", "sm_active_seconds", "observed_seconds"])
def test_pods_and_nobody_are_the_board_to_the_last_bit(played: Played, measure: str) -> None:
    of_gpu = {"held_seconds": "present_seconds"}.get(measure, measure)
    query = (
        f"sum by (gpu_uuid) (gpucost_gpu_{of_gpu}_total)"
        f" - sum by (gpu_uuid) (gpucost_pod_gpu_{measure}_total)"
        f' - (sum by (gpu_uuid) (gpucost_gpu_retired_total{{measure="{measure}"}}) or'
        f" 0 * sum by (gpu_uuid) (gpucost_gpu_{of_gpu}_total))"
    )
    compared = 0
    for at in played.scrapes:
        rows = played.ask(query, at)
        compared += len(rows)
        assert {row["value"][1] for row in rows} <= {"0"}, (at, rows)  # type: ignore[index]
    assert compared > 3 * len(played.scrapes)


@pytest.mark.slow
def test_energy_of_the_holders_is_the_energy_of_the_board(played: Played) -> None:
    query = (
        "sum by (gpu_uuid) (gpucost_gpu_energy_joules_total)"
        " - sum by (gpu_uuid) (gpucost_pod_gpu_energy_joules_total)"
        ' - (sum by (gpu_uuid) (gpucost_gpu_retired_total{measure="energy_joules"}) or'
        " 0 * sum by (gpu_uuid) (gpucost_gpu_energy_joules_total))"
    )
    for at in played.scrapes:
        assert {row["value"][1] for row in played.ask(query, at)} == {"0"}, at  # type: ignore[index]


@pytest.mark.slow
def test_board_time_is_the_hour(played: Played) -> None:
    end = played.scrapes[-1]
    rows = played.ask("sum by (gpu_uuid) (gpucost_gpu_present_seconds_total)", end)
    elapsed = end - played.scrapes[0] + 60
    assert [float(row["value"][1]) for row in rows] == [pytest.approx(elapsed, abs=1.5)] * 4  # type: ignore[index]


@pytest.mark.slow
@pytest.mark.trap(32)
def test_the_lost_board_is_down_and_still_held(played: Played) -> None:
    at = played.scrapes[-1]
    [up] = played.ask(f'gpucost_gpu_up{{gpu_uuid="{hour.LOST}"}}', at)
    assert up["value"][1] == "0"  # type: ignore[index]
    assert not played.ask(f'gpucost_gpu_busy_seconds_total{{gpu_uuid="{hour.LOST}"}}', at)
    assert played.ask(f'gpucost_pod_gpu_held_seconds_total{{gpu_uuid="{hour.LOST}",pod="unlucky"}}', at)
