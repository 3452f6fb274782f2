"""Keeps the webhook's certificate in its Secret usable, over the API of Kubernetes.

It looks once in a while, and does the one thing that is due. Every replica does the same. They share the
Secret, which is written only over the version that was read; a replica that comes second reads what the first
wrote. A new authority is in the webhook's configuration before the first replica serves a certificate of it,
and the old one until after the last replica has changed.

``CertificateObjects`` reads and writes the two objects, Secret and configuration. Each is named, none is
listed.
"""

from __future__ import annotations

import base64
import json
import logging
import random
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol
from urllib.parse import quote

from gpucost.domain.backoff import FullJitter
from gpucost.domain.errors import shorten
from gpucost.kube.certificates.certificate_pair import (
    CertificatePair,
    CertificateSecret,
    CertificateSpec,
    Unusable,
    end_of,
    is_due,
    kept_in,
    renewed,
    settled,
    to_show,
)
from gpucost.kube.connect.transport import KubeResponse, TransportError

_TIMEOUT_S = 10.0
_OK, _CREATED, _NOT_FOUND, _CONFLICT, _UNPROCESSABLE = 200, 201, 404, 409, 422
_CONFIGURATIONS = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"
_JSON, _JSON_PATCH = "application/json", "application/json-patch+json"

Object = dict[str, Any]


class ObjectRejection(Exception):
    """The API server refused the request; ``status`` is its HTTP status."""

    def __init__(self, status: int, message: str) -> None:
        self.status = status
        super().__init__(message)


class ObjectConflict(ObjectRejection):
    """Another writer was faster: read again."""


class WritableTransport(Protocol):
    """A way to the API server that may also write, such as ``HttpxTransport``."""

    def send(
        self, method: str, path: str, timeout_s: float, body: bytes = b"", content_type: str = ""
    ) -> KubeResponse:
        """One request. Raises ``TransportError``; every HTTP status is an answer."""


class CertificateObjects:
    """The Secret and the webhook's configuration. Every method raises TransportError, ObjectRejection and
    ObjectConflict."""

    def __init__(self, transport: WritableTransport, namespace: str, secret: str, configuration: str) -> None:
        self._transport, self._namespace, self._secret = transport, namespace, secret
        self._secrets = f"/api/v1/namespaces/{quote(namespace, safe='')}/secrets"
        self._configuration = f"{_CONFIGURATIONS}/{quote(configuration, safe='')}"

    def secret(self) -> Object | None:
        """None where it does not exist."""
        return self._asked("GET", f"{self._secrets}/{self._secret}")

    def configuration(self) -> Object | None:
        """None where it does not exist."""
        return self._asked("GET", self._configuration)

    def keep(self, kept: CertificateSecret, before: Object | None) -> Object:
        """Write the Secret: created where ``before`` is None, else only if it is still ``before``."""
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
        """Set the ``caBundle`` of every webhook, and nothing else, if the configuration is still this one."""
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
            raise ObjectRejection(status, _message(status, found))
        return _object(found)

    def _written(self, method: str, path: str, body: Any, content_type: str) -> Object:
        status, found = self._answer(method, path, json.dumps(body).encode(), content_type)
        # A failed test of a JSON patch is a 422; so is a refused object, which the next turn shows.
        if status == _CONFLICT or (status == _UNPROCESSABLE and method == "PATCH"):
            raise ObjectConflict(status, _message(status, found))
        if status not in {_OK, _CREATED}:
            raise ObjectRejection(status, f"{method}: {_message(status, found)}")
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


logger = logging.getLogger(__name__)

EVERY_S = 30.0
"""The pause between two turns; far below ``CertificateSpec.overlap_ms``."""

_BACKOFF = FullJitter(2.0, EVERY_S)
_LEAST_PAUSE_S = 0.5
_TRIES = 5


