"""Free units by level, against the same done the slow way, node by node."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gpucost.attribution.apportion import Ints
from gpucost.detectors.inputs.unmet_demand import FreeUnits, NodeKinds

KINDS = 3
Taken = list[tuple[int, int]]


def slow_pods(free: Ints, nodes: Ints, units: int, pods: int) -> Taken:
    """The tightest node that has room first, of equally tight ones the first."""
    taken = []
    places = free[nodes] // max(units, 1)
    for i in np.argsort(np.where(places > 0, free[nodes], np.iinfo(np.int64).max), kind="stable"):
        count = min(int(places[i]), pods)
        if count > 0:
            pods -= count
            free[nodes[i]] -= count * units
            taken.append((int(nodes[i]), count * units))
    return taken


def slow_units(free: Ints, nodes: Ints, wanted: int) -> Taken:
    """The node with the most room first."""
    taken = []
    for node in nodes[np.argsort(-free[nodes], kind="stable")].tolist():
        amount = min(int(free[node]), wanted)
        if amount > 0:
            wanted -= amount
            free[node] -= amount
            taken.append((node, amount))
    return taken


@given(
    nodes=st.lists(st.tuples(st.integers(0, 9), st.integers(0, KINDS - 1)), max_size=12),
    asks=st.lists(
        st.tuples(st.sets(st.integers(0, KINDS - 1)), st.integers(0, 9), st.integers(0, 12), st.booleans()),
        max_size=8,
    ),
)
def test_what_is_taken_is_what_a_walk_over_all_nodes_takes(
    nodes: list[tuple[int, int]], asks: list[tuple[set[int], int, int, bool]]
) -> None:
    free, kind = (np.array([node[n] for node in nodes], dtype=np.int64) for n in (0, 1))
    fast = FreeUnits(free, kind, KINDS)
    for wanted, units, pods, whole in asks:
        kinds: NodeKinds = tuple(sorted(wanted))
        here = np.flatnonzero(np.isin(kind, kinds))
        assert fast.left == free.sum()
        assert fast.total(kinds) == free[here].sum()
        assert fast.largest(kinds) == free[here].max(initial=0)
        assert fast.places(kinds, max(units, 1)) == (free[here] // max(units, 1)).sum()
        if whole:
            assert fast.take_pods(kinds, units, pods) == slow_pods(free, here, units, pods)
        else:
            assert fast.take_units(kinds, units * pods) == slow_units(free, here, units * pods)
