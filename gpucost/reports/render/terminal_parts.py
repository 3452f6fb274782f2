"""What the terminal renderers share: tables, amounts, names and signals."""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from fractions import Fraction
from typing import TYPE_CHECKING

from rich import box
from rich.console import Console, Group, RenderableType
from rich.constrain import Constrain
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from gpucost.reports.base import display
from gpucost.reports.base.values import (
    CostAmount,
    GpuUtilisation,
    MemoryUsage,
    UsageSignal,
)

if TYPE_CHECKING:
    from gpucost.reports.month.provenance import MethodRow, ProblemRow

MOST_ROWS = 20
PAGE = 120
"""Columns of a printed page: without a terminal, sentences are no wider."""
WHOLE = 10_000
"""The width without a terminal: names in tables are not cut."""
LONGEST_NAME = 253
"""The longest name in Kubernetes."""
LONGEST_TEXT = 200
"""The longest text that is not a name, such as a source with its address."""
_LONGEST_DETAIL = 500
_MOST_NAME = 40
MARK = "*"
MARKED = f"{MARK} part of it has no price."


def new_table(title: str) -> Table:
    return Table(
        title=title or None,
        title_justify="left",
        title_style="bold",
        caption_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        header_style="dim",
    )


def caption(table: Table, *notes: str) -> None:
    table.caption = " ".join(notes) or None


def footnotes(shown: Iterable[CostAmount]) -> tuple[str, ...]:
    """The footnote that explains the mark, where one of these amounts has it."""
    return (MARKED,) if any(cost_text(amount).endswith(MARK) for amount in shown) else ()


def shown_name(text: str) -> Text:
    return Text(display.name(text))


def shown_names(texts: Sequence[str], limit: int = _MOST_NAME) -> str:
    shown = ", ".join(display.name(text, limit) for text in texts[:4])
    return f"{shown} and {len(texts) - 4} more" if len(texts) > 4 else shown or display.MISSING


def shown_cost(amount: CostAmount) -> Text:
    return Text(cost_text(amount))


def cost_text(amount: CostAmount) -> str:
    if amount.nano is None:
        return "no price"
    return display.money(amount.nano) + (MARK if amount.unpriced_board_ms else "")


def signal_text(signal: UsageSignal | MemoryUsage | None) -> str:
    """``71% (92%)``: the mean, and the part of the held time it was measured on."""
    if signal is None:
        return display.MISSING
    return f"{display.percent(signal.mean)} ({display.percent(signal.coverage)})"


def three_signals(found: GpuUtilisation) -> tuple[UsageSignal | None, ...]:
    return (found.busy, found.sm, found.tensor)


def level_lines(found: GpuUtilisation) -> list[str]:
    """Memory and energy in words, where they were read."""
    words = []
    if found.memory is not None:
        words.append(
            f"memory {signal_text(found.memory)}, at most {display.gib(found.memory.peak_mib)} of a GPU"
        )
    if found.energy is not None:
        energy, coverage = found.energy, display.percent(found.energy.coverage)
        words.append(f"{display.kwh(energy.mj)}, {display.watts(energy.mean_w)} per GPU ({coverage})")
    return ["; ".join(words)] if words else []


def problem_table(problems: Sequence[ProblemRow]) -> RenderableType:
    """The problems; with several clusters, each with its own."""
    several = len({problem.cluster for problem in problems}) > 1
    if not problems:
        return Text("No problems.", "dim")
    table = new_table("Problems")
    table.add_column("what", no_wrap=True, style="yellow")
    if several:
        table.add_column("cluster", overflow="fold")
    table.add_column("detail", overflow="fold")
    table.add_column("GPU-hours", justify="right", no_wrap=True)
    for problem in problems[:MOST_ROWS]:
        detail = f"{display.visible(problem.subject)}: {display.visible(problem.detail, _LONGEST_DETAIL)}"
        touched = display.MISSING if problem.board_ms is None else display.hours(problem.board_ms)
        where = (shown_name(problem.cluster),) if several else ()
        table.add_row(Text(problem.code), *where, Text(detail), touched)
    if len(problems) > MOST_ROWS:
        table.caption = f"{len(problems) - MOST_ROWS} more in the other formats"
    return table


