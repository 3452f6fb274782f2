"""What is said of a job that is blocked by the places of free GPUs: evidence, waste, and whom to move."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import islice

from gpucost.detectors.facts import Facts
from gpucost.detectors.findings import (
    Action,
    Draft,
    Episode,
    Evidence,
    Pattern,
    Subject,
    SubjectKind,
    TeamView,
)
from gpucost.detectors.frag_gauge import boards_lost, typical_pods
from gpucost.detectors.held import amount, board_ms, hours, joined, lasting, since
from gpucost.detectors.packing import Move, Rooms, to_make_room
from gpucost.detectors.rules.fragmentation_blocked import MOST_NAMED, Asked, Blocked
from gpucost.detectors.rules.fragmentation_views import moving, pack, whole_board_resources
from gpucost.detectors.unmet import Claim
from gpucost.domain.time import HOUR_MS, MINUTE_MS
from gpucost.domain.waste import Waste

NAME = Pattern.FRAGMENTATION
ClaimsByRow = Mapping[int, Sequence[Claim]]
MOST_SINGLE = 200
"""So many blocked jobs get a finding each, those blocked for longest; the others one per team, queue and
shape: nobody reads thousands, and for each it is looked for whom to move."""
_OF_OTHERS = frozenset({"alone on a node", "fragments (F) before the move", "fragments (F) after the move"})
"""Evidence about the jobs of others."""


def blocked_drafts(facts: Facts, blocked: Sequence[Blocked], claims: ClaimsByRow) -> list[Draft]:
    """All that is claimed of ``blocked``, in as many findings as somebody can read."""
    ordered = sorted(
        blocked,
        key=lambda one: (one.start_ms, one.asked.namespace, one.asked.job, one.asked.job_uid),
    )
    drafts = [blocked_draft(facts, one, claims) for one in ordered[:MOST_SINGLE]]
    groups: dict[tuple[str, ...], list[Blocked]] = defaultdict(list)
    for one in ordered[MOST_SINGLE:]:
        row = one.asked
        groups[row.team, row.queue, row.resource, row.products, str(max(row.units, 1))].append(one)
    return drafts + [_many_draft(facts, key, group, claims) for key, group in sorted(groups.items())]


def _many_draft(facts: Facts, key: tuple[str, ...], group: Sequence[Blocked], claims: ClaimsByRow) -> Draft:
    """``group`` in order of time: jobs of one team in one queue that ask for the same."""
    team, queue = key[:2]
    episodes = tuple(each for one in group for each in _episodes(one, claims))
    end_ms = max(one.end_ms for one in group)
    row, rooms = group[0].asked, max(group, key=lambda one: one.end_ms).rooms
    nodes = rooms.eligible(row.products)
    jobs = sorted({one.asked.subject for one in group})
    more = f" and {len(jobs) - MOST_NAMED} more" if jobs[MOST_NAMED:] else ""
    named = ", ".join(map(str, jobs[:MOST_NAMED])) + more
    shown = "allocatable less what pods hold"
    where = f" in queue {queue}" if queue else ""
    units = max(row.units, 1)
    return Draft(
        pattern=NAME,
        variant="blocked_many",
        subject=Subject(
            SubjectKind.QUEUE if queue else SubjectKind.TEAM, facts.cluster, queue or team, uid="/".join(key)
        ),
        since_ms=group[0].start_ms,
        ended_ms=end_ms if end_ms < facts.now_ms else None,
        team=team,
        queue=queue,
        summary=(
            f"{amount(len(jobs), 'job')}{where}, with pods of {amount(units, 'GPU')}, found no place since "
            f"{since(group[0].start_ms)}, though enough GPUs were free: in blocks too small for them."
        ),
        evidence=(
            Evidence("jobs", len(jobs), "jobs", "besides those with findings of their own"),
            Evidence("which", named),
            Evidence("blocked now", sum(one.end_ms >= facts.now_ms for one in group), "jobs"),
            Evidence("largest free block", int(rooms.free[nodes].max(initial=0)), "GPUs", shown),
            Evidence("free blocks (nodes x GPUs)", rooms.histogram(nodes), "", shown),
            Evidence("free and of no use to them", round(board_ms(episodes) / HOUR_MS, 3), "GPU-hours"),
        ),
        action=pack(row.resource),
        formula="Sum over time of the free GPUs each could use, up to what it asks for, while blocked; "
        "no GPU is counted for two of them.",
        episodes=episodes,
        checked=("each was blocked for long enough", "nodes large enough exist"),
    )


def blocked_draft(facts: Facts, one: Blocked, claims: ClaimsByRow) -> Draft:
    row, rooms = one.asked, one.rooms
    is_over = one.end_ms < facts.now_ms
    units = max(row.units, 1)
    nodes = rooms.eligible(row.products)
    moves = to_make_room(rooms, nodes, units, row.least) if _is_about_gpus(one) and not is_over else []
    episodes = _episodes(one, claims)
    evidence = _evidence(facts, one, rooms, moves, episodes)
    action = pack(row.resource) if is_over else _action(one, units, moves)
    largest = int(rooms.free[nodes].max(initial=0))
    summary = (
        f"{row.subject} ({_wanted(row)}) finds no place since {since(one.start_ms)}, though "
        f"{amount(int(rooms.free[nodes].sum()), 'GPU')} it could use were free: the largest block on one "
        f"node has {largest}. What is in the way: {_in_the_way(one)}."
    )
    own = tuple(each for each in evidence if each.name not in _OF_OTHERS)
    # To move somebody else's pods is not the team's to do.
    own_action = _smaller(largest) if moves else action
    return Draft(
        pattern=NAME,
        variant="blocked",
        subject=row.subject,
        since_ms=one.start_ms,
        ended_ms=one.end_ms if is_over else None,
        team=row.team,
        queue=row.queue,
        summary=summary,
        evidence=evidence,
        action=action,
        formula="Sum over time of the free GPUs it could use, up to what it asks for, while it was blocked; "
        "those that fit others who wait are not among them.",
        episodes=episodes,
        checked=(
            f"blocked for {lasting(one.end_ms - one.start_ms)}",
            "nodes large enough exist",
            "no cordoned node would be enough",
            *(("labels, taints, CPU and memory of the state",) if one.fit is not None else ()),
        ),
        team_view=TeamView(summary, own, own_action) if own != evidence or own_action != action else None,
    )


def _wanted(row: Asked) -> str:
    together = f", {row.least} of them at once" if 1 < row.least < row.pods else ""
    return f"{amount(row.pods, 'pod')} of {amount(max(row.units, 1), 'GPU')}{together}"


def _smaller(largest: int) -> Action:
    if largest < 1:
        return Action("Wait until the platform makes room on a node: none has a free GPU that it could use.")
    return Action(
        f"Ask for pods of at most {amount(largest, 'GPU')} each, if the job can be divided: they fit now. "
        "Other room is the platform's to make."
    )


def _is_about_gpus(one: Blocked) -> bool:
    """Whether GPUs are what no node has enough of, rather than CPU or memory beside them."""
    return one.fit is None or not one.fit.lacking


def _in_the_way(one: Blocked) -> str:
    if one.fit is not None and one.fit.lacking:
        return "too little " + ", ".join(name for name, _ in one.fit.lacking) + " where GPUs are free"
    return "free GPUs lie in blocks too small for it"


def _episodes(one: Blocked, claims: ClaimsByRow) -> tuple[Episode, ...]:
    """Free boards it could have had, while it was blocked."""
    spans: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for stretch in one.stretches:
        spans[stretch.row].append((stretch.start_ms, stretch.end_ms))
    cluster, resource = one.asked.cluster, one.asked.resource
    found = []
    for row, times in spans.items():
        blocked = joined(times)
        ends = [end for _, end in blocked]
        for claim in claims.get(row, ()):
            for start, end in islice(blocked, bisect_right(ends, claim.start_ms), None):
                if start >= claim.end_ms:
                    break
                a, b = max(start, claim.start_ms), min(end, claim.end_ms)
                found.append(Episode(Waste.FRAGMENTED, cluster, claim.node, "", a, b, claim.boards, resource))
    return tuple(found)


def _evidence(
    facts: Facts, one: Blocked, rooms: Rooms, moves: Sequence[Move], episodes: Sequence[Episode]
) -> tuple[Evidence, ...]:
    row = one.asked
    nodes = rooms.eligible(row.products)
    shown = "allocatable less what pods hold"
    some = nodes[rooms.free[nodes] > 0][:MOST_NAMED].tolist()
    open_ = [f"{rooms.names[n]} ({rooms.free[n]})" for n in some]
    found = [
        Evidence("waits for", row.pods * row.units, "GPUs", "the job's pods without a node"),
        Evidence("blocked for", round((one.end_ms - one.start_ms) / MINUTE_MS, 1), "min"),
        Evidence("free GPUs it could use", int(rooms.free[nodes].sum()), "GPUs", shown),
        Evidence("largest free block of one node", int(rooms.free[nodes].max(initial=0)), "GPUs", shown),
        Evidence("free blocks (nodes x GPUs)", rooms.histogram(nodes), "", shown),
        Evidence("nodes with free GPUs", ", ".join(open_), "", shown),
        Evidence("what is in the way", _in_the_way(one)),
        Evidence("free and of no use to it", round(board_ms(episodes) / HOUR_MS, 3), "GPU-hours"),
    ]
    goes_on = one.end_ms >= facts.now_ms
    alone = [f"{node}: {who.namespace}/{who.job}" for node, who in rooms.alone(nodes)] if goes_on else []
    if alone:
        found.append(Evidence("alone on a node", "; ".join(alone[:MOST_NAMED])))
    if one.fit is not None:
        for name, count in one.fit.lacking:
            found.append(Evidence(f"nodes with GPUs enough but too little {name}", count, "nodes"))
        if one.fit.barred:
            found.append(Evidence("kept out by labels or taints", ", ".join(one.fit.barred[:MOST_NAMED])))
        if one.fit.asks_others:
            found.append(Evidence("not looked at", "rules about other pods or topology"))
    if moves and row.resource in whole_board_resources(facts):
        for name, after in (("before", ()), ("after", moves)):
            lost = _fragments(facts, row.resource, rooms, after)
            found.append(Evidence(f"fragments (F) {name} the move", lost, "GPUs"))
    return tuple(found)


def _fragments(facts: Facts, resource: str, rooms: Rooms, moves: Sequence[Move]) -> float:
    """Boards that are fragments to the typical pod, weighed by GPUs, after some moves."""
    free = rooms.free.copy()
    for move in moves:
        free[rooms.index[move.who.node]] += move.who.units
        if move.to:
            free[rooms.index[move.to]] -= move.who.units
    nodes = rooms.eligible("")
    typical = typical_pods(facts.history, resource, by_gpus=True)
    return round(float(boards_lost(typical, free[nodes], [rooms.products[n] for n in nodes]).sum()), 2)


def _action(one: Blocked, units: int, moves: Sequence[Move]) -> Action:
    if one.fit is not None and one.fit.lacking:
        what = ", ".join(name for name, _ in one.fit.lacking)
        return Action(
            f"Lower what its pods ask of {what} to their GPUs' share of a node: where GPUs are free is less."
        )
    if not moves:
        return Action(
            f"Wait until pods end on a node of {units} GPUs or more: none of them there can be moved."
        )
    cost = sum({move.who.who: move.who.lost_board_ms for move in moves}.values())
    first = moves[0]
    others = f", and {amount(len(moves) - 1, 'more pod')}" if moves[1:] else ""
    where = f"to {first.to}" if first.to else "away, to wait for another place"
    who = f"{first.who.namespace}/{first.who.job} ({amount(first.who.units, 'GPU')} on {first.who.node})"
    return moving(
        f"Move {who} {where}{others}: the cheapest way to make room, with {hours(cost)} of work at stake.",
        moves,
        float(sum(move.who.units for move in moves)),
    )
