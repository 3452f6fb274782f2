"""What outlives the exporter's process: the state file, and what happens when it cannot be kept."""

from __future__ import annotations

import errno
import fcntl
import json
import logging
import os
import stat
import threading
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path

import pytest

from gpucost.contract.gpu_metrics import AttributionMethod, GpuMeasure, HolderKind
from gpucost_gpu_exporter.metering.accounts import CounterRow, GpuAccounts, GpuUser
from gpucost_gpu_exporter.metering.gpu_state import GpuState
from gpucost_gpu_exporter.metric_families import ExporterSnapshot, SnapshotSource
from gpucost_gpu_exporter.model.holdings import DeviceHolding, DeviceKey, PodRef
from gpucost_gpu_exporter.model.readings import GpuReading
from gpucost_gpu_exporter.state_file import VERSION, ExporterState, StateFile
from tests.support.gpu_node import GpuNode, gpu_node, of
from tests.support.nvml.build import build_double
from tests.support.nvml.driver import DeviceLoad, FakeBoard

BOOT = "0b2f7d4e-0000-4000-8000-000000000001"
BOARD = "GPU-0a000000-0000-4000-8000-000000000001"
KEY = DeviceKey(BOARD)
TRAIN = PodRef("team", "train", "uid-1")
ROW = CounterRow(GpuUser(HolderKind.POD, TRAIN), KEY, AttributionMethod.EXACT)
LOADS = {BOARD: DeviceLoad(busy=0.5, watts=300)}


def _state(seconds: int = 3) -> ExporterState:
    accounts = GpuAccounts()
    accounts.add(KEY, GpuMeasure.HELD, seconds * 10**9, {ROW: 1})
    accounts.saw(TRAIN, 1_793_491_200_000, 10**9)
    accounts.xids[BOARD, 79] = 1
    board = GpuState(GpuReading(BOARD), 10**9, energy_mj=12_345)
    held = DeviceHolding(TRAIN, KEY, Fraction(1, 3), "nvidia.com/gpu", ("main", "sidecar"))
    return ExporterState(5 * 10**9, accounts, {BOARD: board}, (held,), {BOARD: 17})


def _held(state: ExporterState) -> int:
    return state.accounts.rows.get(ROW, {}).get(GpuMeasure.HELD, 0)


@pytest.fixture
def file(tmp_path: Path) -> Iterator[StateFile]:
    made = StateFile(tmp_path / "state", BOOT)
    assert made.acquire()
    yield made
    made.close()


@pytest.fixture
def node(tmp_path: Path) -> Iterator[GpuNode]:
    with gpu_node(tmp_path, build_double(tmp_path), FakeBoard(BOARD)) as made:
        made.kubelet.allocatable = {"nvidia.com/gpu": [BOARD]}
        made.pod("train", BOARD)
        yield made


def _path(node: GpuNode) -> Path:
    assert node.state_dir is not None
    return node.state_dir / "state.json"


def _reasons(snapshot: ExporterSnapshot) -> list[str]:
    return [lack.reason for lack in snapshot.lacks if lack.part == "state_file"]


def test_what_is_saved_is_loaded(file: StateFile, tmp_path: Path) -> None:
    assert file.load() == ExporterState()
    file.save(_state())
    assert StateFile(tmp_path / "state", BOOT).load() == _state()
    assert file.problem == ""


def test_only_its_owner_reads_it_and_no_other_file_is_left(file: StateFile, tmp_path: Path) -> None:
    file.save(_state())
    file.save(_state(4))
    assert stat.S_IMODE((tmp_path / "state" / "state.json").stat().st_mode) == 0o600
    assert sorted(found.name for found in (tmp_path / "state").iterdir()) == ["lock", "state.json"]


