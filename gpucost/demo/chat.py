"""A chat room on loopback: takes the messages and changes of a Slack bot, and shows them on a page."""

from __future__ import annotations

import hmac
import html
import json
import re
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

ROOM = "C0GPUCOST"
_MOST_BYTES, _MOST_SAID = 1 << 20, 500
# Slack's own marks, in text that was escaped for HTML.
_CODE = re.compile(r"```\n?(.*?)\n?```", re.DOTALL)
_BOLD = re.compile(r"^\*(.+)\*$", re.MULTILINE)
_LINK = re.compile(r"&lt;(https?://[^|&\s]+(?:&amp;[^|&\s]+)*)\|([^&\n]*)&gt;")
_PAGE = """<!doctype html><html lang="en"><meta charset="utf-8"><meta http-equiv="refresh" content="5">
<title>gpucost demo: chat</title><style>
body{{font:15px/1.5 system-ui,sans-serif;max-width:52rem;margin:2rem auto;padding:0 1rem;color:#222}}
article{{border-left:4px solid #4a7;padding:.3rem 1rem;margin:1rem 0;white-space:pre-wrap}}
article article{{margin:.5rem 0 0 1rem}} small{{color:#666;display:block}}
pre{{background:#f4f4f4;padding:.5rem;margin:.3rem 0;overflow-x:auto;font-size:13px}}</style>
<h1>#gpu-costs</h1>{messages}</html>"""


@dataclass
class ChatPost:
    """One message. ``thread`` is the id of the one it answers; ``edits`` how often it was replaced."""

    id: str
    payload: Mapping[str, Any]
    thread: str = ""
    edits: int = 0

    @property
    def lines(self) -> tuple[str, ...]:
        """Its text and that of its blocks, as they were written."""
        return tuple(dict.fromkeys(_texts(self.payload)))


@dataclass
class ChatRoom:
    """The messages of a room. All methods may be called from any thread."""

    token: str
    _said: list[ChatPost] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _count: int = 0

    def post(self, payload: Mapping[str, Any]) -> ChatPost:
        with self._lock:
            self._count += 1
            said = ChatPost(f"1700000000.{self._count:06d}", payload, str(payload.get("thread_ts") or ""))
            self._said = [*self._said, said][-_MOST_SAID:]
            return said

    def update(self, payload: Mapping[str, Any]) -> ChatPost | None:
        with self._lock:
            said = next((each for each in self._said if each.id == payload.get("ts")), None)
            if said is not None:
                said.payload, said.edits = payload, said.edits + 1
            return said

    @property
    def said(self) -> tuple[ChatPost, ...]:
        """The latest 500 messages, oldest first."""
        with self._lock:
            return tuple(self._said)

    def page(self) -> str:
        """HTML of the conversations, newest first."""
        said = self.said
        known = {each.id for each in said}
        shown = "".join(
            _article(first, [each for each in said if each.thread == first.id])
            for first in reversed(said)
            if first.thread not in known
        )
        return _PAGE.format(messages=shown or "<p>Nothing was posted yet.</p>")


class ChatServer(ThreadingHTTPServer):
    """The room's HTTP side, on a free loopback port. ``url`` is the base of Slack's API there."""

    daemon_threads = True

    def __init__(self, room: ChatRoom, port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.room = room

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    @property
    def url(self) -> str:
        return f"{self.address}/api"


class _Handler(BaseHTTPRequestHandler):
    server: ChatServer
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        if self.path != "/":
            self._answer(404, "text/plain", "not here: /")
            return
        self._answer(200, "text/html; charset=utf-8", self.server.room.page())

    def do_POST(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        if not 0 < length <= _MOST_BYTES:
            self.close_connection = True
            self._answer(413, "text/plain", f"a body of 1 to {_MOST_BYTES} bytes")
            return
        try:
            payload = json.loads(self.rfile.read(length))
        except ValueError:
            self._said({"ok": False, "error": "invalid_json"})
            return
        given = self.headers.get("Authorization", "").encode()
        if not hmac.compare_digest(given, f"Bearer {self.server.room.token}".encode()):
            self._said({"ok": False, "error": "invalid_auth"})
        elif self.path == "/api/chat.postMessage":
            self._said({"ok": True, "channel": ROOM, "ts": self.server.room.post(payload).id})
        elif self.path == "/api/chat.update":
            said = self.server.room.update(payload)
            self._said(
                {"ok": False, "error": "message_not_found"}
                if said is None
                else {"ok": True, "channel": ROOM, "ts": said.id}
            )
        else:
            self._said({"ok": False, "error": "unknown_method"})

    def log_message(self, format: str, *args: object) -> None:
        """Logs nothing: the page shows the messages."""

    def _said(self, found: Mapping[str, object]) -> None:
        self._answer(200, "application/json", json.dumps(found))

    def _answer(self, status: int, kind: str, body: str) -> None:
        content = body.encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'")
        self.end_headers()
        self.wfile.write(content)


def _article(said: ChatPost, answers: list[ChatPost]) -> str:
    # The first line is for lock screens. Only markup that is made here is passed through.
    shown = html.escape("\n".join(said.lines[1:] or said.lines))
    shown = _LINK.sub(r'<a href="\1">\2</a>', _BOLD.sub(r"<b>\1</b>", _CODE.sub(r"<pre>\1</pre>", shown)))
    edits = f"<small>changed {said.edits} times</small>" if said.edits else ""
    return f"<article>{shown}{edits}{''.join(_article(each, []) for each in answers)}</article>"


def _texts(payload: object) -> Iterator[str]:
    """Every text of a message, in order, at any depth."""
    if isinstance(payload, Mapping):
        for name, value in payload.items():
            if name == "text" and isinstance(value, str):
                yield value
            elif name in ("text", "blocks", "fields", "elements", "attachments"):
                yield from _texts(value)
    elif isinstance(payload, list):
        for each in payload:
            yield from _texts(each)
