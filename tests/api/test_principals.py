"""Who may read what: default deny, teams see themselves only, and keys are never echoed."""

from __future__ import annotations

import csv
import json
import logging
import re
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from html import unescape
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, urlsplit

import pytest
from fastapi import FastAPI
from fastapi.routing import APIRoute, iter_route_contexts
from fastapi.testclient import TestClient
from httpx2 import Response

from gpucost.access.authenticator import Authenticator, FixedKeys
from gpucost.access.issuer_keys import IssuerFetcher, IssuerKeys
from gpucost.access.keys import KeyRecord, format_key, hash_secret
from gpucost.access.oidc_tokens import IssuerFetchError, OidcTokens
from gpucost.access.principal import AccessRole
from gpucost.access.token_claims import OidcRules
from gpucost.api.app import create_app
from gpucost.api.server.authentication import authenticate
from gpucost.ledger.ledger import Ledger
from gpucost.ledger.stores.api_keys import LedgerKeys
from gpucost.notify.sending.delivery import SenderStatus
from gpucost.reports.month.inputs import TeamAccount
from gpucost.service.notifications.loop import NotificationStatus
from gpucost.service.settings.api import ApiSettings
from gpucost.service.wiring.inputs import load_book
from tests.api.advisor_worlds import advising, ever_current
from tests.api.conftest import SECRETS, SETTINGS, Clients
from tests.api.every_route import (
    BEFORE_US,
    DAY,
    EVERY_ROUTE,
    GRANTS,
    HEADERS,
    PUBLIC,
    REPORT,
    RESEARCHS,
    ROUTES,
    Route,
    strings,
)
from tests.api.findings import ledger_with_findings
from tests.service.worlds import Clock
from tests.support.oidc_issuer import AUDIENCE, WRONG, Issuer, running_issuer


class World(NamedTuple):
    """An app with keys and an issuer, a client of it, and the issuer."""

    app: FastAPI
    client: TestClient
    issuer: Issuer

    def ask(self, route: tuple[str, str], headers: list[str], body: Any = None) -> Response:
        written = [("Authorization", header.encode("latin-1")) for header in headers]
        content = {} if route[0] == "GET" else sent(body)
        written += [(name, value.encode()) for name, value in content.pop("headers", {}).items()]
        return self.client.request(route[0], ROUTES[route].url, headers=written, **content)

    def groups(self, *groups: str) -> list[str]:
        """The header of a person in these groups."""
        return [f"Bearer {self.issuer.token(groups=list(groups))}"]


def sent(body: Any) -> dict[str, Any]:
    """A form or JSON as a request has it."""
    form = isinstance(body, str)
    media = "application/x-www-form-urlencoded" if form else "application/json"
    return {
        "content": body.encode() if form else json.dumps(body).encode(),
        "headers": {"Content-Type": media},
    }


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder, clock = tmp_path_factory.mktemp("principals"), Clock()
    settings = SETTINGS.model_copy(update={"rate": 0, "refused_rate": 0})
    more = [
        KeyRecord("gone", hash_secret("g"), AccessRole.ADMIN),
        KeyRecord("theirs", hash_secret("t"), AccessRole.VIEWER, frozenset({"research"})),
        KeyRecord("alma", hash_secret("a"), AccessRole.ALERTS),
    ]
    with ledger_with_findings(folder, clock) as ledger, running_issuer(folder) as issuer:
        for record in more:
            ledger.add_key(replace(record, created_ms=clock(), created_by="ada"))
        ledger.revoke_key("gone", "root", "")
        fetch = IssuerKeys(issuer.url, IssuerFetcher(issuer.ca_file, proxies=False))
        tokens = OidcTokens(OidcRules(issuer.url, AUDIENCE), GRANTS, fetch)
        fixed = FixedKeys([key.record() for key in settings.keys])
        app = create_app(
            ledger,
            settings,
            now=clock,
            advising=ever_current(advising()),
            telling=NotificationStatus((), lambda: SenderStatus({}, {}, 0)),
            authenticator=Authenticator([fixed, LedgerKeys(ledger, clock)], [tokens], clock),
        )
        with TestClient(app, raise_server_exceptions=False) as client:
            yield World(app, client, issuer)


