"""GET /v1/allocations: usage by any dimensions and steps of time; GET /v1/changes: two spans, and why they
cost other amounts."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Query, Request, Response
from pydantic import BaseModel, Field
from pydantic.json_schema import SkipJsonSchema

from gpucost.access.principal import Principal
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
    ApiServices,
    KnownServices,
    check_span,
    nothing_held,
)
from gpucost.domain.errors import InputError
from gpucost.domain.time import Window, parse_duration
from gpucost.reports.base.document import to_json
from gpucost.reports.month.allocations import DIMENSIONS, Allocations, IdlePolicy
from gpucost.reports.month.span_change import CHANGED_BY, SpanChange
from gpucost.service.reporting.charged_changes import compare_charges
from gpucost.service.reporting.rendering import ReportFormat, render_allocations
from gpucost.service.reporting.report_service import WINDOW_FORMS, ReportAnswer, parse_window
from gpucost.service.reporting.span_changes import SPAN_FORMS, compare_spans, parse_span, span_before

router = APIRouter(dependencies=[Depends(authenticate), Depends(refuse_unknown_parameters)])

_FORMATS = (ReportFormat.JSON, ReportFormat.CSV, ReportFormat.PARQUET)
_MAX_TEXT = 2_000
_PAGE_ROWS = 1_000

Text = Annotated[str, Field(max_length=_MAX_TEXT)]
Filter = Annotated[
    str | SkipJsonSchema[None],
    Field(max_length=_MAX_TEXT, description="keep what has one of these values, separated by commas"),
]


class AllocationParams(BaseModel):
    """The query. Every dimension is a filter too."""

    window: Annotated[
        Text,
        Field(
            description=WINDOW_FORMS,
            examples=["2026-10", "2026-10-01T00:00:00Z/2026-10-08T00:00:00Z"],
        ),
    ]
    group_by: Annotated[
        Text, Field(description=f"dimensions, separated by commas: {', '.join(DIMENSIONS)}")
    ] = "team"
    step: Annotated[
        Text | SkipJsonSchema[None],
        Field(
            description="length of a row's time, such as 1h or 1d; one row without it. Whole days where idle "
            "time is shared"
        ),
    ] = None
    idle: Annotated[
        Literal["separate", "proportional", "by_quota"],
        Field(description="who bears unallocated time; a viewer: separate, unless the settings allow more"),
    ] = "separate"
    limit: Annotated[
        WholeNumber | SkipJsonSchema[None],
        Field(ge=1, description="rows on a page; by default 1000, or api.max_page_rows if that is less"),
    ] = None
    page: Annotated[WholeNumber, Field(ge=1, le=1_000_000, description="page, from 1")] = 1
    format: Annotated[
        Literal["json", "csv", "parquet"] | SkipJsonSchema[None],
        Field(description="wins over the Accept header"),
    ] = None

    cluster: Filter = None
    node: Filter = None
    resource: Filter = None
    model: Filter = None
    profile: Filter = None
    basis: Filter = None
    instance_type: Filter = None
    capacity_type: Filter = None
    region: Filter = None
    zone: Filter = None
    pool: Filter = None
    bucket: Filter = None
    namespace: Filter = None
    pod: Filter = None
    pod_uid: Filter = None
    job_kind: Filter = None
    job: Filter = None
    job_uid: Filter = None
    workload: Filter = None
    queue: Filter = None
    cluster_queue: Filter = None
    flavor: Filter = None
    project: Filter = None
    user: Filter = None
    team: Filter = None
    rate_id: Filter = None

    def filters(self) -> dict[str, frozenset[str]]:
        """The dimensions that were given, and the values that pass."""
        given = {name: getattr(self, name) for name in DIMENSIONS}
        return {name: frozenset(text.split(",")) for name, text in given.items() if text is not None}


@router.get(
    "/v1/allocations",
    response_class=Response,
    responses={200: described(Allocations, *_FORMATS), **responses(400, 401, 403, 404, 406, 422, 503)},
)
async def get_allocations(
    request: Request, principal: Reader, known: KnownServices, params: Annotated[AllocationParams, Query()]
) -> Response:
    """Who held what in a window, of the teams the caller may see. ``total`` is of all pages.

    A window that the ledger has nothing of is not found.
    """
    format_ = chosen(request, params.format, _FORMATS)
    window, step_ms = parse_window(params.window), None
    limit = checked_limit(known, params.limit)
    check_span(known, window)
    if params.step is not None:
        step_ms = parse_duration(params.step, "step")
        check_steps(known, window, step_ms)
    asked = "allocations", format_, params.model_dump_json()
    return await cached_response(
        known, principal.scope, asked, lambda: _page(known, principal, params, format_, step_ms, limit)
    )


def _page(
    known: ApiServices,
    principal: Principal,
    params: AllocationParams,
    format_: ReportFormat,
    step_ms: int | None,
    limit: int,
) -> ResponseBody:
    """One page of the rows, which are computed once for all pages."""
    window = parse_window(params.window)
    try:
        whole = known.reporting.allocations(
            principal.scope,
            window,
            tuple(params.group_by.split(",")),
            step_ms=step_ms,
            idle=IdlePolicy(params.idle),
            filters=params.filters(),
        )
    except InputError as error:
        if (
            params.step is not None
            and error.field == "window"
            and known.reporting.is_whole(principal.scope, window)
        ):
            # The ledger checks window and step together: the window is valid here, so it is the step that is
            # wrong.
            raise InputError("step", params.step, error.allowed) from None
        raise
    if not whole.stand.windows:
        raise nothing_held(known, principal.scope, "window", params.window)
    rows = whole.report.rows
    pages = max(1, -(-len(rows) // limit))
    if params.page > pages:
        raise InputError("page", params.page, f"1 to {pages}")
    start = (params.page - 1) * limit
    page = replace(whole.report, rows=rows[start : start + limit])
    place = {"page": params.page, "pages": pages, "row_count": len(rows)}
    body = render_allocations(ReportAnswer(page, whole.stand), format_, place)
    return answer(body, format_, whole.stand, "allocations")


class ChangeParams(BaseModel):
    """The two spans, and what a row is."""

    window: Annotated[Text, Field(description=SPAN_FORMS, examples=["2026-10"])]
    before: Annotated[
        Text | SkipJsonSchema[None],
        Field(description="what it is compared with, in the same forms; else the same time right before it"),
    ] = None
    by: Annotated[Text, Field(description=f"what a row is: {', '.join(CHANGED_BY)}")] = "team"
    team: Annotated[str | SkipJsonSchema[None], Field(max_length=253, description="of this team only")] = None
    cluster: Annotated[
        str | SkipJsonSchema[None], Field(max_length=253, description="of this cluster only; all without")
    ] = None
    charged: Annotated[
        bool, Field(description="of two months what teams are charged by the charge policy, by team")
    ] = False


@router.get(
    "/v1/changes",
    response_class=Response,
    responses={
        200: described(SpanChange, ReportFormat.JSON, of_ledger=False),
        **responses(400, 401, 403, 404, 422, 503),
    },
)
async def get_changes(
    principal: Reader, known: KnownServices, params: Annotated[ChangeParams, Query()]
) -> Response:
    """Why one span of time cost another amount than one before it: by row, causes that add up to it."""
    span = parse_span(params.window)
    before = span_before(span) if params.before is None else parse_span(params.before, "before")
    for each in (span, before):
        check_span(known, each)

    def make() -> ResponseBody:
        reporting = known.reporting
        scope = reporting.of_team(reporting.of_cluster(principal.scope, params.cluster), params.team)
        if params.charged:
            found = compare_charges(reporting, scope, span, before, known.policy, params.by)
        else:
            found = compare_spans(reporting, scope, span, before, params.by)
        if found is None:
            field = "before" if reporting.stand(scope, span).windows else "window"
            value = (params.before or str(before)) if field == "before" else params.window
            raise nothing_held(known, scope, field, value)
        return ResponseBody(to_json(found.report).encode(), "application/json", ())

    asked = ("changes", span, before, params.by, params.team, params.cluster, params.charged)
    return await cached_response(known, principal.scope, asked, make)


def checked_limit(known: ApiServices, limit: int | None) -> int:
    """Rows on a page. Raises InputError for more than the settings allow."""
    most = known.settings.max_page_rows
    if limit is not None and limit > most:
        raise InputError("limit", limit, f"1 to {most}")
    return limit or min(_PAGE_ROWS, most)


def check_steps(known: ApiServices, window: Window, step_ms: int) -> None:
    """Refuse more steps than the settings allow, before anything is computed."""
    steps = -(-window.length_ms // step_ms)
    if steps > known.settings.max_steps:
        allowed = f"a step that makes at most {known.settings.max_steps} steps of the window, not {steps}"
        raise InputError("step", f"{step_ms} ms", allowed)
