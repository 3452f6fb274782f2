"""Which boards and MIG instances a node has: what device ids are looked up in. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Self

from gpucost_gpu_exporter.holdings import DeviceKey
from gpucost_gpu_exporter.readings import BoardReading, NodeReading

WHOLE = Fraction(1)


@dataclass(frozen=True, slots=True)
class Instance:
    """A MIG GPU instance: its size, and the sizes of its compute instances by MIG UUID, all in slices."""

    slices: int
    compute_instances: Mapping[str, int]

    def share(self, slices: int) -> Fraction:
        """The part of the instance that a compute instance of so many slices is."""
        return min(WHOLE, Fraction(slices, self.slices)) if self.slices > 0 else WHOLE


@dataclass(frozen=True, slots=True)
class Board:
    """A board: its minor number (the N of ``/dev/nvidiaN``), and its GPU instances by id, if it has any."""

    minor: int | None = None
    instances: Mapping[int, Instance] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Topology:
    """The boards of a node by UUID. Minor numbers may change between two looks, UUIDs do not."""

    boards: Mapping[str, Board] = field(default_factory=dict)

    @classmethod
    def from_reading(cls, reading: NodeReading, before: Topology | None = None) -> Self:
        """What this reading shows. A lost board is as it was ``before``: its holders hold it still."""
        known = before.boards if before is not None else {}
        return cls(
            {
                board.uuid: known[board.uuid] if board.lost and board.uuid in known else _board(board)
                for board in reading.boards
            }
        )

    def by_minor(self, minor: int) -> str | None:
        """The UUID of the board with this minor number."""
        return next((uuid for uuid, board in self.boards.items() if board.minor == minor), None)

    def mig(self, mig_uuid: str) -> tuple[DeviceKey, Fraction] | None:
        """The GPU instance a MIG device is in, and which part of it the device is."""
        for uuid, board in self.boards.items():
            for number, instance in board.instances.items():
                if (slices := instance.compute_instances.get(mig_uuid)) is not None:
                    return DeviceKey(uuid, str(number)), instance.share(slices)
        return None


def _board(board: BoardReading) -> Board:
    return Board(
        board.minor,
        {
            instance.gpu_instance: Instance(instance.slices, dict(instance.compute_instances))
            for instance in board.instances
        },
    )
