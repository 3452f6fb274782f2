"""Log-in, sessions and log-out of people, over HTTP and TLS, against an issuer that runs."""

from __future__ import annotations

import logging
import re
import ssl
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from html import unescape
from http.cookies import SimpleCookie
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import httpx2
import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from gpucost.access.code_flow import LoginAttempt
from gpucost.access.keys import KeyRecord, format_key, hash_secret
from gpucost.access.principal import AccessRole
from gpucost.access.sessions import csrf_token
from gpucost.api.app import create_app
from gpucost.domain.scope import EVERYTHING
from gpucost.domain.time import HOUR_MS
from gpucost.ledger import Ledger
from gpucost.service.settings.api import ApiSettings
from gpucost.service.settings.model import Settings
from gpucost.service.wiring.access import build_authenticator, build_login
from tests.api.conftest import KEYS, SECRETS
from tests.api.findings import ledger_with_findings
from tests.service.worlds import NOW_MS, Clock
from tests.support.app_server import answering
from tests.support.oidc_issuer import AUDIENCE, Issuer, running_issuer
from tests.support.ports import free_port

PAGE = {"Accept": "text/html"}
TEAM = "/month/2026-10/team?team=research"
CLIENT_SECRET = "cl1ent-s3cret"
GRANTS = [
    {"groups": ["gpu-admins"], "role": "admin"},
    {"groups": ["gpu-leads"], "team_groups": "gpu-{team}-members", "role": "team-admin"},
    {"team_groups": "gpu-{team}-members"},
]
Answer = httpx2.Response


@dataclass(frozen=True)
class Site:
    """A process of the service. ``folder`` has the ledger, and the certificates of all servers."""

    url: str
    app: FastAPI
    issuer: Issuer
    ledger: Ledger
    clock: Clock
    folder: Path

    @property
    def is_secure(self) -> bool:
        return self.url.startswith("https:")

    @property
    def prefix(self) -> str:
        return "__Host-" if self.is_secure else ""

    def trail(self) -> list[tuple[str, str, str]]:
        """(author, action, reason) of what the audit trail has of sessions, oldest first."""
        rows = self.ledger.audit(EVERYTHING)
        return [(each.author, each.action, each.reason) for each in rows if "session" in each.action]


class Browser:
    """A browser, with its cookies. It goes nowhere by itself."""

    def __init__(self, site: Site) -> None:
        context = ssl.create_default_context(cafile=site.issuer.ca_file)
        self.site = site
        self.http = httpx2.Client(base_url=site.url, verify=context, trust_env=False, headers=PAGE)

    def get(self, url: str, **headers: str) -> Answer:
        return self.http.get(url, headers=headers)

    def post(self, url: str, said: dict[str, str], **headers: str) -> Answer:
        return self.http.post(url, data=said, headers=headers)

    def cookie(self, name: str = "gpucost") -> str:
        return self.http.cookies.get(f"{self.site.prefix}{name}") or ""

    def keep(self, value: str, name: str = "gpucost") -> None:
        self.http.cookies.delete(f"{self.site.prefix}{name}") if self.cookie(name) else None
        self.http.cookies.set(f"{self.site.prefix}{name}", value, domain="127.0.0.1", path="/")

    def begin(self, path: str = "/") -> str:
        """The address at the issuer."""
        begun = self.get(f"/login/start?{urlencode({'next': path})}")
        assert begun.status_code == 303, begun.text
        return begun.headers["location"]

    def agree(self, url: str) -> str:
        """Where the issuer sends this browser back to."""
        return self.get(url).headers["location"]

    def log_in(self, path: str = "/", **person: Any) -> Answer:
        self.site.issuer.person = person
        found = self.get(self.agree(self.begin(path)))
        assert found.status_code == 303, found.text
        return found

    def give(self, key: str, path: str = "/", **headers: str) -> Answer:
        """The page's form with a key."""
        page = self.get(f"/login?{urlencode({'next': path})}")
        [form] = re.findall(r'<form method="post" action="/login">.*?</form>', page.text, re.DOTALL)
        fields = {name: unescape(value) for name, value in re.findall(r'name="(\w+)" value="([^"]*)"', form)}
        return self.post("/login", {**fields, "key": key}, **headers)

    def who(self, **headers: str) -> str:
        """Who the API says that this is; empty for nobody."""
        found = self.get("/v1/me", Accept="application/json", **headers)
        return str(found.json()["id"]) if found.status_code == 200 else ""

    @property
    def csrf(self) -> str:
        return csrf_token(self.cookie())


def key(key_id: str) -> str:
    return format_key(key_id, SECRETS[key_id])


