"""gpucost doctor on what real kube-state-metrics and OpenCost gave: it counts what a report would read."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import gpucost.cli.commands.doctor
from gpucost.cli.application import app
from tests.support.prometheus import needs_prometheus
from tests.support.recorded import SERVERS, recorded_prometheus

pytestmark = [needs_prometheus, pytest.mark.prometheus]
NOW = 1_795_385_220_000
"""2026-11-22T22:07:00Z, just after the last scrape."""


@pytest.fixture(scope="module")
def urls(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mapping[str, str]]:
    with ExitStack() as stack:
        yield {
            server: stack.enter_context(recorded_prometheus(server, tmp_path_factory.mktemp(server)))
            for server in SERVERS
        }


@pytest.fixture(autouse=True)
def at_the_end(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setattr(gpucost.cli.commands.doctor, "now_ms", lambda: NOW)


def asked(url: str, *before: str) -> dict[str, Any]:
    """The one cluster of ``gpucost doctor``, as JSON has it."""
    arguments = [*before, "doctor", "--prometheus", url, "--month", "2026-11", "-f", "json"]
    [cluster] = json.loads(CliRunner().invoke(app, arguments).stdout)["clusters"]
    found: dict[str, Any] = cluster
    return found


def facts(cluster: dict[str, Any]) -> dict[str, str]:
    return {each["what"]: each["found"] for each in cluster["facts"]}


@pytest.mark.parametrize("server", ["p1", "p3", "p4"])
def test_labels_that_only_opencost_gives_are_not_there(urls: Mapping[str, str], server: str) -> None:
    """kube-state-metrics exported none in p1 and p4: a report has no team and no model by label."""
    cluster = asked(urls[server])
    said = facts(cluster)
    if server != "p3":
        assert (said["labels of pods"], said["labels of nodes"]) == ("none", "none")
        assert cluster["features"]["teams"]["why"].startswith("no exported label names team, project, user")
    assert said["kube_* of job opencost"].startswith("OpenCost's own, not counted: kube_node_labels")
    assert said["GPU requests"].startswith("34 pods")


def test_kube_series_of_opencost_are_turned_off_where_they_come_from(urls: Mapping[str, str]) -> None:
    cluster = asked(urls["p2"])
    assert not any("once" in step["title"] for step in cluster["steps"])
    assert "duplicates" not in facts(cluster)
    [step] = [each for each in cluster["steps"] if "OpenCost's own" in each["title"]]
    by_place = {each["where"]: each["text"] for each in step["settings"]}
    assert by_place["OpenCost (environment)"].splitlines() == [
        "EMIT_KSM_V1_METRICS=false",
        "EMIT_KSM_V1_METRICS_ONLY=false",
    ]
    assert "action: drop" in by_place["Prometheus (scrape job opencost)"]
    assert by_place["gpucost (settings file)"] == (
        "prometheus:\n  kube_state_metrics_jobs: [kube-state-metrics]"
    )
    assert step["gains"] == []


def test_with_the_job_named_the_answer_is_the_same_and_nothing_is_beside_it(
    urls: Mapping[str, str], tmp_path: Path
) -> None:
    file = tmp_path / "gpucost.yaml"
    file.write_text("prometheus:\n  kube_state_metrics_jobs: [kube-state-metrics]\n")
    before, after = asked(urls["p1"]), asked(urls["p1"], "--config", str(file))
    assert after["features"] == before["features"]
    assert "kube_* of job opencost" not in facts(after)
    assert not any("OpenCost's own" in step["title"] for step in after["steps"])


def test_two_members_of_one_job_are_still_told(urls: Mapping[str, str]) -> None:
    assert facts(asked(urls["p4"]))["duplicates"].startswith("kube-state-metrics: ")


@pytest.mark.parametrize("server", SERVERS)
def test_the_line_of_labels_has_the_slices_that_nodes_hand_out(urls: Mapping[str, str], server: str) -> None:
    """gpu.count is of all GPUs there, sliced ones too: alone it says nothing of slices."""
    [step] = [each for each in asked(urls[server])["steps"] if each["title"].startswith("Export the labels")]
    line = step["settings"][0]["text"]
    of_nodes = line.partition("nodes=[")[2].partition("]")[0].split(",")
    assert {"nvidia.com/mig-1g.10gb.count", "nvidia.com/mig-1g.10gb.replicas"} <= {*of_nodes}
