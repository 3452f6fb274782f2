"""Connecting with lightkube's help: kubeconfigs, certificates, tokens that change, and what is refused."""

from __future__ import annotations

import base64
import gzip
import json
import os
import shutil
import socket
import ssl
import subprocess
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from gpucost.domain.errors import ConfigError, InputError
from gpucost.kube.connect.connection import connect, connect_url
from gpucost.kube.connect.httpx_transport import HttpxTransport
from gpucost.kube.connect.secure import Limits
from gpucost.kube.connect.transport import TransportError
from gpucost.kube.reflector import Reflector
from tests.support.kube import Answer, KubeServer, kube_server, listed, refused, watched

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


def _openssl(*words: object) -> None:
    subprocess.run(["openssl", *map(str, words)], check=True, capture_output=True)


def _make_pki(folder: Path) -> Pki:
    ec = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", 2)
    ca = folder / "ca.key"
    _openssl("req", "-x509", *ec, "-subj", "/CN=ca", "-keyout", ca, "-out", folder / "ca.crt")
    for name in ("server", "client"):
        key, request = folder / f"{name}.key", folder / f"{name}.csr"
        _openssl("req", *ec[:-2], "-subj", f"/CN={name}", "-keyout", key, "-out", request)
        extra = folder / f"{name}.ext"
        extra.write_text("subjectAltName=IP:127.0.0.1,DNS:api.test\n" if name == "server" else "\n")
        _openssl(
            *("x509", "-req", "-in", request, "-CA", folder / "ca.crt", "-CAkey", ca, "-CAcreateserial"),
            *("-days", 2, "-extfile", extra, "-out", key.with_suffix(".crt")),
        )
    return Pki(folder / "ca.crt", folder / "server.key", folder / "client.key")


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> Pki:
    return _make_pki(tmp_path_factory.mktemp("pki"))


@pytest.fixture(scope="module")
def other_pki(tmp_path_factory: pytest.TempPathFactory) -> Pki:
    return _make_pki(tmp_path_factory.mktemp("other"))


def _b64(file: Path) -> str:
    return base64.b64encode(file.read_bytes()).decode()


def _kubeconfig(file: Path, cluster: dict[str, Any], user: dict[str, Any] | None = None) -> Path:
    context = {"cluster": "c", **({"user": "u"} if user is not None else {})}
    document = {
        "current-context": "x",
        "clusters": [{"name": "c", "cluster": cluster}],
        "contexts": [{"name": "x", "context": context}],
        "users": [{"name": "u", "user": user}] if user is not None else None,
    }
    file.write_text(yaml.safe_dump(document))
    return file


def _ask(transport: HttpxTransport, path: str = "/api/v1/pods") -> int:
    with closing(transport.get(path, {}, 5)) as response:
        response.read_json()
        return response.status


def _error(transport: HttpxTransport) -> TransportError:
    with closing(transport), pytest.raises(TransportError) as caught:
        transport.get("/api/v1/pods", {}, 5)
    return caught.value


def _pod_mount(folder: Path, pki: Pki, token: str = "first") -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "ca.crt").write_bytes(pki.ca.read_bytes())
    (folder / "token").write_text(token)
    return folder


@contextmanager
def _in_pod(mounted: Path, pki: Pki, *script: Answer) -> Iterator[tuple[KubeServer, HttpxTransport]]:
    with (
        kube_server(*script, tls=pki.tls()) as server,
        closing(connect(_pod_environ(server), mounted=mounted)) as transport,
    ):
        yield server, transport


