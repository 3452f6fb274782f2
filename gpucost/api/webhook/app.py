"""POST /v1/admission/{token}: takes a review; returns an answer that allows it, with advice if it is ready in
time.

Here too: the lag of the event loop, by which a request waits before it is read, and which no deadline counts;
and the token of the path with its file, which may be replaced: while one token takes the place of another,
both are accepted.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import time
from collections.abc import Callable, Iterable
from http import HTTPStatus
from pathlib import Path

from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope, Send

from gpucost.api.webhook import admission_review
from gpucost.api.webhook.deadline_queue import ReviewOutcome, ReviewQueue, ReviewTask
from gpucost.settings.secret_files import ALLOWED, read_small, tokens_of

logger = logging.getLogger(__name__)


class WebhookToken:
    """``first``, one token or two, a line each, holds until ``file`` has another."""

    def __init__(self, first: str, file: Path | None = None) -> None:
        self._digests, self._file = _digests(first.split("\n")), file
        self._read = b""

    def matches(self, given: str) -> bool:
        """In a time that does not depend on the token."""
        digest = _digest(given)
        return sum(hmac.compare_digest(digest, each) for each in self._digests) > 0

    def renew(self) -> bool:
        """Read the file again; whether its token is another one. A file that cannot be used is logged, and
        the token before stays. The file is small and is read each time: its times and size may be unchanged.
        """
        if self._file is None:
            return False
        try:
            read = read_small(self._file)
        except OSError as error:
            logger.warning("the webhook's token cannot be read again: %s", type(error).__name__)
            return False
        if read == self._read:
            return False
        self._read = read
        tokens = tokens_of(read.decode("utf-8", "replace").strip())
        if not tokens:
            logger.warning("the webhook's token file does not hold %s: the token before stays", ALLOWED)
            return False
        digests = _digests(tokens)
        if digests == self._digests:
            return False
        self._digests = digests
        logger.info("the webhook has a new token: it takes %d now", len(digests))
        return True


def _digests(tokens: Iterable[str]) -> frozenset[bytes]:
    return frozenset(map(_digest, tokens))


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).digest()


_EVERY_S = 0.01


class LoopLag:
    """The lag of the running loop. A timer is set while there are requests; its delay counts until the next
    one."""

    def __init__(self) -> None:
        self._last_s = 0.0
        self._due_s: float | None = None
        self._is_asked = False

    def seconds(self) -> float:
        """Called in one loop only; 0.0 after a pause without requests."""
        loop = asyncio.get_running_loop()
        self._is_asked = True
        if self._due_s is None:
            self._set(loop)
            return 0.0
        return max(self._last_s, loop.time() - self._due_s)

    def _set(self, loop: asyncio.AbstractEventLoop) -> None:
        self._due_s = loop.time() + _EVERY_S
        loop.call_at(self._due_s, self._came, loop, self._due_s)

    def _came(self, loop: asyncio.AbstractEventLoop, due_s: float) -> None:
        self._last_s = loop.time() - due_s
        self._due_s = None
        if self._is_asked:
            self._is_asked = False
            self._set(loop)
        else:
            self._last_s = 0.0


PREFIX = "/v1/admission/"

# Bytes that are kept of a body, and read of a larger one so that its sender gets an answer.
_MOST_KEPT = 4 * admission_review.MOST_BYTES
_MOST_DRAINED = 16 * admission_review.MOST_BYTES
_LONGEST_READ_S = 5.0
# Part of the deadline: a listener with more lag has only time for a bare answer to each review.
_LATE = 0.2


class WebhookApp:
    """ASGI. ``token`` is the only authentication: a path without it is not found. ``reviewed`` is called with
    the outcome of each review.

    Everything is answered from memory; nothing is changed but counters, so ``sideEffects: None`` is true.
    """

    def __init__(
        self,
        token: WebhookToken,
        reviewed: Callable[[str], None],
        work: Callable[[ReviewTask], None],
        *,
        deadline_ms: int,
        in_flight: int,
    ) -> None:
        self._token = token
        self._reviewed = reviewed
        self._deadline_s = deadline_ms / 1000
        self._lateness = LoopLag()
        self.desk = ReviewQueue(work, in_flight)

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
            return  # the client is gone, and what came is no review
        uid, outcome = await self._became(scope, body, is_whole, until_s)
        self._reviewed(outcome.result)
        await _send(send, HTTPStatus.OK, admission_review.answer(uid, outcome.warnings, outcome.rules))

    async def _became(
        self, scope: Scope, body: bytes, is_whole: bool, until_s: float
    ) -> tuple[str, ReviewOutcome]:
        """The uid of the review, and its outcome."""
        uid = admission_review.uid_at_the_head(body)
        if uid and self._lateness.seconds() > _LATE * self._deadline_s:
            return uid, ReviewOutcome(admission_review.ReviewResult.BUSY)
        review = admission_review.read(body, Headers(scope=scope).get("content-type", ""), is_whole=is_whole)
        if review.refused is not None:
            return review.uid, ReviewOutcome(review.refused)
        return review.uid, await self.desk.ask(review, until_s)

    def _is_known(self, scope: Scope) -> bool:
        path = scope["path"]
        given = path.removeprefix(PREFIX)
        # Compared whatever else is wrong, so that the time reveals nothing.
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
