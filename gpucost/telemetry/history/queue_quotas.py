"""Quota and usage of each queue: Kueue's ClusterQueues and Volcano's queues, GPU resources only."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import pairwise
from math import nan
from typing import Protocol

from gpucost.contract import queue_metrics as m
from gpucost.contract.metric_spec import MetricSpec
from gpucost.domain.gpu import ResourceCatalog
from gpucost.domain.time import Window
from gpucost.telemetry.evidence.frame_rows import FrameRow
from gpucost.telemetry.evidence.gauge_runs import (
    GaugeRun,
    MetricLike,
    StateReader,
    by_labels,
    covering,
)
from gpucost.telemetry.prometheus.cluster_reader import ClusterReader

QuotaKey = tuple[str, ...]
KUEUE, VOLCANO = "kueue", "volcano"
VOLCANO_ROOT = "root"
"""The parent of Volcano queues that name none (volcano, plugins/capacity)."""
_KUEUE_KEY = ("cluster_queue", "flavor", "resource")
_AMOUNTS: Mapping[str, MetricSpec | None] = {
    "nominal": m.CLUSTER_QUEUE_NOMINAL,
    "borrowing_limit": m.CLUSTER_QUEUE_BORROWING_LIMIT,
    "lending_limit": m.CLUSTER_QUEUE_LENDING_LIMIT,
    "used": m.CLUSTER_QUEUE_USED,
}
_OF_VOLCANO: Mapping[str, MetricSpec | None] = {
    "nominal": m.VOLCANO_QUEUE_DESERVED,
    "borrowing_limit": None,
    "lending_limit": None,
    "used": m.VOLCANO_QUEUE_ALLOCATED,
}


def read_quotas(state: StateReader, resources: Collection[str]) -> list[FrameRow]:
    """Rows of frames.QUOTAS, clipped to the window. GPU resources are those of the standard catalogue and
    ``resources``, which the collector exported as such."""
    return [
        *quota_rows(state, KUEUE, _KUEUE_KEY, _AMOUNTS, _QuotaCohorts(state), resources),
        *quota_rows(state, VOLCANO, ("volcano_queue", "resource"), _OF_VOLCANO, _Parents(state), resources),
    ]


class GaugeRunReader(Protocol):
    """A reader of runs of gauges in a window, from any exporter."""

    @property
    def reader(self) -> ClusterReader: ...

    @property
    def window(self) -> Window: ...

    def runs(self, spec: MetricLike, labels: Sequence[str]) -> list[GaugeRun]: ...


class CohortTree:
    """Parents of queues or cohorts over time; answers which cohort a queue belonged to at an instant."""

    def __init__(self, parents: Mapping[str, Sequence[GaugeRun]]) -> None:
        self.parents = parents
        self.edges = sorted({edge for runs in parents.values() for run in runs for edge in _edges(run)})

    def root(self, queue: str, at_ms: int) -> str:
        raise NotImplementedError

    def own(self, queue: str, at_ms: int) -> str:
        """The cohort that the queue names itself; empty where that is not known, or there is none."""
        del queue, at_ms
        return ""

    def _climb(self, name: str, at_ms: int) -> str:
        met = {name}
        while parent := self._parent(name, at_ms):
            if parent in met:
                break
            met.add(parent)
            name = parent
        return name

    def _parent(self, name: str, at_ms: int) -> str:
        run = next((each for each in reversed(self.parents.get(name, ())) if each.start_ms <= at_ms), None)
        return "" if run is None else run.labels.get("parent", "")


class _QuotaCohorts(CohortTree):
    def __init__(self, state: StateReader) -> None:
        super().__init__(_by_name(state.runs(m.COHORT_INFO, ("cohort", "parent")), "cohort"))
        runs = state.runs(m.CLUSTER_QUEUE_INFO, ("cluster_queue", "cohort"))
        self._of_queue = _by_name(runs, "cluster_queue")
        self.edges = sorted({*self.edges, *(edge for run in runs for edge in _edges(run))})

    def root(self, queue: str, at_ms: int) -> str:
        cohort = self.own(queue, at_ms)
        return self._climb(cohort, at_ms) if cohort else ""

    def own(self, queue: str, at_ms: int) -> str:
        runs = self._of_queue.get(queue, ())
        run = next((each for each in reversed(runs) if each.start_ms <= at_ms), None)
        return "" if run is None else run.labels.get("cohort", "")


class _Parents(CohortTree):
    def __init__(self, state: StateReader) -> None:
        runs = state.runs(m.VOLCANO_QUEUE_INFO, ("volcano_queue", "parent"))
        super().__init__(_by_name(runs, "volcano_queue"))

    def root(self, queue: str, at_ms: int) -> str:
        root = self._climb(queue, at_ms)
        return VOLCANO_ROOT if root == queue else root


def quota_rows(
    state: GaugeRunReader,
    scheduler: str,
    key: tuple[str, ...],
    amounts: Mapping[str, MetricLike | None],
    tree: CohortTree,
    resources: Collection[str],
) -> Iterator[FrameRow]:
    """Rows of one scheduler. ``key`` are the labels of a queue (and flavor), the resource last; ``amounts``
    are the series of the frame's columns."""
    catalog = ResourceCatalog()
    found = {
        name: {} if spec is None else by_labels(state.runs(spec, key), key) for name, spec in amounts.items()
    }
    for each in sorted({*found["nominal"], *found["used"]}):
        if catalog.is_gpu(each[-1]) or each[-1] in resources:
            yield from _rows(state, scheduler, each, [of.get(each, []) for of in found.values()], tree)


