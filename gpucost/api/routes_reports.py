"""GET /v1/reports/{month}: the month as people and spreadsheets read it."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Path, Query, Request, Response

from gpucost.api.answers import Body, given
from gpucost.api.errors import responses
from gpucost.api.formats import answer, chosen, described
from gpucost.api.principal import Reader, authenticate
from gpucost.api.services import Known, OneCluster, nothing_held
from gpucost.api.strict import refuse_unknown_parameters
from gpucost.domain.time import Month
from gpucost.reports.model import MonthReport
from gpucost.service.rendering import Format, render_month

router = APIRouter(dependencies=[Depends(authenticate), Depends(refuse_unknown_parameters)])

_FORMATS = (Format.JSON, Format.CSV, Format.PARQUET, Format.HTML)


@router.get(
    "/v1/reports/{month}",
    response_class=Response,
    responses={200: described(MonthReport, *_FORMATS), **responses(400, 401, 403, 404, 406, 422, 503)},
)
async def get_report(
    request: Request,
    principal: Reader,
    known: Known,
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

    def make() -> Body:
        scope = known.reporting.of_cluster(principal.scope, cluster)
        found = known.reporting.month(scope, wanted, every_job=format_.lists_every_job)
        if found is None:
            raise nothing_held(known, scope, "month", month)
        return answer(render_month(found.report, format_), format_, found.stand, str(wanted))

    return await given(known, principal.scope, ("month", wanted, format_, cluster), make)
