"""PrometheusSource: the frames of a window out of the series of gpucost's own exporters.

It reads anything that speaks the Prometheus HTTP API. ``read`` answers for one cluster and one window
``[start, end)`` in milliseconds UTC with a ``ClusterFrames``: who held which units from when to when, nodes,
capacity, observed time, progress and utilisation, every interval clipped to the window. ``history`` adds what
only detectors look at. A window longer than ``max_span_ms`` (a day) is read in parts.

The work is pushed down to the server: per part a dozen aggregated queries with one value per pod or node; raw
samples only of the heartbeat and of the subjects that something happened to. A day of thousands of pods is
so a few answers, not millions of samples.

Each part begins with the heartbeat (``evidence.heartbeat``): scrapes say what was looked at, the timestamps
of the objects say when things happened, and ``evidence.evidence_rule`` decides where the two differ. The
result does not depend on the size of the window. Series of scrape jobs that are not believed are left out and
named as problems (``prometheus.trust``); what is missing is a problem too, and never 0. Use of pods that
gpucost's GPU exporter does not show is read of AMD's and of OpenTelemetry, as ``upstream`` does.

What cannot be answered raises a SourceError: NotCovered where the server's memory begins later or the window
is not complete yet, PartialResponse where an answer came with warnings. The caller leaves the window open.

``gpucost.service.wiring.prometheus_connection`` makes one. It is one of several that keep the protocol
``interval_source.IntervalSource``; ``dialect_sources`` joins it with ``upstream.upstream_source`` where a
cluster had other exporters before. ``gpucost.service.ingest.pipeline`` calls ``read``, the detectors in
``gpucost.service.detection`` call ``history``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import replace

import pandas as pd

from gpucost.attribution.frames import ClusterFrames, conform
from gpucost.contract.device_dialects import OTHERS, DeviceDialect
from gpucost.contract.frames import (
    ACTIVITY,
    ALLOCATIONS,
    CAPACITY,
    FRAMES,
    HISTORY_FRAMES,
    NODES,
    OBSERVED,
    PROGRESS,
    SIGNALS,
    FrameSpec,
)
from gpucost.contract.metrics import NODE_INFO, NODE_START, STATE_UP
from gpucost.domain.errors import DataProblem
from gpucost.domain.time import Window
from gpucost.telemetry.evidence import heartbeat
from gpucost.telemetry.evidence.device_shares import divide, read_shares, unknown_claims
from gpucost.telemetry.evidence.frame_rows import (
    FrameRow,
    cluster_names,
    frames_of,
    node_births,
    pod_names,
    provider_ids,
)
from gpucost.telemetry.evidence.nodes import read_nodes
from gpucost.telemetry.evidence.pods import read_pods
from gpucost.telemetry.evidence.progress_counters import read_progress
from gpucost.telemetry.evidence.signals import read_signals, unread_use
from gpucost.telemetry.history.history_frames import NEEDED, with_history
from gpucost.telemetry.prometheus.api_client import PrometheusClient, QueryStats
from gpucost.telemetry.prometheus.cluster_reader import ClusterReader
from gpucost.telemetry.prometheus.source_settings import PrometheusSourceSettings
from gpucost.telemetry.prometheus.trust import OWN_KINDS, device_kinds, refusals
from gpucost.telemetry.upstream import upstream_source
from gpucost.telemetry.upstream.device_subjects import ClusterHoldings, has_series
from gpucost.telemetry.upstream.kube_reader import KubeStateReader, UpstreamSettings
from gpucost.telemetry.upstream.upstream_history import read_activity

_UID = SIGNALS.column_names.index("pod_uid")
_READ = tuple(spec.name for spec in FRAMES if spec not in HISTORY_FRAMES)
_OF_PODS = (ALLOCATIONS.name, PROGRESS.name)
_OF_NODES = (NODES.name, CAPACITY.name)


class PrometheusSource:
    """One server and every cluster in it. ``now`` (milliseconds) is asked only for ``covered``. ``existing``
    is for what the exporters of other makers say of the use of their GPUs.

    ``stats`` tells how many queries were sent and how long the server took for them.
    """

    def __init__(
        self,
        client: PrometheusClient,
        settings: PrometheusSourceSettings,
        *,
        now: Callable[[], int],
        existing: UpstreamSettings | None = None,
    ) -> None:
        self._client = client
        self._settings = settings
        self._now = now
        self._existing = existing or UpstreamSettings()

    @property
    def name(self) -> str:
        return f"prometheus {self._client.url}"

    @property
    def stats(self) -> QueryStats:
        return self._client.stats

    @property
    def max_gap_ms(self) -> int:
        """The greatest distance between two heartbeats that is not a gap."""
        return self._settings.max_gap_ms

    def clusters(self) -> tuple[str, ...]:
        """Every cluster that ever had a heartbeat, sorted. Raises SourceError."""
        return cluster_names(self._client, self._settings, STATE_UP.name)

    def nodes(self, cluster: str) -> int:
        """How many nodes the cluster ever had, as far as the server remembers."""
        return len(node_names(self._reader(cluster, self._all), NODE_INFO.name))

    def node_births(self, cluster: str) -> frozenset[tuple[str, int]]:
        """Nodes of today, each with the second in which it was created. Raises SourceError."""
        return node_births(self._reader(cluster, self._all), NODE_START.name, self._now())

    @property
    def _all(self) -> Window:
        now = self._now()
        return Window(now - self._settings.history_ms, now)

    def covered(self, cluster: str) -> Window | None:
        """From the first heartbeat to ``lateness`` before the last one; with ``as_of_ms``, to the last one.
        Raises SourceError."""
        return heartbeat.covered(self._reader(cluster, Window(0, self._now())), self._now())

    def read(self, cluster: str, window: Window) -> ClusterFrames:
        """The frames of one cluster and window, intervals clipped to the window.

        Raises NotCovered when the window is older than the source's memory or not yet complete,
        PartialResponse when an answer came with warnings, and the other SourceErrors of the client.
        """
        reader = self._reader(cluster, window)
        found = self._read(reader, window, _READ)
        return replace(found, provider_ids=provider_ids(reader, NODE_INFO.name))

    def _read(self, reader: ClusterReader, window: Window, wanted: Collection[str]) -> ClusterFrames:
        """Those of the frames of _READ that are ``wanted``, by name, with the frames that they need."""
        rows: dict[str, list[FrameRow]] = {name: [] for name in _READ}
        problems: dict[tuple[DataProblem, int | None], DataProblem] = {}
        for part in window.split(self._settings.max_span_ms) if wanted else ():
            # Which jobs are believed is decided near the window: a job may be renamed within a month.
            near = reader if part == window else self._reader(reader.cluster, part)
            for name, found in _read_part(near, part, frozenset(wanted), self._existing, problems):
                rows[name] += found
        return frames_of(rows, problems.values())

    def history(self, cluster: str, window: Window, only: Collection[str] | None = None) -> ClusterFrames:
        """As ``read``, with the frames that only detectors read; of these, evictions come whole, and activity
        in steps that are cut at the window's edges. With ``only``, names of frames, just these are read, and
        all others stay empty; frames of history alone are not checked against what is covered. Raises what
        ``read`` raises."""
        reader = self._reader(cluster, window)
        if only is None:
            found = with_history(reader, window, self._read(reader, window, _READ))
            return self._with_others(reader, window, found)
        beside = {spec.name for name, spec in NEEDED.items() if name in only}
        others = _others(reader) if ACTIVITY.name in only else ()
        beside |= {ALLOCATIONS.name, CAPACITY.name} if others else set()
        read = self._read(reader, window, {*only, *beside}.intersection(_READ))
        found = with_history(reader, window, read, only)
        if others:
            found = self._with_others(reader, window, found)
        return replace(found, **{name: getattr(ClusterFrames(), name) for name in _READ if name not in only})

    def _with_others(self, reader: ClusterReader, window: Window, read: ClusterFrames) -> ClusterFrames:
        """``read`` with the activity that exporters of other makers tell."""
        others = _others(reader)
        if not others:
            return read
        holdings = ClusterHoldings.of(_rows(read, ALLOCATIONS), _rows(read, CAPACITY))
        known = {str(uid) for uid in read.activity["pod_uid"].unique()}
        beside = KubeStateReader.beside(reader, self._existing)
        more = read_activity(beside, window, holdings, others, known)
        if more.empty:
            return read
        found = pd.concat([read.activity, more], ignore_index=True) if len(read.activity) else more
        return replace(read, activity=conform(found, ACTIVITY))

    def _reader(self, cluster: str, window: Window) -> ClusterReader:
        return ClusterReader(self._client, self._settings, cluster, window)


def node_names(reader: ClusterReader, metric: str) -> frozenset[str]:
    """The names of all nodes that a metric of nodes ever had series of."""
    return frozenset(labels.get("node", "") for labels in reader.label_sets(reader.select(metric)))


def _others(reader: ClusterReader) -> tuple[DeviceDialect, ...]:
    """The dialects of other makers that have series near the reader's window."""
    return tuple(each for each in OTHERS if has_series(reader, each))


