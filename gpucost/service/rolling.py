"""The last day of a cluster in memory: each look reads only what is new, and old time falls off the end."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import pandas as pd

from gpucost.attribution.frames import Frames
from gpucost.contract.frames import (
    ACTIVITY,
    EVICTIONS,
    FRAMES,
    OBSERVED,
    PROGRESS,
    SERVING,
    SIGNALS,
    FrameSpec,
)
from gpucost.domain.time import Window
from gpucost.telemetry.source import Source

# Amounts over a step of their own: they are not joined, and a step that is read again replaces itself.
_AMOUNTS = (SIGNALS, PROGRESS, ACTIVITY, SERVING, EVICTIONS)


@dataclass
class Rolling:
    """The history of one cluster over the last ``length_ms``.

    A source may learn late of what happened, so the last ``overlap_ms`` before what is new is read again and
    takes the place of what was known of it. Both are multiples of the source's step.
    """

    source: Source
    cluster: str
    length_ms: int
    overlap_ms: int
    _frames: Frames | None = field(default=None, repr=False)
    _window: Window | None = field(default=None, repr=False)

    @property
    def known(self) -> tuple[Frames, Window] | None:
        """What is in memory now."""
        return None if self._frames is None or self._window is None else (self._frames, self._window)

    def upto(self, end_ms: int) -> tuple[Frames, Window] | None:
        """The history up to ``end_ms``, or as far as the source covers; None where it covers nothing.

        Raises SourceError; then what is known stays as it was.
        """
        covered = self.source.covered(self.cluster)
        if covered is None:
            return None
        wanted = covered.intersect(Window(end_ms - self.length_ms, end_ms))
        if wanted is None:
            return None
        known = self._window
        if known is None or known.end_ms < wanted.start_ms or known.end_ms > wanted.end_ms:
            self._frames, self._window = self.source.history(self.cluster, wanted), wanted
            return self._frames, wanted
        seam = max(known.start_ms, wanted.start_ms, known.end_ms - self.overlap_ms)
        if seam >= wanted.end_ms:
            assert self._frames is not None
            return self._frames, known
        fresh = self.source.history(self.cluster, Window(seam, wanted.end_ms))
        assert self._frames is not None
        self._frames = joined(self._frames, fresh, wanted.start_ms, seam)
        self._window = wanted
        return self._frames, wanted


def joined(old: Frames, new: Frames, start_ms: int, seam_ms: int) -> Frames:
    """``old`` from ``start_ms`` to ``seam_ms``, and ``new`` from there on; stretches that go on are one."""
    parts: dict[str, Any] = {spec.name: _joined(spec, old, new, start_ms, seam_ms) for spec in FRAMES}
    problems = tuple(sorted({*old.problems, *new.problems}, key=repr))
    return replace(new, **parts, problems=problems)


def _joined(spec: FrameSpec, old: Frames, new: Frames, start_ms: int, seam_ms: int) -> pd.DataFrame:
    before: pd.DataFrame = getattr(old, spec.name)
    after: pd.DataFrame = getattr(new, spec.name)
    if spec in _AMOUNTS:
        # An eviction belongs to the instant before its end, which no window that begins there has.
        name, earlier = ("end_ms", 1) if spec is EVICTIONS else ("start_ms", 0)
        known, fresh = before[name] - earlier, after[name] - earlier
        kept = before[(known >= start_ms) & (known < seam_ms)]
        return pd.concat([kept, after[fresh >= seam_ms]], ignore_index=True)
    kept = before[(before["start_ms"] < seam_ms) & (before["end_ms"] > start_ms)]
    kept = kept.assign(
        start_ms=kept["start_ms"].clip(lower=start_ms), end_ms=kept["end_ms"].clip(upper=seam_ms)
    )
    return _one_where_they_touch(pd.concat([kept, after], ignore_index=True), spec, seam_ms)


def _one_where_they_touch(rows: pd.DataFrame, spec: FrameSpec, seam_ms: int) -> pd.DataFrame:
    """Rows that end and rows that begin at the seam, alike in everything else, as one row."""
    left, right = rows["end_ms"] == seam_ms, rows["start_ms"] == seam_ms
    if not left.any() or not right.any():
        return rows
    keys = [name for name in spec.column_names if name not in ("start_ms", "end_ms")]
    edge = rows[left | right].astype({name: "str" for name in keys if rows[name].dtype.name == "category"})
    groups = edge.groupby(keys, dropna=False, sort=False, observed=True)
    merged = groups.agg(start_ms=("start_ms", "min"), end_ms=("end_ms", "max"), parts=("start_ms", "size"))
    several = merged["parts"] > 2
    if spec is not OBSERVED and several.any():
        # Two rows that are alike on one side (a pod with two equal containers' rows): left as they are.
        return rows
    found = merged.drop(columns="parts").reset_index()[list(spec.column_names)]
    return pd.concat([rows[~(left | right)], found], ignore_index=True)
