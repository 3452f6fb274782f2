"""Volcano in an observed month: what the source saw of its queues, and the rest as the objects have it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import groupby
from math import isnan
from operator import itemgetter
from typing import Any, NamedTuple

from gpucost.advisor.replay.history_record import VolcanoRecord
from gpucost.cluster.objects.metadata import ObjectMeta
from gpucost.cluster.objects.state import ClusterState
from gpucost.cluster.objects.volcano import GroupKind, PodGroup, VolcanoQueue
from gpucost.domain.time import Window

_TAKES_BACK = ("preempt", "reclaim")


class ObservedVolcano(NamedTuple):
    """``groups`` are PodGroups by namespace and name; ``limits`` are what is not known, in words."""

    record: VolcanoRecord
    groups: Mapping[tuple[str, str], PodGroup]
    limits: tuple[str, ...]


def observed_volcano(
    rows: Iterable[Mapping[str, Any]], state: ClusterState | None, window: Window
) -> ObservedVolcano | None:
    """Of rows of quotas of Volcano; None without any."""
    by_queue: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        by_queue.setdefault(row["queue"], []).append(row)
    if not by_queue:
        return None
    known = {} if state is None else state.volcano_queue_by_name
    queues = dict(known)
    changes: list[tuple[int, VolcanoQueue]] = []
    for name, own in sorted(by_queue.items()):
        base = known.get(name) or VolcanoQueue(ObjectMeta(f"queue {name}", "", name, 0, {}, {}))
        steps = list(_steps(base, own))
        queues[name] = steps[0][1]
        changes += [step for step in steps[1:] if step[0] > window.start_ms]
    schedulers = ClusterState(0).schedulers if state is None else state.schedulers
    record = VolcanoRecord(
        queues,
        schedulers.volcano,
        () if state is None else tuple(state.hyper_nodes.values()),
        tuple(sorted(changes, key=lambda each: (each[0], each[1].name))),
    )
    groups = {} if state is None else state.pod_group_by_name
    found = {
        (space, name): group
        for (kind, space, name), group in groups.items()
        if kind == GroupKind.VOLCANO.value
    }
    return ObservedVolcano(record, found, tuple(_limits(record, by_queue.keys() - known.keys())))


def _steps(base: VolcanoQueue, rows: Iterable[Mapping[str, Any]]) -> Iterator[tuple[int, VolcanoQueue]]:
    """The queue at the begin, and again where it deserves something else."""
    deserved, last = dict(base.deserved or {}), None
    for at_ms, own in groupby(sorted(rows, key=itemgetter("start_ms")), key=itemgetter("start_ms")):
        for row in own:
            if not isnan(row["nominal"]):
                deserved[row["resource"]] = round(row["nominal"])
        if last != deserved:
            last = dict(deserved)
            yield at_ms, replace(base, deserved=dict(deserved) or None)


def _limits(record: VolcanoRecord, guessed: Iterable[str]) -> Iterator[str]:
    named = sorted(guessed)
    if named:
        listed = ", ".join(named[:5]) + (" and others" if len(named) > 5 else "")
        yield f"queues of Volcano: of {listed} no object is known; their weight is 1, without limits"
    else:
        yield "queues of Volcano: weights, capabilities and guarantees are those that the objects have now"
    yield "gangs of Volcano: of jobs that are gone all pods are needed at once, and none asks for HyperNodes"
    if any(each in record.config.actions for each in _TAKES_BACK):
        yield "Volcano's actions preempt and reclaim: nobody is stopped by them here"
