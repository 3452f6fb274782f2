"""A document after the operations of a suggestion."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from copy import deepcopy
from typing import Any

_APPEND = "-"


def patched(document: Mapping[str, Any], operations: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """A copy of ``document`` after ``operations`` of RFC 6902: add, replace, remove and test, which are
    those that suggestions are made of. Raises ValueError for others and for a test that fails, LookupError
    where a path leads nowhere."""
    found: Any = deepcopy(dict(document))
    for each in operations:
        keys = [key.replace("~1", "/").replace("~0", "~") for key in str(each["path"]).split("/")[1:]]
        above = found
        for key in keys[:-1]:
            above = above[_at(above, key)]
        _do(str(each["op"]), above, keys[-1], deepcopy(each.get("value")))
    return found  # type: ignore[no-any-return]


def _do(operation: str, above: Any, key: str, value: Any) -> None:
    if operation == "add" and isinstance(above, list):
        at = len(above) if key == _APPEND else int(key)
        if not 0 <= at <= len(above):
            raise IndexError(f"{key} of {len(above)}")
        above.insert(at, value)
    elif operation == "add":
        above[key] = value
    elif operation == "replace":
        _ = above[_at(above, key)]
        above[_at(above, key)] = value
    elif operation == "remove":
        del above[_at(above, key)]
    elif operation != "test" or above[_at(above, key)] != value:
        raise ValueError(f"operation {operation} of {key}")


def _at(above: Any, key: str) -> Any:
    return int(key) if isinstance(above, list) else key
