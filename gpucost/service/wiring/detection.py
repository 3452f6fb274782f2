"""Builders of the detectors: live findings, the waste ledger, backtests, and the loop that runs them."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from gpucost.detectors.findings import WastePattern
from gpucost.domain.time import HOUR_MS, MINUTE_MS
from gpucost.service.detection.backtest import DetectorBacktest
from gpucost.service.detection.loop import DetectorLoop
from gpucost.service.detection.runner import SLOW, DetectorRunner
from gpucost.service.detection.waste_accounting import PastServers, WasteAccounting
from gpucost.settings.types import milliseconds

if TYPE_CHECKING:
    import threading

    from gpucost.service.detection.loop import DetectorStatus, StateOf
    from gpucost.service.ingest.batch_reader import AttributionRules
    from gpucost.service.ingest.pipeline import Pipeline
    from gpucost.service.settings.detectors import DetectorsSettings
    from gpucost.service.settings.model import Settings
    from gpucost.telemetry.interval_source import IntervalSource


# How late a source may learn of events: the end of a cluster's history is read again each time.
_OVERLAP_MS = 15 * MINUTE_MS


def build_detecting(settings: DetectorsSettings, pipeline: Pipeline) -> DetectorRunner:
    """Live findings over the source and ledger of ``pipeline``."""
    around = settings.looks_before + settings.looks_after
    return DetectorRunner(
        source=pipeline.source,
        ledger=pipeline.ledger,
        rules=pipeline.rules,
        detectors=settings.rules,
        exemptions=settings.exempt,
        # Enough for windows that are assessed as they come: nothing is read twice.
        history_ms=max(milliseconds(settings.looks_back), milliseconds(around) + pipeline.window_ms),
        slow_ms=milliseconds(settings.quota_history),
        overlap_ms=_OVERLAP_MS,
        past=_past(settings, pipeline),
    )


def build_rehearsing(
    settings: DetectorsSettings, source: IntervalSource, rules: AttributionRules
) -> DetectorBacktest:
    """What the detectors of the settings would have found."""
    lengths = (milliseconds(settings.looks_back), milliseconds(settings.quota_history))
    return DetectorBacktest(source, rules, settings.rules, *lengths)


def build_assessing(
    settings: DetectorsSettings, pipeline: Pipeline, detecting: DetectorRunner | None = None
) -> WasteAccounting:
    """The waste ledger over the source and ledger of ``pipeline``."""
    return WasteAccounting(
        source=pipeline.source,
        ledger=pipeline.ledger,
        rules=pipeline.rules,
        detectors=settings.rules.only(set(WastePattern) - SLOW),
        before_ms=milliseconds(settings.looks_before),
        after_ms=milliseconds(settings.looks_after),
        code_version=pipeline.code_version,
        past=_past(settings, pipeline),
        recent=lambda cluster: None if detecting is None else detecting.rolling(cluster).known,
    )


def build_detect_loop(
    settings: Settings, pipeline: Pipeline, status: DetectorStatus, state: StateOf, stop: threading.Event
) -> DetectorLoop:
    """The loop of ``gpucost serve``, which ends when ``stop`` is set."""
    detecting = build_detecting(settings.detectors, pipeline)
    return DetectorLoop(
        detecting,
        build_assessing(settings.detectors, pipeline, detecting),
        status,
        interval_s=settings.detectors.interval.total_seconds(),
        state=state,
        now=pipeline.now,
        seconds=time.monotonic,
        sleep=stop.wait,
        stopped=stop.is_set,
    )


def _past(settings: DetectorsSettings, pipeline: Pipeline) -> PastServers:
    return PastServers(pipeline.ledger, milliseconds(settings.past), max(pipeline.window_ms, HOUR_MS))
