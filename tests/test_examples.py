"""docs/examples, which newcomers try first: every command of its section says what the page says."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gpucost.cli.application import app
from tests.support import example_cluster

DOCS = Path(__file__).parents[1] / "docs"
EXAMPLES = DOCS / "examples"
_BLOCK = re.search(
    r"```console\n\$ cd docs/examples\n(.*?)```", (DOCS / "advisor.md").read_text("utf-8"), re.DOTALL
)
SHOWN = re.findall(r"^\$ (.*) \| head -1\n(.*)$", _BLOCK[1] if _BLOCK else "", re.MULTILINE)


@pytest.fixture(autouse=True)
def in_the_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without any settings of the user."""
    monkeypatch.chdir(EXAMPLES)
    monkeypatch.delenv("GPUCOST_CONFIG", raising=False)


def test_the_page_shows_each_decision() -> None:
    assert len(SHOWN) >= 5
    asked = " ".join(command for command, _ in SHOWN)
    others = ("cluster.yaml", "demo.yaml")  # a cluster, and a job of the demo's, which README shows
    assert all(f"-f {each.name}" in asked for each in EXAMPLES.glob("*.yaml") if each.name not in others)


@pytest.mark.parametrize(("command", "first"), SHOWN, ids=[command for command, _ in SHOWN])
def test_the_first_line_is_that_of_the_page(
    command: str, first: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)  # of pytest's workers: lines would be cut there
    printed = ""
    for each in command.split(" | "):
        program, *words = shlex.split(each)
        assert program == "gpucost"
        result = CliRunner().invoke(app, words, input=printed or None)
        assert result.exit_code == 0, result.output
        printed = result.stdout
    assert printed.partition("\n")[0] == first


def test_the_cluster_is_the_one_that_is_generated() -> None:
    assert (EXAMPLES / "cluster.yaml").read_text("utf-8") == example_cluster.text()
