"""Pods of one window out of kube-state-metrics: a few aggregated queries, raw samples for the odd ones.

A pod holds what it requests from the time it was scheduled. It held until its completion time, once its phase
says that it ended; where it went without saying when, as deleted and evicted pods do, until half-way between
the last scrape that showed it running and the next.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from gpucost.contract import kube_state as ksm
from gpucost.domain.problems import Problem, ProblemCode
from gpucost.domain.time import SECOND_MS
from gpucost.telemetry.answers import Series, whole_count
from gpucost.telemetry.evidence import NONE, Evidence, IntArray, Life, as_expected, lives
from gpucost.telemetry.existing.lifetimes import are_whole, endings
from gpucost.telemetry.existing.reader import ExistingReader
from gpucost.telemetry.existing.requests import PodName, PodRequests, Subject
from gpucost.telemetry.existing.shards import ScrapeGroup, ScrapeGroups, TargetKey
from gpucost.telemetry.promql import PromQL, by, one_of, over_time, where_any
from gpucost.telemetry.reader import column, numbers, own_label, points
from gpucost.telemetry.samples import to_millis

_STARTS = (ksm.SCHEDULED, ksm.STARTED, ksm.CREATED)
"""What says when a pod began to hold its units, the best first: the kubelet's start is a little later, and
the object's creation earlier, by the time that the pod waited."""


@dataclass(frozen=True, slots=True)
class Span:
    """Units that a pod held; its end may be off by ``off_ms``."""

    uid: str
    resource: str
    units: int
    start_ms: int
    end_ms: int
    off_ms: int = 0


@dataclass(frozen=True)
class Pods:
    """Spans, not clipped, and names by uid."""

    spans: Sequence[Span]
    names: Mapping[str, PodName]
    problems: Sequence[Problem]


@dataclass(frozen=True)
class _Told:
    """What objects say of themselves, and how many scrapes showed them ended, by uid."""

    claims: Mapping[str, Mapping[str, float]]
    ended: Mapping[str, int]

    def start_ms(self, uids: Sequence[str]) -> IntArray:
        claims = (self.claims.get(uid, {}) for uid in uids)
        return to_millis([next((of[name] for name in _STARTS if name in of), None) for of in claims])

    def completed_ms(self, uids: Sequence[str]) -> IntArray:
        return to_millis([self.claims.get(uid, {}).get(ksm.COMPLETED) for uid in uids])


def read_pods(reader: ExistingReader, groups: ScrapeGroups) -> Pods:
    """All pods that held GPUs at some time of the evidence."""
    evidence = groups.evidence
    requests = PodRequests(reader, groups)
    by_phase = _ended(reader, evidence)
    told = _Told(_claims(reader, evidence), _completed(reader, evidence) if by_phase is None else by_phase)
    rows: dict[frozenset[TargetKey], list[Subject]] = defaultdict(list)
    for uid, resource in requests.units:
        rows[frozenset(requests.targets.get(uid, ()))].append((uid, resource))
    spans: list[Span] = []
    problems: list[Problem] = []
    unseen = _never_began(reader, evidence, requests, told)
    for targets, subjects in rows.items():
        group = groups.of(targets)
        plain, odd = _counted(group, [each for each in subjects if each[0] not in unseen], requests, told)
        odd_spans, found = _odd_spans(reader, group, requests, odd, told)
        spans += [*plain, *odd_spans]
        problems += found
    if by_phase is None and told.ended:
        problems.append(_missing(reader, evidence, ksm.PHASE, "a pod counts as ended once a container has"))
    if any(ksm.SCHEDULED not in told.claims.get(uid, {}) for uid, _ in requests.units):
        instead = "such pods count from when the kubelet saw them, or from their creation"
        problems.append(_missing(reader, evidence, ksm.SCHEDULED, instead))
    return Pods(spans, requests.names, [*requests.problems, *problems])


