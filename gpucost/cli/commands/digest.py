"""gpucost digest: all of a week: its cost, its waste, and the actions that save most."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from gpucost.cli.terminal.context import context_of, now_ms
from gpucost.cli.terminal.exit_codes import fields_as
from gpucost.cli.terminal.output import Output, held, write
from gpucost.domain.errors import InputError

if TYPE_CHECKING:
    from gpucost.cli.terminal.context import CommandContext
    from gpucost.notify.render.email import MailContent
    from gpucost.reports.digest.week_model import IsoWeek, WeekDigest


def digest(
    ctx: typer.Context,
    week: Annotated[
        str | None,
        typer.Argument(
            metavar="[WEEK]", help="An ISO week in UTC, such as 2026-W43; else the last whole one."
        ),
    ] = None,
    team: Annotated[str, typer.Option(help="One team, with nothing of the others; else the platform.")] = "",
    format_: Annotated[
        Literal["plain", "html", "json"],
        typer.Option(
            "--format", "-f", help="plain for people, html with charts as pictures, json for programs."
        ),
    ] = "plain",
    output: Output = None,
) -> None:
    """The digest of a week: cost, waste, the three actions that bring most back, the costliest jobs, teams.

    Findings are those that go on now and began before the week ended. docs/digest.md has every number.
    """
    from gpucost.notify.compose.digest import digest_message
    from gpucost.notify.compose.links import MessageLinks
    from gpucost.notify.render import email, plain
    from gpucost.reports.base.document import to_json
    from gpucost.reports.digest.week_model import IsoWeek

    context, named = context_of(ctx), {"week": "WEEK", "window": "WEEK", "team": "--team"}
    with fields_as(named):
        wanted = None if week is None else IsoWeek.parse(week)
        remote = context.remote()
        if remote is not None:  # its links lead to other places than ours: there are none
            found, links = remote.digest(week=week, team=team or None), MessageLinks()
        else:
            found, links = _of_ledger(context, wanted, team), context.settings.notify.links
    if format_ == "json":
        write(to_json(found), output)
        return
    message = digest_message(found, links)
    write(plain.render(message) if format_ == "plain" else _page(email.render(message)), output)


def _page(mail: MailContent) -> str:
    """The HTML of a mail by itself, with its pictures embedded."""
    page = mail.html
    for picture in mail.pictures:
        data = base64.b64encode(picture.png).decode("ascii")
        page = page.replace(f"cid:{picture.cid}", f"data:image/png;base64,{data}")
    return page


def _of_ledger(context: CommandContext, week: IsoWeek | None, team: str) -> WeekDigest:
    """The digest of ``week``; of the last one without it."""
    from gpucost.service.notifications.digests import DigestScheduler
    from gpucost.service.reporting.team_names import unknown_team

    with context.reporting() as reporting:
        digesting = DigestScheduler(reporting, context.teams.budgets)
        wanted = week or digesting.last(now_ms())
        found = None if wanted is None else digesting.week(wanted, team)
        if wanted is None or found is None:
            raise InputError("WEEK", "" if week is None else str(week), held(reporting.ledger, "a week of"))
        if team and team not in (known := digesting.teams(wanted)):
            raise unknown_team(team, set(known), f"no team held anything in {wanted}")
        return found
