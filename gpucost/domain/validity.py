"""From when to when a row of a configuration file holds: half-open, UTC, open on either side."""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from gpucost.domain.configfile import ConfigModel, Instant, wrong
from gpucost.domain.time import iso

BEGINNING = -(2**62)
END = 2**62

_TIMES = "a day such as 2026-10-01 (midnight UTC) or an RFC 3339 instant with a zone"


class Validity(ConfigModel):
    """A model with ``valid_from`` and ``valid_to``; left out, that side is open."""

    valid_from: Instant | None = Field(None, description=f"{_TIMES}; inclusive")
    valid_to: Instant | None = Field(None, description=f"{_TIMES}; exclusive")

    @model_validator(mode="after")
    def _has_time(self) -> Self:
        if self.start_ms >= self.end_ms:
            raise wrong(iso(self.end_ms), f"a time after valid_from, {iso(self.start_ms)}", "valid_to")
        return self

    @property
    def start_ms(self) -> int:
        return BEGINNING if self.valid_from is None else self.valid_from

    @property
    def end_ms(self) -> int:
        return END if self.valid_to is None else self.valid_to

    @property
    def edges(self) -> frozenset[int]:
        """The instants at which it starts or ends, where it does."""
        return frozenset(edge for edge in (self.valid_from, self.valid_to) if edge is not None)

    @property
    def validity(self) -> str:
        """``from 2026-10-01T00:00:00Z to 2027-01-01T00:00:00Z``; ``always`` where open on both sides."""
        start = "" if self.valid_from is None else f"from {iso(self.valid_from)}"
        end = "" if self.valid_to is None else f"to {iso(self.valid_to)}"
        return f"{start} {end}".strip() or "always"

    def holds_at(self, instant_ms: int) -> bool:
        return self.start_ms <= instant_ms < self.end_ms

    def coincides(self, other: Validity) -> bool:
        """Whether both hold at some instant."""
        return max(self.start_ms, other.start_ms) < min(self.end_ms, other.end_ms)