def settings_of(issuer: Issuer, folder: Path, base_url: str) -> Settings:
    (folder / "client-secret").write_text(f"{CLIENT_SECRET}\n", encoding="utf-8")
    oidc = {
        "issuer": issuer.url,
        "audience": AUDIENCE,
        "ca_file": folder / "ca.pem",
        "client_secret_file": folder / "client-secret",
    }
    return Settings.model_validate(
        {
            "access": {"oidc": oidc, "grants": GRANTS},
            "api": ApiSettings(keys=KEYS, rate=0, refused_rate=0),
            "notify": {"base_url": base_url},
        }
    )


def app_of(settings: Settings, ledger: Ledger, clock: Clock) -> FastAPI:
    authenticator = build_authenticator(settings, ledger, clock)
    login = build_login(settings, ledger, authenticator, clock)
    return create_app(ledger, settings.api, now=clock, authenticator=authenticator, login=login)


@pytest.fixture(scope="module")
def sites(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Site]]:
    """Two processes over one ledger: by TLS at the public address, and plain on loopback, as a port-forward
    shows it."""
    folder, clock = tmp_path_factory.mktemp("login"), Clock()
    port = free_port()
    with ledger_with_findings(folder, clock) as ledger, running_issuer(folder) as issuer:
        secure = app_of(settings_of(issuer, folder, f"https://127.0.0.1:{port}"), ledger, clock)
        certificate = (folder / "server.pem", folder / "server.key")
        with (
            Ledger.open(f"sqlite:///{folder / 'ledger.db'}", now=clock) as other,
            answering(secure, port, certificate) as url,
        ):
            plain = app_of(settings_of(issuer, folder, ""), other, clock)
            with answering(plain, free_port()) as plain_url:
                yield {
                    "tls": Site(url, secure, issuer, ledger, clock, folder),
                    "plain": Site(plain_url, plain, issuer, other, clock, folder),
                }


@pytest.fixture(params=["tls", "plain"])
def site(request: pytest.FixtureRequest, sites: dict[str, Site]) -> Site:
    return as_new(sites[request.param])


@pytest.fixture
def tls(sites: dict[str, Site]) -> Site:
    return as_new(sites["tls"])


def as_new(site: Site) -> Site:
    site.issuer.reset()
    site.issuer.client_secret = CLIENT_SECRET
    site.clock.now_ms = NOW_MS
    return site


@pytest.fixture
def open_browser() -> Iterator[Callable[[Site], Browser]]:
    opened: list[Browser] = []

    def make(site: Site) -> Browser:
        opened.append(Browser(site))
        return opened[-1]

    yield make
    for each in opened:
        each.http.close()


Open = Callable[[Site], Browser]


def flags(answer: Answer, name: str) -> dict[str, str]:
    """What a cookie was set with."""
    found: SimpleCookie = SimpleCookie()
    for each in answer.headers.get_list("set-cookie"):
        found.load(each)
    return {flag: str(value) for flag, value in found[name].items() if value}


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


def test_a_session_sees_what_its_owner_sees_and_no_more(tls: Site, open_browser: Open) -> None:
    ada, vera = open_browser(tls), open_browser(tls)
    ada.log_in()
    vera.give(key("vera"))
    token = f"Bearer {tls.issuer.token()}"
    bare = open_browser(tls)
    for url in ("/v1/jobs", "/v1/findings", "/v1/reports/2026-10", "/v1/teams", "/v1/me"):
        own, other = ada.get(url, Accept="application/json"), vera.get(url, Accept="application/json")
        assert own.json() == bare.get(url, Accept="application/json", Authorization=token).json()
        assert "research" not in other.text
    assert vera.get(TEAM).status_code == 404
    assert ada.get("/month/2026-10/preview").status_code == 403


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


def test_a_second_login_ends_the_first(site: Site, open_browser: Open) -> None:
    ada = open_browser(site)
    ada.log_in()
    first = ada.cookie()
    ada.give(key("fin"))
    assert ada.who() == "fin"
    ada.keep(first)
    assert ada.who() == ""


FORM = {"note": "seen"}
ANSWER = "/finding/1/acknowledge"


def test_a_change_needs_the_token_of_its_own_session(site: Site, open_browser: Open) -> None:
    ada, other = open_browser(site), open_browser(site)
    lead = {"groups": ["gpu-leads", "gpu-research-members"]}
    ada.log_in(**lead)
    other.log_in(**lead)
    before = site.ledger.finding(EVERYTHING, 1)
    for token in ("", "x", "\u00e4", other.csrf, ada.cookie(), ada.csrf[:-1]):
        for url in (ANSWER, "/logout"):
            fields = FORM if url == ANSWER else {}
            refused = ada.post(url, {**fields, "csrf": token} if token else fields)
            assert (refused.status_code, "csrf" in refused.text) == (403, True), (url, token)
        by_api = ada.http.post(
            "/v1/findings/1/acknowledge",
            json=FORM,
            headers={"X-CSRF-Token": token.encode(), "Accept": b"application/json"},
        )
        assert (by_api.status_code, by_api.json()["error"]["code"]) == (403, "csrf"), token
    assert site.ledger.finding(EVERYTHING, 1) == before
    assert ada.who() == "oidc:ada"
    assert ada.post(ANSWER, {**FORM, "csrf": ada.csrf}).status_code == 303
    as_json = {"X-CSRF-Token": ada.csrf}
    done = ada.http.post("/v1/findings/1/acknowledge", json=FORM, headers=as_json)
    assert done.status_code == 200, done.text
    events = site.ledger.finding_events(EVERYTHING, 1)
    assert [each.author for each in events[-2:]] == ["oidc:ada", "oidc:ada"]


