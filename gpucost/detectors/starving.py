"""What waits in a queue, and what others leave unused meanwhile."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pandas as pd

from gpucost.attribution.deal import Flags
from gpucost.detectors.facts import History
from gpucost.detectors.quotas import Place, Quotas, free_units, pending, places
from gpucost.detectors.series import Series, combined, least


@dataclass(frozen=True)
class Queue:
    """What waits in one place for one resource: series are in its units. ``demand`` are rows of the frame
    with ``since_ms`` (unmet.with_since), ``reserved`` queues that keep unused quota on purpose."""

    history: History
    place: Place
    resource: str
    demand: pd.DataFrame
    reserved: tuple[str, ...] = ()

    @cached_property
    def pending(self) -> Series:
        return pending(self.history, self.demand)

    @cached_property
    def idle(self) -> Series:
        """Units free in the cluster that are within the unused quota of others."""
        unused = self._quotas.unused_of_others(self.place, self.resource)
        return least(unused, free_units(self.history, self.resource))

    @cached_property
    def own_unused(self) -> Series:
        return self._quotas.unused_of(self.place, self.resource)

    @cached_property
    def could_have(self) -> Series:
        """The smaller of what waits and what others leave idle: of this queue alone, so that those of several
        queues count the same GPU more than once."""
        return least(self.pending, self.idle)

    @cached_property
    def could_have_all(self) -> Series:
        """1 while others leave idle all that it waits for."""
        return combined(lambda waits, idle: (waits > 0) & (idle >= waits), self.pending, self.idle)

    @cached_property
    def only_reserved(self) -> Series:
        """1 while nobody has unused quota but queues that keep it on purpose."""
        if not self.reserved:
            return Series(np.zeros(0, np.int64), np.zeros(0))
        kept = self._quotas.in_queues(self.reserved) & self._others
        return combined(
            lambda own, others, reserved: (own + others <= 0) & (reserved > 0),
            self.own_unused,
            self._quotas.unused(self._others & ~kept),
            self._quotas.unused(kept),
        )

    def holders(self, start_ms: int, end_ms: int) -> list[tuple[Place, float]]:
        """Whose quota lay idle, and how much of it in the mean, most first."""
        found = self._quotas.mean_unused(self.resource, start_ms, end_ms)
        held = [(place, units) for place, units in found.items() if place != self.place and units > 0]
        return sorted(held, key=lambda each: (-each[1], each[0]))

    @cached_property
    def _quotas(self) -> Quotas:
        return Quotas.of(self.history)

    @cached_property
    def _others(self) -> Flags:
        return self._quotas.others(self.place, self.resource)


def waiting_queues(history: History, demand: pd.DataFrame, reserved: Sequence[str] = ()) -> list[Queue]:
    """Everything that waits, in order. ``demand`` as in ``Queue``, each row with an index of its own."""
    kinds = zip(places(demand), demand["resource"].tolist(), strict=True)
    rows: dict[tuple[Place, str], list[int]] = {}
    for row, kind in zip(demand.index.tolist(), kinds, strict=True):
        rows.setdefault(kind, []).append(row)
    return [
        Queue(history, place, resource, demand.loc[rows[place, resource]], tuple(reserved))
        for place, resource in sorted(rows)
    ]
