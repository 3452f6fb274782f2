"""A tenant that uses more than half of the GPUs in use, and more than its entitlement, while others wait.

The module computes the shares of all tenants, the entitlement of each, and what others could have had of the
rest.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import floor, isnan

import numpy as np
import pandas as pd

from gpucost.attribution.apportion import Ints
from gpucost.cluster.views.commands import quota_lines, volcano_patch
from gpucost.detectors.allocation_pieces import (
    LEAST_COVERAGE,
    hours,
    lasting,
    with_names,
)
from gpucost.detectors.findings import (
    FindingAction,
    FindingDraft,
    FindingEvidence,
    FindingSeverity,
    FindingSubject,
    RuleDetection,
    SubjectKind,
    ViewTime,
    WastePattern,
    WithheldFinding,
)
from gpucost.detectors.inputs.activity_table import Floats
from gpucost.detectors.inputs.detector_facts import DetectorFacts, demand_teams
from gpucost.detectors.inputs.queue_quotas import (
    QueueKind,
    QueuePlace,
    QueueQuotas,
    StepFunction,
    boards_per_unit,
    combined,
    difference,
    least,
    pending,
    places,
)
from gpucost.detectors.inputs.unmet_demand import unmet
from gpucost.detectors.inputs.view_times import of_holders
from gpucost.detectors.rule_settings import MonopolySettings, ScopedSettings
from gpucost.domain.buckets import Waste
from gpucost.domain.time import HOUR_MS, MINUTE_MS
from gpucost.settings.types import milliseconds

TEAM = "team"
_WAITED_MS = 15 * MINUTE_MS


@dataclass(frozen=True, slots=True, order=True)
class ClusterTenant:
    """A queue; where no queue manages the work, a team."""

    line: QueueKind | None
    name: str

    def __str__(self) -> str:
        return f"{self.line or TEAM} {self.name}"


@dataclass(frozen=True)
class ClusterTenancy:
    """Use and demand by tenant in ``[start, end)``. Where no queue has quota, tenants are teams, and entitled
    to equal parts."""

    facts: DetectorFacts
    start_ms: int
    end_ms: int

    @cached_property
    def used(self) -> Mapping[ClusterTenant, float]:
        """GPU milliseconds by tenant."""
        held = self.facts.history.held
        start, end = (held[name].to_numpy(np.int64) for name in ("start_ms", "end_ms"))
        time = np.minimum(end, self.end_ms) - np.maximum(start, self.start_ms)
        boards = np.nan_to_num(held["boards"].to_numpy(np.float64)) * time.clip(min=0)
        codes, tenants = _factorized(self._tenants(held, held["team"].tolist()))
        found = zip(tenants, np.bincount(codes, weights=boards, minlength=len(tenants)).tolist(), strict=True)
        return {tenant: amount for tenant, amount in found if amount > 0}

    def held(self, tenant: ClusterTenant) -> pd.DataFrame:
        """Its rows of ``ClusterHistory.held``."""
        held = self.facts.history.held
        return held[[each == tenant for each in self._tenants(held, held["team"].tolist())]]

    @cached_property
    def shares(self) -> Mapping[ClusterTenant, float]:
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
    def names(self) -> frozenset[ClusterTenant]:
        return frozenset(self.used) | frozenset(self.demand["tenant"])

    def entitlement(self, tenant: ClusterTenant) -> float:
        """The part of the cluster that it is entitled to, 0 to 1."""
        if not self._has_quotas:
            return 1 / len(self.names)
        own, everybody = 0.0, 0.0
        for resource in self._quotas.resources:
            boards = np.nan_to_num(boards_per_unit(self.facts.history, resource))
            rows = (self._quotas.rows["resource"] == resource).to_numpy(bool)
            everybody += boards * self._quotas.nominal(rows).integral(self.start_ms, self.end_ms)
            if tenant.line is not None:
                mine = self._quotas.mine(QueuePlace(tenant.line, tenant.name), resource)
                own += boards * self._quotas.nominal(mine).integral(self.start_ms, self.end_ms)
        return own / everybody if everybody else 0.0

    def borrowed(self, tenant: ClusterTenant, resource: str) -> StepFunction:
        """Units that it uses beyond its entitlement."""
        if tenant.line is not None:
            return self._quotas.borrowed(self._quotas.mine(QueuePlace(tenant.line, tenant.name), resource))
        history, rows = self.facts.history, self.held(tenant)
        rows = rows[(rows["resource"] == resource).to_numpy(bool)]
        units = _summed(rows, rows["count"])
        if self._has_quotas:
            return units
        capacity = history.frames.capacity
        capacity = capacity[capacity["resource"] == resource]
        part = 1 / len(self.names)
        return difference(units, _summed(capacity, capacity["allocatable"] * part))

    def displaced(self, tenant: ClusterTenant, resource: str) -> StepFunction:
        """Units that others waited for, that were not free, and that it borrowed: at every instant the part
        of their work that would have fitted into its loan, up to that loan."""
        borrowed, rows = self.borrowed(tenant, resource), self.demand
        of_others = np.array([each != tenant for each in rows["tenant"]], dtype=bool)
        rows = rows[of_others & (rows["resource"] == resource).to_numpy(bool)]
        found = [StepFunction(np.zeros(0, np.int64), np.zeros(0))]
        for needed in sorted(set(rows["needed"].tolist())):
            alike = rows[rows["needed"] == needed]
            waits = difference(pending(self.facts.history, alike), self._starved(alike.index))
            found.append(combined(_where_it_fits(needed), waits, borrowed))
        return least(borrowed, combined(lambda *parts: np.sum(parts, axis=0), *found))

    def _starved(self, rows: pd.Index[int]) -> StepFunction:
        """Units that were free for these rows of demand, so that no tenant kept them from these."""
        here = set(rows.tolist())
        found = [
            (claim.start_ms, claim.end_ms, claim.units)
            for claim in unmet(self.facts.history, _WAITED_MS).claims
            if claim.row in here and claim.waste is Waste.STARVED
        ]
        start, end, units = np.array(found, dtype=np.int64).reshape(-1, 3).T
        return StepFunction.summed(start, end, units.astype(np.float64))

    @cached_property
    def _quotas(self) -> QueueQuotas:
        return QueueQuotas.of(self.facts.history)

    @property
    def _has_quotas(self) -> bool:
        return bool(self._quotas.resources)

    def _tenants(self, rows: pd.DataFrame, teams: Sequence[str]) -> list[ClusterTenant]:
        if not self._has_quotas:
            return [ClusterTenant(None, team) for team in teams]
        return [
            ClusterTenant(None, team)
            if place.line is QueueKind.NAMESPACE
            else ClusterTenant(place.line, place.name)
            for place, team in zip(places(rows), teams, strict=True)
        ]


def _summed(rows: pd.DataFrame, amount: pd.Series[int] | pd.Series[float]) -> StepFunction:
    start, end = (rows[name].to_numpy(np.int64) for name in ("start_ms", "end_ms"))
    return StepFunction.summed(start, end, np.asarray(amount, dtype=np.float64))


def _factorized(tenants: Sequence[ClusterTenant]) -> tuple[Ints, list[ClusterTenant]]:
    """(position of each in the second, the distinct ones)."""
    at: dict[ClusterTenant, int] = {}
    codes = [at.setdefault(tenant, len(at)) for tenant in tenants]
    return np.array(codes, dtype=np.int64), list(at)


def _where_it_fits(needed: float) -> Callable[[Floats, Floats], Floats]:
    return lambda waits, borrowed: np.where(borrowed >= needed, waits, 0.0)


NAME = WastePattern.MONOPOLY
VARIANT = "tenant"
_MOST_WAITING = 5
_AT_LEAST = ((24 * HOUR_MS, FindingSeverity.HIGH), (8 * HOUR_MS, FindingSeverity.MEDIUM))


def run(facts: DetectorFacts, settings: ScopedSettings[MonopolySettings]) -> RuleDetection:
    own = settings.default
    window, now_ms = facts.history.window, facts.now_ms
    start_ms = now_ms - milliseconds(own.window)
    lacking = _lacking(facts, start_ms, own)
    if lacking:
        cluster = FindingSubject(SubjectKind.CLUSTER, facts.cluster, facts.cluster)
        return RuleDetection(withheld=(WithheldFinding(NAME, cluster, lacking, lacks_data=True),))
    tenancy = ClusterTenancy(facts, max(start_ms, window.start_ms), now_ms)
    largest = next(iter(tenancy.shares), None)
    if largest is None:
        return RuleDetection()
    own = settings.at(queue=largest.name)
    if tenancy.shares[largest] <= own.share:
        return RuleDetection()
    found = _judged(tenancy, largest, own)
    return RuleDetection((found,)) if isinstance(found, FindingDraft) else RuleDetection(withheld=(found,))


def _lacking(facts: DetectorFacts, start_ms: int, settings: MonopolySettings) -> str:
    needed = lasting(milliseconds(settings.window))
    if facts.history.window.start_ms > start_ms:
        return f"there is a history of {lasting(facts.history.window.length_ms)}, and {needed} are needed"
    coverage = facts.history.coverage(start_ms, facts.now_ms)
    if coverage < LEAST_COVERAGE:
        return f"{coverage:.1%} of the last {needed} were observed"
    return ""


def _judged(
    tenancy: ClusterTenancy, tenant: ClusterTenant, settings: MonopolySettings
) -> FindingDraft | WithheldFinding:
    """The finding of a tenant that has more than its share of what is used."""
    share, entitled = tenancy.shares[tenant], tenancy.entitlement(tenant)
    subject = _subject(tenancy.facts, tenant)
    if tenant.name in settings.agreed:
        return WithheldFinding(NAME, subject, "its share is agreed (agreed)")
    if len(tenancy.names) == 1:
        return WithheldFinding(NAME, subject, "nobody else used or wanted GPUs")
    if share <= settings.over_entitlement * entitled:
        because = (
            f"{share:.1%} of the use is within {settings.over_entitlement:g} times the {entitled:.1%} of"
        )
        return WithheldFinding(NAME, subject, f"{because} the nominal quota that are its own")
    if not _borrows(tenancy, tenant):
        return WithheldFinding(
            NAME, subject, f"all it used ({share:.1%} of the use) is within its nominal quota"
        )
    found = _displaced(tenancy, tenant)
    view = tuple(
        each
        for resource, part in found.items()
        for each in of_holders(tenancy.held(tenant), resource, part, tenancy.start_ms, tenancy.end_ms)
    )
    board_ms = sum(each.board_ms for each in view)
    stretches = [_stretches(part, tenancy, settings) for part in found.values()]
    since_ms = min((each for starts in stretches for each in starts), default=None)
    if since_ms is None or board_ms < settings.pending_gpu_hours * HOUR_MS:
        because = (
            f"others waited for {hours(board_ms)} of what it borrows, and not for "
            f"{lasting(milliseconds(settings.waited))} at a time, or less than {settings.pending_gpu_hours:g}"
        )
        return WithheldFinding(NAME, subject, because if board_ms else "nobody waited for what it borrows")
    return _draft(tenancy, tenant, settings, view, since_ms)


def _borrows(tenancy: ClusterTenancy, tenant: ClusterTenant) -> bool:
    resources = set(tenancy.facts.history.frames.allocations["resource"].tolist())
    borrowed = (tenancy.borrowed(tenant, resource) for resource in sorted(resources))
    return any(each.most(tenancy.start_ms, tenancy.end_ms) > 0 for each in borrowed)


def _displaced(tenancy: ClusterTenancy, tenant: ClusterTenant) -> Mapping[str, StepFunction]:
    """GPUs by resource."""
    found = {}
    for resource in sorted(tenancy.demand["resource"].unique()):
        boards = float(np.nan_to_num(boards_per_unit(tenancy.facts.history, resource)))
        found[resource] = combined(_times(boards), tenancy.displaced(tenant, resource))
    return found


def _stretches(displaced: StepFunction, tenancy: ClusterTenancy, settings: MonopolySettings) -> list[int]:
    """Starts of the stretches that are long enough."""
    starts, ends = displaced.stretches(tenancy.start_ms, tenancy.end_ms)
    found: list[int] = starts[ends - starts >= milliseconds(settings.waited)].tolist()
    return found


def _draft(
    tenancy: ClusterTenancy,
    tenant: ClusterTenant,
    settings: MonopolySettings,
    view: tuple[ViewTime, ...],
    since_ms: int,
) -> FindingDraft:
    share, entitled = tenancy.shares[tenant], tenancy.entitlement(tenant)
    length_ms = tenancy.end_ms - tenancy.start_ms
    view_ms = sum(each.board_ms for each in view)
    severity = next((each for least_ms, each in _AT_LEAST if view_ms >= least_ms), FindingSeverity.LOW)
    return FindingDraft(
        NAME,
        VARIANT,
        _subject(tenancy.facts, tenant),
        since_ms,
        f"{tenant} used {share:.1%} of the GPU time of the last {lasting(length_ms)}, {entitled:.1%} of the "
        f"quota being its own, while others waited for {hours(view_ms)} of what it borrowed.",
        _evidence(tenancy, tenant),
        _action(tenancy, tenant, settings),
        # No team: it names waiting tenants and what others use, so it is for the platform team.
        "the smaller of what it borrowed and of what others waited for, could have used and did not find "
        "free, times time; shown, not counted: it was used",
        queue="" if tenant.line is None else tenant.name,
        view=view,
        checked=("others use or want GPUs", "it borrows", "they waited, and their work would have fitted"),
        at_least=severity,
    )


def _evidence(tenancy: ClusterTenancy, tenant: ClusterTenant) -> tuple[FindingEvidence, ...]:
    length_ms = tenancy.end_ms - tenancy.start_ms
    borrowed = [
        FindingEvidence(f"borrowed {resource}, in the mean", round(amount, 2), "units", f"quotas of {tenant}")
        for resource in sorted(tenancy.demand["resource"].unique())
        if (
            amount := tenancy.borrowed(tenant, resource).integral(tenancy.start_ms, tenancy.end_ms)
            / length_ms
        )
    ]
    return (
        FindingEvidence("share of all use", round(tenancy.shares[tenant], 4), "", "allocations"),
        FindingEvidence("entitlement", round(tenancy.entitlement(tenant), 4), "", "nominal quota"),
        FindingEvidence("concentration of use (HHI)", round(tenancy.hhi, 4), "", "allocations"),
        FindingEvidence("tenants", len(tenancy.names)),
        *borrowed,
        FindingEvidence("who waited", ", ".join(_waiting(tenancy, tenant)), "", "demand"),
    )


def _waiting(tenancy: ClusterTenancy, tenant: ClusterTenant) -> list[str]:
    """The other tenants that waited, those that waited for most first."""
    rows = tenancy.demand[[each != tenant for each in tenancy.demand["tenant"]]]
    time = rows["end_ms"].clip(upper=tenancy.end_ms) - rows["start_ms"].clip(lower=tenancy.start_ms)
    amounts: dict[ClusterTenant, float] = {}
    for each, amount in zip(rows["tenant"], (time * rows["pods"] * rows["units"]).tolist(), strict=True):
        amounts[each] = amounts.get(each, 0.0) + amount
    ordered = sorted(amounts, key=lambda each: (-amounts[each], str(each)))
    return [f"{each} ({amounts[each] / HOUR_MS:.3g} unit-hours)" for each in ordered[:_MOST_WAITING]]


def _action(tenancy: ClusterTenancy, tenant: ClusterTenant, settings: MonopolySettings) -> FindingAction:
    quotas, now_ms = QueueQuotas.of(tenancy.facts.history), tenancy.end_ms
    if tenant.line is None:
        return FindingAction(
            f"Give {tenant} and the others queues with quota, so that loans can be taken back."
        )
    rows = [
        (row.used - np.nan_to_num(row.nominal), row, resource)
        for resource in quotas.resources
        for row in quotas.at(resource, now_ms - 1)
        if row.queue == tenant.name and not np.isnan(row.used)
    ]
    if not rows:
        return FindingAction(f"Limit what {tenant} may borrow.")
    over, row, resource = max(rows, key=lambda each: (each[0], each[2], each[1].flavor))
    nominal = float(np.nan_to_num(row.nominal))
    # Rounded to twelve digits, so that 0.2 x 15 is 3.
    most = floor(round((settings.over_entitlement - 1) * nominal, 12))
    per_unit = boards_per_unit(tenancy.facts.history, resource)
    frees = None if isnan(per_unit) else max(over - most, 0.0) * per_unit
    if tenant.line is QueueKind.VOLCANO_QUEUE:
        patch = volcano_patch(tenant.name, "capability", resource, nominal + most)
        return with_names(
            FindingAction(f"Limit {tenant} to {nominal + most:g} {resource}.", patch, frees), tenant.name
        )
    now = {"borrowingLimit": row.borrowing_limit}
    lines = quota_lines(tenant.name, row.flavor, resource, {"borrowingLimit": most}, now)
    text = f"Let {tenant} borrow no more than {most:g} {resource}."
    return with_names(FindingAction(text, lines, frees), tenant.name, row.flavor)


def _subject(facts: DetectorFacts, tenant: ClusterTenant) -> FindingSubject:
    kind = SubjectKind.TEAM if tenant.line is None else SubjectKind.QUEUE
    return FindingSubject(kind, facts.cluster, tenant.name, uid="" if tenant.line is None else str(tenant))


def _times(factor: float) -> Callable[[Floats], Floats]:
    return lambda value: value * factor
