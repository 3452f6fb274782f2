"""The price book: which rate was in force for a node, instant by instant."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import date
from functools import cached_property
from itertools import pairwise
from typing import TypeVar

from gpucost.domain.configfile import load_yaml
from gpucost.domain.rates import NodeFacts, Rate, RateSpan
from gpucost.domain.time import Window
from gpucost.domain.validity import BEGINNING, END
from gpucost.pricing.check import BookWarning, check_rows
from gpucost.pricing.match import Match, known_of
from gpucost.pricing.rows import Commitment, Price, Row
from gpucost.pricing.schema import BookFile, Discount

M = TypeVar("M", bound=Match)

_UNSAFE = re.compile(r"[^A-Za-z0-9._/-]+")
_NEAREST = 3


@dataclass(frozen=True)
class PriceBook:
    """A validated price book. ``rates`` is the callable that attribution is given."""

    file: BookFile
    _timelines: dict[object, tuple[RateSpan, ...]] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def parse(cls, text: str, file: str) -> PriceBook:
        """YAML text -> PriceBook; ``file`` is named in errors. Raises ConfigError for the first of them."""
        return cls(load_yaml(text, file, BookFile))

    @property
    def currency(self) -> str:
        return self.file.currency

    @property
    def rows(self) -> tuple[Row, ...]:
        """Every row that prices boards, in the order of the file."""
        return self.file.rows()

    @property
    def commitments(self) -> tuple[Commitment, ...]:
        return self.file.commitments

    @cached_property
    def label_names(self) -> frozenset[str]:
        """The node labels that some row looks at: what a source has to deliver in ``nodes.labels``."""
        return frozenset(
            name for row in (*self.file.rows(), *self.file.discounts) for name in (row.labels or {})
        )

    @cached_property
    def rate_ids(self) -> frozenset[str]:
        """The id of every rate that this book can give."""
        return frozenset(
            _rate(row, discount, self.currency).rate_id
            for row in self.rows
            for discount in (None, *(self.file.discounts if isinstance(row, Price) else ()))
        )

    def rates(self, node: NodeFacts, window: Window) -> tuple[RateSpan, ...]:
        """The rates in force for a node, end to end over ``window``.

        A change of price splits the window at its instant. Where no row fits, the span has no rate and a
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
        """What a person should look at: stale, undated, expired, interrupted or odd rows."""
        return check_rows(self.rows, today, self.file.stale_after_days)

    def _timeline(self, node: NodeFacts) -> tuple[RateSpan, ...]:
        """All of time for a node; kept, because thousands of nodes and windows share a few timelines."""
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
                discount = _most_specific(discounts, start) if isinstance(row, Price) else None
                span = RateSpan(start, end, _rate(row, discount, self.currency))
            if spans and (spans[-1].rate, spans[-1].reason) == (span.rate, span.reason):
                span = RateSpan(spans.pop().start_ms, end, span.rate, span.reason)
            spans.append(span)
        return tuple(spans)

    def _why_not(self, known: dict[str, str], model: str) -> str:
        """What was looked for, and the rows that come nearest, with what they ask for."""
        wanted = [f"{name} {known.get(name, 'not known')}" for name in ("instance_type", "capacity_type")]
        wanted += [f"{name} {known[name]}" for name in ("region", "zone", "pool") if name in known]
        near = [row for row in self.rows if known.get(row.key[0]) == row.key[1]]
        near.sort(key=lambda row: (len(row.constraints.items() - known.items()), row.title))
        asked = [f"{row.title} {_asks(row, known)}" for row in near[:_NEAREST]]
        nearest = f"; nearest: {'; '.join(asked)}" if asked else ""
        return f"no price for model {model or 'not known'}, {', '.join(wanted)}{nearest}"


def _most_specific(rows: Sequence[M], instant_ms: int) -> M | None:
    return max((row for row in rows if row.holds_at(instant_ms)), key=lambda row: row.rank, default=None)


def _asks(row: Row, known: dict[str, str]) -> str:
    missing = sorted(row.constraints.items() - known.items())
    asked = ", ".join(f"{name} {value}" for name, value in missing)
    return f"asks for {asked}" if asked else f"is valid {row.validity}"


def _rate(row: Row, discount: Discount | None, currency: str) -> Rate:
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
