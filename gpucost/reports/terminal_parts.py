"""What printers of reports share: tables, amounts, names and signals as they stand in a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fractions import Fraction

from rich import box
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from gpucost.reports import display
from gpucost.reports.provenance import ProblemRow
from gpucost.reports.values import Amount, Memory, Signal, Utilisation

MOST_ROWS = 20
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


def footnotes(shown: Iterable[Amount]) -> tuple[str, ...]:
    """The footnote of the marks, where one of these amounts carries it."""
    return (MARKED,) if any(cost_text(amount).endswith(MARK) for amount in shown) else ()


def shown_name(text: str) -> Text:
    return Text(display.name(text))


def shown_names(texts: Sequence[str]) -> str:
    shown = ", ".join(display.name(text, 40) for text in texts[:4])
    return f"{shown} and {len(texts) - 4} more" if len(texts) > 4 else shown or display.MISSING


def shown_cost(amount: Amount) -> Text:
    return Text(cost_text(amount))


def cost_text(amount: Amount) -> str:
    if amount.nano is None:
        return "no price"
    return display.money(amount.nano) + (MARK if amount.unpriced_board_ms else "")


def signal_text(signal: Signal | Memory | None) -> str:
    """``71% (92%)``: the mean, and the part of the held time it was measured on."""
    if signal is None:
        return display.MISSING
    return f"{display.percent(signal.mean)} ({display.percent(signal.coverage)})"


def three_signals(found: Utilisation) -> tuple[Signal | None, ...]:
    return (found.busy, found.sm, found.tensor)


def level_lines(found: Utilisation) -> list[str]:
    """Memory and energy in words, where they were read."""
    words = []
    if found.memory is not None:
        words.append(
            f"memory {signal_text(found.memory)}, at most {display.gib(found.memory.peak_mib)} of a GPU"
        )
    if found.energy is not None:
        energy, coverage = found.energy, display.percent(found.energy.coverage)
        words.append(f"{display.kwh(energy.mj)}, {display.watts(energy.mean_w)} per board ({coverage})")
    return ["; ".join(words)] if words else []


def problem_table(problems: Sequence[ProblemRow]) -> RenderableType:
    if not problems:
        return Text("No problems.", "dim")
    table = new_table("Problems")
    table.add_column("what", no_wrap=True, style="yellow")
    table.add_column("detail", overflow="fold")
    table.add_column("GPU-hours", justify="right", no_wrap=True)
    for problem in problems[:MOST_ROWS]:
        detail = f"{display.visible(problem.subject)}: {display.visible(problem.detail, 200)}"
        touched = display.MISSING if problem.board_ms is None else display.hours(problem.board_ms)
        table.add_row(Text(problem.code), Text(detail), touched)
    if len(problems) > MOST_ROWS:
        table.caption = f"{len(problems) - MOST_ROWS} more in the other formats"
    return table


def print_parts(parts: Sequence[RenderableType], console: Console, *, gap: int = 1) -> None:
    """One part below the other, ``gap`` lines between them; a table brings its blank last line along."""
    gaps = [0 if isinstance(part, Table) and not part.caption else gap for part in parts]
    console.print(Group(*(Padding(part, (0, 0, gap, 1)) for part, gap in zip(parts, gaps, strict=True))))


def indented(text: Text, by: int) -> Padding:
    """Lines that are broken keep the indent."""
    return Padding(text, (0, 0, 0, by))


def print_block(text: str, console: Console, *, indent: int = 0) -> None:
    """Text that is meant to be copied: no line of it is broken or cut, however narrow the screen."""
    for line in text.splitlines():
        console.print(Text(" " * indent + display.visible(line, len(line)), "green"), soft_wrap=True)


def bar(share: Fraction, width: int) -> str:
    """``████████··``; a part of any size has at least one block, and only the whole has all of them."""
    full = 0 if share <= 0 else min(width if share >= 1 else width - 1, max(1, round(share * width)))
    return "█" * full + "·" * (width - full)


def severity_style(severity: str) -> str:
    return {"critical": "bold red", "high": "red", "medium": "yellow", "low": "cyan"}.get(severity, "dim")
