"""Objects with a field that makes no sense."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

from hypothesis import strategies as st

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from([-1, 2**31, 2**63, 10**30])
    | st.floats(allow_nan=False)
    | st.text(max_size=8)
    | st.sampled_from(["", "1e99", "-1", "0x10", "True", "2026-13-01T00:00:00Z", "1" * 300]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


def ways(found: Any) -> list[tuple[str | int, ...]]:
    """The way to every value in an object, itself left out."""
    if isinstance(found, dict):
        below = list(found.items())
    else:
        below = list(enumerate(found)) if isinstance(found, list) else []
    return [(key, *way) for key, value in below for way in [(), *ways(value)]]


def put(found: dict[str, Any], way: tuple[str | int, ...], value: Any) -> dict[str, Any]:
    """A copy with another value somewhere."""
    changed: Any = deepcopy(found)
    *above, last = way
    inner = changed
    for key in above:
        inner = inner[key]
    inner[last] = value
    return dict(changed)


def without(found: dict[str, Any], way: tuple[str | int, ...]) -> dict[str, Any]:
    """A copy without a field."""
    changed: Any = deepcopy(found)
    *above, last = way
    inner = changed
    for key in above:
        inner = inner[key]
    del inner[last]
    return dict(changed)


@st.composite
def broken(draw: st.DrawFn, found: dict[str, Any]) -> dict[str, Any]:
    """``found`` with arbitrary JSON in one to three places."""
    for _ in range(draw(st.integers(1, 3))):
        found = put(found, draw(st.sampled_from(ways(found))), draw(JSON))
    return found
