"""Boards and instances: what is kept of a reading, and how it is written down."""

from __future__ import annotations

from fractions import Fraction

import pytest

from gpucost_gpu_exporter.holdings import DeviceKey
from gpucost_gpu_exporter.readings import BoardReading, InstanceReading, NodeReading
from gpucost_gpu_exporter.topology import Board, Instance, Topology

INSTANCE = InstanceReading(3, {"MIG-x": 1, "MIG-y": 2}, slices=3, of_slices=7, profile="3g.40gb")
NODE = NodeReading(
    "570.1",
    (
        BoardReading("GPU-a", minor=0),
        BoardReading("GPU-b", minor=4, mig=True, instances=(INSTANCE,)),
        BoardReading("GPU-c"),
    ),
)
TOPOLOGY = Topology(
    {"GPU-a": Board(0), "GPU-b": Board(4, {3: Instance(3, {"MIG-x": 1, "MIG-y": 2})}), "GPU-c": Board(None)}
)


def test_from_a_reading() -> None:
    assert Topology.from_reading(NODE) == TOPOLOGY


def test_look_ups() -> None:
    assert TOPOLOGY.by_minor(4) == "GPU-b"
    assert TOPOLOGY.by_minor(1) is None
    assert TOPOLOGY.mig("MIG-y") == (DeviceKey("GPU-b", "3"), Fraction(2, 3))
    assert TOPOLOGY.mig("MIG-z") is None


@pytest.mark.parametrize(("slices", "share"), [(0, Fraction(1)), (1, Fraction(1)), (4, Fraction(1, 2))])
def test_a_compute_instance_is_never_more_than_its_gpu_instance(slices: int, share: Fraction) -> None:
    assert Instance(slices, {}).share(2) == share


@pytest.mark.trap(32)
@pytest.mark.fault(2)
def test_a_lost_board_is_as_it_was() -> None:
    lost = NodeReading("570.1", (BoardReading("GPU-b", lost="GPU_IS_LOST"), BoardReading("GPU-a", minor=1)))
    seen = Topology.from_reading(lost, before=TOPOLOGY)
    assert seen.boards == {"GPU-b": TOPOLOGY.boards["GPU-b"], "GPU-a": Board(1)}
    assert Topology.from_reading(lost).boards["GPU-b"] == Board(None)
