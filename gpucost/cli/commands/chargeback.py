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
from gpucost.cli.terminal.context import CommandContext, context_of
from gpucost.cli.terminal.exit_codes import ExitCode, complain, fields_as
from gpucost.cli.terminal.output import Output, held, refuse_table_file, stdout, write
from gpucost.domain.errors import ConfigError, ErrorRemark, InputError

if TYPE_CHECKING:
    from gpucost.charges.policy_file import PolicyBook
    from gpucost.domain.time import Month
    from gpucost.reports.charges.charge_statements import TeamStatement
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
    format_: Annotated[Literal["table", "json"], typer.Option("--format", "-f")] = "table",
    output: Output = None,
) -> None:
    """What each team would pay for a month under each policy, the difference, and line by line why; what the
    platform keeps; and the proof that both add up to what the capacity cost.

    Nothing is written: charges are computed from the ledger's lines, the same each time.
    """
    from gpucost.charges.policy_file import PolicyBook
    from gpucost.domain.scope import EVERYTHING
    from gpucost.domain.time import Month
    from gpucost.reports.base.document import to_json
    from gpucost.reports.charges.terminal_charges import print_preview
    from gpucost.service.reporting.charge_reports import preview_charges
    from gpucost.service.settings.loader import read_config

    with fields_as({"month": "MONTH"}):
        wanted = Month.parse(month)
    if len(policy) > _MOST_POLICIES:
        raise InputError("--policy", len(policy), f"1 to {_MOST_POLICIES} files")
    refuse_table_file(format_ == "table", output)
    context = context_of(ctx)
    remote = context.remote()
    if remote is not None:
        with fields_as({"month": "MONTH"}):
            found = remote.preview(wanted, [(str(file), read_config(file)) for file in policy])
    else:
        books = [PolicyBook.parse(read_config(file), str(file), context.teams.quotas) for file in policy]
        with _charged_month(context, wanted, books) as (reporting, _, centres):
            found = preview_charges(reporting, EVERYTHING, wanted, books, centres)
    if format_ == "json":
        write(to_json(found), output)
    else:
        print_preview(found, stdout())
    off = [each for each in found.policies if each.difference.nano or each.difference.board_ms]
    if off:
        complain(
            f"charges under {off[0].name} do not add up to the capacity; please report it to the project"
        )
        raise typer.Exit(ExitCode.VERIFICATION)


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
    from gpucost.service.reporting.charge_reports import CommitmentReporting
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
    from gpucost.reports.charges.terminal_charges import print_statement
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
    found = _statements(context_of(ctx), wanted, None if every else list(dict.fromkeys(team or ())), policy)
    if not found:
        return
    if format_ == "table":
        for each in found:
            print_statement(each, stdout())
        return
    kind = ReportFormat(format_)
    if output_dir is None:
        write(render_statements(found, kind, one=not every and len(found) == 1), output)
        return
    output_dir.mkdir(parents=True, exist_ok=True)
    for each in found:
        content = render_statements([each], kind, one=True)
        write(content, output_dir / f"{wanted}-{_file_name(each.team)}.{format_}")


def _statements(
    context: CommandContext, month: Month, teams: Sequence[str] | None, policy: Path | None
) -> tuple[TeamStatement, ...]:
    """Of ``teams``, or with None of every team with a charge or an adjustment: from a server, which goes by
    the policy of its own settings, or from the ledger."""
    from gpucost.charges.policy_file import PolicyBook
    from gpucost.domain.scope import EVERYTHING
    from gpucost.service.reporting.charge_reports import team_statements
    from gpucost.service.reporting.month_closing import meant
    from gpucost.service.settings.loader import read_config
    from gpucost.service.wiring.inputs import load_policy

    remote = context.remote()
    if remote is not None:
        if policy is not None:
            allowed = "no --policy: a server goes by its own; gpucost chargeback preview tries another"
            raise InputError("--policy", str(policy), allowed)
        with fields_as({"month": "MONTH", "team": "--team"}):
            return remote.statements(month, teams)
    if policy is None:
        book = load_policy(context.settings.charges.policy, context.teams)
    else:
        book = PolicyBook.parse(read_config(policy), str(policy), context.teams.quotas)
    with _charged_month(context, month, [book]) as (reporting, known, centres):
        for name in teams or ():
            if name not in known:
                raise InputError("--team", name, f"{meant(name, known)}{', '.join(sorted(known))}")
        names = sorted(known) if teams is None else teams
        found = team_statements(reporting, EVERYTHING, month, book, centres, names)
    return tuple(each for each in found if teams is not None or each.lines or each.adjustments)


def _file_name(team: str) -> str:
    """A team's name as part of a file's name, as in an address; of a long one the begin, and a digest."""
    safe = quote(team, safe="")
    return safe if len(safe) <= 150 else f"{safe[:130]}-{hashlib.sha256(team.encode()).hexdigest()[:16]}"
