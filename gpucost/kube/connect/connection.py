"""Connects to an API server: from inside a pod, or as a kubeconfig says. Only this module knows lightkube.

lightkube reads the entries of a kubeconfig and makes the TLS context. What version 1.0.1 leaves out is done
here or refused: ``proxy-url`` and ``tls-server-name``, which it ignores; impersonation (``as``), without
which requests would have more rights than meant; exec plugins of the API version v1, without a time limit,
and with what they print in its errors; tokens that no header can hold, which httpx2 would quote.
"""

from __future__ import annotations

import base64
import json
import ssl
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import httpx2
import msgspec
from lightkube.config.client_adapter import verify_cluster
from lightkube.config.models import Cluster, User

from gpucost.domain.errors import ConfigError, InputError, Remark
from gpucost.kube.connect.credentials import FixedHeader, TokenCommand, TokenFile, is_header_text
from gpucost.kube.connect.httpx_transport import KEPT_CONNECTIONS, KEPT_S, Credentials, HttpxTransport
from gpucost.kube.connect.kubeconfig import Entry, Selected, select
from gpucost.kube.connect.secure import (
    SERVICE_ACCOUNT,
    Limits,
    checked_url,
    is_loopback,
    tls_context,
    variable,
)
from gpucost.kube.connect.transport import TransportError

M = TypeVar("M", Cluster, User)

_AUTHORITY = "certificate-authority"
_EXEC_GROUP = "client.authentication.k8s.io"
_EXEC_VERSIONS = tuple(f"{_EXEC_GROUP}/{version}" for version in ("v1", "v1beta1", "v1alpha1"))
_IMPERSONATION = ("as", "as-uid", "as-groups", "as-user-extra")


def connect(
    environ: Mapping[str, str],
    kubeconfig: Path | None = None,
    context: str = "",
    *,
    mounted: Path = SERVICE_ACCOUNT,
    limits: Limits | None = None,
) -> HttpxTransport:
    """By the first of: ``kubeconfig``, the files of KUBECONFIG, the pod's service account, ~/.kube/config.

    A ``context`` asks for a kubeconfig also in a pod. With a kubeconfig the process's proxy variables count,
    but not for addresses of this machine; in a pod they do not. Nothing is sent yet. Raises InputError, and
    ConfigError for what stands in a kubeconfig.
    """
    named = environ.get("KUBECONFIG", "")
    files = [kubeconfig] if kubeconfig else [Path(part) for part in named.split(":") if part]
    if not files and not context and environ.get("KUBERNETES_SERVICE_HOST"):
        return _in_cluster(environ, mounted, limits)
    if not files:
        files = [Path(environ.get("HOME") or "/") / ".kube" / "config"]
    return _from_kubeconfig(select([file.expanduser() for file in files], context), environ, limits)


def connect_url(url: str, limits: Limits | None = None) -> HttpxTransport:
    """To an address, without credentials, such as that of ``kubectl proxy``. Raises InputError."""
    client = _client(tls_context(None), proxy=None, by_environment=False)
    return HttpxTransport(client, url, limits=limits)


def _in_cluster(environ: Mapping[str, str], mounted: Path, limits: Limits | None) -> HttpxTransport:
    host, port = variable(environ, "KUBERNETES_SERVICE_HOST"), variable(environ, "KUBERNETES_SERVICE_PORT")
    bracketed = f"[{host}]" if ":" in host else host
    token, authorities = TokenFile(mounted / "token"), mounted / "ca.crt"
    try:
        context = tls_context(authorities)
        token.header()
    except TransportError as error:
        allowed = "a service account that is mounted (automountServiceAccountToken), or a kubeconfig"
        raise InputError("service account", Remark(str(error)), allowed) from None

    def reload() -> None:
        context.load_verify_locations(authorities)

    client = _client(context, proxy=None, by_environment=False)
    return HttpxTransport(client, f"https://{bracketed}:{port}", token, reload=reload, limits=limits)


def _from_kubeconfig(selected: Selected, environ: Mapping[str, str], limits: Limits | None) -> HttpxTransport:
    cluster, user = selected.cluster, selected.user
    parsed = _parsed(user, User) if user else User()
    context = _context(_parsed(cluster, Cluster), parsed, selected)
    credentials = _credentials(parsed, user, cluster, environ) if user else None
    server = cluster.text("server")
    try:
        address = checked_url(server, with_token=credentials is not None)
    except InputError as error:
        raise cluster.wrong("server", error.value, error.allowed) from None
    return HttpxTransport(
        _proxied_client(context, cluster, address.hostname or ""),
        server,
        credentials,
        server_name=cluster.text("tls-server-name"),
        reload=_reload(context, selected),
        limits=limits,
    )


def _parsed(entry: Entry, model: type[M]) -> M:
    try:
        return msgspec.convert(dict(entry.values), model)
    except msgspec.ValidationError as error:  # names the key and the type, not the value
        raise ConfigError(
            entry.file, f"{entry.kind}s[{entry.name}]", Remark(str(error)), "as kubectl writes it"
        ) from None


# Certificates


