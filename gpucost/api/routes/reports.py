"""Reports: of a month, as people and spreadsheets read it; of where the capacity of a window went, bucket by
bucket, and what to do first; and of one job, with what a step, an epoch or a token of it costs."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Path, Query, Request, Response
from pydantic.json_schema import SkipJsonSchema

from gpucost.api.routes.requests import WholeNumber, refuse_unknown_parameters
from gpucost.api.routes.responses import (
    ResponseBody,
    answer,
    cached_response,
    chosen,
    described,
)
from gpucost.api.server.authentication import Reader, authenticate
from gpucost.api.server.errors import not_found, responses
from gpucost.api.server.services import KnownServices, OneCluster, check_span, nothing_held
from gpucost.domain.time import Month
from gpucost.reports.base.document import to_json
from gpucost.reports.job.job_receipt import JobReceipt
from gpucost.reports.job.job_report import JobMatches, JobReport
from gpucost.reports.month.model import MonthReport
from gpucost.reports.waste.waste_report import TOP, WasteReport
from gpucost.service.reporting.job_endings import ends_in
from gpucost.service.reporting.month_closing import scope_of_team
from gpucost.service.reporting.rendering import (
    ReportFormat,
    render_job,
    render_month,
    render_receipt,
    render_waste,
)
from gpucost.service.reporting.report_service import WINDOW_FORMS, parse_window

router = APIRouter(dependencies=[Depends(authenticate), Depends(refuse_unknown_parameters)])

_FORMATS = (ReportFormat.JSON, ReportFormat.CSV, ReportFormat.PARQUET, ReportFormat.HTML)
_WASTE_FORMATS = (ReportFormat.JSON, ReportFormat.CSV)
_MOST = 1_000
_LONGEST_NAME = 253
_LONGEST_JOB = 2 * _LONGEST_NAME + 1


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
    team: Annotated[
        str | SkipJsonSchema[None],
        Query(max_length=_LONGEST_NAME, description="of this team only, as the team itself sees it"),
    ] = None,
) -> Response:
    """The cost report of one month, of the teams and clusters the caller may see.

    A report of some clusters has no adjustments in it: they are of no cluster.
    """
    wanted, format_ = Month.parse(month), chosen(request, format, _FORMATS)

    def make() -> ResponseBody:
        scope = known.reporting.of_cluster(principal.scope, cluster)
        scope = scope_of_team(known.reporting, scope, wanted, team)
        found = known.reporting.month(scope, wanted, every_job=format_.lists_every_job)
        if found is None:
            raise nothing_held(known, scope, "month", month)
        return answer(render_month(found.report, format_), format_, found.stand, str(wanted))

    return await cached_response(known, principal.scope, ("month", wanted, format_, cluster, team), make)


@router.get(
    "/v1/waste",
    response_class=Response,
    responses={200: described(WasteReport, *_WASTE_FORMATS), **responses(400, 401, 403, 404, 406, 422, 503)},
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
    format_, wanted = chosen(request, format, _WASTE_FORMATS), parse_window(window)
    check_span(known, wanted)

    def make() -> ResponseBody:
        scope = known.reporting.of_cluster(principal.scope, cluster)
        found = known.reporting.waste(scope, wanted, top=top)
        if found is None:
            raise nothing_held(known, scope, "window", window)
        return answer(render_waste(found, format_), format_, found.stand, "waste")

    return await cached_response(known, principal.scope, ("waste", wanted, top, format_, cluster), make)


@router.get(
    "/v1/jobs",
    response_class=Response,
    responses={
        200: described(JobMatches, ReportFormat.JSON, of_ledger=False),
        **responses(400, 401, 403, 422, 503),
    },
)
async def get_jobs(
    principal: Reader,
    known: KnownServices,
    job: Annotated[
        str,
        Query(min_length=1, max_length=_LONGEST_JOB, description="a job's name, or its namespace/name"),
    ],
    cluster: OneCluster = None,
) -> Response:
    """The jobs of a name, of those that the caller may see: those that held GPUs last come first, at most
    100. None is no error."""

    def make() -> ResponseBody:
        found = known.reporting.jobs_named(known.reporting.of_cluster(principal.scope, cluster), job)
        return ResponseBody(to_json(found).encode(), "application/json", ())

    return await cached_response(known, principal.scope, ("jobs", job, cluster), make, heavy=False)


@router.get(
    "/v1/jobs/{uid}",
    response_class=Response,
    responses={200: described(JobReport, ReportFormat.JSON), **responses(400, 401, 403, 404, 422, 503)},
)
async def get_job(
    principal: Reader,
    known: KnownServices,
    uid: Annotated[str, Path(max_length=253, description="uid of the job's Kubernetes object")],
    progress: Annotated[
        str | None, Query(max_length=253, description="name of a progress metric of the settings")
    ] = None,
    cluster: OneCluster = None,
) -> Response:
    """One job. A job that the caller may not see is not found.

    Clones of a cluster have jobs of the same uid: ``cluster`` says which.
    """

    def make() -> ResponseBody:
        found = known.reporting.job(known.reporting.of_cluster(principal.scope, cluster), uid, progress)
        if found is None:
            raise not_found("uid", uid, "no such job")
        return answer(render_job(found, ReportFormat.JSON), ReportFormat.JSON, found.stand, "job")

    return await cached_response(known, principal.scope, ("job", uid, progress, cluster), make, heavy=False)


@router.get(
    "/v1/jobs/{uid}/receipt",
    response_class=Response,
    responses={200: described(JobReceipt, ReportFormat.JSON), **responses(400, 401, 403, 404, 422, 503)},
)
async def get_receipt(
    principal: Reader,
    known: KnownServices,
    uid: Annotated[str, Path(max_length=253, description="uid of the job's Kubernetes object")],
    cluster: OneCluster = None,
) -> Response:
    """The receipt of one job: what it held, cost and wasted, how long it waited, how it ended, and the one
    change for its next run. A job that the caller may not see is not found.
    """
    # The cluster changes without the ledger: its state is a part of the question.
    watched, state = known.cluster_now
    ends = ends_in(watched, state)

    def make() -> ResponseBody:
        found = known.reporting.receipt(known.reporting.of_cluster(principal.scope, cluster), uid, ends)
        if found is None:
            raise not_found("uid", uid, "no such job")
        return answer(render_receipt(found), ReportFormat.JSON, found.stand, "receipt")

    asked = ("receipt", uid, cluster, None if state is None else state.at_ms)
    return await cached_response(known, principal.scope, asked, make, heavy=False)
