"""Builders of prices, the rules of attribution, and the pipeline that uses them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import gpucost
from gpucost.pricing.opencost_prices import ObservedPriceMode, OpenCostRates
from gpucost.service.ingest.batch_reader import AttributionRules
from gpucost.settings.types import milliseconds

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable

    from gpucost.attribution.teams import TeamRules
    from gpucost.domain.rates import RateLookup
    from gpucost.ledger.ledger import Ledger
    from gpucost.pricing.price_book import PriceBook
    from gpucost.service.ingest.pipeline import Pipeline
    from gpucost.service.settings.model import AttributionSettings, IngestSettings, Settings
    from gpucost.telemetry.interval_source import IntervalSource


def build_prices(
    settings: Settings, book: PriceBook, *, stopped: threading.Event | None = None
) -> RateLookup:
    """The book's prices, and OpenCost's as the settings say. No request is made yet; a later call may make
    one, and raises its errors."""
    found = settings.pricing
    if found.opencost is ObservedPriceMode.OFF or settings.source.path is not None:
        return book.rates
    # Imported here, since few installations have it.
    from gpucost.service.wiring.prometheus_connection import build_client, source_options
    from gpucost.telemetry.prometheus.cluster_reader import ClusterReader
    from gpucost.telemetry.upstream.opencost_series import read_prices

    client, options = (
        build_client(settings.prometheus, stopped=stopped),
        source_options(settings.prometheus, book.label_names),
    )
    return OpenCostRates(
        lambda cluster, window: read_prices(ClusterReader(client, options, cluster, window), window),
        book.rates,
        found.opencost,
        book.currency,
        found.opencost_basis,
    )


def build_rules(
    settings: AttributionSettings, book: PriceBook, teams: TeamRules, prices: RateLookup | None = None
) -> AttributionRules:
    """``prices`` are those of ``build_prices``; the book's alone where they are not given."""
    return AttributionRules(prices or book.rates, teams, settings.catalog(), settings.basis)


def rules_of(
    settings: Settings, book: PriceBook, teams: TeamRules, *, stopped: threading.Event | None = None
) -> AttributionRules:
    """``build_rules`` with the prices of ``build_prices``."""
    return build_rules(settings.attribution, book, teams, build_prices(settings, book, stopped=stopped))


def build_pipeline(
    settings: IngestSettings,
    source: IntervalSource,
    ledger: Ledger,
    rules: AttributionRules,
    now: Callable[[], int],
) -> Pipeline:
    """The pipeline of ``gpucost ingest``, ``serve`` and ``demo``: there is only this one."""
    # Imported here, since a worker of a back-fill has rules and no ledger.
    from gpucost.service.ingest.pipeline import Pipeline

    return Pipeline(
        source=source,
        ledger=ledger,
        rules=rules,
        window_ms=milliseconds(settings.window),
        batch_ms=milliseconds(settings.batch),
        lateness_ms=milliseconds(settings.lateness),
        now=now,
        code_version=gpucost.__version__,
    )
