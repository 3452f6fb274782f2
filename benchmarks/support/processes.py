"""What processes use, as the kernel counts it."""

from __future__ import annotations

import os
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
