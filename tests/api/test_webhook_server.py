"""The webhook as a real listener: a burst over loopback, TLS, and certificates that change."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from gpucost.advisor.model.answers import Advice, AdviceSubject
from gpucost.api.server.connections import BoundedProtocol
from gpucost.api.webhook.adviser import AdmissionAdviser
from gpucost.api.webhook.app import WebhookApp, WebhookToken
from gpucost.api.webhook.ipc import Answering, Tell
from gpucost.api.webhook.listener_process import WebhookServer
from gpucost.api.webhook.supervisor import WebhookProcess
from gpucost.service.advisor.advisor_service import AdvisorService
from gpucost.settings.tls import TlsFiles
from tests.api.advisor_worlds import TOKEN, SmallEngine, advice, advising, body, job, working
from tests.kube.pki import make_pki

ROOT = Path(__file__).parents[2]
REQUEST = b"POST /v1/admission/%s?timeout=2s HTTP/1.1\r\nHost: w\r\nContent-Type: application/json\r\n"


@contextmanager
def served(
    found: AdvisorService,
    tls: TlsFiles | None = None,
    *,
    in_flight: int = 8,
    deadline_ms: int = 30_000,
    client_ca: Path | None = None,
) -> Iterator[tuple[WebhookServer, WebhookApp]]:
    app = WebhookApp(
        WebhookToken(TOKEN),
        found.status.reviewed,
        working(found),
        deadline_ms=deadline_ms,
        in_flight=in_flight,
    )
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = WebhookServer(app, listener, tls, client_ca=client_ca, every_s=3600)
        server.start()
        try:
            yield server, app
        finally:
            server.close()
            app.desk.close()


def request(content: bytes, token: str = TOKEN) -> bytes:
    return REQUEST % token.encode() + b"Content-Length: %d\r\n\r\n" % len(content) + content


async def post(
    streams: tuple[asyncio.StreamReader, asyncio.StreamWriter], content: bytes
) -> tuple[int, bytes]:
    """Status and body."""
    reader, writer = streams
    writer.write(request(content))
    head = await reader.readuntil(b"\r\n\r\n")
    length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
    return int(head.split(b" ", 2)[1]), await reader.readexactly(length)


async def hang_up(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()


@pytest.mark.fault(60)
def test_a_burst_is_answered_and_nothing_piles_up() -> None:
    """500 reviews a second for two seconds, each of which would take 20 ms of a core: ten times too many."""

    def work(subject: AdviceSubject) -> Advice:
        until = time.thread_time() + 0.02
        while time.thread_time() < until:
            pass
        return advice(subject)

    found = advising(SmallEngine(work))
    deepest, answered = 0, Counter[bool]()

    async def burst(server: WebhookServer, app: WebhookApp) -> None:
        free: asyncio.Queue[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = asyncio.Queue()
        for _ in range(64):
            free.put_nowait(await asyncio.open_connection("127.0.0.1", server.port))

        async def one(number: int) -> None:
            nonlocal deepest
            streams = await free.get()
            status, content = await post(streams, body(uid=f"review-{number}"))
            free.put_nowait(streams)
            assert status == 200
            assert b'"uid": "review-%d"' % number in content
            assert b'"allowed": true' in content
            answered[b"warnings" in content] += 1
            deepest = max(deepest, app.desk.taken)

        began = time.monotonic()
        asked = []
        for number in range(1_000):
            await asyncio.sleep(max(0.0, began + number / 500 - time.monotonic()))
            asked.append(asyncio.create_task(one(number)))
        await asyncio.gather(*asked)
        while not free.empty():
            await hang_up(free.get_nowait()[1])

    with served(found, deadline_ms=150) as (server, app):
        asyncio.run(burst(server, app))
        assert app.desk.taken == 0 or deepest <= 8
    reviews = found.status.reviews()
    assert sum(answered.values()) == 1_000 == sum(reviews.values())
    assert deepest <= 8
    assert answered[True] == reviews["advised"] > 0
    assert reviews["busy"] > 0
    assert set(reviews) <= {"advised", "busy", "deadline"}


@pytest.mark.fault(57)
def test_a_wrong_token_is_not_found_and_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def ask(server: WebhookServer) -> list[bytes]:
        heads = []
        for sent in (request(body(), "a-guess-of-it"), request(body(job(gpus=0))), b"nonsense\r\n\r\n"):
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            writer.write(sent)
            heads.append(await reader.readline())
            await hang_up(writer)
        return heads

    with caplog.at_level("DEBUG"), served(advising()) as (server, _):
        first, second, third = asyncio.run(ask(server))
    assert first.startswith(b"HTTP/1.1 404")
    assert second.startswith(b"HTTP/1.1 200")
    assert third.startswith(b"HTTP/1.1 400")
    assert "guess" not in caplog.text
    assert TOKEN not in caplog.text


def test_who_says_nothing_is_ended(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    found = advising()
    with served(found) as (server, _), contextlib.ExitStack() as held:
        monkeypatch.setattr(BoundedProtocol, "request_s", 0.2)
        for begun in (b"", b"POST /v1/adm", request(body())[:-1]):
            silent = held.enter_context(socket.create_connection(("127.0.0.1", server.port), timeout=60))
            with contextlib.suppress(ConnectionError):
                silent.sendall(begun)
                assert silent.recv(1) == b""
        monkeypatch.undo()  # who speaks may be slower than those who say nothing
        assert b"warnings" in asyncio.run(ask_once(server.port, body()))
    assert found.status.reviews() == {"advised": 1}, "of which nothing whole came is no review"
    assert not [each for each in caplog.records if each.levelname == "ERROR"]


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> tuple[TlsFiles, TlsFiles]:
    """Two certificates and their keys."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("no openssl to make certificates with")
    found = []
    for name in ("old", "new"):
        folder = tmp_path_factory.mktemp(name)
        files = TlsFiles(folder / "tls.crt", folder / "tls.key")
        kind = ["-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
        paths = ["-keyout", str(files.key), "-out", str(files.certificate)]
        subprocess.run(
            [openssl, "req", *kind, *paths, "-subj", f"/CN={name}"], check=True, capture_output=True
        )
        found.append(files)
    return found[0], found[1]


def test_only_who_has_a_certificate_of_the_authority_comes_in(
    pairs: tuple[TlsFiles, TlsFiles], tmp_path: Path
) -> None:
    pki = make_pki(tmp_path)

    def ask(port: int, *shown: Path) -> bytes:
        context = ssl.create_default_context(cafile=str(pairs[0].certificate))
        context.check_hostname = False
        if shown:
            context.load_cert_chain(*shown)
        with (
            contextlib.suppress(OSError),
            socket.create_connection(("127.0.0.1", port), 30) as connection,
            context.wrap_socket(connection) as secured,
        ):
            secured.sendall(request(body(job(gpus=0))))
            return secured.recv(15)
        return b""

    with served(advising(), pairs[0], client_ca=pki.ca) as (server, _):
        own = pki.client.with_suffix(".crt"), pki.client
        assert ask(server.port, *own) == b"HTTP/1.1 200 OK"
        assert ask(server.port) == b""
        assert ask(server.port, pairs[1].certificate, pairs[1].key) == b"", "of another authority"
        assert server.renew() is False
        assert ask(server.port, *own) == b"HTTP/1.1 200 OK"


def certificate_of(port: int) -> str:
    """What a new connection gets, in PEM."""
    return ssl.get_server_certificate(("127.0.0.1", port)).strip()


def test_a_certificate_is_renewed_without_a_restart(
    pairs: tuple[TlsFiles, TlsFiles], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    files, (old, new) = TlsFiles(tmp_path / "tls.crt", tmp_path / "tls.key"), pairs

    def put(found: TlsFiles) -> None:
        for source, target in ((found.certificate, files.certificate), (found.key, files.key)):
            fresh = target.with_suffix(".fresh")
            fresh.write_bytes(source.read_bytes())
            fresh.replace(target)

    put(old)
    context = ssl.create_default_context(cafile=str(old.certificate))
    context.check_hostname = False

    async def ask(port: int) -> bytes:
        streams = await asyncio.open_connection("127.0.0.1", port, ssl=context)
        _, first = await post(streams, body(job(gpus=0)))
        put(new)
        assert server.renew()
        _, second = await post(streams, body(job(gpus=0)))
        await hang_up(streams[1])
        assert first == second, "a connection that is open goes on"
        return first

    with served(advising(), files) as (server, _):
        assert certificate_of(server.port) == old.certificate.read_text().strip()
        assert not server.renew(), "nothing has changed"
        assert b'"allowed": true' in asyncio.run(ask(server.port))
        assert certificate_of(server.port) == new.certificate.read_text().strip()
        files.key.write_bytes(old.key.read_bytes())
        assert not server.renew(), "half of a pair is not taken"
        assert "cannot be renewed" in caplog.text
        assert certificate_of(server.port) == new.certificate.read_text().strip()
        put(old)
        assert server.renew()
        assert certificate_of(server.port) == old.certificate.read_text().strip()


@contextmanager
def in_a_process(found: AdvisorService, answering: Answering | None = None) -> Iterator[WebhookProcess]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        process = WebhookProcess(
            listener, answering or AdmissionAdviser(found), found.status, TOKEN, 5_000, 8
        )
        process.start()
        try:
            yield process
        finally:
            process.close()


async def ask_once(port: int, content: bytes) -> bytes:
    streams = await asyncio.open_connection("127.0.0.1", port)
    status, answered = await post(streams, content)
    await hang_up(streams[1])
    assert status == 200
    return answered


def wait_until(holds: Callable[[], bool]) -> None:
    for _ in range(3_000):
        if holds():
            return
        threading.Event().wait(0.01)
    raise AssertionError("it did not happen in 30 s")


def test_the_process_that_listens_asks_the_one_that_knows() -> None:
    found = advising()
    with in_a_process(found) as process:
        answered = asyncio.run(ask_once(process.port, body()))
        assert b"waits: queue ml-queue" in answered
        assert b"would run now with one change" in answered
        assert b"warnings" not in asyncio.run(ask_once(process.port, body(job(gpus=0))))
        wait_until(lambda: sum(found.status.reviews().values()) == 2)
    assert found.status.reviews() == {"advised": 1, "no_gpus": 1}
    assert process._process is not None
    assert process._process.poll() == 0


@pytest.mark.fault(58)
def test_a_listener_that_dies_is_started_again(caplog: pytest.LogCaptureFixture) -> None:
    with in_a_process(advising()) as process:
        assert b"warnings" in asyncio.run(ask_once(process.port, body()))
        first = process._process
        assert first is not None
        first.kill()
        wait_until(lambda: process._process is not first)
        assert first.returncode == -signal.SIGKILL, "it was waited for, and is no zombie"
        assert b"warnings" in asyncio.run(ask_once(process.port, body()))
    assert "starting it again" in caplog.text


def test_where_no_process_can_begin_it_is_tried_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tries, begin = list[int](), subprocess.Popen

    def refused(*words: Any, **more: Any) -> Any:
        tries.append(1)
        if len(tries) == 1:
            raise BlockingIOError(11, "Resource temporarily unavailable")
        return begin(*words, **more)

    monkeypatch.setattr("gpucost.api.webhook.supervisor.subprocess.Popen", refused)
    with in_a_process(advising()) as process:
        assert b"warnings" in asyncio.run(ask_once(process.port, body()))
    assert "cannot start: [Errno 11] Resource temporarily unavailable" in caplog.text


_SERVICE = """
import socket, threading
from gpucost.api.webhook.adviser import AdmissionAdviser
from gpucost.api.webhook.supervisor import WebhookProcess
from tests.kube.pki import make_pki
from tests.api.advisor_worlds import TOKEN, advising

found = advising()
with socket.create_server(("127.0.0.1", 0)) as listener:
    process = WebhookProcess(listener, AdmissionAdviser(found), found.status, TOKEN, 5_000, 8)
    process.start()
    while process._process is None:
        pass
    print(process.port, process._process.pid, flush=True)
    threading.Event().wait()
"""


@pytest.mark.fault(58)
def test_the_listener_ends_with_a_service_that_is_killed() -> None:
    command = [sys.executable, "-c", _SERVICE]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as service:
        assert service.stdout is not None
        port, listener = map(int, service.stdout.readline().split())
        try:
            assert b"warnings" in asyncio.run(ask_once(port, body()))
            assert is_running(listener)
        finally:
            service.kill()
    wait_until(lambda: not is_running(listener))


def is_running(number: int) -> bool:
    """A zombie is not: who adopts an orphan may not wait for it."""
    found = subprocess.run(["ps", "-o", "stat=", "-p", str(number)], capture_output=True, text=True)
    return not found.stdout.startswith("Z") and bool(found.stdout)


@pytest.mark.fault(58)
def test_an_exception_is_told_and_the_next_review_is_advised() -> None:
    found, failures = advising(), [ValueError("secret")]

    def answering(document: Any, until_s: float, tell: Tell) -> None:
        if failures:
            raise failures.pop()
        AdmissionAdviser(found)(document, until_s, tell)

    with in_a_process(found, answering) as process:
        assert b"warnings" not in asyncio.run(ask_once(process.port, body()))
        assert b"warnings" in asyncio.run(ask_once(process.port, body()))
        wait_until(lambda: sum(found.status.reviews().values()) == 2)
    assert found.status.reviews() == {"error": 1, "advised": 1}


def test_the_token_is_on_no_command_line() -> None:
    with in_a_process(advising()) as process:
        wait_until(lambda: process._process is not None)
        assert process._process is not None
        assert not [each for each in process._process.args if TOKEN in str(each)]  # type: ignore[union-attr]
        assert TOKEN not in repr(process)
        asyncio.run(ask_once(process.port, body()))


def test_the_listener_ends(pairs: tuple[TlsFiles, TlsFiles]) -> None:
    with served(advising(), pairs[0]):
        pass
    assert not [each.name for each in threading.enumerate() if each.name == "gpucost-webhook"]
