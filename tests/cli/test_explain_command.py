"""``gpucost explain`` as a command. What the advisor says is made by hand; everything around it is real."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from gpucost.advisor.explanation import job_explanation as explainer
from gpucost.advisor.model.answers import Explanation
from gpucost.advisor.model.encoding import document
from gpucost.advisor.request.context import AdvisorContext
from gpucost.cli.application import app
from gpucost.cli.terminal.exit_codes import ExitCode
from tests.cli.advise_answers import EXPLANATION, furnish

Run = Callable[..., Result]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str, str]]:
    """Kind, namespace and name that were asked for; only ``train-llm`` is there."""
    seen: list[tuple[str, str, str]] = []

    def answer(kind: str, namespace: str, name: str, known: AdvisorContext) -> Explanation | None:
        assert known.overview.state.nodes
        seen.append((kind, namespace, name))
        return EXPLANATION if name == "train-llm" else None

    monkeypatch.setattr(explainer, "explain", answer)
    return seen


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: object) -> Run:
    del asked
    furnish(tmp_path, monkeypatch)

    def run_it(*words: str, code: int = ExitCode.OK) -> Result:
        result = CliRunner().invoke(app, ["explain", *words, "--state", "state.json"])
        assert result.exit_code == code, result.output
        return result

    return run_it


def test_the_answer_comes_first(run: Run, asked: list[tuple[str, str, str]]) -> None:
    result = run("pytorchjobs.kubeflow.org/train-llm", "-n", "team-nlp", "--at", "2026-10-24T00:00:00Z")
    assert result.stdout.startswith(
        "train-llm (PyTorchJob, team-nlp): 2 of its 4 pods have no node, since 2026-10-21T00:00:00Z (3 d)"
        "\n  quota "
    )
    assert asked == [("PyTorchJob", "team-nlp", "train-llm")]


def test_the_advisor_itself_explains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    furnish(tmp_path, monkeypatch)
    words = ["explain", "-n", "nlp", "--state", "state.json", "--at", "2026-10-24T00:00:00Z"]
    for subject in ("pytorchjob/train-0", "wl/pytorchjob-train-0"):
        result = CliRunner().invoke(app, [*words, subject])
        assert result.stdout.startswith("train-0 (PyTorchJob, nlp): quota holds it: "), result.output
        assert "\n  quota               ✗ holds it     since 2026-10-21T00:00:00Z (3 d)\n" in result.stdout
    missing = CliRunner().invoke(app, [*words, "pytorchjob/train-9"])
    assert missing.exit_code == ExitCode.USAGE


def test_the_namespace_is_default_unless_named(run: Run, asked: list[tuple[str, str, str]]) -> None:
    run("vcjob/train-llm")
    assert asked == [("VolcanoJob", "default", "train-llm")]


def test_json_is_the_whole_explanation(run: Run) -> None:
    assert json.loads(run("job/train-llm", "-f", "json").stdout) == document(EXPLANATION)


@pytest.mark.parametrize(
    ("word", "said"),
    [
        (
            "job/other",
            "KIND/NAME: no Job other in namespace default; allowed: what is there",
        ),
        ("node/a", "KIND/NAME: 'node/a' is not allowed; allowed: a kind among CronJob, "),
        ("train-llm", "KIND/NAME: 'train-llm' is not allowed; allowed: KIND/NAME such as "),
        ("job/\x1b[2J", "KIND/NAME: no Job \\x1b[2J in namespace default"),
    ],
)
def test_what_is_not_there_is_refused(run: Run, word: str, said: str) -> None:
    result = run(word, code=ExitCode.USAGE)
    assert result.stderr.startswith(f"gpucost: {said}")
    assert result.stdout == ""
