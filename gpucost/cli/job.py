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
    from gpucost.service.reporting import Answer


def job(
    ctx: typer.Context,
    uid: Annotated[str, typer.Argument(metavar="UID", help="uid of the job's Kubernetes object.")],
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
    format_: Annotated[Literal["table", "json", "csv", "parquet"], typer.Option("--format", "-f")] = "table",
    output: Output = None,
) -> None:
    """One job: what it cost, how well it used its GPUs, what it wasted, and what to change.

    Costs, buckets and findings come from the ledger. What single GPUs did and what the job waited for is in
    the source, for as long as that holds it; of a long job the last seven days are read. The detectors look
    at the last three of them again, and say what they find, even where no finding was ever written. Where
    there is none of it, the report says why.
    """
    from gpucost.reports.terminal_job import print_job
    from gpucost.service.rendering import Format, render_job

    refuse_table_file(format_ == "table", output)
    context = context_of(ctx)
    with fields_as({"progress": "--progress", "cluster": "--cluster", "uid": "UID"}):
        answer = _of_ledger(context, uid, progress, cluster)
    if context.remote() is not None:
        if gpus:
            allowed = "no --gpus: a server does not ask its source; --config FILE goes to ledger and source"
            raise InputError("--gpus", gpus, allowed)
    elif gpus or (gpus is None and context.settings.source.kind == "recorded"):
        answer = replace(answer, report=_asked(context, answer.report))
    if format_ == "table":
        print_job(answer.report, stdout(whole=True))
    else:
        write(render_job(answer, Format(format_)), output)


def _of_ledger(context: Context, uid: str, progress: str | None, cluster: str | None) -> Answer[JobReport]:
    """What the ledger knows of the job: ours, or a server's."""
    from gpucost.domain.scope import EVERYTHING

    remote = context.remote()
    if remote is not None:
        return remote.job(uid, progress=progress, cluster=cluster)
    with context.reporting() as reporting:
        answer = reporting.job(reporting.of_cluster(EVERYTHING, cluster), uid, progress)
    if answer is None:
        raise InputError("UID", uid, "the uid of a job with usage in the ledger")
    return answer


def _asked(context: Context, report: JobReport) -> JobReport:
    """The report with what the source has of the job, and what the detectors say of it."""
    from gpucost.reports.job_seen import seen
    from gpucost.service.job_look import job_looking
    from gpucost.service.job_source import see_job
    from gpucost.service.wiring.inputs import load_book
    from gpucost.service.wiring.pipeline import rules_of
    from gpucost.service.wiring.source import open_source

    settings = context.settings
    book = load_book(settings.pricing.book)
    try:
        source = open_source(settings, book, now_ms)
    except (InputError, SourceError) as error:
        note = f"The source cannot say what single GPUs did: {error}"
        return replace(report, seen=seen(report.job_uid, (), (note,)))
    rules = rules_of(settings, book, context.teams)
    looking = job_looking(settings.detectors, source, rules)
    return replace(report, seen=see_job(source, report), look=looking.look(report))
