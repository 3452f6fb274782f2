"""Warnings about a price book that is valid, but that a person should look at."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from enum import StrEnum
from fractions import Fraction
from itertools import pairwise
from statistics import median

from gpucost.domain.gpu import KNOWN_MODELS
from gpucost.domain.money import plain
from gpucost.domain.time import iso
from gpucost.pricing.rows import Price, Row

FAR = 3
"""A price is far from others when it is over this many times their median, or under one in this many."""


class WarningCode(StrEnum):
    STALE = "stale"
    UNDATED = "undated"
    FUTURE = "future"
    EXPIRED = "expired"
    GAP = "gap"
    FAR_FROM_OTHERS = "far_from_others"
    UNKNOWN_MODEL = "unknown_model"


@dataclass(frozen=True, slots=True, order=True)
class BookWarning:
    """One thing to look at: the titles of the rows it is about, and a sentence."""

    code: WarningCode
    rows: tuple[str, ...]
    detail: str


def check_rows(rows: Sequence[Row], today: date, stale_after_days: int) -> tuple[BookWarning, ...]:
    """All warnings, sorted by code. Rows that share a source share a warning about its age."""
    return tuple(
        sorted([*_ages(rows, today, stale_after_days), *_validity(rows, today), *_far(rows), *_models(rows)])
    )


def _ages(rows: Sequence[Row], today: date, stale_after_days: int) -> Iterable[BookWarning]:
    groups: dict[tuple[WarningCode, str], list[Row]] = defaultdict(list)
    for row in rows:
        if row.retrieved > today:
            groups[(WarningCode.FUTURE, row.source)].append(row)
        if isinstance(row, Price) and (today - row.retrieved).days > stale_after_days:
            groups[(WarningCode.STALE, row.source)].append(row)
        if not row.dated:
            groups[(WarningCode.UNDATED, row.source)].append(row)
    for (code, source), group in groups.items():
        oldest = min(row.retrieved for row in group)
        detail = {
            WarningCode.FUTURE: f"{source} was read on {oldest}, which is after {today}",
            WarningCode.STALE: f"{source} was read on {oldest}, {(today - oldest).days} days ago; "
            f"prices are called stale after {stale_after_days}",
            WarningCode.UNDATED: f"{source} bears no date of its own; it was read on {oldest}",
        }[code]
        yield BookWarning(code, _titles(group), detail)


def _validity(rows: Sequence[Row], today: date) -> Iterable[BookWarning]:
    now = int(datetime(today.year, today.month, today.day, tzinfo=UTC).timestamp()) * 1000
    groups: dict[frozenset[tuple[str, str]], list[Row]] = defaultdict(list)
    for row in rows:
        groups[frozenset(row.constraints.items())].append(row)
    for group in groups.values():
        group.sort(key=lambda row: row.start_ms)
        if group[-1].end_ms <= now:
            detail = f"{group[-1].title} ended at {iso(group[-1].end_ms)} and nothing follows it"
            yield BookWarning(WarningCode.EXPIRED, _titles(group), detail)
        for before, after in pairwise(group):
            if before.end_ms < after.start_ms:
                detail = f"nothing prices {after.title} from {iso(before.end_ms)} to {iso(after.start_ms)}"
                yield BookWarning(WarningCode.GAP, _titles([before, after]), detail)


def _far(rows: Sequence[Row]) -> Iterable[BookWarning]:
    groups: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for row in rows:
        if isinstance(row, Price) and row.model:
            groups[(row.model, row.capacity_type or "any capacity type")].append(row)
    for (model, capacity_type), group in groups.items():
        middle: Fraction = median(row.board_hour for row in group)
        for row in group:
            if len(group) >= 3 and not middle / FAR <= row.board_hour <= middle * FAR:
                detail = (
                    f"{plain(round(row.board_hour), 3)} per board-hour; the median of the {len(group)} rows "
                    f"for {model}, {capacity_type}, is {plain(round(middle), 3)}"
                )
                yield BookWarning(WarningCode.FAR_FROM_OTHERS, (row.title,), detail)


def _models(rows: Sequence[Row]) -> Iterable[BookWarning]:
    unknown = {row.model for row in rows if row.model} - KNOWN_MODELS
    for model in unknown:
        detail = (
            f"{model} is no model that gpucost knows; it matches only nodes whose label says exactly that"
        )
        yield BookWarning(WarningCode.UNKNOWN_MODEL, _titles(r for r in rows if r.model == model), detail)


def _titles(rows: Iterable[Row]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(row.title for row in rows))
