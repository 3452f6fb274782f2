"""The report of ``gpucost advisor verify``: the verdict in the first line, then counts, then what differs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

from gpucost.advisor.verify.case_schema import VERSION
from gpucost.advisor.verify.decision_follower import ORDER, ObservedCases
from gpucost.advisor.verify.replay import FactTally, ReplayReport
from gpucost.cli.terminal.columns import (
    TextRow,
    in_columns,
    name,
    number,
)
from gpucost.reports.base.display import counted, visible

MOST_SHOWN = 25
"""Disagreements without --all."""
_LONGEST = 600


def lines(report: ReplayReport, width: int, *, everything: bool) -> Iterator[str]:
    """For a person; ``width`` in cells."""
    yield verdict(report)
    yield ""
    yield from _table("fact", report.by_fact, width)
    yield ""
    yield from _table("rule (cases)", report.by_rule, width)
    shown = report.disagreements if everything else report.disagreements[:MOST_SHOWN]
    for each in shown:
        yield ""
        yield visible(f"{each.case}  {each.workload or 'all workloads'}  {each.fact}", _LONGEST)
        yield f"  recorded: {visible(each.expected, _LONGEST)}"
        yield f"  rules:    {visible(each.got, _LONGEST)}"
    hidden = len(report.disagreements) - len(shown)
    if hidden:
        yield ""
        yield f"and {hidden:,} more disagreements; --all shows them"


def verdict(report: ReplayReport) -> str:
    cases, facts = report.cases, report.facts
    if report.agrees:
        return f"All {facts.of:,} facts of {cases.of:,} cases agree with the rules of Kueue {VERSION}."
    wrong, differ = facts.of - facts.agree, cases.of - cases.agree
    counts = f"{wrong:,} of {facts.of:,} facts in {differ:,} of {cases.of:,} cases"
    return f"{counts} disagree with the rules of Kueue {VERSION}."


def record_summary(kept: ObservedCases, report: ReplayReport) -> Iterator[str]:
    """What was recorded and what was left out, with reasons, and whether the rules agree."""
    seen = f"{counted(kept.admissions, 'admission')} and {counted(kept.preemptions, 'preemption')}"
    yield f"recorded {counted(len(kept.cases), 'case')} of {seen} that were seen"
    for reason, count in sorted(kept.left_out.items(), key=lambda each: (-each[1], each[0])):
        yield f"left out: {count:,}: {visible(reason, _LONGEST)}"
    cases = report.cases
    order = kept.left_out[ORDER]
    worst = f"; {cases.agree:,} of {cases.of + order:,} with those left out for their order" if order else ""
    yield f"{cases.agree:,} of {counted(cases.of, 'case')} agree with the rules of Kueue {VERSION}{worst}"
    for each in report.disagreements[:MOST_SHOWN]:
        what = f"{each.case}, {each.workload or 'all workloads'}, {each.fact}"
        yield visible(f"differs: {what}: recorded {each.expected}; rules {each.got}", _LONGEST)
    hidden = len(report.disagreements) - MOST_SHOWN
    if hidden > 0:
        yield f"and {hidden:,} more; gpucost advisor verify --all shows them"


def as_data(report: ReplayReport) -> dict[str, Any]:
    """For programs, nothing cut."""
    return {
        "rules": f"Kueue {VERSION}",
        "agrees": report.agrees,
        "cases": report.cases._asdict(),
        "facts": report.facts._asdict(),
        "by_fact": {key: each._asdict() for key, each in report.by_fact.items()},
        "by_rule": {key: each._asdict() for key, each in report.by_rule.items()},
        "disagreements": [asdict(each) for each in report.disagreements],
    }


def _table(head: str, tallies: Mapping[str, FactTally], width: int) -> Iterator[str]:
    columns = (name(head, 20), number("agree"), number("of"), number("share"))
    rows = [
        TextRow((visible(key), f"{each.agree:,}", f"{each.of:,}", f"{100 * each.agree / each.of:.1f} %"))
        for key, each in tallies.items()
    ]
    yield from (line.plain for line in in_columns(columns, rows, width))
