"""gpucost ingest: read what is missing of a stretch of time into the ledger."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from gpucost.cli.context import context_of, now_ms
from gpucost.cli.exits import Exit, complain
from gpucost.cli.output import progress

if TYPE_CHECKING:
    from gpucost.domain.time import Window
    from gpucost.service.pipeline import Outcome, Pipeline


def ingest(
    ctx: typer.Context,
    source: Annotated[
        str | None,
        typer.Option(metavar="KIND:WHERE", help="recorded:DIR or prometheus:URL; else the settings say."),
    ] = None,
    since: Annotated[
        str | None,
        typer.Option("--from", metavar="TIME", help="First day or instant; else what the source has."),
    ] = None,
    until: Annotated[
        str | None,
        typer.Option("--to", metavar="TIME", help="First day or instant after; else what the source has."),
    ] = None,
    cluster: Annotated[str | None, typer.Option(help="Only this cluster; else all of the source.")] = None,
    again: Annotated[
        bool,
        typer.Option("--again", help="Read settled windows again too, as after a change of prices or teams."),
    ] = False,
) -> None:
    """Read closed windows from a source, attribute them, and write them to the ledger.

    Only what is missing is read; the same command may be killed and run again. Windows that the source
    cannot answer for are listed and stay open (exit code 3).
    """
    from gpucost.domain.errors import InputError
    from gpucost.service import assemble

    context = context_of(ctx)
    settings = context.settings if source is None else assemble.parse_source(source, context.settings)
    book = context.book(settings)
    rules = assemble.build_rules(settings.attribution, book, context.teams)
    with context.ledger() as ledger:
        found = assemble.open_source(settings, book, now_ms)
        pipeline = assemble.build_pipeline(settings.ingest, found, ledger, rules, now_ms)
        clusters = found.clusters()
        if cluster is not None and cluster not in clusters:
            raise InputError(
                "--cluster", cluster, ", ".join(clusters) or "nothing: the source knows no cluster"
            )
        failed = found_any = False
        for name in clusters if cluster is None else (cluster,):
            covered = found.covered(name)
            span = None if covered is None else _span(covered, since, until)
            if span is None:
                complain(f"{name}: the source holds nothing of that time")
            found_any |= span is not None
            failed |= span is not None and not _one(pipeline, name, span, again)
    if not clusters:
        complain("the source knows no cluster")
    if failed or not found_any:
        raise typer.Exit(Exit.SOURCE)


def _span(covered: Window, since: str | None, until: str | None) -> Window | None:
    """What was asked for and not said is what the source covers."""
    from gpucost.domain.time import Window, parse_day_or_instant

    start = covered.start_ms if since is None else parse_day_or_instant(since, "--from")
    end = covered.end_ms if until is None else parse_day_or_instant(until, "--to")
    return Window(start, end) if start < end or (since and until) else None


def _one(pipeline: Pipeline, cluster: str, span: Window, again: bool) -> bool:
    """Whether every window could be read."""
    windows = pipeline.every(cluster, span) if again else pipeline.pending(cluster, span)
    with progress(f"ingest {cluster}", len(windows)) as advance:
        outcome = pipeline.ingest(cluster, windows, on_window=advance)
    _tell(cluster, span, len(windows), outcome)
    return not outcome.failures


def _tell(cluster: str, span: Window, wanted: int, outcome: Outcome) -> None:
    typer.echo(f"{cluster} {span}: {outcome.ingested} of {wanted} windows read, {outcome.changed} changed")
    for failure in outcome.failures:
        complain(f"{failure.window} stays open: {failure.kind}: {failure.reason}")
