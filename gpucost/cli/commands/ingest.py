"""gpucost ingest: read the missing windows of a stretch of time into the ledger."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from gpucost.cli.terminal.context import CommandContext, context_of, now_ms
from gpucost.cli.terminal.exit_codes import ExitCode, complain
from gpucost.cli.terminal.output import complain_of_prices, complain_of_unpriced, progress

if TYPE_CHECKING:
    from gpucost.domain.time import Window
    from gpucost.ledger.ledger import Ledger
    from gpucost.pricing.price_book import PriceBook
    from gpucost.service.ingest.batch_reader import WorkerPool
    from gpucost.service.ingest.pipeline import Pipeline, PipelineOutcome
    from gpucost.service.ingest.worker_pools import LocalProcesses
    from gpucost.service.settings.detectors import DetectorsSettings
    from gpucost.service.settings.model import Settings

_SHOWN_RATES = 3
_Edges: TypeAlias = tuple[int | None, int | None]


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
    on: Annotated[
        str | None,
        typer.Option(
            "--on", metavar="ADDRESS", help="A Dask scheduler, tcp://HOST:8786, whose workers read the days."
        ),
    ] = None,
    workers: Annotated[
        int, typer.Option(min=1, max=64, help="Processes of this machine that read days at the same time.")
    ] = 1,
) -> None:
    """Read closed windows from a source, attribute them, and write them to the ledger; then say where the
    time went (unless detectors.enabled is false).

    Only what is missing is read; the same command may be killed and run again. Windows that the source
    cannot answer for are listed and stay open (exit code 3). A long time is read by several processes with
    --workers, or on other machines with --on (docs/operations.md); this process writes.
    """
    from gpucost.domain.errors import InputError
    from gpucost.service.ingest.worker_pools import local_processes

    if on is not None and workers > 1:
        raise InputError("--workers", workers, "no --on beside it: a scheduler has workers of its own")
    edges = _edges(since, until)
    # What this process loads next, another one loads meanwhile.
    with local_processes(workers, "gpucost.service.wiring.ingest_workers") as processes:
        _ingest(context_of(ctx), source, edges, cluster, again=again, on=on, processes=processes)


def _ingest(
    context: CommandContext,
    source: str | None,
    edges: _Edges,
    cluster: str | None,
    *,
    again: bool,
    on: str | None,
    processes: LocalProcesses | None,
) -> None:
    from gpucost.domain.errors import InputError
    from gpucost.service.wiring.ingest_workers import WorkerOrder, open_workers
    from gpucost.service.wiring.inputs import parse_source
    from gpucost.service.wiring.pipeline import build_pipeline, rules_of
    from gpucost.service.wiring.source import open_source

    settings = context.settings if source is None else parse_source(source, context.settings)
    book = context.book(settings)
    rules = rules_of(settings, book, context.teams)
    if again:
        typer.echo(f"prices: {context.book_name(settings)}; teams: {context.teams_name(settings)}")
    order = WorkerOrder.of(context.file, source, settings, book, context.teams)
    with open_workers(order, on=on, processes=processes) as pool, context.ledger(create=True) as ledger:
        found = open_source(settings, book, now_ms)
        pipeline = build_pipeline(settings.ingest, found, ledger, rules, now_ms)
        clusters = found.clusters()
        if cluster is not None and cluster not in clusters:
            raise InputError(
                "--cluster", cluster, ", ".join(clusters) or "nothing: the source knows no cluster"
            )
        meanwhile = _meanwhile(context, settings)
        failed = found_any = False
        read: dict[str, Window] = {}
        for name in clusters if cluster is None else (cluster,):
            covered = found.covered(name)
            span = None if covered is None else _span(covered, edges)
            if span is None:
                held = "nothing" if covered is None else f"{covered}, nothing of the time asked for"
                complain(f"{name}: the source holds {held}")
            found_any |= span is not None
            failed |= span is not None and not _one(
                pipeline, name, span, book if again else None, meanwhile, read, pool
            )
            if span is not None and settings.detectors.enabled:
                failed |= not _assess(settings.detectors, pipeline, name, span)
        # At the very end, so that it is seen: such time is in no cost.
        for name, span in read.items():
            complain_of_unpriced(ledger, span, name)
    if read:
        _keep_forecasts(context)
    if not clusters:
        complain("the source knows no cluster")
    if failed or not found_any:
        raise typer.Exit(ExitCode.SOURCE)


def _keep_forecasts(context: CommandContext) -> None:
    """What is said of this month's end today can be scored once it is over, without a service too."""
    from gpucost.service.reporting.month_forecasts import keep_forecasts

    with context.reporting() as reporting:
        keep_forecasts(reporting, now_ms())


def _edges(since: str | None, until: str | None) -> _Edges:
    """When the time that was asked for begins and ends, as far as it was said.

    Read before the source is asked, which may be away. Raises InputError.
    """
    from gpucost.domain.time import Window, parse_day_or_instant

    start = None if since is None else parse_day_or_instant(since, "--from")
    end = None if until is None else parse_day_or_instant(until, "--to")
    if start is not None and end is not None:
        Window(start, end)  # refuses an end that comes first
    return start, end


