"""gpucost report, allocations, waste, job: reports of the ledger, on a terminal or as a file.

``waste`` shows where the capacity of a stretch of time went, and what to do first; ``job`` shows one job, in
the manner of jobstats.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from gpucost.cli.terminal.context import (
    CommandContext,
    context_of,
    now_ms,
    refuse_later,
)
from gpucost.cli.terminal.exit_codes import (
    ExitCode,
    as_ctrl_c,
    complain,
    fields_as,
)
from gpucost.cli.terminal.output import (
    Output,
    bars,
    held,
    refuse_short_file,
    refuse_table_file,
    stdout,
    write,
)
from gpucost.domain.errors import ErrorRemark, InputError, SourceError

if TYPE_CHECKING:
    from pathlib import Path

    from gpucost.domain.time import Month
    from gpucost.reports.job.job_receipt import JobEndFacts, JobReceipt
    from gpucost.reports.job.job_report import JobMatches, JobReport
    from gpucost.reports.month.allocations import Allocations
    from gpucost.reports.month.model import MonthReport
    from gpucost.reports.waste.waste_report import WasteReport
    from gpucost.service.reporting.rendering import ReportFormat
    from gpucost.service.reporting.report_service import ReportAnswer
    from gpucost.service.settings.model import Settings
    from gpucost.telemetry.interval_source import IntervalSource


Short = Annotated[bool, typer.Option("--short", help="On one screen of 80 by 24; of a table only.")]

# Names of values in the layers below -> the options of the user.
_OPTIONS = {
    **dict.fromkeys(("window", "month"), "WINDOW"),
    **dict.fromkeys(("group_by", "dimensions"), "--group-by"),
    **dict.fromkeys(("filter", "dimension"), "--filter"),
    **dict.fromkeys(("idle", "quotas"), "--idle"),
    "step": "--step",
    "cluster": "--cluster",
    "team": "--team",
}


def report(
    ctx: typer.Context,
    month: Annotated[str, typer.Argument(metavar="MONTH", help="A month in UTC, such as 2026-10.")],
    format_: Annotated[
        Literal["table", "json", "csv", "parquet", "html"],
        typer.Option("--format", "-f", help="table for people, html for a page, the others for programs."),
    ] = "table",
    cluster: Annotated[str | None, typer.Option(help="Of this cluster; adjustments are of none.")] = None,
    team: Annotated[str | None, typer.Option(help="Of this team, as the team itself sees it.")] = None,
    prometheus: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Read the month from this Prometheus now; no ledger is needed."),
    ] = None,
    waste: Annotated[
        bool,
        typer.Option("--waste", help="With --prometheus: say where the capacity went too; takes longer."),
    ] = False,
    cost_only: Annotated[
        bool,
        typer.Option("--cost-only", help="With --prometheus: what is paid, and not how it was used; faster."),
    ] = False,
    refresh: Annotated[
        bool,
        typer.Option("--refresh", help="With --prometheus: read days anew that were read before."),
    ] = False,
    short: Short = False,
    output: Output = None,
) -> None:
    """The cost report of a month: teams, budgets, what to do first; then what that rests on.

    With --prometheus nothing of gpucost's need run anywhere: gpucost's own series are read where they are,
    else those of kube-state-metrics and dcgm-exporter. `gpucost doctor` says what yours can tell.
    """
    from gpucost.domain.scope import EVERYTHING
    from gpucost.domain.time import Month
    from gpucost.service.reporting.month_closing import scope_of_team

    refuse_short_file(short, format_)
    with fields_as({"month": "MONTH"}):
        wanted = Month.parse(month)
    kind = _file_format(format_)
    refuse_table_file(kind is None, output)
    if cost_only and (waste or prometheus is None):
        allowed = "no --waste with --cost-only, which reads no use" if waste else "with --prometheus only"
        raise InputError("--cost-only", ErrorRemark("given"), allowed)
    for name, is_given in (("--refresh", refresh), ("--waste", waste)):
        if is_given and prometheus is None:
            raise InputError(name, ErrorRemark("given"), "with --prometheus only")
    if prometheus is not None:
        _from_prometheus(
            *(context_of(ctx), prometheus, wanted, kind, cluster, team, output),
            waste=waste,
            cost_only=cost_only,
            refresh=refresh,
            short=short,
        )
        return
    remote = context_of(ctx).remote()
    if remote is not None:
        with fields_as({**_OPTIONS, "month": "MONTH"}):
            if kind is None:
                _write_month(remote.month(month, cluster=cluster, team=team), None, None, short=short)
            else:
                write(remote.month_file(month, kind, cluster=cluster, team=team), output)
        return
    with fields_as(_OPTIONS), context_of(ctx).reporting() as reporting:
        scope = scope_of_team(reporting, reporting.of_cluster(EVERYTHING, cluster), wanted, team)
        found = reporting.month(scope, wanted, every_job=kind is not None and kind.lists_every_job)
        if found is None:
            raise InputError("MONTH", month, held(reporting.ledger, "a month of"))
        _write_month(found.report, kind, output, short=short)


def _file_format(format_: str) -> ReportFormat | None:
    """None for a table. What renders files is loaded for files only: it takes longer than a small report."""
    if format_ == "table":
        return None
    from gpucost.service.reporting.rendering import ReportFormat

    return ReportFormat(format_)


def _write_month(report: MonthReport, kind: ReportFormat | None, output: Path | None, *, short: bool) -> None:
    if kind is not None:
        from gpucost.service.reporting.rendering import render_month

        write(render_month(report, kind), output)
        return
    if short:
        from gpucost.reports.render.terminal_short import print_short_month

        print_short_month(report, stdout())
        return
    from gpucost.reports.render.terminal_month import print_month

    print_month(report, stdout())


def _from_prometheus(
    context: CommandContext,
    url: str,
    month: Month,
    kind: ReportFormat | None,
    cluster: str | None,
    team: str | None,
    output: Path | None,
    *,
    waste: bool,
    cost_only: bool,
    refresh: bool,
    short: bool,
) -> None:
    """Exit code 3 where some of the month could not be read: the rest is printed all the same."""
    from gpucost.domain.scope import EVERYTHING
    from gpucost.service.ingest.status import joined_failures
    from gpucost.service.reporting.month_closing import scope_of_team
    from gpucost.service.wiring.adhoc_month import read_month

    refuse_later(month)
    with fields_as({"prometheus.url": "--prometheus"}):
        settings = context.of_prometheus(url, waste=waste)
    every_job = kind is not None and kind.lists_every_job
    if kind is None and not cost_only and sys.stdout.isatty():
        _show_cost_first(context, settings, month, cluster, team, refresh=refresh)
    with (
        as_ctrl_c(),
        bars() as watch,
        read_month(
            *(settings, context.book(settings), context.teams, month, now_ms),
            cluster=cluster,
            cost_only=cost_only,
            refreshes=refresh,
            watch=watch,
        ) as read,
    ):
        with fields_as(_OPTIONS):
            scope = scope_of_team(read.reporting, EVERYTHING, month, team)
        found = read.reporting.month(scope, month, every_job=every_job)
    for failure in joined_failures(read.failures):
        complain(f"{failure.window} is not in the report: {failure.reason}")
    if found is None:
        why = context.why_not(settings.prometheus.url, month, cluster)
        complain(f"nothing of {month} could be read; {why} says why")
        raise typer.Exit(ExitCode.SOURCE)
    _write_month(found.report, kind, output, short=short)
    if kind is None and not waste and not cost_only:
        complain("with --waste, where the capacity went is said too")
    if read.failures:
        raise typer.Exit(ExitCode.SOURCE)


def _show_cost_first(
    context: CommandContext,
    settings: Settings,
    month: Month,
    cluster: str | None,
    team: str | None,
    *,
    refresh: bool,
) -> None:
    """What is paid needs no samples of use: it is on the screen while these are read. What goes wrong here is
    said when the whole is read."""
    from gpucost.domain.scope import EVERYTHING
    from gpucost.reports.render.terminal_short import print_short_month
    from gpucost.service.reporting.month_closing import scope_of_team
    from gpucost.service.wiring.adhoc_month import is_kept, read_month

    plain = settings.detectors.model_copy(update={"enabled": False})
    settings = settings.model_copy(update={"detectors": plain})
    of_month = (settings, context.book(settings), context.teams, month, now_ms)
    with suppress(SourceError, InputError), as_ctrl_c():
        if not refresh and is_kept(*of_month, cluster=cluster):
            return
        with (
            bars() as watch,
            read_month(*of_month, cluster=cluster, cost_only=True, refreshes=refresh, watch=watch) as read,
        ):
            scope = scope_of_team(read.reporting, EVERYTHING, month, team)
            found = read.reporting.month(scope, month, every_job=False)
        if found is not None:
            print_short_month(found.report, stdout())
            stdout().print(
                "\nThat is what is paid, without use yet. Use is read now; the whole report follows.\n"
            )


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
    from gpucost.reports.render.terminal_month import print_allocations
    from gpucost.service.reporting.rendering import ReportFormat, render_allocations

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
            write(render_allocations(answer, ReportFormat(format_)), output)


def _allocated(
    context: CommandContext,
    window: str,
    group_by: str,
    step: str | None,
    idle: str,
    filters: Mapping[str, frozenset[str]],
) -> ReportAnswer[Allocations]:
    from gpucost.domain.scope import EVERYTHING
    from gpucost.domain.time import parse_duration
    from gpucost.reports.month.allocations import DIMENSIONS, IdlePolicy
    from gpucost.service.reporting.report_service import parse_window

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
    team: Annotated[str | None, typer.Option(help="Of this team only, as the team itself sees it.")] = None,
    short: Short = False,
    output: Output = None,
) -> None:
    """Where the capacity went: eleven buckets that add up to it, by team and by day, and what to do first.

    What no detector has looked at is unknown, and never called productive.
    """
    from gpucost.reports.render.terminal_short import print_short_waste
    from gpucost.reports.render.terminal_waste import print_waste
    from gpucost.service.reporting.rendering import ReportFormat, render_waste

    refuse_short_file(short, format_)
    refuse_table_file(format_ == "table", output)
    with fields_as({"window": "WINDOW", "cluster": "--cluster", "team": "--team"}):
        answer = _wasted(context_of(ctx), window, top, cluster, team)
    if format_ == "table":
        if short:
            print_short_waste(answer.report, stdout())
        else:
            print_waste(answer.report, stdout(whole=True))
    else:
        write(render_waste(answer, ReportFormat(format_)), output)


def _wasted(
    context: CommandContext, window: str, top: int, cluster: str | None, team: str | None
) -> ReportAnswer[WasteReport]:
    from gpucost.domain.scope import EVERYTHING
    from gpucost.service.reporting.report_service import parse_window

    span, remote = parse_window(window), context.remote()
    if remote is not None:
        return remote.waste(window=window, top=str(top), cluster=cluster, team=team)
    with context.reporting() as reporting:
        answer = reporting.waste(
            reporting.of_team(reporting.of_cluster(EVERYTHING, cluster), team), span, top=top
        )
        if answer is None:
            raise InputError("WINDOW", window, held(reporting.ledger, "a month or START/END within"))
        return answer


def job(
    ctx: typer.Context,
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME", help="The job's name, namespace/name, or the uid of its Kubernetes object."
        ),
    ],
    last: Annotated[bool, typer.Option("--last", help="Of several of that name, the last one.")] = False,
    cluster: Annotated[
        str | None, typer.Option(help="In this cluster: clones of a cluster have jobs of the same uid.")
    ] = None,
    progress: Annotated[str | None, typer.Option(help="Cost per unit of this progress metric only.")] = None,
    gpus: Annotated[
        bool | None,
        typer.Option(
            "--gpus/--no-gpus",
            help="Ask the source what each GPU did, what the job waited for, and what the detectors say of "
            "that time; else a recorded source only.",
        ),
    ] = None,
    receipt: Annotated[
        bool,
        typer.Option(
            "--receipt",
            help="What it held, cost, wasted and waited, how it ended, and the one change for its next run.",
        ),
    ] = False,
    short: Short = False,
    format_: Annotated[Literal["table", "json", "csv", "parquet"], typer.Option("--format", "-f")] = "table",
    output: Output = None,
) -> None:
    """One job: what it cost, how well it used its GPUs, what it wasted, and what to change.

    Costs, buckets and findings come from the ledger. What single GPUs did and what the job waited for is in
    the source, for as long as that holds it; of a long job the last seven days are read. The detectors look
    at the last three of them again, and say what they find, even where no finding was ever written. Where
    there is none of it, the report says why. Where several jobs have the name, they are listed.
    """
    from gpucost.reports.render.terminal_job import print_job, print_matches
    from gpucost.reports.render.terminal_short import print_short_job
    from gpucost.service.reporting.rendering import ReportFormat, render_job

    refuse_short_file(short, format_)
    refuse_table_file(format_ == "table", output)
    if receipt:
        _refuse_with_receipt(progress, format_, short=short)
    context = context_of(ctx)
    with fields_as({"progress": "--progress", "cluster": "--cluster", "uid": "NAME", "name": "NAME"}):
        found = _called(context, name, cluster)
        uids = list(dict.fromkeys(each.job_uid for each in found.jobs))
        if len(uids) > 1 and not last:
            if format_ == "table":
                print_matches(found, stdout())
            listed = f"{', '.join(uids[:_MOST_CHOICES])}{' …' if len(uids) > _MOST_CHOICES else ''}"
            raise InputError("NAME", name, f"one job: --last, or the uid of one: {listed}")
        uid = uids[0] if uids else name
        asks_source = _asks_source(context, gpus)
        if receipt:
            _write_receipt(_receipt(context, uid, cluster, asks_source=asks_source), format_, output)
            return
        answer = _of_ledger(context, uid, progress, cluster)
    if short:
        print_short_job(answer.report, stdout())
        return
    if asks_source:
        answer = replace(answer, report=_asked(context, answer.report)[0])
    if format_ == "table":
        print_job(answer.report, stdout(whole=True))
    else:
        write(render_job(answer, ReportFormat(format_)), output)


def _refuse_with_receipt(progress: str | None, format_: str, *, short: bool) -> None:
    if short:
        raise InputError("--short", ErrorRemark("given"), "no --short with --receipt, which is short")
    if progress is not None:
        raise InputError("--progress", progress, "no --progress with --receipt, which has no cost per unit")
    if format_ not in ("table", "json"):
        raise InputError("--format", format_, "table or json with --receipt")


def _asks_source(context: CommandContext, gpus: bool | None) -> bool:
    """Whether to ask the source beside the ledger. Raises InputError where a server is asked."""
    if context.remote() is None:
        return gpus or (gpus is None and context.settings.source.kind == "recorded")
    if gpus:
        allowed = "no --gpus: a server does not ask its source; --config FILE goes to ledger and source"
        raise InputError("--gpus", gpus, allowed)
    return False


def _receipt(
    context: CommandContext, uid: str, cluster: str | None, *, asks_source: bool
) -> ReportAnswer[JobReceipt]:
    """The receipt: of our ledger, with what the source and a dump of the cluster know of the job's end; or a
    server's."""
    from gpucost.reports.job.job_receipt import NO_END
    from gpucost.service.reporting.job_endings import end_in_source, joined_end
    from gpucost.service.reporting.report_service import ReportAnswer

    remote = context.remote()
    if remote is not None:
        return remote.receipt(uid, cluster=cluster)
    answer = _of_ledger(context, uid, None, cluster)
    report, end = answer.report, NO_END
    if asks_source:
        report, source = _asked(context, report)
        end = NO_END if source is None else end_in_source(source, report)
    end = joined_end(_end_in_dump(context, report), end)
    with context.reporting() as reporting:
        return ReportAnswer(reporting.receipt_of(report, end), answer.stand)


