"""Settings of where messages go: channels and the mail server."""

from __future__ import annotations

import re
from ipaddress import ip_address
from typing import Annotated, Literal, Self
from urllib.parse import urlsplit

from pydantic import BeforeValidator, Field, SecretStr, model_validator

from gpucost.domain.configfile import Text, wrong
from gpucost.domain.errors import ErrorRemark
from gpucost.notify.channels import ChannelService, MailServer, NotificationChannel
from gpucost.notify.sending.address import trouble_with_service
from gpucost.settings.types import ExistingFile, SettingsGroup, secret

SLACK_API = "https://slack.com/api"
_BOTS = (ChannelService.SLACK, ChannelService.MATTERMOST)
_ADDRESS = re.compile(
    r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~.-]{1,64}@[A-Za-z0-9](?:[A-Za-z0-9.-]{0,251}[A-Za-z0-9])?\Z"
)
_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*://.", re.IGNORECASE)
_HOST = re.compile(r"(?=.{1,253}\Z)[A-Za-z0-9_-]{1,63}(\.[A-Za-z0-9_-]{1,63})*\.?\Z")
_HIDDEN = ErrorRemark("its value, not shown here, is wrong")


def _address(value: object) -> object:
    if isinstance(value, str) and _ADDRESS.match(value):
        return value
    raise wrong(value, "a mail address, such as gpu@example.com")


def _host(value: object) -> object:
    if not isinstance(value, str) or not value or _HOST.match(value):
        return value
    try:
        ip_address(value)
    except ValueError:
        # Where a URL stands instead, it may hold a password.
        raise wrong(_HIDDEN, "the name or address of a host, without a port or a scheme") from None
    return value


Address = Annotated[str, BeforeValidator(_address)]
Host = Annotated[str, BeforeValidator(_host)]


