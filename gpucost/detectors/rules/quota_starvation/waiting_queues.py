"""What waits in a queue, what others leave unused meanwhile, and the one change that would give it to the
queue."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import isnan
from typing import NamedTuple

import numpy as np
import pandas as pd

from gpucost.attribution.apportion import Flags
from gpucost.cluster.objects.kueue import Workload, WorkloadState
from gpucost.cluster.views.commands import (
    cluster_queue_patch,
    kubectl,
    quota_lines,
    volcano_patch,
)
from gpucost.cluster.views.overview import ClusterOverview
from gpucost.cluster.views.quota import cluster_queue_of
from gpucost.detectors.allocation_pieces import with_names
from gpucost.detectors.findings import FindingAction
from gpucost.detectors.inputs.detector_facts import ClusterHistory
from gpucost.detectors.inputs.queue_quotas import (
    QueueKind,
    QueuePlace,
    QueueQuotas,
    QuotaHistoryRow,
    StepFunction,
    combined,
    free_units,
    least,
    pending,
    place_of,
    places,
)

STRICT = "StrictFIFO"


class QuotaObstacle(NamedTuple):
    """What is in the way, in words, and what to do about it."""

    why: str
    action: FindingAction


@dataclass(frozen=True)
class QueuedRequest:
    """What waits in ``place``: ``smallest`` is the least that could start, ``units`` all of it. ``job`` is
    the longest waiting one, as an example for people, with its namespace and, if it has one, its workload.
    ``says_quota``: for some of it the queue itself reports that it waits for quota."""

    place: QueuePlace
    resource: str
    smallest: int
    units: float
    namespace: str
    job: str
    workload: str
    says_quota: bool = False

    @property
    def verdict(self) -> str:
        """What to report where quota seems not to be what they lack."""
        if self.says_quota:
            return "and yet its queue says that they wait for quota"
        return "so quota is not what holds them"


def obstacle(
    rows: Sequence[QuotaHistoryRow], ask: QueuedRequest, overview: ClusterOverview | None
) -> QuotaObstacle:
    """``rows`` are all quota of the resource as it was."""
    if ask.place.line is QueueKind.NAMESPACE:
        return QuotaObstacle(f"no queue manages these jobs, {ask.verdict}", _look(ask))
    mine = [row for row in rows if place_of(row.scheduler, row.queue) == ask.place]
    others = [row for row in rows if row not in mine]
    if not mine:
        return _without_quota(ask, others)
    if sum(row.unused for row in mine) >= ask.smallest:
        return _in_line(ask, overview, f"its own quota has room for {_sum(mine):g}")
    if ask.place.line is QueueKind.VOLCANO_QUEUE:
        return _volcano(ask, mine)
    return _borrower(ask, mine, others, overview)


def _borrower(
    ask: QueuedRequest,
    mine: Sequence[QuotaHistoryRow],
    others: Sequence[QuotaHistoryRow],
    overview: ClusterOverview | None,
) -> QuotaObstacle:
    """For a ClusterQueue whose own quota is used up: the first thing that keeps it from borrowing."""
    lenders = sorted((row for row in others if row.unused > 0), key=lambda row: (-row.unused, row.queue))
    if not lenders:
        return _in_line(ask, overview, "nobody's quota covers what is free")
    cohort = mine[0].cohort
    inside = [row for row in lenders if cohort and row.cohort == cohort]
    if not inside:
        return _apart(ask, cohort, lenders[0])
    flavors = {row.flavor for row in mine}
    alike = [row for row in inside if row.flavor in flavors]
    if not alike:
        return _other_flavor(ask, mine[0], inside[0])
    lent = sum(max(row.used - row.nominal, 0.0) for row in (*mine, *others) if row.cohort == cohort)
    if sum(row.lendable for row in alike) - lent < ask.smallest <= _sum(alike) - lent:
        return _kept(ask, max(alike, key=lambda row: (row.unused - row.lendable, row.queue)))
    limited = [row for row in mine if row.used - row.nominal + ask.smallest > row.borrowing_limit]
    if len(limited) == len(mine):
        return _limited(ask, limited[0])
    return _in_line(ask, overview, f"its cohort {cohort} could lend it {_sum(alike) - lent:g}")


def _without_quota(ask: QueuedRequest, others: Sequence[QuotaHistoryRow]) -> QuotaObstacle:
    holder = max(others, key=lambda row: (row.unused, row.queue), default=None)
    if holder is None or ask.place.line is QueueKind.VOLCANO_QUEUE:
        return QuotaObstacle(f"no quota of {ask.resource} is known for it", _look(ask))
    lines = quota_lines(ask.place.name, holder.flavor, ask.resource, {"nominalQuota": ask.units})
    text = f"Give {ask.place} quota of flavor {holder.flavor}, of which {holder.queue} has most."
    action = with_names(FindingAction(text, lines), ask.place.name, *_named(holder.flavor))
    return QuotaObstacle(f"it has no quota of {ask.resource}", action)


def _volcano(ask: QueuedRequest, mine: Sequence[QuotaHistoryRow]) -> QuotaObstacle:
    row = mine[0]
    if row.used - row.nominal + ask.smallest > row.borrowing_limit:
        most = row.nominal + row.borrowing_limit
        why = f"its capability of {most:g} is reached"
        patch = volcano_patch(ask.place.name, "capability", ask.resource, row.used + ask.units)
        text = f"Raise the capability of {ask.place} from {most:g} to {row.used + ask.units:g}."
        return QuotaObstacle(why, with_names(FindingAction(text, patch), ask.place.name))
    deserves = "nothing is said of what it deserves" if isnan(row.nominal) else f"it deserves {row.nominal:g}"
    return QuotaObstacle(
        f"{deserves}, and Volcano gives it no more than the {row.used:g} it uses", _look(ask)
    )


def _apart(ask: QueuedRequest, cohort: str, lender: QuotaHistoryRow) -> QuotaObstacle:
    """No queue of its cohort has unused quota."""
    own = f"nobody in its cohort {cohort} has any unused" if cohort else "it is in no cohort"
    queue, name = ask.place.name, lender.cohort
    if name:
        patch, text = cluster_queue_patch(queue, cohortName=name), f"Let {ask.place} join cohort {name}"
    elif cohort:
        patch, text = (
            cluster_queue_patch(lender.queue, cohortName=cohort),
            f"Let {lender.queue} join {cohort}",
        )
    else:
        both = (cluster_queue_patch(each, cohortName="shared") for each in (queue, lender.queue))
        patch, text = "\n".join(both), f"Put {queue} and {lender.queue} into one cohort"
    action = FindingAction(f"{text}, so that it may borrow the {lender.unused:g} that lie idle.", patch)
    return QuotaObstacle(own, with_names(action, queue, lender.queue, *_named(name, cohort)))


def _other_flavor(ask: QueuedRequest, mine: QuotaHistoryRow, lender: QuotaHistoryRow) -> QuotaObstacle:
    why = f"what is unused is of flavor {lender.flavor}, of which it has no quota"
    fields = {"nominalQuota": 0.0, "borrowingLimit": ask.units}
    lines = quota_lines(ask.place.name, lender.flavor, ask.resource, fields)
    text = f"Add flavor {lender.flavor} to {ask.place}, after {mine.flavor}, so that it may borrow of it."
    return QuotaObstacle(why, with_names(FindingAction(text, lines), ask.place.name, *_named(lender.flavor)))


def _kept(ask: QueuedRequest, keeper: QuotaHistoryRow) -> QuotaObstacle:
    why = f"the lending limit of {keeper.queue} keeps {keeper.unused - keeper.lendable:g} it does not use"
    most = min(keeper.nominal, keeper.lending_limit + ask.units)
    now = {"lendingLimit": keeper.lending_limit}
    lines = quota_lines(keeper.queue, keeper.flavor, ask.resource, {"lendingLimit": most}, now)
    text = f"Raise the lending limit of {keeper.queue} from {keeper.lending_limit:g} to {most:g}."
    return QuotaObstacle(why, with_names(FindingAction(text, lines), keeper.queue, *_named(keeper.flavor)))


def _limited(ask: QueuedRequest, row: QuotaHistoryRow) -> QuotaObstacle:
    why = f"its borrowing limit of {row.borrowing_limit:g} is reached"
    most = max(row.used - row.nominal, 0.0) + ask.units
    now = {"borrowingLimit": row.borrowing_limit}
    lines = quota_lines(ask.place.name, row.flavor, ask.resource, {"borrowingLimit": most}, now)
    text = f"Raise the borrowing limit of {ask.place} from {row.borrowing_limit:g} to {most:g}."
    return QuotaObstacle(why, with_names(FindingAction(text, lines), ask.place.name, *_named(row.flavor)))


def _in_line(ask: QueuedRequest, overview: ClusterOverview | None, room: str) -> QuotaObstacle:
    """Quota is not what it lacks: its queue is stopped, or a workload before it does not fit."""
    known = None if overview is None else overview.state.cluster_queue_by_name.get(ask.place.name)
    if overview is None or known is None or ask.place.line is not QueueKind.CLUSTER_QUEUE:
        return QuotaObstacle(f"{room}, {ask.verdict}", _look(ask))
    if known.strategy == STRICT:
        head = _head(overview, ask)
        who = f" behind {head.meta.namespace}/{head.meta.name}" if head is not None else ""
        patch = cluster_queue_patch(known.name, queueingStrategy="BestEffortFIFO")
        text = f"Let {ask.place} try others when its first workload does not fit."
        action = with_names(FindingAction(text, patch), known.name)
        return QuotaObstacle(f"{room}, but it is StrictFIFO: all wait{who}", action)
    oldest = overview.state.workload_by_name.get((ask.namespace, ask.workload))
    hold = overview.holds.get(oldest.meta.uid) if oldest is not None else None
    said = f": {hold.reason} ({hold.message})" if hold is not None else ""
    return QuotaObstacle(f"{room}, {ask.verdict}{said}", _look(ask))


def _head(overview: ClusterOverview, ask: QueuedRequest) -> Workload | None:
    """The first workload in line that requests quota of the resource."""
    lines = [
        (place, workload)
        for workload in overview.state.workloads.values()
        if workload.state is WorkloadState.PENDING
        and (place := overview.positions.get(workload.meta.uid)) is not None
        and (queue := cluster_queue_of(overview.state, workload)) is not None
        and queue.name == ask.place.name
    ]
    return min(lines, key=lambda each: each[0])[1] if lines else None


def _look(ask: QueuedRequest) -> FindingAction:
    """Only the objects can show more: the command that prints them."""
    text = f"See what the scheduler says of {ask.namespace}/{ask.job}, which has waited longest."
    if ask.workload and ask.place.line is QueueKind.CLUSTER_QUEUE:
        command = kubectl("-n", ask.namespace, "describe", "workloads.kueue.x-k8s.io", ask.workload)
        return with_names(FindingAction(text, command), ask.namespace, ask.workload)
    field = "--field-selector=status.phase=Pending"
    command = kubectl("-n", ask.namespace, "get", "pods", field, "-o", "wide")
    return with_names(FindingAction(text, command), ask.namespace)


def _named(*names: str) -> list[str]:
    """Those that exist: a Volcano queue has no flavor, and a queue need not be in a cohort."""
    return [name for name in names if name]


def _sum(rows: Sequence[QuotaHistoryRow]) -> float:
    return sum(row.unused for row in rows)


@dataclass(frozen=True)
class WaitingQueue:
    """What waits in one place for one resource: series are in its units. ``demand`` are rows of the frame
    with ``since_ms`` (unmet_demand.with_since), ``reserved`` queues that keep unused quota on purpose."""

    history: ClusterHistory
    place: QueuePlace
    resource: str
    demand: pd.DataFrame
    reserved: tuple[str, ...] = ()

    @cached_property
    def pending(self) -> StepFunction:
        return pending(self.history, self.demand)

    @cached_property
    def idle(self) -> StepFunction:
        """Units free in the cluster that are within the unused quota of others."""
        unused = self._quotas.unused_of_others(self.place, self.resource)
        return least(unused, free_units(self.history, self.resource))

    @cached_property
    def own_unused(self) -> StepFunction:
        return self._quotas.unused_of(self.place, self.resource)

    @cached_property
    def could_have(self) -> StepFunction:
        """The smaller of what waits and what others leave idle: of this queue alone, so that several queues
        count the same GPU more than once."""
        return least(self.pending, self.idle)

    @cached_property
    def could_have_all(self) -> StepFunction:
        """1 while others leave idle all that it waits for."""
        return combined(lambda waits, idle: (waits > 0) & (idle >= waits), self.pending, self.idle)

    @cached_property
    def only_reserved(self) -> StepFunction:
        """1 while only queues that keep it on purpose have unused quota."""
        if not self.reserved:
            return StepFunction(np.zeros(0, np.int64), np.zeros(0))
        kept = self._quotas.in_queues(self.reserved) & self._others
        return combined(
            lambda own, others, reserved: (own + others <= 0) & (reserved > 0),
            self.own_unused,
            self._quotas.unused(self._others & ~kept),
            self._quotas.unused(kept),
        )

    def holders(self, start_ms: int, end_ms: int) -> list[tuple[QueuePlace, float]]:
        """The queues whose quota was idle, and the mean idle quota of each, most first."""
        found = self._quotas.mean_unused(self.resource, start_ms, end_ms)
        held = [(place, units) for place, units in found.items() if place != self.place and units > 0]
        return sorted(held, key=lambda each: (-each[1], each[0]))

    @cached_property
    def _quotas(self) -> QueueQuotas:
        return QueueQuotas.of(self.history)

    @cached_property
    def _others(self) -> Flags:
        return self._quotas.others(self.place, self.resource)


def waiting_queues(
    history: ClusterHistory, demand: pd.DataFrame, reserved: Sequence[str] = ()
) -> list[WaitingQueue]:
    """Everything that waits, in order. ``demand`` as in ``WaitingQueue``; each row has an index of its
    own."""
    kinds = zip(places(demand), demand["resource"].tolist(), strict=True)
    rows: dict[tuple[QueuePlace, str], list[int]] = {}
    for row, kind in zip(demand.index.tolist(), kinds, strict=True):
        rows.setdefault(kind, []).append(row)
    return [
        WaitingQueue(history, place, resource, demand.loc[rows[place, resource]], tuple(reserved))
        for place, resource in sorted(rows)
    ]
