"""What the servers would have said: the counter of requests that vLLM exports."""

from __future__ import annotations

from collections.abc import Iterator

from gpucost.attribution.frames import ClusterFrames
from gpucost.contract.metric_spec import escape
from gpucost.simulator.history import HEADER, REQUESTS, request_counters
from tests.support.simulated_metrics.series import ScrapeTimes


def of_servers(frames: ClusterFrames, scrapes: ScrapeTimes) -> Iterator[str]:
    """The lines of all scrapes, with the header before the first."""
    cluster = f'cluster="{escape(str(frames.observed["cluster"].iloc[0]))}"'
    texts = (
        scrapes.samples(
            f"{REQUESTS}{{{cluster},{each.labels}}}", each.curve, each.start_ms, each.end_ms, is_whole=True
        )
        for each in request_counters(frames, scrapes.near(frames.serving))
    )
    found = [text for text in texts if text]
    if found:
        yield HEADER + found[0]
        yield from found[1:]