@dataclass(eq=False)
class CertificateKeeper:
    """``show`` is called with certificate and key, in one PEM, when another one is to be served. ``failed``
    is called with the kind of each failure: ``http_403``, ``unreachable``, and so on, as labels of a metric.
    """

    objects: CertificateObjects
    wanted: CertificateSpec
    now: Callable[[], int]
    show: Callable[[str], None]
    failed: Callable[[str], None]
    every_s: float = EVERY_S
    rng: random.Random = field(default_factory=random.Random)
    _kept: CertificateSecret | None = None
    _shown: CertificatePair | None = None
    _failures: int = 0
    _stop: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        """Look until ``close``. Never raises."""
        while not self._stop.is_set():
            self._stop.wait(self.turn())

    def close(self) -> None:
        """From any thread."""
        self._stop.set()

    def turn(self) -> float:
        """One turn, which never raises; returns the seconds until the next. On a failure the same certificate
        is served on."""
        try:
            self.look()
        except TransportError as error:
            return self._failed(error.reason, str(error))
        except ObjectRejection as error:
            return self._failed(f"http_{error.status}", str(error))
        except Exception as error:  # an object of an unforeseen shape
            logger.exception("the webhook's certificate was not looked after")
            return self._failed(type(error).__name__, "see above")
        self._failures = 0
        return self.every_s

    def look(self) -> None:
        """Bring Secret, configuration and the served certificate to where they should be.

        Raises TransportError and ObjectRejection; what can be served is served by then.
        """
        try:
            self._kept = self._secured()
            self._kept = self._trusted(self._kept)
        finally:
            self._show()

    def _secured(self) -> CertificateSecret:
        """The content of the Secret, once it is usable and not due."""
        for _ in range(_TRIES):
            secret = self.objects.secret()
            try:
                kept = None if secret is None else kept_in(secret, self.now())
            except Unusable as error:
                logger.warning("the webhook's certificate in the Secret is replaced: %s", error)
                kept = None
            if kept is not None and not is_due(kept, self.wanted, self.now()):
                return kept
            made = renewed(kept, self._in_the_configuration(), self.wanted, self.now())
            try:
                self.objects.keep(made, secret)
            except ObjectConflict:
                continue
            logger.info("the webhook has a new certificate in its Secret")
            return made
        raise ObjectConflict(409, "the Secret changes faster than it is read")

    def _trusted(self, kept: CertificateSecret) -> CertificateSecret:
        """Make the configuration trust what may be served; record since when, and later remove the old
        authorities."""
        kept = self._tidied(kept)
        for _ in range(_TRIES):
            configuration = self.objects.configuration()
            if configuration is None:
                raise ObjectRejection(
                    404, "there is no ValidatingWebhookConfiguration of the name in the settings"
                )
            bundle = base64.b64encode(kept.bundle.encode()).decode()
            if all(_bundle(each) == bundle for each in configuration.get("webhooks") or ()):
                return self._noted(kept)
            try:
                self.objects.trust(configuration, bundle)
            except ObjectConflict:
                continue
            logger.info("the webhook's configuration has its authorities")
            return self._noted(kept)
        raise ObjectConflict(409, "the webhook's configuration changes faster than it is read")

    def _noted(self, kept: CertificateSecret) -> CertificateSecret:
        if kept.trusted_since_ms is not None:
            return kept
        return self._rewritten(kept, replace(kept, trusted_since_ms=self.now()))

    def _tidied(self, kept: CertificateSecret) -> CertificateSecret:
        return self._rewritten(kept, settled(kept, self.wanted, self.now()))

    def _rewritten(self, kept: CertificateSecret, wanted: CertificateSecret) -> CertificateSecret:
        """``wanted`` in the Secret, where that still holds ``kept``; else the next turn goes on."""
        if wanted == kept:
            return kept
        secret = self.objects.secret()
        if secret is None:
            return kept
        try:
            if kept_in(secret, self.now()) != kept:
                return kept
            self.objects.keep(wanted, secret)
        except (Unusable, ObjectConflict):
            return kept
        return wanted

    def _in_the_configuration(self) -> str:
        """All bundles there, in PEM; empty where they cannot be read."""
        try:
            configuration: Object = self.objects.configuration() or {}
        except (TransportError, ObjectRejection):
            return ""
        found = []
        for each in configuration.get("webhooks") or ():
            try:
                found.append(base64.b64decode(_bundle(each), validate=True).decode())
            except ValueError:
                continue
        return "\n".join(found)

    def end_ms(self) -> int | None:
        """When the served certificate ends, in ms UTC; None while none is served. From any thread."""
        shown = self._shown
        return None if shown is None else end_of(shown.certificate)

    def _show(self) -> None:
        if self._kept is None:
            return
        pair = to_show(self._kept, self._shown, self.wanted, self.now())
        if pair != self._shown:
            self._shown = pair
            self.show(pair.pem)

    def _failed(self, kind: str, message: str) -> float:
        self._failures += 1
        self.failed(kind)
        pause_s = max(_LEAST_PAUSE_S, _BACKOFF.pause_s(self._failures, self.rng.random()))
        logger.warning("the webhook's certificate cannot be looked after; again soon: %s", message)
        return pause_s


def _bundle(webhook: Object) -> str:
    return str((webhook.get("clientConfig") or {}).get("caBundle") or "")
