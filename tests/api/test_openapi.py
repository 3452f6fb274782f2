"""The API against its own description, by schemathesis: no crash, nothing undocumented."""

from __future__ import annotations

import pytest
import schemathesis
from fastapi import FastAPI
from hypothesis import HealthCheck, given, settings
from schemathesis.specs.openapi.checks import positive_data_acceptance

from gpucost.api.principal import format_key
from tests.api.conftest import SECRETS

PATHS = (
    "/",
    "/healthz",
    "/metrics",
    "/readyz",
    "/v1/advisor/advice",
    "/v1/alerts/alertmanager",
    "/v1/allocations",
    "/v1/explain/{kind}/{namespace}/{name}",
    "/v1/findings",
    "/v1/findings/{id}",
    "/v1/findings/{id}/acknowledge",
    "/v1/findings/{id}/mute",
    "/v1/findings/{id}/unmute",
    "/v1/jobs/{uid}",
    "/v1/openapi.json",
    "/v1/reports/{month}",
    "/v1/waste",
)
HEADERS = {"Authorization": f"Bearer {format_key('root', SECRETS['root'])}"}


def test_every_path_is_tried(app: FastAPI) -> None:
    assert tuple(sorted(app.openapi()["paths"])) == PATHS


@pytest.mark.fault(50)
@pytest.mark.parametrize("path", PATHS)
def test_no_request_breaks_the_description(path: str, app: FastAPI) -> None:
    schema = schemathesis.openapi.from_dict(app.openapi())
    schema.app = app
    [method] = app.openapi()["paths"][path]
    operation = schema[path][method.upper()]
    modes = [schemathesis.GenerationMode.POSITIVE]
    if app.openapi()["paths"][path][method].get("parameters"):
        modes.append(schemathesis.GenerationMode.NEGATIVE)
    for mode in modes:

        @settings(max_examples=20, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
        @given(case=operation.as_strategy(generation_mode=mode))
        def check(case: schemathesis.Case) -> None:
            # A well-formed month that the ledger has nothing of is refused, which no schema can foresee.
            case.call_and_validate(headers=HEADERS, excluded_checks=[positive_data_acceptance])

        check()


def test_every_route_documents_its_refusals(app: FastAPI) -> None:
    document = app.openapi()
    for path, item in document["paths"].items():
        [(method, route)] = item.items()
        wanted = {"/healthz": {"400"}, "/": {"400", "401"}}.get(path, {"400", "401", "403"})
        wanted |= {"413", "415", "422"} if method == "post" else set()
        changes = path.startswith("/v1/findings/{id}/")
        wanted |= {"404"} if changes or path == "/v1/advisor/advice" else set()
        wanted |= {"409"} if changes or path == "/v1/alerts/alertmanager" else set()
        assert wanted <= set(route["responses"]), path
        assert route["description"], path
    assert "ErrorBody" in document["components"]["schemas"]
