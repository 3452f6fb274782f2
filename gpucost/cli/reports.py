"""gpucost report, allocations: what the ledger knows, on a terminal or as a file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from gpucost.cli.context import Context, context_of, now_ms, refuse_later
from gpucost.cli.exits import Exit, complain, fields_as
from gpucost.cli.interrupts import as_ctrl_c
from gpucost.cli.output import Output, bars, held, refuse_table_file, stdout, write
from gpucost.domain.errors import InputError

if TYPE_CHECKING:
    from pathlib import Path

    from gpucost.domain.time import Month
    from gpucost.reports.allocations import Allocations
    from gpucost.service.rendering import Format
    from gpucost.service.reporting import Answer

# What the layers below call a value -> what the user wrote.
_OPTIONS = {
    **dict.fromkeys(("window", "month"), "WINDOW"),
    **dict.fromkeys(("group_by", "dimensions"), "--group-by"),
    **dict.fromkeys(("filter", "dimension"), "--filter"),
    **dict.fromkeys(("idle", "quotas"), "--idle"),
    "step": "--step",
    "cluster": "--cluster",
}


def report(
    ctx: typer.Context,
    month: Annotated[str, typer.Argument(metavar="MONTH", help="A month in UTC, such as 2026-10.")],
    format_: Annotated[
        Literal["table", "json", "csv", "parquet", "html"],
        typer.Option("--format", "-f", help="table for people, html for a page, the others for programs."),
    ] = "table",
    cluster: Annotated[str | None, typer.Option(help="Of this cluster; adjustments are of none.")] = None,
    prometheus: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Read the month from this Prometheus now; no ledger is needed."),
    ] = None,
    waste: Annotated[
        bool,
        typer.Option("--waste", help="With --prometheus: say where the capacity went too; takes longer."),
    ] = False,
    output: Output = None,
) -> None:
    """The cost report of a month: teams, jobs, models, capacity, and where the numbers come from.

    With --prometheus nothing of gpucost's need run anywhere: gpucost's own series are read where they are,
    else those of kube-state-metrics and dcgm-exporter. `gpucost doctor` says what yours can tell.
    """
    from gpucost.domain.scope import EVERYTHING
    from gpucost.domain.time import Month
    from gpucost.reports.terminal import print_month
    from gpucost.service.rendering import Format, render_month

    with fields_as({"month": "MONTH"}):
        wanted = Month.parse(month)
    kind = None if format_ == "table" else Format(format_)
    refuse_table_file(kind is None, output)
    if prometheus is not None:
        _from_prometheus(context_of(ctx), prometheus, wanted, kind, cluster, output, waste=waste)
        return
    remote = context_of(ctx).remote()
    if remote is not None:
        with fields_as({**_OPTIONS, "month": "MONTH"}):
            if kind is None:
                print_month(remote.month(month, cluster=cluster), stdout())
            else:
                write(remote.month_file(month, kind, cluster=cluster), output)
        return
    with fields_as(_OPTIONS), context_of(ctx).reporting() as reporting:
        scope = reporting.of_cluster(EVERYTHING, cluster)
        found = reporting.month(scope, wanted, every_job=kind is not None and kind.lists_every_job)
        if found is None:
            raise InputError("MONTH", month, held(reporting.ledger, "a month of"))
        if kind is None:
            print_month(found.report, stdout())
        else:
            write(render_month(found.report, kind), output)


def _from_prometheus(
    context: Context,
    url: str,
    month: Month,
    kind: Format | None,
    cluster: str | None,
    output: Path | None,
    *,
    waste: bool,
) -> None:
    """Exit code 3 where some of the month could not be read: what could be is printed all the same."""
    from gpucost.domain.scope import EVERYTHING
    from gpucost.reports.terminal import print_month
    from gpucost.service.month_now import read_month
    from gpucost.service.rendering import render_month

    refuse_later(month)
    with fields_as({"prometheus.url": "--prometheus"}):
        settings = context.of_prometheus(url, waste=waste)
    every_job = kind is not None and kind.lists_every_job
    with (
        as_ctrl_c(),
        bars() as watch,
        read_month(
            settings, context.book(settings), context.teams, month, now_ms, cluster=cluster, watch=watch
        ) as read,
    ):
        found = read.reporting.month(EVERYTHING, month, every_job=every_job)
    for failure in read.failures:
        complain(f"{failure.window} is not in the report: {failure.kind}: {failure.reason}")
    if found is None:
        why = context.why_not(settings.prometheus.url, month, cluster)
        complain(f"nothing of {month} could be read; {why} says why")
        raise typer.Exit(Exit.SOURCE)
    if kind is None:
        print_month(found.report, stdout())
        if not waste:
            complain("with --waste, where the capacity went is said too")
    else:
        write(render_month(found.report, kind), output)
    if read.failures:
        raise typer.Exit(Exit.SOURCE)


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
    from gpucost.reports.terminal import print_allocations
    from gpucost.service.rendering import Format, render_allocations

    refuse_table_file(format_ == "table", output)
    filters = _filters(only or [])
    with fields_as({**_OPTIONS, "step": "--step", **dict.fromkeys(filters, "--filter")}):
        answer = _allocated(context_of(ctx), window, group_by, step, idle, filters)
        nothing = f"nothing matches {_shown(filters)} in {window}" if not answer.report.rows else ""
        if format_ == "table" and nothing:
            typer.echo(nothing)
        elif format_ == "table":
            print_allocations(answer.report, stdout())
        else:
            if nothing:
                complain(nothing)
            write(render_allocations(answer, Format(format_)), output)


def _allocated(
    context: Context,
    window: str,
    group_by: str,
    step: str | None,
    idle: str,
    filters: Mapping[str, frozenset[str]],
) -> Answer[Allocations]:
    from gpucost.domain.scope import EVERYTHING
    from gpucost.domain.time import parse_duration
    from gpucost.reports.allocations import DIMENSIONS, IdlePolicy
    from gpucost.service.reporting import parse_window

    span, step_ms = parse_window(window), None if step is None else parse_duration(step, "--step")
    remote = context.remote()
    if remote is not None:
        for name in filters:
            if name not in DIMENSIONS:
                raise InputError("--filter", name, ", ".join(DIMENSIONS))
        wanted = {name: ",".join(sorted(values)) for name, values in filters.items()}
        return remote.allocations(window=window, group_by=group_by, step=step, idle=idle, **wanted)
    with context.reporting() as reporting:
        answer = reporting.allocations(
            EVERYTHING,
            span,
            tuple(group_by.split(",")),
            step_ms=step_ms,
            idle=IdlePolicy(idle),
            filters=filters,
        )
        if not answer.stand.windows:
            raise InputError("WINDOW", window, held(reporting.ledger, "a month or START/END within"))
        return answer


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
