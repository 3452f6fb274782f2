"""The month as one HTML page: no scripts, nothing fetched, charts drawn here as SVG. Jinja2 escapes."""

from __future__ import annotations

import hashlib
from base64 import b64encode
from collections.abc import Sequence
from fractions import Fraction
from typing import TypeVar

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from gpucost.domain.holders import Bucket
from gpucost.reports import display, waste_table
from gpucost.reports.charts import capacity_bar, day_chart, waste_bar, waste_chart
from gpucost.reports.model import CAPACITY_BUCKETS, NO_ADJUSTMENTS, MonthReport, budget_words, jobs_of_several
from gpucost.reports.provenance import provisional_words, read_of
from gpucost.reports.values import Amount, Energy, Memory, Signal, ratio

MOST_ROWS = 40
_SHORT_ROWS = 12
_SLIVER = 0.8  # percent of a gauge: two pixels
Row = TypeVar("Row")


def to_html(report: MonthReport) -> str:
    """``report`` as a self-contained page; the same bytes for the same report.

    Long tables are cut to MOST_ROWS rows and say so; the other formats have all of them.
    """
    environment = _environment()
    style = environment.get_template("month.css").render()
    return environment.get_template("month.html.j2").render(
        report=report,
        style=Markup(style),
        style_hash=b64encode(hashlib.sha256(style.encode()).digest()).decode("ascii"),
        bar=None if report.capacity is None else capacity_bar(report.capacity.buckets),
        chart=day_chart(report),
        trend=waste_chart(report),
        words=waste_table,
        shared_jobs=jobs_of_several(report),
        budget_words=budget_words(report),
        buckets=CAPACITY_BUCKETS,
        most_rows=MOST_ROWS,
    )


def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("gpucost.reports"),
        autoescape=lambda name: name is not None and not name.endswith(".css"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters.update(
        cut=_cut,
        duration=display.span_of_days,
        exact_duration=display.duration,
        gib=display.gib,
        hours=display.hours,
        hours_or_less=display.hours_or_less,
        kwh=display.kwh,
        money=display.money,
        month_name=display.month_name,
        name=display.name,
        percent=display.percent,
        price=display.price,
        relative=display.relative,
        signed_money=display.signed_money,
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
    """The class of a table that is not divided between two printed pages; a longer one would leave a gap."""
    return Markup(' class="short"' if len(rows) <= _SHORT_ROWS else "")


def _of(part: Amount, whole: Amount) -> str:
    return display.percent(ratio(part.board_ms, whole.board_ms), 1)


def _part(buckets: object, bucket: Bucket) -> Amount:
    amount: Amount = getattr(buckets, bucket.value)
    return amount


def _covered(signal: Signal | Memory | Energy) -> str:
    return display.percent(signal.coverage)


def _gauge(share: Fraction) -> float:
    """Percent of a gauge to fill; what is more than nothing is seen."""
    return max(float(share) * 100, _SLIVER) if share else 0.0


def _zero(amount: Amount) -> bool:
    return not amount.board_ms and not amount.nano
