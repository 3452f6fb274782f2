"""What an API server sends, taken apart: pages of a list, events of a watch, who an object is. Pure.

Shapes: Kubernetes API concepts, "Efficient detection of changes" and "Retrieving large results sets in
chunks" (kubernetes.io/docs/reference/using-api/api-concepts).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple

from gpucost.domain.errors import GpuCostError

Object = Mapping[str, Any]
"""An object as the API writes it, or what was kept of it. Never changed once it is known."""


class Unreadable(GpuCostError):
    """Something the server sent makes no sense; it is skipped. ``reason`` is one word for a metric's label:

    ``bad_line`` (not JSON, or cut), ``bad_event`` (no type, or an unknown one), ``bad_object`` (no uid,
    not even an object, or nothing a parser takes), ``too_large`` (larger than an answer may be), ``bad_list``
    (not a list answer), ``too_many`` (a list without an end).
    ``uid`` is empty where it is not known.
    """

    def __init__(self, reason: str, uid: str = "") -> None:
        self.reason, self.uid = reason, uid
        super().__init__(reason)


class EventType(StrEnum):
    """The first word of an event."""

    ADDED = "ADDED"
    MODIFIED = "MODIFIED"
    DELETED = "DELETED"
    BOOKMARK = "BOOKMARK"
    ERROR = "ERROR"


class Event(NamedTuple):
    """One line of a watch. Of an ERROR, ``object`` is a Status."""

    type: EventType
    object: Object


@dataclass(frozen=True, slots=True)
class Page:
    """One answer to a list. ``token`` is empty on the last page. ``unread`` are objects that are there and
    cannot be read: why, and which, as far as that is known."""

    items: Sequence[Any]
    resource_version: str
    token: str
    unread: Sequence[Unreadable] = ()


class Identity(NamedTuple):
    """Which object, and which state of it. ``resource_version`` is empty when the object does not say."""

    uid: str
    resource_version: str


def parse_event(line: bytes) -> Event:
    """Raises ``Unreadable``."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise Unreadable("bad_line") from error
    kind = found.get("type") if isinstance(found, dict) else None
    if not isinstance(kind, str) or kind not in EventType.__members__:
        raise Unreadable("bad_event")
    if not isinstance(found.get("object"), dict):
        raise Unreadable("bad_object")
    return Event(EventType(kind), found["object"])


def parse_page(answer: Any) -> Page:
    """Raises ``Unreadable``: an answer that is no list must never pass for an empty one."""
    metadata = answer.get("metadata") if isinstance(answer, dict) else None
    if not isinstance(metadata, dict) or "items" not in answer:
        raise Unreadable("bad_list")
    items = [] if answer["items"] is None else answer["items"]
    version, token = metadata.get("resourceVersion"), metadata.get("continue") or ""
    if (
        not isinstance(items, list)
        or not isinstance(version, str)
        or not isinstance(token, str)
        or not version
    ):
        raise Unreadable("bad_list")
    return Page(items, version, token)


def identity(found: Any) -> Identity:
    """Raises ``Unreadable`` for what has no uid."""
    metadata = found.get("metadata") if isinstance(found, dict) else None
    uid = metadata.get("uid") if isinstance(metadata, dict) else None
    if not isinstance(metadata, dict) or not isinstance(uid, str) or not uid:
        raise Unreadable("bad_object")
    return Identity(uid, resource_version(found))


def resource_version(found: Object) -> str:
    """``metadata.resourceVersion``, empty when there is none."""
    metadata = found.get("metadata")
    version = metadata.get("resourceVersion") if isinstance(metadata, dict) else None
    return version if isinstance(version, str) else ""


def is_stale(version: str, known: str, *, or_same: bool = True) -> bool:
    """Whether ``version`` is older than ``known`` (or the same). False where the two cannot be compared.

    Since Kubernetes 1.35 resource versions are promised to be comparable as integers (KEP-5504); every
    release before kept them that way.
    """
    if not (_is_number(version) and _is_number(known)):
        return False
    return int(version) <= int(known) if or_same else int(version) < int(known)


def _is_number(version: str) -> bool:
    return version.isascii() and version.isdigit() and len(version) < 64
