"""What a reader may see. Every ledger read takes a Scope; there is no unscoped read."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Scope:
    """The teams and the clusters that a reader may see; None is all of them.

    A scope with teams sees those teams' lines only: no capacity without a holder, and no totals from which
    other teams' numbers could be derived. A scope with clusters sees those clusters only, as if the ledger
    held no other.
    """

    teams: frozenset[str] | None
    clusters: frozenset[str] | None = None

    @property
    def sees_every_team(self) -> bool:
        """Whether it sees capacity that no pod held (in its clusters)."""
        return self.teams is None

    @property
    def sees_all(self) -> bool:
        """Every team of every cluster."""
        return self.teams is None and self.clusters is None

    def sees_cluster(self, cluster: str) -> bool:
        return self.clusters is None or cluster in self.clusters

    def within(self, clusters: Collection[str]) -> Scope:
        """This scope limited to ``clusters``: it never sees more than before."""
        named = frozenset(clusters)
        return Scope(self.teams, named if self.clusters is None else named & self.clusters)


EVERYTHING = Scope(None)
