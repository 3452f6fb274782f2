"""Prices as attribution sees them: integer nano-units per GPU-hour, with validity and provenance."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from gpucost.domain.errors import InputError
from gpucost.domain.money import NANO, check_currency
from gpucost.domain.time import Window

# Keeps every product of attribution inside 64 bits, with room to spare: see attribution/apportion.py.
MAX_NANO_PER_BOARD_HOUR = 1_000_000 * NANO


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """The facts of a node that a price can depend on. Empty text means "unknown"; ``boards`` (its number of
    GPUs) is None when unknown."""

    cluster: str
    node: str
    model: str
    boards: int | None
    instance_type: str = ""
    capacity_type: str = ""
    region: str = ""
    zone: str = ""
    pool: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class NodeIdentity:
    """Which machine of a cloud a node is (``spec.providerID``): invoices name machines. ``cluster`` is empty
    where nobody says it."""

    cluster: str
    node: str
    provider_id: str


@dataclass(frozen=True, slots=True)
class Rate:
    """What one GPU costs per hour, and where that number comes from.

    ``rate_id`` names the price-book row and its version and is unique per value; ``nano_per_board_hour``
    is after discounts and ``list_nano_per_board_hour`` before; ``matched_by`` says which key of the node
    found it (``instance_type``, ``model``); ``pricing_category`` is FOCUS's (Standard, Dynamic, Committed,
    Other). Raises InputError when the price is negative or above 1,000,000 per GPU-hour.
    """

    rate_id: str
    nano_per_board_hour: int
    currency: str
    list_nano_per_board_hour: int
    matched_by: str
    source: str
    retrieved: str
    pricing_category: str = "Standard"
    discount: str = ""

    def __post_init__(self) -> None:
        check_currency(self.currency)
        for name in ("nano_per_board_hour", "list_nano_per_board_hour"):
            if not 0 <= getattr(self, name) <= MAX_NANO_PER_BOARD_HOUR:
                raise InputError(f"{self.rate_id}.{name}", getattr(self, name), "0 to 1,000,000 per GPU-hour")


@dataclass(frozen=True, slots=True)
class RateSpan:
    """The rate in force during ``[start_ms, end_ms)``; ``rate`` is None when the book has no price.

    ``reason`` then says what was looked for, in words that name the model and instance type. ``doubt`` says
    why a rate that is in force should be checked.
    """

    start_ms: int
    end_ms: int
    rate: Rate | None
    reason: str = ""
    doubt: str = ""


RateLookup = Callable[[NodeFacts, Window], Sequence[RateSpan]]
"""The rates in force for a node, end to end over a window."""
