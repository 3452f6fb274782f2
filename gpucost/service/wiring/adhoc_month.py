"""A month straight from Prometheus, with nothing installed and nothing kept: the pipeline of every other run,
into a temporary ledger."""

from __future__ import annotations

import json
import os
import sqlite3
import zlib
from collections.abc import Callable, Iterator, Sequence, Set
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from gpucost.attribution.teams import TeamRules
from gpucost.domain.errors import InputError, SourceError
from gpucost.domain.time import DAY_MS, HOUR_MS, Month, Window
from gpucost.ledger.ledger import Ledger
from gpucost.pricing.price_book import PriceBook
from gpucost.service.ingest.pipeline import OnWindow, Pipeline, nobody
from gpucost.service.ingest.status import WindowFailure
from gpucost.service.ingest.worker_pools import LocalPool, WorkersLost, local_processes, memory_room_mib
from gpucost.service.reporting.report_service import ReportService
from gpucost.service.settings.model import Settings
from gpucost.service.wiring.ingest_workers import DaysOrder, read_days
from gpucost.service.wiring.ledger import build_reporting
from gpucost.service.wiring.pipeline import build_pipeline, rules_of
from gpucost.service.wiring.source import TrialLook, open_source
from gpucost.telemetry.day_cache import DayCache
from gpucost.telemetry.dialect_sources import DailyUpstreamSource, FallbackSource, source_by_day
from gpucost.telemetry.interval_source import IntervalSource

if TYPE_CHECKING:
    from gpucost.service.detection.waste_accounting import WasteAccounting

# From so many days of nodes on, some five seconds, other processes read: each some days, as many as are read
# at once.
_NODE_DAYS = 900
_MOST_PROCESSES, _MOST_DAYS = 4, 8
# What a process takes, and what it has of each node: some days of who held it, and of what its GPUs did.
_OWN_MIB, _HELD_MIB, _USED_MIB = 256, 3, 6
# Of all processes together: a server answers twenty at once.
_MOST_REQUESTS = 12

WindowWatch = Callable[[str, int], OnWindow]
"""Called with the name of a step and its number of windows; the result is called for each window."""


@dataclass(frozen=True)
class AdhocMonth:
    """What was read: reports over it, and the windows that failed."""

    reporting: ReportService
    ledger: Ledger
    source: IntervalSource
    clusters: tuple[str, ...]
    failures: tuple[WindowFailure, ...]


@contextmanager
def read_month(
    settings: Settings,
    book: PriceBook,
    teams: TeamRules,
    month: Month,
    now: Callable[[], int],
    *,
    cluster: str | None = None,
    only: Window | None = None,
    cost_only: bool = False,
    refreshes: bool = False,
    watch: WindowWatch = lambda what, windows: nobody,  # noqa: ARG005  progress is not reported
) -> Iterator[AdhocMonth]:
    """Read ``month``, of one cluster or all of the source; of the running month what there is now, with its
    last windows open, since they may still change. With ``only``, that stretch instead of the month; with
    ``cost_only``, nothing of use. Days that are over are read once, and again with ``refreshes``. Of many
    nodes other processes read, which import the program's main module: a script calls this under
    ``if __name__ == "__main__"``.

    Raises SourceError when the source cannot be asked, InputError for a cluster it does not have.
    """
    asked = only or month.window
    look = TrialLook(now(), asked, not cost_only, refreshes)
    source = open_source(settings, book, now, look=look)
    with TemporaryDirectory(prefix="gpucost-") as folder:
        file = Path(folder) / "month.db"
        wanted, kept = _KeptLedger.as_before(settings, book, teams, source, cluster, asked)
        is_there = kept is not None and kept.restore(file)
        if not is_there:
            wanted = _wanted(source, cluster)
            kept = _KeptLedger.of(settings, book, teams, source, wanted, asked)
            is_there = kept is not None and kept.restore(file)
            if kept is not None:
                kept.remember(source, wanted, asked, only=cluster is not None)
        with Ledger.open(f"sqlite:///{file}", now=now) as ledger:
            failures: list[WindowFailure] = []
            for name in () if is_there else wanted:
                failures += _cluster(DaysOrder.of(settings, book, teams, look), source, ledger, name, watch)
            if kept is not None and not is_there and not failures:
                kept.keep(file)
            yield AdhocMonth(
                build_reporting(ledger, teams, keeps=False), ledger, source, wanted, tuple(failures)
            )


