"""POST /mcp: the tools over streamable HTTP, without sessions.

Each request is answered by itself, in JSON. It needs a key or token in its own ``Authorization`` header; a
session cookie of the pages is none, since any page that a browser shows could use it. What a tool asks, it
asks of this app with that header: in the log a call is one line for ``/mcp``, and one for each route asked.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

from fastapi import APIRouter, Depends, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import Response
from starlette.datastructures import MutableHeaders
from starlette.types import Message, Receive

from gpucost.api.routes.requests import JSON, refuse_unknown_parameters, require_json
from gpucost.api.routes.responses import chosen
from gpucost.api.server.authentication import Reader, admit, authenticate, refuse
from gpucost.api.server.errors import (
    BYTES_A_REQUEST,
    LARGEST_CALL,
    MCP_PATH,
    ApiError,
    ErrorBody,
    no_tools,
    responses,
    unauthorized,
)
from gpucost.api.server.middleware import REQUEST_ID
from gpucost.api.server.services import KnownServices
from gpucost.api.tools.api_questions import InProcessApi
from gpucost.service.reporting.rendering import ReportFormat

_PASSED_ON = ("authorization", "host")


async def require_header(request: Request, known: KnownServices) -> None:
    """A dependency that comes before authentication. Raises ApiError (401) for a request without a key or
    token of its own, whatever cookie it has, and (403) for one that a page of another site sends."""
    origin = request.headers.get("origin")
    # Compared as text: what is no address at all is no address of this server.
    if origin is not None and origin.partition("://")[2] != request.headers.get("host"):
        refuse(request, known)
        raise ApiError(
            HTTPStatus.FORBIDDEN,
            "forbidden",
            "pages of other sites are not answered",
            field="Origin",
            value=origin,
            allowed="no Origin, or that of this server",
        )
    if known.settings.auth != "off" and "authorization" not in request.headers:
        refuse(request, known)
        raise unauthorized()


router = APIRouter(
    dependencies=[
        Depends(require_header),
        Depends(authenticate),
        Depends(refuse_unknown_parameters),
        Depends(require_json),
    ]
)

_ANSWER: dict[str, Any] = {
    "type": "object",
    "properties": {"jsonrpc": {"const": "2.0"}},
    "required": ["jsonrpc"],
}
_ERROR = {"anyOf": [{"$ref": f"#/components/schemas/{ErrorBody.__name__}"}, _ANSWER]}


def _answers() -> dict[int | str, dict[str, Any]]:
    """The OpenAPI entries of the answers. Some errors are the protocol's, in its own form."""
    found = responses(400, 401, 403, 404, 406, 413, 415, 422, 501, 503)
    for status in (400, 404):
        found[status] = {"description": found[status]["description"], "content": {JSON: {"schema": _ERROR}}}
    return {
        200: {"description": "the answer of the protocol", "content": {JSON: {"schema": _ANSWER}}},
        202: {"description": "a notification was taken"},
        **found,
    }


@router.post(
    MCP_PATH,
    max_body_size=LARGEST_CALL,
    response_class=Response,
    responses=_answers(),
    openapi_extra={
        "requestBody": {
            "required": True,
            "content": {JSON: {"schema": {"type": "object", "description": "one message of JSON-RPC 2.0"}}},
        }
    },
)
async def call_tools(request: Request, principal: Reader, known: KnownServices) -> Response:
    """One message of the Model Context Protocol: the tools of assistants, which read what the caller may see.

    Every request stands alone: there are no sessions. Of its body each KiB counts as one more request
    against ``api.rate``, and so does each route that a tool asks.
    """
    chosen(request, None, (ReportFormat.JSON,))
    body = await request.body()
    admit(known, principal, len(body) // BYTES_A_REQUEST)
    headers = {name: request.headers[name] for name in _PASSED_ON if name in request.headers}
    headers[REQUEST_ID] = request.scope["state"]["request_id"]
    client = ("", 0) if request.client is None else (request.client.host, request.client.port)
    exchange = await run_in_threadpool(_exchange)
    sent = await exchange(
        InProcessApi(request.app, headers, client), _asking(request), _body(request, body), LARGEST_CALL
    )
    return _answer(sent)


def _exchange() -> Any:
    """Imported when first asked for: the service starts without it, and goes on where it is not installed."""
    try:
        from gpucost.api.tools.tool_server import exchange
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("mcp", "mcp_types"):
            raise
        raise no_tools() from None
    return exchange


def _asking(request: Request) -> dict[str, Any]:
    """The scope of the request, with all that the protocol wants to be accepted: it was checked before."""
    scope = {**request.scope, "headers": list(request.scope["headers"])}
    MutableHeaders(scope=scope)["accept"] = f"{JSON}, text/event-stream"
    return scope


def _body(request: Request, body: bytes) -> Receive:
    """The body, which was read before, once more; then what the client does."""
    is_read = False

    async def receive() -> Message:
        nonlocal is_read
        if is_read:
            return await request.receive()
        is_read = True
        return {"type": "http.request", "body": body, "more_body": False}

    return receive


def _answer(sent: list[Message]) -> Response:
    begin = next(each for each in sent if each["type"] == "http.response.start")
    content = b"".join(each.get("body", b"") for each in sent if each["type"] == "http.response.body")
    kinds = [value.decode("latin-1") for name, value in begin["headers"] if name.lower() == b"content-type"]
    return Response(content, begin["status"], media_type=kinds[0] if content and kinds else None)
