"""The charts of a week's digest: days side by side, teams one below the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date

from gpucost.domain.money import round_half_even
from gpucost.domain.time import HOUR_MS, MINUTE_MS
from gpucost.domain.waste import ORDER, Waste
from gpucost.notify.compose.amounts import cost
from gpucost.notify.message import Bar, Chart
from gpucost.reports import display
from gpucost.reports.digest_model import DayOfWeek, WeekDigest
from gpucost.reports.values import Amount
from gpucost.reports.waste_table import LABELS

_MOST_TEAMS = 10
_DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
# Bars of less than this are drawn in minutes: whole hours would be too coarse.
_HOURS_FROM_MS = 100 * HOUR_MS


def days_chart(digest: WeekDigest) -> Chart | None:
    """A column for each day, by bucket of waste; a day that the ledger has nothing of is a gap. None where
    nothing is in any bucket."""
    found = [day.buckets or {} for day in digest.days]
    present = _present(found)
    if not present:
        return None
    unit, unit_ms = _unit(found)
    bars = tuple(
        Bar(
            _DAYS[date.fromisoformat(day.day).weekday()],
            _parts(day.buckets, present, unit_ms),
            _shown(day),
        )
        for day in digest.days
    )
    return Chart("By day", unit, _labels(present), tuple(present), bars, upright=True)


def teams_chart(digest: WeekDigest) -> Chart | None:
    """What the costliest teams held, by bucket of waste; None where nobody looked."""
    rows = [each for each in digest.teams if each.waste is not None and each.row.held.board_ms][:_MOST_TEAMS]
    buckets = [{row.waste: row.amount for row in each.waste.buckets} for each in rows if each.waste]
    present = _present(buckets)
    if not present:
        return None
    unit, unit_ms = _unit(buckets)
    bars = tuple(
        Bar(
            display.name(each.row.group["team"]),
            _parts(held, present, unit_ms),
            cost(each.row.held.nano, digest.currency),
        )
        for each, held in zip(rows, buckets, strict=True)
    )
    cut = f", the costliest {len(rows)} of {len(digest.teams)}" if len(digest.teams) > len(rows) else ""
    return Chart(f"By team{cut}", unit, _labels(present), tuple(present), bars)


def _present(bars: Sequence[Mapping[str, Amount]]) -> list[str]:
    """The buckets that have time in any bar: productive first, then what is lost, in their order."""
    names = {waste for bar in bars for waste, found in bar.items() if found.board_ms}
    return sorted(names, key=lambda waste: (waste != Waste.PRODUCTIVE, ORDER[Waste(waste)]))


def _labels(present: Sequence[str]) -> tuple[str, ...]:
    return tuple(LABELS[Waste(waste)] for waste in present)


def _unit(bars: Sequence[Mapping[str, Amount]]) -> tuple[str, int]:
    longest_ms = max(sum(found.board_ms for found in bar.values()) for bar in bars)
    return ("GPU-hours", HOUR_MS) if longest_ms >= _HOURS_FROM_MS else ("GPU-minutes", MINUTE_MS)


def _parts(
    buckets: Mapping[str, Amount] | None, present: Sequence[str], unit_ms: int
) -> tuple[int | None, ...]:
    if buckets is None:
        return (None,) * len(present)
    return tuple(
        round_half_even(found.board_ms, unit_ms) if (found := buckets.get(waste)) else 0 for waste in present
    )


def _shown(day: DayOfWeek) -> str:
    if day.buckets is None:
        return "missing"
    hours = display.hours(sum(found.board_ms for found in day.buckets.values()), 0)
    part = "" if day.covered >= 1 else f", {display.percent(day.covered)} of the day"
    return f"{hours} h{part}"
