"""XID events of all boards, collected by a thread of their own: the driver hands each out once, blocking."""

from __future__ import annotations

import threading
import time
from ctypes import c_void_p, cast
from typing import Any

import pynvml

from gpucost_gpu_exporter.driver.calls import DriverGone, NvmlFailure, call

_WAIT_MS = 1000
_PAUSE_S = 1.0


class XidEvents:
    """Codes since they were last drained. A board is registered early: once lost it can no longer be."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._codes: dict[str, list[int]] = {}
        self._uuids: dict[int | None, str] = {}
        self._refused: dict[str, str] = {}
        self._set: Any = None

    def watch(self, uuid: str, handle: Any) -> None:
        """Register a board, unless it is. A refusal is kept for ``missing`` and tried again next time."""
        if self._uuids.get(_address(handle)) == uuid:
            return
        try:
            events = self._set or call(pynvml.nvmlEventSetCreate)
            call(pynvml.nvmlDeviceRegisterEvents, handle, pynvml.nvmlEventTypeXidCriticalError, events)
        except DriverGone:
            raise
        except NvmlFailure as failure:
            self._refused[uuid] = failure.code
            return
        self._refused.pop(uuid, None)
        self._uuids[_address(handle)] = uuid
        if self._set is None:
            self._set = events
            threading.Thread(target=self._collect, name="xid-events", daemon=True).start()

    def missing(self, uuid: str) -> str:
        """Why the events of a board cannot be had; empty when they can."""
        return self._refused.get(uuid, "")

    def drain(self) -> dict[str, tuple[int, ...]]:
        """The codes since the call before, by UUID, one entry per event."""
        with self._lock:
            codes, self._codes = self._codes, {}
        return {uuid: tuple(found) for uuid, found in codes.items()}

    def _collect(self) -> None:
        while True:
            try:
                event = call(pynvml.nvmlEventSetWait_v2, self._set, _WAIT_MS)
            except NvmlFailure as failure:
                if isinstance(failure, DriverGone) or failure.code == "FUNCTION_NOT_FOUND":
                    self._refused |= dict.fromkeys(self._uuids.values(), failure.code)
                    return
                if failure.code != "TIMEOUT":
                    time.sleep(_PAUSE_S)
                continue
            if event.eventType == pynvml.nvmlEventTypeXidCriticalError:
                uuid = self._uuids.get(_address(event.device), "")
                with self._lock:
                    self._codes.setdefault(uuid, []).append(event.eventData)


def _address(handle: Any) -> int | None:
    return cast(handle, c_void_p).value
