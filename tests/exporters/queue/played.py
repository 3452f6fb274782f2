"""The scripted day, played to the real collector: every scrape of it, and what follows at each step."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache

from prometheus_client.parser import text_string_to_metric_families

from gpucost.cluster.views.overview import ClusterOverview
from gpucost.kube.connect.connection import connect_url
from gpucost.kube.parse.collections import collections
from gpucost.kube.watch.cluster_watch import WatchClocks
from gpucost.kube.watch.reflector import ReflectorSettings
from gpucost_exporter_base.endpoint import EndpointRequest
from gpucost_queue_collector.collector import QueueCollector
from tests.exporters.queue.day import World, day
from tests.exporters.queue.day_truth import END_MS
from tests.support.cluster.server import ClusterServer

SCRAPE_MS = 60_000
"""Scrapes are half a minute past each full one."""
SCRAPED_UNTIL_MS = END_MS + 15 * SCRAPE_MS
LAST_SCRAPE_MS = SCRAPED_UNTIL_MS - SCRAPE_MS // 2
"""A little beyond the day: a source believes a window once it has heard from after it."""

_SETTINGS = ReflectorSettings(page_size=7, inactivity_s=3.0, short_watch_s=0.0, absent_s=0.2)
_SCRAPE = EndpointRequest("GET", "/metrics", "", {"accept": "text/plain"}, True)


@dataclass(frozen=True)
class Scrape:
    """One page, scraped at ``at_ms``."""

    at_ms: int
    text: str
    _read: dict[str, Mapping[tuple[tuple[str, str], ...], float]] = field(
        default_factory=dict, compare=False, repr=False
    )

    def values(self, metric: str) -> Mapping[tuple[tuple[str, str], ...], float]:
        """Of one metric, by its labels. Read once: dozens of tests look at the same scrapes."""
        if metric not in self._read:
            self._read[metric] = {
                tuple(sorted(sample.labels.items())): sample.value
                for family in text_string_to_metric_families(_lines_of(self.text, metric))
                for sample in family.samples
            }
        return self._read[metric]

    def by(self, metric: str, *labels: str) -> dict[tuple[str, ...], float]:
        """Of one metric, by some of its labels, which must tell its series apart."""
        found: dict[tuple[str, ...], float] = {}
        for key, value in self.values(metric).items():
            names = dict(key)
            named = tuple(names[label] for label in labels)
            assert named not in found, (metric, named)
            found[named] = value
        return found


@dataclass
class Played:
    """The day is over. ``overviews`` are by the instant of the step that they follow."""

    scrapes: list[Scrape] = field(default_factory=list)
    overviews: dict[int, ClusterOverview] = field(default_factory=dict)
    errors: list[dict[tuple[str, str], int]] = field(default_factory=list)

    def last(self, at_ms: int) -> Scrape:
        """The last scrape at or before an instant."""
        return max((each for each in self.scrapes if each.at_ms <= at_ms), key=lambda each: each.at_ms)


class _Stage:
    """The collector, its clock, and the world it looks at."""

    def __init__(self, server: ClusterServer, played: Played) -> None:
        self.server, self.played = server, played
        self.now_ms = 0
        self.collector: QueueCollector | None = None
        self.transport = connect_url(server.url)
        self.world = World(server, self.kill, self.begin)

    def begin(self) -> None:
        clocks = WatchClocks(lambda: self.now_ms * 1_000_000, jitter=lambda: 0.03)
        self.collector = QueueCollector(self.transport, collections(), clocks=clocks, settings=_SETTINGS)
        self.collector.start()
        assert self.collector.watch.wait(60)
        self.server.settle()

    def kill(self) -> None:
        """It sees what happened until now, and nothing from then on. Nothing of it is kept."""
        assert self.collector is not None
        self.server.settle()
        self.played.errors.append(self.collector.watch.errors())
        self.collector.close()
        self.collector = None
        self.server.forget_clients()

    def play(self) -> None:
        steps = list(day().steps)
        self.now_ms = steps[0].at_ms
        self.begin()
        for step in steps:
            self._scrape_until(step.at_ms)
            self.now_ms = step.at_ms
            self.world.play(step)
            if self.collector is not None:
                self.server.settle()
                self._await_refusals(self.collector)
                self.played.overviews[step.at_ms] = self.collector.refresh()
        self._scrape_until(SCRAPED_UNTIL_MS)
        self.kill()

    def _await_refusals(self, collector: QueueCollector) -> None:
        """A refusal that was sent may still be on its way: until the collector has taken in each."""
        refused, deadline = self.server.standing_faults(), time.monotonic() + 60
        while not all(collector.watch.statuses()[name].problem for name in refused):
            assert time.monotonic() < deadline, refused
            time.sleep(0.002)

    def _scrape_until(self, at_ms: int) -> None:
        half = SCRAPE_MS // 2
        while (scrape_ms := (self.now_ms + half) // SCRAPE_MS * SCRAPE_MS + half) < at_ms:
            self.now_ms = scrape_ms
            if self.collector is not None:
                self.collector.refresh()
                self.played.scrapes.append(Scrape(scrape_ms, self.collector.answer(_SCRAPE).body.decode()))


@contextmanager
def played_day(prepare: Callable[[ClusterServer], object] = lambda _: None) -> Iterator[Played]:
    """Play the day once, on a server that was prepared for it."""
    played = Played()
    with ClusterServer(page_size=7) as server:
        prepare(server)
        stage = _Stage(server, played)
        try:
            stage.play()
        finally:
            if stage.collector is not None:
                stage.collector.close()
            stage.transport.close()
        yield played


@cache
def the_day() -> Played:
    """The day as it is played without any preparation, for tests that only look at it: played once."""
    with played_day() as played:
        return played


def _lines_of(text: str, metric: str) -> str:
    starts = f"{metric}{{", f"{metric} "
    return "".join(f"{line}\n" for line in text.splitlines() if line.startswith(starts))
