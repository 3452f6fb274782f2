"""One error shape, from every part that raises an error, and no parameter that is ignored."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from gpucost.api.app import create_app
from gpucost.domain.errors import LedgerUnavailable
from gpucost.ledger.ledger import Ledger
from gpucost.service.settings.api import ApiSettings
from tests.api.conftest import Clients
from tests.service.worlds import Clock
from tests.support.ledgers import new_ledger

REPORT = "/v1/reports/2026-10"
ALLOCATIONS = "/v1/allocations?window=2026-10-01T00:00:00Z/2026-10-02T00:00:00Z"


def error_of(response: Any) -> dict[str, Any]:
    body = response.json()
    assert set(body) == {"error"}
    assert set(body["error"]) == {"code", "message", "field", "value", "allowed"}
    assert response.headers["content-type"] == "application/json"
    found: dict[str, Any] = body["error"]
    return found


@pytest.mark.fault(50)
@pytest.mark.parametrize(
    ("url", "status", "code", "field"),
    [
        ("/v1/reports/2026-13", 422, "invalid_value", "month"),
        ("/v1/reports/0000-01", 422, "invalid_value", "month"),
        ("/v1/reports/2026-10x", 422, "invalid_value", "month"),
        ("/v1/reports/2031-01", 404, "not_found", "month"),
        (f"{REPORT}?format=pdf", 422, "invalid_value", "format"),
        (f"{REPORT}?formt=csv", 400, "unknown_parameter", "formt"),
        (f"{REPORT}?format=csv&format=json", 400, "repeated_parameter", "format"),
        (f"{REPORT}?key=gpc_ada_s3cret", 400, "unknown_parameter", "key"),
        ("/v1/allocations", 422, "missing_parameter", "window"),
        ("/v1/allocations?window=2016-01-01T00:00:00Z/2026-01-01T00:00:00Z", 422, "invalid_value", "window"),
        ("/v1/allocations?window=2026-10-02T00:00:00Z/2026-10-01T00:00:00Z", 422, "invalid_value", "window"),
        ("/v1/allocations?window=2026-10-01T00:00:00/2026-10-02T00:00:00", 422, "invalid_value", "window"),
        ("/v1/allocations?window=2026-10-01T00:30:00Z/2026-10-02T00:00:00Z", 422, "invalid_value", "window"),
        (f"{ALLOCATIONS}&limit=1000000000", 422, "invalid_value", "limit"),
        ("/v1/allocations?window=7d", 422, "invalid_value", "window"),
        ("/v1/allocations?window=2026-09", 404, "not_found", "window"),
        (f"{ALLOCATIONS}&format=html", 422, "invalid_value", "format"),
        (f"{ALLOCATIONS}&limit=x", 422, "invalid_value", "limit"),
        (f"{ALLOCATIONS}&step=7m", 422, "invalid_value", "step"),
        (f"{ALLOCATIONS}&limit=0", 422, "invalid_value", "limit"),
        (f"{ALLOCATIONS}&page=2", 422, "invalid_value", "page"),
        (f"{ALLOCATIONS}&step=1m", 422, "invalid_value", "step"),
        (f"{ALLOCATIONS}&step=1", 422, "invalid_value", "step"),
        (f"{ALLOCATIONS}&group_by=tea", 422, "invalid_value", "group_by"),
        (f"{ALLOCATIONS}&group_by=team,team", 422, "invalid_value", "group_by"),
        (f"{ALLOCATIONS}&idle=by_quota", 422, "invalid_value", "idle"),
        (f"{ALLOCATIONS}&idle=proportional&step=1h", 422, "invalid_value", "step"),
        (f"{ALLOCATIONS}&idle=free", 422, "invalid_value", "idle"),
        (f"{ALLOCATIONS}&tema=x", 400, "unknown_parameter", "tema"),
        (f"{ALLOCATIONS}&team={'x' * 3000}", 422, "invalid_value", "team"),
        (f"/v1/jobs/{'x' * 300}", 422, "invalid_value", "uid"),
        ("/v1/jobs/nope", 404, "not_found", "uid"),
        ("/v1/jobs/job-train?progress=epochs", 422, "invalid_value", "progress"),
        ("/healthz?x=1", 400, "unknown_parameter", "x"),
        ("/metrics?name=x", 400, "unknown_parameter", "name"),
        ("/nowhere", 404, "not_found", None),
        ("/v1/reports/2026-10/", 404, "not_found", None),
        ("/v1/reports/..%2f..%2fetc%2fpasswd", 404, "not_found", None),
    ],
)
def test_every_refusal_has_one_shape(
    url: str, status: int, code: str, field: str | None, clients: Clients
) -> None:
    response = clients.root.get(url)
    error = error_of(response)
    assert (response.status_code, error["code"], error["field"]) == (status, code, field)


def test_what_is_allowed_is_said(clients: Clients) -> None:
    assert error_of(clients.root.get(f"{REPORT}?formt=csv"))["allowed"] == "format, cluster, team"
    assert "2026-10" in error_of(clients.root.get("/v1/reports/2026-13"))["allowed"]
    assert error_of(clients.root.get("/v1/jobs/job-train?progress=epochs"))["allowed"] == "steps"
    assert "team" in error_of(clients.root.get(f"{ALLOCATIONS}&group_by=tea"))["allowed"]


@pytest.mark.parametrize(
    ("query", "value", "allowed"),
    [
        ("window=7d", "7d", "START/END"),
        ("window=7d", "7d", "2026-10-01T00:00:00Z/2026-10-08T00:00:00Z"),
        ("window=2026-10-02T00:00:00Z/2026-10-01T00:00:00Z", None, "START before END"),
        ("window=2016-10-02T00:00:00%2B00:00/2026-10-01T00:00:00Z", "2016-10-02T00:00:00+00:00", "400 days"),
        ("", None, "START/END"),
        ("window=2026-10&format=html", "html", "'json', 'csv' or 'parquet'"),
        ("window=2026-10&limit=x", "x", "a whole number"),
        ("window=2026-10&limit=0", "0", "a number greater than or equal to 1"),
        ("window=2026-10&limit=0999", "0999", "1 to 50"),
        (f"window=2026-10&pod={'x' * 2001}", "x" * 120, "at most 2000 characters"),
        ("window=2026-10-01T00:00:00Z/2026-10-02T00:00:00Z&step=20m", "20m", "between the ledger's windows"),
        ("window=2026-10&step=1m", "1m", "at most 100 steps"),
        ("window=2026-10&group_by=team,tea", "tea", "namespace"),
        ("window=2026-09", "2026-09", "2026-10"),
    ],
)
def test_the_value_is_as_it_was_written_and_what_would_do_is_said(
    query: str, value: str | None, allowed: str, clients: Clients
) -> None:
    error = error_of(clients.root.get(f"/v1/allocations?{query}"))
    assert (error["value"] or "").startswith(value or "")
    assert allowed in error["allowed"]
    assert error["message"].startswith(("the ledger holds nothing", f"{error['field']}: "))


def test_a_month_that_is_not_there_names_those_that_are(clients: Clients) -> None:
    for who in (clients.ada, clients.fin):
        error = error_of(who.get("/v1/reports/2026-09"))
        assert (error["value"], error["allowed"]) == ("2026-09", "2026-10")


def test_an_empty_ledger_says_so(tmp_path: Path) -> None:
    with Ledger.open(new_ledger(tmp_path / "l.db"), now=Clock()) as empty:
        client = TestClient(
            create_app(empty, ApiSettings(auth="off"), now=Clock()), base_url="http://localhost"
        )
        for url in (REPORT, ALLOCATIONS):
            response = client.get(url)
            assert response.status_code == 404
            assert error_of(response)["allowed"] == "nothing yet: the ledger is empty"


def test_an_unknown_path_names_the_index(clients: Clients) -> None:
    error = error_of(clients.anybody.get("/nowhere"))
    assert "GET /" in error["allowed"]
    routes = clients.prom.get("/").json()["routes"]
    assert set(routes) == set(clients.app.openapi()["paths"])
    assert all(routes.values())


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH"])
def test_other_methods_are_refused_in_the_same_shape(method: str, clients: Clients) -> None:
    response = clients.root.request(method, REPORT)
    assert error_of(response)["code"] == "method_not_allowed"
    assert (response.status_code, response.headers["allow"]) == (405, "GET, HEAD")


@pytest.mark.fault(50)
def test_a_large_body_is_refused_unread(clients: Clients) -> None:
    response = clients.root.request("GET", REPORT, content=b"{" * 50_000_000)
    assert (response.status_code, error_of(response)["code"]) == (413, "too_large")


def test_an_accept_header_that_fits_nothing_is_refused(clients: Clients) -> None:
    response = clients.root.get(REPORT, headers={"Accept": "image/png"})
    assert response.status_code == 406
    assert "text/html" in error_of(response)["allowed"]


def test_a_crash_says_nothing_of_its_cause(
    clients: Clients, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(Ledger, "job_window", lambda *_: 1 / 0)
    response = clients.root.get("/v1/jobs/job-train?progress=hunter2")
    assert (response.status_code, error_of(response)["code"]) == (500, "internal")
    assert "ZeroDivision" not in response.text
    assert "x-content-type-options" in response.headers
    assert "ZeroDivisionError" in caplog.text
    assert "hunter2" not in caplog.text


def test_a_ledger_that_is_down_is_a_503(clients: Clients, monkeypatch: pytest.MonkeyPatch) -> None:
    def down(*_: object, **__: object) -> None:
        raise LedgerUnavailable("password of db: hunter2")

    for name in ("mark", "windows", "clusters"):
        monkeypatch.setattr(Ledger, name, down)
    for url in (REPORT, "/readyz"):
        response = clients.root.get(url)
        assert (response.status_code, error_of(response)["code"]) == (503, "ledger_unavailable")
        assert "hunter2" not in response.text
        assert response.headers["retry-after"] == "5"


def test_every_answer_has_the_security_headers(clients: Clients) -> None:
    for url in ("/healthz", REPORT, f"{REPORT}?format=html", "/nowhere", "/v1/jobs/nope"):
        headers = clients.root.get(url).headers
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["cache-control"] == "no-store"
        assert "script-src" not in headers["content-security-policy"]
        assert headers["content-security-policy"].startswith("default-src 'none'")


def test_without_keys_only_loopback_names_are_answered(ledger: Ledger) -> None:
    """A page on the web that points its name at 127.0.0.1 sends its own name as Host."""
    app: FastAPI = create_app(ledger, ApiSettings(auth="off"), now=Clock())
    for host, status in (
        ("localhost:8080", 200),
        ("127.0.0.1", 200),
        ("[::1]:80", 200),
        ("evil.example", 421),
    ):
        response = TestClient(app).get("/healthz", headers={"Host": host})
        assert response.status_code == status


def test_an_address_that_is_too_long_to_come_back_to_leads_to_the_login_alone(clients: Clients) -> None:
    """The log-in would refuse it, and nobody could log in from there."""
    for asked, leads_to in (
        ("/search?q=train", "/login?next=%2Fsearch%3Fq%3Dtrain"),
        ("/", "/login"),
        (f"/job?job={'%C3%A9' * 400}", "/login"),
    ):
        sent = clients.anybody.get(asked, headers={"Accept": "text/html"}, follow_redirects=False)
        assert (sent.status_code, sent.headers["location"]) == (303, leads_to)
        assert clients.anybody.get(leads_to, headers={"Accept": "text/html"}).status_code == 200
