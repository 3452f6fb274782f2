"""gpucost compare: two spans of time, and why they cost other amounts; our figures beside those of others."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from gpucost.cli.terminal.context import (
    CommandContext,
    context_of,
    now_ms,
    refuse_later,
)
from gpucost.cli.terminal.default_group import DefaultCommandGroup
from gpucost.cli.terminal.exit_codes import as_ctrl_c, complain, fields_as
from gpucost.cli.terminal.output import (
    Output,
    bars,
    complain_of_prices,
    held,
    progress,
    refuse_table_file,
    stdout,
    write,
)
from gpucost.domain.errors import InputError, NotCovered

if TYPE_CHECKING:
    from gpucost.domain.scope import Scope
    from gpucost.domain.time import Month, Window
    from gpucost.ledger.ledger import Ledger
    from gpucost.reports.month.span_change import SpanChange
    from gpucost.reports.opencost.compare import CompareBy, OpenCostComparison
    from gpucost.reports.opencost.held_time import OpenCostDay
    from gpucost.service.reporting.report_service import ReportAnswer, ReportService
    from gpucost.telemetry.prometheus.cluster_reader import ClusterReader


class _SpansByDefault(DefaultCommandGroup):
    default = "spans"


app = typer.Typer(
    cls=_SpansByDefault,
    no_args_is_help=True,
    help="Two spans of time beside each other; our figures beside those of other tools.",
    rich_markup_mode=None,
)


@app.callback()
def group() -> None:
    """Two spans of time beside each other; our figures beside those of other tools."""


@app.command()
def spans(
    ctx: typer.Context,
    now: Annotated[
        str, typer.Argument(metavar="NOW", help="A month, a week such as 2026-W41, or START/END in RFC 3339.")
    ],
    before: Annotated[
        str | None,
        typer.Argument(metavar="[BEFORE]", help="What it is compared with; else the same time right before."),
    ] = None,
    by: Annotated[
        Literal["team", "project", "cluster", "model", "cluster_queue", "namespace", "job_kind"],
        typer.Option(help="What a row is."),
    ] = "team",
    cluster: Annotated[str | None, typer.Option(help="Of this cluster; adjustments are of none.")] = None,
    team: Annotated[str | None, typer.Option(help="Of this team, as the team itself sees it.")] = None,
    charged: Annotated[
        bool,
        typer.Option("--charged", help="Of two months, what teams are charged by the charge policy."),
    ] = False,
    format_: Annotated[Literal["table", "json"], typer.Option("--format", "-f")] = "table",
    output: Output = None,
) -> None:
    """Why one span of time cost another amount than one before it: the causes add up to the change. "spans"
    may be left out: gpucost compare 2026-10 2026-09."""
    from gpucost.domain.scope import EVERYTHING
    from gpucost.reports.base.document import to_json
    from gpucost.reports.render.terminal_change import print_change
    from gpucost.service.reporting.span_changes import compare_spans, parse_span, span_before

    refuse_table_file(format_ == "table", output)
    context = context_of(ctx)
    names = {"window": "NOW", "before": "BEFORE", "cluster": "--cluster", "team": "--team"}
    with fields_as(names | {"charged": "--charged", "by": "--by"}):
        span = parse_span(now)
        other = span_before(span) if before is None else parse_span(before, "before")
        remote = context.remote()
        if remote is not None:
            asked_for = {"charged": "true"} if charged else {}
            found = remote.changes(window=now, before=before, by=by, cluster=cluster, team=team, **asked_for)
        else:
            with context.reporting() as reporting:
                scope = reporting.of_team(reporting.of_cluster(EVERYTHING, cluster), team)
                if charged:
                    made = _charges(context, reporting, scope, span, other, by)
                else:
                    made = compare_spans(reporting, scope, span, other, by)
                if made is None:
                    has_now = reporting.stand(scope, span).windows
                    asked = ("BEFORE", before or str(other)) if has_now else ("NOW", now)
                    raise InputError(*asked, held(reporting.ledger, "a month of"))
                found = made.report
    if format_ == "json":
        write(to_json(found), output)
    else:
        print_change(found, stdout())


def _charges(
    context: CommandContext, reporting: ReportService, scope: Scope, now: Window, before: Window, by: str
) -> ReportAnswer[SpanChange] | None:
    from gpucost.service.reporting.charged_changes import compare_charges
    from gpucost.service.wiring.inputs import load_policy

    book = load_policy(context.settings.charges.policy, context.teams)
    return compare_charges(reporting, scope, now, before, book, by)


@app.command()
def opencost(
    ctx: typer.Context,
    month: Annotated[
        str | None,
        typer.Argument(metavar="[MONTH]", help="A month in UTC, such as 2026-10; or give --from and --to."),
    ] = None,
    prometheus: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Read both from here; else our figures are the ledger's, OpenCost's of its Prometheus.",
        ),
    ] = None,
    since: Annotated[
        str | None, typer.Option("--from", metavar="TIME", help="First day or instant, instead of MONTH.")
    ] = None,
    until: Annotated[
        str | None, typer.Option("--to", metavar="TIME", help="First day or instant after it.")
    ] = None,
    by: Annotated[
        Literal["namespace", "team", "node", "pod"], typer.Option(help="What a row is.")
    ] = "namespace",
    resolution: Annotated[
        str, typer.Option(metavar="TIME", help="How often OpenCost looks at what runs: its own setting.")
    ] = "5m",
    format_: Annotated[Literal["table", "json", "csv"], typer.Option("--format", "-f")] = "table",
    output: Output = None,
) -> None:
    """What OpenCost says that GPUs cost in a month or any other stretch of time, worked out from its own
    series by its own formula; what gpucost says; and for each row what makes the difference, in amounts that
    add up to it."""
    from gpucost.reports.base.document import to_json
    from gpucost.reports.opencost.compare import CompareBy
    from gpucost.reports.opencost.output import comparison_table, print_comparison
    from gpucost.reports.render.files import to_csv

    period = _period(month, since, until)
    looks_ms = _resolution(resolution)
    refuse_table_file(format_ == "table", output)
    with fields_as({"--source": "--prometheus", "prometheus.url": "--prometheus"}):
        context = context_of(ctx)
        asked = _ComparedMonth(
            period, CompareBy(by), looks_ms, _readers(context, prometheus), prometheus is not None
        )
        with _ledger(context, period, prometheus) as ledger:
            complain_of_prices(ledger, asked.window)
            default = context.settings.pricing.opencost_default
            found = asked.compared(ledger, None if default is None else float(default))
    if format_ == "table":
        print_comparison(found, stdout())
    else:
        write(to_json(found) if format_ == "json" else to_csv(comparison_table(found)), output)


def _period(month: str | None, since: str | None, until: str | None) -> Month | Window:
    """A month, or the time between two instants. Raises InputError."""
    from gpucost.domain.time import Month, Window, parse_day_or_instant

    if month is not None:
        for option, given in (("--from", since), ("--to", until)):
            if given is not None:
                raise InputError(option, given, "either a MONTH, or --from and --to")
        with fields_as({"month": "MONTH"}):
            return Month.parse(month)
    if since is None or until is None:
        missing = "--from" if since is None and until is not None else "--to" if since else "MONTH"
        raise InputError(missing, "", "a month such as 2026-10, or both --from and --to")
    start, end = parse_day_or_instant(since, "--from"), parse_day_or_instant(until, "--to")
    if start >= end:
        raise InputError("--to", until, f"a time after --from, which is {since}")
    return Window(start, end)


def _resolution(text: str) -> int:
    """OpenCost queries in whole minutes (``%dm`` of metricsquerier.go). Raises InputError."""
    from gpucost.domain.time import HOUR_MS, MINUTE_MS, parse_duration

    found = parse_duration(text, "--resolution")
    if found % MINUTE_MS or HOUR_MS % found:
        raise InputError("--resolution", text, "whole minutes that divide an hour: 1m, 2m, 5m, 10m, 15m, 1h")
    return found


@contextmanager
def _ledger(context: CommandContext, period: Month | Window, url: str | None) -> Iterator[Ledger]:
    """The ledger of the settings, or with an address a temporary one that is filled now."""
    from gpucost.domain.time import Month
    from gpucost.service.ingest.status import joined_failures
    from gpucost.service.wiring.adhoc_month import read_month

    if url is None:
        with context.ledger() as ledger:
            yield ledger
        return
    month = period if isinstance(period, Month) else Month.of(period.start_ms)
    only = None if isinstance(period, Month) else period
    refuse_later(month)
    settings = context.of_prometheus(url, waste=False)
    book = context.book(settings)
    with (
        as_ctrl_c(),
        bars() as watch,
        read_month(settings, book, context.teams, month, now_ms, only=only, watch=watch) as read,
    ):
        for failure in joined_failures(read.failures):
            complain(f"{failure.window} is not compared: {failure.reason}")
        if read.ledger.extent() is None:
            why = context.why_not(settings.prometheus.url, month)
            raise NotCovered(f"nothing of {period} could be read; {why} says why")
        yield read.ledger


@dataclass(frozen=True)
class _ComparedMonth:
    """What is compared, and how OpenCost's series are read; ``is_read_now``: the ledger was filled for this
    comparison."""

    period: Month | Window
    by: CompareBy
    resolution_ms: int
    reader: Callable[[str, Window], ClusterReader]
    is_read_now: bool

    @property
    def window(self) -> Window:
        from gpucost.domain.time import Month

        return self.period.window if isinstance(self.period, Month) else self.period

    def compared(self, ledger: Ledger, default_price: float | None) -> OpenCostComparison:
        from gpucost.domain.errors import DataProblemCode
        from gpucost.domain.scope import EVERYTHING
        from gpucost.domain.time import DAY_MS
        from gpucost.reports.opencost.compare import compare
        from gpucost.reports.opencost.held_time import COMPARED_DIMS, lines_of
        from gpucost.service.reporting.report_service import NO_CURRENCY

        frame = ledger.aggregate(EVERYTHING, self.window, COMPARED_DIMS, step_ms=DAY_MS)
        if frame.empty:
            field = "MONTH" if self.period != self.window else "--from"
            what = "a month of" if field == "MONTH" else "a part of"
            raise InputError(field, str(self.period), held(ledger, what))
        lines = lines_of(frame, ledger.rates(frozenset(frame["rate_id"]) - {""}))
        days = self._days(ledger, {(line.cluster, line.day_ms) for line in lines})
        billed = []
        with progress("OpenCost", len(days)) as advance:
            for (cluster, day_ms), window in sorted(days.items()):
                billed.append(self._billed(cluster, day_ms, window, default_price))
                advance(cluster, window)
        problems = ledger.problems(EVERYTHING, self.window)
        uncounted = {
            (each.cluster, each.subject) for each in problems if each.code is DataProblemCode.COUNT_UNKNOWN
        }
        found = compare(
            self.period,
            ledger.currency or NO_CURRENCY,
            self.by,
            billed,
            lines,
            uncounted,
            {key: window.length_ms for key, window in days.items()},
            self.resolution_ms,
        )
        if not found.days:
            raise NotCovered(f"Prometheus has no series of OpenCost in {self.period}; see docs/opencost.md")
        return found

    def _billed(self, cluster: str, day_ms: int, window: Window, default: float | None) -> OpenCostDay:
        from gpucost.reports.opencost.held_time import OpenCostDay
        from gpucost.telemetry.upstream.opencost_series import read_billed, read_release

        reader = self.reader(cluster, window)
        release = read_release(reader, window, default)
        nodes, pods = read_billed(reader, window, release, self.resolution_ms)
        return OpenCostDay(cluster, day_ms, nodes, pods, release)

    def _days(self, ledger: Ledger, wanted: set[tuple[str, int]]) -> dict[tuple[str, int], Window]:
        """By cluster and start of the day: the part of each day that is in the ledger. Rolled-up days are
        whole."""
        from gpucost.domain.time import DAY_MS, Window

        found: dict[tuple[str, int], Window] = {}
        for info in ledger.windows(self.window):
            for day in info.window.split(DAY_MS):
                key = (info.cluster, day.start_ms // DAY_MS * DAY_MS)
                known = found.get(key, day)
                # Before the first series there is no data; OpenCost is queried all the same.
                begun = max(key[1], self.window.start_ms) if self.is_read_now else day.start_ms
                found[key] = Window(min(known.start_ms, begun), max(known.end_ms, day.end_ms))
        whole = {key: Window(key[1], key[1] + DAY_MS).intersect(self.window) for key in wanted}
        return {key: found.get(key, day) for key, day in whole.items() if day is not None}


def _readers(context: CommandContext, url: str | None) -> Callable[[str, Window], ClusterReader]:
    from gpucost.service.wiring.inputs import parse_source
    from gpucost.service.wiring.prometheus_connection import build_client, source_options
    from gpucost.telemetry.prometheus.cluster_reader import ClusterReader

    settings = context.settings
    if url is not None:
        settings = parse_source(f"prometheus:{url}", settings)
    found = settings.prometheus
    client = build_client(found)
    options = source_options(found)
    return lambda cluster, window: ClusterReader(client, options, cluster, window)
