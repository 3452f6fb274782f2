"""The issuer's keys: rotation, outages, floods, and what a key set must be."""

from __future__ import annotations

import json
import logging
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from gpucost.access import oidc_tokens
from gpucost.access.authenticator import AccessDenied, CheckUnavailable
from gpucost.access.issuer_keys import MOST_BYTES, IssuerFetcher, IssuerKeys
from gpucost.access.oidc_tokens import (
    FRESH_MS,
    KEPT_MS,
    REFRESH_MS,
    IssuerFetchError,
    KeySet,
    parse_keys,
)
from tests.access.conftest import Checker
from tests.service.worlds import NOW_MS
from tests.support.oidc_issuer import NOW_S, Issuer, public_jwk

DISCOVERY = "/.well-known/openid-configuration"


def long_token(issuer: Issuer, **changes: Any) -> str:
    """Good for a month, so that only its key decides."""
    return issuer.token(exp=NOW_S + 30 * 24 * 3600, **changes)


@pytest.mark.fault(48)
def test_keys_are_fetched_once(issuer: Issuer, checker: Checker) -> None:
    known = checker()
    for after_ms in (0, 1000, REFRESH_MS, FRESH_MS):
        assert known.check(long_token(issuer), NOW_MS + after_ms) is not None
    assert issuer.served == {DISCOVERY: 1, "/keys": 1}


@pytest.mark.fault(48)
def test_a_new_key_is_found_and_an_old_one_dropped(issuer: Issuer, checker: Checker) -> None:
    known = checker()
    old, new = long_token(issuer), long_token(issuer, kid="rsa-2")
    issuer.published = [public_jwk(issuer.keys["rsa"], "rsa")]
    assert known.check(old, NOW_MS) is not None
    issuer.published = [public_jwk(issuer.keys["rsa-2"], "rsa-2")]
    with pytest.raises(AccessDenied, match="no key"):  # not yet: a minute has not passed
        known.check(new, NOW_MS + REFRESH_MS - 1)
    assert known.check(new, NOW_MS + REFRESH_MS) is not None
    with pytest.raises(AccessDenied, match="no key"):
        known.check(old, NOW_MS + 2 * REFRESH_MS)


@pytest.mark.fault(48)
def test_a_key_that_was_withdrawn_is_dropped_within_the_hour(issuer: Issuer, checker: Checker) -> None:
    known = checker()
    assert known.check(long_token(issuer), NOW_MS) is not None
    issuer.published = [public_jwk(issuer.keys["ec"], "ec")]
    with pytest.raises(AccessDenied, match="no key"):
        known.check(long_token(issuer), NOW_MS + FRESH_MS + 1)