def _rows(
    state: GaugeRunReader,
    scheduler: str,
    key: QuotaKey,
    amounts: Sequence[Sequence[GaugeRun]],
    tree: CohortTree,
) -> Iterator[FrameRow]:
    """Stretches in which no amount of the queue changed. There is none where the queue was not seen."""
    window = state.window
    cuts = {edge for edge in tree.edges if window.start_ms < edge < window.end_ms}
    for runs in amounts:
        parts = covering(runs, window.start_ms, window.end_ms)
        cuts |= {edge for start, end, _ in parts for edge in (start, end)}
    edges = sorted(cuts)
    names = (key[0], key[1] if len(key) > 2 else "", key[-1])
    joined: list[tuple[tuple[object, ...], list[float | str], int, int]] = []
    for start, end in pairwise(edges):
        values = [_value(runs, start) for runs in amounts]
        if values[0] is None and values[-1] is None:
            continue
        known: list[float | str] = [nan if value is None else value for value in values]
        known.append(tree.own(key[0], start))
        head = state.reader.cluster, scheduler, names[0], tree.root(key[0], start), *names[1:]
        if joined and joined[-1][3] == start and joined[-1][0] == head and repr(joined[-1][1]) == repr(known):
            start = joined.pop()[2]
        joined.append((head, known, start, end))
    yield from ((*head, start, end, *known) for head, known, start, end in joined)


def read_cohorts(state: StateReader, resources: Collection[str]) -> list[FrameRow]:
    """Rows of frames.COHORTS, clipped to the window: for each cohort where it stands, and for each flavor and
    resource of its own quota what that is."""
    catalog, key = ResourceCatalog(), ("cohort", "flavor", "resource")
    parents = _by_name(state.runs(m.COHORT_INFO, ("cohort", "parent")), "cohort")
    nominal = by_labels(state.runs(m.COHORT_NOMINAL, key), key)
    limits = by_labels(state.runs(m.COHORT_LENDING_LIMIT, key), key)
    rows: list[FrameRow] = []
    for cohort, runs in sorted(parents.items()):
        keys = [each for each in sorted({*nominal, *limits}) if each[0] == cohort]
        own = [each for each in keys if catalog.is_gpu(each[2]) or each[2] in resources]
        for each in ((cohort, "", ""), *own):
            of = runs, nominal.get(each, []), limits.get(each, [])
            rows += _cohort_rows(state, each, of)
    return rows


def _cohort_rows(
    state: StateReader, key: QuotaKey, of: tuple[Sequence[GaugeRun], Sequence[GaugeRun], Sequence[GaugeRun]]
) -> Iterator[FrameRow]:
    window = state.window
    cuts: set[int] = set()
    for runs in of:
        cuts |= {edge for part in covering(runs, window.start_ms, window.end_ms) for edge in part[:2]}
    for start, end in pairwise(sorted(cuts)):
        info, *amounts = ([run for run in runs if run.start_ms <= start < run.end_ms] for runs in of)
        values = [found[-1].value if found else nan for found in amounts]
        if info and (not key[1] or any(value == value for value in values)):
            parent = info[-1].labels.get("parent", "")
            yield (state.reader.cluster, key[0], parent, *key[1:], start, end, *values)


def _value(runs: Sequence[GaugeRun], at_ms: int) -> float | None:
    return next((run.value for run in reversed(runs) if run.start_ms <= at_ms < run.end_ms), None)


def _by_name(runs: Sequence[GaugeRun], label: str) -> dict[str, list[GaugeRun]]:
    return {key[0]: found for key, found in by_labels(runs, (label,)).items()}


def _edges(run: GaugeRun) -> tuple[int, int]:
    return run.start_ms, run.end_ms
