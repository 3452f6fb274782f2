"""The API over the demo's month knows its cluster: what waits, what runs, and at what price."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from starlette.testclient import TestClient
from typer.testing import CliRunner

from gpucost.advisor.model.answers import SEARCH_STOPPED
from gpucost.api.routes.advisor import ADVICE_PATH
from gpucost.cli.application import app
from gpucost.demo.month_app import demo_app
from gpucost.domain.time import DAY_MS
from gpucost.service.wiring.demo_month import CONFIG, DemoMonth
from gpucost.simulator.state import cluster_state

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DemoMonth]:
    """Its ledger is empty, but for who needs the last day of it."""
    with DemoMonth.record(tmp_path_factory.mktemp("demo")) as found:
        yield found


@pytest.fixture(scope="module")
def client(run: DemoMonth) -> Iterator[TestClient]:
    with demo_app(run) as served:
        yield TestClient(served, base_url="http://localhost")


def test_the_app_answers_for_the_demos_cluster(client: TestClient) -> None:
    manifest = yaml.safe_load((EXAMPLES / "demo.yaml").read_text("utf-8"))
    advice = client.post(ADVICE_PATH, json={"manifest": manifest}).json()
    assert advice["decision"] == "waits"
    assert advice["price"]["currency"] == "USD"
    # On a machine with much else to do the time for them may be over: then that is said.
    assert advice["suggestions"] or any(each.startswith(SEARCH_STOPPED) for each in advice["assumptions"])


def test_commands_on_the_demos_settings_answer_for_it_too(
    run: DemoMonth, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPUCOST_CONFIG", str(run.folder / CONFIG))
    waiting = ("explain", "job/too-big", "-n", "robotics")
    for words in (("advise", "-f", str(EXAMPLES / "demo.yaml")), waiting):
        found = CliRunner().invoke(app, [*words])
        assert found.exit_code == 0, found.stderr
        assert "USD" in found.stdout
        assert "as detectors.dump says" in found.stderr
    state = CliRunner().invoke(app, ["state", "show"])
    assert "robotics/too-big" in state.stdout
    assert "as detectors.dump says" in state.stderr


def test_a_wait_of_more_than_a_day_is_one_number_on_every_face(
    run: DemoMonth, client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The frames that a receipt reads are cut at a day before the job: the cluster knows more."""
    monkeypatch.setenv("GPUCOST_CONFIG", str(run.folder / CONFIG))
    state = cluster_state(run.simulated, run.now())
    waits = [
        (each.admitted_ms - each.queued_since_ms, each.meta.owner.uid)
        for each in state.workloads.values()
        if each.meta.owner is not None and each.admitted_ms is not None and each.queued_since_ms is not None
    ]
    waited_ms, uid = max(waits)
    run.pipeline.ingest(run.cluster, run.pending()[-24:])
    assert waited_ms > DAY_MS
    said = CliRunner().invoke(app, ["job", uid, "--receipt", "-f", "json"])
    assert said.exit_code == 0, said.stderr
    assert json.loads(said.stdout)["waited_ms"] == waited_ms
    assert client.get(f"/v1/jobs/{uid}/receipt").json()["waited_ms"] == waited_ms
