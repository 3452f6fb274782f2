"""Logging in and out: at the issuer of the settings, or with an API key that is pasted once.

Nobody is known yet on these pages, so they show nothing, and what goes wrong is told without the reason: the
log has it. A log-in always begins a session under a new token, and ends the one that the browser had before.
Where nobody has to log in (``api.auth: off``) they lead on.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable
from http import HTTPStatus
from typing import Annotated, TypeVar
from urllib.parse import urlsplit

from fastapi import APIRouter, Depends, Query, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import HTMLResponse, RedirectResponse, Response
from markupsafe import Markup

from gpucost.access.authenticator import AccessDenied, CheckUnavailable, NotGranted
from gpucost.access.code_flow import ATTEMPT_MS, LONGEST_PATH, IssuerLogin, LoginAttempt, local_path
from gpucost.access.principal import Principal
from gpucost.access.sessions import LoginProof, csrf_token
from gpucost.api.pages.page_layout import PAGE_POLICY, content, render
from gpucost.api.routes.requests import refuse_unknown_parameters
from gpucost.api.server import browser
from gpucost.api.server.authentication import address_of, admit, refuse
from gpucost.api.server.browser import BrowserPlace, place_of, place_of_form
from gpucost.api.server.errors import not_found, unknown_key
from gpucost.api.server.middleware import ASKED_BY
from gpucost.api.server.services import ApiServices, KnownServices
from gpucost.api.server.threads import in_own_thread
from gpucost.domain.time import SECOND_MS
from gpucost.reports.base import page_addresses

logger = logging.getLogger(__name__)

router = APIRouter(include_in_schema=False)

T = TypeVar("T")
NextPath = Annotated[str, Query(max_length=LONGEST_PATH, description="the path to go on to")]
_LOGIN_COST = 100
"""Small requests that a log-in counts as: each is a row of the ledger, and one of its audit trail."""
_FIELDS = (browser.CSRF, "key", "next")
_AGAIN = "You are not logged in. Please begin again."
_WRONG_KEY = "This key is not accepted."
_NO_COOKIE = "The form was too old, or this browser keeps no cookies of this page. Please try again."
_NOT_NOW = "Whether you may log in cannot be said now. Please try again in a minute."
_NO_GRANT = "You are known, but nothing is granted to you here. Ask whoever runs this service."


@router.get(page_addresses.LOGIN, dependencies=[Depends(refuse_unknown_parameters)])
async def show_login(request: Request, known: KnownServices, next: NextPath = "/") -> Response:
    """The ways in."""
    return await _login_page(request, known, next)


@router.get(page_addresses.LOGIN_START, dependencies=[Depends(refuse_unknown_parameters)])
async def start_login(request: Request, known: KnownServices, next: NextPath = "/") -> Response:
    """To the issuer, with what must come back from there in a cookie."""
    issuer = _issuer(known)
    place = _place(request, issuer)
    try:
        url, attempt = await _asked(request, known, lambda: issuer.begin(next, _callback(place)))
    except (AccessDenied, CheckUnavailable) as error:
        return await _refused(request, known, error, _AGAIN, next)
    response = RedirectResponse(url, HTTPStatus.SEE_OTHER)
    place.keep(response, browser.ATTEMPT, attempt.cookie(), ATTEMPT_MS // SECOND_MS)
    return response


@router.get(page_addresses.CALLBACK)
async def end_login(request: Request, known: KnownServices) -> Response:
    """Back from the issuer. Its parameters are the issuer's: those that are not known are left alone."""
    issuer = _issuer(known)
    place = _place(request, issuer)
    attempt = LoginAttempt.of_cookie(browser.cookie(request, browser.ATTEMPT), known.now())
    path = "/" if attempt is None else attempt.path

    def proof() -> LoginProof:
        if attempt is None:
            raise AccessDenied("no login was begun in this browser, or too long ago")
        pairs = request.query_params.multi_items()
        if len(dict(pairs)) < len(pairs):
            raise AccessDenied("the callback has a parameter more than once")
        return issuer.finish(dict(pairs), attempt, _callback(place))

    try:
        found = await _asked(request, known, proof)
        response = await _begun(request, known, found, place, path)
    except (AccessDenied, CheckUnavailable) as error:
        response = await _refused(request, known, error, _AGAIN, path)
    place.drop(response, browser.ATTEMPT)
    return response


