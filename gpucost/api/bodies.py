"""Bodies of requests that change something: JSON objects with the keys of their route, and no others."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Annotated, Any, TypeVar

from fastapi import Request
from fastapi.concurrency import run_in_threadpool
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.json_schema import SkipJsonSchema
from pydantic_core import from_json

from gpucost.api.errors import ApiError, plain_words, unknown_key
from gpucost.domain.errors import InputError, Remark
from gpucost.ledger.findings import LONGEST_NOTE

JSON = "application/json"
YAML = ("application/yaml", "application/x-yaml", "text/yaml")
_LONGEST_TIME = 64

Words = Annotated[str, Field(max_length=LONGEST_NOTE)]
TimeText = Annotated[str, Field(max_length=_LONGEST_TIME)] | SkipJsonSchema[None]


def require_type(*allowed: str) -> Callable[[Request], None]:
    """A dependency of every route with a body, of one of the media types ``allowed``.

    A page of another site can make a browser post forms and plain text anywhere, to a gpucost on loopback
    without keys too, but neither JSON nor YAML: for those the browser asks first, and nobody here allows it.
    """
    names = ", ".join(allowed)

    def check(request: Request) -> None:
        given = request.headers.get("content-type", "")
        if media_type(given) not in allowed:
            raise ApiError(
                HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
                "unsupported_media_type",
                f"the header Content-Type must say what the body is: {names}",
                field="Content-Type",
                value=given,
                allowed=names,
            )

    return check


def media_type(content_type: str) -> str:
    """``application/json`` of ``Application/JSON; charset=utf-8``."""
    return content_type.partition(";")[0].strip().lower()


require_json = require_type(JSON)


class Body(BaseModel):
    """Nothing is converted, nothing ignored."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class AcknowledgeBody(Body):
    """That somebody knows."""

    note: Annotated[Words, Field(description="what there is to say; at most 1,000 characters")] = ""


class MuteBody(Body):
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


class UnmuteBody(Body):
    """Nothing to say: {}."""


class AdviceBody(Body):
    """A manifest, and what to answer."""

    manifest: Annotated[
        dict[str, Any],
        Field(description="the manifest of one job, as kubectl sends it: kind, metadata, spec"),
    ]
    suggestions: Annotated[
        bool, Field(description="whether to look for changes that help, which takes longer")
    ] = True


B = TypeVar("B", bound=Body)


def read(model: type[B]) -> Callable[[Request], Awaitable[B]]:
    """A dependency that reads the body. It comes after those that say who asks: a stranger's body is not
    parsed. Raises ApiError and InputError, which name the key.
    """

    async def body(request: Request) -> B:
        return await run_in_threadpool(parsed, model, await request.body())

    return body


def parsed(model: type[B], content: bytes) -> B:
    """Raises ApiError and InputError, which name the key.

    Of what is wrong only the first is said, and only that is looked for: pydantic makes an error, with all
    that was sent in it, of each of thousands of keys that it does not know, which takes half a second.
    """
    _refuse_unknown(model, content)
    try:
        return model.model_validate_json(content)
    except ValidationError as error:
        raise _refusal(model, error) from None


def described(model: type[Body]) -> dict[str, Any]:
    """The OpenAPI entry of the body."""
    schema = model.model_json_schema()
    return {"requestBody": {"required": True, "content": {JSON: {"schema": schema}}}}


def _refuse_unknown(model: type[Body], content: bytes) -> None:
    try:
        found = from_json(content)
    except ValueError:
        return  # which is said with what it was to be
    if isinstance(found, dict):
        known = {field.alias or name for name, field in model.model_fields.items()}
        for key in found:
            if key not in known:
                raise unknown_key(key, _keys(model))


def _refusal(model: type[Body], error: ValidationError) -> Exception:
    first = error.errors(include_url=False)[0]
    if not first["loc"]:
        found = "not JSON" if first["type"] == "json_invalid" else "not an object"
        return InputError("body", Remark(found), f"a JSON object with {_keys(model)}")
    return InputError(str(first["loc"][0]), first["input"], plain_words(first["msg"]))


def _keys(model: type[Body]) -> str:
    names = [field.alias or name for name, field in model.model_fields.items()]
    return ", ".join(names) or "no keys: {}"
