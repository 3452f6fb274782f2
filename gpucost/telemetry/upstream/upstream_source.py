"""UpstreamSource: the frames of a window out of kube-state-metrics and dcgm-exporter.

Most clusters scrape these two anyway. The same protocol and frames as ``telemetry.prometheus_source``, for
clusters, or months, without gpucost's own exporters. Pods and nodes come from kube-state-metrics
(``kube_pods``, ``kube_nodes``, ``kube_owners``), what GPUs are and did from dcgm-exporter (``dcgm_gpus``,
``gpu_usage``). A scrape of kube-state-metrics that worked is the heartbeat; ``scrape_groups`` tells shards,
of which one shows an object, from replicas, which all do.

These series say less, so this source says how far off it may be, as problems with their size in GPU
milliseconds where it is known:

- a pod that went without a completion time is taken to have held until half-way between the last scrape that
  showed it and the next (END_BOUNDED), so that sums over many pods come out right;
- a pod that came and went between two scrapes is not seen (SHORT_UNSEEN);
- of claims of dynamic resource allocation nothing says which devices they got (NOT_OBSERVED).

Texts of problems hold no counts, so that rows of many windows are one row, whose GPU time adds up.

Here too are the rows of frames.SIGNALS: what was measured on the time that pods held, per pod, node and step
of ``signal_step_ms`` (an hour); sums of the devices of a pod, and of the memory's peak the largest. A cell
that nobody measured is null.

``gpucost.service.wiring.prometheus_connection`` makes one; ``telemetry.dialect_sources`` uses it for the time
before gpucost's own series begin; the ingest pipeline and the detectors call it as they call any source.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from math import isfinite

import numpy as np

from gpucost.attribution.frames import ClusterFrames
from gpucost.contract import kube_state as ksm
from gpucost.contract.device_dialects import DIALECTS, DeviceDialect
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
from gpucost.domain.errors import DataProblem, DataProblemCode, InputError
from gpucost.domain.time import DAY_MS, Window
from gpucost.telemetry.evidence import heartbeat
from gpucost.telemetry.evidence.evidence_rule import ScrapeEvidence
from gpucost.telemetry.evidence.frame_rows import (
    FrameRow,
    cluster_names,
    frames_of,
    node_births,
    pod_names,
    provider_ids,
)
from gpucost.telemetry.evidence.gauge_runs import Floats
from gpucost.telemetry.evidence.nodes import rows_of
from gpucost.telemetry.evidence.progress_counters import read_progress
from gpucost.telemetry.evidence.signals import unread_use
from gpucost.telemetry.prometheus.api_client import PrometheusClient, QueryStats
from gpucost.telemetry.prometheus.promql import by, over_time
from gpucost.telemetry.prometheus.query_response import COLLECTOR
from gpucost.telemetry.prometheus.sample_chunks import SampleRanges
from gpucost.telemetry.prometheus.source_settings import PrometheusSourceSettings
from gpucost.telemetry.prometheus.trust import KUBE, OTHER_KINDS, device_kinds, refusals
from gpucost.telemetry.upstream.dcgm_gpus import NO_GPUS, read_gpus
from gpucost.telemetry.upstream.device_subjects import ClusterHoldings
from gpucost.telemetry.upstream.gpu_usage import MIB, ClaimUsage, read_use
from gpucost.telemetry.upstream.kube_nodes import NodeGpuFacts, lack_labels, read_nodes
from gpucost.telemetry.upstream.kube_owners import PodOwners
from gpucost.telemetry.upstream.kube_pods import (
    PodName,
    PodSpan,
    PodSpans,
    read_pods,
)
from gpucost.telemetry.upstream.kube_reader import (
    NODE_LABELS,
    KubeStateReader,
    ScrapeGroups,
    UpstreamSettings,
    read_groups,
)
from gpucost.telemetry.upstream.upstream_history import with_history

_PEAK = SIGNALS.column_names[5:].index("memory_peak_mib")


def read_signals(
    reader: KubeStateReader,
    window: Window,
    holdings: ClusterHoldings,
    dialects: Sequence[DeviceDialect] = DIALECTS,
    known: Collection[str] = (),
) -> tuple[list[FrameRow], list[DataProblem]]:
    """One row per pod, node and step of the window, and problems; without the pods that are ``known``."""
    rows: list[FrameRow] = []
    problems: list[DataProblem] = []
    for use in read_use(reader, window, holdings, reader.settings.signal_step_ms, dialects, known):
        rows += _rows(reader.cluster, use)
        problems += use.problems
    return rows, problems


def _rows(cluster: str, use: ClaimUsage) -> list[FrameRow]:
    pods: dict[tuple[str, str], int] = {}
    of = np.array(
        [
            pods.setdefault((node, uid), len(pods))
            for node, (_, uid) in zip(use.nodes, use.claims, strict=True)
        ],
        dtype=np.int64,
    )
    columns = np.array([_summed(grid, of, len(pods)) for grid in _columns(use)])
    columns[_PEAK] = _largest(use.used / MIB, of, len(pods))
    pod, step = np.nonzero(np.isfinite(columns).any(axis=0))
    names = [*pods]
    values: list[list[float]] = columns[:, pod, step].T.tolist()
    return [
        (
            cluster,
            *names[p],
            use.steps[s].start_ms,
            use.steps[s].end_ms,
            *(each if isfinite(each) else None for each in measured),
        )
        for p, s, measured in zip(pod.tolist(), step.tolist(), values, strict=True)
    ]


def _columns(use: ClaimUsage) -> list[Floats]:
    """In the order of the frame's columns."""
    return [
        use.busy.observed,
        use.busy.amount,
        use.sm.observed,
        use.sm.amount,
        use.tensor.amount,
        use.tensor.observed,
        use.memory.observed,
        use.memory.amount,
        use.memory_total,
        use.used,
        use.energy.observed,
        use.energy.amount,
    ]


