"""Which pods hold which GPUs of which node, and which to move so that others fit or nodes become empty."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import combinations
from typing import TypeAlias

import numpy as np
import pandas as pd

from gpucost.attribution.apportion import Flags, Ints
from gpucost.detectors.inputs.detector_facts import ClusterHistory
from gpucost.domain.jobs import JobKind

MOST_NODES = 100
"""The search for pods to move covers so many nodes, those with the most free units."""
MOST_CHOICES = 8
"""Up to so many occupants of a node every combination is tried; beyond that the cheapest leave one by one."""
_COLUMNS = [
    *("namespace", "job", "job_uid", "pod", "pod_uid", "node", "count", "start_ms"),
    *("end_ms", "job_kind", "boards"),
]
_FIXED = frozenset({JobKind.DAEMON_SET.value, JobKind.POD.value})
"""Pods of a DaemonSet come back to the same node, and bare pods never come back. Pods in ComputeDomains stay,
too: another node may have room for them, and no channel."""


@dataclass(frozen=True, slots=True)
class NodeOccupant:
    """A pod that holds ``units`` on a node. ``lost_board_ms`` is the GPU time of its job since its present
    pods began: all of it is lost if no checkpoint was saved."""

    namespace: str
    job: str
    job_uid: str
    pod: str
    pod_uid: str
    node: str
    units: int
    since_ms: int
    lost_board_ms: float
    can_move: bool

    @property
    def who(self) -> tuple[str, str]:
        """Its job: a uid is what an owner reference claims, in whatever namespace."""
        return self.namespace, self.job_uid


@dataclass(frozen=True, slots=True)
class PodMove:
    """A pod goes from its node to another one, or, with an empty ``to``, has to wait for one."""

    who: NodeOccupant
    to: str


_Option: TypeAlias = tuple[float, int, list[NodeOccupant]]
"""The loss, the node, and the occupants that leave."""


@dataclass(frozen=True)
class NodeOccupancy:
    """Nodes with units of one resource at an instant. ``given`` is what they advertise, ``free`` the part of
    it without a holder; ``is_open`` whether they take new pods. Parallel to ``names``."""

    names: tuple[str, ...]
    given: Ints
    free: Ints
    is_open: tuple[bool, ...]
    products: tuple[str, ...]
    pools: tuple[str, ...]
    at_ms: int
    kind: Ints
    """Which of the products each has, as a number."""
    held_of: Callable[[], pd.DataFrame] = field(repr=False)
    known: dict[tuple[str, bool], Ints] = field(repr=False)
    """Results of ``eligible``, shared by all instants with the same nodes."""
    options: dict[tuple[int, int], tuple[float, int, list[NodeOccupant]]] = field(
        default_factory=dict, repr=False
    )
    """Results of ``_cheapest`` by node and units, since many jobs wait for the same."""

    @classmethod
    def at(cls, history: ClusterHistory, resource: str, at_ms: int) -> NodeOccupancy:
        layout, code = _Layouts.of(history, resource).at(at_ms)
        held = _held(history, resource)
        here = _is_alive(held, at_ms) & (code >= 0)
        used = np.bincount(code[here], held["count"].to_numpy()[here], len(layout.names)).astype(np.int64)
        return cls(
            names=layout.names,
            given=layout.given,
            free=np.maximum(layout.given - used, 0),
            is_open=layout.is_open,
            products=layout.products,
            pools=layout.pools,
            at_ms=at_ms,
            kind=layout.kind,
            held_of=lambda: held[_is_alive(held, at_ms)],
            known=layout.known,
        )

    @cached_property
    def occupants(self) -> Mapping[str, Sequence[NodeOccupant]]:
        """The occupants by node."""
        return _occupants(self.held_of(), self.at_ms)

    @cached_property
    def index(self) -> Mapping[str, int]:
        return {name: n for n, name in enumerate(self.names)}

    def eligible(self, products: str, *, closed: bool = False) -> Ints:
        """Positions of the nodes that take pods that want one of ``products`` (joined by |; empty: any); with
        ``closed`` also of nodes that take none now."""
        if (products, closed) not in self.known:
            wanted = set(products.split("|"))
            found = [
                n
                for n, product in enumerate(self.products)
                if (closed or self.is_open[n]) and (not products or product in wanted)
            ]
            self.known[products, closed] = np.array(found, dtype=np.int64)
        return self.known[products, closed]

    def histogram(self, nodes: Ints) -> str:
        """``2 x 4, 6 x 1``: two nodes with four free units each, six with one."""
        blocks = Counter(self.free[nodes][self.free[nodes] > 0].tolist())
        return ", ".join(f"{count} x {units}" for units, count in sorted(blocks.items(), reverse=True))

    def alone(self, nodes: Ints) -> list[tuple[str, NodeOccupant]]:
        """Nodes on which a single job holds some units, but not all, and one of its pods there."""
        found = []
        for n in nodes.tolist():
            here = self.occupants.get(self.names[n], ())
            if len({each.who for each in here}) == 1 and self.free[n] > 0:
                found.append((self.names[n], here[0]))
        return found


def to_make_room(rooms: NodeOccupancy, nodes: Ints, units: int, pods: int) -> list[PodMove]:
    """The pods to move from ``nodes`` so that ``pods`` pods of ``units`` units fit there: node by node, those
    whose jobs lose the fewest GPU-hours. Empty where moving does not help."""
    free = rooms.free.copy()
    near = nodes[np.argsort(-free[nodes], kind="stable")][:MOST_NODES]
    lacking = pods - int((free[nodes] // units).sum())
    gone: set[str] = set()
    touched: set[int] = set()
    chosen: list[NodeOccupant] = []
    while lacking > 0:
        # Pods that have left matter only on nodes that some pod left.
        out_of = {n: gone if n in touched else set[str]() for n in near.tolist()}
        options = [option for n in out_of if (option := _cheapest(rooms, n, free, units, out_of[n]))]
        if not options:
            return []
        _, n, out = min(options, key=lambda option: (option[0], rooms.names[option[1]]))
        before = free[n] // units
        touched.add(n)
        for each in out:
            free[n] += each.units
            gone.add(each.pod_uid)
        chosen += out
        lacking -= int(free[n] // units - before)
    # The units that were cleared are for the waiting pods.
    left = free.copy()
    for each in chosen:
        left[rooms.index[each.node]] = 0
    return [PodMove(each, _new_home(rooms, each, left, rooms.index[each.node])) for each in chosen]


def to_empty_nodes(rooms: NodeOccupancy, pool: Ints, before_ms: int) -> tuple[list[str], list[PodMove]]:
    """Nodes of ``pool`` that moving pods to others of it would empty, and the moves: nodes with the least to
    lose first, never onto an empty node. Pods that began after ``before_ms`` stay."""
    left = rooms.free.copy()
    used = [n for n in pool.tolist() if rooms.is_open[n] and rooms.occupants.get(rooms.names[n])]
    is_target = np.zeros(len(left), dtype=bool)
    is_target[used] = True
    loss = {n: _loss(rooms.occupants[rooms.names[n]]) for n in used}
    received: set[int] = set()
    emptied: list[str] = []
    moves: list[PodMove] = []
    for n in sorted(used, key=lambda n: (loss[n], rooms.names[n])):
        here = sorted(rooms.occupants[rooms.names[n]], key=lambda each: (-each.units, each.pod_uid))
        if n in received or not all(each.can_move and each.since_ms <= before_ms for each in here):
            continue
        is_target[n] = False
        homes = _homes(here, left, is_target)
        if len(homes) < len(here):
            is_target[n] = True
            continue
        received.update(homes)
        emptied.append(rooms.names[n])
        moves += [PodMove(each, rooms.names[to]) for each, to in zip(here, homes, strict=True)]
    return emptied, moves


def _homes(who: Sequence[NodeOccupant], left: Ints, is_target: Flags) -> list[int]:
    """A node for each of ``who``, the tightest that has room, which is taken from ``left``; where one finds
    none, the list is empty and ``left`` is unchanged."""
    found: list[int] = []
    for each in who:
        room = np.where(is_target & (left >= each.units), left, np.iinfo(np.int64).max)
        to = int(room.argmin())
        if room[to] > left[to]:
            for other, at in zip(who, found, strict=False):
                left[at] += other.units
            return []
        left[to] -= each.units
        found.append(to)
    return found


def fewest_nodes(rooms: NodeOccupancy, pool: Ints) -> int:
    """A lower bound of how many nodes of ``pool`` must hold pods, however these are packed: their sum by the
    largest node, pods larger than half of one each on their own, nodes with pods that cannot move."""
    here = [each for n in pool.tolist() for each in rooms.occupants.get(rooms.names[n], ())]
    if not here:
        return 0
    largest = int(rooms.given[pool].max())
    by_sum = -(-sum(each.units for each in here) // max(largest, 1))
    by_size = sum(each.units * 2 > largest for each in here)
    fixed = len({each.node for each in here if not each.can_move})
    return max(by_sum, by_size, fixed)


def _held(history: ClusterHistory, resource: str) -> pd.DataFrame:
    """Allocations of one resource, reduced to the columns needed here, since many instants are looked up."""
    key = ("held_of", resource)
    if key not in history.memo:
        held = history.held
        rows = held.loc[held["resource"] == resource, _COLUMNS]
        in_domain = jobs_in_domains(history)
        jobs = zip(rows["namespace"].tolist(), rows["job_uid"].tolist(), strict=True)
        is_fixed = [job in in_domain for job in jobs] if in_domain else False
        history.memo[key] = rows.assign(in_domain=is_fixed)
    found = history.memo[key]
    assert isinstance(found, pd.DataFrame)
    return found


def jobs_in_domains(history: ClusterHistory) -> frozenset[tuple[str, str]]:
    """By namespace and uid, jobs of which pods have channels of ComputeDomains: each pod is on a node of its
    own, of which it has the only channel."""
    domains = history.frames.domains
    jobs = zip(domains["namespace"].tolist(), domains["job_uid"].tolist(), strict=True)
    return frozenset(each for each in jobs if each[1])


def _is_alive(frame: pd.DataFrame, at_ms: int) -> Flags:
    found: Flags = (frame["start_ms"].to_numpy() <= at_ms) & (frame["end_ms"].to_numpy() > at_ms)
    return found


@dataclass(frozen=True)
class _Layout:
    """The part of ``NodeOccupancy`` that stays the same while the nodes do."""

    names: tuple[str, ...]
    given: Ints
    is_open: tuple[bool, ...]
    products: tuple[str, ...]
    pools: tuple[str, ...]
    kind: Ints
    known: dict[tuple[str, bool], Ints] = field(default_factory=dict)


class _Layouts:
    """The layouts of one resource over a history: each is computed once, however many instants it covers."""

    def __init__(self, history: ClusterHistory, resource: str) -> None:
        capacity = history.frames.capacity
        self._nodes, self._held = history.frames.nodes, _held(history, resource)["node"]
        self._given = capacity[capacity["resource"] == resource]
        self._found: dict[tuple[bytes, bytes], tuple[_Layout, Ints]] = {}

    @classmethod
    def of(cls, history: ClusterHistory, resource: str) -> _Layouts:
        key = ("layouts", resource)
        if key not in history.memo:
            history.memo[key] = cls(history, resource)
        found = history.memo[key]
        assert isinstance(found, _Layouts)
        return found

    def at(self, at_ms: int) -> tuple[_Layout, Ints]:
        """The layout of an instant, and the position in it of the node of each row of ``_held``, or -1."""
        nodes, given = _is_alive(self._nodes, at_ms), _is_alive(self._given, at_ms)
        key = nodes.tobytes(), given.tobytes()
        if key not in self._found:
            self._found[key] = self._made(self._nodes[nodes], self._given[given])
        return self._found[key]

    def _made(self, nodes: pd.DataFrame, given: pd.DataFrame) -> tuple[_Layout, Ints]:
        given = given.drop_duplicates("node", keep="last").sort_values("node")
        facts = nodes.drop_duplicates("node", keep="last").set_index("node").reindex(given["node"].tolist())
        products = facts["product"].fillna("")
        layout = _Layout(
            names=tuple(given["node"].tolist()),
            given=given["allocatable"].to_numpy(np.int64),
            is_open=tuple((given["schedulable"] > 0).tolist()),
            products=tuple(products.tolist()),
            pools=tuple(facts["pool"].fillna("").tolist()),
            kind=pd.factorize(products)[0].astype(np.int64),
        )
        return layout, pd.Index(given["node"]).get_indexer(self._held).astype(np.int64)


def _occupants(held: pd.DataFrame, at_ms: int) -> dict[str, list[NodeOccupant]]:
    done = held["boards"].fillna(0) * (at_ms - held["start_ms"])
    lost = done.groupby([held["namespace"], held["job_uid"]], observed=True).transform("sum")
    found: dict[str, list[NodeOccupant]] = {}
    can_move = (~held["job_kind"].isin(_FIXED) & ~held["in_domain"]).tolist()
    for row in zip(*(held[name].tolist() for name in _COLUMNS[:8]), lost.tolist(), can_move, strict=True):
        one = NodeOccupant(*row)
        found.setdefault(one.node, []).append(one)
    return found


def _loss(out: Collection[NodeOccupant]) -> float:
    return sum({each.who: each.lost_board_ms for each in out}.values())


def _cheapest(rooms: NodeOccupancy, n: int, free: Ints, units: int, gone: set[str]) -> _Option | None:
    """(loss, node, occupants that leave) for room for one more pod of ``units`` there."""
    needed = (int(free[n]) // units + 1) * units - int(free[n])
    if rooms.given[n] < units or int(free[n]) + needed > rooms.given[n]:
        return None
    if not gone and (n, needed) in rooms.options:
        return rooms.options[n, needed]
    here = [each for each in rooms.occupants.get(rooms.names[n], ()) if each.pod_uid not in gone]
    here = sorted(
        (each for each in here if each.can_move), key=lambda each: (each.lost_board_ms, each.pod_uid)
    )
    if sum(each.units for each in here) < needed:
        return None
    best: list[NodeOccupant] = []
    if len(here) <= MOST_CHOICES:
        sets = (s for size in range(1, len(here) + 1) for s in combinations(here, size))
        enough = [list(s) for s in sets if sum(each.units for each in s) >= needed]
        best = min(enough, key=lambda s: (_loss(s), len(s)))
    else:
        for each in here:
            if sum(other.units for other in best) >= needed:
                break
            best.append(each)
    found = _loss(best), n, best
    if not gone:
        rooms.options[n, needed] = found
    return found


def _new_home(rooms: NodeOccupancy, who: NodeOccupant, left: Ints, origin: int) -> str:
    """The tightest open node of the same product where it fits; its room is taken from ``left``."""
    fits = (left >= who.units) & np.array(rooms.is_open) & (rooms.kind == rooms.kind[origin])
    fits[origin] = False
    if not fits.any():
        return ""
    # Nodes are ordered by name: of equally tight ones the first is taken.
    best = int(np.where(fits, left, np.iinfo(np.int64).max).argmin())
    left[best] -= who.units
    return rooms.names[best]
