"""A small API server over real HTTP that plays a script of lists and watches, faults included."""

from __future__ import annotations

import json
import ssl
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, urlsplit


@dataclass(frozen=True)
class Answer:
    """One answer. ``chunks`` go out one by one, then ``ending`` happens:

    ``end`` (a proper end), ``cut`` (the connection breaks inside the body), ``silence`` (nothing more
    comes, and the connection stays open, until the client leaves or the server stops).
    """

    status: int = 200
    chunks: tuple[bytes, ...] = ()
    ending: str = "end"
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Asked:
    """One request. ``at_s`` is when it came, of a clock that never goes back."""

    path: str
    params: dict[str, str]
    headers: dict[str, str]
    at_s: float = field(default_factory=time.monotonic, compare=False)

    @property
    def is_watch(self) -> bool:
        return self.params.get("watch") == "true"


class KubeServer(ThreadingHTTPServer):
    """Gives the answers of the script in turn; when they are used up it refuses with 503."""

    daemon_threads = True

    def __init__(self, script: Sequence[Answer], tls: ssl.SSLContext | None = None) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        if tls is not None:
            self.socket = tls.wrap_socket(self.socket, server_side=True, do_handshake_on_connect=False)
        self.scheme = "http" if tls is None else "https"
        self.script = list(script)
        self.asked: list[Asked] = []
        self.stopping = threading.Event()
        self.waiting = threading.Event()
        self.lock = threading.Lock()

    @property
    def url(self) -> str:
        return f"{self.scheme}://127.0.0.1:{self.server_port}"

    def next_answer(self, asked: Asked) -> Answer:
        with self.lock:
            self.asked.append(asked)
            return self.script.pop(0) if self.script else Answer(503)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients that leave early are part of the tests."""


class _Handler(BaseHTTPRequestHandler):
    server: KubeServer
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        asked = Asked(url.path, dict(parse_qsl(url.query)), dict(self.headers.items()))
        answer = self.server.next_answer(asked)
        self.close_connection = True
        with suppress(OSError):
            self._send(answer)

    def _send(self, answer: Answer) -> None:
        self.send_response(answer.status)
        for name, value in {"Content-Type": "application/json", **answer.headers}.items():
            self.send_header(name, value)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for chunk in answer.chunks:
            self.wfile.write(b"%x\r\n%s\r\n" % (len(chunk), chunk))
            self.wfile.flush()
        if answer.ending == "silence":
            self.server.waiting.set()
            self.server.stopping.wait(30)
        elif answer.ending == "end":
            self.wfile.write(b"0\r\n\r\n")

    def log_message(self, format: str, *arguments: object) -> None:
        """Silent."""


@contextmanager
def kube_server(*script: Answer, tls: ssl.SSLContext | None = None) -> Iterator[KubeServer]:
    """A running server; stopped, and its socket closed, at the end."""
    with KubeServer(script, tls) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.stopping.set()
            server.shutdown()
            thread.join()


def listed(*items: Any, version: str = "100", token: str = "", **headers: str) -> Answer:
    """A page of a list."""
    body = {"kind": "List", "metadata": {"resourceVersion": version, "continue": token}, "items": items}
    return Answer(chunks=(json.dumps(body).encode(),), headers=headers)


def watched(*lines: Any, ending: str = "end") -> Answer:
    """A watch: each line is a chunk; bytes go out as they are."""
    return Answer(
        chunks=tuple(
            line if isinstance(line, bytes) else json.dumps(line).encode() + b"\n" for line in lines
        ),
        ending=ending,
    )


def refused(status: int, message: str = "no", **headers: str) -> Answer:
    """A status, with Kubernetes' own words."""
    body = json.dumps({"kind": "Status", "code": status, "message": message}).encode()
    return Answer(status, (body,), headers={name.replace("_", "-"): value for name, value in headers.items()})


def event(kind: str, found: dict[str, Any]) -> dict[str, Any]:
    """One event of a watch."""
    return {"type": kind, "object": found}


def bookmark(version: str) -> dict[str, Any]:
    """A bookmark."""
    return event("BOOKMARK", {"kind": "Pod", "metadata": {"resourceVersion": version}})


def expired() -> dict[str, Any]:
    """The ERROR event of a watch that asks for what is compacted away."""
    return event("ERROR", {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old"})


def pod(
    name: str, uid: str = "", version: int | str = 1, created: str = "2026-01-05T08:00:00Z", **rest: Any
) -> dict[str, Any]:
    """A pod on node gpu-1; ``rest`` is merged into ``spec``, ``status`` and ``metadata`` by key."""
    metadata = {
        "namespace": "team",
        "name": name,
        "uid": uid or f"uid-{name}",
        "resourceVersion": str(version),
        "creationTimestamp": created,
    }
    return {
        "kind": "Pod",
        "metadata": {**metadata, **rest.get("metadata", {})},
        "spec": {"nodeName": "gpu-1", **rest.get("spec", {})},
        "status": {"phase": "Running", **rest.get("status", {})},
    }
