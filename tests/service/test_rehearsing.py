"""Rehearsals count days: a finding that comes and goes within one was there on one day."""

from __future__ import annotations

import pytest

from gpucost.attribution.teams import TeamRules
from gpucost.detectors.findings import WastePattern
from gpucost.detectors.rule_settings import RuleSettings
from gpucost.domain.gpu import ResourceCatalog, ShareBasis
from gpucost.domain.time import DAY_MS
from gpucost.service.detection.backtest import DetectorBacktest
from gpucost.service.ingest.batch_reader import AttributionRules
from gpucost.telemetry.recorded_source import RecordedSource, record
from tests.detectors.worlds import CLUSTER, World, at, four_dollars

RULES = AttributionRules(four_dollars, TeamRules.default(), ResourceCatalog(), ShareBasis.COMPUTE)
DAYS = 3


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> RecordedSource:
    """For three days a batch job idles for five hours, works for one, and begins again."""
    folder = tmp_path_factory.mktemp("recording")
    world = World(DAYS * DAY_MS // 60_000).node("n1", 2)
    world.pod("p", "n1", 0, units=1, job="train", team="nlp")
    world.work("p", "n1", "g0", ([0.0] * 60 + [0.9] * 12) * 4 * DAYS)
    record(folder, world.frames())
    return RecordedSource(folder)


@pytest.mark.parametrize("asked", [1, 2, 3, 9])
def test_a_finding_is_never_found_on_more_days_than_there_were(source: RecordedSource, asked: int) -> None:
    rehearsing = DetectorBacktest(source, RULES, RuleSettings(), DAY_MS, 28 * DAY_MS)
    told = rehearsing.rehearse(CLUSTER, asked, at(DAYS * 24 * 60))
    looked = min(asked, DAYS)
    assert {each.of for each in told.findings} == {looked}
    assert all(each.days <= looked for each in told.findings)
    [idle] = [each for each in told.findings if each.finding.draft.pattern is WastePattern.IDLE_ALLOCATION]
    assert idle.days == looked, "four stretches a day are one day"
    assert idle.board_ms > looked * 15 * 3_600_000, "and all of them count"


def test_what_was_not_said_is_counted_with_its_reason(source: RecordedSource) -> None:
    rehearsing = DetectorBacktest(source, RULES, RuleSettings(), DAY_MS, 28 * DAY_MS)
    told = rehearsing.rehearse(CLUSTER, 2, at(DAYS * 24 * 60))
    times = {each.times for each in told.withheld if each.pattern is WastePattern.CPU_ONLY_PODS}
    assert times == {2}, "once a day"
