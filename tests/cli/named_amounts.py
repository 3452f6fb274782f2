"""Every amount of a face, with the name that stands at it: what a reader would take for the same number.

A name is what words stand at a number: of a table the head of its first column, the row, and the head of its
column. Two tables of one page with the same words have the same names. Programs' faces (JSON, CSV, /metrics)
have keys, which are taken to the printed names here, so that every printed number has an exact one behind it.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from html.parser import HTMLParser
from typing import TypeAlias

from gpucost.reports.base.display import PARTS

Name: TypeAlias = tuple[str, ...]
Printed: TypeAlias = tuple[Name, str]

HEADS = {
    "use": "capacity",
    "part of capacity": "of capacity",
    "part of held": "of held",
    "share of cost": "of cost",
    "held gpu-hours": "held h",
    "wasted gpu-hours": "wasted h",
    "unknown gpu-hours": "unknown h",
    "gpu model": "model",
    "queue, clusterqueue": "queue",
    "problem": "what",
}
"""Heads of the HTML page that have more room than those of the terminal."""
_NUMBER = re.compile(r"[<>]?\d[\d,]*(?:\.\d+)?%?")
_AMOUNT = re.compile(r"(?<![\w.:/-])[<>]?(?:\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d+\.\d+)%?(?![\w/:-]|\.\d)")
"""What is an amount for sure: it has decimals, or thousands."""
_FLOATS = Fraction(1, 10**8)
"""What binary numbers of /metrics may be off."""
_TOTALS = ("all", "sum of", "capacity")


@dataclass
class Names:
    """What stood where: exact values of programs' faces, texts of printed ones."""

    exact: dict[Name, list[tuple[str, Fraction]]] = field(default_factory=lambda: defaultdict(list))
    shown: dict[Name, list[tuple[str, str]]] = field(default_factory=lambda: defaultdict(list))

    def know(self, face: str, known: Iterable[tuple[Name, Fraction | None]]) -> None:
        for name, value in known:
            if value is not None:
                self.exact[_lower(name)].append((face, value))

    def show(self, face: str, printed: Iterable[Printed]) -> int:
        count = 0
        for name, text in printed:
            self.shown[_lower(name)].append((face, text))
            count += 1
        return count

    def _whole(self, name: Name) -> Name:
        """The name that a cell too narrow for it begins, where it is one."""
        if not any(part.endswith("…") for part in name):
            return name
        pattern = [re.escape(part.removesuffix("…")) + (".*" if part.endswith("…") else "") for part in name]
        whole = re.compile("\0".join(pattern))
        found = [each for each in self.exact if whole.fullmatch("\0".join(each))]
        return found[0] if len(found) == 1 else name

    def conflicts(self) -> list[str]:
        """Names with two numbers, and printed names that no program's face knows."""
        found = []
        for name, values in self.exact.items():
            exact = [value for _, value in values]
            if max(exact) - min(exact) > _FLOATS:
                found.append(f"{name}: {[(face, float(value)) for face, value in values]}")
        for printed, texts in self.shown.items():
            name = self._whole(printed)
            if name not in self.exact:
                found.append(f"{name}: {texts} is in no program's face")
                continue
            face, value = self.exact[name][0]
            found += [
                f"{name}: {where} says {text}, {face} {float(value)}"
                for where, text in texts
                if not agrees(text, value)
            ]
        return found


def agrees(text: str, exact: Fraction) -> bool:
    """Whether a printed number is the exact one, rounded to the decimals that it has. ``<0.1%`` and
    ``>99%`` say what would look like nothing, or like all of it."""
    shown = Fraction(text.strip("<>%").replace(",", ""))
    if text.endswith("%"):
        exact *= 100
    if text[0] in "<>":
        return 0 < exact < shown if text[0] == "<" else shown < exact <= 100
    decimals = len(text.strip("%").partition(".")[2])
    # Shares of programs' faces have six decimals themselves.
    return abs(shown - exact) <= Fraction(1, 2 * 10**decimals) + Fraction(1, 10**6)


