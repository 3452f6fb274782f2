"""Access to scrapes: settings of an exporter's listener, the tokens that it accepts, and its certificate.

A scrape names every team's pods, users and queues, so it is open only where the settings say so: without a
token the exporter starts on loopback only. Tokens are compared with files, not checked by the API server
(TokenReview and SubjectAccessReview, as kube-rbac-proxy does): an exporter needs no further rights for it,
and can be scraped while the API server is down, which is when counters are wanted.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Literal, Self

from pydantic import model_validator

from gpucost.domain.configfile import wrong
from gpucost.domain.errors import ErrorRemark, InputError
from gpucost.kube.connect.credentials import is_loopback
from gpucost.settings.secret_files import read_small
from gpucost.settings.tls import ListenerCertificate, TlsFiles, TlsSource
from gpucost.settings.types import ExistingFile, Names, SettingsGroup
from gpucost_exporter_base.endpoint import EndpointRequest, EndpointResponse, HttpEndpoint, Route, text

logger = logging.getLogger(__name__)

METRICS = "/metrics"
SHORTEST_TOKEN = 16
_LARGEST_FILE = 65_536
_TOLD_EVERY_S = 60.0
_OPENSSL = ("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
_OPENSSL_S = 60.0
_NAME = "gpucost-exporter"


class ScrapeSettings(SettingsGroup):
    """Where an exporter listens, and to which clients it answers."""

    listen_host: str = "0.0.0.0"
    """Address to listen on. All IPv4 addresses by default; ``::`` for IPv6 and IPv4."""

    scrape_auth: Literal["required", "off"] = "required"
    """required or off: whether ``/metrics`` is for who sends one of the tokens below. Without any, and not
    ``off``, only a loopback address is listened on. ``/healthz`` and ``/readyz`` answer everybody.
    """

    scrape_token_files: Names = ()
    """Files with a bearer token each, of 16 characters at least, with commas between them. Read at each
    request, so a token that is replaced needs no restart; while one is, name two. One that is missing counts
    for nothing.
    """

    tls_cert_file: ExistingFile | None = None
    """PEM certificate chain with which it answers, by TLS 1.2 or later and in no other way. Taken anew when
    it is replaced.
    """

    tls_key_file: ExistingFile | None = None
    """PEM private key for it."""

    tls_self_signed: bool = False
    """true or false: whether it makes a certificate for itself at each start, with the program ``openssl``,
    instead of the two files. Nobody reads along then; who scrapes cannot tell it from somebody else.
    """

    @model_validator(mode="after")
    def _one_certificate(self) -> Self:
        if (self.tls_cert_file is None) != (self.tls_key_file is None):
            key = "tls_key_file" if self.tls_key_file is None else "tls_cert_file"
            raise wrong(ErrorRemark("missing"), "a file, beside the other of certificate and key", key)
        if self.tls_self_signed and self.tls_cert_file is not None:
            raise wrong(True, "false where there is a tls_cert_file", "tls_self_signed")
        return self


class ScrapeTokens:
    """The tokens in ``files``. Threads may share one."""

    def __init__(self, files: Sequence[str], clock: Callable[[], float] = time.monotonic) -> None:
        self._files, self._clock = tuple(map(Path, files)), clock
        self._told_s: float | None = None
        self._lock = threading.Lock()

    def accepts(self, authorization: str) -> bool:
        """Whether this value of the header is ``Bearer`` and one of the tokens; where no file holds a token,
        no value is. It takes equally long for each wrong one, as far as Python can ensure that."""
        scheme, _, given = authorization.partition(" ")
        digest = _digest(given.strip().encode("latin-1", "replace"))
        tokens = [token for token in map(_read, self._files) if token is not None]
        # All are compared, so that the time taken does not reveal which was nearest.
        found = sum(hmac.compare_digest(digest, _digest(token)) for token in tokens)
        if found and scheme.lower() == "bearer":
            return True
        self._tell("none of the token files holds a token" if not tokens else "no token, or a wrong one")
        return False

    def _tell(self, why: str) -> None:
        """Logs a refusal once in a while, since clients without a token may ask often."""
        with self._lock:
            now_s = self._clock()
            if self._told_s is not None and now_s - self._told_s < _TOLD_EVERY_S:
                return
            self._told_s = now_s
        logger.warning("a scrape was refused: %s", why)


class SelfSignedCertificate:
    """A certificate that no client can verify, made once."""

    def __init__(self) -> None:
        self._pem = _made()

    def stamp(self) -> str:
        """See ``TlsSource``: constant."""
        return _NAME

    def pem(self) -> bytes:
        """See ``TlsSource``."""
        return self._pem


def guarded(route: Route, tokens: ScrapeTokens) -> Route:
    """``route`` for clients that send a token, and 401 for others."""

    def answer(request: EndpointRequest) -> EndpointResponse:
        if tokens.accepts(request.headers.get("authorization", "")):
            return route(request)
        return text(401, "a bearer token is needed")

    return answer


def listening(settings: ScrapeSettings, port: int, routes: Mapping[str, Route]) -> HttpEndpoint:
    """The endpoint of an exporter: ``routes``, of which ``/metrics`` is guarded.

    Raises InputError, with the key of the setting, for a certificate that cannot be used, and where a scrape
    would be open to others without the settings saying so.
    """
    found = dict(routes)
    if settings.scrape_auth == "required" and settings.scrape_token_files:
        found[METRICS] = guarded(found[METRICS], ScrapeTokens(settings.scrape_token_files))
    elif settings.scrape_auth == "required" and not is_loopback(settings.listen_host):
        allowed = "files with a token for who scrapes; or scrape_auth off, or a listen_host such as 127.0.0.1"
        raise InputError("scrape_token_files", ErrorRemark("missing"), allowed)
    certificate = _certificate(settings)
    if certificate is None and settings.scrape_token_files and not is_loopback(settings.listen_host):
        logger.warning("without TLS: scrapes and their token can be read on the way (tls_cert_file)")
    return HttpEndpoint(
        settings.listen_host,
        port,
        found,
        setting="listen_port",
        host_setting="listen_host",
        certificate=certificate,
    )


def _certificate(settings: ScrapeSettings) -> ListenerCertificate | None:
    source: TlsSource
    if settings.tls_self_signed:
        source = SelfSignedCertificate()
    elif settings.tls_cert_file is not None and settings.tls_key_file is not None:
        source = TlsFiles(settings.tls_cert_file, settings.tls_key_file)
    else:
        return None
    try:
        return ListenerCertificate(source, "the scrapes")
    except OSError as error:
        allowed = f"a certificate chain and its key, in PEM ({error})"
        raise InputError("tls_cert_file", str(settings.tls_cert_file), allowed) from error


def _read(file: Path) -> bytes | None:
    """The token in a file; None where there is none, or one that could be guessed."""
    try:
        token = read_small(file, _LARGEST_FILE).strip()
    except OSError:
        return None
    return token if len(token) >= SHORTEST_TOKEN else None


def _digest(token: bytes) -> bytes:
    return hashlib.sha256(token).digest()


def _made() -> bytes:
    """A certificate made by the program ``openssl``, so that no image carries a package for it. Key and
    certificate go through a pipe."""
    command = (
        *_OPENSSL,
        "-keyout",
        "/dev/stdout",
        "-out",
        "/dev/stdout",
        "-days",
        "3650",
        "-subj",
        f"/CN={_NAME}",
    )
    try:
        done = subprocess.run(command, capture_output=True, check=True, timeout=_OPENSSL_S)
    except (OSError, subprocess.SubprocessError) as error:
        allowed = f"false here, with tls_cert_file and tls_key_file: openssl made none ({error})"
        raise InputError("tls_self_signed", True, allowed) from None
    return done.stdout
