"""What fragmentation looks like besides blocked jobs: views that explain and propose, and count no waste."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gpucost.attribution.deal import Flags, Ints
from gpucost.cluster.commands import kubectl
from gpucost.detectors.facts import Facts
from gpucost.detectors.fgd import GPU_MILLI
from gpucost.detectors.findings import (
    Action,
    Draft,
    Evidence,
    Pattern,
    Subject,
    SubjectKind,
    ViewTime,
    Withheld,
)
from gpucost.detectors.frag_gauge import STEP_MS, Gauge, gauge, measured_now
from gpucost.detectors.held import LEAST_COVERAGE, amount, hours, lasting, since, with_names
from gpucost.detectors.packing import Move, Rooms, fewest_nodes, to_empty_nodes
from gpucost.detectors.rules.fragmentation_blocked import MOST_NAMED
from gpucost.detectors.spread import Spread, spread_jobs
from gpucost.domain.money import NANO
from gpucost.domain.time import HOUR_MS

NAME = Pattern.FRAGMENTATION
Found = Draft | Withheld


def whole_board_resources(facts: Facts) -> list[str]:
    """GPU resources of which every unit is a whole board wherever its share is known."""
    shares: dict[str, set[bool]] = {}
    for (_, _, resource), share in facts.history.shares.items():
        shares.setdefault(resource, set()).add(share == 1)
    return sorted(resource for resource, whole in shares.items() if whole == {True})


def moving(text: str, moves: Sequence[Move], frees_boards: float) -> Action:
    """Takes pods off their nodes; the scheduler finds others for them, the old ones being cordoned first."""
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
    return with_names(Action(text, "\n".join(lines), frees_boards), *names)


def pack(resource: str) -> Action:
    return Action(
        "Let the scheduler pack: score nodes by MostAllocated, so that whole nodes stay free.",
        _MOST_ALLOCATED.format(resource=resource),
    )


def spread_drafts(facts: Facts, least_ms: int) -> list[Found]:
    found: list[Found] = []
    for job in spread_jobs(facts.history, least_ms):
        subject = Subject(SubjectKind.JOB, facts.cluster, job.job, job.namespace, job.job_uid)
        if facts.history.coverage(job.start_ms, job.end_ms) < LEAST_COVERAGE:
            found.append(Withheld(NAME, subject, "parts of its run were not observed", True, "jobs_spread"))
        else:
            found.append(_spread_draft(facts, job, subject))
    return found


def _spread_draft(facts: Facts, job: Spread, subject: Subject) -> Draft:
    summary = (
        f"{subject} holds {amount(job.units, 'GPU')} on {len(job.nodes)} nodes since {since(job.start_ms)}, "
        f"though {job.could} alone had room for all of them when it started."
    )
    return Draft(
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
            Evidence("GPUs held", job.units, "GPUs", "allocations of the job"),
            Evidence("nodes used", ", ".join(job.nodes)),
            Evidence("GPUs per node", job.per_node, "GPUs", "status.allocatable of the smallest of them"),
            Evidence("node that had room", job.could, "", "free GPUs when its first pod started"),
        ),
        action=Action(
            f"Ask for one pod with {job.units} GPUs: the job then talks over NVLink, and leaves whole nodes "
            "to others. It takes effect when the job is started again.",
            f'resources:\n  limits:\n    "{job.resource}": {job.units}',
        ),
        formula="No waste of its own: what others could not use for it is counted where they were blocked.",
        view=(),
        checked=("a single node had room at its start", "only batch jobs"),
    )


def gauge_drafts(facts: Facts, threshold: float, least_ms: int) -> list[Found]:
    found: list[Found] = []
    for resource in whole_board_resources(facts):
        series = gauge(facts.history, resource)
        subject = Subject(
            SubjectKind.CLUSTER, facts.cluster, facts.cluster, uid=f"{facts.cluster}/{resource}"
        )
        for a, b in _runs(series.waiting & (series.share >= threshold - 1e-12)):
            start = int(series.times[a])
            end = min(int(series.times[b - 1]) + STEP_MS, facts.now_ms)
            if end - start < least_ms:
                continue
            if facts.history.coverage(start, end) < LEAST_COVERAGE:
                found.append(Withheld(NAME, subject, "parts of the stretch were not observed", True, "gauge"))
            else:
                found.append(_gauge_draft(facts, resource, series, slice(a, b), (start, end), subject))
    return found


def _gauge_draft(
    facts: Facts, resource: str, series: Gauge, run: slice, times: tuple[int, int], subject: Subject
) -> Draft:
    start, end = times
    last = run.stop - 1
    rooms = Rooms.at(facts.history, resource, int(series.times[last]))
    nodes = rooms.eligible("")
    demand = facts.history.frames.demand
    waiting = demand[(demand["resource"] == resource) & (demand["end_ms"] > series.times[last])]
    waiting = waiting[waiting["start_ms"] <= series.times[last]]
    widest = int(waiting["units"].max()) if len(waiting) else 1
    evidence = [
        Evidence("fragments, weighed by pods", round(100 * _share(series.by_pods, series, last), 2), "%"),
        Evidence("fragments, weighed by GPUs", round(100 * _share(series.by_gpus, series, last), 2), "%"),
        Evidence("free blocks (nodes x GPUs)", rooms.histogram(nodes), "", "allocatable less what pods hold"),
        Evidence("largest free block of one node", int(rooms.free[nodes].max(initial=0)), "GPUs"),
        Evidence(
            f"largest gang of pods of {amount(widest, 'GPU')} that fits",
            int((rooms.free[nodes] // max(widest, 1)).sum()),
            "pods",
        ),
    ]
    if facts.overview is not None and end >= facts.now_ms:
        now = measured_now(facts.overview, resource)
        evidence.append(Evidence("F / GPUs now, with CPU", round(100 * now.amount, 2), "%"))
        evidence.append(Evidence("F / idle now, with CPU", round(100 * now.ratio, 2), "%"))
        part = now.of_cpu_tasks / GPU_MILLI
        evidence.append(Evidence("of F: to pods without GPUs", round(part, 2), "GPUs"))
    summary = (
        f"For {lasting(end - start)} since {since(start)}, up to "
        f"{100 * float(series.share[run].max()):.3g} % of all GPUs were free in blocks too small for the "
        f"pods that usually come, while others waited."
    )
    return Draft(
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


def _share(boards: np.ndarray[tuple[int], np.dtype[np.float64]], series: Gauge, at: int) -> float:
    return float(boards[at] / series.capacity[at]) if series.capacity[at] else 0.0


def _runs(flags: Flags) -> list[tuple[int, int]]:
    """Maximal runs ``[a, b)`` of true values."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], flags, [False]]).astype(np.int8)))
    return [(int(a), int(b)) for a, b in edges.reshape(-1, 2)]


