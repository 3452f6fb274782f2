"""Series as a Prometheus holds them, out of what exporters say: targets, scrapes, and OpenMetrics text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from gpucost.contract.metric_spec import EOF, escape
from gpucost.domain.time import Window

Ints: TypeAlias = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Steps:
    """A value that changes: ``value[i]`` from ``since_ms[i]`` on."""

    since_ms: Sequence[int]
    value: Sequence[float]


@dataclass(frozen=True, slots=True)
class Slope:
    """A counter that rises evenly between known points; ``digits`` after the point are printed."""

    at_ms: Sequence[int]
    value: Sequence[float]
    digits: int = 0


Value: TypeAlias = float | Steps | Slope


@dataclass(frozen=True, slots=True)
class Series:
    """What one exporter says under one name and set of labels, during ``[start, end)``."""

    name: str
    labels: Mapping[str, str]
    value: Value
    start_ms: int
    end_ms: int


@dataclass(frozen=True, slots=True)
class Target:
    """An exporter as it is scraped. With ``honors`` its own labels win over those of the target, else they
    are renamed. ``external`` are added to everything, as a member of an HA pair does."""

    labels: Mapping[str, str]
    honors: bool = False
    external: Mapping[str, str] = field(default_factory=dict)

    def stored(self, own: Mapping[str, str]) -> dict[str, str]:
        """The labels that the Prometheus keeps of a series; an empty one is none."""
        found = dict(self.labels)
        for name, value in own.items():
            if not value:
                continue
            clashes = name in self.labels and not self.honors
            found[f"exported_{name}" if clashes else name] = value
        return {**found, **self.external}


@dataclass(frozen=True, slots=True)
class Scrapes:
    """When a target is scraped: every ``every_ms`` in ``window``, ``offset_ms`` later; not in ``gaps``. It is
    ``down``, and does not answer, in some of them."""

    window: Window
    every_ms: int
    offset_ms: int = 0
    gaps: Sequence[Window] = ()
    down: Sequence[Window] = ()

    def instants(self) -> Ints:
        first = -(-(self.window.start_ms - self.offset_ms) // self.every_ms) * self.every_ms + self.offset_ms
        found = np.arange(first, self.window.end_ms, self.every_ms, dtype=np.int64)
        for gap in self.gaps:
            found = found[(found < gap.start_ms) | (found >= gap.end_ms)]
        return found

    def up(self) -> Steps:
        edges = [(each.start_ms, 0) for each in self.down] + [(each.end_ms, 1) for each in self.down]
        steps = [(self.window.start_ms, 1), *sorted(edges)]
        return Steps([at for at, _ in steps], [value for _, value in steps])


class Writer:
    """The samples of one stretch, by metric name; equal series are written once."""

    def __init__(self) -> None:
        self._by_name: dict[str, list[str]] = {}

    def add(self, target: Target, scrapes: Scrapes, series: Iterable[Series]) -> None:
        """Everything that ``target`` says, and whether it was up."""
        every = scrapes.instants()
        at = replace(scrapes, gaps=(*scrapes.gaps, *scrapes.down)).instants()
        self._add(target, every, [Series("up", {}, scrapes.up(), 0, scrapes.window.end_ms)])
        self._add(target, at, series)

    def _add(self, target: Target, at: Ints, series: Iterable[Series]) -> None:
        stamps = [f" {ms // 1000}.{ms % 1000:03d}\n" for ms in at.tolist()]
        for each in series:
            low, high = np.searchsorted(at, [each.start_ms, each.end_ms]).tolist()
            if low < high:
                head = _head(each.name, target.stored(each.labels))
                lines = self._by_name.setdefault(each.name, [])
                lines.append(_lines(head, each.value, at[low:high], stamps[low:high]))

    def text(self) -> Iterator[str]:
        """All of it as OpenMetrics, which wants the lines of a metric together."""
        for name in sorted(self._by_name):
            yield f"# TYPE {name} unknown\n"
            yield from self._by_name[name]
        yield EOF


def _head(name: str, labels: Mapping[str, str]) -> str:
    inner = ",".join(f'{label}="{escape(value)}"' for label, value in sorted(labels.items()) if value)
    return f"{name}{{{inner}}} "


def _lines(head: str, value: Value, at: Ints, stamps: Sequence[str]) -> str:
    if isinstance(value, Steps):
        cuts = [0, *np.searchsorted(at, value.since_ms[1:]).tolist(), len(at)]
        return "".join(
            _constant(f"{head}{each!r}", stamps[low:high])
            for low, high, each in zip(cuts[:-1], cuts[1:], value.value, strict=True)
            if low < high
        )
    if isinstance(value, Slope):
        values = np.interp(at, value.at_ms, value.value).round(value.digits)
        whole = values.astype(np.int64).tolist() if value.digits == 0 else values.tolist()
        return "".join(f"{head}{each}{stamp}" for each, stamp in zip(whole, stamps, strict=True))
    return _constant(f"{head}{value!r}", stamps)


def _constant(line: str, stamps: Sequence[str]) -> str:
    return line + line.join(stamps)
