"""gpucost waste: where the capacity of a stretch of time went, and what to do first."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import typer

from gpucost.cli.context import Context, context_of
from gpucost.cli.exits import fields_as
from gpucost.cli.output import Output, held, refuse_table_file, stdout, write
from gpucost.domain.errors import InputError

if TYPE_CHECKING:
    from gpucost.reports.waste import WasteReport
    from gpucost.service.reporting import Answer


def waste(
    ctx: typer.Context,
    window: Annotated[
        str, typer.Argument(metavar="WINDOW", help="A month, or START/END in RFC 3339, half-open.")
    ],
    top: Annotated[
        int, typer.Option(help="How many of the costliest jobs, and of what to do first.", min=1, max=1000)
    ] = 10,
    format_: Annotated[
        Literal["table", "json", "csv", "parquet"],
        typer.Option("--format", "-f", help="table for people, the others for programs."),
    ] = "table",
    cluster: Annotated[str | None, typer.Option(help="Of this cluster.")] = None,
    output: Output = None,
) -> None:
    """Where the capacity went: ten buckets that add up to it, by team and by day, and what to do first.

    What no detector has looked at is unknown, and never called productive.
    """
    from gpucost.reports.terminal_waste import print_waste
    from gpucost.service.rendering import Format, render_waste

    refuse_table_file(format_ == "table", output)
    with fields_as({"window": "WINDOW", "cluster": "--cluster"}):
        answer = _wasted(context_of(ctx), window, top, cluster)
    if format_ == "table":
        print_waste(answer.report, stdout(whole=True))
    else:
        write(render_waste(answer, Format(format_)), output)


def _wasted(context: Context, window: str, top: int, cluster: str | None) -> Answer[WasteReport]:
    from gpucost.domain.scope import EVERYTHING
    from gpucost.service.reporting import parse_window

    span, remote = parse_window(window), context.remote()
    if remote is not None:
        return remote.waste(window=window, top=str(top), cluster=cluster)
    with context.reporting() as reporting:
        answer = reporting.waste(reporting.of_cluster(EVERYTHING, cluster), span, top=top)
        if answer is None:
            raise InputError("WINDOW", window, held(reporting.ledger, "a month or START/END within"))
        return answer