def _summed(grid: Floats, of: np.ndarray[tuple[int], np.dtype[np.int64]], pods: int) -> Floats:
    """The sum; NaN where all of a pod's values are NaN."""
    known = np.isfinite(grid)
    sums, seen = np.zeros((pods, grid.shape[1])), np.zeros((pods, grid.shape[1]), dtype=bool)
    np.add.at(sums, of, np.where(known, grid, 0.0))
    np.logical_or.at(seen, of, known)
    return np.where(seen, sums, np.nan)


def _largest(grid: Floats, of: np.ndarray[tuple[int], np.dtype[np.int64]], pods: int) -> Floats:
    found = np.full((pods, grid.shape[1]), np.nan)
    np.fmax.at(found, of, grid)
    return found


ShareLookup = Callable[[str, str], Fraction | None]
"""Node and resource -> the share of a GPU that one unit is; None where it is unknown."""

END_TEXT = (
    "of pods that went without saying when (deleted, evicted), each is taken to have held until half-way "
    "between the last scrape that showed it and the next"
)
SHORT_TEXT = (
    "pods that were bound and deleted between two scrapes, or while kube-state-metrics was down, are not "
    "seen, and their time stands as unallocated: each for less than the distance of the scrapes"
)
CLAIMS_TEXT = (
    "pods have claims of dynamic resource allocation, and no series says which devices they got: GPUs among "
    "these are in no number"
)
LABELS_TEXT = (
    "with --cost-only, GPUs are those of the nodes' labels and capacity: a node whose GPUs only "
    "dcgm-exporter shows is not counted"
)
ASKED_TEXT = (
    "labels of some nodes do not tell the number or the model of their GPUs: dcgm-exporter was asked for "
    "these, in spite of --cost-only"
)
_MOST = 90


def shares_of(
    settings: UpstreamSettings, nodes: Sequence[FrameRow], capacity: Sequence[FrameRow]
) -> ShareLookup:
    """Of rows of frames.NODES and frames.CAPACITY."""
    product = {str(row[_NODE]): str(row[_PRODUCT]) for row in nodes}
    replicas: Mapping[tuple[str, str], int] = {
        (str(row[_HOLDER]), str(row[_RESOURCE])): int(str(row[_REPLICAS])) for row in capacity
    }

    def share(node: str, resource: str) -> Fraction | None:
        times = max(1, replicas.get((node, resource), 1))
        try:
            return settings.catalog.unit(resource, product.get(node, ""), times, settings.basis).share
        except InputError:
            return None

    return share


