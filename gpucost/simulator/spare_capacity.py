"""Room that the scheduler left: where and when something more can run without disturbing other pods."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from gpucost.domain.time import MINUTE_MS, Window
from gpucost.simulator.inventory import SimulatedNode
from gpucost.simulator.scheduler import PodPlacement
from gpucost.simulator.workloads import DrawnInts

STEP_MS = 5 * MINUTE_MS


class SpareCapacity:
    """Free units per node and step of five minutes; a step that is partly taken counts as taken.

    Only nodes that offer a single resource. ``take`` marks units as used.
    """

    def __init__(
        self, nodes: Sequence[SimulatedNode], placements: Iterable[PodPlacement], month: Window
    ) -> None:
        self._month = month
        self._nodes = {node.name: node for node in nodes if len(node.offers) == 1}
        self._free: Mapping[str, DrawnInts] = {name: self._empty(node) for name, node in self._nodes.items()}
        for pod in placements:
            if pod.node in self._free:
                self.take(pod.node, pod.submission.units, pod.start_ms, pod.end_ms)

    def take(self, node: str, units: int, start_ms: int, end_ms: int) -> None:
        self._free[node][self._steps(start_ms, end_ms)] -= units

    def find(self, pools: Sequence[str], units: int, length_ms: int, from_ms: int) -> tuple[str, int] | None:
        """(node, start) of the first stretch from ``from_ms`` on in which a node that measures has room, in
        the first pool that has any; None if there is none until the month ends."""
        length = -(-length_ms // STEP_MS)
        for pool in pools:
            found = [
                (int(at[0]), name)
                for name in self._of(pool)
                if self._nodes[name].signal_coverage == 1
                and len(at := np.flatnonzero(self.least(name, length)[self._step(from_ms) :] >= units))
            ]
            if found:
                first, name = min(found)
                return name, self._month.start_ms + (self._step(from_ms) + first) * STEP_MS
        return None

    def pieces(
        self, pool: str, whole: int, total: int, length_ms: int, from_ms: int
    ) -> tuple[int, dict[str, int]] | None:
        """A stretch in which ``total`` units are free all the time, once some are taken so that no node ever
        has ``whole``: (its start, units to take per node); None if there is none."""
        length = -(-length_ms // STEP_MS)
        names = self._of(pool)
        least = np.array([self.least(name, length) for name in names])
        most = np.array([-_least_of(-self._free[name], length) for name in names])
        taken = (most - whole + 1).clip(min=0)
        left = (least - taken).clip(min=0).sum(axis=0)
        fits = (taken <= least).all(axis=0) & (left >= total) & (left < 2 * total) & (taken.sum(axis=0) > 0)
        at = np.flatnonzero(fits[self._step(from_ms) :])
        if not len(at):
            return None
        step = self._step(from_ms) + int(at[0])
        take = {name: int(units) for name, units in zip(names, taken[:, step], strict=True)}
        spare = int(left[step]) - total
        for name, units in zip(names, least[:, step].tolist(), strict=True):
            more = min(spare, units - take[name])
            take[name] += more
            spare -= more
        return self._month.start_ms + step * STEP_MS, {name: n for name, n in take.items() if n}

    def least(self, name: str, length: int) -> DrawnInts:
        """The fewest units that are free in ``length`` steps from each step on."""
        return _least_of(self._free[name], length)

    def _of(self, pool: str) -> list[str]:
        return sorted(name for name, node in self._nodes.items() if node.pool == pool)

    def _empty(self, node: SimulatedNode) -> DrawnInts:
        free = np.zeros(self._month.length_ms // STEP_MS, dtype=np.int64)
        inside = self._steps(node.start_ms, node.end_ms)
        # A first or last step that the node was not there for all of is left out.
        free[inside.start + (node.start_ms > self._month.start_ms) : inside.stop - 1] = node.offers[0].units
        for spell in node.spells:
            free[self._steps(spell.start_ms, spell.end_ms)] -= (
                node.offers[0].units if spell.cordoned else spell.lost
            )
        return free

    def _step(self, at_ms: int) -> int:
        return max(0, (at_ms - self._month.start_ms) // STEP_MS)

    def _steps(self, start_ms: int, end_ms: int) -> slice:
        return slice(self._step(start_ms), self._step(min(end_ms, self._month.end_ms) + STEP_MS - 1))


def _least_of(values: DrawnInts, length: int) -> DrawnInts:
    if length > len(values):
        return np.zeros(0, dtype=np.int64)
    return np.asarray(np.lib.stride_tricks.sliding_window_view(values, length).min(axis=1), dtype=np.int64)
