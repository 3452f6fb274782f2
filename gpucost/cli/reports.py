"""gpucost report, allocations, job: what the ledger knows, on a terminal or as a file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from gpucost.cli.context import context_of
from gpucost.cli.output import stdout, write
from gpucost.domain.errors import InputError

Output = Annotated[
    Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write to this file instead of stdout.")
]


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

    wanted = Month.parse(month)
    kind = None if format_ == "table" else Format(format_)
    _refuse_table_file(kind is None, output)
    with context_of(ctx).reporting() as reporting:
        found = reporting.month(EVERYTHING, wanted, every_job=kind is not None and kind.lists_every_job)
        if found is None:
            extent = reporting.ledger.extent()
            held = "a month with windows: this ledger is empty" if extent is None else f"a month of {extent}"
            raise InputError("MONTH", month, held)
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
    step: Annotated[str | None, typer.Option(help="A row per this much time, such as 1d.")] = None,
    idle: Annotated[
        Literal["separate", "proportional", "by_quota"], typer.Option(help="Who bears unallocated time.")
    ] = "separate",
    only: Annotated[
        list[str] | None,
        typer.Option(
            "--filter", metavar="DIM=VALUE,…", help="Keep what has one of these values. May be repeated."
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

    _refuse_table_file(format_ == "table", output)
    with context_of(ctx).reporting() as reporting:
        answer = reporting.allocations(
            EVERYTHING,
            parse_window(window),
            tuple(group_by.split(",")),
            step_ms=None if step is None else parse_duration(step, "--step"),
            idle=IdlePolicy(idle),
            filters=_filters(only or []),
        )
        if format_ == "table":
            print_allocations(answer.report, stdout())
        else:
            write(render_allocations(answer, Format(format_)), output)


def job(
    ctx: typer.Context,
    uid: Annotated[str, typer.Argument(metavar="UID", help="uid of the job's Kubernetes object.")],
    progress: Annotated[str | None, typer.Option(help="Cost per unit of this progress metric only.")] = None,
    format_: Annotated[Literal["table", "json", "csv", "parquet"], typer.Option("--format", "-f")] = "table",
    output: Output = None,
) -> None:
    """One job: its cost so far, and how every part of it is computed."""
    from gpucost.domain.scope import EVERYTHING
    from gpucost.reports.terminal import print_job
    from gpucost.service.rendering import Format, render_job

    _refuse_table_file(format_ == "table", output)
    with context_of(ctx).reporting() as reporting:
        answer = reporting.job(EVERYTHING, uid, progress)
        if answer is None:
            raise InputError("UID", uid, "the uid of a job with usage in the ledger")
        if format_ == "table":
            print_job(answer.report, stdout())
        else:
            write(render_job(answer, Format(format_)), output)


def _filters(texts: list[str]) -> dict[str, frozenset[str]]:
    found: dict[str, frozenset[str]] = {}
    for text in texts:
        name, equals, values = text.partition("=")
        if not equals or name in found:
            raise InputError("--filter", text, "DIM=VALUE or DIM=VALUE,VALUE, each dimension once")
        found[name] = frozenset(values.split(","))
    return found


def _refuse_table_file(is_table: bool, output: Path | None) -> None:
    if is_table and output is not None:
        raise InputError("--output", str(output), "a --format other than table")
