"""``DetectorFacts``: the history of a cluster, its present state, and the prices of its GPUs.

It also holds the team of waiting jobs, by the same rules as of holders (a label is not yet a team), and
``PastWork``: what GPUs of jobs did before the history that is read step by step, from windows of the ledger.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from gpucost.attribution.apportion import Flags, Ints
from gpucost.attribution.frames import ClusterFrames
from gpucost.attribution.segments import (
    FactRow,
    NodeKey,
    node_facts,
    rows_by_node,
    union,
)
from gpucost.attribution.usage_lines import HOLDER_NAMES, TeamLookup
from gpucost.cluster.views.overview import ClusterOverview
from gpucost.contract.frames import ACTIVITY, FRAMES, PROGRESS, SERVING, SIGNALS
from gpucost.detectors.findings import ViewTime
from gpucost.detectors.inputs.activity_table import ActivityTable, CoverageSpan, covered_runs
from gpucost.domain.errors import InputError
from gpucost.domain.gpu import ResourceCatalog, ShareBasis
from gpucost.domain.jobs import JobKind, workload_class
from gpucost.domain.money import round_half_even
from gpucost.domain.rates import RateLookup, RateSpan
from gpucost.domain.time import DAY_MS, HOUR_MS, Window

LEAST_SEEN = 0.9
_SIGNALS = ("busy_ms", "observed_ms", "sm_active_ms", "sm_observed_ms")


@dataclass(frozen=True)
class PastWork:
    """Jobs in steps of ``step_ms``, at least one; of a step in which a job held nothing there is no row.

    ``rows`` have ``namespace``, ``job_uid``, ``step_start_ms``, and in GPU milliseconds ``board_ms`` and
    the signals, null where none was observed; sorted by job, then time.
    """

    step_ms: int
    rows: pd.DataFrame

    @property
    def since_ms(self) -> int:
        """The start of the oldest step."""
        return int(self.rows["step_start_ms"].min())

    @property
    def days(self) -> float:
        rows = self.rows["step_start_ms"]
        return float(rows.max() - rows.min() + self.step_ms) / DAY_MS

    @cached_property
    def peaks(self) -> Mapping[tuple[str, str], float]:
        """By namespace and job uid: how many GPUs' SMs its busiest step used, on average over the step."""
        active, seen = (self.rows[name].astype("float64") for name in ("sm_active_ms", "sm_observed_ms"))
        boards = active / seen.where(seen > 0) * self.rows["board_ms"] / self.step_ms
        found = dict[tuple[str, str], float]()
        for namespace, uid, peak in zip(self.rows["namespace"], self.rows["job_uid"], boards, strict=True):
            if peak > found.get((namespace, uid), -1.0):
                found[namespace, uid] = float(peak)
        return found

    def rests(self) -> list[PastRest]:
        """All stretches of whole steps in which a job was observed to do nothing."""
        rows = self.rows.sort_values(["namespace", "job_uid", "step_start_ms"], kind="stable")
        code = (rows["namespace"] + "/" + rows["job_uid"]).to_numpy(dtype=object)
        start = rows["step_start_ms"].to_numpy(np.int64)
        quiet, active = _quiet_and_active(rows)
        follows = np.append(False, (code[1:] == code[:-1]) & (start[1:] == start[:-1] + self.step_ms))
        new = np.append(True, ~follows[1:] | (quiet[1:] != quiet[:-1]))
        first = np.flatnonzero(new)
        last = np.append(first[1:], len(start)) - 1
        found = list[PastRest]()
        for a, b in zip(first[quiet[first]].tolist(), last[quiet[first]].tolist(), strict=True):
            after = b + 1
            touches = after < len(start) and bool(follows[after])
            namespace, _, uid = code[a].partition("/")
            found.append(
                PastRest(
                    namespace,
                    uid,
                    int(start[a]),
                    int(start[b]) + self.step_ms,
                    is_after_work=bool(follows[a] and active[a - 1]),
                    is_before_work=touches and bool(active[after]),
                    is_last=after == len(start) or code[after] != code[a],
                )
            )
        return found


@dataclass(frozen=True, slots=True)
class PastRest:
    """A stretch of whole steps in which a job did nothing, and what was observed in the steps next to it.
    ``is_last``: there are no later steps of the job."""

    namespace: str
    job_uid: str
    start_ms: int
    end_ms: int
    is_after_work: bool
    is_before_work: bool
    is_last: bool


def _quiet_and_active(rows: pd.DataFrame) -> tuple[Flags, Flags]:
    busy, seen, sm, sm_seen = (rows[name].astype("float64").to_numpy() for name in _SIGNALS)
    least = LEAST_SEEN * rows["board_ms"].to_numpy(np.float64)
    active: Flags = (busy > 0) | (sm > 0)
    by_busy: Flags = (busy == 0) & (np.nan_to_num(seen) >= least)
    # MIG instances have no busy signal.
    by_sm: Flags = np.isnan(busy) & (sm == 0) & (np.nan_to_num(sm_seen) >= least)
    return ~active & (by_busy | by_sm), active


