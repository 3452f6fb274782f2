"""Kubeconfig files, and the connection that one of their contexts leads to. Only this module imports
lightkube.

lightkube's client loses test_in_a_pod_a_new_authority_is_taken_after_the_first_refusal: it reads it once.

Kubeconfig files are read as kubectl does, and other clients in Python do not: the files of ``KUBECONFIG`` are
merged, the first entry of a name counts; paths are relative to the file that has them; entries that are not
used may be invalid; inline data goes before a file (client-go, tools/clientcmd). Errors name the entry, and
none shows a line of a file.

The connection is made from inside a pod, or as a kubeconfig says. lightkube reads the entries of a kubeconfig
and makes the TLS context. What version 1.0.1 leaves out is done here or refused: ``proxy-url`` and
``tls-server-name``, which it ignores; impersonation (``as``), without which requests would have more rights
than meant; exec plugins of the API version v1, without a time limit, and with what they print in its errors;
tokens that no header can hold, which httpx2 would quote.
"""

from __future__ import annotations

import base64
import binascii
import json
import os
import ssl
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import httpx2
import msgspec
import yaml
from lightkube.config.client_adapter import verify_cluster
from lightkube.config.models import Cluster, User

from gpucost.domain.errors import ConfigError, ErrorRemark, InputError
from gpucost.kube.connect.credentials import (
    SERVICE_ACCOUNT,
    AnswerLimits,
    FixedHeader,
    TokenCommand,
    TokenFile,
    checked_url,
    is_header_text,
    is_loopback,
    tls_context,
    variable,
)
from gpucost.kube.connect.httpx_transport import KEPT_CONNECTIONS, KEPT_S, HttpxTransport, RequestCredentials
from gpucost.kube.connect.transport import TransportError

MAX_BYTES = 4 << 20
"""The greatest size of a kubeconfig, and of a certificate or key."""

_PATHS = ("certificate-authority", "client-certificate", "client-key", "tokenFile")
_KINDS = ("cluster", "context", "user")


@dataclass(frozen=True, slots=True)
class KubeconfigEntry:
    """A cluster, context or user. ``values`` has no empty ones, and only absolute paths."""

    file: str
    kind: str
    name: str
    values: Mapping[str, Any]

    def wrong(self, key: str, value: object, allowed: str) -> ConfigError:
        """``value`` is shown: pass an ``ErrorRemark`` for secret values."""
        return ConfigError(self.file, f"{self.kind}s[{self.name}].{key}", value, allowed)

    def text(self, key: str) -> str:
        """A text value; empty where there is none. Raises ConfigError."""
        value = self.values.get(key, "")
        if not isinstance(value, str):
            raise self.wrong(key, ErrorRemark(f"a {type(value).__name__}"), "text; put quotes around it")
        return value

    def material(self, key: str) -> bytes | None:
        """The content of a certificate or key: from ``<key>-data``, or from the file that ``key`` names."""
        if encoded := self.text(f"{key}-data"):
            try:
                return base64.b64decode(encoded, validate=False)
            except (binascii.Error, ValueError):
                raise self.wrong(f"{key}-data", ErrorRemark("not base64"), "PEM in base64") from None
        if not (path := self.text(key)):
            return None
        try:
            with Path(path).open("rb") as opened:
                return opened.read(MAX_BYTES)
        except OSError as error:
            remark = ErrorRemark(f"{path}: {os.strerror(error.errno or 0)}")
            raise self.wrong(key, remark, "a file that can be read") from None


@dataclass(frozen=True, slots=True)
class KubeconfigContext:
    """The entries of a context. Without ``user``, requests carry no credentials."""

    context: KubeconfigEntry
    cluster: KubeconfigEntry
    user: KubeconfigEntry | None


def select(files: Sequence[Path], context: str = "") -> KubeconfigContext:
    """The entries of ``context``, or of the current one.

    Files that do not exist are left out, as long as one exists. Raises InputError, and ConfigError for the
    content of a file.
    """
    found = [file for file in files if file.is_file()]
    if not found:
        where = ErrorRemark(f"there is no {', '.join(map(str, files))}")
        raise InputError(
            "kubeconfig",
            where,
            "a file named by its setting or KUBECONFIG, or ~/.kube/config; in a pod, none",
        )
    current, entries = "", dict[tuple[str, str], KubeconfigEntry]()
    for file in found:
        document = _read(file)
        current = current or str(document.get("current-context") or "")
        for entry in _entries(document, file):
            entries.setdefault((entry.kind, entry.name), entry)
    return _chosen(context or current, entries)


def _chosen(name: str, entries: Mapping[tuple[str, str], KubeconfigEntry]) -> KubeconfigContext:
    names = ", ".join(known for kind, known in entries if kind == "context") or "none is there"
    if not name:
        raise InputError("context", ErrorRemark("no current one"), f"one of: {names}")
    if (context := entries.get(("context", name))) is None:
        raise InputError("context", name, f"one of: {names}")
    cluster = _named(context, "cluster", entries)
    if cluster is None:
        raise context.wrong("cluster", ErrorRemark("missing"), "the name of a cluster")
    return KubeconfigContext(context, cluster, _named(context, "user", entries))


