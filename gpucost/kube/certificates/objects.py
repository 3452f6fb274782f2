"""The two objects that hold certificates, over the API of Kubernetes. Each is named, none is listed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Protocol
from urllib.parse import quote

from gpucost.domain.errors import shorten
from gpucost.kube.certificates.kept import Kept
from gpucost.kube.connect.transport import Response, TransportError

_TIMEOUT_S = 10.0
_OK, _CREATED, _NOT_FOUND, _CONFLICT, _UNPROCESSABLE = 200, 201, 404, 409, 422
_CONFIGURATIONS = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"
_JSON, _JSON_PATCH = "application/json", "application/json-patch+json"

Object = dict[str, Any]


class NotTaken(Exception):
    """The API server answered, but not as wanted; ``status`` is its HTTP status."""

    def __init__(self, status: int, message: str) -> None:
        self.status = status
        super().__init__(message)


class Outdated(NotTaken):
    """Somebody else was faster: read again."""


class Writing(Protocol):
    """A way to the API server that may also write, such as ``HttpxTransport``."""

    def send(
        self, method: str, path: str, timeout_s: float, body: bytes = b"", content_type: str = ""
    ) -> Response:
        """One request. Raises ``TransportError``; an HTTP status, whatever it is, is an answer."""


class Objects:
    """Raises TransportError, NotTaken, and Outdated from everything."""

    def __init__(self, transport: Writing, namespace: str, secret: str, configuration: str) -> None:
        self._transport, self._namespace, self._secret = transport, namespace, secret
        self._secrets = f"/api/v1/namespaces/{quote(namespace, safe='')}/secrets"
        self._configuration = f"{_CONFIGURATIONS}/{quote(configuration, safe='')}"

    def secret(self) -> Object | None:
        """None where there is none."""
        return self._asked("GET", f"{self._secrets}/{self._secret}")

    def configuration(self) -> Object | None:
        """None where there is none."""
        return self._asked("GET", self._configuration)

    def keep(self, kept: Kept, before: Object | None) -> Object:
        """Write the Secret: made anew where ``before`` is None, else only if it still is ``before``."""
        annotations = {name: value for name, value in kept.annotations().items() if value is not None}
        if before is None:
            made = {
                "apiVersion": "v1",
                "kind": "Secret",
                "type": "kubernetes.io/tls",
                "metadata": {
                    "name": self._secret,
                    "namespace": self._namespace,
                    "labels": {"app.kubernetes.io/managed-by": "gpucost"},
                    "annotations": annotations,
                },
                "data": kept.data(),
            }
            return self._written("POST", self._secrets, made, _JSON)
        metadata = dict(before.get("metadata") or {})
        others = {
            name: value
            for name, value in (metadata.get("annotations") or {}).items()
            if name not in kept.annotations()
        }
        metadata["annotations"] = others | annotations
        changed = {**before, "apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": kept.data()}
        return self._written("PUT", f"{self._secrets}/{self._secret}", changed, _JSON)

    def trust(self, configuration: Object, bundle: str) -> None:
        """Set the ``caBundle`` of every webhook, and nothing else, if the configuration still is this one."""
        steps: list[Object] = [
            {"op": "test", "path": "/metadata/resourceVersion", "value": _version(configuration)}
        ]
        for number in range(len(configuration.get("webhooks") or ())):
            path = f"/webhooks/{number}/clientConfig/caBundle"
            steps.append({"op": "add", "path": path, "value": bundle})
        self._written("PATCH", self._configuration, steps, _JSON_PATCH)

    def _asked(self, method: str, path: str) -> Object | None:
        status, found = self._answer(method, path)
        if status == _NOT_FOUND:
            return None
        if status != _OK:
            raise NotTaken(status, _message(status, found))
        return _object(found)

    def _written(self, method: str, path: str, body: Any, content_type: str) -> Object:
        status, found = self._answer(method, path, json.dumps(body).encode(), content_type)
        # A test of a JSON patch that fails is a 422; so is an object that is refused, which a new look shows.
        if status == _CONFLICT or (status == _UNPROCESSABLE and method == "PATCH"):
            raise Outdated(status, _message(status, found))
        if status not in {_OK, _CREATED}:
            raise NotTaken(status, f"{method}: {_message(status, found)}")
        return _object(found)

    def _answer(
        self, method: str, path: str, body: bytes = b"", content_type: str = ""
    ) -> tuple[int, object]:
        response = self._transport.send(method, path, _TIMEOUT_S, body, content_type)
        try:
            return response.status, response.read_json()
        except TransportError as error:
            if error.reason != "not_json" or response.status in {_OK, _CREATED}:
                raise
            return response.status, None
        finally:
            response.close()


def _object(found: object) -> Object:
    if not isinstance(found, dict) or not isinstance(found.get("metadata"), dict):
        raise TransportError("not_json", "the answer is not an object of Kubernetes")
    return found


def _version(found: Mapping[str, Any]) -> str:
    return str(found["metadata"].get("resourceVersion", ""))


def _message(status: int, found: object) -> str:
    message = found.get("message") if isinstance(found, dict) else None
    return f"{status} {shorten(message, 256) if isinstance(message, str) else 'no reason given'}"
