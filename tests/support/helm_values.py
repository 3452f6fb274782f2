"""The table of values in the chart's README: ``python -m tests.support.helm_values`` writes it anew."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

CHART = Path(__file__).parents[2] / "helm" / "gpucost"
README = CHART / "README.md"
_MARKS = re.compile(r"(?<=<!-- values -->\n).*?(?=<!-- /values -->)", re.DOTALL)
_KEY = re.compile(r"( *)([A-Za-z]+):")
_TEXT = re.compile(r" *# -- (.*)")


def rows() -> Iterator[tuple[str, str, str]]:
    """Every documented value, as ``a.b``, its default as JSON, and its text; in the order of the file.

    Raises ValueError for a value without a text.
    """
    text = (CHART / "values.yaml").read_text("utf-8")
    values = yaml.safe_load(text)
    above: list[str] = []
    comment: str | None = None
    told: set[str] = set()
    for line in text.splitlines():
        if found := _TEXT.fullmatch(line):
            comment = found[1]
        elif (key := _KEY.match(line)) and not any(
            ".".join(above[:n]) in told for n in range(1, len(above) + 1) if len(key[1]) // 2 >= n
        ):
            above = [*above[: len(key[1]) // 2], key[2]]
            name = ".".join(above)
            default = _at(values, above)
            if comment is not None:
                told.add(name)
                yield name, json.dumps(default, ensure_ascii=False), comment
            elif not isinstance(default, Mapping) or not default:
                raise ValueError(f"{name} has no text")
            comment = None


def _at(values: Any, path: list[str]) -> Any:
    for key in path:
        values = values[key]
    return values


def table() -> str:
    """The rows, as Markdown."""
    lines = [f"| `{name}` | `{default}` | {text} |" for name, default, text in rows()]
    return "\n".join(["| value | default | meaning |", "|---|---|---|", *lines]) + "\n"


def written(page: str) -> str:
    """``page`` with the table as it should be."""
    return _MARKS.sub(lambda _: table(), page)


if __name__ == "__main__":
    README.write_text(written(README.read_text("utf-8")), encoding="utf-8")
