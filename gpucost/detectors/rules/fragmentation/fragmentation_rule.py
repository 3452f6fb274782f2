"""Free GPUs that waiting jobs cannot use, because they are in the wrong places.

The rule claims the time and writes the finding of each blocked job: evidence, waste, and which pods to move.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import islice
from operator import itemgetter

from gpucost.cluster.views.commands import cluster_queue_patch
from gpucost.detectors.allocation_pieces import (
    amount,
    board_ms,
    hours,
    joined,
    lasting,
    since,
    with_names,
)
from gpucost.detectors.findings import (
    FindingAction,
    FindingDraft,
    FindingEvidence,
    FindingSubject,
    RuleDetection,
    SubjectKind,
    TeamView,
    WasteEpisode,
    WastePattern,
    WithheldFinding,
)
from gpucost.detectors.inputs.detector_facts import DetectorFacts, demand_teams
from gpucost.detectors.inputs.unmet_demand import UnmetClaim, UnmetDemand, unmet
from gpucost.detectors.rule_settings import FragmentationSettings, ScopedSettings
from gpucost.detectors.rules.fragmentation.blocked_jobs import (
    MOST_NAMED,
    BlockedJob,
    BlockedSearch,
    DemandWait,
    demand_waits,
)
from gpucost.detectors.rules.fragmentation.fgd_gauge import boards_lost, typical_pods
from gpucost.detectors.rules.fragmentation.node_packing import NodeOccupancy, PodMove, to_make_room
from gpucost.detectors.rules.fragmentation.views import (
    gauge_drafts,
    moving,
    pack,
    repack_drafts,
    spread_drafts,
    whole_board_resources,
)
from gpucost.domain.buckets import Waste
from gpucost.domain.time import HOUR_MS, MINUTE_MS
from gpucost.settings.types import milliseconds

NAME = WastePattern.FRAGMENTATION
ClaimsByRow = Mapping[int, Sequence[UnmetClaim]]
MOST_SINGLE = 200
"""How many blocked jobs get a finding each, those blocked for longest; the others get one per team, queue and
shape: thousands would not be read, and for each the search for pods to move has to run."""
_OF_OTHERS = frozenset({"alone on a node", "fragments (F) before the move", "fragments (F) after the move"})
"""Evidence about other tenants' jobs."""


def blocked_drafts(
    facts: DetectorFacts, blocked: Sequence[BlockedJob], claims: ClaimsByRow
) -> list[FindingDraft]:
    """All claims of ``blocked``, in as few findings as people can read."""
    ordered = sorted(
        blocked,
        key=lambda one: (one.start_ms, one.asked.namespace, one.asked.job, one.asked.job_uid),
    )
    drafts = [blocked_draft(facts, one, claims) for one in ordered[:MOST_SINGLE]]
    groups: dict[tuple[str, ...], list[BlockedJob]] = defaultdict(list)
    for one in ordered[MOST_SINGLE:]:
        row = one.asked
        groups[row.team, row.queue, row.resource, row.products, str(max(row.units, 1))].append(one)
    return drafts + [_many_draft(facts, key, group, claims) for key, group in sorted(groups.items())]


def _many_draft(
    facts: DetectorFacts, key: tuple[str, ...], group: Sequence[BlockedJob], claims: ClaimsByRow
) -> FindingDraft:
    """``group`` is ordered by time: jobs of one team in one queue with equal requests."""
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
    return FindingDraft(
        pattern=NAME,
        variant="blocked_many",
        subject=FindingSubject(
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
            FindingEvidence("jobs", len(jobs), "jobs", "besides those with findings of their own"),
            FindingEvidence("which", named),
            FindingEvidence("blocked now", sum(one.end_ms >= facts.now_ms for one in group), "jobs"),
            FindingEvidence("largest free block", int(rooms.free[nodes].max(initial=0)), "GPUs", shown),
            FindingEvidence("free blocks (nodes x GPUs)", rooms.histogram(nodes), "", shown),
            FindingEvidence(
                "free and of no use to them", round(board_ms(episodes) / HOUR_MS, 3), "GPU-hours"
            ),
        ),
        action=pack(row.resource),
        formula="Sum over time of the free GPUs each could use, up to what it asks for, while blocked; "
        "no GPU is counted for two of them.",
        episodes=episodes,
        checked=("each was blocked for long enough", "nodes large enough exist"),
    )


