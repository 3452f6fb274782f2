"""``gpucost state``: the same screen from a cluster and from a dump of it, and what can go wrong."""

from __future__ import annotations

import gzip
import io
import json
import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from rich.cells import cell_len
from rich.console import Console
from typer.testing import CliRunner

import gpucost.cli.state.state_command
from gpucost.cli.application import app
from gpucost.cli.state.screen import (
    MOST_ROWS,
    ScreenLayout,
    _age,
    print_screen,
)
from gpucost.cli.terminal.columns import (
    TextColumn,
    TextRow,
    folded,
    in_columns,
    name,
    number,
)
from gpucost.cli.terminal.exit_codes import ExitCode
from gpucost.cluster.objects.kueue import Cohort, FlavorQuota
from gpucost.cluster.objects.state import CollectionStatus
from gpucost.cluster.views.overview import ClusterOverview
from gpucost.domain.time import DAY_MS, HOUR_MS, MINUTE_MS
from gpucost.kube.dumps.dump import ClusterStateBuilder, DumpOrigin
from gpucost.kube.parse.collections import collections
from gpucost.reports.live.state_document import as_data
from gpucost.reports.live.state_facts import StateFacts, facts
from tests.cli.state_worlds import NOW, SECRET, cluster
from tests.cluster import builders as b
from tests.support.cluster import shapes
from tests.support.cluster.installed import everything
from tests.support.cluster.server import ClusterServer

# The command with a clock that stands still.
_CLOCK = (
    "import gpucost.cli.state.state_command as s; s.now_ms = lambda: {}; from gpucost.cli import main; main()"
)
_OF_A_CLUSTER = ("KUBECONFIG", "KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT", "HOME", "COLUMNS")
_PLAIN = {key: value for key, value in os.environ.items() if key not in _OF_A_CLUSTER}
_WORKLOADS = "workloads.kueue.x-k8s.io"


class Said(NamedTuple):
    stdout: bytes
    stderr: bytes


@pytest.fixture(scope="module")
def filled() -> Iterator[ClusterServer]:
    with ClusterServer(page_size=3) as server:
        for found in cluster():
            server.put(found)
        yield server


@pytest.fixture
def server(filled: ClusterServer) -> Iterator[ClusterServer]:
    yield filled
    filled.mend()


def state(
    *words: str, given: bytes = b"", at_ms: int = NOW, code: int = ExitCode.OK, columns: str | None = None
) -> Said:
    """The command in this process, with a clock that stands still."""
    with pytest.MonkeyPatch.context() as patch:
        for key in _OF_A_CLUSTER:
            patch.delenv(key, raising=False)
        patch.setenv("HOME", "/nowhere")
        if columns is not None:
            patch.setenv("COLUMNS", columns)
        patch.setattr(gpucost.cli.state.state_command, "now_ms", lambda: at_ms)
        result = CliRunner().invoke(app, ["state", *words], input=given)
    assert result.exit_code == code, result.stderr
    return Said(result.stdout_bytes, result.stderr_bytes)


def state_process(*words: str) -> Said:
    """The command as a process of its own, which has a standard output of its own."""
    command = [sys.executable, "-c", _CLOCK.format(NOW), "state", *words]
    result = subprocess.run(
        command, capture_output=True, env={**_PLAIN, "HOME": "/nowhere"}, timeout=60, check=True
    )
    return Said(result.stdout, result.stderr)


def of_world(**more: Any) -> StateFacts:
    gathering = ClusterStateBuilder(collections())
    for found in cluster():
        gathering.add(found)
    gathering.note(DumpOrigin(NOW, {each.name: "" for each in collections()}))
    names = [each.name for each in collections()]
    return facts(ClusterOverview(gathering.loaded(NOW, NOW).state), expected=names, **more)


def screen(found: StateFacts, width: int = 80, *, whole: bool = False) -> str:
    file = io.StringIO()
    print_screen(found, Console(file=file, width=width, highlight=False), ScreenLayout(everything=whole))
    return file.getvalue()


