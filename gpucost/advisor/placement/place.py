"""Whether all pods of a gang find a node at once, where, and else why not."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from gpucost.advisor.placement.domains import Placed
from gpucost.advisor.placement.gang import Gang, level_of, levels_of, order
from gpucost.advisor.placement.reasons import line, why
from gpucost.advisor.placement.rooms import Domain, Rooms, positive
from gpucost.advisor.placement.solve import Solved, solve
from gpucost.advisor.placement.solve import fits as solve_fits
from gpucost.advisor.placement.wanted import Wanted

MOST_EXPLAINED = 8
"""Pod sets of which is said why nodes refuse them, the first by name."""


@dataclass(frozen=True, slots=True)
class TooBig:
    """One pod asks for ``asks`` of a resource, and no node has more than ``most``, even when empty."""

    pod_set: str
    resource: str
    asks: int
    most: int


@dataclass(frozen=True, slots=True)
class Placement:
    """Where they go, by pod set.

    ``fits`` is whether each pod set finds room for its least, all at once. With ``is_exact`` that is certain
    as far as the rules of ``gpucost.cluster.fit`` go; without, nobody knows, and ``fits`` is False.
    ``unknown`` says what was not evaluated, also where it fits: "nothing known is against it".

    ``nodes`` has pods by node, of as many as went; ``short`` how many found no room (missing: none).
    ``why`` has how many of the ``seen`` nodes refuse one more pod, by reason, of the first that are short.
    ``domains`` are the topology domains chosen, as label values from the widest level down. ``notes`` are
    further reasons, in sentences. ``even_empty`` is whether it would fit if no job ran on any node: if not,
    waiting does not help; None where nobody knows. ``new_nodes`` are nodes an autoscaler has to add, by
    pool, ready after ``minutes``.
    """

    fits: bool
    is_exact: bool = True
    nodes: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    short: Mapping[str, int] = field(default_factory=dict)
    why: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    seen: int = 0
    domains: Mapping[str, tuple[Domain, ...]] = field(default_factory=dict)
    even_empty: bool | None = None
    too_big: tuple[TooBig, ...] = ()
    unknown: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    new_nodes: Mapping[str, int] = field(default_factory=dict)
    minutes: float = 0.0

    def line(self, pod_set: str) -> str:
        """Why the pod set is short, as kube-scheduler would say; empty where it is not."""
        reasons = self.why.get(pod_set)
        return "" if reasons is None else line(reasons, self.seen)


def place(rooms: Rooms, wanted: Sequence[Wanted], ask_empty: bool = True) -> Placement:
    """Finds every pod a node, all at once. ``rooms`` is as before afterwards; the order of ``wanted`` does
    not matter. Without ``ask_empty`` it is not asked whether it would fit on empty nodes."""
    gang = Gang(wanted)
    if gang.unknown:
        return Placement(False, is_exact=False, seen=len(rooms), unknown=gang.unknown)
    if gang.wrong:
        return _refused(rooms, gang)
    full = solve(rooms, gang.blocks(rooms, lambda each: each.count))
    found, fits = full, full.fits
    if not fits and gang.has_least:
        found = solve(rooms, gang.blocks(rooms, lambda each: each.least))
        fits = found.fits
        if fits:
            found = Solved(True, _more(rooms, gang, found.placed))
        elif fits is False:
            found = full
    return _answer(rooms, gang, found.placed, fits, ask_empty)


def reserve(rooms: Rooms, wanted: Iterable[Wanted]) -> Rooms:
    """What is left once pods that have quota, but no node yet, are placed as far as they go: each pod set by
    itself, in order of name. Pods that find no room hold none."""
    left = rooms.copy()
    for each in sorted(wanted, key=order):
        gang = Gang([each])
        if not gang.unknown and not gang.wrong:
            placed = solve(left, gang.blocks(left, lambda one: one.count)).placed
            _take(left, gang, placed)
    return left


def _take(rooms: Rooms, gang: Gang, placed: Placed) -> None:
    for each in gang.merged:
        for at, count in placed.taken.get(each.name, {}).items():
            rooms.take_at(at, positive(each.asks.requests), count)


def _more(rooms: Rooms, gang: Gang, placed: Placed) -> Placed:
    """Further pods beyond the least, as far as they go without moving any, where no topology holds them."""
    mark = rooms.mark()
    _take(rooms, gang, placed)
    for block in gang.blocks(rooms, lambda each: each.count - placed.count(each.name)):
        if block.level is None and not block.is_bound:
            added = solve(rooms, [block]).placed
            _take(rooms, gang, added)
            for name, taken in added.taken.items():
                have = placed.taken.setdefault(name, {})
                for at, count in taken.items():
                    have[at] = have.get(at, 0) + count
    rooms.rewind(mark)
    return placed


def _refused(rooms: Rooms, gang: Gang) -> Placement:
    short = {each.name: each.count for group in gang.sources.values() for each in group}
    notes = tuple(f"{name}: {problem}" for name, problem in sorted(gang.wrong.items()))
    return Placement(False, short=short, seen=len(rooms), even_empty=False, notes=notes)


def _answer(rooms: Rooms, gang: Gang, placed: Placed, fits: bool | None, ask_empty: bool) -> Placement:
    backed = _maybe_backed(rooms, gang) if fits is False else ()
    if backed:
        fits = None
    nodes = gang.by_pod_set(placed, rooms)
    short = _short(gang, nodes)
    even_empty: bool | None = True if fits else None
    if not fits and ask_empty and not backed:
        empty = rooms.emptied()
        even_empty = solve_fits(empty, gang.blocks(empty, lambda each: each.least))
    new = {at for taken in placed.taken.values() for at in taken if rooms.is_new(at)}
    pools: dict[str, int] = {}
    for at in sorted(new):
        pools[rooms.node(at).pool] = pools.get(rooms.node(at).pool, 0) + 1
    return Placement(
        bool(fits),
        fits is not None,
        nodes,
        short,
        _why(rooms, gang, placed, short),
        len(rooms),
        {one.name: placed.domains[name] for name in placed.domains for one in gang.sources[name]},
        even_empty,
        () if fits else _too_big(rooms, gang),
        backed or _not_evaluated(gang, fits),
        () if fits else _notes(gang, placed, short),
        pools,
        max((rooms.minutes.get(pool, 0.0) for pool in pools), default=0.0),
    )


def _short(gang: Gang, nodes: Mapping[str, Mapping[str, int]]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for group in gang.sources.values():
        for each in group:
            counts[each.name] = counts.get(each.name, 0) + each.count
    left = {name: count - sum(nodes.get(name, {}).values()) for name, count in counts.items()}
    return {name: count for name, count in sorted(left.items()) if count > 0}


def _why(rooms: Rooms, gang: Gang, placed: Placed, short: Mapping[str, int]) -> dict[str, dict[str, int]]:
    mark, found = rooms.mark(), dict[str, dict[str, int]]()
    _take(rooms, gang, placed)
    explained = frozenset(list(short)[:MOST_EXPLAINED])
    for group in gang.sources.values():
        names = [each.name for each in group if each.name in explained]
        if names:
            reasons = why(rooms, group[0])
            found.update(dict.fromkeys(names, reasons))
    rooms.rewind(mark)
    return found


def _too_big(rooms: Rooms, gang: Gang) -> tuple[TooBig, ...]:
    largest = {**rooms.base.largest}
    for node in rooms.extra:
        for resource, amount in node.allocatable.items():
            largest[resource] = max(amount, largest.get(resource, 0))
    return tuple(
        TooBig(each.name, resource, amount, largest.get(resource, 0))
        for group in gang.sources.values()
        for each in group
        for resource, amount in sorted(positive(each.asks.requests).items())
        if amount > largest.get(resource, 0)
    )


def _not_evaluated(gang: Gang, fits: bool | None) -> tuple[str, ...]:
    sets = [each for group in gang.sources.values() for each in group]
    found = [
        f"{each.name}: rules about other pods or spreading are not evaluated"
        for each in sets
        if each.template.has_pod_affinity
    ]
    if fits is None:
        found.append("too many ways to place pods of different sizes: not all were tried")
    return tuple(sorted(found))


def _maybe_backed(rooms: Rooms, gang: Gang) -> tuple[str, ...]:
    """Extended resources that a DRA driver may give, which only its DeviceClass would tell."""
    asked = {key for each in gang.merged for key in positive(each.asks.requests)}
    return tuple(
        f"{key}: devices that nodes publish in ResourceSlices may stand for it; that is not evaluated"
        for key in sorted(asked)
        if rooms.base.may_back(key)
    )


def _notes(gang: Gang, placed: Placed, short: Mapping[str, int]) -> tuple[str, ...]:
    notes = []
    for each in gang.merged:
        level, is_preferred = level_of(each)
        names = ", ".join(dict.fromkeys(one.name for one in gang.sources[each.name]))
        if each.conflict:
            notes.append(f"{names}: asks for another {each.conflict} than its flavor's nodes have")
        elif level is not None and not is_preferred:
            put = placed.count(each.name)
            who = f"all {each.count:,} pods" if each.count > 1 else "its pod"
            best = (
                f"at best {put:,} of them {'is' if put == 1 else 'are'}"
                if each.count > 1
                else "none has room"
            )
            notes.append(f"{names}: {who} must be in one {levels_of(each)[level]}; {best}")
    if len(short) > MOST_EXPLAINED:
        notes.append(f"why nodes refuse pods is said of {MOST_EXPLAINED} of {len(short)} pod sets")
    return tuple(notes)
