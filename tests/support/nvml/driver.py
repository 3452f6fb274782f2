"""The stand-in driver of a node, as the tests write it: GPUs, events, faults, and time that moves.

    driver = FakeDriver(tmp_path / "nvml.state", [FakeBoard("GPU-…", minor=0)])
    driver.write()
    subprocess.run(command, env={**os.environ, **driver.environment(build_double(folder))})
    driver.advance(10**9, {"GPU-…": DeviceLoad(busy=0.5, sm=0.25, watts=300.0, processes={4711: 25.0})})
    driver.write()

Nothing is seen by the library before ``write``, and each ``write`` is seen whole.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tests.support.nvml import load, state
from tests.support.nvml.boards import (
    FakeBoard,
    FakeComputeInstance,
    FakeInstance,
    FakeProcess,
    GpmCounters,
    ProcessKind,
    ProcessSample,
    UtilizationSample,
)
from tests.support.nvml.load import DeviceLoad
from tests.support.nvml.symbols import exact_symbol

__all__ = [
    "DeviceLoad",
    "FakeBoard",
    "FakeComputeInstance",
    "FakeDriver",
    "FakeEvent",
    "FakeInstance",
    "FakeProcess",
    "GpmCounters",
    "ProcessKind",
    "ProcessSample",
    "UtilizationSample",
]

STATE_VARIABLE = "GPUCOST_NVML_DOUBLE"
XID_EVENT = 0x8
WHOLE_BOARD = 0xFFFFFFFF


@dataclass(frozen=True, slots=True)
class FakeEvent:
    """An event of the driver: delivered once to each event set that was registered for it before."""

    sequence: int
    uuid: str
    event_type: int
    data: int
    gpu_instance: int = WHOLE_BOARD
    compute_instance: int = WHOLE_BOARD


class FakeDriver:
    """The driver and its GPUs; ``write`` shows them to every process that has the library open.

    ``now_ns`` is the driver's virtual clock: ``advance`` alone moves it. ``loaded`` false is a driver that
    is not there. Fields may be changed freely between writes.
    """

    def __init__(
        self,
        state_file: Path,
        boards: Iterable[FakeBoard] = (),
        *,
        driver_version: str = "580.95.05",
        nvml_version: str = "13.580.95.05",
        now_ns: int = 1_800_000_000 * 10**9,
    ) -> None:
        self.state_file = state_file
        self.boards = list(boards)
        self.driver_version = driver_version
        self.nvml_version = nvml_version
        self.now_ns = now_ns
        self.loaded = True
        self.epoch = 1
        self.events: list[FakeEvent] = []
        self.faults: dict[tuple[str, str], int] = {}
        self.hangs: set[tuple[str, str]] = set()

    def board(self, uuid: str) -> FakeBoard:
        """The GPU with this UUID. Raises ``KeyError``."""
        for board in self.boards:
            if board.uuid == uuid:
                return board
        raise KeyError(uuid)

    def environment(self, library: Path) -> dict[str, str]:
        """What a process needs in its environment, from its start, to find the library and this state."""
        return {STATE_VARIABLE: str(self.state_file), "LD_LIBRARY_PATH": str(library)}

    def fail(self, function: str, error: int, device: str = "") -> None:
        """Make a function return an NVML error, on one GPU or MIG UUID or on all.

        ``function`` is the symbol, with or without its version suffix. Raises ``ValueError`` for one that
        the library does not have: such a fault would do nothing.
        """
        self.faults[exact_symbol(function), device] = error

    def heal(self, function: str, device: str = "") -> None:
        """Take back ``fail``. Raises ``KeyError`` if there was none."""
        del self.faults[exact_symbol(function), device]

    def hang(self, function: str, device: str = "") -> None:
        """Make a function block until ``release`` is written: a wedged driver."""
        self.hangs.add((exact_symbol(function), device))

    def release(self, function: str, device: str = "") -> None:
        """Take back ``hang``. Raises ``KeyError`` if there was none."""
        self.hangs.remove((exact_symbol(function), device))

    def event(self, uuid: str, event_type: int, data: int, gpu_instance: int | None = None) -> None:
        """Let an event happen on a GPU, on one of its MIG instances if that is given."""
        instance = WHOLE_BOARD if gpu_instance is None else gpu_instance
        self.events.append(FakeEvent(len(self.events) + 1, uuid, event_type, data, instance))

    def xid(self, uuid: str, code: int, gpu_instance: int | None = None) -> None:
        """Let an XID event happen."""
        self.event(uuid, XID_EVENT, code, gpu_instance)

    def reload(self) -> None:
        """What unloading and loading the driver does: counters start at 0, sessions from before are void."""
        self.loaded = True
        self.epoch += 1
        for board in self.boards:
            board.reset()

    def advance(self, dt_ns: int, loads: load.Loads | None = None) -> None:
        """Let ``dt_ns`` of virtual time pass with a steady load.

        ``loads`` is by GPU UUID, or by (GPU UUID, GPU instance id) for a MIG instance; what is not named is
        idle. A lost GPU and an unloaded driver count nothing. Raises ``KeyError`` for an unknown device
        and ``ValueError`` for a time that is not above 0.
        """
        by_device: dict[load.Device, DeviceLoad] = dict((loads or {}).items())
        load.check_devices(self.boards, by_device)
        if dt_ns <= 0:
            raise ValueError(f"{dt_ns} ns: time only goes forward")
        self.now_ns += dt_ns
        for board in self.boards:
            if self.loaded and not board.lost:
                load.advance_board(board, self.now_ns, dt_ns, by_device)

    def write(self) -> None:
        """Replace the state file, at once and whole."""
        state.replace_file(self.state_file, state.render(self._entries()))

    def _entries(self) -> dict[str, str]:
        entries = {
            "driver.loaded": str(int(self.loaded)),
            "driver.epoch": str(self.epoch),
            "driver.version": self.driver_version,
            "driver.nvml": self.nvml_version,
            "driver.now_us": str(self.now_ns // 1000),
            "boards": str(len(self.boards)),
            "events": " ".join(
                f"{event.sequence}:{event.uuid}:{event.event_type}:{event.data}"
                f":{event.gpu_instance}:{event.compute_instance}"
                for event in self.events
            ),
        }
        for index, board in enumerate(self.boards):
            entries.update(state.board_entries(index, board))
        for (function, device), error in self.faults.items():
            entries[f"fail.{function}.{device}".rstrip(".")] = str(error)
        for function, device in self.hangs:
            entries[f"hang.{function}.{device}".rstrip(".")] = "1"
        return entries
