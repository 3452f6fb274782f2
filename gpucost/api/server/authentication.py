"""Authentication: every route but the probes depends on a Principal, and every ledger read
takes its scope."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection
from http import HTTPStatus
from typing import Annotated

from fastapi import Depends, Request
from fastapi.concurrency import run_in_threadpool

from gpucost.access.authenticator import AccessDenied, CheckUnavailable, NotGranted
from gpucost.access.principal import LOOPBACK, AccessRole, Principal
from gpucost.access.sessions import csrf_token
from gpucost.api.server import browser
from gpucost.api.server.errors import (
    ApiError,
    forbidden,
    nothing_granted,
    unauthorized,
    undecided,
)
from gpucost.api.server.middleware import ASKED_BY, UNTOLD
from gpucost.api.server.services import ApiServices, KnownServices
from gpucost.api.server.threads import in_own_thread

logger = logging.getLogger(__name__)


async def authenticate(request: Request, known: KnownServices) -> Principal:
    """The principal of a request, by its header or, where it has none, by the session of its cookie; 401 in
    one shape for whatever is wrong with key, token or session.

    A good token whose owner is granted nothing is a 403: no other token would help, and the owner may know. A
    caller with too many requests gets a 429, and so does an address with too many refusals.
    """
    state = request.scope.setdefault("state", {})
    try:
        principal = LOOPBACK if known.settings.auth == "off" else await _authenticated(request, known)
    except ApiError as error:
        # Further log lines would repeat the earlier ones, and a caller could fill the disk with them.
        state[UNTOLD] = error.status == HTTPStatus.TOO_MANY_REQUESTS
        raise
    state[ASKED_BY] = principal
    admit(known, principal)
    return principal


def address_of(request: Request) -> str:
    """Where a request comes from; empty where that is not known."""
    return "" if request.client is None else request.client.host


def refuse(request: Request, known: ApiServices) -> None:
    """Count a request that is refused before anybody is authenticated. Raises ApiError (429) for too many of
    its address, and then no line of it is logged."""
    try:
        known.gate.refuse(address_of(request))
    except ApiError:
        request.scope.setdefault("state", {})[UNTOLD] = True
        raise


def admit(known: ApiServices, principal: Principal, cost: int = 1) -> None:
    """Count ``cost`` requests of ``principal``. Raises ApiError (429) for too many."""
    if principal is not LOOPBACK and cost:
        known.gate.admit(f"{principal.method}:{principal.id}", cost)


async def _authenticated(request: Request, known: KnownServices) -> Principal:
    address = address_of(request)
    try:
        return await _checked(request, known, address)
    except (AccessDenied, CheckUnavailable) as error:
        # Whatever the reason: it cost a check, maybe one on another machine, and lines of the log.
        known.gate.refuse(address)
        raise _told(error) from None


async def _checked(request: Request, known: KnownServices, address: str) -> Principal:
    written = request.headers.getlist("authorization")
    session = "" if written else browser.cookie(request, browser.SESSION)
    if session:
        return await _of_session(request, known, session)
    scheme, _, token = "".join(written).partition(" ")
    # Of two headers a proxy in front may have checked the other one.
    if len(written) != 1 or scheme.lower() != "bearer":
        raise AccessDenied("it has no bearer token, or more than one header for it")
    token, authenticator = token.strip(), known.authenticator
    if authenticator.must_ask(token):
        async with known.gate.asking(address):
            return await in_own_thread(authenticator.authenticate, token)
    return await run_in_threadpool(authenticator.authenticate, token)


async def _of_session(request: Request, known: KnownServices, token: str) -> Principal:
    """Raises ApiError (403) for a change that none of our pages asked for."""
    record, principal = await run_in_threadpool(known.login.sessions.authenticate, token)
    if request.method != "GET":  # HEAD is GET by now
        await browser.check_change(request, token, known.login.public_url)
    request.scope["state"] |= {browser.CSRF: csrf_token(token), browser.SESSION_ID: record.id}
    return principal


def _told(error: AccessDenied | CheckUnavailable) -> ApiError:
    """The log gets the reason, the caller a response without it."""
    if isinstance(error, CheckUnavailable):
        logger.warning("cannot say who asks: %s", error)
        return undecided()
    logger.info("refused a request: %s", error)
    return nothing_granted() if isinstance(error, NotGranted) else unauthorized()


READERS = frozenset({AccessRole.VIEWER, AccessRole.TEAM_ADMIN, AccessRole.FINANCE, AccessRole.ADMIN})
"""The roles that read reports."""


def require_role(principal: Principal, roles: Collection[AccessRole], what: str = "read this") -> None:
    """Raises ApiError (403) for a principal of another role."""
    if principal.role not in roles:
        raise forbidden(principal.role, what)


def _require(*roles: AccessRole, what: str = "read this") -> Callable[[Principal], Awaitable[Principal]]:
    async def check(principal: Annotated[Principal, Depends(authenticate)]) -> Principal:
        require_role(principal, roles, what)
        return principal

    return check


Reader = Annotated[Principal, Depends(_require(*READERS))]
Operator = Annotated[Principal, Depends(_require(AccessRole.METRICS, AccessRole.FINANCE, AccessRole.ADMIN))]
Responder = Annotated[
    Principal, Depends(_require(AccessRole.TEAM_ADMIN, AccessRole.ADMIN, what="change this"))
]
"""Who may answer a finding: a team-admin those of its teams, an admin all of them."""
Accountant = Annotated[Principal, Depends(_require(AccessRole.FINANCE, AccessRole.ADMIN))]
"""Who may see what all teams pay."""
Closer = Annotated[Principal, Depends(_require(AccessRole.ADMIN, what="close a month"))]
Adjuster = Annotated[Principal, Depends(_require(AccessRole.ADMIN, what="book an adjustment"))]
"""Who may correct closed months."""
Keeper = Annotated[Principal, Depends(_require(AccessRole.TEAM_ADMIN, AccessRole.ADMIN, what="keep keys"))]
Alerter = Annotated[Principal, Depends(_require(AccessRole.ALERTS, AccessRole.ADMIN, what="send this"))]