@pytest.mark.fault(48)
def test_a_flood_of_unknown_keys_is_one_refresh_a_minute(issuer: Issuer, checker: Checker) -> None:
    known = checker()
    good, body = long_token(issuer), long_token(issuer).split(".", 1)[1]
    assert known.check(good, NOW_MS) is not None
    issuer.served.clear()
    heads = [issuer.forged({"alg": "RS256", "kid": f"k{n}"}).split(".", 1)[0] for n in range(1000)]
    minutes = 10
    for n, head in enumerate(heads):
        with pytest.raises(AccessDenied):
            known.check(f"{head}.{body}", NOW_MS + REFRESH_MS + n * minutes * REFRESH_MS // len(heads))
    assert issuer.served["/keys"] == minutes
    assert known.check(good, NOW_MS + REFRESH_MS) is not None


@pytest.mark.fault(48)
def test_many_threads_fetch_once(issuer: Issuer, checker: Checker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(oidc_tokens, "WAIT_S", 60.0)
    known, token, together = checker(), issuer.token(), threading.Barrier(16)

    def ask(_: int) -> object:
        together.wait()
        return known.check(token, NOW_MS)

    with ThreadPoolExecutor(16) as pool:
        assert None not in list(pool.map(ask, range(16)))
    assert issuer.served == {DISCOVERY: 1, "/keys": 1}


@pytest.mark.fault(48)
def test_while_one_fetches_nobody_else_waits() -> None:
    asked, answer = threading.Event(), threading.Event()
    published = public_jwk(ec.generate_private_key(ec.SECP256R1()), "a")

    def first() -> object:
        return {"keys": [published]}

    def hangs() -> object:
        asked.set()
        answer.wait(60)
        raise IssuerFetchError("gone")

    fetches = iter((first, hangs))
    keys = KeySet(lambda: next(fetches)())
    assert keys.find("a", "ES256", NOW_MS).kind == "EC"
    later = NOW_MS + FRESH_MS + 1
    with ThreadPoolExecutor(1) as pool:
        stuck = pool.submit(keys.find, "a", "ES256", later)
        assert asked.wait(60)
        assert keys.find("a", "ES256", later).kind == "EC"
        with pytest.raises(AccessDenied):
            keys.find("b", "ES256", later)
        answer.set()
        assert stuck.result().kind == "EC"


@pytest.mark.fault(48)
def test_while_the_issuer_is_down_its_keys_go_on_serving_for_a_day(
    issuer: Issuer, checker: Checker, caplog: pytest.LogCaptureFixture
) -> None:
    known = checker()
    assert known.check(long_token(issuer), NOW_MS) is not None
    issuer.is_down = True
    issuer.served.clear()
    for minutes in range(0, 24 * 60, 180):
        assert known.check(long_token(issuer), NOW_MS + minutes * REFRESH_MS) is not None
    assert known.check(long_token(issuer), NOW_MS + KEPT_MS) is not None
    with pytest.raises(CheckUnavailable):
        known.check(long_token(issuer, kid="rsa-2", header={"kid": "new"}), NOW_MS + KEPT_MS)
    with pytest.raises(CheckUnavailable):
        known.check(long_token(issuer), NOW_MS + KEPT_MS + 1)
    assert "cannot be fetched" in caplog.text
    issuer.is_down = False
    assert known.check(long_token(issuer), NOW_MS + KEPT_MS + REFRESH_MS + 1) is not None


@pytest.mark.fault(48)
def test_without_any_keys_nothing_can_be_said(issuer: Issuer, checker: Checker) -> None:
    issuer.is_down = True
    known = checker()
    for after_ms in (0, 1, REFRESH_MS - 1):
        with pytest.raises(CheckUnavailable):
            known.check(issuer.token(), NOW_MS + after_ms)
    assert issuer.served == {DISCOVERY: 1}
    issuer.is_down = False
    assert known.check(issuer.token(), NOW_MS + REFRESH_MS) is not None


def test_a_clock_that_was_set_back_does_not_keep_keys_away(issuer: Issuer, checker: Checker) -> None:
    known = checker()
    issuer.published = [public_jwk(issuer.keys["rsa"], "rsa")]
    assert known.check(long_token(issuer), NOW_MS + FRESH_MS) is not None
    issuer.published = [public_jwk(issuer.keys["rsa-2"], "rsa-2")]
    assert known.check(long_token(issuer, kid="rsa-2"), NOW_MS) is not None


# Discovery and fetching


def fails(issuer: Issuer, match: str, jwks_url: str = "", ca_file: Path | None = None) -> None:
    keys = IssuerKeys(issuer.url, IssuerFetcher(ca_file or issuer.ca_file, proxies=False), jwks_url)
    with pytest.raises(IssuerFetchError, match=match):
        keys()


def test_keys_without_discovery(issuer: Issuer, checker: Checker) -> None:
    assert checker(jwks_url=f"{issuer.url}/keys").check(issuer.token(), NOW_MS) is not None
    assert issuer.served == {"/keys": 1}


@pytest.mark.parametrize(
    "discovery",
    [
        {"issuer": "https://evil.example"},
        {"issuer": ""},
        {"issuer": "SLASH"},
        {"issuer": None},
    ],
)
def test_a_discovery_page_of_another_issuer(discovery: dict[str, Any], issuer: Issuer) -> None:
    if discovery["issuer"] == "SLASH":
        discovery = {"issuer": issuer.url + "/"}
    issuer.discovery |= discovery
    fails(issuer, "another issuer")
    assert not issuer.served["/keys"]


@pytest.mark.fault(55)
@pytest.mark.parametrize(
    ("uri", "match"),
    [
        (None, "no jwks_uri"),
        (["x"], "no jwks_uri"),
        ("http://169.254.169.254/latest/meta-data", "another host without TLS"),
        ("http://127.0.0.1/keys", "not https"),
        ("file:///etc/passwd", "a URL that is none"),
        ("file://localhost/etc/passwd", "not https"),
        ("gopher://127.0.0.1/x", "not https"),
        ("https://user:pw@127.0.0.1/keys", "user info"),
        ("https://127.0.0.1:99999/keys", "a URL that is none"),
        ("https://[::1/keys", "a URL that is none"),
        ("http://[", "a URL that is none"),
        ("//127.0.0.1/keys", "not https"),
        ("https://127.0.0.1/a b", "a URL that is none"),
        ("https://127.0.0.1/\u00e4", "a URL that is none"),
        ("https://127.0.0.1/\x7f", "a URL that is none"),
    ],
)
def test_where_a_discovery_page_must_not_lead(uri: object, match: str, issuer: Issuer) -> None:
    issuer.discovery |= {"jwks_uri": uri}
    fails(issuer, match)


@pytest.mark.fault(55)
def test_over_http_only_the_issuer_itself_is_asked(issuer: Issuer) -> None:
    issuer.discovery |= {"jwks_uri": "http://169.254.169.254/keys"}
    keys = IssuerKeys(issuer.url, IssuerFetcher(issuer.ca_file, allow_http=True, proxies=False))
    with pytest.raises(IssuerFetchError, match="another host without TLS"):
        keys()


@pytest.mark.fault(55)
@pytest.mark.parametrize("path", [DISCOVERY, "/keys"])
@pytest.mark.parametrize("status", [301, 302, 307, 308])
def test_no_redirect_is_followed(path: str, status: int, issuer: Issuer) -> None:
    issuer.answers[path] = (status, b"", {"Location": f"{issuer.url}/elsewhere"})
    fails(issuer, f"answered {status}")
    assert not issuer.served["/elsewhere"]


@pytest.mark.parametrize(
    ("answer", "match"),
    [
        ((500, b"", {}), "answered 500"),
        ((200, b"<html>", {}), "not JSON"),
        ((200, b"[" * 100_000, {}), "not JSON"),
        ((200, b'"' + b"x" * MOST_BYTES + b'"', {}), "more than"),
    ],
)
def test_answers_that_are_no_keys(
    answer: tuple[int, bytes, dict[str, str]], match: str, issuer: Issuer
) -> None:
    issuer.answers["/keys"] = answer
    fails(issuer, match)


def test_an_authority_that_is_not_trusted(issuer: Issuer, tmp_path: Path) -> None:
    from tests.support.oidc_issuer import make_certificates

    make_certificates(tmp_path)
    fails(issuer, "(?i)certificate", ca_file=tmp_path / "ca.pem")
    (tmp_path / "empty.pem").write_text("nothing")
    fails(issuer, "SSLError", ca_file=tmp_path / "empty.pem")
    assert not issuer.served


# Key sets


def test_keys_that_are_left_out(issuer: Issuer, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    weak = rsa.generate_private_key(65537, 1024)  # nosec: it is to be refused
    good = public_jwk(issuer.keys["rsa"], "rsa")
    secret = {"kty": "oct", "kid": "oct", "k": "c2VjcmV0", "alg": "HS256"}
    found = parse_keys(
        {
            "keys": [
                good,
                None,
                "x",
                secret,
                {**good, "kid": "enc", "use": "enc"},
                {**good, "kid": "ops", "key_ops": ["encrypt"]},
                {**good, "kid": "ops2", "key_ops": 7},
                {**good, "kid": "alg", "alg": "RSA-OAEP"},
                {**good, "kid": "hs", "alg": "HS256"},
                {**good, "kid": "list", "alg": ["RS256"]},
                {**good, "kid": 5},
                {name: value for name, value in good.items() if name != "kid"},
                {**good, "kid": "n", "n": "!"},
                {"kty": "EC", "kid": "curve", "crv": "secp256k1", "x": "AA", "y": "AA"},
                {"kty": "EC", "kid": "point", "crv": "P-256", "x": "AA", "y": "AA"},
                {"kty": ["RSA"], "kid": "kty"},
                public_jwk(weak, "weak"),
            ]
        }
    )
    assert set(found) == {"rsa"}


def test_keys_of_one_id_are_told_from_each_other_by_their_type(issuer: Issuer) -> None:
    published = [public_jwk(issuer.keys[kid], "same") for kid in ("rsa", "ec", "ed")]
    keys = KeySet(lambda: {"keys": published})
    kinds = {name: keys.find("same", name, NOW_MS).kind for name in ("RS256", "ES256", "EdDSA")}
    assert kinds == {"RS256": "RSA", "ES256": "EC", "EdDSA": "OKP"}


@pytest.mark.parametrize("document", [None, [], {}, {"keys": None}, {"keys": {}}, {"keys": [5]}, "keys"])
def test_what_is_no_key_set(document: object) -> None:
    with pytest.raises(IssuerFetchError, match="no key"):
        parse_keys(document)
    assert json.dumps(document)
