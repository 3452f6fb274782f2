"""A loopback chat: Slack (webhook and Web API), Mattermost (webhook and API) and a Teams Workflow.

It keeps the messages as a reader would see them, and every request; ``script`` makes it misbehave.
"""

from __future__ import annotations

import json
import socket
import ssl
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

TOKEN = "xoxb-loopback-token"
ROOM = "C0LOOPBACK"
SECRET = "T000/B000/hunter2secret"


@dataclass(frozen=True)
class Trouble:
    """One answer instead of the service's own. ``hang`` waits until the server stops or ``hang_s`` are over,
    ``cut`` resets the connection; ``after`` misbehaves only after the message was taken. ``slow_s`` is how
    long the answer takes."""

    status: int = 200
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    hang: bool = False
    hang_s: float = 60.0
    cut: bool = False
    after: bool = False
    slow_s: float = 0.0

    @classmethod
    def json(cls, fields: dict[str, Any], status: int = 200, **headers: str) -> Trouble:
        return cls(status, json.dumps(fields).encode(), headers)


@dataclass(frozen=True)
class Asked:
    """One request; ``payload`` is its JSON."""

    method: str
    path: str
    headers: dict[str, str]
    payload: dict[str, Any]


@dataclass
class Shown:
    """One message in the room. ``thread`` is the id of the message that it answers."""

    id: str
    payload: dict[str, Any]
    thread: str = ""
    edits: int = 0

    @property
    def text(self) -> str:
        """Every word of it."""
        return json.dumps(self.payload, ensure_ascii=False)


class ChatServer(ThreadingHTTPServer):
    """``shown`` are the messages in order, ``asked`` the requests, ``script`` the troubles to come, and
    ``always`` the one after those."""

    daemon_threads = True

    def __init__(self, port: int = 0, context: ssl.SSLContext | None = None) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.asked: list[Asked] = []
        self.shown: list[Shown] = []
        self.script: list[Trouble] = []
        self.always: Trouble | None = None
        self.lock = threading.Lock()
        self.ended = threading.Event()
        self.scheme = "https" if context else "http"
        if context is not None:
            self.socket = context.wrap_socket(self.socket, server_side=True, do_handshake_on_connect=False)

    def handle_error(self, request: object, client_address: object) -> None:
        """Silent: clients hang up on purpose."""

    @property
    def url(self) -> str:
        return f"{self.scheme}://127.0.0.1:{self.server_port}"

    @property
    def slack_webhook(self) -> str:
        return f"{self.url}/services/{SECRET}"

    @property
    def slack_api(self) -> str:
        return f"{self.url}/api"

    @property
    def mattermost_webhook(self) -> str:
        return f"{self.url}/hooks/hunter2secret"

    @property
    def mattermost_api(self) -> str:
        return self.url

    @property
    def teams_workflow(self) -> str:
        return f"{self.url}/workflows/hunter2secret/triggers/manual/paths/invoke?sig=hunter2secret"

    def message(self, message_id: str) -> Shown | None:
        return next((each for each in self.shown if each.id == message_id), None)

    def take(self, asked: Asked) -> tuple[Trouble, bool]:
        """What to answer."""
        with self.lock:
            self.asked.append(asked)
            trouble = self.script.pop(0) if self.script else self.always
            if trouble is not None and not trouble.after:
                return trouble, True
            answer = self._answer(asked)
            return (trouble, True) if trouble is not None else (answer, False)

    def _answer(self, asked: Asked) -> Trouble:
        path, payload = asked.path.partition("?")[0], asked.payload
        if path.startswith(("/services/", "/hooks/")):
            self._show(payload)
            return Trouble(200, b"ok")
        if path.startswith("/workflows/"):
            self._show(payload)
            return Trouble(202)
        if asked.headers.get("authorization") != f"Bearer {TOKEN}":
            if path.startswith("/api/v4/"):
                return Trouble.json({"id": "api.context.session_expired.app_error", "status_code": 401}, 401)
            return Trouble.json({"ok": False, "error": "invalid_auth"})
        if path.startswith("/api/v4/posts"):
            return self._mattermost(asked.method, path, payload)
        return self._slack(path, payload)

    def _slack(self, path: str, payload: dict[str, Any]) -> Trouble:
        if payload.get("channel") != ROOM:
            return Trouble.json({"ok": False, "error": "channel_not_found"})
        if path == "/api/chat.postMessage":
            found = self._show(payload, str(payload.get("thread_ts", "")))
        elif path == "/api/chat.update":
            there = self.message(str(payload.get("ts")))
            if there is None:
                return Trouble.json({"ok": False, "error": "message_not_found"})
            there.payload, there.edits, found = payload, there.edits + 1, there
        else:
            return Trouble.json({"ok": False, "error": "unknown_method"})
        return Trouble.json({"ok": True, "channel": ROOM, "ts": found.id, "message": payload})

    def _mattermost(self, method: str, path: str, payload: dict[str, Any]) -> Trouble:
        if method == "POST" and path == "/api/v4/posts":
            token = payload.get("pending_post_id")
            found = next(
                (each for each in self.shown if token and each.payload.get("pending_post_id") == token), None
            )
            found = found or self._show(payload, str(payload.get("root_id", "")))
            return Trouble.json({"id": found.id, "message": payload.get("message")}, 201)
        there = self.message(path.split("/")[4])
        if method != "PUT" or not path.endswith("/patch") or there is None:
            return Trouble.json({"id": "app.post.get.app_error", "status_code": 404}, 404)
        there.payload, there.edits = there.payload | payload, there.edits + 1
        return Trouble.json({"id": there.id})

    def _show(self, payload: dict[str, Any], thread: str = "") -> Shown:
        shown = Shown(f"17000000{len(self.shown):02}0001", payload, thread)
        self.shown.append(shown)
        return shown


class _Handler(BaseHTTPRequestHandler):
    server: ChatServer

    def do_POST(self) -> None:
        length = int(self.headers.get("Content-Length", "0"))
        headers = {name.lower(): value for name, value in self.headers.items()}
        payload = json.loads(self.rfile.read(length) or b"{}")
        answer, _ = self.server.take(Asked(self.command, self.path, headers, payload))
        if answer.slow_s:
            self.server.ended.wait(answer.slow_s)
        if answer.hang:
            self.server.ended.wait(answer.hang_s)
            answer = Trouble(cut=True)
        if answer.cut:
            # A reset instead of an end: what a dying proxy does.
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.close_connection = True
            self.connection.close()
            return
        with suppress(OSError):
            self.send_response(answer.status)
            for name, value in answer.headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(answer.body)))
            self.send_header("Connection", "close")
            self.end_headers()
            self.wfile.write(answer.body)

    do_PUT = do_POST
    do_GET = do_POST

    def log_message(self, format: str, *arguments: object) -> None:
        """Silent."""


@contextmanager
def chat_server(port: int = 0, context: ssl.SSLContext | None = None) -> Iterator[ChatServer]:
    """A running chat; stopped, its threads joined and its socket closed at the end."""
    with ChatServer(port, context) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.ended.set()
            server.shutdown()
            thread.join()
