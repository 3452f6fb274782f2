"""gpucost compare: our figures beside those of other tools, and why they differ."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from gpucost.cli.context import Context, context_of, now_ms, refuse_later
from gpucost.cli.exits import complain, fields_as
from gpucost.cli.interrupts import as_ctrl_c
from gpucost.cli.output import Output, bars, held, progress, refuse_table_file, stdout, write
from gpucost.domain.errors import InputError, NotCovered

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpucost.domain.time import Month, Window
    from gpucost.ledger import Ledger
    from gpucost.reports.opencost.compare import By, OpenCostComparison
    from gpucost.telemetry.reader import ClusterReader

app = typer.Typer(
    no_args_is_help=True, help="Our figures beside those of other tools.", rich_markup_mode=None
)


@app.callback()
def group() -> None:
    """Our figures beside those of other tools."""


@app.command()
def opencost(
    ctx: typer.Context,
    month: Annotated[str, typer.Argument(metavar="MONTH", help="A month in UTC, such as 2026-10.")],
    prometheus: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Read the month and OpenCost's series from here; else the ledger and its Prometheus.",
        ),
    ] = None,
    by: Annotated[Literal["namespace", "team", "node"], typer.Option(help="What a row is.")] = "namespace",
    format_: Annotated[Literal["table", "json", "csv"], typer.Option("--format", "-f")] = "table",
    output: Output = None,
) -> None:
    """What OpenCost says a month of GPUs cost, worked out from its own series by its own formula; what
    gpucost says; and for each row what makes the difference, in amounts that add up to it."""
    from gpucost.domain.time import Month
    from gpucost.reports.document import to_json
    from gpucost.reports.files import to_csv
    from gpucost.reports.opencost.compare import By
    from gpucost.reports.opencost.table import comparison_table
    from gpucost.reports.opencost.terminal import print_comparison

    with fields_as({"month": "MONTH"}):
        wanted = Month.parse(month)
    refuse_table_file(format_ == "table", output)
    with fields_as({"--source": "--prometheus", "prometheus.url": "--prometheus"}):
        context = context_of(ctx)
        reader = _readers(context, prometheus)
        with _month(context, wanted, prometheus) as ledger:
            found = _compared(ledger, wanted, By(by), reader)
    if format_ == "table":
        print_comparison(found, stdout())
    else:
        write(to_json(found) if format_ == "json" else to_csv(comparison_table(found)), output)


@contextmanager
def _month(context: Context, month: Month, url: str | None) -> Iterator[Ledger]:
    """The ledger of the settings, or with an address one that is read now and thrown away."""
    from gpucost.service.month_now import read_month

    if url is None:
        with context.ledger() as ledger:
            yield ledger
        return
    refuse_later(month)
    settings = context.of_prometheus(url, waste=False)
    book = context.book(settings)
    with (
        as_ctrl_c(),
        bars() as watch,
        read_month(settings, book, context.teams, month, now_ms, watch=watch) as read,
    ):
        for failure in read.failures:
            complain(f"{failure.window} is not compared: {failure.kind}: {failure.reason}")
        if read.ledger.extent() is None:
            why = context.why_not(settings.prometheus.url, month)
            raise NotCovered(f"nothing of {month} could be read; {why} says why")
        yield read.ledger


def _compared(
    ledger: Ledger, month: Month, by: By, reader: Callable[[str, Window], ClusterReader]
) -> OpenCostComparison:
    from gpucost.domain.problems import ProblemCode
    from gpucost.domain.scope import EVERYTHING
    from gpucost.domain.time import DAY_MS
    from gpucost.reports.opencost.compare import compare
    from gpucost.reports.opencost.inputs import COMPARED_DIMS, OpenCostDay, lines_of
    from gpucost.service.reporting import NO_CURRENCY
    from gpucost.telemetry.existing.opencost_billed import read_billed

    frame = ledger.aggregate(EVERYTHING, month.window, COMPARED_DIMS, step_ms=DAY_MS)
    if frame.empty:
        raise InputError("MONTH", str(month), held(ledger, "a month of"))
    lines = lines_of(frame, ledger.rates(frozenset(frame["rate_id"]) - {""}))
    days = _days(ledger, month, {(line.cluster, line.day_ms) for line in lines})
    billed = []
    with progress("OpenCost", len(days)) as advance:
        for (cluster, day_ms), window in sorted(days.items()):
            billed.append(OpenCostDay(cluster, day_ms, *read_billed(reader(cluster, window), window)))
            advance(cluster, window)
    problems = ledger.problems(EVERYTHING, month.window)
    uncounted = {(each.cluster, each.subject) for each in problems if each.code is ProblemCode.COUNT_UNKNOWN}
    read_ms = {key: window.length_ms for key, window in days.items()}
    found = compare(month, ledger.currency or NO_CURRENCY, by, billed, lines, uncounted, read_ms)
    if not found.days:
        raise NotCovered(f"Prometheus has no series of OpenCost in {month}; see docs/opencost.md")
    return found


def _days(ledger: Ledger, month: Month, wanted: set[tuple[str, int]]) -> dict[tuple[str, int], Window]:
    """By cluster and start of the day: as much of each day as the ledger has. Folded days are whole."""
    from gpucost.domain.time import DAY_MS, Window

    found: dict[tuple[str, int], Window] = {}
    for info in ledger.windows(month.window):
        for day in info.window.split(DAY_MS):
            key = (info.cluster, day.start_ms // DAY_MS * DAY_MS)
            known = found.get(key, day)
            found[key] = Window(min(known.start_ms, day.start_ms), max(known.end_ms, day.end_ms))
    return {key: found.get(key, Window(key[1], key[1] + DAY_MS)) for key in wanted}


def _readers(context: Context, url: str | None) -> Callable[[str, Window], ClusterReader]:
    from gpucost.service import assemble
    from gpucost.telemetry.reader import ClusterReader

    settings = context.settings
    if url is not None:
        settings = assemble.parse_source(f"prometheus:{url}", settings)
    found = settings.prometheus
    client = assemble.build_client(found)
    options = assemble.source_options(found)
    return lambda cluster, window: ClusterReader(client, options, cluster, window)
