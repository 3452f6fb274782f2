"""``advise``, ``explain`` and ``state show`` ask the server that one is logged in to: what they say is what
they say of its cluster's dump, byte for byte. The cluster is the one of docs/examples."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from gpucost.advisor.advise import advise
from gpucost.advisor.explanation.job_explanation import explain
from gpucost.advisor.model.answers import Advice, Explanation
from gpucost.advisor.model.encoding import NotAnAnswer, document, read_answer
from gpucost.attribution.teams import TeamRules
from gpucost.cli.application import app
from gpucost.cli.state.source import ClusterLocation
from gpucost.cli.state.state_command import loaded_from, owner_keys
from gpucost.cli.terminal.exit_codes import ExitCode
from gpucost.kube.manifests import manifest_of, reread
from gpucost.kube.manifests.writer import document_of
from gpucost.service.advisor.advisor_service import AdvisorEngine, AdvisorService
from gpucost.service.wiring.inputs import load_book
from tests.api.advisor_worlds import StillCluster, ever_current
from tests.cli.api_server import Server, served
from tests.support.ledgers import new_ledger

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
CLUSTER = EXAMPLES / "cluster.yaml"
Ask = Callable[..., Result]


RULES = """version: 1
teams: [{name: vision}, {name: language}]
rules: [{team: vision, namespace: vision}, {team: language, namespace: language}]
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("advice")
    with served(
        new_ledger(folder / "ledger.db"), folder / "keys", advising=watching(TeamRules.default())
    ) as found:
        yield found


def watching(rules: TeamRules) -> AdvisorService:
    here = ClusterLocation(None, "", "")
    state = loaded_from(str(CLUSTER), owner_keys(""), here, "").state
    advising = AdvisorService(
        StillCluster(state),
        AdvisorEngine(advise, explain, manifest_of, reread, document_of),
        rules,
        prices=load_book(None),
    )
    advising.refresh()
    return ever_current(advising)


@pytest.fixture
def ask(server: Server, monkeypatch: pytest.MonkeyPatch) -> Ask:
    def call(*words: str, key: str = "root") -> Result:
        monkeypatch.setenv("GPUCOST_TOKEN_FILE", str(server.key(key)))
        return CliRunner().invoke(app, ["--server", server.url, *words])

    return call


def local(*words: str) -> Result:
    return CliRunner().invoke(app, [*words, "--state", str(CLUSTER)])


@pytest.mark.parametrize("name", ["now", "waits", "never"])
@pytest.mark.parametrize("more", [(), ("--format", "json"), ("--no-suggestions",)])
def test_advice_of_the_server_is_that_of_its_cluster(name: str, more: tuple[str, ...], ask: Ask) -> None:
    words = ("advise", "-f", str(EXAMPLES / f"{name}.yaml"), *more)
    remote, own = ask(*words), local(*words)
    assert (remote.exit_code, own.exit_code) == (0, 0), remote.stderr
    assert without_commands(remote.stdout) == without_commands(own.stdout)
    assert "knows the cluster; --kubeconfig FILE or --state DUMP asks another" in remote.stderr


def without_commands(text: str) -> list[str]:
    """The command that applies a suggestion repeats the options that were given."""
    return [line for line in text.splitlines() if "kubectl" not in line]


def test_an_explanation_of_the_server_is_that_of_its_cluster(ask: Ask) -> None:
    for subject in (("job/pretrain", "-n", "language"), ("workload/job-detect", "-n", "vision")):
        remote, own = (run("explain", *subject, "-f", "json") for run in (ask, local))
        assert (remote.exit_code, own.exit_code) == (0, 0), remote.stderr
        assert remote.stdout == own.stdout
    shown = ask("explain", "job/pretrain", "-n", "language")
    assert (shown.exit_code, "pretrain" in shown.stdout) == (0, True)
    missing = ask("explain", "job/nobody")
    assert missing.exit_code == ExitCode.USAGE
    assert "KIND/NAME: 'nobody' is not allowed; allowed: no such job" in missing.stderr


@pytest.mark.parametrize("more", [(), ("--all", "--explain"), ("-f", "json"), ("--namespace", "vision")])
def test_the_state_of_the_server_is_that_of_its_cluster(more: tuple[str, ...], ask: Ask) -> None:
    remote, own = (
        ask("state", "show", *more),
        CliRunner().invoke(app, ["state", "show", *more, "--from", str(CLUSTER)]),
    )
    assert (remote.exit_code, own.exit_code) == (0, 0), remote.stderr
    assert remote.stdout.replace("Could not be read", "Not in this dump") == own.stdout
    assert "knows the cluster; --kubeconfig FILE or --from DUMP asks another" in remote.stderr
    assert "knows the cluster" not in own.stderr


@pytest.mark.fault(47)
def test_a_team_is_shown_its_own_part_of_the_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    advising = watching(TeamRules.parse(RULES, "teams.yaml"))
    with served(new_ledger(tmp_path / "ledger.db"), tmp_path / "keys", advising=advising) as server:
        monkeypatch.setenv("GPUCOST_TOKEN_FILE", str(server.key("vera")))
        found, document = (
            CliRunner().invoke(app, ["--server", server.url, "state", "show", *more])
            for more in ((), ("-f", "json"))
        )
    assert found.exit_code == 0, found.stderr
    assert "Of vision only" in found.stdout
    assert "1 pod, 1 of which hold GPUs; 2 workloads of Kueue\n 8 GPUs held\n" in found.stdout
    for name in ("language", "pretrain", "No problems", "borrows"):
        assert name not in found.stdout
    told = json.loads(document.stdout)
    assert (told["nodes"], told["loans"], told["teams_in_scope"]) == (None, [], ["vision"])


def test_a_namespace_of_the_command_reaches_the_server(ask: Ask) -> None:
    words = ("advise", "-f", str(EXAMPLES / "now.yaml"), "--namespace", "elsewhere", "--format", "json")
    [remote], [own] = (json.loads(found.stdout) for found in (ask(*words), local(*words)))
    assert remote["subject"] == own["subject"]


def test_a_named_cluster_is_asked_itself(ask: Ask) -> None:
    found = ask("advise", "-f", str(EXAMPLES / "now.yaml"), "--state", str(CLUSTER))
    assert "knows the cluster" not in found.stderr


def test_answers_are_read_as_they_were_written(server: Server, ask: Ask) -> None:
    """And what is no answer is named."""
    del server
    text = ask("advise", "-f", str(EXAMPLES / "waits.yaml"), "--format", "json").stdout
    [found] = json.loads(text)
    answer = read_answer(Advice, found)
    assert document(answer) == found
    assert read_answer(Advice, {**found, "newer": 1}) == answer
    changes: tuple[tuple[dict[str, Any], str], ...] = (
        ({"schema": "gpucost/Advice/v2"}, "no document gpucost/Advice/v1"),
        ({"decision": "perhaps"}, "Advice.decision"),
        ({"why": "text"}, "Advice.why"),
        ({"why": [1]}, r"Advice.why\[\]"),
        ({"level": True}, "Advice.level"),
        ({"subject": {"kind": "Job"}}, "Advice.subject.namespace is missing"),
    )
    for change, says in changes:
        with pytest.raises(NotAnAnswer, match=says):
            read_answer(Advice, found | change)
    with pytest.raises(NotAnAnswer):
        read_answer(Explanation, found)
    assert document(read_answer(Advice, document(replace(answer, borrowed={})))) == document(
        replace(answer, borrowed={})
    )
