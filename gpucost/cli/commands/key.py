"""gpucost key: API keys, in the ledger and for the settings file; a key is shown once."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from gpucost.cli.commands.month import Author, user
from gpucost.cli.terminal.context import CommandContext, context_of, now_ms
from gpucost.cli.terminal.exit_codes import complain, fields_as
from gpucost.domain.errors import ErrorRemark, GpuCostError, InputError

if TYPE_CHECKING:
    from gpucost.access.keys import KeyRecord
    from gpucost.cli.remote.api_client import IssuedKey
    from gpucost.ledger.ledger import Ledger

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="API keys: make one, list them, revoke one. A key itself is shown once and kept nowhere.",
)

RoleName = Literal["viewer", "team-admin", "finance", "admin", "metrics", "alerts"]
KeyId = Annotated[str, typer.Argument(metavar="ID", help="Name of the key: a-z, 0-9 and dashes.")]
RoleOption = Annotated[
    RoleName,
    typer.Option(help="What it may do: docs/access.md. alerts is for Alertmanager, which only sends."),
]
Team = Annotated[
    list[str] | None,
    typer.Option(metavar="TEAM", help="Team of a viewer or team-admin. May be repeated."),
]
Cluster = Annotated[
    list[str] | None,
    typer.Option(metavar="CLUSTER", help="Cluster that may be seen; else all. May be repeated."),
]
Expires = Annotated[
    str | None, typer.Option(metavar="TIME", help="Day or instant from which it is refused; else never.")
]
_MILLIS = re.compile(r"\.\d+(?=Z$)")
_OPTIONS = {
    "id": "ID",
    "role": "--role",
    "teams": "--team",
    "clusters": "--cluster",
    "expires": "--expires",
    "note": "--note",
    "reason": "--reason",
    "author": "--author",
}


@app.command()
def add(
    ctx: typer.Context,
    key_id: KeyId,
    role: RoleOption = "viewer",
    team: Team = None,
    cluster: Cluster = None,
    expires: Expires = None,
    note: Annotated[str, typer.Option(help="What it is for; at most 1,000 characters.")] = "",
    author: Author = None,
) -> None:
    """Make an API key in the ledger. The key goes to stdout, once; it is accepted within seconds.

    KEY=$(gpucost key add ada --team research). An id is never given again, also after its revocation.
    """
    values = _values(key_id, role, team, cluster, expires)
    context, remarks = context_of(ctx), list[str]()
    remote = context.remote()
    with fields_as(_OPTIONS):
        if remote is not None:
            made = remote.add_key({**values, "note": note})
        else:
            record, made = _new(values, author or user(), note)
            if key_id in {key.id for key in context.settings.api.keys}:
                raise InputError("ID", key_id, "an id that no key has: the settings have one of this name")
            with context.ledger(create=True) as ledger:
                ledger.add_key(record)
                remarks = _remarks(context, ledger, values["teams"])
    for remark in remarks:
        complain(remark)
    typer.echo(f"gpucost: the key {key_id} is shown once; who has it is {role}", err=True)
    typer.echo(made)


@app.command("list")
def list_keys(ctx: typer.Context) -> None:
    """The keys of the ledger, newest first; those of the settings file are there."""
    remote = context_of(ctx).remote()
    if remote is not None:
        rows = [_told(key) for key in remote.api_keys()]
    else:
        with context_of(ctx).ledger() as ledger:
            rows = [_kept(key, now_ms()) for key in ledger.api_keys()]
    _print(rows)


@app.command()
def revoke(
    ctx: typer.Context,
    key_id: KeyId,
    reason: Annotated[str, typer.Option(help="Why; at most 1,000 characters.")] = "",
    author: Author = None,
) -> None:
    """Refuse a key of the ledger from now on, for good: at once by who revokes it, within five seconds by
    other processes. The keys that it made stay valid, and are named."""
    remote = context_of(ctx).remote()
    with fields_as(_OPTIONS):
        if remote is not None:
            made = remote.revoke_key(key_id, reason)
        else:
            with context_of(ctx).ledger() as ledger:
                ledger.revoke_key(key_id, author or user(), reason)
                made = tuple(key.id for key in ledger.valid_keys_of(key_id, now_ms()))
    typer.echo(f"the key {key_id} is revoked")
    if made:
        typer.echo(_still_valid(made))


@app.command("hash")
def hash_key(
    key_id: KeyId,
    role: RoleOption = "viewer",
    team: Team = None,
    cluster: Cluster = None,
    expires: Expires = None,
) -> None:
    """Make an API key for the settings file. The key goes to stderr, once; the settings for it go to stdout,
    without the secret."""
    values = _values(key_id, role, team, cluster, expires)
    with fields_as(_OPTIONS):
        record, made = _new(values, user(), "")
    typer.echo(f"key, shown once: {made}", err=True)
    typer.echo("api:\n  keys:")
    lines = {"id": key_id, "sha256": record.sha256, **values}
    for name, value in lines.items():
        if value or name == "teams":
            typer.echo(f"    {'-' if name == 'id' else ' '} {name}: {value}")


def _values(
    key_id: str, role: str, team: list[str] | None, cluster: list[str] | None, expires: str | None
) -> dict[str, Any]:
    """As the settings and the API name them. Raises InputError for a role that does not go with teams."""
    has_teams = role in ("viewer", "team-admin")
    if has_teams and not team:
        allowed = f"at least one --team, or another --role: a {role} sees its teams only"
        raise InputError("--team", ErrorRemark("missing"), allowed)
    if team and not has_teams:
        raise InputError("--team", ", ".join(team), f"no --team: --role {role} is not bound to teams")
    values = {"id": key_id, "role": role, "teams": list(team or []), "clusters": list(cluster or [])}
    return values if expires is None else {**values, "expires": expires}


def _remarks(context: CommandContext, ledger: Ledger, teams: list[str]) -> list[str]:
    """Warnings about the teams of a new key; none where they cannot be checked, since the key is shown in any
    case."""
    from gpucost.cli.commands.month import unknown_teams

    try:
        return unknown_teams(context, ledger, teams) if teams else []
    except GpuCostError:
        return []


def _new(values: dict[str, Any], author: str, note: str) -> tuple[KeyRecord, str]:
    """A key that is checked like one of the settings, and its text."""
    from dataclasses import replace

    from gpucost.access.keys import format_key, hash_secret, new_secret
    from gpucost.service.settings.api import ApiKey
    from gpucost.service.settings.loader import checked

    secret, now = new_secret(), now_ms()
    made = checked(ApiKey, {**values, "sha256": hash_secret(secret)}, "").record()
    if made.expires_ms is not None and made.expires_ms <= now:
        raise InputError("--expires", values["expires"], "a day or instant that is still to come")
    return replace(made, created_ms=now, created_by=author, note=note), format_key(made.id, secret)


def _kept(key: KeyRecord, now: int) -> Sequence[str]:
    from gpucost.domain.time import iso

    state = "revoked" if key.revoked_ms is not None else "valid" if key.is_valid(now) else "expired"
    times = (
        "never" if key.expires_ms is None else iso(key.expires_ms),
        "never" if key.last_used_ms is None else iso(key.last_used_ms // 1000 * 1000),
    )
    teams = ", ".join(sorted(key.teams))
    return key.id, str(key.role), teams, _all_or(key.clusters), *times, key.created_by, state


def _told(key: IssuedKey) -> Sequence[str]:
    teams = ", ".join(key.teams or ())
    times = (key.expires or "never", _MILLIS.sub("", key.last_used or "never"))
    return key.id, key.role, teams, _all_or(key.clusters), *times, key.created_by, key.state


def _still_valid(made: Sequence[str]) -> str:
    from gpucost.reports.base.display import counted, visible

    names = ", ".join(visible(name) for name in made)
    return f"{counted(len(made), 'valid key')} made in its name: {names}; they stay valid until revoked too"


def _all_or(names: Sequence[str] | frozenset[str] | None) -> str:
    return "all" if names is None else ", ".join(sorted(names))


def _print(rows: list[Sequence[str]]) -> None:
    from gpucost.cli.terminal.columns import TextRow, in_columns, name
    from gpucost.cli.terminal.output import stdout
    from gpucost.reports.base.display import visible

    if not rows:
        typer.echo("no keys in the ledger")
        return
    heads = ("id", "role", "teams", "clusters", "expires", "last used", "made by", "state")
    columns = [name(head, least=6 if head in ("teams", "clusters") else 20) for head in heads]
    console = stdout(whole=True)
    shown = [TextRow([visible(cell, 500) for cell in row]) for row in rows]
    for line in in_columns(columns, shown, console.width):
        console.print(line, soft_wrap=True)
