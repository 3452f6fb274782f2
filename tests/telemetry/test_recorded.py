"""RecordedSource: what was recorded comes back, whatever the window; a wrong file is named."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gpucost.attribution.frames import ClusterFrames, conform
from gpucost.contract.frames import (
    ACTIVITY,
    ALLOCATIONS,
    CAPACITY,
    COHORTS,
    DEMAND,
    DOMAINS,
    EVICTIONS,
    FRAMES,
    HEALTH,
    HISTORY_FRAMES,
    HOLDER_COLUMNS,
    NODES,
    OBSERVED,
    PROGRESS,
    QUOTAS,
    SERVING,
    SIGNALS,
    STALLS,
    FrameSpec,
)
from gpucost.domain.errors import InputError, NotCovered
from gpucost.domain.time import DAY_MS, HOUR_MS, Window
from gpucost.telemetry import recorded_source
from gpucost.telemetry.recorded_source import RecordedSource, record
from tests.support.history import GPU, T0, at

DAY = Window(T0, T0 + DAY_MS)


@pytest.fixture(autouse=True, params=["kept", "stored"])
def place(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Where the rows of a recording are between two reads: in memory, or in the files only."""
    if request.param == "stored":
        monkeypatch.setattr(recorded_source, "MOST_KEPT_BYTES", -1)
        monkeypatch.setattr(recorded_source, "_GROUP_ROWS", 2)
    return str(request.param)


def frame(spec: FrameSpec, *rows: tuple[object, ...]) -> pd.DataFrame:
    return conform(pd.DataFrame(list(rows), columns=list(spec.column_names)), spec)


def held(uid: str, start: int, end: int, count: int = 1, cluster: str = "c") -> tuple[object, ...]:
    holder = {**dict.fromkeys((column.name for column in HOLDER_COLUMNS), ""), "pod_uid": uid, "pod": uid}
    return (cluster, "n1", *holder.values(), GPU, count, start, end)


@pytest.fixture
def frames() -> ClusterFrames:
    node = ("n1", T0 - DAY_MS, T0 + 9 * DAY_MS, "NVIDIA-H100-80GB-HBM3", 8, "", "", "", "", "", "{}")
    units = ("n1", GPU, T0 - DAY_MS, T0 + 9 * DAY_MS, 8, 8, 8, 1, 1)
    return ClusterFrames(
        allocations=frame(
            ALLOCATIONS,
            held("late", at(5), at(6), 2),
            held("long", T0 - DAY_MS, at(20)),
            held("edge", at(2), at(3)),
            held("other", at(1), at(2), cluster="d"),
        ),
        nodes=frame(NODES, ("c", *node), ("d", *node)),
        capacity=frame(CAPACITY, ("c", *units), ("d", *units)),
        observed=frame(OBSERVED, ("c", T0, at(10)), ("c", at(11), DAY.end_ms), ("d", T0, at(3))),
        signals=frame(SIGNALS, ("c", "n1", "long", at(1), at(2), 3.6e6, 1.0, *[None] * 10)),
        progress=frame(PROGRESS, ("c", "long", at(1), at(2), "steps", 7.5)),
    )


@pytest.fixture
def folder(tmp_path: Path, frames: ClusterFrames) -> Path:
    record(tmp_path / "recording", frames)
    return tmp_path / "recording"


def rows(table: pd.DataFrame, *columns: str) -> list[list[object]]:
    return table[list(columns)].astype(object).to_numpy().tolist()


def test_what_was_recorded_comes_back_clipped(folder: Path) -> None:
    source = RecordedSource(folder)
    assert source.clusters() == ("c", "d")
    assert source.covered("c") == DAY
    assert source.covered("x") is None
    day = source.read("c", DAY)
    assert rows(day.allocations, "pod_uid", "count", "start_ms", "end_ms") == [
        ["long", 1, T0, at(20)],
        ["edge", 1, at(2), at(3)],
        ["late", 2, at(5), at(6)],
    ]
    assert (
        rows(day.nodes, "start_ms", "end_ms")
        == rows(day.capacity, "start_ms", "end_ms")
        == [[T0, DAY.end_ms]]
    )
    assert rows(day.observed, "start_ms", "end_ms") == [[T0, at(10)], [at(11), DAY.end_ms]]
    assert rows(day.progress, "name", "amount") == [["steps", 7.5]]
    assert day.signals["observed_ms"].tolist() == [HOUR_MS]
    assert day.signals["sm_observed_ms"].isna().all()
    for spec in FRAMES:
        conform(getattr(day, spec.name), spec)


def test_a_recording_of_the_first_release_lacks_what_came_later(folder: Path) -> None:
    file = folder / "signals.parquet"
    table = pq.read_table(file)
    pq.write_table(table.select(table.column_names[:10]), file)
    signals = RecordedSource(folder).read("c", DAY).signals
    assert signals["observed_ms"].tolist() == [HOUR_MS]
    assert signals[list(SIGNALS.column_names[10:])].isna().all(axis=None)
    conform(signals, SIGNALS)


