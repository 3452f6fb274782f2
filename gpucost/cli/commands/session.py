"""gpucost session: who is logged in to the pages in a browser; end such a session."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from gpucost.cli.commands.month import Author, user
from gpucost.cli.terminal.context import context_of
from gpucost.cli.terminal.exit_codes import fields_as
from gpucost.domain.errors import InputError

if TYPE_CHECKING:
    from gpucost.access.sessions import SessionRecord
    from gpucost.cli.remote.api_client import OpenSession

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Sessions of people who are logged in to the pages in a browser: list them, end one.",
)

_OPTIONS = {"id": "ID", "reason": "--reason", "author": "--author"}


@app.command("list")
def list_sessions(ctx: typer.Context) -> None:
    """The sessions that have not expired, newest first: of the logged-in server your own, and for an admin
    all; of a ledger all."""
    remote = context_of(ctx).remote()
    if remote is not None:
        rows = [_told(each) for each in remote.sessions()]
    else:
        with context_of(ctx).ledger() as ledger:
            rows = [_kept(each) for each in ledger.sessions()]
    _print(rows)


@app.command()
def revoke(
    ctx: typer.Context,
    session_id: Annotated[str, typer.Argument(metavar="ID", help="As the list says it.")],
    reason: Annotated[str, typer.Option(help="Why; at most 1,000 characters.")] = "",
    author: Author = None,
) -> None:
    """End a session at once, in every process: its browser has to log in again. What lets its owner log in is
    left as it is: a key (gpucost key revoke), or the account at the issuer."""
    remote = context_of(ctx).remote()
    with fields_as(_OPTIONS):
        if remote is not None:
            remote.revoke_session(session_id, reason)
        else:
            with context_of(ctx).ledger() as ledger:
                if ledger.end_session(session_id, author or user(), reason) is None:
                    raise InputError("id", session_id, "the id of a session: gpucost session list")
    typer.echo(f"the session {session_id} has ended")


def _kept(session: SessionRecord) -> tuple[str, ...]:
    from gpucost.domain.time import iso

    times = (iso(each // 1000 * 1000) for each in (session.created_ms, session.expires_ms))
    state = "open" if session.revoked_ms is None else f"ended by {session.revoked_by}"
    return session.id, session.owner, str(session.method), *times, state


def _told(session: OpenSession) -> tuple[str, ...]:
    times = (each.partition(".")[0].rstrip("Z") + "Z" for each in (session.created_at, session.expires))
    state = "open" if session.ended_by is None else f"ended by {session.ended_by}"
    return session.id, session.owner, session.method, *times, state


def _print(rows: list[tuple[str, ...]]) -> None:
    from gpucost.cli.terminal.columns import TextRow, in_columns, name
    from gpucost.cli.terminal.output import stdout
    from gpucost.reports.base.display import visible

    if not rows:
        typer.echo("nobody is logged in")
        return
    heads = ("id", "who", "by", "since", "until", "state")
    columns = [name(head, least=20) for head in heads]
    console = stdout(whole=True)
    shown = [TextRow([visible(cell, 500) for cell in row]) for row in rows]
    for line in in_columns(columns, shown, console.width):
        console.print(line, soft_wrap=True)
