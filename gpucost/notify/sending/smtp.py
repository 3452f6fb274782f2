"""E-mail over SMTP. Related mails share one thread: a reference is the Message-ID of the first mail.

The id of a mail is made from the post, so that servers and mail programs can recognize a mail that was handed
over twice.
"""

from __future__ import annotations

import smtplib
import socket
import ssl
from dataclasses import dataclass
from email.message import EmailMessage
from email.utils import formatdate

import gpucost
from gpucost.notify.channels import MailServer, NotificationChannel
from gpucost.notify.notices import DeliveryAct, NoticeDelivery
from gpucost.notify.render import email
from gpucost.notify.sending.delivery import Refused, Retry
from gpucost.notify.sending.network import (
    ConnectionDeadline,
    Resolve,
    checked_addresses,
    connected,
    resolve,
    within,
)

TOTAL_S = 30.0
"""For a whole mail, from the server's name to its last word."""


@dataclass(frozen=True)
class SmtpMailer:
    """How to reach a mail server. ``context`` is TLS's; None takes the system's authorities."""

    allow_private: bool = False
    total_s: float = TOTAL_S
    context: ssl.SSLContext | None = None
    resolve: Resolve = resolve

    def deliver(
        self, channel: NotificationChannel, post: NoticeDelivery, reference: str, token: str, at_ms: int
    ) -> str:
        """Hand the mail over; returns the Message-ID of its thread. Raises Retry, Refused."""
        mailbox = channel.mailbox
        if mailbox is None:
            raise Refused("notify.mail: no mail server is set")
        message_id = f"<{token}@{mailbox.sender.rpartition('@')[2]}>"
        mime = email.render(post.message, mention=channel.mention).mime(mailbox.sender, channel.recipients)
        mime["Date"] = formatdate(at_ms / 1000)
        mime["Message-ID"] = message_id
        mime["Auto-Submitted"] = "auto-generated"
        mime["X-Mailer"] = f"gpucost/{gpucost.__version__}"
        is_answer = bool(reference) and post.act is not DeliveryAct.OPEN
        if is_answer:
            mime["In-Reply-To"] = reference
            mime["References"] = reference
        with within(self.total_s) as deadline:
            try:
                self._hand_over(mailbox, mime, deadline)
            except (smtplib.SMTPException, OSError) as error:
                raise _outcome(mailbox.host, error, deadline) from None
        return reference if is_answer else message_id

    def _hand_over(self, mailbox: MailServer, mime: EmailMessage, deadline: ConnectionDeadline) -> None:
        context = self.context or ssl.create_default_context()
        with _Session(self, mailbox, context, deadline) as session:
            session.ehlo_or_helo_if_needed()
            if mailbox.security == "starttls":
                session.starttls(context=context)
                session.ehlo_or_helo_if_needed()
            if mailbox.username and mailbox.password is not None:
                session.login(mailbox.username, mailbox.password.get_secret_value())
            # Some recipients may be refused: the others have the mail, and repeating it would send it to them
            # again. smtplib raises when none is left.
            session.send_message(mime)


class _Session(smtplib.SMTP):
    """Connects to an address that was checked, before the deadline. TLS asks for the server's name."""

    def __init__(
        self, mailer: SmtpMailer, mailbox: MailServer, context: ssl.SSLContext, deadline: ConnectionDeadline
    ) -> None:
        self._mailer = mailer
        self._mailbox = mailbox
        self._context = context
        self._deadline = deadline
        # Not the machine's own name, which smtplib would look up in DNS and send to the server.
        super().__init__(mailbox.host, mailbox.port, local_hostname="gpucost.invalid", timeout=mailer.total_s)

    def _get_socket(self, host: str, port: int, timeout: float) -> socket.socket:
        """smtplib's own place for another way to connect; SMTP_SSL uses it too."""
        del timeout
        mailer, deadline = self._mailer, self._deadline
        addresses = checked_addresses(
            host, port, deadline, allow_private=mailer.allow_private, resolve=mailer.resolve
        )
        connection = connected(host, port, deadline, addresses, _connect)
        deadline.watch(connection)
        connection.settimeout(deadline.left_s)
        if self._mailbox.security == "tls":
            return self._context.wrap_socket(connection, server_hostname=host)
        return connection


def _connect(address: str, port: int, timeout_s: float) -> socket.socket:
    return socket.create_connection((address, port), timeout_s)


def _outcome(host: str, error: Exception, deadline: ConnectionDeadline) -> Retry | Refused:
    """The meaning of an error. Of the server's response only its number is used: it may quote addresses."""
    if deadline.is_over or isinstance(error, TimeoutError):
        return Retry(f"{host}: not done in time")
    if isinstance(error, smtplib.SMTPNotSupportedError):
        return Refused(f"{host}: the mail server has not what the settings ask for (STARTTLS, AUTH or UTF-8)")
    if isinstance(error, smtplib.SMTPRecipientsRefused):
        codes = sorted({number for number, _ in error.recipients.values()})
        said = f"{host}: the mail server refuses every recipient ({', '.join(map(str, codes))})"
        return Refused(said) if min(codes) >= 500 else Retry(said)
    if isinstance(error, smtplib.SMTPResponseException):
        said = f"{host}: the mail server answered {error.smtp_code} ({type(error).__name__})"
        return Refused(said) if error.smtp_code >= 500 else Retry(said)
    if isinstance(error, ssl.SSLError):
        return Retry(f"{host}: no TLS ({error.reason or type(error).__name__})")
    return Retry(f"{host}: the connection broke off ({type(error).__name__})")