def is_kept(
    settings: Settings,
    book: PriceBook,
    teams: TeamRules,
    month: Month,
    now: Callable[[], int],
    *,
    cluster: str | None = None,
) -> bool:
    """Whether what ``read_month`` makes of ``month`` is in the user's cache, so that it is there at once.
    Raises SourceError."""
    source = open_source(settings, book, now, look=TrialLook(now(), month.window))
    _, kept = _KeptLedger.as_before(settings, book, teams, source, cluster, month.window)
    return kept is not None and kept.cache.get_bytes(kept.key) is not None


def _wanted(source: IntervalSource, cluster: str | None) -> tuple[str, ...]:
    known = source.clusters()
    if cluster is not None and cluster not in known:
        raise InputError("--cluster", cluster, ", ".join(known) or "nothing: the source knows no cluster")
    return known if cluster is None else (cluster,)


@dataclass(frozen=True)
class _KeptLedger:
    """The ledger of days that are all over, in the user's cache: what becomes of them depends on nothing but
    the code, the settings, prices and team rules, and what the server counts of each day."""

    cache: DayCache
    key: str

    @classmethod
    def of(
        cls,
        settings: Settings,
        book: PriceBook,
        teams: TeamRules,
        source: IntervalSource,
        clusters: Sequence[str],
        asked: Window,
    ) -> _KeptLedger | None:
        """None where any of it may still change."""
        if not isinstance(source, (FallbackSource, DailyUpstreamSource)):
            return None
        marks: list[str] = []
        cache: DayCache | None = None
        for cluster in clusters:
            covered = source.covered(cluster)
            span = None if covered is None else covered.intersect(asked)
            # A month that began before the server's memory is not whole, and may be less tomorrow.
            kept = source.kept(cluster, span) if span == asked else None
            if kept is None:
                return None
            marks.append(kept.mark)
            cache = kept.cache
        return None if cache is None else cls(cache, _key(settings, book, teams, marks))

    @classmethod
    def as_before(
        cls,
        settings: Settings,
        book: PriceBook,
        teams: TeamRules,
        source: IntervalSource,
        cluster: str | None,
        asked: Window,
    ) -> tuple[tuple[str, ...], _KeptLedger | None]:
        """As ``of`` at the last time, with the clusters, where the server still counts the same."""
        by_day = source_by_day(source)
        found = None if by_day is None else by_day.kept_as_before(asked, cluster)
        if found is None:
            return (), None
        clusters, kept = found
        return clusters, cls(kept[0].cache, _key(settings, book, teams, [each.mark for each in kept]))

    def remember(self, source: IntervalSource, clusters: Sequence[str], asked: Window, *, only: bool) -> None:
        by_day = source_by_day(source)
        if by_day is not None:
            by_day.remember(asked, clusters, only=only)

    def restore(self, file: Path) -> bool:
        """Whether ``file`` is now the ledger as it was kept."""
        content = self.cache.get_bytes(self.key)
        if content is None:
            return False
        file.write_bytes(zlib.decompress(content))
        file.chmod(0o600)
        return True

    def keep(self, file: Path) -> None:
        with closing(sqlite3.connect(file)) as connection:
            self.cache.put_bytes(self.key, zlib.compress(connection.serialize(), 1))


def _key(settings: Settings, book: PriceBook, teams: TeamRules, marks: Sequence[str]) -> str:
    told = (settings, book.file, teams.file)
    return json.dumps([*(each.model_dump_json() for each in told), *marks])


