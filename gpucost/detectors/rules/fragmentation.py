"""Free GPUs that those who wait cannot use, because they lie in the wrong places."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Sequence
from itertools import islice
from operator import itemgetter

from gpucost.cluster.quota_yaml import cluster_queue_patch
from gpucost.detectors.demand_teams import demand_teams
from gpucost.detectors.facts import Facts
from gpucost.detectors.findings import (
    Action,
    Detection,
    Draft,
    Episode,
    Evidence,
    Pattern,
    Subject,
    SubjectKind,
    Withheld,
)
from gpucost.detectors.held import amount, board_ms, hours, joined, lasting, since, with_names
from gpucost.detectors.rule_settings import FragmentationSettings
from gpucost.detectors.rules.fragmentation_blocked import MOST_NAMED, Asked, Search, asked
from gpucost.detectors.rules.fragmentation_views import gauge_drafts, repack_drafts, spread_drafts
from gpucost.detectors.rules.fragmentation_words import blocked_drafts
from gpucost.detectors.settings import Scoped
from gpucost.detectors.unmet import Claim, Unmet, unmet
from gpucost.domain.time import HOUR_MS
from gpucost.domain.waste import Waste
from gpucost.settings.types import milliseconds

NAME = Pattern.FRAGMENTATION


def run(facts: Facts, settings: Scoped[FragmentationSettings]) -> Detection:
    each = (settings.default, *(override.settings for override in settings.overrides))
    found = unmet(facts.history, min(milliseconds(one.after) for one in each))

    def times(row: Asked) -> tuple[int, int]:
        own = settings.at(row.namespace, row.queue)
        return milliseconds(own.after), milliseconds(own.pause)

    demand = found.demand.assign(team=demand_teams(facts.history, found.demand))
    search = Search(facts, asked(demand))
    search.run(found, times)
    claims: dict[int, list[Claim]] = defaultdict(list)
    for claim in found.claims:
        claims[claim.row].append(claim)
    drafts = blocked_drafts(facts, search.blocked, claims)
    drafts += _unusable(facts, found, search)
    plain = settings.default
    views = spread_drafts(facts, milliseconds(plain.spread_after))
    views += gauge_drafts(facts, plain.gauge_share, milliseconds(plain.gauge_after))
    views += repack_drafts(facts, plain.repack_nodes, milliseconds(plain.repack_after))
    drafts += [one for one in views if isinstance(one, Draft)]
    withheld = search.withheld + [one for one in views if isinstance(one, Withheld)]
    return Detection(tuple(drafts), tuple(withheld))


def _unusable(facts: Facts, found: Unmet, search: Search) -> list[Draft]:
    """What else was free while somebody waited whom it did not fit: too few for anybody, or too briefly for a
    finding of its own. One per resource."""
    taken: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for one in search.blocked:
        for stretch in one.stretches:
            taken[stretch.row].append((stretch.start_ms, stretch.end_ms))
    spans = {row: joined(times) for row, times in taken.items()}
    episodes: dict[str, list[Episode]] = defaultdict(list)
    queues: dict[str, set[str]] = defaultdict(set)
    for claim in found.claims:
        if claim.waste is not Waste.FRAGMENTED:
            continue
        row = search.rows[claim.row]
        for start, end in _rest(claim.start_ms, claim.end_ms, spans.get(claim.row, ())):
            resource = row.resource
            queues[resource].add(row.cluster_queue)
            episodes[resource].append(
                Episode(Waste.FRAGMENTED, facts.cluster, claim.node, "", start, end, claim.boards, resource)
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


def _unusable_draft(facts: Facts, resource: str, episodes: Sequence[Episode], queues: Sequence[str]) -> Draft:
    """``queues`` are the ClusterQueues in which somebody waited whom it did not fit."""
    start, end = min(each.start_ms for each in episodes), max(each.end_ms for each in episodes)
    wasted = board_ms(episodes)
    now = sum(each.boards or 0.0 for each in episodes if each.end_ms >= facts.now_ms)
    patched = queues[:MOST_NAMED]
    return Draft(
        pattern=NAME,
        variant="unusable",
        subject=Subject(SubjectKind.CLUSTER, facts.cluster, facts.cluster, uid=f"{facts.cluster}/{resource}"),
        since_ms=start,
        ended_ms=end if end < facts.now_ms else None,
        # The finding may have begun before what is looked at, and its day may be shorter: said apart.
        summary=f"{hours(wasted)} of {resource} in the last {lasting(facts.now_ms - start)} stood free, "
        "too few or in blocks too small for anybody who waited, besides what blocked jobs could have had.",
        evidence=(
            Evidence(
                "free and of no use, besides what blocked jobs could have had",
                round(wasted / HOUR_MS, 2),
                "GPU-hours",
                f"demand against free GPUs, since {since(start)}",
            ),
            Evidence("of them now", round(now, 2), "GPUs"),
        ),
        action=with_names(
            Action(
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