def method_table(methods: Sequence[MethodRow]) -> RenderableType:
    """How each number was made; by how much it may be off stands beside it, and why below."""
    if not methods:
        return Text()
    table = new_table("How exact this is")
    table.add_column("number", no_wrap=True)
    table.add_column("from", overflow="fold")
    table.add_column("covered", justify="right", no_wrap=True)
    table.add_column("may be off by", justify="right", no_wrap=True)
    notes: dict[str, None] = {}
    for row in methods:
        off = (
            ""
            if row.off_board_ms is None
            else f"± {display.hours_or_less(row.off_board_ms)} h ({display.percent(row.off, 2)})"
        )
        table.add_row(row.number, row.method, display.percent(row.coverage), off)
        notes |= dict.fromkeys(row.notes)
    below = [Text(f"- {display.visible(note, _LONGEST_DETAIL)}.", "dim") for note in notes]
    return Group(table, *below)


def most(console_width: int, limit: int) -> int | None:
    """How wide a column of names may be; None where nothing has to be cut."""
    return None if console_width >= WHOLE else limit


def name_text(text: str) -> Text:
    """A name in a column that gives way to numbers: it is cut where there is no room, and never wrapped."""
    return Text(display.name(text, LONGEST_NAME), no_wrap=True, overflow="ellipsis")


def filled(
    title: str,
    heads: Sequence[str],
    rows: Sequence[Sequence[Text]],
    texts: Container[int],
    width: int,
    most_of: int = _MOST_NAME,
) -> Table:
    """A table of as many columns as ``heads``; those at ``texts`` hold text, which is cut where ``width`` has
    no room for it, the others numbers, which never are: a number that is cut reads as another number."""
    table = new_table(title)
    for at, head in enumerate(heads):
        if at in texts:
            table.add_column(head, overflow="ellipsis", max_width=most(width, most_of))
        else:
            widest = max((row[at].cell_len for row in rows), default=0)
            table.add_column(head, justify="right", no_wrap=True, min_width=max(widest, len(head)))
    for row in rows:
        for at, cell in enumerate(row):
            if at in texts:
                cell.no_wrap, cell.overflow = True, "ellipsis"
        table.add_row(*row[: len(heads)])
    return table


def print_parts(parts: Sequence[RenderableType], console: Console, *, gap: int = 1) -> None:
    """One part below the other, ``gap`` lines between them; a table brings its blank last line along."""
    whole = console.width >= WHOLE
    gaps = [0 if isinstance(part, Table) and not part.caption else gap for part in parts]
    padded = (
        Padding(_on_a_page(part) if whole else part, (0, 0, gap, 1), expand=not whole)
        for part, gap in zip(parts, gaps, strict=True)
    )
    console.print(Group(*padded))


def _on_a_page(part: RenderableType) -> RenderableType:
    """Sentences no wider than a page; tables as wide as they are."""
    if isinstance(part, Group):
        return Group(*map(_on_a_page, part.renderables))
    return part if isinstance(part, Table) else Constrain(part, PAGE)


def indented(text: Text, by: int) -> Padding:
    """Wrapped lines keep the indent."""
    return Padding(text, (0, 0, 0, by))


def print_block(text: str, console: Console, *, indent: int = 0) -> None:
    """Text that is meant to be copied: no line of it is wrapped or cut, however narrow the screen."""
    for line in text.splitlines():
        console.print(Text(" " * indent + display.visible(line, len(line)), "green"), soft_wrap=True)


def bar(share: Fraction, width: int) -> str:
    """``████████··``; a part of any size has at least one block, and only the whole has all of them."""
    full = 0 if share <= 0 else min(width if share >= 1 else width - 1, max(1, round(share * width)))
    return "█" * full + "·" * (width - full)


def severity_style(severity: str) -> str:
    return {"critical": "bold red", "high": "red", "medium": "yellow", "low": "cyan"}.get(severity, "dim")
