"""Whether a change is about what its history has: names, times and amounts. Pure; plays nothing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from gpucost.advisor.replay.history_record import KueueRecord, PoolRecord, ReplayHistory
from gpucost.advisor.replay.pool_changes import price_of
from gpucost.advisor.replay.what_if_change import (
    CohortChange,
    DatedChange,
    QueueChange,
    QuotaChange,
    WhatIfChange,
)
from gpucost.cluster.objects.kueue import ClusterQueue, FlavorResource
from gpucost.domain.errors import ErrorRemark, InputError
from gpucost.domain.text import named_first
from gpucost.domain.time import DAY_MS, iso

_SHOWN = 20
Names = Iterable[str]


def refuse_foreign(
    change: WhatIfChange, kueue: KueueRecord | None, pools: Mapping[str, PoolRecord], history: ReplayHistory
) -> None:
    """Raises InputError for a name, a time or an amount that the history has not, with what it has.
    ``kueue`` and ``pools`` are those that the change is made in."""
    where = f"{change.name or 'change'}: "
    _refuse_times(where, change, history)
    if kueue is None:
        named = "queues" if change.queues else "cohorts" if change.cohorts else ""
        if named or (change.scheduler is not None and change.scheduler.rules is None):
            of = "plain FIFO" if history.volcano is None else "Volcano, whose queues are under volcano"
            raise InputError(
                f"{where}{named or 'scheduler'}",
                ErrorRemark("no queue of Kueue"),
                f"nodes, prices and priorities: the history is of {of}; scheduler.rules: kueue makes "
                "queues of its pools",
            )
    else:
        _refuse_cohorts(where, change, kueue)
        for n, queue in enumerate(change.queues):
            _refuse_queue(f"{where}queues[{n}]", queue, change, kueue, history)
    _refuse_volcano(where, change, pools, history)
    _refuse_pools(where, change, pools, history)
    _refuse_jobs(where, change, history)


def _refuse_times(where: str, change: WhatIfChange, history: ReplayHistory) -> None:
    """What holds from the end of the window on changes nothing in it; before the day on which it begins
    there is nothing to change."""
    window = history.window
    first_ms = window.start_ms - window.start_ms % DAY_MS
    for path, part in _dated(change):
        if part.from_ms is not None and not first_ms <= part.from_ms < window.end_ms:
            allowed = f"from {iso(first_ms)} until before {iso(window.end_ms)}, the end of the history"
            raise InputError(f"{where}{path}from", iso(part.from_ms), allowed)


def _dated(change: WhatIfChange) -> Iterator[tuple[str, DatedChange]]:
    yield "", change
    if change.scheduler is not None:
        yield "scheduler.", change.scheduler
    lists: Mapping[str, Sequence[DatedChange]] = {
        "queues": change.queues,
        "cohorts": change.cohorts,
        "volcano": change.volcano,
        "priorities": change.priorities,
        "nodes": change.nodes,
        "prices": change.prices,
    }
    for name, parts in lists.items():
        for n, part in enumerate(parts):
            yield f"{name}[{n}].", part


def _refuse_queue(
    path: str, part: QueueChange, change: WhatIfChange, kueue: KueueRecord, history: ReplayHistory
) -> None:
    queues = {each.name: each for each in kueue.state.cluster_queues.values()}
    _known(f"{path}.name", part.name, queues)
    queue = queues[part.name]
    if part.cohort:
        _known(f"{path}.cohort", part.cohort, _cohorts(change, kueue))
    since_ms = change.since_ms(part, history.window.start_ms)
    for m, quota in enumerate(part.quotas):
        at = f"{path}.quotas[{m}]"
        _known(f"{at}.flavor", quota.flavor, dict.fromkeys(each.flavor for each in queue.quotas))
        own = [each.resource for each in queue.quotas if each.flavor == quota.flavor]
        _known(f"{at}.resource", quota.resource, own)
        if (quota.add or 0) < 0:
            _refuse_less(f"{at}.add", quota, part, change, _most(queue, quota, kueue, since_ms))


def _most(queue: ClusterQueue, quota: QuotaChange, kueue: KueueRecord, since_ms: int) -> int:
    """The most units of a quota that the queue has from an instant on."""
    key = FlavorResource(quota.flavor, quota.resource)
    steps = [(since_ms, queue), *((at_ms, each) for at_ms, each in kueue.changes if each.name == queue.name)]
    last = [each for at_ms, each in steps if at_ms <= since_ms][-1]
    later = [each for at_ms, each in steps if at_ms > since_ms]
    return max(each.quotas[key].nominal if key in each.quotas else 0 for each in (last, *later))


def _refuse_less(path: str, quota: QuotaChange, part: QueueChange, change: WhatIfChange, most: int) -> None:
    """More cannot be taken away than there is, with what other parts of the change give."""
    given = sum(
        other.nominal if other.nominal is not None else max(0, other.add or 0)
        for each in change.queues
        if each.name == part.name
        for other in each.quotas
        if other is not quota and (other.flavor, other.resource) == (quota.flavor, quota.resource)
    )
    if most + given + (quota.add or 0) < 0:
        raise InputError(path, quota.add or 0, f"{-(most + given)} or more: there is no more to take away")


def _refuse_cohorts(where: str, change: WhatIfChange, kueue: KueueRecord) -> None:
    flavors = {each.meta.name for each in kueue.state.flavors.values()}
    resources = sorted({key.resource for each in kueue.state.cluster_queues.values() for key in each.quotas})
    known = _cohorts(change, kueue)
    for n, cohort in enumerate(change.cohorts):
        path = f"{where}cohorts[{n}]"
        if cohort.parent:
            _known(f"{path}.parent", cohort.parent, known)
        for m, quota in enumerate(cohort.quotas):
            _known(f"{path}.quotas[{m}].flavor", quota.flavor, flavors)
            _known(f"{path}.quotas[{m}].resource", quota.resource, resources)
    _refuse_circle(where, change.cohorts, kueue)


def _refuse_circle(where: str, cohorts: Sequence[CohortChange], kueue: KueueRecord) -> None:
    """No cohort is above itself once all is changed: Kueue gives such a tree no quota at all."""
    parents = {each.name: each.parent for each in kueue.state.cohorts.values()}
    for n, cohort in enumerate(cohorts):
        if cohort.parent is None:
            continue
        parents[cohort.name] = cohort.parent
        above, seen = cohort.parent, {cohort.name}
        while above and above not in seen:
            seen.add(above)
            above = parents.get(above, "")
        if above:
            allowed = f"a cohort that is not {cohort.name}, nor below it"
            raise InputError(f"{where}cohorts[{n}].parent", cohort.parent, allowed)


def _refuse_volcano(
    where: str, change: WhatIfChange, pools: Mapping[str, PoolRecord], history: ReplayHistory
) -> None:
    queues = {} if history.volcano is None else history.volcano.queues
    resources = dict.fromkeys(each.resource for each in pools.values())
    for n, queue in enumerate(change.volcano):
        _known(f"{where}volcano[{n}].name", queue.name, queues)
        for field in ("capability", "deserved", "guarantee"):
            for resource in getattr(queue, field) or ():
                _known(f"{where}volcano[{n}].{field}", resource, resources)


def _cohorts(change: WhatIfChange, kueue: KueueRecord) -> Names:
    """Those of the history, and those that the change makes."""
    queues = [*kueue.state.cluster_queues.values(), *(each for _, each in kueue.changes)]
    found = [each.cohort for each in queues]
    for each in kueue.state.cohorts.values():
        found += [each.name, each.parent]
    return dict.fromkeys([*found, *(each.name for each in change.cohorts)])


def _refuse_pools(
    where: str, change: WhatIfChange, pools: Mapping[str, PoolRecord], history: ReplayHistory
) -> None:
    for n, node in enumerate(change.nodes):
        _known(f"{where}nodes[{n}].pool", node.pool, pools)
        pool, since_ms = pools[node.pool], change.since_ms(node, history.window.start_ms)
        is_priced = node.price is not None or price_of(node.model or "", pools, since_ms) is not None
        if node.has_guests and pool.price is not None and not is_priced:
            allowed = f"a price: no pool of the history has the model {node.model}"
            raise InputError(f"{where}nodes[{n}].price", ErrorRemark("missing"), allowed)
        if node.add is not None and node.add < 0:
            begun = [nodes for at_ms, nodes in pool.steps if at_ms <= since_ms] or [0]
            most = max([begun[-1], *(nodes for at_ms, nodes in pool.steps if at_ms > since_ms)])
            most += sum(max(0, each.add or 0) for each in change.nodes if each.pool == node.pool)
            if most + node.add < 0:
                allowed = f"{-most} or more: the pool has no more nodes"
                raise InputError(f"{where}nodes[{n}].add", node.add, allowed)
    for n, price in enumerate(change.prices):
        if price.pool is not None:
            _known(f"{where}prices[{n}].pool", price.pool, pools)
        else:
            models = dict.fromkeys(
                [*(each.model for each in pools.values()), *(each.model or "" for each in change.nodes)]
            )
            _known(f"{where}prices[{n}].model", price.model or "", models)


def _refuse_jobs(where: str, change: WhatIfChange, history: ReplayHistory) -> None:
    if not change.priorities:
        return
    jobs = history.jobs
    known = {
        "queue": {each.queue for each in jobs},
        "team": {each.team for each in jobs},
        "user": {each.user for each in jobs},
    }
    for n, each in enumerate(change.priorities):
        for field, names in known.items():
            found = getattr(each, field)
            if found is not None:
                _known(f"{where}priorities[{n}].{field}", found, names)
        if each.job is not None and not any(job.name.startswith(each.job) for job in jobs):
            allowed = "the begin of the namespace/name of a job of the history"
            raise InputError(f"{where}priorities[{n}].job", each.job, allowed)


def _known(path: str, name: str, names: Names) -> None:
    known = sorted(each for each in names if each)
    if name not in known:
        more = f" and {len(known) - _SHOWN:,} more" if len(known) > _SHOWN else ""
        listed = ", ".join(known[:_SHOWN]) or "none: the history has none"
        raise InputError(path, name, f"{named_first(name, known)}{listed}{more}")
