"""What the exporter lacks now, and since when: said in metrics and in ``--once``, never by a 0. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from gpucost_gpu_exporter.boards import BoardState
from gpucost_gpu_exporter.holdings import DeviceKey

NODE = DeviceKey("")


class Lack(NamedTuple):
    """``part`` is missing on ``device`` (NODE when it concerns all) because of ``reason``, a short code.

    Parts are those of ``readings.Part`` and ``driver``, ``gpu``, ``kubelet``, ``holders``, ``pods``,
    ``host_pids``, ``dcgm`` and ``state_file``.
    """

    device: DeviceKey
    part: str
    reason: str


class Lacks:
    """What is missing, each with the time since when (ms since 1970)."""

    def __init__(self) -> None:
        self._since: dict[Lack, int] = {}

    def update(self, found: Iterable[Lack], now_ms: int) -> Mapping[Lack, int]:
        """What is missing now; what was missing before keeps its time. Returns an immutable view's dict."""
        self._since = {lack: self._since.get(lack, now_ms) for lack in sorted(set(found))}
        return dict(self._since)


def lacks_of(board: BoardState) -> Iterator[Lack]:
    """What a board and its MIG instances cannot say."""
    uuid = board.seen.uuid
    if board.lost:
        yield Lack(DeviceKey(uuid), "gpu", board.lost)
        return
    for part, reason in board.seen.missing.items():
        yield Lack(DeviceKey(uuid), part, reason)
    for instance in board.seen.instances:
        for part, reason in instance.missing.items():
            yield Lack(DeviceKey(uuid, str(instance.gpu_instance)), part, reason)
