"""Builders of the workers of a back-fill, on both sides: what is sent to a worker, and what it makes of it.

A worker of ``gpucost ingest`` may be on another machine. It gets no settings and no secrets. It gets the path
of the settings file (none where it was none), the source that the command line named, and a digest of all
that lines depend on: gpucost's version, settings, price book and team rules. It reads its own file and
environment, tokens included, and refuses work where a digest differs, since a ledger with days by other rules
would be wrong without a sign of it. A process that reads days of one report beside its command
(``read_days``) gets all of that through their pipe.
"""

from __future__ import annotations

import hashlib
import platform
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

import gpucost
from gpucost.domain.errors import ErrorRemark, InputError
from gpucost.domain.time import DAY_MS
from gpucost.service.ingest.batch_reader import (
    BatchReader,
    BatchResult,
    ReadyWindows,
    WindowBatch,
    WorkerPool,
)
from gpucost.service.ingest.status import WindowFailure
from gpucost.service.ingest.worker_pools import LocalPool, LocalProcesses, dask_workers
from gpucost.service.settings.loader import load_settings
from gpucost.service.wiring.inputs import load_book, load_teams, parse_source
from gpucost.service.wiring.pipeline import rules_of
from gpucost.service.wiring.source import open_source
from gpucost.settings.types import milliseconds

if TYPE_CHECKING:
    from gpucost.attribution.teams import TeamRules
    from gpucost.pricing.price_book import PriceBook
    from gpucost.service.settings.model import Settings
    from gpucost.service.wiring.source import TrialLook
    from gpucost.telemetry.interval_source import IntervalSource

_SCHEMES = ("tcp://", "tls://")


@dataclass(frozen=True, slots=True)
class WorkerOrder:
    """What every worker is sent, beside its batches. ``digests`` are of what it must have, by name; ``run``
    is of this run only, so that nothing is kept from one to the next."""

    run: str
    config: Path | None
    source: str | None
    digests: tuple[tuple[str, str], ...]

    @classmethod
    def of(
        cls, config: Path | None, source: str | None, settings: Settings, book: PriceBook, teams: TeamRules
    ) -> WorkerOrder:
        file = None if config is None else config.absolute()
        return cls(uuid4().hex, file, source, tuple(_digests(settings, book, teams).items()))


@contextmanager
def open_workers(
    order: WorkerOrder, *, on: str | None, processes: LocalProcesses | None
) -> Iterator[WorkerPool | None]:
    """The workers of the scheduler at ``on``, or ``processes``; None without either: then it is this process
    that reads.

    Raises InputError for an address that is none.
    """
    work = partial(read_by, order)
    if on is not None:
        if not on.startswith(_SCHEMES):
            raise InputError("--on", on, "the address of a Dask scheduler, such as tcp://scheduler:8786")
        with dask_workers(work, on) as pool:
            yield pool
    else:
        yield None if processes is None else LocalPool(work, processes)


def read_by(order: WorkerOrder, batch: WindowBatch) -> BatchResult:
    """In a worker: read a batch by its own settings. Raises InputError where they are not those of the order,
    ConfigError where they cannot be read."""
    return _kept.of(order.run, partial(_opened, order)).read(batch)


@dataclass(frozen=True, slots=True)
class DaysOrder:
    """What a process of this machine needs to read days of a report, beside the days. It holds secrets.
    ``node_count`` is of the cluster that is read, so that all processes read it in the same way."""

    run: str
    settings: Settings
    book: PriceBook
    teams: TeamRules
    look: TrialLook
    node_count: int = 0

    @classmethod
    def of(cls, settings: Settings, book: PriceBook, teams: TeamRules, look: TrialLook) -> DaysOrder:
        return cls(uuid4().hex, settings, book, teams, look)

    def shared(self, node_count: int, at_once: int) -> DaysOrder:
        """For one of several processes, each with no more than ``at_once`` requests under way."""
        return replace(self, node_count=node_count, look=replace(self.look, at_once=at_once))


def read_days(order: DaysOrder, batch: WindowBatch) -> BatchResult:
    """In a process: read some days, each by itself."""
    # Not at the top: workers of a back-fill may read a recording.
    from gpucost.telemetry.dialect_sources import source_by_day

    reader = _kept.of(order.run, partial(_opened_for, order))
    by_day = source_by_day(reader.source)
    if by_day is not None:
        by_day.share(batch.cluster, batch.span, order.node_count)
    parts: list[ReadyWindows | WindowFailure] = []
    for _, windows in groupby(batch.windows, lambda each: each.start_ms // DAY_MS):
        found = reader.read(WindowBatch(batch.cluster, tuple(windows)))
        parts += found.parts
        if not found.is_whole:
            return replace(found, parts=tuple(parts))
    return BatchResult(tuple(parts))


def _opened_for(order: DaysOrder) -> BatchReader:
    source = open_source(order.settings, order.book, lambda: order.look.at_ms, look=order.look)
    return _reader_of(order.settings, order.book, order.teams, source)


def _reader_of(settings: Settings, book: PriceBook, teams: TeamRules, source: IntervalSource) -> BatchReader:
    return BatchReader(source, rules_of(settings, book, teams), milliseconds(settings.ingest.window))


class _KeptReader(threading.local):
    """From batch to batch of a run, with the source's connections, which are of one thread."""

    run = ""
    reader: BatchReader | None = None

    def of(self, run: str, opened: Callable[[], BatchReader]) -> BatchReader:
        if self.reader is None or self.run != run:
            self.reader, self.run = opened(), run
        return self.reader


_kept = _KeptReader()


def _opened(order: WorkerOrder) -> BatchReader:
    settings = load_settings(order.config)
    if order.source is not None:
        settings = parse_source(order.source, settings)
    book, teams = load_book(settings.pricing.book), load_teams(settings.teams.rules)
    own = _digests(settings, book, teams)
    differs = [name for name, digest in order.digests if own.get(name) != digest]
    if differs:
        where = f"{platform.node()} has another {' and '.join(differs)}"
        raise InputError("worker", ErrorRemark(where), "the same as where the command was started")
    source = open_source(settings, book, lambda: time.time_ns() // 1_000_000)
    return _reader_of(settings, book, teams, source)


def _digests(settings: Settings, book: PriceBook, teams: TeamRules) -> Mapping[str, str]:
    """Of all that the lines of a window depend on. Files count by what is in them, secrets not at all."""
    texts = {
        f"gpucost ({gpucost.__version__})": gpucost.__version__,
        "source": settings.source.model_dump_json(),
        "prometheus": settings.prometheus.model_dump_json(exclude={"timeout"}),
        "attribution": settings.attribution.model_dump_json(),
        "pricing": settings.pricing.model_dump_json(exclude={"book"}),
        "ingest.window": str(settings.ingest.window),
        "price book": book.file.model_dump_json(),
        "team rules": teams.file.model_dump_json(),
    }
    return {name: hashlib.sha256(text.encode()).hexdigest() for name, text in texts.items()}
