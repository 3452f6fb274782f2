"""What the exporter lacks now, and since when: shown in metrics and in ``--once``, never by a 0. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from gpucost_gpu_exporter.metering.gpu_state import GpuState
from gpucost_gpu_exporter.model.holdings import DeviceKey
from gpucost_gpu_exporter.model.readings import (
    GpuReading,
    InstanceReading,
    ReadingPart,
    SignalSource,
)

NODE = DeviceKey("")


class MissingPart(NamedTuple):
    """``part`` is missing on ``device`` (NODE when it concerns all) because of ``reason``, a short code.

    Parts are those of ``ReadingPart`` and ``driver``, ``gpu``, ``kubelet``, ``holders``, ``pods``,
    ``host_pids``, ``dcgm`` and ``state_file``.
    """

    device: DeviceKey
    part: str
    reason: str


class MissingParts:
    """What is missing, each with the time since when (ms since 1970)."""

    def __init__(self) -> None:
        self._since: dict[MissingPart, int] = {}
        self.new: Mapping[MissingPart, int] = {}
        """Of these, what was not missing before the last update."""

    def update(self, found: Iterable[MissingPart], now_ms: int) -> Mapping[MissingPart, int]:
        """What is missing now; what was missing before keeps its time. Returns an immutable view's dict."""
        before = self._since
        self._since = {lack: before.get(lack, now_ms) for lack in sorted(set(found))}
        self.new = {lack: since for lack, since in self._since.items() if lack not in before}
        return dict(self._since)


def missing_parts_of(board: GpuState) -> Iterator[MissingPart]:
    """What of a GPU and its MIG instances cannot be read, neither by NVML nor from the second source."""
    uuid = board.seen.uuid
    if board.lost:
        yield MissingPart(DeviceKey(uuid), "gpu", board.lost)
        return
    yield from _of_reading(DeviceKey(uuid), board.seen, board)
    for instance in board.seen.instances:
        yield from _of_reading(DeviceKey(uuid, str(instance.gpu_instance)), instance, board)


def _of_reading(
    device: DeviceKey, read: GpuReading | InstanceReading, board: GpuState
) -> Iterator[MissingPart]:
    filled = {
        signal.value for signal, source in board.device(device).sources.items() if source != SignalSource.NONE
    }
    if read.memory_used_bytes is not None:
        filled.add(ReadingPart.MEMORY)
    for part, reason in read.missing.items():
        if part not in filled:
            yield MissingPart(device, part, reason)
