"""The report of ``gpucost advisor verify``: the verdict in the first line, then counts, then what differs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any, NamedTuple

from gpucost.advisor.kueue.rule_set import drift
from gpucost.advisor.verify.case_schema import VERSION, RecordingOrigin
from gpucost.advisor.verify.decision_follower import ORDER, ObservedCases
from gpucost.advisor.verify.replay import FactTally, ReplayReport
from gpucost.cli.terminal.columns import (
    TextRow,
    in_columns,
    name,
    number,
)
from gpucost.domain.time import iso
from gpucost.reports.base.display import counted, visible

MOST_SHOWN = 25
"""Disagreements without --all."""
_LONGEST = 600
_LONGEST_SENTENCE = 2_000


class CaseSource(NamedTuple):
    """A file of cases; ``origin`` is None where it does not say whose decisions they are."""

    name: str
    origin: RecordingOrigin | None


def lines(
    report: ReplayReport, width: int, *, everything: bool, sources: Sequence[CaseSource] = ()
) -> Iterator[str]:
    """For a person; ``width`` in cells."""
    yield verdict(report)
    yield ""
    told = [line for each in sources for line in _recorded(each, len(sources) > 1)]
    yield from told
    yield from [""] if told else []
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


def _recorded(source: CaseSource, is_one_of_many: bool) -> Iterator[str]:
    """Whose decisions they are, and where that Kueue is known to decide otherwise."""
    file = f"{visible(source.name, _LONGEST)}: " if is_one_of_many else ""
    origin = source.origin
    if origin is None:
        yield f"{file}which Kueue decided so does not stand in the file"
        return
    config = origin.config
    kind = "fair sharing" if config.fair_sharing else "classical preemption"
    when = f", {iso(origin.from_ms)} to {iso(origin.to_ms)}" if origin.from_ms and origin.to_ms else ""
    version = visible(config.version, _LONGEST) or "of a version that is not known"
    yield f"{file}decided by Kueue {version}, {kind}{when}"
    for each in drift(config):
        yield f"  differs: {visible(each, _LONGEST_SENTENCE)}"


def verdict(report: ReplayReport) -> str:
    cases, facts = report.cases, report.facts
    if report.agrees:
        return f"All {facts.of:,} facts of {cases.of:,} cases agree with the rules of Kueue {VERSION}."
    wrong, differ = facts.of - facts.agree, cases.of - cases.agree
    counts = f"{wrong:,} of {facts.of:,} facts in {differ:,} of {cases.of:,} cases"
    return f"{counts} disagree with the rules of Kueue {VERSION}."


def record_summary(kept: ObservedCases, report: ReplayReport) -> Iterator[str]:
    """What was recorded and what was left out, with reasons, and whether the rules agree."""
    parts = [counted(kept.admissions, "admission"), counted(kept.preemptions, "preemption")]
    seen = " and ".join(parts)
    if kept.refusals:
        seen = f"{', '.join(parts)} and {counted(kept.refusals, 'refusal')}"
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


def as_data(report: ReplayReport, sources: Sequence[CaseSource] = ()) -> dict[str, Any]:
    """For programs, nothing cut."""
    return {
        "rules": f"Kueue {VERSION}",
        "recorded": [_origin(each) for each in sources],
        "agrees": report.agrees,
        "cases": report.cases._asdict(),
        "facts": report.facts._asdict(),
        "by_fact": {key: each._asdict() for key, each in report.by_fact.items()},
        "by_rule": {key: each._asdict() for key, each in report.by_rule.items()},
        "disagreements": [asdict(each) for each in report.disagreements],
    }


def _origin(source: CaseSource) -> dict[str, Any]:
    """Of one file; null where it does not say it."""
    origin = source.origin
    if origin is None:
        keys = ("version", "fair_sharing", "feature_gates", "from", "to", "differs")
        return {"file": source.name, **dict.fromkeys(keys)}
    config = origin.config
    return {
        "file": source.name,
        "version": config.version or None,
        "fair_sharing": config.fair_sharing,
        "feature_gates": dict(config.gates),
        "from": iso(origin.from_ms) if origin.from_ms else None,
        "to": iso(origin.to_ms) if origin.to_ms else None,
        "differs": list(drift(config)),
    }


def _table(head: str, tallies: Mapping[str, FactTally], width: int) -> Iterator[str]:
    columns = (name(head, 20), number("agree"), number("of"), number("share"))
    rows = [
        TextRow((visible(key), f"{each.agree:,}", f"{each.of:,}", f"{100 * each.agree / each.of:.1f} %"))
        for key, each in tallies.items()
    ]
    yield from (line.plain for line in in_columns(columns, rows, width))
