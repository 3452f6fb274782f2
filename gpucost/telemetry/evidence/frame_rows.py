"""Helpers of the sources over Prometheus: names of clusters, births of nodes, rows to frames, conversions.

Rows are tuples in the order of a FrameSpec's columns. The conversions turn what Prometheus stores (floats,
seconds) into what frames hold (integers, milliseconds).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from math import isfinite
from typing import Any

import numpy as np
import pandas as pd

from gpucost.attribution.frames import ClusterFrames, conform, empty_frame
from gpucost.contract.frames import ALLOCATIONS, CAPACITY, NODES, OBSERVED, PROGRESS, SIGNALS, FrameSpec
from gpucost.contract.metrics import PROVIDER_ID
from gpucost.domain.errors import DataProblem
from gpucost.domain.time import DAY_MS, Window
from gpucost.telemetry.evidence.evidence_rule import NONE, IntArray
from gpucost.telemetry.prometheus.api_client import PrometheusClient
from gpucost.telemetry.prometheus.cluster_reader import (
    ClusterReader,
    numbers,
    own_column,
    points,
    renamed,
    whole,
)
from gpucost.telemetry.prometheus.promql import equals, other_than, over_time, select
from gpucost.telemetry.prometheus.query_response import ResultSeries, whole_count
from gpucost.telemetry.prometheus.source_settings import PrometheusSourceSettings

FrameRow = tuple[object, ...]


def frame_of(spec: FrameSpec, rows: Sequence[FrameRow]) -> pd.DataFrame:
    """``rows`` have the columns of ``spec``, in its order."""
    if not rows:
        return empty_frame(spec)
    columns = zip(spec.column_names, zip(*rows, strict=True), strict=True)
    return conform(pd.DataFrame({name: list(values) for name, values in columns}), spec)


_NAMESPACE, _POD, _UID = (ALLOCATIONS.column_names.index(name) for name in ("namespace", "pod", "pod_uid"))
_JOINED = (ALLOCATIONS, NODES, CAPACITY, OBSERVED)


def cluster_names(
    client: PrometheusClient, settings: PrometheusSourceSettings, metric: str, inside: Window | None = None
) -> tuple[str, ...]:
    """Every cluster of which a metric ever had series, or had in the given time, sorted. Raises
    SourceError."""
    matchers = [equals(label, value) for label, value in settings.matchers.items()]
    limits = () if inside is None else (inside.start_ms, inside.end_ms)
    found = whole(client.series(select(metric, matchers), *limits), "clusters")
    named = (series.get(settings.cluster_label, "") for series in found)
    return tuple(sorted({name or settings.fallback_cluster for name in named}))


def node_births(reader: ClusterReader, metric: str, at_ms: int) -> frozenset[tuple[str, int]]:
    """By node, when it was created according to a metric, in seconds."""
    found = reader.vector(over_time("last_over_time", reader.select(metric), DAY_MS), at_ms)
    return frozenset(zip(own_column(found, "node"), map(whole_count, numbers(found)), strict=True))


def provider_ids(reader: ClusterReader, metric: str) -> frozenset[tuple[str, str]]:
    """Nodes near the reader's window, each with the machine of a cloud that it is, where ``metric`` says it.
    Raises SourceError."""
    found = reader.label_sets(reader.select(metric, other_than(PROVIDER_ID, "")))
    pairs = ((labels.get(renamed("node")) or labels.get("node", ""), labels[PROVIDER_ID]) for labels in found)
    return frozenset((node, machine) for node, machine in pairs if node)


def frames_of(rows: Mapping[str, list[FrameRow]], problems: Iterable[DataProblem]) -> ClusterFrames:
    """Rows by frame, out of consecutive parts: an interval that goes on from one part into the next is one
    row."""
    frames: dict[str, Any] = {spec.name: frame_of(spec, joined(spec, rows)) for spec in _JOINED}
    return ClusterFrames(
        **frames,
        signals=frame_of(SIGNALS, rows[SIGNALS.name]),
        progress=frame_of(PROGRESS, rows[PROGRESS.name]),
        problems=in_order(problems),
    )


def in_order(problems: Iterable[DataProblem]) -> tuple[DataProblem, ...]:
    """Rows in the order that frames have, independent of the order of the queries."""
    return tuple(sorted(problems, key=lambda each: (each.code, each.subject, each.detail)))


def pod_names(allocations: Sequence[FrameRow]) -> dict[tuple[str, str], list[tuple[int, str]]]:
    """(namespace, pod) -> starts and uids of the pods that held units under that name, in order."""
    start = ALLOCATIONS.column_names.index("start_ms")
    names: dict[tuple[str, str], list[tuple[int, str]]] = {}
    for row in allocations:
        held = int(str(row[start])), str(row[_UID])
        names.setdefault((str(row[_NAMESPACE]), str(row[_POD])), []).append(held)
    for held_by in names.values():
        held_by.sort()
    return names


def joined(spec: FrameSpec, rows: Mapping[str, list[FrameRow]]) -> list[FrameRow]:
    """Rows in order of their start; rows that touch and are otherwise equal become one."""
    start = spec.column_names.index("start_ms")
    end = start + 1
    joined: list[FrameRow] = []
    latest: dict[FrameRow, int] = {}
    for row in sorted(rows[spec.name], key=lambda row: row[start:end]):
        key = row[:start] + row[end + 1 :]
        at = latest.get(key)
        if at is not None and joined[at][end] == row[start]:
            joined[at] = (*joined[at][:end], row[end], *row[end + 1 :])
        else:
            latest[key] = len(joined)
            joined.append(row)
    return joined


# Far outside every instant that gpucost accepts, yet far inside 64 bits.
_ABSURD_S = 1e12


def to_millis(seconds: Sequence[float | None]) -> IntArray:
    """Timestamps in seconds -> milliseconds; NONE where there is none, 0 where it is not a number."""
    values = np.array([NONE / 1000 if value is None else value for value in seconds], dtype=np.float64)
    values = np.where(np.abs(values) < _ABSURD_S, values, 0.0)
    return np.rint(values * 1000).astype(np.int64)


def unit_count(value: float) -> int | None:
    """A number of units, or None when ``value`` is not a whole number from 0 to a million."""
    return int(value) if isfinite(value) and 0 <= value <= 1_000_000 and value == int(value) else None


def timeline(group: Sequence[ResultSeries], name: str, stale: Collection[int]) -> dict[int, float]:
    """All samples of one metric without staleness markers; the larger one where two series share an
    instant."""
    merged: dict[int, float] = {}
    for series in group:
        if series["metric"].get("__name__") == name:
            for at, value in zip(*points(series), strict=True):
                if at not in stale:
                    merged[at] = max(merged.get(at, value), value)
    return merged


def instants(values: Mapping[int, float], at: Sequence[int]) -> list[int]:
    """The timestamps in ``values`` (seconds) at these instants, in milliseconds; NONE where absent."""
    converted: list[int] = to_millis([values.get(instant) for instant in at]).tolist()
    return converted
