"""Answers that take the ledger's time: each is made once for all who ask the same, and kept as it was sent.

What is asked, for which scope, and the mark of the ledger are the key: nothing is kept that could be wrong,
and who asks after a change never gets what was before it. Only who makes an answer takes a turn; who finds
one, or waits for one that is being made, takes none, and no thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass

from fastapi import Response
from starlette.concurrency import run_in_threadpool

from gpucost.api.errors import ApiError
from gpucost.api.services import Services
from gpucost.api.threads import in_own_thread
from gpucost.domain.errors import GpuCostError
from gpucost.domain.scope import Scope
from gpucost.service.kept_answers import Landed, Ticket


@dataclass(frozen=True, slots=True)
class Body:
    """An answer as it is sent."""

    content: bytes
    media_type: str
    headers: tuple[tuple[str, str], ...] = ()

    def response(self) -> Response:
        """A response of its own: other layers write their headers into it."""
        return Response(self.content, media_type=self.media_type, headers=dict(self.headers))


async def given(
    known: Services,
    scope: Scope,
    asked: tuple[Hashable, ...],
    make: Callable[[], Body],
    *,
    heavy: bool = True,
) -> Response:
    """The answer to ``asked``, all that tells this question from others of ``scope``. ``make`` runs in a
    thread, when it is its turn if it is ``heavy``; what it raises is for all who wait for it. Raises ApiError
    (503) for no turn.
    """
    kept, until = known.reporting.kept, known.gate.until()
    mark = await run_in_threadpool(known.ledger.mark)
    key = "answer", asked, scope, mark
    while True:
        ticket = kept.ticket(key)
        if ticket.leads:
            turn = known.gate.turn(until) if heavy else nullcontext()
            return _of(await _made(known, ticket, turn, make, mark, is_heavy=heavy))
        landed = await asyncio.wrap_future(ticket.landed)
        if landed is not None:
            return _of(landed.answer)


async def _made(
    known: Services,
    ticket: Ticket,
    turn: AbstractAsyncContextManager[None],
    make: Callable[[], Body],
    mark: str,
    *,
    is_heavy: bool,
) -> Body | Exception:
    def work() -> tuple[Body | Exception, bool]:
        try:
            return make(), known.ledger.mark() == mark
        except (ApiError, GpuCostError) as error:
            return error, False

    landed, keep = None, False
    try:
        async with turn:
            # How many are heavy at once is bounded; what is not is small.
            answer, keep = await (in_own_thread(work) if is_heavy else run_in_threadpool(work))
        landed = Landed(answer)
        return answer
    finally:
        known.reporting.kept.land(ticket, landed, keep=keep)


def _of(answer: Body | Exception) -> Response:
    if isinstance(answer, Exception):
        raise answer
    return answer.response()
