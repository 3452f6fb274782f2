"""One request to the API, and its refusals as the errors that the command line knows."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any
from urllib.parse import urlsplit

import httpx2

from gpucost.cli.remote.target import Target
from gpucost.domain.errors import (
    GpuCostError,
    InputError,
    LedgerConflict,
    LedgerUnavailable,
    Remark,
    SourceTimeout,
    SourceUnreachable,
    shorten,
)
from gpucost.reports.reading import NotAReport, parse_json

JSON = "application/json"
LEDGER_HEADER = "Gpucost-Ledger"
MOST_BYTES = 512 * 1024 * 1024
_CONNECT_S, _READ_S = 10.0, 120.0


class Client:
    """Asks one server. The credential is read for each request, and sent to that server only: redirects are
    not followed, and plain HTTP goes through no proxy."""

    def __init__(self, target: Target) -> None:
        self._target = target

    def json(self, path: str, params: Mapping[str, str] | None = None, body: object = None) -> Any:
        """The answer of a GET, or with a ``body`` of a POST, as ``parse_json`` reads it."""
        content = self._ask(path, params or {}, body, JSON)
        try:
            return parse_json(content)
        except NotAReport:
            raise self._strange("an answer that is not JSON") from None

    def file(self, path: str, params: Mapping[str, str], media_type: str) -> bytes:
        """The answer of a GET as the content of a file."""
        return self._ask(path, params, None, media_type)

    def _ask(self, path: str, params: Mapping[str, str], body: object, media_type: str) -> bytes:
        target = self._target
        # A program that compresses its answers could send more than fits here.
        headers = {"Accept": media_type, "Accept-Encoding": "identity"}
        if target.credential is not None:
            headers["Authorization"] = f"Bearer {target.credential.read()}"
        client = httpx2.Client(
            verify=self._tls(),
            timeout=httpx2.Timeout(_READ_S, connect=_CONNECT_S),
            follow_redirects=False,
            trust_env=target.url.startswith("https:"),
        )
        method, url = "GET" if body is None else "POST", target.url + path
        try:
            with (
                client,
                client.stream(method, url, params=dict(params), headers=headers, json=body) as response,
            ):
                content = self._content(response)
        except httpx2.TimeoutException:
            raise SourceTimeout(f"{target.url} does not answer in time; trying again is safe") from None
        except (httpx2.HTTPError, httpx2.InvalidURL, OSError) as error:
            raise self._unreachable(error) from None
        self._check(response, content, media_type)
        return content

    def _tls(self) -> ssl.SSLContext | bool:
        if not self._target.url.startswith("https:"):
            return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # not used; the usual one takes time to make
        if self._target.ca_file is None:
            return True
        try:
            return ssl.create_default_context(cafile=str(self._target.ca_file))
        except OSError:
            found = str(self._target.ca_file)
            raise InputError("--ca-file", found, "a PEM file of certificate authorities") from None

    def _content(self, response: httpx2.Response) -> bytes:
        parts, size = [], 0
        for part in response.iter_raw():
            size += len(part)
            if size > MOST_BYTES:
                raise self._strange(f"more than {MOST_BYTES} bytes")
            parts.append(part)
        return b"".join(parts)

    def _check(self, response: httpx2.Response, content: bytes, media_type: str) -> None:
        """Raises for what is not the answer of gpucost that was asked for."""
        given = response.headers.get("content-type", "").partition(";")[0].strip().lower()
        if response.is_redirect:
            where = urlsplit(response.headers.get("location", "")).netloc.rpartition("@")[2]
            raise self._strange(f"a redirect to {shorten(where)}, which is not followed")
        if response.status_code >= HTTPStatus.BAD_REQUEST:
            raise self._refusal(response.status_code, given, content)
        if given != media_type:
            raise self._strange(f"{shorten(given)} instead of {media_type}")
        # A page of somebody else's is HTML as well.
        if media_type == "text/html" and LEDGER_HEADER not in response.headers:
            raise self._strange("an HTML page that is not gpucost's")

    def _refusal(self, status: int, media_type: str, content: bytes) -> GpuCostError:
        error: Mapping[str, Any] = {}
        if media_type == JSON:
            try:
                found = parse_json(content)["error"]
                error = {name: None if found[name] is None else str(found[name]) for name in _PARTS}
            except (NotAReport, KeyError, TypeError):
                error = {}
        if not error:
            return self._strange(f"HTTP {status} without an error of gpucost's")
        url, message = self._target.url, error["message"]
        if status == HTTPStatus.UNAUTHORIZED:
            if self._target.credential is None:
                found, do = "missing", f"a login (gpucost login {url}), or GPUCOST_TOKEN_FILE"
            else:
                found = f"{url} does not accept it: it is wrong, has expired or was revoked"
                do = f"another one: gpucost login {url}"
            return InputError("key or token", Remark(found), do)
        if status == HTTPStatus.FORBIDDEN:
            return InputError("key or token", Remark(message), "one with another role; gpucost whoami")
        if status == HTTPStatus.CONFLICT:
            return LedgerConflict(message)
        if status >= HTTPStatus.INTERNAL_SERVER_ERROR or status == HTTPStatus.TOO_MANY_REQUESTS:
            kind = LedgerUnavailable if error["code"] == "ledger_unavailable" else SourceUnreachable
            return kind(f"{url}: {message}")
        value = Remark(message) if error["value"] is None else error["value"]
        return InputError(error["field"] or "request", value, error["allowed"] or message)

    def _unreachable(self, error: Exception) -> GpuCostError:
        text, url = str(error), self._target.url
        if "CERTIFICATE_VERIFY_FAILED" in text:
            return SourceUnreachable(
                f"{url}: its certificate is not trusted here ({shorten(text, 200)}); "
                "gpucost login --ca-file, or GPUCOST_CA_FILE, names the authority that signed it"
            )
        if "SSL" in text or isinstance(error, ssl.SSLError):
            return SourceUnreachable(f"{url}: no TLS with it ({shorten(text, 200)})")
        return SourceUnreachable(f"{url} cannot be reached: {shorten(text or type(error).__name__, 200)}")

    def _strange(self, what: str) -> GpuCostError:
        return SourceUnreachable(
            f"{self._target.url} answers with {what}: it is not gpucost, or something stands before it"
        )


_PARTS = ("code", "message", "field", "value", "allowed")
