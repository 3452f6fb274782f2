"""Views of fragmentation besides blocked jobs: they explain and propose, and count no waste.

One of them shows jobs on more nodes than they need: each of several nodes gives them less than it has, and at
their start one node alone could have held all of it (the multinode rule of Princeton's Job Defense Shield).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from gpucost.attribution.apportion import Flags, Ints
from gpucost.cluster.views.commands import kubectl
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
    FindingSubject,
    SubjectKind,
    ViewTime,
    WastePattern,
    WithheldFinding,
)
from gpucost.detectors.inputs.detector_facts import ClusterHistory, DetectorFacts
from gpucost.detectors.rules.fragmentation.blocked_jobs import MOST_NAMED
from gpucost.detectors.rules.fragmentation.fgd_gauge import (
    GPU_MILLI,
    STEP_MS,
    FragmentationGauge,
    gauge,
    measured_now,
)
from gpucost.detectors.rules.fragmentation.node_packing import (
    NodeOccupancy,
    PodMove,
    fewest_nodes,
    jobs_in_domains,
    to_empty_nodes,
)
from gpucost.domain.jobs import WorkloadClass
from gpucost.domain.money import NANO
from gpucost.domain.time import HOUR_MS


@dataclass(frozen=True, slots=True)
class SpreadJob:
    """A job that held ``units`` on ``nodes`` in ``[start, end)`` while the node ``could`` had room for all of
    it."""

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


def spread_jobs(history: ClusterHistory, least_ms: int) -> list[SpreadJob]:
    """Batch jobs that were spread for ``least_ms`` or longer, at their end or now."""
    held = history.held
    held = held[(held["workload_class"] == WorkloadClass.BATCH.value) & (held["count"] > 0)]
    fixed = jobs_in_domains(history)
    if fixed:
        jobs = zip(held["namespace"].tolist(), held["job_uid"].tolist(), strict=True)
        held = held[[job not in fixed for job in jobs]]
    rows = _together(held)
    found = list[SpreadJob]()
    for resource, here in rows.groupby("resource", observed=True):
        found += _of_resource(history, str(resource), here, least_ms)
    return found


def _together(held: pd.DataFrame) -> pd.DataFrame:
    """The rows of jobs on several nodes that ran together at their end; pods that came and went before belong
    to another attempt."""
    names = [*_JOB, "resource"]
    held = held[held.groupby(names, observed=True)["node"].transform("nunique") > 1]
    end = held.groupby(names, observed=True)["end_ms"].transform("max")
    last = held["start_ms"].where(held["end_ms"] == end)
    begun = last.groupby([held[name] for name in names], observed=True).transform("max")
    return held[(held["start_ms"] <= begun) & (held["end_ms"] > begun)]


def _of_resource(
    history: ClusterHistory, resource: str, rows: pd.DataFrame, least_ms: int
) -> list[SpreadJob]:
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
    # Plain lists: cutting a frame for each of a thousand jobs takes seconds.
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
                SpreadJob(
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
    """Free units of each node that takes pods, at instants that must come in order."""

    def __init__(self, history: ClusterHistory, resource: str, capacity: pd.DataFrame) -> None:
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
        """The tightest node of the products of ``own`` (nodes, and what is held there) where ``units`` would
        be free without the job's own; empty where there is none."""
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


NAME = WastePattern.FRAGMENTATION
ViewDraft = FindingDraft | WithheldFinding


def whole_board_resources(facts: DetectorFacts) -> list[str]:
    """GPU resources of which every unit is a whole GPU wherever its share is known."""
    shares: dict[str, set[bool]] = {}
    for (_, _, resource), share in facts.history.shares.items():
        shares.setdefault(resource, set()).add(share == 1)
    return sorted(resource for resource, whole in shares.items() if whole == {True})


def moving(text: str, moves: Sequence[PodMove], frees_boards: float) -> FindingAction:
    """The action that moves pods off their nodes: the scheduler places them anew, the old nodes being
    cordoned first."""
    named = [move.who for move in moves[:MOST_NAMED]]
    lines = [
        line
        for who in named
        for line in (
            kubectl("cordon", who.node),
            kubectl("-n", who.namespace, "delete", "pod", who.pod),
            kubectl("uncordon", who.node),
        )
    ]
    names = (name for who in named for name in (who.node, who.namespace, who.pod))
    return with_names(FindingAction(text, "\n".join(lines), frees_boards), *names)


def pack(resource: str) -> FindingAction:
    return FindingAction(
        "Let the scheduler pack: score nodes by MostAllocated, so that whole nodes stay free.",
        _MOST_ALLOCATED.format(resource=resource),
    )


def spread_drafts(facts: DetectorFacts, least_ms: int) -> list[ViewDraft]:
    found: list[ViewDraft] = []
    for job in spread_jobs(facts.history, least_ms):
        subject = FindingSubject(SubjectKind.JOB, facts.cluster, job.job, job.namespace, job.job_uid)
        if facts.history.coverage(job.start_ms, job.end_ms) < LEAST_COVERAGE:
            found.append(
                WithheldFinding(NAME, subject, "parts of its run were not observed", True, "jobs_spread")
            )
        else:
            found.append(_spread_draft(facts, job, subject))
    return found


