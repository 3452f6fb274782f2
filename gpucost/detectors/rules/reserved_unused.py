"""Quota that a queue keeps and does not use, while no other queue may use it or does."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from math import ceil, isnan

import numpy as np
import pandas as pd

from gpucost.attribution.segments import union
from gpucost.cluster.views.commands import quota_lines, volcano_patch
from gpucost.detectors.allocation_pieces import (
    LEAST_COVERAGE,
    amount,
    hours,
    lasting,
    since,
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
    WastePattern,
    WithheldFinding,
)
from gpucost.detectors.inputs.detector_facts import DetectorFacts
from gpucost.detectors.inputs.queue_quotas import (
    QueueKind,
    QueuePlace,
    QueueQuotas,
    StepFunction,
    boards_per_unit,
    combined,
    difference,
    least,
    place_of,
    places,
)
from gpucost.detectors.inputs.unmet_demand import unmet, with_since
from gpucost.detectors.inputs.view_times import flavor_nodes, of_flavors
from gpucost.detectors.rule_settings import ReservedUnusedSettings, ScopedSettings
from gpucost.domain.buckets import Waste
from gpucost.domain.time import DAY_MS, HOUR_MS
from gpucost.settings.types import milliseconds

NAME = WastePattern.RESERVED_UNUSED
VARIANT = "unused"
_VIEW_MS = DAY_MS


@dataclass(frozen=True)
class _Quota:
    """One queue's quota of one resource, over the days that count: series in units."""

    facts: DetectorFacts
    place: QueuePlace
    resource: str
    start_ms: int

    @cached_property
    def quotas(self) -> QueueQuotas:
        return QueueQuotas.of(self.facts.history)

    @cached_property
    def nominal(self) -> float:
        """As it is now."""
        return float(
            self.quotas.nominal(self.quotas.mine(self.place, self.resource)).at([self.now_ms - 1])[0]
        )

    @cached_property
    def used(self) -> StepFunction:
        return self.quotas.used(self.quotas.mine(self.place, self.resource))

    @cached_property
    def lent(self) -> StepFunction:
        return self.quotas.lent(self.place, self.resource)

    @cached_property
    def in_use(self) -> StepFunction:
        """By itself and by the queues it lends to."""
        return combined(lambda own, lent: own + lent, self.used, self.lent)

    @cached_property
    def known(self) -> StepFunction:
        """1 where quota and use are known."""
        known = self.quotas.known(self.quotas.mine(self.place, self.resource))
        return combined(lambda rows: rows > 0, known)

    @property
    def now_ms(self) -> int:
        return self.facts.now_ms

    @property
    def since_ms(self) -> int:
        rows = self.quotas.rows[self.quotas.mine(self.place, self.resource)]
        return int(rows["start_ms"].min())

    def quantile(self, series: StepFunction, part: float, start_ms: int) -> float:
        return series.quantile(part, start_ms, self.now_ms, self.known)

    @property
    def subject(self) -> FindingSubject:
        uid = f"{self.place} {self.resource}"
        return FindingSubject(SubjectKind.QUEUE, self.facts.cluster, self.place.name, uid=uid)


def run(facts: DetectorFacts, settings: ScopedSettings[ReservedUnusedSettings]) -> RuleDetection:
    drafts: list[FindingDraft] = []
    withheld: dict[str, WithheldFinding] = {}
    quotas = QueueQuotas.of(facts.history)
    for resource in quotas.resources:
        for place in quotas.queues(resource):
            own = settings.at(queue=place.name)
            quota = _Quota(facts, place, resource, facts.now_ms - milliseconds(own.min_history))
            if quota.nominal < own.min_units:
                continue
            found = _judged(quota, own)
            if isinstance(found, FindingDraft):
                drafts.append(found)
            elif found is not None:
                withheld[str(found)] = found  # a reason that holds for all queues is listed once
    return RuleDetection(tuple(drafts), tuple(withheld.values()))


def _judged(quota: _Quota, settings: ReservedUnusedSettings) -> FindingDraft | WithheldFinding | None:
    """None where it is used, as far as the data show."""
    window = quota.facts.history.window
    if window.start_ms > quota.start_ms:
        cluster = FindingSubject(SubjectKind.CLUSTER, quota.facts.cluster, quota.facts.cluster)
        needed = _days(milliseconds(settings.min_history))
        because = f"there is a history of {_days(window.length_ms)}, and {needed} are needed"
        return WithheldFinding(NAME, cluster, because, lacks_data=True)
    known = quota.known.mean(max(quota.since_ms, quota.start_ms), quota.now_ms)
    if known < LEAST_COVERAGE:
        days = _days(quota.now_ms - quota.start_ms)
        because = f"its quota and use are known for {known:.1%} of the last {days}"
        return WithheldFinding(NAME, quota.subject, because, lacks_data=True)
    most = settings.part * quota.nominal
    often = quota.quantile(quota.used, settings.quantile, quota.start_ms)
    if often >= most:
        return None
    because = next(_guards(quota, settings, often), "")
    return WithheldFinding(NAME, quota.subject, because) if because else _draft(quota, settings, often)


