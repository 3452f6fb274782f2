"""Jobs on more nodes than they need: each of several nodes gives them less than it has, and at their start
one node alone could have held all of it (the multinode rule of Princeton's Job Defense Shield)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from gpucost.detectors.facts import History
from gpucost.domain.jobs import WorkloadClass


@dataclass(frozen=True, slots=True)
class Spread:
    """A job that held ``units`` on ``nodes`` in ``[start, end)`` while ``could`` had room for all of it."""

    job_uid: str
    job: str
    namespace: str
    team: str
    queue: str
    user: str
    resource: str
    units: int
    nodes: tuple[str, ...]
    per_node: int
    could: str
    start_ms: int
    end_ms: int


def spread_jobs(history: History, least_ms: int) -> list[Spread]:
    """Batch jobs that were spread for ``least_ms`` or longer, as they ended or are now."""
    held = history.held
    held = held[(held["workload_class"] == WorkloadClass.BATCH.value) & (held["count"] > 0)]
    rows = _together(held)
    found = list[Spread]()
    for resource, here in rows.groupby("resource", observed=True):
        found += _of_resource(history, str(resource), here, least_ms)
    return found


def _together(held: pd.DataFrame) -> pd.DataFrame:
    """The rows of jobs on several nodes that were there together at their end; pods that came and went before
    are another attempt."""
    names = [*_JOB, "resource"]
    held = held[held.groupby(names, observed=True)["node"].transform("nunique") > 1]
    end = held.groupby(names, observed=True)["end_ms"].transform("max")
    last = held["start_ms"].where(held["end_ms"] == end)
    begun = last.groupby([held[name] for name in names], observed=True).transform("max")
    return held[(held["start_ms"] <= begun) & (held["end_ms"] > begun)]


def _of_resource(history: History, resource: str, rows: pd.DataFrame, least_ms: int) -> list[Spread]:
    capacity = history.frames.capacity
    capacity = capacity[capacity["resource"] == resource]
    size = capacity.groupby("node", observed=True)["allocatable"].max()
    jobs = rows.assign(size=rows["node"].map(size).fillna(0)).groupby(_JOB, observed=True)
    facts = jobs.agg(
        units=("count", "sum"), nodes=("node", "nunique"), start=("start_ms", "max"), end=("end_ms", "min"),
        first=("start_ms", "min"), per_node=("size", "min"),
    )  # fmt: skip
    facts = facts[(facts["nodes"] > 1) & (facts["end"] - facts["start"] >= least_ms)]
    facts = facts[facts["units"] <= facts["per_node"]].sort_values("first")
    free = _FreeOverTime(history, resource, capacity)
    # Plain lists: to cut a frame for each of a thousand jobs takes seconds.
    pods = list(zip(*(rows[name].tolist() for name in ("node", "count", "start_ms")), strict=True))
    who = {name: rows[name].tolist() for name in ("job_uid", "job", "namespace", "team", "queue", "user")}
    where = {job: np.asarray(jobs.indices[job]).tolist() for job in facts.index}
    found = []
    names = ("units", "start", "end", "first", "per_node")
    for job, units, start, end, first, per_node in zip(
        facts.index, *(facts[name].tolist() for name in names), strict=True
    ):
        own = [pods[n] for n in where[job]]
        could = free.room_for([(node, count) for node, count, begun in own if begun <= first], units, first)
        if could:
            said = {name: str(values[where[job][0]]) for name, values in who.items()}
            found.append(
                Spread(
                    **said,
                    resource=resource,
                    units=units,
                    nodes=tuple(sorted({node for node, _, _ in own})),
                    per_node=int(per_node),
                    could=could,
                    start_ms=start,
                    end_ms=end,
                )
            )
    return found


class _FreeOverTime:
    """Free units of each node that takes pods, at instants asked for in order."""

    def __init__(self, history: History, resource: str, capacity: pd.DataFrame) -> None:
        self._names: list[str] = sorted(set(capacity["node"].tolist()))
        at = {name: n for n, name in enumerate(self._names)}
        product = history.products
        self._kind, _ = pd.factorize(np.array([product.get(name, "") for name in self._names], dtype=object))
        self._at = at
        held = history.frames.allocations
        held = held[(held["resource"] == resource) & held["node"].isin(self._names)]
        parts = [
            (capacity, (capacity["allocatable"] * capacity["schedulable"]).to_numpy(np.int64)),
            (held, -held["count"].to_numpy(np.int64)),
        ]
        edges = [(frame, sign * units, name) for frame, units in parts for sign, name in _EDGES]
        time = np.concatenate([frame[name].to_numpy(np.int64) for frame, _, name in edges])
        node = np.concatenate([frame["node"].map(at).to_numpy(np.int64) for frame, _, _ in edges])
        change = np.concatenate([change for _, change, _ in edges])
        order = np.argsort(time, kind="stable")
        self._time, self._node, self._change = time[order], node[order], change[order]
        self._free = np.zeros(len(self._names), dtype=np.int64)
        self._done = 0

    def room_for(self, own: Sequence[tuple[str, int]], units: int, now_ms: int) -> str:
        """The tightest node of the products of ``own`` (nodes, and what is held there) where ``units`` were
        free but for that; empty where there is none."""
        upto = int(np.searchsorted(self._time, now_ms, side="right"))
        np.add.at(self._free, self._node[self._done : upto], self._change[self._done : upto])
        self._done = max(self._done, upto)
        free = self._free.copy()
        known = [(self._at[node], count) for node, count in own if node in self._at]
        mine = [n for n, _ in known]
        np.add.at(free, mine, [count for _, count in known])
        fits = (free >= units) & np.isin(self._kind, self._kind[mine])
        if not fits.any():
            return ""
        return self._names[int(np.where(fits, free, np.iinfo(np.int64).max).argmin())]


_JOB = ["namespace", "job_uid"]
"""A uid is what an owner reference claims: pods of another namespace are another job."""
_EDGES = ((1, "start_ms"), (-1, "end_ms"))
