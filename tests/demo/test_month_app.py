"""The API over the demo's month knows its cluster: what waits, what runs, and at what price."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from starlette.testclient import TestClient
from typer.testing import CliRunner

from gpucost.api.routes.advisor import ADVICE_PATH
from gpucost.cli.application import app
from gpucost.demo.month_app import demo_app
from gpucost.service.wiring.demo_month import CONFIG, DemoMonth

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DemoMonth]:
    """Its ledger is empty: no question here is about the past."""
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
    assert advice["suggestions"]


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
