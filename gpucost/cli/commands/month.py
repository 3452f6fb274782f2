"""gpucost month: close, correct, and verify a month.

Here too: names of teams that a person types, checked against the known ones.
"""

from __future__ import annotations

import difflib
import getpass
import os
from collections.abc import Callable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from fractions import Fraction
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from gpucost.cli.terminal.context import CommandContext, context_of
from gpucost.cli.terminal.exit_codes import ExitCode, complain
from gpucost.domain.errors import InputError, LedgerDamaged, LedgerError
from gpucost.domain.money import NANO, parse_nano, plain, round_half_even
from gpucost.domain.scope import EVERYTHING
from gpucost.domain.time import HOUR_MS, Month, Window

if TYPE_CHECKING:
    from gpucost.ledger.ledger import Ledger
    from gpucost.reports.month.model import ClosePreview, MonthStatus


class CloseWarned(LedgerError):
    """A month that may be closed, but of which something should be known first."""

    def __init__(self, month: Month, count: int) -> None:
        words = "1 warning" if count == 1 else f"{count} warnings"
        super().__init__(
            f"{month} is not closed: {words} above; --yes closes it all the same, --reason says why"
        )


def known_teams(context: CommandContext, ledger: Ledger, month: Month) -> set[str]:
    """The teams of the rules, and those with usage or an adjustment in ``month``."""
    from gpucost.service.reporting import team_names

    return team_names.known_teams(ledger, {team.name for team in context.teams.teams}, month)


def unknown_teams(context: CommandContext, ledger: Ledger, names: list[str]) -> list[str]:
    """A remark for each name that neither the team rules nor the newest month of the ledger has; none while
    they have no team at all. Raises InputError for wrong team rules."""
    extent = ledger.extent()
    if extent is None:
        return []
    month = Month.of(extent.end_ms - 1)
    known = known_teams(context, ledger, month)
    return [_remark(name, known, month) for name in names if known and name not in known]


def _remark(name: str, known: AbstractSet[str], month: Month) -> str:
    close = ", ".join(difflib.get_close_matches(name, sorted(known), 3))
    did = f"; did you mean {close}?" if close else ""
    return f"the team {name!r} is neither in the team rules nor in {month} of the ledger{did}"


app = typer.Typer(
    no_args_is_help=True, help="Close, adjust, verify and look at months.", rich_markup_mode=None
)

_LONGEST = 2_000
_LOST = (
    "Windows since the backup are read again as far as the source goes back; closes, adjustments, keys and "
    "what people said of findings since then are lost, and must be made again"
)
_DAMAGED_FILE = (
    "no digest was computed from a damaged file. Stop gpucost, have the disk looked at, and put the last "
    f"backup back: gpucost ledger restore BACKUP --replace keeps the damaged file beside it. {_LOST}"
)
_DAMAGED_SERVER = (
    "no digest was computed from a damaged database. Have the disk looked at. Where only indexes are "
    "damaged, REINDEX DATABASE makes them anew, and nothing is lost; else put the last dump into an empty "
    f"database: gpucost ledger restore DUMP prints how. {_LOST}"
)

MonthText = Annotated[str, typer.Argument(metavar="MONTH", help="A month in UTC, such as 2026-10.")]
Author = Annotated[str | None, typer.Option(help="Who does this; else the user of this process.")]


@app.command()
def status(
    ctx: typer.Context,
    month: Annotated[str | None, typer.Argument(metavar="[MONTH]", help="One month; else all.")] = None,
) -> None:
    """What months there are, which are closed, and what keeps the others open."""
    from gpucost.service.reporting.month_closing import month_statuses

    context, wanted = context_of(ctx), None if month is None else Month.parse(month)
    remote = context.remote()
    if remote is not None:
        found = remote.months(wanted)
    else:
        with context.reporting() as reporting:
            found = month_statuses(reporting, EVERYTHING, wanted, _coverage(ctx))
    if not found.months:
        typer.echo("the ledger is empty")
    for each in found.months:
        for line in _status_lines(each, found.held):
            typer.echo(line)


def _status_lines(found: MonthStatus, held: Window | None) -> Iterator[str]:
    from gpucost.reports.base.display import counted, visible

    if found.is_closed:
        folded = ""
        if found.folded_at is not None:
            folded = (
                f"; folded by day {visible(found.folded_at)}, digest {visible(found.folded_digest or '')}"
            )
        sealed = "" if found.sealed_at is None else f"; sealed in files {visible(found.sealed_at)}"
        at, author = visible(found.closed_at or ""), visible(found.author or "", _LONGEST)
        yield f"{found.month} closed {at} by {author}, {_digest(found)}{folded}{sealed}"
    elif not found.version:
        yield f"{found.month} no windows in the ledger: {_held(held)}"
    else:
        yield f"{found.month} open, {counted(found.version, 'window version')} written"
        for blocker in found.blockers:
            yield f"  {visible(blocker, _LONGEST)}"


