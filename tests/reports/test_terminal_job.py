"""A job, findings and the waste ledger in terminals: widths, patches that can be copied, hostile names."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction

import pytest
from rich.cells import cell_len
from rich.console import Console

from gpucost.detectors.engine.lifecycle import FindingLife, FindingLifeState
from gpucost.detectors.findings import (
    FindingAction,
    FindingEvidence,
    FindingSubject,
    SubjectKind,
    WastePattern,
)
from gpucost.domain.buckets import Waste
from gpucost.domain.time import HOUR_MS, Window
from gpucost.reports.job.job_report import JobReport, build_job, live_view
from gpucost.reports.render.terminal_backtest import print_explained
from gpucost.reports.render.terminal_findings import print_finding, print_findings
from gpucost.reports.render.terminal_job import print_job
from gpucost.reports.render.terminal_parts import WHOLE, bar
from gpucost.reports.render.terminal_waste import print_waste
from gpucost.reports.waste.backtest import explained
from gpucost.reports.waste.findings import (
    EventRow,
    FindingReport,
    FindingsReport,
    finding_row,
)
from gpucost.reports.waste.recommendations import KnownFinding
from gpucost.reports.waste.waste_report import WasteAssessment, build_waste
from gpucost.service.settings.detectors import DetectorsSettings
from tests.detectors.worlds import T0, World, at
from tests.reports.builders import START_MS
from tests.reports.test_job import job_inputs, part
from tests.reports.test_waste import PRICE, a_day, frame, inputs, known, line

HOSTILE = "\x1b[2J\u202e[bold]x[/]"
PATCH = "spec:\n  template:\n    " + "a-very-long-line " * 12 + "end"


def shown(draw: Callable[[Console], None], width: int = 120) -> str:
    console = Console(file=io.StringIO(), width=width, color_system=None, force_terminal=False)
    draw(console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def told(number: int = 7, text: str = "it idles", patch: str = PATCH) -> KnownFinding:
    """A finding whose words are ``text``, in every place that another user may have written."""
    found = known(number, PRICE)
    subject = FindingSubject(SubjectKind.JOB, text, text, text, "uid-train")
    draft = replace(
        found.finding.draft,
        subject=subject,
        summary=text,
        action=FindingAction(text, patch),
        formula=text,
        team=text,
        checked=(text,),
        evidence=(
            FindingEvidence(text, text, text, text),
            FindingEvidence("part", 0.25, ""),
            FindingEvidence("gone", float("nan")),
        ),
    )
    return replace(found, finding=replace(found.finding, draft=draft))


def job(text: str = "it idles") -> JobReport:
    world = World(end=60).node("n1").pod("p", "n1", 0, job="train", units=2)
    world.work("p", "n1", f"GPU-{text}", [0.5] * 12).work("p", "n1", "GPU-idle", [0.0] * 12)
    world.waits("train", 0, 30, reason=text)
    waste = frame(line(Waste.IDLE, 1), line(Waste.PRODUCTIVE, 3))
    report = build_job(
        job_inputs(
            part(4, 0, 1, seen=4, busy=0.5),
            waste=waste,
            assessment=WasteAssessment(1, 1, 1),
            findings=(told(7, text),),
        )
    )
    return replace(report, seen=live_view("uid-train", [(Window(T0, at(60)), world.frames())], [text]))


def finding(text: str = "it idles") -> FindingReport:
    life = FindingLife(told(7, text).finding, FindingLifeState.OPEN, START_MS, START_MS, START_MS + HOUR_MS)
    row = finding_row(7, life, START_MS)
    return FindingReport("USD", row, (EventRow("2026-10-01T00:00:00Z", text, "opened", text),))


PRINTED: dict[str, Callable[[str, Console], None]] = {
    "job": lambda text, console: print_job(job(text), console),
    "finding": lambda text, console: print_finding(finding(text), console),
    "findings": lambda text, console: print_findings(
        FindingsReport("USD", None, (finding(text).finding,)), console
    ),
    "waste": lambda text, console: print_waste(
        build_waste(inputs(*a_day(), findings=(told(7, text),))), console
    ),
    "explain": lambda _, console: print_explained(
        explained(WastePattern.IDLE_ALLOCATION, DetectorsSettings().idle_allocation), console
    ),
}


@pytest.mark.parametrize("width", [60, 80, 100, 160])
@pytest.mark.parametrize("name", PRINTED)
def test_nothing_is_wider_than_the_terminal_but_what_is_to_be_copied(name: str, width: int) -> None:
    text = shown(lambda console: PRINTED[name]("some words of a sentence " * 10, console), width)
    lines = [each for each in text.splitlines() if "a-very-long-line" not in each]
    assert max(cell_len(each.rstrip()) for each in lines) <= width


@pytest.mark.parametrize("name", ["job", "finding", "waste"])
@pytest.mark.parametrize("width", [40, 120])
def test_a_patch_can_be_copied_as_it_was_written(name: str, width: int) -> None:
    text = shown(lambda console: PRINTED[name]("it idles", console), width)
    lines = text.splitlines()
    first = next(n for n, each in enumerate(lines) if each.strip() == "spec:")
    indent = len(lines[first]) - len("spec:")
    assert [each[indent:] for each in lines[first : first + 3]] == PATCH.splitlines()


@pytest.mark.parametrize("width", [60, 120])
@pytest.mark.parametrize("name", ["job", "finding", "findings", "waste"])
def test_hostile_names_neither_move_the_cursor_nor_are_markup(name: str, width: int) -> None:
    text = shown(lambda console: PRINTED[name](HOSTILE, console), width)
    assert not {"\x1b", "\u202e"} & set(text)
    assert "[bold]" in text or name == "findings"


def test_a_patch_with_an_escape_in_it_is_shown_without() -> None:
    hostile = replace(told(7, "x", f"kubectl delete pod '{HOSTILE}'"))
    text = shown(lambda console: print_waste(build_waste(inputs(*a_day(), findings=(hostile,))), console))
    assert "\x1b" not in text
    assert "kubectl delete pod '\\x1b[2J\\u202e[bold]x[/]'" in text


def test_a_job_says_what_each_gpu_did_and_what_to_change() -> None:
    text = shown(lambda console: print_job(job(), console))
    rows = [each.split() for each in text.splitlines()]
    gpus = [row for row in rows if row[:1] == ["n1"]]
    assert gpus[0][:5] == ["n1", "GPU-idle", "p", "·" * 10, "0%"], "the GPU that did least comes first"
    assert gpus[1][4:6] == ["█" * 5 + "·" * 5, "50%"]
    assert "Waited 0.5 h in all, since 2026-10-06T00:00:00Z" in text
    assert ["Wasted", "1.0", "25.0%", "4.00"] in rows
    assert "1 not looked at, which count as unknown" in text
    note = text[text.index("What to change") :]
    assert "1. high  idle_allocation, finding 7, open, since 2026-10-01T00:00:00Z" in note
    assert "→ it idles" in note
    assert text.index("Where it comes from") < text.index("What to change"), "notes stand at the end"


def test_a_job_without_a_look_at_the_source_says_how_to_have_one() -> None:
    text = shown(lambda console: print_job(replace(job(), seen=None), console))
    assert "Ask for them with --gpus" in text


@pytest.mark.parametrize("width", [80, 120])
def test_no_number_of_a_gpu_is_cut_but_names_are(width: int) -> None:
    world = World(end=60)
    names = ("gpu-node-with-a-long-name-in-a-long-domain.example.org", "GPU-0123456789abcdef-0123456789ab")
    world.node(names[0]).pod("a-pod-with-a-very-long-name-0", names[0], 0, job="train", units=1)
    world.work("a-pod-with-a-very-long-name-0", names[0], names[1], [0.25] * 12)
    look = replace(job(), seen=live_view("uid-train", [(Window(T0, at(60)), world.frames())], []))
    text = shown(lambda console: print_job(look, console), width)
    [row] = [line for line in text.splitlines() if "25% (100%)" in line]
    cells = row.split()
    names = 3 if width == 120 else 2
    assert all(cell.endswith("…") and len(cell) > 5 for cell in cells[:names])
    assert "…" not in "".join(cells[names:])
    assert cells[-1] == "GiB"
    assert cell_len(row.rstrip()) <= width


def test_a_job_tells_what_is_over_apart_and_waste_that_no_finding_explains() -> None:
    over = replace(told(7, "it idled"), state="resolved", closed_at_ms=START_MS + HOUR_MS)
    waste = frame(line(Waste.IDLE, 1), line(Waste.OVERSIZED, 2), line(Waste.PRODUCTIVE, 1))
    inputs_ = job_inputs(part(4, 0, 1), waste=waste, assessment=WasteAssessment(1, 0, 0), findings=(over,))
    text = shown(lambda console: print_job(build_job(inputs_), console))
    assert "What to change" not in text
    note = text[text.index("What was found and is over") :]
    assert (
        "idle_allocation, finding 7, resolved, since 2026-10-01T00:00:00Z until 2026-10-01T01:00:00Z" in note
    )
    assert "2.0 GPU-hours of it were oversized: see docs/detectors/oversized_request.md" in note
    assert "were idle" not in note, "a finding says so already"


@pytest.mark.parametrize(
    ("looked", "words"),
    [(WasteAssessment(1, 0, 0), "Nothing to change"), (WasteAssessment(0, 0, 3), "No findings")],
)
def test_a_job_without_findings_says_why(looked: WasteAssessment, words: str) -> None:
    report = build_job(job_inputs(part(1, 0, 1), waste=frame(line(Waste.UNKNOWN, 1)), assessment=looked))
    assert words in shown(lambda console: print_job(report, console))


def test_the_whole_finding_begins_with_its_sentence() -> None:
    text = shown(lambda console: print_finding(finding("Job ns/train idles"), console))
    assert text.splitlines()[0].strip() == "Job ns/train idles"
    assert "part: 0.25" in text
    assert "gone: –" in text, "what is no number is missing"
    assert "now 1 GPU, 4.00 USD per hour" in text
    assert "docs/detectors/idle_allocation.md" in text


def test_a_view_is_marked_as_in_no_sum() -> None:
    row = finding().finding
    view = replace(row, wasted=replace(row.wasted, counted=False))
    text = shown(lambda console: print_findings(FindingsReport("USD", None, (view,)), console))
    assert "4.00°" in text
    assert "° shown, and in no sum." in text


def test_a_list_has_room_for_what_it_is_about() -> None:
    row = replace(finding().finding, pattern="oversized_request", variant="serving_peak")
    row = replace(row, subject=replace(row.subject, namespace="ranking", name="embedder-of-the-night"))
    found = FindingsReport("USD", None, (row,))
    assert "job ranking/embedder-of-the" in shown(lambda console: print_findings(found, console), width=120)
    assert "serving_peak" in shown(lambda console: print_findings(found, console), width=WHOLE)


def test_a_changed_setting_is_shown_with_its_default() -> None:
    settings = DetectorsSettings.model_validate({"idle_allocation": {"batch": "9h"}}).idle_allocation
    text = shown(lambda console: print_explained(explained(WastePattern.IDLE_ALLOCATION, settings), console))
    assert "batch: 9h (default 4h)" in text
    assert "start_grace: 10m\n" in "\n".join(each.rstrip() for each in text.splitlines()) + "\n"
    assert "antipatterns" not in text, "a reference that its reader does not have"


@pytest.mark.parametrize(
    ("share", "blocks"), [("0", 0), ("1/1000", 1), ("1/2", 10), ("999/1000", 19), ("1", 20)]
)
def test_a_bar_is_full_only_for_the_whole_and_empty_only_for_nothing(share: str, blocks: int) -> None:
    assert bar(Fraction(share), 20).count("█") == blocks


@pytest.mark.parametrize("width", [60, 80, 116, 160])
def test_a_list_that_has_no_room_cuts_names_and_never_a_number(width: int) -> None:
    row = finding("a long name of something " * 5).finding
    dear = replace(row, id=12_345, wasted=replace(row.wasted, nano=1_234_567_890_000_000))
    report = FindingsReport("USD", None, (row, dear))
    text = shown(lambda console: print_findings(report, console), width)
    cells = next(each for each in text.splitlines() if "12345" in each).split()
    assert cells[-3:] == ["1,234,567.89", "96.00", "12345"]
    assert cells[0] == "high"
    assert "…" in text
