"""State that outlives the exporter's process: counters, GPUs and holders, in one JSON file.

``to_json`` and ``from_json`` are pure; a document that parses but cannot have been written is refused.

The file is written before the counters are shown, so that a killed process never comes back with less than a
client has read: a counter that falls by little looks to Prometheus like a reset, and all of it would be
counted twice. Where it cannot be written it is removed: from 0 nothing is counted twice. The file is of no
use after the node has booted: then counters begin at 0.
"""

from __future__ import annotations

import errno
import fcntl
import json
import logging
import os
import stat
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import IO, Any

from gpucost_gpu_exporter.metering.accounts import GpuAccounts
from gpucost_gpu_exporter.metering.gpu_state import GpuState
from gpucost_gpu_exporter.model.holdings import DeviceHolding, DeviceKey, PodRef
from gpucost_gpu_exporter.model.readings import GpuReading

VERSION = 1
# Nanoseconds of three centuries: whatever is beyond it was not counted.
_LARGEST = 2**63 - 1


@dataclass(slots=True)
class ExporterState:
    """``at_ns`` is the time since boot of the last look; ``resume`` is the driver's sample times by UUID."""

    at_ns: int | None = None
    accounts: GpuAccounts = field(default_factory=GpuAccounts)
    boards: dict[str, GpuState] = field(default_factory=dict)
    holdings: tuple[DeviceHolding, ...] = ()
    resume: dict[str, int] = field(default_factory=dict)


def to_json(state: ExporterState, boot_id: str) -> dict[str, Any]:
    """Plain dicts, lists, numbers and strings; ``from_json`` is the inverse."""
    return {
        "version": VERSION,
        "boot_id": boot_id,
        "at_ns": state.at_ns,
        "accounts": state.accounts.to_json(),
        "boards": {uuid: board.to_json() for uuid, board in state.boards.items()},
        "holdings": [
            [*held.pod, *held.device, str(held.share), held.resource, held.containers]
            for held in state.holdings
        ],
        "resume": state.resume,
    }


def from_json(found: Mapping[str, Any]) -> ExporterState:
    """Raises ValueError, LookupError, TypeError, AttributeError or ArithmeticError for any other."""
    if found["version"] != VERSION:
        raise ValueError("unknown version")
    state = ExporterState(
        at_ns=found["at_ns"],
        accounts=_accounts(found["accounts"]),
        boards={uuid: _board(uuid, board) for uuid, board in found["boards"].items()},
        holdings=tuple(map(_holding, found["holdings"])),
        resume=dict(found["resume"]),
    )
    _numbers(() if state.at_ns is None else (state.at_ns,))
    _numbers(state.resume.values())
    return state


def _accounts(found: Mapping[str, Any]) -> GpuAccounts:
    accounts = GpuAccounts.from_json(found)
    for amounts in (*accounts.gpus.values(), *accounts.rows.values(), *accounts.retired.values()):
        _numbers(amounts.values())
    for life in accounts.pods.values():
        _numbers(life.times)
    _numbers((*accounts.throttled_ns.values(), *accounts.xids.values()))
    for key in (*accounts.gpus, *accounts.retired, *accounts.pods):
        _texts(key)
    for row in accounts.rows:
        _texts((*row.who.pod, *row.device))
    _texts(uuid for uuid, _ in (*accounts.throttled_ns, *accounts.xids))
    _texts(reason for _, reason in accounts.throttled_ns)
    _numbers(xid for _, xid in accounts.xids)
    return accounts


def _board(uuid: str, found: Mapping[str, Any]) -> GpuState:
    board = GpuState.from_json(found)
    if board.devices or board.seen.uuid != uuid:
        raise ValueError("another board")
    _texts((board.lost, board.energy_source, *board.throttled_ns))
    idle = board.idle
    _numbers((board.answered_ns, board.energy_ns, board.epoch, idle.stretch_ns, idle.stretch_mj))
    _numbers(board.throttled_ns.values())
    _numbers(number for number in (board.energy_mj, idle.milliwatts) if number is not None)
    _seen(board.seen)
    return board


def _seen(board: GpuReading) -> None:
    """The last view of a GPU, and the number of its parts, until the driver has answered again."""
    _texts((board.uuid, board.product, board.pci_bus_id, board.lost))
    for missing in (board.missing, *(instance.missing for instance in board.instances)):
        _texts((*missing, *missing.values()))
    if type(board.mig) is not bool:
        raise ValueError("mig is neither true nor false")
    totals = (board.minor, board.memory_used_bytes, board.memory_total_bytes, board.energy_mj)
    _numbers(number for number in totals if number is not None)
    for instance in board.instances:
        _numbers((instance.gpu_instance, instance.slices, instance.of_slices))
        if not 0 < instance.slices <= instance.of_slices:
            raise ValueError("an instance larger than its board")


