"""Certificates, kubeconfigs and pods with a service account, for tests of connections."""

from __future__ import annotations

import base64
import ssl
import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from gpucost.kube.connect.connection import connect
from gpucost.kube.connect.httpx_transport import HttpxTransport
from gpucost.kube.connect.transport import TransportError
from tests.support.kube import Answer, KubeServer, kube_server

SECRET = "eyJhbGciOi.c2VjcmV0.c2lnbmF0dXJl"


class Pki(NamedTuple):
    """An authority, a server certificate for 127.0.0.1 and api.test, and a client certificate."""

    ca: Path
    server: Path
    client: Path

    def tls(self, client_ca: Path | None = None) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.server.with_suffix(".crt"), self.server)
        if client_ca is not None:
            context.load_verify_locations(client_ca)
            context.verify_mode = ssl.CERT_REQUIRED
        return context


def openssl(*words: object) -> None:
    subprocess.run(["openssl", *map(str, words)], check=True, capture_output=True)


def make_pki(folder: Path) -> Pki:
    ec = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", 2)
    ca = folder / "ca.key"
    openssl("req", "-x509", *ec, "-subj", "/CN=ca", "-keyout", ca, "-out", folder / "ca.crt")
    for name in ("server", "client"):
        key, request = folder / f"{name}.key", folder / f"{name}.csr"
        openssl("req", *ec[:-2], "-subj", f"/CN={name}", "-keyout", key, "-out", request)
        extra = folder / f"{name}.ext"
        extra.write_text("subjectAltName=IP:127.0.0.1,DNS:api.test\n" if name == "server" else "\n")
        openssl(
            *("x509", "-req", "-in", request, "-CA", folder / "ca.crt", "-CAkey", ca, "-CAcreateserial"),
            *("-days", 2, "-extfile", extra, "-out", key.with_suffix(".crt")),
        )
    return Pki(folder / "ca.crt", folder / "server.key", folder / "client.key")


def b64(file: Path) -> str:
    return base64.b64encode(file.read_bytes()).decode()


def write_kubeconfig(file: Path, cluster: dict[str, Any], user: dict[str, Any] | None = None) -> Path:
    context = {"cluster": "c", **({"user": "u"} if user is not None else {})}
    document = {
        "current-context": "x",
        "clusters": [{"name": "c", "cluster": cluster}],
        "contexts": [{"name": "x", "context": context}],
        "users": [{"name": "u", "user": user}] if user is not None else None,
    }
    file.write_text(yaml.safe_dump(document))
    return file


def ask(transport: HttpxTransport, path: str = "/api/v1/pods") -> int:
    with closing(transport.get(path, {}, 5)) as response:
        response.read_json()
        return response.status


def error_of(transport: HttpxTransport) -> TransportError:
    with closing(transport), pytest.raises(TransportError) as caught:
        transport.get("/api/v1/pods", {}, 5)
    return caught.value


def pod_mount(folder: Path, pki: Pki, token: str = "first") -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "ca.crt").write_bytes(pki.ca.read_bytes())
    (folder / "token").write_text(token)
    return folder


@contextmanager
def in_pod(mounted: Path, pki: Pki, *script: Answer) -> Iterator[tuple[KubeServer, HttpxTransport]]:
    with (
        kube_server(*script, tls=pki.tls()) as server,
        closing(connect(pod_environ(server), mounted=mounted)) as transport,
    ):
        yield server, transport


def pod_environ(server: KubeServer) -> dict[str, str]:
    return {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": str(server.server_port)}
