"""What outlives the exporter's process: counters, boards and who held what, in one file.

It is written before the counters are shown, so that a killed process never comes back with less than
somebody has read: a counter that falls by little looks to Prometheus like one that began anew, and all of
it would be counted twice. Where it cannot be written it is removed: from 0 nothing is counted twice. The
file is no use after the node has booted: then counters begin at 0.
"""

from __future__ import annotations

import errno
import fcntl
import json
import logging
import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import IO

from gpucost_gpu_exporter.state_json import VERSION, State, from_json, to_json

__all__ = ["VERSION", "State", "StateFile"]

logger = logging.getLogger(__name__)

MAX_BYTES = 64 << 20
_SENSELESS = (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError)
# Never through a link, and never into what somebody else has made or waits at.
_WRITE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_LOCK = os.O_WRONLY | os.O_CREAT | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
# What opening says of a link, and of a socket.
_NO_FILE = (errno.ELOOP, errno.ENXIO)


class StateFile:
    """The file ``state.json`` in ``folder``, for this boot of the node only.

    ``problem`` is empty, or says why nothing is kept: ``not_configured``, ``no_boot_id`` (a file could be of
    any boot), ``not_readable``, ``not_writable``, ``not_locked`` (what is written may be another exporter's
    as well). A file that makes no sense is put aside as ``state.json.broken``.
    """

    def __init__(self, folder: Path | None, boot_id: str) -> None:
        self._path = None if folder is None else folder / "state.json"
        self._boot_id = boot_id
        self._lock: IO[bytes] | None = None
        self._is_locked_out = False
        self.problem = "not_configured" if folder is None else "" if boot_id else "no_boot_id"

    def acquire(self) -> bool:
        """Take the folder for this process; False while another exporter has it, as in a rollout.

        Where it cannot be taken or written, ``problem`` says so, and counters begin at 0.
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

    def load(self) -> State:
        """What was kept, or an empty state: at the first start, after a boot, and when it is broken.

        Nothing is believed that could not be replaced: it would be there again after the next start, by then
        less than what was shown.
        """
        if self._path is None or self.problem:
            return State()
        try:
            found = json.loads(_read(self._path))
            return from_json(found) if found["boot_id"] == self._boot_id else State()
        except FileNotFoundError:
            return State()
        except OSError as error:
            self._failed("not_readable", error)
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
    """Raises OSError, and ValueError for what is no file of ours: a link, a pipe, gigabytes."""
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