def _spread_draft(facts: DetectorFacts, job: SpreadJob, subject: FindingSubject) -> FindingDraft:
    summary = (
        f"{subject} holds {amount(job.units, 'GPU')} on {len(job.nodes)} nodes since {since(job.start_ms)}, "
        f"though {job.could} alone had room for all of them when it started."
    )
    return FindingDraft(
        pattern=NAME,
        variant="jobs_spread",
        subject=subject,
        since_ms=job.start_ms,
        ended_ms=job.end_ms if job.end_ms < facts.now_ms else None,
        team=job.team,
        queue=job.queue,
        user=job.user,
        summary=summary,
        evidence=(
            FindingEvidence("GPUs held", job.units, "GPUs", "allocations of the job"),
            FindingEvidence("nodes used", ", ".join(job.nodes)),
            FindingEvidence(
                "GPUs per node", job.per_node, "GPUs", "status.allocatable of the smallest of them"
            ),
            FindingEvidence("node that had room", job.could, "", "free GPUs when its first pod started"),
        ),
        action=FindingAction(
            f"Ask for one pod with {job.units} GPUs: the job then talks over NVLink, and leaves whole nodes "
            "to others. It takes effect when the job is started again.",
            f'resources:\n  limits:\n    "{job.resource}": {job.units}',
        ),
        formula="No waste of its own: what others could not use for it is counted where they were blocked.",
        view=(),
        checked=("a single node had room at its start", "only batch jobs"),
    )


def gauge_drafts(facts: DetectorFacts, threshold: float, least_ms: int) -> list[ViewDraft]:
    found: list[ViewDraft] = []
    for resource in whole_board_resources(facts):
        series = gauge(facts.history, resource)
        subject = FindingSubject(
            SubjectKind.CLUSTER, facts.cluster, facts.cluster, uid=f"{facts.cluster}/{resource}"
        )
        for a, b in _runs(series.waiting & (series.share >= threshold - 1e-12)):
            start = int(series.times[a])
            end = min(int(series.times[b - 1]) + STEP_MS, facts.now_ms)
            if end - start < least_ms:
                continue
            if facts.history.coverage(start, end) < LEAST_COVERAGE:
                found.append(
                    WithheldFinding(NAME, subject, "parts of the stretch were not observed", True, "gauge")
                )
            else:
                found.append(_gauge_draft(facts, resource, series, slice(a, b), (start, end), subject))
    return found


