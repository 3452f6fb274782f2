"""gpucost key: a new API key, shown once."""

from __future__ import annotations

import secrets
from typing import Annotated, Literal

import typer


def key(
    key_id: Annotated[str, typer.Argument(metavar="ID", help="Name of the key: a-z, 0-9 and dashes.")],
    role: Annotated[
        Literal["viewer", "finance", "admin", "metrics"], typer.Option(help="What it may read.")
    ] = "viewer",
    team: Annotated[
        list[str] | None, typer.Option(help="Team that a viewer may see. May be repeated.")
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
    checked(ApiKey, values, "")
    typer.echo(f"key, shown once: {format_key(key_id, secret)}", err=True)
    typer.echo("api:\n  keys:")
    for name, value in values.items():
        typer.echo(f"    {'-' if name == 'id' else ' '} {name}: {value}")
