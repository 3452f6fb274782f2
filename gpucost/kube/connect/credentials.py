"""Addresses, tokens, TLS and failures that every connection to the API server needs.

Tokens may change while they are used: they are read from a file, or printed by a program.
"""

from __future__ import annotations

import http.client
import ipaddress
import json
import os
import ssl
import subprocess
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import SplitResult, urlsplit

from gpucost.domain.errors import ErrorRemark, InputError
from gpucost.kube.connect.transport import TransportError

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_LARGEST_TOKEN = 65536
_CUT = (http.client.HTTPException, ConnectionResetError, BrokenPipeError, ssl.SSLEOFError)


@dataclass(frozen=True, slots=True)
class AnswerLimits:
    """Limits of an answer: seconds to connect and until its head, bytes of a page, bytes of a line.

    An object of 1.5 MB, the most that etcd takes, has up to 9 MB as JSON: Go writes ``<`` as ``\\u003c``.
    """

    connect_s: float = 10.0
    head_s: float = 30.0
    body_bytes: int = 64 << 20
    line_bytes: int = 16 << 20


LEAN = AnswerLimits(line_bytes=4 << 20)
"""For processes with little memory that read small pages; a longer event is recovered by a list."""


def variable(environ: Mapping[str, str], name: str) -> str:
    """A variable that Kubernetes sets in pods. Raises InputError when it is missing."""
    if value := environ.get(name):
        return value
    raise InputError(
        name, ErrorRemark("missing"), "the address of the API server, as Kubernetes sets it in pods"
    )


def checked_url(base_url: str, with_token: bool) -> SplitResult:
    """The parsed address of an API server. Raises InputError for an invalid one, and for one that would carry
    a token unencrypted."""
    allowed = "an address like https://10.96.0.1:443, without user, query or fragment"
    try:
        url = urlsplit(base_url)
        _ = url.port
    except ValueError as error:
        raise InputError("url", ErrorRemark("not an address"), allowed) from error
    if "@" in url.netloc or url.query or url.fragment:
        raise InputError("url", ErrorRemark("holds more than an address"), allowed)
    if url.scheme not in {"http", "https"} or not url.hostname:
        raise InputError("url", base_url, allowed)
    if with_token and url.scheme == "http" and not is_loopback(url.hostname):
        raise InputError("url", base_url, "https, because the token must not cross the network in the clear")
    return url


def is_loopback(host: str) -> bool:
    """Whether a host is this machine."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def read_token(file: Path) -> str:
    """The token in a file. Raises TransportError, without the token in it."""
    try:
        with file.open("rb") as opened:
            token = opened.read(_LARGEST_TOKEN).strip()
    except OSError as error:
        raise TransportError("token", f"{file}: {os.strerror(error.errno or 0)}") from error
    # http.client quotes a header it refuses in its error, so invalid tokens must not reach it.
    if not token or not all(0x21 <= byte <= 0x7E for byte in token):
        raise TransportError("token", f"{file}: empty, or not a token")
    return token.decode("ascii")


def tls_context(ca_file: Path | None) -> ssl.SSLContext:
    """A context that verifies, against ``ca_file`` or the system's authorities. Raises TransportError."""
    try:
        context = ssl.create_default_context(cafile=ca_file)
    except OSError as error:
        raise TransportError("tls", f"{ca_file}: no certificate authorities in it") from error
    # From Python 3.13 on certificates without an authority key identifier are refused, and many clusters have
    # an authority that was made that way. The chain and the host name are verified as before.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    return context


def as_transport_error(error: Exception) -> TransportError:
    """The TransportError that a failure of the network means."""
    text = f"{type(error).__name__}: {error}"[:256]
    if isinstance(error, TimeoutError):
        return TransportError("silent", text)
    if isinstance(error, _CUT):
        return TransportError("cut", text)
    if isinstance(error, ssl.SSLError):
        return TransportError("tls", text)
    return TransportError("unreachable", text)


PLUGIN_TIMEOUT_S = 60.0
"""The time limit of a program that prints a token."""

_LARGEST_ANSWER = 1 << 20


class FixedHeader:
    """A token or a password that never changes."""

    def __init__(self, value: str) -> None:
        self._value = value

    def header(self, refused: str = "") -> str:  # noqa: ARG002 the form of RequestCredentials
        """See ``gpucost.kube.connect.httpx_transport.RequestCredentials``."""
        return self._value


class TokenFile:
    """A token in a file, read for each request, so that it can be replaced at any time."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def header(self, refused: str = "") -> str:  # noqa: ARG002 the form of RequestCredentials
        """See ``RequestCredentials``."""
        return f"Bearer {read_token(self._file)}"


class TokenCommand:
    """A program that prints an ExecCredential, as kubectl's plugins do. Its token is kept until refused.

    However many requests need a token at once, the program runs once. It gets no input, so a program that
    prompts fails instead of waiting.
    """

    def __init__(
        self, command: Sequence[str], environ: Mapping[str, str], timeout_s: float = PLUGIN_TIMEOUT_S
    ) -> None:
        self._command, self._environ, self._timeout_s = list(command), dict(environ), timeout_s
        self._lock = threading.Lock()
        self._known = ""

    def header(self, refused: str = "") -> str:
        """See ``Credentials``."""
        with self._lock:
            if not self._known or self._known == refused:
                self._known = f"Bearer {self._token()}"
            return self._known

    def _token(self) -> str:
        name = self._command[0]
        try:
            ran = subprocess.run(
                self._command,
                env=self._environ,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=self._timeout_s,
                check=False,
            )
        except subprocess.TimeoutExpired:
            failure = f"{name}: no token within {self._timeout_s:g} s"
        except OSError as error:
            failure = f"{name}: {error.strerror}"
        else:
            token = _printed_token(ran.stdout) if ran.returncode == 0 else ""
            if token:
                return token
            failure = f"{name}: exit status {ran.returncode}, and no token that can be used"
        # The program's output is not shown, nor kept as a cause: a token may be in it.
        raise TransportError("token", failure) from None


def is_header_text(text: str) -> bool:
    """Whether ``text`` may be in a header as one word."""
    return bool(text) and all("\x21" <= letter <= "\x7e" for letter in text)


def _printed_token(output: bytes) -> str:
    try:
        token = json.loads(output[:_LARGEST_ANSWER])["status"]["token"]
    except (ValueError, RecursionError, LookupError, TypeError):
        return ""
    return token if isinstance(token, str) and is_header_text(token) else ""
