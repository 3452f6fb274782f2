"""The schema of a whole price book, version 1, and the refusal of rows that could not be told apart."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from fractions import Fraction
from itertools import combinations_with_replacement
from typing import Annotated

from pydantic import Field, model_validator

from gpucost.domain.configfile import MISSING, Amount, ConfigModel, Text, Version, dotted, wrong
from gpucost.domain.errors import Remark
from gpucost.domain.money import NANO, plain
from gpucost.pricing.match import CapacityType, Match
from gpucost.pricing.rows import Commitment, Currency, Owned, Price, Row


class Discount(Match):
    """A reduction of list prices; it does not touch owned hardware or commitments."""

    name: Text = Field(description="text, such as the contract's name: invoices show it")
    percent: Annotated[Amount, Field(gt=0, le=100 * NANO)] = Field(description="above 0, at most 100")

    @property
    def factor(self) -> Fraction:
        return 1 - Fraction(self.percent, 100 * NANO)

    @property
    def text(self) -> str:
        percent = plain(self.percent).rstrip("0").rstrip(".")
        return f"{percent} % {self.name}"


class BookFile(ConfigModel):
    """A whole price book. Two rows that match the same node at the same time, equally well, are refused."""

    version: Version = Field(description="1, the version of this format")
    currency: Currency = Field(description="a currency code of ISO 4217 in use, such as USD, EUR or JPY")
    assume_capacity_type: CapacityType | None = Field(
        None, description="on-demand, spot, reserved or owned: what a node is that does not say"
    )
    stale_after_days: int = Field(90, ge=1, le=3650, description="days, 1 to 3650")
    prices: tuple[Price, ...] = Field((), description="a list of prices")
    owned: tuple[Owned, ...] = Field((), description="a list of owned hardware")
    commitments: tuple[Commitment, ...] = Field((), description="a list of commitments")
    discounts: tuple[Discount, ...] = Field((), description="a list of discounts")

    def rows(self) -> tuple[Row, ...]:
        return (*self.prices, *self.owned, *self.commitments)

    @model_validator(mode="after")
    def _is_unambiguous(self) -> BookFile:
        if not self.rows():
            raise wrong(MISSING, "at least one row in prices, owned or commitments", "prices")
        for n, price in enumerate(self.prices):
            if price.currency not in (None, self.currency):
                allowed = f"{self.currency}, the currency of the book: one book, one currency"
                raise wrong(price.currency, allowed, "prices", n, "currency")
        sections = [
            (name, n, row) for name in ("prices", "owned", "commitments") for n, row in self._of(name)
        ]
        _refuse_clashes(sections)
        _refuse_clashes([("discounts", n, row) for n, row in self._of("discounts")])
        return self

    def _of(self, section: str) -> Iterator[tuple[int, Match]]:
        return enumerate(getattr(self, section))


def _refuse_clashes(rows: Sequence[tuple[str, int, Match]]) -> None:
    clash = first_clash([row for _, _, row in rows])
    if clash:
        (section, n, row), (other_section, m, other) = (rows[position] for position in clash)
        here, there = dotted((section, n)), dotted((other_section, m))
        found = f"{_say(row)} in {here} and {_say(other)} in {there} match the same nodes at once"
        raise wrong(Remark(found), "one of them more specific, or validities that do not overlap", section, n)


def first_clash(rows: Sequence[Match]) -> tuple[int, int] | None:
    """The first row, and the one before it, that some node at some instant could be meant by equally well.

    Rows are compared by shape (the names of their constraints), so that a book of many regions costs no
    more than its length.
    """
    shapes: dict[tuple[tuple[int, int], frozenset[str]], list[int]] = defaultdict(list)
    for n, row in enumerate(rows):
        shapes[(row.rank, frozenset(row.constraints))].append(n)
    clashes = []
    for one, two in combinations_with_replacement(shapes, 2):
        common = sorted(one[1] & two[1])
        by_values: dict[tuple[str, ...], list[int]] = defaultdict(list)
        for n in shapes[one] if one[0] == two[0] else ():
            by_values[_values(rows[n], common)].append(n)
        for m in shapes[two]:
            for n in by_values.get(_values(rows[m], common), ()):
                if n != m and rows[n].coincides(rows[m]):
                    clashes.append((max(n, m), min(n, m)))
    return min(clashes, default=None)


def _values(row: Match, names: Sequence[str]) -> tuple[str, ...]:
    return tuple(row.constraints[name] for name in names)


def _say(row: Match) -> str:
    matched = ", ".join(f"{name} {value}" for name, value in row.constraints.items()) or "everything"
    return f"{matched} ({row.validity})"
