"""gpucost ledger: upgrade it, wait for it, back it up, put a backup back, prune what is old, and move closed
months into files and back."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from gpucost.cli.terminal.context import CommandContext, context_of, now_ms
from gpucost.cli.terminal.exit_codes import ExitCode, code_of, complain, fields_as
from gpucost.domain.errors import GpuCostError, LedgerDamaged, LedgerError, LedgerUnavailable
from gpucost.domain.time import SECOND_MS, Month, parse_duration

if TYPE_CHECKING:
    from gpucost.ledger.retention.backup import BackupCheck
    from gpucost.service.ingest.retention_loop import RetentionRun

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Upgrade the ledger's schema, back it up, put a backup back, prune what is old, and move closed "
    "months into Parquet files and back.",
)

_WAIT_MS = 60_000
_VALID_AGAIN = (
    "keys that were revoked since the backup are valid again: look through gpucost key list, and revoke them"
)
_LOOK_S = 2.0

BackupFile = Annotated[Path, typer.Argument(metavar="FILE", help="The backup.")]


@app.command()
def upgrade(ctx: typer.Context) -> None:
    """Migrate the ledger's schema to this program's, or create it, and add up the days that an earlier
    release wrote; once more changes nothing. gpucost serve does the same by itself, ingest the first of it:
    this is for a job that runs before them. It may be stopped, and goes on where it was."""
    from gpucost.ledger.db.database import LedgerDatabase
    from gpucost.ledger.ledger import Ledger
    from gpucost.service.ingest.retention_loop import days_added_up, not_added_up

    context = context_of(ctx)
    url = _url(context)
    with _named(context):
        before = _revision(url) if _is_there(url) else ""
        database = LedgerDatabase.open(url, _WAIT_MS)
        try:
            after, _ = database.revision()
            days = list(Ledger(database, now_ms).add_up_days())
        finally:
            database.close()
    if before == after:
        typer.echo(f"the ledger has revision {after} already: nothing to do")
    else:
        typer.echo(f"the ledger was migrated from revision {before or 'none (no tables)'} to {after}")
    if done := sum(day.done for day in days):
        typer.echo(days_added_up(done))
    for day in days:
        if not day.done:
            complain(not_added_up(day))


@app.command()
def wait(
    ctx: typer.Context,
    timeout: Annotated[str, typer.Option(help="How long at most, such as 5m or 30s.")] = "5m",
) -> None:
    """Wait until the ledger can be reached and has this program's schema: for an init container. Nothing is
    created or migrated. Exit code 4 when the time is over, with the reason; at once for a newer schema."""
    context = context_of(ctx)
    with fields_as({"duration": "--timeout"}):
        until_s = time.monotonic() + parse_duration(timeout) / SECOND_MS
    url, said = _url(context), ""
    with _named(context):
        while reason := _not_ready(url):
            left_s = until_s - time.monotonic()
            if left_s <= 0:
                raise LedgerUnavailable(f"not ready after {timeout}: {reason}")
            if reason != said:
                complain(f"waiting: {reason}")
                said = reason
            time.sleep(min(_LOOK_S, left_s))
    typer.echo("the ledger is ready")


@app.command()
def backup(ctx: typer.Context, file: BackupFile) -> None:
    """Copy a SQLite ledger to a new FILE while the service writes, and look through the copy: its integrity,
    and every digest of it (exit code 4 when it does not verify; there is no FILE then). For PostgreSQL,
    prints the pg_dump command to run instead, with exit code 2."""
    from gpucost.ledger.retention import backup as copies

    context = context_of(ctx)
    url = _url(context)
    with _named(context):
        source = copies.file_of(url)
    if source is None:
        _other_tool("pg_dump", copies.dump_command(url, file))
    with _named(context):
        found = copies.back_up(source, file, _WAIT_MS)
    _say_swept(found)
    typer.echo(f"{file}: {_words(found)}")


@app.command()
def restore(
    ctx: typer.Context,
    file: BackupFile,
    replace: Annotated[
        bool, typer.Option("--replace", help="Put it in the place of a ledger; that one is kept beside it.")
    ] = False,
) -> None:
    """Put the backup FILE where the settings say that the SQLite ledger is, after it was looked through and,
    if it is older, migrated. Stop the service first. For PostgreSQL, prints the pg_restore command to run
    instead, with exit code 2."""
    from gpucost.ledger.retention import backup as copies

    context = context_of(ctx)
    url = _url(context)
    with _named(context):
        target = copies.file_of(url)
    if target is None:
        complain(_VALID_AGAIN)
        _other_tool("pg_restore", copies.restore_command(url, file))
    stamp = datetime.fromtimestamp(now_ms() / SECOND_MS, UTC).strftime("%Y%m%dT%H%M%SZ")
    kept = target.with_name(f"{target.name}.replaced-{stamp}") if replace and target.exists() else None
    with _named(context):
        found = copies.restore(file, target, _WAIT_MS, kept=kept)
    _say_swept(found)
    typer.echo(f"{target}: {_words(found)}")
    if kept is not None:
        typer.echo(f"the ledger that was there is kept as {kept}")
    typer.echo(_of_keys(found))


@app.command()
def prune(
    ctx: typer.Context,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be done.")] = False,
    vacuum: Annotated[
        bool,
        typer.Option(
            "--vacuum",
            help="Then give the room back to the disk (SQLite); takes as much while it runs.",
        ),
    ] = False,
    author: Annotated[str | None, typer.Option(help="Who does this; else the user of this process.")] = None,
) -> None:
    """Fold closed months that are older than retention.detail, seal those older than retention.seal, and
    forget findings that were resolved longer ago than retention.findings: what gpucost serve does once a day.
    A month that fails stays as it is, and the rest is done. Exit code 5 when one does not verify, 4 for other
    errors of the ledger."""
    from gpucost.cli.commands.month import user
    from gpucost.ledger.db.records import FoldRefused, SealRefused
    from gpucost.service.ingest.retention_loop import RetentionRun

    context, failed = context_of(ctx), list[ExitCode]()
    with context.ledger() as ledger:
        retaining = RetentionRun(ledger, context.settings.retention, now_ms)
        for error in _retained(retaining, author or user(), dry_run=dry_run):
            complain(str(context.placed(error) if isinstance(error, LedgerError) else error))
            refused = isinstance(error, FoldRefused | SealRefused)
            failed.append(ExitCode.VERIFICATION if refused else code_of(error))
        if vacuum and not dry_run:
            ledger.vacuum()
        free = ledger.free_bytes()
        if free is not None:
            typer.echo(f"room in the file for new lines: {free / 2**20:,.1f} MiB")
    if failed:
        # What a person must look at first: a month that was changed behind the ledger's back.
        raise typer.Exit(max(failed))


def _retained(retaining: RetentionRun, author: str, *, dry_run: bool) -> Iterator[GpuCostError]:
    """Does what is due, and says it; every failure. None holds up what comes after it."""
    for step in (_fold_due, _seal_due, _forget_old):
        try:
            yield from step(retaining, author, dry_run)
        except GpuCostError as error:
            yield error


def _fold_due(retaining: RetentionRun, author: str, dry_run: bool) -> Iterator[GpuCostError]:
    from gpucost.service.ingest.retention_loop import fold_message, planned

    due = retaining.foldable()
    if not due:
        typer.echo("no closed month is old enough to be folded")
    for plan in due if dry_run else ():
        typer.echo(planned(plan))
    for done in () if dry_run else retaining.fold(author):
        if isinstance(done, LedgerError):
            yield done
        else:
            typer.echo(fold_message(done))


def _seal_due(retaining: RetentionRun, author: str, dry_run: bool) -> Iterator[GpuCostError]:
    from gpucost.service.ingest.retention_loop import seal_message

    for month in retaining.sealable() if dry_run else ():
        typer.echo(f"{month} would be sealed")
    for done in () if dry_run else retaining.seal(author):
        if isinstance(done, LedgerError):
            yield done
        else:
            typer.echo(seal_message(done))
            _say_left(done.left)


def _forget_old(retaining: RetentionRun, _author: str, dry_run: bool) -> Iterator[GpuCostError]:
    from gpucost.service.ingest.retention_loop import forgotten_words

    would_be = "would be forgotten" if dry_run else "forgotten"
    typer.echo(f"{would_be}: {forgotten_words(retaining.forget(dry_run=dry_run))}")
    yield from ()


SealMonth = Annotated[str, typer.Argument(metavar="MONTH", help="A closed month, such as 2026-10.")]
SealAuthor = Annotated[str | None, typer.Option(help="Who does this; else the user of this process.")]


@app.command()
def seal(ctx: typer.Context, month: SealMonth, author: SealAuthor = None) -> None:
    """Move the lines of a closed MONTH out of the database into Parquet files at ledger.sealed: verified
    before, read again and compared before a line is deleted. Reports stay the same, and read the files. Exit
    code 4 when the month does not verify; then nothing is moved."""
    from gpucost.cli.commands.month import user
    from gpucost.service.ingest.retention_loop import seal_message

    with context_of(ctx).ledger() as ledger, fields_as({"month": "MONTH"}):
        done = ledger.seal(Month.parse(month), author=author or user())
    typer.echo(seal_message(done))
    _say_left(done.left)


@app.command()
def unseal(ctx: typer.Context, month: SealMonth, author: SealAuthor = None) -> None:
    """Move the lines of a sealed MONTH back into the database and remove its files, after every digest of the
    month was computed again from them. Exit code 4 when a file is not what it was; then nothing is moved."""
    from gpucost.cli.commands.month import user
    from gpucost.reports.base.display import counted

    with context_of(ctx).ledger() as ledger, fields_as({"month": "MONTH"}):
        done = ledger.unseal(Month.parse(month), author=author or user())
    typer.echo(f"{month} unsealed: {counted(done.lines, 'usage line')} in the database again")
    _say_left(done.left)


@app.command()
def verify(
    ctx: typer.Context,
    month: Annotated[
        str | None, typer.Argument(metavar="MONTH", help="A sealed month; every one without.")
    ] = None,
    deep: Annotated[
        bool,
        typer.Option(
            "--deep",
            help="Compute every digest again from the files, too: their lines are put into the database in a "
            "transaction that is undone.",
        ),
    ] = False,
) -> None:
    """Compare every file of sealed months with the hash that the ledger has of it. Exit code 5 when one is
    missing or was changed, or lies there and is in no list. gpucost month verify does the same, and checks
    everything else."""
    with context_of(ctx).ledger() as ledger, fields_as({"month": "MONTH"}):
        months = ledger.sealed_months() if month is None else (Month.parse(month),)
        found = [finding for each in months for finding in ledger.verify_sealed(each, deep=deep)]
    for finding in found:
        typer.echo(f"{finding.month}: {finding.subject}: {finding.detail}")
    if found:
        raise typer.Exit(ExitCode.VERIFICATION)
    names = ", ".join(map(str, months))
    typer.echo(f"{names}: every file is what was sealed" if months else "no month is sealed")


def _say_left(left: Iterable[str]) -> None:
    from gpucost.service.ingest.retention_loop import left_message

    for reason in left:
        complain(left_message(reason))


def _url(context: CommandContext) -> str:
    context.refuse_server()
    return context.settings.ledger.database_url()


def _is_there(url: str) -> bool:
    """Whether the ledger exists: reading the revision must not create the file."""
    from gpucost.ledger.retention.backup import file_of

    file = file_of(url)
    return file is None or file.exists()


def _revision(url: str) -> str:
    from gpucost.ledger.db.database import LedgerDatabase

    database = LedgerDatabase.unchecked(url, _WAIT_MS, create=False)
    try:
        return database.revision()[0]
    finally:
        database.close()


def _not_ready(url: str) -> str:
    """Why the ledger cannot be used yet; empty when it can. Raises LedgerTooNew."""
    from gpucost.ledger.db.database import LedgerDatabase

    try:
        database = LedgerDatabase.unchecked(url, _WAIT_MS, create=False)
        try:
            found, newest = database.revision()
        finally:
            database.close()
    except LedgerUnavailable as error:
        return str(error)
    if found == newest:
        return ""
    has = f"revision {found}" if found else "no tables"
    return f"the ledger has {has}, this program needs {newest}: gpucost ledger upgrade brings it there"


@contextmanager
def _named(context: CommandContext) -> Iterator[None]:
    """Errors of the database name the setting and the place."""
    from gpucost.service.wiring.ledger import ledger_place

    try:
        with fields_as({"ledger URL": "ledger.url"}):
            yield
    except LedgerError as error:
        if type(error) not in (LedgerError, LedgerDamaged, LedgerUnavailable):
            raise
        raise type(error)(f"ledger.url {ledger_place(context.settings)}: {error}") from error


def _other_tool(name: str, command: str) -> NoReturn:
    """The command alone on stdout, so that it can be run from there."""
    complain(
        f"a PostgreSQL ledger is copied by PostgreSQL's own {name}; the password comes from PGPASSWORD or "
        "~/.pgpass. Run:"
    )
    typer.echo(command)
    raise typer.Exit(ExitCode.USAGE)


def _of_keys(found: BackupCheck) -> str:
    """The keys that a restored ledger accepts: a backup does not know later revocations."""
    from gpucost.reports.base.display import counted

    now = now_ms()
    valid = counted(sum(key.is_valid(now) for key in found.keys), "valid API key")
    if found.carried is None:
        return f"{valid} in it; {_VALID_AGAIN}"
    return f"{valid} in it; {counted(found.carried, 'key')} revoked since the backup stayed revoked"


def _say_swept(found: BackupCheck) -> None:
    for draft in found.swept:
        complain(f"removed {draft}: half a copy, left by a backup or restore that was killed")


def _words(found: BackupCheck) -> str:
    from gpucost.reports.base.display import counted

    closed = f"{counted(len(found.closed), 'closed month')}" if found.closed else "no closed month"
    proven = "every digest verified" if found.verified else "of an older schema: restoring verifies it"
    return (
        f"{found.size / 2**20:,.1f} MiB, revision {found.revision}, {counted(found.windows, 'window')}, "
        f"{closed}; {proven}"
    )
