"""Frames into a real Prometheus: OpenMetrics text in parts, one TSDB block each."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from gpucost.attribution.frames import ClusterFrames
from gpucost.domain.time import HOUR_MS, Window
from tests.support.prometheus import create_blocks
from tests.support.simulated_metrics.exposition import exposition

# promtool aligns blocks to their length and reads its whole input once per block. Told "at most a day" it
# makes them 18 hours long: parts of that length are read once.
PART_MS = 18 * HOUR_MS


def build_blocks(
    frames: ClusterFrames, window: Window, scrape_ms: int, data: Path, done: Callable[[float], None]
) -> None:
    """Write all scrapes of ``window`` into ``data``, one part after the other, never more than one at a time.

    ``done`` is called with the share that is finished.
    """
    for part in window.split(PART_MS):
        create_blocks(exposition(frames, scrape_ms, part), data)
        done((part.end_ms - window.start_ms) / window.length_ms)
