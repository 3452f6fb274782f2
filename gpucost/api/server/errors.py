"""One error shape for everything that is not a success, and the only place that makes it.

    {"error": {"code": "invalid_value", "message": "…", "field": "month", "value": "2026-13", "allowed": "…"}}

``field``, ``value`` and ``allowed`` are null where they do not apply. A 500 says nothing of its cause; the
log does.

The limits on the size of a request body are here too.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.dependencies.utils import get_flat_params
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from fastapi.routing import APIRoute
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from gpucost.domain.errors import (
    InputError,
    LedgerConflict,
    LedgerError,
    LedgerUnavailable,
    MonthClosed,
    shorten,
)
from gpucost.ledger.db.records import MonthOpen
from gpucost.notify.alertmanager import MAX_BYTES

ADVICE_PATH = "/v1/advisor/advice"
LARGEST_MANIFEST = 128 * 1024
"""Largest body in bytes there, JSON or YAML: a manifest of 100 kB is a large one."""
MOST_MANIFEST_VALUES = 20_000
"""Most keys, plain values, lists and mappings in it: twice what a manifest of 100 kB holds. Reading as many
from YAML takes 30 ms; beyond that, reading stops."""
BYTES_A_REQUEST = 1024
"""Bytes of a manifest that count as one more request against ``api.rate``: reading them takes as long as
answering a small request, about a millisecond."""
ALERTS_PATH = "/v1/alerts/alertmanager"
LARGEST_GROUP = MAX_BYTES
MCP_PATH = "/mcp"
LARGEST_CALL = LARGEST_MANIFEST + 32 * 1024
"""Largest message of the Model Context Protocol in bytes: a manifest, and what is around it."""
ADVISE_PATH = "/advise"
LARGEST_ADVISE_FORM = 4 * LARGEST_MANIFEST
"""A manifest in a form: most of its characters may be written as three."""
_LARGER: Mapping[str, int] = {
    ADVICE_PATH: LARGEST_MANIFEST,
    ADVISE_PATH: LARGEST_ADVISE_FORM,
    ALERTS_PATH: LARGEST_GROUP,
    MCP_PATH: LARGEST_CALL,
}


def most_bytes(path: str, usual: int) -> int:
    """The largest body on ``path``; ``usual`` is ``api.max_body_bytes``."""
    return _LARGER.get(path, usual)


logger = logging.getLogger(__name__)

HUNG_UP = 499
"""In log and metrics, for a client that closed the connection before its whole request was here; no response
is sent. No status of HTTP; nginx counts such requests under this one."""
_RETRY_AFTER_S = 5
_LONGEST_VALUE = 120
# The framework's words for its own checks -> the allowed values.
_PLAIN_WORDS = (
    (re.compile(r"Input should be a valid integer.*"), "a whole number"),
    (re.compile(r"Input should be (greater|less) than or equal to (.+)"), r"a number \1 than or equal to \2"),
    (re.compile(r".* should have at most (\d+) (?:characters|items).*"), r"at most \1 characters"),
    (re.compile(r"Input should be a valid string"), "text"),
    (re.compile(r"Input should be "), ""),
)


class ErrorDetail(BaseModel):
    """What went wrong."""

    code: str = Field(description="stable name of the error, such as invalid_value")
    message: str = Field(description="one sentence for a person")
    field: str | None = Field(description="the parameter it is about")
    value: str | None = Field(description="what was sent, cut to 120 characters")
    allowed: str | None = Field(description="what would have been accepted")


class ErrorBody(BaseModel):
    """The body of every answer that is not a success."""

    error: ErrorDetail


class ApiError(Exception):
    """A response that is not a success; the handler below gives it the one shape."""

    def __init__(
        self,
        status: HTTPStatus,
        code: str,
        message: str,
        *,
        field: str | None = None,
        value: object = None,
        allowed: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self.status = status
        self.headers = dict(headers or {})
        text = value if isinstance(value, str) else repr(value)
        # A lone surrogate has no encoding in UTF-8, so it cannot be sent back as it is.
        shown = None if value is None else _encodable(text[:_LONGEST_VALUE])
        self.body = ErrorBody(
            error=ErrorDetail(
                code=code, message=_encodable(message), field=field, value=shown, allowed=allowed
            )
        )
        super().__init__(message)

    def response(self) -> Response:
        return JSONResponse(self.body.model_dump(), status_code=self.status, headers=self.headers)


def unauthorized() -> ApiError:
    """The same for a missing, malformed, unknown, expired and revoked key."""
    return ApiError(
        HTTPStatus.UNAUTHORIZED,
        "unauthorized",
        "this needs a valid API key or token",
        allowed="the header Authorization: Bearer gpc_<id>_<secret>, or Bearer and a token",
        headers={"WWW-Authenticate": "Bearer"},
    )


def undecided() -> ApiError:
    """The caller cannot be identified now: the issuer of its token does not answer, or too many tokens are
    being checked."""
    return ApiError(
        HTTPStatus.SERVICE_UNAVAILABLE,
        "undecided",
        "the token cannot be checked now: its issuer does not answer, or is asked too much",
        headers={"Retry-After": str(_RETRY_AFTER_S)},
    )


def forbidden(role: str, what: str = "read this") -> ApiError:
    return ApiError(
        HTTPStatus.FORBIDDEN, "forbidden", f"the role {role} may not {what}", field="Authorization"
    )


def nothing_granted() -> ApiError:
    """The caller is identified by a good token, but the settings grant nothing to it."""
    return ApiError(
        HTTPStatus.FORBIDDEN,
        "forbidden",
        "the token is good, but nothing is granted to its owner",
        field="Authorization",
        allowed="somebody whom a grant in access.grants fits",
    )


def cross_site() -> ApiError:
    """A browser says that a page of another site asks for a change."""
    return ApiError(
        HTTPStatus.FORBIDDEN,
        "cross_site",
        "a page of another site asks for a change: only pages of this service may",
        field="Origin",
        allowed="a page of this service, at the address in the browser or the one that notify.base_url says",
    )


def no_csrf_token(allowed: str) -> ApiError:
    """A change by a session without the token that only its own pages have."""
    return ApiError(
        HTTPStatus.FORBIDDEN,
        "csrf",
        "the change does not carry the token of its page: open the page again, and repeat it",
        field="csrf",
        allowed=allowed,
    )


def not_found(field: str, value: object, message: str, allowed: str | None = None) -> ApiError:
    """``field`` is the parameter as the route names it; ``allowed`` lists what there is, if known."""
    return ApiError(HTTPStatus.NOT_FOUND, "not_found", message, field=field, value=value, allowed=allowed)


def unknown_parameter(name: str, allowed: tuple[str, ...]) -> ApiError:
    names = ", ".join(allowed) or "no parameters"
    return ApiError(
        HTTPStatus.BAD_REQUEST,
        "unknown_parameter",
        f"{name}: there is no such parameter; allowed: {names}",
        field=name[:100],
        allowed=names,
    )


def unknown_key(name: str, allowed: str) -> ApiError:
    """A key of a body that its route does not have."""
    shown = shorten(name)
    return ApiError(
        HTTPStatus.BAD_REQUEST,
        "unknown_parameter",
        f"body: there is no such key as {shown}; allowed: {allowed}",
        field=_encodable(name[:100]),
        allowed=allowed,
    )


def repeated_parameter(name: str) -> ApiError:
    return ApiError(
        HTTPStatus.BAD_REQUEST,
        "repeated_parameter",
        f"{name}: given more than once",
        field=name,
        allowed="once; several values are written with commas",
    )


def missing_parameter(name: str, allowed: str | None) -> ApiError:
    return ApiError(
        HTTPStatus.UNPROCESSABLE_ENTITY,
        "missing_parameter",
        f"{name}: missing" + (f"; allowed: {allowed}" if allowed else ""),
        field=name,
        allowed=allowed,
    )


def media_type(request: Request) -> str:
    """What the header says that the body is: ``application/json`` of ``Application/JSON; charset=utf-8``."""
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


def check_media_type(request: Request, *allowed: str) -> None:
    """Raises ApiError (415) for a body that is of none of the media types ``allowed``."""
    if media_type(request) in allowed:
        return
    names = ", ".join(allowed)
    raise ApiError(
        HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
        "unsupported_media_type",
        f"the header Content-Type must say what the body is: {names}",
        field="Content-Type",
        value=request.headers.get("content-type", ""),
        allowed=names,
    )


def too_large(limit: int) -> ApiError:
    return ApiError(
        HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
        "too_large",
        f"the request body is larger than {limit} bytes",
        field="body",
        allowed=f"at most {limit} bytes",
    )


def wrong_host(host: str) -> ApiError:
    return ApiError(
        HTTPStatus.MISDIRECTED_REQUEST,
        "wrong_host",
        "without API keys only loopback names are answered",
        field="Host",
        value=host,
        allowed="localhost, 127.0.0.1 or [::1]",
    )


def loop_stalled(reason: str) -> ApiError:
    return ApiError(HTTPStatus.SERVICE_UNAVAILABLE, "loop_stalled", f"nothing is ingested: {reason}")


def no_state(reason: str) -> ApiError:
    """The advisor has no current state to answer from."""
    return ApiError(
        HTTPStatus.SERVICE_UNAVAILABLE,
        "no_state",
        reason,
        headers={"Retry-After": str(_RETRY_AFTER_S)},
    )


def no_tools() -> ApiError:
    """The package of the Model Context Protocol is not installed."""
    return ApiError(
        HTTPStatus.NOT_IMPLEMENTED,
        "no_tools",
        "this gpucost was installed without the Model Context Protocol",
        allowed="an installation of gpucost[server,mcp], as the image is",
    )


def not_told() -> ApiError:
    """There is no channel for notifications."""
    return ApiError(
        HTTPStatus.CONFLICT,
        "not_told",
        "nobody would be told: notify.enabled is off, or notify.channels is empty",
        allowed="the settings notify.channels and notify.routes, or no webhook to here",
    )


def advisor_busy(most: int, key: str = "") -> ApiError:
    """``most`` 1: of this key."""
    what = f"{most} questions are" if most > 1 else f"a question of the key {key} is"
    return ApiError(
        HTTPStatus.SERVICE_UNAVAILABLE,
        "advisor_busy",
        f"{what} being answered; trying again is safe",
        headers={"Retry-After": "1"},
    )


def too_many(what: str, wait_s: int) -> ApiError:
    """There are too many of ``what``; try again after ``wait_s``."""
    return ApiError(
        HTTPStatus.TOO_MANY_REQUESTS,
        "too_many_requests",
        f"too many {what}; trying again is safe",
        headers={"Retry-After": str(max(1, wait_s))},
    )


def too_busy(most: int) -> ApiError:
    return ApiError(
        HTTPStatus.SERVICE_UNAVAILABLE,
        "too_busy",
        f"{most} reports or queries are being worked out; trying again is safe",
        headers={"Retry-After": str(_RETRY_AFTER_S)},
    )


def unhandled(request_id: str = "") -> ApiError:
    """``request_id`` finds this error in the log of the service."""
    where = f" (request {request_id})" if request_id else ""
    return ApiError(
        HTTPStatus.INTERNAL_SERVER_ERROR,
        "internal",
        f"something went wrong here, not in the request; the log of the service says what{where}",
    )


def responses(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The OpenAPI entries of the errors a route may answer with. A route with authentication may refuse for
    lack of a grant (403), for too many requests (429), and for a token that cannot be checked now (503)."""
    if HTTPStatus.UNAUTHORIZED in statuses:
        more = (HTTPStatus.FORBIDDEN, HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE)
        statuses = tuple({*statuses, *more})
    return {
        status: {"model": ErrorBody, "description": HTTPStatus(status).phrase} for status in sorted(statuses)
    }