FOREIGN = [
    {"Origin": "https://evil.example"},
    {"Origin": "null"},
    {"Origin": "https://127.0.0.1.evil.example"},
    {"Origin": "https://127.0.0.1:1"},
    {"Sec-Fetch-Site": "cross-site"},
    {"Sec-Fetch-Site": "same-site"},
    {"Sec-Fetch-Site": "none"},
    {"Origin": "https://evil.example", "Sec-Fetch-Site": "same-origin"},
]


@pytest.mark.parametrize("headers", FOREIGN, ids=str)
def test_no_page_of_another_site_changes_anything(
    headers: dict[str, str], site: Site, open_browser: Open
) -> None:
    ada, bare = open_browser(site), open_browser(site)
    ada.give(key("ada"))
    for url, fields in ((ANSWER, FORM), ("/logout", {})):
        refused = ada.post(url, {**fields, "csrf": ada.csrf}, **headers)
        assert refused.status_code == 403, url
    as_json = {**headers, "X-CSRF-Token": ada.csrf, "Accept": "application/json"}
    by_api = ada.http.post("/v1/findings/1/acknowledge", json=FORM, headers=as_json)
    assert (by_api.status_code, by_api.json()["error"]["code"]) == (403, "cross_site")
    assert ada.who() == "ada"
    assert bare.give(key("fin"), **headers).status_code == 403, "nor logs somebody in"
    assert bare.cookie() == ""


def test_our_own_pages_may(site: Site, open_browser: Open) -> None:
    ada = open_browser(site)
    ada.give(key("ada"), Origin=site.url)
    for headers in ({"Origin": site.url}, {"Origin": "null", "Sec-Fetch-Site": "same-origin"}):
        assert ada.post(ANSWER, {**FORM, "csrf": ada.csrf}, **headers).status_code == 303


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


def test_a_session_expires(site: Site, open_browser: Open) -> None:
    ada = open_browser(site)
    ada.log_in()
    site.clock.now_ms += 8 * HOUR_MS - 1
    assert ada.who() == "oidc:ada"
    site.clock.now_ms += 1
    assert ada.who() == ""
    assert ada.get(TEAM).headers["location"].startswith("/login?")
    assert ada.post(ANSWER, {**FORM, "csrf": ada.csrf}).status_code == 303  # to the log-in
    assert site.ledger.finding_events(EVERYTHING, 1)[-1].at_ms <= NOW_MS


def test_a_session_that_ended_anywhere_has_ended_everywhere(
    sites: dict[str, Site], tls: Site, open_browser: Open
) -> None:
    """Two apps, each with its own connection to the ledger."""
    ada, there = open_browser(tls), open_browser(sites["plain"])
    ada.log_in()
    there.keep(ada.cookie())
    assert there.who() == "oidc:ada"
    assert there.post("/logout", {"csrf": there.csrf}).status_code == 303
    assert ada.who() == ""


def test_a_session_ends_with_its_key(tls: Site, open_browser: Open) -> None:
    record = KeyRecord(
        "brief",
        hash_secret("s"),
        AccessRole.VIEWER,
        frozenset({"research"}),
        created_ms=NOW_MS,
        created_by="root",
        expires_ms=NOW_MS + HOUR_MS,
    )
    tls.ledger.add_key(record)
    token = format_key("brief", "s")
    ada = open_browser(tls)
    arrived = ada.give(token)
    assert flags(arrived, "__Host-gpucost")["max-age"] == "3600"
    assert ada.who() == "brief"
    tls.clock.now_ms += HOUR_MS
    assert ada.who() == ""
    tls.clock.now_ms = NOW_MS
    assert ada.who() == "brief"
    root = {"Authorization": f"Bearer {key('root')}"}
    gone = ada.http.post("/v1/keys/brief/revoke", json={}, headers=root)
    assert gone.status_code == 200, gone.text
    assert ada.who() == ""
    assert ada.give(token).status_code == 401


