"""How a tool asks the API: a question, the answer as JSON values, and a refusal as the API words it."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, TypeAlias
from urllib.parse import quote

import httpx2
from starlette.types import ASGIApp

from gpucost.api.server.errors import ApiError
from gpucost.domain.errors import GpuCostError, InputError


@dataclass(frozen=True, slots=True)
class ApiQuestion:
    """A GET of ``path``, or with a ``body`` a POST. Nothing that a tool asks changes anything."""

    path: str
    query: Mapping[str, str] = field(default_factory=dict)
    body: Mapping[str, Any] | None = None


class ToolRefusal(Exception):
    """The API, or a tool, refuses: the parts are those of the API's errors."""

    def __init__(self, code: str, message: str, parts: Mapping[str, str | None] | None = None) -> None:
        super().__init__(message)
        self.document: dict[str, str | None] = {
            "code": code,
            "message": message,
            **{name: (parts or {}).get(name) for name in ("field", "value", "allowed")},
        }

    @classmethod
    def of(cls, error: ApiError | GpuCostError) -> ToolRefusal:
        """An error as the API would have worded it."""
        if isinstance(error, ApiError):
            found = error.body.error
            return cls(found.code, found.message, found.model_dump())
        if isinstance(error, InputError):
            parts = {"field": error.field, "value": str(error.value), "allowed": error.allowed}
            return cls("invalid_value", str(error), parts)
        return cls("unavailable", str(error))


AskApi: TypeAlias = Callable[[ApiQuestion], Awaitable[Any]]
"""Gives the answer as JSON values; raises ToolRefusal."""


def path_part(field: str, text: str) -> str:
    """The value of ``field`` as one part of a path: ``.`` and ``..`` would lead elsewhere. Raises ToolRefusal
    for a slash, which nothing that stands in a path has."""
    if "/" in text:
        parts = {"field": field, "value": text[:120], "allowed": "text without slashes"}
        raise ToolRefusal("invalid_value", f"{field}: it has a slash; allowed: text without slashes", parts)
    written = quote(text, safe="")
    return written if text.strip(".") else written.replace(".", "%2E")


def query_of(**given: object) -> dict[str, str]:
    """The parameters of a query that were given."""
    return {name: str(value) for name, value in given.items() if value is not None}


@dataclass(frozen=True, slots=True)
class InProcessApi:
    """The app, asked in this process and through all its layers, as whoever the ``headers`` say: the caller's
    own credential, host and request id. ``client`` is the caller's address, by which refusals are counted."""

    app: ASGIApp
    headers: Mapping[str, str]
    client: tuple[str, int] = ("127.0.0.1", 0)

    async def __call__(self, question: ApiQuestion) -> Any:
        transport = httpx2.ASGITransport(self.app, raise_app_exceptions=False, client=self.client)
        async with httpx2.AsyncClient(
            transport=transport, base_url="http://localhost", trust_env=False
        ) as client:
            found = await client.request(
                "GET" if question.body is None else "POST",
                question.path,
                params=dict(question.query),
                json=question.body,
                headers={**self.headers, "Accept": "application/json"},
            )
        return answer_of(found.status_code, found.content)


def answer_of(status: int, content: bytes) -> Any:
    """The JSON values of an answer. Raises ToolRefusal for an error."""
    if status < HTTPStatus.BAD_REQUEST:
        return json.loads(content)
    error = json.loads(content)["error"]
    raise ToolRefusal(error["code"], error["message"], error)
