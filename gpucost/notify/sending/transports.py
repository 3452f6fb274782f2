"""A post, by the way of its channel's service."""

from __future__ import annotations

import hashlib
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass

from gpucost.notify.channels import Channel, Service
from gpucost.notify.notices import Act, Post
from gpucost.notify.sending import apprise_, mattermost, slack, teams
from gpucost.notify.sending.http import Http
from gpucost.notify.sending.network import Resolve, resolve
from gpucost.notify.sending.outbox import Outgoing
from gpucost.notify.sending.outcome import Refused
from gpucost.notify.sending.smtp import Mailer

Deliver = Callable[[Channel, Outgoing], str]
"""Posts it; the service's name of the conversation's message from now on, empty where it has none. Raises
Retry and Refused, and nothing else that can be foreseen. Ends in bounded time."""


@dataclass(frozen=True)
class Transports:
    """All services. ``context`` is TLS's (None: the system's authorities), ``now_ns`` the clock."""

    context: ssl.SSLContext | None = None
    resolve: Resolve = resolve
    now_ns: Callable[[], int] = time.time_ns

    def deliver(self, channel: Channel, outgoing: Outgoing) -> str:
        """See Deliver. An update for a channel whose messages cannot be changed is left out."""
        post, reference = outgoing.post, outgoing.reference
        if post.act is Act.UPDATE and not channel.updates:
            return reference
        if channel.service is Service.EMAIL:
            mailer = Mailer(channel.allow_private, context=self.context, resolve=self.resolve)
            at_ms = self.now_ns() // 1_000_000
            return mailer.deliver(channel, post, reference, token_of(post), at_ms)
        if channel.url is None:
            raise Refused("url: none is set")
        if channel.service is Service.APPRISE:
            return apprise_.deliver(channel, post)
        http = Http(
            channel.allow_http,
            channel.allow_private,
            context=self.context,
            resolve=self.resolve,
            now_ns=self.now_ns,
        )
        if channel.service is Service.SLACK:
            return slack.deliver(http, channel, post, reference)
        if channel.service is Service.MATTERMOST:
            return mattermost.deliver(http, channel, post, reference, token_of(post))
        return teams.deliver(http, channel, post)


def token_of(post: Post) -> str:
    """The same for every try of a post, and for no other post."""
    own = f"{post.channel}\0{post.key}\0{post.act}\0{post.id}\0{post.message!r}"
    return hashlib.sha256(own.encode(errors="replace")).hexdigest()[:40]
