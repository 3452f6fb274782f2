"""Lines in columns for a screen of any width: names are shortened, numbers never; and the
console of results."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TextIO

from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.text import Text

_INDENT, _GAP, _NOTE = " ", "  ", "     "
_ENDLESS = 1 << 20


@dataclass(frozen=True, slots=True)
class TextColumn:
    """``least`` is how narrow it may get when there is no room; None: never shortened. Of a path, such as
    ``namespace/job``, the first part is shortened first. A spare one is left out where there is no room."""

    head: str
    is_right: bool = False
    least: int | None = None
    is_path: bool = False
    is_spare: bool = False


@dataclass(frozen=True, slots=True)
class TextRow:
    """Cells, and a remark of the row for a line of its own; ``style`` as rich names them."""

    cells: Sequence[str]
    note: str = ""
    style: str = ""


def number(head: str, *, is_spare: bool = False) -> TextColumn:
    return TextColumn(head, is_right=True, is_spare=is_spare)


def name(head: str, least: int = 10) -> TextColumn:
    return TextColumn(head, least=least)


def path(head: str, least: int = 14) -> TextColumn:
    return TextColumn(head, least=least, is_path=True)


def in_columns(
    columns: Sequence[TextColumn],
    rows: Sequence[TextRow],
    width: int,
    note_lines: int | None = 2,
    *,
    is_cut: bool = True,
) -> list[Text]:
    """A line of heads and one for each row, no wider than ``width`` as far as numbers leave room; with
    ``is_cut`` False as wide as they need. A remark has at most ``note_lines`` lines (None: as many as it
    needs)."""
    gap, widths = _layout(columns, rows, width - len(_INDENT) if is_cut else _ENDLESS)
    lines = [Text(_INDENT + _line([column.head for column in columns], columns, widths, gap), "dim")]
    for row in rows:
        lines.append(Text(_INDENT + _line(row.cells, columns, widths, gap), row.style))
        if row.note:
            lines += [Text(line, "dim") for line in folded(row.note, width, _NOTE, _NOTE, note_lines)]
    return lines


def without_spare(
    columns: Sequence[TextColumn], rows: Sequence[TextRow], width: int
) -> tuple[list[TextColumn], list[TextRow], list[str]]:
    """The columns that fit ``width``, and the heads of the spare columns that were left out, the last ones
    first."""
    kept = list(range(len(columns)))
    needed = [_least(columns, rows, index) for index in kept]
    spare = [index for index in kept if columns[index].is_spare]
    while spare and sum(needed[index] + 1 for index in kept) > width:
        kept.remove(spare.pop())
    dropped = [column.head for index, column in enumerate(columns) if index not in kept]
    cut = [TextRow([row.cells[index] for index in kept], row.note, row.style) for row in rows]
    return [columns[index] for index in kept], cut, dropped


def _least(columns: Sequence[TextColumn], rows: Sequence[TextRow], index: int) -> int:
    natural = _natural(columns, rows, index)
    least = columns[index].least
    return natural if least is None else min(natural, least)


def folded(text: str, width: int, first: str, later: str, most: int | None = None) -> list[str]:
    """Lines broken at spaces that begin with ``first`` and ``later``; the last of ``most`` is cut."""
    lines = [first]
    is_empty = True
    for word in text.split(" "):
        has_room = cell_len(lines[-1]) + (not is_empty) + cell_len(word) <= width
        if is_empty or has_room or len(lines) == most:
            lines[-1] += word if is_empty else f" {word}"
        else:
            lines.append(later + word)
        is_empty = False
    return [fitted(line, width) for line in lines]


def fitted(text: str, width: int) -> str:
    """``text`` in at most ``width`` cells of a terminal, with an ellipsis where it was cut."""
    if cell_len(text) <= width:
        return text
    return f"{set_cell_size(text, max(0, width - 1)).rstrip()}…" if width > 0 else ""


def _fitted_path(text: str, width: int) -> str:
    first, slash, own = text.partition("/")
    room = width - cell_len(own) - 1
    if not slash or cell_len(text) <= width or room < 1:
        return fitted(own if slash and room < 1 else text, width)
    return f"{fitted(first, room)}/{own}"


def _layout(columns: Sequence[TextColumn], rows: Sequence[TextRow], width: int) -> tuple[str, list[int]]:
    """The gap between columns, and their widths: the natural ones; where that is too wide, first the gap is
    narrower, then the widest that may be shortened."""
    widths = [_natural(columns, rows, index) for index in range(len(columns))]
    gaps = len(columns) - 1
    gap = _GAP if sum(widths) + len(_GAP) * gaps <= width else " "
    excess = sum(widths) + len(gap) * gaps - width
    while excess > 0:
        room = [
            (widths[index] - column.least, index)
            for index, column in enumerate(columns)
            if column.least is not None and widths[index] > column.least
        ]
        if not room:
            break
        widths[max(room)[1]] -= 1
        excess -= 1
    return gap, widths


def _natural(columns: Sequence[TextColumn], rows: Sequence[TextRow], index: int) -> int:
    return max(cell_len(columns[index].head), *(cell_len(row.cells[index]) for row in rows), 0)


def _line(cells: Sequence[str], columns: Sequence[TextColumn], widths: Sequence[int], gap: str) -> str:
    parts = []
    for cell, column, width in zip(cells, columns, widths, strict=True):
        text = _fitted_path(cell, width) if column.is_path else fitted(cell, width)
        blank = " " * (width - cell_len(text))
        parts.append(blank + text if column.is_right else text + blank)
    return gap.join(parts).rstrip()


class TrimmedStream(io.TextIOBase):
    """A stream without blanks at the ends of lines, with which tables fill them up: in a pipe or a file they
    are only in the way. What is written ends with lines, as a console does it."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """For consoles, which draw by it."""
        return self._stream.encoding

    def write(self, text: str) -> int:
        self._stream.write(_BLANK_ENDS.sub("", text))
        return len(text)

    def flush(self) -> None:
        self._stream.flush()


_BLANK_ENDS = re.compile(r"[ \t]+(?=\n)")


class ResultConsole(Console):
    """A closed pipe (``| head``) is no failure here: rich would exit with 1."""

    def on_broken_pipe(self) -> None:
        """Raises BrokenPipeError, for the command line to end on."""
        raise BrokenPipeError