def routes(app: FastAPI) -> dict[tuple[str, str], APIRoute]:
    found = {}
    for context in iter_route_contexts(app.routes):
        route = context.original_route
        assert isinstance(route, APIRoute), f"{route} is not one of ours"
        found |= {(method, route.path): route for method in route.methods}
    return found


def depends_on_principal(route: APIRoute) -> bool:
    waiting = [route.dependant]
    while waiting:
        dependant = waiting.pop()
        if dependant.call is authenticate:
            return True
        waiting += dependant.dependencies
    return False


@pytest.mark.fault(46)
def test_every_route_but_the_probes_depends_on_a_principal(world: World) -> None:
    found = routes(world.app)
    assert {route for route, each in found.items() if not depends_on_principal(each)} == PUBLIC
    assert set(ROUTES) == set(found) - PUBLIC, "a new route belongs into the list of this test"


@pytest.fixture(scope="module")
def wrong(world: World) -> dict[str, list[str]]:
    """Headers that are refused, by what is wrong with them."""
    return HEADERS | {what: [f"Bearer {make(world.issuer)}"] for what, make in WRONG.items()}


@pytest.mark.fault(46)
@pytest.mark.fault(49)
@EVERY_ROUTE
def test_without_a_valid_key_or_token_the_answer_is_401(
    route: tuple[str, str], world: World, wrong: dict[str, list[str]]
) -> None:
    nothing = world.ask(route, [])
    assert nothing.json()["error"]["code"] == "unauthorized"
    for what, headers in wrong.items():
        response = world.ask(route, headers, {})
        assert response.status_code == 401, what
        assert response.headers["www-authenticate"] == "Bearer", what
        assert response.content == nothing.content, f"{what}: the reason is not told"
    by_proxy = world.client.request(route[0], ROUTES[route].url, headers=BEFORE_US)
    assert (by_proxy.status_code, by_proxy.content) == (401, nothing.content)


@EVERY_ROUTE
def test_a_good_token_whose_owner_is_granted_nothing_is_403(route: tuple[str, str], world: World) -> None:
    response = world.ask(route, world.groups("others"), {})
    assert response.status_code == 403
    assert response.json()["error"]["code"] == "forbidden"
    assert "nothing is granted" in response.json()["error"]["message"]


@EVERY_ROUTE
def test_every_role_is_let_in_where_it_may_and_nowhere_else(route: tuple[str, str], world: World) -> None:
    keys = {
        "vera": AccessRole.VIEWER,
        "ada": AccessRole.TEAM_ADMIN,
        "fin": AccessRole.FINANCE,
        "root": AccessRole.ADMIN,
    }
    secrets = SECRETS | {"alma": "a"}
    asked = {
        who: (role, [f"Bearer {format_key(who, secrets[who])}"])
        for who, role in (keys | {"prom": AccessRole.METRICS, "alma": AccessRole.ALERTS}).items()
    }
    assert {role for role, _ in asked.values()} == set(AccessRole)
    for who, (role, headers) in asked.items():
        # Nothing is changed: no route has this key.
        response = world.ask(route, headers, {"nonsense": 1})
        if role in ROUTES[route].roles:
            assert response.status_code not in (401, 403), who
        else:
            assert (response.status_code, response.json()["error"]["code"]) == (403, "forbidden"), who
        assert response.status_code < 500, who


def said_by(answer: Response) -> set[str]:
    """Every text of an answer; of a page what stands in its marks for names, and in its addresses. What was
    asked for is said back by an error, and is left out."""
    if answer.headers["content-type"].startswith("text/html"):
        addresses = (
            urlsplit(unescape(href)) for href in re.findall(r'(?:href|action)="([^"]*)"', answer.text)
        )
        asked = {
            value
            for each in addresses
            for value in (*each.path.split("/"), *dict(parse_qsl(each.query)).values())
        }
        return asked | set(map(unescape, re.findall(r"<bdi>([^<]*)</bdi>", answer.text)))
    if answer.headers["content-type"].startswith("text/csv"):
        # A cell may be JSON, or an id that is made of names.
        cells = (cell for row in csv.reader(answer.text.splitlines()) for cell in row)
        return {word for cell in cells for word in re.split(r'[/"]', cell)}
    told = answer.json()
    if answer.status_code >= 400:
        told = {name: told["error"][name] for name in ("code", "allowed")}
    return strings(told)


