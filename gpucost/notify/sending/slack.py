"""Slack: an incoming webhook, or the Web API with a bot's token.

A webhook's messages cannot be changed, and it answers with the word ``ok`` or a code. The API answers 200
also where it refused: ``{"ok": false, "error": CODE}``. A reference is ``CHANNEL ID:TS``. Slack has no key by
which an app could make a repeated post one (``client_msg_id`` is for its own clients,
slackapi/java-slack-sdk#852), so a post may come twice.
"""

from __future__ import annotations

from typing import Any

from gpucost.domain.backoff import retry_after_s
from gpucost.notify.channels import NotificationChannel
from gpucost.notify.notices import DeliveryAct, NoticeDelivery
from gpucost.notify.render import slack
from gpucost.notify.sending.delivery import Refused, Retry, code
from gpucost.notify.sending.http import ChannelHttpClient, HttpAnswer, check_status

# Errors of the Web API after which the same call may succeed.
_MAY_PASS = frozenset(
    (
        "ratelimited",
        "rate_limited",
        "message_limit_exceeded",
        "internal_error",
        "fatal_error",
        "service_unavailable",
        "request_timeout",
        "team_added_to_org",
    )
)
# The message is no longer one that can be replaced: it is posted again.
_LOST = frozenset(("message_not_found", "cant_update_message", "edit_window_closed"))


class LostMessage(Refused):
    """The message that should be replaced does not exist any more."""


def deliver(
    http: ChannelHttpClient, channel: NotificationChannel, post: NoticeDelivery, reference: str
) -> str:
    """Post it, or replace and answer the post of ``reference``; returns the reference from now on."""
    payload = slack.render(post.message, mention=channel.mention)
    if channel.token is None:
        _by_webhook(http, channel, payload)
        return ""
    room, _, ts = reference.rpartition(":")
    if not (room and ts) or post.act is DeliveryAct.OPEN:
        return _posted(http, channel, payload)
    if post.act is DeliveryAct.ESCALATE:
        _call(http, channel, "chat.postMessage", _answer(payload, room, ts) | {"reply_broadcast": True})
        return reference
    try:
        _call(http, channel, "chat.update", payload | {"channel": room, "ts": ts})
    except LostMessage:
        return _posted(http, channel, payload)
    if post.act is DeliveryAct.RESOLVE:
        # The same words in short: a replaced message notifies no one.
        short = {name: value for name, value in payload.items() if name != "blocks"}
        _call(http, channel, "chat.postMessage", _answer(short, room, ts))
    return reference


def _answer(payload: dict[str, Any], room: str, ts: str) -> dict[str, Any]:
    return payload | {"channel": room, "thread_ts": ts}


def _posted(http: ChannelHttpClient, channel: NotificationChannel, payload: dict[str, Any]) -> str:
    answer = _call(http, channel, "chat.postMessage", payload | {"channel": channel.room})
    room, ts = answer.get("channel"), answer.get("ts")
    return f"{room}:{ts}" if isinstance(room, str) and isinstance(ts, str) else ""


def _by_webhook(http: ChannelHttpClient, channel: NotificationChannel, payload: dict[str, Any]) -> None:
    assert channel.url is not None
    answer = check_status(http.send("POST", channel.url.get_secret_value(), payload), http.now_ns())
    if answer.text != "ok":
        fields = answer.fields
        _refuse(answer, http, fields.get("error") if fields else answer.text)


def _call(
    http: ChannelHttpClient, channel: NotificationChannel, method: str, payload: dict[str, Any]
) -> dict[str, Any]:
    assert channel.url is not None
    assert channel.token is not None
    url = f"{channel.url.get_secret_value().rstrip('/')}/{method}"
    headers = {"Authorization": f"Bearer {channel.token.get_secret_value()}"}
    answer = check_status(http.send("POST", url, payload, headers), http.now_ns())
    fields = answer.fields
    if fields.get("ok") is not True:
        _refuse(answer, http, fields.get("error"))
    return fields


def _refuse(answer: HttpAnswer, http: ChannelHttpClient, error: object) -> None:
    said = f"{answer.host}: answered {answer.status}, but not that it took the message ({code(error)})"
    if error in _MAY_PASS:
        raise Retry(said, retry_after_s(answer.headers.get("retry-after"), http.now_ns()))
    raise LostMessage(said) if error in _LOST else Refused(said)