def _span(covered: Window, edges: _Edges) -> Window | None:
    """The time that was asked for; edges that were not given are those of the source."""
    from gpucost.domain.time import Window

    start = covered.start_ms if edges[0] is None else edges[0]
    end = covered.end_ms if edges[1] is None else edges[1]
    return Window(start, end) if start < end else None


def _meanwhile(context: CommandContext, settings: Settings) -> str:
    """The command that shows the running window without storing it; empty for a recording."""
    from gpucost.domain.time import Month

    if settings.source.path is not None:
        return ""
    month = str(Month.of(now_ms()))
    return shlex.join((*context.program, "report", month, "--prometheus", settings.prometheus.url))


def _one(
    pipeline: Pipeline,
    cluster: str,
    span: Window,
    anew: PriceBook | None,
    meanwhile: str,
    read: dict[str, Window],
    pool: WorkerPool | None,
) -> bool:
    """Whether every window could be read; ``anew`` is the book by which settled windows are rated again,
    ``meanwhile`` the command for the running window, and ``read`` gets the time that was read, where there
    was any. ``pool`` reads in the place of this process.
    """
    from gpucost.domain.time import Window
    from gpucost.reports.base.display import visible

    windows = pipeline.pending(cluster, span) if anew is None else pipeline.every(cluster, span)
    if anew is not None:
        _warn_of_other_rates(pipeline.ledger, windows, anew)
    with progress(f"ingest {visible(cluster)}", len(windows)) as advance:
        outcome = pipeline.ingest(cluster, windows, on_window=advance, workers=pool)
    _tell(cluster, span, len(windows), outcome)
    if outcome.ingested:
        complain_of_prices(pipeline.ledger, span, cluster)
        held = pipeline.ledger.windows(Window(windows[0].start_ms, windows[-1].end_ms), cluster)
        read[cluster] = Window(held[0].window.start_ms, held[-1].window.end_ms)
    if not windows:
        typer.echo(f"{visible(cluster)}: {_why_none(pipeline, cluster, span, meanwhile)}")
    return not outcome.failures


def _assess(settings: DetectorsSettings, pipeline: Pipeline, cluster: str, span: Window) -> bool:
    """Whether the detectors could assess every window that has no final assessment."""
    from gpucost.reports.base.display import counted, visible
    from gpucost.service.ingest.status import joined_failures
    from gpucost.service.wiring.detection import build_assessing

    assessing = build_assessing(settings, pipeline)
    windows = assessing.pending(cluster, span)
    with progress(f"where it went {visible(cluster)}", len(windows)) as advance:
        outcome = assessing.assess(cluster, windows, on_window=advance)
    if windows:
        looked = counted(outcome.final + outcome.provisional, "window")
        later = f", {outcome.provisional} of them until more is known" if outcome.provisional else ""
        typer.echo(f"{visible(cluster)}: the detectors looked at {looked}{later}")
    for failure in joined_failures(outcome.left_out):
        complain(f"{failure.window} is not looked at: {failure.reason}")
    return not outcome.left_out


def _tell(cluster: str, span: Window, wanted: int, outcome: PipelineOutcome) -> None:
    from gpucost.reports.base.display import visible
    from gpucost.service.ingest.status import joined_failures

    typer.echo(
        f"{visible(cluster)} {span}: {outcome.ingested} of {wanted} windows read, {outcome.changed} changed"
    )
    for failure in joined_failures(outcome.failures):
        complain(f"{failure.window} stays open: {failure.reason}")


def _why_none(pipeline: Pipeline, cluster: str, span: Window, meanwhile: str) -> str:
    """Why there was nothing to read in ``span``."""
    from gpucost.domain.time import iso
    from gpucost.ledger.db.records import LedgerState
    from gpucost.reports.base.display import counted, duration

    held = pipeline.ledger.windows(span, cluster)
    if not held or len(held) < len(pipeline.every(cluster, span)):
        closed = " outside closed months" if held else ""
        length = duration(pipeline.window_ms)
        until = f"; until one has: {meanwhile}" if meanwhile and not held else ""
        return f"no whole window of {length} has ended in that time{closed} by {iso(pipeline.now())}{until}"
    fresh = sum(info.state is LedgerState.OPEN for info in held)
    later = f"; {counted(fresh, 'window')} will be read once more when late data is in" if fresh else ""
    return f"the ledger has all of it already{later}; --again reads it anew"


def _warn_of_other_rates(ledger: Ledger, windows: Sequence[Window], book: PriceBook) -> None:
    """Windows that were rated by another book change their cost, which may not be intended."""
    from gpucost.domain.scope import EVERYTHING
    from gpucost.domain.time import Window
    from gpucost.reports.base.display import counted

    if not windows:
        return
    held = ledger.windows(Window(windows[0].start_ms, windows[-1].end_ms))
    if not held:
        return
    span = Window(min(info.window.start_ms for info in held), max(info.window.end_ms for info in held))
    rated = set(ledger.aggregate(EVERYTHING, span, ("rate_id",))["rate_id"]) - {""}
    others = sorted(rated - book.rate_ids)
    if others:
        more = f" and {len(others) - _SHOWN_RATES} more" if len(others) > _SHOWN_RATES else ""
        complain(
            f"the ledger has {counted(len(others), 'rate')} in these windows that this price book does not "
            f"give ({', '.join(others[:_SHOWN_RATES])}{more}): they are rated anew; is pricing.book right?"
        )
