"""``gpucost advisor``: recorded decisions from files, dumps and a live cluster."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from gpucost.advisor.verify.decision_follower import MISSED, ORDER, ObservedCases
from gpucost.advisor.verify.replay import FactTally, ReplayReport
from gpucost.cli.advise.advisor_command import DISAGREES
from gpucost.cli.advise.advisor_screen import MOST_SHOWN, record_summary
from gpucost.cli.application import app
from gpucost.cli.terminal.exit_codes import ExitCode
from tests.advisor.recorded import CASE, GPU, SEARCH, changed, content
from tests.support.cluster import shapes
from tests.support.cluster.server import ClusterServer
from tests.support.objects import condition, kueue, metadata
from tests.support.recorded import KUEUE_SCHEDULER

HISTORIES = KUEUE_SCHEDULER / "histories.json.gz"
WORKLOADS = "workloads.kueue.x-k8s.io"
WRONG = changed(CASE, "expected.alone/new.borrowingLevel", 2)


def run(*words: object, given: bytes | None = None) -> Result:
    return CliRunner().invoke(app, ["advisor", *map(str, words)], input=given)


def file_of(folder: Path, *cases: dict[str, Any], name: str = "cases.json", **fields: Any) -> Path:
    place = folder / name
    found = content(*cases, **fields)
    place.write_bytes(gzip.compress(found) if name.endswith(".gz") else found)
    return place


@pytest.mark.parametrize("name", ["cases.json", "cases.gz"])
def test_the_verdict_is_the_first_line_and_counts_follow(tmp_path: Path, name: str) -> None:
    found = run("verify", file_of(tmp_path, CASE, SEARCH, name=name))
    lines = found.stdout.splitlines()
    assert found.exit_code == ExitCode.OK, found.output
    assert lines[0] == "All 38 facts of 2 cases agree with the rules of Kueue v0.19.2."
    assert any(line.split() == ["outcome", "10", "10", "100.0", "%"] for line in lines)
    assert any(line.split() == ["admits", "1", "1", "100.0", "%"] for line in lines)


def test_what_disagrees_is_listed_with_both_values_and_ends_with_1(tmp_path: Path) -> None:
    found = run("verify", file_of(tmp_path, WRONG))
    assert found.exit_code == DISAGREES
    assert found.stdout.startswith("1 of 31 facts in 1 of 1 cases disagree with the rules of Kueue v0.19.2.")
    assert "one  alone/new  borrowingLevel\n  recorded: 2\n  rules:    0\n" in found.stdout


def test_a_long_list_is_cut_by_a_number_that_is_said(tmp_path: Path) -> None:
    cases = file_of(tmp_path, *[WRONG] * (MOST_SHOWN + 2))
    assert "and 2 more disagreements; --all shows them" in run("verify", cases).stdout
    assert run("verify", cases, "--all").stdout.count("recorded: 2") == MOST_SHOWN + 2


def test_json_has_it_all(tmp_path: Path) -> None:
    place = tmp_path / "report.json"
    cases = file_of(tmp_path, WRONG, SEARCH)
    assert run("verify", cases, "--format", "json", "-o", place).exit_code == DISAGREES
    found = json.loads(place.read_text())
    assert (found["agrees"], found["cases"], found["rules"]) == (
        False,
        {"of": 2, "agree": 1},
        "Kueue v0.19.2",
    )
    assert found["facts"] == {"of": 38, "agree": 37}
    assert found["by_fact"]["borrowingLevel"] == {"of": 2, "agree": 1}
    assert found["by_rule"]["preempts"] == {"of": 1, "agree": 0}
    assert found["disagreements"] == [
        {"case": "one", "workload": "alone/new", "fact": "borrowingLevel", "expected": "2", "got": "0"}
    ]


def test_of_several_files_cases_say_theirs_and_standard_input_is_one(tmp_path: Path) -> None:
    good = file_of(tmp_path, CASE)
    found = run("verify", good, "-", given=content(WRONG))
    assert "standard input: one  alone/new  borrowingLevel" in found.stdout


def test_what_decides_nothing_is_said_on_stderr(tmp_path: Path) -> None:
    found = run("verify", file_of(tmp_path, CASE, seed=7))
    assert found.exit_code == ExitCode.OK
    assert "cases.json: not read: seed" in found.stderr


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (content({**CASE, "colour": "red"}), ".cases[0] (one).colour: unknown field"),
        (
            content({**CASE, "expected": {}, "processingOrder": None}),
            "CASES: nothing that is expected in them",
        ),
        (gzip.compress(content(CASE))[:-20], "a gzip file that is cut short or broken"),
        (b"not json", "no JSON that can be read"),
    ],
)
def test_bad_files_end_with_2_and_one_sentence(tmp_path: Path, given: bytes, said: str) -> None:
    place = tmp_path / "cases.json"
    place.write_bytes(given)
    found = run("verify", place)
    assert (found.exit_code, found.stdout) == (ExitCode.USAGE, "")
    assert said in found.stderr
    assert found.stderr.count("\n") == 1


def test_foreign_names_do_not_drive_the_terminal(tmp_path: Path) -> None:
    evil = changed(changed(WRONG, "id", "\x1b[2J"), "tags", ["\x1b[31m"])
    found = run("verify", file_of(tmp_path, evil))
    assert "\x1b" not in found.output
    assert "\\x1b[2J" in found.stdout


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    found = run("verify", tmp_path / "none.json")
    assert found.exit_code == ExitCode.USAGE
    assert "No such file" in found.stderr


@pytest.fixture
def cluster() -> Iterator[ClusterServer]:
    """One queue with room for one of two workloads."""
    with ClusterServer() as server:
        server.put(shapes.node("gpu-0", 1_790_000_000_000, {GPU: 8}, {}))
        server.put({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata("ml")})
        server.put(kueue.resource_flavor("h100"))
        server.put(kueue.cluster_queue("ml", quotas={"h100": {GPU: "8"}}, strategy="StrictFIFO"))
        server.put(kueue.local_queue("gpus", "ml", "ml"))
        server.put(waiting("first", "2026-10-01T00:00:00Z"))
        server.put(waiting("second", "2026-10-01T00:00:01Z"))
        yield server


def waiting(name: str, created: str) -> dict[str, Any]:
    pods = [kueue.pod_set("main", 1, {GPU: "8"})]
    return kueue.workload(name, "ml", queue="gpus", pod_sets=pods, created=created)


def admitted(name: str = "first", created: str = "2026-10-01T00:00:00Z") -> dict[str, Any]:
    return kueue.workload(
        name,
        "ml",
        queue="gpus",
        pod_sets=[kueue.pod_set("main", 1, {GPU: "8"})],
        created=created,
        cluster_queue="ml",
        assignments=[kueue.assignment("main", {GPU: "h100"}, {GPU: "8"}, 1)],
        conditions=[condition(each, since="2026-10-01T01:00:00Z") for each in ("QuotaReserved", "Admitted")],
    )


def dumped(server: ClusterServer, place: Path) -> Path:
    found = CliRunner().invoke(app, ["state", "dump", "--to", str(place), "--kubernetes-url", server.url])
    assert found.exit_code == ExitCode.OK, found.output
    return place


@pytest.mark.parametrize("more", [[], ["--anonymous"]])
def test_two_dumps_become_a_case_that_agrees(cluster: ClusterServer, tmp_path: Path, more: list[str]) -> None:
    before = dumped(cluster, tmp_path / "before.json")
    cluster.put(admitted())
    after = dumped(cluster, tmp_path / "after.json.gz")
    place = tmp_path / "case.json"
    words = ("--before", before, "--after", after, "--no-fair-sharing", "-o", place, *more)
    found = run("record", *words)
    assert found.exit_code == ExitCode.OK, found.output
    assert ("first" in place.read_text()) != bool(more)
    verified = run("verify", place)
    assert verified.stdout.startswith("All 5 facts of 1 cases agree"), verified.output


def test_dumps_with_more_than_one_cycle_between_are_refused(cluster: ClusterServer, tmp_path: Path) -> None:
    before = dumped(cluster, tmp_path / "before.json")
    cluster.put(admitted())
    cluster.put(admitted("second", "2026-10-01T00:00:01Z"))
    after = dumped(cluster, tmp_path / "after.json")
    found = run("record", "--before", before, "--after", after, "--no-fair-sharing")
    assert (found.exit_code, found.stdout) == (ExitCode.USAGE, "")
    assert "--after: 2 admissions in ClusterQueue ml: one cycle has one" in found.stderr


def test_without_kueues_configuration_somebody_must_say_whether_it_shares_fairly(
    cluster: ClusterServer, tmp_path: Path
) -> None:
    before = dumped(cluster, tmp_path / "before.json")
    found = run("record", "--before", before, "--after", before)
    assert found.exit_code == ExitCode.USAGE
    assert "--fair-sharing: missing" in found.stderr


def test_a_live_cluster_is_watched_until_it_decides(cluster: ClusterServer, tmp_path: Path) -> None:
    def decide() -> None:
        while not ended.is_set():
            if cluster.open_watches()[WORKLOADS]:
                cluster.put(admitted())
                return
            ended.wait(0.02)

    ended, decides = Event(), Thread(target=decide)
    decides.start()
    place = tmp_path / "case.json"
    words = (
        "--watch",
        60,
        "--most",
        1,
        "--no-fair-sharing",
        "--kubernetes-url",
        cluster.url,
    )
    found = run("record", *words, "-o", place)
    ended.set()
    decides.join()
    assert found.exit_code == ExitCode.OK, found.output
    assert [each["id"] for each in json.loads(place.read_text())["cases"]] == ["rec-001"]
    assert run("verify", place).exit_code == ExitCode.OK
    assert "recorded 1 case of 1 admission and 0 preemptions that were seen" in found.stderr
    assert "1 of 1 case agree with the rules of Kueue v0.19.2" in found.stderr


def test_every_admission_of_a_busy_cluster_is_a_case(cluster: ClusterServer, tmp_path: Path) -> None:
    """Jobs are admitted at once as they come, while an unused queue is stopped."""
    cluster.put(kueue.cluster_queue("other", quotas={"h100": {GPU: "8"}}, stop_policy="Hold"))
    cluster.put(kueue.local_queue("others", "other", "ml"))
    cluster.put(kueue.cluster_queue("big", quotas={"h100": {GPU: "64"}}))
    cluster.put(kueue.local_queue("gpus", "big", "big"))
    cluster.put({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata("big")})

    def decide() -> None:
        while not (ended.is_set() or cluster.open_watches()[WORKLOADS]):
            ended.wait(0.02)
        for at in range(7):
            one = admitted(f"job-{at}", f"2026-10-01T00:00:0{at}Z")
            one["metadata"]["namespace"] = "big"
            one["status"]["admission"]["clusterQueue"] = "big"
            cluster.put({**one, "status": {}})
            cluster.put(one)

    ended, decides = Event(), Thread(target=decide)
    decides.start()
    place = tmp_path / "cases.json"
    where = ("--no-fair-sharing", "--kubernetes-url", cluster.url)
    found = run("record", "--watch", 60, "--most", 7, *where, "-o", place)
    ended.set()
    decides.join()
    assert found.exit_code == ExitCode.OK, found.output
    assert "recorded 7 cases of 7 admissions and 0 preemptions that were seen" in found.stderr
    assert "7 of 7 cases agree with the rules of Kueue v0.19.2" in found.stderr
    assert run("verify", place).exit_code == ExitCode.OK


def test_what_agrees_in_another_order_only_is_not_hidden_in_the_share() -> None:
    """Those are left out because they disagree: the share without them is the best that can be, not all."""
    report = ReplayReport(FactTally(of=41, agree=40), FactTally(of=90, agree=89), {}, {}, ())
    kept = ObservedCases(44, 0, left_out=Counter({ORDER: 2, MISSED: 1}))
    share = "40 of 41 cases agree with the rules of Kueue v0.19.2"
    assert f"{share}; 40 of 43 with those left out for their order" in [*record_summary(kept, report)]
    assert share in [*record_summary(ObservedCases(41, 0), report)]


def test_a_cluster_that_decides_nothing_may_be_watched_again(cluster: ClusterServer) -> None:
    found = run("record", "--watch", 1, "--no-fair-sharing", "--kubernetes-url", cluster.url)
    assert (found.exit_code, found.stdout) == (ExitCode.SOURCE, "")
    assert "no decision of one cycle in 1 s" in found.stderr


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["--before", "a.json"],
        ["--after", "a.json"],
        ["--before", "a.json", "--after", "b.json", "--watch", "5"],
        ["--before", "a.json", "--after", "b.json", "--kubernetes-url", "http://localhost:1"],
    ],
)
def test_dumps_or_a_cluster_but_not_both(words: list[str]) -> None:
    found = run("record", *words)
    assert found.exit_code == ExitCode.USAGE
    assert "--before" in found.stderr


def test_histories_are_replayed_beside_cases(tmp_path: Path) -> None:
    cases = file_of(tmp_path, CASE)
    found = run("verify", cases, HISTORIES)
    assert found.exit_code == ExitCode.OK, found.output
    assert found.stdout.startswith("All 31 facts of 1 cases agree with the rules of Kueue v0.19.2.")
    assert "agree with the rules of Kueue v0.19.2 to the second" in found.stdout
    assert "w00002 preempts w00001 750 times (borrowWithinCohort of team-a)" in found.stdout


def test_a_history_that_differs_is_told_from_its_second_and_ends_with_1(tmp_path: Path) -> None:
    document = json.loads(gzip.decompress(HISTORIES.read_bytes()))
    document["histories"] = [each for each in document["histories"] if each["id"] == "kh-min-6"]
    document["histories"][0]["configurations"][1]["truth"][1]["finished"] += 1
    place = tmp_path / "histories.json"
    place.write_text(json.dumps(document))
    found = run("verify", place)
    assert found.exit_code == DISAGREES
    assert found.stdout.startswith("1 of ")
    assert "kh-min-6/B1  w00002  from second 140" in found.stdout
    told = json.loads(run("verify", place, "--format", "json").stdout)
    assert told["agrees"] is False
    assert told["histories"][1]["ends"] == {"of": 3, "agree": 2}
    assert told["histories"][1]["differences"][0]["recorded"].startswith("ended at 141")