def _named(
    context: KubeconfigEntry, kind: str, entries: Mapping[tuple[str, str], KubeconfigEntry]
) -> KubeconfigEntry | None:
    if not (name := context.text(kind)):
        return None
    if (found := entries.get((kind, name))) is None:
        raise context.wrong(kind, name, f"the name of a {kind} in the same files")
    return found


def _read(file: Path) -> dict[str, Any]:
    allowed = "a kubeconfig: a YAML mapping with clusters, contexts and users"
    try:
        with file.open("rb") as opened:
            text = opened.read(MAX_BYTES + 1)
        if len(text) > MAX_BYTES:
            raise ConfigError(str(file), "kubeconfig", ErrorRemark("too large"), f"at most {MAX_BYTES} bytes")
        document = yaml.safe_load(text)
    except OSError as error:
        raise InputError(
            "kubeconfig", ErrorRemark(f"{file}: {os.strerror(error.errno or 0)}"), allowed
        ) from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        line = mark.line + 1 if mark else None
        raise ConfigError(str(file), "kubeconfig", ErrorRemark("not YAML"), allowed, line) from None
    if document is None:
        return {}
    if not isinstance(document, dict):
        raise ConfigError(str(file), "kubeconfig", ErrorRemark("not a mapping"), allowed)
    return document


def _entries(document: Mapping[str, Any], file: Path) -> list[KubeconfigEntry]:
    entries: list[KubeconfigEntry] = []
    for kind in _KINDS:
        listed = document.get(f"{kind}s") or []
        if not isinstance(listed, list):
            raise ConfigError(str(file), f"{kind}s", ErrorRemark("not a list"), f"a list of {kind}s")
        for at, item in enumerate(listed):
            if not isinstance(item, dict) or not isinstance(item.get("name"), str):
                raise ConfigError(str(file), f"{kind}s[{at}]", ErrorRemark("no name"), "an entry with a name")
            values = item.get(kind) or {}
            if not isinstance(values, dict):
                raise ConfigError(
                    str(file), f"{kind}s[{at}].{kind}", ErrorRemark("not a mapping"), "a mapping"
                )
            entries.append(
                KubeconfigEntry(str(file), kind, item["name"], _resolved(values, file.absolute().parent))
            )
    return entries


def _resolved(values: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    kept = {str(key): value for key, value in values.items() if value not in ("", None)}
    for key in _PATHS:
        if isinstance(path := kept.get(key), str):
            kept[key] = str(folder / path)
    plugin = kept.get("exec")
    if isinstance(plugin, dict) and isinstance(command := plugin.get("command"), str) and "/" in command:
        kept["exec"] = {**plugin, "command": str(folder / command)}
    return kept


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
    limits: AnswerLimits | None = None,
) -> HttpxTransport:
    """By the first of: ``kubeconfig``, the files of KUBECONFIG, the pod's service account, ~/.kube/config.

    With a ``context`` a kubeconfig is used in a pod too. With a kubeconfig the process's proxy variables
    count, but not for addresses of this machine; in a pod they do not. Nothing is sent yet. Raises
    InputError, and ConfigError for the content of a kubeconfig.
    """
    named = environ.get("KUBECONFIG", "")
    files = [kubeconfig] if kubeconfig else [Path(part) for part in named.split(":") if part]
    if not files and not context and environ.get("KUBERNETES_SERVICE_HOST"):
        return _in_cluster(environ, mounted, limits)
    if not files:
        files = [Path(environ.get("HOME") or "/") / ".kube" / "config"]
    return _from_kubeconfig(select([file.expanduser() for file in files], context), environ, limits)


def connect_url(url: str, limits: AnswerLimits | None = None) -> HttpxTransport:
    """To an address, without credentials, such as that of ``kubectl proxy``. Raises InputError."""
    client = _client(tls_context(None), proxy=None, by_environment=False)
    return HttpxTransport(client, url, limits=limits)


def _in_cluster(environ: Mapping[str, str], mounted: Path, limits: AnswerLimits | None) -> HttpxTransport:
    host, port = variable(environ, "KUBERNETES_SERVICE_HOST"), variable(environ, "KUBERNETES_SERVICE_PORT")
    bracketed = f"[{host}]" if ":" in host else host
    token, authorities = TokenFile(mounted / "token"), mounted / "ca.crt"
    try:
        context = tls_context(authorities)
        token.header()
    except TransportError as error:
        allowed = "a service account that is mounted (automountServiceAccountToken), or a kubeconfig"
        raise InputError("service account", ErrorRemark(str(error)), allowed) from None

    def reload() -> None:
        context.load_verify_locations(authorities)

    client = _client(context, proxy=None, by_environment=False)
    return HttpxTransport(client, f"https://{bracketed}:{port}", token, reload=reload, limits=limits)


