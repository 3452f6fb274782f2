"""``gpucost state`` in hands of users: wrong addresses, missing rights, partial dumps, narrow screens."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from pydantic import TypeAdapter, ValidationError
from rich.cells import cell_len

from gpucost.cli.state.column_help import SIGNS, WORDS
from gpucost.cli.state.screen import ScreenLayout, _Screen
from gpucost.cli.state.state_command import KINDS
from gpucost.cli.terminal.columns import (
    TextRow,
    in_columns,
    number,
    path,
)
from gpucost.cli.terminal.exit_codes import ExitCode
from gpucost.kube.parse.collections import collections
from gpucost.reports.live.state_facts import (
    NOT_EXPECTED,
    StateFilter,
    most_urgent,
    narrowed,
)
from gpucost.settings.types import Names
from tests.cli.state_worlds import cluster
from tests.cli.test_state import of_world, screen, state
from tests.support.cluster.server import ClusterServer

DOC = Path(__file__).parents[2] / "docs" / "state-show.md"
_QUEUES = "clusterqueues.kueue.x-k8s.io"
_WORKLOADS = "workloads.kueue.x-k8s.io"


@pytest.fixture(scope="module")
def filled() -> Iterator[ClusterServer]:
    with ClusterServer() as server:
        for found in cluster():
            server.put(found)
        yield server


@pytest.fixture
def server(filled: ClusterServer) -> Iterator[ClusterServer]:
    yield filled
    filled.mend()


def lines(found: object, width: int, look: ScreenLayout) -> list[str]:
    return [line.plain for line in _Screen(found, width, look).lines()]  # type: ignore[arg-type]


# What could not be read


@pytest.mark.parametrize("words", [("show",), ("dump",)])
def test_an_address_that_serves_no_pods_is_no_cluster(words: tuple[str, ...], server: ClusterServer) -> None:
    result = state(*words, "--kubernetes-url", f"{server.url}/wrong", code=ExitCode.SOURCE)
    assert result.stdout == b"" or words == ("dump",)
    said = result.stderr.decode()
    assert f"the Kubernetes API at {server.url}/wrong: pods are not served there (404)" in said


@pytest.mark.fault(14)
def test_what_may_not_be_listed_is_unknown_and_not_0(server: ClusterServer) -> None:
    for name in (_QUEUES, _WORKLOADS):
        server.break_list("403", name, times=None)
    found = json.loads(state("show", "--kubernetes-url", server.url, "-f", "json").stdout)
    assert (found["workloads"], found["nodes"], found["pods"]) == (None, 14, 3)
    text = state("show", "--kubernetes-url", server.url).stdout.decode()
    assert "; workloads of Kueue could not be read\n" in text
    assert "ClusterQueues of Kueue could not be read." in text
    assert "More may wait: workloads of Kueue could not be read" in text
    server.mend(_QUEUES)
    found = json.loads(state("show", "--kubernetes-url", server.url, "-f", "json").stdout)
    assert {row["pending"] for row in found["queues"]} == {None}


def test_one_optional_collection_that_fails_is_left_out(server: ClusterServer) -> None:
    server.break_list("500", "rayjobs.ray.io", times=None)
    result = state("show", "--kubernetes-url", server.url)
    assert result.stderr.startswith(b"gpucost: rayjobs.ray.io: 500 ")
    assert result.stderr.endswith(b"; left out\n")
    assert " Could not be read: rayjobs.ray.io\n" in result.stdout.decode()
    dump = state("dump", "--kubernetes-url", server.url)
    seen = state("show", "--from", "-", given=dump.stdout).stdout.decode()
    assert " Not in this dump: rayjobs.ray.io\n" in seen


def test_who_may_not_list_pods_hears_what_would_help(server: ClusterServer) -> None:
    server.break_list("403", "pods", times=None)
    said = state("show", "--kubernetes-url", server.url, code=ExitCode.SOURCE).stderr.decode()
    assert f"{server.url}: permission missing: list on pods in every namespace" in said
    assert "or ask for a `gpucost state dump`" in said


def test_a_bad_address_is_blamed_on_its_option() -> None:
    said = state("show", "--kubernetes-url", "ftp://x", code=ExitCode.USAGE).stderr
    assert said.startswith(b"gpucost: --kubernetes-url: ")


# Dumps


@pytest.mark.parametrize(
    "content",
    [
        {"kind": "Config", "apiVersion": "v1", "clusters": []},
        {"kind": "List", "apiVersion": "v1", "items": []},
    ],
)
def test_a_file_without_anything_to_read_is_refused(content: dict[str, object]) -> None:
    result = state("show", "--from", "-", given=json.dumps(content).encode(), code=ExitCode.USAGE)
    assert b"standard input: nothing in it that gpucost reads" in result.stderr
    assert result.stdout == b""


def test_a_dump_of_pods_alone_says_what_it_lacks() -> None:
    pods = [each for each in cluster() if each["kind"] == "Pod"]
    text = json.dumps({"kind": "List", "apiVersion": "v1", "items": pods}).encode()
    seen = " ".join(state("show", "--from", "-", given=text).stdout.decode().split())
    assert "nodes could not be read; 3 pods, 2 of which hold GPUs; workloads of Kueue could not be" in seen
    assert "nvidia.com/gpu 16 ? –" in seen
    assert "Not in this dump: nodes, namespaces," in seen
    assert "kueue.x-k8s.io (8 kinds)" in seen
    assert "No problems found in what could be read." in seen
    assert "Kueue is not installed" not in seen


def test_the_list_for_kubectl_is_whole() -> None:
    names = [each.name for each in collections() if each.name not in NOT_EXPECTED]
    assert KINDS.split(",") == names
    shown = state("show", "--help").stdout.decode()
    assert f"kubectl get {KINDS} -A -o json" in shown
    assert KINDS in DOC.read_text(encoding="utf-8")


# What is asked for


def test_the_most_urgent_queues_are_kept() -> None:
    found = of_world()
    nlp = next(row for row in found.queues if row.name == "nlp")
    idle = replace(nlp, depth=0, pending=0, pending_units={}, oldest_ms=None)
    many = [replace(idle, name=f"a-{index:02}") for index in range(60)]
    kept = most_urgent([*many, *found.queues], 40)
    names = [row.name for row in kept]
    shown = [name for name in names if not name.startswith("a-")]
    assert shown == ["company", "speech", "research", "nlp", "vision", "cpu-only", "legacy"]
    assert sum(max(1, len(row.quotas)) for row in kept) <= 40
    text = screen(replace(found, queues=[*many, *found.queues]))
    assert "     nlp " in text


@pytest.mark.parametrize(
    ("wanted", "jobs", "queues"),
    [
        (StateFilter(namespace="speech"), ["train-2"], ["company", "speech"]),
        (StateFilter(team="language"), ["train-0", "train-1"], ["company", "research", "nlp"]),
        (StateFilter(queue="nlp", job="train-1"), ["train-1"], ["company", "research", "nlp"]),
        (StateFilter(job="pytorchjob-train-2"), ["train-2"], ["company", "speech"]),
        (StateFilter(job="nobody"), [], []),
    ],
)
def test_filters(wanted: StateFilter, jobs: list[str], queues: list[str]) -> None:
    found = narrowed(of_world(), wanted)
    assert [row.job for row in found.waiting] == jobs
    assert [row.name for row in found.queues] == queues


def test_a_filter_that_nothing_matches_says_so(server: ClusterServer) -> None:
    text = state("show", "--kubernetes-url", server.url, "--job", "train-9").stdout.decode()
    assert "Nothing that matches --job train-9 waits for GPUs. What runs is not listed here." in text
    assert "No problems found" not in text


def test_the_namespace_is_shortened_before_the_job() -> None:
    rows = [TextRow(("a-very-long-namespace/train-7", "1"))]
    shown = in_columns([path("job", 10), number("n")], rows, 20)
    assert shown[1].plain == " a-very-l…/train-7 1"
    assert "…" not in in_columns([path("job", 10), number("n")], rows, 20, is_cut=False)[1].plain


@pytest.mark.parametrize(("columns", "is_cut"), [("", False), ("70", True)])
def test_a_pipe_has_whole_names_unless_columns_are_given(columns: str, is_cut: bool, tmp_path: Path) -> None:
    made = [each for each in cluster() if each["kind"] == "Pod"]
    made[2]["metadata"]["namespace"] = "n" * 60
    made[2]["metadata"]["annotations"] = {}
    (tmp_path / "a.json").write_text(json.dumps({"kind": "List", "items": made}), encoding="utf-8")
    text = state("show", "--from", str(tmp_path / "a.json"), columns=columns).stdout.decode()
    assert (f"{'n' * 60}/" in text) is not is_cut
    if is_cut:
        assert max(map(cell_len, text.splitlines())) <= 70


@pytest.mark.parametrize("width", [60, 80, 120, 200])
def test_narrow_screens_cut_no_prose_and_say_what_they_drop(width: int) -> None:
    shown = lines(of_world(), width, ScreenLayout())
    text = " ".join(" ".join(shown).split())
    assert "14 nodes, 14 with GPUs; 3 pods, 2 of which hold GPUs; 4 workloads of Kueue" in text
    assert "A ClusterQueue or an admitted workload uses a flavor that is gone." in text
    assert ("no room for the column kind" in text) is (width < 116)
    assert ("no room for borrowed, lendable" in text) is (width == 60)
    assert max(map(cell_len, shown)) <= width
    assert "scheduling.x-k8s.io" not in text


# Words


def test_the_page_has_the_screen_and_every_word() -> None:
    page = DOC.read_text(encoding="utf-8")
    assert screen(of_world()) in page
    for word, meaning in (*WORDS.items(), *SIGNS.items()):
        assert f"| {word} | {meaning} |" in page
    explained = " ".join(" ".join(lines(of_world(), 80, ScreenLayout(explain=True))).split())
    assert all(f"{word}: {meaning}" in explained for word, meaning in WORDS.items())


def test_every_column_is_explained() -> None:
    heads = (line for line in lines(of_world(), 200, ScreenLayout()) if line.startswith(" ") and "  " in line)
    found = {
        head.strip()
        for line in heads
        for head in line.split("  ")
        if head.strip() and line.split()[0] in ("resource", "queue", "wait", "since", "node", "count")
    }
    covered = {"guarantee", "cap"}  # explained with deserved
    assert found - covered <= WORDS.keys()


# How it ends


def test_a_reader_who_leaves_ends_it_quietly(tmp_path: Path) -> None:
    file = tmp_path / "state.json"
    file.write_text(json.dumps({"kind": "List", "items": list(cluster())}), encoding="utf-8")
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "gpucost", "state", "show", "--from", str(file)]
    if not (Path(__file__).parents[2] / "gpucost" / "__main__.py").exists():
        command[1:3] = ["-c", "from gpucost.cli import main; main()"]
    try:
        result = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, timeout=60, check=False)
    finally:
        os.close(writing)
    assert (result.returncode, result.stderr) == (0, b"")


def test_without_the_server_extra_it_says_what_is_missing() -> None:
    code = "import sys; sys.modules['typer'] = None; from gpucost.cli import main; main()"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=60, check=False)
    assert result.returncode == 1
    said = b"gpucost: typer is not installed; this command needs gpucost[server]\n"
    assert result.stderr == said


def test_a_label_has_no_blanks() -> None:
    result = state("show", "--from", "-", "--team-labels", "a b", code=ExitCode.USAGE)
    assert result.stderr.startswith(b"gpucost: --team-labels: 'a b' is not allowed; allowed: names without")


def test_names_of_settings_have_no_blanks() -> None:
    names = TypeAdapter(Names)
    assert names.validate_python("a, b") == ("a", "b")
    with pytest.raises(ValidationError) as raised:
        names.validate_python("a b")
    assert raised.value.errors()[0]["ctx"]["allowed"].startswith("names without blanks")
