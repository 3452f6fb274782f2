"""Posts and channels for tests of sending."""

from __future__ import annotations

from typing import Any

from pydantic import SecretStr

from gpucost.domain.time import Month
from gpucost.notify.channels import ChannelService, MailServer, NotificationChannel
from gpucost.notify.message import MessageFact, NotificationMessage
from gpucost.notify.notices import DeliveryAct, NoticeDelivery, NoticeKind
from gpucost.notify.sending.delivery import OutgoingDelivery
from tests.support.chat_server import ROOM, TOKEN, ChatServer

NOW_MS = Month(2026, 12).window.start_ms
MESSAGE = NotificationMessage(
    "GPUs idle", "8 GPUs of team red do nothing", facts=(MessageFact("Costs", "USD 98.40 a day"),)
)


def outgoing(
    act: DeliveryAct = DeliveryAct.OPEN,
    reference: str = "",
    message: NotificationMessage = MESSAGE,
    **values: Any,
) -> OutgoingDelivery:
    given: dict[str, Any] = {
        "channel": "ops",
        "key": "finding:1",
        "created_ms": NOW_MS,
        "due_ms": NOW_MS,
        "id": 1,
    }
    return OutgoingDelivery(
        NoticeDelivery(act=act, message=message, **(given | values)), NoticeKind.FINDING, reference
    )


def channel(service: ChannelService, url: str, name: str = "ops", **values: Any) -> NotificationChannel:
    given: dict[str, Any] = {"allow_http": True, "allow_private": True}
    return NotificationChannel(name, service, SecretStr(url), **(given | values))


def slack_webhook(chat: ChatServer, name: str = "ops", **values: Any) -> NotificationChannel:
    return channel(ChannelService.SLACK, chat.slack_webhook, name, **values)


def slack_bot(chat: ChatServer, name: str = "ops", **values: Any) -> NotificationChannel:
    bot = {"token": SecretStr(TOKEN), "room": ROOM} | values
    return channel(ChannelService.SLACK, chat.slack_api, name, **bot)


def mattermost_bot(chat: ChatServer, name: str = "ops") -> NotificationChannel:
    return channel(ChannelService.MATTERMOST, chat.mattermost_api, name, token=SecretStr(TOKEN), room=ROOM)


def mailbox(port: int, **values: Any) -> NotificationChannel:
    given: dict[str, Any] = {"security": "none"} | values
    box = MailServer("127.0.0.1", port, "gpu@example.com", **given)
    return NotificationChannel(
        "mail",
        ChannelService.EMAIL,
        recipients=("a@example.com", "b@example.com"),
        mailbox=box,
        allow_private=True,
    )
