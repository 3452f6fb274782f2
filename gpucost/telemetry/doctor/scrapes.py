"""When series existed: the month by hours, the targets of the exporters, and the gaps between scrapes."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from itertools import pairwise
from statistics import median

from gpucost.contract import dcgm
from gpucost.contract import kube_state as ksm
from gpucost.contract.probe import OWN_STATE, ScrapeGaps, ScrapeJob, SeriesPresence
from gpucost.domain.time import HOUR_MS, MINUTE_MS, SECOND_MS, Window
from gpucost.telemetry.doctor.gpus import METRICS, ExporterTarget, base_of
from gpucost.telemetry.doctor.probe_reader import ProbeReader, grouped
from gpucost.telemetry.doctor.state import counted
from gpucost.telemetry.prometheus.cluster_reader import points
from gpucost.telemetry.prometheus.promql import (
    PromQL,
    by,
    one_of,
    over_time,
)
from gpucost.telemetry.prometheus.query_response import ResultSeries

ProbedKind = tuple[str, str]
"""Cluster and kind of series."""
_LOOKED_AT = 3
_TARGET = ("job", "instance")
_GPU_FIELDS = (dcgm.DcgmField.MEMORY_USED, dcgm.DcgmField.GRAPHICS, dcgm.DcgmField.BUSY)


def read_seen(
    asker: ProbeReader, asked: Window, counts: Iterable[Mapping[str, int]]
) -> dict[str, dict[str, SeriesPresence]] | None:
    """By cluster and kind of series, the time in which it had samples. None where it cannot be read.

    Of dcgm-exporter only the field that defines the rows now is queried, under all its names: several fields
    over a month of thousands of GPUs would be too large for one query.
    """
    kinds_of = {ksm.NODE_CREATED: "state", OWN_STATE: "own", **dict.fromkeys(_gpu_names(counts), "gpus")}
    hours = _cells(asker, kinds_of, asked, HOUR_MS)
    if hours is None:
        return None
    first = _closely(asker, kinds_of, {key: cells[0] for key, cells in hours.items()}, 0)
    last = _closely(asker, kinds_of, {key: cells[-1] for key, cells in hours.items()}, -1)
    found: dict[str, dict[str, SeriesPresence]] = {}
    for (cluster, kind), cells in hours.items():
        found.setdefault(cluster, {})[kind] = SeriesPresence(
            first[cluster, kind].end_ms, last[cluster, kind].end_ms, len(cells)
        )
    return found


def _closely(
    asker: ProbeReader, kinds_of: Mapping[str, str], edges: Mapping[ProbedKind, Window], which: int
) -> Mapping[ProbedKind, Window]:
    """The second of the first or last sample within its cell; the whole cell where that cannot be read. Cells
    that begin or end together, as on a new monitoring stack, share one query."""
    known = dict(edges)
    for step_ms in (MINUTE_MS, SECOND_MS):
        for cell in sorted(set(known.values())):
            finer = _cells(asker, kinds_of, cell, step_ms) or {}
            known |= {key: finer[key][which] for key, edge in known.items() if edge == cell and key in finer}
    return known


def _cells(
    asker: ProbeReader, kinds_of: Mapping[str, str], span: Window, step_ms: int
) -> Mapping[ProbedKind, list[Window]] | None:
    """By cluster and kind, the steps of ``span`` that have any sample, in order; the last step may be
    shorter. A sample exactly at an edge belongs to the step that ends there. None where it cannot be read."""
    whole_ms = span.length_ms - span.length_ms % step_ms
    found: dict[ProbedKind, set[Window]] = {}
    if whole_ms:
        ends = span.start_ms + step_ms, span.start_ms + whole_ms
        asked = counted(asker, sorted(kinds_of), range_ms=step_ms - 1)
        answer = asker.matrix("when there was what", asked, *ends, step_ms)
        if answer is None:
            return None
        for series in answer:
            key = asker.cluster_of(series), kinds_of[series["metric"]["__name__"]]
            cells = (Window(at - step_ms, at) for at in points(series)[0])
            found.setdefault(key, set()).update(cells)
    if whole_ms < span.length_ms:
        rest = Window(span.start_ms + whole_ms, span.end_ms)
        asked = counted(asker, sorted(kinds_of), range_ms=max(1, rest.length_ms - 1))
        answer = asker.vector("when there was what", asked, rest.end_ms)
        if answer is None:
            return None
        for series in answer:
            key = asker.cluster_of(series), kinds_of[series["metric"]["__name__"]]
            found.setdefault(key, set()).add(rest)
    return {key: sorted(cells) for key, cells in found.items()}


def _gpu_names(counts: Iterable[Mapping[str, int]]) -> list[str]:
    bases = {name.upper() for series in counts for name in base_of(series)}
    fields = {dcgm.NAMES[name].field for name in bases} or set(_GPU_FIELDS)
    return [name for name in METRICS if dcgm.NAMES[name.upper()].field in fields]


def targets_of(asker: ProbeReader, result: Iterable[ResultSeries]) -> set[ExporterTarget]:
    """The targets that these series were scraped from."""
    return {
        (asker.cluster_of(series), series["metric"].get("job", ""), series["metric"].get("instance", ""))
        for series in result
    }


def read_up(asker: ProbeReader, jobs: Collection[str], at_ms: int) -> list[ResultSeries] | None:
    """``up`` of these jobs."""
    if not jobs:
        return []
    return asker.vector("targets", asker.select(ksm.UP, one_of("job", sorted(jobs))), at_ms)


def read_scrapes(asker: ProbeReader, up: list[ResultSeries], at_ms: int) -> dict[str, tuple[ScrapeJob, ...]]:
    """By cluster, its scrape jobs: targets, those down, and how often they are scraped."""
    if not up:
        return {}
    intervals = _intervals(asker, up, at_ms)
    found: dict[str, list[ScrapeJob]] = {}
    for cluster, series in grouped(asker, up).items():
        for job in sorted({each["metric"].get("job", "") for each in series}):
            values = [float(each["value"][1]) for each in series if each["metric"].get("job", "") == job]
            down = sum(value == 0 for value in values)
            interval = intervals.get((cluster, job))
            found.setdefault(cluster, []).append(ScrapeJob(job, len(values), down, interval))
    return {cluster: tuple(each) for cluster, each in found.items()}


def _intervals(asker: ProbeReader, up: list[ResultSeries], at_ms: int) -> dict[tuple[str, str], int]:
    """By cluster and job: the median distance between samples of a few of its targets in the last hour,
    rounded to the second since scrapes jitter."""
    targets: dict[tuple[str, str], set[str]] = {}
    for cluster, job, instance in targets_of(asker, up):
        targets.setdefault((cluster, job), set()).add(instance)
    some_of = {instance for found in targets.values() for instance in sorted(found)[:_LOOKED_AT]}
    jobs = sorted({job for _, job in targets})
    selector = asker.select(ksm.UP, one_of("job", jobs), one_of("instance", sorted(some_of)))
    apart: dict[tuple[str, str], list[int]] = {}
    for series in asker.raw("scrape intervals", selector, max(0, at_ms - HOUR_MS), at_ms) or ():
        key = asker.cluster_of(series), series["metric"].get("job", "")
        instants = sorted(points(series)[0])
        apart.setdefault(key, []).extend(after - before for before, after in pairwise(instants))
    return {
        key: max(1, round(median(found) / SECOND_MS)) * SECOND_MS for key, found in apart.items() if found
    }


def read_gaps(asker: ProbeReader, cluster: str, asked: Window, node: str) -> ScrapeGaps | None:
    """Where a stretch of ``max_gap`` has no scrape of kube-state-metrics, from the first to the last in the
    month, so every gap of twice that, and some shorter ones; ``node`` is any node it shows. None where no
    series says when it was scraped."""
    cell = asker.settings.max_gap_ms
    one = asker.select(ksm.NODE_CREATED, one_of("node", [node]), cluster=cluster)
    sets = asker.label_sets("targets of kube-state-metrics", one, asked.start_ms, asked.end_ms)
    if not sets or asked.end_ms - asked.start_ms < cell:
        return None
    for beats, function in _beats(asker, cluster, sets, one):
        expression = by("sum", (), over_time(function, beats, cell))
        found = asker.matrix("gaps between scrapes", expression, asked.start_ms + cell, asked.end_ms, cell)
        seen = sorted({at for each in found or () for at, value in _of(each) if value > 0})
        if seen:
            return _exact(asker, beats, _gaps(seen, cell))
    return None


def _beats(
    asker: ProbeReader, cluster: str, sets: list[ResultSeries], one: PromQL
) -> Iterable[tuple[PromQL, str]]:
    """The series whose samples mark scrapes, and how they are counted: ``up`` of the targets that showed the
    node, else samples of the node."""
    targets = [sorted({each.get(name, "") for each in sets}) for name in _TARGET]
    matchers = [one_of(name, values) for name, values in zip(_TARGET, targets, strict=True)]
    yield asker.select(ksm.UP, *matchers, cluster=cluster), "sum_over_time"
    yield one, "count_over_time"


def _exact(asker: ProbeReader, beats: PromQL, gaps: ScrapeGaps) -> ScrapeGaps:
    """The same gaps, with the longest one to the millisecond, from the samples around it."""
    if not gaps.longest_ms:
        return gaps
    start = gaps.longest_from_ms - gaps.cell_ms
    end = gaps.longest_from_ms + gaps.longest_ms
    found = asker.raw("the longest gap", beats, max(0, start), end) or []
    instants = sorted({at for each in found for at, value in _of(each) if value > 0})
    pairs = [(after - before, before) for before, after in pairwise(instants)]
    if not pairs:
        return gaps
    longest, begins = max(pairs)
    missing = gaps.missing_ms - gaps.longest_ms + longest
    return replace(gaps, missing_ms=missing, longest_ms=longest, longest_from_ms=begins)


def _of(series: ResultSeries) -> Iterable[tuple[int, float]]:
    return zip(*points(series), strict=True)


def _gaps(seen: list[int], cell: int) -> ScrapeGaps:
    """Gaps between the ends of cells that have a scrape; each length is exact to one cell."""
    longest, start, missing = 0, seen[0], 0
    for before, after in pairwise(seen):
        if after - before == cell:
            continue
        missing += after - before
        if after - before > longest:
            longest, start = after - before, before
    return ScrapeGaps(seen[-1] - seen[0] + cell, missing, longest, start, cell)