ErrorPage = Callable[[Request, int, ErrorDetail, Mapping[str, str]], Awaitable[Response]]
"""The answer for a person who reads it in a browser, with the headers of the answer that it replaces."""
ErrorHandler = Callable[[Request, Exception], Awaitable[Response]]


def install(app: FastAPI, wants_page: Callable[[Request], bool], page: ErrorPage) -> None:
    """Every exception that can reach the edge gets the one shape; where somebody ``wants_page``, in a
    ``page``."""
    handlers: tuple[tuple[type[Exception], ErrorHandler], ...] = (
        (ApiError, _api_error),
        (InputError, _input_error),
        (RequestValidationError, _validation_error),
        (LedgerUnavailable, _ledger_unavailable),
        (LedgerError, _ledger_error),
        (HTTPException, _http_error),
        (ClientDisconnect, _hung_up),
        (Exception, _unhandled),
    )

    def readable(handler: ErrorHandler) -> ErrorHandler:
        async def answer(request: Request, error: Exception) -> Response:
            found = await handler(request, error)
            if found.status_code == HUNG_UP or not wants_page(request):
                return found
            said = ErrorBody.model_validate_json(bytes(found.body)).error
            return await page(request, found.status_code, said, found.headers)

        return answer

    for kind, handler in handlers:
        app.add_exception_handler(kind, readable(handler))


