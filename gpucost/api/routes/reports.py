"""GET /v1/reports/{month}: the month as people and spreadsheets read it."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Path, Query, Request, Response

from gpucost.api.routes.requests import refuse_unknown_parameters
from gpucost.api.routes.responses import (
    ResponseBody,
    answer,
    cached_response,
    chosen,
    described,
)
from gpucost.api.server.authentication import Reader, authenticate
from gpucost.api.server.errors import responses
from gpucost.api.server.services import KnownServices, OneCluster, nothing_held
from gpucost.domain.time import Month
from gpucost.reports.month.model import MonthReport
from gpucost.service.reporting.rendering import ReportFormat, render_month

router = APIRouter(dependencies=[Depends(authenticate), Depends(refuse_unknown_parameters)])

_FORMATS = (ReportFormat.JSON, ReportFormat.CSV, ReportFormat.PARQUET, ReportFormat.HTML)


@router.get(
    "/v1/reports/{month}",
    response_class=Response,
    responses={200: described(MonthReport, *_FORMATS), **responses(400, 401, 403, 404, 406, 422, 503)},
)
async def get_report(
    request: Request,
    principal: Reader,
    known: KnownServices,
    month: Annotated[str, Path(description="a month in UTC, such as 2026-10", examples=["2026-10"])],
    format: Annotated[
        Literal["json", "csv", "parquet", "html"] | None, Query(description="wins over the Accept header")
    ] = None,
    cluster: OneCluster = None,
) -> Response:
    """The cost report of one month, of the teams and clusters the caller may see.

    A report of some clusters has no adjustments in it: they are of no cluster.
    """
    wanted, format_ = Month.parse(month), chosen(request, format, _FORMATS)

    def make() -> ResponseBody:
        scope = known.reporting.of_cluster(principal.scope, cluster)
        found = known.reporting.month(scope, wanted, every_job=format_.lists_every_job)
        if found is None:
            raise nothing_held(known, scope, "month", month)
        return answer(render_month(found.report, format_), format_, found.stand, str(wanted))

    return await cached_response(known, principal.scope, ("month", wanted, format_, cluster), make)
