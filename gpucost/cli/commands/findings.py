"""gpucost findings: what is wrong now, what it costs, and the answers of people to it.

Also ``rehearse`` and ``explain``: what the detectors would find, and what they look for; and ``gpucost
savings``: what findings are worth.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from gpucost.cli.commands.month import Author, user
from gpucost.cli.terminal.context import CommandContext, context_of, now_ms
from gpucost.cli.terminal.exit_codes import ExitCode, complain, fields_as
from gpucost.cli.terminal.output import (
    Output,
    held,
    refuse_short_file,
    refuse_table_file,
    stdout,
    write,
)
from gpucost.detectors.engine.lifecycle import LIVE, FindingLifeState
from gpucost.detectors.findings import FindingSeverity, WastePattern
from gpucost.domain.buckets import Waste
from gpucost.domain.errors import ErrorRemark, InputError
from gpucost.domain.time import DAY_MS, iso

if TYPE_CHECKING:
    from gpucost.cli.remote.api_client import RemoteApi
    from gpucost.detectors.rule_settings import RuleSettings
    from gpucost.ledger.db.records import FindingRecord
    from gpucost.ledger.ledger import Ledger
    from gpucost.reports.waste.backtest import Rehearsal
    from gpucost.reports.waste.findings import FindingReport, FindingsReport


def rehearse(
    ctx: typer.Context,
    days: Annotated[int, typer.Option(help="How many whole days, up to the last one.", min=1, max=92)] = 7,
    cluster: Annotated[str | None, typer.Option(help="Only this cluster; else all of the source.")] = None,
    detector: Annotated[
        list[WastePattern] | None,
        typer.Option(
            "--detector",
            metavar="PATTERN",
            help="Only this one, whether it is enabled or not. Repeat it.",
        ),
    ] = None,
    format_: Annotated[Literal["table", "json"], typer.Option("--format", "-f")] = "table",
    output: Output = None,
) -> None:
    """What would have been found in the last days with the settings as they are. Nothing is written.

    Each whole day is looked at as on its evening; a finding of several days is one line, with its waste added
    up. Rules that need the state of now (CPU-only pods, topology) find nothing in the past.
    """
    from gpucost.reports.base.document import to_json
    from gpucost.reports.render.terminal_backtest import print_rehearsal

    refuse_table_file(format_ == "table", output)
    context = context_of(ctx)
    report = _rehearsed(context, days, cluster, detector or None)
    if not report.clusters:
        raise typer.Exit(ExitCode.SOURCE)
    if format_ == "table":
        print_rehearsal(report, stdout(whole=True))
    else:
        write(to_json(report), output)


def savings(
    ctx: typer.Context,
    month: Annotated[str, typer.Argument(metavar="MONTH", help="A month in UTC, such as 2026-10.")],
    cluster: Annotated[str | None, typer.Option(help="Of findings in this cluster.")] = None,
    team: Annotated[
        str | None, typer.Option(help="Of what this team can act on, as the team itself sees it.")
    ] = None,
    format_: Annotated[Literal["table", "json"], typer.Option("--format", "-f")] = "table",
    output: Output = None,
) -> None:
    """What open findings could give back in a month, each GPU-hour counted once; and what was saved in MONTH
    by those that somebody acted upon (acknowledged), by team and in total, even where that is 0.

    Saved is measured on the job's runs, before and since, with what other causes changed taken out: prices,
    how often it runs, the length of the spans, missing data.
    """
    from gpucost.domain.scope import EVERYTHING
    from gpucost.domain.time import Month
    from gpucost.reports.base.document import to_json
    from gpucost.reports.render.terminal_findings import print_savings
    from gpucost.service.reporting.finding_savings import savings as savings_of

    refuse_table_file(format_ == "table", output)
    context = context_of(ctx)
    remote = context.remote()
    with fields_as({"month": "MONTH", "cluster": "--cluster", "team": "--team"}):
        wanted = Month.parse(month)
        if remote is not None:
            report = remote.savings(month=month, cluster=cluster, team=team)
        else:
            with context.reporting() as reporting:
                scope = reporting.of_team(reporting.of_cluster(EVERYTHING, cluster), team)
                answer = savings_of(reporting, scope, wanted)
                if answer is None:
                    raise InputError("MONTH", month, held(reporting.ledger, "a month of"))
                report = answer.report
    if format_ == "table":
        print_savings(report, stdout(whole=True))
    else:
        write(to_json(report), output)


def explain(
    ctx: typer.Context,
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME", help=f"One of {', '.join(WastePattern)}; or a bucket: {', '.join(Waste)}."
        ),
    ],
) -> None:
    """What an anti-pattern is, where its page is, and its settings: as they are, and their defaults.

    The name of a bucket of the waste ledger leads to the anti-patterns that claim its time.
    """
    from gpucost.reports.render.terminal_backtest import print_bucket, print_explained
    from gpucost.reports.waste.backtest import explained
    from gpucost.reports.waste.recommendations import patterns_of

    buckets, patterns = list(map(str, Waste)), list(map(str, WastePattern))
    if name not in (*buckets, *patterns):
        raise InputError("NAME", name, ", ".join(dict.fromkeys((*patterns, *buckets))))
    found = [WastePattern(name)] if name in patterns else []
    if name in buckets:
        found = list(dict.fromkeys((*patterns_of(Waste(name)), *found)))
        print_bucket(Waste(name), found, stdout())
    for pattern in found:
        print_explained(explained(pattern, context_of(ctx).settings.detectors.of(pattern)), stdout())


def _rehearsed(
    context: CommandContext, days: int, cluster: str | None, patterns: Collection[WastePattern] | None
) -> Rehearsal:
    """The backtest of every cluster of the source that has one of the days."""
    from gpucost.reports.base.values import CostAmount
    from gpucost.reports.waste.backtest import (
        BacktestAbsence,
        BacktestCluster,
        DayPresence,
        rehearsal,
    )
    from gpucost.service.wiring.detection import build_rehearsing
    from gpucost.service.wiring.pipeline import rules_of
    from gpucost.service.wiring.source import open_source

    settings = context.settings
    book = context.book(settings)
    source = open_source(settings, book, now_ms)
    clusters = source.clusters()
    if cluster is not None and cluster not in clusters:
        raise InputError("--cluster", cluster, ", ".join(clusters) or "nothing: the source knows no cluster")
    rules = rules_of(settings, book, context.teams)
    rehearsing = build_rehearsing(settings.detectors, source, rules)
    if patterns is not None:
        rehearsing = replace(rehearsing, detectors=_only(rehearsing.detectors, patterns))
    looked, found, unsaid = list[BacktestCluster](), list[DayPresence](), list[BacktestAbsence]()
    for name in clusters if cluster is None else (cluster,):
        covered = source.covered(name)
        end_ms = 0 if covered is None else min(now_ms(), covered.end_ms) // DAY_MS * DAY_MS
        whole = 0 if covered is None else min(days, -(-(end_ms - covered.start_ms) // DAY_MS))
        if whole < 1:
            complain(f"{name}: the source holds {covered or 'nothing'}: not the end of a single day")
            continue
        looked.append(BacktestCluster(name, iso(end_ms), whole))
        told = rehearsing.rehearse(name, days, end_ms)
        for failure in told.failures:
            complain(f"{name}: the detector {failure.pattern} failed: {type(failure.error).__name__}")
        found += [
            DayPresence(each.finding, each.days, each.of, CostAmount(each.board_ms, each.nano))
            for each in told.findings
        ]
        unsaid += [
            BacktestAbsence(each.pattern.value, each.because, each.lacks_data, each.times)
            for each in told.withheld
        ]
    return rehearsal(book.currency, days, looked, found, unsaid)


def _only(rules: RuleSettings, patterns: Collection[WastePattern]) -> RuleSettings:
    """Named detectors run, whether the settings enable them or not."""
    from gpucost.detectors.rule_settings import RuleSettings, overridden

    named = {pattern: rules.of(pattern) for pattern in patterns}
    running = {
        pattern: replace(scoped, default=overridden(scoped.default, {"enabled": True}))
        for pattern, scoped in named.items()
    }
    return RuleSettings(running).only(patterns)


_PAGE = 500
_OPTIONS = {"finding": "ID", "note": "--note", "reason": "--reason", "author": "--author"}
_WITHHELD = (
    "What the detectors could not say, and why, is not stored: while gpucost serve runs, GET /v1/findings "
    "has it under withheld."
)
_START = (
    "No detector has ever raised one: gpucost serve looks by itself while detectors.enabled is true, as it "
    "is by default; gpucost findings rehearse --days 7 shows what it would find."
)

app = typer.Typer(
    invoke_without_command=True,
    no_args_is_help=False,
    rich_markup_mode=None,
    help=(
        "What is wrong now and what it costs, the dearest first; and what people say to it.\n\n"
        "Without a command: the list. What a finding wasted is that of its last day; what it wastes now is "
        "per hour."
    ),
)

FindingId = Annotated[int, typer.Argument(metavar="ID", help="Number of the finding.", min=1)]


@app.callback()
def findings(
    ctx: typer.Context,
    state: Annotated[
        list[FindingLifeState] | None,
        typer.Option(
            metavar="STATE", help=f"{', '.join(FindingLifeState)}; else all but the last. Repeat it."
        ),
    ] = None,
    pattern: Annotated[
        list[WastePattern] | None, typer.Option(metavar="PATTERN", help="Of this anti-pattern. Repeat it.")
    ] = None,
    team: Annotated[
        list[str] | None, typer.Option(metavar="TEAM", help="That this team can act on. Repeat it.")
    ] = None,
    severity: Annotated[
        list[FindingSeverity] | None,
        typer.Option(metavar="SEVERITY", help=f"{', '.join(FindingSeverity)}. Repeat it."),
    ] = None,
    cluster: Annotated[str | None, typer.Option(help="In this cluster.")] = None,
    format_: Annotated[
        Literal["table", "json", "csv"],
        typer.Option("--format", "-f", help="table for people, the others for programs."),
    ] = "table",
    short: Annotated[
        bool, typer.Option("--short", help="On one screen of 80 by 24; of a table only.")
    ] = False,
    output: Output = None,
) -> None:
    """The list, unless a command follows."""
    if ctx.invoked_subcommand is not None:
        return
    from gpucost.reports.render.terminal_findings import print_findings
    from gpucost.reports.render.terminal_short import print_short_findings
    from gpucost.service.reporting.rendering import ReportFormat, render_findings

    refuse_short_file(short, format_)
    refuse_table_file(format_ == "table", output)
    remote = context_of(ctx).remote()
    with fields_as({"cluster": "--cluster", "team": "--team"}):
        asked = _FindingFilter(state or (), pattern or (), team or (), severity or (), cluster)
        report, why = _found(context_of(ctx), asked) if remote is None else _told(remote, asked)
    if format_ != "table":
        write(render_findings(report, ReportFormat(format_)), output)
    elif report.findings and short:
        print_short_findings(report, stdout())
    elif report.findings:
        print_findings(report, stdout(whole=True))
    else:
        typer.echo(why)


@app.command()
def show(
    ctx: typer.Context,
    finding: FindingId,
    format_: Annotated[Literal["table", "json"], typer.Option("--format", "-f")] = "table",
    output: Output = None,
) -> None:
    """All of one finding: evidence, what it wastes and how that follows, the change to make, its history."""
    from gpucost.domain.scope import EVERYTHING
    from gpucost.reports.render.terminal_findings import print_finding
    from gpucost.service.reporting.finding_reports import finding_report
    from gpucost.service.reporting.rendering import render_finding

    refuse_table_file(format_ == "table", output)
    remote = context_of(ctx).remote()
    if remote is not None:
        with fields_as({"id": "ID"}):
            report: FindingReport | None = remote.finding(finding)
    else:
        with context_of(ctx).ledger() as ledger:
            report = finding_report(ledger, EVERYTHING, finding, now_ms())
    if report is None:
        raise InputError("ID", finding, "the id of a finding; gpucost findings lists those that go on")
    if format_ == "table":
        print_finding(report, stdout(whole=True))
    else:
        write(render_finding(report), output)


@app.command()
def acknowledge(
    ctx: typer.Context,
    finding: FindingId,
    note: Annotated[str, typer.Option(help="What you know, or will do; at most 1,000 characters.")] = "",
    author: Author = None,
) -> None:
    """Say that somebody knows: it stays in the list, and raises no alert any more."""
    from gpucost.domain.scope import EVERYTHING

    if _changed(ctx, finding, "acknowledge", {"note": note}, author):
        return
    with fields_as(_OPTIONS), context_of(ctx).ledger() as ledger:
        _tell(ledger.acknowledge(EVERYTHING, finding, author or user(), note))


@app.command()
def mute(
    ctx: typer.Context,
    finding: FindingId,
    until: Annotated[
        str | None, typer.Option(metavar="TIME", help="Day (its midnight UTC) or instant; at most a year.")
    ] = None,
    for_: Annotated[
        str | None, typer.Option("--for", metavar="DURATION", help="From now on, such as 7d, instead.")
    ] = None,
    reason: Annotated[str, typer.Option(help="Why, for whoever reads it; at most 1,000 characters.")] = "",
    author: Author = None,
) -> None:
    """Be silent about a finding for a time. It is found, and counted, all the same."""
    from gpucost.domain.scope import EVERYTHING

    option, given = ("--until", until) if for_ is None else ("--for", for_)
    _until(until, for_)
    length = {"until": until} if for_ is None else {"for": for_}
    if _changed(ctx, finding, "mute", {**length, "reason": reason}, author):
        return
    with fields_as(_OPTIONS), context_of(ctx).ledger() as ledger:
        end_ms = _until(until, for_)
        try:
            _tell(ledger.mute(EVERYTHING, finding, author or user(), end_ms, reason))
        except InputError as error:
            if error.field != "until":
                raise
            raise InputError(option, given, error.allowed) from None


@app.command()
def unmute(ctx: typer.Context, finding: FindingId, author: Author = None) -> None:
    """End a mute before its time."""
    from gpucost.domain.scope import EVERYTHING

    if _changed(ctx, finding, "unmute", {}, author):
        return
    with fields_as(_OPTIONS), context_of(ctx).ledger() as ledger:
        before = ledger.finding(EVERYTHING, finding)
        after = ledger.unmute(EVERYTHING, finding, author or user())
    was_muted = before is not None and before.state is FindingLifeState.MUTED
    _tell(after, "" if was_muted else "was not muted; it ")


app.command()(rehearse)
app.command()(explain)


@dataclass(frozen=True, slots=True)
class _FindingFilter:
    """The options as a filter; empty for everything."""

    state: Sequence[FindingLifeState] = ()
    pattern: Sequence[str] = ()
    team: Sequence[str] = ()
    severity: Sequence[str] = ()
    cluster: str | None = None

    def __bool__(self) -> bool:
        return bool(self.state or self.pattern or self.team or self.severity or self.cluster)


def _found(context: CommandContext, asked: _FindingFilter) -> tuple[FindingsReport, str]:
    """Findings in the ledger, and the reason where there are none."""
    from gpucost.domain.scope import EVERYTHING
    from gpucost.reports.waste.findings import FindingsReport
    from gpucost.service.reporting.finding_reports import row_of
    from gpucost.service.reporting.report_service import NO_CURRENCY

    with context.reporting() as reporting:
        reporting.of_cluster(EVERYTHING, asked.cluster)
        reporting.check_teams(EVERYTHING, asked.team, nobody=True)
        ledger = reporting.ledger
        found = list(_all(ledger, asked))
        why = "" if found else _why_none(ledger, bool(asked))
        currency = ledger.currency or NO_CURRENCY
    now = now_ms()
    return FindingsReport(currency, None, tuple(row_of(record, now) for record in found)), why


def _told(remote: RemoteApi, asked: _FindingFilter) -> tuple[FindingsReport, str]:
    """Findings of a server, and the reason where there are none."""
    from gpucost.cli.remote.api_client import words
    from gpucost.reports.base.display import counted

    report = remote.findings(
        state=words(asked.state),
        pattern=words(asked.pattern),
        team=words(asked.team),
        severity=words(asked.severity),
        cluster=asked.cluster,
    )
    if report.findings:
        return report, ""
    live = len(remote.findings().findings)
    if live:
        return report, f"nothing matches; {counted(live, 'finding')} of other kinds go on"
    return report, f"no finding goes on, of what you may see. {_WITHHELD}"


def _changed(
    ctx: typer.Context, finding: int, change: str, body: Mapping[str, str | None], author: str | None
) -> bool:
    """Whether a server was asked to change it; the server takes the author from the credential."""
    from gpucost.domain.time import parse_instant

    remote = context_of(ctx).remote()
    if remote is None:
        return False
    if author is not None:
        raise InputError("--author", author, "no --author: the server knows who you are; gpucost whoami")
    with fields_as(_OPTIONS | {"id": "ID", "until": "--until", "for": "--for"}):
        given = {name: value for name, value in body.items() if value is not None}
        row = remote.change_finding(finding, change, given).finding
    until_ms = None if row.muted_until is None else parse_instant(row.muted_until)
    _say(
        row.id,
        row.state,
        until_ms,
        row.pattern,
        f"{row.subject.namespace}/{row.subject.name}",
        row.subject.cluster,
    )
    return True


def _all(ledger: Ledger, asked: _FindingFilter) -> Iterator[FindingRecord]:
    """Page after page, the dearest first; without a state, those that are open."""
    from gpucost.domain.scope import EVERYTHING

    after: tuple[int | None, int] | None = None
    while page := ledger.findings(
        EVERYTHING,
        cluster=asked.cluster,
        states=asked.state or LIVE,
        patterns=asked.pattern or None,
        teams=asked.team or None,
        severities=asked.severity or None,
        limit=_PAGE,
        after=after,
    ):
        yield from page
        last = page[-1]
        assert last.id is not None, "it was read from the ledger"
        after = (last.nano, last.id)


def _why_none(ledger: Ledger, is_filtered: bool) -> str:
    """Why the list is empty."""
    from gpucost.domain.scope import EVERYTHING
    from gpucost.reports.base.display import counted

    live = sum(1 for _ in _all(ledger, _FindingFilter()))
    if live and is_filtered:
        return f"nothing matches; {counted(live, 'finding')} of other kinds go on"
    if not ledger.findings(EVERYTHING, states=list(FindingLifeState), limit=1):
        return f"no findings. {_START} {_WITHHELD}"
    matches = "nothing matches, and no finding goes on" if is_filtered else "no finding goes on"
    return f"{matches}. {_WITHHELD}"


def _until(until: str | None, for_: str | None) -> int:
    from gpucost.domain.time import parse_day_or_instant, parse_duration

    if (until is None) == (for_ is None):
        found = "missing" if until is None else "both are given"
        raise InputError(
            "--until", ErrorRemark(found), "a day with --until, or a length with --for; one of them"
        )
    if for_ is not None:
        return now_ms() + parse_duration(for_, "--for")
    assert until is not None
    return parse_day_or_instant(until, "--until")


def _tell(record: FindingRecord, first: str = "") -> None:
    name = f"{record.subject_namespace}/{record.subject_name}"
    _say(record.id, record.state, record.muted_until_ms, record.pattern, name, record.cluster, first)


def _say(
    finding: int | None,
    state: str,
    muted_until_ms: int | None,
    pattern: str,
    name: str,
    cluster: str,
    first: str = "",
) -> None:
    from gpucost.domain.time import iso
    from gpucost.reports.base.display import visible

    until = f" until {iso(muted_until_ms)}" if muted_until_ms is not None else ""
    typer.echo(
        f"finding {finding} {first}is {state}{until}: {pattern} of {visible(name.lstrip('/'))} in "
        f"{visible(cluster)}"
    )
