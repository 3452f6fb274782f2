"""ExistingSource: the frames of a window out of what clusters scrape anyway."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import replace

from gpucost.attribution.frames import Frames
from gpucost.contract import kube_state as ksm
from gpucost.contract.frames import (
    ALLOCATIONS,
    CAPACITY,
    FRAMES,
    HISTORY_FRAMES,
    NODES,
    OBSERVED,
    PROGRESS,
    SIGNALS,
)
from gpucost.domain.problems import Problem
from gpucost.domain.time import Window
from gpucost.telemetry import heartbeat
from gpucost.telemetry.assembling import cluster_names, frames_of, node_births, pod_names
from gpucost.telemetry.existing.bounds import bounds, shares_of, unread_claims
from gpucost.telemetry.existing.gpus import read_boards
from gpucost.telemetry.existing.history import with_history
from gpucost.telemetry.existing.holdings import Holdings
from gpucost.telemetry.existing.nodes import KnownBoards, read_nodes
from gpucost.telemetry.existing.owners import Owners
from gpucost.telemetry.existing.pods import Pods, read_pods
from gpucost.telemetry.existing.reader import ExistingReader
from gpucost.telemetry.existing.settings import ExistingSettings
from gpucost.telemetry.existing.shards import read_groups
from gpucost.telemetry.existing.signals import read_signals
from gpucost.telemetry.nodes import rows_of
from gpucost.telemetry.promapi import PrometheusClient, QueryStats
from gpucost.telemetry.rows import Row
from gpucost.telemetry.settings import PrometheusSettings
from gpucost.telemetry.signals import read_progress
from gpucost.telemetry.trust import OTHER_KINDS, refusals

NAME = "kube-state-metrics and dcgm-exporter in"
_READ = tuple(spec.name for spec in FRAMES if spec not in HISTORY_FRAMES)


class ExistingSource:
    """One server and every cluster of which it has kube-state-metrics' series. ``now`` (milliseconds) is
    asked only for ``covered``."""

    def __init__(
        self,
        client: PrometheusClient,
        settings: PrometheusSettings,
        existing: ExistingSettings,
        *,
        now: Callable[[], int],
    ) -> None:
        self._client = client
        self._settings = settings
        self._existing = existing
        self._now = now

    @property
    def name(self) -> str:
        return f"{NAME} prometheus {self._client.url}"

    @property
    def stats(self) -> QueryStats:
        return self._client.stats

    def clusters(self) -> tuple[str, ...]:
        """Every cluster of which nodes were seen, sorted. Raises SourceError."""
        return cluster_names(self._client, self._settings, ksm.NODE_CREATED, self._all)

    def nodes(self, cluster: str) -> int:
        """How many nodes with GPUs there ever were, as far as the server remembers. Raises SourceError."""
        reader = self._reader(cluster, self._all)
        found = reader.label_sets(reader.select(ksm.NODE_CAPACITY, reader.is_gpu))
        return len({labels.get("exported_node") or labels.get("node", "") for labels in found})

    def node_births(self, cluster: str) -> frozenset[tuple[str, int]]:
        """Nodes of today, each with the second in which it came to be. Raises SourceError."""
        return node_births(self._reader(cluster, self._all), ksm.NODE_CREATED, self._now())

    @property
    def _all(self) -> Window:
        now = self._now()
        return Window(now - self._settings.history_ms, now)

    def covered(self, cluster: str) -> Window | None:
        """From the first scrape of kube-state-metrics to ``lateness`` before the last; for one look, to the
        last. Raises SourceError."""
        found = self._all
        return heartbeat.covered(self._reader(cluster, found), found.end_ms)

    def read(self, cluster: str, window: Window) -> Frames:
        """The frames of one cluster and window, intervals clipped to the window. Raises as
        PrometheusSource.read does."""
        return self._read_all(self._reader(cluster, window), window)

    def history(self, cluster: str, window: Window, only: Collection[str] | None = None) -> Frames:
        """As ``read``, with what detectors look at, as far as these series tell it. With ``only``, names of
        frames, the others stay empty. Raises what ``read`` raises."""
        reader = self._reader(cluster, window)
        # What GPUs did is told by pod, so who held what must be known for every frame.
        found = with_history(reader, window, self._read_all(reader, window), only)
        if only is None:
            return found
        return replace(found, **{name: getattr(Frames(), name) for name in _READ if name not in only})

    def _read_all(self, reader: ExistingReader, window: Window) -> Frames:
        rows: dict[str, list[Row]] = {name: [] for name in _READ}
        problems: dict[tuple[Problem, int | None], Problem] = {}
        for part in window.split(self._settings.max_span_ms):
            # Who is believed is told by what is near: a job may be renamed in a month.
            near = reader if part == window else self._reader(reader.cluster, part)
            for name, found in _read_part(near, part, problems):
                rows[name] += found
        return frames_of(rows, problems.values())

    def _reader(self, cluster: str, window: Window) -> ExistingReader:
        return ExistingReader(self._client, self._settings, cluster, window, self._existing)


def _read_part(
    reader: ExistingReader, window: Window, problems: dict[tuple[Problem, int | None], Problem]
) -> Iterator[tuple[str, list[Row]]]:
    groups = read_groups(reader, window)
    evidence = groups.evidence
    yield OBSERVED.name, [(reader.cluster, part.start_ms, part.end_ms) for part in groups.observed()]
    pods = read_pods(reader, groups)
    owners = Owners(reader, evidence, {span.uid for span in pods.spans})
    allocations = _allocations(reader, pods, owners, window)
    boards = read_boards(reader, window, Holdings.of(allocations, ()))
    known = KnownBoards(boards.boards_of, boards.product_of, boards.profile_of)
    spans, found = read_nodes(reader, groups, known)
    nodes, capacity, wrong = rows_of(reader, spans, window)
    yield ALLOCATIONS.name, allocations
    yield NODES.name, nodes
    yield CAPACITY.name, capacity
    signals, unsure = read_signals(reader, window, Holdings.of(allocations, capacity))
    yield SIGNALS.name, signals
    yield PROGRESS.name, read_progress(reader, window, pod_names(allocations))
    shares = shares_of(reader.existing, nodes, capacity)
    limits = bounds(reader.cluster, groups, pods.spans, pods.names, shares)
    refused = refusals(reader, window, OTHER_KINDS)
    limits += unread_claims(reader, evidence)
    every = (*refused, *pods.problems, *boards.problems, *found, *wrong, *unsure, *limits)
    problems.update({(each, each.at_ms): each for each in every})


def _allocations(reader: ExistingReader, pods: Pods, owners: Owners, window: Window) -> list[Row]:
    """Rows of frames.ALLOCATIONS, clipped to the window."""
    rows: list[Row] = []
    for span in pods.spans:
        start, end = max(span.start_ms, window.start_ms), min(span.end_ms, window.end_ms)
        if start >= end:
            continue
        name = pods.names[span.uid]
        for each in owners.of(span.uid, name):
            since, until = max(start, each.since_ms), min(end, each.until_ms)
            if since < until:
                job = (each.job_kind, each.job, each.job_uid, each.workload, each.queue, "", "")
                whose = (each.team_label, each.project, each.user)
                who = (name.node, name.namespace, name.pod, span.uid, *job, *whose)
                rows.append((reader.cluster, *who, span.resource, span.units, since, until))
    return rows
