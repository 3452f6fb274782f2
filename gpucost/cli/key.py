"""gpucost key: a new API key, shown once."""

from __future__ import annotations

import secrets
from typing import Annotated, Literal

import typer

from gpucost.cli.context import now_ms
from gpucost.cli.exits import fields_as
from gpucost.domain.errors import InputError, Remark


def key(
    key_id: Annotated[str, typer.Argument(metavar="ID", help="Name of the key: a-z, 0-9 and dashes.")],
    role: Annotated[
        Literal["viewer", "finance", "admin", "metrics", "alerts"],
        typer.Option(help="What it may read; alerts is for Alertmanager, which only sends."),
    ] = "viewer",
    team: Annotated[
        list[str] | None, typer.Option(metavar="TEAM", help="Team that a viewer may see. May be repeated.")
    ] = None,
    expires: Annotated[
        str | None, typer.Option(metavar="TIME", help="Day or instant from which it is refused.")
    ] = None,
) -> None:
    """Make an API key. The key goes to stderr, once; the settings for it go to stdout, without the secret."""
    from gpucost.api.principal import format_key, hash_secret
    from gpucost.service.settings_api import ApiKey
    from gpucost.service.settings_load import checked

    secret = secrets.token_urlsafe(32)
    values = {"id": key_id, "sha256": hash_secret(secret), "role": role, "teams": list(team or [])}
    if expires is not None:
        values["expires"] = expires
    if not team and role == "viewer":
        raise InputError(
            "--team",
            Remark("missing"),
            "at least one --team, or another --role: a viewer sees its teams only",
        )
    if team and role != "viewer":
        raise InputError("--team", ", ".join(team), f"no --team: --role {role} is not bound to teams")
    with fields_as({"id": "ID", "role": "--role", "teams": "--team", "expires": "--expires"}):
        made = checked(ApiKey, values, "")
    if made.expires is not None and made.expires <= now_ms():
        raise InputError("--expires", expires, "a day or instant that is still to come")
    typer.echo(f"key, shown once: {format_key(key_id, secret)}", err=True)
    typer.echo("api:\n  keys:")
    for name, value in values.items():
        typer.echo(f"    {'-' if name == 'id' else ' '} {name}: {value}")
