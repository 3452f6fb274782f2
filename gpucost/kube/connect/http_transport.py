"""A transport from inside a pod, or to a given address, over the standard library.

lightkube's client loses tests/images/allowed/gpucost-gpu-exporter.txt: that image has no HTTP client.

``http.client`` and ``ssl`` and not a client library: the two processes of an exporter have 80 MB together,
and its image is better without an HTTP stack of its own. The official client takes 320 MB for 3,000 pods;
httpx2 is small beside that, and still adds 8 MB when imported.

The token is read again for each request, because the kubelet replaces it while the pod runs. It is in one
header only: in no error, in no log, and on no connection that others can read.
"""

from __future__ import annotations

import http.client
import socket
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlencode

from gpucost.kube.connect.credentials import (
    LEAN,
    SERVICE_ACCOUNT,
    AnswerLimits,
    as_transport_error,
    checked_url,
    read_token,
    tls_context,
    variable,
)
from gpucost.kube.connect.transport import (
    AnswerCheck,
    TransportError,
    no_check,
    parsed_body,
    split_lines,
    whole_body,
)

_CHUNK = 65536


class HttpTransport:
    """``KubeTransport`` over one connection per request.

    ``base_url`` is like ``https://10.96.0.1:443`` or ``https://host/prefix``. Certificates are always
    verified: against ``ca_file``, or the system's authorities where there is none. Without ``token_file``
    requests carry no credentials (``kubectl proxy``). ``limits`` are lean ones where none are given.
    """

    def __init__(
        self,
        base_url: str,
        token_file: Path | None = None,
        ca_file: Path | None = None,
        limits: AnswerLimits | None = None,
    ) -> None:
        self._base = checked_url(base_url, token_file is not None)
        self._token_file, self._ca_file = token_file, ca_file
        self._limits = limits or LEAN

    @classmethod
    def in_cluster(cls, environ: Mapping[str, str], mounted: Path = SERVICE_ACCOUNT) -> Self:
        """From the variables and files that Kubernetes gives every pod. Raises ``InputError``."""
        host = variable(environ, "KUBERNETES_SERVICE_HOST")
        port = variable(environ, "KUBERNETES_SERVICE_PORT")
        bracketed = f"[{host}]" if ":" in host else host
        return cls(f"https://{bracketed}:{port}", mounted / "token", mounted / "ca.crt")

    def get(self, path: str, params: Mapping[str, str], timeout_s: float) -> HttpResponse:
        """See ``KubeTransport.get``."""
        target = f"{self._base.path.rstrip('/')}{path}"
        if params:
            target += f"?{urlencode(params)}"
        headers = self._headers()
        connection = self._connection()
        try:
            return self._send(connection, target, headers, timeout_s)
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            raise as_transport_error(error) from error

    def _send(
        self, connection: http.client.HTTPConnection, target: str, headers: dict[str, str], timeout_s: float
    ) -> HttpResponse:
        connection.connect()
        connected = connection.sock
        connected.settimeout(min(timeout_s, self._limits.head_s))
        connection.request("GET", target, headers=headers)
        answer = connection.getresponse()
        connected.settimeout(timeout_s)
        return HttpResponse(connection, connected, answer, self._limits)

    def _headers(self) -> dict[str, str]:
        headers = {"Accept": "application/json", "Connection": "close", "User-Agent": "gpucost"}
        if self._token_file:
            headers["Authorization"] = f"Bearer {read_token(self._token_file)}"
        return headers

    def _connection(self) -> http.client.HTTPConnection:
        host, port, timeout_s = str(self._base.hostname), self._base.port, self._limits.connect_s
        if self._base.scheme == "http":
            return http.client.HTTPConnection(host, port, timeout=timeout_s)
        return http.client.HTTPSConnection(host, port, timeout=timeout_s, context=tls_context(self._ca_file))


class HttpResponse:
    """See ``gpucost.kube.connect.transport.KubeResponse``."""

    def __init__(
        self,
        connection: http.client.HTTPConnection,
        connected: socket.socket,
        answer: http.client.HTTPResponse,
        limits: AnswerLimits,
    ) -> None:
        self._connection, self._socket, self._answer, self._limits = connection, connected, answer, limits
        self.status = answer.status
        self.headers: Mapping[str, str] = {name.lower(): value for name, value in answer.getheaders()}

    def read_body(self, check: AnswerCheck = no_check) -> bytes:
        """The body; at most ``AnswerLimits.body_bytes`` of it."""
        return whole_body(self._chunks(check), self._limits.body_bytes)

    def read_json(self) -> Any:
        """The body, parsed."""
        return parsed_body(self.read_body())

    def lines(self, check: AnswerCheck = no_check) -> Iterator[bytes]:
        """Lines as they arrive; see ``split_lines`` for those over ``AnswerLimits.line_bytes``."""
        return split_lines(self._chunks(check), self._limits.line_bytes)

    def _chunks(self, check: AnswerCheck) -> Iterator[bytes]:
        while chunk := self._read():
            check()
            yield chunk

    def _read(self) -> bytes:
        try:
            chunk = self._answer.read1(_CHUNK)
        except (OSError, http.client.HTTPException) as error:
            raise as_transport_error(error) from error
        if not chunk and self._answer.length:
            raise TransportError("cut", f"the answer ended {self._answer.length} bytes early")
        return chunk

    def abort(self) -> None:
        """Shuts the socket down, which wakes a thread that reads from it; closing alone would not."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Closes the connection without reading what is left."""
        with suppress(OSError):
            self._answer.close()
            self._connection.close()
            self._socket.close()