def _counted(
    group: ScrapeGroup, rows: Sequence[Subject], requests: PodRequests, told: _Told
) -> tuple[list[Span], set[str]]:
    """Spans of the pods of which counting samples is enough, and the uids of all the others."""
    evidence = group.evidence
    uids = [uid for uid, _ in rows]
    start_ms = told.start_ms(uids)
    ended_samples = np.array([told.ended.get(uid, 0) for uid in uids], dtype=np.int64)
    samples = np.array([requests.samples.get(uid, 0) for uid in uids], dtype=np.int64)
    # Two servers behind one address may not have the same samples.
    open_samples = np.maximum(samples - ended_samples, 0)
    end_ms = np.where(ended_samples > 0, told.completed_ms(uids), NONE)
    plain = as_expected(start_ms, end_ms, open_samples + ended_samples, ended_samples, evidence)
    plain &= (ended_samples == 0) | (end_ms != NONE)
    # The last scrapes may be too late for what ended just now.
    lasting = np.array([uid in requests.here for uid in uids], dtype=np.bool_) & (ended_samples == 0)
    whole = group.is_whole and are_whole(start_ms, open_samples, lasting & (start_ms > 0), evidence)
    gone = endings(start_ms, open_samples, evidence, whole=whole)
    vanished = gone.told & ~plain & (end_ms == NONE) & (start_ms > 0) & (gone.end_ms >= start_ms)
    # Ended before anything of this was read, and nobody says when.
    over = (open_samples == 0) & (ended_samples > 0) & (end_ms == NONE) & (start_ms < evidence.start_ms)
    spans: list[Span] = []
    odd: set[str] = set()
    for at, (uid, resource) in enumerate(rows):
        units = requests.units[uid, resource]
        if plain[at]:
            until = int(end_ms[at]) if ended_samples[at] else evidence.window.end_ms
            spans.append(Span(uid, resource, units, int(start_ms[at]), until))
        elif over[at]:
            continue
        # What is there at the very end, and was not in all scrapes before, was missed at any time.
        elif vanished[at] and (ended_samples[at] or uid not in requests.here):
            end, off = int(gone.end_ms[at]), int(gone.off_ms[at])
            spans.append(Span(uid, resource, units, int(start_ms[at]), end, off))
        else:
            odd.add(uid)
    return spans, odd


def _never_began(
    reader: ExistingReader, evidence: Evidence, requests: PodRequests, told: _Told
) -> frozenset[str]:
    """Uids of pods that the kubelet refused (``UnexpectedAdmissionError``, ``OutOfnvidia.com/gpu``): ended in
    all scrapes, without a time of their end, and refused by what is said of them, or no container of theirs
    ever had a status. By that nobody, where it is told of no pod."""
    ended = {
        uid
        for uid, _ in requests.units
        if 0 < requests.samples.get(uid, 0) <= told.ended.get(uid, 0)
        and ksm.COMPLETED not in told.claims.get(uid, {})
    }
    if not ended:
        return frozenset()
    began = over_time(
        "last_over_time", reader.select((ksm.CONTAINER_INFO, ksm.INITIALIZED)), evidence.range_ms
    )
    result = reader.vector(_of_gpus(reader, by("group", ("uid",), began), evidence), evidence.end_ms)
    refusals = reader.select(ksm.STATUS_REASON, one_of("reason", ksm.REFUSALS))
    latest = by("max", ("uid",), over_time("last_over_time", refusals, evidence.range_ms))
    said = reader.vector(_of_gpus(reader, latest, evidence), evidence.end_ms)
    refused = {uid for uid, is_so in zip(column(said, "uid"), numbers(said), strict=True) if is_so == 1}
    without = ended - {*column(result, "uid")} if result else frozenset()
    return frozenset(ended & refused | without)


def _missing(reader: ExistingReader, evidence: Evidence, metric: str, instead: str) -> Problem:
    detail = f"{metric} is not there for all pods: {instead}"
    code, start_ms = ProblemCode.NOT_OBSERVED, evidence.window.start_ms
    return Problem(code, reader.cluster, "kube-state-metrics", detail, None, start_ms)


def _of_gpus(reader: ExistingReader, expression: PromQL, evidence: Evidence) -> PromQL:
    """Of ``expression``, which has uids, what is of pods that request GPUs."""
    gpus = over_time("last_over_time", reader.select(ksm.REQUESTS, reader.is_gpu), evidence.range_ms)
    return where_any(expression, gpus, ("uid",))


def _claims(reader: ExistingReader, evidence: Evidence) -> Mapping[str, Mapping[str, float]]:
    """By uid: each time that its object claims, by metric."""
    latest = over_time("last_over_time", reader.select((*_STARTS, ksm.COMPLETED)), evidence.range_ms)
    result = reader.vector(
        _of_gpus(reader, by("max", ("__name__", "uid"), latest), evidence), evidence.end_ms
    )
    claims: dict[str, dict[str, float]] = defaultdict(dict)
    names = zip(column(result, "__name__"), column(result, "uid"), strict=True)
    for (name, uid), value in zip(names, numbers(result), strict=True):
        claims[uid][name] = value
    return claims


def _ended(reader: ExistingReader, evidence: Evidence) -> Mapping[str, int] | None:
    """By uid: how many samples showed it ended; None where no phase of any pod is told."""
    phases = reader.select(ksm.PHASE, one_of("phase", ksm.ENDED_PHASES))
    counted = by("sum", ("uid",), over_time("sum_over_time", phases, evidence.range_ms))
    result = reader.vector(_of_gpus(reader, counted, evidence), evidence.end_ms)
    found = dict(zip(column(result, "uid"), map(whole_count, numbers(result)), strict=True))
    return found or None


