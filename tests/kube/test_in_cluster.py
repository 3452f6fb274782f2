"""The way to the API server: credentials, certificates, limits."""

from __future__ import annotations

import socket
import ssl
import subprocess
import threading
import time
import traceback
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucost.domain.errors import InputError
from gpucost.kube.connect.credentials import AnswerLimits
from gpucost.kube.connect.http_transport import HttpTransport
from gpucost.kube.connect.transport import TransportError, split_lines
from tests.support.kube import Answer, kube_server, listed, refused, watched

SECRET = "eyJhbGciOi.c2VjcmV0.c2lnbmF0dXJl"


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate for 127.0.0.1 that vouches for itself, and its key, in one file."""
    file = tmp_path_factory.mktemp("tls") / "server.pem"
    command = (
        "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=test"
    )
    subprocess.run(
        [
            *command.split(),
            "-addext",
            "subjectAltName=IP:127.0.0.1",
            "-keyout",
            file,
            "-out",
            file.with_suffix(".crt"),
        ],
        check=True,
        capture_output=True,
    )
    file.write_text(file.read_text() + file.with_suffix(".crt").read_text())
    return file


def _server_tls(certificate: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    return context


def _in_cluster(server_port: int, mounted: Path, host: str = "127.0.0.1") -> HttpTransport:
    environ = {"KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": str(server_port)}
    return HttpTransport.in_cluster(environ, mounted)


def test_in_a_pod_the_token_is_read_again_for_each_request(certificate: Path, tmp_path: Path) -> None:
    (tmp_path / "ca.crt").write_bytes(certificate.with_suffix(".crt").read_bytes())
    with kube_server(listed(), listed(), tls=_server_tls(certificate)) as server:
        transport = _in_cluster(server.server_port, tmp_path)
        for token in ("first", "second"):
            (tmp_path / "token").write_text(f"{token}\n")
            response = transport.get("/api/v1/pods", {}, 5)
            assert response.read_json()["items"] == []
            response.close()
    assert [asked.headers["Authorization"] for asked in server.asked] == ["Bearer first", "Bearer second"]


def test_a_silent_watch_over_tls_can_be_ended_from_another_thread(certificate: Path) -> None:
    with kube_server(watched({"x": 1}, ending="silence"), tls=_server_tls(certificate)) as server:
        transport = HttpTransport(server.url, ca_file=certificate.with_suffix(".crt"))
        response = transport.get("/api/v1/pods", {}, 60)
        lines = response.lines()
        assert next(lines) == b'{"x": 1}'
        threading.Timer(0.1, response.abort).start()
        began = time.monotonic()
        with pytest.raises(TransportError) as caught:
            next(lines)
        assert time.monotonic() - began < 25, "the server leaves it after 30 s"
        response.close()
    assert caught.value.reason == "cut"


def test_a_certificate_nobody_vouches_for_is_refused_before_the_token_goes_out(
    certificate: Path, tmp_path: Path
) -> None:
    (tmp_path / "token").write_text(SECRET)
    with kube_server(listed(), tls=_server_tls(certificate)) as server:
        transport = HttpTransport(server.url, tmp_path / "token")
        with pytest.raises(TransportError) as caught:
            transport.get("/api/v1/pods", {}, 5)
    assert caught.value.reason == "tls"
    assert not server.asked


def test_a_certificate_for_another_host_is_refused(certificate: Path) -> None:
    with kube_server(listed(), tls=_server_tls(certificate)) as server:
        transport = HttpTransport(
            f"https://localhost:{server.server_port}", ca_file=certificate.with_suffix(".crt")
        )
        with pytest.raises(TransportError) as caught:
            transport.get("/api/v1/pods", {}, 5)
    assert caught.value.reason == "tls"


def test_a_missing_authority_file_is_said(tmp_path: Path) -> None:
    with pytest.raises(TransportError, match=r"ca\.crt") as caught:
        HttpTransport("https://127.0.0.1:1", ca_file=tmp_path / "ca.crt").get("/api", {}, 5)
    assert caught.value.reason == "tls"


def test_an_ipv6_address_is_bracketed(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("t")
    (tmp_path / "ca.crt").write_text("")
    transport = _in_cluster(6443, tmp_path, "fd00::1")
    assert (transport._base.hostname, transport._base.port) == ("fd00::1", 6443)


@pytest.mark.parametrize("missing", ["KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT"])
def test_outside_a_cluster_the_missing_variable_is_named(missing: str, tmp_path: Path) -> None:
    environ = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBERNETES_SERVICE_PORT": "443"}
    del environ[missing]
    with pytest.raises(InputError) as caught:
        HttpTransport.in_cluster(environ, tmp_path)
    assert caught.value.field == missing


@pytest.mark.parametrize(
    "url",
    [
        "",
        "10.0.0.1",
        "ftp://host",
        "https://",
        "https://user:pw@host",
        "https://host:port",
        "https://host?x=1",
    ],
)
def test_what_is_no_address_is_refused_without_repeating_a_password(url: str) -> None:
    with pytest.raises(InputError) as caught:
        HttpTransport(url)
    assert "pw" not in str(caught.value)


def test_a_token_does_not_cross_the_network_in_the_clear(tmp_path: Path) -> None:
    with pytest.raises(InputError):
        HttpTransport("http://10.0.0.1:8080", tmp_path / "token")
    HttpTransport("http://[::1]:8080", tmp_path / "token")
    HttpTransport("http://10.0.0.1:8080")


@pytest.mark.parametrize(
    "content", [None, "", "  \n", f"{SECRET}\nX-Other: 1", f"{SECRET}é", f"{SECRET}\x00"]
)
def test_a_token_that_cannot_be_used_is_an_error_that_does_not_show_it(
    content: str | None, tmp_path: Path
) -> None:
    file = tmp_path / "token"
    if content is not None:
        file.write_text(content)
    with kube_server(listed()) as server:
        transport = HttpTransport(server.url, file)
        with pytest.raises(TransportError) as caught:
            transport.get("/api/v1/pods", {}, 5)
    assert caught.value.reason == "token"
    assert SECRET not in "".join(traceback.format_exception(caught.value))
    assert not server.asked


def test_the_token_is_in_no_error(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    (tmp_path / "token").write_text(SECRET)
    with kube_server(Answer(chunks=(b"{",), ending="cut"), Answer(chunks=(b"<html>",))) as server:
        transport = HttpTransport(server.url, tmp_path / "token")
        for _ in range(2):
            response = transport.get("/api/v1/pods", {}, 5)
            with pytest.raises(TransportError) as caught:
                response.read_json()
            response.close()
            assert SECRET not in "".join(traceback.format_exception(caught.value)) + caplog.text


def test_a_redirect_is_an_answer_like_any_other() -> None:
    with kube_server(refused(302, location="http://127.0.0.1:1/steal"), listed()) as server:
        response = HttpTransport(server.url).get("/api/v1/pods", {}, 5)
        response.close()
    assert (response.status, len(server.asked)) == (302, 1)


def test_a_prefix_and_parameters_are_put_together() -> None:
    with kube_server(listed()) as server:
        transport = HttpTransport(f"{server.url}/k8s/clusters/c-1/")
        transport.get("/api/v1/pods", {"fieldSelector": "spec.nodeName=a&b"}, 5).close()
    asked = server.asked[0]
    assert (asked.path, asked.params) == (
        "/k8s/clusters/c-1/api/v1/pods",
        {"fieldSelector": "spec.nodeName=a&b"},
    )


def test_an_answer_too_large_is_not_read_to_its_end() -> None:
    chunks = (b"x" * 1000,) * 100
    with kube_server(Answer(chunks=chunks)) as server:
        response = HttpTransport(server.url, limits=AnswerLimits(body_bytes=5000)).get("/api", {}, 5)
        with pytest.raises(TransportError) as caught:
            response.read_json()
        response.close()
    assert caught.value.reason == "too_large"


def test_a_line_too_long_is_cut_and_the_next_one_is_whole() -> None:
    with kube_server(watched(b"a" * 5000, b"b" * 5000 + b"\n", {"x": 1})) as server:
        response = HttpTransport(server.url, limits=AnswerLimits(line_bytes=100)).get("/api", {}, 5)
        assert list(response.lines()) == [b"a" * 100, b'{"x": 1}']
        response.close()


def test_a_server_that_accepts_and_says_nothing_is_left() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        transport = HttpTransport(
            f"http://127.0.0.1:{listening.getsockname()[1]}", limits=AnswerLimits(head_s=0.1)
        )
        began = time.monotonic()
        with pytest.raises(TransportError) as caught:
            transport.get("/api", {}, 60)
        assert time.monotonic() - began < 50
    assert caught.value.reason == "silent"


def test_an_answer_shorter_than_it_said_is_cut_even_where_it_is_json() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def answer() -> None:
            accepted, _ = listening.accept()
            with accepted:
                accepted.recv(65536)
                accepted.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{}")

        thread = threading.Thread(target=answer)
        thread.start()
        response = HttpTransport(f"http://127.0.0.1:{listening.getsockname()[1]}").get("/api", {}, 5)
        with pytest.raises(TransportError) as caught:
            response.read_json()
        response.close()
        thread.join()
    assert caught.value.reason == "cut"


@given(st.binary(max_size=60).map(lambda text: text.replace(b"\r", b"\n")), st.data())
def test_lines_do_not_depend_on_where_the_chunks_end(text: bytes, data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    chunks = [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    limit = data.draw(st.integers(1, 70))
    assert list(split_lines(chunks, limit)) == [line[:limit] for line in text.splitlines()]
