"""Which format an answer has: ``?format=`` first, then the Accept header, then JSON."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

from fastapi import Request

from gpucost.api.answers import Body
from gpucost.api.errors import ApiError
from gpucost.service.rendering import Format
from gpucost.service.reporting import LedgerStand

MEDIA_TYPES = {
    Format.JSON: "application/json",
    Format.CSV: "text/csv",
    Format.PARQUET: "application/vnd.apache.parquet",
    Format.HTML: "text/html",
}
LEDGER_HEADER = "Gpucost-Ledger"


def chosen(request: Request, wanted: str | None, allowed: tuple[Format, ...]) -> Format:
    """The format to answer in. An Accept header that fits none of ``allowed`` is a 406."""
    if wanted is not None:
        return Format(wanted)
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


def answer(body: str | bytes, format_: Format, stand: LedgerStand, name: str) -> Body:
    """``body`` with its type, the ledger's digest, and for files a name made of ids and dates only."""
    headers = {LEDGER_HEADER: stand.digest}
    if format_ in (Format.CSV, Format.PARQUET):
        headers["Content-Disposition"] = f'attachment; filename="gpucost-{name}.{format_}"'
    content = body.encode() if isinstance(body, str) else body
    return Body(content, MEDIA_TYPES[format_], tuple(headers.items()))


def described(report: type, *formats: Format, of_ledger: bool = True) -> dict[str, Any]:
    """The OpenAPI entry of a success: the report's own fields, and the other formats.

    ``of_ledger``: it is made of windows of the ledger, which a header names.
    """
    names = ["schema", *report.__dataclass_fields__]  # type: ignore[attr-defined]
    schema: dict[str, Any] = {
        "type": "object",
        "title": report.__name__,
        "description": report.__doc__,
        "properties": {name: {} for name in names} | {"schema": {"type": "string"}},
        "required": names,
    }
    other = {Format.PARQUET: {"type": "string", "format": "binary"}}
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
                "schema": schema if format_ is Format.JSON else other.get(format_, {"type": "string"})
            }
            for format_ in formats
        },
    }