def _completed(reader: ExistingReader, evidence: Evidence) -> Mapping[str, int]:
    """As ``_ended``, by the completion times alone: where phases are not told, the best there is."""
    counted = over_time("count_over_time", reader.select(ksm.COMPLETED), evidence.range_ms)
    result = reader.vector(_of_gpus(reader, by("sum", ("uid",), counted), evidence), evidence.end_ms)
    return dict(zip(column(result, "uid"), map(whole_count, numbers(result)), strict=True))


def _odd_spans(
    reader: ExistingReader, group: ScrapeGroup, requests: PodRequests, odd: set[str], told: _Told
) -> tuple[list[Span], list[Problem]]:
    """By all samples: what was there on both sides of a gap, and what contradicts itself."""
    if not odd:
        return [], []
    evidence = group.evidence
    names = (ksm.REQUESTS, ksm.PHASE, ksm.COMPLETED)
    raw = reader.raw_where(names, ("uid",), odd, evidence.start_ms, evidence.end_ms)
    seen, ended = _sightings(reader, raw, evidence)
    # What is missing in a scrape that showed no pods may have gone on.
    shown = np.union1d(group.shown, sorted({at for each in seen.values() for at in each}))
    spans: list[Span] = []
    problems: list[Problem] = []
    for uid, resource in sorted(subject for subject in requests.units if subject[0] in odd):
        instants = sorted(seen.get(uid, ()))
        if not instants:
            continue
        start, said = int(told.start_ms([uid])[0]), int(told.completed_ms([uid])[0])
        ends = [
            NONE if at not in ended[uid] else _end(said, start, at, instants, ended[uid]) for at in instants
        ]
        for life in lives(instants, [start] * len(instants), ends, evidence):
            if life.doubt is not None:
                problems.append(Problem(life.doubt, reader.cluster, uid, f"pod: {life.why}"))
            end_ms, off_ms = _ending(life, said, seen[uid], evidence, shown)
            if life.start_ms < end_ms:
                units = requests.units[uid, resource]
                spans.append(Span(uid, resource, units, life.start_ms, end_ms, off_ms))
    return spans, problems


def _end(said: int, start: int, at: int, seen: Sequence[int], ended: set[int]) -> int:
    """What the object says, or half-way between the last scrape that showed it running, or else its start,
    and the next scrape."""
    if said != NONE:
        return said
    first = min(ended)
    before = max((each for each in seen if each < first), default=min(start, first) if start > 0 else first)
    return min(at, (before + first) // 2)


def _ending(
    life: Life, said: int, seen: Collection[int], evidence: Evidence, shown: IntArray
) -> tuple[int, int]:
    """The end of a life, and by how much it may be off: as where all was counted, and all of a gap. ``shown``
    are the scrapes that showed what pods there were."""
    if life.end_ms not in seen:
        inferred = said == NONE and life.end_ms < evidence.window.end_ms and life.doubt is None
        return life.end_ms, _distance_after(life.end_ms, shown) // 2 + SECOND_MS if inferred else 0
    distance = _distance_after(life.end_ms, shown)
    if life.doubt is not None or distance > evidence.max_gap_ms:
        return life.end_ms, distance
    return life.end_ms + distance // 2, -(-distance // 2) + (SECOND_MS if distance else 0)


def _distance_after(at_ms: int, shown: IntArray) -> int:
    """From the last of ``shown`` not after ``at_ms`` to the next one."""
    after = int(np.searchsorted(shown, at_ms, "right"))
    return int(shown[after] - shown[after - 1]) if 0 < after < len(shown) else 0


def _sightings(
    reader: ExistingReader, raw: Sequence[Series], evidence: Evidence
) -> tuple[dict[str, set[int]], dict[str, set[int]]]:
    """By uid: instants at which it was seen on a node, and those at which it had ended."""
    seen: dict[str, set[int]] = defaultdict(set)
    ended: dict[str, set[int]] = defaultdict(set)
    has_phases = any(one["metric"].get("__name__") == ksm.PHASE for one in raw)
    for series in raw:
        labels = series["metric"]
        uid, times = labels.get("uid", ""), points(series)
        if labels.get("__name__") == ksm.COMPLETED:
            ended[uid].update(() if has_phases else times[0])
            continue
        if labels.get("__name__") == ksm.PHASE:
            if labels.get("phase") in ksm.ENDED_PHASES:
                ended[uid].update(at for at, value in zip(*times, strict=True) if value == 1)
        elif reader.resource(labels.get("resource", "")) is not None and own_label(series, "node"):
            seen[uid].update(at for at in times[0] if at not in evidence.stale)
    return seen, ended
