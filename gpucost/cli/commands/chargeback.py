"""What teams pay: gpucost statement, and gpucost chargeback for policies that are only tried; gpucost
commitments: what contracts were worth."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal
from urllib.parse import quote

import typer

from gpucost.cli.commands.month import known_teams
from gpucost.cli.terminal.context import CommandContext, context_of, now_ms
from gpucost.cli.terminal.exit_codes import ExitCode, complain, fields_as
from gpucost.cli.terminal.output import Output, held, make_folder, refuse_table_file, stdout, write
from gpucost.domain.buckets import NO_TEAM
from gpucost.domain.errors import ConfigError, ErrorRemark, InputError

if TYPE_CHECKING:
    from gpucost.charges.policy_file import PolicyBook
    from gpucost.domain.time import Month
    from gpucost.reports.charges.charge_statements import TeamStatement
    from gpucost.reports.month.model import StatementSummary
    from gpucost.service.reporting.rendering import ReportFormat
    from gpucost.service.reporting.report_service import ReportService

app = typer.Typer(
    no_args_is_help=True, help="What teams would pay under a charge policy.", rich_markup_mode=None
)
_MOST_POLICIES = 4


@app.callback()
def group() -> None:
    """What teams would pay under a charge policy."""


@app.command()
def preview(
    ctx: typer.Context,
    month: Annotated[str, typer.Argument(metavar="MONTH", help="A month in UTC, such as 2026-10.")],
    policy: Annotated[
        list[Path],
        typer.Option(
            metavar="FILE", help="A charge policy (YAML). Repeat it: the first is compared with the last."
        ),
    ],
    by: Annotated[
        Literal["team", "cost-centre"], typer.Option(help="What there is a line for; not for csv.")
    ] = "team",
    waiting: Annotated[
        bool, typer.Option("--waiting", help="Ask the source who waited beside idle quota.")
    ] = False,
    format_: Annotated[
        Literal["table", "json", "csv"],
        typer.Option("--format", "-f", help="csv: every charge by day, pool, team, queue and line."),
    ] = "table",
    output: Output = None,
) -> None:
    """What each team would pay for a month under each policy, the difference, and line by line why; what the
    platform keeps; and the proof that both add up to what the capacity cost.

    Nothing is written: charges are computed from the ledger's lines, the same each time. Beside them stands
    what idle quota costs a day, what of it was lent, and with `--waiting` who waited meanwhile.
    """
    from gpucost.domain.scope import EVERYTHING
    from gpucost.domain.time import Month
    from gpucost.reports.base.document import to_json
    from gpucost.reports.charges.charge_previews import PreviewGrouping
    from gpucost.reports.charges.terminal_charges import print_preview
    from gpucost.reports.render.files import to_csv
    from gpucost.service.reporting.charge_reports import charge_table, preview_charges
    from gpucost.service.reporting.quota_sources import waiting_time
    from gpucost.service.wiring.inputs import read_policy

    with fields_as({"month": "MONTH"}):
        wanted = Month.parse(month)
    if len(policy) > _MOST_POLICIES:
        raise InputError("--policy", len(policy), f"1 to {_MOST_POLICIES} files")
    refuse_table_file(format_ == "table", output)
    context = context_of(ctx)
    remote = context.remote()
    rows = None
    if remote is not None:
        if waiting or format_ == "csv":
            option, value = ("--waiting", "") if waiting else ("--format", "csv")
            raise InputError(option, value, "only with the ledger itself: a server does not answer this")
        with fields_as({"month": "MONTH"}):
            found = remote.preview(wanted, [_policy_texts(file) for file in policy], by)
    else:
        books = [read_policy(file, context.teams) for file in policy]
        with _charged_month(context, wanted, books) as (reporting, _, centres):
            waits = None
            if waiting:
                from gpucost.service.wiring.source import open_source

                source = open_source(context.settings, context.book(context.settings), now_ms)
                basis = context.settings.attribution.basis
                waits = waiting_time(source, EVERYTHING, wanted, context.teams, basis)
            grouping = PreviewGrouping(by)
            found = preview_charges(reporting, EVERYTHING, wanted, books, centres, waits, grouping)
            rows = charge_table(reporting, EVERYTHING, wanted, books, centres) if format_ == "csv" else None
    if format_ == "json":
        write(to_json(found), output)
    elif rows is not None:
        write(to_csv(rows), output)
    else:
        print_preview(found, stdout())
    for remark in found.remarks:
        complain(remark)
    off = [each for each in found.policies if each.difference.nano or each.difference.board_ms]
    if off:
        complain(
            f"charges under {off[0].name} do not add up to the capacity; please report it to the project"
        )
        raise typer.Exit(ExitCode.VERIFICATION)


@app.command()
def quotas(
    ctx: typer.Context,
    month: Annotated[str, typer.Argument(metavar="MONTH", help="A month in UTC, such as 2026-10.")],
    team: Annotated[
        list[str] | None,
        typer.Option(metavar="QUEUE=TEAM", help="Who pays for a ClusterQueue that no team rule is about."),
    ] = None,
    cohort_team: Annotated[
        list[str] | None,
        typer.Option(metavar="COHORT=TEAM", help="Who pays for the quota of a cohort itself; else nobody."),
    ] = None,
    model: Annotated[
        list[str] | None,
        typer.Option(metavar="FLAVOR=MODEL", help="The GPU model of a flavor, where use does not say it."),
    ] = None,
    output: Output = None,
) -> None:
    """The quotas and cohorts that Kueue had in a month, as the source saw them, for a charge policy to name:
    GPUs of each model by queue, dated by their changes.

    A policy names the file (`quotas_file`), so that its charges can be computed again when the source has
    forgotten the month.
    """
    from gpucost.domain.scope import EVERYTHING
    from gpucost.domain.time import Month
    from gpucost.service.reporting.quota_sources import QuotaReader
    from gpucost.service.reporting.team_names import allowed_teams
    from gpucost.service.wiring.source import open_source

    with fields_as({"month": "MONTH"}):
        wanted = Month.parse(month)
    payers, owners = _pairs("--team", team), _pairs("--cohort-team", cohort_team)
    models = _pairs("--model", model)
    context = context_of(ctx)
    source = open_source(context.settings, context.book(context.settings), now_ms)
    with _charged_month(context, wanted, []) as (reporting, known, _):
        reader = QuotaReader(source, reporting.ledger, EVERYTHING, wanted, models)
        for option, given, names in (
            ("--team", payers, reader.queues()),
            ("--cohort-team", owners, reader.cohorts()),
        ):
            for name, payer in given.items():
                if name not in names:
                    raise InputError(option, name, f"one of: {', '.join(names) or 'nothing has quota'}")
                if payer not in known:
                    raise InputError(option, payer, allowed_teams(payer, known))
        rules, queues = context.teams, reader.queues()
        ruled = {queue: rules.team_of_queue(queue, wanted.window) for queue in queues}
        content = reader.text({name: each for name, each in ruled.items() if each} | payers, owners)
    write(content, output)


def _policy_texts(file: Path) -> tuple[str, str, dict[str, str]]:
    """What a server is sent of a policy: its name, its text, and those of the files that it names."""
    from gpucost.charges.policy_file import files_named
    from gpucost.service.settings.loader import read_config
    from gpucost.service.wiring.inputs import beside

    text = read_config(file)
    read = beside(file)
    return str(file), text, {name: read(name)[0] for name in files_named(text, str(file))}


def _pairs(option: str, given: Sequence[str] | None) -> dict[str, str]:
    """``NAME=VALUE`` of an option, each name once. Raises InputError."""
    found: dict[str, str] = {}
    for each in given or ():
        name, equals, value = each.partition("=")
        if not (name and equals and value) or name in found:
            raise InputError(option, each, "NAME=VALUE, each name once")
        found[name] = value
    return found


@contextmanager
def _charged_month(
    context: CommandContext, month: Month, books: Sequence[PolicyBook]
) -> Iterator[tuple[ReportService, set[str], dict[str, str | None]]]:
    """What charging a month begins with: reports of the ledger, the teams that are known (all that ``books``
    name are among them), and their cost centres. Raises InputError for a month that the ledger lacks."""
    from gpucost.domain.scope import EVERYTHING
    from gpucost.service.wiring.ledger import build_reporting

    with fields_as({"month": "MONTH"}), context.ledger() as ledger:
        reporting = build_reporting(ledger, context.teams)
        if not reporting.stand(EVERYTHING, month.window).windows:
            raise InputError("MONTH", str(month), held(ledger, "a month of"))
        known = known_teams(context, ledger, month)
        for book in books:
            book.check_teams(known)
        yield reporting, known, {team.name: team.cost_centre for team in context.teams.teams}


def commitments(
    ctx: typer.Context,
    window: Annotated[
        str, typer.Argument(metavar="WINDOW", help="A month, or START/END in RFC 3339, half-open.")
    ],
    contracts: Annotated[
        Path, typer.Option(metavar="FILE", help="The contracts (YAML); docs/contracts.md has its keys.")
    ],
    format_: Annotated[
        Literal["table", "json"],
        typer.Option("--format", "-f", help="table for people, json for programs."),
    ] = "table",
    output: Output = None,
) -> None:
    """Reservations, savings plans and other contracts: used, not used, and three views of the cost by team.

    Utilisation is the part of a commitment that teams used, coverage the part of their use that it paid for.
    Contracts that are only planned are tried on the window: what they would have saved.
    """
    from gpucost.domain.scope import EVERYTHING
    from gpucost.reports.base.document import to_json
    from gpucost.reports.charges.terminal_charges import print_commitments
    from gpucost.service.reporting.commitment_reporting import CommitmentReporting
    from gpucost.service.reporting.report_service import parse_window
    from gpucost.service.wiring.inputs import load_contracts

    refuse_table_file(format_ == "table", output)
    context = context_of(ctx)
    with fields_as({"window": "WINDOW", "step": "WINDOW"}), context.ledger() as ledger:
        span, reporting = parse_window(window), CommitmentReporting(ledger, EVERYTHING)
        declared = frozenset(team.name for team in context.teams.teams)
        book = load_contracts(contracts, declared or context.teams.names | reporting.teams())
        if ledger.currency not in (None, book.currency):
            allowed = f"{ledger.currency}, the currency of the ledger"
            raise ConfigError(str(contracts), "currency", book.currency, allowed)
        report = reporting.report(book, span)
        if report is None:
            raise InputError("WINDOW", window, held(ledger, "a month or START/END within"))
    if format_ == "json":
        write(to_json(report), output)
    else:
        print_commitments(report, stdout(whole=True))


def statement(
    ctx: typer.Context,
    month: Annotated[str, typer.Argument(metavar="MONTH", help="A month in UTC, such as 2026-10.")],
    team: Annotated[list[str] | None, typer.Option(help="Of this team; repeat it for several.")] = None,
    every: Annotated[
        bool, typer.Option("--all", help="Of every team with a charge or an adjustment.")
    ] = False,
    policy: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The charge policy (YAML); else that of charges.policy."),
    ] = None,
    format_: Annotated[
        Literal["table", "json", "csv", "html", "xlsx"],
        typer.Option("--format", "-f", help="html is a page to read and to print (as PDF), xlsx a workbook."),
    ] = "table",
    output: Output = None,
    output_dir: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="One file for each team, in this folder; not for table."),
    ] = None,
) -> None:
    """What a team pays for a month: every kind of charge with why and how to work it out again, adjustments,
    budget, prices, the dearest jobs, waste that could have been avoided, and what was not observed.

    Statements of all teams and what the platform keeps add up to what the capacity cost (`gpucost chargeback
    preview` has the proof), before adjustments.
    """
    from gpucost.domain.time import Month
    from gpucost.reports.charges.terminal_charges import print_statement, print_summary
    from gpucost.service.reporting.rendering import ReportFormat, render_statements

    with fields_as({"month": "MONTH"}):
        wanted = Month.parse(month)
    if every == bool(team):
        raise InputError(
            "--team", ErrorRemark("given beside --all" if every else "missing"), "a team, or --all"
        )
    if output_dir is not None and (output is not None or format_ == "table"):
        raise InputError(
            "--output-dir", str(output_dir), "with another format than table, and without --output"
        )
    refuse_table_file(format_ == "table", output)
    found, summary = _statements(context_of(ctx), wanted, [] if every else list(team or ()), policy)
    for remark in () if summary is None else summary.remarks:
        complain(remark)
    if not every:
        summary = None
    if format_ == "table":
        if summary is not None:
            print_summary(summary, stdout())
        for each in found:
            print_statement(each, stdout())
    elif not found:
        return
    elif output_dir is None:
        kind = ReportFormat(format_)
        one = not every and len(found) == 1
        write(render_statements(found, kind, one=one, summary=summary), output)
    else:
        _write_all(found, summary, ReportFormat(format_), output_dir)
    off = None if summary is None else summary.proof
    if off is not None and (off.difference_nano or off.difference_board_ms):
        complain("charges do not add up to the capacity; please report it to the project")
        raise typer.Exit(ExitCode.VERIFICATION)


def _write_all(
    found: Sequence[TeamStatement], summary: StatementSummary | None, kind: ReportFormat, folder: Path
) -> None:
    """A file for each team, and one of what every team pays."""
    from gpucost.service.reporting.rendering import render_statements, render_summary

    make_folder(folder, "--output-dir")
    for each in found:
        content = render_statements([each], kind, one=True)
        write(content, folder / f"{each.month}-{_file_name(each.team)}.{kind}")
    if summary is not None:
        write(render_summary(summary, kind), folder / f"{summary.month}.{kind}")
    complain(f"{len(found) + (summary is not None)} files written to {folder}")


def _statements(
    context: CommandContext, month: Month, teams: Sequence[str], policy: Path | None
) -> tuple[tuple[TeamStatement, ...], StatementSummary | None]:
    """Of ``teams``, or without any of every team with a charge or an adjustment; and the summary: from a
    server, which goes by the policy of its own settings, or from the ledger."""
    from gpucost.domain.scope import EVERYTHING
    from gpucost.service.reporting.charge_reports import team_statements
    from gpucost.service.reporting.team_names import allowed_teams
    from gpucost.service.wiring.inputs import load_policy, read_policy

    wanted = list(dict.fromkeys(teams))
    remote = context.remote()
    if remote is not None:
        if policy is not None:
            allowed = "no --policy: a server goes by its own; gpucost chargeback preview tries another"
            raise InputError("--policy", str(policy), allowed)
        with fields_as({"month": "MONTH", "team": "--team"}):
            found = remote.statements(month, wanted)
            whole = None if wanted else remote.charges(month)
        # Who sees some teams only has no use for a summary of them.
        return found, None if whole is None or whole.proof is None else whole
    if policy is None:
        book = load_policy(context.settings.charges.policy, context.teams)
    else:
        book = read_policy(policy, context.teams)
    with _charged_month(context, month, [book]) as (reporting, known, centres):
        closed = reporting.ledger.month_charges(month)
        if closed is not None and policy is not None:
            tries = f"gpucost chargeback preview {month} --policy FILE tries another"
            raise InputError("--policy", str(policy), f"left out: {month} was closed with one; {tries}")
        for name in wanted:
            if name not in known:
                raise InputError("--team", name, allowed_teams(name, known))
        everyone = sorted(known, key=lambda name: (name == NO_TEAM, name))
        made = team_statements(reporting, EVERYTHING, month, book, centres, wanted or everyone)
    there = tuple(each for each in made.statements if wanted or each.lines or each.adjustments)
    return there, made.summary


def _file_name(team: str) -> str:
    """A team's name as part of a file's name, as in an address; of a long one the begin, and a digest."""
    safe = quote(team, safe="")
    return safe if len(safe) <= 150 else f"{safe[:130]}-{hashlib.sha256(team.encode()).hexdigest()[:16]}"
