"""Checks of values that all reads and writes share: what one of the databases could not store as it is, is
refused. No database is asked, so that a process that only prepares lines loads none."""

from __future__ import annotations

from collections.abc import Collection

from gpucost.contract.frames import MAX_TEXT
from gpucost.domain.errors import InputError
from gpucost.domain.money import INT64_MAX
from gpucost.domain.time import EARLIEST_MS, LATEST_MS, Month, Window


def month_of(window: Window) -> Month:
    """The month a window lies in. Raises InputError when it lies in two, or in no sane year."""
    if not window.start_ms >= EARLIEST_MS or not window.end_ms <= LATEST_MS:
        raise InputError("window", str(window), "a window between 2010 and 2100")
    month = Month.of(window.start_ms)
    if window.end_ms > month.window.end_ms:
        raise InputError("window", str(window), f"a window inside one UTC month ({month} ends first)")
    return month


def check_int64(field: str, value: int) -> int:
    if not -INT64_MAX - 1 <= value <= INT64_MAX:
        raise InputError(field, value, "whole numbers of 64 bits")
    return value


def check_ms(field: str, value: int) -> int:
    if value < 0:
        raise InputError(field, value, "milliseconds, 0 or more")
    return check_int64(field, value)


def check_text(field: str, value: object, *, empty: bool = True, most: int = MAX_TEXT) -> None:
    """Raises InputError for text that one of the databases could not store, or index, as it is."""
    allowed = f"text of at most {most} characters, without NUL; " + (
        "empty where there is none" if empty else "not empty"
    )
    if not isinstance(value, str) or len(value) > most or "\0" in value or not (empty or value.strip()):
        raise InputError(field, value, allowed)
    try:
        value.encode()
    except UnicodeEncodeError:
        raise InputError(field, value, allowed) from None


def are_texts(values: Collection[object]) -> bool:
    """Whether ``check_text`` would refuse none of ``values``, looked at together."""
    texts = [value for value in values if isinstance(value, str)]
    if len(texts) != len(values) or max(map(len, texts), default=0) > MAX_TEXT:
        return False
    joined = "".join(texts)
    try:
        joined.encode()
    except UnicodeEncodeError:
        return False
    return "\0" not in joined
