"""PrometheusSource: the frames of a window out of anything that speaks the Prometheus HTTP API.

The work is pushed down to the server: per window a dozen aggregated queries with one value per pod or
node; raw samples only of the heartbeat and of the subjects that something happened to.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace

from gpucost.attribution.frames import Frames
from gpucost.contract.frames import (
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
from gpucost.contract.metrics import STATE_UP
from gpucost.domain.problems import Problem
from gpucost.domain.time import Window
from gpucost.telemetry import heartbeat
from gpucost.telemetry.history import NEEDED, with_history
from gpucost.telemetry.nodes import read_nodes
from gpucost.telemetry.pods import read_pods
from gpucost.telemetry.promapi import PrometheusClient, QueryStats
from gpucost.telemetry.promql import equals, select
from gpucost.telemetry.reader import ClusterReader, whole
from gpucost.telemetry.rows import Row, frame_of
from gpucost.telemetry.settings import PrometheusSettings
from gpucost.telemetry.signals import read_progress, read_signals

_READ = tuple(spec.name for spec in FRAMES if spec not in HISTORY_FRAMES)
_NAMESPACE, _POD, _UID = (ALLOCATIONS.column_names.index(name) for name in ("namespace", "pod", "pod_uid"))


class PrometheusSource:
    """One server and every cluster in it. ``now`` (milliseconds) is asked only for ``covered``.

    ``stats`` tells how many queries were sent and how long the server took for them.
    """

    def __init__(
        self, client: PrometheusClient, settings: PrometheusSettings, *, now: Callable[[], int]
    ) -> None:
        self._client = client
        self._settings = settings
        self._now = now

    @property
    def name(self) -> str:
        return f"prometheus {self._client.url}"

    @property
    def stats(self) -> QueryStats:
        return self._client.stats

    def clusters(self) -> tuple[str, ...]:
        """Every cluster that ever sent a heartbeat, sorted. Raises SourceError."""
        settings = self._settings
        matchers = [equals(label, value) for label, value in settings.matchers.items()]
        answer = self._client.series(select(STATE_UP.name, matchers))
        found = whole(answer, "clusters")
        named = (series.get(settings.cluster_label, "") for series in found)
        return tuple(sorted({name or settings.fallback_cluster for name in named}))

    def covered(self, cluster: str) -> Window | None:
        """From the first heartbeat to ``lateness`` before the last one. Raises SourceError."""
        return heartbeat.covered(self._reader(cluster, Window(0, self._now())), self._now())

    def read(self, cluster: str, window: Window) -> Frames:
        """The frames of one cluster and window, intervals clipped to the window.

        Raises NotCovered when the window is older than the source's memory or not yet complete,
        PartialResponse when an answer came with warnings, and the other SourceErrors of the wire.
        """
        return self._read(self._reader(cluster, window), window, _READ)

    def _read(self, reader: ClusterReader, window: Window, wanted: Collection[str]) -> Frames:
        """Of the frames of _READ those ``wanted``, by name, with what is read beside them."""
        rows: dict[str, list[Row]] = {name: [] for name in _READ}
        problems: dict[Problem, None] = {}
        for part in window.split(self._settings.max_span_ms) if wanted else ():
            for name, found in _read_part(reader, part, wanted, problems):
                rows[name] += found
        return Frames(
            allocations=frame_of(ALLOCATIONS, _joined(ALLOCATIONS, rows)),
            nodes=frame_of(NODES, _joined(NODES, rows)),
            capacity=frame_of(CAPACITY, _joined(CAPACITY, rows)),
            observed=frame_of(OBSERVED, _joined(OBSERVED, rows)),
            signals=frame_of(SIGNALS, rows[SIGNALS.name]),
            progress=frame_of(PROGRESS, rows[PROGRESS.name]),
            problems=tuple(
                sorted(problems, key=lambda problem: (problem.code, problem.subject, problem.detail))
            ),
        )

    def history(self, cluster: str, window: Window, only: Collection[str] | None = None) -> Frames:
        """As ``read``, with what only detectors look at; of that, evictions come whole, and activity in steps
        that are cut at the window's edges. With ``only``, names of frames, just these are read, and all
        others stay empty; frames of history alone are not checked against what is covered. Raises what
        ``read`` raises."""
        reader = self._reader(cluster, window)
        if only is None:
            return with_history(reader, window, self._read(reader, window, _READ))
        beside = {spec.name for name, spec in NEEDED.items() if name in only}
        read = self._read(reader, window, {*only, *beside}.intersection(_READ))
        found = with_history(reader, window, read, only)
        return replace(found, **{name: getattr(Frames(), name) for name in _READ if name not in only})

    def _reader(self, cluster: str, window: Window) -> ClusterReader:
        return ClusterReader(self._client, self._settings, cluster, window)


def _read_part(
    reader: ClusterReader, window: Window, wanted: Collection[str], problems: dict[Problem, None]
) -> Iterator[tuple[str, list[Row]]]:
    evidence, found = heartbeat.read_evidence(reader, window)
    problems.update(dict.fromkeys(found))
    clipped = (
        window.intersect(Window(*stretch)) for stretch in evidence.stretches if stretch[0] < stretch[1]
    )
    yield OBSERVED.name, [(reader.cluster, part.start_ms, part.end_ms) for part in clipped if part]
    if ALLOCATIONS.name in wanted or PROGRESS.name in wanted:
        allocations, found = read_pods(reader, evidence)
        problems.update(dict.fromkeys(found))
        yield ALLOCATIONS.name, allocations
        yield PROGRESS.name, read_progress(reader, window, _pod_names(allocations))
    if NODES.name in wanted or CAPACITY.name in wanted:
        nodes, capacity, found = read_nodes(reader, evidence)
        problems.update(dict.fromkeys(found))
        yield NODES.name, nodes
        yield CAPACITY.name, capacity
    if SIGNALS.name in wanted:
        yield SIGNALS.name, read_signals(reader, window)


def _pod_names(allocations: Sequence[Row]) -> dict[tuple[str, str], list[tuple[int, str]]]:
    start = ALLOCATIONS.column_names.index("start_ms")
    names: dict[tuple[str, str], list[tuple[int, str]]] = {}
    for row in allocations:
        held = int(str(row[start])), str(row[_UID])
        names.setdefault((str(row[_NAMESPACE]), str(row[_POD])), []).append(held)
    for held_by in names.values():
        held_by.sort()
    return names


def _joined(spec: FrameSpec, rows: dict[str, list[Row]]) -> list[Row]:
    """Rows in order of their start, those that touch and are otherwise equal made one."""
    start = spec.column_names.index("start_ms")
    end = start + 1
    joined: list[Row] = []
    latest: dict[Row, int] = {}
    for row in sorted(rows[spec.name], key=lambda row: row[start:end]):
        key = row[:start] + row[end + 1 :]
        at = latest.get(key)
        if at is not None and joined[at][end] == row[start]:
            joined[at] = (*joined[at][:end], row[end], *row[end + 1 :])
        else:
            latest[key] = len(joined)
            joined.append(row)
    return joined
