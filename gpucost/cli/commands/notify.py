"""gpucost notify: a sample to a channel, and the messages that wait or were given up."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from gpucost.cli.terminal.context import context_of, now_ms
from gpucost.cli.terminal.exit_codes import complain
from gpucost.domain.errors import ErrorRemark, InputError

if TYPE_CHECKING:
    from gpucost.notify.channels import NotificationChannel
    from gpucost.notify.message import NotificationMessage
    from gpucost.notify.sending.delivery import DeadDelivery

UNDELIVERED = 1
"""Exit code where the sample did not arrive."""

_DEAD_COLUMNS = ("id", "channel", "kind", "act", "given_up", "title", "why")
_STATUS_COLUMNS = ("channel", "service", "waiting", "oldest", "dead")

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Try the channels that people are told on, and send again what did not arrive.",
)

Format = Annotated[
    Literal["table", "json"], typer.Option("--format", "-f", help="table for people, json for programs.")
]


@app.command("test")
def try_channel(
    ctx: typer.Context,
    name: Annotated[str, typer.Argument(metavar="CHANNEL", help="Name of a channel in the settings.")],
) -> None:
    """Send a harmless sample to a channel at once, and say what became of it. Nobody is mentioned, nothing is
    written to the ledger. Exit code 1 where it did not arrive; the reason is on stderr."""
    from gpucost.notify.notices import DeliveryAct, NoticeDelivery, NoticeKind
    from gpucost.notify.sending.delivery import OutgoingDelivery, Refused, Retry
    from gpucost.notify.sending.sender import ChannelTransports

    channels = {channel.name: channel for channel in context_of(ctx).settings.notify.channel_list()}
    if name not in channels:
        raise InputError("CHANNEL", name, _names(channels))
    at_ms = now_ms()
    post = NoticeDelivery(name, f"sample:{at_ms}", DeliveryAct.OPEN, _sample(channels[name]), at_ms, at_ms)
    try:
        ChannelTransports().deliver(channels[name], OutgoingDelivery(post, NoticeKind.DIGEST))
    except (Refused, Retry) as trouble:
        later = "it may pass" if isinstance(trouble, Retry) else "it will not pass by itself"
        complain(f"channel {name}: {trouble}; {later}")
        raise typer.Exit(UNDELIVERED) from None
    typer.echo(f"channel {name}: {channels[name].service.value} took the message")


@app.command()
def status(ctx: typer.Context, format_: Format = "table") -> None:
    """Posts that wait and posts that were given up, by channel. Those of channels that the settings no longer
    have are given up when gpucost serve starts."""
    from gpucost.domain.time import iso

    context = context_of(ctx)
    services = {channel.name: channel.service.value for channel in context.settings.notify.channel_list()}
    with context.ledger() as ledger:
        waiting, dead = ledger.waiting_posts(), ledger.count_dead_posts()
    rows = []
    for name in sorted({*services, *waiting, *dead}):
        found = waiting.get(name)
        values = (
            name,
            services.get(name, "not in the settings"),
            found.count if found else 0,
            iso(found.oldest_ms) if found else "",
            dead.get(name, 0),
        )
        rows.append(dict(zip(_STATUS_COLUMNS, values, strict=True)))
    _print(rows, _STATUS_COLUMNS, format_, "no channels: notify.channels is not set")


@app.command()
def dead(ctx: typer.Context, format_: Format = "table") -> None:
    """Posts that were given up, newest first, at most 1,000 of them, and why. They are kept for 90 days."""
    from gpucost.ledger.stores.outbox import MOST_DEAD

    with context_of(ctx).ledger() as ledger:
        found = ledger.dead_posts()
    _print([_dead_row(each) for each in found], _DEAD_COLUMNS, format_, "nothing was given up")
    if len(found) == MOST_DEAD:
        complain(f"only the newest {MOST_DEAD:,} are listed")


@app.command()
def resend(
    ctx: typer.Context,
    post_id: Annotated[
        int | None, typer.Argument(metavar="ID", help="Number that gpucost notify dead lists.", min=1)
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="All that gpucost notify dead lists.")] = False,
) -> None:
    """Try posts that were given up again. gpucost serve sends them, in its next turn."""
    if (post_id is None) != everything:
        raise InputError(
            "ID", ErrorRemark("missing" if post_id is None else "given beside --all"), "ID or --all"
        )
    with context_of(ctx).ledger() as ledger:
        wanted = [post_id] if post_id is not None else [each.post.id for each in ledger.dead_posts()]
        # Oldest first, as they came.
        count = sum(ledger.revive_post(each, now_ms()) for each in sorted(wanted))
    if post_id is not None and not count:
        raise InputError("ID", post_id, "a number that gpucost notify dead lists")
    typer.echo(f"{count:,} of {len(wanted):,} will be sent again")


def _sample(channel: NotificationChannel) -> NotificationMessage:
    from gpucost.notify.message import MessageFact, MessageTone, NotificationMessage

    facts = (MessageFact("Channel", channel.name), MessageFact("Service", channel.service.value))
    return NotificationMessage(
        "A sample from gpucost",
        "This channel works. Nothing has happened, and there is nothing to do.",
        MessageTone.GOOD,
        facts,
        footer="sent by gpucost notify test",
    )


def _names(channels: Sequence[str] | dict[str, NotificationChannel]) -> str:
    return ", ".join(channels) or "none: notify.channels is not set"


def _dead_row(dead: DeadDelivery) -> dict[str, Any]:
    from gpucost.domain.time import iso

    post = dead.post
    values = (
        post.id,
        post.channel,
        dead.kind.value,
        post.act.value,
        iso(dead.dead_ms),
        post.message.title,
        post.trouble,
    )
    return dict(zip(_DEAD_COLUMNS, values, strict=True))


def _print(rows: Sequence[dict[str, Any]], columns: Sequence[str], format_: str, none: str) -> None:
    from gpucost.cli.terminal.columns import TextColumn, TextRow, in_columns
    from gpucost.cli.terminal.output import stdout, write
    from gpucost.reports.base.display import visible

    if format_ == "json":
        write(json.dumps(rows, indent=2) + "\n", None)
    elif not rows:
        typer.echo(none)
    else:
        notes = columns[-1] == "why"
        heads = columns[:-1] if notes else columns
        shown = [
            TextRow([visible(str(row[name])) for name in heads], visible(row["why"], 500) if notes else "")
            for row in rows
        ]
        layout = [TextColumn(name.replace("_", " "), least=12 if name == "title" else None) for name in heads]
        for line in in_columns(layout, shown, stdout().width, None):
            sys.stdout.write(line.plain.rstrip() + "\n")
