"""POST /v1/admission/{token}: a review in; out an answer that allows it, with advice if it comes in time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from http import HTTPStatus

from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope, Send

from gpucost.api.webhook import wire
from gpucost.api.webhook.desk import Desk, Outcome, Task
from gpucost.api.webhook.lateness import Lateness
from gpucost.api.webhook.token import Token

PREFIX = "/v1/admission/"

# What is kept of a body, and what is read of one that is larger so that its sender gets an answer.
_MOST_KEPT = 4 * wire.MOST_BYTES
_MOST_DRAINED = 16 * wire.MOST_BYTES
_LONGEST_READ_S = 5.0
# Of the deadline: a listener that is later than this has no time for more than an answer to each.
_LATE = 0.2


class WebhookApp:
    """ASGI. ``token`` is all that says who asks: a path without it is not found. ``reviewed`` is told what
    became of each review.

    Everything is answered from memory; nothing is changed but counters, so ``sideEffects: None`` is true.
    """

    def __init__(
        self,
        token: Token,
        reviewed: Callable[[str], None],
        work: Callable[[Task], None],
        *,
        deadline_ms: int,
        in_flight: int,
    ) -> None:
        self._token = token
        self._reviewed = reviewed
        self._deadline_s = deadline_ms / 1000
        self._lateness = Lateness()
        self.desk = Desk(work, in_flight)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        until_s = time.monotonic() + self._deadline_s
        if not self._is_known(scope):
            await _send(send, HTTPStatus.NOT_FOUND, b"")
            return
        try:
            body, is_whole = await _body(receive)
        except ClientDisconnect:
            return  # nobody waits for an answer, and what came is no review
        uid, outcome = await self._became(scope, body, is_whole, until_s)
        self._reviewed(outcome.result)
        await _send(send, HTTPStatus.OK, wire.answer(uid, outcome.warnings))

    async def _became(self, scope: Scope, body: bytes, is_whole: bool, until_s: float) -> tuple[str, Outcome]:
        """The uid of the review, and what became of it."""
        uid = wire.uid_at_the_head(body)
        if uid and self._lateness.seconds() > _LATE * self._deadline_s:
            return uid, Outcome(wire.Result.BUSY)
        review = wire.read(body, Headers(scope=scope).get("content-type", ""), is_whole=is_whole)
        if review.refused is not None:
            return review.uid, Outcome(review.refused)
        return review.uid, await self.desk.ask(review, until_s)

    def _is_known(self, scope: Scope) -> bool:
        path = scope["path"]
        given = path.removeprefix(PREFIX)
        # Compared whatever else is wrong, so that the time says nothing.
        matches = self._token.matches(given)
        return matches and path.startswith(PREFIX) and scope["method"] == "POST"


async def _body(receive: Receive) -> tuple[bytes, bool]:
    """The beginning of the body, of ``_MOST_KEPT`` and a part, and whether that is all of it. Raises
    ClientDisconnect."""
    parts: list[bytes] = []
    kept = total = 0
    try:
        async with asyncio.timeout(_LONGEST_READ_S):
            while total <= _MOST_DRAINED:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise ClientDisconnect
                part = message.get("body", b"")
                total += len(part)
                if kept <= _MOST_KEPT:
                    parts.append(part)
                    kept += len(part)
                if not message.get("more_body", False):
                    return b"".join(parts), kept == total
    except TimeoutError:
        pass
    return b"".join(parts), False


async def _send(send: Send, status: HTTPStatus, body: bytes) -> None:
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        (b"cache-control", b"no-store"),
    ]
    await send({"type": "http.response.start", "status": int(status), "headers": headers})
    await send({"type": "http.response.body", "body": body})