@pytest.mark.fault(47)
@EVERY_ROUTE
def test_another_team_is_told_nothing_and_changes_nothing(route: tuple[str, str], world: World) -> None:
    tried = ROUTES[route]
    lead = world.groups("gpu-leads", "gpu-vision-members")
    viewer = [f"Bearer {format_key('vera', SECRETS['vera'])}"]
    response, viewed = (world.ask(route, headers, tried.body) for headers in (lead, viewer))
    assert response.status_code == tried.foreign
    assert viewed.status_code == (tried.foreign if AccessRole.VIEWER in tried.roles else 403)
    for answer in (response, viewed):
        # A parameter is called as a job here, and a search says back what was asked for.
        known = {"/v1/openapi.json": {"mine"}, "/search?q=train&month=2026-10": {"train"}}
        assert not said_by(answer) & (RESEARCHS - known.get(tried.url, set()))
    if tried.foreign == 404 and "{" in route[1]:
        missing = Route(tried.url.replace("job-train", "job-x").replace("/1", "/999999"), *tried[1:])
        missing = missing._replace(url=missing.url.replace("ml/mine", "ml/x").replace("/theirs/", "/x/"))
        method = "GET" if tried.body is None else "POST"
        content = {} if tried.body is None else sent(tried.body)
        headers = content.pop("headers", {}) | {"Authorization": lead[0]}
        absent = world.client.request(method, missing.url, headers=headers, **content)
        assert absent.status_code == 404
        assert set(absent.json()["error"]) == set(response.json()["error"])
        assert absent.json()["error"]["code"] == response.json()["error"]["code"]
    root = {"Authorization": f"Bearer {format_key('root', SECRETS['root'])}"}
    finding = world.client.get("/v1/findings/1", headers=root).json()
    assert (finding["finding"]["state"], len(finding["events"])) == ("open", 1)
    keys = {key["id"]: key["state"] for key in world.client.get("/v1/keys", headers=root).json()["keys"]}
    assert keys == {"gone": "revoked", "theirs": "valid", "alma": "valid"}


def test_groups_are_roles_and_teams(world: World) -> None:
    expected = {
        ("gpu-vision-members",): ("viewer", ["vision"]),
        ("gpu-vision-members", "gpu-research-members"): ("viewer", ["research", "vision"]),
        ("gpu-leads", "gpu-vision-members"): ("team-admin", ["vision"]),
        ("gpu-finance", "gpu-vision-members"): ("finance", None),
        ("gpu-admins",): ("admin", None),
    }
    for groups, (role, teams) in expected.items():
        me = world.ask(("GET", "/v1/me"), world.groups(*groups)).json()
        assert (me["id"], me["method"], me["role"], me["teams"]) == ("oidc:ada", "oidc", role, teams)


@pytest.mark.fault(48)
def test_while_the_issuer_is_away_the_answer_is_503(world: World, ledger: Ledger) -> None:
    def gone() -> object:
        raise IssuerFetchError("gone")

    tokens = OidcTokens(OidcRules(world.issuer.url, AUDIENCE), GRANTS, gone)
    app = create_app(ledger, SETTINGS, now=Clock(), authenticator=Authenticator([], [tokens], Clock()))
    headers = {"Authorization": world.groups("gpu-admins")[0]}
    answer = TestClient(app).get(REPORT, headers=headers)
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "undecided")
    assert answer.headers["retry-after"]


