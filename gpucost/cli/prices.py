"""gpucost prices: look at the price book before anybody is billed by it."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gpucost.cli.context import context_of
from gpucost.cli.output import stdout
from gpucost.domain.money import plain

if TYPE_CHECKING:
    from gpucost.pricing.book import PriceBook

app = typer.Typer(no_args_is_help=True, help="Check and show the price book.", rich_markup_mode=None)

_SHOWN_ROWS = 3

File = Annotated[
    Path | None,
    typer.Argument(metavar="[FILE]", help="A price book; else the one of the settings, or gpucost's own."),
]


@app.command()
def check(ctx: typer.Context, file: File = None) -> None:
    """Validate a price book, and list what a person should look at: stale, expired or odd rows.

    A book that is wrong ends with exit code 2 and says what to change; warnings alone end with 0.
    """
    book, name = _book(ctx, file)
    warnings = book.check(datetime.now(UTC).date())
    for warning in warnings:
        more = len(warning.rows) - _SHOWN_ROWS
        rows = ", ".join(warning.rows[:_SHOWN_ROWS]) + (f" and {more} more" if more > 0 else "")
        typer.echo(f"{warning.code}: {rows}: {warning.detail}")
    typer.echo(f"{name}: valid, {len(book.rows)} rows in {book.currency}, {len(warnings)} warnings")


@app.command()
def show(
    ctx: typer.Context,
    file: File = None,
    model: Annotated[str | None, typer.Option(help="Only rows whose key contains this text.")] = None,
) -> None:
    """List the rows: what each costs per board-hour, where it applies, since when, and its source."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    book, name = _book(ctx, file)
    table = Table(
        title=f"{name}, {book.currency} per board-hour, before discounts",
        title_justify="left",
        title_style="bold",
        header_style="dim",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
    )
    for head in ("row", "valid", "source", "read"):
        table.add_column(head, overflow="fold")
    table.columns[0].min_width = 24
    table.add_column("price", justify="right", no_wrap=True)
    for row in book.rows:
        if model is not None and model.lower() not in row.title.lower():
            continue
        price = plain(round(row.board_hour), 4)
        cells = (row.title, str(row.validity), row.provenance, row.retrieved.isoformat(), price)
        table.add_row(*(Text(cell) for cell in cells))
    stdout().print(table)


def _book(ctx: typer.Context, file: Path | None) -> tuple[PriceBook, str]:
    from gpucost.service.assemble import load_book

    chosen = file or context_of(ctx).settings.pricing.book
    return load_book(chosen), "the price book of gpucost" if chosen is None else str(chosen)
