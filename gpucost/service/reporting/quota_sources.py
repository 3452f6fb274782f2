"""The quotas that a source saw, as quotas of a charge policy; and who waited for how many GPUs.

``QuotaReader``: the quotas and cohorts of a month as a file that policies name (``gpucost chargeback
quotas``). ``waiting_time``: what stands beside idle quota in a preview. Both ask the source day by day.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from math import isnan
from typing import Any

import pandas as pd

from gpucost.attribution.frames import ClusterFrames
from gpucost.attribution.teams import CONDITIONS, TeamRules
from gpucost.charges.capacity_cells import CapacityCell
from gpucost.charges.quota_history import (
    CohortSpan,
    FlavorKey,
    QuotaHistory,
    QuotaSpan,
    UnitModel,
    quota_file,
)
from gpucost.contract.frames import DEMAND
from gpucost.domain.buckets import Bucket
from gpucost.domain.errors import ErrorRemark, InputError
from gpucost.domain.gpu import ResourceCatalog, ShareBasis, parse_product
from gpucost.domain.scope import Scope
from gpucost.domain.time import DAY_MS, Month, Window
from gpucost.ledger.ledger import Ledger
from gpucost.reports.charges.charge_previews import WaitingDemand, WaitingTime
from gpucost.telemetry.interval_source import IntervalSource


def waiting_time(
    source: IntervalSource, scope: Scope, month: Month, teams: TeamRules, basis: ShareBasis
) -> WaitingTime:
    """Who waited in the month for how many GPUs, as far as ``source`` knows. Raises SourceError.

    A unit is the part of a GPU that the products say that would have done; where these differ, or are
    replicas of a GPU, whose number nothing says, the time is left out, and named.
    """
    sums: dict[tuple[str, str, frozenset[str]], Fraction] = defaultdict(Fraction)
    missing: dict[str, None] = {}
    for cluster in source.clusters():
        if scope.clusters is not None and cluster not in scope.clusters:
            continue
        known, days = _days_of(source, cluster, month, (DEMAND.name,))
        if known != month.window:
            missing[f"cluster {cluster}: the source holds {known or 'nothing'} of the month"] = None
        for day in days:
            if DEMAND.name in day.lacks:
                missing[f"cluster {cluster}: {day.lacks[DEMAND.name]}"] = None
        for row in _rows([day.demand for day in days]):
            share, models = _asked(row["resource"], row["products"], basis)
            if share is None:
                why = f"jobs waited for {row['resource']}, and nothing says what part of a GPU that is"
                missing[f"cluster {cluster}: {why}"] = None
                continue
            holder = {name: str(row.get(name, "")) for name in CONDITIONS}
            team = teams.team_of(holder, row["start_ms"])
            units = row["pods"] * row["units"] * (row["end_ms"] - row["start_ms"])
            sums[team, row["cluster_queue"], models] += units * share
    return WaitingTime(
        tuple(WaitingDemand(*key, int(board_ms)) for key, board_ms in sums.items()), tuple(missing)
    )


def _asked(resource: str, products: str, basis: ShareBasis) -> tuple[Fraction | None, frozenset[str]]:
    """The part of a GPU that a unit is, and the models that would do."""
    catalog = ResourceCatalog()
    if not products:
        return catalog.shares.get(resource), frozenset()
    shares: set[Fraction | None] = set()
    for product in products.split("|"):
        try:
            shares.add(catalog.unit(resource, product, basis=basis).share)
        except InputError:
            shares.add(None)
    models = frozenset(parse_product(product).model for product in products.split("|"))
    return (shares.pop() if len(shares) == 1 else None), models


def _days_of(
    source: IntervalSource, cluster: str, month: Month, only: tuple[str, ...]
) -> tuple[Window | None, list[ClusterFrames]]:
    """The part of the month that the source has, and its days: a source looks at longer times in larger
    steps."""
    covered = source.covered(cluster)
    known = None if covered is None else covered.intersect(month.window)
    days = [] if known is None else known.split(DAY_MS)
    return known, [source.history(cluster, day, only) for day in days]


@dataclass(frozen=True)
class QuotaReader:
    """What ``source`` saw of queues in a month.

    What a unit of a flavor is (GPU model, and share of a GPU) is what the ledger's lines say of the pods that
    held it; ``models`` are flavors whose model a person named.
    """

    source: IntervalSource
    ledger: Ledger
    scope: Scope
    month: Month
    models: Mapping[str, str] = field(default_factory=dict)

    def queues(self) -> tuple[str, ...]:
        """The ClusterQueues with quota of GPUs in the month, sorted."""
        return tuple(sorted({span.queue for span in self._spans}))

    def cohorts(self) -> tuple[str, ...]:
        """The cohorts with quota of their own, sorted."""
        return tuple(sorted({span.cohort for span in self._cohorts if span.flavor}))

    def text(self, teams: Mapping[str, str], cohort_teams: Mapping[str, str]) -> str:
        """The quotas of the month as a file of quotas; ``teams`` pay for the queues. Raises InputError for a
        queue without one."""
        lacking = [queue for queue in self.queues() if queue not in teams]
        if lacking:
            allowed = f"QUEUE=TEAM for each of: {', '.join(lacking)} (no team rule is about the queue alone)"
            raise InputError("--team", ErrorRemark("missing"), allowed)
        history = QuotaHistory(
            window=self.month.window,
            spans=self._spans,
            cohorts=self._cohorts,
            units=self._units,
            observed=self._observed,
            teams=teams,
            cohort_teams=cohort_teams,
            remarks=tuple(self._remarks()),
            cells=self._cells(),
        )
        return quota_file(history)

    @cached_property
    def _frames(self) -> Mapping[str, tuple[Window | None, list[ClusterFrames]]]:
        return {
            cluster: _days_of(self.source, cluster, self.month, ("quotas", "cohorts", "observed"))
            for cluster in self.source.clusters()
            if self.scope.clusters is None or cluster in self.scope.clusters
        }

    @cached_property
    def _spans(self) -> list[QuotaSpan]:
        found = []
        has_tree = {span.cluster for span in self._cohorts}
        for _, days in self._frames.values():
            for row in _rows([day.quotas for day in days]):
                nominal = _units_of(row["nominal"])
                if row["scheduler"] != "kueue" or nominal is None:
                    continue
                is_told = row["cluster"] in has_tree and row["own_cohort"]
                found.append(
                    QuotaSpan(
                        cluster=row["cluster"],
                        queue=row["queue"],
                        cohort=row["own_cohort"] if is_told else row["cohort"],
                        flavor=row["flavor"],
                        resource=row["resource"],
                        start_ms=row["start_ms"],
                        end_ms=row["end_ms"],
                        nominal=nominal,
                        lending_limit=_units_of(row["lending_limit"]),
                        used=_units_of(row["used"]),
                    )
                )
        return found

    @cached_property
    def _cohorts(self) -> list[CohortSpan]:
        amounts = ("nominal", "lending_limit")
        return [
            CohortSpan(**{**row, **{name: _units_of(row[name]) for name in amounts}})
            for _, days in self._frames.values()
            for row in _rows([day.cohorts for day in days])
        ]

    @cached_property
    def _observed(self) -> Mapping[str, Sequence[Window]]:
        return {
            cluster: [
                Window(int(start), int(end))
                for day in days
                for start, end in zip(day.observed["start_ms"], day.observed["end_ms"], strict=True)
            ]
            for cluster, (_, days) in self._frames.items()
        }

    @cached_property
    def _units(self) -> Mapping[FlavorKey, frozenset[UnitModel]]:
        dims = ("cluster", "flavor", "resource", "model", "share_num", "share_den")
        held = {"bucket": (str(Bucket.HELD),)}
        rows = self.ledger.aggregate(self.scope, self.month.window, dims, filters=held)
        found: dict[FlavorKey, set[UnitModel]] = defaultdict(set)
        for cluster, flavor, resource, model, num, den in zip(*(rows[name] for name in dims), strict=True):
            found[cluster, flavor, resource].add(UnitModel(model, Fraction(int(num), int(den))))
        whole = ResourceCatalog().shares
        keys = {(each.cluster, each.flavor, each.resource) for each in self._spans}
        for key in keys | {(each.cluster, each.flavor, each.resource) for each in self._cohorts}:
            named = self.models.get(key[1])
            if named is not None:
                shares = {unit.share for unit in found[key]}
                if not shares and key[2] in whole:
                    shares = {whole[key[2]]}
                found[key] = {UnitModel(named, share) for share in shares}
        return {key: frozenset(units) for key, units in found.items()}

    @cached_property
    def _folded(self) -> int:
        """Days whose hours were added up: when pods held something in them is not known any more."""
        return len(self.ledger.folded_days(self.scope, self.month.window))

    def _cells(self) -> Iterable[CapacityCell]:
        """What pods held in the month, where that is of use."""
        if self._folded or not any(span.used for span in self._spans):
            return ()
        return self.ledger.cells(self.scope, self.month.window)

    def _remarks(self) -> Iterator[str]:
        yield (
            f"Of {self.month}, from {self.source.name}: a change is dated by the minute in which the source "
            "first showed it, up to a minute and one scrape after it was made."
        )
        if self._folded:
            yield f"No reservations: the ledger has {self._folded} days of this month without their hours."
        for cluster, (known, days) in self._frames.items():
            name = json.dumps(cluster, ensure_ascii=False)
            if known != self.month.window:
                held = f"the source holds {known or 'nothing'} of the month"
                yield f"Cluster {name}: {held}; no quota is known before or after."
            if any((day.quotas["scheduler"] != "kueue").any() for day in days):
                yield (
                    f"Left out: the queues of Volcano in cluster {name}: their quota is of no model, and "
                    "what is held counts by ClusterQueue."
                )
            other = any((day.quotas["own_cohort"] != day.quotas["cohort"]).any() for day in days)
            if other and cluster not in {each.cluster for each in self._cohorts}:
                yield (
                    f"Cluster {name}: the source does not say which cohorts stand below others; each queue "
                    "is in the root of its tree."
                )


def _rows(frames: Iterable[pd.DataFrame]) -> Iterator[dict[str, Any]]:
    for frame in frames:
        names = [str(name) for name in frame.columns]
        for values in zip(*(frame[name].tolist() for name in names), strict=True):
            yield dict(zip(names, values, strict=True))


def _units_of(amount: float) -> Fraction | None:
    return None if isnan(amount) else Fraction(amount)
