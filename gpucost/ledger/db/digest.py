"""Canonical text and its SHA-256. Values, never row ids: SQLite and PostgreSQL agree to the byte.

Everything is one JSON array per line, UTF-8, sorted by that text. The first line names the format, so that a
later format cannot be taken for this one. Layout in docs/decisions/0002-ledger.md.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from gpucost.contract.frames import LINE_MEASURES

_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False)
# The measures of the first release. Later ones are left out of a line that has none of them, so that the
# digests of lines written before them stay the same.
_FIRST = LINE_MEASURES.index("tensor_active_ms") + 1
_SHORT, _WHOLE = (f'["%s","%s","%s","%s"{",%s" * measures}]' for measures in (_FIRST, len(LINE_MEASURES)))
_NONE_LATER = ("null",) * (len(LINE_MEASURES) - _FIRST)


def content_key(values: Sequence[Any]) -> str:
    """The identity of a dimension row. Raises UnicodeEncodeError for text that is not Unicode."""
    try:
        joined = '","'.join(values)
    except TypeError:  # not texts alone
        joined = "\n"
    # What the encoder would write, several times faster where nothing is to be escaped.
    if joined.isprintable() and "\\" not in joined and joined.count('"') == 2 * (len(values) - 1):
        return hashlib.sha256(f'["{joined}"]'.encode()).hexdigest()
    return hashlib.sha256(_ENCODER.encode(values).encode()).hexdigest()


def line_texts(columns: Sequence[Sequence[Any]]) -> list[str]:
    """The canonical text of every usage line.

    ``columns`` are unit key, holder key, rate key and bucket, which need no escapes, and LINE_MEASURES, which
    are int or None: what the encoder would write, several times faster.
    """
    numbers = [
        # Of many signals there is nothing at all.
        ["null"] * len(column)
        if column.count(None) == len(column)
        else ["null" if value is None else value for value in column]
        for column in columns[4:]
    ]
    cut = 4 + _FIRST
    return [
        _SHORT % row[:cut] if row[cut:] == _NONE_LATER else _WHOLE % row
        for row in zip(*columns[:4], *numbers, strict=True)
    ]


def window_digest(
    header: Sequence[Any],
    lines: Iterable[str],
    progress: Iterable[Sequence[Any]],
    problems: Iterable[Sequence[Any]],
) -> str:
    """The digest of (cluster, start, end, observed_ms) and everything the window holds, in any order.

    ``lines`` are texts as ``line_texts`` gives them.
    """
    digest = hashlib.sha256()
    _update(digest, ["gpucost window 1", *header])
    encoded = [(_ENCODER.encode(tuple(row)) for row in rows) for rows in (progress, problems)]
    for kind, rows in zip(("line", "progress", "problem"), (lines, *encoded), strict=True):
        texts = sorted(rows)
        _update(digest, [kind, len(texts)])
        digest.update("".join(f"{text}\n" for text in texts).encode())
    return digest.hexdigest()


def waste_digest(header: Sequence[Any], lines: Iterable[Sequence[Any]]) -> str:
    """The digest of (cluster, start, end, digest of the usage lines) and the waste lines, in any order.

    A line is unit key, holder key, rate key, bucket, waste, board_ms and nano.
    """
    digest = hashlib.sha256()
    texts = sorted(_ENCODER.encode(tuple(line)) for line in lines)
    _update(digest, ["gpucost waste 1", *header, len(texts)])
    digest.update("".join(f"{text}\n" for text in texts).encode())
    return digest.hexdigest()


def usage_day_digest(header: Sequence[Any], rows: Iterable[Sequence[Any]]) -> str:
    """The digest of (cluster, start) of a UTC day and the sums of its lines, in any order.

    A row is unit key, holder key, rate key, bucket and the measures of a ``day_line``.
    """
    digest = hashlib.sha256()
    texts = sorted(_ENCODER.encode(tuple(row)) for row in rows)
    _update(digest, ["gpucost usage day 1", *header, len(texts)])
    digest.update("".join(f"{text}\n" for text in texts).encode())
    return digest.hexdigest()


def folded_day_digest(
    header: Sequence[Any],
    windows: Iterable[Sequence[Any]],
    lines: Iterable[str],
    others: Mapping[str, Iterable[Sequence[Any]]],
) -> str:
    """The digest of (cluster, start, end, assessed), the windows that were rolled up, and what they held
    together.

    ``others`` are rows beside the lines, by kind; all in any order.
    """
    digest = hashlib.sha256()
    _update(digest, ["gpucost folded day 1", *header])
    kinds = {"window": windows, **others}
    rows = {kind: [_ENCODER.encode(tuple(row)) for row in found] for kind, found in kinds.items()}
    for kind, texts in (rows | {"line": list(lines)}).items():
        _update(digest, [kind, len(texts)])
        digest.update("".join(f"{text}\n" for text in sorted(texts)).encode())
    return digest.hexdigest()


def folded_month_digest(month: str, month_digest: str, days: Iterable[Sequence[Any]]) -> str:
    """The digest of a month's rolled up days (cluster, start, end, assessed, digest), in the order given, and
    of the digest that it was closed with."""
    return content_key(["gpucost folded month 1", month, month_digest, *map(tuple, days)])


def month_digest(month: str, previous: str, windows: Iterable[Sequence[Any]]) -> str:
    """The digest of the digests and sums of a month's windows, in the order given, and of the month closed
    before it.

    A window is (cluster, start, end, digest, *sums): integers that are added up into the last line.
    """
    digest = hashlib.sha256()
    _update(digest, ["gpucost month 1", month, previous])
    count, sums = 0, [0, 0, 0, 0, 0]
    for window in windows:
        _update(digest, window)
        count += 1
        sums = [total + part for total, part in zip(sums, window[4:], strict=True)]
    _update(digest, ["sums", count, *sums])
    return digest.hexdigest()


def seal_digest(previous: str, row: Mapping[str, Any]) -> str:
    """The digest of a month's move into files, or back: of the move before it, and of the hash of the list of
    files, which has the hash of each."""
    names = ("seq", "month", "kind", "month_digest", "fold_digest", "manifest", "lines", "files", "size")
    return content_key(["gpucost month seal 1", previous, *(row[name] for name in names)])


def adjustment_digest(previous: str, values: Sequence[Any]) -> str:
    return content_key(["gpucost adjustment 1", previous, *values])


def _update(digest: hashlib._Hash, values: Sequence[Any]) -> None:
    digest.update(f"{_ENCODER.encode(tuple(values))}\n".encode())
