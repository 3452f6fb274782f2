"""What a session of a browser may, whose changes count, and when it ends."""

from __future__ import annotations

from typing import Any

import pytest
from fastapi.testclient import TestClient

from gpucost.access.keys import KeyRecord, format_key, hash_secret
from gpucost.access.principal import AccessRole
from gpucost.domain.scope import EVERYTHING
from gpucost.domain.time import HOUR_MS
from gpucost.service.settings.model import Settings
from tests.api.pages.login_sites import (
    ANSWER,
    FORM,
    TEAM,
    Answer,
    Browser,
    Open,
    Site,
    app_of,
    flags,
    key,
    open_browser,
    settings_of,
    site,
    sites,
    tls,
)
from tests.service.worlds import NOW_MS

__all__ = ["open_browser", "site", "sites", "tls"]


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


def test_a_second_login_ends_the_first(site: Site, open_browser: Open) -> None:
    ada = open_browser(site)
    ada.log_in()
    first = ada.cookie()
    ada.give(key("fin"))
    assert ada.who() == "fin"
    ada.keep(first)
    assert ada.who() == ""


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
