"""gpucost findings: what is listed and shown, what people say to it, and what would have been found."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest

from gpucost.cli.terminal.exit_codes import ExitCode
from gpucost.detectors.findings import WastePattern
from tests.cli.findings_worlds import Run, changing, detect, ingest, looked_at, prepare, resolve, world
from tests.detectors.worlds import World

__all__ = ["changing", "looked_at"]

PATCH = """kubectl -n ns patch jobs.batch/forgotten --type=merge -p '{"spec":{"suspend":true}}'"""


def test_the_list_names_what_goes_on_and_what_it_costs(looked_at: Run) -> None:
    """Two GPUs idle from ten minutes after 01:00 on: 2 × 22 h 50 min at 4 USD."""
    result = looked_at("findings")
    assert (result.exit_code, result.stderr) == (ExitCode.OK, "")
    [row] = [line.split() for line in result.stdout.splitlines() if "idle_allocation" in line]
    assert row == [
        *("critical", "idle_allocation", "whole", "job", "ns/forgotten", "vision", "2026-10-06"),
        *("45.7", "182.67", "192.00", "1"),
    ]
    assert "quota_starvation" not in result.stdout, "it is over"


def test_the_list_for_programs(looked_at: Run, tmp_path: Path) -> None:
    found = json.loads(looked_at("findings", "-f", "json").stdout)
    assert found["schema"] == "gpucost/FindingsReport/v1"
    [row] = found["findings"]
    assert row["wasted"]["cost"] == "182.666666667"
    assert row["action"]["patch"] == PATCH
    target = tmp_path / "findings.csv"
    assert looked_at("findings", "-f", "csv", "-o", str(target)).exit_code == ExitCode.OK
    [line] = csv.DictReader(io.StringIO(target.read_text(encoding="utf-8")))
    assert (line["id"], line["team"], line["subject"]) == ("1", "vision", "forgotten")


@pytest.mark.parametrize(
    ("words", "count"),
    [
        (("--team", "vision"), 1),
        (("--team", "nlp"), 0),
        (("--pattern", "idle_allocation", "--pattern", "monopoly"), 1),
        (("--pattern", "monopoly"), 0),
        (("--severity", "critical"), 1),
        (("--severity", "low"), 0),
        (("--cluster", "c"), 1),
        (("--state", "open"), 1),
        (("--state", "muted"), 0),
    ],
)
def test_filters_choose(words: tuple[str, ...], count: int, looked_at: Run) -> None:
    assert len(json.loads(looked_at("findings", *words, "-f", "json").stdout)["findings"]) == count
    if not count:
        assert looked_at("findings", *words).stdout == "nothing matches; 1 finding of other kinds go on\n"


def test_a_cluster_that_the_ledger_does_not_hold_is_refused(looked_at: Run) -> None:
    result = looked_at("findings", "--cluster", "elsewhere")
    assert result.exit_code == 2
    assert "'elsewhere'" in result.stderr


def test_one_finding_is_shown_whole(looked_at: Run) -> None:
    lines = [line.rstrip() for line in looked_at("findings", "show", "1").stdout.splitlines()]
    assert lines[0].strip().startswith("Job ns/forgotten holds 2 GPUs and does nothing")
    assert PATCH in lines, "at the edge, ready to be copied"
    text = "\n".join(lines)
    for part in (
        "idle GPUs: GPU-4, GPU-5",
        "45.7 GPU-hours (182.67 USD) in its last day",
        "now 2 GPUs, 8.00 USD per hour",
        "Looked at, and no reason against it",
        "opened by gpucost",
        "docs/detectors/idle_allocation.md",
    ):
        assert part in text
    document = json.loads(looked_at("findings", "show", "1", "-f", "json").stdout)
    assert document["finding"]["id"] == 1
    assert [event["action"] for event in document["events"]] == ["opened"]


def test_what_people_say_is_kept(changing: Run) -> None:
    said = changing("findings", "acknowledge", "1", "--note", "Ann looks\x1b[2J", "--author", "ann")
    assert said.stdout == "finding 1 is acknowledged: idle_allocation of ns/forgotten in c\n"
    muted = changing("findings", "mute", "1", "--for", "7d", "--reason", "holiday", "--author", "bob")
    assert muted.stdout.startswith("finding 1 is muted until 20")
    assert "1" in changing("findings", "--state", "muted").stdout
    assert changing("findings", "unmute", "1", "--author", "bob").stdout.startswith(
        "finding 1 is acknowledged:"
    )
    again = changing("findings", "unmute", "1", "--author", "bob")
    assert again.stdout.startswith("finding 1 was not muted; it is acknowledged:")
    shown = changing("findings", "show", "1").stdout
    assert "acknowledged by ann: Ann looks\\x1b[2J" in shown
    assert "\x1b" not in shown
    events = json.loads(changing("findings", "show", "1", "-f", "json").stdout)["events"]
    assert [(event["action"], event["author"]) for event in events] == [
        ("opened", "gpucost"),
        ("acknowledge", "ann"),
        ("mute", "bob"),
        ("unmute", "bob"),
    ]


WRONG = {
    "no such finding": (("show", "99"), "ID: 99 is not allowed; allowed: the id of a finding"),
    "acknowledge none": (("acknowledge", "99"), "ID: 99 is not allowed; allowed: the id of a finding"),
    "a number beyond the ledger": (("show", str(2**63)), "9223372036854775808"),
    "mute for ever": (
        ("mute", "1", "--for", "500d"),
        "--for: '500d' is not allowed; allowed: later than now",
    ),
    "mute the past": (("mute", "1", "--until", "2020-01-01"), "--until: '2020-01-01' is not allowed"),
    "mute without an end": (("mute", "1"), "--until: missing; allowed: a day with --until, or a length"),
    "mute twice": (("mute", "1", "--for", "1d", "--until", "2030-01-01"), "--until: both are given"),
    "a length that is none": (("mute", "1", "--for", "soon"), "--for: 'soon' is not allowed"),
    "a long note": (("acknowledge", "1", "--note", "x" * 1001), "--note:"),
    "an unknown pattern": (("--pattern", "idleness"), "'idleness' is not one of 'idle_allocation'"),
    "an unknown severity": (("--severity", "huge"), "'huge' is not one of 'info', 'low'"),
    "a table to a file": (
        ("--output", "x.txt"),
        "--output: 'x.txt' is not allowed; allowed: a --format other",
    ),
    "an unknown cluster": (("rehearse", "--cluster", "west"), "--cluster: 'west' is not allowed; allowed: c"),
    "an unknown detector": (("rehearse", "--detector", "x"), "'x' is not one of 'idle_allocation'"),
    "an unknown word": (("explain", "x"), "NAME: 'x' is not allowed; allowed: idle_allocation"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_input_is_one_sentence_and_exit_code_2(case: str, looked_at: Run) -> None:
    words, sentence = WRONG[case]
    result = looked_at("findings", *words)
    assert (result.exit_code, result.stdout) == (ExitCode.USAGE, "")
    assert sentence in " ".join(result.stderr.replace("│", " ").split())


def test_what_is_resolved_is_beyond_an_answer(changing: Run, tmp_path: Path) -> None:
    resolve(tmp_path)
    assert changing("findings").stdout.startswith("no finding goes on. What the detectors could not say")
    [found] = json.loads(changing("findings", "--state", "resolved", "-f", "json").stdout)["findings"]
    assert found["now"] == {
        "boards": None,
        "hourly": None,
        "hourly_nano": None,
        "daily": None,
        "daily_nano": None,
    }
    text = changing("findings", "show", str(found["id"])).stdout
    assert text.split("\n", 1)[0].strip() == "Was found, resolved at 2026-10-07T00:10:00Z. What it said last:"
    assert "What it said to do" in text
    assert "per hour" not in text
    assert "now 2 GPUs" not in text
    result = changing("findings", "acknowledge", str(found["id"]))
    assert (result.exit_code, result.stdout) == (ExitCode.LEDGER, "")
    assert "there is nothing left to do about it" in result.stderr


def test_a_list_without_findings_says_how_to_begin(tmp_path: Path) -> None:
    run = prepare(tmp_path)
    ingest(run)
    assert run("findings").stdout.startswith(
        "no findings. No detector has ever raised one: gpucost serve looks"
    )


def test_a_list_of_a_healthy_cluster_says_where_the_reasons_are(tmp_path: Path) -> None:
    run = prepare(tmp_path, World(end=24 * 60).node("n1"))
    ingest(run)
    detect(tmp_path)
    assert run("findings").stdout.startswith("no findings.")
    assert "GET /v1/findings" in run("findings").stdout


def test_a_rehearsal_finds_the_same_and_writes_nothing(tmp_path: Path) -> None:
    run = prepare(tmp_path)
    result = run("findings", "rehearse", "--days", "3")
    assert result.exit_code == ExitCode.OK, result.stderr
    assert "c: 1 whole day until 2026-10-07T00:00:00Z, of 3 asked for" in result.stdout
    assert "45.7 GPU-hours (182.67 USD) on 1 of 1 day" in result.stdout
    assert not (tmp_path / "ledger.db").exists(), "not even a ledger is needed"
    found = json.loads(run("findings", "rehearse", "-f", "json").stdout)
    assert (found["currency"], found["clusters"][0]["days"]) == ("USD", 1)
    assert {row["pattern"] for row in found["findings"]} == {"idle_allocation", "quota_starvation"}
    assert found["findings"][0]["patch"] == PATCH
    assert found["findings"][0]["subject"]["uid"] == "uid-forgotten"
    assert "uid uid-forgotten" in result.stdout
    assert "→ Suspend it: it holds GPUs and does nothing" in result.stdout
    assert {row["pattern"] for row in found["withheld"] if row["lacks_data"]} >= {"cpu_only_pods"}
    assert "because nobody watches the cluster's objects, so pods without GPUs are not known: once" in (
        " ".join(result.stdout.split())
    )


def test_a_rehearsal_of_what_is_named_asks_nobody_whether_it_is_enabled(tmp_path: Path) -> None:
    run = prepare(tmp_path, detectors="{idle_allocation: {enabled: false}}")

    def patterns(*words: str) -> set[str]:
        found = json.loads(run("findings", "rehearse", "-f", "json", *words).stdout)["findings"]
        return {row["pattern"] for row in found}

    assert patterns() == {"quota_starvation"}
    assert patterns("--detector", "idle_allocation") == {"idle_allocation"}


def test_a_rehearsal_without_a_whole_day_is_exit_code_3(tmp_path: Path) -> None:
    run = prepare(tmp_path, World(end=300).node("n1"))
    result = run("findings", "rehearse")
    assert (result.exit_code, result.stdout) == (ExitCode.SOURCE, "")
    assert (
        "c: the source holds 2026-10-06T00:00:00Z/2026-10-06T05:00:00Z: not the end of a single day"
        in result.stderr
    )


@pytest.mark.parametrize("pattern", WastePattern)
def test_every_pattern_is_explained_and_has_its_page(pattern: WastePattern, looked_at: Run) -> None:
    text = looked_at("findings", "explain", pattern.value).stdout
    assert f"docs/detectors/{pattern.value}.md" in text
    assert "enabled: true" in text
    assert (Path(__file__).parents[2] / "docs" / "detectors" / f"{pattern.value}.md").is_file()


def test_names_in_findings_cannot_move_the_cursor(tmp_path: Path) -> None:
    run = prepare(tmp_path, world("\x1b[2Jforgotten\u202e[bold]"))
    ingest(run)
    detect(tmp_path)
    for words in (
        ("findings",),
        ("findings", "show", "1"),
        ("findings", "acknowledge", "1", "--author", "a"),
        ("findings", "rehearse"),
        ("waste", "2026-10"),
        ("job", "uid-\x1b[2Jforgotten\u202e[bold]"),
    ):
        result = run(*words)
        assert result.exit_code == ExitCode.OK, result.stderr
        assert not {"\x1b", "\u202e"} & set(result.stdout), words
        assert "\\x1b[2J" in result.stdout


def test_a_second_acknowledgement_takes_nothing_from_the_first(changing: Run) -> None:
    changing("findings", "acknowledge", "1", "--note", "I look", "--author", "ann")
    changing("findings", "acknowledge", "1", "--note", "so do I", "--author", "bob")
    shown = changing("findings", "show", "1").stdout
    assert "acknowledged by ann, then bob: so do I" in shown
    assert "acknowledge by ann: I look" in shown, "what happened"
    assert "gpucost job uid-forgotten" in shown


@pytest.mark.parametrize(
    ("bucket", "patterns"),
    [
        ("idle", ["idle_allocation"]),
        ("starved", ["quota_starvation"]),
        ("unavailable", ["unhealthy_allocated", "not_advertised"]),
        ("gang_stall", ["gang_stall"]),
        ("no_demand", []),
    ],
)
def test_a_bucket_leads_to_its_patterns(bucket: str, patterns: list[str], looked_at: Run) -> None:
    result = looked_at("findings", "explain", bucket)
    assert result.exit_code == ExitCode.OK
    assert "a bucket of the waste ledger" in result.stdout
    pages = [line.split("/")[-1].strip() for line in result.stdout.splitlines() if "More: docs/det" in line]
    assert pages == [f"{pattern}.md" for pattern in patterns]
