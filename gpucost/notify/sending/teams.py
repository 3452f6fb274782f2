"""Microsoft Teams: a Workflow that takes adaptive cards. Its messages cannot be changed."""

from __future__ import annotations

import re

from gpucost.notify.channels import NotificationChannel
from gpucost.notify.notices import NoticeDelivery
from gpucost.notify.render import teams
from gpucost.notify.sending.delivery import Refused, Retry
from gpucost.notify.sending.http import ChannelHttpClient, check_status

# What connectors, which Workflows replace, write into a response with status 200.
_FAILED = re.compile(r"message delivery failed|endpoint returned HTTP error (\d{3})", re.IGNORECASE)
_STATUS = re.compile(r"HTTP error (\d{3})", re.IGNORECASE)


def deliver(http: ChannelHttpClient, channel: NotificationChannel, post: NoticeDelivery) -> str:
    """Post it; there is no reference."""
    assert channel.url is not None
    payload = teams.render(post.message, mention=channel.mention)
    answer = check_status(http.send("POST", channel.url.get_secret_value(), payload), http.now_ns())
    if _FAILED.search(answer.text):
        found = _STATUS.search(answer.text)
        status = int(found[1]) if found else 0
        said = (
            f"{answer.host}: answered {answer.status}, but that the delivery failed ({status or 'no status'})"
        )
        raise Retry(said) if status in (0, 429) or status >= 500 else Refused(said)
    return ""
