"""gpucost month: close, correct, and prove a month."""

from __future__ import annotations

import getpass
from fractions import Fraction
from typing import Annotated

import typer

from gpucost.cli.context import context_of
from gpucost.cli.exits import Exit, complain
from gpucost.domain.errors import InputError, Remark
from gpucost.domain.money import NANO, parse_nano, plain, round_half_even
from gpucost.domain.time import HOUR_MS, Month, iso

app = typer.Typer(
    no_args_is_help=True, help="Close, adjust, verify and look at months.", rich_markup_mode=None
)

MonthText = Annotated[str, typer.Argument(metavar="MONTH", help="A month in UTC, such as 2026-10.")]
Author = Annotated[str | None, typer.Option(help="Who does this; else the user of this process.")]


@app.command()
def status(
    ctx: typer.Context,
    month: Annotated[str | None, typer.Argument(metavar="[MONTH]", help="One month; else all.")] = None,
) -> None:
    """What months there are, which are closed, and what keeps the others open."""
    context = context_of(ctx)
    with context.ledger() as ledger:
        extent = ledger.extent()
        if month is not None:
            months = [Month.parse(month)]
        elif extent is None:
            typer.echo("the ledger is empty")
            return
        else:
            months = [Month.of(extent.start_ms)]
            while months[-1] < Month.of(extent.end_ms - 1):
                months.append(months[-1].next())
        for found in months:
            info = ledger.month(found)
            if info.closed_at_ms is not None:
                typer.echo(f"{found} closed {iso(info.closed_at_ms)} by {info.author}, digest {info.digest}")
                continue
            typer.echo(f"{found} open, {info.version} window versions written")
            for blocker in ledger.close_blockers(found, _coverage(ctx)):
                typer.echo(f"  {blocker}")


@app.command()
def close(
    ctx: typer.Context,
    month: MonthText,
    author: Author = None,
    reason: Annotated[
        str | None, typer.Option(help="Closes in spite of what is missing; goes into the audit trail.")
    ] = None,
) -> None:
    """Close a month for good. Later corrections are adjustments."""
    with context_of(ctx).ledger() as ledger:
        info = ledger.close_month(
            Month.parse(month), author=author or _user(), min_coverage=_coverage(ctx), reason=reason
        )
    typer.echo(f"{info.month} closed by {info.author}, digest {info.digest}")


@app.command()
def adjust(
    ctx: typer.Context,
    month: MonthText,
    team: Annotated[str, typer.Option(help="Whose cost changes.")],
    amount: Annotated[
        str, typer.Option(help="Plain decimal amount in the ledger's currency; may be negative.")
    ],
    reason: Annotated[str, typer.Option(help="Why, for the reader of the report.")],
    reference: Annotated[str, typer.Option(help="Ticket or note; the same one again changes nothing.")],
    gpu_hours: Annotated[str, typer.Option(help="GPU-hours, plain decimal; may be negative.")] = "0",
    job: Annotated[str, typer.Option(help="uid of the job it is about.")] = "",
    author: Author = None,
) -> None:
    """Correct a closed month by a line of its own."""
    with context_of(ctx).ledger() as ledger:
        made = ledger.adjust(
            Month.parse(month),
            team,
            parse_nano(amount, "--amount"),
            round_half_even(parse_nano(gpu_hours, "--gpu-hours") * HOUR_MS, NANO),
            reason,
            author or _user(),
            reference,
            job_uid=job,
        )
    typer.echo(
        f"{made.month} {made.team}: {plain(made.nano)} {made.currency}, {made.reference}: {made.reason}"
    )


@app.command()
def verify(
    ctx: typer.Context,
    month: Annotated[str | None, typer.Argument(metavar="[MONTH]", help="One month; else all.")] = None,
) -> None:
    """Recompute every digest from the lines themselves; exit code 5 when something was changed."""
    wanted = None if month is None else Month.parse(month)
    with context_of(ctx).ledger() as ledger:
        findings = ledger.verify(wanted)
    for finding in findings:
        where = f"{finding.month}: " if finding.month else ""
        complain(f"{where}{finding.subject}: {finding.detail}")
    if findings:
        raise typer.Exit(Exit.VERIFICATION)
    typer.echo(f"{wanted or 'every month'}: the ledger holds what was written")


def _coverage(ctx: typer.Context) -> Fraction:
    return Fraction(context_of(ctx).settings.ledger.close_coverage)


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        raise InputError("--author", Remark("missing"), "a name: this process has no user name") from None
