"""Memory of a board or MIG instance."""

from __future__ import annotations

from typing import Any

import pynvml

from gpucost_gpu_exporter.driver.calls import CORRUPT, Look, Refused, call_newest
from gpucost_gpu_exporter.readings import Part


def memory_bytes(look: Look, handle: Any, missing: dict[str, str]) -> tuple[int | None, int | None]:
    """(used, total). The older call, second choice, counts as used what the driver keeps for itself."""
    try:
        found = call_newest(
            (pynvml.nvmlDeviceGetMemoryInfo, handle, pynvml.nvmlMemory_v2),
            (pynvml.nvmlDeviceGetMemoryInfo, handle),
        )
    except Refused as refusal:
        missing[Part.MEMORY] = refusal.code
        return None, None
    if found.used > found.total:
        look.drop()
        missing[Part.MEMORY] = CORRUPT
        return None, None
    return found.used, found.total
