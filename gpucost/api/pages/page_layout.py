"""What all pages share: the frame with its navigation, the policy of the browser, errors, style and script.

A page is made in two parts. ``PageContent`` is its middle: it depends on the question, on the scope and on
the ledger only, so that ``shown`` keeps it like any other answer of the API, for all who may see the same.
The frame is of the reader (name, log-out, search) and is put around it for every request; what has a form in
it has the reader's CSRF token, is of one reader too, and is never kept (``PageFrame.form_token``).

Nothing is inline and nothing is fetched from elsewhere: the style and the script are files of this service,
named by their hash, so that browsers keep them until they change. Pages work without the script.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from functools import cache
from http import HTTPStatus
from importlib.resources import files
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import RedirectResponse, Response
from jinja2 import ChoiceLoader, Environment, PackageLoader
from markupsafe import Markup
from starlette.responses import HTMLResponse

from gpucost.access.code_flow import local_path
from gpucost.access.principal import LOOPBACK, Principal
from gpucost.api.routes.responses import cached_answer
from gpucost.api.server import browser
from gpucost.api.server.browser import CSRF
from gpucost.api.server.errors import ErrorDetail, not_found, unknown_key
from gpucost.api.server.middleware import ASKED_BY
from gpucost.api.server.services import ApiServices
from gpucost.domain.scope import Scope
from gpucost.domain.time import Month
from gpucost.reports.base import page_addresses
from gpucost.reports.render.html import STYLE, template_environment

PAGE_POLICY = (
    "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HTML = "text/html"
_HEADERS = {"Content-Security-Policy": PAGE_POLICY}
_STATIC = ("pages.css", "pages.js", "icon.svg")
_KEPT_S = 365 * 86_400
_MOST_MONTHS = 36

public = APIRouter(include_in_schema=False)


@dataclass(frozen=True, slots=True)
class PageContent:
    """The middle of a page: its title, and HTML that is escaped already."""

    title: str
    html: str


@dataclass(frozen=True)
class PageFrame:
    """What stands around a page. ``section`` is the key of the navigation that it belongs to, ``month`` the
    one that links of the navigation lead to."""

    request: Request
    known: ApiServices
    principal: Principal
    section: str = ""
    month: Month | None = None
    status: int = HTTPStatus.OK
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def form_token(self) -> str:
        """What forms of this reader carry in the field ``csrf``."""
        return str(self.request.scope.get("state", {}).get(CSRF, ""))

    async def response(self, content: PageContent) -> Response:
        """The whole page."""
        months = await months_seen(self.known, self.principal.scope)
        month = self.month or (months[0] if months else None)
        page = render(
            "frame.html.j2",
            content=content,
            body=Markup(content.html),
            section=self.section,
            month=month,
            months=months,
            reader=None if self.principal is LOOPBACK else self.principal,
            csrf=self.form_token,
            query=self.request.query_params.get("q", "") if self.section == "search" else "",
            here=self.request.url.path,
        )
        return HTMLResponse(page, self.status, {**self.headers, **_HEADERS})


async def shown(
    frame: PageFrame, asked: tuple[Hashable, ...], make: Callable[[], PageContent], *, heavy: bool = True
) -> Response:
    """The page whose middle is ``make``'s, kept under ``asked`` while the ledger stays as it is. Errors of
    ``make`` are raised, as for any route."""
    known, scope = frame.known, frame.principal.scope
    return await frame.response(await cached_answer(known, scope, ("page", *asked), make, heavy=heavy))


async def months_seen(known: ApiServices, scope: Scope) -> tuple[Month, ...]:
    """The months that a reader may choose from, the newest first."""

    def read() -> tuple[Month, ...]:
        return tuple(reversed(known.reporting.months(scope)))[:_MOST_MONTHS]

    return await cached_answer(known, scope, ("months to choose from",), read, heavy=False)


def render(template: str, **values: Any) -> str:
    """A template of ``pages/templates``, or of ``reports/templates``, which its macros come from."""
    return _environment().get_template(template).render(**values)


def content(title: str, template: str, **values: Any) -> PageContent:
    """The middle of a page out of a template."""
    return PageContent(title, render(template, **values))


@cache
def _environment() -> Environment:
    environment = template_environment(
        ChoiceLoader([PackageLoader("gpucost.api.pages"), PackageLoader("gpucost.reports")])
    )
    environment.globals.update(
        to=page_addresses,
        address=page_addresses.address,
        static={name: f"/static/{static_name(name)}" for name in _STATIC},
    )
    return environment


def static_name(name: str) -> str:
    """``pages.css`` with its hash: ``pages-0123456789ab.css``."""
    stem, _, ending = name.rpartition(".")
    return f"{stem}-{hashlib.sha256(_static(name)).hexdigest()[:12]}.{ending}"


@cache
def _static(name: str) -> bytes:
    found = files("gpucost.api.pages").joinpath("static", name).read_bytes()
    if name != "pages.css":
        return found
    # The style of reports, so that a table looks the same on a page and on paper.
    return files("gpucost.reports").joinpath("templates", STYLE).read_bytes() + found


@public.get("/static/{name}")
async def static_file(name: str) -> Response:
    """Style and script: the same for everybody, and nothing of anybody."""
    types = {"css": "text/css; charset=utf-8", "js": "text/javascript; charset=utf-8", "svg": "image/svg+xml"}
    found = next((each for each in _STATIC if static_name(each) == name), None)
    if found is None:
        raise not_found("name", name, "no such file")
    headers = {"Cache-Control": f"public, max-age={_KEPT_S}, immutable"}
    return Response(_static(found), media_type=types[found.rpartition(".")[2]], headers=headers)


async def read_form(request: Request, *names: str) -> dict[str, str]:
    """What a form of this service was sent with: the text of each of ``names``, empty where it is missing.

    Sent from a page of another site, or with a field that is not of the form, it is refused (ApiError,
    InputError): a browser posts forms for whoever asks it to. Authentication has checked the token of the
    session; here it is for a reader without one, on loopback.
    """
    browser.check_same_site(request, request.app.state.services.login.public_url)
    found = await browser.form_fields(request)
    for name in found:
        if name not in (*names, CSRF):
            raise unknown_key(name, ", ".join(names))
    return {name: found.get(name, "").replace("\r\n", "\n") for name in names}


def is_page(request: Request) -> bool:
    """Whether a person reads the answer: a browser asks, and not for a route of the API."""
    path = request.url.path
    if path.startswith(("/v1/", "/static/", "/healthz")) or path in ("/metrics", "/readyz", "/mcp"):
        return False
    return HTML in request.headers.get("accept", "")


async def error_page(
    request: Request, status: int, error: ErrorDetail, headers: Mapping[str, str]
) -> Response:
    """What went wrong, for a person: who is not known is sent to the log-in, and comes back here after it."""
    if status == HTTPStatus.UNAUTHORIZED:
        here = request.url.path + (f"?{request.url.query}" if request.url.query else "")
        # One that the log-in would not lead back to, because it is too long, would be refused there.
        back = local_path(here) if request.method == "GET" else page_addresses.HOME
        login = page_addresses.address(page_addresses.LOGIN, next="" if back == page_addresses.HOME else back)
        return RedirectResponse(login, HTTPStatus.SEE_OTHER)
    middle = content(HTTPStatus(status).phrase, "error.html.j2", error=error, status=status)
    principal = request.scope.get("state", {}).get(ASKED_BY)
    kept = {name: value for name, value in headers.items() if name.lower() in ("retry-after", "allow")}
    known = request.app.state.services
    if status < HTTPStatus.INTERNAL_SERVER_ERROR and isinstance(principal, Principal):
        return await PageFrame(request, known, principal, status=status, headers=kept).response(middle)
    # Nobody known, or a ledger that may not answer: no navigation.
    page = render("bare.html.j2", content=middle, body=Markup(middle.html))
    return HTMLResponse(page, status, {**kept, **_HEADERS})