def _holding(found: Any) -> DeviceHolding:
    namespace, pod, uid, uuid, gi, share, resource, names = found
    _texts((namespace, pod, uid, uuid, gi, share, resource, *names))
    held = DeviceHolding(
        PodRef(namespace, pod, uid), DeviceKey(uuid, gi), Fraction(share), resource, tuple(names)
    )
    if not 0 < held.share <= 1:
        raise ValueError("a share that is none")
    return held


def _numbers(values: Iterable[object]) -> None:
    for value in values:
        if type(value) is not int or not 0 <= value <= _LARGEST:
            raise ValueError("a number out of range")


def _texts(values: Iterable[object]) -> None:
    for value in values:
        if not isinstance(value, str):
            raise TypeError("a name that is no text")


__all__ = ["VERSION", "ExporterState", "StateFile"]

logger = logging.getLogger(__name__)

MAX_BYTES = 64 << 20
_SENSELESS = (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError)
# Never through a link, and never into a file that another user made, or into a pipe.
_WRITE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_LOCK = os.O_WRONLY | os.O_CREAT | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
# The errors of opening a link, and a socket.
_NO_FILE = (errno.ELOOP, errno.ENXIO)


class StateFile:
    """The file ``state.json`` in ``folder``, for this boot of the node only.

    ``problem`` is empty, or the reason why nothing is kept: ``not_configured``, ``no_boot_id`` (a file could
    be of any boot), ``not_readable``, ``not_writable``, ``not_locked`` (what is written may be another
    exporter's as well). A file that makes no sense is put aside as ``state.json.broken``.
    """

    def __init__(self, folder: Path | None, boot_id: str) -> None:
        self._path = None if folder is None else folder / "state.json"
        self._boot_id = boot_id
        self._lock: IO[bytes] | None = None
        self._is_locked_out = False
        self.problem = "not_configured" if folder is None else "" if boot_id else "no_boot_id"

    def acquire(self) -> bool:
        """Take the folder for this process; False while another exporter has it, as in a rollout.

        Where it cannot be taken or written, ``problem`` is set, and counters begin at 0.
        """
        if self._path is None or self._lock is not None:
            return True
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            lock = os.fdopen(os.open(self._path.with_name("lock"), _LOCK, 0o600), "wb")
        except OSError as error:
            self._failed("not_writable", error)
            self._is_locked_out = True
            return True
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.close()
            return False
        except OSError as error:  # as on a network's file system
            lock.close()
            self._failed("not_locked", error)
            self._is_locked_out = True
            return True
        self._lock = lock
        self._try_to_write(self._path)
        return True

    def load(self) -> ExporterState:
        """What was kept, or an empty state: at the first start, after a boot, and when it is broken.

        A file that could not be replaced is not used: it would be read again after the next start, by then
        with less than what was shown.
        """
        if self._path is None or self.problem:
            return ExporterState()
        try:
            found = json.loads(_read(self._path))
            return from_json(found) if found["boot_id"] == self._boot_id else ExporterState()
        except FileNotFoundError:
            return ExporterState()
        except OSError as error:
            self._failed("not_readable", error)
            return ExporterState()
        except _SENSELESS as error:
            logger.warning(
                "state file is broken and put aside, counters begin at 0: %s", type(error).__name__
            )
            with suppress(OSError):  # it is overwritten all the same
                self._path.replace(self._path.with_name("state.json.broken"))
            return ExporterState()

    def save(self, state: ExporterState) -> None:
        """Replace the file. A failure does not stop the exporter: ``problem`` is set, and metrics show it."""
        if self._path is None or not self._boot_id:
            return
        text = json.dumps(to_json(state, self._boot_id), separators=(",", ":"))
        written = self._path.with_name("state.json.new")
        try:
            _write(written, text)
            written.replace(self._path)
        except OSError as error:
            for path in (self._path, written):  # removing needs no room
                with suppress(OSError):
                    path.unlink()
            self._failed("not_writable", error)
        else:
            if not self._is_locked_out:
                self.problem = ""

    def close(self) -> None:
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def _try_to_write(self, path: Path) -> None:
        written = path.with_name("state.json.new")
        try:
            _write(written, "{}")
            written.unlink()
        except OSError as error:
            self._failed("not_writable", error)

    def _failed(self, problem: str, error: OSError) -> None:
        if self.problem != problem:
            logger.warning(
                "state file cannot be used (%s), counters begin at 0 after a restart: %s",
                problem,
                error.strerror,
            )
        self.problem = problem


def _write(path: Path, text: str) -> None:
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, _WRITE, 0o600), "w", encoding="utf-8") as file:
        file.write(text)


def _read(path: Path) -> bytes:
    """The content of the file. Raises OSError, and ValueError for anything but a file of ours: a link, a
    pipe, gigabytes."""
    try:
        opened = os.open(path, _READ)
    except OSError as error:
        if error.errno in _NO_FILE:
            raise ValueError("no file") from error
        raise
    if not stat.S_ISREG(os.fstat(opened).st_mode):
        os.close(opened)
        raise ValueError("no file")
    with os.fdopen(opened, "rb") as file:
        text = file.read(MAX_BYTES + 1)
    if len(text) > MAX_BYTES:
        raise ValueError("too large")
    return text
