"""A comparison as one flat table, for CSV."""

from __future__ import annotations

from collections.abc import Iterator

from gpucost.domain.time import iso
from gpucost.reports.opencost.compare import ComparedRow, OpenCostComparison
from gpucost.reports.tables import Cell, CellType, Table, TableColumn

_NUMBERS = ("opencost_nano", "ours_nano", "difference_nano", "opencost_board_ms", "ours_board_ms", "nano")
_RATIOS = ("opencost_efficiency", "our_efficiency", "our_coverage")
_TEXTS = ("section", "cluster", "name", "kind", "cause", "defect", "title", "notes", "currency")


def comparison_table(found: OpenCostComparison) -> Table:
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
    return Table(facts, columns, rows)


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
