"""All GPUs of the node: finding them, keeping them, one look at all of them; and their XID events.

``XidEvents`` collects the events in a thread of its own: the driver hands each out once, in a call that
blocks. They are told from there, beside the looks: an event can be why a look hangs.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from ctypes import c_void_p, cast
from dataclasses import dataclass
from typing import Any

import pynvml

from gpucost_gpu_exporter.driver.activity import GpmSampler
from gpucost_gpu_exporter.driver.calls import (
    DriverGone,
    DriverLook,
    GpuErrorGuard,
    GpuLost,
    NvmlFailure,
    NvmlRefusal,
    call,
)
from gpucost_gpu_exporter.driver.gpus import NvmlGpu
from gpucost_gpu_exporter.model.readings import GpuReading, NodeReading, XidEvent

_WAIT_MS = 1000
_PAUSE_S = 1.0


class XidEvents:
    """Tells each event, in a thread of its own. A GPU is registered early: once lost it can no longer be."""

    def __init__(self, tell: Callable[[XidEvent], None]) -> None:
        self._tell = tell
        self._uuids: dict[int | None, str] = {}
        self._refused: dict[str, str] = {}
        self._set: Any = None

    def watch(self, uuid: str, handle: Any) -> None:
        """Register a GPU, unless it is. A refusal is kept for ``missing`` and tried again next time."""
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
        """Why the events of a GPU cannot be collected; empty when they can."""
        return self._refused.get(uuid, "")

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
            uuid = self._uuids.get(_address(event.device))
            if uuid and event.eventType == pynvml.nvmlEventTypeXidCriticalError:
                self._tell(XidEvent(uuid, event.eventData))


def _address(handle: Any) -> int | None:
    return cast(handle, c_void_p).value


LIST_EVERY_NS = 10_000_000_000
# The driver counts GPUs that this process may not open, such as those given to another container.
_NOT_OURS = "NO_PERMISSION"


@dataclass(frozen=True, slots=True)
class _Place:
    """What is at one index of the driver: a GPU, or ``failure``, why it cannot be opened."""

    handle: Any
    uuid: str = ""
    pci_bus_id: str = ""
    failure: str = ""


class NvmlNode:
    """GPUs are known by UUID, since the driver's order of them can change; one once seen is not forgotten. A
    GPU that was lost before its UUID was ever known is reported under the name of its place, ``pci:…`` or
    ``index:…``, for as long as it stays lost.

    ``resume`` gives the driver's time of the last sample that an earlier process saw, by UUID; ``tell`` is
    called with each XID event, in another thread.
    """

    def __init__(self, resume: Mapping[str, int], tell: Callable[[XidEvent], None]) -> None:
        call(pynvml.nvmlInit)
        self._resume = resume
        self._driver_version: str = call(pynvml.nvmlSystemGetDriverVersion)
        self._boards: dict[str, NvmlGpu] = {}
        self._uuids: dict[int, str] = {}
        self._unnamed: tuple[GpuReading, ...] = ()
        self._mishaps = GpuErrorGuard()
        self._listed_ns: int | None = None
        self._gpm = GpmSampler()
        self._events = XidEvents(tell)

    def look(self, now_ns: int, processes: bool) -> NodeReading:
        """Read every GPU. Raises NvmlFailure when there is no GPU to read, DriverGone among them."""
        if self._is_listing_due(now_ns):
            self._list_boards()
            self._listed_ns = now_ns
        look = DriverLook(now_ns, processes)
        boards = tuple(board.look(look, self._events.missing(uuid)) for uuid, board in self._boards.items())
        self._gpm.forget_others(now_ns)
        return NodeReading(self._driver_version, boards + self._unnamed, dict(look.dropped))

    def resume(self) -> dict[str, int]:
        """The driver's time of the last sample seen, by UUID: for the process after this one."""
        return {uuid: board.busy.last_us for uuid, board in self._boards.items() if board.busy.last_us}

    def _is_listing_due(self, now_ns: int) -> bool:
        since_ns = None if self._listed_ns is None else now_ns - self._listed_ns
        return (
            since_ns is None
            or since_ns >= LIST_EVERY_NS
            or bool(self._unnamed)
            or any(board.lost for board in self._boards.values())
        )

    def _list_boards(self) -> None:
        places = [self._place(index) for index in range(call(pynvml.nvmlDeviceGetCount))]
        absent = dict.fromkeys(self._boards.keys() - {place.uuid for place in places}, "NOT_FOUND")
        unnamed = []
        for index, place in enumerate(places):
            if not place.failure:
                self._uuids[index] = place.uuid
                self._listed(place)
            elif self._uuids.get(index) in absent:
                absent[self._uuids[index]] = place.failure
            elif place.failure != _NOT_OURS:
                unnamed.append(_unnamed(index, place))
        self._unnamed = tuple(unnamed)
        failures = [place.failure for place in places if place.failure]
        nothing_listed = len(absent) == len(self._boards) and not failures
        if nothing_listed or not (self._boards or unnamed):
            raise NvmlFailure(failures[-1] if failures else "NO_GPUS")
        for uuid, why in absent.items():
            self._boards[uuid].lost = why

    def _place(self, index: int) -> _Place:
        handle = None
        try:
            handle = call(pynvml.nvmlDeviceGetHandleByIndex, index)
            return _Place(handle, call(pynvml.nvmlDeviceGetUUID, handle))
        except Exception as error:
            code = self._mishaps.code(f"GPU {index}", error)
            return _Place(handle, pci_bus_id=_pci_bus_id(handle), failure=code)

    def _listed(self, place: _Place) -> None:
        uuid = place.uuid
        board = self._boards.setdefault(uuid, NvmlGpu(uuid, self._gpm, self._resume.get(uuid)))
        try:
            board.listed(place.handle)
            self._events.watch(uuid, place.handle)
        except Exception as error:
            board.lost = self._mishaps.code(uuid, error)


def _pci_bus_id(handle: Any) -> str:
    if handle is not None:
        with suppress(NvmlRefusal, GpuLost):
            return str(call(pynvml.nvmlDeviceGetPciInfo_v3, handle).busId)
    return ""


def _unnamed(index: int, place: _Place) -> GpuReading:
    name = f"pci:{place.pci_bus_id}" if place.pci_bus_id else f"index:{index}"
    return GpuReading(name, pci_bus_id=place.pci_bus_id, lost=place.failure)
