"""What a source of intervals is. Everything above telemetry depends on this, not on Prometheus."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from gpucost.attribution.frames import ClusterFrames
from gpucost.domain.time import Window


class IntervalSource(Protocol):
    """Prometheus, Parquet files, or a simulator: the same frames for the same history.

    Whatever the window, a pod's held time inside it is the same: a day gives what its 24 hours give.
    """

    @property
    def name(self) -> str:
        """Names the source in the ledger's audit trail; holds no secrets."""

    def clusters(self) -> tuple[str, ...]:
        """The clusters the source knows, sorted."""

    def covered(self, cluster: str) -> Window | None:
        """The time that ``read`` can answer for; None when there is none."""

    def read(self, cluster: str, window: Window) -> ClusterFrames:
        """What attribution needs of ``window``, intervals clipped to it. Raises SourceError."""

    def history(self, cluster: str, window: Window, only: Collection[str] | None = None) -> ClusterFrames:
        """As ``read``, with what only detectors look at (contract.frames.HISTORY_FRAMES).

        With ``only``, names of frames.FRAMES, just these are read, and all others stay empty: weeks of a few
        small frames cost little then.
        """
