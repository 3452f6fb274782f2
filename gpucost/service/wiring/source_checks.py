"""Checks of a source that make no window: series of untrusted jobs, and a trial reading."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from gpucost.domain.time import DAY_MS, HOUR_MS, Window
from gpucost.service.ingest.pipeline import attribute_windows
from gpucost.service.wiring.pipeline import rules_of
from gpucost.service.wiring.source import build_client, existing_options, source_options
from gpucost.telemetry.prometheus.trust import kinds_read, strangers

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Sequence

    from gpucost.attribution.teams import TeamRules
    from gpucost.contract.probe import ForeignJob, TrialReading
    from gpucost.pricing.price_book import PriceBook
    from gpucost.service.settings.model import Settings


def build_strangers(
    settings: Settings, now: Callable[[], int], stopped: threading.Event
) -> Callable[[str], Sequence[ForeignJob]]:
    """Scrape jobs whose series in the last hour are not trusted, by cluster; the function raises SourceError.
    None in a recording."""
    found = settings.prometheus
    if settings.source.path is not None:
        return lambda cluster: ()  # noqa: ARG005  a recording has no jobs
    # Imported here, since only the service needs it.
    from gpucost.telemetry.upstream.kube_reader import KubeStateReader

    client, options = build_client(found, stopped=stopped, attempts=1), source_options(found)

    def look(cluster: str) -> Sequence[ForeignJob]:
        until = now()
        window = Window(until - HOUR_MS, until)
        reader = KubeStateReader(client, options, cluster, window, existing_options(settings))
        return strangers(reader, window, kinds_read(reader, found.dialect))

    return look


def build_trial(
    settings: Settings, book: PriceBook, teams: TeamRules, *, attempts: int | None = None
) -> Callable[[str, int], TrialReading | None]:
    """What a report says of the minutes of a cluster before an instant, for ``gpucost doctor``; the function
    raises SourceError."""
    # Imported here, since only the doctor needs it.
    from gpucost.telemetry.doctor.trial_reading import read_trial
    from gpucost.telemetry.upstream.upstream_source import UpstreamSource

    client = build_client(settings.prometheus, attempts=attempts)
    options = replace(source_options(settings.prometheus, book.label_names), history_ms=DAY_MS)
    rules = rules_of(settings, book, teams)

    def read(cluster: str, at_ms: int) -> TrialReading | None:
        at = replace(options, as_of_ms=at_ms)
        source = UpstreamSource(client, at, existing_options(settings), now=lambda: at_ms)
        return read_trial(source, cluster, lambda frames, span: attribute_windows(frames, [span], rules))

    return read
