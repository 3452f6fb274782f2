"""gpucost commitments: what contracts for GPU capacity were worth."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from gpucost.cli.terminal.context import context_of
from gpucost.cli.terminal.exit_codes import fields_as
from gpucost.cli.terminal.output import Output, held, refuse_table_file, stdout, write
from gpucost.domain.errors import ConfigError, InputError


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
    from gpucost.reports.base.document import to_json
    from gpucost.reports.render.terminal_commitments import print_commitments
    from gpucost.service.reporting.commitments import CommitmentReporting
    from gpucost.service.reporting.report_service import parse_window
    from gpucost.service.wiring.inputs import load_contracts

    refuse_table_file(format_ == "table", output)
    context = context_of(ctx)
    with fields_as({"window": "WINDOW", "step": "WINDOW"}), context.ledger() as ledger:
        span, reporting = parse_window(window), CommitmentReporting(ledger)
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
