"""The price book: which rate was in force for a node, instant by instant.

``PriceBook.parse`` reads YAML (docs/prices.md) into a ``BookFile``: list prices, owned hardware, commitments
and discounts, each with the nodes it matches and the time it holds for. Mistakes stop the start, with
file, line, key, value and what is allowed. Two rows that match the same node at the same instant equally well
are refused when the file is read (``first_clash``), so that no price ever depends on the order of rows.

``rates(node, window)`` gives spans that cover the window, end to end. At each instant the most specific row
that fits wins: one keyed by instance type before one keyed by model, then the one with more constraints; a
list price is reduced by the most specific discount. A change of price cuts the window at its instant: half a
day at 2.00 and half at 3.00 is what it costs, not an average of samples. Where no row fits, the span has no
rate and a reason that names the nearest rows: a price is never guessed.

Amounts are whole nano-units (10^-9 of the currency) per GPU-hour, computed exactly and rounded once, half to
even, when a Rate is made. A rate's id is a hash of its values, so that a report names the price it was
made with, and ending a row changes no bill. Timelines are kept per set of known facts: thousands of nodes and
windows share a few.

Rows and their warnings are in ``price_rows``, the arithmetic in ``amounts``; the book that ships with gpucost
is ``default_prices.yaml``. Pure: the caller hands over text. ``gpucost.service.wiring.inputs`` reads the
file; attribution is given ``rates``, the advisor asks it for the price of a run, and ``gpucost prices`` shows
it.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import date
from fractions import Fraction
from functools import cached_property
from importlib.resources import files
from itertools import combinations_with_replacement, pairwise
from typing import Annotated, TypeVar

from pydantic import Field, model_validator

from gpucost.domain.configfile import (
    BEGINNING,
    END,
    MISSING,
    ConfigModel,
    NanoAmount,
    Text,
    Version,
    dotted,
    load_yaml,
    wrong,
)
from gpucost.domain.errors import ErrorRemark
from gpucost.domain.money import NANO, plain
from gpucost.domain.rates import NodeFacts, Rate, RateSpan
from gpucost.domain.time import Window
from gpucost.pricing.price_rows import (
    BookWarning,
    CapacityType,
    Commitment,
    Currency,
    ListPrice,
    NodeMatch,
    OwnedHardware,
    PriceRow,
    check_rows,
    known_of,
)


class Discount(NodeMatch):
    """A reduction of list prices; it does not touch owned hardware or commitments."""

    name: Text = Field(description="text, such as the contract's name: invoices show it")
    percent: Annotated[NanoAmount, Field(gt=0, le=100 * NANO)] = Field(description="above 0, at most 100")

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
    prices: tuple[ListPrice, ...] = Field((), description="a list of prices")
    owned: tuple[OwnedHardware, ...] = Field((), description="a list of owned hardware")
    commitments: tuple[Commitment, ...] = Field((), description="a list of commitments")
    discounts: tuple[Discount, ...] = Field((), description="a list of discounts")

    def rows(self) -> tuple[PriceRow, ...]:
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

    def _of(self, section: str) -> Iterator[tuple[int, NodeMatch]]:
        return enumerate(getattr(self, section))


def _refuse_clashes(rows: Sequence[tuple[str, int, NodeMatch]]) -> None:
    clash = first_clash([row for _, _, row in rows])
    if clash:
        (section, n, row), (other_section, m, other) = (rows[position] for position in clash)
        here, there = dotted((section, n)), dotted((other_section, m))
        found = f"{_say(row)} in {here} and {_say(other)} in {there} match the same nodes at once"
        raise wrong(
            ErrorRemark(found), "one of them more specific, or validities that do not overlap", section, n
        )


def first_clash(rows: Sequence[NodeMatch]) -> tuple[int, int] | None:
    """The first row, and the one before it, that match some node at some instant equally well.

    Rows are compared by shape (the names of their constraints), so that the time for a book of many regions
    grows no faster than its length.
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


def _values(row: NodeMatch, names: Sequence[str]) -> tuple[str, ...]:
    return tuple(row.constraints[name] for name in names)


def _say(row: NodeMatch) -> str:
    matched = ", ".join(f"{name} {value}" for name, value in row.constraints.items()) or "everything"
    return f"{matched} ({row.validity})"


M = TypeVar("M", bound=NodeMatch)

_UNSAFE = re.compile(r"[^A-Za-z0-9._/-]+")
_NEAREST = 3


