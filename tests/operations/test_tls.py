"""The API over TLS: certificates that change while connections stay, and handshakes that never end."""

from __future__ import annotations

import http.client
import shutil
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import pytest
from starlette.responses import PlainTextResponse

from gpucost.api.server import connections
from gpucost.api.server.listener import ApiListener, AppSwitch
from gpucost.cli.commands.serve import _certificate
from gpucost.domain.errors import ConfigError, InputError
from gpucost.service.settings.loader import load_settings
from gpucost.service.settings.model import Settings
from gpucost.settings.tls import ListenerCertificate, TlsFiles
from tests.kube.pki import Pki, make_pki


@pytest.fixture(scope="module")
def pkis(tmp_path_factory: pytest.TempPathFactory) -> tuple[Pki, Pki]:
    if shutil.which("openssl") is None:
        pytest.skip("no openssl to make certificates with")
    return make_pki(tmp_path_factory.mktemp("old")), make_pki(tmp_path_factory.mktemp("new"))


def put(pki: Pki, folder: Path) -> TlsFiles:
    """The server's pair in ``folder``, each file in one step."""
    for name in ("server.crt", "server.key"):
        shutil.copy(pki.ca.parent / name, folder / f"{name}.new")
        (folder / f"{name}.new").replace(folder / name)
    return TlsFiles(folder / "server.crt", folder / "server.key")


@contextmanager
def listening(certificate: ListenerCertificate) -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = ApiListener(AppSwitch(PlainTextResponse("here")), listener, certificate)
        thread = threading.Thread(target=server.run)
        thread.start()
        port = int(listener.getsockname()[1])
        try:
            yield port
        finally:
            server.stop()
            thread.join()


def connected(port: int, pki: Pki) -> http.client.HTTPSConnection:
    context = ssl.create_default_context(cafile=str(pki.ca))
    found = http.client.HTTPSConnection("127.0.0.1", port, timeout=20, context=context)
    found.connect()
    return found


def asks(connection: http.client.HTTPSConnection) -> bytes:
    connection.request("GET", "/")
    return connection.getresponse().read()


def test_a_certificate_is_renewed_while_connections_stay(pkis: tuple[Pki, Pki], tmp_path: Path) -> None:
    old, new = pkis
    certificate = ListenerCertificate(put(old, tmp_path), "the API")
    with listening(certificate) as port, closing(connected(port, old)) as kept:
        assert asks(kept) == b"here"
        shutil.copy(new.ca.parent / "server.crt", tmp_path / "server.crt")
        certificate.renew()  # half of a pair: not taken
        with closing(connected(port, old)) as other:
            assert asks(other) == b"here"
        put(new, tmp_path)
        certificate.renew()
        with pytest.raises(ssl.SSLCertVerificationError):
            connected(port, old)
        with closing(connected(port, new)) as other:
            assert asks(other) == b"here"
        assert asks(kept) == b"here"


def test_half_open_handshakes_hold_up_nobody(pkis: tuple[Pki, Pki], tmp_path: Path) -> None:
    certificate = ListenerCertificate(put(pkis[0], tmp_path), "the API")
    with listening(certificate) as port, ExitStack() as held:
        for number in range(60):
            slow = held.enter_context(socket.create_connection(("127.0.0.1", port), timeout=60))
            slow.sendall(b"\x16\x03\x01\x02\x00\x01"[: number % 7])
        with closing(connected(port, pkis[0])) as quick:
            assert asks(quick) == b"here"
        # Those whose handshake goes on are ended with the listener.
        held.close()


def ended(connection: socket.socket) -> bool:
    """By the listener; it waits for that."""
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True


@pytest.mark.parametrize(("limits", "gone"), [((0.2, 100), 12), ((60.0, 4), 8)])
def test_handshakes_that_nobody_goes_on_with_are_ended(
    pkis: tuple[Pki, Pki],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    limits: tuple[float, int],
    gone: int,
) -> None:
    monkeypatch.setattr(connections, "HANDSHAKE_S", limits[0])
    monkeypatch.setattr(connections, "MOST_HANDSHAKES", limits[1])
    certificate = ListenerCertificate(put(pkis[0], tmp_path), "the API")
    with listening(certificate) as port, ExitStack() as held:
        silent = [
            held.enter_context(socket.create_connection(("127.0.0.1", port), timeout=60)) for _ in range(12)
        ]
        assert all(ended(each) for each in silent[:gone]), "too slow, or too many"
        monkeypatch.setattr(connections, "HANDSHAKE_S", 60.0)  # for who is only on a slow machine
        with closing(connected(port, pkis[0])) as quick:
            assert asks(quick) == b"here"
            held.close()
            assert asks(quick) == b"here"


def test_only_tls_from_1_2_on(pkis: tuple[Pki, Pki], tmp_path: Path) -> None:
    found = ListenerCertificate(put(pkis[0], tmp_path), "the API")
    assert found.context.minimum_version is ssl.TLSVersion.TLSv1_2


def test_files_that_do_not_belong_together_stop_the_start(pkis: tuple[Pki, Pki], tmp_path: Path) -> None:
    old, new = pkis
    pair = {"tls_cert_file": old.ca.parent / "server.crt", "tls_key_file": new.ca.parent / "server.key"}
    with pytest.raises(InputError, match=r"api\.tls_cert_file"):
        _certificate(Settings(api=pair))  # type: ignore[arg-type]
    alone = tmp_path / "c.yaml"
    alone.write_text(f"api: {{tls_cert_file: {old.ca.parent / 'server.crt'}}}", encoding="utf-8")
    with pytest.raises(ConfigError, match="tls_key_file"):
        load_settings(alone)