def _end_in_dump(context: CommandContext, report: JobReport) -> JobEndFacts:
    """What the dump says that the settings name in place of a cluster: what the pages of a server with these
    settings say."""
    from gpucost.reports.job.job_receipt import NO_END
    from gpucost.service.reporting.job_endings import ends_in
    from gpucost.service.wiring.cluster import build_watching

    settings = context.settings
    if settings.detectors.state != "dump":
        return NO_END
    watched = build_watching(settings, settings.attribution.catalog(), now_ms)
    if watched is None:
        return NO_END
    seen = watched.overview(watched.cluster)
    ends = ends_in(watched.cluster, None if seen is None else seen.state)
    return ends(", ".join(report.clusters), report.namespace, report.job_uid, report.job_kind)


def _write_receipt(answer: ReportAnswer[JobReceipt], format_: str, output: Path | None) -> None:
    from gpucost.reports.render.terminal_job import print_receipt
    from gpucost.service.reporting.rendering import render_receipt

    if format_ == "table":
        print_receipt(answer.report, stdout(whole=True))
    else:
        write(render_receipt(answer), output)


def _of_ledger(
    context: CommandContext, uid: str, progress: str | None, cluster: str | None
) -> ReportAnswer[JobReport]:
    """The job in the ledger: ours, or a server's."""
    from gpucost.domain.scope import EVERYTHING
    from gpucost.service.reporting.list_reports import allowed_jobs

    remote = context.remote()
    if remote is not None:
        return remote.job(uid, progress=progress, cluster=cluster)
    with context.reporting() as reporting:
        scope = reporting.of_cluster(EVERYTHING, cluster)
        answer = reporting.job(scope, uid, progress)
        if answer is None:
            raise InputError("NAME", uid, allowed_jobs(reporting, scope, uid))
    return answer