def bounds(
    cluster: str,
    groups: ScrapeGroups,
    spans: Iterable[PodSpan],
    names: Mapping[str, PodName],
    shares: ShareLookup,
) -> list[DataProblem]:
    """The possible error of one part of the reading, as problems."""
    window = groups.evidence.window
    off = Fraction(0)
    for span in spans:
        if span.off_ms and window.start_ms < span.end_ms <= window.end_ms:
            share = shares(names[span.uid].node, span.resource)
            off += 0 if share is None else share * span.units * span.off_ms
    found = [_problem(DataProblemCode.SHORT_UNSEEN, cluster, window, SHORT_TEXT + _distance(groups), None)]
    if off:
        found.append(_problem(DataProblemCode.END_BOUNDED, cluster, window, END_TEXT, -int(-off // 1)))
    return found


def _capacity_by(cluster: str, window: Window, asks_boards: bool) -> DataProblem:
    text = ASKED_TEXT if asks_boards else LABELS_TEXT
    return DataProblem(DataProblemCode.USE_UNREAD, cluster, "capacity", text, None, window.start_ms)


def unread_claims(reader: KubeStateReader, evidence: ScrapeEvidence) -> list[DataProblem]:
    """A problem where any pod has a claim, as kube-state-metrics exports it from 2.20 on."""
    latest = over_time("last_over_time", reader.select(ksm.RESOURCE_CLAIMS), evidence.range_ms)
    is_there = reader.exports(ksm.RESOURCE_CLAIMS, evidence)
    if not is_there or not reader.vector(by("group", (), latest), evidence.end_ms):
        return []
    return [_problem(DataProblemCode.NOT_OBSERVED, reader.cluster, evidence.window, CLAIMS_TEXT, None)]


def _distance(groups: ScrapeGroups) -> str:
    """The distance between most scrapes, in whole seconds; of the shard with the fewest, and of replicas the
    longer one."""
    apart = [np.diff(each.evidence.beats) for each in groups.groups if len(each.evidence.beats) > 1]
    if not apart:
        return ""
    return f", {max(round(float(np.percentile(each, _MOST)) / 1000) for each in apart)} s"


def _problem(
    code: DataProblemCode, cluster: str, window: Window, text: str, board_ms: int | None
) -> DataProblem:
    return DataProblem(code, cluster, "kube-state-metrics", text, board_ms, window.start_ms)


_NODE, _PRODUCT = (NODES.column_names.index(name) for name in ("node", "product"))
_HOLDER, _RESOURCE, _REPLICAS = (
    CAPACITY.column_names.index(name) for name in ("node", "resource", "replicas")
)


NAME, COST_ONLY_NAME = "kube-state-metrics and dcgm-exporter in", "kube-state-metrics in"
BY_SAMPLES = "samples of"
_MOST_DAYS, _NODE_DAYS = 16, 10_000
"""How many days are read at once, and of how many nodes, days and nodes multiplied: for what is in memory."""
_READ = tuple(spec.name for spec in FRAMES if spec not in HISTORY_FRAMES)


class UpstreamSource:
    """One server and every cluster of which it has kube-state-metrics' series. ``now`` (milliseconds) is
    called only for ``covered``."""

    def __init__(
        self,
        client: PrometheusClient,
        settings: PrometheusSourceSettings,
        existing: UpstreamSettings,
        *,
        now: Callable[[], int],
    ) -> None:
        self._client = client
        self._settings = settings
        self._existing = existing
        self._now = now
        self._sampled: dict[str, bool] = {}
        self._nodes: dict[str, int] = {}

    @property
    def name(self) -> str:
        """With how it was read, once it was."""
        way = f"{BY_SAMPLES} " if any(self._sampled.values()) and self._client.has_samples else ""
        name = NAME if self._settings.reads_use else COST_ONLY_NAME
        return f"{name} {way}prometheus {self._client.url}"

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
        """Nodes of today, each with the second in which it was created. Raises SourceError."""
        return node_births(self._reader(cluster, self._all), ksm.NODE_CREATED, self._now())

    @property
    def _all(self) -> Window:
        now = self._now()
        return Window(now - self._settings.history_ms, now)

    def covered(self, cluster: str) -> Window | None:
        """From the first scrape of kube-state-metrics to ``lateness`` before the last; with ``as_of_ms``, to
        the last. Raises SourceError."""
        found = self._all
        return heartbeat.covered(self._reader(cluster, found), found.end_ms)

    def read(self, cluster: str, window: Window) -> ClusterFrames:
        """The frames of one cluster and window, intervals clipped to the window. Raises as
        PrometheusSource.read does."""
        reader = self._sampling(cluster, window)
        found = self._read_all(reader, window)
        return replace(found, provider_ids=provider_ids(reader, ksm.NODE_INFO))

    def history(self, cluster: str, window: Window, only: Collection[str] | None = None) -> ClusterFrames:
        """As ``read``, with the frames that only detectors read, as far as these series have them. With
        ``only``, names of frames, the others stay empty. Raises what ``read`` raises."""
        reader = self._sampling(cluster, window)
        # What GPUs did is exported by pod, so every frame needs who held what.
        found = with_history(reader, window, self._read_all(reader, window), only)
        if only is None:
            return found
        return replace(found, **{name: getattr(ClusterFrames(), name) for name in _READ if name not in only})

    def _read_all(self, reader: KubeStateReader, window: Window) -> ClusterFrames:
        rows: dict[str, list[FrameRow]] = {name: [] for name in _READ}
        problems: dict[tuple[DataProblem, int | None], DataProblem] = {}
        days = self._to_be_read(reader, window)
        for part in window.split(self._settings.max_span_ms):
            # Which jobs are believed is decided near the window: a job may be renamed within a month.
            near = reader
            if part != window:
                near = self._sampling(reader.cluster, part)
                near.outer = reader
            # Hundreds of thousands of rows and labels, none of which is garbage.
            with COLLECTOR.paused():
                groups = read_groups(near, part)
                self._expect(near, groups.evidence, part, days)
                for name, found in _read_part(near, groups, problems):
                    rows[name] += found
        return frames_of(rows, problems.values())

    def _to_be_read(self, reader: KubeStateReader, window: Window) -> Window | None:
        """The time around ``window`` of which everything is there already, and all days will be read."""
        if not reader.is_sampled or window.length_ms <= self._settings.max_span_ms:
            return None
        covered = self.covered(reader.cluster)
        return None if covered is None else covered.intersect(window)

    def _expect(
        self, reader: KubeStateReader, evidence: ScrapeEvidence, part: Window, days: Window | None
    ) -> None:
        """Read samples of several days at once: of whole ones among ``days``, in runs that are the same
        whichever of them comes first."""
        samples = self._client.samples
        if samples is None or not reader.is_sampled or days is None or part.length_ms != DAY_MS:
            return
        number = max(1, min(_MOST_DAYS, _NODE_DAYS // max(1, self._node_count(reader))))
        before_ms = (part.start_ms - days.start_ms) // DAY_MS % number * DAY_MS
        run = Window(part.start_ms - before_ms, part.start_ms - before_ms + number * DAY_MS)
        whole = [each for each in run.split(DAY_MS) if days.intersect(each) == each]
        if part in whole and len(whole) > 1:
            first_ms = evidence.end_ms + whole[0].start_ms - part.start_ms
            samples.expect(SampleRanges(first_ms, DAY_MS, len(whole), evidence.range_ms))

    def _sampling(self, cluster: str, window: Window) -> KubeStateReader:
        """A reader of samples themselves where the server sends them and the cluster is large enough."""
        reader = self._reader(cluster, window)
        samples = self._client.samples
        if samples is not None and cluster not in self._sampled:
            self._sampled[cluster] = self._node_count(reader) >= samples.least_nodes
        reader.by_samples = samples is not None and self._sampled[cluster]
        return reader

    def _node_count(self, reader: KubeStateReader) -> int:
        """Nodes with GPUs around the first window that is read of a cluster."""
        if reader.cluster not in self._nodes:
            nodes = reader.select(ksm.NODE_CAPACITY, reader.is_gpu)
            self._nodes[reader.cluster] = max(len(reader.label_values(label, nodes)) for label in NODE_LABELS)
        return self._nodes[reader.cluster]

    def _reader(self, cluster: str, window: Window) -> KubeStateReader:
        return KubeStateReader(self._client, self._settings, cluster, window, self._existing)


def _read_part(
    reader: KubeStateReader,
    groups: ScrapeGroups,
    problems: dict[tuple[DataProblem, int | None], DataProblem],
) -> Iterator[tuple[str, list[FrameRow]]]:
    evidence, window = groups.evidence, groups.evidence.window
    yield OBSERVED.name, [(reader.cluster, part.start_ms, part.end_ms) for part in groups.observed()]
    pods = read_pods(reader, groups)
    owners = PodOwners(reader, evidence, {span.uid for span in pods.spans})
    allocations = _allocations(reader, pods, owners, window)
    reads_use = reader.settings.reads_use
    asks_boards = reads_use or lack_labels(reader, evidence)
    boards = read_gpus(reader, window, ClusterHoldings.of(allocations, ())) if asks_boards else NO_GPUS
    known = NodeGpuFacts(boards.boards_of, boards.product_of, boards.profile_of)
    spans, found = read_nodes(reader, groups, known)
    nodes, capacity, wrong = rows_of(reader, spans, window)
    yield ALLOCATIONS.name, allocations
    yield NODES.name, nodes
    yield CAPACITY.name, capacity
    kinds = OTHER_KINDS if asks_boards else (KUBE,)
    if reads_use:
        signals, unsure = read_signals(reader, window, ClusterHoldings.of(allocations, capacity))
        yield SIGNALS.name, signals
        yield PROGRESS.name, read_progress(reader, window, pod_names(allocations))
        kinds = *kinds, *device_kinds(reader)
    else:
        unsure = [unread_use(reader.cluster, window), _capacity_by(reader.cluster, window, asks_boards)]
    shares = shares_of(reader.existing, nodes, capacity)
    limits = bounds(reader.cluster, groups, pods.spans, pods.names, shares)
    refused = refusals(reader, window, kinds)
    limits += unread_claims(reader, evidence)
    every = (*refused, *pods.problems, *boards.problems, *found, *wrong, *unsure, *limits)
    problems.update({(each, each.at_ms): each for each in every})


def _allocations(
    reader: KubeStateReader, pods: PodSpans, owners: PodOwners, window: Window
) -> list[FrameRow]:
    """Rows of frames.ALLOCATIONS, clipped to the window."""
    rows: list[FrameRow] = []
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
