"""Logging in at an issuer: what is asked, what comes back, and every way to be refused."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, parse_qsl, urlsplit

import pytest

from gpucost.access.authenticator import AccessDenied, CheckUnavailable
from gpucost.access.code_flow import ATTEMPT_MS, IssuerLogin, LoginAttempt, local_path
from gpucost.access.issuer_codes import FRESH_MS, NEXT_TRY_MS, IssuerCodes
from gpucost.access.issuer_keys import IssuerFetcher
from gpucost.access.principal import AuthenticationMethod
from tests.access.conftest import Checker
from tests.service.worlds import NOW_MS, Clock
from tests.support.oidc_issuer import AUDIENCE, NOW_S, Issuer

CALLBACK = "https://gpucost.example.com/login/callback"
PATH = "/month/2026-10/team?team=research"
Login = Callable[..., IssuerLogin]


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def login(issuer: Issuer, checker: Checker, clock: Clock) -> Login:
    def make(secret_file: Path | None = None, client: str = AUDIENCE, **changes: Any) -> IssuerLogin:
        fetcher = IssuerFetcher(issuer.ca_file, proxies=False)
        codes = IssuerCodes(issuer.url, client, fetcher, secret_file, clock)
        tokens = checker(audience=client)
        found = IssuerLogin(issuer.url, client, ("openid", "groups"), codes, tokens, clock)
        return replace(found, **changes)

    return make


def agreed(issuer: Issuer, url: str) -> dict[str, str]:
    """What the issuer sends back with the browser, whose person agrees."""
    back = issuer.allow(dict(parse_qsl(urlsplit(url).query)))
    assert back, "the issuer refuses what it is asked"
    return dict(parse_qsl(urlsplit(back).query))


def refusal(login: IssuerLogin, answered: dict[str, str], attempt: LoginAttempt, url: str = CALLBACK) -> str:
    with pytest.raises(AccessDenied) as caught:
        login.finish(answered, attempt, url)
    return str(caught.value)


def test_a_person_comes_back_with_name_and_groups(issuer: Issuer, login: Login) -> None:
    found = login()
    url, attempt = found.begin(PATH, CALLBACK)
    assert url.startswith(f"{issuer.url}/authorize?")
    asked = parse_qs(urlsplit(url).query)
    assert asked["redirect_uri"] == [CALLBACK]
    assert asked["scope"] == ["openid groups"]
    assert asked["code_challenge_method"] == ["S256"]
    assert attempt.verifier not in url
    proof = found.finish(agreed(issuer, url), attempt, CALLBACK)
    assert (proof.method, proof.subject, proof.groups) == (
        AuthenticationMethod.OIDC,
        "ada",
        ("gpu-research-members",),
    )
    assert (proof.credential, proof.state, attempt.path) == (issuer.url, attempt.state, PATH)
    [form] = issuer.forms
    assert form["code_verifier"] == attempt.verifier
    assert (form["client_id"], form["authorization"]) == (AUDIENCE, "")
    another = found.begin(PATH, CALLBACK)[1]
    assert {another.state, another.nonce, another.verifier}.isdisjoint(
        {attempt.state, attempt.nonce, attempt.verifier}
    )


def test_the_redirect_url_of_the_settings_is_the_one(issuer: Issuer, login: Login) -> None:
    found = login(redirect_url="https://public.example/login/callback")
    url, attempt = found.begin(PATH, "https://whatever.the.host.says/login/callback")
    assert parse_qs(urlsplit(url).query)["redirect_uri"] == [found.redirect_url]
    assert found.finish(agreed(issuer, url), attempt, "https://elsewhere/login/callback").subject == "ada"


@pytest.mark.parametrize("methods", [None, ["client_secret_basic"], ["client_secret_post"]])
def test_the_secret_of_the_client_is_shown_as_the_issuer_takes_it(
    methods: list[str] | None, issuer: Issuer, login: Login, tmp_path: Path
) -> None:
    if methods:
        issuer.discovery["token_endpoint_auth_methods_supported"] = methods
    issuer.client_secret = "a+b:c%/d \u00e4"
    file = tmp_path / "secret"
    file.write_text("wrong\n", encoding="utf-8")
    found = login(file, client="gpucost:web")
    url, attempt = found.begin(PATH, CALLBACK)
    said = refusal(found, agreed(issuer, url), attempt)
    assert "401" in said
    assert "wrong" not in said
    file.write_text(f"{issuer.client_secret}\n", encoding="utf-8")  # read anew for each login
    url, attempt = found.begin(PATH, CALLBACK)
    assert found.finish(agreed(issuer, url), attempt, CALLBACK).subject == "ada"
    assert ("client_secret" in issuer.forms[-1]) is (methods == ["client_secret_post"])
    file.unlink()
    url, attempt = found.begin(PATH, CALLBACK)
    with pytest.raises(CheckUnavailable, match="secret cannot be read"):
        found.finish(agreed(issuer, url), attempt, CALLBACK)


@pytest.mark.parametrize(
    ("claims", "reason"),
    [
        ({"nonce": None}, "nonce"),
        ({"nonce": "of another login"}, "nonce"),
        ({"nonce": 7}, "nonce"),
        ({"azp": "another-client"}, "azp"),
        ({"aud": "another-client"}, "another audience"),
        ({"iss": "https://evil.example"}, "no token of its own"),
        ({"exp": NOW_S - 61}, "expired"),
        ({"kid": "rsa-2", "header": {"kid": "rsa"}}, "signature"),
        ({"sub": "system:serviceaccount:a:b"}, "no name"),
        ({"sub": "ada\nroot"}, "no name"),
    ],
    ids=str,
)
def test_a_token_that_is_not_of_this_login_is_refused(
    claims: dict[str, Any], reason: str, issuer: Issuer, login: Login
) -> None:
    found = login()
    url, attempt = found.begin(PATH, CALLBACK)
    answered = agreed(issuer, url)
    issuer.person = claims
    assert reason in refusal(found, answered, attempt)


def test_azp_may_name_this_client(issuer: Issuer, login: Login) -> None:
    found = login()
    url, attempt = found.begin(PATH, CALLBACK)
    issuer.person = {"aud": [AUDIENCE, "another"], "azp": AUDIENCE}
    assert found.finish(agreed(issuer, url), attempt, CALLBACK).subject == "ada"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"state": "x"}, "state"),
        ({"state": None}, "state"),
        ({"state": "\u00e4"}, "state"),
        ({"iss": "https://evil.example"}, "another issuer"),
        ({"error": "access_denied"}, "access_denied"),
        ({"error": "<script>\n"}, "an error without a name"),
        ({"code": None}, "no code"),
        ({"code": "x" * 4_097}, "no code"),
        ({"code": "a\nb"}, "no code"),
        ({"code": "made-up"}, "refuses the code"),
    ],
    ids=str,
)
def test_a_callback_that_is_not_of_this_login_is_refused(
    changes: dict[str, str | None], reason: str, issuer: Issuer, login: Login
) -> None:
    found = login()
    url, attempt = found.begin(PATH, CALLBACK)
    answered = {k: v for k, v in {**agreed(issuer, url), **changes}.items() if v is not None}
    assert reason in refusal(found, answered, attempt)
    if "code" not in reason:
        assert issuer.forms == [], "the code goes nowhere"


def test_a_code_is_worth_nothing_without_the_verifier_or_a_second_time(issuer: Issuer, login: Login) -> None:
    found = login()
    url, attempt = found.begin(PATH, CALLBACK)
    answered = agreed(issuer, url)
    thief = replace(found.begin(PATH, CALLBACK)[1], state=attempt.state, nonce=attempt.nonce)
    assert "refuses the code" in refusal(found, answered, thief)
    assert "refuses the code" in refusal(found, answered, attempt, "https://evil.example/login/callback")
    assert found.finish(answered, attempt, CALLBACK).subject == "ada"
    assert "refuses the code" in refusal(found, answered, attempt)


@pytest.mark.parametrize(
    "answer",
    [
        (500, b"{}"),
        (302, b""),
        (200, b"not json"),
        (200, b"[" * 100_000),
        (200, b'{"id_token": "' + b"x" * (1 << 20) + b'"}'),
    ],
    ids=["500", "302", "no JSON", "deep", "large"],
)
def test_an_issuer_that_does_not_answer_is_not_a_refusal(
    answer: tuple[int, bytes], issuer: Issuer, login: Login
) -> None:
    found = login()
    url, attempt = found.begin(PATH, CALLBACK)
    answered = agreed(issuer, url)
    issuer.answers["/token"] = (*answer, {"Location": f"{issuer.url}/elsewhere"})
    with pytest.raises(CheckUnavailable, match="cannot be exchanged"):
        found.finish(answered, attempt, CALLBACK)
    assert issuer.served["/elsewhere"] == 0
    with pytest.raises(CheckUnavailable, match="temporarily_unavailable"):
        found.finish(answered | {"error": "temporarily_unavailable"}, attempt, CALLBACK)


@pytest.mark.parametrize("answer", [b"{}", b"[]", b'{"id_token": 1}', b'{"access_token": "x"}'])
def test_an_answer_without_an_id_token_is_refused(answer: bytes, issuer: Issuer, login: Login) -> None:
    found = login()
    url, attempt = found.begin(PATH, CALLBACK)
    answered = agreed(issuer, url)
    issuer.answers["/token"] = (200, answer, {})
    assert "no ID token" in refusal(found, answered, attempt)


@pytest.mark.parametrize(
    "changes",
    [
        {"authorization_endpoint": None},
        {"authorization_endpoint": "http://evil.example/authorize"},
        {"authorization_endpoint": "javascript:alert(1)"},
        {"issuer": "https://evil.example"},
    ],
    ids=str,
)
def test_a_discovery_page_that_leads_astray_begins_nothing(
    changes: dict[str, Any], issuer: Issuer, login: Login
) -> None:
    issuer.discovery |= changes
    with pytest.raises(CheckUnavailable, match="nobody can log in"):
        login().begin(PATH, CALLBACK)


def test_the_discovery_page_is_read_once_an_hour_and_kept_while_it_cannot_be(
    issuer: Issuer, login: Login, clock: Clock
) -> None:
    page = "/.well-known/openid-configuration"
    found = login()
    issuer.is_down = True
    for _ in range(3):
        with pytest.raises(CheckUnavailable):
            found.begin(PATH, CALLBACK)
    assert issuer.served[page] == 1
    issuer.is_down = False
    clock.now_ms += NEXT_TRY_MS
    for _ in range(3):
        found.begin(PATH, CALLBACK)
    assert issuer.served[page] == 2
    issuer.is_down = True
    clock.now_ms += FRESH_MS
    assert found.begin(PATH, CALLBACK)[0].startswith(issuer.url)
    assert issuer.served[page] == 3


def test_what_a_cookie_says_is_a_login_or_nothing() -> None:
    attempt = LoginAttempt.new(PATH, NOW_MS)
    assert LoginAttempt.of_cookie(attempt.cookie(), NOW_MS) == attempt
    assert LoginAttempt.of_cookie(attempt.cookie(), NOW_MS + ATTEMPT_MS - 1) == attempt
    assert LoginAttempt.of_cookie(attempt.cookie(), NOW_MS + ATTEMPT_MS) is None
    assert LoginAttempt.of_cookie(attempt.cookie(), NOW_MS - 60_001) is None, "it lies in the future"
    values = json.loads(base64.urlsafe_b64decode(attempt.cookie()))
    for changes in (
        {"path": "//evil.example"},
        {"path": 1},
        {"state": ""},
        {"nonce": None},
        {"verifier": "x"},
        {"begun_ms": "x"},
        {"begun_ms": float("nan")},
        {"more": 1},
    ):
        text = base64.urlsafe_b64encode(json.dumps(values | changes).encode()).decode()
        assert LoginAttempt.of_cookie(text, NOW_MS) is None, changes
    deep = base64.urlsafe_b64encode(b"[" * 2_900).decode()
    for text in ("", "x", "\u00e4", deep, attempt.cookie()[:-8], "bnVsbA==", "W10="):
        assert LoginAttempt.of_cookie(text, NOW_MS) is None, text[:20]


@pytest.mark.parametrize(
    "text",
    [
        *(
            "",
            "evil",
            "evil.example",
            "//evil.example",
            "///evil.example",
            "https://evil.example",
            "https:/x",
        ),
        *("javascript:alert(1)", "/\\evil.example", "\\/evil.example", "/a\\b", "/\t/evil.example"),
        *(
            "/\n/evil.example",
            "\t//evil.example",
            " //evil.example",
            "/ /evil.example",
            "/\u2028/evil",
            "/\u00e4",
        ),
        *("/\0", "\u2215\u2215evil.example", "/" + "x" * 2_000),
    ],
)
def test_what_may_lead_elsewhere_leads_to_the_first_page(text: str) -> None:
    assert local_path(text) == "/"


@pytest.mark.parametrize(
    "text", ["/", PATH, "/%2f%2fevil.example", "/?next=https://evil.example", "/jobs#top", "/a//b"]
)
def test_a_path_of_this_server_stays(text: str) -> None:
    assert local_path(text) == text