# The command


def test_a_dump_gives_the_same_screen_as_the_cluster(server: ClusterServer, tmp_path: Path) -> None:
    live = state("show", "--kubernetes-url", server.url)
    assert state_process("show", "--kubernetes-url", server.url) == live
    dump = state("dump", "--kubernetes-url", server.url)
    assert live.stderr + dump.stderr == b""
    assert b"vision borrows 16 of h100" in live.stdout
    # Waits count until the dump was taken, whenever it is looked at.
    assert state("show", "--from", "-", given=dump.stdout, at_ms=NOW + DAY_MS).stdout == live.stdout
    file = tmp_path / "state.json.gz"
    state("dump", "--kubernetes-url", server.url, "--to", str(file))
    assert gzip.decompress(file.read_bytes()) == dump.stdout
    assert state("show", "--from", str(file)).stdout == live.stdout
    as_json = state("show", "--kubernetes-url", server.url, "-f", "json").stdout
    assert state("show", "--from", str(file), "-f", "json").stdout == as_json
    assert json.loads(as_json)["at"] == "2026-10-24T00:00:00Z"


def test_a_dump_is_private_and_without_secrets(server: ClusterServer, tmp_path: Path) -> None:
    file = tmp_path / "state.json"
    file.write_text("old", encoding="utf-8")
    file.chmod(0o644)
    state("dump", "--kubernetes-url", server.url, "--to", str(file))
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert SECRET not in file.read_text(encoding="utf-8")
    assert [each.name for each in tmp_path.iterdir()] == ["state.json"]
    assert (
        b'"kind":"List"'
        in state_process("dump", "--kubernetes-url", server.url, "--to", "/dev/stdout").stdout
    )


@pytest.mark.fault(14)
def test_a_collection_that_is_forbidden_is_named_and_left_out(server: ClusterServer) -> None:
    server.break_list("403", _WORKLOADS, times=None)
    dump = state("dump", "--kubernetes-url", server.url)
    assert dump.stderr.decode() == (
        f"gpucost: permission missing: list on {_WORKLOADS} in every namespace (a ClusterRole); left out\n"
    )
    live = state("show", "--kubernetes-url", server.url)
    assert f"Not allowed to list: {_WORKLOADS}" in live.stdout.decode()
    assert state("show", "--from", "-", given=dump.stdout).stdout == live.stdout


@pytest.mark.parametrize("name", ["pods", "nodes"])
def test_without_pods_or_nodes_there_is_no_dump(name: str, server: ClusterServer, tmp_path: Path) -> None:
    server.break_list("403", name, times=None)
    file = tmp_path / "state.json"
    result = state("dump", "--kubernetes-url", server.url, "--to", str(file), code=ExitCode.SOURCE)
    assert f"permission missing: list on {name} in every namespace" in result.stderr.decode()
    assert list(tmp_path.iterdir()) == []
    state("show", "--kubernetes-url", server.url, code=ExitCode.SOURCE)


