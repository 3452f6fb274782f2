"""POST /v1/alerts/alertmanager: the webhook to which Alertmanager sends the groups of its alerts."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Depends, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import JSONResponse, Response

from gpucost.api.routes.requests import JSON, refuse_unknown_parameters, require_json
from gpucost.api.server.authentication import Alerter, authenticate
from gpucost.api.server.errors import (
    ALERTS_PATH,
    LARGEST_GROUP,
    not_told,
    responses,
)
from gpucost.api.server.services import KnownServices
from gpucost.service.notifications.findings_and_alerts import keep

router = APIRouter(
    dependencies=[Depends(authenticate), Depends(refuse_unknown_parameters), Depends(require_json)]
)

_PAYLOAD: dict[str, Any] = {
    "type": "object",
    "required": ["version", "groupKey", "status", "alerts"],
    "properties": {
        "version": {"type": "string", "const": "4"},
        "groupKey": {"type": "string", "minLength": 1},
        "status": {"type": "string", "enum": ["firing", "resolved"]},
        "alerts": {"type": "array", "items": {"type": "object"}},
    },
}
_KEPT = {
    "description": "The group is stored; it is told within seconds, as the settings under notify say.",
    "content": {
        JSON: {"schema": {"type": "object", "properties": {"alerts": {"type": "integer", "minimum": 0}}}}
    },
}


@router.post(
    ALERTS_PATH,
    max_body_size=LARGEST_GROUP,
    response_class=Response,
    responses={200: _KEPT, **responses(400, 401, 403, 409, 413, 415, 422, 503)},
    openapi_extra={"requestBody": {"required": True, "content": {JSON: {"schema": _PAYLOAD}}}},
)
async def receive_alerts(_: Alerter, known: KnownServices, request: Request) -> Response:
    """Take over the state of one group of alerts (payload version 4 of Alertmanager's webhook).

    What is stored replaces what was sent of the group before; an answer that is not a success makes
    Alertmanager send it again.
    """
    if known.telling is None:
        raise not_told()
    group = await run_in_threadpool(keep, known.ledger, await request.body())
    return JSONResponse({"alerts": len(group.alerts)})
