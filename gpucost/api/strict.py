"""No parameter is ignored: one that a route does not know, or gets twice, is refused by name."""

from __future__ import annotations

import re
from typing import Annotated

from fastapi import Request, params
from fastapi.dependencies.utils import get_flat_params
from fastapi.routing import APIRoute
from pydantic import BeforeValidator
from pydantic_core import PydanticCustomError

from gpucost.api.errors import repeated_parameter, unknown_parameter
from gpucost.domain.errors import InputError

_DIGITS = re.compile(r"-?[0-9]{1,18}\Z")


def _digits(value: object) -> object:
    if isinstance(value, str) and not _DIGITS.match(value):
        raise PydanticCustomError("int_parsing", "Input should be a valid integer")
    return value


WholeNumber = Annotated[int, BeforeValidator(_digits)]
"""An integer in plain digits: pydantic by itself reads ``1_0``, blanks and the digits of every script."""


async def refuse_unknown_parameters(request: Request) -> None:
    """A dependency of every router; the allowed names are those that the route declares.

    Refuses NUL in every value too, query or path: no name has it, and no database can look for it.
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