def _from_kubeconfig(
    selected: KubeconfigContext, environ: Mapping[str, str], limits: AnswerLimits | None
) -> HttpxTransport:
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


def _parsed(entry: KubeconfigEntry, model: type[M]) -> M:
    try:
        return msgspec.convert(dict(entry.values), model)
    except msgspec.ValidationError as error:  # names the key and the type, not the value
        raise ConfigError(
            entry.file, f"{entry.kind}s[{entry.name}]", ErrorRemark(str(error)), "as kubectl writes it"
        ) from None


# Certificates


def _context(parsed: Cluster, shown: User, selected: KubeconfigContext) -> ssl.SSLContext:
    cluster, user = selected.cluster, selected.user
    authorities = cluster.material(_AUTHORITY)
    if parsed.insecure and authorities is not None:
        remark = ErrorRemark("together with a certificate-authority")
        raise cluster.wrong("insecure-skip-tls-verify", remark, "one of the two")
    if parsed.certificate_auth_data:
        parsed.certificate_auth = None  # lightkube would take the file
    if user is not None:
        _check_pair(user)
    if _loaded(parsed, User()) is None:
        raise cluster.wrong(
            _AUTHORITY, ErrorRemark("no certificates in it"), "one or more certificates in PEM"
        )
    if (context := _loaded(parsed, shown)) is None:
        owner, allowed = user or cluster, "a certificate in PEM and its own key"
        raise owner.wrong("client-certificate", ErrorRemark("not usable with its key"), allowed)
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT  # see gpucost.kube.connect.http_transport
    return context


def _loaded(parsed: Cluster, shown: User) -> ssl.SSLContext | None:
    try:
        return verify_cluster(parsed, shown, Path)
    except (ssl.SSLError, ValueError, OSError):
        return None


def _check_pair(user: KubeconfigEntry) -> None:
    certificate, key = user.material("client-certificate"), user.material("client-key")
    if (certificate is None) != (key is None):
        missing = "client-key" if key is None else "client-certificate"
        raise user.wrong(missing, ErrorRemark("missing"), "both client-certificate and client-key, or none")
    if key is not None and b"ENCRYPTED" in key:
        # OpenSSL would ask for the password on the terminal, and wait.
        raise user.wrong("client-key", ErrorRemark("encrypted"), "a key without a password")


def _reload(context: ssl.SSLContext, selected: KubeconfigContext) -> Callable[[], None]:
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


def _credentials(
    parsed: User, user: KubeconfigEntry, cluster: KubeconfigEntry, environ: Mapping[str, str]
) -> RequestCredentials | None:
    for key in _IMPERSONATION:
        if key in user.values:
            raise user.wrong(key, ErrorRemark("not supported"), "a user of its own, without impersonation")
    if parsed.token_file:
        return TokenFile(Path(parsed.token_file))
    if parsed.token:
        if not is_header_text(parsed.token):
            raise user.wrong("token", ErrorRemark("not a token"), "one word of ASCII")
        return FixedHeader(f"Bearer {parsed.token}")
    if parsed.exec:
        return _plugin(parsed, user, cluster, environ)
    if parsed.username and parsed.password:
        pair = f"{parsed.username}:{parsed.password}".encode()
        return FixedHeader(f"Basic {base64.b64encode(pair).decode()}")
    if parsed.auth_provider:
        raise user.wrong(
            "auth-provider", ErrorRemark("not supported"), "an exec plugin, as kubectl wants it too"
        )
    return None


def _plugin(
    parsed: User, user: KubeconfigEntry, cluster: KubeconfigEntry, environ: Mapping[str, str]
) -> TokenCommand:
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


def _described(cluster: KubeconfigEntry) -> dict[str, object]:
    keys = ("server", "tls-server-name", "insecure-skip-tls-verify", "proxy-url")
    described = {key: cluster.values[key] for key in keys if key in cluster.values}
    if authorities := cluster.material(_AUTHORITY):
        described[f"{_AUTHORITY}-data"] = base64.b64encode(authorities).decode()
    return described


# The HTTP client


def _proxied_client(context: ssl.SSLContext, cluster: KubeconfigEntry, host: str) -> httpx2.Client:
    proxy = cluster.text("proxy-url") or None
    try:
        return _client(context, proxy, by_environment=not is_loopback(host))
    except (httpx2.InvalidURL, ImportError, ValueError):
        allowed = "an http or https address of a proxy"
        if proxy:
            raise cluster.wrong("proxy-url", ErrorRemark("not usable"), allowed) from None
        raise InputError("HTTPS_PROXY or ALL_PROXY", ErrorRemark("not usable"), allowed) from None


def _client(context: ssl.SSLContext, proxy: str | None, by_environment: bool) -> httpx2.Client:
    kept = httpx2.Limits(
        max_connections=None, max_keepalive_connections=KEPT_CONNECTIONS, keepalive_expiry=KEPT_S
    )
    return httpx2.Client(verify=context, proxy=proxy, trust_env=by_environment, limits=kept)
