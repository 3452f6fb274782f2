"""The table of the waste ledger's buckets as text: the same in every rendering, independent of a screen."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from gpucost.domain.buckets import Waste
from gpucost.reports.base import display
from gpucost.reports.base.values import NOTHING, CostAmount
from gpucost.reports.waste.recommendations import Recommendation
from gpucost.reports.waste.waste_report import (
    NEVER_HELD,
    CauseRow,
    TeamWaste,
    WasteAssessment,
    WasteReport,
    WasteRow,
)

LABELS = {
    Waste.UNAVAILABLE: "Unusable",
    Waste.GANG_STALL: "Gang stall",
    Waste.PREEMPTED: "Preempted",
    Waste.IDLE: "Idle",
    Waste.OVERSIZED: "Oversized",
    Waste.STARVED: "Starved",
    Waste.STRANDED: "Stranded",
    Waste.FRAGMENTED: "Fragmented",
    Waste.NO_DEMAND: "No demand",
    Waste.PRODUCTIVE: "In use",
    Waste.UNKNOWN: "Unknown",
}
"""The labels of the buckets. None is also a label of a part of capacity (display.PARTS): the numbers differ,
since this ledger divides held time as well."""
MEANINGS = {
    Waste.UNAVAILABLE: "broken, also where held, cordoned, drained or not advertised",
    Waste.GANG_STALL: "held by a gang whose members were missing",
    Waste.PREEMPTED: "held by work that was stopped and has to be done again",
    Waste.IDLE: "held, and seen to do nothing",
    Waste.OVERSIZED: "the part of a request that the work had no use for",
    Waste.STARVED: "free while somebody waited whom it would have fitted",
    Waste.STRANDED: "free in an NVLink domain of which others have too much for whoever waited",
    Waste.FRAGMENTED: "free while somebody waited whom it did not fit",
    Waste.NO_DEMAND: "free, and nobody waited for it",
    Waste.PRODUCTIVE: "held, observed, and none of the above",
    Waste.UNKNOWN: "not observed, or no detector has looked at it",
}
NOBODY_LOOKED = (
    "No detector has looked at this month, so nothing is said of where its capacity was wasted. "
    "gpucost report --prometheus URL --waste looks at a month at once; the service looks at every window "
    "that it writes to a ledger, while detectors.enabled is true, as it is by default."
)

NO_USE = "; and no series says what GPUs did, as dcgm-exporter does"
FREE_UNSEEN = "free, and no detector has looked"
_LONGEST_LINE, _MOST_LINES = 1_000, 60  # limits for a patch
_MOST_NUMBERS = 20  # numbers of similar findings


@dataclass(frozen=True, slots=True)
class BucketCells:
    """One line of the table. ``key`` is the bucket's name in JSON, empty in the line of the sum; ``share`` is
    of the sum, exactly, for a bar."""

    key: str
    label: str
    meaning: str
    hours: str
    percent: str
    share: Fraction | None
    amount: CostAmount
    is_waste: bool


def shown_buckets(report: WasteReport) -> tuple[WasteRow, ...]:
    """The buckets a reader of ``report`` sees, in order: all ten, or those of held time for some teams."""
    if report.teams_in_scope is None:
        return report.buckets
    return tuple(row for row in report.buckets if row.waste not in NEVER_HELD)


def bucket_cells(report: WasteReport) -> tuple[BucketCells, ...]:
    """The lines of the table, without that of the sum."""
    return tuple(
        BucketCells(
            key=row.waste,
            label=LABELS[Waste(row.waste)],
            meaning=meaning_of(report, row),
            hours=display.hours(row.amount.board_ms),
            percent=display.percent(row.share, 1),
            share=row.share,
            amount=row.amount,
            is_waste=row.is_waste,
        )
        for row in shown_buckets(report)
    )


def meaning_of(report: WasteReport, row: WasteRow) -> str:
    """What a bucket means; for time in use, how busy GPUs were as well."""
    meaning, busy = MEANINGS[Waste(row.waste)], busy_words(report)
    return f"{meaning}; {busy}" if busy and row.waste == Waste.PRODUCTIVE else meaning


def busy_words(report: WasteReport) -> str:
    """How busy all held time was: that a GPU was in use does not say how much. Empty where it was not
    observed."""
    busy = report.held_busy
    if busy is None:
        return ""
    seen = display.percent(busy.coverage)
    return f"all that was held was busy {display.percent(busy.mean)} of the time ({seen} of it observed)"


def sum_cells(report: WasteReport) -> BucketCells:
    """The line of the sum, added up from the buckets; ``whole`` is what it must be equal to."""
    added = sum((row.amount for row in report.buckets), NOTHING)
    share = Fraction(1) if added.board_ms else None
    label = f"Sum of the {len(shown_buckets(report))} buckets"
    return BucketCells(
        "", label, "", display.hours(added.board_ms), display.percent(share, 1), share, added, False
    )


def whole(report: WasteReport) -> str:
    """What the buckets add up to: capacity, or for some teams what they held."""
    return "Capacity" if report.teams_in_scope is None else "Held"


def is_broken(report: WasteReport) -> bool:
    """Whether the buckets do not add up, which is a bug in gpucost."""
    return bool(report.difference_board_ms or report.difference_nano)


def proof(report: WasteReport) -> str:
    """The difference of the sum to what was measured apart from it, in words."""
    against = "capacity" if report.teams_in_scope is None else "held time"
    return (
        f"Sum of the buckets against {against}: difference {report.difference_board_ms} GPU-ms, "
        f"{report.difference_nano} nano-{report.currency}."
    )


def not_told_words(report: WasteReport) -> str:
    """Which buckets are left out because no source has data for them; empty where none is."""
    if not report.not_told:
        return ""
    names = ", ".join(LABELS[waste].lower() for waste in Waste if waste.value in report.not_told)
    return (
        f"Not told by what was read: {names}. kube-state-metrics does not say who waits or was stopped, as "
        f"gpucost's queue collector does{NO_USE if Waste.IDLE.value in report.not_told else ''}."
    )


def looked_at(assessment: WasteAssessment) -> str:
    """How much of the ledger the detectors have assessed, in a sentence."""
    final, provisional, missing = assessment.final, assessment.provisional, assessment.missing
    if not final + provisional:
        return f"No detector has looked at any of {display.counted(missing, 'window')}."
    of = display.counted(final + provisional + missing, "window")
    parts = [f"{final:,} final"]
    parts.append(f"{provisional:,} provisional{' until more is known' if provisional else ''}")
    parts.append(f"{missing:,} not looked at{', which count as unknown' if missing else ''}")
    return f"Of {of}: {', '.join(parts)}."


def mostly(team: TeamWaste) -> str:
    """The bucket in which a team wasted most: ``Idle 12.5 h``; a dash where it wasted nothing."""
    wasted = [row for row in team.buckets if row.is_waste and row.amount.board_ms]
    if not wasted:
        return display.MISSING
    most = max(wasted, key=lambda row: row.amount.board_ms)
    return f"{LABELS[Waste(most.waste)]} {display.hours(most.amount.board_ms)} h"


def per_day(nano: int | None, currency: str, whose: str = "its") -> str:
    """The saving per day if the recommendation is followed, at the current rate: ``744 USD a day at its rate
    of now``."""
    return (
        "not in money"
        if nano is None
        else f"{display.money(nano, 0)} {currency} a day at {whose} rate of now"
    )


def last_day(row: Recommendation, currency: str) -> str:
    """What it wasted in the last day, which differs from its current rate: ``1,317.59 USD in its last day``;
    in GPU-hours where it has no price."""
    wasted = row.wasted
    found = (
        f"{display.hours(wasted.board_ms)} GPU-hours"
        if wasted.nano is None
        else f"{display.money(wasted.nano)} {currency}"
    )
    return f"{found} in its last day{'' if row.counted else ', shown, and in no sum'}"


def alike(row: Recommendation, currency: str) -> str:
    """``and 8 more jobs of ranking: 171 USD a day at their rate of now; findings 12, 14``; empty where there
    are none."""
    if row.alike is None:
        return ""
    more = display.counted(len(row.alike.findings), f"more {row.subject_kind}")
    of = f" of {display.name(row.team)}" if row.team else ""
    cost = per_day(row.alike.daily_nano, currency, "their")
    numbers = ", ".join(map(str, row.alike.findings[:_MOST_NUMBERS]))
    rest = len(row.alike.findings) - _MOST_NUMBERS
    word = "finding" if len(row.alike.findings) == 1 else "findings"
    return f"and {more}{of}: {cost}; {word} {numbers}{f' and {rest:,} more' if rest > 0 else ''}"


def unknown_words(report: WasteReport) -> str:
    """What most of the unknown hours are; empty where there are none."""
    found, looked = report.unknown, report.assessment
    held = (
        "held, and no detector has looked"
        if not looked.final + looked.provisional
        else "held, and not measured"
        if not looked.missing
        else "held, and not measured or in a window that no detector has looked at"
    )
    free = "free, and nothing says whether anybody waited" if report.not_told else FREE_UNSEEN
    kinds = [
        (found.unobserved.board_ms, "not observed at all"),
        (found.held.board_ms, held),
        (found.free.board_ms, free),
    ]
    ranked = sorted((each for each in kinds if each[0]), key=lambda each: -each[0])
    return (
        f"Unknown: {'; '.join(f'{display.hours(ms)} h {words}' for ms, words in ranked)}." if ranked else ""
    )


def cause_team(row: CauseRow) -> str:
    """Whose time a cause is of."""
    return display.name(row.team, display.LONGEST_NAME) if row.team else "nobody"


def show_command(finding: int) -> str:
    """The command that shows all of a finding."""
    return f"gpucost findings show {finding}"


def who(row: Recommendation) -> str:
    """The team that could act on it: what is of none is the platform's, which is not a team of that name."""
    return display.name(row.team) if row.team else "platform, no team"


def patch_text(patch: str) -> str:
    """A patch with invisible characters written out. It is copied: only absurd lengths are cut."""
    lines = patch.strip("\n").split("\n")
    shown = [display.visible(line, _LONGEST_LINE) for line in lines[:_MOST_LINES]]
    return "\n".join([*shown, *(["# …"] if len(lines) > _MOST_LINES else [])])
