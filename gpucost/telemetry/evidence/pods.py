"""Pods of one window: a few aggregated queries for most of them, raw samples for the exceptions.

A pod is identified by its uid, whatever its other labels are; its units are counted per resource.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

import numpy as np

from gpucost.contract.gpu_metrics import POD_LABELS
from gpucost.contract.metrics import (
    OWNER_LABELS,
    POD_GPU_END,
    POD_GPU_REQUEST,
    POD_GPU_START,
    POD_OWNER_INFO,
)
from gpucost.domain.errors import DataProblem, DataProblemCode
from gpucost.telemetry.evidence.evidence_rule import (
    ScrapeEvidence,
    as_expected,
    in_force,
    lives,
)
from gpucost.telemetry.evidence.frame_rows import (
    instants,
    timeline,
    to_millis,
    unit_count,
)
from gpucost.telemetry.prometheus.cluster_reader import (
    ClusterReader,
    column,
    numbers,
    own_column,
    own_label,
    points,
    with_renamed,
)
from gpucost.telemetry.prometheus.promql import (
    PromQL,
    by,
    differing,
    one_of,
    over_time,
    union,
)
from gpucost.telemetry.prometheus.query_response import ResultSeries, needed, whole_count

_SUBJECT = ("pod_uid", "resource")
_TIMELINES = (POD_GPU_REQUEST.name, POD_GPU_START.name, POD_GPU_END.name)
_HOLDER = ("node", *OWNER_LABELS)
_OWNER_QUERY = (*with_renamed(POD_LABELS), *(label for label in OWNER_LABELS if label not in POD_LABELS))
_FOREVER_MS = 1 << 62

# (pod uid, resource), and (uid, resource, units, start, end)
OwnPodResource = tuple[str, str]
OwnPodSpan = tuple[str, str, int, int, int]
# The interval in which a pod had these values of _HOLDER.
OwnerSpans = list[tuple[int, int, tuple[str, ...]]]


def read_pods(
    reader: ClusterReader, evidence: ScrapeEvidence
) -> tuple[list[tuple[object, ...]], list[DataProblem]]:
    """Rows of frames.ALLOCATIONS, clipped to the window, and problems."""
    spans, odd = _plain_spans(reader, evidence)
    odd_spans, problems = _odd_spans(reader, evidence, odd)
    window = evidence.window
    clipped = [
        (uid, resource, units, max(start, window.start_ms), min(end, window.end_ms))
        for uid, resource, units, start, end in (*spans, *odd_spans)
        if units > 0 and start < window.end_ms and end > window.start_ms
    ]
    owners = _owners(reader, evidence, {span[0] for span in clipped})
    return [
        (reader.cluster, *holder, resource, units, max(start, since), min(end, until))
        for uid, resource, units, start, end in clipped
        for since, until, holder in owners[uid]
        if max(start, since) < min(end, until)
    ], problems


def _plain_spans(reader: ClusterReader, evidence: ScrapeEvidence) -> tuple[list[OwnPodSpan], set[str]]:
    """Spans of the pods whose samples are as many as their timestamps imply; uids of all the others."""
    claims = _claims(reader, evidence)
    requests, starts, ends = (claims[name] for name in _TIMELINES)
    subjects = list(requests)
    samples = _counts(reader, evidence, POD_GPU_REQUEST.name)
    ended = _counts(reader, evidence, POD_GPU_END.name)
    start_ms = to_millis([starts.get(subject) for subject in subjects])
    end_ms = to_millis([ends.get(subject) for subject in subjects])
    counted = [np.array([each.get(subject, 0) for subject in subjects]) for each in (samples, ended)]
    plain = as_expected(start_ms, end_ms, counted[0], counted[1], evidence)
    until = np.where(counted[1] > 0, end_ms, evidence.window.end_ms)
    changed = _changed(reader, evidence)
    spans: list[OwnPodSpan] = []
    odd = {uid for uid, resource in samples if (uid, resource) not in requests}
    rows = zip(subjects, start_ms.tolist(), until.tolist(), plain.tolist(), strict=True)
    for (uid, resource), start, end, is_plain in rows:
        units = unit_count(requests[uid, resource])
        if is_plain and units is not None and uid not in changed:
            spans.append((uid, resource, units, start, end))
        else:
            odd.add(uid)
    return spans, odd


def _claims(reader: ClusterReader, evidence: ScrapeEvidence) -> dict[str, dict[OwnPodResource, float]]:
    """Per metric and subject, the last value in the evidence; the larger one where two series differ."""
    latest = over_time("last_over_time", reader.select(_TIMELINES), evidence.range_ms)
    result = reader.vector(by("max", ("__name__", *_SUBJECT), latest), evidence.end_ms)
    claims: dict[str, dict[OwnPodResource, float]] = {name: {} for name in _TIMELINES}
    labels = zip(*(column(result, label) for label in _SUBJECT), strict=True)
    for each, (uid, resource), value in zip(result, labels, numbers(result), strict=True):
        claims[needed(each, "__name__", _TIMELINES)][uid, resource] = value
    return claims


def _counts(reader: ClusterReader, evidence: ScrapeEvidence, metric: str) -> dict[OwnPodResource, int]:
    counted = over_time("count_over_time", reader.select(metric), evidence.range_ms)
    result = reader.vector(by("sum", _SUBJECT, counted), evidence.end_ms)
    subjects = zip(*(column(result, label) for label in _SUBJECT), strict=True)
    return dict(zip(subjects, map(whole_count, numbers(result)), strict=True))


def _changed(reader: ClusterReader, evidence: ScrapeEvidence) -> set[str]:
    """Pods whose units or start are not the same in all samples and series of the evidence."""
    parts = []
    for metric in (POD_GPU_REQUEST.name, POD_GPU_START.name):
        highest, lowest = (
            by(extreme, _SUBJECT, over_time(f"{extreme}_over_time", reader.select(metric), evidence.range_ms))
            for extreme in ("max", "min")
        )
        parts.append(differing(highest, lowest))
    return set(column(reader.vector(by("count", ("pod_uid",), union(*parts)), evidence.end_ms), "pod_uid"))


def _odd_spans(
    reader: ClusterReader, evidence: ScrapeEvidence, odd: set[str]
) -> tuple[list[OwnPodSpan], list[DataProblem]]:
    if not odd:
        return [], []
    raw = reader.raw_where(_TIMELINES, ("pod_uid",), odd, evidence.start_ms, evidence.end_ms)
    by_subject: dict[OwnPodResource, list[ResultSeries]] = defaultdict(list)
    for series in raw:
        by_subject[own_label(series, "pod_uid"), series["metric"].get("resource", "")].append(series)
    spans: list[OwnPodSpan] = []
    problems: list[DataProblem] = []
    for (uid, resource), group in sorted(by_subject.items()):
        requests, starts, ends = (timeline(group, name, evidence.stale) for name in _TIMELINES)
        seen = sorted(requests)
        if not seen:
            continue
        for life in lives(seen, instants(starts, seen), instants(ends, seen), evidence):
            if life.doubt is not None:
                problems.append(DataProblem(life.doubt, reader.cluster, uid, f"pod: {life.why}"))
            for start, end, value in in_force(seen, [requests[at] for at in seen], life):
                units = unit_count(value)
                if units is None:
                    why = f"pod: {value!r} units of {resource}"
                    problems.append(DataProblem(DataProblemCode.INTERVAL_REFUSED, reader.cluster, uid, why))
                else:
                    spans.append((uid, resource, units, start, end))
    return spans, problems


def _owners(reader: ClusterReader, evidence: ScrapeEvidence, uids: set[str]) -> Mapping[str, OwnerSpans]:
    """The owner of each pod over time: nearly always one entry that is valid for ever."""
    found = _label_sets(reader, evidence, reader.select(POD_OWNER_INFO.name), _OWNER_QUERY, uids)
    found |= _identities(reader, evidence, uids - found.keys())
    several = {uid for uid, sets in found.items() if len(sets) > 1}
    owners: dict[str, OwnerSpans] = {
        uid: [(-_FOREVER_MS, _FOREVER_MS, next(iter(sets)))] for uid, sets in found.items()
    }
    for uid, seen in _owner_samples(reader, evidence, several).items():
        times = sorted(seen)
        changes = [at for before, at in pairwise(times) if seen[before] != seen[at]]
        since = [-_FOREVER_MS, *changes]
        values = [seen[times[0]], *(seen[at] for at in changes)]
        owners[uid] = list(zip(since, [*changes, _FOREVER_MS], values, strict=True))
    return owners


def _identities(
    reader: ClusterReader, evidence: ScrapeEvidence, uids: set[str]
) -> dict[str, set[tuple[str, ...]]]:
    """For pods without owner series: the labels of their request series. One label set each, the smallest."""
    if not uids:
        return {}
    selector = reader.select(POD_GPU_REQUEST.name, one_of("pod_uid", sorted(uids)))
    found = _label_sets(reader, evidence, selector, with_renamed(POD_LABELS), uids)
    return {uid: {min(sets)} for uid, sets in found.items()}


def _label_sets(
    reader: ClusterReader, evidence: ScrapeEvidence, selector: PromQL, labels: Sequence[str], uids: set[str]
) -> dict[str, set[tuple[str, ...]]]:
    latest = over_time("last_over_time", selector, evidence.range_ms)
    result = reader.vector(by("group", labels, latest), evidence.end_ms)
    found: dict[str, set[tuple[str, ...]]] = {}
    for holder in _holders(result):
        uid = holder[_HOLDER.index("pod_uid")]
        if uid in uids:
            found.setdefault(uid, set()).add(holder)
    return found


def _holders(result: Sequence[ResultSeries]) -> Iterable[tuple[str, ...]]:
    columns = (
        own_column(result, label) if label in POD_LABELS else column(result, label) for label in _HOLDER
    )
    return zip(*columns, strict=True)


def _owner_samples(
    reader: ClusterReader, evidence: ScrapeEvidence, uids: set[str]
) -> dict[str, dict[int, tuple[str, ...]]]:
    if not uids:
        return {}
    raw = reader.raw_where(POD_OWNER_INFO.name, ("pod_uid",), uids, evidence.start_ms, evidence.end_ms)
    samples: dict[str, dict[int, tuple[str, ...]]] = defaultdict(dict)
    for series, holder in zip(raw, _holders(raw), strict=True):
        seen = samples[holder[_HOLDER.index("pod_uid")]]
        for at in points(series)[0]:
            seen[at] = min(seen.get(at, holder), holder)
    return samples