def _pod_environ(server: KubeServer) -> dict[str, str]:
    return {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": str(server.server_port)}


# In a pod


def test_in_a_pod_a_rotated_token_goes_with_the_next_request(pki: Pki, tmp_path: Path) -> None:
    mounted = _pod_mount(tmp_path, pki)
    with _in_pod(mounted, pki, listed(), listed()) as (server, transport):
        _ask(transport)
        (mounted / "token").write_text("second\n")
        _ask(transport)
    assert [asked.headers["Authorization"] for asked in server.asked] == ["Bearer first", "Bearer second"]


def test_in_a_pod_a_new_authority_is_taken_after_the_first_refusal(
    pki: Pki, other_pki: Pki, tmp_path: Path
) -> None:
    mounted = _pod_mount(tmp_path, other_pki)
    with _in_pod(mounted, pki, listed()) as (server, transport):
        for _ in range(2):
            with pytest.raises(TransportError) as caught:
                _ask(transport)
            assert caught.value.reason == "tls"
        (mounted / "ca.crt").write_bytes(pki.ca.read_bytes())
        with pytest.raises(TransportError):
            _ask(transport)
        assert _ask(transport) == 200
    assert len(server.asked) == 1


def test_in_a_pod_no_proxy_of_the_environment_is_used(
    pki: Pki, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:9")
    with kube_server(listed(), tls=pki.tls()) as server:
        environ = {**os.environ, **_pod_environ(server)}
        environ.pop("KUBECONFIG", None)
        with closing(connect(environ, mounted=_pod_mount(tmp_path, pki))) as transport:
            assert _ask(transport) == 200


@pytest.mark.parametrize("missing", ["token", "ca.crt"])
def test_a_pod_without_a_service_account_is_told_so(missing: str, pki: Pki, tmp_path: Path) -> None:
    mounted = _pod_mount(tmp_path, pki)
    (mounted / missing).unlink()
    environ = {"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "443"}
    with pytest.raises(InputError, match=rf"service account: .*{missing}.*automountServiceAccountToken"):
        connect(environ, mounted=mounted)


# Credentials of a kubeconfig


def test_a_kubeconfig_that_kubectl_wrote_is_read(pki: Pki, tmp_path: Path) -> None:
    if (kubectl := shutil.which("kubectl")) is None:
        pytest.skip("kubectl is not installed")
    file = tmp_path / "config"

    def config(*words: object) -> None:
        command = [kubectl, "config", f"--kubeconfig={file}", *map(str, words)]
        subprocess.run(command, check=True, capture_output=True, env={"HOME": str(tmp_path)})

    with kube_server(tls=pki.tls()) as server:
        config("set-cluster", "lab", f"--server={server.url}", f"--certificate-authority={pki.ca}")
        config("set-cluster", "inline", f"--server={server.url}")
        config("set-cluster", "inline", f"--certificate-authority={pki.ca}", "--embed-certs=true")
        config("set-credentials", "ann", f"--token={SECRET}")
        config("set-credentials", "bob", "--username=bob", "--password=b:c")
        config("set-context", "one", "--cluster=lab", "--user=ann")
        config("set-context", "two", "--cluster=inline", "--user=bob")
        config("use-context", "one")
        server.asked.clear()  # some builds of kubectl ask the server for its version
        server.script = [listed(), listed()]
        for context in ("", "two"):
            with closing(connect({"KUBECONFIG": str(file)}, context=context)) as transport:
                assert _ask(transport) == 200
    basic = base64.b64encode(b"bob:b:c").decode()
    assert [asked.headers["Authorization"] for asked in server.asked] == [
        f"Bearer {SECRET}",
        f"Basic {basic}",
    ]


def test_the_default_file_is_in_the_home_folder_and_paths_are_relative_to_it(
    pki: Pki, tmp_path: Path
) -> None:
    folder = tmp_path / ".kube"
    folder.mkdir()
    shutil.copy(pki.ca, folder / "ca.crt")
    (folder / "token").write_text("t")
    with kube_server(listed(), tls=pki.tls()) as server:
        cluster = {"server": server.url, "certificate-authority": "ca.crt"}
        _kubeconfig(folder / "config", cluster, {"tokenFile": "token", "token": "older"})
        with closing(connect({"HOME": str(tmp_path)})) as transport:
            _ask(transport)
    assert server.asked[0].headers["Authorization"] == "Bearer t"


def test_files_of_kubeconfig_are_put_together_and_the_first_name_counts(tmp_path: Path) -> None:
    with kube_server(listed()) as server:
        _kubeconfig(tmp_path / "a", {"server": server.url})
        (tmp_path / "b").write_text(
            yaml.safe_dump(
                {
                    "current-context": "y",
                    "clusters": [{"name": "c", "cluster": {"server": "https://127.0.0.1:1"}}],
                    "contexts": [{"name": "y", "context": {"cluster": "c", "user": "v"}}],
                    "users": [
                        {"name": "v", "user": {"token": "from-b"}},
                        {"name": "w", "user": {"token": 5}},
                    ],
                }
            )
        )
        environ = {"KUBECONFIG": f"{tmp_path / 'absent'}:{tmp_path / 'a'}:{tmp_path / 'b'}"}
        with closing(connect(environ, context="y")) as transport:
            _ask(transport)
    assert server.asked[0].headers["Authorization"] == "Bearer from-b"


@pytest.mark.parametrize("inline", [False, True])
def test_a_client_certificate_is_shown(inline: bool, pki: Pki, tmp_path: Path) -> None:
    files = {"client-certificate": pki.client.with_suffix(".crt"), "client-key": pki.client}
    user = {
        (f"{key}-data" if inline else key): (_b64(file) if inline else str(file))
        for key, file in files.items()
    }
    with kube_server(listed(), tls=pki.tls(client_ca=pki.ca)) as server:
        cluster = {"server": server.url, "certificate-authority-data": _b64(pki.ca)}
        without = connect({}, _kubeconfig(tmp_path / "without", cluster))
        assert _error(without).reason in {"tls", "cut"}
        with closing(connect({}, _kubeconfig(tmp_path / "with", cluster, user))) as transport:
            assert _ask(transport) == 200
    assert len(server.asked) == 1


def test_files_of_certificates_that_are_replaced_are_read_again(
    pki: Pki, other_pki: Pki, tmp_path: Path
) -> None:
    def put(ca: Pki, client: Pki) -> None:
        shutil.copy(ca.ca, tmp_path / "ca.crt")
        shutil.copy(client.client, tmp_path / "client.key")
        shutil.copy(client.client.with_suffix(".crt"), tmp_path / "client.crt")

    user = {"client-certificate": "client.crt", "client-key": "client.key"}
    with kube_server(listed(), tls=pki.tls(client_ca=pki.ca)) as server:
        cluster = {"server": server.url, "certificate-authority": "ca.crt"}
        put(other_pki, other_pki)
        with closing(connect({}, _kubeconfig(tmp_path / "config", cluster, user))) as transport:
            for ca, client in ((other_pki, other_pki), (pki, other_pki), (pki, other_pki), (pki, pki)):
                put(ca, client)
                with pytest.raises(TransportError) as caught:
                    _ask(transport)
                assert caught.value.reason in {"tls", "cut"}
            assert _ask(transport) == 200
    assert len(server.asked) == 1


PLUGIN = """#!/bin/sh
echo run >> "$LOG"
printf '%s' "$KUBERNETES_EXEC_INFO" > "$LOG.info"
read -r line && exit 3
echo "{\\"kind\\": \\"ExecCredential\\", \\"status\\": {\\"token\\": \\"$1-$(wc -l < "$LOG" | tr -d ' ')\\"}}"
"""


def _plugin(folder: Path, script: str = PLUGIN, version: str = "v1", **more: object) -> dict[str, Any]:
    file = folder / "plugin.sh"
    file.write_text(script)
    file.chmod(0o755)
    described = {
        "apiVersion": f"client.authentication.k8s.io/{version}",
        "command": "./plugin.sh",
        "args": ["token"],
        "env": [{"name": "LOG", "value": str(folder / "log")}],
        "interactiveMode": "IfAvailable",
        **more,
    }
    return {"exec": described}


@pytest.mark.parametrize("version", ["v1", "v1beta1"])
def test_a_plugin_is_run_once_for_many_and_again_when_its_token_is_refused(
    version: str, tmp_path: Path
) -> None:
    user = _plugin(tmp_path, version=version, provideClusterInfo=True)
    with kube_server(*[listed()] * 20, refused(401), listed()) as server:
        file = _kubeconfig(tmp_path / "config", {"server": server.url}, user)
        with closing(connect(os.environ, file)) as transport:
            with ThreadPoolExecutor(20) as pool:
                assert set(pool.map(lambda _: _ask(transport), range(20))) == {200}
            assert (tmp_path / "log").read_text() == "run\n"
            assert _ask(transport) == 200
    tokens = [asked.headers["Authorization"] for asked in server.asked]
    assert tokens == ["Bearer token-1"] * 21 + ["Bearer token-2"]
    told = json.loads((tmp_path / "log.info").read_text())
    assert told["apiVersion"] == f"client.authentication.k8s.io/{version}"
    assert told["spec"] == {"interactive": False, "cluster": {"server": server.url}}


@pytest.mark.parametrize(
    "script",
    [
        f"#!/bin/sh\necho {SECRET}; echo {SECRET} >&2; exit 1\n",
        f"#!/bin/sh\necho {SECRET}\n",
        f'#!/bin/sh\necho \'{{"status": {{"token": "{SECRET}\\\\nX: 1"}}}}\'\n',
        '#!/bin/sh\necho \'{"status": {"clientCertificateData": "x"}}\'\n',
        "#!/bin/sh\necho '[]'\n",
    ],
    ids=["fails", "no-json", "line-end", "certificate", "list"],
)
def test_what_a_plugin_prints_is_in_no_error(
    script: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    with kube_server() as server:
        file = _kubeconfig(tmp_path / "config", {"server": server.url}, _plugin(tmp_path, script))
        error = _error(connect({}, file))
    assert error.reason == "token"
    assert SECRET not in "".join(traceback.format_exception(error)) + caplog.text
    assert not server.asked


def test_a_plugin_that_is_not_there_is_named(tmp_path: Path) -> None:
    user = _plugin(tmp_path, command="no-such-plugin")
    error = _error(connect({}, _kubeconfig(tmp_path / "config", {"server": "http://127.0.0.1:1"}, user)))
    assert (error.reason, str(error)) == ("token", "no-such-plugin: No such file or directory")


def test_a_refusal_of_all_there_is_is_an_answer(pki: Pki, tmp_path: Path) -> None:
    with _in_pod(_pod_mount(tmp_path, pki), pki, *[refused(401)] * 3) as (server, transport):
        assert _ask(transport) == 401
    assert len(server.asked) == 1


# Who answers


def test_a_wrong_authority_is_refused_before_the_token_goes_out(
    pki: Pki, other_pki: Pki, tmp_path: Path
) -> None:
    with kube_server(listed(), tls=pki.tls()) as server:
        for ca in ({"certificate-authority": str(other_pki.ca)}, {}):
            file = _kubeconfig(tmp_path / "config", {"server": server.url, **ca}, {"token": SECRET})
            error = _error(connect({}, file))
            assert error.reason == "tls"
            assert SECRET not in "".join(traceback.format_exception(error))
    assert not server.asked


def test_certificates_go_unchecked_only_where_the_kubeconfig_says_so(pki: Pki, tmp_path: Path) -> None:
    with kube_server(listed(), tls=pki.tls()) as server:
        cluster = {"server": server.url, "insecure-skip-tls-verify": True}
        with closing(connect({}, _kubeconfig(tmp_path / "config", cluster))) as transport:
            assert _ask(transport) == 200
        both = _kubeconfig(tmp_path / "config", {**cluster, "certificate-authority-data": _b64(pki.ca)})
        with pytest.raises(ConfigError, match="insecure-skip-tls-verify"):
            connect({}, both)


def test_the_server_name_of_the_kubeconfig_is_the_one_that_is_checked(pki: Pki, tmp_path: Path) -> None:
    with kube_server(listed(), listed(), tls=pki.tls()) as server:
        cluster = {
            "server": f"https://localhost:{server.server_port}",
            "certificate-authority": str(pki.ca),
        }
        assert _error(connect({}, _kubeconfig(tmp_path / "config", cluster))).reason == "tls"
        named = _kubeconfig(tmp_path / "config", {**cluster, "tls-server-name": "api.test"})
        with closing(connect({}, named)) as transport:
            assert _ask(transport) == 200
        wrong = _kubeconfig(tmp_path / "config", {**cluster, "tls-server-name": "other.test"})
        assert _error(connect({}, wrong)).reason == "tls"


def test_a_proxy_of_the_kubeconfig_is_used_and_one_of_the_environment_not_for_this_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    with kube_server(listed(), listed()) as server:
        direct = _kubeconfig(tmp_path / "config", {"server": server.url})
        with closing(connect({}, direct)) as transport:
            assert _ask(transport) == 200
        cluster = {"server": "http://api.test:6443", "proxy-url": server.url}
        with closing(connect({}, _kubeconfig(tmp_path / "config", cluster))) as transport:
            assert _ask(transport) == 200
        away = _kubeconfig(tmp_path / "config", {"server": "http://api.test:6443"})
        assert _error(connect({}, away)).reason == "unreachable"
    assert server.asked[1].headers["Host"] == "api.test:6443"


# What is refused


def _broken(tmp_path: Path, pki: Pki) -> dict[str, tuple[dict[str, Any], dict[str, Any] | None, str]]:
    server = {"server": "https://127.0.0.1:6443"}
    pair = {"client-certificate": str(pki.client.with_suffix(".crt")), "client-key": str(pki.client)}
    encrypted = tmp_path / "encrypted.key"
    _openssl("ec", "-in", pki.client, "-aes128", "-passout", "pass:x", "-out", encrypted)
    return {
        "no-server": ({}, None, r"clusters\[c\]\.server"),
        "password-in-url": ({"server": f"https://u:{SECRET}@h"}, None, r"clusters\[c\]\.server"),
        "token-in-clear": ({"server": "http://10.0.0.1"}, {"token": "t"}, r"clusters\[c\]\.server"),
        "no-ca": (
            {**server, "certificate-authority": "gone.crt"},
            None,
            r"certificate-authority: .*gone\.crt",
        ),
        "ca-no-base64": ({**server, "certificate-authority-data": "%"}, None, "certificate-authority"),
        "ca-no-pem": ({**server, "certificate-authority-data": "eHg="}, None, "certificate-authority"),
        "ca-number": ({**server, "certificate-authority-data": 5}, None, r"clusters\[c\]"),
        "no-key": (server, {"client-certificate": pair["client-certificate"]}, r"users\[u\]\.client-key"),
        "key-of-another": (server, {**pair, "client-key": str(pki.server)}, "client-certificate"),
        "key-encrypted": (server, {**pair, "client-key": str(encrypted)}, "client-key: encrypted"),
        "token-number": (server, {"token": 12345}, r"users\[u\]"),
        "token-two-lines": (server, {"token": f"{SECRET}\nX: 1"}, r"users\[u\]\.token"),
        "as": (server, {"token": SECRET, "as": "ann"}, r"users\[u\]\.as"),
        "auth-provider": (server, {"auth-provider": {"name": "gcp"}}, "auth-provider"),
        "exec-version": (server, _plugin(tmp_path, version="v9"), r"exec\.apiVersion"),
        "exec-asks": (server, _plugin(tmp_path, interactiveMode="Always"), "interactiveMode"),
        "proxy": ({**server, "proxy-url": f"gopher://u:{SECRET}@h"}, None, "proxy-url"),
    }


def test_what_a_kubeconfig_may_not_say_is_named_without_secrets(tmp_path: Path, pki: Pki) -> None:
    for case, (cluster, user, pattern) in _broken(tmp_path, pki).items():
        file = _kubeconfig(tmp_path / "config", cluster, user)
        with pytest.raises(ConfigError, match=pattern) as caught:
            connect({}, file).close()
        assert caught.value.file == str(file), case
        assert SECRET not in "".join(traceback.format_exception(caught.value)), case


@pytest.mark.parametrize(
    ("text", "pattern"),
    [
        (f"a: [\ntoken: {SECRET}: {{", "config:2: kubeconfig: not YAML"),
        ("- 1", "not a mapping"),
        ("users: 5", "users: not a list"),
        ("clusters: [{cluster: {}}]", r"clusters\[0\]: no name"),
        ("clusters: [{name: c, cluster: 1}]", "not a mapping"),
        ("!!python/object/apply:os.system [ls]", "not YAML"),
        ("current-context: x\ncontexts: [{name: x, context: {cluster: c}}]", r"contexts\[x\]\.cluster"),
        ("current-context: x\ncontexts: [{name: x, context: {}}]", r"contexts\[x\]\.cluster"),
        ("", "context: no current one"),
        ("current-context: gone\ncontexts: [{name: a}, {name: b}]", "context: 'gone' is not allowed.*a, b"),
    ],
)
def test_a_file_that_is_no_kubeconfig_is_refused(text: str, pattern: str, tmp_path: Path) -> None:
    file = tmp_path / "config"
    file.write_text(text)
    with pytest.raises(InputError, match=pattern) as caught:
        connect({}, file)
    assert SECRET not in "".join(traceback.format_exception(caught.value))


def test_where_nothing_is_found_all_places_are_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=rf"kubeconfig: there is no {tmp_path}/\.kube/config"):
        connect({"HOME": str(tmp_path)})
    with pytest.raises(InputError, match="there is no /gone/a, /gone/b"):
        connect({"KUBECONFIG": "/gone/a:/gone/b", "KUBERNETES_SERVICE_HOST": "10.0.0.1"})


# The transport


def _local(server: KubeServer, **limits: Any) -> HttpxTransport:
    return connect_url(server.url, Limits(**limits))


def test_a_plain_address_works_without_credentials() -> None:
    with (
        kube_server(listed(), listed()) as server,
        closing(connect_url(f"{server.url}/prefix/")) as transport,
    ):
        for _ in range(2):
            with closing(
                transport.get("/api/v1/pods", {"fieldSelector": "a=b&c", "continue": "x+/="}, 5)
            ) as got:
                assert got.read_json()["items"] == []
    asked = server.asked[0]
    assert asked.path == "/prefix/api/v1/pods"
    assert asked.params == {"fieldSelector": "a=b&c", "continue": "x+/="}
    assert "Authorization" not in asked.headers
    with pytest.raises(InputError):
        connect_url("ftp://host")


def test_a_zipped_answer_is_unzipped_and_its_size_counts_unzipped() -> None:
    body = gzip.compress(json.dumps({"x": "y" * 100_000}).encode())
    answer = Answer(chunks=(body,), headers={"Content-Encoding": "gzip"})
    with kube_server(answer, answer) as server:
        with closing(_local(server)) as transport, closing(transport.get("/api", {}, 5)) as response:
            assert len(response.read_json()["x"]) == 100_000
        assert server.asked[0].headers["Accept-Encoding"] == "gzip"
        with closing(_local(server, body_bytes=50_000)) as transport:
            response = transport.get("/api", {}, 5)
            with closing(response), pytest.raises(TransportError) as caught:
                response.read_json()
    assert caught.value.reason == "too_large"


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (Answer(chunks=(b'{"x": ',), ending="cut"), "cut"),
        (Answer(chunks=(b'{"x": ',), ending="silence"), "silent"),
        (Answer(chunks=(b"<html>",)), "not_json"),
        (Answer(chunks=(b"xx",), headers={"Content-Encoding": "gzip"}), "cut"),
        (Answer(chunks=(b"[" * 200_000,)), "not_json"),
    ],
    ids=["cut", "silent", "html", "no-gzip", "deep"],
)
@pytest.mark.fault(15, 16)
def test_a_body_that_cannot_be_read_has_a_reason(answer: Answer, reason: str) -> None:
    with kube_server(answer) as server, closing(_local(server)) as transport:
        response = transport.get("/api", {}, 0.3)
        with closing(response), pytest.raises(TransportError) as caught:
            response.read_json()
    assert caught.value.reason == reason


def test_the_head_has_a_limit_of_its_own_and_the_body_is_waited_for_longer() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def answer() -> None:
            accepted, _ = listening.accept()
            with accepted:
                accepted.recv(65536)
                accepted.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n")
                time.sleep(0.6)
                accepted.sendall(b"{}")

        thread = threading.Thread(target=answer)
        thread.start()
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        with closing(connect_url(url, Limits(head_s=0.3))) as transport:
            with closing(transport.get("/api", {}, 10)) as response:
                assert response.read_json() == {}
            thread.join()
            began = time.monotonic()
            with pytest.raises(TransportError) as caught:
                transport.get("/api", {}, 10)
    assert caught.value.reason == "silent"
    assert time.monotonic() - began < 5


def test_nobody_listening_and_no_such_host_are_unreachable() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
    for host in ("127.0.0.1", "no-such-host.invalid"):
        assert _error(connect_url(f"http://{host}:{port}")).reason == "unreachable"


def test_a_redirect_is_an_answer_like_any_other() -> None:
    with kube_server(refused(302, location="http://127.0.0.1:1/steal")) as server:
        transport = _local(server)
        assert _ask(transport) == 302
        transport.close()
    assert len(server.asked) == 1


def test_a_line_too_long_is_cut_and_the_next_one_is_whole() -> None:
    with kube_server(watched(b"a" * 5000, b"b" * 5000 + b"\n", {"x": 1})) as server:
        transport = _local(server, line_bytes=100)
        with closing(transport), closing(transport.get("/api", {}, 5)) as response:
            assert list(response.lines()) == [b"a" * 100, b'{"x": 1}']


def test_a_kept_connection_that_the_server_left_is_not_an_error() -> None:
    def serve(listening: socket.socket) -> None:
        with suppress(OSError):
            while True:
                accepted, _ = listening.accept()
                with accepted:
                    accepted.recv(65536)
                    accepted.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
                    accepted.recv(65536)  # the next request comes, and nobody answers it

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=serve, args=(listening,))
        thread.start()
        try:
            with closing(connect_url(f"http://127.0.0.1:{listening.getsockname()[1]}")) as transport:
                assert [_ask(transport) for _ in range(10)] == [200] * 10
        finally:
            # Before it is closed: its number would be another socket's.
            listening.shutdown(socket.SHUT_RDWR)
            thread.join(5)


