"""One error shape for everything that is not a success, and the only place that makes it.

    {"error": {"code": "invalid_value", "message": "…", "field": "month", "value": "2026-13", "allowed": "…"}}

``field``, ``value`` and ``allowed`` are null where they do not apply. A 500 says nothing of its cause;
the log does.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException

from gpucost.domain.errors import InputError, LedgerUnavailable

logger = logging.getLogger(__name__)

_RETRY_AFTER_S = 5
_LONGEST_VALUE = 120


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
    """An answer that is not a success; the handler below turns it into the one shape."""

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
        shown = None if value is None else text[:_LONGEST_VALUE]
        self.body = ErrorBody(
            error=ErrorDetail(code=code, message=message, field=field, value=shown, allowed=allowed)
        )
        super().__init__(message)

    def response(self) -> Response:
        return JSONResponse(self.body.model_dump(), status_code=self.status, headers=self.headers)


def unauthorized() -> ApiError:
    """The same for a missing, malformed, unknown, expired and revoked key."""
    return ApiError(
        HTTPStatus.UNAUTHORIZED,
        "unauthorized",
        "this needs a valid API key",
        allowed="the header Authorization: Bearer gpc_<id>_<secret>",
        headers={"WWW-Authenticate": "Bearer"},
    )


def forbidden(role: str) -> ApiError:
    return ApiError(
        HTTPStatus.FORBIDDEN, "forbidden", f"the role {role} may not read this", field="Authorization"
    )


def not_found(field: str, value: object) -> ApiError:
    return ApiError(HTTPStatus.NOT_FOUND, "not_found", f"no such {field}", field=field, value=value)


def unknown_parameter(name: str, allowed: tuple[str, ...]) -> ApiError:
    names = ", ".join(allowed) or "no parameters"
    return ApiError(
        HTTPStatus.BAD_REQUEST,
        "unknown_parameter",
        f"{name}: there is no such parameter; allowed: {names}",
        field=name[:100],
        allowed=names,
    )


def repeated_parameter(name: str) -> ApiError:
    return ApiError(
        HTTPStatus.BAD_REQUEST,
        "repeated_parameter",
        f"{name}: given more than once",
        field=name,
        allowed="once; several values are written with commas",
    )


def missing_parameter(name: str) -> ApiError:
    message = f"{name}: missing"
    return ApiError(HTTPStatus.UNPROCESSABLE_ENTITY, "missing_parameter", message, field=name)


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


def unhandled() -> ApiError:
    return ApiError(
        HTTPStatus.INTERNAL_SERVER_ERROR,
        "internal",
        "something went wrong here, not in the request; the log of the service says what",
    )


def responses(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The OpenAPI entries of the errors a route may answer with."""
    return {
        status: {"model": ErrorBody, "description": HTTPStatus(status).phrase} for status in sorted(statuses)
    }


def install(app: FastAPI) -> None:
    """Every exception that can reach the edge gets the one shape."""
    app.add_exception_handler(ApiError, _api_error)
    app.add_exception_handler(InputError, _input_error)
    app.add_exception_handler(RequestValidationError, _validation_error)
    app.add_exception_handler(LedgerUnavailable, _ledger_unavailable)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(Exception, _unhandled)


async def _api_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return error.response()


async def _input_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, InputError)
    return ApiError(
        HTTPStatus.UNPROCESSABLE_ENTITY,
        "invalid_value",
        str(error),
        field=error.field,
        value=error.value,
        allowed=error.allowed,
    ).response()


async def _validation_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    field = str(first["loc"][-1])
    if first["type"] == "missing":
        return missing_parameter(field).response()
    return await _input_error(
        request, InputError(field, first.get("input"), str(first["msg"]).removeprefix("Input should be "))
    )


async def _ledger_unavailable(_: Request, error: Exception) -> Response:
    logger.warning("ledger unavailable: %s", error)
    return ApiError(
        HTTPStatus.SERVICE_UNAVAILABLE,
        "ledger_unavailable",
        "the ledger cannot be read now; trying again is safe",
        headers={"Retry-After": str(_RETRY_AFTER_S)},
    ).response()


async def _http_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    status = HTTPStatus(error.status_code)
    code = status.phrase.lower().replace(" ", "_")
    return ApiError(status, code, status.description or status.phrase, headers=error.headers).response()


async def _unhandled(request: Request, error: Exception) -> Response:
    # The path only: a query may hold what somebody should not have put there.
    logger.error("unhandled error in %s %r", request.method, request.url.path, exc_info=error)
    return unhandled().response()
