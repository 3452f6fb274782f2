"""What detectors look at: the history of a cluster, its state now, and what its boards cost."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from gpucost.attribution.deal import Ints
from gpucost.attribution.frames import Frames
from gpucost.attribution.holders import HOLDER_NAMES, Teams
from gpucost.attribution.pieces import FactRow, NodeKey, node_facts, rows_by_node, union
from gpucost.cluster.overview import Overview
from gpucost.contract.frames import ACTIVITY, FRAMES, PROGRESS, SERVING, SIGNALS
from gpucost.detectors.activity import Activity
from gpucost.detectors.coverage import Watched, covered_runs
from gpucost.detectors.findings import ViewTime
from gpucost.detectors.past import PastWork
from gpucost.domain.errors import InputError
from gpucost.domain.gpu import ResourceCatalog, ShareBasis
from gpucost.domain.jobs import JobKind, workload_class
from gpucost.domain.money import round_half_even
from gpucost.domain.rates import RateLookup, RateSpan
from gpucost.domain.time import HOUR_MS, Window

CLASS_COLUMN, TEAM_COLUMN, BOARDS_COLUMN = "workload_class", "team", "boards"


@dataclass(frozen=True)
class History:
    """The frames of one cluster and stretch of time, and what follows from them.

    ``zero_is_gap``: the source has no heartbeat, so a stretch in which nothing at all is held or waits is
    taken for a gap, not for an idle cluster.
    """

    frames: Frames
    window: Window
    teams: Teams
    catalog: ResourceCatalog = field(default_factory=ResourceCatalog)
    basis: ShareBasis = ShareBasis.COMPUTE
    zero_is_gap: bool = False
    memo: dict[object, object] = field(default_factory=dict, compare=False, repr=False)
    """What several rules need and is worked out once (``unmet``)."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "frames", _plain(self.frames))

    @cached_property
    def products(self) -> Mapping[str, str]:
        """The product label of each node, its last one."""
        nodes = self.frames.nodes.sort_values("start_ms", kind="stable")
        return dict(zip(nodes["node"].tolist(), nodes["product"].tolist(), strict=True))

    @cached_property
    def shares(self) -> Mapping[tuple[str, str, str], Fraction]:
        """What one unit is of a board, by cluster, node and resource. What cannot be said is absent."""
        found: dict[tuple[str, str, str], Fraction] = {}
        kinds = self.frames.capacity[["cluster", "node", "resource", "replicas"]].drop_duplicates()
        for cluster, node, resource, replicas in zip(*(kinds[name].tolist() for name in kinds), strict=True):
            product = self.products.get(node, "")
            try:
                unit = self.catalog.unit(resource, product, max(1, replicas), self.basis)
            except InputError:
                continue
            found[cluster, node, resource] = unit.share
        return found

    @cached_property
    def held(self) -> pd.DataFrame:
        """Allocations, each with ``boards`` (float, NaN where the share is not known), ``team`` by the rules
        in force at the window's start, and ``workload_class``. Index 0 to n - 1, in order of the frame."""
        rows = self.frames.allocations.reset_index(drop=True)
        share = [
            float(self.shares.get(key, np.nan))
            for key in zip(rows["cluster"], rows["node"], rows["resource"], strict=True)
        ]
        kinds = {kind.value: workload_class(kind).value for kind in JobKind}
        team = self.teams.assign(rows[HOLDER_NAMES], self.window.start_ms)
        return rows.assign(
            boards=rows["count"] * np.array(share, dtype=np.float64),
            team=team.to_numpy(),
            workload_class=rows["job_kind"].astype(object).map(kinds).fillna("unknown").astype("str"),
        )

    @cached_property
    def activity(self) -> Activity:
        return Activity.of(self.frames.activity)

    @cached_property
    def seen(self) -> tuple[Ints, Ints]:
        """Starts and ends of the stretches in which the cluster's state was observed, merged, in order."""
        observed = self.frames.observed
        starts, ends = union(observed["start_ms"].tolist(), observed["end_ms"].tolist())
        if not self.zero_is_gap:
            return starts, ends
        gaps = _all_zero(self.frames, self.window)
        return _without(starts, ends, *gaps)

    def seen_ms(self, start_ms: int, end_ms: int) -> int:
        """How much of ``[start, end)`` was observed."""
        starts, ends = self.seen
        overlap = np.minimum(ends, end_ms) - np.maximum(starts, start_ms)
        return int(overlap.clip(min=0).sum())

    def observed_parts(self, start_ms: int, end_ms: int, least_ms: int = HOUR_MS) -> list[tuple[int, int]]:
        """The parts of ``[start, end)`` that lie in stretches of ``least_ms`` (of all of it, where it is
        shorter) which were observed well enough: what is said of an instant rests on what is near it."""
        starts, ends = (edge.clip(start_ms, end_ms) for edge in self.seen)
        here = starts < ends
        watched = Watched(start_ms, end_ms, starts[here], ends[here])
        return covered_runs([watched], start_ms, end_ms, min(least_ms, end_ms - start_ms))

    def coverage(self, start_ms: int, end_ms: int) -> float:
        """The observed part of ``[start, end)``, 0 to 1."""
        return self.seen_ms(start_ms, end_ms) / (end_ms - start_ms) if end_ms > start_ms else 0.0


