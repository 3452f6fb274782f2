"""All boards of the node: finding them, keeping them, one look at all of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pynvml

from gpucost_gpu_exporter.driver.boards import Board
from gpucost_gpu_exporter.driver.calls import BoardLost, Look, NvmlFailure, Refused, call
from gpucost_gpu_exporter.driver.events import XidEvents
from gpucost_gpu_exporter.driver.gpm import Gpm
from gpucost_gpu_exporter.readings import NodeReading

LIST_EVERY_NS = 10_000_000_000


class Node:
    """Boards are known by UUID, since the driver's order of them can change; one once seen is not forgotten.

    ``resume`` gives the driver's time of the last sample that an earlier process saw, by UUID.
    """

    def __init__(self, resume: Mapping[str, int]) -> None:
        call(pynvml.nvmlInit)
        self._resume = resume
        self._driver_version: str = call(pynvml.nvmlSystemGetDriverVersion)
        self._boards: dict[str, Board] = {}
        self._uuids: dict[int, str] = {}
        self._listed_ns: int | None = None
        self._gpm = Gpm()
        self._events = XidEvents()

    def look(self, now_ns: int, processes: bool) -> NodeReading:
        """Read every board. Raises NvmlFailure when there is no board to read, DriverGone among them."""
        if self._is_listing_due(now_ns):
            self._list_boards()
            self._listed_ns = now_ns
        look = Look(now_ns, processes, self._events.drain())
        boards = tuple(board.look(look, self._events.missing(uuid)) for uuid, board in self._boards.items())
        self._gpm.forget_others(now_ns)
        return NodeReading(self._driver_version, boards, dict(look.dropped))

    def resume(self) -> dict[str, int]:
        """The driver's time of the last sample seen, by UUID: for the process after this one."""
        return {uuid: board.busy.last_us for uuid, board in self._boards.items() if board.busy.last_us}

    def _is_listing_due(self, now_ns: int) -> bool:
        since_ns = None if self._listed_ns is None else now_ns - self._listed_ns
        return (
            since_ns is None
            or since_ns >= LIST_EVERY_NS
            or any(board.lost for board in self._boards.values())
        )

    def _list_boards(self) -> None:
        code = "NO_GPUS"
        absent = dict.fromkeys(self._boards, "NOT_FOUND")
        for index, handle, uuid, failure in self._handles():
            if failure:
                code = failure
                absent |= {self._uuids[index]: failure} if index in self._uuids else {}
                continue
            absent.pop(uuid, None)
            self._uuids[index] = uuid
            board = self._boards.setdefault(uuid, Board(uuid, self._gpm, self._resume.get(uuid)))
            board.listed(handle)
            self._events.watch(uuid, handle)
        if not self._boards or (len(absent) == len(self._boards) and code == "NO_GPUS"):
            raise NvmlFailure(code)
        for uuid, why in absent.items():
            self._boards[uuid].lost = why

    def _handles(self) -> Iterator[tuple[int, Any, str, str]]:
        """(index, handle, UUID, failure) of every board that the driver counts, those not ours among them."""
        for index in range(call(pynvml.nvmlDeviceGetCount)):
            try:
                handle = call(pynvml.nvmlDeviceGetHandleByIndex, index)
                yield index, handle, call(pynvml.nvmlDeviceGetUUID, handle), ""
            except (Refused, BoardLost) as failure:
                yield index, None, "", failure.code
