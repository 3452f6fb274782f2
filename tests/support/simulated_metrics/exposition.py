"""Frames as the metric contract's OpenMetrics text: what Prometheus would hold after scraping.

Scraped are the exporters, and the servers, which count their own requests. Any stretch of time can be written
on its own, so that months of samples need little memory; stretches that follow one another add up to the
whole.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from itertools import chain
from typing import Any, TypeAlias

from gpucost.attribution.frames import ClusterFrames
from gpucost.contract.metric_spec import EOF, MetricSpec, header
from gpucost.contract.metrics import (
    METRICS,
    NODE_BOARDS,
    NODE_END,
    NODE_GPU_ALLOCATABLE,
    NODE_GPU_CAPACITY,
    NODE_GPU_EXPECTED,
    NODE_GPU_REPLICAS,
    NODE_INFO,
    NODE_INFO_LABELS,
    NODE_SCHEDULABLE,
    NODE_START,
    OWNER_LABELS,
    POD_GPU_END,
    POD_GPU_REQUEST,
    POD_GPU_START,
    POD_OWNER_INFO,
    POD_RESOURCE_LABELS,
    PROVIDER_ID,
    STATE_UP,
)
from gpucost.domain.time import Window
from tests.support.simulated_metrics.series import ScrapeTimes, SeriesLife, SeriesRun
from tests.support.simulated_metrics.series_gpu import of_gpus
from tests.support.simulated_metrics.series_queues import of_queues
from tests.support.simulated_metrics.series_servers import of_servers

_UNIT_METRICS = {
    "capacity": NODE_GPU_CAPACITY,
    "allocatable": NODE_GPU_ALLOCATABLE,
    "expected": NODE_GPU_EXPECTED,
    "replicas": NODE_GPU_REPLICAS,
}
_Row: TypeAlias = dict[Hashable, Any]


def exposition(frames: ClusterFrames, scrape_ms: int, window: Window | None = None) -> Iterator[str]:
    """OpenMetrics text of all scrapes in ``window``, which fall on multiples of ``scrape_ms``.

    Scrapes happen only while the cluster was observed; ``window`` is all of that time unless given. Pods
    and nodes that end where observation ends have not ended; a pod with an END_UNKNOWN problem was only not
    seen any more. Each piece of text is the lines of one series; the last is the closing EOF.
    """
    scrapes = ScrapeTimes(frames.observed, scrape_ms, window)
    life = SeriesLife(frames)
    by_metric: dict[str, list[SeriesRun]] = {spec.name: [] for spec in METRICS}
    of_state = (_heartbeat(frames), _pods(frames, scrapes, life), _nodes(frames, scrapes, life))
    for run in chain(*of_state, of_queues(frames, scrapes), of_gpus(frames, scrapes, life)):
        by_metric[run.spec.name].append(run)
    for spec in METRICS:
        texts = (text for run in by_metric[spec.name] if (text := scrapes.lines(run)))
        first = next(texts, None)
        if first is not None:
            yield from chain((header(spec), first), texts)
    yield from of_servers(frames, scrapes)
    yield EOF


def _heartbeat(frames: ClusterFrames) -> Iterator[SeriesRun]:
    for row in frames.observed.to_dict("records"):
        yield SeriesRun(STATE_UP, {}, row["cluster"], 1, row["start_ms"], row["end_ms"])


def _pods(frames: ClusterFrames, scrapes: ScrapeTimes, life: SeriesLife) -> Iterator[SeriesRun]:
    rows = scrapes.near(frames.allocations).sort_values(["cluster", "pod_uid", "resource", "start_ms"])
    lives = rows.groupby(["cluster", *POD_RESOURCE_LABELS], as_index=False, sort=False).agg(
        {"count": "max", "start_ms": "min", "end_ms": "max"}
    )
    for row in lives.to_dict("records"):
        labels = {name: row[name] for name in POD_RESOURCE_LABELS}
        start_ms, end_ms = row["start_ms"], row["end_ms"]
        gone_ms = life.gone_ms(end_ms, row["pod_uid"])
        yield SeriesRun(POD_GPU_REQUEST, labels, row["cluster"], row["count"], start_ms, gone_ms)
        yield SeriesRun(POD_GPU_START, labels, row["cluster"], start_ms / 1000, start_ms, gone_ms)
        if life.has_ended(end_ms, row["pod_uid"]):
            yield SeriesRun(POD_GPU_END, labels, row["cluster"], end_ms / 1000, end_ms, gone_ms)
    last = ~rows.duplicated(["cluster", "pod_uid"], keep="last")
    for row, is_last in zip(rows.to_dict("records"), last, strict=True):
        labels = {label: row[column] for label, column in OWNER_LABELS.items()} | {"node": row["node"]}
        gone_ms = life.gone_ms(row["end_ms"], row["pod_uid"]) if is_last else row["end_ms"]
        yield SeriesRun(POD_OWNER_INFO, labels, row["cluster"], 1, row["start_ms"], gone_ms)


def _nodes(frames: ClusterFrames, scrapes: ScrapeTimes, life: SeriesLife) -> Iterator[SeriesRun]:
    ends = set(zip(frames.nodes["cluster"], frames.nodes["node"], frames.nodes["end_ms"], strict=True))

    def run(spec: MetricSpec, row: _Row, value: float, labels: Mapping[str, str]) -> SeriesRun:
        start_ms, end_ms = row["start_ms"], row["end_ms"]
        is_last = (row["cluster"], row["node"], end_ms) in ends
        gone_ms = life.gone_ms(end_ms) if is_last else end_ms
        since_ms = end_ms if spec is NODE_END else start_ms
        return SeriesRun(spec, {"node": row["node"], **labels}, row["cluster"], value, since_ms, gone_ms)

    for row in scrapes.near(frames.nodes).to_dict("records"):
        facts = {label: row[column] for label, column in NODE_INFO_LABELS.items()}
        yield run(NODE_INFO, row, 1, facts | {PROVIDER_ID: f"sim:///{row['node']}"})
        yield run(NODE_START, row, row["start_ms"] / 1000, {})
        if row["boards"] >= 0:
            yield run(NODE_BOARDS, row, row["boards"], {})
        if life.has_ended(row["end_ms"]):
            yield run(NODE_END, row, row["end_ms"] / 1000, {})
    capacity = scrapes.near(frames.capacity).sort_values(["cluster", "node", "resource", "start_ms"])
    for row in capacity.to_dict("records"):
        for column, spec in _UNIT_METRICS.items():
            if row[column] >= 0:
                yield run(spec, row, row[column], {"resource": row["resource"]})
    for row in capacity.drop_duplicates(["cluster", "node", "start_ms"]).to_dict("records"):
        yield run(NODE_SCHEDULABLE, row, row["schedulable"], {})