def _digest(found: MonthStatus) -> str:
    """Of a closed month; who sees some clusters only is not told it."""
    from gpucost.reports.base.display import visible

    return "a digest of all clusters" if found.digest is None else f"digest {visible(found.digest)}"


@app.command()
def close(
    ctx: typer.Context,
    month: MonthText,
    author: Author = None,
    reason: Annotated[
        str | None, typer.Option(help="Closes in spite of what is missing; goes into the audit trail.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only show what would be closed, and what speaks against it.")
    ] = False,
    yes: Annotated[
        bool, typer.Option("--yes", help="Closes in spite of warnings, but not of what is missing.")
    ] = False,
) -> None:
    """Close a month for good. Later corrections are adjustments.

    First it shows what each team pays, and what cannot be put right later: gaps, provisional windows, time
    without a price, problems of the data. Where there is any of it, --yes or a --reason is needed.
    """
    wanted, context = Month.parse(month), context_of(ctx)
    remote = context.remote()
    if remote is not None:
        if author is not None:
            allowed = "no --author: the server records who the key is of"
            raise InputError("--author", author, allowed)
        _close(
            wanted,
            lambda: remote.months(wanted).months[0],
            lambda: remote.close_preview(wanted),
            lambda: remote.close_month(wanted, reason=reason or "", yes=yes),
            reason=reason,
            dry_run=dry_run,
            yes=yes,
        )
        return
    with context.ledger() as ledger:
        _close_here(context, ledger, wanted, author or user(), reason, dry_run=dry_run, yes=yes)


def _close_here(
    context: CommandContext,
    ledger: Ledger,
    month: Month,
    author: str,
    reason: str | None,
    *,
    dry_run: bool,
    yes: bool,
) -> None:
    from gpucost.service.reporting.charge_reports import close_month
    from gpucost.service.reporting.month_closing import month_status, preview_close
    from gpucost.service.wiring.inputs import load_policy
    from gpucost.service.wiring.ledger import build_reporting

    coverage = Fraction(context.settings.ledger.close_coverage)

    policy = load_policy(context.settings.charges.policy, context.teams)
    reporting = build_reporting(ledger, context.teams, policy)

    def close_it() -> MonthStatus:
        close_month(reporting, month, policy, author=author, min_coverage=coverage, reason=reason)
        return month_status(reporting, EVERYTHING, month, coverage)

    _close(
        month,
        lambda: month_status(reporting, EVERYTHING, month, coverage),
        lambda: preview_close(reporting, month, coverage),
        close_it,
        reason=reason,
        dry_run=dry_run,
        yes=yes,
    )


def _close(
    month: Month,
    status: Callable[[], MonthStatus],
    preview: Callable[[], ClosePreview],
    close_it: Callable[[], MonthStatus],
    *,
    reason: str | None,
    dry_run: bool,
    yes: bool,
) -> None:
    """The same of a ledger and of a server: what is shown, what is asked for, and what is said after it."""
    from gpucost.reports.base.display import visible

    already = "already " if status().is_closed else ""
    if dry_run or not already:
        found = preview()
        for line in _preview_lines(found):
            typer.echo(line)
        blockers = found.status.blockers
        if dry_run:
            needs = "--reason" if blockers else "--yes or --reason" if found.warnings else "nothing else"
            typer.echo(
                f"{month} is {already}closed" if already else f"nothing was closed; closing needs {needs}"
            )
            return
        if not found.is_confirmed(reason=reason, yes=yes):
            raise CloseWarned(month, len(found.warnings))
    closed = close_it()
    by = visible(closed.author or "", _LONGEST)
    typer.echo(f"{closed.month} {already}closed by {by}, {_digest(closed)}")
    if already and reason is not None:
        complain(f"{closed.month} stays as it was closed: this --reason is not recorded")