def test_the_rights_are_those_of_the_grants_now(tls: Site, open_browser: Open) -> None:
    ada = open_browser(tls)
    ada.log_in()
    settings = settings_of(tls.issuer, tls.folder, tls.url)
    for grants, status in (
        ([{"users": ["ada"], "role": "finance"}], 200),
        ([{"users": ["bob"], "role": "admin"}], 403),
    ):
        changed = Settings.model_validate(
            {"access": {"oidc": settings.access.oidc, "grants": grants}, "api": settings.api}
        )
        client = TestClient(app_of(changed, tls.ledger, tls.clock), base_url=tls.url)
        found = client.get("/v1/me", headers={"Cookie": f"__Host-gpucost={ada.cookie()}"})
        assert found.status_code == status
        assert status == 403 or found.json()["role"] == "finance"


def test_a_header_decides_alone(tls: Site, open_browser: Open) -> None:
    ada = open_browser(tls)
    ada.log_in()
    assert ada.who(Authorization=f"Bearer {key('vera')}") == "vera"
    assert ada.who(Authorization="Bearer gpc_vera_wrong") == ""
    assert ada.who(Authorization="") == ""
    changed = ada.http.post(
        "/v1/findings/1/acknowledge", json=FORM, headers={"Authorization": f"Bearer {key('ada')}"}
    )
    assert changed.status_code == 200, "who shows a key needs no token of a session"


def test_a_cookie_alone_is_nobody_where_assistants_ask(tls: Site, open_browser: Open) -> None:
    ada = open_browser(tls)
    ada.log_in()
    headers = {"X-CSRF-Token": ada.csrf, "Accept": "application/json"}
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
    assert ada.http.post("/mcp", json=body, headers=headers).status_code == 401


def test_over_tls_only_a_cookie_that_no_other_host_can_set_counts(
    sites: dict[str, Site], tls: Site, open_browser: Open
) -> None:
    ada = open_browser(tls)
    ada.log_in()
    token = ada.cookie()
    ada.http.cookies.clear()
    ada.http.cookies.set("gpucost", token, domain="127.0.0.1", path="/")
    assert ada.who() == ""
    plain = open_browser(sites["plain"])
    plain.keep(token)
    assert plain.who() == "oidc:ada"
    assert plain.who(**{"X-Forwarded-Proto": "https"}) == "", "something in front speaks TLS"
    assert plain.who(Host="gpucost.example.com") == "", "plain HTTP elsewhere"


def test_sessions_are_seen_and_ended_by_their_owner_and_by_admins(tls: Site, open_browser: Open) -> None:
    ada, again, vera, root = (open_browser(tls) for _ in range(4))
    ada.log_in()
    again.log_in()
    vera.give(key("vera"))
    root.give(key("root"))

    def listed(browser: Browser) -> dict[str, dict[str, Any]]:
        found = browser.get("/v1/sessions", Accept="application/json").json()["sessions"]
        return {each["id"]: each for each in found}

    def revoked(browser: Browser, session_id: str) -> Answer:
        headers = {"X-CSRF-Token": browser.csrf, "Accept": "application/json"}
        return browser.http.post(
            f"/v1/sessions/{session_id}/revoke", json={"reason": "lost laptop"}, headers=headers
        )

    own = listed(ada)
    assert {each["owner"] for each in own.values()} == {"oidc:ada"}
    assert {each["owner"] for each in listed(vera).values()} == {"vera"}
    assert set(own) < set(listed(root))
    current = {
        name: {key for key, each in listed(it).items() if each["is_current"]}
        for name, it in (("ada", ada), ("again", again))
    }
    [mine], [others] = current["ada"], current["again"]
    unknown = revoked(vera, "nonesuch").json()["error"]
    assert revoked(vera, mine).json()["error"] == {**unknown, "value": mine}
    assert revoked(ada, others).json()["state"] == "ended"
    assert again.who() == ""
    assert tls.trail()[-1] == ("oidc:ada", "session end", "lost laptop")
    assert revoked(root, mine).status_code == 200
    assert ada.who() == ""
    assert tls.trail()[-1] == ("root", "session end", "lost laptop")
    assert tls.ledger.verify() == ()


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


def test_who_guesses_keys_gets_no_answer_soon(tls: Site) -> None:
    settings = ApiSettings(keys=KEYS, refused_rate=1)
    client = TestClient(
        create_app(tls.ledger, settings, now=tls.clock), base_url="https://gpucost.example.com"
    )
    client.headers |= PAGE
    client.get("/login")
    said = {"csrf": csrf_token(client.cookies["__Host-gpucost-form"]), "next": "/"}
    statuses = [client.post("/login", data={**said, "key": f"gpc_ada_{n}"}).status_code for n in range(120)]
    assert set(statuses[:60]) == {401}
    assert set(statuses) == {401, 429}
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
