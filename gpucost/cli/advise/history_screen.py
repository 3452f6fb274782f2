"""The report of ``gpucost advisor verify`` about histories: the verdict, each configuration, what differs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from gpucost.advisor.replay.kueue_replay import SETTING_BY_REASON
from gpucost.advisor.verify.case_schema import NOW_MS, VERSION
from gpucost.advisor.verify.history_check import EXCEPTED, HistoryReport
from gpucost.advisor.verify.history_files import NO_REST
from gpucost.advisor.verify.replay import FactTally
from gpucost.cli.terminal.columns import TextRow, in_columns, name, number
from gpucost.domain.time import SECOND_MS
from gpucost.reports.base.display import counted, visible

_LONGEST = 600
_MOST_PAIRS = 4


def history_verdict(reports: Sequence[HistoryReport]) -> str:
    """The first line."""
    histories = len({each.history for each in reports})
    sums = (
        f"{_sum(reports, 'admissions').of:,} admissions, {_sum(reports, 'evictions').of:,} evictions and "
        f"{_sum(reports, 'ends').of:,} ends"
    )
    several = "history" if histories == 1 else "histories"
    of = f"{counted(len(reports), 'configuration')} of {histories:,} {several}"
    wrong = sum(not each.passes for each in reports)
    if wrong:
        return f"{wrong:,} of {of} ({sums}) disagree with the rules of Kueue {VERSION}."
    excepted = sum(bool(each.exception) for each in reports)
    but = f", {excepted:,} of them by exception" if excepted else ""
    return f"All {of} agree with the rules of Kueue {VERSION} to the second{but}: {sums}."


def history_lines(reports: Sequence[HistoryReport], width: int, most: int | None) -> Iterator[str]:
    """For a person; ``width`` in cells, at ``most`` so many differences of each configuration."""
    yield history_verdict(reports)
    yield ""
    columns = (
        name("configuration", 16),
        number("workloads"),
        number("admissions"),
        number("evictions"),
        number("ends"),
        name("", 20),
        name("what is different", 30),
    )
    rows = [
        TextRow(
            (
                visible(each.name),
                *(_tally(tally) for tally in (each.workloads, each.admissions, each.evictions, each.ends)),
                _result(each),
                visible(each.change, 80),
            )
        )
        for each in reports
    ]
    yield from (line.plain for line in in_columns(columns, rows, width))
    yield ""
    yield from _variations(reports)
    yield from _exceptions(reports)
    yield from _unrest(reports)
    for each in reports:
        shown = each.differences[:most]
        for difference in shown:
            yield ""
            who = visible(difference.workload) or "all workloads"
            yield f"{visible(each.name)}  {who}  from second {difference.at_s:,}"
            yield f"  recorded: {visible(difference.recorded, _LONGEST)}"
            yield f"  replayed: {visible(difference.replayed, _LONGEST)}"
        if len(each.differences) > len(shown):
            yield ""
            yield f"and {len(each.differences) - len(shown):,} more of {visible(each.name)}; --all shows them"


def _variations(reports: Sequence[HistoryReport]) -> Iterator[str]:
    """Those that were replayed from what A tells."""
    first = {each.history: each.configuration for each in reversed(reports)}
    found = [each for each in reports if each.configuration != first[each.history]]
    if found:
        agree = sum(each.agrees for each in found)
        yield (
            f"{agree:,} of {counted(len(found), 'variation')} replayed from the arrivals and run times "
            "of the first configuration agree"
        )


def _exceptions(reports: Sequence[HistoryReport]) -> Iterator[str]:
    for trap in EXCEPTED:
        having = [each for each in reports if trap in each.traps]
        if having:
            differ = [each for each in having if each.exception == trap]
            fare = sum(each.workloads.of - each.workloads.agree for each in differ)
            yield f"excepted for {trap}: {len(differ):,} of {len(having):,} ({fare:,} workloads)"
    ended = [each for each in reports if NO_REST in each.traps]
    if ended:
        yield f"compared until preemption has no rest ({NO_REST}): {len(ended):,}"


def _unrest(reports: Sequence[HistoryReport]) -> Iterator[str]:
    for each in reports:
        told = each.restless
        if told is not None:
            pairs = [
                f"{by} preempts {victim} {times:,} times "
                f"({SETTING_BY_REASON.get(reason, reason)} of {each.queues.get(by, by)})"
                for by, victim, reason, times in told.pairs[:_MOST_PAIRS]
            ]
            said = visible(", ".join(pairs), _LONGEST)
            at_s = (told.at_ms - NOW_MS) // SECOND_MS
            yield f"without rest: {visible(each.name)} at second {at_s:,}: {said}"


def history_data(reports: Sequence[HistoryReport]) -> list[dict[str, Any]]:
    """For programs, nothing cut. Seconds are from the start of the history."""
    return [
        {
            "history": each.history,
            "configuration": each.configuration,
            "change": each.change,
            "traps": list(each.traps),
            "agrees": each.agrees,
            "exception": each.exception or None,
            "workloads": each.workloads._asdict(),
            "admissions": each.admissions._asdict(),
            "evictions": each.evictions._asdict(),
            "ends": each.ends._asdict(),
            "cycles": each.cycles,
            "run_times_of_a": each.run_times_of_a,
            "without_rest": None
            if each.restless is None
            else {
                "at_s": (each.restless.at_ms - NOW_MS) // SECOND_MS,
                "why": each.restless.why,
                "pairs": [
                    {**pair._asdict(), "queue": each.queues.get(pair.by)} for pair in each.restless.pairs
                ],
            },
            "differences": [difference._asdict() for difference in each.differences],
        }
        for each in reports
    ]


def _result(report: HistoryReport) -> str:
    if report.agrees:
        return "agrees"
    return f"excepted: {report.exception}" if report.exception else "differs"


def _tally(tally: FactTally) -> str:
    return f"{tally.of:,}" if tally.of == tally.agree else f"{tally.agree:,} of {tally.of:,}"


def _sum(reports: Sequence[HistoryReport], field: str) -> FactTally:
    found: list[FactTally] = [getattr(each, field) for each in reports]
    return FactTally(sum(each.of for each in found), sum(each.agree for each in found))
