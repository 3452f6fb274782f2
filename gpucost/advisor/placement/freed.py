"""What preemption gives back, and whether the gang that asked for it can use it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gpucost.advisor.placement.place import Placement, place
from gpucost.advisor.placement.rooms import Rooms, positive
from gpucost.advisor.placement.wanted import Wanted
from gpucost.cluster.quantities import readable
from gpucost.domain.words import counted

MOST_NAMED = 5
"""Nodes that a sentence names; it says how many more there are."""


@dataclass(frozen=True, slots=True)
class Use:
    """Of one pod set, alone: how many of its ``count`` pods would fit before and after, and what one pod asks
    for of the resource it is about."""

    pod_set: str
    count: int
    before: int
    after: int


@dataclass(frozen=True, slots=True)
class Freed:
    """``units`` are what is given back in all, by resource that the pods ask for; ``by_node`` what each node
    gives back of it, and ``free`` what is free on these nodes afterwards. ``placement`` is that of the gang
    afterwards."""

    units: Mapping[str, int]
    by_node: Mapping[str, Mapping[str, int]]
    free: Mapping[str, Mapping[str, int]]
    uses: tuple[Use, ...]
    placement: Placement

    @property
    def is_useless(self) -> bool:
        """Whether something is given back, and the gang certainly still does not fit."""
        return any(self.units.values()) and self.placement.is_exact and not self.placement.fits

    def says(self, resource: str, wanted: Sequence[Wanted]) -> str:
        """``preemption frees 8 nvidia.com/gpu, but on 8 nodes with at most 1 each (n1, n2, …): pod set main
        needs 8 on one node``; empty where the gang can use it."""
        if not self.is_useless or not self.units.get(resource):
            return ""
        nodes = sorted(name for name, units in self.by_node.items() if units.get(resource))
        most = max(self.free[name].get(resource, 0) for name in nodes)
        named = ", ".join(nodes[:MOST_NAMED])
        more = f" and {len(nodes) - MOST_NAMED} more" if len(nodes) > MOST_NAMED else ""
        needs = max(wanted, key=lambda each: (each.asks.requests.get(resource, 0), each.name))
        asks = needs.asks.requests.get(resource, 0)
        asked, given = readable(resource, asks), readable(resource, self.units[resource])
        where = (
            f"on {len(nodes)} nodes with at most {readable(resource, most)} free each"
            if len(nodes) > 1
            else "on one node"
        )
        if asks > most:
            but = f"a pod of {needs.name} needs {asked} on one node"
        elif self.placement.notes:
            but = self.placement.notes[0]
        else:
            fits = {use.pod_set: use.after for use in self.uses}
            but = (
                f"of {counted(needs.count, 'pod')} of {needs.name} {fits.get(needs.name, 0)} would find room"
            )
        return f"preemption frees {given} {resource}, but {where} ({named}{more}): {but}"


def freed(before: Rooms, after: Rooms, wanted: Sequence[Wanted]) -> Freed:
    """Compares two rooms of one snapshot: ``after`` has the victims gone. Amounts are as of ``Resources``."""
    asked = {key for each in wanted for key in positive(each.asks.requests)}
    by_node: dict[str, dict[str, int]] = {}
    free: dict[str, dict[str, int]] = {}
    for at in after.changed:
        was, now = before.free_at(at), after.free_at(at)
        more = {key: now.get(key, 0) - was.get(key, 0) for key in sorted(asked)}
        gained = {key: amount for key, amount in more.items() if amount > 0}
        if gained:
            by_node[after.name(at)] = gained
            free[after.name(at)] = {key: max(now.get(key, 0), 0) for key in sorted(asked)}
    units = {key: sum(gained.get(key, 0) for gained in by_node.values()) for key in sorted(asked)}
    uses = tuple(
        Use(each.name, each.count, fitting(before, each), fitting(after, each))
        for each in sorted(wanted, key=lambda one: one.name)
    )
    return Freed(units, by_node, free, uses, place(after, wanted, ask_empty=False))


def fitting(rooms: Rooms, wanted: Wanted) -> int:
    """How many of its pods would fit, alone."""
    return sum(place(rooms, [wanted], ask_empty=False).nodes.get(wanted.name, {}).values())
