"""Posts and channels for tests of sending."""

from __future__ import annotations

from typing import Any

from pydantic import SecretStr

from gpucost.domain.time import Month
from gpucost.notify.channels import Channel, Mailbox, Service
from gpucost.notify.message import Fact, Message
from gpucost.notify.notices import Act, Kind, Post
from gpucost.notify.sending.outbox import Outgoing
from tests.support.chat_server import ROOM, TOKEN, ChatServer

NOW_MS = Month(2026, 12).window.start_ms
MESSAGE = Message("GPUs idle", "8 GPUs of team red do nothing", facts=(Fact("Costs", "USD 98.40 a day"),))


def outgoing(act: Act = Act.OPEN, reference: str = "", message: Message = MESSAGE, **values: Any) -> Outgoing:
    given: dict[str, Any] = {
        "channel": "ops",
        "key": "finding:1",
        "created_ms": NOW_MS,
        "due_ms": NOW_MS,
        "id": 1,
    }
    return Outgoing(Post(act=act, message=message, **(given | values)), Kind.FINDING, reference)


def channel(service: Service, url: str, name: str = "ops", **values: Any) -> Channel:
    given: dict[str, Any] = {"allow_http": True, "allow_private": True}
    return Channel(name, service, SecretStr(url), **(given | values))


def slack_webhook(chat: ChatServer, name: str = "ops", **values: Any) -> Channel:
    return channel(Service.SLACK, chat.slack_webhook, name, **values)


def slack_bot(chat: ChatServer, name: str = "ops", **values: Any) -> Channel:
    bot = {"token": SecretStr(TOKEN), "room": ROOM} | values
    return channel(Service.SLACK, chat.slack_api, name, **bot)


def mattermost_bot(chat: ChatServer, name: str = "ops") -> Channel:
    return channel(Service.MATTERMOST, chat.mattermost_api, name, token=SecretStr(TOKEN), room=ROOM)


def mailbox(port: int, **values: Any) -> Channel:
    given: dict[str, Any] = {"security": "none"} | values
    box = Mailbox("127.0.0.1", port, "gpu@example.com", **given)
    return Channel(
        "mail", Service.EMAIL, recipients=("a@example.com", "b@example.com"), mailbox=box, allow_private=True
    )