def _rows(frames: ClusterFrames, spec: FrameSpec) -> list[FrameRow]:
    frame = getattr(frames, spec.name)
    return list(zip(*(frame[name].tolist() for name in spec.column_names), strict=True))


def _read_part(
    reader: ClusterReader,
    window: Window,
    wanted: frozenset[str],
    existing: UpstreamSettings,
    problems: dict[tuple[DataProblem, int | None], DataProblem],
) -> Iterator[tuple[str, list[FrameRow]]]:
    evidence, beats = heartbeat.read_evidence(reader, window)
    reads_use = reader.settings.reads_use
    told = [*refusals(reader, window, (*OWN_KINDS, *(device_kinds(reader) if reads_use else ())))]
    told += [] if reads_use else [unread_use(reader.cluster, window)]
    told += heartbeat.duplicates(reader, beats, evidence)
    clipped = (
        window.intersect(Window(*stretch)) for stretch in evidence.stretches if stretch[0] < stretch[1]
    )
    yield OBSERVED.name, [(reader.cluster, part.start_ms, part.end_ms) for part in clipped if part]
    wanted = wanted if reads_use else wanted - {SIGNALS.name, PROGRESS.name}
    others = _others(reader) if SIGNALS.name in wanted else ()
    asks_pods = bool(others) or not wanted.isdisjoint(_OF_PODS)
    asks_nodes = bool(others) or not wanted.isdisjoint(_OF_NODES)
    shares = read_shares(reader, evidence) if asks_pods or CAPACITY.name in wanted else {}
    allocations, nodes, capacity = list[FrameRow](), list[FrameRow](), list[FrameRow]()
    if asks_pods or shares:
        allocations, found = read_pods(reader, evidence)
        told += [*found, *unknown_claims(reader, evidence)]
    if asks_nodes:
        nodes, capacity, found = read_nodes(reader, evidence)
        told += found
    if shares:
        allocations, capacity, found = divide(allocations, capacity, shares)
        told += found
    problems.update({(each, each.at_ms): each for each in told})
    if asks_pods:
        yield ALLOCATIONS.name, allocations
        if reads_use:
            yield PROGRESS.name, read_progress(reader, window, pod_names(allocations))
    if asks_nodes:
        yield NODES.name, nodes
        yield CAPACITY.name, capacity
    if SIGNALS.name in wanted:
        signals = read_signals(reader, window)
        yield SIGNALS.name, signals
        if others:
            known = {str(row[_UID]) for row in signals}
            holdings = ClusterHoldings.of(allocations, capacity)
            beside = KubeStateReader.beside(reader, existing)
            more, found = upstream_source.read_signals(beside, window, holdings, others, known)
            problems.update({(each, each.at_ms): each for each in found})
            yield SIGNALS.name, more
