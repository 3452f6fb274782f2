"""Boards for a ledger in another currency than US dollars: metrics have no ``_usd``, units another sign."""

from __future__ import annotations

import re
from typing import Any

from dashboards.modernise import Json

USD = "USD"
_METRIC = re.compile(r"\b(gpucost_\w+)_usd\b")
_UNIT = "currencyUSD"


def in_currency(board: Json, currency: str) -> Json:
    """``board`` with metrics and units of ``currency``, an ISO code such as EUR.

    Raises ValueError when it is no code of three capital letters.
    """
    if not re.fullmatch(r"[A-Z]{3}", currency):
        raise ValueError(f"currency {currency!r}: three capital letters are allowed, such as EUR")
    if currency == USD:
        return board
    changed: Json = _changed(board, currency)
    return changed


def _changed(value: Any, currency: str) -> Any:
    if isinstance(value, dict):
        return {key: _changed(one, currency) for key, one in value.items()}
    if isinstance(value, list):
        return [_changed(one, currency) for one in value]
    if value == _UNIT:
        return f"currency:{currency} "
    return _METRIC.sub(r"\1", value) if isinstance(value, str) else value