@pytest.mark.fault(56)
def test_no_token_is_in_the_log_of_a_request(
    world: World, wrong: dict[str, list[str]], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    for headers in (*wrong.values(), world.groups("others"), world.groups("gpu-admins")):
        world.ask(("POST", "/v1/keys"), headers, {})
    asked = [header for headers in wrong.values() for header in headers]
    parts = {part for header in asked for part in re.split(r"[ .]", header) if len(part) > 12}
    assert len(parts) > 50
    assert not [part for part in parts if part in caplog.text]
    assert "refused a request" in caplog.text


def test_a_page_through_a_proxy_that_passes_the_token_on(world: World) -> None:
    # As oauth2-proxy does with pass_authorization_header: its own headers and cookie, and the token.
    headers = {**BEFORE_US, "Authorization": world.groups("gpu-research-members")[0], "Accept": "text/html"}
    page = world.client.get(REPORT, headers=headers)
    assert (page.status_code, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert "research" in page.text
    assert "vision" not in page.text
    assert "set-cookie" not in page.headers
    del headers["Authorization"]
    assert world.client.get(f"{REPORT}?format=html", headers=headers).status_code == 401


def test_healthz_needs_nothing(clients: Clients) -> None:
    assert clients.anybody.get("/healthz").json() == {"status": "ok"}


@pytest.mark.fault(49)
def test_a_key_in_the_query_is_refused_and_not_logged(
    clients: Clients, caplog: pytest.LogCaptureFixture
) -> None:
    key = f"gpc_ada_{SECRETS['ada']}"
    response = clients.ada.get(f"{REPORT}?access_token={key}")
    assert response.status_code == 400
    assert SECRETS["ada"] not in response.text
    assert clients.anybody.get(f"{REPORT}?access_token={key}").status_code == 401
    assert SECRETS["ada"] not in caplog.text


@pytest.mark.fault(47)
def test_a_team_sees_nothing_of_another(clients: Clients) -> None:
    foreign = {"vision", "detect", "job-detect", "uid-detect", "batch", "cq", "__unallocated__"}
    for url in (
        REPORT,
        f"/v1/allocations?{DAY}&group_by=team,job,queue,pod_uid",
        f"/v1/allocations?{DAY}&group_by=bucket",
    ):
        seen = strings(clients.ada.get(url).json())
        assert not (seen & foreign), url
        assert "research" in seen or "held" in seen, url


@pytest.mark.fault(47)
def test_totals_are_scoped_so_that_nothing_can_be_subtracted(clients: Clients) -> None:
    everything = clients.fin.get(REPORT).json()
    own = clients.ada.get(REPORT).json()
    assert own["capacity"] is None
    assert own["teams_in_scope"] == ["research"]
    assert own["totals"]["held"]["nano"] == 81_875_000_000 - 1_875_000_000 + 1_875_000_000
    assert everything["totals"]["held"]["nano"] > own["totals"]["held"]["nano"]


@pytest.mark.fault(47)
@pytest.mark.parametrize("policy", ["proportional", "by_quota"])
def test_a_part_of_what_is_idle_would_tell_what_others_hold(policy: str, ledger: Ledger) -> None:
    quotas = {"research": Fraction(8), "vision": Fraction(8)}
    clients = Clients(create_app(ledger, SETTINGS, now=Clock(), quotas=quotas))
    for url in (f"{DAY}&idle={policy}", f"{DAY}&idle={policy}&team=research&step=1d"):
        refused = clients.ada.get(f"/v1/allocations?{url}")
        error = refused.json()["error"]
        assert (refused.status_code, error["field"], error["value"]) == (422, "idle", policy)
        assert error["allowed"].startswith("separate")
        assert "api.team_idle_sharing" in error["allowed"]
        assert clients.fin.get(f"/v1/allocations?{url}").status_code == 200
    assert clients.ada.get(f"/v1/allocations?{DAY}&idle=separate").status_code == 200


@pytest.mark.fault(47)
@pytest.mark.parametrize("policy", ["proportional", "by_quota"])
def test_the_share_of_idle_time_is_the_same_whoever_looks(policy: str, ledger: Ledger) -> None:
    settings = SETTINGS.model_copy(update={"team_idle_sharing": True})
    quotas = {"research": Fraction(8), "vision": Fraction(8)}
    clients = Clients(create_app(ledger, settings, now=Clock(), quotas=quotas))
    url = f"/v1/allocations?{DAY}&group_by=team&idle={policy}"
    everybody = {row["group"]["team"]: row["total"] for row in clients.fin.get(url).json()["rows"]}
    own = clients.ada.get(url).json()
    assert {row["group"]["team"]: row["total"] for row in own["rows"]} == {"research": everybody["research"]}
    assert not strings(own) & {"vision", "detect", "__unallocated__"}


@pytest.mark.fault(47)
def test_the_job_of_another_team_is_not_found(clients: Clients) -> None:
    assert clients.vera.get("/v1/jobs/job-detect").status_code == 200
    assert clients.vera.get("/v1/jobs/job-detect/receipt").status_code == 200
    hidden = [clients.ada.get(f"/v1/jobs/job-{uid}/receipt") for uid in ("detect", "nobody")]
    assert [each.status_code for each in hidden] == [404, 404]
    assert hidden[0].text.replace("detect", "nobody") == hidden[1].text
    foreign, missing = clients.ada.get("/v1/jobs/job-detect"), clients.ada.get("/v1/jobs/job-nobody")
    assert (foreign.status_code, missing.status_code) == (404, 404)
    assert foreign.json()["error"]["code"] == missing.json()["error"]["code"]


@pytest.mark.fault(47)
def test_a_report_of_one_team_is_what_that_team_reads(clients: Clients) -> None:
    """Finance asks for it, and the team has it without asking; nobody else."""
    whole, own = (clients.fin.get(f"{REPORT}{query}") for query in ("", "?team=research"))
    assert whole.json()["teams_in_scope"] is None
    assert own.json() == clients.ada.get(REPORT).json() == clients.ada.get(f"{REPORT}?team=research").json()
    assert own.json()["teams_in_scope"] == ["research"]
    for name in ("vision", "nobody", "Research"):
        refused = clients.ada.get(f"{REPORT}?team={name}")
        assert (refused.status_code, refused.json()["error"]["field"]) == (422, "team")
        assert "vision" not in refused.json()["error"]["allowed"]
    unknown = clients.fin.get(f"{REPORT}?team=visoin").json()["error"]
    assert unknown["allowed"] == "vision (did you mean this?), or another of: research, vision"
    assert clients.fin.get("/v1/reports/2031-01?team=visoin").status_code == 404


@pytest.mark.fault(47)
def test_a_name_finds_only_jobs_that_the_caller_may_see(clients: Clients) -> None:
    """Another team's job of that name is as if there were none; with the namespace as well as without."""
    for name in ("detect", "cv/detect", "nobody"):
        seen = clients.ada.get(f"/v1/jobs?job={name}")
        assert (seen.status_code, seen.json()["jobs"]) == (200, []), name
    [job] = clients.vera.get("/v1/jobs?job=detect").json()["jobs"]
    assert (job["team"], job["job_uid"]) == ("vision", "job-detect")
    assert clients.vera.get(f"/v1/jobs?job={job['namespace']}/detect").json()["jobs"] == [job]
    assert clients.vera.get("/v1/jobs?job=elsewhere/detect").json()["jobs"] == []
    assert clients.fin.get("/v1/jobs?job=detect").json()["jobs"] == [job]
    for query, status in (
        ("", 200),
        ("?job=", 422),
        ("?user=", 422),
        ("?mine=true&user=ada", 422),
        ("?job=a&job=b", 400),
        ("?job=a&x=1", 400),
        ("?name=a", 400),
    ):
        assert clients.fin.get(f"/v1/jobs{query}").status_code == status, query
    assert clients.fin.get("/v1/jobs?job=%00").status_code == 422


@pytest.mark.fault(47)
def test_filters_do_not_reveal_others(clients: Clients) -> None:
    assert clients.ada.get(f"/v1/allocations?{DAY}&job=detect&group_by=job").json()["rows"] == []
    for team in ("vision", "nobody", "__unallocated__"):
        refused = clients.ada.get(f"/v1/allocations?{DAY}&team={team}")
        assert (refused.status_code, refused.json()["error"]["allowed"]) == (422, "research")


@pytest.mark.fault(47)
def test_an_unknown_team_is_refused_everywhere_with_those_that_one_may_see(clients: Clients) -> None:
    """A foreign one in the same words: to the letter, but for its name."""
    asked = ("/v1/reports/2026-10?x=", f"/v1/allocations?{DAY}", f"/v1/waste?{DAY}", "/v1/findings?limit=9")
    more = ("/v1/jobs?limit=9", "/v1/budgets?month=2026-10", "/v1/months/2026-10/statement?x=")
    for url in (*asked, *more, "/v1/digest?week=2026-W40"):
        place = url.replace("?x=", "?") + ("" if url.endswith("x=") else "&")
        for client, name in ((clients.ada, "vision"), (clients.ada, "nobody"), (clients.fin, "nobody")):
            refused = client.get(f"{place}team={name}")
            error = refused.json()["error"]
            assert (refused.status_code in (404, 422), error["field"]) == (True, "team"), refused.text
            known = "research" if client is clients.ada else "research, vision"
            assert error["allowed"].endswith(known), (url, error)
        foreign, none = (clients.ada.get(f"{place}team={name}").text for name in ("vision", "nobody"))
        assert foreign.replace("vision", "nobody") == none
    near = clients.fin.get(f"/v1/waste?{DAY}&team=visoin").json()["error"]["allowed"]
    assert near.startswith("vision (did you mean this?), or another of: ")


def test_teams_budgets_and_prices_are_those_one_may_see(ledger: Ledger) -> None:
    accounts = {name: TeamAccount(f"cc-{name}", 100 * 10**9) for name in ("research", "vision", "idle")}
    app = create_app(
        ledger,
        SETTINGS,
        now=Clock(),
        accounts=accounts,
        quotas={"research": Fraction(5, 2)},
        prices=load_book(None),
    )
    clients = Clients(app)
    assert [each["name"] for each in clients.fin.get("/v1/teams").json()["teams"]] == [
        "idle",
        "research",
        "vision",
    ]
    [own] = clients.ada.get("/v1/teams").json()["teams"]
    assert (own["name"], own["cost_centre"], own["quota_gpus"]) == ("research", "cc-research", 2.5)
    assert own["monthly_budget"] == "100.000000000"
    rows = clients.fin.get("/v1/budgets?month=2026-10").json()["budgets"]
    report = clients.fin.get(REPORT).json()
    held = {row["row"]["group"]["team"]: row["row"]["held"] for row in report["teams"]}
    assert {row["team"]: row["held"] for row in rows if row["team"] != "idle"} == held
    assert all(row["left_nano"] == 100 * 10**9 - row["held"]["nano"] for row in rows)
    parts = {row["row"]["group"]["team"]: row["budget"]["part"] for row in report["teams"]}
    assert {row["team"]: row["part"] for row in rows} == parts | {"idle": 0.0}
    assert [row["team"] for row in clients.ada.get("/v1/budgets?month=2026-10").json()["budgets"]] == [
        "research"
    ]
    assert clients.fin.get("/v1/budgets?month=2026-09").status_code == 404
    prices = clients.fin.get("/v1/prices").json()
    assert len(prices["prices"]) == len(load_book(None).rows)
    assert clients.ada.get("/v1/prices").json()["prices"] == [], "no row of this book priced what they held"


def test_ones_own_jobs_are_found_by_the_name_of_the_key(clients: Clients, ledger: Ledger) -> None:
    """Its id is the user of the pods."""
    mine = clients.ada.get("/v1/jobs?mine=true").json()
    named = clients.ada.get("/v1/jobs?user=ada").json()
    assert (mine["users"], mine["jobs"]) == (["ada"], named["jobs"])
    assert {job["user"] for job in mine["jobs"]} <= {"ada"}
    everybody = clients.fin.get("/v1/jobs").json()
    assert {job["job"] for job in everybody["jobs"]} == {"train", "tune", "detect"}
    assert {job["state"] for job in everybody["jobs"]} <= {"running", "done"}
    one = clients.fin.get("/v1/jobs?limit=1&page=2").json()
    assert (one["jobs"], one["cut"]) == ([everybody["jobs"][1]], True)
    assert (
        clients.ada.get("/v1/jobs?team=research").json()["jobs"] == clients.ada.get("/v1/jobs").json()["jobs"]
    )
    off = TestClient(create_app(ledger, ApiSettings(auth="off"), now=Clock()), base_url="http://localhost")
    refused = off.get("/v1/jobs?mine=true")
    assert (refused.status_code, refused.json()["error"]["field"]) == (422, "mine")
    assert "nothing tells who asks" in refused.json()["error"]["message"]


@pytest.mark.fault(52)
def test_filters_are_literal(clients: Clients) -> None:
    for value in ("%", "_", "res%", "' OR 1=1 --", "research'--"):
        found = clients.fin.get("/v1/allocations", params={"window": "2026-10", "team": value})
        assert (found.status_code, found.json()["error"]["value"]) == (422, value)


def test_the_secret_is_nowhere_in_the_description(clients: Clients) -> None:
    text = json.dumps(clients.root.get("/v1/openapi.json").json())
    assert not any(secret in text for secret in SECRETS.values() if len(secret) > 3)
