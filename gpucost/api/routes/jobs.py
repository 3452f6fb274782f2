"""GET /v1/jobs/{uid}: one job, its cost so far, and what a step, an epoch or a token of it costs."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Path, Query, Response

from gpucost.api.routes.requests import refuse_unknown_parameters
from gpucost.api.routes.responses import (
    ResponseBody,
    answer,
    cached_response,
    described,
)
from gpucost.api.server.authentication import Reader, authenticate
from gpucost.api.server.errors import not_found, responses
from gpucost.api.server.services import KnownServices, OneCluster
from gpucost.reports.job.job_report import JobReport
from gpucost.service.reporting.rendering import ReportFormat, render_job

router = APIRouter(dependencies=[Depends(authenticate), Depends(refuse_unknown_parameters)])


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