def _cluster(
    order: DaysOrder, source: IntervalSource, ledger: Ledger, cluster: str, watch: WindowWatch
) -> Sequence[WindowFailure]:
    settings = order.settings
    covered = source.covered(cluster)
    span = None if covered is None else covered.intersect(order.look.days)
    if covered is None or span is None:
        return ()
    # The source's last instant counts as now: a window is settled once the source has passed its lateness.
    reached_ms = covered.end_ms
    rules = rules_of(settings, order.book, order.teams)
    windows = [*_windows(span)]
    tell, done = watch(cluster, len(windows)), set[Window]()

    def written(cluster: str, window: Window) -> None:
        done.add(window)
        tell(cluster, window)

    def pipeline_by(days: int) -> Pipeline:
        ingest = settings.ingest.model_copy(update={"batch": timedelta(days=days)})
        return build_pipeline(ingest, source, ledger, rules, lambda: reached_ms)

    def without_waste() -> Sequence[WindowFailure]:
        nodes = _many_nodes(source, cluster, span)
        count = _processes(nodes, reads_use=order.look.reads_use) if nodes else 1
        if count > 1:
            shared = order.shared(nodes, max(2, _MOST_REQUESTS // count))
            # Without other processes, or memory for them, this one reads what is left.
            with suppress(WorkersLost, OSError):
                return _by_processes(count, shared, pipeline_by, cluster, windows, written)
        left = [each for each in windows if each not in done]
        return pipeline_by(1).ingest(cluster, left, on_window=written).failures

    if not settings.detectors.enabled:
        failures = without_waste()
        return [*failures, *_untried(cluster, windows, done, failures)]
    from gpucost.service.wiring.detection import build_assessing

    pipeline = pipeline_by(1)
    waste = _Waste(build_assessing(settings.detectors, pipeline), watch(f"{cluster}: waste", len(windows)))
    failures = pipeline.ingest(cluster, windows, on_window=_both(written, waste.written)).failures
    return [*failures, *_untried(cluster, windows, done, failures), *waste.rest(cluster, span)]


def _by_processes(
    count: int,
    order: DaysOrder,
    pipeline_by: Callable[[int], Pipeline],
    cluster: str,
    windows: Sequence[Window],
    written: OnWindow,
) -> Sequence[WindowFailure]:
    """Read ``windows`` in ``count`` other processes, each some days."""
    with local_processes(count, read_days.__module__) as processes:
        assert processes is not None
        pool = LocalPool(partial(read_days, order), processes)
        length_ms = windows[-1].end_ms - windows[0].start_ms
        days = min(_MOST_DAYS, -(-length_ms // DAY_MS // (2 * count)))
        return pipeline_by(days).ingest(cluster, windows, on_window=written, workers=pool).failures


def _untried(
    cluster: str, windows: Sequence[Window], done: Set[Window], failures: Sequence[WindowFailure]
) -> Iterator[WindowFailure]:
    """The stretches of ``windows`` that are neither ``done`` nor among the failures."""
    failed = [each.window for each in failures if each.window is not None]
    is_left = [one not in done and not any(map(one.intersect, failed)) for one in windows]
    for left, group in groupby(zip(windows, is_left, strict=True), key=itemgetter(1)):
        stretch = [window for window, _ in group]
        if left:
            span = Window(stretch[0].start_ms, stretch[-1].end_ms)
            why = "the source did not answer for another day, and was not asked for this any more"
            yield WindowFailure(cluster, span, "NotTried", why)


def _many_nodes(source: IntervalSource, cluster: str, span: Window) -> int:
    """The number of nodes with GPUs, where to read ``span`` takes longer than other processes take to start;
    else 0."""
    by_day = source_by_day(source)
    if by_day is None or span.length_ms < 2 * DAY_MS or _cores() == 1:
        return 0
    try:
        nodes = by_day.node_count(cluster)
    except SourceError:
        return 0  # said where it is read
    return nodes if nodes * span.length_ms >= _NODE_DAYS * DAY_MS else 0


def _processes(nodes: int, *, reads_use: bool) -> int:
    """How many processes may read days of so many nodes, of the cores and the memory that there are."""
    each_mib = _OWN_MIB + nodes * (_USED_MIB if reads_use else _HELD_MIB)
    room_mib = memory_room_mib()
    return _cores() if room_mib is None else min(_cores(), room_mib // each_mib)


def _cores() -> int:
    # Not every system says which cores a process may use.
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(usable, _MOST_PROCESSES)


@dataclass
class _Waste:
    """Each day is assessed as soon as it is in the ledger: its history is in memory then, and that of the
    next day will be."""

    assessing: WasteAccounting
    on_window: OnWindow
    tried: set[Window] = field(default_factory=set)
    failures: list[WindowFailure] = field(default_factory=list)

    def written(self, cluster: str, window: Window) -> None:
        if window.length_ms == DAY_MS:
            self._assess(cluster, window)

    def rest(self, cluster: str, span: Window) -> Sequence[WindowFailure]:
        """Assess what is left, as the last day that is not whole; returns what failed, in all."""
        self._assess(cluster, span)
        return self.failures

    def _assess(self, cluster: str, span: Window) -> None:
        try:
            pending = self.assessing.pending(cluster, span)
        except SourceError as error:
            self.failures.append(WindowFailure.of(cluster, span, error))
            return
        found = [info for info in pending if info.window not in self.tried]
        self.tried |= {info.window for info in found}
        self.failures += self.assessing.assess(cluster, found, on_window=self.on_window).left_out


def _both(one: OnWindow, other: OnWindow) -> OnWindow:
    def tell(cluster: str, window: Window) -> None:
        one(cluster, window)
        other(cluster, window)

    return tell


def _windows(span: Window) -> Iterator[Window]:
    """Whole days; the day that a running month has reached by the hour, the last hour as far as it came."""
    until = span.end_ms - span.end_ms % DAY_MS
    if span.start_ms < until:
        yield from Window(span.start_ms, until).split(DAY_MS)
    if until < span.end_ms:
        yield from Window(max(until, span.start_ms), span.end_ms).split(HOUR_MS)
