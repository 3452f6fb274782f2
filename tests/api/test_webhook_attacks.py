"""The listener of the webhook under attack: whatever clients send, an honest API server gets its answers."""

from __future__ import annotations

import contextlib
import gzip
import http.client
import json
import socket
import ssl
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpucost.advisor.advise import advise
from gpucost.api.server import connections
from gpucost.api.server.connections import BoundedProtocol
from gpucost.api.webhook import app
from gpucost.api.webhook.adviser import AdmissionAdviser
from gpucost.api.webhook.listener_process import WebhookServer
from gpucost.api.webhook.supervisor import WebhookProcess
from gpucost.attribution.teams import TeamRules
from gpucost.cli.state.source import ClusterLocation, load
from gpucost.cluster.objects.metadata import OwnerKeys
from gpucost.kube.manifests import manifest_of, reread
from gpucost.service.advisor.advisor_service import AdvisorEngine, AdvisorService
from gpucost.settings.tls import TlsFiles
from tests.api.advisor_worlds import TOKEN, SmallEngine, StillCluster, advising, body
from tests.api.test_webhook_server import request, served, wait_until
from tests.kube.pki import Pki, make_pki

pytestmark = pytest.mark.fault(57)

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
JOB: dict[str, Any] = yaml.safe_load((EXAMPLES / "waits.yaml").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> Pki:
    return make_pki(tmp_path_factory.mktemp("pki"))


@pytest.fixture(scope="module")
def strangers(tmp_path_factory: pytest.TempPathFactory) -> Pki:
    """Of another authority."""
    return make_pki(tmp_path_factory.mktemp("strangers"))


def pair(pki: Pki) -> TlsFiles:
    return TlsFiles(pki.server.with_suffix(".crt"), pki.server)


def trusting(pki: Pki, shown: Pki | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(pki.ca))
    if shown is not None:
        context.load_cert_chain(shown.client.with_suffix(".crt"), shown.client)
    return context


@contextlib.contextmanager
def connected(port: int, context: ssl.SSLContext) -> Iterator[ssl.SSLSocket]:
    with (
        socket.create_connection(("127.0.0.1", port), 120) as connection,
        context.wrap_socket(connection, server_hostname="127.0.0.1") as secured,
    ):
        yield secured


def answer_to(connection: socket.socket, *parts: bytes) -> dict[str, Any]:
    """The response to a request in ``parts``."""
    for part in parts:
        connection.sendall(part)
    with http.client.HTTPResponse(connection) as answered:
        answered.begin()
        assert answered.status == 200
        found: dict[str, Any] = json.loads(answered.read())["response"]
    return found


def hello() -> bytes:
    """What a client says first."""
    coming, going = ssl.MemoryBIO(), ssl.MemoryBIO()
    with contextlib.suppress(ssl.SSLWantReadError):
        ssl.create_default_context().wrap_bio(coming, going, server_hostname="w").do_handshake()
    return going.read()


def test_a_flood_of_connections_keeps_no_api_server_out(
    pki: Pki, strangers: Pki, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """240 at once that are no API servers; the limits of time are those of a machine that is not slow."""
    monkeypatch.setattr(connections, "HANDSHAKE_S", 600.0)
    monkeypatch.setattr(BoundedProtocol, "request_s", 600.0)
    monkeypatch.setattr(app, "_LONGEST_READ_S", 600.0)
    greeting = hello()
    raw = {
        "nothing": b"",
        "half a handshake": greeting[: len(greeting) // 2],
        "a handshake, and no more": greeting,
        "no TLS": b"GET / HTTP/1.1\r\nHost: w\r\n\r\n",
        "noise": b"\x16\x03\x01\xff\xff" + b"\x01" * 20_000,
    }
    old = trusting(pki, pki)
    with pytest.warns(DeprecationWarning, match="TLSv1"):
        old.minimum_version, old.maximum_version = ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1

    def flood(server: WebhookServer, held: contextlib.ExitStack) -> None:
        for sent in (*raw.values(), b""):
            for number in range(40):
                connection = socket.create_connection(("127.0.0.1", server.port), 120)
                held.callback(connection.close)
                with contextlib.suppress(OSError):  # some are ended before they have said it
                    connection.sendall(sent[: number + 1] if number < 20 else sent)
        slow = held.enter_context(connected(server.port, trusting(pki, pki)))
        slow.sendall(request(body())[:-1])
        for context in (trusting(pki, strangers), trusting(pki), old):
            with contextlib.suppress(OSError), connected(server.port, context) as refused:
                refused.sendall(request(body()))
                assert refused.recv(1) == b"", "no certificate of the authority, or none of today"

    found = advising()
    long_ms = 600_000
    with (
        served(found, pair(pki), deadline_ms=long_ms, client_ca=pki.ca) as (server, _),
        contextlib.ExitStack() as held,
    ):
        before = held.enter_context(connected(server.port, trusting(pki, pki)))
        flood(server, held)
        for connection in (before, held.enter_context(connected(server.port, trusting(pki, pki)))):
            response = answer_to(connection, request(body(uid="honest")))
            assert (response["uid"], response["allowed"]) == ("honest", True)
            assert response["warnings"]
    assert found.status.reviews() == {"advised": 2}
    assert not [each for each in caplog.records if each.exc_info or each.levelname == "ERROR"]


def written(document: object, uid: str = "here", **more: object) -> bytes:
    return body(document, uid=uid, namespace="vision", **more)


def job(change: Callable[[dict[str, Any], dict[str, Any]], object]) -> dict[str, Any]:
    """That of the page's example, changed in itself or in its container."""
    found: dict[str, Any] = json.loads(json.dumps(JOB))
    change(found, found["spec"]["template"]["spec"]["containers"][0])
    return found


def asks(amount: str) -> bytes:
    """``amount`` of JSON for GPUs."""
    found = job(lambda _, container: container["resources"].update(limits={"nvidia.com/gpu": "AMOUNT"}))
    return written(found).replace(b'"AMOUNT"', amount.encode())


def containers(count: int) -> bytes:
    def change(found: dict[str, Any], container: dict[str, Any]) -> None:
        found["spec"]["template"]["spec"]["containers"] = [
            container | {"name": f"c{n}"} for n in range(count)
        ]

    return written(job(change))


BOMBS: tuple[tuple[bytes, str, str], ...] = (
    (asks('"8"'), "advised", "here"),
    (asks('"1e999999999"'), "advised", "here"),
    (asks(f'"{"9" * 100_000}"'), "advised", "here"),
    (asks("9" * 100_000), "malformed", "here"),
    (asks("1e999999999"), "invalid_manifest", "here"),
    (asks("-1"), "invalid_manifest", "here"),
    (asks('"\\ud800"'), "invalid_manifest", "here"),
    (asks("[" * 500 + "]" * 500), "invalid_manifest", "here"),
    (asks("[" * 9_000 + "]" * 9_000), "malformed", "here"),
    (asks('{"a":' * 5_000 + "1" + "}" * 5_000), "malformed", "here"),
    (containers(10_000), "too_large", "here"),
    (containers(50), "advised", "here"),
    (written(job(lambda found, _: found.update(status="x" * (3 << 20)))), "too_large", "here"),
    (
        written(job(lambda found, _: found.update(status=dict.fromkeys(map(str, range(10**6)), "")))),
        "too_large",
        "here",
    ),
    (
        written(job(lambda _, c: c["resources"]["limits"].update({f"a.io/r{n}": "1" for n in range(1_000)}))),
        "advised",
        "here",
    ),
    (
        written(job(lambda found, _: found["metadata"].update(name="x\n\n2026 ERROR forged\x1b[31m"))),
        "invalid_manifest",
        "here",
    ),
    (written(JOB)[:-1] + b', "request": {"uid": "twice", "uid": "last", "object": {}}}', "operation", "last"),
    (written(JOB, uid="x" * 1_000_000), "malformed", ""),
    (written(JOB).replace(b"admission.k8s.io/v1", b"admission.k8s.io/v9"), "unsupported_version", "here"),
    (gzip.compress(written(JOB)), "malformed", ""),
    (b"\x00", "malformed", ""),
)


def test_no_bomb_costs_more_than_its_own_advice(pki: Pki, capfd: pytest.CaptureFixture[str]) -> None:
    """Over TLS to the process that listens, with the real rules of the schedulers behind it."""
    state = load(str(EXAMPLES / "cluster.yaml"), OwnerKeys(), ClusterLocation(None, "", ""), "", 0).state
    engine = AdvisorEngine(advise, SmallEngine().explain, manifest_of, reread)
    found = AdvisorService(StillCluster(state), engine, TeamRules.default())
    found.refresh()
    expected: Counter[str] = Counter()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        process = WebhookProcess(
            listener, AdmissionAdviser(found), found.status, TOKEN, 600_000, 8, pair(pki)
        )
        process.start()
        try:
            for content, result, uid in BOMBS:
                with connected(process.port, trusting(pki)) as connection:
                    response = answer_to(connection, request(content))
                assert (response["uid"], response["allowed"]) == (uid, True), content[:300]
                assert ("warnings" in response) is (result == "advised"), content[:300]
                expected[result] += 1
            with connected(process.port, trusting(pki)) as connection:
                head, _, content = request(written(JOB)).partition(b"\r\n\r\n")
                chunked = head.partition(b"Content-Length")[0] + b"Transfer-Encoding: chunked\r\n\r\n"
                parts = (b"1\r\n%c\r\n" % each for each in content)
                assert answer_to(connection, chunked, *parts, b"0\r\n\r\n")["warnings"]
                expected["advised"] += 1
            wait_until(lambda: sum(found.status.reviews().values()) == expected.total())
            assert process._process is not None
            assert process._process.poll() is None, "it is the one of the start"
        finally:
            process.close()
    assert found.status.reviews() == expected
    told = capfd.readouterr().err
    assert "Traceback" not in told
    assert "forged" not in told
