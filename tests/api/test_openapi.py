"""The API against its own description, by schemathesis: no crash, nothing undocumented."""

from __future__ import annotations

from typing import Any

import pytest
import schemathesis
from fastapi import FastAPI
from fastapi.testclient import TestClient
from hypothesis import HealthCheck, given, settings
from schemathesis.specs.openapi.checks import positive_data_acceptance

from gpucost.access.keys import format_key
from tests.api.conftest import SECRETS

OPERATIONS = (
    "GET /",
    "GET /healthz",
    "GET /healthz/ready",
    "GET /metrics",
    "GET /readyz",
    "GET /v1/allocations",
    "GET /v1/budgets",
    "GET /v1/budgets/status",
    "GET /v1/changes",
    "GET /v1/digest",
    "GET /v1/explain/{kind}/{namespace}/{name}",
    "GET /v1/findings",
    "GET /v1/findings/{id}",
    "GET /v1/focus/{month}",
    "GET /v1/focus/{month}/metadata",
    "GET /v1/focus/{month}/nodes",
    "GET /v1/forecasts/score",
    "GET /v1/incidents",
    "GET /v1/jobs",
    "GET /v1/jobs/{uid}",
    "GET /v1/jobs/{uid}/receipt",
    "GET /v1/keys",
    "GET /v1/me",
    "GET /v1/months",
    "GET /v1/months/{month}",
    "GET /v1/months/{month}/charges",
    "GET /v1/months/{month}/close",
    "GET /v1/months/{month}/forecast",
    "GET /v1/months/{month}/replays",
    "GET /v1/months/{month}/replays/{name}",
    "GET /v1/months/{month}/statement",
    "GET /v1/months/{month}/statements",
    "GET /v1/nodes",
    "GET /v1/openapi.json",
    "GET /v1/prices",
    "GET /v1/queues",
    "GET /v1/reports/{month}",
    "GET /v1/savings",
    "GET /v1/sessions",
    "GET /v1/state",
    "GET /v1/teams",
    "GET /v1/waste",
    "POST /mcp",
    "POST /v1/advisor/advice",
    "POST /v1/alerts/alertmanager",
    "POST /v1/findings/{id}/acknowledge",
    "POST /v1/findings/{id}/mute",
    "POST /v1/findings/{id}/unmute",
    "POST /v1/focus/{month}/differences",
    "POST /v1/keys",
    "POST /v1/keys/{id}/revoke",
    "POST /v1/months/{month}/chargeback",
    "POST /v1/months/{month}/close",
    "POST /v1/sessions/{id}/revoke",
)
HEADERS = {"Authorization": f"Bearer {format_key('root', SECRETS['root'])}"}
ANYBODYS = {
    "GET /healthz": {"400"},
    "GET /healthz/ready": {"400", "503"},
    "GET /": {"400", "401"},
    "GET /v1/me": {"400", "401"},
}
"""The refusals of what needs no role."""


def test_every_operation_is_tried(app: FastAPI) -> None:
    paths = app.openapi()["paths"]
    assert tuple(sorted(f"{method.upper()} {path}" for path, item in paths.items() for method in item)) == (
        OPERATIONS
    )


@pytest.mark.fault(50)
@pytest.mark.parametrize("operation", OPERATIONS)
def test_no_request_breaks_the_description(operation: str, app: FastAPI) -> None:
    schema = schemathesis.openapi.from_dict(app.openapi())
    schema.app = app
    method, path = operation.split()
    tried = schema[path][method]
    modes = [schemathesis.GenerationMode.POSITIVE]
    # Three texts of which one is too long take ten seconds to make: see the test below.
    if app.openapi()["paths"][path][method.lower()].get("parameters") and path.count("{") < 2:
        modes.append(schemathesis.GenerationMode.NEGATIVE)
    for mode in modes:

        @settings(max_examples=20, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
        @given(case=tried.as_strategy(generation_mode=mode))
        def check(case: schemathesis.Case[Any]) -> None:
            # A well-formed month that the ledger has nothing of is refused, which no schema can foresee.
            case.call_and_validate(headers=HEADERS, excluded_checks=[positive_data_acceptance])

        check()


@pytest.mark.fault(50)
@pytest.mark.parametrize("place", range(3))
@pytest.mark.parametrize(
    ("text", "times"), [("x", 254), ("%F0%9F%92%A5", 254), ("a%00b", 1), ("%ed%a0%80", 1), ("%2e%2e", 1)]
)
def test_no_name_of_a_job_breaks_the_description(place: int, text: str, times: int, app: FastAPI) -> None:
    names = ["Job", "ml", "mine"]
    names[place] = text * times
    answer = TestClient(app, headers=HEADERS).get(f"/v1/explain/{'/'.join(names)}")
    documented = app.openapi()["paths"]["/v1/explain/{kind}/{namespace}/{name}"]["get"]["responses"]
    assert str(answer.status_code) in documented
    assert answer.json()["error"]["code"]
    if times == 254:
        assert answer.status_code == 422


def test_every_operation_documents_its_refusals(app: FastAPI) -> None:
    document = app.openapi()
    for operation in OPERATIONS:
        method, path = operation.split()
        described = document["paths"][path][method.lower()]
        wanted = set(ANYBODYS.get(operation, {"400", "401", "403"}))
        wanted |= {"413", "415", "422"} if method == "POST" else set()
        changes = path.startswith("/v1/findings/{id}/")
        wanted |= {"404"} if changes or path == "/v1/advisor/advice" or path.endswith("revoke") else set()
        wanted |= {"409"} if changes or path == "/v1/alerts/alertmanager" else set()
        wanted |= {"409"} if operation == "POST /v1/months/{month}/close" or "statement" in path else set()
        assert wanted <= set(described["responses"]), operation
        assert described["description"], operation
    assert "ErrorBody" in document["components"]["schemas"]