def amounts_in(text: str) -> int:
    """How many amounts a text has for sure: as many must have been walked."""
    return len(_AMOUNT.findall(text))


def amounts_at(text: str) -> list[int]:
    """Where they stand."""
    return [found.start() for found in _AMOUNT.finditer(text)]


def _lower(name: Name) -> Name:
    return tuple(part.lower() for part in name)


# What is printed.


@dataclass(frozen=True)
class Table:
    heads: tuple[str, ...]
    rows: tuple[Mapping[str, str], ...]


def printed_of(tables: Iterable[Table], scope: str) -> Iterator[Printed]:
    """(name, text) of every number in the cells of some tables."""
    for table in tables:
        of = ""
        for row in table.rows:
            filled = [head for head in table.heads if row.get(head)]
            if len(filled) == 1 and table.heads[0] in filled and "gpu-hours" in table.heads:
                of = row[table.heads[0]]  # a team, over its jobs
                continue
            key = _key_of(table.heads, row)
            for head in table.heads:
                cell = row.get(head, "")
                found = list(_cell((scope, *key, *((of,) if of else ())), head, cell))
                assert found or not amounts_in(cell), f"nobody walks {cell} at {key}, {head}"
                yield from found


def _key_of(heads: Sequence[str], row: Mapping[str, str]) -> Name:
    first = heads[0]
    if "bucket" in heads and first == "job":
        return "job", row["job"], row["bucket"], row["team"]
    if "what to do about it" in heads:
        return "bucket", row["bucket"], row["team"]
    key = row.get(first, "")
    if any(key.lower().startswith(total) for total in _TOTALS) and first in ("bucket", "capacity"):
        return "capacity", "capacity"
    return first, key


_COUNTED = (
    frozenset(
        (
            "gpu-hours",
            "cost",
            "jobs",
            "of capacity",
            "of cost",
            "of held",
            "wasted h",
            "cost of it",
            "unknown h",
        )
    )
    | frozenset(
        ("held h", "budget of the month", "used", "capacity gpu-hours", "capacity cost", "usd per gpu-hour")
    )
    | frozenset(("list price", "observed"))
)
_PARTS_OF = " cost, part of capacity"
_SEEN = ("busy", "sm", "tensor", "memory", "energy")


def _cell(row: Name, head: str, text: str) -> Iterator[Printed]:
    numbers = _NUMBER.findall(text)
    if head.endswith(_PARTS_OF) and numbers:
        part = head.removesuffix(_PARTS_OF)
        yield (*row, part, "cost"), numbers[0]
        yield (*row, part, "of capacity"), numbers[1]
    elif head in PARTS.values() and row[1] == "model":
        hours, cost = numbers
        yield (*row, head, "gpu-hours"), hours
        yield (*row, head, "cost"), cost
    elif head == "change":
        yield from zip(((*row, "change"), (*row, "change in cost")), numbers, strict=False)
    elif head in _COUNTED and numbers:
        yield (*row, head), numbers[0]
    elif head == "mostly" and numbers:
        yield (*row, re.split(r"\s*\d", text)[0], "gpu-hours"), numbers[0]
    elif head in _SEEN and numbers:
        names = {"memory": ("memory", "peak", "seen"), "energy": ("energy", "watts", "seen")}
        parts = names.get(head, (head, "seen"))
        assert len(parts) == len(numbers), (row, head, text)
        for part, number in zip(parts, numbers, strict=True):
            yield (*row, head, part), number


def text_tables(text: str) -> Iterator[Table]:
    """The tables of a terminal page: a line of heads, a rule, rows; a total may stand after an empty line."""
    lines = text.splitlines()
    for at, line in enumerate(lines):
        if not re.fullmatch(r"\s*─{5,}\s*", line):
            continue
        heads = _placed(lines[at - 1])
        rows: list[dict[str, str]] = []
        after_blank = False
        for row in lines[at + 1 :]:
            if not row.strip():
                after_blank = True
                continue
            if after_blank and not row.strip().lower().startswith(_TOTALS):
                break
            cells = _in_columns(_placed(row), heads)
            first = heads[0][0].lower()
            if first not in cells:  # a second line of the row before
                for head, cell in cells.items():
                    rows[-1][head] = f"{rows[-1].get(head, '')} {cell}".strip()
                continue
            rows.append(cells)
        yield Table(tuple(_head(word) for word, _, _ in heads), tuple(rows))


