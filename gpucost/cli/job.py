"""gpucost job: one job, in the manner of jobstats."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from gpucost.cli.context import Context, context_of, now_ms
from gpucost.cli.exits import fields_as
from gpucost.cli.output import Output, refuse_table_file, stdout, write
from gpucost.domain.errors import InputError, SourceError

if TYPE_CHECKING:
    from gpucost.reports.job import JobReport
    from gpucost.reports.job_seen import JobSeen


def job(
    ctx: typer.Context,
    uid: Annotated[str, typer.Argument(metavar="UID", help="uid of the job's Kubernetes object.")],
    progress: Annotated[str | None, typer.Option(help="Cost per unit of this progress metric only.")] = None,
    gpus: Annotated[
        bool | None,
        typer.Option(
            "--gpus/--no-gpus",
            help="Ask the source what each GPU did and what the job waited for; else a recorded source only.",
        ),
    ] = None,
    format_: Annotated[Literal["table", "json", "csv", "parquet"], typer.Option("--format", "-f")] = "table",
    output: Output = None,
) -> None:
    """One job: what it cost, how well it used its GPUs, what it wasted, and what to change.

    Costs, buckets and findings come from the ledger. What single GPUs did and what the job waited for is in
    the source, for as long as that holds it; of a long job the last seven days are read. Where there is none
    of it, the report says why.
    """
    from gpucost.domain.scope import EVERYTHING
    from gpucost.reports.terminal_job import print_job
    from gpucost.service.rendering import Format, render_job

    refuse_table_file(format_ == "table", output)
    context = context_of(ctx)
    with fields_as({"progress": "--progress"}), context.reporting() as reporting:
        answer = reporting.job(EVERYTHING, uid, progress)
    if answer is None:
        raise InputError("UID", uid, "the uid of a job with usage in the ledger")
    if gpus or (gpus is None and context.settings.source.kind == "recorded"):
        answer = replace(answer, report=replace(answer.report, seen=_seen(context, answer.report)))
    if format_ == "table":
        print_job(answer.report, stdout())
    else:
        write(render_job(answer, Format(format_)), output)


def _seen(context: Context, report: JobReport) -> JobSeen:
    from gpucost.reports.job_seen import seen
    from gpucost.service.assemble import load_book, open_source
    from gpucost.service.job_source import see_job

    settings = context.settings
    try:
        source = open_source(settings, load_book(settings.pricing.book), now_ms)
    except (InputError, SourceError) as error:
        return seen(report.job_uid, (), (f"The source cannot say what single GPUs did: {error}",))
    return see_job(source, report)
