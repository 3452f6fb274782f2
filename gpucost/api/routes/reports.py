"""Reports: of a month, as people and spreadsheets read it; of where the capacity of a window went, bucket by
bucket, and what to do first; and of one job, with what a step, an epoch or a token of it costs."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Path, Query, Request, Response
from pydantic import BaseModel, Field
from pydantic.json_schema import SkipJsonSchema

from gpucost.access.principal import Principal
from gpucost.api.routes.live import live_jobs
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
from gpucost.api.server.threads import in_own_thread
from gpucost.domain.errors import InputError
from gpucost.domain.time import Month, parse_day_or_instant
from gpucost.ledger.usage.job_index import MOST_LISTED, MOST_NAMED, JobQuery
from gpucost.reports.base.document import to_json
from gpucost.reports.job.job_receipt import JobReceipt
from gpucost.reports.job.job_report import JobMatches, JobReport
from gpucost.reports.month.model import MonthReport
from gpucost.reports.waste.waste_report import TOP, WasteReport
from gpucost.service.advisor.live_reports import waiting_of
from gpucost.service.reporting.job_endings import ends_in
from gpucost.service.reporting.list_reports import job_list, lately_ms
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
OneTeam = Annotated[
    str | SkipJsonSchema[None],
    Query(max_length=_LONGEST_NAME, description="of this team only, as the team itself sees it"),
]


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
    team: OneTeam = None,
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
    team: OneTeam = None,
) -> Response:
    """Every GPU-second of a window in one bucket, of what the caller may see; the buckets add up.

    A window that the ledger has nothing of is not found.
    """
    format_, wanted = chosen(request, format, _WASTE_FORMATS), parse_window(window)
    check_span(known, wanted)

    def make() -> ResponseBody:
        scope = known.reporting.of_team(known.reporting.of_cluster(principal.scope, cluster), team)
        found = known.reporting.waste(scope, wanted, top=top)
        if found is None:
            raise nothing_held(known, scope, "window", window)
        return answer(render_waste(found, format_), format_, found.stand, "waste")

    return await cached_response(known, principal.scope, ("waste", wanted, top, format_, cluster, team), make)


class JobsParams(BaseModel):
    """The query."""

    job: Annotated[
        str | SkipJsonSchema[None],
        Field(min_length=1, max_length=_LONGEST_JOB, description="a job's name, or its namespace/name"),
    ] = None
    user: Annotated[
        str | SkipJsonSchema[None],
        Field(min_length=1, max_length=_LONGEST_NAME, description="whose, as labels of pods say"),
    ] = None
    mine: Annotated[bool, Field(description="those of the caller, by the name of its key or token")] = False
    team: Annotated[
        str | SkipJsonSchema[None], Field(max_length=_LONGEST_NAME, description="of this team only")
    ] = None
    cluster: Annotated[
        str | SkipJsonSchema[None],
        Field(max_length=_LONGEST_NAME, description="of this cluster only; all of them without"),
    ] = None
    since: Annotated[
        str | SkipJsonSchema[None],
        Field(
            max_length=64,
            description="that held GPUs then or later: a day (midnight UTC) or RFC 3339 with a zone",
        ),
    ] = None
    limit: Annotated[WholeNumber, Field(ge=1, le=MOST_LISTED, description="jobs on a page")] = MOST_NAMED
    page: Annotated[WholeNumber, Field(ge=1, le=100_000, description="page, from 1")] = 1


@router.get(
    "/v1/jobs",
    response_class=Response,
    responses={
        200: described(JobMatches, ReportFormat.JSON, of_ledger=False),
        **responses(400, 401, 403, 422, 503),
    },
)
async def get_jobs(
    principal: Reader, known: KnownServices, params: Annotated[JobsParams, Query()]
) -> Response:
    """Jobs by name, person or team, of those that the caller may see: those that held GPUs last come first,
    with what they held in all, and those that wait now in the watched cluster. None is no error.

    Without a name they are those of the ledger's last 30 days, or from ``since`` on.
    """
    users = _users(principal, params)
    live = await in_own_thread(live_jobs, known, principal, params.cluster)
    asked = "jobs", params.model_dump_json(), users, None if live is None else live.key

    def make() -> ResponseBody:
        reporting = known.reporting
        scope = reporting.of_team(reporting.of_cluster(principal.scope, params.cluster), params.team)
        since_ms = None if params.since is None else parse_day_or_instant(params.since, "since")
        if since_ms is None and params.job is None:
            since_ms = lately_ms(reporting, scope)
        query = JobQuery(params.job, users, since_ms)
        offset = (params.page - 1) * params.limit
        running = None if live is None else (live.cluster, live.running)
        found = job_list(reporting, scope, query, limit=params.limit, offset=offset, running=running)
        if live is not None:
            waiting = waiting_of(live.waiting, query, params.team)
            found = replace(found, waiting=waiting, watched=live.cluster)
        return ResponseBody(to_json(found).encode(), "application/json", ())

    return await cached_response(known, principal.scope, asked, make, heavy=params.job is None)


def _users(principal: Principal, params: JobsParams) -> tuple[str, ...] | None:
    """The names of the person whose jobs are asked for; None for anybody's."""
    if not params.mine:
        return None if params.user is None else (params.user,)
    if params.user is not None:
        raise InputError("user", params.user, "no user where mine=true says it")
    if not principal.user_names:
        raise InputError("mine", True, "user=NAME: nothing tells who asks, as this gpucost asks for no key")
    return principal.user_names


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
