"""How values are displayed: hours, money, percent and names.

The one place that makes text from outside safe to display; escaping for HTML and CSV is in their
renderers.
"""

from __future__ import annotations

import unicodedata
from fractions import Fraction

from gpucost.domain.buckets import (
    NO_TEAM,
    UNALLOCATED,
    UNAVAILABLE,
    UNKNOWN,
    Bucket,
)
from gpucost.domain.money import NANO, plain, round_half_even
from gpucost.domain.text import counted as counted
from gpucost.domain.time import DAY_MS, HOUR_MS, MINUTE_MS, SECOND_MS, Month
from gpucost.reports.base.values import CostChange

MISSING = "–"
LONGEST_NAME = 80
_MJ_PER_KWH = 3_600_000_000

_MONTHS = (
    *("January", "February", "March", "April", "May", "June"),
    *("July", "August", "September", "October", "November", "December"),
)
PARTS = {
    Bucket.HELD: "held",
    Bucket.UNALLOCATED: "unallocated",
    Bucket.UNAVAILABLE: "unavailable",
    Bucket.UNKNOWN: "not observed",
    Bucket.OVERCOMMITTED: "over-committed",
}
"""The labels of the parts of capacity, and of what stands beside it. The buckets of the waste ledger have
other labels (waste_table.LABELS): unknown there is more than unobserved time."""
_NAMES = {
    NO_TEAM: "no team",
    UNALLOCATED: PARTS[Bucket.UNALLOCATED],
    UNAVAILABLE: PARTS[Bucket.UNAVAILABLE],
    UNKNOWN: PARTS[Bucket.UNKNOWN],
    "": MISSING,
}


def hours_exact(board_ms: int) -> str:
    """GPU-hours as plain decimal text of nine decimals, rounded half-even; distinguishes every
    millisecond."""
    return plain(round_half_even(board_ms * NANO, HOUR_MS))


def kwh_exact(mj: int) -> str:
    """Kilowatt-hours as plain decimal text of nine decimals, rounded half-even."""
    return plain(round_half_even(mj * NANO, _MJ_PER_KWH))


def kwh(mj: int) -> str:
    """``1,234.5 kWh``."""
    return f"{grouped(plain(round_half_even(mj * NANO, _MJ_PER_KWH), 1))} kWh"


def watts(mean_w: Fraction | None) -> str:
    """``412 W``, or a dash."""
    if mean_w is None:
        return MISSING
    return f"{grouped(plain(round_half_even(mean_w.numerator * NANO, mean_w.denominator), 0))} W"


def gib(mib: int | None) -> str:
    """``71.4 GiB``, or a dash."""
    return MISSING if mib is None else f"{grouped(plain(round_half_even(mib * NANO, 1024), 1))} GiB"


def hours(board_ms: int, decimals: int = 1) -> str:
    """``27,648.0``."""
    return grouped(plain(round_half_even(board_ms * NANO, HOUR_MS), decimals))


def signed_hours(board_ms: int) -> str:
    """``+27,648.0`` or ``−27,648.0``, a change of GPU-hours."""
    text = hours(board_ms)
    return f"+{text}" if board_ms > 0 else text.replace("-", "−")


def hours_or_less(board_ms: int) -> str:
    """As ``hours``, and ``<0.1`` for amounts above 0 that would be rounded to 0."""
    found = hours(board_ms)
    return "<0.1" if board_ms and found == "0.0" else found


def money(nano: int | None, decimals: int = 2) -> str:
    """``12,345.67``, or a dash for what has no price."""
    return MISSING if nano is None else grouped(plain(nano, decimals))


def signed_money(nano: int | None, decimals: int = 2) -> str:
    text = money(nano, decimals)
    return f"+{text}" if nano is not None and nano > 0 else text.replace("-", "−")


def price(nano: int) -> str:
    """A price per hour with the decimals it has, at least two: ``6.88``, ``0.042892500`` as ``0.0428925``."""
    whole, _, decimals = plain(nano).partition(".")
    return f"{whole}.{decimals.rstrip('0').ljust(2, '0')}"


