"""A loopback mail server that keeps what it is given; ``refuse`` makes it answer a command with a number."""

from __future__ import annotations

import base64
import socketserver
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from email import policy
from email.message import EmailMessage
from email.parser import BytesParser

USER, PASSWORD = "gpucost", "hunter2"


@dataclass(frozen=True)
class Received:
    """One mail. ``secured`` is whether it came over TLS, ``user`` who logged in."""

    sender: str
    recipients: tuple[str, ...]
    mail: EmailMessage
    secured: bool
    user: str


class SmtpServer(socketserver.ThreadingTCPServer):
    """``received`` are the mails in order. ``refuse`` is command -> answer (``"RCPT": "550 no such"``)."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, context: ssl.SSLContext | None, implicit_tls: bool) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.context = context
        self.implicit_tls = implicit_tls
        self.received: list[Received] = []
        self.refuse: dict[str, str] = {}
        self.commands: list[str] = []

    @property
    def port(self) -> int:
        return int(self.server_address[1])

    def handle_error(self, request: object, client_address: object) -> None:
        """Silent: clients hang up on purpose."""


class _Handler(socketserver.BaseRequestHandler):
    server: SmtpServer

    def handle(self) -> None:
        self.secured, self.user = False, ""
        self.sender, self.recipients = "", list[str]()
        self.file = self.request.makefile("rb")
        if self.server.implicit_tls:
            self._secure()
        self._say("220 loopback ESMTP")
        while line := self.file.readline():
            words = line.decode().strip()
            command = words.upper().partition(" ")[0]
            self.server.commands.append(command)
            if command in self.server.refuse:
                self._say(self.server.refuse[command])
            elif command == "QUIT":
                self._say("221 bye")
                return
            else:
                self._obey(command, words)

    def finish(self) -> None:
        self.file.close()
        self.request.close()

    def _obey(self, command: str, words: str) -> None:
        if command == "EHLO":
            offers = ["AUTH PLAIN"] if self.secured or self.server.context is None else ["STARTTLS"]
            self._say("\r\n".join(["250-loopback", *(f"250-{offer}" for offer in offers), "250 8BITMIME"]))
        elif command == "STARTTLS":
            self._say("220 go on")
            self._secure()
        elif command == "AUTH":
            _, user, password = base64.b64decode(words.split()[2]).decode().split("\0")
            self.user = user if password == PASSWORD else ""
            self._say("235 welcome" if self.user else "535 no")
        elif command == "MAIL":
            self.sender = words.partition("<")[2].partition(">")[0]
            self._say("250 ok")
        elif command == "RCPT":
            self.recipients.append(words.partition("<")[2].partition(">")[0])
            self._say("250 ok")
        elif command == "DATA":
            self._say("354 go on")
            self._take()
        else:
            self._say("250 ok")

    def _take(self) -> None:
        content = b""
        while (line := self.file.readline()) not in (b".\r\n", b""):
            content += line.removeprefix(b".") if line.startswith(b"..") else line
        mail = BytesParser(policy=policy.default).parsebytes(content)
        assert isinstance(mail, EmailMessage)
        received = Received(self.sender, tuple(self.recipients), mail, self.secured, self.user)
        self.server.received.append(received)
        self._say("250 taken")

    def _secure(self) -> None:
        assert self.server.context is not None
        self.file.close()
        self.request = self.server.context.wrap_socket(self.request, server_side=True)
        self.file = self.request.makefile("rb")
        self.secured = True

    def _say(self, words: str) -> None:
        self.request.sendall(f"{words}\r\n".encode())


@contextmanager
def smtp_server(context: ssl.SSLContext | None = None, *, implicit_tls: bool = False) -> Iterator[SmtpServer]:
    """A running server; stopped at the end. With ``context`` it offers STARTTLS, or begins in TLS."""
    with SmtpServer(context, implicit_tls) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
