"""Pages scraped at known instants -> one OpenMetrics text with times, as promtool reads it. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from gpucost.contract.openmetrics import EOF, escape

_EMPTY = re.compile(r'(?<=[{,])[a-zA-Z_][a-zA-Z0-9_]*="",?')
_UP = "up"


class Backfill:
    """Add pages in order of time, then take ``text``: a family stands in it once, as the format wants it.

    ``with_up``: with the series ``up`` that a scrape leaves, 1.
    """

    def __init__(self, *, with_up: bool = True) -> None:
        self._with_up = with_up
        self._headers: dict[str, str] = {}
        self._lines: dict[str, list[str]] = {}
        self._series: dict[str, dict[str, str]] = {}

    def add(self, page: str, target_labels: Mapping[str, str], at_ms: int) -> None:
        """One scrape; labels without a value are left out, as Prometheus does."""
        prefix = ",".join(f'{name}="{escape(value)}"' for name, value in target_labels.items())
        time = f" {at_ms // 1000}.{at_ms % 1000:03d}\n"
        series = self._series.setdefault(prefix, {})
        family, header, lines = "", list[str](), list[str]()
        for line in page.splitlines():
            if line.startswith("#"):
                if line == EOF.rstrip():
                    break
                name = line.split(" ", 3)[2]
                if name != family:
                    family, header = name, []
                    lines = self._lines.setdefault(name, [])
                header.append(line)
                if name not in self._headers or len(header) > 1:
                    self._headers.setdefault(name, "")
                    if line not in self._headers[name]:
                        self._headers[name] += f"{line}\n"
                continue
            labelled, _, value = line.rpartition(" ")
            named = series.get(labelled)
            if named is None:
                named = series[labelled] = _named(labelled, prefix)
            lines.append(f"{named} {value}{time}")
        if self._with_up:
            self._up(prefix, time)

    def text(self) -> Iterator[str]:
        """All of it, with the closing EOF."""
        for name, lines in self._lines.items():
            if lines:
                yield self._headers[name]
                yield from lines
        yield EOF

    def _up(self, prefix: str, time: str) -> None:
        self._headers.setdefault(_UP, f"# TYPE {_UP} gauge\n")
        self._lines.setdefault(_UP, []).append(f"{_UP}{{{prefix}}} 1{time}")


def _named(labelled: str, prefix: str) -> str:
    """The series with the labels of its target, without those that are empty."""
    name, brace, rest = labelled.partition("{")
    own = _EMPTY.sub("", brace + rest)[1:-1].rstrip(",") if brace else ""
    return f"{name}{{{prefix}{',' if own else ''}{own}}}"
