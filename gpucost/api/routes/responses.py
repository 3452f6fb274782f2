"""Responses of routes that read the ledger: cached bodies, and the choice of the format.

A response is made once for all equal requests, and kept as it was sent. The question, the scope, and the
state of the ledger are the key: no cached response is ever stale, and a request after a change never gets an
earlier one. Only the request that makes a response takes a turn; one that finds it, or waits for it, takes
neither turn nor thread.

The format: ``?format=`` first, then the Accept header, then JSON.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, TypeVar

from fastapi import Request, Response
from starlette.concurrency import run_in_threadpool

from gpucost.api.server.errors import ApiError
from gpucost.api.server.services import ApiServices
from gpucost.api.server.threads import in_own_thread
from gpucost.domain.errors import GpuCostError
from gpucost.domain.scope import Scope
from gpucost.reports.render.html import page_policy
from gpucost.service.reporting.rendering import ReportFormat
from gpucost.service.reporting.report_cache import FlightTicket, LandedReport
from gpucost.service.reporting.report_service import LedgerStand

A = TypeVar("A")


@dataclass(frozen=True, slots=True)
class ResponseBody:
    """A response body as it is sent."""

    content: bytes
    media_type: str
    headers: tuple[tuple[str, str], ...] = ()

    def response(self) -> Response:
        """A response of its own: other layers write their headers into it."""
        return Response(self.content, media_type=self.media_type, headers=dict(self.headers))


async def cached_response(
    known: ApiServices,
    scope: Scope,
    asked: tuple[Hashable, ...],
    make: Callable[[], ResponseBody],
    *,
    heavy: bool = True,
) -> Response:
    """The response to ``asked``, as ``cached_answer`` gives it."""
    found = await cached_answer(known, scope, ("answer", *asked), make, heavy=heavy)
    return found.response()


async def cached_answer(
    known: ApiServices,
    scope: Scope,
    asked: tuple[Hashable, ...],
    make: Callable[[], A],
    *,
    heavy: bool = True,
) -> A:
    """The answer to ``asked``, which distinguishes this question from others of ``scope``. ``make`` runs in
    a thread, after waiting for a turn if it is ``heavy``; an error of it is raised for all who wait. Raises
    ApiError (503) for no turn.
    """
    kept, until = known.reporting.kept, known.gate.until()
    mark = await run_in_threadpool(known.ledger.mark)
    key = asked, scope, mark
    while True:
        ticket = kept.ticket(key)
        if ticket.leads:
            turn = known.gate.turn(until) if heavy else nullcontext()
            return _of(await _made(known, ticket, turn, make, mark, is_heavy=heavy))
        landed = await asyncio.wrap_future(ticket.landed)
        if landed is not None:
            found: A | Exception = landed.answer
            return _of(found)


async def _made(
    known: ApiServices,
    ticket: FlightTicket,
    turn: AbstractAsyncContextManager[None],
    make: Callable[[], A],
    mark: str,
    *,
    is_heavy: bool,
) -> A | Exception:
    def work() -> tuple[A | Exception, bool]:
        try:
            return make(), known.ledger.mark() == mark
        except (ApiError, GpuCostError) as error:
            return error, False

    landed, keep = None, False
    try:
        async with turn:
            # The number of heavy ones at once is bounded; the others are small.
            answer, keep = await (in_own_thread(work) if is_heavy else run_in_threadpool(work))
        landed = LandedReport(answer)
        return answer
    finally:
        known.reporting.kept.land(ticket, landed, keep=keep)


def _of(answer: A | Exception) -> A:
    if isinstance(answer, Exception):
        raise answer
    return answer


MEDIA_TYPES = {
    ReportFormat.JSON: "application/json",
    ReportFormat.CSV: "text/csv",
    ReportFormat.PARQUET: "application/vnd.apache.parquet",
    ReportFormat.HTML: "text/html",
    ReportFormat.XLSX: "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet",
}
LEDGER_HEADER = "Gpucost-Ledger"


def chosen(request: Request, wanted: str | None, allowed: tuple[ReportFormat, ...]) -> ReportFormat:
    """The format to answer in. An Accept header that fits none of ``allowed`` is a 406."""
    if wanted is not None:
        return ReportFormat(wanted)
    accept = request.headers.get("accept", "*/*")
    for pattern in _by_preference(accept):
        for format_ in allowed:
            if _fits(MEDIA_TYPES[format_], pattern):
                return format_
    raise ApiError(
        HTTPStatus.NOT_ACCEPTABLE,
        "not_acceptable",
        "none of the accepted media types can be given",
        field="Accept",
        value=accept,
        allowed=", ".join(MEDIA_TYPES[format_] for format_ in allowed),
    )


def _by_preference(accept: str) -> list[str]:
    """Media types of an Accept header, most wanted first; what has quality 0 is left out."""
    ranked = []
    for part in accept.split(",")[:50]:
        pattern, *parameters = (piece.strip().lower() for piece in part.split(";"))
        quality = next((piece[2:] for piece in parameters if piece.startswith("q=")), "1")
        try:
            weight = float(quality)
        except ValueError:
            weight = 0.0
        if weight > 0:
            ranked.append((-weight, pattern))
    return [pattern for _, pattern in sorted(ranked, key=lambda item: item[0])]


def _fits(media_type: str, pattern: str) -> bool:
    return pattern in ("*/*", media_type, f"{media_type.partition('/')[0]}/*")


def answer(body: str | bytes, format_: ReportFormat, stand: LedgerStand, name: str) -> ResponseBody:
    """``body`` with its type, the ledger's digest, and for files a name made of ids and dates only."""
    headers = {LEDGER_HEADER: stand.digest}
    if format_ is ReportFormat.HTML:
        headers["Content-Security-Policy"] = f"{page_policy()}; frame-ancestors 'none'"
    if format_ in (ReportFormat.CSV, ReportFormat.PARQUET, ReportFormat.XLSX):
        headers["Content-Disposition"] = f'attachment; filename="gpucost-{name}.{format_}"'
    content = body.encode() if isinstance(body, str) else body
    return ResponseBody(content, MEDIA_TYPES[format_], tuple(headers.items()))


def described(report: type, *formats: ReportFormat, of_ledger: bool = True) -> dict[str, Any]:
    """The OpenAPI entry of a success: the report's own fields, and the other formats.

    ``of_ledger``: it is made of windows of the ledger, whose digest a header gives.
    """
    names = ["schema", *report.__dataclass_fields__]  # type: ignore[attr-defined]
    schema: dict[str, Any] = {
        "type": "object",
        "title": report.__name__,
        "description": report.__doc__,
        "properties": {name: {} for name in names} | {"schema": {"type": "string"}},
        "required": names,
    }
    binary = {"type": "string", "format": "binary"}
    other = {ReportFormat.PARQUET: binary, ReportFormat.XLSX: binary}
    header = {
        LEDGER_HEADER: {
            "description": "digest of the ledger's windows that the answer was made from",
            "schema": {"type": "string"},
        }
    }
    return {
        "description": "the report",
        "headers": header if of_ledger else {},
        "content": {
            MEDIA_TYPES[format_]: {
                "schema": schema if format_ is ReportFormat.JSON else other.get(format_, {"type": "string"})
            }
            for format_ in formats
        },
    }
