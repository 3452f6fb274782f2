"""Who has how much of a cluster, what of it is its own, and what others could have had of the rest."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pandas as pd

from gpucost.attribution.deal import Ints
from gpucost.detectors.activity import Floats
from gpucost.detectors.demand_teams import demand_teams
from gpucost.detectors.facts import Facts
from gpucost.detectors.quotas import Line, Place, Quotas, boards_per_unit, pending, places
from gpucost.detectors.series import Series, combined, difference, least
from gpucost.detectors.unmet import unmet
from gpucost.domain.time import MINUTE_MS
from gpucost.domain.waste import Waste

TEAM = "team"
_WAITED_MS = 15 * MINUTE_MS


@dataclass(frozen=True, slots=True, order=True)
class Tenant:
    """A queue; where no queue manages the work, a team."""

    line: Line | None
    name: str

    def __str__(self) -> str:
        return f"{self.line or TEAM} {self.name}"


@dataclass(frozen=True)
class Tenancy:
    """Who used and who waited in ``[start, end)``. Where nobody has quota, tenants are teams, and entitled to
    equal parts."""

    facts: Facts
    start_ms: int
    end_ms: int

    @cached_property
    def used(self) -> Mapping[Tenant, float]:
        """Board milliseconds by tenant."""
        held = self.facts.history.held
        start, end = (held[name].to_numpy(np.int64) for name in ("start_ms", "end_ms"))
        time = np.minimum(end, self.end_ms) - np.maximum(start, self.start_ms)
        boards = np.nan_to_num(held["boards"].to_numpy(np.float64)) * time.clip(min=0)
        codes, tenants = _factorized(self._tenants(held, held["team"].tolist()))
        found = zip(tenants, np.bincount(codes, weights=boards, minlength=len(tenants)).tolist(), strict=True)
        return {tenant: amount for tenant, amount in found if amount > 0}

    def held(self, tenant: Tenant) -> pd.DataFrame:
        """Its rows of ``History.held``."""
        held = self.facts.history.held
        return held[[each == tenant for each in self._tenants(held, held["team"].tolist())]]

    @cached_property
    def shares(self) -> Mapping[Tenant, float]:
        """The part of all that was used, by tenant, the largest first."""
        total = sum(self.used.values())
        ordered = sorted(self.used.items(), key=lambda each: (-each[1], str(each[0])))
        return {tenant: amount / total for tenant, amount in ordered}

    @property
    def hhi(self) -> float:
        """The Herfindahl-Hirschman index: the sum of the squares of all shares, 1 for a single tenant."""
        return sum(share**2 for share in self.shares.values())

    @cached_property
    def demand(self) -> pd.DataFrame:
        """Rows that overlap, with ``tenant`` and ``needed``, the units it takes for any of it to start. Index
        as in the frame."""
        rows = self.facts.history.frames.demand.reset_index(drop=True)
        teams = demand_teams(self.facts.history, rows)
        tenants = self._tenants(rows, teams.tolist())
        rows = rows.assign(
            tenant=pd.Series(tenants, index=rows.index, dtype=object),
            needed=rows["min_pods"].clip(lower=1) * rows["units"],
        )
        return rows[(rows["start_ms"] < self.end_ms) & (rows["end_ms"] > self.start_ms)]

    @cached_property
    def names(self) -> frozenset[Tenant]:
        return frozenset(self.used) | frozenset(self.demand["tenant"])

    def entitlement(self, tenant: Tenant) -> float:
        """The part of the cluster that is its own, 0 to 1."""
        if not self._has_quotas:
            return 1 / len(self.names)
        own, everybody = 0.0, 0.0
        for resource in self._quotas.resources:
            boards = np.nan_to_num(boards_per_unit(self.facts.history, resource))
            rows = (self._quotas.rows["resource"] == resource).to_numpy(bool)
            everybody += boards * self._quotas.nominal(rows).integral(self.start_ms, self.end_ms)
            if tenant.line is not None:
                mine = self._quotas.mine(Place(tenant.line, tenant.name), resource)
                own += boards * self._quotas.nominal(mine).integral(self.start_ms, self.end_ms)
        return own / everybody if everybody else 0.0

    def borrowed(self, tenant: Tenant, resource: str) -> Series:
        """Units that it uses beyond what is its own."""
        if tenant.line is not None:
            return self._quotas.borrowed(self._quotas.mine(Place(tenant.line, tenant.name), resource))
        history, rows = self.facts.history, self.held(tenant)
        rows = rows[(rows["resource"] == resource).to_numpy(bool)]
        units = _summed(rows, rows["count"])
        if self._has_quotas:
            return units
        capacity = history.frames.capacity
        capacity = capacity[capacity["resource"] == resource]
        part = 1 / len(self.names)
        return difference(units, _summed(capacity, capacity["allocatable"] * part))

    def displaced(self, tenant: Tenant, resource: str) -> Series:
        """Units that others waited for, that were not free, and that it borrowed: at every instant what of
        their work would have fitted into its loan, up to that loan."""
        borrowed, rows = self.borrowed(tenant, resource), self.demand
        of_others = np.array([each != tenant for each in rows["tenant"]], dtype=bool)
        rows = rows[of_others & (rows["resource"] == resource).to_numpy(bool)]
        found = [Series(np.zeros(0, np.int64), np.zeros(0))]
        for needed in sorted(set(rows["needed"].tolist())):
            alike = rows[rows["needed"] == needed]
            waits = difference(pending(self.facts.history, alike), self._starved(alike.index))
            found.append(combined(_where_it_fits(needed), waits, borrowed))
        return least(borrowed, combined(lambda *parts: np.sum(parts, axis=0), *found))

    def _starved(self, rows: pd.Index[int]) -> Series:
        """Units that were free for these rows of demand: nobody kept them from those."""
        here = set(rows.tolist())
        found = [
            (claim.start_ms, claim.end_ms, claim.units)
            for claim in unmet(self.facts.history, _WAITED_MS).claims
            if claim.row in here and claim.waste is Waste.STARVED
        ]
        start, end, units = np.array(found, dtype=np.int64).reshape(-1, 3).T
        return Series.summed(start, end, units.astype(np.float64))

    @cached_property
    def _quotas(self) -> Quotas:
        return Quotas.of(self.facts.history)

    @property
    def _has_quotas(self) -> bool:
        return bool(self._quotas.resources)

    def _tenants(self, rows: pd.DataFrame, teams: Sequence[str]) -> list[Tenant]:
        if not self._has_quotas:
            return [Tenant(None, team) for team in teams]
        return [
            Tenant(None, team) if place.line is Line.NAMESPACE else Tenant(place.line, place.name)
            for place, team in zip(places(rows), teams, strict=True)
        ]


def _summed(rows: pd.DataFrame, amount: pd.Series[int] | pd.Series[float]) -> Series:
    start, end = (rows[name].to_numpy(np.int64) for name in ("start_ms", "end_ms"))
    return Series.summed(start, end, np.asarray(amount, dtype=np.float64))


def _factorized(tenants: Sequence[Tenant]) -> tuple[Ints, list[Tenant]]:
    """(position of each in the second, those there are)."""
    at: dict[Tenant, int] = {}
    codes = [at.setdefault(tenant, len(at)) for tenant in tenants]
    return np.array(codes, dtype=np.int64), list(at)


def _where_it_fits(needed: float) -> Callable[[Floats, Floats], Floats]:
    return lambda waits, borrowed: np.where(borrowed >= needed, waits, 0.0)
