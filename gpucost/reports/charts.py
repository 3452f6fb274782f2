"""Geometry of the charts in the HTML report: computed here in user units, drawn by the template."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from gpucost.domain.holders import Bucket
from gpucost.domain.money import NANO
from gpucost.domain.time import DAY_MS, HOUR_MS, iso
from gpucost.domain.waste import Waste
from gpucost.reports import display
from gpucost.reports.model import CAPACITY_BUCKETS, Buckets, DayCost, MonthReport
from gpucost.reports.values import ratio
from gpucost.reports.waste import WasteRow
from gpucost.reports.waste_table import LABELS

MOST_SERIES = 7
NOT_HELD = "not held"
OTHERS = "other teams"

# Work carries everything else; what nobody looked at lies on top, apart from all that is known.
_UPWARDS = (
    Waste.PRODUCTIVE,
    *(waste for waste in Waste if waste.is_waste),
    Waste.NO_DEMAND,
    Waste.UNKNOWN,
)
_BAR_WIDTH = 1000
_GAP = 3
_SMALLEST = 2  # added to every part, so that what exists is seen
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 8, 12, 24


@dataclass(frozen=True, slots=True)
class Rect:
    """A rectangle of a series; ``css`` is the class that colours it, ``title`` its tooltip."""

    x: float
    y: float
    width: float
    height: float
    css: str
    title: str


@dataclass(frozen=True, slots=True)
class Tick:
    at: float
    label: str


@dataclass(frozen=True, slots=True)
class DayChart:
    """Bars per day, stacked. ``series`` are (class, label) from the bottom up."""

    width: int
    height: int
    left: int
    right: int
    baseline: float
    unit: str
    series: tuple[tuple[str, str], ...]
    rects: tuple[Rect, ...]
    y_ticks: tuple[Tick, ...]
    x_ticks: tuple[Tick, ...]
    description: str


def capacity_bar(buckets: Buckets, height: int = 28) -> tuple[Rect, ...]:
    """One bar of 1000 units, split by board time into the four parts of capacity, with gaps between them."""
    amounts = {bucket: getattr(buckets, bucket.value) for bucket in CAPACITY_BUCKETS}
    amounts = {bucket: amount for bucket, amount in amounts.items() if amount.board_ms > 0}
    whole = sum(amount.board_ms for amount in amounts.values())
    room = _BAR_WIDTH - (_GAP + _SMALLEST) * len(amounts) + _GAP
    rects, x = [], 0.0
    for bucket, amount in amounts.items():
        width = _SMALLEST + room * amount.board_ms / whole
        share = display.percent(ratio(amount.board_ms, whole), 1)
        title = f"{display.PARTS[bucket]}: {display.hours(amount.board_ms)} GPU-hours, {share}"
        rects.append(Rect(_at(x), 0, _at(width), height, bucket.value, title))
        x += width + _GAP
    return tuple(rects)


def day_chart(report: MonthReport, width: int = 1000, height: int = 260) -> DayChart | None:
    """Cost per day by team, what nobody held on top; GPU-hours where nothing has a price.

    None without days.
    """
    days = [day for day in report.days if day.bucket != Bucket.OVERCOMMITTED]
    if not days:
        return None
    by_cost = report.totals.held.nano is not None
    colours = _colours(report, days)
    values = _values(days, colours, by_cost)
    return _stacked(report, values, _series(colours), by_cost, width, height)


def waste_chart(report: MonthReport, width: int = 1000, height: int = 260) -> DayChart | None:
    """GPU-hours per day by bucket of the waste ledger: work at the bottom, waste upon it, then what is free
    without demand and what is unknown. None without days."""
    if report.waste is None or not report.waste.days:
        return None
    values = {(day.day, f"w-{day.waste}"): day.amount.board_ms for day in report.waste.days}
    series = [(f"w-{waste.value}", LABELS[waste]) for waste in _UPWARDS]
    return _stacked(report, values, series, False, width, height)


def waste_bar(rows: Sequence[WasteRow], whole_ms: int) -> tuple[Rect, ...]:
    """What is waste among ``rows``, in percent of the whole that it is a part of, side by side."""
    rects, x = [], 0.0
    for row in rows:
        if row.is_waste and row.amount.board_ms > 0:
            width = 100 * row.amount.board_ms / whole_ms
            title = f"{LABELS[Waste(row.waste)]}: {display.hours(row.amount.board_ms)} GPU-hours"
            rects.append(Rect(_at(x), 0, _at(width), 10, f"w-{row.waste}", title))
            x += width
    return tuple(rects)


def _stacked(
    report: MonthReport,
    values: Mapping[tuple[str, str], int],
    every: Sequence[tuple[str, str]],
    by_cost: bool,
    width: int,
    height: int,
) -> DayChart:
    """``values`` by day and class, stacked in the order of ``every`` (class, label), those left out that have
    nothing."""
    unit = report.currency if by_cost else "GPU-hours"
    drawn = {css for (_, css), value in values.items() if value > 0}
    series = [(css, label) for css, label in every if css in drawn]
    dates = [iso(window.start_ms)[:10] for window in report.month.window.split(DAY_MS)]
    highest = max(sum(values.get((date, css), 0) for css, _ in series) for date in dates)
    top, ticks = _scale(highest, NANO if by_cost else HOUR_MS)
    plot, band = height - _TOP - _BOTTOM, (width - _LEFT - _RIGHT) / len(dates)
    rects: list[Rect] = []
    for position, date in enumerate(dates):
        y, x = float(height - _BOTTOM), _LEFT + (position + 0.12) * band
        for css, label in series:
            value = values.get((date, css), 0)
            if value > 0:
                y -= plot * value / top
                title = f"{date}, {label}: {_shown(value, by_cost)} {unit}"
                rects.append(Rect(_at(x), _at(y), _at(band * 0.76), _at(plot * value / top), css, title))
    return DayChart(
        width=width,
        height=height,
        left=_LEFT,
        right=width - _RIGHT,
        baseline=height - _BOTTOM,
        unit=unit,
        series=tuple(series),
        rects=tuple(rects),
        y_ticks=tuple(
            Tick(_at(height - _BOTTOM - plot * tick / top), display.trimmed(_shown(tick, by_cost)))
            for tick in ticks
        ),
        x_ticks=tuple(Tick(_at(_LEFT + (i + 0.5) * band), str(i + 1)) for i in range(0, len(dates), 7)),
        description=f"Stacked bars, one per day of {display.month_name(report.month)}, in {unit}: "
        + ", ".join(label for _, label in series),
    )


def _colours(report: MonthReport, days: Sequence[DayCost]) -> dict[str, str]:
    """Team -> class: the costliest have one each, the others share one."""
    held = {day.team for day in days if day.bucket == Bucket.HELD}
    ranked = [team.row.group["team"] for team in report.teams if team.row.group["team"] in held]
    own = len(ranked) if len(ranked) <= MOST_SERIES else MOST_SERIES - 1
    return {team: f"s{i}" if i < own else "others" for i, team in enumerate(ranked)}


def _series(colours: Mapping[str, str]) -> list[tuple[str, str]]:
    """(class, label) from the bottom up."""
    own = [(css, display.name(team, 40)) for team, css in colours.items() if css != "others"]
    return [*own, ("others", OTHERS), ("nobody", NOT_HELD)]


def _values(days: Iterable[DayCost], colours: Mapping[str, str], by_cost: bool) -> dict[tuple[str, str], int]:
    values: dict[tuple[str, str], int] = {}
    for day in days:
        css = colours.get(day.team, "others") if day.bucket == Bucket.HELD else "nobody"
        amount = (day.amount.nano or 0) if by_cost else day.amount.board_ms
        values[(day.day, css)] = values.get((day.day, css), 0) + amount
    return values


def _scale(highest: int, unit: int) -> tuple[int, list[int]]:
    """The top of the axis and its ticks, three to six of them, at 1, 2 or 5 times a power of ten units."""
    step, factors = max(1, unit // 100), (2, 5, 10)
    base, position = step, 0
    while step * 5 < highest:
        step = base * factors[position]
        if position == 2:
            base, position = step, 0
        else:
            position += 1
    count = max(1, -(-highest // step))
    return step * count, [step * i for i in range(count + 1)]


def _shown(value: int, by_cost: bool) -> str:
    return display.money(value) if by_cost else display.hours(value, 2)


def _at(value: float) -> float:
    """Two decimals of a user unit are finer than any screen, and keep the text short."""
    return round(value, 2)
