"""Login sessions: list and end. They begin on the page ``/login``."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Path, Request
from pydantic import BaseModel, Field

from gpucost.access.principal import AccessRole, Principal
from gpucost.access.sessions import SessionRecord
from gpucost.api.routes import requests
from gpucost.api.routes.keys import RevokeBody
from gpucost.api.routes.requests import refuse_unknown_parameters, require_json
from gpucost.api.server.authentication import Reader, authenticate
from gpucost.api.server.browser import SESSION_ID
from gpucost.api.server.errors import not_found, responses
from gpucost.api.server.services import KnownServices
from gpucost.domain.scope import EVERYTHING
from gpucost.domain.time import iso

router = APIRouter(dependencies=[Depends(authenticate), Depends(refuse_unknown_parameters)])
changes = APIRouter(
    dependencies=[Depends(authenticate), Depends(refuse_unknown_parameters), Depends(require_json)]
)

SessionId = Annotated[str, Path(max_length=253, description="id of a session that has not expired")]


class LoginSession(BaseModel):
    """A session, without its token, which only its browser has."""

    id: str
    owner: str = Field(description="a key's id, or oidc:NAME")
    method: str = Field(description="key or oidc")
    state: str = Field(description="open, or ended by its owner or an admin")
    is_current: bool = Field(description="whether this request was made in it")
    created_at: str
    expires: str = Field(description="the instant from which it is refused")
    ended_at: str | None
    ended_by: str | None


class SessionList(BaseModel):
    """Sessions that have not expired, newest first."""

    sessions: list[LoginSession]


@router.get("/v1/sessions", responses=responses(400, 401, 403, 503))
def get_sessions(request: Request, principal: Reader, known: KnownServices) -> SessionList:
    """The caller's own sessions; for an admin of all clusters everybody's."""
    current = request.scope["state"].get(SESSION_ID, "")
    found = known.ledger.sessions()
    return SessionList(sessions=[_row(each, current) for each in found if _keeps(principal, each)])


@changes.post(
    "/v1/sessions/{id}/revoke",
    responses=responses(400, 401, 403, 404, 413, 415, 422, 503),
    openapi_extra=requests.described(RevokeBody),
)
def revoke_session(
    request: Request,
    principal: Reader,
    known: KnownServices,
    id: SessionId,
    body: Annotated[RevokeBody, Depends(requests.read(RevokeBody))],
) -> LoginSession:
    """End a session for good, in every process at once. One that is not the caller's own is not found, but by
    an admin of all clusters."""
    # All of them are read, as for the list: to look for one would take longer where it is another's.
    if id in {each.id for each in known.ledger.sessions() if _keeps(principal, each)}:
        ended = known.ledger.end_session(id, principal.id, body.reason)
        if ended is not None:
            return _row(ended, request.scope["state"].get(SESSION_ID, ""))
    raise not_found("id", id, "no such session", "the id of a session of yours that has not expired")


def _keeps(principal: Principal, session: SessionRecord) -> bool:
    """Whether the principal may see and end a session."""
    is_own = (session.method, session.owner) == (principal.method, principal.id)
    return is_own or (principal.role is AccessRole.ADMIN and principal.scope == EVERYTHING)


def _row(session: SessionRecord, current: str) -> LoginSession:
    return LoginSession(
        id=session.id,
        owner=session.owner,
        method=session.method,
        state="open" if session.revoked_ms is None else "ended",
        is_current=session.id == current,
        created_at=iso(session.created_ms),
        expires=iso(session.expires_ms),
        ended_at=None if session.revoked_ms is None else iso(session.revoked_ms),
        ended_by=session.revoked_by or None,
    )
