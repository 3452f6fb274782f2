"""Whether different pods share nodes: a bound that proves "no", and a bounded search.

Packing pods of several sizes is NP-hard, so there are three steps. A greedy placement may find a place: then
it fits. Else ``cannot`` may prove that nothing would. Else ``search`` tries everything, in ``MOST_STEPS``
steps at most; where these do not suffice the answer is "unknown".

Why counting is exact for what is common. Say a node *holds* ``h_v(n)`` pods of request ``v``: the smallest,
over the resources, of ``free // v``.

1. One kind of pods: they fit if and only if the sum of ``h_v`` over the nodes is at least their number. Pods
   on one node do not touch another, and a node takes every number of them up to ``h_v``.
2. Necessary for any kinds: let ``w_j(v)`` be how many ``v`` lie within one pod ``j`` (the smallest, over the
   resources of ``v``, of ``j // v``). A node with pods ``j`` could have ``w_j(v)`` of ``v`` instead of each.
   So the sum of ``w_j(v)`` over all pods is at most the sum of ``h_v`` over the nodes that admit any of them,
   for every ``v``. ``cannot`` asks it for the requests of the pods, and for each of their amounts alone.
3. Sufficient for sizes that divide each other (1, 2, 4, 8 GPUs on the same nodes, the rest not scarce): let
   the requests be whole multiples of the next smaller one. A pod of ``m v`` put on any node lowers its
   ``h_v`` by exactly ``m``, so what is left for ``v`` in sum does not depend on where larger pods stand. By
   induction from the largest, greedy fails only where the inequality of 2 fails for the ``v`` at hand.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from gpucost.advisor.placement.free_capacity import UNLIMITED, FreeCapacity, positive
from gpucost.cluster.objects.metadata import Resources
from gpucost.cluster.objects.pods import PodTemplate
from gpucost.cluster.views.node_fit import PODS

MOST_STEPS = 5_000
"""Node fillings that the search tries."""
MOST_PLACES = 200
"""Nodes that the search goes through."""

PackedCounts = dict[int, int]
"""Pods by node."""


@dataclass(frozen=True)
class PackingItem:
    """``need`` equal pods, on nodes of ``allowed`` (indices; None for all that admit the template)."""

    need: int
    template: PodTemplate
    allowed: frozenset[int] | None = None

    @property
    def asked(self) -> Resources:
        return positive(self.template.requests)

    def counts(self, rooms: FreeCapacity) -> dict[int, int]:
        """How many each node takes now."""
        found = rooms.counts(self.template)
        if self.allowed is None:
            return found
        return {at: count for at, count in found.items() if at in self.allowed}


@dataclass(frozen=True, slots=True)
class _PodShape:
    """Equal nodes: what is free of each resource, and which items they admit."""

    free: tuple[int, ...]
    admits: tuple[int, ...]
    nodes: tuple[int, ...]


class NodePacking:
    """Items, and nodes reduced to kinds, as ``rooms`` are now."""

    def __init__(self, rooms: FreeCapacity, items: Sequence[PackingItem]) -> None:
        self._items = [item for item in items if item.need > 0]
        self._place = [at for at, item in enumerate(items) if item.need > 0]
        self._size = len(items)
        resources = {key for item in self._items for key in item.asked} - {PODS}
        self._resources = (PODS, *sorted(resources))
        self._asked = [(1, *(item.asked.get(key, 0) for key in self._resources[1:])) for item in self._items]
        self._kinds = self._grouped(rooms)
        self.steps = 0

    def _grouped(self, rooms: FreeCapacity) -> list[_PodShape]:
        admits: dict[int, list[int]] = {}
        for number, item in enumerate(self._items):
            for at in sorted(item.counts(rooms)):
                admits.setdefault(at, []).append(number)
        kinds: dict[tuple[tuple[int, ...], tuple[int, ...], bool], list[int]] = {}
        for at in sorted(admits):
            free, has_limit = rooms.free_at(at), PODS in rooms.node(at).allocatable
            left = (
                free.get(PODS, 0) if has_limit else UNLIMITED,
                *(max(free.get(key, 0), 0) for key in self._resources[1:]),
            )
            kinds.setdefault((left, tuple(admits[at]), rooms.is_new(at)), []).append(at)
        ordered = sorted(
            kinds.items(), key=lambda each: (each[0][2], [-free for free in each[0][0]], each[1])
        )
        return [_PodShape(free, who, tuple(nodes)) for (free, who, _), nodes in ordered]

    def cannot(self) -> bool:
        """Whether it is proven that they do not all fit at once."""
        return any(self._is_too_much(bound) for bound in self._bounds())

    def _bounds(self) -> Iterator[tuple[int, ...]]:
        seen: set[tuple[int, ...]] = set()
        for asked in self._asked:
            alone = [
                tuple(amount if at == which else 0 for at, amount in enumerate(asked))
                for which in range(len(asked))
            ]
            for bound in (asked, (0, *asked[1:]), *alone):
                if any(bound) and bound not in seen:
                    seen.add(bound)
                    yield bound

    def _is_too_much(self, bound: tuple[int, ...]) -> bool:
        weights = [_within(asked, bound) for asked in self._asked]
        wanted = sum(weight * item.need for weight, item in zip(weights, self._items, strict=True))
        held = 0
        for kind in self._kinds:
            if any(weights[number] for number in kind.admits):
                held += _within(kind.free, bound) * len(kind.nodes)
                if held >= wanted:
                    return False
        return held < wanted

    def search(self, most_steps: int = MOST_STEPS) -> list[PackedCounts] | bool | None:
        """Where they fit, by item; False where they do not; None where the steps did not suffice."""
        total = sum(item.need for item in self._items)
        places = [(kind, at) for kind in self._kinds for at in kind.nodes[:total]]
        if len(places) > MOST_PLACES:
            return None
        after = self._after([kind for kind, _ in places])
        dead: set[tuple[int, tuple[int, ...]]] = set()
        path: list[tuple[int, ...]] = []

        def solve(place: int, left: tuple[int, ...]) -> bool | None:
            if not any(left):
                return True
            if any(need > more for need, more in zip(left, after[place], strict=True)):
                return False
            if (place, left) in dead:
                return False
            answer: bool | None = False
            for filling in self._fillings(places[place][0], left):
                self.steps += 1
                if self.steps > most_steps:
                    return None
                path.append(filling)
                rest = tuple(need - put for need, put in zip(left, filling, strict=True))
                answer = solve(place + 1, rest)
                if answer or answer is None:
                    return answer
                path.pop()
            dead.add((place, left))
            return False

        found = solve(0, tuple(item.need for item in self._items))
        return self._taken([at for _, at in places], path) if found else found

    def _after(self, kinds: Sequence[_PodShape]) -> list[tuple[int, ...]]:
        """At most how many pods of each item the places from there on take."""
        sums = [(0,) * len(self._items)]
        for kind in reversed(kinds):
            holds = [
                _within(kind.free, asked) if number in kind.admits else 0
                for number, asked in enumerate(self._asked)
            ]
            sums.append(tuple(more + hold for more, hold in zip(sums[-1], holds, strict=True)))
        return sums[::-1]

    def _fillings(self, kind: _PodShape, left: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
        """Ways to fill one node, with as many as go of the last item: more on a node never harms."""

        def fill(number: int, free: tuple[int, ...], so_far: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
            if number == len(left):
                yield so_far
                return
            asked = self._asked[number]
            most = min(left[number], _within(free, asked)) if number in kind.admits else 0
            fewest = most if number == len(left) - 1 else 0
            for count in range(most, fewest - 1, -1):
                rest = tuple(have - count * amount for have, amount in zip(free, asked, strict=True))
                yield from fill(number + 1, rest, (*so_far, count))

        return fill(0, kind.free, ())

    def _taken(self, nodes: Sequence[int], path: Sequence[tuple[int, ...]]) -> list[PackedCounts]:
        taken: list[PackedCounts] = [{} for _ in range(self._size)]
        for at, filling in zip(nodes, path, strict=False):
            for number, count in enumerate(filling):
                if count:
                    taken[self._place[number]][at] = count
        return taken


def _within(have: Sequence[int], bound: Sequence[int]) -> int:
    """How many of ``bound`` are in ``have``; UNLIMITED of nothing."""
    return min((max(h, 0) // b for h, b in zip(have, bound, strict=True) if b), default=UNLIMITED)


def best_fit(counts: Mapping[int, int], need: int, rooms: FreeCapacity, tight: bool = False) -> PackedCounts:
    """``need`` pods, or as many as go, on nodes that take ``counts``. New nodes last.

    On as few nodes as can be, the last on the smallest that suffices (as kueue's BestFit chooses domains,
    pkg/cache/scheduler/tas_flavor_snapshot.go, v0.19.2); with ``tight`` on the smallest first, which leaves
    the large ones whole.
    """
    taken: PackedCounts = {}
    new = [at for at in counts if rooms.is_new(at)] if rooms.extra else []
    is_new = frozenset(new)
    for tier in ([at for at in counts if at not in is_new], new):
        if need <= 0:
            break
        need -= _fill(counts, tier, need, tight, taken)
    return taken


def _fill(counts: Mapping[int, int], tier: list[int], need: int, tight: bool, taken: PackedCounts) -> int:
    put = 0
    if tight:
        tier.sort(key=lambda at: (counts[at], at))
    else:
        tier.sort(key=lambda at: (-counts[at], at))
    for place, at in enumerate(tier):
        left = need - put
        if left <= 0:
            break
        if not tight and counts[at] >= left:
            rest = [each for each in tier[place:] if counts[each] >= left]
            at = min(rest, key=lambda each: (counts[each], each))
        taken[at] = min(counts[at], left)
        put += taken[at]
    return put
