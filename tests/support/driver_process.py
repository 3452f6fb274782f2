"""The real driver process over the stand-in driver, with the driver's virtual clock as the parent's clock."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from gpucost_gpu_exporter.driver_link import DriverLink
from gpucost_gpu_exporter.model.readings import GpuReading, NodeReading, SignalActivity
from tests.support.nvml.driver import DeviceLoad, FakeDriver

SECOND = 10**9
Loads = Mapping[str | tuple[str, int], DeviceLoad]


@dataclass(slots=True)
class Node:
    """A driver and the link to its process; each look first writes the driver's state."""

    driver: FakeDriver
    link: DriverLink

    def look(self, processes: bool = False) -> NodeReading:
        """What the process sees now."""
        self.driver.write()
        return self.link.look(self.driver.now_ns, processes)

    def step(
        self, loads: Loads | None = None, *, seconds: float = 1.0, processes: bool = False
    ) -> NodeReading:
        """What the process sees after a steady load."""
        self.driver.advance(round(seconds * SECOND), loads)
        return self.look(processes)

    def board(self, loads: Loads | None = None, *, processes: bool = False) -> GpuReading:
        """The first GPU, a second later."""
        return self.step(loads, processes=processes).boards[0]


def child_environment(driver: FakeDriver, library: Path) -> dict[str, str]:
    """The environment of a process that finds this project and the stand-in library."""
    path = os.pathsep.join(place for place in sys.path if place)
    return {**os.environ, "PYTHONPATH": path, **driver.environment(library)}


@contextmanager
def driver_node(
    driver: FakeDriver,
    library: Path,
    *,
    resume: Mapping[str, int] | None = None,
    timeout_s: float = 60.0,
    random: Callable[[], float] = lambda: 0.0,
) -> Iterator[Node]:
    """A link to a process of its own, closed at the end. By default a failure is tried again at once."""
    link = DriverLink(
        environment=child_environment(driver, library),
        clock=lambda: driver.now_ns / SECOND,
        random=random,
        timeout_s=timeout_s,
        resume=resume,
    )
    try:
        yield Node(driver, link)
    finally:
        link.close()


@dataclass(slots=True)
class Totals:
    """What readings add up to, for one signal."""

    observed_ns: int = 0
    active_ns: int = 0

    def add(self, activity: Mapping[str, SignalActivity], signal: str) -> None:
        """Count a signal in, if it is there."""
        if signal in activity:
            self.observed_ns += activity[signal].observed_ns
            self.active_ns += activity[signal].active_ns
