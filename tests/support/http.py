"""A loopback HTTP server that answers what a script says, and remembers what it was asked."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs


@dataclass(frozen=True)
class Reply:
    """One answer. ``delay_s`` passes before it, ``drip_s`` after each byte of its body, or of its head where
    it ``drips_head``; ``hang_up`` sends nothing.
    Where it is ``held``, it waits for that."""

    status: int = 200
    body: bytes | str | dict[str, object] = b""
    content_type: str = "application/json"
    headers: dict[str, str] = field(default_factory=dict)
    delay_s: float = 0.0
    drip_s: float = 0.0
    drips_head: bool = False
    hang_up: bool = False
    held: threading.Event | None = None

    @property
    def content(self) -> bytes:
        if isinstance(self.body, dict):
            return json.dumps(self.body).encode()
        return self.body.encode() if isinstance(self.body, str) else self.body


@dataclass(frozen=True)
class Asked:
    """One request that came in; ``form`` is its body as a form."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def form(self) -> dict[str, str]:
        return {name: values[0] for name, values in parse_qs(self.body.decode()).items()}


class ScriptedServer(ThreadingHTTPServer):
    """Gives ``replies`` in turn, the last one for ever; ``asked`` holds the requests in order."""

    daemon_threads = True

    def __init__(self, replies: list[Reply]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.replies = list(replies)
        self.asked: list[Asked] = []
        self.lock = threading.Lock()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def next_reply(self, asked: Asked) -> Reply:
        with self.lock:
            self.asked.append(asked)
            return self.replies.pop(0) if len(self.replies) > 1 else self.replies[0]


class _Handler(BaseHTTPRequestHandler):
    server: ScriptedServer
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def _answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        reply = self.server.next_reply(Asked(self.command, self.path, dict(self.headers.items()), body))
        self.close_connection = True
        if reply.hang_up:
            return
        if reply.held is not None:
            reply.held.wait(60)
        time.sleep(reply.delay_s)
        with suppress(BrokenPipeError, ConnectionResetError):
            self._send(reply)

    def _send(self, reply: Reply) -> None:
        self.send_response(reply.status)
        for name, value in {"Content-Type": reply.content_type, **reply.headers}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(reply.content)))
        self.send_header("Connection", "close")
        if reply.drips_head:
            self._drip(b"".join(self._headers_buffer), reply.drip_s)
            self._headers_buffer = []
        self.end_headers()
        if not reply.drip_s:
            self.wfile.write(reply.content)
            return
        self._drip(reply.content, reply.drip_s)

    def _drip(self, content: bytes, pause_s: float) -> None:
        for at in range(len(content)):
            self.wfile.write(content[at : at + 1])
            self.wfile.flush()
            time.sleep(pause_s)

    def log_message(self, format: str, *arguments: object) -> None:
        """Silent."""


@contextmanager
def scripted_server(*replies: Reply) -> Iterator[ScriptedServer]:
    """A running server; stopped, its threads joined and its socket closed at the end."""
    with ScriptedServer(list(replies)) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
