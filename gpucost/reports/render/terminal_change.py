"""Two spans compared, in a terminal: who cost more or less, and why, in causes that add up."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console, RenderableType
from rich.text import Text

from gpucost.reports.base import display
from gpucost.reports.month.change_causes import cause_words
from gpucost.reports.month.span_change import SpanChange
from gpucost.reports.render.terminal_parts import filled, print_parts, shown_cost, shown_name

_MOST_CAUSES = 8
_LONGEST_CAUSE = 200


def print_change(found: SpanChange, console: Console) -> None:
    """The change in a sentence, groups, and of each its largest causes."""
    print_parts([*_parts(found, console.width)], console)


def _parts(found: SpanChange, width: int) -> Iterator[RenderableType]:
    yield Text.assemble(
        (f"{display.signed_money(found.change_nano)} {found.currency}", "bold cyan"),
        f" from {found.before} to {found.now}: ",
        f"{display.money(found.total_before.nano)} before, {display.money(found.total.nano)} now",
    )
    for note in found.notes:
        yield Text(note, "bold yellow")
    rows = [
        [
            shown_name(row.group),
            shown_cost(row.before),
            shown_cost(row.now),
            Text(display.signed_money(row.change_nano)),
        ]
        for row in found.rows
    ]
    last = [shown_cost(found.total_before), shown_cost(found.total)]
    rows.append([Text("all", "bold"), *last, Text(display.signed_money(found.change_nano), "bold")])
    yield filled(f"By {found.by}, {found.currency}", [found.by, "before", "now", "change"], rows, {0}, width)
    for row in found.rows:
        if not row.causes:
            continue
        shown, rest = row.causes[:_MOST_CAUSES], row.causes[_MOST_CAUSES:]
        lines = [[Text(display.signed_money(each.nano)), Text(cause_words(each))] for each in shown]
        if rest:
            left = sum(each.nano for each in rest)
            lines.append([Text(display.signed_money(left)), Text(f"{len(rest):,} smaller causes", "dim")])
        yield filled(
            f"Why {display.name(row.group)} changed", ["change", "cause"], lines, {1}, width, _LONGEST_CAUSE
        )
    yield Text(f"The causes add up to {display.signed_money(found.change_nano, 9)} {found.currency}.", "dim")