def _preview_lines(found: ClosePreview) -> Iterator[str]:
    """What each team pays for the month, and what should be known before it is closed."""
    from gpucost.reports.base.display import hours, money, name, visible

    if found.total is not None:
        yield f"{found.status.month}, {visible(found.currency)}:"
        rows = [(name(each.team), each.amount) for each in found.teams]
        rows.append(("all teams", found.total))
        if found.kept is not None:
            rows.append(("kept by the platform", found.kept))
        if found.capacity is not None:
            rows.append(("capacity", found.capacity))
        for label, amount in rows:
            yield f"  {label:<32} {hours(amount.board_ms):>14} GPU-h {money(amount.nano):>16}"
    if found.policy:
        yield f"  by the charge policy {visible(found.policy)}, digest of the charges {found.charges_digest}"
    for warning in found.warnings:
        yield f"  {visible(warning.what)}: {visible(warning.detail, _LONGEST)}"
    for blocker in found.status.blockers:
        yield f"  not ready: {visible(blocker, _LONGEST)}"


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
    new_team: Annotated[
        bool, typer.Option("--new-team", help="The team is in neither the team rules nor that month.")
    ] = False,
    author: Author = None,
) -> None:
    """Correct a closed month by a line of its own; a month that is still open is refused (exit code 4).

    The team must be known, and the job in the ledger, so that no amount lands on a misspelt name.
    """
    from gpucost.ledger.db.records import MonthOpen
    from gpucost.reports.base.display import visible
    from gpucost.service.reporting.team_names import allowed_teams

    context, wanted = context_of(ctx), Month.parse(month)
    nano = parse_nano(amount, "--amount")
    board_ms = round_half_even(parse_nano(gpu_hours, "--gpu-hours") * HOUR_MS, NANO)
    with context.ledger() as ledger:
        before = ledger.adjustments(EVERYTHING, wanted)
        if ledger.month(wanted).closed_at_ms is None:
            raise MonthOpen(wanted)
        known = known_teams(context, ledger, wanted)
        if not new_team and team not in known:
            allowed = f"{allowed_teams(team, known)}; another one with --new-team"
            raise InputError("--team", team, allowed)
        if job and ledger.job_window(EVERYTHING, job) is None:
            raise InputError("--job", job, "the uid of a job with usage in the ledger")
        made = ledger.adjust(
            wanted,
            team,
            nano,
            board_ms,
            reason,
            author or user(),
            reference,
            job_uid=job,
        )
    already = "already recorded: " if made in before else ""
    team, reference, reason = (visible(text, _LONGEST) for text in (made.team, made.reference, made.reason))
    typer.echo(f"{already}{made.month} {team}: {plain(made.nano)} {made.currency}, {reference}: {reason}")


@app.command()
def verify(
    ctx: typer.Context,
    month: Annotated[str | None, typer.Argument(metavar="[MONTH]", help="One month; else all.")] = None,
) -> None:
    """Have the database check its pages and indexes, recompute every digest from the lines themselves, and
    compare months, adjustments and API keys with the audit trail; exit code 5 when something is damaged or
    was changed."""
    context, wanted = context_of(ctx), None if month is None else Month.parse(month)
    try:
        with context.ledger() as ledger:
            _look_through(context, ledger)
            findings = ledger.verify(wanted)
            extent = ledger.extent()
            empty = extent is None or (wanted is not None and not ledger.month(wanted).version)
    except LedgerDamaged as error:  # it cannot even be opened, or its tables not be read
        _damaged(context, (str(error),))
    for finding in findings:
        where = f"{finding.month}: " if finding.month else ""
        complain(f"{where}{finding.subject}: {finding.detail}")
    if findings:
        raise typer.Exit(ExitCode.VERIFICATION)
    if empty:
        typer.echo(f"{wanted or 'every month'}: nothing to verify, no windows in the ledger: {_held(extent)}")
        return
    typer.echo(f"{wanted or 'every month'}: the ledger holds what was written")


def _look_through(context: CommandContext, ledger: Ledger) -> None:
    """The database's own check comes first: data read from damaged pages proves nothing."""
    found = ledger.integrity()
    if found.damage:
        _damaged(context, found.damage)
    if found.unchecked:
        complain(f"the indexes were not checked: {found.unchecked}")


def _damaged(context: CommandContext, damage: Sequence[str]) -> NoReturn:
    from gpucost.ledger.retention.backup import file_of

    for each in damage:
        complain(f"damaged: {each}")
    complain(_DAMAGED_SERVER if file_of(context.settings.ledger.database_url()) is None else _DAMAGED_FILE)
    raise typer.Exit(ExitCode.VERIFICATION)


def _held(extent: Window | None) -> str:
    return "it is empty" if extent is None else f"it holds {extent}"


def _coverage(ctx: typer.Context) -> Fraction:
    return Fraction(context_of(ctx).settings.ledger.close_coverage)


def user() -> str:
    """The user who runs this command; in a container, whose users have no names, the number of the user."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"uid {os.getuid()}"
