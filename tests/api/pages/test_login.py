"""Log-in and log-out of people, over HTTP and TLS, against an issuer that runs."""

from __future__ import annotations

import logging
import re
from dataclasses import replace
from html import unescape
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import httpx2
import pytest
from fastapi.testclient import TestClient

from gpucost.access.code_flow import LoginAttempt
from gpucost.access.sessions import csrf_token
from gpucost.api.app import create_app
from gpucost.service.settings.api import ApiSettings
from tests.api.conftest import KEYS, SECRETS
from tests.api.pages.login_sites import (
    ANSWER,
    CLIENT_SECRET,
    FORM,
    PAGE,
    TEAM,
    Open,
    Site,
    flags,
    key,
    open_browser,
    site,
    sites,
    tls,
)
from tests.service.worlds import NOW_MS

__all__ = ["open_browser", "site", "sites", "tls"]


def test_a_person_logs_in_at_the_issuer_and_out(site: Site, open_browser: Open) -> None:
    ada = open_browser(site)
    refused = ada.get(TEAM)
    assert (refused.status_code, refused.headers["location"]) == (303, f"/login?{urlencode({'next': TEAM})}")
    page = ada.get(refused.headers["location"])
    assert page.status_code == 200
    assert "research" not in re.sub(r'(?:value|href)="[^"]*"', "", page.text)
    [start] = re.findall(r'href="(/login/start[^"]*)"', page.text)
    asked = ada.get(unescape(start)).headers["location"]
    assert parse_qs(urlsplit(asked).query)["redirect_uri"] == [f"{site.url}/login/callback"]
    back = ada.agree(asked)
    arrived = ada.get(back)
    assert (arrived.status_code, arrived.headers["location"]) == (303, TEAM)
    kept = {"httponly": "True", "path": "/", "samesite": "lax", "max-age": "28800"}
    if site.is_secure:
        kept["secure"] = "True"
    assert flags(arrived, f"{site.prefix}gpucost") == kept
    assert ada.cookie("gpucost-login") == ""
    page = ada.get(TEAM)
    assert page.status_code == 200
    assert "oidc:ada" in page.text
    assert page.headers["cache-control"] == "no-store"
    assert site.trail()[-1] == ("oidc:ada", "session login", "")
    [out] = re.findall(
        r'<form method="post" action="/logout"><input type="hidden" name="csrf" value="(\w+)"', page.text
    )
    token = ada.cookie()
    left = ada.post("/logout", {"csrf": out})
    assert (left.status_code, left.headers["location"], ada.cookie()) == (303, "/login", "")
    assert site.trail()[-1] == ("oidc:ada", "session end", "logged out")
    ada.keep(token)
    assert ada.who() == ""


def test_a_person_logs_in_with_a_key(site: Site, open_browser: Open) -> None:
    ada = open_browser(site)
    arrived = ada.give(f"  {key('ada')} ", TEAM)
    assert (arrived.status_code, arrived.headers["location"]) == (303, TEAM)
    assert flags(arrived, f"{site.prefix}gpucost")["httponly"] == "True"
    assert SECRETS["ada"] not in str(arrived.headers)
    assert ada.who() == "ada"
    assert ada.get(TEAM).status_code == 200
    assert site.trail()[-1] == ("ada", "session login", "")


@pytest.mark.parametrize("way", ["issuer", "key"])
def test_a_planted_session_is_not_the_one_after_the_login(site: Site, way: str, open_browser: Open) -> None:
    mallory, ada = open_browser(site), open_browser(site)
    mallory.give(key("vera"))
    for planted in (mallory.cookie(), "a-token-that-mallory-made-up"):
        ada.keep(planted)
        arrived = ada.log_in() if way == "issuer" else ada.give(key("ada"))
        assert arrived.status_code == 303
        assert ada.cookie() not in ("", planted)
        assert ada.who() in ("oidc:ada", "ada")
        assert mallory.who() == "", "the session that was planted has ended"


def test_nobody_is_logged_in_by_a_form_of_somebody_else(site: Site, open_browser: Open) -> None:
    """Login CSRF: the token of Mallory's form is of no use in another browser."""
    mallory, ada = open_browser(site), open_browser(site)
    mallory.get("/login")
    said = {"csrf": csrf_token(mallory.cookie("gpucost-form")), "key": key("vera"), "next": "/"}
    assert ada.post("/login", said).status_code == 403
    ada.get("/login")
    for token in (said["csrf"], "", "x"):
        assert ada.post("/login", {**said, "csrf": token}).status_code == 403
    assert ada.cookie() == ""
    assert "again" in ada.post("/login", said).text


NEXTS = [
    *("//evil.example", "https://evil.example/", "https:evil.example", "/\\evil.example", "\\\\evil.example"),
    *("/\t/evil.example", "/\r\nSet-Cookie: a=b", "javascript:alert(1)", "///evil.example", "/\u2028//evil"),
    *("%2f%2fevil.example", "evil.example", "@evil.example"),
]


