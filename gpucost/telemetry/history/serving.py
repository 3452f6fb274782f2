"""Requests to servers: increases of the counters that serving stacks export, and of the bytes a pod received.

A pod is identified by the labels that Prometheus gave the scrape (``namespace`` and ``pod``), never by the
series' own labels (``exported_``): so a writer of such series can only write about its own pod. A counter
``by`` workload names other pods, so it is read from the namespaces of the settings only; and it has rows only
where requests came, since requests that it does not see may have come another way.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import pandas as pd

from gpucost.contract.frames import SERVING
from gpucost.domain.jobs import JobKind, WorkloadClass, workload_class
from gpucost.domain.time import Window
from gpucost.telemetry.evidence.frame_rows import FrameRow, frame_of
from gpucost.telemetry.evidence.gauge_runs import equal_steps
from gpucost.telemetry.prometheus.cluster_reader import (
    ClusterReader,
    own_label,
    points,
    with_renamed,
)
from gpucost.telemetry.prometheus.promql import (
    PromQL,
    by,
    equals,
    one_of,
    over_time,
    without,
)
from gpucost.telemetry.prometheus.query_response import instant_place
from gpucost.telemetry.prometheus.source_settings import ServingCounter

_SERVES = {kind.value for kind in JobKind if workload_class(kind) is WorkloadClass.SERVING}
_LOOKS = 4
# The subject of a series -> its pods, each (start, end, uid) of what it held.
_Names = Mapping[tuple[str, str], Sequence[tuple[int, int, str]]]


def read_serving(reader: ClusterReader, window: Window, allocations: pd.DataFrame) -> pd.DataFrame:
    """Rows of frames.SERVING for the servers among ``allocations``, in the steps of activity.

    One query where none of the counters exists, none where there are no servers.
    """
    rows = list[FrameRow]()
    servers = allocations[allocations["job_kind"].astype(object).isin(_SERVES).to_numpy(bool)]
    if servers.empty:
        return frame_of(SERVING, rows)
    pods, workloads = _named(servers, "pod"), _named(servers, "job")
    present = _present(reader, window, sorted({namespace for namespace, _ in pods}))
    for counter in reader.settings.serving:
        if counter.metric in present:
            names = workloads if counter.by == "workload" else pods
            for steps in equal_steps(window, reader.settings.activity_step_ms):
                rows += _rises(reader, counter, steps, names)
    return frame_of(SERVING, rows)


def _named(servers: pd.DataFrame, column: str) -> _Names:
    found = defaultdict[tuple[str, str], list[tuple[int, int, str]]](list)
    columns = (servers[name].tolist() for name in ("namespace", column, "start_ms", "end_ms", "pod_uid"))
    for namespace, name, start, end, uid in zip(*columns, strict=True):
        found[str(namespace), str(name)].append((start, end, str(uid)))
    return found


def _present(reader: ClusterReader, window: Window, namespaces: Sequence[str]) -> frozenset[str]:
    """Which of the counters exist: one query at a few instants."""
    names = sorted({counter.metric for counter in reader.settings.serving})
    if not names:
        return frozenset()
    others = {name for counter in reader.settings.serving for name in counter.from_namespaces}
    about = one_of("namespace", sorted({*namespaces, *others}))
    every = by("count", ("__name__",), reader.select(names, about))
    step = max(1, window.length_ms // _LOOKS)
    found = reader.matrix(every, window.start_ms, window.end_ms, step)
    return frozenset(series["metric"].get("__name__", "") for series in found)


def _rises(
    reader: ClusterReader, counter: ServingCounter, steps: Sequence[Window], names: _Names
) -> Iterator[FrameRow]:
    length = steps[0].length_ms
    first, edges = steps[0].start_ms, len(steps) + 1
    for series in reader.matrix(_readings(reader, counter, length, names), first, steps[-1].end_ms, length):
        if counter.by == "workload":
            name = own_label(series, counter.namespace_label), own_label(series, counter.name_label)
        else:
            labels = series["metric"]
            name = labels.get(counter.namespace_label, ""), labels.get(counter.name_label, "")
        held = names.get(name, ())
        values = np.full(edges, np.nan)
        for at, value in zip(*points(series), strict=True):
            values[instant_place(at, first, length, edges)] = value
        for n, rise in _steps(values, from_zero=not counter.is_bytes):
            if counter.by == "workload" and not rise > 0:
                continue
            step = steps[n]
            amounts = (float("nan"), rise) if counter.is_bytes else (rise, float("nan"))
            for start, end, uid in held:
                if start < step.end_ms and end > step.start_ms:
                    times = step.start_ms, step.end_ms
                    yield (reader.cluster, uid, counter.metric, *times, *amounts)


def _readings(reader: ClusterReader, counter: ServingCounter, range_ms: int, names: _Names) -> PromQL:
    """The last value of each step."""
    labels: Sequence[str] = (counter.namespace_label, counter.name_label)
    if counter.by == "workload":
        believed = one_of("namespace", counter.from_namespaces)
        labels = with_renamed(labels)
    else:
        believed = one_of(counter.namespace_label, sorted({namespace for namespace, _ in names}))
    only = [equals(label, value) for label, value in counter.only.items()]
    last = over_time("last_over_time", reader.select(counter.metric, believed, *only), range_ms)
    replicas = reader.settings.replica_labels
    return by("sum", labels, without("max", replicas, last) if replicas else last)


def _steps(values: np.ndarray, *, from_zero: bool) -> Iterator[tuple[int, float]]:
    """(step, increase) for steps with a reading. A counter that fell began again at 0; a counter that appears
    is taken to begin at 0 too, which can only report a request too many."""
    before = values[0]
    for n, value in enumerate(values[1:].tolist()):
        if np.isnan(value):
            continue
        if not np.isnan(before):
            yield n, value - before if value >= before else value
        elif from_zero:
            yield n, value
        before = value
