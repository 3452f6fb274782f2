"""Builders of the source of the settings: Prometheus and its options, or a recording."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpucost.telemetry.recorded_source import RecordedSource

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Sequence

    from gpucost.domain.time import Window
    from gpucost.pricing.price_book import PriceBook
    from gpucost.service.settings.inner_schedulers import InnerSchedulerSettings
    from gpucost.service.settings.model import Settings
    from gpucost.telemetry.inner.inner_source import RecordedScheduler
    from gpucost.telemetry.interval_source import IntervalSource


@dataclass(frozen=True, slots=True)
class TrialLook:
    """One reading, as of ``at_ms``, of ``days``, each with the time around it; of use only with
    ``reads_use``. Days that are over are kept for the next; with ``refreshes``, they are read anew. Where
    others read beside this one, no more than ``at_once`` requests are under way."""

    at_ms: int
    days: Window
    reads_use: bool = True
    refreshes: bool = False
    at_once: int | None = None


def open_source(
    settings: Settings,
    book: PriceBook,
    now: Callable[[], int],
    *,
    stopped: threading.Event | None = None,
    look: TrialLook | None = None,
) -> IntervalSource:
    """The source of the settings, with the pods of its inner schedulers divided. No request is made yet.
    Raises InputError for a folder that is none.

    Once ``stopped`` is set, no failed query is tried again. With ``look`` no query is made twice, and windows
    are read up to its instant: the result must not be kept.
    """
    source: IntervalSource
    if settings.source.path is not None:
        source = RecordedSource(settings.source.path)
    else:
        # Imported here, since a recording needs nothing that asks a server.
        from gpucost.service.wiring.prometheus_connection import open_prometheus

        source = open_prometheus(settings, book, now, stopped, look)
    schedulers = inner_schedulers(settings)
    if not schedulers:
        return source
    from gpucost.telemetry.inner.inner_source import InnerSource

    return InnerSource(source, schedulers, settings.attribution.catalog(), settings.attribution.basis)


def inner_schedulers(settings: Settings) -> Sequence[RecordedScheduler]:
    """The inner schedulers of the settings. Nothing is read yet."""
    if not settings.source.inner_schedulers:
        return ()
    return [recorded_scheduler(each) for each in settings.source.inner_schedulers]


def recorded_scheduler(found: InnerSchedulerSettings) -> RecordedScheduler:
    """One entry of the settings. Nothing is read yet."""
    from gpucost.telemetry.inner.inner_source import RecordedScheduler, ray_parser, read_slurm
    from gpucost.telemetry.inner.pod_division import InnerScheduler, NodeNameSource
    from gpucost.telemetry.inner.ray_jobs import MetadataKeys
    from gpucost.telemetry.inner.record_folder import RecordFolder

    keys = MetadataKeys(found.user_key, found.team_key, found.gpus_key)
    scheduler = InnerScheduler(
        name=found.name,
        kind=found.kind,
        cluster=found.cluster,
        namespace=found.namespace,
        pods=re.compile(found.pods),
        owners=re.compile(found.owners) if found.owners else None,
        node_name=found.node_name,
        node_from=NodeNameSource(found.node_from),
        teams=found.teams or ("*",),
        elsewhere=re.compile(found.other_nodes) if found.other_nodes else None,
    )
    parse = read_slurm if found.kind == "slurm" else ray_parser(keys)
    return RecordedScheduler(scheduler, RecordFolder(found.path, parse))