def repack_drafts(facts: Facts, least_nodes: int, least_ms: int) -> list[Found]:
    found: list[Found] = []
    for resource in whole_board_resources(facts):
        rooms = Rooms.at(facts.history, resource, facts.now_ms - 1)
        kinds = sorted(set(zip(rooms.pools, rooms.products, rooms.given.tolist(), strict=True)))
        for kind in kinds:
            each = zip(rooms.pools, rooms.products, rooms.given.tolist(), strict=True)
            pool = np.array([n for n, other in enumerate(each) if other == kind], dtype=np.int64)
            found += _repack(facts, resource, rooms, pool, least_nodes, least_ms)
    return found


def _repack(
    facts: Facts, resource: str, rooms: Rooms, pool: Ints, least_nodes: int, least_ms: int
) -> list[Found]:
    emptied, moves = to_empty_nodes(rooms, pool, facts.now_ms - least_ms)
    if len(emptied) < least_nodes or not moves:
        return []
    since_ms = max(move.who.since_ms for move in moves)
    first = int(pool[0])
    name = rooms.pools[first] or rooms.products[first] or resource
    uid = f"{name}/{rooms.products[first]}/{rooms.given[first]}/{resource}"
    subject = Subject(SubjectKind.CLUSTER, facts.cluster, name, uid=uid)
    if facts.history.coverage(since_ms, facts.now_ms) < LEAST_COVERAGE:
        return [Withheld(NAME, subject, "parts of the stretch were not observed", True, "repack")]
    size = int(rooms.given[first])
    in_use = sum(bool(rooms.occupants.get(rooms.names[n])) for n in pool.tolist())
    hourly = [facts.prices.nano_per_hour(facts.cluster, node, facts.now_ms - 1) for node in emptied]
    lost = sum({move.who.who: move.who.lost_board_ms for move in moves}.values())
    evidence = [
        Evidence("nodes in use now", in_use, "nodes"),
        Evidence("nodes in use after the moves", in_use - len(emptied), "nodes"),
        Evidence("nodes that must be in use, however packed", fewest_nodes(rooms, pool), "nodes"),
        Evidence("nodes that get empty", ", ".join(emptied[:MOST_NAMED])),
        Evidence("moves", "; ".join(map(_in_words, moves[:MOST_NAMED]))),
        Evidence("work done by the jobs that move", round(lost / HOUR_MS, 2), "GPU-hours"),
    ]
    if all(rate is not None for rate in hourly):
        saved = sum(rate or 0 for rate in hourly) * size / NANO
        evidence.append(Evidence("price of the nodes that get empty", round(saved, 2), "per hour"))
    summary = (
        f"Pods on {in_use} nodes of {name} fit on {in_use - len(emptied)}: to move "
        f"{amount(len(moves), 'pod')} ({hours(lost)} of work at stake) would empty "
        f"{amount(len(emptied), 'node')} of {size} GPUs."
    )
    draft = Draft(
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


def _in_words(move: Move) -> str:
    who = move.who
    to = f" to {move.to}" if move.to else ""
    return f"{who.namespace}/{who.pod} of {who.job} ({amount(who.units, 'GPU')}) from {who.node}{to}"
