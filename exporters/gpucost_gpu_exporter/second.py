"""dcgm-exporter as the second source: it fills what NVML lacks, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TypeVar

from gpucost_gpu_exporter.conditions import NODE, Lack
from gpucost_gpu_exporter.dcgm.endpoint import DcgmEndpoint, EndpointSnapshot
from gpucost_gpu_exporter.dcgm.state import Problem
from gpucost_gpu_exporter.holdings import DeviceKey
from gpucost_gpu_exporter.meter import Second
from gpucost_gpu_exporter.readings import BoardReading, InstanceReading, NodeReading, Part

R = TypeVar("R", BoardReading, InstanceReading)


class DcgmSecond:
    """A ``DcgmEndpoint`` as the exporter uses it; ``look`` fixes what is known for one collection."""

    def __init__(self, endpoint: DcgmEndpoint) -> None:
        self._endpoint = endpoint
        self._now: EndpointSnapshot = endpoint.snapshot()
        self._why_down = next(iter(self._now.failures), "starting")
        self._counted: dict[tuple[str, int], int] = {}

    def look(self) -> None:
        """Take what is known now."""
        before, self._now = self._now, self._endpoint.snapshot()
        if self._now.up:
            self._why_down = Problem.STALE.value  # unless a round fails, it goes down by growing old
        for reason, count in self._now.failures.items():
            if count > before.failures.get(reason, 0):
                self._why_down = reason

    def second(self, now_ns: int) -> Second:
        known = self._now.known
        return Second(
            ratio=lambda device, signal: known.ratio(device, signal, now_ns),
            energy_mj=lambda uuid: known.energy_mj(uuid, now_ns),
        )

    def filled(self, reading: NodeReading, now_ns: int) -> NodeReading:
        """``reading`` with memory and XID events where NVML has none."""
        risen = self._risen()
        return replace(reading, boards=tuple(self._board(board, risen, now_ns) for board in reading.boards))

    def lacks(self) -> Iterator[Lack]:
        """That the endpoint is down, and which of its values contradict themselves."""
        if not self._now.up:
            yield Lack(NODE, "dcgm", self._why_down)
        known = self._now.known
        for (device, _), problem in known.problems(known.at_ns or 0).items():
            if problem is Problem.PROF_STUCK:
                yield Lack(DeviceKey(device.gpu_uuid), "dcgm", problem.value)

    @property
    def errors(self) -> Mapping[str, int]:
        return self._now.failures

    @property
    def dropped(self) -> Mapping[str, int]:
        return self._now.dropped

    def _board(self, board: BoardReading, risen: Mapping[str, list[int]], now_ns: int) -> BoardReading:
        if board.lost:
            return board
        instances = tuple(
            self._with_memory(instance, DeviceKey(board.uuid, str(instance.gpu_instance)), now_ns)
            for instance in board.instances
        )
        xids = tuple(risen.get(board.uuid, ())) if Part.XID in board.missing else board.xids
        board = replace(board, instances=instances, xids=xids)
        return self._with_memory(board, DeviceKey(board.uuid), now_ns)

    def _with_memory(self, read: R, key: DeviceKey, now_ns: int) -> R:
        if read.memory_used_bytes is not None:
            return read
        memory = self._now.known.memory(key, now_ns)
        return replace(read, memory_used_bytes=memory.used_bytes, memory_total_bytes=memory.total_bytes)

    def _risen(self) -> dict[str, list[int]]:
        """XID codes that newly showed since the last collection, by board."""
        risen: dict[str, list[int]] = {}
        counts = {place: events.count for place, events in self._now.known.xids.items()}
        for (uuid, code), count in counts.items():
            before = self._counted.get((uuid, code), 0)
            risen.setdefault(uuid, []).extend([code] * (count - before))
        self._counted = counts
        return risen