@dataclass(frozen=True)
class PriceBook:
    """A validated price book. ``rates`` is the callable that attribution is given."""

    file: BookFile
    _timelines: dict[object, tuple[RateSpan, ...]] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def parse(cls, text: str, file: str, *, is_ours: bool = False) -> PriceBook:
        """YAML text -> PriceBook; ``file`` is named in errors. Raises ConfigError for the first of them. The
        book that comes with gpucost ``is_ours``."""
        return cls(load_yaml(text, file, BookFile, is_ours=is_ours))

    @property
    def currency(self) -> str:
        return self.file.currency

    @property
    def rows(self) -> tuple[PriceRow, ...]:
        """Every row that prices GPUs, in the order of the file."""
        return self.file.rows()

    @property
    def commitments(self) -> tuple[Commitment, ...]:
        return self.file.commitments

    @cached_property
    def label_names(self) -> frozenset[str]:
        """The node labels that rows use: what a source has to deliver in ``nodes.labels``."""
        return frozenset(
            name for row in (*self.file.rows(), *self.file.discounts) for name in (row.labels or {})
        )

    @cached_property
    def rate_ids(self) -> frozenset[str]:
        """The ids of all rates that this book can give."""
        return frozenset(rate_id for row in self.rows for rate_id in self._ids_of(row))

    def rows_of(self, rate_ids: Collection[str]) -> tuple[PriceRow, ...]:
        """The rows that can give one of these rates, in the order of the file."""
        return tuple(row for row in self.rows if not self._ids_of(row).isdisjoint(rate_ids))

    def _ids_of(self, row: PriceRow) -> frozenset[str]:
        discounts = self.file.discounts if isinstance(row, ListPrice) else ()
        return frozenset(_rate(row, each, self.currency).rate_id for each in (None, *discounts))

    def rates(self, node: NodeFacts, window: Window) -> tuple[RateSpan, ...]:
        """The rates in force for a node, end to end over ``window``.

        A change of price splits the window at its instant. Where no row matches, the span has no rate and a
        reason: a price is never guessed.
        """
        return tuple(
            RateSpan(
                max(span.start_ms, window.start_ms), min(span.end_ms, window.end_ms), span.rate, span.reason
            )
            for span in self._timeline(node)
            if span.start_ms < window.end_ms and window.start_ms < span.end_ms
        )

    def check(self, today: date) -> tuple[BookWarning, ...]:
        """Warnings for a person to check: stale, undated, expired, interrupted or odd rows."""
        return check_rows(self.rows, today, self.file.stale_after_days)

    def _timeline(self, node: NodeFacts) -> tuple[RateSpan, ...]:
        """The rates of a node over all time; cached, because thousands of nodes and windows share a few
        timelines."""
        known = known_of(node, self.file.assume_capacity_type or "")
        labels = self.label_names
        key = frozenset(
            item for item in known.items() if not item[0].startswith("label:") or item[0][6:] in labels
        )
        if key not in self._timelines:
            self._timelines[key] = self._spans(known, node.model)
        return self._timelines[key]

    def _spans(self, known: dict[str, str], model: str) -> tuple[RateSpan, ...]:
        rows = [row for row in self.rows if row.fits(known)]
        discounts = [discount for discount in self.file.discounts if discount.fits(known)]
        edges = {edge for row in (*rows, *discounts) for edge in row.edges}
        spans: list[RateSpan] = []
        for start, end in pairwise(sorted({BEGINNING, END, *edges})):
            row = _most_specific(rows, start)
            if row is None:
                span = RateSpan(start, end, None, self._why_not(known, model))
            else:
                discount = _most_specific(discounts, start) if isinstance(row, ListPrice) else None
                span = RateSpan(start, end, _rate(row, discount, self.currency))
            if spans and (spans[-1].rate, spans[-1].reason) == (span.rate, span.reason):
                span = RateSpan(spans.pop().start_ms, end, span.rate, span.reason)
            spans.append(span)
        return tuple(spans)

    def _why_not(self, known: dict[str, str], model: str) -> str:
        """What was looked for, and the rows that come nearest, with their constraints."""
        wanted = [f"{name} {known.get(name, 'not known')}" for name in ("instance_type", "capacity_type")]
        wanted += [f"{name} {known[name]}" for name in ("region", "zone", "pool") if name in known]
        near = [row for row in self.rows if known.get(row.key[0]) == row.key[1]]
        near.sort(key=lambda row: (len(row.constraints.items() - known.items()), row.title))
        asked = [f"{row.title} {_asks(row, known)}" for row in near[:_NEAREST]]
        nearest = f"; nearest: {'; '.join(asked)}" if asked else ""
        return f"no price for model {model or 'not known'}, {', '.join(wanted)}{nearest}"


def _most_specific(rows: Sequence[M], instant_ms: int) -> M | None:
    return max((row for row in rows if row.holds_at(instant_ms)), key=lambda row: row.rank, default=None)


def _asks(row: PriceRow, known: dict[str, str]) -> str:
    missing = sorted(row.constraints.items() - known.items())
    asked = ", ".join(f"{name} {value}" for name, value in missing)
    return f"asks for {asked}" if asked else f"is valid {row.validity}"


def _rate(row: PriceRow, discount: Discount | None, currency: str) -> Rate:
    """The row as a Rate. Its id hashes every value in it, not its validity: ending a row changes no bill."""
    listed = row.board_hour
    net = listed * discount.factor if discount else listed
    rate = Rate(
        rate_id="",
        nano_per_board_hour=round(net),
        currency=currency,
        list_nano_per_board_hour=round(listed),
        matched_by=row.key[0],
        source=row.provenance,
        retrieved=row.retrieved.isoformat(),
        pricing_category=row.category,
        discount=discount.text if discount else "",
    )
    content = json.dumps([asdict(rate), sorted(row.constraints.items())], sort_keys=True)
    digest = hashlib.sha256(content.encode()).hexdigest()[:10]
    return replace(rate, rate_id=f"{_UNSAFE.sub('_', row.title)[:60]}@{digest}")


DEFAULT_BOOK_FILE = "default_prices.yaml"


def default_book_text() -> str:
    """The YAML of the dated default table. It is package data: no path, no network."""
    return (files(__package__) / DEFAULT_BOOK_FILE).read_text(encoding="utf-8")