@dataclass(frozen=True)
class ClusterHistory:
    """The frames of one cluster and range of time, and what is derived from them.

    ``zero_is_gap``: the source has no heartbeat, so a stretch in which nothing at all is held or waits counts
    as a gap, not as an idle cluster.
    """

    frames: ClusterFrames
    window: Window
    teams: TeamLookup
    catalog: ResourceCatalog = field(default_factory=ResourceCatalog)
    basis: ShareBasis = ShareBasis.COMPUTE
    zero_is_gap: bool = False
    memo: dict[object, object] = field(default_factory=dict, compare=False, repr=False)
    """Results that several rules need, computed once (``unmet_demand``)."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "frames", _plain(self.frames))

    @cached_property
    def products(self) -> Mapping[str, str]:
        """The product label of each node, its last one."""
        nodes = self.frames.nodes.sort_values("start_ms", kind="stable")
        return dict(zip(nodes["node"].tolist(), nodes["product"].tolist(), strict=True))

    @cached_property
    def shares(self) -> Mapping[tuple[str, str, str], Fraction]:
        """The share of a GPU that one unit is, by cluster, node and resource. Unknown shares are absent."""
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
    def activity(self) -> ActivityTable:
        return ActivityTable.of(self.frames.activity)

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
        shorter) which were observed well enough: the result for an instant rests on the time near it."""
        starts, ends = (edge.clip(start_ms, end_ms) for edge in self.seen)
        here = starts < ends
        watched = CoverageSpan(start_ms, end_ms, starts[here], ends[here])
        return covered_runs([watched], start_ms, end_ms, min(least_ms, end_ms - start_ms))

    def coverage(self, start_ms: int, end_ms: int) -> float:
        """The observed part of ``[start, end)``, 0 to 1."""
        return self.seen_ms(start_ms, end_ms) / (end_ms - start_ms) if end_ms > start_ms else 0.0


@dataclass(frozen=True)
class GpuTimePrices:
    """Prices of GPU time by node."""

    history: ClusterHistory
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
        """Cost of ``boards`` GPUs of a node in ``[start, end)``, rounded; None where part has no price."""
        # Nano-units times milliseconds per hour and GPU: integers, so that rounding happens only at the end.
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
        """The cost of a view's time at the mean price of its nodes then, rounded. A node's weight is its
        number of GPUs times how long it had a price; None where no node ever had one."""
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
        """(milliseconds, nano-units per hour and GPU or None without a price, GPUs of the node) of every
        stretch of ``[start, end)`` with one price. A node with an unknown number of GPUs counts as one GPU.
        """
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
        """The price of one GPU of a node per hour at an instant; None where it has none then."""
        for row, spans in self._spans.get((cluster, node), ()):
            for span in spans:
                if max(row.start_ms, span.start_ms) <= at_ms < min(row.end_ms, span.end_ms):
                    return None if span.rate is None else span.rate.nano_per_board_hour
        return None


@dataclass(frozen=True)
class DetectorFacts:
    """The facts of one cluster. ``overview`` is its present state, None where none is watched: rules that
    need it withhold their findings. ``past`` is what servers did before the history, where the ledger has it.
    ``now_ms`` is the end of the history; what lasts until then goes on."""

    cluster: str
    history: ClusterHistory
    prices: GpuTimePrices
    overview: ClusterOverview | None = None
    past: PastWork | None = None

    @property
    def now_ms(self) -> int:
        return self.history.window.end_ms


def _plain(frames: ClusterFrames) -> ClusterFrames:
    """Frames with text columns as plain text: sources return categories where there are many rows, and two
    such columns cannot be compared. Activity, which has millions of rows, stays as it is. Detectors are about
    pods, and not about jobs that an inner scheduler ran in them."""
    if frames.of_pods is not None:
        frames = replace(frames, allocations=frames.of_pods, of_pods=None)
    parts: dict[str, Any] = {}
    for spec in FRAMES:
        frame: pd.DataFrame = getattr(frames, spec.name)
        coded = [name for name in frame.columns if frame[name].dtype.name == "category"]
        if coded and spec not in (ACTIVITY, SERVING, SIGNALS, PROGRESS):
            parts[spec.name] = frame.astype(dict.fromkeys(coded, "str"))
    return replace(frames, **parts)


def _all_zero(frames: ClusterFrames, window: Window) -> tuple[Ints, Ints]:
    """Stretches of ``window`` in which nothing is held and nothing waits."""
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


def demand_teams(history: ClusterHistory, demand: pd.DataFrame) -> pd.Series[str]:
    """By row of demand, with its index; by the rules in force at the window's start, as
    ``ClusterHistory.held``."""
    holders = pd.DataFrame({name: demand.get(name, "") for name in HOLDER_NAMES}, index=demand.index)
    return history.teams.assign(holders.astype("str"), history.window.start_ms)
