"""What routes read of a request: JSON bodies with the keys of their route only, and query parameters.

No parameter is ignored: one that a route does not declare, or gets twice, is refused by name.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from typing import Annotated, Any, TypeVar

from fastapi import Request, params
from fastapi.concurrency import run_in_threadpool
from fastapi.dependencies.utils import get_flat_params
from fastapi.routing import APIRoute
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from pydantic.json_schema import SkipJsonSchema
from pydantic_core import PydanticCustomError, from_json

from gpucost.api.server.errors import (
    check_media_type,
    plain_words,
    repeated_parameter,
    unknown_key,
    unknown_parameter,
)
from gpucost.domain.errors import ErrorRemark, InputError
from gpucost.ledger.stores.findings import LONGEST_NOTE

JSON = "application/json"
YAML = ("application/yaml", "application/x-yaml", "text/yaml")
_LONGEST_TIME = 64

Words = Annotated[str, Field(max_length=LONGEST_NOTE)]
TimeText = Annotated[str, Field(max_length=_LONGEST_TIME)] | SkipJsonSchema[None]


def require_type(*allowed: str) -> Callable[[Request], None]:
    """A dependency of every route with a body, of one of the media types ``allowed``.

    A page of another site can make a browser post forms and plain text anywhere, to a gpucost on loopback
    without keys too, but neither JSON nor YAML: for those the browser sends a preflight request, and this API
    never allows it.
    """

    def check(request: Request) -> None:
        check_media_type(request, *allowed)

    return check


require_json = require_type(JSON)


class RequestBody(BaseModel):
    """No value is converted, no key ignored."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class AcknowledgeBody(RequestBody):
    """That somebody knows."""

    note: Annotated[Words, Field(description="what there is to say; at most 1,000 characters")] = ""


class MuteBody(RequestBody):
    """How long to be silent, as one of ``until`` and ``for``, and why."""

    until: Annotated[
        TimeText,
        Field(
            description="a day (midnight UTC) or an instant in RFC 3339 with a zone, at most a year from now",
            examples=["2026-12-01", "2026-12-01T08:00:00Z"],
        ),
    ] = None
    duration: Annotated[
        TimeText,
        Field(alias="for", description="a duration such as 8h or 2w, at most a year", examples=["2w"]),
    ] = None
    reason: Annotated[Words, Field(description="why; at most 1,000 characters")] = ""


class UnmuteBody(RequestBody):
    """Why a mute ends."""

    reason: Annotated[Words, Field(description="why; at most 1,000 characters")] = ""


class AdviceBody(RequestBody):
    """A manifest, and what to answer."""

    manifest: Annotated[
        dict[str, Any],
        Field(description="the manifest of one job, as kubectl sends it: kind, metadata, spec"),
    ]
    suggestions: Annotated[
        bool, Field(description="whether to look for changes that help, which takes longer")
    ] = True


B = TypeVar("B", bound=RequestBody)


def read(model: type[B]) -> Callable[[Request], Awaitable[B]]:
    """A dependency that reads the body. It comes after authentication: the body of an unknown caller is not
    parsed. Raises ApiError and InputError, which name the key."""

    async def body(request: Request) -> B:
        return await run_in_threadpool(parsed, model, await request.body())

    return body


def parsed(model: type[B], content: bytes) -> B:
    """Raises ApiError and InputError, which name the key.

    Only the first error is looked for and reported: pydantic makes an error, with all input in it, for each
    of thousands of unknown keys, which takes half a second.
    """
    _refuse_unknown(model, content)
    try:
        return model.model_validate_json(content)
    except ValidationError as error:
        raise _refusal(model, error) from None


def described(model: type[RequestBody]) -> dict[str, Any]:
    """The OpenAPI entry of the body."""
    schema = model.model_json_schema()
    return {"requestBody": {"required": True, "content": {JSON: {"schema": schema}}}}


def _refuse_unknown(model: type[RequestBody], content: bytes) -> None:
    try:
        found = from_json(content)
    except ValueError:
        return  # reported together with the expected type
    if isinstance(found, dict):
        known = {field.alias or name for name, field in model.model_fields.items()}
        for key in found:
            if key not in known:
                raise unknown_key(key, _keys(model))


def _refusal(model: type[RequestBody], error: ValidationError) -> Exception:
    first = error.errors(include_url=False)[0]
    if not first["loc"]:
        found = "not JSON" if first["type"] == "json_invalid" else "not an object"
        return InputError("body", ErrorRemark(found), f"a JSON object with {_keys(model)}")
    return InputError(str(first["loc"][0]), first["input"], plain_words(first["msg"]))


def _keys(model: type[RequestBody]) -> str:
    names = [field.alias or name for name, field in model.model_fields.items()]
    return ", ".join(names) or "no keys: {}"


_DIGITS = re.compile(r"-?[0-9]{1,18}\Z")


def _digits(value: object) -> object:
    if isinstance(value, str) and not _DIGITS.match(value):
        raise PydanticCustomError("int_parsing", "Input should be a valid integer")
    return value


WholeNumber = Annotated[int, BeforeValidator(_digits)]
"""An integer in plain digits: pydantic by itself reads ``1_0``, blanks and the digits of every script."""


async def refuse_unknown_parameters(request: Request) -> None:
    """A dependency of every router; the allowed names are those that the route declares.

    Refuses NUL in every value too, query or path: no name has it, and databases refuse it.
    """
    route = request.scope["route"]
    assert isinstance(route, APIRoute)
    allowed = query_names(route)
    for name, value in (*request.path_params.items(), *request.query_params.multi_items()):
        if name in allowed or name in request.path_params:
            _refuse_nul(name, value)
    seen: set[str] = set()
    for name, _ in request.query_params.multi_items():
        if name not in allowed:
            raise unknown_parameter(name, allowed)
        if name in seen:
            raise repeated_parameter(name)
        seen.add(name)


def _refuse_nul(name: str, value: object) -> None:
    if "\0" in str(value):
        raise InputError(name, value, "text without NUL characters")


def query_names(route: APIRoute) -> tuple[str, ...]:
    """The query parameters a route declares, in the order of its signature."""
    elsewhere = (params.Path, params.Header, params.Cookie)
    fields = get_flat_params(route.dependant)
    return tuple(field.alias for field in fields if not isinstance(field.field_info, elsewhere))
