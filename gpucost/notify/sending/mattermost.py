"""Mattermost: an incoming webhook, or the API with a bot's token. A reference is the id of a post.

``pending_post_id`` lets the server recognise a post that comes again within about half a minute.
"""

from __future__ import annotations

import re
from typing import Any

from gpucost.notify.channels import NotificationChannel
from gpucost.notify.notices import DeliveryAct, NoticeDelivery
from gpucost.notify.render import mattermost
from gpucost.notify.sending.delivery import Refused, code
from gpucost.notify.sending.http import ChannelHttpClient, HttpAnswer, check_status

_ID = re.compile(r"[A-Za-z0-9]{1,64}")
_GONE = (403, 404)
"""Statuses of a change to a post that was deleted, or can no longer be edited."""


def deliver(
    http: ChannelHttpClient, channel: NotificationChannel, post: NoticeDelivery, reference: str, token: str
) -> str:
    """Post it, or replace and answer the post of ``reference``; returns the reference from now on."""
    payload = mattermost.render(post.message, mention=channel.mention)
    assert channel.url is not None
    if channel.token is None:
        answer = check_status(http.send("POST", channel.url.get_secret_value(), payload), http.now_ns())
        if answer.text != "ok":
            raise _not_taken(answer)
        return ""
    content = {"message": payload["text"], "props": {"attachments": payload["attachments"]}}
    if not _ID.fullmatch(reference) or post.act is DeliveryAct.OPEN:
        return _posted(http, channel, content, token)
    if post.act is DeliveryAct.ESCALATE:
        _posted(http, channel, content | {"root_id": reference}, token)
        return reference
    answer = _call(http, channel, "PUT", f"/{reference}/patch", content)
    if answer.status in _GONE:
        return _posted(http, channel, content, token)
    check_status(answer, http.now_ns())
    if post.act is DeliveryAct.RESOLVE:
        # The same words in short: a replaced message notifies no one.
        _posted(http, channel, {"message": payload["text"], "root_id": reference}, token)
    return reference


def _posted(
    http: ChannelHttpClient, channel: NotificationChannel, content: dict[str, Any], token: str
) -> str:
    payload = content | {"channel_id": channel.room, "pending_post_id": token}
    answer = check_status(_call(http, channel, "POST", "", payload), http.now_ns())
    found = answer.fields.get("id")
    if not isinstance(found, str) or not _ID.fullmatch(found):
        raise _not_taken(answer)
    return found


def _call(
    http: ChannelHttpClient, channel: NotificationChannel, method: str, path: str, payload: dict[str, Any]
) -> HttpAnswer:
    assert channel.url is not None
    assert channel.token is not None
    url = f"{channel.url.get_secret_value().rstrip('/')}/api/v4/posts{path}"
    headers = {"Authorization": f"Bearer {channel.token.get_secret_value()}"}
    return http.send(method, url, payload, headers)


def _not_taken(answer: HttpAnswer) -> Refused:
    said = f"answered {answer.status}, but not that it took the message"
    return Refused(f"{answer.host}: {said} ({code(answer.text)})")
