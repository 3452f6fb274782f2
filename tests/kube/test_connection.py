"""Connecting with lightkube's help: kubeconfigs, certificates, tokens that change, and what is refused."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import traceback
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpucost.domain.errors import ConfigError, InputError
from gpucost.kube.connect.connection import connect
from gpucost.kube.connect.transport import TransportError
from tests.kube.pki import (
    SECRET,
    Pki,
    ask,
    b64,
    error_of,
    in_pod,
    openssl,
    pod_environ,
    pod_mount,
    write_kubeconfig,
)
from tests.support.kube import kube_server, listed, refused

# In a pod


def test_in_a_pod_a_rotated_token_goes_with_the_next_request(pki: Pki, tmp_path: Path) -> None:
    mounted = pod_mount(tmp_path, pki)
    with in_pod(mounted, pki, listed(), listed()) as (server, transport):
        ask(transport)
        (mounted / "token").write_text("second\n")
        ask(transport)
    assert [asked.headers["Authorization"] for asked in server.asked] == ["Bearer first", "Bearer second"]


def test_in_a_pod_a_new_authority_is_taken_after_the_first_refusal(
    pki: Pki, other_pki: Pki, tmp_path: Path
) -> None:
    mounted = pod_mount(tmp_path, other_pki)
    with in_pod(mounted, pki, listed()) as (server, transport):
        for _ in range(2):
            with pytest.raises(TransportError) as caught:
                ask(transport)
            assert caught.value.reason == "tls"
        (mounted / "ca.crt").write_bytes(pki.ca.read_bytes())
        with pytest.raises(TransportError):
            ask(transport)
        assert ask(transport) == 200
    assert len(server.asked) == 1


def test_in_a_pod_no_proxy_of_the_environment_is_used(
    pki: Pki, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:9")
    with kube_server(listed(), tls=pki.tls()) as server:
        environ = {**os.environ, **pod_environ(server)}
        environ.pop("KUBECONFIG", None)
        with closing(connect(environ, mounted=pod_mount(tmp_path, pki))) as transport:
            assert ask(transport) == 200


@pytest.mark.parametrize("missing", ["token", "ca.crt"])
def test_a_pod_without_a_service_account_is_told_so(missing: str, pki: Pki, tmp_path: Path) -> None:
    mounted = pod_mount(tmp_path, pki)
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
                assert ask(transport) == 200
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
        write_kubeconfig(folder / "config", cluster, {"tokenFile": "token", "token": "older"})
        with closing(connect({"HOME": str(tmp_path)})) as transport:
            ask(transport)
    assert server.asked[0].headers["Authorization"] == "Bearer t"


def test_files_of_kubeconfig_are_put_together_and_the_first_name_counts(tmp_path: Path) -> None:
    with kube_server(listed()) as server:
        write_kubeconfig(tmp_path / "a", {"server": server.url})
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
            ask(transport)
    assert server.asked[0].headers["Authorization"] == "Bearer from-b"


@pytest.mark.parametrize("inline", [False, True])
def test_a_client_certificate_is_shown(inline: bool, pki: Pki, tmp_path: Path) -> None:
    files = {"client-certificate": pki.client.with_suffix(".crt"), "client-key": pki.client}
    user = {
        (f"{key}-data" if inline else key): (b64(file) if inline else str(file))
        for key, file in files.items()
    }
    with kube_server(listed(), tls=pki.tls(client_ca=pki.ca)) as server:
        cluster = {"server": server.url, "certificate-authority-data": b64(pki.ca)}
        without = connect({}, write_kubeconfig(tmp_path / "without", cluster))
        assert error_of(without).reason in {"tls", "cut"}
        with closing(connect({}, write_kubeconfig(tmp_path / "with", cluster, user))) as transport:
            assert ask(transport) == 200
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
        with closing(connect({}, write_kubeconfig(tmp_path / "config", cluster, user))) as transport:
            for ca, client in ((other_pki, other_pki), (pki, other_pki), (pki, other_pki), (pki, pki)):
                put(ca, client)
                with pytest.raises(TransportError) as caught:
                    ask(transport)
                assert caught.value.reason in {"tls", "cut"}
            assert ask(transport) == 200
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
        file = write_kubeconfig(tmp_path / "config", {"server": server.url}, user)
        with closing(connect(os.environ, file)) as transport:
            with ThreadPoolExecutor(20) as pool:
                assert set(pool.map(lambda _: ask(transport), range(20))) == {200}
            assert (tmp_path / "log").read_text() == "run\n"
            assert ask(transport) == 200
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
        file = write_kubeconfig(tmp_path / "config", {"server": server.url}, _plugin(tmp_path, script))
        error = error_of(connect({}, file))
    assert error.reason == "token"
    assert SECRET not in "".join(traceback.format_exception(error)) + caplog.text
    assert not server.asked


def test_a_plugin_that_is_not_there_is_named(tmp_path: Path) -> None:
    user = _plugin(tmp_path, command="no-such-plugin")
    error = error_of(
        connect({}, write_kubeconfig(tmp_path / "config", {"server": "http://127.0.0.1:1"}, user))
    )
    assert (error.reason, str(error)) == ("token", "no-such-plugin: No such file or directory")


def test_a_refusal_of_all_there_is_is_an_answer(pki: Pki, tmp_path: Path) -> None:
    with in_pod(pod_mount(tmp_path, pki), pki, *[refused(401)] * 3) as (server, transport):
        assert ask(transport) == 401
    assert len(server.asked) == 1


# Who answers


def test_a_wrong_authority_is_refused_before_the_token_goes_out(
    pki: Pki, other_pki: Pki, tmp_path: Path
) -> None:
    with kube_server(listed(), tls=pki.tls()) as server:
        for ca in ({"certificate-authority": str(other_pki.ca)}, {}):
            file = write_kubeconfig(tmp_path / "config", {"server": server.url, **ca}, {"token": SECRET})
            error = error_of(connect({}, file))
            assert error.reason == "tls"
            assert SECRET not in "".join(traceback.format_exception(error))
    assert not server.asked


def test_certificates_go_unchecked_only_where_the_kubeconfig_says_so(pki: Pki, tmp_path: Path) -> None:
    with kube_server(listed(), tls=pki.tls()) as server:
        cluster = {"server": server.url, "insecure-skip-tls-verify": True}
        with closing(connect({}, write_kubeconfig(tmp_path / "config", cluster))) as transport:
            assert ask(transport) == 200
        both = write_kubeconfig(tmp_path / "config", {**cluster, "certificate-authority-data": b64(pki.ca)})
        with pytest.raises(ConfigError, match="insecure-skip-tls-verify"):
            connect({}, both)


def test_the_server_name_of_the_kubeconfig_is_the_one_that_is_checked(pki: Pki, tmp_path: Path) -> None:
    with kube_server(listed(), listed(), tls=pki.tls()) as server:
        cluster = {
            "server": f"https://localhost:{server.server_port}",
            "certificate-authority": str(pki.ca),
        }
        assert error_of(connect({}, write_kubeconfig(tmp_path / "config", cluster))).reason == "tls"
        named = write_kubeconfig(tmp_path / "config", {**cluster, "tls-server-name": "api.test"})
        with closing(connect({}, named)) as transport:
            assert ask(transport) == 200
        wrong = write_kubeconfig(tmp_path / "config", {**cluster, "tls-server-name": "other.test"})
        assert error_of(connect({}, wrong)).reason == "tls"


def test_a_proxy_of_the_kubeconfig_is_used_and_one_of_the_environment_not_for_this_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    with kube_server(listed(), listed()) as server:
        direct = write_kubeconfig(tmp_path / "config", {"server": server.url})
        with closing(connect({}, direct)) as transport:
            assert ask(transport) == 200
        cluster = {"server": "http://api.test:6443", "proxy-url": server.url}
        with closing(connect({}, write_kubeconfig(tmp_path / "config", cluster))) as transport:
            assert ask(transport) == 200
        away = write_kubeconfig(tmp_path / "config", {"server": "http://api.test:6443"})
        assert error_of(connect({}, away)).reason == "unreachable"
    assert server.asked[1].headers["Host"] == "api.test:6443"


# What is refused


def _broken(tmp_path: Path, pki: Pki) -> dict[str, tuple[dict[str, Any], dict[str, Any] | None, str]]:
    server = {"server": "https://127.0.0.1:6443"}
    pair = {"client-certificate": str(pki.client.with_suffix(".crt")), "client-key": str(pki.client)}
    encrypted = tmp_path / "encrypted.key"
    openssl("ec", "-in", pki.client, "-aes128", "-passout", "pass:x", "-out", encrypted)
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
        file = write_kubeconfig(tmp_path / "config", cluster, user)
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
