"""gpucost login, logout, whoami: use a server from now on, and show the identity there."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gpucost.cli.terminal.context import context_of
from gpucost.cli.terminal.exit_codes import complain
from gpucost.domain.errors import ErrorRemark, InputError

if TYPE_CHECKING:
    from gpucost.cli.remote.api_client import CallerIdentity
    from gpucost.cli.remote.server_target import ServerCredential


def login(
    url: Annotated[str, typer.Argument(metavar="URL", help="https://HOST, or http:// on loopback.")],
    key_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="File with an API key, read anew each time.")
    ] = None,
    token_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="File with a token, read anew each time.")
    ] = None,
    ca_file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="PEM file of the authorities to trust for it."),
    ] = None,
) -> None:
    """Ask the gpucost of this address from now on, in place of a ledger: report, allocations, job, waste,
    findings and key do.

    Without a file the key is asked for, or read from stdin, and kept in a file that only you can read. It is
    never an argument: everybody on the machine can see those. --config goes to a ledger all the same.
    """
    from gpucost.cli.remote.api_client import RemoteApi
    from gpucost.cli.remote.server_target import (
        ServerTarget,
        checked_url,
        existing,
        write_login,
    )

    wanted = checked_url(url, "URL")
    authority = None if ca_file is None else existing(ca_file, "--ca-file")
    target = ServerTarget(wanted, _credential(key_file, token_file), authority)
    me = RemoteApi(target).me()
    path = write_login(target)
    if key_file is not None and _is_open(key_file):
        complain(f"others on this machine may read {key_file}: chmod 600 {key_file}")
    typer.echo(f"{wanted}: {described(me)}")
    kept = "the key" if target.credential and target.credential.key else f"where {key_file or token_file} is"
    typer.echo(f"gpucost: {path} holds the address and {kept}; gpucost logout removes it", err=True)


def logout() -> None:
    """Forget the server. A key stays valid until it expires or is revoked."""
    from gpucost.cli.remote.server_target import forget_login

    typer.echo("logged out; the key itself stays valid" if forget_login() else "was not logged in")


def whoami(ctx: typer.Context) -> None:
    """Which server is asked, as whom, and what one may see there."""
    remote = context_of(ctx).remote(quietly=True)
    if remote is None:
        where = "its ledger" if context_of(ctx).config is None else "the ledger of --config"
        typer.echo(f"not logged in: commands go to {where}, and see everything in it")
    else:
        typer.echo(f"{remote.url}: {described(remote.me())}")


def described(me: CallerIdentity) -> str:
    """``ada, viewer of research in all clusters (key)``."""
    from gpucost.reports.base.display import visible

    teams = "" if me.teams is None else f" of {', '.join(me.teams)}"
    clusters = "all clusters" if me.clusters is None else ", ".join(me.clusters)
    return visible(f"{me.id}, {me.role}{teams} in {clusters} ({me.method})", 2_000)


def _credential(key_file: Path | None, token_file: Path | None) -> ServerCredential:
    from gpucost.access.keys import PREFIX
    from gpucost.cli.remote.server_target import ServerCredential, checked_token, existing

    if key_file is not None and token_file is not None:
        raise InputError("--key-file", ErrorRemark("so is --token-file"), "one of the two")
    if token_file is not None:
        return ServerCredential(existing(token_file, "--token-file"))
    if key_file is not None:
        found = ServerCredential(existing(key_file, "--key-file"))
        _require_key(found.read(), "--key-file", PREFIX)
        return found
    typed = typer.prompt("API key", hide_input=True, err=True) if sys.stdin.isatty() else sys.stdin.readline()
    key = checked_token(typed, "key")
    _require_key(key, "key", PREFIX)
    return ServerCredential(key=key)


def _is_open(file: Path) -> bool:
    """Whether it is the user's own and others can read it; a mounted secret is root's."""
    found = file.stat()
    return found.st_uid == os.getuid() and bool(found.st_mode & 0o044)


def _require_key(text: str, where: str, prefix: str) -> None:
    if not text.startswith(prefix):
        raise InputError(
            where, ErrorRemark("holds no API key"), f"a key {prefix}…; of a token use --token-file"
        )
