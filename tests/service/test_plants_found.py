"""The detectors on the simulated month: every plant is found, and what only looks like one is not."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpucost.attribution.teams import TeamRules
from gpucost.cluster.views.overview import ClusterOverview
from gpucost.detectors.engine.evaluation import evaluate
from gpucost.detectors.findings import Finding, WastePattern
from gpucost.domain.gpu import ResourceCatalog, ShareBasis
from gpucost.domain.time import DAY_MS, HOUR_MS, MINUTE_MS, Window
from gpucost.pricing.price_book import PriceBook
from gpucost.service.detection.waste_accounting import look
from gpucost.service.ingest.batch_reader import AttributionRules
from gpucost.service.settings.detectors import DetectorsSettings
from gpucost.simulator.cluster import SimulatedCluster, demo_prices_text, demo_teams_text
from gpucost.simulator.injected_patterns import InjectedPattern
from gpucost.simulator.state import cluster_state
from gpucost.telemetry.recorded_source import RecordedSource, record
from tests.support.simulated import simulated

pytestmark = pytest.mark.slow

NAMES = (
    "finetune-bad-loader", "finetune-five-of-eight", "nb-weekend", "legacy-captioner", "embed-small",
    "pretrain-late-rank", "finetune-blocked-a", "finetune-blocked-b", "grasp-eval", "h100-03", "sim-grid",
)  # fmt: skip


@pytest.fixture(scope="module")
def cluster() -> SimulatedCluster:
    return simulated()


@pytest.fixture(scope="module")
def source(cluster: SimulatedCluster, tmp_path_factory: pytest.TempPathFactory) -> RecordedSource:
    folder: Path = tmp_path_factory.mktemp("recording")
    record(folder, cluster.frames)
    return RecordedSource(folder)


def _found(cluster: SimulatedCluster, source: RecordedSource, plant: InjectedPattern) -> tuple[Finding, ...]:
    """What the detectors say just before the plant ends, with a day of history, or all of a longer one."""
    month = cluster.window
    end_ms = min(plant.window.end_ms, plant.window.start_ms + 3 * DAY_MS, month.end_ms)
    end_ms -= end_ms % (5 * MINUTE_MS)
    window = month.intersect(Window(min(plant.window.start_ms - 2 * HOUR_MS, end_ms - DAY_MS), end_ms))
    assert window is not None
    rules = AttributionRules(
        PriceBook.parse(demo_prices_text(), "prices").rates,
        TeamRules.parse(demo_teams_text(), "teams"),
        ResourceCatalog(),
        ShareBasis.COMPUTE,
    )
    facts = look(cluster.name, source.history(cluster.name, window), window, rules)
    state = ClusterOverview(cluster_state(cluster, end_ms - 1))
    found = evaluate(
        type(facts)(facts.cluster, facts.history, facts.prices, state), DetectorsSettings().rules
    )
    assert found.failures == ()
    return found.findings


def _is_about(finding: Finding, plant: InjectedPattern) -> bool:
    draft = finding.draft
    if draft.pattern is not plant.pattern:
        return False
    # Starvation is a queue's; what it is about stands in its words.
    text = f"{draft.subject} {draft.subject.uid} {draft.summary} {draft.evidence}"
    return (
        plant.uid == draft.subject.uid or plant.name in text or plant.pattern is WastePattern.QUOTA_STARVATION
    )


def _plants(cluster: SimulatedCluster, name: str) -> list[InjectedPattern]:
    return [plant for plant in cluster.plants if name in (plant.name, plant.node)]


@pytest.mark.parametrize("name", NAMES)
def test_a_plant_is_found(cluster: SimulatedCluster, source: RecordedSource, name: str) -> None:
    for plant in _plants(cluster, name):
        assert plant.is_found
        about = [each for each in _found(cluster, source, plant) if _is_about(each, plant)]
        assert about, (plant, "is not found")


def test_every_name_is_a_plant(cluster: SimulatedCluster) -> None:
    assert [name for name in NAMES if not _plants(cluster, name)] == []


def test_what_only_looks_like_one_is_not_found(cluster: SimulatedCluster, source: RecordedSource) -> None:
    (decoy,) = [plant for plant in cluster.plants if not plant.is_found]
    assert [each for each in _found(cluster, source, decoy) if _is_about(each, decoy)] == []
