"""A list answer that is not read as a whole, object by object: one bad object hides no other. Pure.

Whoever may create objects can make one that no parser takes: opaque parameters nested a thousand deep, a
number of five thousand digits. And one that is too large to be read at all stands in an answer whose head,
which Go writes first, still says where the list goes on.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final

from gpucost.kube.events import Page, Unreadable, parse_page

_DECODER = json.JSONDecoder()
# Matches everywhere, if only nothing: so what it returns is never None.
_SPACE = re.compile(r"[ \t\n\r]*+")
_STRING = r'"[^"\\]*+(?:\\.[^"\\]*+)*+"'
_MARK = re.compile(rf"{_STRING}|[\[\]{{}}]", re.DOTALL)
_SCALAR = re.compile(rf'{_STRING}|[^\s,\[\]{{}}"]++', re.DOTALL)
_OPENING, _CLOSING = ("{", "["), ("}", "]")


class _Skipped:
    """Stands for a value that was passed over."""


_SKIPPED: Final = _Skipped()


def page_of(body: bytes) -> Page:
    """A list answer; objects in it that cannot be read are ``unread``. Raises ``Unreadable`` for what is no
    whole list answer."""
    try:
        return parse_page(json.loads(body))
    except (ValueError, RecursionError):
        return _page_by_object(body.decode("utf-8", "replace"))


def head_of(body: bytes) -> Page:
    """The beginning of a list answer of one object that is too large: where the list goes on, and which
    object it is. Raises ``Unreadable`` where it does not say."""
    reader, answer, uid = _Reader(body.decode("utf-8", "replace")), {}, ""
    with suppress(Unreadable):
        for key in reader.members():
            if key == "items":
                uid = next((_uid(reader.text, reader.at) for _ in reader.elements()), "")
                break
            answer[key] = reader.value()
    return replace(parse_page({**answer, "items": []}), unread=(Unreadable("too_large", uid),))


def _page_by_object(text: str) -> Page:
    reader, answer = _Reader(text), {}
    unread: list[Unreadable] = []
    for key in reader.members():
        if key == "items" and reader.peek() == "[":
            answer[key] = list(_items(reader, unread))
        else:
            answer[key] = reader.value()
    if reader.peek():
        raise Unreadable("bad_list")
    return replace(parse_page(answer), unread=unread)


def _items(reader: _Reader, unread: list[Unreadable]) -> Iterator[Any]:
    for _ in reader.elements():
        begins = reader.at
        item = reader.value()
        if item is _SKIPPED:
            unread.append(Unreadable("bad_object", _uid(reader.text, begins)))
        else:
            yield item


def _uid(text: str, at: int) -> str:
    """Of the object that begins there, which need not be whole."""
    reader = _Reader(text, at)
    with suppress(Unreadable):
        for key in reader.members():
            value = reader.value()
            if key == "metadata":
                uid = value.get("uid") if isinstance(value, dict) else None
                return uid if isinstance(uid, str) else ""
    return ""


class _Reader:
    """Goes through JSON text; ``at`` is where. What is not JSON raises ``Unreadable``."""

    def __init__(self, text: str, at: int = 0) -> None:
        self.text, self.at = text, at

    def peek(self) -> str:
        """The next character that is no space, empty at the end."""
        space = _SPACE.match(self.text, self.at)
        self.at = self.at if space is None else space.end()
        return self.text[self.at : self.at + 1]

    def members(self) -> Iterator[str]:
        """The keys of the object that begins here; whoever takes one reads its value before the next."""
        for _ in self._parts("{", "}"):
            key = self.value()
            self._take(":")
            self.peek()
            yield key if isinstance(key, str) else ""

    def elements(self) -> Iterator[None]:
        """Once for each value of the array that begins here, in the same way."""
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
        """Where the value that begins here ends, by its brackets."""
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