def test_windows_add_up_to_the_day(folder: Path) -> None:
    source = RecordedSource(folder)

    def time(window: Window) -> dict[str, int]:
        found = source.read("c", window).allocations
        held_ms = (found["end_ms"] - found["start_ms"]) * found["count"]
        return held_ms.groupby(found["pod_uid"].astype("str")).sum().to_dict()

    total: dict[str, int] = {}
    for window in DAY.split(HOUR_MS):
        for uid, held_ms in time(window).items():
            total[uid] = total.get(uid, 0) + held_ms
    assert total == time(DAY) == {"long": 20 * HOUR_MS, "edge": HOUR_MS, "late": 2 * HOUR_MS}


def test_a_row_at_the_edge_is_in_one_window_only(folder: Path) -> None:
    source = RecordedSource(folder)
    before, after = source.read("c", Window(at(1), at(2))), source.read("c", Window(at(3), at(4)))
    assert "edge" not in {*before.allocations["pod_uid"], *after.allocations["pod_uid"]}


@pytest.mark.fault(28)
@pytest.mark.parametrize(
    ("cluster", "window"),
    [
        ("c", Window(T0 - 1, T0 + HOUR_MS)),
        ("c", Window(at(23), DAY.end_ms + 1)),
        ("d", Window(at(2), at(4))),
        ("x", Window(T0, at(1))),
    ],
)
def test_time_outside_the_recording_is_refused(folder: Path, cluster: str, window: Window) -> None:
    with pytest.raises(NotCovered, match="not covered"):
        RecordedSource(folder).read(cluster, window)


def test_a_frame_may_be_many_files(folder: Path) -> None:
    table = pq.read_table(folder / "allocations.parquet")
    (folder / "allocations.parquet").unlink()
    for number in range(table.num_rows):
        part = folder / "allocations" / "cluster=ignored" / f"{number}.parquet"
        part.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(table.slice(number, 1), part)
    found = RecordedSource(folder).read("c", DAY).allocations
    assert found["pod_uid"].tolist() == ["long", "edge", "late"]


STEP = ("c", "n1", "GPU-1", "long")


@pytest.fixture
def seen(frames: ClusterFrames) -> ClusterFrames:
    """With a row of each frame that only detectors look at, from 1 to 3 o'clock."""
    span = at(1), at(3)
    job = ("ns", "Job", "train", "job-uid")
    of_job = (*job, "wl", "lq", "cq", "vision", "main", GPU, "", 4, 4, 8, "quota", "NoFit")
    numbers = [3.6e6, 3.6e6, 0.0, 3.6e6, 0.0, 4e10, 8e10, None]
    return replace(
        frames,
        activity=frame(ACTIVITY, (*STEP, *span, *numbers), ("d", *STEP[1:], *span, *numbers)),
        serving=frame(SERVING, ("c", "long", "tgi_request_count", *span, 3.0, None)),
        demand=frame(DEMAND, ("c", *of_job, *span, "clique")),
        stalls=frame(STALLS, ("c", "g", *job, "lq", 4, 2, 2, *span)),
        evictions=frame(EVICTIONS, ("c", "long", "job-uid", "lq", *span, "Preempted", "", -1)),
        quotas=frame(QUOTAS, ("c", "kueue", "cq", "ml", "h100", GPU, *span, 8.0, None, None, 2.0, "nlp")),
        health=frame(HEALTH, ("c", "n1", "GPU-1", *span, "lost", "", "", None)),
        domains=frame(DOMAINS, ("c", "n1", "rack", 1, "ns", "ns/imex", "train", "job-uid", *span)),
        cohorts=frame(COHORTS, ("c", "nlp", "ml", "h100", GPU, *span, 4.0, None)),
    )


def test_history_comes_back(seen: ClusterFrames, tmp_path: Path) -> None:
    record(tmp_path / "recording", seen)
    source = RecordedSource(tmp_path / "recording")
    day = source.history("c", DAY)
    for spec in HISTORY_FRAMES:
        whole = getattr(seen, spec.name)
        expected = whole[whole["cluster"] == "c"]
        found = conform(getattr(day, spec.name), spec).astype(expected.dtypes.to_dict())
        pd.testing.assert_frame_equal(found, expected, check_dtype=False)
    part = source.history("c", Window(at(2), at(2.5)))
    spans = {spec.name: rows(getattr(part, spec.name), "start_ms", "end_ms") for spec in HISTORY_FRAMES}
    whole_spans, clipped = [[at(1), at(3)]], [[at(2), at(2.5)]]
    assert spans == {
        "activity": whole_spans,
        "serving": whole_spans,
        "evictions": whole_spans,
        **dict.fromkeys(("demand", "stalls", "quotas", "health", "domains", "cohorts"), clipped),
    }
    assert len(part.allocations) == 2
    gone = source.history("c", Window(at(4), at(5)))
    assert all(getattr(gone, spec.name).empty for spec in HISTORY_FRAMES)
    with pytest.raises(NotCovered):
        source.history("c", Window(T0, DAY.end_ms + 1))