@pytest.mark.fault(15)
def test_many_silent_watches_over_tls_end_at_once_when_they_are_aborted(pki: Pki, tmp_path: Path) -> None:
    silent = [watched({"x": 1}, ending="silence")] * 45
    with kube_server(*silent, tls=pki.tls()) as server:
        mounted = _pod_mount(tmp_path, pki)
        with closing(connect(_pod_environ(server), mounted=mounted)) as transport:
            with ThreadPoolExecutor(45) as pool:
                responses = list(pool.map(lambda _: transport.get("/api", {}, 60), range(45)))
                lines = [response.lines() for response in responses]
                assert {next(line) for line in lines} == {b'{"x": 1}'}
                ends = [pool.submit(_reason, lambda line=line: next(line)) for line in lines]
                time.sleep(0.3)
                began = time.monotonic()
                for response in responses:
                    response.abort()
                assert [end.result(10) for end in ends] == ["cut"] * 45
            for response in responses:
                response.close()
    assert time.monotonic() - began < 5


def _reason(read: Callable[[], object]) -> str:
    try:
        read()
    except TransportError as error:
        return error.reason
    return "none"


@pytest.mark.fault(12)
def test_a_reflector_lists_watches_and_stops_over_it(pki: Pki, tmp_path: Path) -> None:
    def pod(uid: str, version: str) -> dict[str, Any]:
        return {"metadata": {"uid": uid, "name": uid, "namespace": "n", "resourceVersion": version}}

    added = {"type": "ADDED", "object": pod("c", "103")}
    script = (
        listed(pod("a", "1"), version="100", token="more"),
        listed(pod("b", "2"), version="100"),
        watched(added, ending="silence"),
    )
    with kube_server(*script, tls=pki.tls()) as server:
        mounted = _pod_mount(tmp_path, pki)
        with closing(connect(_pod_environ(server), mounted=mounted)) as transport:
            reflector = Reflector(transport, "/api/v1/pods", trim=dict)
            reflector.start()
            deadline = time.monotonic() + 10
            while len(reflector.snapshot()) < 3 and time.monotonic() < deadline:
                time.sleep(0.01)
            began = time.monotonic()
            reflector.close()
            assert time.monotonic() - began < 3
    assert set(reflector.snapshot()) == {"a", "b", "c"}
    assert reflector.errors == {}


@pytest.mark.fault(21)
def test_a_large_list_costs_little_more_than_its_parsing() -> None:
    pods = [{"metadata": {"uid": str(n), "name": str(n)}, "spec": {"x": "y" * 4000}} for n in range(5000)]
    with kube_server(listed(*pods)) as server, closing(_local(server)) as transport:
        began = time.monotonic()
        with closing(transport.get("/api/v1/pods", {}, 30)) as response:
            assert len(response.read_json()["items"]) == 5000
        assert time.monotonic() - began < 5
