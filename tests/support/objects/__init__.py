"""Builders of API objects for tests: plain dicts as an API server would give them, from few arguments.

What is not named is left out. Times are milliseconds since 1970 or RFC 3339.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpucost.domain.time import iso

CREATED = "2026-10-01T00:00:00Z"


def metadata(
    name: str,
    namespace: str = "",
    *,
    uid: str = "",
    created: int | str = CREATED,
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    owner: tuple[str, str, str, str] | None = None,
    resource_version: str = "1",
) -> dict[str, Any]:
    """``uid`` is made from the names when not given; ``owner`` is (apiVersion, kind, name, uid)."""
    found: dict[str, Any] = {
        "name": name,
        "uid": uid or f"uid-{namespace}-{name}",
        "resourceVersion": resource_version,
        "creationTimestamp": instant(created),
    }
    if namespace:
        found["namespace"] = namespace
    if owner is not None:
        reference = dict(zip(("apiVersion", "kind", "name", "uid"), owner, strict=True))
        found["ownerReferences"] = [{**reference, "controller": True}]
    return found | given(labels=labels and dict(labels), annotations=annotations and dict(annotations))


def condition(
    type_: str,
    status: bool | None = True,
    reason: str = "ByTest",
    message: str = "",
    since: int | str = CREATED,
) -> dict[str, Any]:
    """``status`` None is Unknown."""
    return {
        "type": type_,
        "status": {True: "True", False: "False", None: "Unknown"}[status],
        "reason": reason,
        "message": message,
        "lastTransitionTime": instant(since),
    }


def instant(at: int | str) -> str:
    """As the API writes times."""
    return iso(at) if isinstance(at, int) else at


def given(**fields: Any) -> dict[str, Any]:
    """The fields that are not None and not empty."""
    return {
        key: value for key, value in fields.items() if value is not None and value not in ("", [], {}, ())
    }
