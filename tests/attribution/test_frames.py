"""Frames from outside are checked on the way in: what is wrong is named, nothing is guessed."""

from __future__ import annotations

import pandas as pd
import pytest

from gpucost.attribution.attribute import attribute
from gpucost.attribution.frames import ClusterFrames, conform, empty_frame
from gpucost.contract.frames import FRAMES, OBSERVED, SIGNALS, USAGE_LINES, ColumnType
from gpucost.domain.errors import InputError
from tests.support.frames import FlatRates, NamespaceTeams, build, hours, node, pod, units

GOOD = {"cluster": ["c"], "start_ms": [1], "end_ms": [2]}


def test_columns_come_out_in_the_order_and_types_of_the_contract() -> None:
    frame = conform(pd.DataFrame({"end_ms": [2.0], "cluster": ["c"], "start_ms": [1]}), OBSERVED)
    assert list(frame.columns) == ["cluster", "start_ms", "end_ms"]
    assert [str(dtype) for dtype in frame.dtypes] == ["str", "int64", "int64"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"clustre": ["c"]},
            "observed.clustre: 'unknown column' is not allowed; allowed: cluster, start_ms, end_ms",
        ),
        ({"cluster": None}, "observed.cluster: 'missing column' is not allowed"),
        ({"start_ms": [1.5]}, "observed.start_ms: 1.5 is not allowed; allowed: whole numbers of 64 bits"),
        (
            {"start_ms": [None]},
            "observed.start_ms: None is not allowed; allowed: whole numbers, none missing",
        ),
        (
            {"start_ms": ["soon"]},
            "observed.start_ms: 'soon' is not allowed; allowed: whole numbers of 64 bits",
        ),
        (
            {"cluster": [7]},
            "observed.cluster: 7 is not allowed; allowed: text; empty text where there is none",
        ),
        ({"cluster": pd.Series([None], dtype="str")}, "observed.cluster: None is not allowed"),
    ],
)
def test_what_is_wrong_is_named(change: dict[str, object], message: str) -> None:
    columns = {name: values for name, values in (GOOD | change).items() if values is not None}
    with pytest.raises(InputError) as caught:
        conform(pd.DataFrame(columns), OBSERVED)
    assert str(caught.value).startswith(message)


def test_of_numbers_the_value_that_is_none_is_named() -> None:
    types = {ColumnType.TEXT: "a", ColumnType.INTEGER: 1, ColumnType.REAL: 1.0}
    row: dict[str, object] = {column.name: types[column.type] for column in SIGNALS.columns}
    real = next(column.name for column in SIGNALS.columns if column.type is ColumnType.REAL)
    frame = pd.DataFrame([row, row | {real: "much"}, row | {real: None}])
    with pytest.raises(InputError) as caught:
        conform(frame, SIGNALS)
    assert str(caught.value).startswith(f"{SIGNALS.name}.{real}: 'much' is not allowed; allowed: numbers")


@pytest.mark.parametrize("spec", FRAMES, ids=lambda spec: spec.name)
def test_an_empty_frame_conforms(spec: object) -> None:
    assert conform(empty_frame(spec), spec).empty  # type: ignore[arg-type]


def test_lines_have_the_columns_of_the_contract_even_when_there_are_none() -> None:
    for frames in (ClusterFrames(), build([pod("a", (0, 1))], [node()], [units()])):
        result = attribute(frames, [hours(0, 1)], rates=FlatRates(("1", 0)), teams=NamespaceTeams())
        assert list(result.flat().columns) == list(USAGE_LINES.column_names)


def test_windows_must_follow_one_another() -> None:
    for windows in ([], [hours(0, 1), hours(2, 3)], [hours(1, 2), hours(0, 1)]):
        with pytest.raises(InputError, match="windows"):
            attribute(ClusterFrames(), windows, rates=FlatRates(("1", 0)), teams=NamespaceTeams())


def test_text_may_come_as_categories() -> None:
    frames = build([pod("a", (0, 1)), pod("b", (0, 1), 2)], [node()], [units()])
    columns = {"pod_uid", "node", "resource", "cluster", "job"}
    small = ClusterFrames(
        frames.allocations.astype(dict.fromkeys(columns, "category")),
        frames.nodes,
        frames.capacity,
        frames.observed,
    )
    one, other = (
        attribute(given, [hours(0, 1)], rates=FlatRates(("1", 0)), teams=NamespaceTeams()).flat()
        for given in (frames, small)
    )
    assert one.astype("str").values.tolist() == other.astype("str").values.tolist()
