"""Money is an integer number of nano-units (1e-9) of one ISO 4217 currency. Never a float."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from math import lcm
from typing import TypeVar

from gpucost.domain.errors import InputError

NANO = 1_000_000_000
INT64_MAX = 2**63 - 1

K = TypeVar("K")

_CURRENCY = re.compile(r"[A-Z]{3}\Z")
_AMOUNT = re.compile(r"[+-]?[0-9]{1,13}(\.[0-9]{1,18})?\Z")
_MAX_AMOUNT = 10**12


@dataclass(frozen=True, slots=True, order=True)
class Money:
    """``nano`` nano-units of ``currency``. Adding two currencies raises InputError; so does NaN."""

    nano: int
    currency: str

    def __post_init__(self) -> None:
        if isinstance(self.nano, bool) or not isinstance(self.nano, int):
            raise InputError("amount", self.nano, "an integer number of nano-units")
        check_currency(self.currency)

    @classmethod
    def parse(cls, text: object, currency: str, field: str = "amount") -> Money:
        return cls(parse_nano(text, field), currency)

    def __add__(self, other: Money) -> Money:
        self._same(other)
        return Money(self.nano + other.nano, self.currency)

    def __sub__(self, other: Money) -> Money:
        self._same(other)
        return Money(self.nano - other.nano, self.currency)

    def __neg__(self) -> Money:
        return Money(-self.nano, self.currency)

    def _same(self, other: Money) -> None:
        if self.currency != other.currency:
            raise InputError(
                "currency", other.currency, f"{self.currency}: amounts of two currencies do not add"
            )

    def __str__(self) -> str:
        return f"{plain(self.nano)} {self.currency}"


def check_currency(code: str, field: str = "currency") -> str:
    """Returns ``code`` when it has the form of an ISO 4217 code, else raises InputError."""
    if not isinstance(code, str) or not _CURRENCY.match(code):
        raise InputError(field, code, "three capital letters of ISO 4217, such as USD")
    return code


def parse_nano(value: object, field: str = "amount") -> int:
    """A decimal amount (text, int or Decimal) -> nano-units, exactly.

    Floats, NaN, Infinity, exponents and more digits than a nano-unit holds are refused by InputError:
    a price written as a float has already lost what it meant.
    """
    allowed = "a decimal amount of at most 9 decimals, at most 1e12, written as text or integer"
    exact = None
    if isinstance(value, int) and not isinstance(value, bool):
        exact = Fraction(value)
    elif isinstance(value, str | Decimal):
        # Fraction, not Decimal: a product of Decimals is silently rounded to 28 digits.
        text = value.strip() if isinstance(value, str) else _decimal_text(value)
        exact = Fraction(text) if _AMOUNT.match(text) else None
    if exact is None or abs(exact) > _MAX_AMOUNT or (exact * NANO).denominator != 1:
        raise InputError(field, value, allowed)
    return int(exact * NANO)


def _decimal_text(value: Decimal) -> str:
    """Plain digits, or the exponent left in place where it is absurd: 1e999999 must not become a megabyte."""
    return format(value, "f") if value.is_finite() and -30 < value.adjusted() < 30 else str(value)


def plain(nano: int, decimals: int = 9) -> str:
    """Nano-units as plain decimal text, rounded half-even to ``decimals`` (0 to 9)."""
    if not 0 <= decimals <= 9:
        raise InputError("decimals", decimals, "0 to 9")
    scaled = round_half_even(nano, 10 ** (9 - decimals))
    sign, digits = ("-" if scaled < 0 else ""), str(abs(scaled)).rjust(decimals + 1, "0")
    return f"{sign}{digits[:-decimals]}.{digits[-decimals:]}" if decimals else f"{sign}{digits}"


def round_half_even(numerator: int, denominator: int) -> int:
    """The integer nearest to ``numerator / denominator``; a tie goes to the even one. Exact."""
    if denominator < 0:
        numerator, denominator = -numerator, -denominator
    whole, rest = divmod(numerator, denominator)
    return whole + (2 * rest > denominator or (2 * rest == denominator and whole % 2))


def split_by_weight(total: int, weights: Mapping[K, int | Fraction]) -> dict[K, int]:
    """Split an integer into integers proportional to ``weights``, by largest remainder.

    The parts add up to ``total`` exactly; ties go to the key that sorts first by ``repr``, so the order
    of the mapping does not matter. Weights must be at least 0 and not all 0 (InputError).
    """
    keys = sorted(weights, key=repr)
    values = [weights[key] for key in keys]
    if {*map(type, values)} != {int}:
        # Whole numbers in proportion: the same result as with fractions, at a tenth of the time.
        scale = lcm(*(value.denominator for value in values))
        values = [value.numerator * (scale // value.denominator) for value in values]
    whole = sum(values)
    if whole <= 0 or min(values) < 0:
        raise InputError("weights", dict(weights), "numbers of at least 0, not all 0")
    dealt = [total * value // whole for value in values]
    rest = total - sum(dealt)
    if rest:
        rests = [total * value % whole for value in values]
        # Of equal ones the first: a sort keeps their order, reversed or not.
        for i in sorted(range(len(keys)), key=rests.__getitem__, reverse=True)[:rest]:
            dealt[i] += 1
    return dict(zip(keys, dealt, strict=True))