@pytest.mark.parametrize("path", NEXTS)
def test_a_login_leads_nowhere_else(path: str, tls: Site, open_browser: Open) -> None:
    ada = open_browser(tls)
    page = ada.get(f"/login?{urlencode({'next': path})}")
    assert "evil" not in page.text
    assert ada.log_in(path).headers["location"] == "/"
    assert ada.give(key("ada"), path).headers["location"] == "/"
    ada.get("/login")
    token = csrf_token(ada.cookie("gpucost-form"))
    assert ada.post("/login", {"csrf": token, "key": key("ada"), "next": path}).headers["location"] == "/"


def test_what_is_encoded_stays_on_this_server(tls: Site, open_browser: Open) -> None:
    arrived = open_browser(tls).log_in("/%2f%2fevil.example")
    assert arrived.headers["location"] == "/%2f%2fevil.example"
    assert httpx2.URL(f"{tls.url}/login/callback").join(arrived.headers["location"]).host == "127.0.0.1"


def test_a_path_that_the_cookie_of_a_login_was_changed_to_is_not_gone_to(
    tls: Site, open_browser: Open
) -> None:
    ada = open_browser(tls)
    back = ada.agree(ada.begin("/"))
    attempt = LoginAttempt.of_cookie(ada.cookie("gpucost-login"), NOW_MS)
    assert attempt is not None
    ada.keep(replace(attempt, path="//evil.example").cookie(), "gpucost-login")
    refused = ada.get(back)
    assert refused.status_code == 401
    assert "evil" not in refused.text


def test_a_callback_counts_once(site: Site, open_browser: Open) -> None:
    ada = open_browser(site)
    back = ada.agree(ada.begin())
    attempt = ada.cookie("gpucost-login")
    assert ada.get(back).status_code == 303
    token = ada.cookie()
    assert ada.get(back).status_code == 401, "the cookie of the login is gone"
    ada.keep(attempt, "gpucost-login")
    assert ada.get(back).status_code == 401, "the issuer takes a code once"
    site.issuer.takes_codes_twice = True
    site.issuer.codes = {code: asked for code, asked in site.issuer.codes.items() if asked}
    back = ada.agree(ada.begin())
    attempt = ada.cookie("gpucost-login")
    assert ada.get(back).status_code == 303
    ada.keep(attempt, "gpucost-login")
    refused = ada.get(back)
    assert refused.status_code == 401, "and so does gpucost where the issuer does not"
    assert ada.cookie() != token


def test_a_callback_of_another_browser_logs_nobody_in(site: Site, open_browser: Open) -> None:
    """Else Mallory's link would log Ada in as Mallory."""
    mallory, ada = open_browser(site), open_browser(site)
    back = mallory.agree(mallory.begin())
    assert ada.get(back).status_code == 401, "Ada has begun nothing"
    ada.begin()
    refused = ada.get(back)
    assert refused.status_code == 401, "Ada has begun another login"
    assert "Please begin again" in refused.text
    assert ada.cookie() == ""
    twice = mallory.get(f"{back}&state=x")
    assert twice.status_code == 401, "a parameter more than once"