def _context(parsed: Cluster, shown: User, selected: Selected) -> ssl.SSLContext:
    cluster, user = selected.cluster, selected.user
    authorities = cluster.material(_AUTHORITY)
    if parsed.insecure and authorities is not None:
        remark = Remark("together with a certificate-authority")
        raise cluster.wrong("insecure-skip-tls-verify", remark, "one of the two")
    if parsed.certificate_auth_data:
        parsed.certificate_auth = None  # lightkube would take the file
    if user is not None:
        _check_pair(user)
    if _loaded(parsed, User()) is None:
        raise cluster.wrong(_AUTHORITY, Remark("no certificates in it"), "one or more certificates in PEM")
    if (context := _loaded(parsed, shown)) is None:
        owner, allowed = user or cluster, "a certificate in PEM and its own key"
        raise owner.wrong("client-certificate", Remark("not usable with its key"), allowed)
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT  # see gpucost.kube.connect.in_cluster
    return context


def _loaded(parsed: Cluster, shown: User) -> ssl.SSLContext | None:
    try:
        return verify_cluster(parsed, shown, Path)
    except (ssl.SSLError, ValueError, OSError):
        return None


def _check_pair(user: Entry) -> None:
    certificate, key = user.material("client-certificate"), user.material("client-key")
    if (certificate is None) != (key is None):
        missing = "client-key" if key is None else "client-certificate"
        raise user.wrong(missing, Remark("missing"), "both client-certificate and client-key, or none")
    if key is not None and b"ENCRYPTED" in key:
        # OpenSSL would ask for the password on the terminal, and wait.
        raise user.wrong("client-key", Remark("encrypted"), "a key without a password")


def _reload(context: ssl.SSLContext, selected: Selected) -> Callable[[], None]:
    """Reads certificate files again into ``context``, for they are replaced while they are used."""
    cluster, user = selected.cluster, selected.user

    def reload() -> None:
        with suppress(ConfigError):
            authorities = "" if cluster.text("certificate-authority-data") else cluster.text(_AUTHORITY)
            if authorities:
                context.load_verify_locations(authorities)
            if user is not None and not user.text("client-certificate-data") and user.text("client-key"):
                _check_pair(user)
                context.load_cert_chain(user.text("client-certificate"), user.text("client-key"))

    return reload


# Credentials


def _credentials(parsed: User, user: Entry, cluster: Entry, environ: Mapping[str, str]) -> Credentials | None:
    for key in _IMPERSONATION:
        if key in user.values:
            raise user.wrong(key, Remark("not supported"), "a user of its own, without impersonation")
    if parsed.token_file:
        return TokenFile(Path(parsed.token_file))
    if parsed.token:
        if not is_header_text(parsed.token):
            raise user.wrong("token", Remark("not a token"), "one word of ASCII")
        return FixedHeader(f"Bearer {parsed.token}")
    if parsed.exec:
        return _plugin(parsed, user, cluster, environ)
    if parsed.username and parsed.password:
        pair = f"{parsed.username}:{parsed.password}".encode()
        return FixedHeader(f"Basic {base64.b64encode(pair).decode()}")
    if parsed.auth_provider:
        raise user.wrong("auth-provider", Remark("not supported"), "an exec plugin, as kubectl wants it too")
    return None


def _plugin(parsed: User, user: Entry, cluster: Entry, environ: Mapping[str, str]) -> TokenCommand:
    plugin, written = parsed.exec, user.values["exec"]
    assert plugin is not None
    if plugin.apiVersion not in _EXEC_VERSIONS:
        raise user.wrong("exec.apiVersion", plugin.apiVersion, ", ".join(_EXEC_VERSIONS))
    if written.get("interactiveMode") == "Always":
        raise user.wrong("exec.interactiveMode", "Always", "a plugin that asks nobody")
    spec: dict[str, object] = {"interactive": False}
    if written.get("provideClusterInfo"):
        spec["cluster"] = _described(cluster)
    info = {"apiVersion": plugin.apiVersion, "kind": "ExecCredential", "spec": spec}
    added = {variable.name: variable.value for variable in plugin.env or []}
    command = [plugin.command, *(plugin.args or [])]
    return TokenCommand(command, {**environ, **added, "KUBERNETES_EXEC_INFO": json.dumps(info)})


def _described(cluster: Entry) -> dict[str, object]:
    keys = ("server", "tls-server-name", "insecure-skip-tls-verify", "proxy-url")
    described = {key: cluster.values[key] for key in keys if key in cluster.values}
    if authorities := cluster.material(_AUTHORITY):
        described[f"{_AUTHORITY}-data"] = base64.b64encode(authorities).decode()
    return described


# The HTTP client


def _proxied_client(context: ssl.SSLContext, cluster: Entry, host: str) -> httpx2.Client:
    proxy = cluster.text("proxy-url") or None
    try:
        return _client(context, proxy, by_environment=not is_loopback(host))
    except (httpx2.InvalidURL, ImportError, ValueError):
        allowed = "an http or https address of a proxy"
        if proxy:
            raise cluster.wrong("proxy-url", Remark("not usable"), allowed) from None
        raise InputError("HTTPS_PROXY or ALL_PROXY", Remark("not usable"), allowed) from None


def _client(context: ssl.SSLContext, proxy: str | None, by_environment: bool) -> httpx2.Client:
    kept = httpx2.Limits(
        max_connections=None, max_keepalive_connections=KEPT_CONNECTIONS, keepalive_expiry=KEPT_S
    )
    return httpx2.Client(verify=context, proxy=proxy, trust_env=by_environment, limits=kept)
