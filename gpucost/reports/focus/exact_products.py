"""Numbers of FOCUS: quantities whose product with a price is the cost, ratios that add up to 1, and texts.

A validator multiplies unit price and quantity as float64. A cost of whole nano-units need not be such a
product: 10 / 3 GPU-hours have no finite decimal. So the quantity is chosen as the float whose product is the
cost; where none is (of a price whose mantissa is not 1, about one cost in ten lies between two products), the
cost is written as the nearest product, which differs from it in the 16th digit and rounds to it.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from decimal import Decimal

from gpucost.domain.money import NANO, plain
from gpucost.domain.time import iso

RATIO_DIGITS = 12
_WHOLE = 10**RATIO_DIGITS
# In a cell of CSV these begin a formula, alone or after a separator: in JSON they can be written otherwise.
_RISKY = re.compile(r"(?<=[;|])[=+\-@＝＋－＠]")


def exact_quantity(nano: int, price_nano: int, other: float) -> float:
    """The quantity of which ``price_nano`` makes ``nano``; ``other`` where the price is 0."""
    if not price_nano:
        return other
    cost, price = nano / NANO, price_nano / NANO
    found = cost / price
    if found * price == cost:
        return found
    for near in (math.nextafter(found, math.inf), math.nextafter(found, -math.inf)):
        if near * price == cost:
            return near
    return found


def product_of(quantity: float, price_nano: int) -> int | float:
    """Their product in float64: nano-units where these are the same float, else the float."""
    product = quantity * (price_nano / NANO)
    nano = round(product * NANO)
    return nano if nano / NANO == product else product


def nano_of(product: int | float | None) -> int | None:
    """A product as nano-units."""
    if isinstance(product, float):
        return int((Decimal(product) * NANO).to_integral_value())
    return product


def exact_ratios(weights: Sequence[int]) -> list[int]:
    """Parts of 10**RATIO_DIGITS in proportion to ``weights``, by largest remainder, the first of equal ones
    first: they add up to all of it. Without any weight the first has all."""
    whole = sum(weights)
    if not whole:
        return [_WHOLE, *(0 for _ in weights[1:])]
    parts = [_WHOLE * weight // whole for weight in weights]
    rest = _WHOLE - sum(parts)
    if rest:
        remainders = [_WHOLE * weight % whole for weight in weights]
        for at in sorted(range(len(weights)), key=remainders.__getitem__, reverse=True)[:rest]:
            parts[at] += 1
    return parts


def dealt(total: int, weights: Sequence[int]) -> list[int]:
    """``total``, also one below 0, in whole parts in proportion to ``weights``, which add up to it; equal
    parts of no weights. The edges of parts are rounded down, so that no order of equal ones matters."""
    whole = sum(weights)
    if not whole:
        weights, whole = [1] * len(weights), len(weights)
    parts: list[int] = []
    reached = before = 0
    for weight in weights:
        reached += weight
        edge = total * reached // whole
        parts.append(edge - before)
        before = edge
    return parts


def ratio_text(part: int) -> str:
    """``part`` of 10**RATIO_DIGITS as a decimal."""
    return plain_number(part, RATIO_DIGITS)


def plain_number(value: int, digits: int) -> str:
    """``value`` * 10**-digits without zeros at the end."""
    sign, text = ("-" if value < 0 else ""), str(abs(value)).rjust(digits + 1, "0")
    whole, part = text[:-digits], text[-digits:].rstrip("0")
    return f"{sign}{whole}.{part}" if part else f"{sign}{whole}"


def money_text(nano: int) -> str:
    """With nine decimals: a column of whole amounts is not taken for integers."""
    return plain(nano)


def seconds_text(ms: int) -> str:
    """Milliseconds as seconds, with three decimals."""
    sign, ms = ("-" if ms < 0 else ""), abs(ms)
    return f"{sign}{ms // 1000}.{ms % 1000:03d}"


def number_text(value: float) -> str:
    """The shortest decimal that reads back as ``value``, without an exponent."""
    text = repr(value)
    if "e" in text:
        text = format(Decimal(text), "f")
        text = text if "." in text else f"{text}.0"
    return text


def time_text(instant_ms: int) -> str:
    """In whole seconds: FOCUS has no other times."""
    return iso(instant_ms // 1000 * 1000)


def json_text(values: Mapping[str, object]) -> str:
    """An object, with sorted keys, harmless in a cell of CSV."""
    return harmless_json(json.dumps(values, ensure_ascii=False, sort_keys=True, separators=(",", ":")))


def harmless_json(text: str) -> str:
    """The same JSON, without characters that begin a formula after a separator."""
    return _RISKY.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
