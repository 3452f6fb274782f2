"""No parameter is ignored: one that a route does not know, or gets twice, is refused by name."""

from __future__ import annotations

from fastapi import Request, params
from fastapi.dependencies.utils import get_flat_params
from fastapi.routing import APIRoute

from gpucost.api.errors import repeated_parameter, unknown_parameter


def refuse_unknown_parameters(request: Request) -> None:
    """A dependency of every router; the allowed names are those that the route declares."""
    route = request.scope["route"]
    assert isinstance(route, APIRoute)
    allowed = query_names(route)
    seen: set[str] = set()
    for name, _ in request.query_params.multi_items():
        if name not in allowed:
            raise unknown_parameter(name, allowed)
        if name in seen:
            raise repeated_parameter(name)
        seen.add(name)


def query_names(route: APIRoute) -> tuple[str, ...]:
    """The query parameters a route declares, in the order of its signature."""
    elsewhere = (params.Path, params.Header, params.Cookie)
    fields = get_flat_params(route.dependant)
    return tuple(field.alias for field in fields if not isinstance(field.field_info, elsewhere))
