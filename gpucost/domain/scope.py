"""What a reader may see. Every ledger read takes a Scope; there is no unscoped read."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Scope:
    """The teams and the clusters that a reader may see; None is all of them.

    A scope with teams sees those teams' lines only: no capacity of nobody, no totals to subtract from. A
    scope with clusters sees those clusters only, as if the ledger held no other.
    """

    teams: frozenset[str] | None
    clusters: frozenset[str] | None = None

    @property
    def sees_every_team(self) -> bool:
        """Whether capacity that nobody held is its to see: of its clusters."""
        return self.teams is None

    @property
    def sees_all(self) -> bool:
        """Every team of every cluster."""
        return self.teams is None and self.clusters is None

    def sees_cluster(self, cluster: str) -> bool:
        return self.clusters is None or cluster in self.clusters

    def within(self, clusters: Collection[str]) -> Scope:
        """What this scope sees of ``clusters``: never more than it sees itself."""
        named = frozenset(clusters)
        return Scope(self.teams, named if self.clusters is None else named & self.clusters)


EVERYTHING = Scope(None)
