"""``gpucost advisor record`` and ``verify`` on a cluster whose Kueue plays decisions of the real one
(``tests/data/recorded/kueue-0.19.2``), and in places others."""

from __future__ import annotations

import gzip
import json
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner, Result

from gpucost.advisor.verify.decision_follower import RESUMED
from gpucost.cli.advise.advisor_command import DISAGREES
from gpucost.cli.application import app
from gpucost.cli.terminal.exit_codes import ExitCode
from gpucost.cluster.objects.scheduler_config import STRATEGIES
from tests.support.cluster.installed import everything
from tests.support.cluster.model import Kind
from tests.support.cluster.played_cases import PlayedCase, recorded_case
from tests.support.cluster.server import ClusterServer
from tests.support.objects import metadata

WORKLOADS = "workloads.kueue.x-k8s.io"
CONFIG_MAPS = Kind("", "configmaps", "ConfigMap", True)
CLASSICAL = {
    "kqs-014": "ads/job-kv923",
    "kqs-098": "infra/job-yh122",
    "kqs-173": "maps/job-ug392",
    "kqs-177": "batch/job-fa976",
    "kqs-183": "infra/job-ij887",
    "kqs-216": "maps/job-xt202",
    "kqs-270": "genai/job-rr189",
}
"""Heads that are alone in their tree: one admission, four preemptions, two refusals."""
FAIR = {
    "kqs-022": "recsys/job-rr259",
    "kqs-124": "speech/job-cm279",
    "kqs-127": "vision/job-wb461",
    "kqs-152": "nlp/job-kw982",
}
"""Likewise under fair sharing: one admission, two refusals, one preemption."""
Play = Callable[[ClusterServer], None]


def run(*words: object) -> Result:
    return CliRunner().invoke(app, ["advisor", *map(str, words)])


def kueue_of(version: str, **config: Any) -> list[dict[str, Any]]:
    """Its Configuration, and the Deployment whose image says the version."""
    found = {"apiVersion": "config.kueue.x-k8s.io/v1beta2", "kind": "Configuration", **config}
    place = "kueue-system"
    container = {"name": "manager", "image": f"registry.example/kueue/kueue:{version}"}
    return [
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": metadata("kueue-manager-config", place),
            "data": {"controller_manager_config.yaml": yaml.safe_dump(found)},
        },
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": metadata("kueue-controller-manager", place),
            "spec": {"template": {"spec": {"containers": [container]}}},
        },
    ]


@contextmanager
def cluster_of(cases: Sequence[PlayedCase], *others: dict[str, Any]) -> Iterator[ClusterServer]:
    with ClusterServer([*everything(), (CONFIG_MAPS, "v1")]) as server:
        for each in cases:
            each.put(server)
        for item in others:
            server.put(item)
        yield server


def recorded(server: ClusterServer, play: Play, place: Path, *more: object, most: int = 500) -> Result:
    """What ``record`` saw of ``play``, which begins once the Workloads are watched."""

    def decide() -> None:
        while not ended.wait(0.02):
            if server.open_watches()[WORKLOADS]:
                play(server)
                return

    ended, decides = Event(), Thread(target=decide)
    decides.start()
    words = ("--watch", 20, "--most", most, "--kubernetes-url", server.url, "-o", place, *more)
    found = run("record", *words)
    ended.set()
    decides.join()
    return found


def played(heads: dict[str, str], **otherwise: Any) -> tuple[list[PlayedCase], Play]:
    """Cases, and their decisions one after the other; ``otherwise`` is what Kueue did in place of what was
    recorded, by case (``kqs_098``)."""
    cases = {id_: recorded_case(id_) for id_ in heads}

    def play(server: ClusterServer) -> None:
        for id_, head in heads.items():
            cases[id_].decide(server, head, **otherwise.get(id_.replace("-", "_"), {}))

    return [*cases.values()], play


FAIR_CONFIG = {"fairSharing": {"preemptionStrategies": list(STRATEGIES)}}


@pytest.mark.parametrize(
    ("heads", "config", "seen"),
    [
        (CLASSICAL, {}, "1 admission, 4 preemptions and 2 refusals"),
        (FAIR, FAIR_CONFIG, "1 admission, 1 preemption and 2 refusals"),
    ],
    ids=["classical", "fair"],
)
def test_what_the_real_kueue_decided_agrees_when_it_is_recorded_from_a_cluster(
    heads: dict[str, str], config: dict[str, Any], seen: str, tmp_path: Path
) -> None:
    cases, play = played(heads)
    place = tmp_path / "decisions.json.gz"
    with cluster_of(cases, *kueue_of("v0.19.2", **config)) as server:
        found = recorded(server, play, place, most=len(heads))
    assert found.exit_code == ExitCode.OK, found.output
    assert f"recorded {len(heads)} cases of {seen} that were seen" in found.stderr
    file = json.loads(gzip.decompress(place.read_bytes()))
    assert file["recorded"]["kueueVersion"] == "v0.19.2"
    assert file["recorded"]["fairSharing"] is bool(config)
    verified = run("verify", place)
    assert verified.exit_code == ExitCode.OK, verified.output
    first, _, whose, *_ = verified.stdout.splitlines()
    assert f"of {len(heads)} cases agree with the rules of Kueue v0.19.2." in first
    kind = "fair sharing" if config else "classical preemption"
    assert whose.startswith(f"decided by Kueue v0.19.2, {kind}, 20")
    assert "differs:" not in verified.stdout