async def _api_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return error.response()


async def _input_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, InputError)
    found = InputError(error.field, _as_written(request, error), error.allowed)
    return ApiError(
        HTTPStatus.UNPROCESSABLE_ENTITY,
        "invalid_value",
        str(found),
        field=found.field,
        value=found.value,
        allowed=found.allowed,
    ).response()


def _as_written(request: Request, error: InputError) -> object:
    """The value as it stands in the request; of a list, the part that is wrong."""
    written = request.query_params.get(error.field)
    if written is None or (isinstance(error.value, str) and error.value in written.split(",")):
        return error.value
    return written


async def _validation_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    # ("query", "format", "literal['json','csv']"): where, the parameter, and which of its types it missed.
    field = str(first["loc"][1])
    if first["type"] == "missing":
        return missing_parameter(field, _described(request, field)).response()
    return await _input_error(request, InputError(field, first.get("input"), plain_words(str(first["msg"]))))


def plain_words(message: str) -> str:
    """The framework's words for what is allowed -> ours."""
    for pattern, words in _PLAIN_WORDS:
        message = pattern.sub(words, message)
    return message


def _encodable(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()


def _described(request: Request, name: str) -> str | None:
    """The description of a parameter in the route."""
    route = request.scope.get("route")
    fields = get_flat_params(route.dependant) if isinstance(route, APIRoute) else []
    return next((field.field_info.description for field in fields if field.alias == name), None)


async def _ledger_unavailable(_: Request, error: Exception) -> Response:
    logger.warning("ledger unavailable: %s", shorten(str(error), 500))
    return ApiError(
        HTTPStatus.SERVICE_UNAVAILABLE,
        "ledger_unavailable",
        "the ledger cannot be read now; trying again is safe",
        headers={"Retry-After": str(_RETRY_AFTER_S)},
    ).response()


async def _ledger_error(request: Request, error: Exception) -> Response:
    """The ledger refused: with its own state as the reason (409), or for a reason that stands in the log only
    (503)."""
    if isinstance(error, LedgerConflict | MonthClosed | MonthOpen):
        return ApiError(HTTPStatus.CONFLICT, "ledger_conflict", str(error)).response()
    logger.error("ledger error: %s", shorten(str(error), 500))
    return await _ledger_unavailable(request, error)


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    status, headers = HTTPStatus(error.status_code), dict(error.headers or {})
    if status is HTTPStatus.NOT_FOUND:
        return ApiError(
            status, "not_found", "nothing is at this address", allowed="a path that GET / lists"
        ).response()
    if status is HTTPStatus.REQUEST_ENTITY_TOO_LARGE:
        # Of a body without a length, whose size is known only after reading.
        usual = request.app.state.services.settings.max_body_bytes
        return too_large(most_bytes(request.url.path, usual)).response()
    if status is HTTPStatus.METHOD_NOT_ALLOWED:
        methods = headers.get("Allow") or headers.get("allow") or "GET"
        headers = {"Allow": "GET, HEAD" if "GET" in methods else methods}
    code = status.phrase.lower().replace(" ", "_")
    allowed = headers.get("Allow")
    return ApiError(
        status, code, status.description or status.phrase, allowed=allowed, headers=headers
    ).response()


async def _hung_up(_: Request, error: Exception) -> Response:
    del error
    return Response(status_code=HUNG_UP)


async def _unhandled(request: Request, error: Exception) -> Response:
    # The path only: a query may hold secrets put there by mistake.
    logger.error("unhandled error in %s %r", request.method, request.url.path, exc_info=error)
    return unhandled(str(request.scope.get("state", {}).get("request_id", ""))).response()
