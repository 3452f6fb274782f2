"""A comparison in a terminal and as one flat table for CSV.

In the terminal each row is a line, followed by the causes of its difference and their meaning.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from gpucost.domain.text import counted
from gpucost.domain.time import DAY_MS, iso
from gpucost.reports.base import display
from gpucost.reports.opencost.causes import READ_MORE, ComparisonCause
from gpucost.reports.opencost.compare import (
    CauseAmount,
    ComparedKind,
    ComparedRelease,
    ComparedRow,
    OpenCostComparison,
)
from gpucost.reports.render.tables import (
    Cell,
    CellType,
    ReportTable,
    TableColumn,
)
from gpucost.reports.render.terminal_parts import MOST_ROWS, new_table

_HALF_A_CENT = 5_000_000


def print_comparison(found: OpenCostComparison, console: Console) -> None:
    """``found`` in tables; amounts in its currency, rounded to cents."""
    period = str(found.window) if found.month is None else display.month_name(found.month)
    days = counted(found.days, "day")
    if found.read_ms < found.days * DAY_MS:
        days += f", of which {display.span_of_days(found.read_ms)} were read"
    console.print(f"OpenCost and gpucost, {period}, {found.currency}, {days}", style="bold", markup=False)
    several = len({row.cluster for row in found.rows}) > 1
    for release in found.releases:
        for line in _of_release(release, found):
            of = f"{display.name(release.cluster)}: " if several else ""
            console.print(f"{of}{line}", style="dim", markup=False)
    if found.missing_days:
        missing = counted(found.missing_days, "day")
        console.print(f"{missing} left out: OpenCost's series have nothing of them.", style="yellow")
    console.print(_rows_table(found, several))
    whole = {note.partition(" ")[0]: note for row in found.rows for note in row.notes}
    # Causes with an amount are explained for all rows together: the other formats have those of single rows.
    whole |= {note.partition(" ")[0]: note for note in found.total.notes}
    for note in sorted(whole.values()):
        console.print(f"({note.replace(' ', ') ', 1)}.", markup=False)
    if not found.causes:
        console.print("No difference.", style="dim")
        return
    console.print(_causes_table(found))
    console.print(f"{READ_MORE} explains each cause.", style="dim")


def _of_release(release: ComparedRelease, found: OpenCostComparison) -> Iterator[str]:
    versions = ", ".join(display.visible(version) for version in release.versions)
    name = f"OpenCost {versions}" if versions else "OpenCost of unknown version"
    yield f"{name}: {release.rules}, a look every {display.duration(found.resolution_ms)}."
    if (
        any(each.cause is ComparisonCause.DEFAULT_PRICE for each in found.causes)
        and release.default_nano is not None
    ):
        price = display.money(release.default_nano, 4)
        yield f"Its default price is taken for {price} per GPU-hour: {release.default_source}."
    for doubt in release.doubts:
        yield f"{doubt[0].upper()}{doubt[1:]}."


def _rows_table(found: OpenCostComparison, several: bool) -> Table:
    table = new_table("")
    table.add_column(found.by.value, overflow="fold")
    for head in ("OpenCost", "gpucost", "difference"):
        table.add_column(head, justify="right", no_wrap=True)
    table.add_column("efficiency: theirs", justify="right")
    table.add_column("ours (seen)", justify="right", no_wrap=True)
    for row in found.rows[:MOST_ROWS]:
        name = "idle" if row.kind is ComparedKind.IDLE else display.name(row.name)
        if row.kind is ComparedKind.IDLE and row.name:
            name = f"{display.name(row.name)} idle"
        _add_row(table, f"{display.name(row.cluster)}: {name}" if several else name, row)
    if len(found.rows) > MOST_ROWS:
        table.caption = f"{len(found.rows) - MOST_ROWS} more in the other formats"
    table.add_section()
    _add_row(table, "total", found.total, with_causes=False)
    return table


def _add_row(table: Table, name: str, row: ComparedRow, *, with_causes: bool = True) -> None:
    seen = row.efficiency
    ours = display.MISSING
    if seen.ours is not None:
        ours = f"{display.percent(seen.ours)} ({display.percent(seen.coverage)})"
    codes = ", ".join(note.partition(" ")[0] for note in row.notes)
    table.add_row(
        Text(f"{name} ({codes})" if codes else name),
        display.money(row.opencost_nano),
        display.money(row.ours_nano) if row.is_priced else "no price",
        display.signed_money(row.ours_nano - row.opencost_nano),
        display.percent(seen.opencost, 1),
        ours,
    )
    for each in _shown(row.causes) if with_causes else ():
        label, amount = f"  {each.defect} {each.title}".replace("   ", "  "), display.signed_money(each.nano)
        table.add_row(Text(label, "dim"), "", "", Text(amount, "dim"))


def _causes_table(found: OpenCostComparison) -> Table:
    table = new_table("Why they differ")
    table.add_column("cause", no_wrap=True)
    table.add_column("in all", justify="right", no_wrap=True)
    table.add_column("", overflow="fold")
    totals = {amount.cause: amount.nano for amount in found.total.causes}

    for each in sorted(found.causes, key=lambda each: -abs(totals.get(each.cause, 0))):
        label = f"{each.defect} {each.title}".strip()
        table.add_row(label, display.signed_money(totals.get(each.cause, 0)), Text(each.sentence))
    return table


def _shown(causes: Sequence[CauseAmount]) -> list[CauseAmount]:
    """Causes of a cent or more."""
    return [each for each in causes if abs(each.nano) >= _HALF_A_CENT]


_NUMBERS = ("opencost_nano", "ours_nano", "difference_nano", "opencost_board_ms", "ours_board_ms", "nano")
_RATIOS = ("opencost_efficiency", "our_efficiency", "our_coverage")
_TEXTS = ("section", "cluster", "name", "kind", "cause", "defect", "title", "notes", "currency")


def comparison_table(found: OpenCostComparison) -> ReportTable:
    """``section`` says what a row is: ``row`` and ``total`` have figures, each ``cause`` after them the part
    of that row's difference that it makes, in ``nano``; ``total_cause`` those of the total."""
    columns = (
        *(TableColumn(name, CellType.TEXT) for name in _TEXTS),
        *(TableColumn(name, CellType.INTEGER) for name in _NUMBERS),
        *(TableColumn(name, CellType.RATIO) for name in _RATIOS),
    )
    cells = [
        *(line for row in found.rows for line in _lines(row, "row", "cause")),
        *_lines(found.total, "total", "total_cause"),
    ]
    rows = tuple(
        tuple((line | {"currency": found.currency}).get(column.name) for column in columns) for line in cells
    )
    facts = {
        "schema": "gpucost/OpenCostComparisonTable/v1",
        "from": iso(found.window.start_ms),
        "to": iso(found.window.end_ms),
        "by": found.by.value,
        "currency": found.currency,
    }
    return ReportTable(facts, columns, rows)


def _lines(row: ComparedRow, section: str, of_cause: str) -> Iterator[dict[str, Cell]]:
    where: dict[str, Cell] = {"cluster": row.cluster, "name": row.name, "kind": row.kind.value}
    if section == "total":
        where = dict.fromkeys(where, "")
    yield where | {
        "section": section,
        "notes": "; ".join(row.notes),
        "opencost_nano": row.opencost_nano,
        "ours_nano": row.ours_nano,
        "difference_nano": row.ours_nano - row.opencost_nano,
        "opencost_board_ms": row.opencost_board_ms,
        "ours_board_ms": row.ours_board_ms,
        "opencost_efficiency": row.efficiency.opencost,
        "our_efficiency": row.efficiency.ours,
        "our_coverage": row.efficiency.coverage,
    }
    for amount in row.causes:
        named: dict[str, Cell] = {
            "cause": amount.cause.value,
            "defect": amount.defect,
            "title": amount.title,
            "nano": amount.nano,
        }
        yield where | {"section": of_cause} | named