def _guards(quota: _Quota, settings: ReservedUnusedSettings, often: float) -> Iterator[str]:
    """The guard that holds it back, if any."""
    most = settings.part * quota.nominal
    age_ms = _age_ms(quota)
    if age_ms is not None and age_ms < milliseconds(settings.min_age):
        yield f"the queue is only {_days(age_ms)} old"
    if quota.place.name in settings.reserved_queues:
        yield "it is a queue that keeps its quota on purpose (reserved_queues)"
    waited_ms = _waited_ms(quota, settings)
    if waited_ms:
        yield f"work of its own waited, {lasting(waited_ms)} in these days: more than quota is amiss"
    with_lent = quota.quantile(quota.in_use, settings.quantile, quota.start_ms)
    if with_lent >= most:
        yield f"others borrow what it does not use: with them {with_lent:g} of {quota.nominal:g} are in use"
    before_ms = max(quota.facts.history.window.start_ms, quota.now_ms - milliseconds(settings.season))
    season = quota.quantile(quota.used, settings.quantile, before_ms)
    if season >= most:
        yield (
            f"use was {season:g} of {quota.nominal:g} over the last {_days(quota.now_ms - before_ms)}: "
            f"{often:g} of late may be the season"
        )


def _age_ms(quota: _Quota) -> int | None:
    """How old the queue is; None where it is older than the history and no other source has its age."""
    overview = quota.facts.overview
    if overview is not None and quota.place.line is QueueKind.CLUSTER_QUEUE:
        known = overview.state.cluster_queue_by_name.get(quota.place.name)
        if known is not None:
            return quota.now_ms - known.meta.created_ms
    seen_ms = quota.facts.history.window.start_ms
    return quota.now_ms - quota.since_ms if quota.since_ms > seen_ms else None


def _demand(facts: DetectorFacts, resource: str) -> pd.DataFrame:
    """The demand for a resource, with ``place`` and since when."""
    demand = with_since(facts.history.frames.demand)
    demand = demand.assign(place=pd.Series(places(demand), index=demand.index, dtype=object))
    return demand[demand["resource"] == resource]


def _waited_ms(quota: _Quota, settings: ReservedUnusedSettings) -> int:
    """For how long any of its own long-waiting work waited."""
    demand = _demand(quota.facts, quota.resource)
    own = demand[
        (demand["place"].map(quota.place.__eq__).astype(bool))
        & (demand["until_ms"] - demand["since_ms"] >= milliseconds(settings.waited))
        & (demand["end_ms"] > quota.start_ms)
    ]
    starts, ends = union(own["start_ms"].clip(lower=quota.start_ms).tolist(), own["end_ms"].tolist())
    return int((ends - starts).sum())


def _hurting(quota: _Quota, settings: ReservedUnusedSettings) -> StepFunction:
    """1 while work of others waited that free GPUs would have fitted."""
    found = unmet(quota.facts.history, milliseconds(settings.waited))
    line = places(found.demand)
    resource = found.demand["resource"].tolist()
    claims = [
        claim
        for claim in found.claims
        if claim.waste is Waste.STARVED
        and line[claim.row] != quota.place
        and resource[claim.row] == quota.resource
    ]
    return StepFunction.within(
        *union([claim.start_ms for claim in claims], [claim.end_ms for claim in claims])
    )


def _draft(quota: _Quota, settings: ReservedUnusedSettings, often: float) -> FindingDraft:
    start_ms, now_ms, nominal = quota.start_ms, quota.now_ms, quota.nominal
    idle = _idle(quota, often)
    mine = quota.quotas.mine(quota.place, quota.resource)
    view = of_flavors(quota.facts, quota.resource, mine, idle, now_ms - _VIEW_MS, now_ms)
    view_ms = sum(each.board_ms for each in view)
    unit_ms = idle.integral(now_ms - _VIEW_MS, now_ms)
    left, per_unit = hours(view_ms), f"{view_ms / unit_ms if unit_ms else 0.0:g}"
    if unit_ms and not view:
        left, per_unit = hours(unit_ms).replace("GPU", "unit"), "an unknown number of"
    hurt = least(_hurting(quota, settings), quota.known)
    hurt_ms = hurt.integral(start_ms, now_ms)
    days = _days(now_ms - start_ms)
    return FindingDraft(
        NAME,
        VARIANT,
        quota.subject,
        quota.since_ms,
        f"{quota.place} has quota of {nominal:g} {quota.resource} and used {often:g} or fewer for "
        f"{settings.quantile:.0%} of the last {days}; of what it left, {left} in the last day "
        "nobody borrowed.",
        _evidence(quota, settings, often, idle, hurt_ms),
        _action(quota, settings, often),
        f"(quota {nominal:g} - {often:g} used - lent) x the last 24 hours x {per_unit} GPUs per unit; "
        "shown, not counted: where somebody waited meanwhile it is in quota_starvation",
        queue=quota.place.name,
        view=view,
        checked=(
            "no work of its own waited",
            "others do not borrow it",
            f"low over the last {_days(_season_ms(quota, settings))} as well",
            "not a new queue" if _age_ms(quota) is not None else "there since before the history began",
        ),
        at_least=FindingSeverity.LOW if hurt_ms > 0 else FindingSeverity.INFO,
    )  # fmt: skip


