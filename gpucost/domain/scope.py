"""What a reader may see. Every ledger read takes a Scope; there is no unscoped read."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Scope:
    """The teams a reader may see, or every team with ``teams=None`` (finance, admin, the service itself).

    A scope with teams sees those teams' lines only: no capacity of nobody, no totals to subtract from.
    """

    teams: frozenset[str] | None

    @property
    def sees_all(self) -> bool:
        return self.teams is None


EVERYTHING = Scope(None)
