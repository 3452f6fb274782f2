"""Reports as HTML pages, above all the month: no scripts, nothing fetched, charts drawn here as SVG.

Jinja2 escapes.

The geometry of the charts is computed here in user units and drawn by the template.
"""

from __future__ import annotations

import hashlib
from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from typing import TypeVar

from jinja2 import BaseLoader, Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from gpucost.domain.buckets import Bucket, Waste
from gpucost.domain.money import NANO
from gpucost.domain.time import DAY_MS, HOUR_MS, Month, iso
from gpucost.reports.base import display
from gpucost.reports.base.chart_scales import BandScale, ChartAxis, LinearScale, highest_stack
from gpucost.reports.base.unit_costs import count_words, unit_words
from gpucost.reports.base.values import (
    CostAmount,
    EnergyUsage,
    MemoryUsage,
    UsageSignal,
    ratio,
)
from gpucost.reports.month.change_causes import cause_words
from gpucost.reports.month.model import (
    CAPACITY_BUCKETS,
    NO_ADJUSTMENTS,
    CapacityBuckets,
    DayCost,
    MonthReport,
    budget_words,
    jobs_of_several,
)
from gpucost.reports.month.provenance import UNREAD_WORDS, is_use_unread, provisional_words, read_of
from gpucost.reports.waste import waste_table
from gpucost.reports.waste.waste_report import WasteRow
from gpucost.reports.waste.waste_table import LABELS

STYLE = "month.css"
MOST_SERIES = 7
NOT_HELD = "not held"
OTHERS = "other teams"

# Productive time is at the bottom; unknown time lies on top, apart from all that is known.
_UPWARDS = (
    Waste.PRODUCTIVE,
    *(waste for waste in Waste if waste.is_waste),
    Waste.NO_DEMAND,
    Waste.UNKNOWN,
)
_BAR_WIDTH = 1000
_GAP = 3
_SMALLEST = 2  # added to every part, so that even the smallest is visible
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 8, 12, 24


@dataclass(frozen=True, slots=True)
class ChartRect:
    """A rectangle of a series; ``css`` is the class that colours it, ``title`` its tooltip."""

    x: float
    y: float
    width: float
    height: float
    css: str
    title: str


@dataclass(frozen=True, slots=True)
class ChartTick:
    at: float
    label: str


@dataclass(frozen=True, slots=True)
class DayChart:
    """Bars per day, stacked. ``series`` are (class, label) from the bottom up; ``rows`` are what is drawn, as
    text: of each day the value of each series. ``marks`` stand at the beginning of a day."""

    width: int
    height: int
    left: int
    right: int
    baseline: float
    unit: str
    series: tuple[tuple[str, str], ...]
    rects: tuple[ChartRect, ...]
    y_ticks: tuple[ChartTick, ...]
    x_ticks: tuple[ChartTick, ...]
    description: str
    rows: tuple[tuple[str, tuple[str, ...]], ...] = ()
    marks: tuple[ChartTick, ...] = ()


def capacity_bar(buckets: CapacityBuckets, height: int = 28) -> tuple[ChartRect, ...]:
    """One bar of 1000 units, split by GPU time into the four parts of capacity, with gaps between them."""
    amounts = {bucket: getattr(buckets, bucket.value) for bucket in CAPACITY_BUCKETS}
    amounts = {bucket: amount for bucket, amount in amounts.items() if amount.board_ms > 0}
    whole = sum(amount.board_ms for amount in amounts.values())
    scale = LinearScale(whole, _BAR_WIDTH - (_GAP + _SMALLEST) * len(amounts) + _GAP)
    rects, x = [], 0.0
    for bucket, amount in amounts.items():
        width = _SMALLEST + scale.length(amount.board_ms)
        share = display.percent(ratio(amount.board_ms, whole), 1)
        title = f"{display.PARTS[bucket]}: {display.hours(amount.board_ms)} GPU-hours, {share}"
        rects.append(ChartRect(_at(x), 0, _at(width), height, bucket.value, title))
        x += width + _GAP
    return tuple(rects)


def day_chart(report: MonthReport, width: int = 1000, height: int = 260) -> DayChart | None:
    """Cost per day by team, time that no pod held on top; GPU-hours where nothing has a price.

    None without days.
    """
    days = [day for day in report.days if day.bucket != Bucket.OVERCOMMITTED]
    if not days:
        return None
    by_cost = report.totals.held.nano is not None
    colours = _colours(report, days)
    values = _values(days, colours, by_cost)
    unit = report.currency if by_cost else "GPU-hours"
    return _stacked(_days(report.month), values, _series(colours), unit, width, height, by_cost=by_cost)


def waste_chart(
    report: MonthReport,
    width: int = 1000,
    height: int = 260,
    marks: Sequence[tuple[str, str]] = (),
) -> DayChart | None:
    """GPU-hours per day by bucket of the waste ledger: productive time at the bottom, waste above it, then
    time without demand and unknown time; ``marks`` are days (YYYY-MM-DD) with what changed. None without
    days."""
    if report.waste is None or not report.waste.days:
        return None
    values = {(day.day, f"w-{day.waste}"): day.amount.board_ms for day in report.waste.days}
    series = [(f"w-{waste.value}", LABELS[waste]) for waste in _UPWARDS]
    return _stacked(_days(report.month), values, series, "GPU-hours", width, height, marks)


