"""The webhook's own certificates in use: the real process over real TLS, through two rotations."""

from __future__ import annotations

import base64
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from gpucost.api.webhook.adviser import AdmissionAdviser
from gpucost.api.webhook.supervisor import FileKeeper, WebhookProcess
from gpucost.domain.time import DAY_MS
from gpucost.kube.certificates.certificate_pair import (
    CertificatePair,
    CertificateSpec,
    kept_in,
    make_pair,
)
from gpucost.kube.certificates.keeper import CertificateKeeper, CertificateObjects
from gpucost.kube.connect.connection import connect_url
from gpucost.settings.tls import ListenerCertificate, TlsFiles, TlsMemory
from tests.api.advisor_worlds import TOKEN, advising, body, job
from tests.kube.test_webhook_certificates import CONFIGURATION, NAME, RULES, SECRET, configuration
from tests.support.written_objects import ObjectServer, object_server

# Due after a day, valid for a year: so that OpenSSL, which goes by the real time, takes all of them.
WANTED = CertificateSpec(frozenset({NAME}), 400 * DAY_MS, 399 * DAY_MS)
_REVIEW = body(job(gpus=0))
_REQUEST = (
    b"POST /v1/admission/%s HTTP/1.1\r\nHost: w\r\nConnection: close\r\nContent-Type: application/json\r\n"
    b"Content-Length: %d\r\n\r\n%s" % (TOKEN.encode(), len(_REVIEW), _REVIEW)
)


def handshake(port: int, bundle: str, name: str = NAME) -> ssl.SSLSocket:
    """A connection as the API server makes one: to the Service's name, by the authorities of the bundle."""
    context = ssl.create_default_context(cadata=bundle)
    context.verify_flags |= ssl.VERIFY_X509_STRICT
    return context.wrap_socket(socket.create_connection(("127.0.0.1", port), 20), server_hostname=name)


def review(port: int, bundle: str) -> bytes:
    with handshake(port, bundle) as connection:
        connection.sendall(_REQUEST)
        answer = b"".join(iter(lambda: connection.recv(65536), b""))
    assert answer.startswith(b"HTTP/1.1 200"), answer[:100]
    assert b'"allowed": true' in answer
    return answer


def bundle_in(server: ObjectServer) -> str:
    hook = server.objects[CONFIGURATION]["webhooks"][0]
    return base64.b64decode(hook["clientConfig"].get("caBundle", "")).decode()


@dataclass
class Asking:
    """Reviews without a pause, each over a connection of its own, by the ``bundle`` of the moment."""

    port: int
    bundle: str
    count: int = 0
    failures: list[Exception] = field(default_factory=list)
    _ended: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        while not self._ended.is_set():
            try:
                review(self.port, self.bundle)
            except Exception as error:
                self.failures.append(error)
            self.count += 1

    @contextmanager
    def going(self) -> Iterator[None]:
        threads = [threading.Thread(target=self.run) for _ in range(2)]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self._ended.set()
            for thread in threads:
                thread.join()

    def some_more(self) -> None:
        until = self.count + 10
        wait_until(lambda: self.count >= until)


def wait_until(holds: Callable[[], bool]) -> None:
    for _ in range(3_000):
        if holds():
            return
        threading.Event().wait(0.01)
    raise AssertionError("it did not happen in 30 s")


@contextmanager
def managed(server: ObjectServer, now: Callable[[], int]) -> Iterator[WebhookProcess]:
    transport = connect_url(server.url)
    objects = CertificateObjects(transport, "gpucost", "gpucost-webhook-tls", "gpucost")
    found = advising()

    def keeping(show: Callable[[str], None]) -> CertificateKeeper:
        return CertificateKeeper(objects, WANTED, now, show, found.status.certificate_failed, every_s=0.05)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        process = WebhookProcess(
            listener, AdmissionAdviser(found), found.status, TOKEN, 5_000, 8, keeping=keeping
        )
        process.start()
        try:
            yield process
        finally:
            process.close()
            transport.close()


def shown(port: int) -> str:
    return ssl.get_server_certificate(("127.0.0.1", port)).strip()


