"""An API server of a few objects over real HTTP that may be written: versions, conflicts, RBAC by name."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Json = dict[str, Any]

_PATH = re.compile(
    r"/(?:api|apis/(?P<group>[^/]+))/v1(?:/namespaces/(?P<namespace>[^/]+))?/(?P<resource>[^/]+)(?:/(?P<name>[^/]+))?"
)
_VERBS = {"GET": "get", "POST": "create", "PUT": "update", "PATCH": "patch"}


class ObjectServer(ThreadingHTTPServer):
    """``objects`` by path. ``rules`` are those of RBAC: what they do not allow is a 403.

    ``before`` is called with each method and path that is allowed, outside of the lock: it may change objects
    behind the back of who asks, or answer with a status of its own.
    """

    daemon_threads = True

    def __init__(self, rules: Sequence[Mapping[str, Any]]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.rules = list(rules)
        self.objects: dict[str, Json] = {}
        self.asked: list[tuple[str, str, int]] = []
        self.before: Callable[[str, str], int | None] = lambda method, path: None  # noqa: ARG005
        self.lock = threading.RLock()
        self._version = 100

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def put(self, path: str, found: Json) -> None:
        """An object as it is from now on, with a version of its own."""
        with self.lock:
            self._version += 1
            metadata = {**found.get("metadata", {}), "resourceVersion": str(self._version)}
            self.objects[path] = {**deepcopy(found), "metadata": metadata}

    def answered(self, method: str) -> list[int]:
        """The statuses of all answers to ``method``, in order."""
        return [status for asked, _, status in self.asked if asked == method]

    def answer(self, method: str, path: str, body: Any) -> tuple[int, Json]:
        """Status and content."""
        if not self._is_allowed(method, path):
            return 403, {"kind": "Status", "message": f"forbidden: {_VERBS[method]} {path}"}
        if (status := self.before(method, path)) is not None:
            return status, {"kind": "Status", "message": "as the test says"}
        with self.lock:
            status = self._done(method, path, body)
            where = f"{path}/{body['metadata']['name']}" if method == "POST" else path
            return status, self.objects[where] if status < 300 else {"kind": "Status", "message": "no"}

    def _done(self, method: str, path: str, body: Any) -> int:
        if method == "POST":
            where = f"{path}/{body['metadata']['name']}"
            if where in self.objects:
                return 409
            self.put(where, body)
            return 201
        if path not in self.objects:
            return 404
        found = self.objects[path]
        if method == "PUT":
            if body["metadata"].get("resourceVersion") != found["metadata"]["resourceVersion"]:
                return 409
            self.put(path, body)
        if method == "PATCH":
            changed = deepcopy(found)
            if not all(_stepped(changed, step) for step in body):
                return 422
            self.put(path, changed)
        return 200

    def _is_allowed(self, method: str, path: str) -> bool:
        found = _PATH.fullmatch(path)
        assert found is not None, path
        for rule in self.rules:
            names = rule.get("resourceNames")
            if (
                (found["group"] or "") in rule["apiGroups"]
                and found["resource"] in rule["resources"]
                and _VERBS[method] in rule["verbs"]
                and (names is None or found["name"] in names)
            ):
                return True
        return False


def _stepped(found: Json, step: Json) -> bool:
    """One step of a JSON patch (RFC 6902), done in place: test and add."""
    *way, last = step["path"].strip("/").split("/")
    at: Any = found
    for key in way:
        at = at[int(key)] if isinstance(at, list) else at[key]
    if step["op"] == "test":
        return bool(at[last] == step["value"])
    assert step["op"] == "add"
    at[last] = step["value"]
    return True


class _Handler(BaseHTTPRequestHandler):
    server: ObjectServer
    protocol_version = "HTTP/1.1"
    wbufsize = -1  # head and body in one: else each answer waits for an acknowledgement

    def _answer(self) -> None:
        length = int(self.headers.get("Content-Length", 0))
        body = json.loads(self.rfile.read(length)) if length else None
        status, content = self.server.answer(self.command, self.path, body)
        self.server.asked.append((self.command, self.path, status))
        sent = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(sent)))
        self.end_headers()
        self.wfile.write(sent)

    do_GET = do_POST = do_PUT = do_PATCH = _answer

    def log_message(self, format: str, *arguments: object) -> None:
        """Silent."""


@contextmanager
def object_server(rules: Sequence[Mapping[str, Any]]) -> Iterator[ObjectServer]:
    """A running server; stopped, and its socket closed, at the end."""
    with ObjectServer(rules) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