@pytest.mark.parametrize(
    "person",
    [
        {"nonce": "of another login"},
        {"nonce": None},
        {"azp": "another-client"},
        {"aud": "another-client"},
        {"iss": "https://evil.example"},
        {"exp": NOW_MS // 1000 - 61},
    ],
    ids=str,
)
def test_a_token_that_is_of_another_login_logs_nobody_in(
    person: dict[str, Any], tls: Site, open_browser: Open
) -> None:
    ada = open_browser(tls)
    back = ada.agree(ada.begin())
    tls.issuer.person = person
    refused = ada.get(back)
    assert (refused.status_code, ada.cookie()) == (401, "")
    for reason in ("nonce", "azp", "audience", "expired"):
        assert reason not in refused.text, "the reason stands in the log only"


def test_who_is_granted_nothing_is_told_so(tls: Site, open_browser: Open) -> None:
    ada = open_browser(tls)
    tls.issuer.person = {"groups": ["others"]}
    refused = ada.get(ada.agree(ada.begin()))
    assert (refused.status_code, ada.cookie()) == (403, "")
    assert "nothing is granted" in refused.text


def test_an_issuer_that_is_down_is_not_the_persons_fault(tls: Site, open_browser: Open) -> None:
    ada = open_browser(tls)
    back = ada.agree(ada.begin())
    tls.issuer.is_down = True
    refused = ada.get(back)
    assert (refused.status_code, ada.cookie()) == (503, "")
    assert ada.give(key("ada")).status_code == 303, "keys go on"


def test_a_login_that_took_too_long_begins_anew(tls: Site, open_browser: Open) -> None:
    ada = open_browser(tls)
    back = ada.agree(ada.begin())
    tls.clock.now_ms += 600_000
    assert ada.get(back).status_code == 401


def test_nothing_secret_stands_in_the_log(
    site: Site, open_browser: Open, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    ada = open_browser(site)
    secrets = {CLIENT_SECRET, SECRETS["ada"], SECRETS["vera"]}
    for broken in (False, True):
        asked = ada.begin(TEAM)
        back = ada.agree(asked)
        attempt = ada.cookie("gpucost-login")
        secrets |= {
            attempt,
            *parse_qs(urlsplit(back).query)["code"],
            *parse_qs(urlsplit(back).query)["state"],
        }
        secrets |= set(parse_qs(urlsplit(asked).query)["nonce"])
        site.issuer.person = {"nonce": "wrong"} if broken else {}
        ada.get(back)
        ada.get(back)
        secrets |= {ada.cookie(), csrf_token(ada.cookie()), site.issuer.forms[-1]["code_verifier"]}
    ada.give(key("ada"))
    ada.give("gpc_ada_a-wrong-secret")
    ada.give("eyJhbGciOiJub25lIn0.e30.")
    secrets |= {"a-wrong-secret", "eyJhbGciOiJub25lIn0", ada.cookie(), ada.cookie("gpucost-form")}
    ada.get(TEAM)
    ada.post("/logout", {"csrf": ada.csrf})
    told = [record for record in caplog.records if record.name.startswith("gpucost")]
    assert any("/login/callback" in record.getMessage() for record in told)
    assert any("nonce" in record.getMessage() for record in told), "the log says why"
    for record in told:
        text = f"{record.getMessage()} {record.__dict__}"
        assert not [secret for secret in secrets if secret and secret in text], record.getMessage()


def test_who_guesses_keys_gets_no_answer_soon(tls: Site, caplog: pytest.LogCaptureFixture) -> None:
    settings = ApiSettings(keys=KEYS, refused_rate=1)
    client = TestClient(
        create_app(tls.ledger, settings, now=tls.clock), base_url="https://gpucost.example.com"
    )
    client.headers |= PAGE
    client.get("/login")
    said = {"csrf": csrf_token(client.cookies["__Host-gpucost-form"]), "next": "/"}
    with caplog.at_level(logging.INFO):
        statuses = [
            client.post("/login", data={**said, "key": f"gpc_ada_{n}"}).status_code for n in range(120)
        ]
    assert set(statuses[:60]) == {401}
    assert set(statuses) == {401, 429}
    assert {each.status for each in caplog.records if hasattr(each, "status")} == {401}, (
        "nothing fills the log"
    )
    right = client.post("/login", data={**said, "key": key("ada")}, follow_redirects=False)
    assert right.status_code == 303, "a good key is not held up by its neighbours"


@pytest.mark.parametrize(
    ("said", "status"),
    [
        ({"user": "root"}, 400),
        ({"key": "a\0b"}, 422),
        ({"key": "x" * 50_000}, 401),
        ({"key": "x" * 100_000}, 413),
        ({"key": ""}, 401),
        ({"next": ""}, 401),
    ],
    ids=lambda each: str(each)[:30],
)
def test_a_form_that_is_wrong_is_refused(
    said: dict[str, str], status: int, tls: Site, open_browser: Open
) -> None:
    ada = open_browser(tls)
    ada.get("/login")
    token = csrf_token(ada.cookie("gpucost-form"))
    assert ada.post("/login", {"csrf": token, **said}).status_code == status
    assert ada.cookie() == ""


def test_without_auth_nobody_logs_in_and_the_pages_work(tls: Site) -> None:
    app = create_app(tls.ledger, ApiSettings(auth="off", host="127.0.0.1"), now=tls.clock)
    client = TestClient(app, base_url="http://127.0.0.1:8080", follow_redirects=False)
    client.headers |= PAGE
    page = client.get(TEAM)
    assert page.status_code == 200
    assert "Log out" not in page.text
    assert "set-cookie" not in page.headers
    led_on = client.get(f"/login?{urlencode({'next': TEAM})}")
    assert (led_on.status_code, led_on.headers["location"]) == (303, TEAM)
    for url in ("/login/start", "/login/callback?code=x&state=y"):
        assert client.get(url).status_code == 404
    assert client.post(ANSWER, data=FORM).status_code == 303
    assert client.post(ANSWER, data=FORM, headers={"Origin": "https://evil.example"}).status_code == 403


def test_without_an_issuer_there_are_keys_only(tls: Site) -> None:
    app = create_app(tls.ledger, ApiSettings(keys=KEYS), now=tls.clock)
    client = TestClient(app, base_url="https://gpucost.example.com", headers=PAGE)
    assert "/login/start" not in client.get("/login").text
    assert client.get("/login/start").status_code == 404
