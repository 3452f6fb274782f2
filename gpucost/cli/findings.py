"""gpucost findings: what is wrong now, what it costs, and what people say to it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from gpucost.cli.context import Context, context_of, now_ms
from gpucost.cli.exits import fields_as
from gpucost.cli.findings_rules import explain, rehearse
from gpucost.cli.month import Author, user
from gpucost.cli.output import Output, refuse_table_file, stdout, write
from gpucost.detectors.findings import Pattern, Severity
from gpucost.detectors.lifecycle import LIVE, State
from gpucost.domain.errors import InputError, Remark

if TYPE_CHECKING:
    from gpucost.cli.remote.asking import Remote
    from gpucost.ledger import FindingRecord, Ledger
    from gpucost.reports.findings import FindingReport, FindingsReport

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
        list[State] | None,
        typer.Option(metavar="STATE", help=f"{', '.join(State)}; else all but the last. Repeat it."),
    ] = None,
    pattern: Annotated[
        list[Pattern] | None, typer.Option(metavar="PATTERN", help="Of this anti-pattern. Repeat it.")
    ] = None,
    team: Annotated[
        list[str] | None, typer.Option(metavar="TEAM", help="That this team can act on. Repeat it.")
    ] = None,
    severity: Annotated[
        list[Severity] | None, typer.Option(metavar="SEVERITY", help=f"{', '.join(Severity)}. Repeat it.")
    ] = None,
    cluster: Annotated[str | None, typer.Option(help="In this cluster.")] = None,
    format_: Annotated[
        Literal["table", "json", "csv"],
        typer.Option("--format", "-f", help="table for people, the others for programs."),
    ] = "table",
    output: Output = None,
) -> None:
    """The list, unless a command follows."""
    if ctx.invoked_subcommand is not None:
        return
    from gpucost.reports.terminal_findings import print_findings
    from gpucost.service.rendering import Format, render_findings

    refuse_table_file(format_ == "table", output)
    remote = context_of(ctx).remote()
    with fields_as({"cluster": "--cluster", "team": "--team"}):
        asked = _Asked(state or (), pattern or (), team or (), severity or (), cluster)
        report, why = _found(context_of(ctx), asked) if remote is None else _told(remote, asked)
    if format_ != "table":
        write(render_findings(report, Format(format_)), output)
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
    from gpucost.reports.terminal_findings import print_finding
    from gpucost.service.finding_reports import finding_report
    from gpucost.service.rendering import render_finding

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
    was_muted = before is not None and before.state is State.MUTED
    _tell(after, "" if was_muted else "was not muted; it ")


app.command()(rehearse)
app.command()(explain)


@dataclass(frozen=True, slots=True)
class _Asked:
    """What the options ask for; empty for everything."""

    state: Sequence[State] = ()
    pattern: Sequence[str] = ()
    team: Sequence[str] = ()
    severity: Sequence[str] = ()
    cluster: str | None = None

    def __bool__(self) -> bool:
        return bool(self.state or self.pattern or self.team or self.severity or self.cluster)


def _found(context: Context, asked: _Asked) -> tuple[FindingsReport, str]:
    """What the ledger has, and why there is none where there is none."""
    from gpucost.domain.scope import EVERYTHING
    from gpucost.reports.findings import FindingsReport
    from gpucost.service.finding_reports import row_of
    from gpucost.service.reporting import NO_CURRENCY

    with context.reporting() as reporting:
        reporting.of_cluster(EVERYTHING, asked.cluster)
        ledger = reporting.ledger
        found = list(_all(ledger, asked))
        why = "" if found else _why_none(ledger, bool(asked))
        currency = ledger.currency or NO_CURRENCY
    now = now_ms()
    return FindingsReport(currency, None, tuple(row_of(record, now) for record in found)), why


def _told(remote: Remote, asked: _Asked) -> tuple[FindingsReport, str]:
    """What a server says, and why there is none where there is none."""
    from gpucost.cli.remote.asking import words
    from gpucost.reports.display import counted

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
    """Whether a server was asked to change it, who knows by itself who asks."""
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


def _all(ledger: Ledger, asked: _Asked) -> Iterator[FindingRecord]:
    """Page after page, the dearest first; those that go on, where no state is asked for."""
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
    from gpucost.reports.display import counted

    live = sum(1 for _ in _all(ledger, _Asked()))
    if live and is_filtered:
        return f"nothing matches; {counted(live, 'finding')} of other kinds go on"
    if not ledger.findings(EVERYTHING, states=list(State), limit=1):
        return f"no findings. {_START} {_WITHHELD}"
    matches = "nothing matches, and no finding goes on" if is_filtered else "no finding goes on"
    return f"{matches}. {_WITHHELD}"


def _until(until: str | None, for_: str | None) -> int:
    from gpucost.domain.time import parse_day_or_instant, parse_duration

    if (until is None) == (for_ is None):
        found = "missing" if until is None else "both are given"
        raise InputError("--until", Remark(found), "a day with --until, or a length with --for; one of them")
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
    from gpucost.reports.display import visible

    until = f" until {iso(muted_until_ms)}" if muted_until_ms is not None else ""
    typer.echo(
        f"finding {finding} {first}is {state}{until}: {pattern} of {visible(name.lstrip('/'))} in "
        f"{visible(cluster)}"
    )
