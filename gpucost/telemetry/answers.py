"""What a Prometheus server answered: taken apart, or turned into the error that it means."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from gpucost.domain.errors import QueryRejected, SourceError, SourceTimeout, SourceUnreachable, shorten

_UNREACHABLE_STATUS = frozenset({429, 500, 502, 503, 504})

# One entry of a result: ``metric`` (labels) with ``value`` or ``values``; of ``series``: labels only.
Series = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Answer:
    """``result`` as in the API (vector, matrix or label sets), and what the server said about it."""

    result: list[Series]
    warnings: tuple[str, ...] = ()
    infos: tuple[str, ...] = ()


def parse(server: str, status: int, body: bytes) -> Answer:
    """The answer in ``body``. Raises the SourceError that fits; ``server`` names it in the message."""
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        document = None
    if status != 200:
        raise _failure(server, status, document if isinstance(document, dict) else {})
    succeeded = isinstance(document, dict) and document.get("status") == "success"
    data = document.get("data") if succeeded else None
    result = data.get("result") if isinstance(data, dict) else data
    if not isinstance(result, list) or not all(isinstance(series, dict) for series in result):
        said = shorten(body[:120].decode("utf-8", "replace"))
        raise SourceUnreachable(f"{server} does not speak the Prometheus API; it answered {said}")
    return Answer(result, _texts(document.get("warnings")), _texts(document.get("infos")))


def joined(answers: list[Answer]) -> Answer:
    """Pieces of a range put together: one entry per label set, points in order, none twice."""
    if len(answers) == 1:
        return answers[0]
    merged: dict[tuple[tuple[str, str], ...], Series] = {}
    for answer in answers:
        for series in answer.result:
            key = tuple(sorted(series["metric"].items()))
            known = merged.setdefault(key, {"metric": series["metric"], "values": []})["values"]
            last = known[-1][0] if known else float("-inf")
            known.extend(point for point in series["values"] if point[0] > last)
    warnings = tuple(dict.fromkeys(text for answer in answers for text in answer.warnings))
    infos = tuple(dict.fromkeys(text for answer in answers for text in answer.infos))
    return Answer(list(merged.values()), warnings, infos)


def _failure(server: str, status: int, says: dict[str, Any]) -> SourceError:
    if 300 <= status < 400:
        return QueryRejected(f"{server} answered {status}, a redirect; redirects are not followed")
    text = f"{server} answered {status}: {shorten(says.get('error', 'no reason given'), 300)}"
    if status in (408, 503) and says.get("errorType") == "timeout":
        return SourceTimeout(text)
    return SourceUnreachable(text) if status in _UNREACHABLE_STATUS else QueryRejected(text)


def _texts(values: object) -> tuple[str, ...]:
    return tuple(str(value)[:300] for value in values) if isinstance(values, list) else ()