def _called(context: CommandContext, name: str, cluster: str | None) -> JobMatches:
    """The jobs of that name in the ledger: ours, or a server's."""
    from gpucost.domain.scope import EVERYTHING
    from gpucost.service.reporting.list_reports import jobs_named

    remote = context.remote()
    if remote is not None:
        return remote.jobs_named(name, cluster=cluster)
    with context.reporting() as reporting:
        return jobs_named(reporting, reporting.of_cluster(EVERYTHING, cluster), name)


_MOST_CHOICES = 5


def _asked(context: CommandContext, report: JobReport) -> tuple[JobReport, IntervalSource | None]:
    """The report with the data that the source has on the job, and the findings of the detectors; and the
    source, None where it cannot be opened."""
    from gpucost.reports.job.job_report import live_view
    from gpucost.service.detection.job_inspection import job_inspection, see_job
    from gpucost.service.wiring.inputs import load_book
    from gpucost.service.wiring.pipeline import rules_of
    from gpucost.service.wiring.source import open_source

    settings = context.settings
    book = load_book(settings.pricing.book)
    try:
        source = open_source(settings, book, now_ms)
    except (InputError, SourceError) as error:
        note = f"The source cannot say what single GPUs did: {error}"
        return replace(report, seen=live_view(report.job_uid, (), (note,))), None
    rules = rules_of(settings, book, context.teams)
    looking = job_inspection(settings.detectors, source, rules)
    return replace(report, seen=see_job(source, report), look=looking.look(report)), source
