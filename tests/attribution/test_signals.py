"""What was measured, laid on the lines: sums that stay what they were, shares, and what is above a share."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucost.attribution.attribute import attribute
from gpucost.contract.frames import SIGNAL_MEASURES, SIGNALS
from gpucost.domain.time import HOUR_MS
from tests.support.frames import FlatRates, NamespaceTeams, build, hours, node, pod, signal, units

H = HOUR_MS
_NOTHING = (None,) * (len(SIGNALS.columns) - 5)


def measured(name: str, span: tuple[float, float] = (0, 1), **values: float) -> dict[str, Any]:
    """A row of signals with nothing but ``values``."""
    row = signal(name, span, 0, 0) | dict.fromkeys(SIGNALS.column_names[5:])
    return row | values


def lines_of(
    pods: list[dict[str, Any]], capacity: list[dict[str, Any]], *signals: dict[str, Any], until: int = 1
) -> pd.DataFrame:
    """The held lines of hourly windows, by pod (and by window, where there are several)."""
    frames = build(pods, [node(boards=8)], capacity, signals=signals)
    windows = list(hours(0, until).split(H))
    flat = attribute(frames, windows, rates=FlatRates(("2.50", 0)), teams=NamespaceTeams()).flat()
    held = flat[flat["bucket"] == "held"].set_index("pod")
    return held[["window_start_ms", "board_ms", *SIGNAL_MEASURES]]


def test_one_idle_gpu_of_eight_counts() -> None:
    row = measured("a", observed_ms=8 * H, busy_ms=7 * H)
    line = lines_of([pod("a", (0, 1), 8)], [units()], row).loc["a"]
    assert (line["busy_ms"], line["observed_ms"], line["board_ms"]) == (7 * H, 8 * H, 8 * H)
    assert line["busy_over_ms"] is pd.NA


def test_a_mig_slice_is_a_part_of_its_board() -> None:
    share = 3 / 7 * H
    row = measured("a", sm_observed_ms=share, sm_active_ms=share, memory_peak_mib=30_000)
    row |= {"energy_observed_ms": share, "energy_mj": 150.0 * H, "memory_observed_ms": share}
    row |= {"memory_used_mib_s": 20_000 * 3600, "memory_total_mib_s": 40_000 * 3600}
    resource = "nvidia.com/mig-3g.40gb"
    line = lines_of([pod("a", (0, 1), resource=resource)], [units(2, resource)], row).loc["a"]
    assert line["sm_active_ms"] == line["sm_observed_ms"] == int(share)
    assert line["board_ms"] == pytest.approx(share, abs=1), "dealt in whole milliseconds"
    assert line["memory_used_mib_s"] == 20_000 * 3600
    assert line["memory_used_mib_s"] * 2 == line["memory_total_mib_s"]
    assert line["memory_peak_mib"] == 30_000
    assert line["energy_mj"] / line["energy_observed_ms"] == pytest.approx(350), "watts per board"
    assert line["observed_ms"] is line["busy_ms"] is line["tensor_active_ms"] is pd.NA


def test_what_a_pod_does_beyond_its_part_of_a_shared_board_stands_beside() -> None:
    names = ("a", "b", "c", "d")
    shared = [units(4, "nvidia.com/gpu.shared", replicas=4)]
    rows = [measured(name, observed_ms=H / 4, busy_ms=0.0) for name in names[1:]]
    rows.append(measured("a", observed_ms=H / 4, busy_ms=0.9 * H, sm_observed_ms=H / 4, sm_active_ms=0.1 * H))
    pods = [pod(name, (0, 1), resource="nvidia.com/gpu.shared") for name in names]
    lines = lines_of(pods, shared, *rows)
    assert (lines["board_ms"] == H // 4).all()
    assert lines["busy_ms"].loc[list(names)].tolist() == [H // 4, 0, 0, 0]
    assert lines.loc["a", "busy_over_ms"] == round(0.65 * H)
    assert lines["busy_over_ms"].count() == 1, "null where nothing is over"
    assert lines["busy_ms"].sum() + lines["busy_over_ms"].sum() == round(0.9 * H)
    assert lines.loc["a", "sm_active_ms"] == round(0.1 * H)


def test_time_beyond_what_was_held_goes_with_what_was_measured_over_it() -> None:
    row = measured("a", observed_ms=2 * H, busy_ms=H, energy_observed_ms=2 * H, energy_mj=1000.0 * H)
    line = lines_of([pod("a", (0, 1))], [units()], row).loc["a"]
    assert (line["observed_ms"], line["busy_ms"]) == (H, H // 2)
    assert line["busy_over_ms"] is pd.NA
    assert (line["energy_observed_ms"], line["energy_mj"]) == (H, 500 * H)


def test_a_peak_is_not_spread_over_windows() -> None:
    long = measured("a", (0, 2), memory_peak_mib=70_000, memory_observed_ms=2 * H, memory_used_mib_s=7200.0)
    late = measured("a", (1.5, 2), memory_peak_mib=75_000, memory_observed_ms=0.0, memory_used_mib_s=0.0)
    lines = lines_of([pod("a", (0, 2))], [units()], long, late, until=2).sort_values("window_start_ms")
    assert lines["memory_peak_mib"].tolist() == [70_000, 75_000]
    assert lines["memory_used_mib_s"].tolist() == [3600, 3600]


def test_a_recording_of_the_first_release_measures_what_it_did() -> None:
    """No tensor time of its own: its ceiling is that of the SM signal, and none is made up."""
    old = measured("a", sm_observed_ms=0.5 * H, sm_active_ms=0.4 * H, tensor_active_ms=0.2 * H)
    for name in SIGNALS.column_names[10:]:
        del old[name]
    line = lines_of([pod("a", (0, 1))], [units()], old).loc["a"]
    assert (line["sm_active_ms"], line["tensor_active_ms"]) == (0.4 * H, 0.2 * H)
    assert line[list(SIGNAL_MEASURES[5:])].isna().all()


AMOUNT = st.floats(0, 10 * H)
_TIMES = {"observed_ms", "sm_observed_ms", "tensor_observed_ms", "memory_observed_ms", "energy_observed_ms"}
_CEILINGS = {
    "busy_ms": "observed_ms",
    "sm_active_ms": "sm_observed_ms",
    "tensor_active_ms": "tensor_observed_ms",
    "memory_used_mib_s": "memory_total_mib_s",
}


@given(st.data())
def test_sums_of_lines_are_what_was_measured_and_nothing_exceeds_its_ceiling(data: st.DataObject) -> None:
    """Two GPUs held for three hours; ``held`` bounds observed time, so that nothing needs to be cut."""
    pods, rows, expected = [], [], []
    for number in range(data.draw(st.integers(1, 3))):
        name = f"p{number}"
        pods.append(pod(name, (0, 3), 2))
        values = {name: data.draw(AMOUNT) for name in SIGNALS.column_names[5:]}
        values |= {name: data.draw(st.floats(0, 6 * H)) for name in _TIMES}
        values["memory_used_mib_s"] = min(values["memory_used_mib_s"], values["memory_total_mib_s"])
        rows.append(measured(name, (0, 3), **values))
        expected.append(values)
    lines = lines_of(pods, [units()], *rows, until=3)
    for name in SIGNALS.column_names[5:]:
        over = {"busy_ms": "busy_over_ms", "sm_active_ms": "sm_over_ms", "tensor_active_ms": "tensor_over_ms"}
        found = lines[name].sum() + (lines[over[name]].sum() if name in over else 0)
        if name == "memory_peak_mib":
            assert lines[name].max() == round(max(values[name] for values in expected))
        else:
            assert found == pytest.approx(sum(values[name] for values in expected), abs=2 * len(lines))
    for name in _TIMES:
        assert (lines[name] <= lines["board_ms"]).all()
    for name, ceiling in _CEILINGS.items():
        assert (lines[name] <= lines[ceiling]).all()
    assert (lines[list(SIGNAL_MEASURES)].fillna(0) >= 0).all(axis=None)
