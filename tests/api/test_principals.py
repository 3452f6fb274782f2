"""Who may read what: default deny, teams see themselves only, and keys are never echoed."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.routing import APIRoute, iter_route_contexts

from gpucost.api.app import create_app
from gpucost.api.principal import authenticate
from gpucost.domain.errors import ConfigError
from gpucost.ledger import Ledger
from gpucost.service.settings_api import ApiSettings
from tests.api.conftest import SECRETS, SETTINGS, Clients
from tests.service.worlds import Clock

PUBLIC = {"/healthz"}
REPORT = "/v1/reports/2026-10"
DAY = "window=2026-10-01T00:00:00Z/2026-10-02T00:00:00Z"
PROTECTED = (
    "/",
    REPORT,
    f"/v1/allocations?{DAY}",
    "/v1/jobs/job-train",
    "/metrics",
    "/readyz",
    "/v1/openapi.json",
    "/v1/findings",
    "/v1/findings/1",
    f"/v1/waste?{DAY}",
    "/v1/explain/Job/ml/train",
)
CHANGES = (
    *(f"/v1/findings/1/{change}" for change in ("acknowledge", "mute", "unmute")),
    "/v1/advisor/advice",
    "/v1/alerts/alertmanager",
)


def routes(app: FastAPI) -> dict[str, APIRoute]:
    found = {}
    for context in iter_route_contexts(app.routes):
        route = context.original_route
        assert isinstance(route, APIRoute), f"{route} is not one of ours"
        found[route.path] = route
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
def test_every_route_but_healthz_depends_on_a_principal(app: FastAPI) -> None:
    open_ = {path for path, route in routes(app).items() if not depends_on_principal(route)}
    assert open_ == PUBLIC
    assert {
        path.partition("?")[0]
        .replace("2026-10", "{month}")
        .replace("job-train", "{uid}")
        .replace("findings/1", "findings/{id}")
        .replace("Job/ml/train", "{kind}/{namespace}/{name}")
        for path in (*PROTECTED, *CHANGES)
    } == (set(routes(app)) - PUBLIC), "a new route belongs into the list of this test"


@pytest.mark.fault(46)
@pytest.mark.parametrize("url", [*PROTECTED, *CHANGES])
@pytest.mark.parametrize(
    "authorization",
    [
        None,
        "",
        "Bearer",
        "Bearer nonsense",
        "Bearer gpc_ada_wrong",
        "Bearer gpc_nobody_s3cret_of-ada",
        "Bearer gpc_ada_",
        "Bearer xxx_ada_s3cret_of-ada",
        "Basic gpc_ada_s3cret_of-ada",
        "gpc_ada_s3cret_of-ada",
        "Bearer gpc_old_o",
        "Bearer gpc__",
        "Bearer gpc_ada_s3cret_of-ad\u00e4",
    ],
)
def test_without_a_valid_key_the_answer_is_401(url: str, authorization: str | None, clients: Clients) -> None:
    headers = {} if authorization is None else {"Authorization": authorization.encode()}
    method = "POST" if url in CHANGES else "GET"
    response = clients.anybody.request(method, url, headers=headers)
    assert response.status_code == 401
    assert response.headers["www-authenticate"] == "Bearer"
    assert response.json()["error"]["code"] == "unauthorized"
    assert response.content == clients.anybody.request(method, url).content, "the reason is not told"


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


@pytest.mark.parametrize(
    ("who", "url", "status"),
    [
        ("ada", "/metrics", 403),
        ("ada", "/readyz", 403),
        ("ada", REPORT, 200),
        ("ada", "/v1/openapi.json", 200),
        ("prom", "/metrics", 200),
        ("prom", "/readyz", 200),
        ("prom", REPORT, 403),
        ("prom", f"/v1/allocations?{DAY}", 403),
        ("prom", "/v1/jobs/job-train", 403),
        ("prom", "/v1/findings", 403),
        ("prom", f"/v1/waste?{DAY}", 403),
        ("prom", "/v1/explain/Job/ml/train", 403),
        ("ada", f"/v1/waste?{DAY}", 200),
        ("fin", REPORT, 200),
        ("fin", "/metrics", 200),
        ("root", "/readyz", 200),
        ("ada", "/", 200),
        ("prom", "/", 200),
    ],
)
def test_roles(who: str, url: str, status: int, clients: Clients) -> None:
    response = getattr(clients, who).get(url)
    assert response.status_code == status
    if status == 403:
        assert response.json()["error"]["code"] == "forbidden"


def strings(value: Any) -> set[str]:
    if isinstance(value, dict):
        return {text for item in value.values() for text in strings(item)} | set(value)
    if isinstance(value, list):
        return {text for item in value for text in strings(item)}
    return {value} if isinstance(value, str) else set()


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
    foreign, missing = clients.ada.get("/v1/jobs/job-detect"), clients.ada.get("/v1/jobs/job-nobody")
    assert (foreign.status_code, missing.status_code) == (404, 404)
    assert foreign.json()["error"]["code"] == missing.json()["error"]["code"]


@pytest.mark.fault(47)
def test_filters_do_not_reveal_others(clients: Clients) -> None:
    assert clients.ada.get(f"/v1/allocations?{DAY}&team=vision").json()["rows"] == []
    assert clients.ada.get(f"/v1/allocations?{DAY}&job=detect&group_by=job").json()["rows"] == []
    assert clients.ada.get(f"/v1/allocations?{DAY}&team=__unallocated__").json()["rows"] == []


@pytest.mark.fault(52)
def test_filters_are_literal(clients: Clients) -> None:
    for value in ("%", "_", "res%", "' OR 1=1 --", "research'--"):
        rows = clients.fin.get("/v1/allocations", params={"window": "2026-10", "team": value}).json()["rows"]
        assert rows == [], value


def test_keys_are_asked_for_or_the_app_does_not_start(ledger: Ledger) -> None:
    with pytest.raises(ConfigError, match=r"api\.keys"):
        create_app(ledger, ApiSettings(), now=Clock())


def test_the_secret_is_nowhere_in_the_description(clients: Clients, tmp_path: Path) -> None:
    del tmp_path
    text = json.dumps(clients.root.get("/v1/openapi.json").json())
    assert not any(secret in text for secret in SECRETS.values() if len(secret) > 3)
