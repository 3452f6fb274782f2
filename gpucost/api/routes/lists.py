"""Lists to look things up in, of what the caller may see: GET /v1/teams, /v1/budgets, /v1/incidents and
/v1/prices."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Query, Response
from pydantic.json_schema import SkipJsonSchema

from gpucost.api.routes.reports import OneTeam
from gpucost.api.routes.requests import JSON, refuse_unknown_parameters
from gpucost.api.routes.responses import ResponseBody, cached_response, described
from gpucost.api.server.authentication import Reader, authenticate
from gpucost.api.server.errors import responses
from gpucost.api.server.services import KnownServices, OneCluster, nothing_held
from gpucost.domain.time import HOUR_MS, Month, parse_day_or_instant
from gpucost.reports.base.document import to_json
from gpucost.reports.month.budget_status import BudgetReport
from gpucost.reports.month.cost_incidents import IncidentReport
from gpucost.reports.month.reference_lists import MonthBudgets, PriceList, TeamDirectory
from gpucost.service.reporting.budget_reports import budget_report, named_plans
from gpucost.service.reporting.incident_reports import incident_report
from gpucost.service.reporting.list_reports import budgets_of, prices_of, team_directory
from gpucost.service.reporting.rendering import ReportFormat

router = APIRouter(dependencies=[Depends(authenticate), Depends(refuse_unknown_parameters)])

_AsOf = Annotated[
    str | SkipJsonSchema[None],
    Query(max_length=64, description="as of a day (midnight UTC) or an RFC 3339 instant; else now"),
]


def _json(report: object) -> ResponseBody:
    return ResponseBody(to_json(report).encode(), JSON, ())


@router.get(
    "/v1/teams",
    response_class=Response,
    responses={
        200: described(TeamDirectory, ReportFormat.JSON, of_ledger=False),
        **responses(400, 401, 403, 422, 503),
    },
)
async def get_teams(principal: Reader, known: KnownServices, cluster: OneCluster = None) -> Response:
    """The teams that the caller may see, with cost centre, quota and budget as the team rules say."""

    def make() -> ResponseBody:
        scope = known.reporting.of_cluster(principal.scope, cluster)
        return _json(team_directory(known.reporting, scope))

    return await cached_response(known, principal.scope, ("teams", cluster), make)


@router.get(
    "/v1/budgets",
    response_class=Response,
    responses={
        200: described(MonthBudgets, ReportFormat.JSON, of_ledger=False),
        **responses(400, 401, 403, 404, 422, 503),
    },
)
async def get_budgets(
    principal: Reader,
    known: KnownServices,
    month: Annotated[
        str, Query(max_length=64, description="a month in UTC, such as 2026-10", examples=["2026-10"])
    ],
    team: OneTeam = None,
) -> Response:
    """What teams with a budget may cost in a month, what they have held so far, and what is left. A month
    that the ledger holds nothing of is not found."""
    wanted = Month.parse(month)

    def make() -> ResponseBody:
        scope = known.reporting.of_team(principal.scope, team)
        found = budgets_of(known.reporting, scope, wanted)
        if found is None:
            raise nothing_held(known, scope, "month", month)
        return _json(found)

    return await cached_response(known, principal.scope, ("budgets", wanted, team), make)


@router.get(
    "/v1/budgets/status",
    response_class=Response,
    responses={
        200: described(BudgetReport, ReportFormat.JSON, of_ledger=False),
        **responses(400, 401, 403, 422, 503),
    },
)
async def get_budget_status(
    principal: Reader,
    known: KnownServices,
    name: Annotated[
        str | SkipJsonSchema[None],
        Query(max_length=253, description="of this budget only, with its dearest causes"),
    ] = None,
    at: _AsOf = None,
) -> Response:
    """How budgets stand in their month, quarter or year: spent, carried over, thresholds and when each was
    reached, and when it will be exceeded. Of teams and clusters that the caller may see."""
    at_ms = known.now() if at is None else parse_day_or_instant(at, "at")

    def make() -> ResponseBody:
        plans = named_plans(known.plans, name, principal.scope)
        found = budget_report(known.reporting, principal.scope, plans, at_ms, causes=name is not None)
        return _json(found)

    asked = ("budget status", name, at_ms // HOUR_MS if at is None else at_ms)
    return await cached_response(known, principal.scope, asked, make)


@router.get(
    "/v1/incidents",
    response_class=Response,
    responses={
        200: described(IncidentReport, ReportFormat.JSON, of_ledger=False),
        **responses(400, 401, 403, 422, 503),
    },
)
async def get_incidents(
    principal: Reader,
    known: KnownServices,
    team: OneTeam = None,
    at: _AsOf = None,
) -> Response:
    """Incidents of the last four weeks: teams that cost more than usual, for a named cause, for days; with
    the days of each, and what teams announced."""
    at_ms = known.now() if at is None else parse_day_or_instant(at, "at")

    def make() -> ResponseBody:
        scope = known.reporting.of_team(principal.scope, team)
        return _json(incident_report(known.reporting, scope, known.expected, at_ms))

    asked = ("incidents", team, at_ms // HOUR_MS if at is None else at_ms)
    return await cached_response(known, principal.scope, asked, make)


@router.get(
    "/v1/prices",
    response_class=Response,
    responses={
        200: described(PriceList, ReportFormat.JSON, of_ledger=False),
        **responses(400, 401, 403, 422, 503),
    },
)
async def get_prices(principal: Reader, known: KnownServices) -> Response:
    """The rows of the price book as it is applied, with source and date. A team's caller has those by which
    what its teams held was priced lately."""

    def make() -> ResponseBody:
        return _json(prices_of(known.reporting, principal.scope, known.book))

    return await cached_response(known, principal.scope, ("prices",), make)