def blocked_draft(facts: DetectorFacts, one: BlockedJob, claims: ClaimsByRow) -> FindingDraft:
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
    # A team cannot move other tenants' pods.
    own_action = _smaller(largest) if moves else action
    return FindingDraft(
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


def _wanted(row: DemandWait) -> str:
    together = f", {row.least} of them at once" if 1 < row.least < row.pods else ""
    return f"{amount(row.pods, 'pod')} of {amount(max(row.units, 1), 'GPU')}{together}"


def _smaller(largest: int) -> FindingAction:
    if largest < 1:
        return FindingAction(
            "Wait until the platform makes room on a node: none has a free GPU that it could use."
        )
    return FindingAction(
        f"Ask for pods of at most {amount(largest, 'GPU')} each, if the job can be divided: they fit now. "
        "Other room is the platform's to make."
    )


def _is_about_gpus(one: BlockedJob) -> bool:
    """Whether no node has enough GPUs, rather than too little CPU or memory beside them."""
    return one.fit is None or not one.fit.lacking


def _in_the_way(one: BlockedJob) -> str:
    if one.fit is not None and one.fit.lacking:
        return "too little " + ", ".join(name for name, _ in one.fit.lacking) + " where GPUs are free"
    return "free GPUs lie in blocks too small for it"


def _episodes(one: BlockedJob, claims: ClaimsByRow) -> tuple[WasteEpisode, ...]:
    """Free GPUs it could have had, while it was blocked."""
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
                found.append(
                    WasteEpisode(Waste.FRAGMENTED, cluster, claim.node, "", a, b, claim.boards, resource)
                )
    return tuple(found)


def _evidence(
    facts: DetectorFacts,
    one: BlockedJob,
    rooms: NodeOccupancy,
    moves: Sequence[PodMove],
    episodes: Sequence[WasteEpisode],
) -> tuple[FindingEvidence, ...]:
    row = one.asked
    nodes = rooms.eligible(row.products)
    shown = "allocatable less what pods hold"
    some = nodes[rooms.free[nodes] > 0][:MOST_NAMED].tolist()
    open_ = [f"{rooms.names[n]} ({rooms.free[n]})" for n in some]
    found = [
        FindingEvidence("waits for", row.pods * row.units, "GPUs", "the job's pods without a node"),
        FindingEvidence("blocked for", round((one.end_ms - one.start_ms) / MINUTE_MS, 1), "min"),
        FindingEvidence("free GPUs it could use", int(rooms.free[nodes].sum()), "GPUs", shown),
        FindingEvidence(
            "largest free block of one node", int(rooms.free[nodes].max(initial=0)), "GPUs", shown
        ),
        FindingEvidence("free blocks (nodes x GPUs)", rooms.histogram(nodes), "", shown),
        FindingEvidence("nodes with free GPUs", ", ".join(open_), "", shown),
        FindingEvidence("what is in the way", _in_the_way(one)),
        FindingEvidence("free and of no use to it", round(board_ms(episodes) / HOUR_MS, 3), "GPU-hours"),
    ]
    goes_on = one.end_ms >= facts.now_ms
    alone = [f"{node}: {who.namespace}/{who.job}" for node, who in rooms.alone(nodes)] if goes_on else []
    if alone:
        found.append(FindingEvidence("alone on a node", "; ".join(alone[:MOST_NAMED])))
    if one.fit is not None:
        for name, count in one.fit.lacking:
            found.append(FindingEvidence(f"nodes with GPUs enough but too little {name}", count, "nodes"))
        if one.fit.barred:
            found.append(
                FindingEvidence("kept out by labels or taints", ", ".join(one.fit.barred[:MOST_NAMED]))
            )
        if one.fit.asks_others:
            found.append(FindingEvidence("not looked at", "rules about other pods or topology"))
    if moves and row.resource in whole_board_resources(facts):
        for name, after in (("before", ()), ("after", moves)):
            lost = _fragments(facts, row.resource, rooms, after)
            found.append(FindingEvidence(f"fragments (F) {name} the move", lost, "GPUs"))
    return tuple(found)


def _fragments(facts: DetectorFacts, resource: str, rooms: NodeOccupancy, moves: Sequence[PodMove]) -> float:
    """GPUs that are fragments to the typical pod, weighed by GPUs, after some moves."""
    free = rooms.free.copy()
    for move in moves:
        free[rooms.index[move.who.node]] += move.who.units
        if move.to:
            free[rooms.index[move.to]] -= move.who.units
    nodes = rooms.eligible("")
    typical = typical_pods(facts.history, resource, by_gpus=True)
    return round(float(boards_lost(typical, free[nodes], [rooms.products[n] for n in nodes]).sum()), 2)


def _action(one: BlockedJob, units: int, moves: Sequence[PodMove]) -> FindingAction:
    if one.fit is not None and one.fit.lacking:
        what = ", ".join(name for name, _ in one.fit.lacking)
        return FindingAction(
            f"Lower what its pods ask of {what} to their GPUs' share of a node: where GPUs are free is less."
        )
    if not moves:
        return FindingAction(
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


def run(facts: DetectorFacts, settings: ScopedSettings[FragmentationSettings]) -> RuleDetection:
    each = (settings.default, *(override.settings for override in settings.overrides))
    found = unmet(facts.history, min(milliseconds(one.after) for one in each))

    def times(row: DemandWait) -> tuple[int, int]:
        own = settings.at(row.namespace, row.queue)
        return milliseconds(own.after), milliseconds(own.pause)

    demand = found.demand.assign(team=demand_teams(facts.history, found.demand))
    search = BlockedSearch(facts, demand_waits(demand))
    search.run(found, times)
    claims: dict[int, list[UnmetClaim]] = defaultdict(list)
    for claim in found.claims:
        claims[claim.row].append(claim)
    drafts = blocked_drafts(facts, search.blocked, claims)
    drafts += _unusable(facts, found, search)
    plain = settings.default
    views = spread_drafts(facts, milliseconds(plain.spread_after))
    views += gauge_drafts(facts, plain.gauge_share, milliseconds(plain.gauge_after))
    views += repack_drafts(facts, plain.repack_nodes, milliseconds(plain.repack_after))
    drafts += [one for one in views if isinstance(one, FindingDraft)]
    withheld = search.withheld + [one for one in views if isinstance(one, WithheldFinding)]
    return RuleDetection(tuple(drafts), tuple(withheld))


def _unusable(facts: DetectorFacts, found: UnmetDemand, search: BlockedSearch) -> list[FindingDraft]:
    """The other GPUs that were free while a job waited that they did not fit: too few for any job, or too
    briefly for a finding of its own. One draft per resource."""
    taken: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for one in search.blocked:
        for stretch in one.stretches:
            taken[stretch.row].append((stretch.start_ms, stretch.end_ms))
    spans = {row: joined(times) for row, times in taken.items()}
    episodes: dict[str, list[WasteEpisode]] = defaultdict(list)
    queues: dict[str, set[str]] = defaultdict(set)
    for claim in found.claims:
        if claim.waste is not Waste.FRAGMENTED:
            continue
        row = search.rows[claim.row]
        for start, end in _rest(claim.start_ms, claim.end_ms, spans.get(claim.row, ())):
            resource = row.resource
            queues[resource].add(row.cluster_queue)
            episodes[resource].append(
                WasteEpisode(
                    Waste.FRAGMENTED, facts.cluster, claim.node, "", start, end, claim.boards, resource
                )
            )
    return [
        _unusable_draft(facts, resource, rest, sorted(queues[resource] - {""}))
        for resource, rest in sorted(episodes.items())
    ]


def _rest(start: int, end: int, taken: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    found = []
    for a, b in islice(taken, bisect_right(taken, start, key=itemgetter(1)), None):
        if a >= end:
            break
        if a > start:
            found.append((start, min(a, end)))
        start = max(start, b)
    if start < end:
        found.append((start, end))
    return [(a, b) for a, b in found if a < b]


def _unusable_draft(
    facts: DetectorFacts, resource: str, episodes: Sequence[WasteEpisode], queues: Sequence[str]
) -> FindingDraft:
    """``queues`` are the ClusterQueues of the waiting jobs that they did not fit."""
    start, end = min(each.start_ms for each in episodes), max(each.end_ms for each in episodes)
    wasted = board_ms(episodes)
    now = sum(each.boards or 0.0 for each in episodes if each.end_ms >= facts.now_ms)
    patched = queues[:MOST_NAMED]
    return FindingDraft(
        pattern=NAME,
        variant="unusable",
        subject=FindingSubject(
            SubjectKind.CLUSTER, facts.cluster, facts.cluster, uid=f"{facts.cluster}/{resource}"
        ),
        since_ms=start,
        ended_ms=end if end < facts.now_ms else None,
        # The finding may have begun before the history, and its day may be shorter: this is stated
        # separately.
        summary=f"{hours(wasted)} of {resource} in the last {lasting(facts.now_ms - start)} stood free, "
        "too few or in blocks too small for anybody who waited, besides what blocked jobs could have had.",
        evidence=(
            FindingEvidence(
                "free and of no use, besides what blocked jobs could have had",
                round(wasted / HOUR_MS, 2),
                "GPU-hours",
                f"demand against free GPUs, since {since(start)}",
            ),
            FindingEvidence("of them now", round(now, 2), "GPUs"),
        ),
        action=with_names(
            FindingAction(
                "Let small jobs run in the gaps while large ones wait: by a queueing strategy that does not "
                f"hold them behind the first in line{_rest_of(queues)}.",
                "\n".join(cluster_queue_patch(each, queueingStrategy="BestEffortFIFO") for each in patched),
                frees_boards=now,
            ),
            *patched,
        ),
        formula="Free GPUs x time while somebody waited whom they did not fit, less what blocked jobs claim.",
        episodes=tuple(episodes),
        checked=("requests that no node could ever serve do not count as waiting",),
    )


def _rest_of(queues: Sequence[str]) -> str:
    more = len(queues) - MOST_NAMED
    return f" (and so for {amount(more, 'more ClusterQueue')})" if more > 0 else ""
