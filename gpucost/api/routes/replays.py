"""Replays of a month that were kept: what would have been under other rules.

A replay shows what every team waited, held and paid, so it is for who sees all of them.
"""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Path, Response

from gpucost.api.routes.months import MonthText, refuse_part
from gpucost.api.routes.requests import refuse_unknown_parameters
from gpucost.api.routes.responses import ResponseBody, described
from gpucost.api.server.authentication import Accountant, authenticate
from gpucost.api.server.errors import not_found, responses
from gpucost.api.server.services import KnownServices
from gpucost.api.server.threads import in_own_thread
from gpucost.domain.time import Month
from gpucost.reports.base.document import to_json
from gpucost.reports.replay.scenario_answer import ReplayReport
from gpucost.service.replay.kept_replays import KeptReplays, kept_replays, kept_report
from gpucost.service.reporting.rendering import ReportFormat

router = APIRouter(dependencies=[Depends(authenticate), Depends(refuse_unknown_parameters)])
_JSON = "application/json"
_WHAT = "what every team waits and pays"


@router.get(
    "/v1/months/{month}/replays",
    response_class=Response,
    responses={
        200: described(KeptReplays, ReportFormat.JSON, of_ledger=False),
        **responses(400, 401, 403, 422, 503),
    },
)
async def list_replays(principal: Accountant, known: KnownServices, month: MonthText) -> Response:
    """The replays of a month that were kept, with their scenarios."""
    wanted = Month.parse(month)
    refuse_part(principal, _WHAT)
    async with known.gate.turn(known.gate.until()):
        found = await in_own_thread(kept_replays, known.settings.replays, wanted)
    return ResponseBody(to_json(found).encode(), _JSON, ()).response()


@router.get(
    "/v1/months/{month}/replays/{name}",
    response_class=Response,
    responses={
        200: described(ReplayReport, ReportFormat.JSON, of_ledger=False),
        **responses(400, 401, 403, 404, 422, 503),
    },
)
async def get_replay(
    principal: Accountant,
    known: KnownServices,
    month: MonthText,
    name: Annotated[str, Path(max_length=60, description="the name it is kept by", examples=["lend-8"])],
) -> Response:
    """One of them: the error of its baseline, and each scenario beside it; without single starts."""
    wanted = Month.parse(month)
    refuse_part(principal, _WHAT)
    async with known.gate.turn(known.gate.until()):
        found = await in_own_thread(kept_report, known.settings.replays, wanted, name)
    if found is None:
        raise not_found("replay", name, "a name that GET /v1/months/{month}/replays lists")
    return ResponseBody(to_json(found).encode(), _JSON, ()).response()
