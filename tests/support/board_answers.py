"""What a panel would show: its queries asked of a real Prometheus, with the variables filled in."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from importlib import import_module

from dashboards.grafana_json import modern
from gpucost.domain.time import MINUTE_MS
from tests.support.dashboard_queries import filled_in, queries_of
from tests.support.demo_prometheus import instant_query

Labels = tuple[tuple[str, str], ...]
Value = float | Callable[[int], float]

START_MS = 1_792_497_600_000
"""2026-10-20T12:00:00Z."""
END = 60
"""Minutes for which there are samples."""


def at(minute: int) -> int:
    """Of the instant ``minute`` after the start, in milliseconds."""
    return START_MS + minute * MINUTE_MS


class Samples:
    """An hour of samples, one per minute, as OpenMetrics text."""

    def __init__(self) -> None:
        self._families: dict[str, list[str]] = {}

    def add(self, name: str, labels: str, value: Value, begun: int = 0, gone: int = END) -> None:
        """A series in the minutes [begun, gone); ``value`` may depend on the minute."""
        value_of = value if callable(value) else lambda _: value
        kind = "counter" if name.endswith("_total") else "gauge"
        head = f"# TYPE {name.removesuffix('_total')} {kind}\n"
        lines = self._families.setdefault(name, [head])
        lines += [f"{name}{{{labels}}} {value_of(m)} {at(m) // 1000}\n" for m in range(begun, gone)]

    def text(self) -> Iterator[str]:
        for lines in self._families.values():
            yield from lines
        yield "# EOF\n"


class BoardAnswers:
    """Of one GPU (the name of its module), at a Prometheus, for values of its variables."""

    def __init__(self, url: str, module: str, values: Mapping[str, str]) -> None:
        self._url = url
        given = {"cluster": ".*", "__rate_interval": "5m", "__range": "1h", **values}
        asked = queries_of(modern(import_module(f"dashboards.{module}").dashboard()))
        self._exprs = {(one.panel, one.ref): filled_in(one.expr, given) for one in asked}

    def of(self, panel: str, at_ms: int, ref: str = "A") -> dict[Labels, float]:
        """Values by sorted labels."""
        found: dict[Labels, float] = {}
        for row in instant_query(self._url, self._exprs[panel, ref], at_ms):
            labels, value = row["metric"], row["value"]
            assert isinstance(labels, dict)
            assert isinstance(value, list)
            found[tuple(sorted(labels.items()))] = float(value[1])
        return found

    def number(self, panel: str, at_ms: int, ref: str = "A") -> float:
        """The one value."""
        (value,) = self.of(panel, at_ms, ref).values()
        return value

    def ask_all(self, at_ms: int) -> int:
        """Ask every query; raises AssertionError with Prometheus' words at the first that it refuses."""
        for expr in self._exprs.values():
            instant_query(self._url, expr, at_ms)
        return len(self._exprs)