def _idle(quota: _Quota, often: float) -> StepFunction:
    """Units of its quota beyond its need that no other queue borrowed."""
    edge = np.array([quota.facts.history.window.start_ms], np.int64)
    nominal, needed = (StepFunction(edge, np.array([units])) for units in (quota.nominal, often))
    return combined(
        lambda units, known: np.where(known > 0, units, 0.0),
        difference(nominal, needed, quota.lent),
        quota.known,
    )


def _season_ms(quota: _Quota, settings: ReservedUnusedSettings) -> int:
    return min(quota.facts.history.window.length_ms, milliseconds(settings.season))


def _evidence(
    quota: _Quota, settings: ReservedUnusedSettings, often: float, idle: StepFunction, hurt_ms: float
) -> tuple[FindingEvidence, ...]:
    start_ms, now_ms = quota.start_ms, quota.now_ms
    used = quota.used
    _, ends = used.stretches(quota.facts.history.window.start_ms, now_ms)
    last = "never in the history"
    if len(ends):
        last = "now" if int(ends[-1]) >= now_ms else since(int(ends[-1]))
    source = f"quotas of {quota.place}: nominal, used"
    return (
        FindingEvidence("nominal quota", quota.nominal, "units", source),
        FindingEvidence(f"used or less, {settings.quantile:.0%} of the time", often, "units", source),
        FindingEvidence("used or less, half of the time",
                        quota.quantile(used, 0.5, start_ms), "units", source),
        FindingEvidence("used at most", used.most(start_ms, now_ms), "units", source),
        FindingEvidence("last use", last, "", source),
        FindingEvidence("days looked at", round((now_ms - start_ms) / DAY_MS, 2), "days"),
        FindingEvidence("known of them", round(quota.known.mean(start_ms, now_ms), 4), "of the time"),
        FindingEvidence("lent to others in use", round(quota.lent.integral(start_ms, now_ms) / HOUR_MS, 2),
                 "unit-hours", "borrowed in its cohort, by what each could lend"),
        FindingEvidence("unused in these days",
                        round(idle.integral(start_ms, now_ms) / HOUR_MS, 2), "unit-hours"),
        FindingEvidence("others waited meanwhile for GPUs that were free",
                        round(hurt_ms / HOUR_MS, 2), "hours"),
    )  # fmt: skip


def _action(quota: _Quota, settings: ReservedUnusedSettings, often: float) -> FindingAction:
    """Of several flavors, the one with most unused quota is cut."""
    # Rounded to twelve digits, so that 1.2 x 5 is 6, not 7.
    needed = ceil(round(settings.headroom * often, 12))
    rows = [
        row
        for row in quota.quotas.at(quota.resource, quota.now_ms - 1)
        if place_of(row.scheduler, row.queue) == quota.place
    ]
    row = max(rows, key=lambda each: (each.unused, each.flavor))
    left = max(row.nominal - (quota.nominal - needed), 0.0)
    nodes = flavor_nodes(quota.facts, row.flavor, quota.resource)
    per_unit = boards_per_unit(quota.facts.history, quota.resource, nodes)
    frees = None if isnan(per_unit) else (row.nominal - left) * per_unit
    if quota.place.line is QueueKind.VOLCANO_QUEUE:
        patch = volcano_patch(quota.place.name, "deserved", quota.resource, left)
        text = f"Lower what {quota.place} deserves from {row.nominal:g} to {left:g}."
        return with_names(FindingAction(text, patch, frees), quota.place.name)
    fields = {"nominalQuota": left}
    if row.cohort:
        fields["lendingLimit"] = left
    now = {"nominalQuota": row.nominal, "lendingLimit": row.lending_limit}
    lines = quota_lines(quota.place.name, row.flavor, quota.resource, fields, now)
    lent = ", and let others in the cohort borrow all of it" if row.cohort else ""
    text = f"Lower the nominal quota of {quota.place} from {row.nominal:g} to {left:g}{lent}."
    return with_names(FindingAction(text, lines, frees), quota.place.name, row.flavor)


def _days(length_ms: int) -> str:
    return amount(round(length_ms / DAY_MS, 1), "day")
