"""Frames in files: what comes out is exactly what was put in, or nothing."""

from __future__ import annotations

import math
import os
import stat
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucost.attribution.frames import ClusterFrames
from gpucost.contract.frames import ACTIVITY, ALLOCATIONS, FRAMES, SIGNALS, ColumnType, FrameSpec
from gpucost.domain.errors import DataProblem, DataProblemCode
from gpucost.domain.time import DAY_MS, Window
from gpucost.telemetry.day_cache import (
    CacheFiles,
    DayCache,
    bytes_of_frames,
    cache_folder,
    frames_of_bytes,
)

DAY = Window(1_790_812_800_000, 1_790_812_800_000 + DAY_MS)
TEXTS = st.text(max_size=4)
REALS = st.floats(width=64)
VALUES = {
    ColumnType.TEXT: TEXTS,
    ColumnType.INTEGER: st.integers(-(2**63), 2**63 - 1),
    ColumnType.REAL: REALS,
}


@st.composite
def frames(draw: st.DrawFn, spec: FrameSpec) -> pd.DataFrame:
    """Of any values, texts as such or as codes, of which some may be used by no row."""
    rows = draw(st.integers(0, 4))
    columns: dict[str, object] = {}
    for column in spec.columns:
        values = draw(st.lists(VALUES[column.type], min_size=rows, max_size=rows))
        if column.type is not ColumnType.TEXT:
            columns[column.name] = np.array(values, dtype=column.type.value)
        elif draw(st.booleans()):
            kinds = draw(st.permutations(sorted({*values, *draw(st.sets(TEXTS, max_size=2))})))
            dtype = pd.CategoricalDtype(pd.Index(kinds, dtype="str"))
            columns[column.name] = pd.Categorical(values, dtype=dtype)
        else:
            columns[column.name] = pd.array(values, dtype="str")
    return pd.DataFrame(columns)


PROBLEMS = st.builds(
    DataProblem,
    st.sampled_from(DataProblemCode),
    TEXTS,
    TEXTS,
    TEXTS,
    st.none() | st.integers(),
    st.none() | st.integers(),
)


def same(found: ClusterFrames, expected: ClusterFrames) -> None:
    for spec in FRAMES:
        one, other = getattr(found, spec.name), getattr(expected, spec.name)
        pd.testing.assert_frame_equal(one, other, check_exact=True, obj=spec.name)
        for name in one:
            assert one[name].dtype == other[name].dtype, name
            if one[name].dtype.name == "float64":
                signs = [[math.copysign(1, value) for value in each[name].dropna()] for each in (one, other)]
                assert signs[0] == signs[1]
    assert found.problems == expected.problems
    assert [each.at_ms for each in found.problems] == [each.at_ms for each in expected.problems]
    assert [*found.lacks.items()] == [*expected.lacks.items()]
    assert found.source == expected.source


@given(
    frames(ALLOCATIONS),
    frames(SIGNALS),
    frames(ACTIVITY),
    st.lists(PROBLEMS, max_size=3),
    st.dictionaries(TEXTS, TEXTS, max_size=3),
    TEXTS,
    st.lists(st.floats(allow_nan=False), max_size=3),
)
def test_what_is_kept_is_exactly_what_was_read(
    allocations: pd.DataFrame,
    signals: pd.DataFrame,
    activity: pd.DataFrame,
    problems: list[DataProblem],
    lacks: dict[str, str],
    source: str,
    counts: list[float],
) -> None:
    put = ClusterFrames(
        allocations=allocations,
        signals=signals,
        activity=activity,
        problems=tuple(problems),
        lacks=lacks,
        source=source,
    )
    found, counted = frames_of_bytes(bytes_of_frames(put, counts))
    same(found, put)
    assert counted == counts


def test_frames_that_could_not_come_back_as_they_are_are_not_kept(tmp_path: Path) -> None:
    frame = pd.DataFrame({name: ["x"] for name in ALLOCATIONS.column_names}, index=[5])
    with pytest.raises(ValueError, match="index"):
        bytes_of_frames(ClusterFrames(allocations=frame), ())
    with pytest.raises(ValueError, match="inner"):
        bytes_of_frames(ClusterFrames(of_pods=frame), ())
    cache = DayCache(files(tmp_path), "server")
    cache.put("c", DAY, "read", (), ClusterFrames(allocations=frame))
    assert cache.get("c", DAY, "read", ()) is None


def files(folder: Path, most_bytes: int = 1 << 20) -> CacheFiles:
    return CacheFiles(folder / "kept", most_bytes)


