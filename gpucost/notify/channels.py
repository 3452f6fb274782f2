"""Where messages go: one channel is one room, mailbox or address of one service."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from pydantic import SecretStr


class ChannelService(StrEnum):
    SLACK = "slack"
    TEAMS = "teams"
    MATTERMOST = "mattermost"
    EMAIL = "email"
    APPRISE = "apprise"


@dataclass(frozen=True, slots=True)
class MailServer:
    """The SMTP server that mail is given to. ``security`` is ``starttls``, ``tls`` or ``none``."""

    host: str
    port: int
    sender: str
    security: str = "starttls"
    username: str = ""
    password: SecretStr | None = None


@dataclass(frozen=True, slots=True)
class NotificationChannel:
    """One destination of messages.

    - Slack and Mattermost: ``url`` is an incoming webhook, whose messages cannot be changed afterwards; or,
      with ``token`` (of a bot) and ``room`` (a channel's id), ``url`` is the base of the API
      (``https://slack.com/api``, ``https://chat.example.com``), and messages are updated in place.
    - Teams: ``url`` of a Workflow that takes adaptive cards.
    - E-mail: ``recipients`` over ``mailbox``; what belongs together has one thread.
    - Apprise: ``url`` is one of its own.

    ``mention`` is called where a message asks for it: written as it stands, in the service's own words (Slack
    ``<!subteam^S012>``, Mattermost ``@oncall``); for Teams a user's address, or ``Name <address>``.
    ``sees_all``: its readers may see every team, so messages may name all of them. ``allow_http``: http
    without TLS is allowed, ``allow_private``: addresses of the cluster or of loopback are.
    """

    name: str
    service: ChannelService
    url: SecretStr | None = None
    token: SecretStr | None = None
    room: str = ""
    recipients: tuple[str, ...] = ()
    mailbox: MailServer | None = None
    mention: str = ""
    sees_all: bool = False
    allow_http: bool = False
    allow_private: bool = False

    @property
    def updates(self) -> bool:
        """Whether a posted message can be replaced in place."""
        return self.token is not None and self.service in (ChannelService.SLACK, ChannelService.MATTERMOST)
