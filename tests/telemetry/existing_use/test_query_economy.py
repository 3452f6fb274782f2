"""What is asked of a server, where the cheaper question has the same answer: only that is asked."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from gpucost.contract.frames import SIGNALS
from gpucost.domain.time import Window
from gpucost.telemetry.prometheus.api_client import PrometheusClient
from gpucost.telemetry.prometheus.source_settings import PrometheusSourceSettings
from gpucost.telemetry.upstream.device_subjects import ClusterHoldings
from gpucost.telemetry.upstream.kube_reader import KubeStateReader, UpstreamSettings
from gpucost.telemetry.upstream.upstream_source import read_signals
from tests.support.dcgm_rows import Rows, at, counter, held, openmetrics_of, spoilt, used_by
from tests.support.prometheus import create_blocks, needs_prometheus, running_prometheus

pytestmark = [needs_prometheus, pytest.mark.prometheus]

WINDOW = Window(at(0), at(2))
UTIL, USED = "DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_DEV_FB_USED"
FREE, TOTAL = "DCGM_FI_DEV_FB_FREE", "DCGM_FI_DEV_FB_TOTAL"
ENERGY, POWER = "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", "DCGM_FI_DEV_POWER_USAGE"
PODS = "abcd"


def gpu(pod: str, **more: str) -> dict[str, str]:
    return {"UUID": f"GPU-{pod}", **used_by(f"pod-{pod}"), **more}


def _rows(pod: str) -> list[Rows]:
    found = [Rows(UTIL, 40, 0, 2, gpu(pod)), Rows(USED, 10240, 0, 2, gpu(pod))]
    return [*found, Rows(POWER, 250, 0, 2, gpu(pod)), Rows(FREE, 71680, 0, 2, gpu(pod))]


def _total(pod: str) -> Rows:
    return Rows(TOTAL, 81920, 0, 2, gpu(pod))


CASES: Mapping[str, list[Rows]] = {
    "counted": [row for pod in PODS for row in (*_rows(pod), Rows(ENERGY, counter, 0, 2, gpu(pod)))],
    "one-lacks": [
        *(row for pod in PODS for row in _rows(pod)),
        *(Rows(ENERGY, counter, 0, 2, gpu(pod)) for pod in PODS[1:]),
    ],
    "told": [row for pod in PODS for row in (*_rows(pod), _total(pod))],
    "told-of-most": [*(row for pod in PODS for row in _rows(pod)), *map(_total, PODS[1:])],
    "spoilt": [Rows(UTIL, spoilt, 0, 2, gpu("a"))],
}


class AskedClient(PrometheusClient):
    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.asked: list[str] = []

    def _send(self, path: str, form: Mapping[str, Any] | None) -> tuple[int, bytes]:
        self.asked.append(str((form or {}).get("query", "")))
        return super()._send(path, form)


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    data = tmp_path_factory.mktemp("economy") / "data"
    create_blocks(openmetrics_of(CASES), data)
    with running_prometheus(data) as found:
        yield found


Signals = dict[tuple[str, int], dict[str, Any]]


def read(url: str, case: str) -> tuple[Signals, list[str]]:
    """Signals by pod and hour, and the texts of the queries."""
    with AskedClient(url) as client:
        reader = KubeStateReader(client, PrometheusSourceSettings(), case, WINDOW, UpstreamSettings())
        rows, _ = read_signals(reader, WINDOW, ClusterHoldings([held(pod, 0, 2) for pod in PODS]))
    values = [dict(zip(SIGNALS.column_names, row, strict=True)) for row in rows]
    return {(str(each["pod_uid"]), int(str(each["start_ms"]))): each for each in values}, client.asked


def asked_of(asked: list[str], name: str, function: str = "") -> list[str]:
    return [each for each in asked if re.search(rf"{function}\w*\({name}\{{", each)]


def test_power_is_read_only_of_the_gpu_that_counts_no_energy(url: str) -> None:
    found, asked = read(url, "one-lacks")
    power = asked_of(asked, POWER)
    assert power
    assert all('"GPU-a"' in each and "GPU-b" not in each for each in power)
    # 250 W of the one, 300 W of the others.
    assert found["a", at(1)]["energy_mj"] == pytest.approx(250 * 3600 * 1000)
    assert found["b", at(1)]["energy_mj"] == pytest.approx(300 * 3600 * 1000)
    assert asked_of(read(url, "counted")[1], POWER) == []


def test_free_memory_is_read_only_where_the_total_is_not_told(url: str) -> None:
    for case, is_read in (("told", False), ("told-of-most", True)):
        found, asked = read(url, case)
        assert bool(asked_of(asked, FREE)) is is_read, case
        for pod in PODS:
            assert found[pod, at(1)]["memory_total_mib_s"] == pytest.approx(81920 * 3600), case


def test_the_largest_values_of_steps_are_asked_only_where_one_cannot_be(url: str) -> None:
    for case, is_asked in (("counted", False), ("spoilt", True)):
        queries = asked_of(read(url, case)[1], UTIL, "max_over_time")
        assert bool([each for each in queries if "3599999ms" in each]) is is_asked, case
        assert [each for each in queries if "7200000ms" in each], case
    found, _ = read(url, "spoilt")
    assert found["a", at(0)]["busy_ms"] == pytest.approx(found["a", at(0)]["observed_ms"] / 2)


def test_no_samples_are_read_to_learn_which_series_there_are(url: str) -> None:
    _, asked = read(url, "counted")
    assert [each for each in asked if each.startswith("count by (__name__)")] == []
    names = {name for each in asked for name in re.findall(r"\w*DCGM_\w+(?=\{)", each)}
    assert names == {UTIL, USED, FREE, ENERGY}