class ChannelSettings(SettingsGroup):
    """One room, mailbox or address."""

    name: Text
    """Name of the channel, by which routes and metrics know it."""

    service: ChannelService
    """``slack``, ``teams``, ``mattermost``, ``email`` or ``apprise`` (all other services; needs the extra
    ``gpucost[chat]``).
    """

    url: SecretStr | None = None
    """A secret. Slack, Mattermost: an incoming webhook; with ``token``, the base of the API
    (``https://slack.com/api``, which is Slack's default, ``https://chat.example.com``). Teams: the address of
    a Workflow. Apprise: its own URL. None for e-mail.
    """

    url_file: ExistingFile | None = None
    """File whose content is ``url``, for mounted secrets. Leave ``url`` out then."""

    token: SecretStr | None = None
    """Token of a Slack or Mattermost bot. With it messages are updated in place; a webhook's cannot be."""

    token_file: ExistingFile | None = None
    """File whose content is the token, for mounted secrets."""

    room: str = ""
    """Id of the room a bot posts to (``C0123456789``). Needed with a token, and only then."""

    recipients: tuple[Address, ...] = ()
    """Mail addresses. Needed for e-mail, and only there."""

    mention: Annotated[str, Field(max_length=200, pattern=r"^[^\x00-\x1f]*$")] = ""
    """Who is called when something is escalated, in the service's own words: Slack ``<!subteam^S012>``,
    Mattermost ``@oncall``; for Teams a user's address or ``Name <address>``. Nobody, when it is empty.
    Messages never call anybody else.
    """

    sees_all: bool = False
    """Whether its readers may see every team. Off by default: then it gets the news of teams that its routes
    name, in words that name no other.
    """

    allow_http: bool = False
    """Whether http without TLS is allowed. Off: webhook addresses are secrets, and would travel readable."""

    allow_private: bool = False
    """Whether addresses of the cluster, of private networks or of loopback are allowed. Off, so that a wrong
    address reaches nothing inside; on for a chat server of your own.
    """

    @model_validator(mode="after")
    def _fits_its_service(self) -> Self:
        self._check_parts()
        url, token = self._url(), self._token()
        if token is not None and not (token.isascii() and token.isprintable() and token):
            raise wrong(ErrorRemark("not fit for a header"), "printable ASCII on one line", "token")
        if self.service is ChannelService.EMAIL:
            return self
        if url is None:
            raise wrong(ErrorRemark("missing"), f"url or url_file for {self.service}", "url")
        if self.service is ChannelService.APPRISE:
            if not _SCHEME.match(url):
                raise wrong(_HIDDEN, "one of apprise's URLs: a scheme, ://, and more", "url")
            if trouble := trouble_with_service(url):
                raise wrong(
                    ErrorRemark(trouble),
                    "a service in the network, and no parameter that reads a file",
                    "url",
                )
        else:
            self._check_address(url)
        return self

    def _check_parts(self) -> None:
        is_mail, has_token = self.service is ChannelService.EMAIL, bool(self.token or self.token_file)
        if has_token and self.service not in _BOTS:
            raise wrong(
                ErrorRemark(f"{self.service} takes none"), "a token for slack or mattermost only", "token"
            )
        if has_token != bool(self.room):
            found = ErrorRemark("missing") if has_token else self.room
            raise wrong(found, "a room with a token, and none without", "room")
        if is_mail != bool(self.recipients):
            raise wrong(
                ErrorRemark("missing") if is_mail else list(self.recipients),
                "mail addresses for email, and for no other service",
                "recipients",
            )
        if is_mail and (self.url or self.url_file):
            raise wrong(ErrorRemark("email takes none"), "no url; the mail server is notify.mail", "url")

    def _check_address(self, url: str) -> None:
        allowed = "https:// (http:// with allow_http), a host, no user info and no fragment"
        try:
            parts = urlsplit(url)
            has_host = bool(parts.hostname) and (parts.port is None or parts.port > 0)
        except ValueError:
            raise wrong(_HIDDEN, allowed, "url") from None
        schemes = ("https", "http") if self.allow_http else ("https",)
        is_plain = url.isascii() and url.isprintable() and " " not in url
        if (
            parts.scheme not in schemes
            or not has_host
            or "@" in parts.netloc
            or parts.fragment
            or not is_plain
        ):
            raise wrong(_HIDDEN, allowed, "url")

    def _url(self) -> str | None:
        url = secret(self.url, self.url_file, "url")
        if url is None and self.service is ChannelService.SLACK and (self.token or self.token_file):
            return SLACK_API
        return url

    def _token(self) -> str | None:
        return secret(self.token, self.token_file, "token")

    def channel(self, mailbox: MailServer | None) -> NotificationChannel:
        """The channel itself; ``mailbox`` is given to those of e-mail."""
        url, token = self._url(), self._token()
        return NotificationChannel(
            self.name,
            self.service,
            None if url is None else SecretStr(url),
            None if token is None else SecretStr(token),
            self.room,
            self.recipients,
            mailbox if self.service is ChannelService.EMAIL else None,
            self.mention,
            self.sees_all,
            self.allow_http,
            self.allow_private,
        )


class MailSettings(SettingsGroup):
    """The server that mail is given to."""

    host: Host = ""
    """Its name or address. None by default: channels of e-mail need one."""

    port: Annotated[int, Field(ge=1, le=65535)] = 587
    """TCP port, 1 to 65535. 587 is for handing mail in; 465 goes with ``tls``, 25 with ``none``."""

    sender: Address | Literal[""] = ""
    """Address that mail comes from. Needed with ``host``."""

    security: Literal["starttls", "tls", "none"] = "starttls"
    """``starttls`` (a plain connection that must become an encrypted one), ``tls`` from the first byte, or
    ``none``. Encrypted by default; ``none`` takes no password.
    """

    username: str = ""
    """User name. Not used when empty."""

    password: SecretStr | None = None
    """Password of ``username``."""

    password_file: ExistingFile | None = None
    """File whose content is the password, for mounted secrets."""

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        password = self._password()
        if bool(self.host) != bool(self.sender):
            raise wrong(ErrorRemark("missing"), "host and sender together", "sender" if self.host else "host")
        if bool(self.username) != (password is not None):
            raise wrong(self.username, "username and password together", "username")
        if password is not None and self.security == "none":
            raise wrong("none", "starttls or tls with a password", "security")
        return self

    def _password(self) -> str | None:
        return secret(self.password, self.password_file, "password")

    def mailbox(self) -> MailServer | None:
        """The server, None where none is set."""
        if not self.host:
            return None
        password = self._password()
        hidden = None if password is None else SecretStr(password)
        return MailServer(self.host, self.port, self.sender, self.security, self.username, hidden)
