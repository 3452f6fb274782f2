"""Who may scrape: tokens that are replaced, TLS alone, certificates that are renewed, and what stays open."""

from __future__ import annotations

import http.client
import shutil
import socket
import ssl
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import pytest

from gpucost.domain.errors import ConfigError, InputError
from gpucost.settings.environment import from_environment
from gpucost_exporter_base.endpoint import (
    EndpointLimits,
    EndpointRequest,
    EndpointResponse,
    HttpEndpoint,
    text,
)
from gpucost_exporter_base.scrape_access import (
    ScrapeSettings,
    ScrapeTokens,
    guarded,
    listening,
)
from tests.kube.pki import Pki, make_pki

TOKEN, OTHER = "a-token-of-32-characters-for-this", "another-token-of-many-characters"
needs_openssl = pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")


def series(request: EndpointRequest) -> EndpointResponse:  # noqa: ARG001
    return text(200, 'gpucost_pod_gpu_units{team="research"} 8')


def well(request: EndpointRequest) -> EndpointResponse:  # noqa: ARG001
    return text(200, "ok")


ROUTES = {"/metrics": series, "/healthz": well, "/readyz": well}


def settings(**values: object) -> ScrapeSettings:
    environ = {f"X_{key.upper()}": str(value) for key, value in values.items()}
    return from_environment(ScrapeSettings, "X_", environ, "a page")


@contextmanager
def serving(endpoint: HttpEndpoint) -> Iterator[int]:
    port = endpoint.start()
    try:
        yield port
    finally:
        endpoint.close()


def asked(
    port: int, path: str, token: str | None = None, tls: ssl.SSLContext | None = None
) -> tuple[int, Mapping[str, str], str]:
    """Status, headers and body."""
    found = (
        http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        if tls is None
        else http.client.HTTPSConnection("127.0.0.1", port, timeout=20, context=tls)
    )
    with closing(found) as connection:
        connection.request("GET", path, headers={"Authorization": token} if token is not None else {})
        answer = connection.getresponse()
        return answer.status, dict(answer.headers), answer.read().decode()


@pytest.fixture(scope="module")
def pkis(tmp_path_factory: pytest.TempPathFactory) -> tuple[Pki, Pki]:
    return make_pki(tmp_path_factory.mktemp("old")), make_pki(tmp_path_factory.mktemp("new"))


def test_a_token_opens_the_series_and_nothing_else_does(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(f"{TOKEN}\n", encoding="utf-8")
    with serving(listening(settings(scrape_token_files=file), 0, ROUTES)) as port:
        assert asked(port, "/metrics", f"Bearer {TOKEN}")[0] == 200
        assert asked(port, "/metrics", f"bearer  {TOKEN}")[0] == 200
        wrong = (
            "",
            "Bearer",
            "Bearer ",
            f"Bearer {TOKEN[:-1]}",
            f"Bearer {TOKEN}x",
            f"Basic {TOKEN}",
            TOKEN,
            "Bearer ÿ",
        )
        for given in (None, *wrong):
            status, headers, body = asked(port, "/metrics", given)
            assert (status, headers["WWW-Authenticate"]) == (401, "Bearer"), given
            assert "research" not in body
            assert TOKEN not in body
        for path in ("/healthz", "/readyz"):
            assert asked(port, path)[::2] == (200, "ok\n")


def test_tokens_are_replaced_without_a_gap(tmp_path: Path) -> None:
    new, old = tmp_path / "token", tmp_path / "other"
    tokens = ScrapeTokens((str(new), str(old)))

    def accepted() -> list[bool]:
        return [tokens.accepts(f"Bearer {each}") for each in (TOKEN, OTHER)]

    assert accepted() == [False, False], "no file, no token"
    new.write_text(TOKEN, encoding="utf-8")
    assert accepted() == [True, False]
    new.write_text(OTHER, encoding="utf-8")
    old.write_text(TOKEN, encoding="utf-8")
    assert accepted() == [True, True]
    old.unlink()
    assert accepted() == [False, True]
    for guessed in ("", "\n", "short"):
        new.write_text(guessed, encoding="utf-8")
        assert not tokens.accepts(f"Bearer {guessed.strip()}")


def test_refusals_are_told_now_and_then_without_the_token(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file, now = tmp_path / "token", [0.0]
    file.write_text(TOKEN, encoding="utf-8")
    tokens = ScrapeTokens((str(file),), lambda: now[0])
    for _ in range(5):
        tokens.accepts(f"Bearer {OTHER}")
    now[0] = 61.0
    file.unlink()
    tokens.accepts(f"Bearer {OTHER}")
    assert [record.message for record in caplog.records] == [
        "a scrape was refused: no token, or a wrong one",
        "a scrape was refused: none of the token files holds a token",
    ]
    assert OTHER not in caplog.text


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({}, "scrape_token_files"),
        ({"listen_host": "::"}, "scrape_token_files"),
        ({"listen_host": "10.0.0.1", "tls_self_signed": "true"}, "scrape_token_files"),
        ({"tls_cert_file": __file__}, "X_TLS_KEY_FILE"),
        ({"tls_key_file": __file__}, "X_TLS_CERT_FILE"),
        (
            {"tls_cert_file": __file__, "tls_key_file": __file__, "tls_self_signed": "true"},
            "X_TLS_SELF_SIGNED",
        ),
        ({"tls_cert_file": "/none", "tls_key_file": "/none"}, "X_TLS_CERT_FILE"),
        ({"scrape_auth": "off", "tls_cert_file": __file__, "tls_key_file": __file__}, "tls_cert_file"),
        ({"scrape_auth": "sometimes"}, "X_SCRAPE_AUTH"),
    ],
)
def test_what_is_not_safe_is_refused_at_the_start(values: dict[str, str], field: str) -> None:
    with pytest.raises((InputError, ConfigError)) as caught:
        listening(settings(**values), 0, ROUTES)
    assert caught.value.field == field


