"""GET /v1/waste: where the capacity of a window went, bucket by bucket, and what to do first."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Query, Request, Response

from gpucost.api.routes.requests import WholeNumber, refuse_unknown_parameters
from gpucost.api.routes.responses import (
    ResponseBody,
    answer,
    cached_response,
    chosen,
    described,
)
from gpucost.api.server.authentication import Reader, authenticate
from gpucost.api.server.errors import responses
from gpucost.api.server.services import (
    KnownServices,
    OneCluster,
    check_span,
    nothing_held,
)
from gpucost.reports.waste.waste_report import TOP, WasteReport
from gpucost.service.reporting.rendering import ReportFormat, render_waste
from gpucost.service.reporting.report_service import WINDOW_FORMS, parse_window

router = APIRouter(dependencies=[Depends(authenticate), Depends(refuse_unknown_parameters)])

_FORMATS = (ReportFormat.JSON, ReportFormat.CSV)
_MOST = 1_000


@router.get(
    "/v1/waste",
    response_class=Response,
    responses={200: described(WasteReport, *_FORMATS), **responses(400, 401, 403, 404, 406, 422, 503)},
)
async def get_waste(
    request: Request,
    principal: Reader,
    known: KnownServices,
    window: Annotated[str, Query(max_length=2_000, description=WINDOW_FORMS, examples=["2026-10"])],
    top: Annotated[
        WholeNumber, Query(ge=1, le=_MOST, description="most jobs, and most findings to act on")
    ] = TOP,
    format: Annotated[Literal["json", "csv"] | None, Query(description="wins over the Accept header")] = None,
    cluster: OneCluster = None,
) -> Response:
    """Every GPU-second of a window in one bucket, of what the caller may see; the buckets add up.

    A window that the ledger has nothing of is not found.
    """
    format_, wanted = chosen(request, format, _FORMATS), parse_window(window)
    check_span(known, wanted)

    def make() -> ResponseBody:
        scope = known.reporting.of_cluster(principal.scope, cluster)
        found = known.reporting.waste(scope, wanted, top=top)
        if found is None:
            raise nothing_held(known, scope, "window", window)
        return answer(render_waste(found, format_), format_, found.stand, "waste")

    return await cached_response(known, principal.scope, ("waste", wanted, top, format_, cluster), make)
