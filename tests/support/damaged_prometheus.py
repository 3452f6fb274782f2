"""A server between gpucost and a real Prometheus that hands answers on, damaged.

What the real one answered is kept, so that many readings of the same time cost it one.
"""

from __future__ import annotations

import copy
import json
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs

Document = dict[str, Any]


@dataclass(frozen=True)
class Question:
    """What was asked: the ``number`` of the question since the damage was set, its path and its form."""

    number: int
    path: str
    form: dict[str, str]


Damage = Callable[[Question, Document], Document | bytes]
"""What is answered in place of an answer, which may be changed."""


def as_it_is(question: Question, answer: Document) -> Document:
    """No damage."""
    del question
    return answer


@dataclass
class DamagedPrometheus:
    """The server at ``url``; ``asked`` is how many questions came since the damage was set."""

    real: str
    url: str = ""
    damage: Damage = as_it_is
    asked: int = 0
    _known: dict[tuple[str, bytes], tuple[int, bytes]] = field(default_factory=dict, repr=False)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def answers_with(self, damage: Damage) -> None:
        self.damage, self.asked = damage, 0

    def answer(self, path: str, body: bytes | None) -> tuple[int, bytes]:
        with self._lock:
            status, content = self._real_answer(path, body)
            form = {name: values[0] for name, values in parse_qs((body or b"").decode()).items()}
            question, self.asked = Question(self.asked, path.partition("?")[0], form), self.asked + 1
            if status == 200:
                changed = self.damage(question, copy.deepcopy(json.loads(content)))
                content = changed if isinstance(changed, bytes) else json.dumps(changed).encode()
        return status, content

    def _real_answer(self, path: str, body: bytes | None) -> tuple[int, bytes]:
        key = path, body or b""
        if key not in self._known:
            try:
                with urllib.request.urlopen(urllib.request.Request(self.real + path, data=body)) as found:
                    self._known[key] = found.status, found.read()
            except urllib.error.HTTPError as error:
                with error:
                    self._known[key] = error.code, error.read()
        return self._known[key]


@contextmanager
def damaged_prometheus(real: str) -> Iterator[DamagedPrometheus]:
    """A proxy between clients and the Prometheus at ``real``."""
    between = DamagedPrometheus(real)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True
        wbufsize = -1

        def do_GET(self) -> None:
            self._answer(None)

        def do_POST(self) -> None:
            self._answer(self.rfile.read(int(self.headers.get("Content-Length", 0))))

        def _answer(self, body: bytes | None) -> None:
            status, content = between.answer(self.path, body)
            with suppress(BrokenPipeError, ConnectionResetError):
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

        def log_message(self, format: str, *arguments: object) -> None:
            """Silent."""

    class Server(ThreadingHTTPServer):
        daemon_threads = True

    with Server(("127.0.0.1", 0), Handler) as server:
        between.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield between
        finally:
            server.shutdown()
            thread.join()