def without_tables(text: str) -> str:
    """What stands around the tables."""
    kept: list[str] = []
    lines = text.splitlines()
    at = 0
    while at < len(lines):
        if at + 1 < len(lines) and re.fullmatch(r"\s*─{5,}\s*", lines[at + 1]):
            at += 2
            after_blank = False
            while at < len(lines):
                row = lines[at]
                if not row.strip():
                    after_blank = True
                elif after_blank and not row.strip().lower().startswith(_TOTALS):
                    break
                at += 1
            continue
        kept.append(lines[at])
        at += 1
    return "\n".join(kept)


def _placed(line: str) -> list[tuple[str, int, int]]:
    return [(found[0], found.start(), found.end()) for found in re.finditer(r"\S+(?: \S+)*", line)]


def _in_columns(cells: list[tuple[str, int, int]], heads: list[tuple[str, int, int]]) -> dict[str, str]:
    found: dict[str, str] = {}
    for text, start, end in cells:
        head = min(heads, key=lambda each: min(abs(each[1] - start), abs(each[2] - end)))
        word = re.sub(r"^[!?█▒▚░] ", "", text)
        found[_head(head[0])] = f"{found.get(_head(head[0]), '')} {word}".strip()
    return found


def _head(word: str) -> str:
    return HEADS.get(word.lower(), word.lower())


_UNREAD = ("style", "script", "pre", "code", "text")
"""Commands, and what is written at the axes of a chart."""


class Page(HTMLParser):
    """The tables of an HTML page, titles of what is drawn, and paragraphs."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tables: list[Table] = []
        self.titles: list[str] = []
        self.words: list[str] = []
        self.everything: list[str] = []
        self._rows: list[list[list[str]]] | None = None
        self._cell: list[str] | None = None
        self._block: list[str] | None = None
        self._ignored = 0
        self._in: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: object) -> None:
        del attrs
        self._ignored += tag in _UNREAD
        if tag == "table":
            self._rows = []
        elif tag == "tr" and self._rows is not None:
            self._rows.append([])
        elif tag in ("td", "th") and self._rows:
            self._cell = []
            self._rows[-1].append(self._cell)
        elif tag == "title":
            self.titles.append(self._row_name())
        elif tag in ("p", "li", "dt", "dd", "h1", "h2", "h3", "div"):
            self.words.append("")
        if tag == "title":
            self._in.append(tag)

    def _row_name(self) -> str:
        """What is drawn in a row is of that row."""
        return self._rows[-1][0][0] if self._cell is not None and self._rows else ""

    def handle_endtag(self, tag: str) -> None:
        self._ignored -= tag in _UNREAD
        if tag == "title" and self._in:
            self._in.pop()
        elif tag in ("td", "th"):
            self._cell = None
        elif tag == "table" and self._rows:
            heads = tuple(_head(" ".join(cell)) for cell in self._rows[0])
            rows = [dict(zip(heads, map(_first, heads, row), strict=False)) for row in self._rows[1:]]
            self.tables.append(Table(heads, tuple(rows)))
            self._rows = None

    def handle_data(self, data: str) -> None:
        word = " ".join(data.split())
        if not word or self._ignored:
            return
        self.everything.append(word)
        if self._in:
            self.titles[-1] = f"{self.titles[-1]} {word}".strip()
        elif self._cell is not None:
            self._cell.append(word)
        elif self.words:
            self.words[-1] = f"{self.words[-1]} {word}".strip()


def _first(head: str, cell: list[str]) -> str:
    """Of what names a row its first words: what stands below explains it."""
    whole = head in (*_SEEN, "mostly", "project, team") or head.endswith(_PARTS_OF)
    return " ".join(cell) if whole else " ".join(cell[:1])