def _gauge_draft(
    facts: DetectorFacts,
    resource: str,
    series: FragmentationGauge,
    run: slice,
    times: tuple[int, int],
    subject: FindingSubject,
) -> FindingDraft:
    start, end = times
    last = run.stop - 1
    rooms = NodeOccupancy.at(facts.history, resource, int(series.times[last]))
    nodes = rooms.eligible("")
    demand = facts.history.frames.demand
    waiting = demand[(demand["resource"] == resource) & (demand["end_ms"] > series.times[last])]
    waiting = waiting[waiting["start_ms"] <= series.times[last]]
    widest = int(waiting["units"].max()) if len(waiting) else 1
    evidence = [
        FindingEvidence(
            "fragments, weighed by pods", round(100 * _share(series.by_pods, series, last), 2), "%"
        ),
        FindingEvidence(
            "fragments, weighed by GPUs", round(100 * _share(series.by_gpus, series, last), 2), "%"
        ),
        FindingEvidence(
            "free blocks (nodes x GPUs)", rooms.histogram(nodes), "", "allocatable less what pods hold"
        ),
        FindingEvidence("largest free block of one node", int(rooms.free[nodes].max(initial=0)), "GPUs"),
        FindingEvidence(
            f"largest gang of pods of {amount(widest, 'GPU')} that fits",
            int((rooms.free[nodes] // max(widest, 1)).sum()),
            "pods",
        ),
    ]
    if facts.overview is not None and end >= facts.now_ms:
        now = measured_now(facts.overview, resource)
        evidence.append(FindingEvidence("F / GPUs now, with CPU", round(100 * now.amount, 2), "%"))
        evidence.append(FindingEvidence("F / idle now, with CPU", round(100 * now.ratio, 2), "%"))
        part = now.of_cpu_tasks / GPU_MILLI
        evidence.append(FindingEvidence("of F: to pods without GPUs", round(part, 2), "GPUs"))
    summary = (
        f"For {lasting(end - start)} since {since(start)}, up to "
        f"{100 * float(series.share[run].max()):.3g} % of all GPUs were free in blocks too small for the "
        f"pods that usually come, while others waited."
    )
    return FindingDraft(
        pattern=NAME,
        variant="gauge",
        subject=subject,
        since_ms=start,
        ended_ms=end if end < facts.now_ms else None,
        summary=summary,
        evidence=tuple(evidence),
        action=pack(resource),
        formula="View: sum over time of the GPUs that are fragments to the typical pod (FGD measure), the "
        "larger of the two weighings.",
        view=series.view(run, facts.now_ms),
        checked=("somebody waited all the time", "a node's CPU is taken for enough in the past"),
    )


_MOST_ALLOCATED = """profiles:
- schedulerName: default-scheduler
  pluginConfig:
  - name: NodeResourcesFit
    args:
      scoringStrategy:
        type: MostAllocated
        resources:
        - name: {resource}
          weight: 1"""


def _share(
    boards: np.ndarray[tuple[int], np.dtype[np.float64]], series: FragmentationGauge, at: int
) -> float:
    return float(boards[at] / series.capacity[at]) if series.capacity[at] else 0.0


def _runs(flags: Flags) -> list[tuple[int, int]]:
    """Maximal runs ``[a, b)`` of true values."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], flags, [False]]).astype(np.int8)))
    return [(int(a), int(b)) for a, b in edges.reshape(-1, 2)]


def repack_drafts(facts: DetectorFacts, least_nodes: int, least_ms: int) -> list[ViewDraft]:
    found: list[ViewDraft] = []
    for resource in whole_board_resources(facts):
        rooms = NodeOccupancy.at(facts.history, resource, facts.now_ms - 1)
        kinds = sorted(set(zip(rooms.pools, rooms.products, rooms.given.tolist(), strict=True)))
        for kind in kinds:
            each = zip(rooms.pools, rooms.products, rooms.given.tolist(), strict=True)
            pool = np.array([n for n, other in enumerate(each) if other == kind], dtype=np.int64)
            found += _repack(facts, resource, rooms, pool, least_nodes, least_ms)
    return found


def _repack(
    facts: DetectorFacts, resource: str, rooms: NodeOccupancy, pool: Ints, least_nodes: int, least_ms: int
) -> list[ViewDraft]:
    emptied, moves = to_empty_nodes(rooms, pool, facts.now_ms - least_ms)
    if len(emptied) < least_nodes or not moves:
        return []
    since_ms = max(move.who.since_ms for move in moves)
    first = int(pool[0])
    name = rooms.pools[first] or rooms.products[first] or resource
    uid = f"{name}/{rooms.products[first]}/{rooms.given[first]}/{resource}"
    subject = FindingSubject(SubjectKind.CLUSTER, facts.cluster, name, uid=uid)
    if facts.history.coverage(since_ms, facts.now_ms) < LEAST_COVERAGE:
        return [WithheldFinding(NAME, subject, "parts of the stretch were not observed", True, "repack")]
    size = int(rooms.given[first])
    in_use = sum(bool(rooms.occupants.get(rooms.names[n])) for n in pool.tolist())
    hourly = [facts.prices.nano_per_hour(facts.cluster, node, facts.now_ms - 1) for node in emptied]
    lost = sum({move.who.who: move.who.lost_board_ms for move in moves}.values())
    evidence = [
        FindingEvidence("nodes in use now", in_use, "nodes"),
        FindingEvidence("nodes in use after the moves", in_use - len(emptied), "nodes"),
        FindingEvidence("nodes that must be in use, however packed", fewest_nodes(rooms, pool), "nodes"),
        FindingEvidence("nodes that get empty", ", ".join(emptied[:MOST_NAMED])),
        FindingEvidence("moves", "; ".join(map(_in_words, moves[:MOST_NAMED]))),
        FindingEvidence("work done by the jobs that move", round(lost / HOUR_MS, 2), "GPU-hours"),
    ]
    if all(rate is not None for rate in hourly):
        saved = sum(rate or 0 for rate in hourly) * size / NANO
        evidence.append(FindingEvidence("price of the nodes that get empty", round(saved, 2), "per hour"))
    summary = (
        f"Pods on {in_use} nodes of {name} fit on {in_use - len(emptied)}: to move "
        f"{amount(len(moves), 'pod')} ({hours(lost)} of work at stake) would empty "
        f"{amount(len(emptied), 'node')} of {size} GPUs."
    )
    draft = FindingDraft(
        pattern=NAME,
        variant="repack",
        subject=subject,
        since_ms=since_ms,
        summary=summary,
        evidence=tuple(evidence),
        action=moving(
            f"Move {_in_words(moves[0])}" + (", then the others in this order." if moves[1:] else "."),
            moves,
            float(size * len(emptied)),
        ),
        formula="View: GPUs of nodes that would get empty x time since the last of the pods to move began.",
        view=tuple(
            ViewTime(since_ms, facts.now_ms, float(size * (facts.now_ms - since_ms)), (node,))
            for node in emptied
        ),
        checked=("pods of DaemonSets and bare pods stay", "no pod moves to an empty node"),
    )
    return [draft]


def _in_words(move: PodMove) -> str:
    who = move.who
    to = f" to {move.to}" if move.to else ""
    return f"{who.namespace}/{who.pod} of {who.job} ({amount(who.units, 'GPU')}) from {who.node}{to}"
