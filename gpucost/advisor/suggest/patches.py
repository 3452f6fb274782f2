"""Changes of a document: made, written as RFC 6902 and as YAML, and carried out.

``operations`` and ``merge_patch`` write the difference between two documents; ``patched`` is a document after
the operations of a suggestion.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from copy import deepcopy
from typing import Any

import yaml

DocumentPath = tuple[str | int, ...]
"""Keys and indexes from the top of a document."""
PatchOperation = Mapping[str, Any]
ManifestEdit = Callable[[dict[str, Any]], None]
"""Changes a document in place."""
_APPEND = "-"
_NAMES = ("name", "groupName")
SOME = "# merge this: only what changes is shown, list entries under their names\n"


class _Plain(yaml.SafeDumper):
    """A YAML dumper without anchors and aliases, which manifests may not have."""

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002  # the base class names it
        return True


def pointer(path: DocumentPath) -> str:
    """The path as a JSON pointer (RFC 6901)."""
    return "".join("/" + str(key).replace("~", "~0").replace("/", "~1") for key in path)


def get(document: Any, path: DocumentPath) -> Any:
    """The value at the path; None where there is none."""
    for key in path:
        if isinstance(document, Mapping):
            document = document.get(key)
        elif isinstance(document, list) and isinstance(key, int) and key < len(document):
            document = document[key]
        else:
            return None
    return document


def put(document: Any, path: DocumentPath, value: Any) -> None:
    """Sets a value, with the levels above it that are missing. Raises LookupError where another kind of value
    is in the way."""
    for at, key in enumerate(path[:-1]):
        inner = get(document, (key,))
        if inner is None and isinstance(document, dict) and isinstance(path[at + 1], str):
            inner = document[key] = {}
        document = inner
    if not isinstance(document, dict):
        raise LookupError(pointer(path))
    document[path[-1]] = value


def drop(document: Any, path: DocumentPath) -> None:
    """Removes a value, and the levels above it that are empty then, except for the first two."""
    above = get(document, path[:-1])
    if isinstance(above, dict):
        above.pop(path[-1], None)
        if not above and len(path) > 2:
            drop(document, path[:-1])


def operations(before: Any, after: Any, path: DocumentPath = ()) -> Iterator[PatchOperation]:
    """The operations that make one document into the other."""
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        for key, value in before.items():
            if key not in after:
                yield {"op": "remove", "path": pointer((*path, key))}
            else:
                yield from operations(value, after[key], (*path, key))
        for key, value in after.items():
            if key not in before:
                yield {"op": "add", "path": pointer((*path, key)), "value": deepcopy(value)}
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for at, value in enumerate(before):
            yield from operations(value, after[at], (*path, at))
    elif isinstance(before, list) and isinstance(after, list) and after[: len(before)] == before:
        for value in after[len(before) :]:
            yield {"op": "add", "path": pointer((*path, _APPEND)), "value": deepcopy(value)}
    elif before != after:
        yield {"op": "replace", "path": pointer(path), "value": deepcopy(after)}


def merge_patch(before: Mapping[str, Any], after: Mapping[str, Any]) -> str:
    """What changes, as YAML to be merged: None takes a field away. Lists are whole, but for those whose
    members have names: of these, only what changes, which the first line then states."""
    changes, is_whole = _merged(before, after)
    return text_of(changes, is_whole)


def text_of(changes: Mapping[str, Any], is_whole: bool = True) -> str:
    """As YAML; PyYAML quotes whatever needs it."""
    text = yaml.dump(changes, Dumper=_Plain, sort_keys=False, width=1_000_000).rstrip("\n")
    return text if is_whole else SOME + text


def _merged(before: Mapping[str, Any], after: Mapping[str, Any]) -> tuple[dict[str, Any], bool]:
    changes: dict[str, Any] = {key: None for key in before if key not in after}
    is_whole = True
    for key, value in after.items():
        old = before.get(key)
        if key in before and old == value:
            continue
        changes[key] = value
        if isinstance(old, Mapping) and isinstance(value, Mapping):
            changes[key], inner = _merged(old, value)
            is_whole = is_whole and inner
        elif (members := _members(old, value)) is not None:
            changes[key], is_whole = members, False
    return changes, is_whole


def _members(before: Any, after: Any) -> list[dict[str, Any]] | None:
    """Those of a list that change, with their names; None for no lists, and where one has no name."""
    if not isinstance(before, list) or not isinstance(after, list):
        return None
    if len(before) != len(after) or not all(isinstance(each, Mapping) for each in (*before, *after)):
        return None
    found = []
    for old, new in zip(before, after, strict=True):
        identity = _identity(old)
        if identity is None or _identity(new) != identity:
            return None
        if old != new:
            found.append(_joined(identity, _merged(old, new)[0]))
    return found


def _identity(member: Mapping[str, Any]) -> dict[str, Any] | None:
    for key in _NAMES:
        if isinstance(member.get(key), str):
            return {key: member[key]}
    name = get(member, ("metadata", "name"))
    return {"metadata": {"name": name}} if isinstance(name, str) else None


def _joined(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    found = {**one, **other}
    for key in one.keys() & other.keys():
        if isinstance(one[key], dict) and isinstance(other[key], dict):
            found[key] = {**one[key], **other[key]}
    return found


def patched(document: Mapping[str, Any], operations: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """A copy of ``document`` after ``operations`` of RFC 6902: add, replace, remove and test, the operations
    that suggestions use. Raises ValueError for others and for a test that fails, LookupError where a path
    leads nowhere."""
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