def test_a_day_of_which_the_server_counts_otherwise_is_not_used(tmp_path: Path) -> None:
    cache = DayCache(files(tmp_path), "server")
    cache.put("c", DAY, "read", [3.0, 4.0], ClusterFrames(source="x"))
    found = cache.get("c", DAY, "read", [3.0, 4.0])
    assert found is not None
    assert found.source == "x"
    assert cache.get("c", DAY, "read", [3.0, 5.0]) is None
    assert cache.get("d", DAY, "read", [3.0, 4.0]) is None
    assert cache.get("c", DAY, "whole", [3.0, 4.0]) is None
    assert DayCache(files(tmp_path), "other").get("c", DAY, "read", [3.0, 4.0]) is None
    assert DayCache(files(tmp_path), "server", refreshes=True).get("c", DAY, "read", [3.0, 4.0]) is None


def test_damage_anywhere_is_noticed_and_removed(tmp_path: Path) -> None:
    kept = files(tmp_path)
    for damage in ("first", "last", "cut", "empty"):
        kept.put("key", b"content")
        (path,) = kept.folder.iterdir()
        whole = bytearray(path.read_bytes())
        if damage in ("first", "last"):
            whole[0 if damage == "first" else -1] ^= 1
        path.write_bytes({"cut": whole[:-1], "empty": b""}.get(damage, whole))
        assert kept.get("key") is None, damage
        assert not path.exists()


def test_files_are_their_owners_and_names_tell_nothing(tmp_path: Path) -> None:
    kept = files(tmp_path)
    kept.put("http://user:secret@server", b"content")
    (path,) = kept.folder.iterdir()
    assert stat.S_IMODE(kept.folder.stat().st_mode) == 0o700
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert "secret" not in path.name
    assert b"secret" not in path.read_bytes()


def test_what_was_not_used_for_longest_is_removed_first(tmp_path: Path) -> None:
    kept = files(tmp_path, 400)
    for number, key in enumerate("abc"):
        kept.put(key, b"0" * 50)
        os.utime(kept._path(key), (number, number))
    assert kept.get("a") is not None  # now the last that was used
    kept.put("d", b"0" * 50)
    assert [key for key in "abcd" if kept.get(key) is not None] == ["a", "c", "d"]
    kept.put("e", b"0" * 401)
    assert kept.get("e") is None
    assert kept.get("d") is not None


def test_what_a_killed_process_left_is_removed(tmp_path: Path) -> None:
    kept = files(tmp_path)
    kept.put("a", b"0")
    left, new = kept.folder / ".new-left", kept.folder / ".new-now"
    for path in (left, new):
        path.write_bytes(b"half")
    os.utime(left, (1, 1))
    kept.put("b", b"0")
    assert not left.exists()
    assert new.exists()


def test_where_nothing_can_be_written_nothing_is_kept(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    kept = CacheFiles(tmp_path / "file" / "kept", 1 << 20)
    kept.put("key", b"content")
    assert kept.get("key") is None


_WRITER = """
import sys
from pathlib import Path
from gpucost.telemetry.day_cache import CacheFiles
kept = CacheFiles(Path(sys.argv[1]), 40_000)
for turn in range(60):
    key = f"key{turn % 7}"
    found = kept.get(key)
    assert found is None or found == key.encode() * 1000, key
    kept.put(key, key.encode() * 1000)
"""


def test_two_processes_share_the_folder(tmp_path: Path) -> None:
    command = [sys.executable, "-c", _WRITER, str(tmp_path / "kept")]
    running = [subprocess.Popen(command) for _ in range(2)]
    assert [each.wait() for each in running] == [0, 0]
    kept = CacheFiles(tmp_path / "kept", 40_000)
    assert all(kept.get(f"key{number}") == f"key{number}".encode() * 1000 for number in range(7))
    assert len([*kept.folder.iterdir()]) == 7


def test_the_folder_is_the_users_by_the_custom_of_the_platform(monkeypatch: pytest.MonkeyPatch) -> None:
    assert cache_folder({"XDG_CACHE_HOME": "/somewhere"}) == Path("/somewhere/gpucost")
    monkeypatch.setenv("HOME", "/home/someone")
    monkeypatch.setattr("gpucost.telemetry.day_cache.sys.platform", "linux")
    assert cache_folder({"XDG_CACHE_HOME": "not/absolute"}) == Path("/home/someone/.cache/gpucost")
    monkeypatch.setattr("gpucost.telemetry.day_cache.sys.platform", "darwin")
    assert cache_folder({}) == Path("/home/someone/Library/Caches/gpucost")