@dataclass(frozen=True)
class Prices:
    """What board time of a node costs."""

    history: History
    rates: RateLookup

    @cached_property
    def _spans(self) -> Mapping[NodeKey, Sequence[tuple[FactRow, Sequence[RateSpan]]]]:
        found: dict[NodeKey, list[tuple[FactRow, Sequence[RateSpan]]]] = {}
        known: dict[object, Sequence[RateSpan]] = {}
        for key, rows in rows_by_node(self.history.frames.nodes, FactRow).items():
            for row in rows:
                kind = (key, row[2:])
                if kind not in known:
                    known[kind] = self.rates(node_facts(key, row), self.history.window)
                found.setdefault(key, []).append((row, known[kind]))
        return found

    def nano(self, cluster: str, node: str, start_ms: int, end_ms: int, boards: float) -> int | None:
        """Cost of ``boards`` boards of a node in ``[start, end)``, rounded; None where part has no price."""
        # Nano-units times milliseconds per hour and board: whole, so that nothing is rounded before the end.
        exact = covered = 0
        for length_ms, rate, _ in self._parts(cluster, node, start_ms, end_ms):
            if rate is None:
                return None
            covered += length_ms
            exact += rate * length_ms
        if covered < end_ms - start_ms:
            return None
        part, whole = boards.as_integer_ratio()
        return round_half_even(exact * part, HOUR_MS * whole)

    def mean_nano(self, cluster: str, view: ViewTime) -> int | None:
        """What the time of a view costs at the mean price of its nodes then, rounded. A node weighs as many
        boards as it has, for as long as it had a price; None where no node ever had one."""
        if not view.board_ms:
            return 0
        exact = weights = 0
        for node in view.nodes or self._nodes.get(cluster, ()):
            for length_ms, rate, boards in self._parts(cluster, node, view.start_ms, view.end_ms):
                if rate is not None:
                    weights += boards * length_ms
                    exact += boards * length_ms * rate
        if not weights:
            return None
        part, whole = view.board_ms.as_integer_ratio()
        return round_half_even(exact * part, HOUR_MS * weights * whole)

    def _parts(
        self, cluster: str, node: str, start_ms: int, end_ms: int
    ) -> Iterator[tuple[int, int | None, int]]:
        """(milliseconds, nano-units per hour and board or None without a price, boards of the node) of every
        stretch of ``[start, end)`` with one price. A node whose boards nobody told counts as one."""
        for row, spans in self._spans.get((cluster, node), ()):
            for span in spans:
                start = max(start_ms, row.start_ms, span.start_ms)
                end = min(end_ms, row.end_ms, span.end_ms)
                if start < end:
                    rate = None if span.rate is None else span.rate.nano_per_board_hour
                    yield end - start, rate, max(row.boards, 1)

    @cached_property
    def _nodes(self) -> Mapping[str, Sequence[str]]:
        found: dict[str, list[str]] = {}
        for cluster, node in self._spans:
            found.setdefault(cluster, []).append(node)
        return found

    def nano_per_hour(self, cluster: str, node: str, at_ms: int) -> int | None:
        """What one board of a node costs an hour at an instant; None where it has no price then."""
        for row, spans in self._spans.get((cluster, node), ()):
            for span in spans:
                if max(row.start_ms, span.start_ms) <= at_ms < min(row.end_ms, span.end_ms):
                    return None if span.rate is None else span.rate.nano_per_board_hour
        return None


@dataclass(frozen=True)
class Facts:
    """One look at a cluster. ``overview`` is its state now, None where nobody watches it: rules that need it
    answer so. ``past`` is what servers did before the history, where somebody remembers. ``now_ms`` is the
    end of the history; what reaches it goes on."""

    cluster: str
    history: History
    prices: Prices
    overview: Overview | None = None
    past: PastWork | None = None

    @property
    def now_ms(self) -> int:
        return self.history.window.end_ms


def _plain(frames: Frames) -> Frames:
    """Frames with texts as texts: sources give categories where there are many rows, and two columns of them
    cannot be compared. Activity, which has millions, stays as it is."""
    parts: dict[str, Any] = {}
    for spec in FRAMES:
        frame: pd.DataFrame = getattr(frames, spec.name)
        coded = [name for name in frame.columns if frame[name].dtype.name == "category"]
        if coded and spec not in (ACTIVITY, SERVING, SIGNALS, PROGRESS):
            parts[spec.name] = frame.astype(dict.fromkeys(coded, "str"))
    return replace(frames, **parts)


def _all_zero(frames: Frames, window: Window) -> tuple[Ints, Ints]:
    """Stretches of ``window`` in which nothing is held and nobody waits."""
    starts = [*frames.allocations["start_ms"].tolist(), *frames.demand["start_ms"].tolist()]
    ends = [*frames.allocations["end_ms"].tolist(), *frames.demand["end_ms"].tolist()]
    begun, ended = union(starts, ends)
    gap_start = np.concatenate([np.array([window.start_ms]), ended])
    gap_end = np.concatenate([begun, np.array([window.end_ms])])
    real = gap_start < gap_end
    return gap_start[real], gap_end[real]


def _without(starts: Ints, ends: Ints, gap_start: Ints, gap_end: Ints) -> tuple[Ints, Ints]:
    found: list[tuple[int, int]] = []
    for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
        reached = start
        for a, b in zip(gap_start.tolist(), gap_end.tolist(), strict=True):
            if b <= reached or a >= end:
                continue
            if a > reached:
                found.append((reached, a))
            reached = max(reached, b)
        if reached < end:
            found.append((reached, end))
    a, b = zip(*found, strict=True) if found else ((), ())
    return np.array(a, dtype=np.int64), np.array(b, dtype=np.int64)
