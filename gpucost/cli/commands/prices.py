"""gpucost prices: check the price book before bills are made from it."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gpucost.cli.terminal.context import context_of
from gpucost.cli.terminal.output import stdout

if TYPE_CHECKING:
    from gpucost.pricing.price_book import PriceBook

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
    """List the rows, one line each: vendor, where it applies, price per GPU-hour, when and where read.

    Without FILE the server that one is logged in to is asked, which says what it applies.
    """
    from gpucost.reports.base.display import counted
    from gpucost.reports.month.reference_lists import price_list
    from gpucost.reports.render.terminal_lists import print_prices

    remote = None if file is not None else context_of(ctx).remote()
    if remote is not None:
        found, name = remote.prices(), remote.url
    else:
        book, name = _book(ctx, file)
        found = price_list(book, book.rows)
    entries = [
        each
        for each in found.prices
        if model is None or model.lower() in f"{each.title} {each.model}".lower()
    ]
    if not entries:
        typer.echo(f"{name}: nothing matches {model!r} among {counted(len(found.prices), 'row')}")
        return
    title = f"{name}, {found.currency} per GPU-hour, before discounts"
    print_prices(entries, title, stdout(), sources=sources)


def _book(ctx: typer.Context, file: Path | None) -> tuple[PriceBook, str]:
    from gpucost.service.wiring.inputs import load_book

    chosen = file or context_of(ctx).settings.pricing.book
    return load_book(chosen), "the price book of gpucost" if chosen is None else str(chosen)
