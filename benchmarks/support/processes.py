"""What processes use, as the kernel counts it."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from pathlib import Path

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def cpu_s(pids: Iterable[int]) -> float:
    """CPU seconds, in user and kernel mode, that the processes have used so far, to 10 ms each.

    Fields 14 and 15 of proc(5) stat. Raises OSError for a process that has ended.
    """
    ticks = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / _TICKS_PER_S


def resident_mib(pids: Iterable[int]) -> float:
    """Resident memory (VmRSS) in MiB; pages that several processes share count for each."""
    lines = [line for pid in pids for line in Path(f"/proc/{pid}/status").read_text().splitlines()]
    return sum(int(line.split()[1]) for line in lines if line.startswith("VmRSS:")) / 1024


def counting_cpu_s() -> float:
    """CPU seconds in which this process counts to ten million: what a second is worth here and now. A core
    of 3 GHz that nobody else uses takes some 0.5; limits in seconds are of such a core."""
    began, steps = time.process_time(), 10_000_000
    while steps:
        steps -= 1
    return round(time.process_time() - began, 2)
