"""When there was what: the month by hours, the targets of the exporters, and the gaps between scrapes."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from itertools import pairwise
from statistics import median

from gpucost.contract import dcgm
from gpucost.contract import kube_state as ksm
from gpucost.contract.probe import OWN_STATE, Gaps, Scrapes, Seen
from gpucost.domain.time import HOUR_MS, SECOND_MS, Window
from gpucost.telemetry.answers import Series
from gpucost.telemetry.doctor.asking import Asker, grouped
from gpucost.telemetry.doctor.gpus import METRICS, Target, base_of
from gpucost.telemetry.doctor.state import counted
from gpucost.telemetry.promql import PromQL, by, one_of, over_time
from gpucost.telemetry.reader import points

STEP_MS = HOUR_MS
_LOOKED_AT = 3
_TARGET = ("job", "instance")
_GPU_FIELDS = (dcgm.Field.MEMORY_USED, dcgm.Field.GRAPHICS, dcgm.Field.BUSY)


def read_seen(
    asker: Asker, asked: Window, counts: Iterable[Mapping[str, int]]
) -> dict[str, dict[str, Seen]] | None:
    """By cluster and kind of series, when it was there. None where it cannot be read.

    Of dcgm-exporter only the field by which rows are counted now is looked at, under all its names; of
    several fields, a month of thousands of GPUs would be too much for one question.
    """
    kinds_of = {ksm.NODE_CREATED: "state", OWN_STATE: "own", **dict.fromkeys(_gpu_names(counts), "gpus")}
    expression = counted(asker, sorted(kinds_of))
    found = asker.matrix("the month by hours", expression, asked.start_ms, asked.end_ms, STEP_MS)
    if found is None:
        return None
    instants: dict[str, dict[str, set[int]]] = {}
    for series in found:
        kind = kinds_of[series["metric"]["__name__"]]
        kinds = instants.setdefault(asker.cluster_of(series), {})
        kinds.setdefault(kind, set()).update(points(series)[0])
    return {
        cluster: {
            kind: Seen(min(at), max(at), sum(each < asked.end_ms for each in at))
            for kind, at in kinds.items()
        }
        for cluster, kinds in instants.items()
    }


def _gpu_names(counts: Iterable[Mapping[str, int]]) -> list[str]:
    bases = {name.upper() for series in counts for name in base_of(series)}
    fields = {dcgm.NAMES[name].field for name in bases} or set(_GPU_FIELDS)
    return [name for name in METRICS if dcgm.NAMES[name.upper()].field in fields]


def targets_of(asker: Asker, result: Iterable[Series]) -> set[Target]:
    """Where these series were scraped."""
    return {
        (asker.cluster_of(series), series["metric"].get("job", ""), series["metric"].get("instance", ""))
        for series in result
    }


def read_up(asker: Asker, jobs: Collection[str], at_ms: int) -> list[Series] | None:
    """``up`` of these jobs."""
    if not jobs:
        return []
    return asker.vector("targets", asker.select(ksm.UP, one_of("job", sorted(jobs))), at_ms)


def read_scrapes(asker: Asker, up: list[Series], at_ms: int) -> dict[str, tuple[Scrapes, ...]]:
    """By cluster, its scrape jobs: targets, those down, and how often they are scraped."""
    if not up:
        return {}
    intervals = _intervals(asker, up, at_ms)
    found: dict[str, list[Scrapes]] = {}
    for cluster, series in grouped(asker, up).items():
        for job in sorted({each["metric"].get("job", "") for each in series}):
            values = [float(each["value"][1]) for each in series if each["metric"].get("job", "") == job]
            down = sum(value == 0 for value in values)
            interval = intervals.get((cluster, job))
            found.setdefault(cluster, []).append(Scrapes(job, len(values), down, interval))
    return {cluster: tuple(each) for cluster, each in found.items()}


def _intervals(asker: Asker, up: list[Series], at_ms: int) -> dict[tuple[str, str], int]:
    """By cluster and job: the median distance of the samples of a few of its targets in the last hour, to the
    second, as scrapes jitter."""
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


def read_gaps(asker: Asker, cluster: str, asked: Window, node: str) -> Gaps | None:
    """Where the scrapes of kube-state-metrics are apart by more than ``max_gap``, from the first to the last
    in the month; ``node`` is any node it shows. None where nothing says when it was scraped."""
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


def _beats(asker: Asker, cluster: str, sets: list[Series], one: PromQL) -> Iterable[tuple[PromQL, str]]:
    """What says when there were scrapes, and how it is counted: ``up`` of whatever showed the node, else
    samples of the node."""
    targets = [sorted({each.get(name, "") for each in sets}) for name in _TARGET]
    matchers = [one_of(name, values) for name, values in zip(_TARGET, targets, strict=True)]
    yield asker.select(ksm.UP, *matchers, cluster=cluster), "sum_over_time"
    yield one, "count_over_time"


def _exact(asker: Asker, beats: PromQL, gaps: Gaps) -> Gaps:
    """With the longest gap to the millisecond, by the samples around it."""
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


def _of(series: Series) -> Iterable[tuple[int, float]]:
    return zip(*points(series), strict=True)


def _gaps(seen: list[int], cell: int) -> Gaps:
    """Of the ends of cells with a scrape: a gap is as long as they are apart, give or take a cell."""
    longest, start, missing = 0, seen[0], 0
    for before, after in pairwise(seen):
        if after - before == cell:
            continue
        missing += after - before
        if after - before > longest:
            longest, start = after - before, before
    return Gaps(seen[-1] - seen[0] + cell, missing, longest, start, cell)
