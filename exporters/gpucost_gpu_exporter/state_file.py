"""What outlives the exporter's process: counters, boards and who held what, in one file.

It is written before the counters are shown, so that a killed process never comes back with less than
somebody has read: a counter that falls by little looks to Prometheus like one that began anew, and all of
it would be counted twice. The file is no use after the node has booted: then counters begin at 0.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import IO, Any

from gpucost_gpu_exporter.accounts import Accounts
from gpucost_gpu_exporter.boards import BoardState
from gpucost_gpu_exporter.holdings import DeviceKey, Holding, Pod

logger = logging.getLogger(__name__)

VERSION = 1
_SENSELESS = (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError)
_WRITE = os.O_WRONLY | os.O_CREAT | os.O_TRUNC


@dataclass(slots=True)
class State:
    """``at_ns`` is the time since boot of the last look; ``resume`` is the driver's sample times by UUID."""

    at_ns: int | None = None
    accounts: Accounts = field(default_factory=Accounts)
    boards: dict[str, BoardState] = field(default_factory=dict)
    holdings: tuple[Holding, ...] = ()
    resume: dict[str, int] = field(default_factory=dict)


class StateFile:
    """The file ``state.json`` in ``folder``, for this boot of the node only.

    ``problem`` is empty, or says why nothing is kept: ``not_configured``, ``no_boot_id`` (a file could be of
    any boot), ``not_readable``, ``not_writable``. A file that makes no sense is put aside as
    ``state.json.broken``.
    """

    def __init__(self, folder: Path | None, boot_id: str) -> None:
        self._path = None if folder is None else folder / "state.json"
        self._boot_id = boot_id
        self._lock: IO[str] | None = None
        self.problem = "not_configured" if folder is None else "" if boot_id else "no_boot_id"

    def acquire(self) -> bool:
        """Take the folder for this process; False while another exporter has it, as in a rollout."""
        if self._path is None or self._lock is not None:
            return True
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            lock = self._path.with_name("lock").open("a")
        except OSError:
            self.problem = "not_writable"
            return True
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.close()
            return False
        self._lock = lock
        return True

    def load(self) -> State:
        """What was kept, or an empty state: at the first start, after a boot, and when it is broken."""
        if self._path is None or not self._boot_id:
            return State()
        try:
            found = json.loads(self._path.read_text(encoding="utf-8"))
            return _state(found) if found["boot_id"] == self._boot_id else State()
        except FileNotFoundError:
            return State()
        except OSError:
            self.problem = "not_readable"
            return State()
        except _SENSELESS as error:
            logger.warning(
                "state file is broken and put aside, counters begin at 0: %s", type(error).__name__
            )
            with suppress(OSError):  # it is written over all the same
                self._path.replace(self._path.with_name("state.json.broken"))
            return State()

    def save(self, state: State) -> None:
        """Replace the file. A failure is no reason to stop: ``problem`` says it, and metrics show it."""
        if self._path is None or not self._boot_id:
            return
        text = json.dumps(_json(state, self._boot_id), separators=(",", ":"))
        written = self._path.with_name("state.json.new")
        try:
            with os.fdopen(os.open(written, _WRITE, 0o600), "w", encoding="utf-8") as file:
                file.write(text)
            written.replace(self._path)
        except OSError as error:
            if not self.problem:
                logger.warning("state file cannot be written, counters would begin at 0: %s", error.strerror)
            self.problem = "not_writable"
        else:
            self.problem = ""

    def close(self) -> None:
        if self._lock is not None:
            self._lock.close()
            self._lock = None


def _json(state: State, boot_id: str) -> dict[str, Any]:
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


def _state(found: Mapping[str, Any]) -> State:
    if found["version"] != VERSION:
        raise ValueError("unknown version")
    return State(
        at_ns=found["at_ns"],
        accounts=Accounts.from_json(found["accounts"]),
        boards={uuid: BoardState.from_json(board) for uuid, board in found["boards"].items()},
        holdings=tuple(
            Holding(Pod(namespace, pod, uid), DeviceKey(uuid, gi), Fraction(share), resource, tuple(names))
            for namespace, pod, uid, uuid, gi, share, resource, names in found["holdings"]
        ),
        resume=found["resume"],
    )