def test_a_cluster_that_does_not_answer(tmp_path: Path) -> None:
    for words in (("show",), ("dump", "--to", str(tmp_path / "file"))):
        result = state(*words, "--kubernetes-url", "http://127.0.0.1:9", code=ExitCode.SOURCE)
        assert result.stderr.decode().startswith("gpucost: the Kubernetes API at http://127.0.0.1:9: pods: ")
        assert result.stdout == b""
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("dump", "--to", "/nowhere/at/all", "--kubernetes-url", "{url}"), "--to: '/nowhere/at/all'"),
        (("show", "--from", "/nowhere"), "/nowhere: No such file or directory"),
        (("show", "--from", "-"), "standard input: empty"),
        (("show", "--from", "x", "--context", "y"), "--from: 'x' is not allowed"),
        (("show", "--kubernetes-url", "{url}", "--context", "y"), "--kubernetes-url: "),
        (("show", "--from", "-", "--at", "yesterday"), "--at: 'yesterday'"),
        (("show", "--kubeconfig", "/nowhere"), "/nowhere"),
        (("show",), "/nowhere/.kube/config"),
    ],
)
def test_wrong_words(
    words: tuple[str, ...], said: str, server: ClusterServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for key in _OF_A_CLUSTER:
        monkeypatch.delenv(key, raising=False)
    monkeypatch.setenv("HOME", "/nowhere")
    result = CliRunner().invoke(app, ["state", *(word.format(url=server.url) for word in words)])
    assert result.exit_code == ExitCode.USAGE
    assert said in result.stderr
    assert result.stderr.count("\n") == 1


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed")
def test_a_folder_that_kubectl_wrote(server: ClusterServer, tmp_path: Path) -> None:
    kinds = [kind.name for kind, _ in everything()]
    halves = {"a.json.gz": kinds[::2], "b.yaml": kinds[1::2]}
    for file, some in halves.items():
        form = "yaml" if "yaml" in file else "json"
        command = ["kubectl", "--server", server.url, "get", ",".join(some), "-A", "-o", form]
        env = {**_PLAIN, "HOME": str(tmp_path / "home")}
        text = subprocess.run(command, capture_output=True, env=env, timeout=60, check=True).stdout
        (tmp_path / file).write_bytes(gzip.compress(text) if file.endswith(".gz") else text)
    found = state("show", "--from", str(tmp_path), "--at", "2026-10-24T00:00:00Z")
    live = state("show", "--kubernetes-url", server.url).stdout.decode().splitlines()
    assert found.stderr == b""
    said = [" Not in this dump: priorityclasses.scheduling.k8s.io, poddisruptionbudgets.policy,"]
    assert found.stdout.decode().splitlines()[4][:60] == said[0][:60]
    assert [line for line in live if "waits" in line or " borrows " in line or "train-" in line] == [
        line
        for line in found.stdout.decode().splitlines()
        if "waits" in line or " borrows " in line or "train-" in line
    ]


def test_what_is_not_read_is_said_on_stderr() -> None:
    secrets = [{"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "\x1b[2J"}}] * 2
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a", "uid": "a", "namespace": "b"}}
    text = json.dumps({"kind": "List", "apiVersion": "v1", "items": [pod, *secrets]})
    result = state("show", "--from", "-", given=text.encode())
    assert result.stderr == b"gpucost: not read: 2 Secret (v1)\n"
    assert b"when the dump was read" in result.stdout


def test_teams_may_be_named_by_other_labels(server: ClusterServer) -> None:
    words = ("show", "--kubernetes-url", server.url, "-f", "json", "--team-labels", "nvidia.com/team, x")
    assert {row["team"] for row in json.loads(state(*words).stdout)["waiting"]} == {""}


def test_further_resources_may_be_gpus(tmp_path: Path) -> None:
    resource = "example.com/npu"
    found = shapes.node("a", NOW, {resource: 8}, {})
    file = tmp_path / "node.json"
    file.write_text(json.dumps(found), encoding="utf-8")
    words = ("show", "--from", str(file), "-f", "json")
    assert json.loads(state(*words).stdout)["gpus"] == []
    named = json.loads(state(*words, "--extra-resources", f"x, {resource}").stdout)
    assert [(each["resource"], each["advertised"]) for each in named["gpus"]] == [(resource, 8)]


def test_what_is_skipped_and_what_is_too_large_is_said(tmp_path: Path) -> None:
    folder, outside = tmp_path / "dumps", tmp_path / "outside.json"
    folder.mkdir()
    outside.write_text("{}", encoding="utf-8")
    (folder / "pod.json").write_text(json.dumps(next(cluster())), encoding="utf-8")
    (folder / "out.json").symlink_to(outside)
    skipped = state("show", "--from", str(folder))
    assert skipped.stderr == b"gpucost: not read: 1 link out of the folder (out.json)\n"
    deep = state("show", "--from", "-", given=b"a: " + b"[" * 400_000, code=ExitCode.USAGE)
    assert deep.stderr.startswith(b"gpucost: standard input: nested more than 100 deep; ")


# The screen

HEAD = """\
Cluster state 2026-10-24T00:00:00Z
 14 nodes, 14 with GPUs; 3 pods, 2 of which hold GPUs; 4 workloads of Kueue
 resource        held  advertised  expected  missing
 nvidia.com/gpu    16         110       112        2

Queues and cohorts of Kueue, in GPUs
 queue       flavor nominal reserved borrowed lendable pending GPUs oldest
 company/    h100         –       64                16       3   96  3d00h
             a100         –        0                24
   speech    h100        32        8                16       1   32    12m
             a100         8        0                 8
   research/ h100         8       56        8       16       2   64  3d00h
             a100         –        0                24
     nlp     h100        24       24                 0       2   64  3d00h
             a100         8        0                 8
     vision  h100        16       32       16        0
             a100         8        0                 8
 legacy      v100         8        0                 –
     not active: FlavorNotFound
 1 ClusterQueue without GPU quota left out

Borrowing
 vision borrows 16 of h100 from speech (lends up to 16) or cohort research
   (lends up to 8)

Queues of Volcano, in GPUs
 queue    deserved  guarantee  cap  allocated  pending  GPUs  oldest
 batch          16          –   32         16
 default         –          –    –          0
"""


def test_the_screen_at_80_columns() -> None:
    text = screen(of_world())
    assert max(map(cell_len, text.splitlines())) <= 80
    assert text.startswith(HEAD)
    rest = text.removeprefix(HEAD)
    assert "Waiting: 5 jobs for 136 GPUs (held by quota 4, placement 1)" in rest
    assert " 3d00h    1    32  nlp/train-0     language  nlp      quota: WaitingForQuota\n" in rest
    assert " 1d00h         16        2      3        1  sim/big  batch\n" in rest
    assert " gpu-03  h100  gpu                6         8     0  ready\n" in rest
    assert "     2  flavor_missing\n     A ClusterQueue or an admitted workload uses" in rest


@pytest.mark.parametrize("width", [80, 100, 120, 200])
@pytest.mark.parametrize("whole", [False, True])
def test_lines_fit_and_foreign_text_is_only_shown(width: int, whole: bool) -> None:
    found = of_world()
    evil = replace(
        found.waiting[0],
        job="[red]x[/red]\x1b[2J",
        team="\u202e[b]",
        queue="a\nb",
        message="[link=http://x]\r\x07" + "long words " * 200,
    )
    text = screen(replace(found, waiting=[evil, *found.waiting]), width, whole=whole)
    lines = text.splitlines()
    assert whole or max(cell_len(line) for line in lines) <= width
    assert not {"\x1b", "\r", "\x07", "\u202e"} & set(text)
    assert "[red]x" in text
    assert "[link=http://x]" in text
    assert (sum("long words" in line for line in lines) > 2) is whole


def test_long_lists_are_cut_and_all_shows_them() -> None:
    found = of_world()
    many = replace(
        found,
        waiting=[replace(found.waiting[0], job=f"job-{index}") for index in range(MOST_ROWS + 37)],
        problems=[*found.problems] * 4,
        short_nodes=[*found.short_nodes] * (MOST_ROWS + 1),
    )
    text = screen(many)
    assert "and 37 more (--all shows them)" in text
    assert f"job-{MOST_ROWS - 1} " in text
    assert f"job-{MOST_ROWS} " not in text
    assert text.count(" gpu-03 ") == MOST_ROWS + 1, "a last one is rather shown than announced"
    whole = screen(many, whole=True)
    assert "more (--all" not in whole
    assert f"job-{MOST_ROWS + 36} " in whole


def test_of_many_queues_the_idle_ones_are_left_out() -> None:
    found = of_world()
    idle = next(row for row in found.queues if row.name == "nlp")
    quotas = [replace(quota, reserved=0) for quota in idle.quotas]
    rows = [
        replace(idle, name=f"idle-{index}", quotas=quotas, pending=0, pending_units={}, oldest_ms=None)
        for index in range(50)
    ]
    many = replace(found, queues=[*found.queues, *rows])
    text = screen(many)
    assert " 51 ClusterQueues idle or without GPU quota left out (--all shows more)\n" in text
    assert "idle-" not in text
    assert all(f" {name}" in text for name in ("company/", "research/", "nlp", "vision", "speech", "legacy"))
    assert screen(many, whole=True).count(" idle-") == 50


def test_a_cluster_without_anything_is_quiet() -> None:
    absent = CollectionStatus("", synced=True, absent=True)
    names = {each.name for each in collections()}
    gone = {each for each in names if each.endswith(("kueue.x-k8s.io", "rayjobs.ray.io"))}
    unusual = {"workloads.scheduling.k8s.io", "podgroups.scheduling.k8s.io"}
    statuses = dict.fromkeys(names, CollectionStatus("v1", synced=True)) | dict.fromkeys(
        gone | unusual, absent
    )
    state = replace(b.state(b.node("a", 8)), collections=statuses)
    assert screen(facts(ClusterOverview(state))) == (
        "Cluster state 2026-10-24T01:00:00Z\n"
        " 1 node, 1 with GPUs; 0 pods, 0 of which hold GPUs\n"
        " resource        held  advertised  expected  missing\n"
        " nvidia.com/gpu     0           8         8\n"
        "\nKueue is not installed.\n"
        "\nNobody waits for GPUs.\n"
        "\nNo problems found.\n"
        "\n Not installed: kueue.x-k8s.io (8 kinds), rayjobs.ray.io\n"
        " What columns and words mean: --explain\n"
    )


def test_the_data_says_all_that_the_screen_says() -> None:
    data = as_data(of_world())
    assert json.loads(json.dumps(data)) == data
    assert data["gpus"] == [{"resource": b.GPU, "held": 16, "advertised": 110, "expected": 112}]
    assert data["waiting"][0] == {
        "namespace": "nlp",
        "workload": "pytorchjob-train-0",
        "job_kind": "PyTorchJob",
        "job": "train-0",
        "team": "language",
        "queue": "nlp",
        "position": 1,
        "priority": 0,
        "units": {b.GPU: 32},
        "since": "2026-10-21T00:00:00Z",
        "layer": "quota",
        "reason": "WaitingForQuota",
        "message": data["waiting"][0]["message"],
        "user": "",
    }
    assert [(row["name"], row["depth"]) for row in data["queues"]] == [
        *(("company", 0), ("speech", 1), ("research", 1), ("nlp", 2), ("vision", 2)),
        *(("cpu-only", 0), ("legacy", 0)),
    ]
    (gang,) = data["partial_gangs"]
    assert (gang["running"], gang["min_members"], gang["held"]) == (2, 3, {b.GPU: 16})
    assert gang["since"] == "2026-10-23T00:00:00Z"


def test_a_stall_of_which_nothing_says_since_when_is_unknown_and_comes_last() -> None:
    def gang(group: str, *bound_ms: int | None) -> list[Any]:
        """Of four, with the others gone and no trace of them."""
        mine = {"scheduling.k8s.io/group-name": group}
        pods = [b.pod(f"{group}-{i}", 8, bound_ms=each, annotations=mine) for i, each in enumerate(bound_ms)]
        return [b.pod_group(group, 4), *pods]

    now = b.T0 + HOUR_MS
    state_now = b.state(*gang("broken", b.T0, b.T0, b.T0), *gang("waits", b.T0, None), at_ms=now)
    found = facts(ClusterOverview(state_now))
    assert [(row["name"], row["since"]) for row in as_data(found)["partial_gangs"]] == [
        ("waits", "2026-10-24T00:00:00Z"),
        ("broken", None),
    ]
    (line,) = (line for line in screen(found).splitlines() if "broken" in line)
    assert line.split()[:3] == ["unknown", "24", "3"]


def test_what_is_borrowed_stays_in_a_cohort_that_does_not_borrow() -> None:
    key = ("h100", b.GPU)
    pods = b.pod_set(count=3, gpus=4)

    def queue(own: str, nominal: int, lends: int | None = None) -> Any:
        return b.cluster_queue(own, {key: FlavorQuota(nominal, None, lends)}, cohort="inner")

    other = b.cluster_queue("other", {key: FlavorQuota(8)}, cohort="outer")
    parents = [Cohort(b.meta("inner", ""), "outer")]
    borrower = b.workload("w", pods, admitted_ms=b.T0, cluster_queue="taker", flavor="h100")
    state = b.state(
        queue("taker", 4),
        queue("giver", 8),
        queue("miser", 8, 0),
        other,
        b.local_queue("q", "taker"),
        borrower,
        cohorts=parents,
    )
    (loan,) = facts(ClusterOverview(state)).loans
    assert (loan.borrower, loan.borrowed) == ("taker", 8)
    assert [(each.name, each.unused) for each in loan.lenders] == [("giver", 8)]


def test_borrowed_cpu_and_memory_are_cores_and_binary_units() -> None:
    """As Kubernetes writes them, not in the units that Kueue counts in."""
    asks, spare = {"cpu": 215_500, "memory": 3_076_270_325_760, b.GPU: 16}, (300_000, 3 * 10**12, 1_024)
    pods = b.pod_set(count=1, requests=asks)
    keys = {resource: ("h100", resource) for resource in asks}
    giver = {
        each: FlavorQuota(amount + lent) for (each, amount), lent in zip(asks.items(), spare, strict=True)
    }
    state = b.state(
        b.cluster_queue("taker", {keys[each]: FlavorQuota(0) for each in asks}, cohort="all"),
        b.cluster_queue("giver", {keys[each]: quota for each, quota in giver.items()}, cohort="all"),
        b.local_queue("q", "taker"),
        b.workload("w", pods, admitted_ms=b.T0, cluster_queue="taker", flavor="h100"),
    )
    found = facts(ClusterOverview(state))
    said = screen(found, 200)
    assert "taker borrows 215.5 cpu of h100 from giver (lends up to 300)" in said
    assert "taker borrows 2,865Gi memory of h100 from giver (lends up to 2.73Ti)" in said
    assert "taker borrows 16 of h100 from giver (lends up to 1,024)" in said
    assert [each["borrowed"] for each in as_data(found)["loans"]] == [215.5, 3_076_270_325_760, 16]
    assert as_data(found)["loans"][0]["lenders"][0]["unused"] == 300


@pytest.mark.parametrize(
    ("length_ms", "text"),
    [
        (-5, "0s"),
        (59_999, "59s"),
        (MINUTE_MS, "1m"),
        (HOUR_MS - 1, "59m"),
        (3 * HOUR_MS + 5 * MINUTE_MS, "3h05m"),
        (4 * DAY_MS + 2 * HOUR_MS + 1, "4d02h"),
    ],
)
def test_waits(length_ms: int, text: str) -> None:
    assert _age(NOW, NOW - length_ms) == text


def test_names_are_shortened_numbers_never() -> None:
    columns = [name("name", 4), number("count"), TextColumn("state")]
    rows = [
        TextRow(("a very long name", "1,000,000", "ok"), "and a remark"),
        TextRow(("漢字漢字漢字", "1", "ok")),
    ]
    assert [line.plain for line in in_columns(columns, rows, 23)] == [
        " name       count state",
        " a ver… 1,000,000 ok",
        "     and a remark",
        " 漢字…          1 ok",
    ]


def test_folding() -> None:
    text = "one two three fourfourfourfour"
    assert folded(text, 10, " ", "   ") == [" one two", "   three", "   fourfo…"]
    assert folded(text, 10, "", "", 2) == ["one two", "three fou…"]
    assert folded("", 10, " ", "") == [" "]