def test_who_reads_meanwhile_sees_the_one_or_the_other(file: StateFile, tmp_path: Path) -> None:
    path, stop, seen = tmp_path / "state" / "state.json", threading.Event(), set[int]()
    file.save(_state(1))

    def read() -> None:
        while not stop.is_set():
            seen.add(json.loads(path.read_text())["accounts"]["gpus"][0][-1][GpuMeasure.HELD] // 10**9)

    thread = threading.Thread(target=read)
    thread.start()
    for seconds in range(2, 300):
        file.save(_state(seconds))
    stop.set()
    thread.join()
    # The thread ended by itself: what it read was whole each time.
    assert seen <= set(range(1, 300))
    assert len(seen) > 1


def test_a_file_from_before_events_came_by_themselves_is_loaded(file: StateFile, tmp_path: Path) -> None:
    path = tmp_path / "state" / "state.json"
    file.save(_state())
    document = json.loads(path.read_text())
    document["boards"][BOARD]["seen"]["boards"][0]["xids"] = []
    path.write_text(json.dumps(document))
    assert file.load() == _state()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "null",
        '"x"',
        "{}",
        json.dumps({"boot_id": BOOT}),
        json.dumps({"boot_id": BOOT, "version": VERSION, "at_ns": 1, "accounts": []}),
        "\x00" * 4096,
        "[" * 100_000,
    ],
)
def test_a_broken_file_is_put_aside(
    file: StateFile, tmp_path: Path, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "state" / "state.json"
    path.write_text(text)
    assert file.load() == ExporterState()
    assert path.with_name("state.json.broken").read_text() == text
    assert not path.exists()
    assert "counters begin at 0" in caplog.text
    file.save(_state())
    assert file.load() == _state()


def test_a_file_cut_anywhere_is_put_aside_and_moves_no_counter(file: StateFile, tmp_path: Path) -> None:
    path = tmp_path / "state" / "state.json"
    file.save(_state())
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        assert file.load() == ExporterState(), length
    path.write_bytes(whole)
    assert file.load() == _state()


def test_a_broken_share_is_broken_too(file: StateFile, tmp_path: Path) -> None:
    file.save(_state())
    path = tmp_path / "state" / "state.json"
    path.write_text(path.read_text().replace('"1/3"', '"1/0"'))
    assert file.load() == ExporterState()


def test_a_broken_file_that_cannot_be_put_aside_is_written_over(file: StateFile, tmp_path: Path) -> None:
    path = tmp_path / "state" / "state.json"
    path.write_text("{")
    path.with_name("state.json.broken").mkdir()
    assert file.load() == ExporterState()
    file.save(_state())
    assert (file.problem, file.load()) == ("", _state())


def test_a_file_that_is_no_text_is_put_aside(file: StateFile, tmp_path: Path) -> None:
    (tmp_path / "state" / "state.json").write_bytes(b"\xff\xfe\x00")
    assert file.load() == ExporterState()
    assert (tmp_path / "state" / "state.json.broken").exists()


def test_a_file_of_another_version_is_put_aside(file: StateFile, tmp_path: Path) -> None:
    file.save(_state())
    path = tmp_path / "state" / "state.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "version": VERSION + 1}))
    assert file.load() == ExporterState()
    assert path.with_name("state.json.broken").exists()


@pytest.mark.trap(13)
def test_counters_begin_at_0_after_the_node_has_booted(file: StateFile, tmp_path: Path) -> None:
    file.save(_state())
    assert StateFile(tmp_path / "state", "another-boot").load() == ExporterState()
    # The file of the boot before is no broken one.
    assert not (tmp_path / "state" / "state.json.broken").exists()


def test_where_the_kernel_does_not_say_its_boot_nothing_is_believed(tmp_path: Path) -> None:
    unknown = StateFile(tmp_path / "state", "")
    assert unknown.acquire()
    unknown.save(_state())
    assert unknown.load() == ExporterState()
    assert unknown.problem == "no_boot_id"
    unknown.close()


def test_without_a_folder_nothing_is_kept(tmp_path: Path) -> None:
    file = StateFile(None, BOOT)
    assert file.acquire()
    file.save(_state())
    assert file.load() == ExporterState()
    assert file.problem == "not_configured"
    assert list(tmp_path.iterdir()) == []


def test_the_folder_is_for_one_exporter_at_a_time(file: StateFile, tmp_path: Path) -> None:
    other = StateFile(tmp_path / "state", BOOT)
    assert not other.acquire()
    assert file.acquire()  # a second time by its owner
    file.close()
    assert other.acquire()
    other.close()


def test_a_folder_that_cannot_be_made(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("in the way")
    file = StateFile(tmp_path / "file" / "state", BOOT)
    assert file.acquire()
    assert file.problem == "not_writable"
    assert file.load() == ExporterState()
    with caplog.at_level(logging.WARNING):
        file.save(_state())
        file.save(_state())
    assert file.problem == "not_writable"
    file.close()


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS, errno.EIO, errno.EDQUOT])
def test_a_full_disk_leaves_no_file_from_before(
    file: StateFile,
    tmp_path: Path,
    code: int,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    file.save(_state())

    def refuse(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    with monkeypatch.context() as broken:
        broken.setattr(os, "open", refuse)
        file.save(_state(9))
        file.save(_state(10))
    assert file.problem == "not_writable"
    assert caplog.text.count("cannot be used (not_writable)") == 1
    # What was shown since is more than it holds.
    assert not (tmp_path / "state" / "state.json").exists()
    file.save(_state(11))
    assert (file.problem, _held(file.load())) == ("", 11 << 20)


def test_a_disk_that_is_full_while_it_is_written(file: StateFile, tmp_path: Path) -> None:
    file.save(_state())
    in_the_way = tmp_path / "state" / "state.json.new"
    in_the_way.mkdir()
    file.save(_state(9))
    assert file.problem == "not_writable"
    assert not (tmp_path / "state" / "state.json").exists()
    in_the_way.rmdir()
    file.save(_state(11))
    assert (file.problem, _held(file.load())) == ("", 11 << 20)


def test_what_cannot_be_replaced_is_not_loaded(
    file: StateFile, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file.save(_state())
    file.close()
    (tmp_path / "state" / "state.json.new").mkdir()
    again = StateFile(tmp_path / "state", BOOT)
    assert again.acquire()
    assert (again.load(), again.problem) == (ExporterState(), "not_writable")
    assert caplog.text.count("cannot be used (not_writable)") == 1
    again.close()


def test_a_link_in_the_way_of_writing_is_not_followed(file: StateFile, tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("precious")
    (tmp_path / "state" / "state.json.new").symlink_to(precious)
    file.save(_state())
    assert (file.problem, file.load()) == ("", _state())
    assert precious.read_text() == "precious"


@pytest.mark.parametrize(
    "made", ["link", "link-to-a-device", "link-to-nothing", "pipe", "folder", "gigabytes"]
)
def test_what_is_no_file_of_ours_is_put_aside_and_not_waited_for(
    file: StateFile, tmp_path: Path, made: str
) -> None:
    path = tmp_path / "state" / "state.json"
    if made == "link":
        file.save(_state())
        path.rename(tmp_path / "elsewhere")
        path.symlink_to(tmp_path / "elsewhere")
    elif made.startswith("link"):
        path.symlink_to("/dev/zero" if made.endswith("device") else tmp_path / "nothing")
    elif made == "pipe":
        os.mkfifo(path)
    elif made == "folder":
        path.mkdir()
    else:
        path.touch()
        os.truncate(path, 2**40)
    assert file.load() == ExporterState()
    assert path.with_name("state.json.broken").is_symlink() or not path.exists()
    file.save(_state(4))
    assert (file.problem, file.load()) == ("", _state(4))


@pytest.mark.parametrize("made", ["pipe", "link"])
def test_a_lock_that_is_none(tmp_path: Path, made: str) -> None:
    lock = tmp_path / "lock"
    if made == "pipe":
        os.mkfifo(lock)
    else:
        lock.symlink_to(tmp_path / "elsewhere")
    file = StateFile(tmp_path, BOOT)
    assert file.acquire()
    assert file.problem == "not_writable"
    assert not (tmp_path / "elsewhere").exists()


def test_where_files_cannot_be_locked_nothing_is_believed_and_the_problem_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    first = StateFile(tmp_path, BOOT)
    first.save(_state())
    monkeypatch.setattr(fcntl, "flock", refuse)
    file = StateFile(tmp_path, BOOT)
    assert file.acquire()
    assert (file.load(), file.problem) == (ExporterState(), "not_locked")
    file.save(_state(1))
    assert file.problem == "not_locked"
    assert caplog.text.count("cannot be used (not_locked)") == 1


_NONSENSE: dict[str, tuple[tuple[str | int, ...], object]] = {
    "a time before the boot": (("at_ns",), -1),
    "a time that is text": (("at_ns",), "5"),
    "a time that is a fraction": (("at_ns",), 5.5),
    "a time that is true": (("at_ns",), True),
    "a sample time that is negative": (("resume", BOARD), -1),
    "a sample time that is none": (("resume", BOARD), None),
    "sample times that are a list": (("resume",), [1]),
    "a negative amount of a board": (("accounts", "gpus", 0, 2, "held_seconds"), -1),
    "a negative amount of a holder": (("accounts", "rows", 0, -1, "held_seconds"), -1),
    "more than can have been": (("accounts", "rows", 0, -1, "held_seconds"), 10**30),
    "a pod without a name": (("accounts", "pods", 0, 1), 5),
    "a pod from before time": (("accounts", "pods", 0, 3), -5),
    "a negative count of events": (("accounts", "xids", 0, 2), -1),
    "a board whose energy is text": (("boards", BOARD, "energy_mj"), "12"),
    "a board whose energy is negative": (("boards", BOARD, "energy_mj"), -12),
    "a board of another name": (("boards", BOARD, "seen", "boards", 0, "uuid"), "GPU-other"),
    "a board whose loss is a number": (("boards", BOARD, "lost"), 7),
    "a board that never answered": (("boards", BOARD, "answered_ns"), None),
    "a board whose idle power is text": (("boards", BOARD, "idle", "milliwatts"), "1"),
    "a share of more than all": (("holdings", 0, 5), "4/3"),
    "a share of less than nothing": (("holdings", 0, 5), "-1/3"),
    "a container without a name": (("holdings", 0, 7, 0), 5),
}


@pytest.mark.parametrize("case", _NONSENSE)
def test_what_parses_and_is_nonsense_is_put_aside(file: StateFile, tmp_path: Path, case: str) -> None:
    file.save(_state())
    path = tmp_path / "state" / "state.json"
    found = json.loads(path.read_text())
    *keys, last = _NONSENSE[case][0]
    place = found
    for key in keys:
        place = place[key]
    assert place[last] != _NONSENSE[case][1]
    place[last] = _NONSENSE[case][1]
    path.write_text(json.dumps(found))
    assert file.load() == ExporterState()
    assert path.with_name("state.json.broken").exists()


def test_exporting_goes_on_where_nothing_can_be_written(node: GpuNode) -> None:
    node.start()
    assert _reasons(node.ticks(2, LOADS)) == []
    _path(node).with_name("state.json.new").mkdir()
    before = node.ticks(2, LOADS)
    assert _reasons(node.tick(1, LOADS)) == ["not_writable"]
    after = node.ticks(2, LOADS)
    assert of(after, "held_seconds", pod="train") > of(before, "held_seconds", pod="train")
    _path(node).with_name("state.json.new").rmdir()
    assert _reasons(node.ticks(2, LOADS)) == []


@pytest.mark.fault(6)
def test_counters_shown_after_the_last_save_begin_at_0_after_a_restart(node: GpuNode) -> None:
    node.start()
    node.ticks(5, LOADS)
    _path(node).with_name("state.json.new").mkdir()  # from now on the disk is full
    shown = of(node.ticks(3, LOADS), "held_seconds", pod="train")
    node.stop()
    node.start()
    assert of(node.tick(1, LOADS), "held_seconds", pod="train") == 0
    first = node.tick(1, LOADS)
    assert _reasons(first) == ["not_writable"]
    assert shown > 5  # a fall to the file's 4 s would have counted them once more
    node.stop()
    _path(node).with_name("state.json.new").rmdir()
    node.start()
    assert of(node.tick(1, LOADS), "held_seconds", pod="train") == 0


def test_a_broken_file_costs_the_counters_and_nothing_else(node: GpuNode) -> None:
    node.start()
    node.ticks(5, LOADS)
    node.stop()
    _path(node).write_text("{")
    node.start()
    again = node.ticks(3, LOADS)
    assert of(again, "held_seconds", pod="train") == pytest.approx(2, abs=0.01)
    assert of(again, "held_seconds", holder="__unknown__") == 0


@pytest.mark.fault(6)
@pytest.mark.trap(27)
def test_what_can_be_read_is_on_disk_already(node: GpuNode) -> None:
    checked: list[int] = []

    class Watched(SnapshotSource):
        def __setattr__(self, name: str, value: object) -> None:
            # At the moment a snapshot is shown, the file has all of it: a kill then loses nothing.
            if isinstance(value, ExporterSnapshot):
                saved = StateFile(node.state_dir, node.boot_id).load()
                assert saved.accounts.rows == value.accounts.rows
                assert saved.accounts.gpus == value.accounts.gpus
                checked.append(value.version)
            super().__setattr__(name, value)

    node.start().source = Watched()
    node.ticks(5, LOADS)
    assert checked == [1, 2, 3, 4, 5]
