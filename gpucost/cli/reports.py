"""gpucost report, allocations: what the ledger knows, on a terminal or as a file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

import typer

from gpucost.cli.context import context_of
from gpucost.cli.exits import complain, fields_as
from gpucost.cli.output import Output, held, refuse_table_file, stdout, write
from gpucost.domain.errors import InputError

# What the layers below call a value -> what the user wrote.
_OPTIONS = {
    **dict.fromkeys(("window", "month"), "WINDOW"),
    **dict.fromkeys(("group_by", "dimensions"), "--group-by"),
    **dict.fromkeys(("filter", "dimension"), "--filter"),
    **dict.fromkeys(("idle", "quotas"), "--idle"),
    "step": "--step",
}


def report(
    ctx: typer.Context,
    month: Annotated[str, typer.Argument(metavar="MONTH", help="A month in UTC, such as 2026-10.")],
    format_: Annotated[
        Literal["table", "json", "csv", "parquet", "html"],
        typer.Option("--format", "-f", help="table for people, html for a page, the others for programs."),
    ] = "table",
    output: Output = None,
) -> None:
    """The cost report of a month: teams, jobs, models, capacity, and where the numbers come from."""
    from gpucost.domain.scope import EVERYTHING
    from gpucost.domain.time import Month
    from gpucost.reports.terminal import print_month
    from gpucost.service.rendering import Format, render_month

    with fields_as({"month": "MONTH"}):
        wanted = Month.parse(month)
    kind = None if format_ == "table" else Format(format_)
    refuse_table_file(kind is None, output)
    with context_of(ctx).reporting() as reporting:
        found = reporting.month(EVERYTHING, wanted, every_job=kind is not None and kind.lists_every_job)
        if found is None:
            raise InputError("MONTH", month, held(reporting.ledger, "a month of"))
        if kind is None:
            print_month(found.report, stdout())
        else:
            write(render_month(found.report, kind), output)


def allocations(
    ctx: typer.Context,
    window: Annotated[
        str, typer.Argument(metavar="WINDOW", help="A month, or START/END in RFC 3339, half-open.")
    ],
    group_by: Annotated[
        str, typer.Option(metavar="DIM,…", help="Dimensions: cluster, model, namespace, team, job, user, …")
    ] = "team",
    step: Annotated[
        str | None,
        typer.Option(help="A row per this much time, such as 1h; whole days where idle time is shared."),
    ] = None,
    idle: Annotated[
        Literal["separate", "proportional", "by_quota"], typer.Option(help="Who bears unallocated time.")
    ] = "separate",
    only: Annotated[
        list[str] | None,
        typer.Option(
            "--filter",
            metavar="DIM=VALUE[,VALUE]",
            help="Keep what has one of these values. Repeat it for another dimension.",
        ),
    ] = None,
    format_: Annotated[Literal["table", "json", "csv", "parquet"], typer.Option("--format", "-f")] = "table",
    output: Output = None,
) -> None:
    """Usage and cost of a window by any dimensions and steps."""
    from gpucost.domain.scope import EVERYTHING
    from gpucost.domain.time import parse_duration
    from gpucost.reports.allocations import IdlePolicy
    from gpucost.reports.terminal import print_allocations
    from gpucost.service.rendering import Format, render_allocations
    from gpucost.service.reporting import parse_window

    refuse_table_file(format_ == "table", output)
    filters = _filters(only or [])
    with fields_as(_OPTIONS), context_of(ctx).reporting() as reporting:
        answer = reporting.allocations(
            EVERYTHING,
            parse_window(window),
            tuple(group_by.split(",")),
            step_ms=None if step is None else parse_duration(step, "--step"),
            idle=IdlePolicy(idle),
            filters=filters,
        )
        if not answer.stand.windows:
            raise InputError("WINDOW", window, held(reporting.ledger, "a month or START/END within"))
        nothing = f"nothing matches {_shown(filters)} in {window}" if not answer.report.rows else ""
        if format_ == "table" and nothing:
            typer.echo(nothing)
        elif format_ == "table":
            print_allocations(answer.report, stdout())
        else:
            if nothing:
                complain(nothing)
            write(render_allocations(answer, Format(format_)), output)


def _filters(texts: list[str]) -> dict[str, frozenset[str]]:
    found: dict[str, frozenset[str]] = {}
    for text in texts:
        name, equals, values = text.partition("=")
        if not equals or name in found or "=" in values:
            allowed = "DIM=VALUE[,VALUE], each dimension once; repeat --filter for another dimension"
            raise InputError("--filter", text, allowed)
        found[name] = frozenset(values.split(","))
    return found


def _shown(filters: Mapping[str, frozenset[str]]) -> str:
    shown = (f"--filter {name}={','.join(sorted(values))}" for name, values in filters.items())
    return " ".join(shown) or "the window"