@pytest.mark.slow
def test_no_review_fails_through_two_rotations(caplog: pytest.LogCaptureFixture) -> None:
    """The API server learns of a new bundle as late as it may, and of the old one's end at once."""
    clock = [int(time.time() * 1000) - 10 * DAY_MS]
    with object_server(RULES) as server:
        server.put(CONFIGURATION, configuration())
        with managed(server, lambda: clock[0]) as process:
            wait_until(lambda: bool(bundle_in(server)))
            wait_until(lambda: _answers(process.port, bundle_in(server)))
            asking = Asking(process.port, bundle_in(server))
            with asking.going():
                for _ in range(2):
                    before = kept_in(server.objects[SECRET], clock[0]).newest
                    clock[0] += 2 * DAY_MS
                    wait_until(lambda: bundle_in(server).count("BEGIN") == 2)
                    wait_until(lambda: kept_in(server.objects[SECRET], clock[0]).trusted_since_ms is not None)
                    asking.some_more()
                    assert shown(process.port) == before.certificate.strip()
                    asking.bundle = bundle_in(server)
                    clock[0] += WANTED.spreads_ms
                    newest = kept_in(server.objects[SECRET], clock[0]).newest
                    wait_until(lambda: shown(process.port) == newest.certificate.strip())  # noqa: B023
                    asking.some_more()
                    clock[0] += WANTED.overlap_ms
                    wait_until(lambda: bundle_in(server).count("BEGIN") == 1)
                    asking.bundle = bundle_in(server)
                    asking.some_more()
                    with pytest.raises(ssl.SSLCertVerificationError):
                        handshake(process.port, before.authority)
            end_ms = process.status.certificate_end_ms()
            with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
                handshake(process.port, bundle_in(server), "else.gpucost.svc")
            first = process._process
            assert first is not None
            first.kill()
            wait_until(lambda: process._process is not first)
            review(process.port, bundle_in(server))
    assert asking.failures == []
    assert asking.count >= 60
    assert end_ms is not None
    assert clock[0] + 399 * DAY_MS < end_ms < clock[0] + 400 * DAY_MS
    assert not process.status.certificate_errors()
    assert "PRIVATE" not in caplog.text + repr(process)


def _answers(port: int, bundle: str) -> bool:
    try:
        return bool(review(port, bundle))
    except OSError:
        return False


def test_without_a_certificate_yet_no_handshake_succeeds_and_the_first_is_taken() -> None:
    given = TlsMemory()
    certificate = ListenerCertificate(given, "the webhook")
    assert not certificate.renew()
    pair = make_pair([NAME], int(time.time() * 1000), DAY_MS)
    with serving(certificate) as port:
        with pytest.raises(ssl.SSLError):
            handshake(port, pair.authority)
        given.give(pair.pem.encode())
        assert certificate.renew()
        handshake(port, pair.authority).close()
        given.give(b"nonsense")
        assert not certificate.renew()
        handshake(port, pair.authority).close()