def test_read_leaves_history_alone(seen: ClusterFrames, tmp_path: Path) -> None:
    record(tmp_path / "recording", seen)
    (tmp_path / "recording" / "activity.parquet").write_bytes(b"no parquet")
    source = RecordedSource(tmp_path / "recording")
    assert all(getattr(source.read("c", DAY), spec.name).empty for spec in HISTORY_FRAMES)
    with pytest.raises(InputError, match="activity"):
        source.history("c", DAY)


def test_history_may_be_absent(folder: Path) -> None:
    for spec in HISTORY_FRAMES:
        (folder / f"{spec.name}.parquet").unlink()
    day = RecordedSource(folder).history("c", DAY)
    assert len(day.allocations) == 3
    for spec in HISTORY_FRAMES:
        found = getattr(day, spec.name)
        assert found.empty
        assert list(found.columns) == list(spec.column_names)


def test_signals_and_progress_may_be_absent(folder: Path) -> None:
    (folder / "signals.parquet").unlink()
    (folder / "progress.parquet").unlink()
    day = RecordedSource(folder).read("c", DAY)
    assert day.signals.empty
    assert day.progress.empty


def write(folder: Path, name: str, **columns: object) -> None:
    """Replace (or, with None, take away) columns of one file."""
    table = pq.read_table(folder / f"{name}.parquet").to_pydict()
    table = {key: value for key, value in {**table, **columns}.items() if value is not None}
    pq.write_table(pa.table(table), folder / f"{name}.parquet")


WRONG = {
    "unknown column": ({"kind": ["a"] * 3}, "kind", "unknown column"),
    "missing column": ({"end_ms": None}, "end_ms", "missing column"),
    "text for a number": ({"end_ms": ["a"] * 3}, "end_ms", "string"),
    "number for a text": ({"cluster": [1, 2, 3]}, "cluster", "int64"),
    "fraction of a millisecond": ({"end_ms": [1.5] * 3}, "end_ms", "truncated"),
    "null": ({"start_ms": [1, 2, None]}, "start_ms", "1 values are missing"),
    "null text": ({"cluster": ["a", "b", None]}, "cluster", "1 values are missing"),
    "time type": ({"start_ms": [pd.Timestamp(0)] * 3}, "start_ms", "timestamp"),
}


@pytest.mark.fault(67)
@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_column_is_named_with_its_file(folder: Path, case: str) -> None:
    columns, name, text = WRONG[case]
    write(folder, "observed", **columns)
    with pytest.raises(InputError, match=rf"observed\.parquet: {name}: .*{text}"):
        RecordedSource(folder).clusters()


def test_whole_floats_are_integers(folder: Path) -> None:
    write(folder, "observed", cluster=["c"], start_ms=[float(T0)], end_ms=[float(at(1))])
    assert RecordedSource(folder).covered("c") == Window(T0, at(1))


@pytest.mark.fault(67)
def test_a_folder_that_is_no_recording_is_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="nowhere"):
        RecordedSource(tmp_path / "nowhere")
    (folder / "nodes.parquet").write_text("not Parquet")
    with pytest.raises(InputError, match=r"nodes\.parquet: cannot be read"):
        RecordedSource(folder).read("c", DAY)
    (folder / "nodes.parquet").unlink()
    with pytest.raises(InputError, match=r"nodes\.parquet: missing file"):
        RecordedSource(folder).read("c", DAY)
    (folder / "observed").mkdir()
    (folder / "observed" / "more.parquet").touch()
    with pytest.raises(InputError, match="beside a folder"):
        RecordedSource(folder).clusters()


def test_a_wrong_frame_is_not_recorded(frames: ClusterFrames, tmp_path: Path) -> None:
    broken = ClusterFrames(allocations=frames.allocations.drop(columns="count"))
    with pytest.raises(InputError, match=r"allocations\.count"):
        record(tmp_path / "recording", broken)
    assert not (tmp_path / "recording").exists()


@pytest.mark.parametrize(("limit", "most"), [("MOST_ROWS", 2_999), ("MOST_BYTES", 8 * 3 * 3_000 - 1)])
def test_a_file_that_would_fill_the_memory_is_not_read(
    limit: str, most: int, frames: ClusterFrames, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Equal rows are next to nothing on the disk: what they take in memory is what counts."""
    record(tmp_path, frames)
    values = {"cluster": ["c"] * 3_000, "start_ms": [T0] * 3_000, "end_ms": [T0 + 1] * 3_000}
    pq.write_table(pa.table(values), tmp_path / "observed.parquet", compression="zstd")
    assert RecordedSource(tmp_path).clusters() == ("c",)
    monkeypatch.setattr(recorded_source, limit, most)
    with pytest.raises(InputError, match=r"observed\.parquet: with it the frame has 3,000 rows"):
        RecordedSource(tmp_path).clusters()
