"""The boards and MIG instances of simulated nodes, as an exporter would find them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

from gpucost.simulator.activity import hardware_of
from gpucost.simulator.boards import board_uuid, gpu_id
from gpucost.simulator.inventory import Node
from gpucost_gpu_exporter.holdings import DeviceKey

SLICES = 7


@dataclass(frozen=True, slots=True)
class SimulatedGpu:
    """A board or an instance. ``part`` is its share of the board, ``replicas`` how many pods may share it;
    ``profile`` is empty for a whole board. Watts are of the whole board."""

    key: DeviceKey
    part: Fraction
    replicas: int
    profile: str
    resource: str
    memory_bytes: int
    idle_watts: float
    coverage: Fraction
    has_busy: bool
    has_sm: bool

    @property
    def text(self) -> str:
        """As in the frames."""
        return "/".join(part for part in self.key if part)


@dataclass(frozen=True, slots=True)
class SimulatedBoard:
    uuid: str
    minor: int
    product: str
    gpus: tuple[SimulatedGpu, ...]

    @property
    def is_mig(self) -> bool:
        return any(gpu.profile for gpu in self.gpus)

    @property
    def unpartitioned(self) -> Fraction:
        """The share of the board that no instance has."""
        return 1 - sum((gpu.part for gpu in self.gpus), Fraction(0))


def boards_of(seed: int, node: Node) -> tuple[SimulatedBoard, ...]:
    """All of a node, whoever holds them."""
    by_board: dict[str, dict[DeviceKey, SimulatedGpu]] = {}
    for gpu in _gpus(seed, node):
        by_board.setdefault(gpu.key.gpu_uuid, {}).setdefault(gpu.key, gpu)
    product = node.product.partition("-MIG-")[0].removesuffix("-SHARED").replace("-", " ")
    uuids = (board_uuid(seed, node.name, number) for number in range(node.boards))
    return tuple(
        SimulatedBoard(uuid, minor, product, tuple(by_board[uuid].values()))
        for minor, uuid in enumerate(uuids)
    )


def _gpus(seed: int, node: Node) -> Iterator[SimulatedGpu]:
    for offer in node.offers:
        idle_w, _, memory, coverage, has_busy, has_sm = hardware_of(node, offer.resource)
        for slot in range(offer.units):
            uuid, _, instance = gpu_id(seed, node, offer, slot).partition("/")
            sliced = node.product if "-MIG-" in node.product else offer.resource
            yield SimulatedGpu(
                DeviceKey(uuid, instance),
                offer.share * offer.replicas,
                offer.replicas,
                sliced.rpartition("-")[2] if instance else "",
                offer.resource,
                int(memory),
                idle_w,
                Fraction(str(coverage)),
                has_busy,
                has_sm,
            )
