"""GPUs and instances: what is kept of a reading, and how it is written down."""

from __future__ import annotations

from fractions import Fraction

import pytest

from gpucost_gpu_exporter.model.holdings import (
    DeviceKey,
    GpuDevice,
    GpuTopology,
    MigInstance,
)
from gpucost_gpu_exporter.model.readings import GpuReading, InstanceReading, NodeReading

INSTANCE = InstanceReading(3, {"MIG-x": 1, "MIG-y": 2}, slices=3, of_slices=7, profile="3g.40gb")
NODE = NodeReading(
    "570.1",
    (
        GpuReading("GPU-a", minor=0),
        GpuReading("GPU-b", minor=4, mig=True, instances=(INSTANCE,)),
        GpuReading("GPU-c"),
    ),
)
TOPOLOGY = GpuTopology(
    {
        "GPU-a": GpuDevice(0),
        "GPU-b": GpuDevice(4, {3: MigInstance(3, {"MIG-x": 1, "MIG-y": 2})}),
        "GPU-c": GpuDevice(None),
    }
)


def test_from_a_reading() -> None:
    assert GpuTopology.from_reading(NODE) == TOPOLOGY


def test_look_ups() -> None:
    assert TOPOLOGY.by_minor(4) == "GPU-b"
    assert TOPOLOGY.by_minor(1) is None
    assert TOPOLOGY.mig("MIG-y") == (DeviceKey("GPU-b", "3"), Fraction(2, 3))
    assert TOPOLOGY.mig("MIG-z") is None


@pytest.mark.parametrize(("slices", "share"), [(0, Fraction(1)), (1, Fraction(1)), (4, Fraction(1, 2))])
def test_a_compute_instance_is_never_more_than_its_gpu_instance(slices: int, share: Fraction) -> None:
    assert MigInstance(slices, {}).share(2) == share


@pytest.mark.trap(32)
@pytest.mark.fault(2)
def test_a_lost_board_is_as_it_was() -> None:
    lost = NodeReading("570.1", (GpuReading("GPU-b", lost="GPU_IS_LOST"), GpuReading("GPU-a", minor=1)))
    seen = GpuTopology.from_reading(lost, before=TOPOLOGY)
    assert seen.boards == {"GPU-b": TOPOLOGY.boards["GPU-b"], "GPU-a": GpuDevice(1)}
    assert GpuTopology.from_reading(lost).boards["GPU-b"] == GpuDevice(None)
