"""What detectors look at beyond attribution's frames, out of Prometheus (contract.frames.HISTORY_FRAMES)."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from functools import cached_property

import pandas as pd

from gpucost.attribution.frames import Frames
from gpucost.contract.frames import (
    ACTIVITY,
    ALLOCATIONS,
    CAPACITY,
    DEMAND,
    EVICTIONS,
    HEALTH,
    QUOTAS,
    SERVING,
    STALLS,
    FrameSpec,
)
from gpucost.contract.metrics import NODE_GPU_CAPACITY
from gpucost.domain.time import Window
from gpucost.telemetry.history_activity import read_activity
from gpucost.telemetry.history_demand import read_demand
from gpucost.telemetry.history_evictions import read_evictions
from gpucost.telemetry.history_health import read_health
from gpucost.telemetry.history_quotas import read_quotas
from gpucost.telemetry.history_runs import StateReader
from gpucost.telemetry.history_stalls import read_stalls
from gpucost.telemetry.reader import ClusterReader
from gpucost.telemetry.rows import frame_of
from gpucost.telemetry.serving import read_serving

NEEDED: Mapping[str, FrameSpec] = {
    EVICTIONS.name: ALLOCATIONS,
    HEALTH.name: CAPACITY,
    SERVING.name: ALLOCATIONS,
}
"""What must be read for a frame beside it."""


def with_history(
    reader: ClusterReader, window: Window, read: Frames, wanted: Collection[str] | None = None
) -> Frames:
    """``read``, which are the frames of ``window``, with those that only detectors look at; of these only the
    ``wanted``, by name, unless None. For them, ``read`` must have what is NEEDED.

    Raises the SourceErrors of the wire.
    """
    history = _History(reader, window, read)
    found = {
        spec.name: getattr(history, spec.name)()
        for spec in (ACTIVITY, SERVING, DEMAND, STALLS, EVICTIONS, QUOTAS, HEALTH)
        if wanted is None or spec.name in wanted
    }
    return replace(read, **found)


class _History:
    """Each frame, by its name; what several of them need is read once."""

    def __init__(self, reader: ClusterReader, window: Window, read: Frames) -> None:
        self._reader = reader
        self._window = window
        self._read = read

    @cached_property
    def _state(self) -> StateReader:
        return StateReader(self._reader, self._window)

    def activity(self) -> pd.DataFrame:
        return read_activity(self._reader, self._window)

    def serving(self) -> pd.DataFrame:
        return read_serving(self._reader, self._window, self._read.allocations)

    def demand(self) -> pd.DataFrame:
        return frame_of(DEMAND, read_demand(self._state))

    def stalls(self) -> pd.DataFrame:
        return frame_of(STALLS, read_stalls(self._state))

    def evictions(self) -> pd.DataFrame:
        return frame_of(EVICTIONS, read_evictions(self._reader, self._window, self._read.allocations))

    def quotas(self) -> pd.DataFrame:
        return frame_of(QUOTAS, read_quotas(self._state, {*self._resources()}))

    def health(self) -> pd.DataFrame:
        return frame_of(HEALTH, read_health(self._reader, self._window, self._read.capacity))

    def _resources(self) -> Iterator[str]:
        """What the collector showed to be GPU resources."""
        if self._read.capacity.empty:
            yield from (run.labels["resource"] for run in self._state.runs(NODE_GPU_CAPACITY, ("resource",)))
        yield from self._read.capacity["resource"].tolist()
        yield from self._read.allocations["resource"].tolist()