@router.post(page_addresses.LOGIN, dependencies=[Depends(refuse_unknown_parameters)])
async def take_key(request: Request, known: KnownServices) -> Response:
    """The form with a key. It must have come from our own page to this browser: else a page of another site
    could log somebody in as its own owner, who then sees what they look at."""
    browser.check_same_site(request, known.login.public_url)
    fields = await browser.form_fields(request)
    for name in fields:
        if name not in _FIELDS:
            raise unknown_key(name, ", ".join(_FIELDS))
    path = local_path(fields.get("next", "/"))
    held = browser.cookie(request, browser.FORM)
    if not held or not browser.is_same(fields.get(browser.CSRF, ""), csrf_token(held)):
        return await _login_page(request, known, path, _NO_COOKIE, HTTPStatus.FORBIDDEN)
    key = fields.get("key", "").strip()
    try:
        proof = await run_in_threadpool(known.login.sessions.by_key, key)
        return await _begun(request, known, proof, place_of_form(request), path)
    except (AccessDenied, CheckUnavailable) as error:
        return await _refused(request, known, error, _WRONG_KEY, path)


@router.post(page_addresses.LOGOUT, dependencies=[Depends(refuse_unknown_parameters)])
async def log_out(request: Request, known: KnownServices) -> Response:
    """Ends the session, in every process at once."""
    token = browser.cookie(request, browser.SESSION)
    if token:
        await browser.check_change(request, token, known.login.public_url)
        await run_in_threadpool(known.login.sessions.end, token)
    response = RedirectResponse(page_addresses.LOGIN, HTTPStatus.SEE_OTHER)
    place_of_form(request).drop(response, browser.SESSION)
    return response


def _issuer(known: ApiServices) -> IssuerLogin:
    issuer = known.login.issuer
    if issuer is None or known.settings.auth == "off":
        raise not_found("access.oidc.issuer", "", "nobody logs in at an issuer here")
    return issuer


def _place(request: Request, issuer: IssuerLogin) -> BrowserPlace:
    """The address that the issuer sends people back to, which decides how the cookies are kept there."""
    parts = urlsplit(issuer.redirect_url)
    return BrowserPlace(f"{parts.scheme}://{parts.netloc}") if issuer.redirect_url else place_of(request)


def _callback(place: BrowserPlace) -> str:
    return f"{place.origin}{page_addresses.CALLBACK}"


async def _asked(request: Request, known: ApiServices, ask: Callable[[], T]) -> T:
    """What the issuer answers, when it is the turn of this address."""
    async with known.gate.asking(address_of(request)):
        return await in_own_thread(ask)


async def _begun(
    request: Request, known: ApiServices, proof: LoginProof, place: BrowserPlace, path: str
) -> Response:
    """On to ``path``, with a new session."""
    sessions, before = known.login.sessions, browser.cookie(request, browser.SESSION)
    principal = await run_in_threadpool(sessions.principal, proof)
    request.scope["state"][ASKED_BY] = principal
    admit(known, principal, _LOGIN_COST)
    token, session = await run_in_threadpool(sessions.begin, proof, before)
    response = RedirectResponse(local_path(path), HTTPStatus.SEE_OTHER)
    place.keep(response, browser.SESSION, token, max(1, (session.expires_ms - known.now()) // SECOND_MS))
    place_of(request).drop(response, browser.FORM)
    return response


async def _refused(
    request: Request, known: ApiServices, error: AccessDenied | CheckUnavailable, words: str, path: str
) -> Response:
    """The log gets the reason, the person a page without it. Raises ApiError (429) for too many of an
    address."""
    refuse(request, known)
    logger.info("refused a login: %s", error)
    status = HTTPStatus.UNAUTHORIZED
    if isinstance(error, CheckUnavailable):
        words, status = _NOT_NOW, HTTPStatus.SERVICE_UNAVAILABLE
    elif isinstance(error, NotGranted):
        words, status = _NO_GRANT, HTTPStatus.FORBIDDEN
    return await _login_page(request, known, path, words, status)


async def _login_page(
    request: Request, known: ApiServices, path: str, trouble: str = "", status: HTTPStatus = HTTPStatus.OK
) -> Response:
    if known.settings.auth == "off":
        return RedirectResponse(local_path(path), HTTPStatus.SEE_OTHER)
    # One token for all tabs: the form of an earlier one stays good.
    held = browser.cookie(request, browser.FORM) or secrets.token_urlsafe(32)
    token = browser.cookie(request, browser.SESSION)
    issuer = known.login.issuer
    middle = content(
        "Log in",
        "login_page.html.j2",
        trouble=trouble,
        path=local_path(path),
        issuer="" if issuer is None else urlsplit(issuer.issuer).hostname,
        csrf=csrf_token(held),
        reader=await _reader(known, token),
        session_csrf=csrf_token(token),
    )
    page = render("bare.html.j2", content=middle, body=Markup(middle.html))
    response = HTMLResponse(page, status, {"Content-Security-Policy": PAGE_POLICY})
    place_of(request).keep(response, browser.FORM, held)
    return response


async def _reader(known: ApiServices, token: str) -> Principal | None:
    """Who is logged in in this browser."""
    if not token:
        return None
    try:
        return (await run_in_threadpool(known.login.sessions.authenticate, token))[1]
    except (AccessDenied, CheckUnavailable):
        return None
