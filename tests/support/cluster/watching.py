"""One open watch: what it has still to write, and how it ends."""

from __future__ import annotations

import asyncio
import json
from enum import Enum
from typing import TypeAlias

import aiohttp.web

from tests.support.cluster.discovery import status
from tests.support.cluster.model import Collection, Event, Expired, Json


class End(Enum):
    """How a watch ends."""

    PROPER = "proper"
    """As after ``timeoutSeconds``."""
    CUT = "cut"
    """In the middle of a chunk, without a word."""
    LEAVE = "leave"
    """The server stops."""


_Item: TypeAlias = "bytes | End"


class Watch:
    """``start`` is the version it goes on from, 0 for none. ``told`` says whether it has written anything.
    Of one that ``is_forgotten`` no receipt is expected."""

    def __init__(self, collection: Collection, version: str, namespace: str, start: int) -> None:
        self.collection, self.version, self.namespace, self.start = collection, version, namespace, start
        self.name = collection.kind.name
        self.told = False
        self.unwritten = 0
        self.is_silent = False
        self.is_ended = False
        self.is_forgotten = False
        self._truncates = False
        self._queue: asyncio.Queue[_Item] = asyncio.Queue()

    def begin(self) -> None:
        """What happened since its start; everything there is where it has none."""
        try:
            missed = self.collection.since(self.start) if self.start else self._all()
        except Expired:
            self._gone()
        else:
            for event in missed:
                self.tell(event)

    def _all(self) -> list[Event]:
        return [
            Event(int(json.loads(text)["metadata"]["resourceVersion"]), "ADDED", text)
            for text in self.collection.within("")
        ]

    def tell(self, event: Event) -> None:
        """Of an event, if it is about this watch's namespace."""
        found = self.collection.written(event.object, self.version)
        if self.namespace and found["metadata"].get("namespace") != self.namespace:
            return
        self.told = True
        line = _line(event.type, found)
        if self._truncates:
            self._truncates = False
            line = line[: len(line) // 2] + b"\n"
        self.give(line)

    def bookmark(self, version: int) -> None:
        self.told = True
        kind = {"kind": self.collection.kind.kind, "apiVersion": self.collection.api_version(self.version)}
        self.give(_line("BOOKMARK", {**kind, "metadata": {"resourceVersion": str(version)}}))

    def broken(self, how: str) -> None:
        """Now, or from now on."""
        if how == "cut":
            self.give(End.CUT)
        elif how == "410_event":
            self._gone()
        elif how == "silence":
            self.is_silent = True
        elif how == "truncated_line":
            self._truncates = True
        else:
            self.give(End.PROPER)

    @property
    def is_taken(self) -> bool:
        """Whether its client had taken in everything there is when it asked, so nothing needs a receipt."""
        return self.start >= self.collection.version and not (self.told or self.is_ended)

    def give(self, item: _Item) -> None:
        """Something to write, unless it is over or silent; a server that stops ends silent ones too."""
        if self.is_ended or (self.is_silent and item is not End.LEAVE):
            return
        self.is_ended = isinstance(item, End)
        self.unwritten += 1
        self._queue.put_nowait(item)

    def _gone(self) -> None:
        self.give(_line("ERROR", status(410)))
        self.give(End.PROPER)

    async def play(self, raw: aiohttp.web.BaseRequest) -> aiohttp.web.StreamResponse:
        """Write until it ends, or the client leaves."""
        response = aiohttp.web.StreamResponse(headers={"Content-Type": "application/json"})
        response.enable_chunked_encoding()
        try:
            await response.prepare(raw)
            await response.write(b"")
            while isinstance(item := await self._queue.get(), bytes):
                await response.write(item)
                self.unwritten -= 1
            if item is End.PROPER:
                await response.write_eof()
            elif raw.transport is not None:
                raw.transport.abort()
        except ConnectionError:
            """The client left first."""
        return response


def _line(type_: str, found: Json) -> bytes:
    return json.dumps({"type": type_, "object": found}).encode() + b"\n"
