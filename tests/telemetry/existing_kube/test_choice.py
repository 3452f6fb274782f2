"""Either dialect: gpucost's own series from when they begin, the others before, never both for a window."""

from __future__ import annotations

from collections.abc import Collection

import pandas as pd
import pytest

from gpucost.attribution.frames import ClusterFrames
from gpucost.domain.errors import InputError, NotCovered
from gpucost.domain.time import DAY_MS, HOUR_MS, MINUTE_MS, Month, Window
from gpucost.telemetry.dialect_sources import FallbackSource
from gpucost.telemetry.prometheus.api_client import QueryStats

T0 = Month(2026, 10).window.start_ms


class Part:
    """A source that covers one stretch of time, and remembers what it was asked."""

    def __init__(self, name: str, covers: Window | None) -> None:
        self.name, self.covers = name, covers
        self.asked: list[Window] = []
        self.stats = QueryStats()
        self.has, self.same, self.sees = 4, False, 1.0
        self.max_gap_ms = 5 * MINUTE_MS

    def nodes(self, cluster: str) -> int:
        assert cluster
        return self.has

    def node_births(self, cluster: str) -> frozenset[tuple[str, int]]:
        return frozenset({(cluster, 1)}) if not self.same else frozenset({("n", 1)})

    def clusters(self) -> tuple[str, ...]:
        return () if self.covers is None else ("c", self.name)

    def covered(self, cluster: str) -> Window | None:
        return self.covers if cluster in self.clusters() else None

    def read(self, cluster: str, window: Window) -> ClusterFrames:
        self.asked.append(window)
        covered = self.covered(cluster)
        if covered is None or covered.intersect(window) != window:
            raise NotCovered(f"{self.name} has no {window}")
        end = window.start_ms + round(self.sees * window.length_ms)
        row = {"cluster": [cluster], "start_ms": [window.start_ms], "end_ms": [end]}
        return ClusterFrames(observed=pd.DataFrame(row))

    def history(self, cluster: str, window: Window, only: Collection[str] | None = None) -> ClusterFrames:
        assert only is None or "quotas" in only
        return self.read(cluster, window)


def hours(first: float, last: float) -> Window:
    return Window(T0 + round(first * HOUR_MS), T0 + round(last * HOUR_MS))


def either(own: Window | None, existing: Window | None, now: int) -> tuple[FallbackSource, Part, Part]:
    one, other = Part("own", own), Part("existing", existing)
    return FallbackSource(one, other, lambda: now), one, other  # type: ignore[arg-type]  # of the same shape


def test_own_series_count_from_when_they_begin() -> None:
    source, own, existing = either(hours(10, 40), hours(0, 40), T0 + 40 * HOUR_MS)
    assert source.read("c", hours(8, 9)).source == "existing"
    assert source.read("c", hours(9, 11)).source == "existing"
    assert own.asked == []
    assert source.read("c", hours(10, 11)).source == "own"
    assert existing.asked == [hours(8, 9), hours(9, 11)]
    assert source.history("c", hours(12, 13), ["quotas"]).source == "own"


def test_what_is_late_is_waited_for_and_what_is_gone_is_not() -> None:
    window = hours(40, 41)
    source, *_ = either(hours(10, 40), hours(0, 100), window.end_ms + HOUR_MS)
    with pytest.raises(NotCovered, match="own has no"):
        source.read("c", window)
    later, *_ = either(hours(10, 40), hours(0, 100), window.end_ms + DAY_MS)
    assert later.read("c", window).source == "existing"


def test_covered_is_from_the_first_of_either_to_the_last() -> None:
    source, *_ = either(hours(10, 40), hours(0, 38), T0)
    assert source.covered("c") == hours(0, 40)
    assert source.clusters() == ("c", "existing", "own")
    nothing, *_ = either(None, None, T0)
    assert nothing.covered("c") is None
    only, *_ = either(None, hours(0, 5), T0)
    assert only.read("c", hours(1, 2)).source == "existing"


def test_a_heartbeat_that_shows_few_nodes_is_nobodys() -> None:
    source, own, _ = either(hours(0, 40), hours(0, 40), T0 + 40 * HOUR_MS)
    own.has = 1
    assert source.read("c", hours(1, 2)).source == "existing"
    own.has = 2
    assert source.read("c", hours(1, 2)).source == "own"


def test_where_own_series_have_a_gap_who_saw_more_counts() -> None:
    source, own, existing = either(hours(0, 40), hours(0, 40), T0 + 40 * HOUR_MS)
    own.sees = 0.5
    assert source.read("c", hours(1, 3)).source == "existing"
    existing.sees = 0.4
    assert source.read("c", hours(1, 3)).source == "own"
    existing.covers = hours(0, 1)
    assert source.read("c", hours(1, 3)).source == "own"


def test_one_cluster_under_two_names_is_refused() -> None:
    source, own, existing = either(hours(0, 40), hours(0, 40), T0)
    own.same = existing.same = True
    with pytest.raises(InputError, match=r"prometheus\.cluster: 'existing'.*allowed: own"):
        source.clusters()