def waste_bar(rows: Sequence[WasteRow], whole_ms: int) -> tuple[ChartRect, ...]:
    """What is waste among ``rows``, in percent of the whole that it is a part of, side by side."""
    scale, rects, x = LinearScale(whole_ms, 100), [], 0.0
    for row in rows:
        if row.is_waste and row.amount.board_ms > 0:
            width = scale.length(row.amount.board_ms)
            title = f"{LABELS[Waste(row.waste)]}: {display.hours(row.amount.board_ms)} GPU-hours"
            rects.append(ChartRect(_at(x), 0, _at(width), 10, f"w-{row.waste}", title))
            x += width
    return tuple(rects)


USE_SERIES = (("w-productive", "busy"), ("w-idle", "not busy"), ("w-unknown", "not observed"))
"""What held time divides into, from the bottom up: a kernel ran, none was seen to run, nobody saw."""


def use_chart(
    steps: Mapping[str, tuple[CostAmount, UsageSignal | None]],
    each: str,
    width: int = 1000,
    height: int = 220,
) -> DayChart | None:
    """GPU-hours held in each of ``steps``, by their names (``2026-10-05 17:00``) in order, divided by
    USE_SERIES; ``each`` says in words how long a step is. None without steps."""
    if not steps:
        return None
    values: dict[tuple[str, str], int] = {}
    for name, (held, busy) in steps.items():
        active, seen = (0, 0) if busy is None else (busy.active_board_ms, busy.observed_board_ms)
        for (css, _), part in zip(USE_SERIES, (active, seen - active, held.board_ms - seen), strict=True):
            values[(name, css)] = part
    every = max(1, -(-len(steps) // 6))
    # The last ones have no room beside the edge.
    ticks = {n: name[5:] for n, name in enumerate(steps) if n % every == 0 and n < len(steps) * 0.95}
    bands = ChartBands(tuple(steps), ticks, f"Stacked bars, one per {each}")
    return _stacked(bands, values, USE_SERIES, "GPU-hours", width, height)


REPLAY_SERIES = (("w-productive", "held"), ("w-starved", "waited for"))


def timeline_charts(
    timelines: Sequence[Mapping[str, tuple[int, int]]], each: str, width: int = 1000, height: int = 200
) -> tuple[DayChart, ...]:
    """GPU-hours held and waited for in each step (``2026-10-05``) of several timelines, to the same scale, so
    that they can be read above each other; ``each`` says in words how long a step is."""
    highest = highest_stack(amounts for steps in timelines for amounts in steps.values())
    found = []
    for steps in timelines:
        names = tuple(steps)
        every = max(1, -(-len(names) // 6))
        ticks = {n: name for n, name in enumerate(names) if n % every == 0 and n < len(names) * 0.95}
        values = {
            (name, css): amount
            for name, amounts in steps.items()
            for (css, _), amount in zip(REPLAY_SERIES, amounts, strict=True)
        }
        bands = ChartBands(names, ticks, f"Stacked bars, one per {each}")
        found.append(_stacked(bands, values, REPLAY_SERIES, "GPU-hours", width, height, least=highest))
    return tuple(found)


@dataclass(frozen=True, slots=True)
class ChartBands:
    """The bars of a chart: their names, those of them that the axis names, and what they are in words."""

    names: tuple[str, ...]
    ticks: Mapping[int, str]
    words: str


def _days(month: Month) -> ChartBands:
    dates = tuple(iso(window.start_ms)[:10] for window in month.window.split(DAY_MS))
    ticks = {n: str(n + 1) for n in range(0, len(dates), 7)}
    return ChartBands(dates, ticks, f"Stacked bars, one per day of {display.month_name(month)}")


def _stacked(
    along: ChartBands,
    values: Mapping[tuple[str, str], int],
    every: Sequence[tuple[str, str]],
    unit: str,
    width: int,
    height: int,
    marks: Sequence[tuple[str, str]] = (),
    *,
    by_cost: bool = False,
    least: int = 0,
) -> DayChart:
    """``values`` by bar and class, stacked in the order of ``every`` (class, label); classes without a value
    are left out. The axis goes up to ``least`` at least."""
    drawn = {css for (_, css), value in values.items() if value > 0}
    series = [(css, label) for css, label in every if css in drawn]
    dates = along.names
    highest = highest_stack([values.get((date, css), 0) for css, _ in series] for date in dates)
    axis = ChartAxis.up_to(max(highest, least), NANO if by_cost else HOUR_MS)
    scale = LinearScale(axis.top, height - _TOP - _BOTTOM)
    bands = BandScale(_LEFT, width - _LEFT - _RIGHT, len(dates))
    rects: list[ChartRect] = []
    for position, date in enumerate(dates):
        y, x = float(height - _BOTTOM), bands.at(position + 0.12)
        for css, label in series:
            value = values.get((date, css), 0)
            if value > 0:
                high = scale.length(value)
                y -= high
                title = f"{date}, {label}: {_shown(value, by_cost)} {unit}"
                rects.append(ChartRect(_at(x), _at(y), _at(bands.width * 0.76), _at(high), css, title))
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
            ChartTick(_at(height - _BOTTOM - scale.length(tick)), display.trimmed(_shown(tick, by_cost)))
            for tick in axis.ticks
        ),
        x_ticks=tuple(ChartTick(_at(bands.at(i + 0.5)), label) for i, label in along.ticks.items()),
        description=f"{along.words}, in {unit}: " + ", ".join(label for _, label in series),
        rows=tuple(
            (date, tuple(_shown(values.get((date, css), 0), by_cost) for css, _ in series)) for date in dates
        ),
        marks=tuple(ChartTick(_at(bands.at(dates.index(day))), text) for day, text in marks if day in dates),
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


def _shown(value: int, by_cost: bool) -> str:
    return display.money(value) if by_cost else display.hours(value, 2)


def _at(value: float) -> float:
    """Two decimals of a user unit are finer than any screen, and keep the text short."""
    return round(value, 2)


MOST_ROWS = 40
_SHORT_ROWS = 12
_SLIVER = 0.8  # percent of a gauge: two pixels
Row = TypeVar("Row")


def to_html(report: MonthReport) -> str:
    """``report`` as a self-contained page; the same bytes for the same report.

    Long tables are cut to MOST_ROWS rows and say so; the other formats have all of them.
    """
    return render_page(
        "month.html.j2",
        report=report,
        bar=None if report.capacity is None else capacity_bar(report.capacity.buckets),
        chart=day_chart(report),
        trend=waste_chart(report),
        words=waste_table,
        unread=UNREAD_WORDS if is_use_unread(report.methods) else "",
        shared_jobs=jobs_of_several(report),
        budget_words=budget_words(report),
        buckets=CAPACITY_BUCKETS,
        most_rows=MOST_ROWS,
        cause_words=cause_words,
    )


def render_page(template: str, **values: object) -> str:
    """A self-contained page out of a template of ``reports/templates``, with the style that pages share."""
    style, style_hash = _style()
    return _environment().get_template(template).render(style=Markup(style), style_hash=style_hash, **values)


def page_policy() -> str:
    """The Content-Security-Policy of what ``render_page`` makes: its own style, and nothing else."""
    return f"default-src 'none'; style-src 'sha256-{_style()[1]}'; base-uri 'none'; form-action 'none'"


@cache
def _style() -> tuple[str, str]:
    """The style of pages, and its SHA-256 in base64."""
    style = _environment().get_template(STYLE).render()
    return style, b64encode(hashlib.sha256(style.encode()).digest()).decode("ascii")


@cache
def _environment() -> Environment:
    return template_environment(PackageLoader("gpucost.reports"))


def template_environment(loader: BaseLoader) -> Environment:
    """Jinja2 as all pages use it: everything is escaped but the style, and the filters are those of
    ``reports.base.display``."""
    environment = Environment(
        loader=loader,
        autoescape=lambda name: name is not None and not name.endswith(".css"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters.update(
        count=count_words,
        cut=_cut,
        duration=display.span_of_days,
        evidence=display.evidence_value,
        exact_duration=display.duration,
        gib=display.gib,
        hours=display.hours,
        hours_or_less=display.hours_or_less,
        iso=iso,
        kwh=display.kwh,
        money=display.money,
        month_name=display.month_name,
        name=display.name,
        percent=display.percent,
        price=display.price,
        relative=display.relative,
        signed_money=display.signed_money,
        signed_hours=display.signed_hours,
        unit_words=unit_words,
        patch=waste_table.patch_text,
        visible=display.visible,
        watts=display.watts,
    )
    environment.globals.update(
        covered=_covered,
        short=_short,
        of=_of,
        part=_part,
        zero=_zero,
        waste_bar=waste_bar,
        gauge=_gauge,
        dash=display.MISSING,
        no_adjustments=NO_ADJUSTMENTS,
        read_of=read_of,
        provisional_words=provisional_words,
        parts=display.PARTS,
    )
    return environment


def _cut(rows: Sequence[Row]) -> Sequence[Row]:
    return rows[:MOST_ROWS]


def _short(rows: Sequence[Row]) -> Markup:
    """The class of a table that is not split between two printed pages; a longer one would leave a gap."""
    return Markup(' class="short"' if len(rows) <= _SHORT_ROWS else "")


def _of(part: CostAmount, whole: CostAmount) -> str:
    return display.percent(ratio(part.board_ms, whole.board_ms), 1)


def _part(buckets: object, bucket: Bucket) -> CostAmount:
    amount: CostAmount = getattr(buckets, bucket.value)
    return amount


def _covered(signal: UsageSignal | MemoryUsage | EnergyUsage) -> str:
    return display.percent(signal.coverage)


def _gauge(share: Fraction) -> float:
    """Percent of a gauge to fill; a part above 0 is visible."""
    return max(float(share) * 100, _SLIVER) if share else 0.0


def _zero(amount: CostAmount) -> bool:
    return not amount.board_ms and not amount.nano
