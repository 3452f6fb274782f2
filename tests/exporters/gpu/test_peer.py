"""The comparison with dcgm-exporter in the docs is what Prometheus answers; its model keeps its own rules."""

from __future__ import annotations

from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from gpucost_gpu_exporter.dcgm.scrapes import parse
from tests.exporters.gpu import comparison, hour, peer
from tests.exporters.gpu.peer import Setting
from tests.exporters.gpu.played import Played
from tests.support.prometheus import needs_prometheus

PAGE = Path(__file__).parents[3] / "docs" / "gpu-comparison.md"
UTIL, POWER = "DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_DEV_POWER_USAGE"
ENGINE = "DCGM_FI_PROF_GR_ENGINE_ACTIVE"


def rows(second: int, setting: Setting, metric: str, board: str) -> dict[str, float]:
    """By pod (``""`` for none; ``"#n"`` for the slice n that no pod holds), what is printed of a GPU."""
    text = peer.page(second, setting)
    assert text is not None
    return {
        sample.labels.get("pod")
        or ("#" + sample.labels["GPU_I_ID"] if "GPU_I_ID" in sample.labels else ""): (sample.value)
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == metric and sample.labels["UUID"] == board
    }


@pytest.mark.slow
@needs_prometheus
@pytest.mark.trap(16, 23, 26)
def test_the_tables_in_the_docs_are_what_prometheus_answers(played: Played) -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert comparison.with_tables(page, comparison.tables(played)) == page


@pytest.mark.parametrize("query", [comparison.HELD, comparison.BUSY, comparison.COUNTER, comparison.POWER])
def test_the_docs_show_the_queries_that_were_asked(query: str) -> None:
    assert f"\n{query}\n" in PAGE.read_text(encoding="utf-8")


@pytest.mark.slow
@needs_prometheus
def test_the_model_and_the_driver_agree_on_what_a_board_drew(played: Played) -> None:
    # Else the comparison would be of two different hours. 20 minutes with collections of 30 s: within 5 %.
    energy = f'DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION{{job="{peer.job_of(Setting.VIRTUAL)}"}}[20m]'
    query = f"(max by (UUID) (max_over_time({energy})) - min by (UUID) (min_over_time({energy}))) / 1000"
    ours = "sum by (gpu_uuid) (increase(gpucost_gpu_energy_joules_total[20m]))"
    at = played.scrapes[0] + hour.LOST_AT
    theirs = {str(row["metric"]["UUID"]): float(row["value"][1]) for row in played.ask(query, at)}  # type: ignore[index]
    for row in played.ask(ours, at):
        uuid, joules = str(row["metric"]["gpu_uuid"]), float(row["value"][1])  # type: ignore[index]
        assert theirs.pop(uuid) == pytest.approx(joules, rel=0.05), uuid
    assert not theirs


def test_by_default_one_pod_has_all_of_a_time_sliced_board() -> None:
    assert rows(1000, Setting.DEFAULT, UTIL, hour.SHARED) == {"rare": 90}
    assert rows(2500, Setting.DEFAULT, POWER, hour.SHARED) == {"light": 445}


def test_with_virtual_gpus_each_pod_has_a_copy_and_utilisation_is_by_process() -> None:
    assert rows(1000, Setting.VIRTUAL, POWER, hour.SHARED) == {"heavy": 470, "light": 470, "rare": 470}
    assert rows(1000, Setting.VIRTUAL, UTIL, hour.SHARED) == {"": 90, "heavy": 60, "light": 15, "rare": 5}


@pytest.mark.trap(4, 6)
def test_slices_have_no_utilisation_and_the_power_of_the_whole_board() -> None:
    slices = {"slice-1", "slice-2", "slice-3", "slice-4", "slice-5", "#6", "#7"}
    found = rows(1000, Setting.DEFAULT, POWER, hour.MIG)

    assert rows(1000, Setting.DEFAULT, UTIL, hour.MIG) == {}
    assert set(found) == slices
    assert list(found.values()) == [pytest.approx(70 + 500 * 1.8 / 7)] * 7
    assert rows(1000, Setting.DEFAULT, ENGINE, hour.MIG)["slice-4"] == pytest.approx(0.6)


def test_values_are_as_old_as_the_last_collection_and_labels_are_not() -> None:
    # eval began at 1812, after the collection at 1811, when no pod had the GPU.
    assert rows(1822, Setting.DEFAULT, UTIL, hour.WHOLE) == {"eval": 0}
    assert rows(1852, Setting.DEFAULT, UTIL, hour.WHOLE) == {"eval": 55}


def test_the_exporter_away_answers_no_scrape() -> None:
    away = {second for second in hour.seconds() if peer.page(second, Setting.DEFAULT) is None}
    assert away == set(range(1203, 1211))


@pytest.mark.trap(32)
def test_a_lost_board_vanishes_at_the_next_collection() -> None:
    assert rows(2410, Setting.DEFAULT, POWER, hour.LOST) == {"unlucky": 470}
    assert rows(2411, Setting.DEFAULT, POWER, hour.LOST) == {}


def test_our_reader_of_dcgm_exporters_understands_the_model() -> None:
    text = peer.page(1000, Setting.VIRTUAL)
    assert text is not None
    found = parse(text)
    assert not found.dropped
    assert {device[0] for device in found.values} == set(peer.BOARDS)


@pytest.mark.parametrize(
    ("found", "truth", "printed"),
    [
        (None, 5.0, "missing"),
        (5.0, 5.0, "0.0 %"),
        (4.999, 5.0, "0.0 %"),
        (5.05, 5.0, "+1.0 %"),
        (4.5, 5.0, "−10 %"),
    ],
)
def test_errors_as_printed(found: float | None, truth: float, printed: str) -> None:
    assert comparison.error(found, truth) == printed
