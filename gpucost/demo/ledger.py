"""A ledger of the simulated cluster's past, so that costs, findings and waste do not begin with the demo."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import pandas as pd

from gpucost.attribution.frames import Frames
from gpucost.attribution.teams import TeamRules
from gpucost.cluster.overview import Overview
from gpucost.domain.time import DAY_MS, HOUR_MS, MINUTE_MS, Window
from gpucost.ledger import Ledger
from gpucost.pricing.book import PriceBook
from gpucost.service.detect_status import DetectStatus
from gpucost.service.settings import AttributionSettings, IngestSettings
from gpucost.service.settings_detectors import DetectorsSettings
from gpucost.service.status import LoopStatus
from gpucost.service.wiring.detection import build_assessing, build_detecting
from gpucost.service.wiring.pipeline import build_pipeline, build_rules
from gpucost.simulator.cluster import SimulatedCluster
from gpucost.simulator.demo import PRICES_NAME, TEAMS_NAME, demo_prices_text, demo_teams_text
from gpucost.simulator.state import cluster_state
from gpucost.telemetry.recorded import RecordedSource, record

# What is found only once is not sure yet.
_LOOKS_BEFORE_MS = (10 * MINUTE_MS, 5 * MINUTE_MS, 0)
# Rules look back for a day.
_MORE_MS = DAY_MS


@dataclass(frozen=True)
class Past:
    """A ledger filled up to an instant, and what the loops that filled it say of themselves."""

    ledger: Ledger
    book: PriceBook
    teams: TeamRules
    status: LoopStatus
    detectors: DetectStatus


@contextmanager
def past_of(
    cluster: SimulatedCluster,
    folder: Path,
    url: str,
    window: Window,
    detectors: DetectorsSettings,
    looks_before_ms: Sequence[int] = _LOOKS_BEFORE_MS,
) -> Iterator[Past]:
    """Record the cluster in ``folder``, bring ``window`` into the ledger at ``url``, and look for findings as
    of its end. The clock stands at the end of the window."""
    recording = folder / "recording"
    record(recording, _cut(cluster.frames, Window(window.start_ms - _MORE_MS, window.end_ms)))
    book = PriceBook.parse(demo_prices_text(), PRICES_NAME)
    teams = TeamRules.parse(demo_teams_text(), TEAMS_NAME)
    rules = build_rules(AttributionSettings(), book, teams)
    now = _clock(window.end_ms)
    # Nothing flows in any more, and nothing shall: its loop is as it was.
    status, detect_status = LoopStatus(lambda: 0.0), DetectStatus()
    with Ledger.open(url, now=now) as ledger:
        pipeline = build_pipeline(IngestSettings(), RecordedSource(recording), ledger, rules, now)
        status.started(HOUR_MS)
        pending = pipeline.pending(cluster.name, window)
        outcome = pipeline.ingest(
            cluster.name, pending, on_window=lambda name, _: status.window_ingested(name, window.end_ms)
        )
        status.cluster_read(
            cluster.name, pending=len(pending) - outcome.ingested, lost=0, failures=outcome.failures
        )
        status.turned(window.end_ms)
        detecting = build_detecting(detectors, pipeline)
        for before_ms in sorted(looks_before_ms, reverse=True):
            at_ms, begun = window.end_ms - before_ms, time.monotonic()
            overview = Overview(cluster_state(cluster, at_ms), rules.catalog)
            found = detecting.once(cluster.name, at_ms, overview)
            if found is not None:
                detect_status.looked(cluster.name, found, time.monotonic() - begun, has_state=True)
        assessing = build_assessing(detectors, pipeline, detecting)
        assessing.assess(cluster.name, assessing.pending(cluster.name, window))
        yield Past(ledger, book, teams, status, detect_status)


def _cut(frames: Frames, window: Window) -> Frames:
    """The rows that have a part in ``window``, whole; what was observed is cut to it."""
    cut: dict[str, Any] = {}
    for each in fields(frames):
        frame = getattr(frames, each.name)
        if isinstance(frame, pd.DataFrame):
            keep = (frame["start_ms"] < window.end_ms) & (frame["end_ms"] > window.start_ms)
            cut[each.name] = frame[keep].reset_index(drop=True)
    spans = cut["observed"]
    cut["observed"] = spans.assign(
        start_ms=spans["start_ms"].clip(lower=window.start_ms),
        end_ms=spans["end_ms"].clip(upper=window.end_ms),
    )
    return Frames(**cut, problems=frames.problems)


def _clock(at_ms: int) -> Callable[[], int]:
    return lambda: at_ms
