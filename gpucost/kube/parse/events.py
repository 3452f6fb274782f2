"""Answers of an API server: pages of a list, whole or object by object, events of a watch, identities. Pure.

Shapes: Kubernetes API concepts, "Efficient detection of changes" and "Retrieving large results sets in
chunks" (kubernetes.io/docs/reference/using-api/api-concepts).

A list answer that cannot be parsed as a whole is read object by object, so that one bad object hides no
other. A client who may create objects can make one that no parser accepts: opaque parameters nested a
thousand deep, a number of five thousand digits. An answer with an object that is too large to be read at all
has a head, which Go writes first, from which the list can be continued.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Final, NamedTuple

from gpucost.domain.errors import GpuCostError

Object = Mapping[str, Any]
"""An object as the API writes it, or the part of it that is kept. Never changed once it is stored."""


class Unreadable(GpuCostError):
    """Something the server sent is not valid; it is skipped. ``reason`` is one word for a metric's label:

    ``bad_line`` (not JSON, or cut), ``bad_event`` (no type, or an unknown one), ``bad_object`` (no uid, not
    even an object, or nothing a parser takes), ``too_large`` (larger than an answer may be), ``bad_list``
    (not a list answer), ``too_many`` (a list without an end). ``uid`` is empty where it is not known.
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


class WatchEvent(NamedTuple):
    """One line of a watch. The ``object`` of an ERROR is a Status."""

    type: EventType
    object: Object


@dataclass(frozen=True, slots=True)
class ListPage:
    """One answer to a list. ``token`` is empty on the last page. ``unread`` are objects that exist and cannot
    be read: why, and which, as far as that is known."""

    items: Sequence[Any]
    resource_version: str
    token: str
    unread: Sequence[Unreadable] = ()


class ObjectIdentity(NamedTuple):
    """The identity of an object, and of its state. ``resource_version`` is empty when the object has none."""

    uid: str
    resource_version: str


def parse_event(line: bytes) -> WatchEvent:
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
    return WatchEvent(EventType(kind), found["object"])


def parse_page(answer: Any) -> ListPage:
    """Raises ``Unreadable``: an answer that is not a list must never pass for an empty one."""
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
    return ListPage(items, version, token)


def identity(found: Any) -> ObjectIdentity:
    """Raises ``Unreadable`` without a uid."""
    metadata = found.get("metadata") if isinstance(found, dict) else None
    uid = metadata.get("uid") if isinstance(metadata, dict) else None
    if not isinstance(metadata, dict) or not isinstance(uid, str) or not uid:
        raise Unreadable("bad_object")
    return ObjectIdentity(uid, resource_version(found))


def resource_version(found: Object) -> str:
    """``metadata.resourceVersion``, empty when there is none."""
    metadata = found.get("metadata")
    version = metadata.get("resourceVersion") if isinstance(metadata, dict) else None
    return version if isinstance(version, str) else ""


def is_stale(version: str, known: str, *, or_same: bool = True) -> bool:
    """Whether ``version`` is older than ``known`` (or the same). False where the two cannot be compared.

    Since Kubernetes 1.35 resource versions are defined to be comparable as integers (KEP-5504); in all
    earlier releases they were so in fact.
    """
    if not (_is_number(version) and _is_number(known)):
        return False
    return int(version) <= int(known) if or_same else int(version) < int(known)


def _is_number(version: str) -> bool:
    return version.isascii() and version.isdigit() and len(version) < 64


_DECODER = json.JSONDecoder()
# Matches everywhere, if only the empty text, so the result is never None.
_SPACE = re.compile(r"[ \t\n\r]*+")
_STRING = r'"[^"\\]*+(?:\\.[^"\\]*+)*+"'
_MARK = re.compile(rf"{_STRING}|[\[\]{{}}]", re.DOTALL)
_SCALAR = re.compile(rf'{_STRING}|[^\s,\[\]{{}}"]++', re.DOTALL)
_OPENING, _CLOSING = ("{", "["), ("}", "]")


class _Skipped:
    """Stands for a value that was passed over."""


_SKIPPED: Final = _Skipped()


