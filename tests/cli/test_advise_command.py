"""``gpucost advise`` as a command: sources, numbers of suggestions, exit codes, and input that is refused.

What the advisor says is made by hand here; everything around it is real.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner, Result

from gpucost.advisor import advise as advisor
from gpucost.advisor.model.answers import Advice, AdviceSubject, SchedulingDecision
from gpucost.advisor.model.encoding import document
from gpucost.advisor.request.context import AdvisorContext
from gpucost.advisor.suggest.patches import patched
from gpucost.cli.advise.advise_command import CODES
from gpucost.cli.application import app
from gpucost.cli.terminal.exit_codes import ExitCode
from gpucost.cluster.objects.jobs import JobManifest
from tests.cli.advise_answers import ADVICE, OTHER_QUEUE, PRICES, RAISE, WAITS, furnish
from tests.cli.state_worlds import cluster
from tests.support.cluster.server import ClusterServer

QUEUE = "kueue.x-k8s.io/queue-name"
JOB = f"""\
apiVersion: batch/v1
kind: Job
metadata:
  name: train
  labels:
    {QUEUE}: gpus
spec:
  template:
    spec:
      restartPolicy: Never
      containers:
      - name: main
        image: train
        resources:
          limits:
            nvidia.com/gpu: 8
"""
Run = Callable[..., Result]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """With a dump, prices, and a manifest."""
    furnish(tmp_path, monkeypatch)
    (tmp_path / "job.yaml").write_text(JOB, encoding="utf-8")
    return tmp_path


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[JobManifest, AdvisorContext, bool]]:
    """What the advisor was asked; it answers ``waits`` with its two suggestions."""
    seen: list[tuple[JobManifest, AdvisorContext, bool]] = []

    def answer(manifest: JobManifest, known: AdvisorContext, with_suggestions: bool = True) -> Advice:
        seen.append((manifest, known, with_suggestions))
        found = WAITS if with_suggestions else replace(WAITS, suggestions=())
        return replace(found, subject=AdviceSubject(manifest.job.kind, manifest.namespace, manifest.name))

    monkeypatch.setattr(advisor, "advise", answer)
    return seen


@pytest.fixture
def run(folder: Path, asked: object) -> Run:
    del folder, asked

    def run_it(*words: str, given: str = "", code: int = ExitCode.OK) -> Result:
        words = (*words, "--state", "state.json") if "--state" not in words else words
        result = CliRunner().invoke(app, ["advise", *words], input=given)
        assert result.exit_code == code, result.output
        return result

    return run_it


def test_the_first_line_of_each_job_is_its_answer(run: Run, folder: Path, asked: list[Any]) -> None:
    (folder / "two.yaml").write_text(f"{JOB}---\n{JOB.replace('train', 'second')}", encoding="utf-8")
    text = run("-f", "job.yaml", "-f", "two.yaml", "-n", "nlp").stdout
    answers = text.split("\n\n")
    assert [each.splitlines()[0].partition(":")[0] for each in answers] == [
        "train (Job, nlp)",
        "train (Job, nlp)",
        "second (Job, nlp)",
    ]
    assert answers[0].splitlines()[0].endswith(f": {WAITS.says} · USD 98.32/h")
    numbers = [line.strip().partition(".")[0] for line in text.splitlines() if line.startswith("    ")]
    assert [each for each in numbers if each.isdigit()] == list("123456"), "through all answers"
    assert [manifest.name for manifest, _, _ in asked] == ["train", "train", "second"]


def test_a_manifest_from_a_pipe(run: Run, asked: list[Any]) -> None:
    assert run("-f", "-", given=JOB).stdout.startswith("train (Job, default): waits ")
    assert asked[0][0].queue == "gpus"
    assert asked[0][0].job.pods_wanted == 1


def test_the_advisor_itself_answers(folder: Path) -> None:
    words = ["advise", "-n", "speech", "--state", "state.json", "--exit-code", "-f"]
    now = CliRunner().invoke(app, [*words, "job.yaml"])
    assert now.stdout.startswith("train (Job, speech): runs now on 1 node (gpu-01)")
    assert now.exit_code == CODES[SchedulingDecision.NOW]
    (folder / "huge.yaml").write_text(JOB.replace("gpu: 8", "gpu: 64"), encoding="utf-8")
    never = CliRunner().invoke(app, [*words, "huge.yaml"])
    assert never.stdout.startswith("train (Job, speech): never runs as it is: ")
    assert never.exit_code == CODES[SchedulingDecision.NEVER]
    both = CliRunner().invoke(app, [*words, "job.yaml", "-f", "huge.yaml", "--format", "json"])
    assert [each["decision"] for each in json.loads(both.stdout)] == ["now", "never"]


def test_a_job_is_asked_about_as_of_the_state(run: Run, asked: list[Any]) -> None:
    run("-f", "job.yaml", "--at", "2026-10-24T00:00:00Z")
    manifest, known, _ = asked[0]
    assert manifest.job.meta.created_ms == known.overview.state.at_ms == 1_792_800_000_000
    assert len(known.overview.state.nodes) == 14
    assert known.prices is not None


def test_a_cluster_is_asked_as_a_dump_is(run: Run, asked: list[Any]) -> None:
    with ClusterServer() as server:
        for found in cluster():
            server.put(found)
        live = CliRunner().invoke(app, ["advise", "-f", "job.yaml", "--kubernetes-url", server.url])
    assert live.exit_code == ExitCode.OK, live.output
    assert live.stdout.startswith("train (Job, default): waits ")
    run("-f", "job.yaml")
    (_, of_cluster, _), (_, of_dump, _) = asked
    assert {*of_cluster.overview.state.workloads} == {*of_dump.overview.state.workloads} != set()


def test_prices_are_those_of_the_settings_unless_a_book_is_given(
    run: Run, folder: Path, asked: list[Any]
) -> None:
    (folder / "own.yaml").write_text(PRICES.replace("EUR", "GBP"), encoding="utf-8")
    run("-f", "job.yaml")
    run("-f", "job.yaml", "--prices", "own.yaml")
    assert [known.prices.currency for _, known, _ in asked] == ["EUR", "GBP"]


def test_settings_of_the_advisor_are_taken(
    run: Run, monkeypatch: pytest.MonkeyPatch, asked: list[Any]
) -> None:
    monkeypatch.setenv("GPUCOST_ADVISOR__SAMPLES", "12")
    monkeypatch.setenv("GPUCOST_ADVISOR__KUEUE__FAIR_SHARING", "true")
    run("-f", "job.yaml")
    _, known, _ = asked[0]
    assert known.settings.samples == 12
    assert known.overview.state.schedulers.kueue.fair_sharing is True


def test_a_changed_document_is_read_as_the_first(run: Run, asked: list[Any]) -> None:
    run("-f", "job.yaml", "-n", "nlp")
    manifest, known, _ = asked[0]
    changed = known.read(manifest, patched(manifest.document, OTHER_QUEUE.change.operations))
    assert changed.queue == "research"
    assert replace(changed.job, meta=manifest.job.meta) == manifest.job
    assert changed.namespace == "nlp"


def test_the_command_of_a_suggestion_can_be_run(run: Run, folder: Path) -> None:
    (folder / "my job.yaml").write_text(JOB, encoding="utf-8")
    text = run("-f", "my job.yaml", "-n", "nlp", "--exit-code", code=3).stdout
    words = (
        "advise --filename 'my job.yaml' --namespace nlp --state state.json --apply 1 | kubectl apply -f -"
    )
    assert words in text


def test_what_the_server_names_is_created(run: Run, folder: Path) -> None:
    """kubectl apply refuses what has generateName and no name."""
    generated = JOB.replace("name: train", "generateName: train-", 1)
    assert generated != JOB
    (folder / "two.yaml").write_text(f"{generated}---\n{JOB}", encoding="utf-8")
    text = run("-f", "two.yaml").stdout
    assert "--apply 1 | kubectl create -f -" in text
    assert "--apply 3 | kubectl apply -f -" in text


def test_no_command_for_what_was_piped_in(run: Run) -> None:
    """Its input is gone: what is printed must work."""
    text = run("-f", "-", given=JOB).stdout
    assert "| kubectl apply" not in text
    assert "save what was piped in to a file to use --apply 1" in text


def test_apply_prints_the_changed_manifest_and_nothing_else(run: Run) -> None:
    changed = yaml.safe_load(JOB)
    changed["metadata"]["labels"][QUEUE] = "research"
    result = run("-f", "job.yaml", "--apply", "1")
    assert list(yaml.safe_load_all(result.stdout)) == [changed]
    assert list(yaml.safe_load(result.stdout)) == list(changed), "in the order of the manifest"
    assert result.stderr == ""
    assert json.loads(run("-f", "job.yaml", "--apply", "1", "--format", "json").stdout) == changed


def test_apply_counts_through_all_jobs(run: Run, folder: Path) -> None:
    (folder / "two.yaml").write_text(f"{JOB}---\n{JOB.replace('train', 'second')}", encoding="utf-8")
    assert yaml.safe_load(run("-f", "two.yaml", "--apply", "3").stdout)["metadata"]["name"] == "second"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--apply", "2"), "--apply: 2 is not allowed; allowed: 1: the suggestions that change the manifest"),
        (("--apply", "9"), "--apply: 9 is not allowed; allowed: 1: "),
        (("--apply", "1", "--no-suggestions"), "--apply: 1 is not allowed; allowed: none with --no-sugg"),
    ],
)
def test_only_what_changes_the_manifest_is_applied(run: Run, words: tuple[str, ...], said: str) -> None:
    result = run("-f", "job.yaml", *words, code=ExitCode.USAGE)
    assert said in result.stderr
    assert result.stdout == ""


def test_without_suggestions(run: Run, asked: list[Any]) -> None:
    assert "what to do" not in run("-f", "job.yaml", "--no-suggestions").stdout
    assert asked[0][2] is False
    assert "none: no suggestion changes" not in run("-f", "job.yaml").stdout


def test_json_is_one_list_of_whole_answers(run: Run) -> None:
    expected = replace(WAITS, subject=AdviceSubject("Job", "default", "train"))
    assert json.loads(run("-f", "job.yaml", "--format", "json").stdout) == [document(expected)]


@pytest.mark.parametrize("decision", SchedulingDecision)
def test_exit_codes_of_answers(
    decision: SchedulingDecision, run: Run, monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    monkeypatch.setattr(advisor, "advise", lambda *_: ADVICE[decision])
    run("-f", "job.yaml")
    run("-f", "job.yaml", "--exit-code", code=CODES[decision])
    (folder / "two.yaml").write_text(f"{JOB}---\n{JOB.replace('train', 'second')}", encoding="utf-8")
    both = iter((ADVICE[decision], ADVICE[SchedulingDecision.NOW]))
    monkeypatch.setattr(advisor, "advise", lambda *_: next(both))
    run("-f", "two.yaml", "--exit-code", code=CODES[decision])


def test_no_answer_is_never_taken_for_one(folder: Path) -> None:
    del folder
    words = ["advise", "-f", "job.yaml", "--kubernetes-url", "http://127.0.0.1:9"]
    for given, code in ([], ExitCode.SOURCE), (["--exit-code"], ExitCode.USAGE):
        result = CliRunner().invoke(app, [*words, *given])
        assert result.exit_code == code
        assert result.stderr.startswith("gpucost: the Kubernetes API at http://127.0.0.1:9: pods: ")
        assert result.stdout == ""


@pytest.mark.parametrize(
    ("words", "given", "said"),
    [
        (("-f", "nowhere.yaml"), "", "nowhere.yaml: No such file or directory"),
        (("-f", "."), "", ".: Is a directory"),
        (("-f", "-"), "", "standard input"),
        (("-f", "-"), "kind: Nonsense\napiVersion: v1\nmetadata: {name: a}\n", "kind"),
        (("-f", "-", "-f", "-"), JOB, "--filename: '-' is not allowed"),
        (("-f", "-", "--state", "-"), JOB, "--state: '-' is not allowed"),
        (("-f", "job.yaml", "--state", "state.json", "--context", "x"), "", "--state: 'state.json'"),
        (("-f", "job.yaml", "--state", "nowhere"), "", "nowhere: No such file or directory"),
        (("-f", "job.yaml", "--at", "noon"), "", "--at: 'noon'"),
        (("-f", "job.yaml", "--prices", "nowhere"), "", "nowhere"),
    ],
)
def test_input_that_is_refused(run: Run, words: tuple[str, ...], given: str, said: str) -> None:
    result = run(*words, given=given, code=ExitCode.USAGE)
    assert said in result.stderr
    assert result.stdout == ""
    assert result.stderr.count("\n") == 1


def test_debug_changes_no_exit_code(folder: Path) -> None:
    del folder
    words = ["--debug", "advise", "-f", "job.yaml", "--kubernetes-url", "http://127.0.0.1:9", "--exit-code"]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == ExitCode.USAGE
    assert "Traceback" in result.stderr


def test_a_wrong_manifest_is_refused_before_a_cluster_is_asked(folder: Path) -> None:
    (folder / "job.yaml").write_text("kind: Nonsense\n", encoding="utf-8")
    words = ["advise", "-f", "job.yaml", "--kubernetes-url", "http://127.0.0.1:9"]
    assert CliRunner().invoke(app, words).exit_code == ExitCode.USAGE


def test_text_that_is_none(run: Run, folder: Path) -> None:
    (folder / "job.yaml").write_bytes(b"\xff\xfe\x00")
    assert "job.yaml: not text in UTF-8" in run("-f", "job.yaml", code=ExitCode.USAGE).stderr


def test_a_change_for_an_administrator_is_none_of_the_manifest(run: Run, monkeypatch: Any) -> None:
    monkeypatch.setattr(advisor, "advise", lambda *_: replace(WAITS, suggestions=(RAISE,)))
    said = run("-f", "job.yaml", "--apply", "1", code=ExitCode.USAGE).stderr
    assert "none: no suggestion changes the manifest" in said