@contextmanager
def serving(certificate: ListenerCertificate) -> Iterator[int]:
    """A listener that ends every connection after its handshake."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def accept() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                try:
                    certificate.context.wrap_socket(connection, server_side=True).close()
                except OSError:
                    connection.close()

        thread = threading.Thread(target=accept)
        thread.start()
        try:
            yield int(listener.getsockname()[1])
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()


def test_no_handshake_comes_between_a_new_certificate_and_its_key(tmp_path: Path) -> None:
    """Files that change without a pause, as fast as they can be taken."""
    now_ms = int(time.time() * 1000)
    pairs = [make_pair([NAME], now_ms, DAY_MS) for _ in range(2)]
    files = TlsFiles(tmp_path / "tls.crt", tmp_path / "tls.key")
    put(files, pairs[0])
    certificate = ListenerCertificate(files, "the listener")
    ended, taken = threading.Event(), []

    def replace_them() -> None:
        number = 0
        while not ended.is_set():
            number += 1
            put(files, pairs[number % 2])
            taken.append(certificate.renew())

    replacing = threading.Thread(target=replace_them)
    with serving(certificate) as port:
        replacing.start()
        try:
            handshakes = 0
            while handshakes < 100 or sum(taken) < 20:  # however fast either of them is
                handshake(port, pairs[0].authority + pairs[1].authority).close()
                handshakes += 1
        finally:
            ended.set()
            replacing.join()


def put(files: TlsFiles, pair: CertificatePair) -> None:
    for content, target in ((pair.certificate, files.certificate), (pair.key, files.key)):
        fresh = target.with_suffix(".fresh")
        fresh.write_text(content)
        fresh.replace(target)


def test_files_that_change_while_they_are_read_are_no_pair(tmp_path: Path) -> None:
    files = TlsFiles(tmp_path / "tls.crt", tmp_path / "tls.key")
    put(files, make_pair([NAME], 0, DAY_MS))
    stamps = iter([((0, 0, 0),), ((1, 0, 0),)])

    class Changing(TlsFiles):
        def stamp(self) -> Any:
            return next(stamps)

    with pytest.raises(OSError, match="being replaced"):
        Changing(files.certificate, files.key).pem()


@pytest.mark.parametrize(
    ("certificate", "key", "kind"),
    [
        ("other", "own", "unreadable"),
        ("nonsense", "own", "unreadable"),
        ("half", "own", "unreadable"),
        ("own", "half", "unreadable"),
        ("own", None, "unreadable"),
        ("expired", "expired", "expired"),
    ],
)
def test_what_cannot_be_used_leaves_the_certificate_that_is_shown(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, certificate: str, key: str | None, kind: str
) -> None:
    now_ms = int(time.time()) * 1000
    own, other = (make_pair([NAME], now_ms, DAY_MS) for _ in range(2))
    expired = make_pair([NAME], now_ms - 2 * DAY_MS, DAY_MS)
    texts = {
        "own": (own.certificate, own.key),
        "other": (other.certificate, other.key),
        "nonsense": ("nonsense", "nonsense"),
        "half": (own.certificate[:300], own.key[:100]),
        "expired": (expired.certificate, expired.key),
    }
    files = TlsFiles(tmp_path / "tls.crt", tmp_path / "tls.key")
    put(files, own)
    shown: list[str] = []
    failed: list[str] = []
    keeper = FileKeeper(files, shown.append, failed.append, lambda: now_ms)
    files.certificate.write_text(texts[certificate][0])
    if key is None:
        files.key.unlink()
    else:
        files.key.write_text(texts[key][1])
    assert not keeper.look()
    assert not keeper.look(), "and is told once"
    assert (len(shown), failed, keeper.end_ms()) == (1, [kind], now_ms + DAY_MS)
    assert caplog.text.count("cannot be renewed") == 1
    assert "PRIVATE" not in caplog.text
    put(files, other)
    assert keeper.look()
    assert shown[-1].endswith(other.key)


def test_an_expired_certificate_is_shown_where_there_is_no_better_one(tmp_path: Path) -> None:
    now_ms = int(time.time()) * 1000
    files = TlsFiles(tmp_path / "tls.crt", tmp_path / "tls.key")
    put(files, make_pair([NAME], now_ms - 3 * DAY_MS, DAY_MS))
    keeper = FileKeeper(files, print, print, lambda: now_ms)
    put(files, make_pair([NAME], now_ms - 2 * DAY_MS, DAY_MS))
    assert keeper.look()
    assert keeper.end_ms() == now_ms - DAY_MS


@pytest.mark.fault(58)
def test_a_listener_that_is_started_again_shows_what_the_one_before_did(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Though its files are of no use by then."""
    now_ms = int(time.time()) * 1000
    pair = make_pair([NAME], now_ms, DAY_MS)
    files = TlsFiles(tmp_path / "tls.crt", tmp_path / "tls.key")
    put(files, pair)
    found = advising()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        process = WebhookProcess(listener, AdmissionAdviser(found), found.status, TOKEN, 5_000, 8, files)
        process.start()
        try:
            assert shown(process.port) == pair.certificate.strip()
            files.certificate.write_text("nonsense")
            files.key.unlink()
            first = process._process
            assert first is not None
            first.kill()
            wait_until(lambda: process._process is not first)
            review(process.port, pair.authority)
            assert found.status.certificate_end_ms() == now_ms + DAY_MS
        finally:
            process.close()
    assert "Traceback" not in capfd.readouterr().err


def test_other_authorities_of_clients_are_taken_without_another_certificate(tmp_path: Path) -> None:
    now_ms = int(time.time()) * 1000
    own = make_pair([NAME], now_ms, DAY_MS)
    files, authorities = TlsFiles(tmp_path / "tls.crt", tmp_path / "tls.key"), tmp_path / "ca.crt"
    put(files, own)
    authorities.write_text(own.authority)
    certificate = ListenerCertificate(files, "the webhook", authorities)
    assert not certificate.renew()
    authorities.write_text(make_pair([NAME], now_ms, DAY_MS).authority * 2)
    assert certificate.renew()
    authorities.write_text("nonsense")
    assert not certificate.renew()
    authorities.unlink()
    assert not certificate.renew()
    authorities.write_text(own.authority)
    assert certificate.renew()