OTHER_FLAVOR = [{"name": "main", "count": 15, "flavors": {"cpu": "v100", "nvidia.com/gpu": "v100"}}]


@pytest.mark.parametrize(
    ("id_", "otherwise", "fact"),
    [
        ("kqs-098", {"podSets": OTHER_FLAVOR}, "podSets"),
        ("kqs-270", {"preempts": ["vision/job-ld921"]}, "preempts"),
        ("kqs-183", {"messageContains": "couldn't assign flavors to pod set main: none"}, "messageContains"),
    ],
    ids=["another flavor", "one victim fewer", "another reason"],
)
def test_a_kueue_that_decides_otherwise_is_found_out(
    id_: str, otherwise: dict[str, Any], fact: str, tmp_path: Path
) -> None:
    """One of the decisions is not what the real Kueue did there; the others still agree."""
    heads = {id_: CLASSICAL[id_], "kqs-173": CLASSICAL["kqs-173"]}
    cases, play = played(heads, **{id_.replace("-", "_"): otherwise})
    place = tmp_path / "decisions.json"
    with cluster_of(cases, *kueue_of("v0.18.1", featureGates={"PriorityBoost": True})) as server:
        found = recorded(server, play, place, most=2)
    assert found.exit_code == ExitCode.OK, found.output
    verified = run("verify", place)
    assert verified.exit_code == DISAGREES, verified.output
    assert "in 1 of 2 cases disagree with the rules of Kueue v0.19.2." in verified.stdout
    (wrong,) = {line for line in verified.stdout.splitlines() if f"  {fact}" in line and "rec-" in line}
    assert cases[0].key(heads[id_]) in wrong
    assert "decided by Kueue v0.18.1, classical preemption" in verified.stdout
    assert "differs: Kueue v0.18.1 runs, an older minor version" in verified.stdout
    assert "differs: feature gate PriorityBoost is on, by default off" in verified.stdout


def test_a_refusal_in_a_queue_of_several_flavors_is_counted_and_no_case(tmp_path: Path) -> None:
    """Kueue may have begun its search at a later flavor."""
    heads = {"kqs-186": "nlp/job-sc218", "kqs-098": CLASSICAL["kqs-098"]}
    cases, play = played(heads)
    with cluster_of(cases, *kueue_of("v0.19.2")) as server:
        found = recorded(server, play, tmp_path / "decisions.json", most=1)
    assert "recorded 1 case of 1 admission, 0 preemptions and 1 refusal that were seen" in found.stderr
    assert f"left out: 1: {RESUMED}" in found.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_one_that_is_ended_early_has_what_was_recorded_until_then(number: int, tmp_path: Path) -> None:
    heads = {"kqs-098": CLASSICAL["kqs-098"]}
    cases, play = played(heads)

    def play_and_end(server: ClusterServer) -> None:
        play(server)
        server.settle()
        Event().wait(1.5)  # by then its moment has passed
        os.kill(os.getpid(), number)

    place = tmp_path / "decisions.json"
    with cluster_of(cases, *kueue_of("v0.18.1-acme.3")) as server:
        found = recorded(server, play_and_end, place, "--anonymous")
    assert found.exit_code == ExitCode.OK, found.output
    assert "ended early" in found.stderr
    text = place.read_text()
    assert [each["id"] for each in json.loads(text)["cases"]] == ["rec-001"]
    assert json.loads(text)["recorded"]["kueueVersion"] == "v0.18.1"
    assert "acme" not in text
    assert "kqs" not in text
    assert run("verify", place).exit_code == ExitCode.OK


def test_what_may_not_be_read_of_kueue_is_said_and_not_guessed(tmp_path: Path) -> None:
    """Neither its Deployment nor its Configuration: the version is not known, the kind must be given."""
    heads = {"kqs-098": CLASSICAL["kqs-098"]}
    cases, play = played(heads)
    place = tmp_path / "decisions.json"
    with cluster_of(cases) as server:
        found = recorded(server, play, place, "--no-fair-sharing", most=1)
    assert found.exit_code == ExitCode.OK, found.output
    assert json.loads(place.read_text())["recorded"]["kueueVersion"] is None
    verified = run("verify", place, "-f", "json")
    (whose,) = json.loads(verified.stdout)["recorded"]
    assert whose["version"] is None
    assert whose["differs"] == [
        "which version of Kueue runs is not known: the rules are those of 0.19.2",
        "Kueue's Configuration was not read: Kueue's defaults are assumed",
    ]
