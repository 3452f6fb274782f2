"""A day in memory that is read piece by piece is the day that is read at once."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpucost.attribution.frames import ClusterFrames
from gpucost.contract.frames import ACTIVITY, EVICTIONS, FRAMES, PROGRESS, SIGNALS
from gpucost.domain.errors import SourceUnreachable
from gpucost.domain.time import HOUR_MS, MINUTE_MS, Window
from gpucost.service.detection.runner import RollingWindow
from gpucost.telemetry.inner.inner_source import InnerSource, RecordedScheduler, ray_parser
from gpucost.telemetry.inner.pod_division import InnerScheduler
from gpucost.telemetry.inner.ray_jobs import MetadataKeys
from gpucost.telemetry.inner.record_folder import RecordFolder
from gpucost.telemetry.recorded_source import RecordedSource, record
from tests.detectors.worlds import CLUSTER, World, at


def _world() -> World:
    world = World(600).node("n1").node("n2", 4)
    world.pod("a", "n1", 0, units=2).pod("b", "n1", 30, 400, units=4)
    world.work("a", "n1", "g0", [0, 1, 0.5] * 40).work("a", "n1", "g1", [0] * 120)
    world.work("b", "n1", "g2", [1] * 74, start=30)
    world.waits("w", 100, 500, units=8).quota("q", 8, 3, 0, 200).quota("q", 8, 5, 200)
    world.counts("n2", 0, 250, 4, 3)
    for minute in (50, 310, 400):
        world.add(
            "evictions", pod_uid=f"e{minute}", job_uid="j", queue="q", start_ms=at(minute - 40),
            end_ms=at(minute), reason="Preempted", by="", checkpoint_ms=-1,
        )  # fmt: skip
    return world


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> RecordedSource:
    folder: Path = tmp_path_factory.mktemp("recording")
    record(folder, _world().frames())
    return RecordedSource(folder)


def _same(one: ClusterFrames, other: ClusterFrames, window: Window) -> None:
    for spec in FRAMES:
        left, right = (_ordered(getattr(frames, spec.name), spec, window) for frames in (one, other))
        pd.testing.assert_frame_equal(left, right, obj=spec.name)


def _ordered(frame: pd.DataFrame, spec: object, window: Window) -> pd.DataFrame:
    """Rows in one order; steps and ends that lie before the window count for nothing."""
    if spec in (ACTIVITY, SIGNALS, PROGRESS):
        frame = frame[frame["start_ms"] >= window.start_ms]
    if spec is EVICTIONS:
        frame = frame[(frame["end_ms"] > window.start_ms) & (frame["end_ms"] < window.end_ms)]
    coded = {name: "str" for name in frame.columns if frame[name].dtype.name == "category"}
    frame = frame.astype(coded)
    return frame.sort_values(list(frame.columns), ignore_index=True)


@pytest.mark.slow
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=10)
@given(looks=st.lists(st.integers(12, 120), min_size=1, max_size=4, unique=True), hours=st.integers(1, 10))
def test_reading_in_pieces_is_reading_at_once(source: RecordedSource, looks: list[int], hours: int) -> None:
    rolling = RollingWindow(source, CLUSTER, hours * HOUR_MS, 15 * MINUTE_MS)
    for step in sorted(looks):
        known = rolling.upto(at(step * 5))
        assert known is not None
        frames, window = known
        assert window.end_ms == at(step * 5)
        assert window.length_ms <= hours * HOUR_MS
        _same(frames, source.history(CLUSTER, window), window)


def test_pods_that_an_inner_scheduler_divides_are_kept_whole_beside_their_parts(
    source: RecordedSource, tmp_path: Path
) -> None:
    job = {"submission_id": "j", "status": "SUCCEEDED", "start_time": at(100), "end_time": at(300)}
    file = tmp_path / "jobs.json"
    file.write_text(json.dumps([{**job, "metadata": {"num_gpus": "3"}}]))
    os.utime(file, (at(600) / 1000, at(600) / 1000))
    rule = InnerScheduler("lab", "ray", CLUSTER, "ns", re.compile("b"))
    records = RecordFolder(file, ray_parser(MetadataKeys("user", "team", "num_gpus")))
    divided = InnerSource(source, [RecordedScheduler(rule, records)])
    rolling = RollingWindow(divided, CLUSTER, 10 * HOUR_MS, 15 * MINUTE_MS)
    for minute in (120, 200, 350, 600):
        known = rolling.upto(at(minute))
        assert known is not None
    frames, window = known
    _same(frames, divided.history(CLUSTER, window), window)
    assert set(frames.allocations["job"]) == {"job-a", "job-b", "ray/j"}
    whole = source.history(CLUSTER, window).allocations
    assert frames.of_pods is not None
    pd.testing.assert_frame_equal(
        _ordered(frames.of_pods, None, window), _ordered(whole, None, window), obj="pods"
    )


def test_a_clock_that_goes_back_reads_anew(source: RecordedSource) -> None:
    rolling = RollingWindow(source, CLUSTER, HOUR_MS, 15 * MINUTE_MS)
    rolling.upto(at(300))
    known = rolling.upto(at(200))
    assert known is not None
    _same(known[0], source.history(CLUSTER, known[1]), known[1])
    assert known[1].end_ms == at(200)


def test_a_source_that_fails_leaves_what_was_known(
    source: RecordedSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    rolling = RollingWindow(source, CLUSTER, HOUR_MS, 15 * MINUTE_MS)
    before = rolling.upto(at(300))

    def refuse(cluster: str, window: Window) -> ClusterFrames:
        raise SourceUnreachable(f"{cluster} {window}")

    with monkeypatch.context() as patch:
        patch.setattr(source, "history", refuse)
        with pytest.raises(SourceUnreachable):
            rolling.upto(at(305))
    assert rolling.known == before
    after = rolling.upto(at(310))
    assert after is not None
    _same(after[0], source.history(CLUSTER, after[1]), after[1])


def test_a_source_that_covers_nothing_of_it_gives_nothing(source: RecordedSource) -> None:
    assert RollingWindow(source, "elsewhere", HOUR_MS, MINUTE_MS).upto(at(300)) is None
    assert RollingWindow(source, CLUSTER, HOUR_MS, MINUTE_MS).upto(at(-300)) is None
