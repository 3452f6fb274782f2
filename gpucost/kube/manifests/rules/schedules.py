"""Schedules of CronJobs (robfig/cron v3.0.1, parser.go: ParseStandard)."""

from __future__ import annotations

import re

_FIELDS = (
    (0, 59, ()),
    (0, 23, ()),
    (1, 31, ()),
    (1, 12, ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")),
    (0, 6, ("sun", "mon", "tue", "wed", "thu", "fri", "sat")),
)
_NAMED = frozenset(("@yearly", "@annually", "@monthly", "@weekly", "@daily", "@midnight", "@hourly"))
_PART = re.compile(r"(?P<any>[*?])|(?P<first>[A-Za-z0-9]+)(?:-(?P<last>[A-Za-z0-9]+))?")
_NUMBER = re.compile("[0-9]{1,9}")
_EVERY = re.compile(r"@every [-+]?([0-9]*\.?[0-9]+(ns|us|µs|μs|ms|s|m|h))+|@every [-+]?0")
_LONGEST = 1024


def is_schedule(text: str) -> bool:
    """Five fields: minute, hour, day of month, month, day of week. Zones stand in a field of their own."""
    if "TZ" in text or len(text) > _LONGEST:
        return False
    if text.startswith("@"):
        return text in _NAMED or _EVERY.fullmatch(text) is not None
    fields = text.split()
    return len(fields) == len(_FIELDS) and all(
        _is_field(each, *bounds) for each, bounds in zip(fields, _FIELDS, strict=True)
    )


def _is_field(text: str, least: int, most: int, names: tuple[str, ...]) -> bool:
    return (
        all(_is_range(each, least, most, names) for each in text.split(",") if each) and text.strip(",") != ""
    )


def _is_range(text: str, least: int, most: int, names: tuple[str, ...]) -> bool:
    span, slash, step = text.partition("/")
    if slash and (not _NUMBER.fullmatch(step) or int(step) == 0):
        return False
    found = _PART.fullmatch(span)
    if found is None:
        return False
    if found["any"]:
        return True
    first = _number(found["first"], least, names)
    last = first if found["last"] is None else _number(found["last"], least, names)
    return first is not None and last is not None and least <= first <= last <= most


def _number(text: str, least: int, names: tuple[str, ...]) -> int | None:
    if text.lower() in names:
        return names.index(text.lower()) + least
    return int(text) if _NUMBER.fullmatch(text) else None