def page_of(body: bytes) -> ListPage:
    """A list answer; objects in it that cannot be read are ``unread``. Raises ``Unreadable`` if it is not a
    whole list answer."""
    try:
        return parse_page(json.loads(body))
    except (ValueError, RecursionError):
        return _page_by_object(body.decode("utf-8", "replace"))


def head_of(body: bytes) -> ListPage:
    """The head of a list answer with one object that is too large: where the list continues, and which object
    it is. Raises ``Unreadable`` where that is missing."""
    reader, answer, uid = _EventReader(body.decode("utf-8", "replace")), {}, ""
    with suppress(Unreadable):
        for key in reader.members():
            if key == "items":
                uid = next((_uid(reader.text, reader.at) for _ in reader.elements()), "")
                break
            answer[key] = reader.value()
    return replace(parse_page({**answer, "items": []}), unread=(Unreadable("too_large", uid),))


def _page_by_object(text: str) -> ListPage:
    reader, answer = _EventReader(text), {}
    unread: list[Unreadable] = []
    for key in reader.members():
        if key == "items" and reader.peek() == "[":
            answer[key] = list(_items(reader, unread))
        else:
            answer[key] = reader.value()
    if reader.peek():
        raise Unreadable("bad_list")
    return replace(parse_page(answer), unread=unread)


def _items(reader: _EventReader, unread: list[Unreadable]) -> Iterator[Any]:
    for _ in reader.elements():
        begins = reader.at
        item = reader.value()
        if item is _SKIPPED:
            unread.append(Unreadable("bad_object", _uid(reader.text, begins)))
        else:
            yield item


def _uid(text: str, at: int) -> str:
    """The uid of the object that begins there, which need not be complete."""
    reader = _EventReader(text, at)
    with suppress(Unreadable):
        for key in reader.members():
            value = reader.value()
            if key == "metadata":
                uid = value.get("uid") if isinstance(value, dict) else None
                return uid if isinstance(uid, str) else ""
    return ""


class _EventReader:
    """Reads JSON text; ``at`` is the position. Raises ``Unreadable`` for text that is not JSON."""

    def __init__(self, text: str, at: int = 0) -> None:
        self.text, self.at = text, at

    def peek(self) -> str:
        """The next character that is no space, empty at the end."""
        space = _SPACE.match(self.text, self.at)
        self.at = self.at if space is None else space.end()
        return self.text[self.at : self.at + 1]

    def members(self) -> Iterator[str]:
        """The keys of the object that begins here; the caller reads the value of a key before the next
        one."""
        for _ in self._parts("{", "}"):
            key = self.value()
            self._take(":")
            self.peek()
            yield key if isinstance(key, str) else ""

    def elements(self) -> Iterator[None]:
        """Yields once for each value of the array that begins here; the caller reads it before the next."""
        yield from self._parts("[", "]")

    def value(self) -> Any:
        """The value that begins here; ``_SKIPPED`` for one that cannot be decoded."""
        self.peek()
        try:
            value, self.at = _DECODER.raw_decode(self.text, self.at)
        except (ValueError, RecursionError):
            self.at = self._end()
            return _SKIPPED
        return value

    def _parts(self, opening: str, closing: str) -> Iterator[None]:
        self._take(opening)
        if self.peek() == closing:
            self.at += 1
            return
        while True:
            self.peek()
            yield
            if self.peek() != ",":
                break
            self.at += 1
        self._take(closing)

    def _take(self, expected: str) -> None:
        if self.peek() != expected:
            raise Unreadable("bad_list")
        self.at += 1

    def _end(self) -> int:
        """The end of the value that begins here, by its brackets."""
        if self.text[self.at : self.at + 1] not in _OPENING:
            scalar = _SCALAR.match(self.text, self.at)
            if scalar is None:
                raise Unreadable("bad_list")
            return scalar.end()
        depth = 0
        for mark in _MARK.finditer(self.text, self.at):
            depth += (mark[0] in _OPENING) - (mark[0] in _CLOSING)
            if not depth:
                return mark.end()
        raise Unreadable("bad_list")
