"""The builder of histories of what was observed: the source, the ledger, and the cluster's objects."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpucost.domain.errors import InputError
from gpucost.service.replay.observed_history import ObservedCluster
from gpucost.service.wiring.source import open_source

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpucost.advisor.replay.history_record import ReplayHistory
    from gpucost.attribution.teams import TeamRules
    from gpucost.cluster.objects.state import ClusterState
    from gpucost.domain.time import Month
    from gpucost.ledger.ledger import Ledger
    from gpucost.pricing.price_book import PriceBook
    from gpucost.service.settings.model import Settings


@dataclass(frozen=True)
class ReplayHistories:
    """Histories of months, read when they are asked for."""

    settings: Settings
    ledger: Ledger
    book: PriceBook
    teams: TeamRules
    now: Callable[[], int]

    def observed(self, month: Month, cluster: str | None = None) -> ReplayHistory:
        """Raises InputError for a cluster that the source does not know, or of which it has nothing."""
        source = open_source(self.settings, self.book, self.now)
        known = source.clusters()
        if cluster is None and len(known) == 1:
            cluster = known[0]
        if cluster not in known:
            raise InputError(
                "cluster", cluster or "", f"one of {', '.join(known) or 'none: the source has none'}"
            )
        of = ObservedCluster(
            source,
            cluster,
            month.window,
            self.teams,
            self.settings.attribution.basis,
            self.ledger,
            self._state(cluster),
        )
        return of.history(str(month))

    def _state(self, cluster: str) -> ClusterState | None:
        """The objects of the dump that the settings name: what a watch would have, without a cluster."""
        found = self.settings.detectors
        if found.dump is None or cluster != (found.cluster or self.settings.prometheus.cluster):
            return None
        from gpucost.cluster.objects.metadata import OwnerKeys
        from gpucost.service.advisor.cluster_watcher import DumpedCluster

        catalog = self.settings.attribution.catalog()
        assumed = self.settings.advisor.assumed
        return DumpedCluster.of(cluster, found.dump, catalog, OwnerKeys(), self.now(), assumed).read.state


def build_replaying(
    settings: Settings, ledger: Ledger, book: PriceBook, teams: TeamRules, now: Callable[[], int]
) -> ReplayHistories:
    """Nothing is read yet."""
    return ReplayHistories(settings, ledger, book, teams, now)
