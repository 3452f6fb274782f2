"""The protocol of a source of intervals. Everything above telemetry depends on this, not on Prometheus."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from gpucost.attribution.frames import ClusterFrames
from gpucost.domain.time import Window


class IntervalSource(Protocol):
    """Prometheus, Parquet files or a simulator; all return the same frames for the same history.

    Held time does not depend on the window: a day read whole has the held time of its 24 hours.
    """

    @property
    def name(self) -> str:
        """Names the source in the ledger's audit trail; holds no secrets."""

    def clusters(self) -> tuple[str, ...]:
        """The clusters the source knows, sorted."""

    def covered(self, cluster: str) -> Window | None:
        """The time that ``read`` can answer for; None when there is none. Raises SourceError."""

    def read(self, cluster: str, window: Window) -> ClusterFrames:
        """The frames that attribution needs of ``window``, intervals clipped to it. Raises SourceError."""

    def history(self, cluster: str, window: Window, only: Collection[str] | None = None) -> ClusterFrames:
        """As ``read``, with the frames that only detectors read (contract.frames.HISTORY_FRAMES).

        With ``only``, names of frames.FRAMES, just these are read, and all others stay empty: then weeks of a
        few small frames cost little.
        """
