"""What sources over a Prometheus share: names of clusters, births of nodes, frames out of rows of parts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from gpucost.attribution.frames import Frames
from gpucost.contract.frames import (
    ALLOCATIONS,
    CAPACITY,
    NODES,
    OBSERVED,
    PROGRESS,
    SIGNALS,
    FrameSpec,
)
from gpucost.domain.problems import Problem
from gpucost.domain.time import DAY_MS, Window
from gpucost.telemetry.answers import whole_count
from gpucost.telemetry.promapi import PrometheusClient
from gpucost.telemetry.promql import equals, over_time, select
from gpucost.telemetry.reader import ClusterReader, numbers, own_column, whole
from gpucost.telemetry.rows import Row, frame_of
from gpucost.telemetry.settings import PrometheusSettings

_NAMESPACE, _POD, _UID = (ALLOCATIONS.column_names.index(name) for name in ("namespace", "pod", "pod_uid"))
_JOINED = (ALLOCATIONS, NODES, CAPACITY, OBSERVED)


def cluster_names(
    client: PrometheusClient, settings: PrometheusSettings, metric: str, inside: Window | None = None
) -> tuple[str, ...]:
    """Every cluster that a metric was ever seen of, or in that time, sorted. Raises SourceError."""
    matchers = [equals(label, value) for label, value in settings.matchers.items()]
    limits = () if inside is None else (inside.start_ms, inside.end_ms)
    found = whole(client.series(select(metric, matchers), *limits), "clusters")
    named = (series.get(settings.cluster_label, "") for series in found)
    return tuple(sorted({name or settings.fallback_cluster for name in named}))


def node_births(reader: ClusterReader, metric: str, at_ms: int) -> frozenset[tuple[str, int]]:
    """Nodes and what a metric says of when they came to be, in seconds."""
    found = reader.vector(over_time("last_over_time", reader.select(metric), DAY_MS), at_ms)
    return frozenset(zip(own_column(found, "node"), map(whole_count, numbers(found)), strict=True))


def frames_of(rows: Mapping[str, list[Row]], problems: Iterable[Problem]) -> Frames:
    """Rows by frame, of parts that follow one another: what goes on from one into the next is one row."""
    frames: dict[str, Any] = {spec.name: frame_of(spec, joined(spec, rows)) for spec in _JOINED}
    return Frames(
        **frames,
        signals=frame_of(SIGNALS, rows[SIGNALS.name]),
        progress=frame_of(PROGRESS, rows[PROGRESS.name]),
        problems=in_order(problems),
    )


def in_order(problems: Iterable[Problem]) -> tuple[Problem, ...]:
    """As frames have them, whoever found them first."""
    return tuple(sorted(problems, key=lambda each: (each.code, each.subject, each.detail)))


def pod_names(allocations: Sequence[Row]) -> dict[tuple[str, str], list[tuple[int, str]]]:
    """(namespace, pod) -> starts and uids of what was held under that name, in order."""
    start = ALLOCATIONS.column_names.index("start_ms")
    names: dict[tuple[str, str], list[tuple[int, str]]] = {}
    for row in allocations:
        held = int(str(row[start])), str(row[_UID])
        names.setdefault((str(row[_NAMESPACE]), str(row[_POD])), []).append(held)
    for held_by in names.values():
        held_by.sort()
    return names


def joined(spec: FrameSpec, rows: Mapping[str, list[Row]]) -> list[Row]:
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
