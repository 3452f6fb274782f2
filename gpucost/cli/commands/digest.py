"""gpucost digest: a week as chats get it: its cost, its waste, and the actions that save most."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from gpucost.cli.terminal.context import context_of, now_ms
from gpucost.cli.terminal.exit_codes import fields_as
from gpucost.cli.terminal.output import Output, held, write
from gpucost.domain.errors import InputError

if TYPE_CHECKING:
    from gpucost.ledger import Ledger
    from gpucost.notify.render.email import MailContent
    from gpucost.reports.digest.week_model import IsoWeek


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
        typer.Option("--format", "-f", help="plain for people, html as it is mailed, json for programs."),
    ] = "plain",
    output: Output = None,
) -> None:
    """The digest of a week: cost, waste, the three actions that bring most back, the costliest jobs, teams.

    Findings are those that go on now and began before the week ended. docs/digest.md has every number.
    """
    from gpucost.notify.compose.digest import digest_message
    from gpucost.notify.render import email, plain
    from gpucost.reports.base.document import to_json
    from gpucost.reports.digest.week_model import IsoWeek
    from gpucost.service.notifications.digests import DigestScheduler

    context = context_of(ctx)
    with fields_as({"week": "WEEK", "window": "WEEK"}), context.reporting() as reporting:
        links = context.settings.notify.links
        digesting = DigestScheduler(reporting, context.teams.budgets)
        wanted = _last(reporting.ledger) if week is None else IsoWeek.parse(week)
        found = None if wanted is None else digesting.week(wanted, team)
        if wanted is None or found is None:
            raise InputError("WEEK", week or "", held(reporting.ledger, "a week of"))
        if team and team not in (known := digesting.teams(wanted)):
            raise InputError("--team", team, ", ".join(known) or f"no team held anything in {wanted}")
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


def _last(ledger: Ledger) -> IsoWeek | None:
    """The last week that has ended, by the clock and by the ledger; where the ledger ends earlier, the week
    it ends in. None for an empty ledger."""
    from gpucost.reports.digest.week_model import IsoWeek

    extent = ledger.extent()
    if extent is None:
        return None
    week = IsoWeek.of(min(extent.end_ms, now_ms())).previous()
    return week if week.window.end_ms > extent.start_ms else IsoWeek.of(extent.end_ms - 1)
