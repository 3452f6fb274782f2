"""What Grafana would ask of Prometheus for a dashboard: its queries, with the variables filled in."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import dashboards

Json = dict[str, Any]
GENERATED = Path(dashboards.__file__).parent / "generated"
VARIABLE = re.compile(r"\$\{?(\w+)\}?")


@dataclass(frozen=True, slots=True)
class Asked:
    """A query of a panel. ``min_step`` is the panel's finest step ("1h"), or empty."""

    board: str
    panel: str
    ref: str
    expr: str
    legend: str
    is_instant: bool
    min_step: str

    @property
    def where(self) -> str:
        return f"board {self.board!r}, panel {self.panel!r}, query {self.ref}"


@cache
def _texts() -> tuple[str, ...]:
    return tuple(path.read_text(encoding="utf-8") for path in sorted(GENERATED.glob("*.json")))


def committed_boards() -> list[Json]:
    """The GPUs as they are committed; each call gives its own copy."""
    return [json.loads(text) for text in _texts()]


def panels_of(board: Json) -> Iterator[Json]:
    """The panels that show something: all but rows."""
    return (panel for panel in board["panels"] if panel.get("type") != "row")


def queries_of(board: Json) -> Iterator[Asked]:
    for panel in panels_of(board):
        for target in panel.get("targets", ()):
            yield Asked(
                board.get("title", ""),
                panel.get("title", ""),
                target.get("refId", ""),
                target.get("expr", ""),
                target.get("legendFormat", ""),
                bool(target.get("instant")),
                panel.get("interval", ""),
            )


def filled_in(text: str, values: Mapping[str, str]) -> str:
    """``text`` with ``$name`` and ``${name}`` replaced; what has no value stays."""
    return VARIABLE.sub(lambda found: values.get(found[1], found[0]), text)