@pytest.mark.parametrize(
    "values", [{"scrape_auth": "off"}, {"listen_host": "127.0.0.1"}, {"listen_host": "::1"}]
)
def test_what_is_said_to_be_open_is(values: dict[str, str]) -> None:
    found = listening(settings(**{"listen_host": "127.0.0.1", **values}), 0, {"/metrics": series})
    assert isinstance(found, HttpEndpoint)
    listening(settings(**values), 0, ROUTES)


def test_over_tls_certificate_and_token_are_taken_anew(pkis: tuple[Pki, Pki], tmp_path: Path) -> None:
    old, new = pkis
    token = tmp_path / "token"
    token.write_text(TOKEN, encoding="utf-8")

    def put(pki: Pki) -> dict[str, Path]:
        for name in ("server.crt", "server.key"):
            shutil.copy(pki.ca.parent / name, tmp_path / f"{name}.new")
            (tmp_path / f"{name}.new").replace(tmp_path / name)
        return {"tls_cert_file": tmp_path / "server.crt", "tls_key_file": tmp_path / "server.key"}

    trust = [ssl.create_default_context(cafile=str(each.ca)) for each in pkis]
    made = listening(settings(scrape_token_files=token, **put(old)), 0, ROUTES)
    assert made._certificate is not None
    assert made._certificate._newest.minimum_version is ssl.TLSVersion.TLSv1_2
    with serving(made) as port:
        assert asked(port, "/metrics", f"Bearer {TOKEN}", trust[0])[0] == 200
        assert asked(port, "/metrics", None, trust[0])[0] == 401
        assert asked(port, "/healthz", None, trust[0])[0] == 200
        with pytest.raises((http.client.HTTPException, OSError)):
            asked(port, "/healthz")  # plain HTTP
        put(new)
        deadline = time.monotonic() + 30
        while True:
            try:
                assert asked(port, "/metrics", f"Bearer {TOKEN}", trust[1])[0] == 200
                break
            except ssl.SSLCertVerificationError:
                assert time.monotonic() < deadline
                time.sleep(0.1)
        with pytest.raises(ssl.SSLCertVerificationError):
            asked(port, "/metrics", f"Bearer {TOKEN}", trust[0])


@needs_openssl
def test_a_certificate_of_its_own() -> None:
    blind = ssl.create_default_context()
    blind.check_hostname, blind.verify_mode = False, ssl.CERT_NONE
    found = settings(listen_host="127.0.0.1", tls_self_signed="true")
    with serving(listening(found, 0, ROUTES)) as port:
        assert asked(port, "/metrics", None, blind)[0] == 200
        with pytest.raises(ssl.SSLCertVerificationError):
            asked(port, "/metrics", None, ssl.create_default_context())


def test_without_openssl_it_says_what_else_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(InputError, match=r"tls_self_signed: True .* tls_cert_file and tls_key_file"):
        listening(settings(listen_host="127.0.0.1", tls_self_signed="true"), 0, ROUTES)


@needs_openssl
@pytest.mark.fault(10)
def test_handshakes_that_never_end_count_as_connections(pkis: tuple[Pki, Pki]) -> None:
    folder = pkis[0].ca.parent
    found = settings(
        listen_host="127.0.0.1", tls_cert_file=folder / "server.crt", tls_key_file=folder / "server.key"
    )
    made = listening(found, 0, ROUTES)
    made._limits = EndpointLimits(head_s=60, connections=20)
    trust = ssl.create_default_context(cafile=str(pkis[0].ca))
    with serving(made) as port, ExitStack() as held:
        first = held.enter_context(socket.create_connection(("127.0.0.1", port), timeout=60))
        for _ in range(60):
            silent = held.enter_context(socket.create_connection(("127.0.0.1", port), timeout=60))
            silent.sendall(b"\x16\x03\x01")
        assert asked(port, "/healthz", None, trust)[0] == 200
        assert first.recv(1) == b"", "closed to make room"
        assert len(made._tasks) <= 20


def test_a_guard_passes_the_answer_on(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(TOKEN, encoding="utf-8")
    route = guarded(series, ScrapeTokens((str(file),)))
    asks = EndpointRequest("GET", "/metrics", "", {"authorization": f"Bearer {TOKEN}"}, True)
    assert route(asks).body == series(asks).body
