"""The PromQL and the figures in the docs: it parses, is of the contract, and answers what the text says."""

from __future__ import annotations

import re
from pathlib import Path

import promql_parser
import pytest

from gpucost.contract.metrics import METRICS
from gpucost_gpu_exporter.settings import PAGE
from tests.exporters.gpu import hour
from tests.exporters.gpu.played import Played
from tests.support.prometheus import needs_prometheus

ROOT = Path(__file__).parents[3]
COMPARISON = ROOT / "docs" / "gpu-comparison.md"
QUERIES: list[tuple[str, str]] = [
    (page.name, query.strip("\n"))
    for page in sorted((ROOT / "docs").rglob("*.md"))
    for block in re.findall(
        r"^```promql\n(.*?)^```$", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
    )
    for query in block.split("\n\n")
]
OURS = [query for name, query in QUERIES if name == Path(PAGE).name]
NAME = re.compile(r"\b(?:gpucost|DCGM)_\w+")


def one(*words: str) -> str:
    """The query of our page that has all these words."""
    [found] = [query for query in OURS if all(word in query for word in words)]
    return found


def rows(played: Played, query: str, label: str) -> dict[str, float]:
    """At the end of the hour."""
    asked = played.ask(query, played.scrapes[-1])
    return {str(row["metric"][label]): float(row["value"][1]) for row in asked}  # type: ignore[index]


def test_there_are_queries() -> None:
    assert len(OURS) == 8


@pytest.mark.parametrize("query", [query for _, query in QUERIES])
def test_a_query_parses(query: str) -> None:
    promql_parser.parse(query)
    assert NAME.search(query)


@pytest.mark.parametrize("query", OURS)
def test_a_query_names_metrics_and_labels_of_the_contract(query: str) -> None:
    known = {spec.name: spec for spec in METRICS}
    names = set(NAME.findall(query))
    assert names <= set(known)
    labels = {label for name in names for label in known[name].labels}
    for grouped in re.findall(r"\b(?:by|on) \((.*?)\)", query):
        assert set(grouped.split(", ")) <= labels
    assert set(re.findall(r"[{,](\w+)=", query)) <= labels


@pytest.mark.slow
@needs_prometheus
def test_the_parts_add_up_and_would_be_seen_not_to(played: Played) -> None:
    query = one("!=")
    assert rows(played, query, "gpu_uuid") == {}
    without_retired = query.replace('measure="held_seconds"', 'measure="none"')
    assert hour.WHOLE in rows(played, without_retired, "gpu_uuid")


@pytest.mark.slow
@needs_prometheus
def test_busy_is_of_what_a_pod_held(played: Played) -> None:
    found = rows(played, one("busy_seconds"), "pod")
    assert found["train"] == pytest.approx(93, abs=1)
    assert found["eval"] == pytest.approx(55, abs=1)


@pytest.mark.slow
@needs_prometheus
def test_the_highest_value_has_the_short_job_whole(played: Played) -> None:
    found = rows(played, one("max_over_time"), "pod")
    truth = hour.truth().held
    assert found == {pod: pytest.approx(truth[pod], rel=0.001) for pod in truth}
    increase = rows(played, one("by (namespace, pod, pod_uid)").rpartition(" or ")[2], "pod")
    assert increase.get("short", 0) == 0


@pytest.mark.slow
@needs_prometheus
def test_gpus_without_an_owner(played: Played) -> None:
    assert rows(played, one("unless"), "gpu_uuid").keys() == {hour.WHOLE, hour.MIG, hour.SHARED}
    [(_, seconds)] = rows(played, one("__unallocated__"), "node").items()
    assert seconds > 0


def test_figures_beside_a_dcgm_exporter_are_those_of_the_comparison() -> None:
    page = (ROOT / PAGE).read_text(encoding="utf-8")
    text = page.partition("## Against a dcgm-exporter\n")[2].partition("\n## ")[0]
    figures = set(re.findall(r"[−+]?\d+(?:\.\d+)? %", text))
    assert len(figures) >= 8
    assert figures <= set(re.findall(r"[−+]?\d+(?:\.\d+)? %", COMPARISON.read_text(encoding="utf-8")))
