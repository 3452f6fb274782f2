"""A month that is read now: each day is reported, and its waste beside it, once."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import pytest

from gpucost.attribution.frames import ClusterFrames
from gpucost.attribution.teams import TeamRules
from gpucost.domain.errors import QueryRejected, SourceTimeout
from gpucost.domain.time import DAY_MS, HOUR_MS, Month, Window
from gpucost.ledger.db.records import WindowInfo
from gpucost.service.detection.waste_accounting import WasteAccounting
from gpucost.service.ingest.pipeline import OnWindow
from gpucost.service.settings.model import Settings
from gpucost.service.wiring import adhoc_month
from gpucost.service.wiring.adhoc_month import read_month
from gpucost.service.wiring.inputs import load_book, parse_source
from gpucost.telemetry.recorded_source import RecordedSource, record
from tests.detectors.worlds import CLUSTER, T0, World

HOURS = 78
"""Three days and six hours of a fourth."""
BROKEN = Window(T0 + DAY_MS, T0 + 2 * DAY_MS)


class Remembering(RecordedSource):
    """Remembers what it was asked. It has no history of the middle of one day."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.asked: list[tuple[str, Window]] = []

    def read(self, cluster: str, window: Window) -> ClusterFrames:
        self.asked.append(("read", window))
        return super().read(cluster, window)

    def history(self, cluster: str, window: Window, only: Collection[str] | None = None) -> ClusterFrames:
        self.asked.append(("history", window))
        if window.start_ms == BROKEN.start_ms - DAY_MS and window.end_ms > BROKEN.end_ms:
            raise QueryRejected("too many samples")
        return super().history(cluster, window, only)


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Remembering:
    world = World(60 * HOURS).node("n1").pod("a", "n1", 0, units=2)
    record(tmp_path / "recording", world.frames())
    found = Remembering(tmp_path / "recording")
    monkeypatch.setattr(adhoc_month, "open_source", lambda *_, **__: found)
    return found


def test_a_question_that_fails_on_the_way_costs_the_waste_of_a_day_and_no_report(
    source: Remembering, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert source.asked == []
    settings = parse_source(f"recorded:{tmp_path / 'recording'}", Settings())
    pending = WasteAccounting.pending
    third = Window(T0 + 2 * DAY_MS, T0 + 3 * DAY_MS)

    def sometimes(self: WasteAccounting, cluster: str, span: Window) -> tuple[WindowInfo, ...]:
        if span == third:
            raise SourceTimeout("no answer")
        return pending(self, cluster, span)

    monkeypatch.setattr(WasteAccounting, "pending", sometimes)
    now = T0 + (HOURS + 2) * HOUR_MS
    book, teams = load_book(None), TeamRules.default()
    with read_month(settings, book, teams, Month(2026, 10), lambda: now) as read:
        assert ("SourceTimeout", third) in {(each.kind, each.window) for each in read.failures}
        extent = read.ledger.extent()
        assert extent is not None
        assert extent.end_ms == T0 + HOURS * HOUR_MS
        # At the end it was there again.
        left = read.ledger.unassessed(CLUSTER, Month(2026, 10).window)
        assert third not in {info.window for info in left}


def test_a_day_and_its_waste_follow_one_another(source: Remembering, tmp_path: Path) -> None:
    settings = parse_source(f"recorded:{tmp_path / 'recording'}", Settings())
    told: list[tuple[str, Window]] = []
    totals: dict[str, int] = {}

    def watch(what: str, windows: int) -> OnWindow:
        totals[what] = totals.get(what, 0) + windows
        return lambda _, window: told.append((what, window))

    now = T0 + (HOURS + 2) * HOUR_MS
    with read_month(
        settings, load_book(None), TeamRules.default(), Month(2026, 10), lambda: now, watch=watch
    ) as read:
        found = read.failures
        left = read.ledger.unassessed(CLUSTER, Month(2026, 10).window)
    # A day that failed is not tried again at the end, with the hours of the last.
    assert [(each.window, each.kind) for each in found] == [(BROKEN, "QueryRejected")]
    assert [info.window for info in left if info.window.length_ms == DAY_MS] == [BROKEN]
    days = [Window(T0 + n * DAY_MS, T0 + (n + 1) * DAY_MS) for n in range(3)]
    whole = [(what, window) for what, window in told if window.length_ms == DAY_MS]
    waste = f"{CLUSTER}: waste"
    assert whole == [
        *((CLUSTER, days[0]), (waste, days[0])),
        (CLUSTER, days[1]),
        *((CLUSTER, days[2]), (waste, days[2])),
    ]
    hours = [*Window(days[-1].end_ms, T0 + HOURS * HOUR_MS).split(HOUR_MS)]
    assert [what for what, window in told if window in hours] == [CLUSTER] * 6 + [waste] * 6
    assert totals == {CLUSTER: 9, waste: 9}
    assert [kind for kind, _ in source.asked] == ["read", "history"] * 4
