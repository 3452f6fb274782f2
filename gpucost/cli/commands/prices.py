"""gpucost prices: check the price book before bills are made from it."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gpucost.cli.terminal.context import context_of
from gpucost.cli.terminal.output import stdout
from gpucost.domain.money import plain

if TYPE_CHECKING:
    from rich.table import Table

    from gpucost.pricing.price_book import PriceBook
    from gpucost.pricing.price_rows import PriceRow

app = typer.Typer(no_args_is_help=True, help="Check and show the price book.", rich_markup_mode=None)

_SHOWN_ROWS = 3
_NARROW = 100  # below this many columns, only --sources names them
# Flags of a row that name the vendor.
_VENDORS = ("AWS", "Azure", "Google Cloud", "OCI", "Lambda", "Nebius", "RunPod")

File = Annotated[
    Path | None,
    typer.Argument(metavar="[FILE]", help="A price book; else the one of the settings, or gpucost's own."),
]


@app.command()
def check(ctx: typer.Context, file: File = None) -> None:
    """Validate a price book, and list what a person should look at: stale, expired or odd rows.

    A book that is wrong ends with exit code 2 and says what to change; warnings alone end with 0.
    """
    from gpucost.reports.base.display import counted

    book, name = _book(ctx, file)
    warnings = book.check(datetime.now(UTC).date())
    for warning in warnings:
        more = len(warning.rows) - _SHOWN_ROWS
        rows = ", ".join(warning.rows[:_SHOWN_ROWS]) + (f" and {more} more" if more > 0 else "")
        typer.echo(f"{warning.code}: {rows}: {warning.detail}")
    rows, remarks = counted(len(book.rows), "row"), counted(len(warnings), "warning")
    typer.echo(f"{name}: valid, {rows} in {book.currency}, {remarks}")


@app.command()
def show(
    ctx: typer.Context,
    file: File = None,
    model: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Only rows whose model or name contains this text.")
    ] = None,
    sources: Annotated[
        bool, typer.Option("--sources", help="Whole sources and validity too, on lines of their own.")
    ] = False,
) -> None:
    """List the rows, one line each: vendor, where it applies, price per GPU-hour, when and where read."""
    from rich.text import Text

    from gpucost.reports.base.display import counted

    book, name = _book(ctx, file)
    rows = [row for row in book.rows if model is None or model.lower() in f"{row.title} {row.model}".lower()]
    if not rows:
        typer.echo(f"{name}: nothing matches {model!r} among {counted(len(book.rows), 'row')}")
        return
    console = stdout()
    wide = console.width >= _NARROW
    table = _table(f"{name}, {book.currency} per GPU-hour, before discounts", wide)
    for row in rows:
        table.add_row(*(Text(cell) for cell in _cells(row)[: len(table.columns)]))
    console.print(table, crop=False)
    if sources:
        for row in rows:
            lines = f"{row.title}  valid {row.validity}\n  {row.provenance}"
            console.print(Text(lines), soft_wrap=True)


def _table(title: str, wide: bool) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(
        title=title,
        title_justify="left",
        title_style="bold",
        header_style="dim",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        padding=(0, 1, 0, 0),
    )
    for head in ("vendor", "region", "instance or model"):
        table.add_column(head, overflow="ellipsis", no_wrap=True, max_width=26)
    table.add_column("capacity", no_wrap=True, min_width=9)
    table.add_column("per GPU-h", justify="right", no_wrap=True, min_width=10)
    table.add_column("retrieved", no_wrap=True, min_width=10)
    if wide:
        table.add_column("source", overflow="ellipsis", no_wrap=True, max_width=26)
    return table


def _cells(row: PriceRow) -> tuple[str, ...]:
    """A row of ``_table``. The vendor stands in the row's flags, where a source lists several."""
    vendor = next((flag for flag in row.flags if flag in _VENDORS), "–")
    return (
        vendor,
        row.region or "any",
        row.name or row.key[1],
        row.capacity_type or "any",
        plain(round(row.board_hour), 4),
        row.retrieved.isoformat(),
        row.source.partition(":")[0].rpartition("/")[2],
    )


def _book(ctx: typer.Context, file: Path | None) -> tuple[PriceBook, str]:
    from gpucost.service.wiring.inputs import load_book

    chosen = file or context_of(ctx).settings.pricing.book
    return load_book(chosen), "the price book of gpucost" if chosen is None else str(chosen)