def grouped(text: str) -> str:
    """Thousands separators in plain decimal text."""
    whole, point, decimals = text.partition(".")
    sign, digits = ("-", whole[1:]) if whole.startswith("-") else ("", whole)
    return f"{sign}{int(digits):,}{point}{decimals}"


def percent(value: Fraction | None, decimals: int = 0) -> str:
    """``71%``, or a dash. Never 100% for less than all, nor 0% for more than nothing."""
    if value is None:
        return MISSING
    text, step = _percent(value, decimals), Fraction(1, 100 * 10**decimals)
    if value > 0 and text == _percent(Fraction(0), decimals):
        return f"<{_percent(step, decimals)}"
    if value < 1 and text == _percent(Fraction(1), decimals):
        return f">{_percent(1 - step, decimals)}"
    return text


def signed_percent(value: Fraction | None, decimals: int = 1) -> str:
    if value is None:
        return MISSING
    text = _percent(value, decimals)
    return f"+{text}" if value > 0 else text.replace("-", "−")


def relative(change: CostChange) -> str:
    """``+12.3%`` of the cost; ``new`` where there was none before, a dash where it is unknown."""
    if change.relative is None and change.nano and not change.previous.nano:
        return "new"
    return signed_percent(change.relative)


def _percent(value: Fraction, decimals: int) -> str:
    scaled = round_half_even(value.numerator * 100 * NANO, value.denominator)
    return f"{grouped(plain(scaled, decimals))}%"


def duration(length_ms: int) -> str:
    """An exact duration: ``3.5 h`` where three decimals of an hour suffice, else ``1 h 20 min 0.001 s``."""
    if length_ms * 1000 % HOUR_MS == 0:
        return f"{trimmed(plain(length_ms * NANO // HOUR_MS))} h"
    whole_hours, rest = divmod(length_ms, HOUR_MS)
    whole_minutes, rest = divmod(rest, MINUTE_MS)
    parts = ((whole_hours, "h"), (whole_minutes, "min"))
    shown = [f"{count} {unit}" for count, unit in parts if count]
    if rest:
        shown.append(f"{trimmed(plain(rest * NANO // SECOND_MS))} s")
    return " ".join(shown)


def span_of_days(length_ms: int) -> str:
    """A stretch of time for prose: "nothing", ``duration``, or days from two on."""
    if not length_ms:
        return "nothing"
    if length_ms >= 2 * DAY_MS:
        return f"{trimmed(plain(round_half_even(length_ms * NANO, DAY_MS), 1))} days"
    return duration(length_ms)


def trimmed(text: str) -> str:
    """Plain decimal text without trailing zeros."""
    return text.rstrip("0").rstrip(".") if "." in text else text


def evidence_value(value: Fraction | int | str | None, limit: int = 4_000) -> str:
    """One fact of a finding: numbers with the decimals that distinguish them, at most four."""
    if value is None:
        return MISSING
    if isinstance(value, Fraction):
        return trimmed(plain(round_half_even(value.numerator * NANO, value.denominator), 4))
    return visible(value, limit) if isinstance(value, str) else f"{value:,}"


def month_name(month: Month) -> str:
    return f"{_MONTHS[month.month - 1]} {month.year}"


def visible(text: str, limit: int = LONGEST_NAME) -> str:
    """Foreign text cut to ``limit`` characters, with what cannot be seen written as ``\\u202e``."""
    cut = text if len(text) <= limit else f"{text[: limit - 1]}…"
    return "".join(char if _is_plain(char) else _escaped(char) for char in cut)


def name(text: str, limit: int = LONGEST_NAME) -> str:
    """A name for display: ``__unallocated__`` in words, a dash for none, else ``visible``."""
    return _NAMES[text] if text in _NAMES else visible(text, limit)


def _is_plain(char: str) -> bool:
    """Not a control character, a right-to-left mark or a line separator, which move or hide adjacent text."""
    return char.isprintable() or unicodedata.category(char) == "Zs"


def _escaped(char: str) -> str:
    return char.encode("unicode_escape").decode("ascii")
