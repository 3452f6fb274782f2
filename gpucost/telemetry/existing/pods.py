"""Pods of one window out of kube-state-metrics: a few aggregated queries, raw samples for the odd ones.

A pod holds what its containers request (or an init container, if that is more: scheduling's own rule) from
the time it was scheduled. It held until its completion time, once its phase says that it ended; where it went
without saying when, as deleted and evicted pods do, until half-way between the last scrape that showed it
running and the next.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from gpucost.contract import kube_state as ksm
from gpucost.domain.errors import NotCovered
from gpucost.domain.problems import Problem, ProblemCode
from gpucost.domain.time import SECOND_MS
from gpucost.telemetry.answers import Series
from gpucost.telemetry.evidence import NONE, Evidence, IntArray, Life, as_expected, lives
from gpucost.telemetry.existing.lifetimes import are_whole, endings
from gpucost.telemetry.existing.reader import ExistingReader
from gpucost.telemetry.promql import PromQL, by, one_of, over_time, where_any
from gpucost.telemetry.reader import column, numbers, own_label, points
from gpucost.telemetry.samples import to_millis, unit_count

_CONTAINER = ("uid", "namespace", "pod", "container", "node", "resource")
_STARTS = (ksm.SCHEDULED, ksm.STARTED, ksm.CREATED)
"""What says when a pod began to hold its units, the best first: the kubelet's start is a little later, and
the object's creation earlier, by the time that the pod waited."""

Subject = tuple[str, str]
"""Uid and resource."""


@dataclass(frozen=True, slots=True)
class Span:
    """Units that a pod held; its end may be off by ``off_ms``."""

    uid: str
    resource: str
    units: int
    start_ms: int
    end_ms: int
    off_ms: int = 0


@dataclass(frozen=True, slots=True)
class PodName:
    namespace: str
    pod: str
    node: str


@dataclass(frozen=True)
class Pods:
    """Spans, not clipped, and names by uid."""

    spans: Sequence[Span]
    names: Mapping[str, PodName]
    problems: Sequence[Problem]


def read_pods(reader: ExistingReader, evidence: Evidence, *, whole: bool) -> Pods:
    """All pods that held GPUs at some time of the evidence."""
    requests = _Requests(reader, evidence)
    claims = _claims(reader, evidence)
    by_phase = _ended(reader, evidence)
    ended = _completed(reader, evidence) if by_phase is None else by_phase
    rows = list(requests.units)
    uids = [uid for uid, _ in rows]
    starts = {uid: _start(claims.get(uid, {})) for uid in uids}
    start_ms = to_millis([starts[uid] for uid in uids])
    # Two servers behind one address may not have the same samples.
    open_samples = np.array(
        [max(0, requests.samples.get(uid, 0) - ended.get(uid, 0)) for uid in uids], dtype=np.int64
    )
    ended_samples = np.array([ended.get(uid, 0) for uid in uids], dtype=np.int64)
    said = to_millis([claims.get(uid, {}).get(ksm.COMPLETED) for uid in uids])
    end_ms = np.where(ended_samples > 0, said, NONE)
    plain = as_expected(start_ms, end_ms, open_samples + ended_samples, ended_samples, evidence)
    plain &= (ended_samples == 0) | (end_ms != NONE)
    # The last scrapes may be too late for what ended just now.
    lasting = np.array([uid in requests.here for uid in uids], dtype=np.bool_) & (ended_samples == 0)
    whole = whole and are_whole(start_ms, open_samples, lasting & (start_ms > 0), evidence)
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
    odd_spans, problems = _odd_spans(reader, evidence, requests, odd, claims, whole=whole)
    if by_phase is None and ended:
        problems.append(_missing(reader, evidence, ksm.PHASE, "a pod counts as ended once a container has"))
    if any(ksm.SCHEDULED not in claims.get(uid, {}) for uid in uids):
        instead = "such pods count from when the kubelet saw them, or from their creation"
        problems.append(_missing(reader, evidence, ksm.SCHEDULED, instead))
    return Pods([*spans, *odd_spans], requests.names, [*requests.problems, *problems])


def _missing(reader: ExistingReader, evidence: Evidence, metric: str, instead: str) -> Problem:
    detail = f"{metric} is not there for all pods: {instead}"
    code, start_ms = ProblemCode.NOT_OBSERVED, evidence.window.start_ms
    return Problem(code, reader.cluster, "kube-state-metrics", detail, None, start_ms)


class _Requests:
    """What pods with a node request, by uid and resource; how many scrapes showed them; who is there now."""

    def __init__(self, reader: ExistingReader, evidence: Evidence) -> None:
        self.names: dict[str, PodName] = {}
        self.units: dict[Subject, int] = {}
        self.samples: dict[str, int] = {}
        self.problems: list[Problem] = []
        together: dict[Subject, float] = defaultdict(float)
        for key, value in _values(reader, ksm.REQUESTS, "last_over_time", "max", evidence):
            uid, namespace, pod, _, node, resource = key
            together[uid, resource] += value
            self.names[uid] = PodName(namespace, pod, node)
        if not together:
            _refuse_blindness(reader, evidence)
        for key, value in _values(reader, ksm.INIT_REQUESTS, "last_over_time", "max", evidence):
            # No node stands in these series: that of the pod's containers counts.
            subject = key[0], key[-1]
            if key[0] in self.names:
                together[subject] = max(together[subject], value)
        for key, value in _values(reader, ksm.REQUESTS, "count_over_time", "sum", evidence):
            self.samples[key[0]] = max(self.samples.get(key[0], 0), int(value))
        for subject, value in together.items():
            self._keep(reader, subject, value)
        # Of the last two scrapes: one of them may be of another member of an HA pair.
        last = evidence.scrapes[-2:]
        range_ms = int(last[-1] - last[0]) + 1
        found = _values(reader, ksm.REQUESTS, "last_over_time", "max", evidence, range_ms)
        self.here = frozenset(key[0] for key, _ in found)

    def _keep(self, reader: ExistingReader, subject: Subject, value: float) -> None:
        units = unit_count(value)
        if units is None:
            why = f"pod: {value!r} units of {subject[1]}"
            self.problems.append(Problem(ProblemCode.INTERVAL_REFUSED, reader.cluster, subject[0], why))
        elif units:
            self.units[subject] = units


def _values(
    reader: ExistingReader, name: str, function: str, operator: str, evidence: Evidence, range_ms: int = 0
) -> Iterator[tuple[tuple[str, ...], float]]:
    """By _CONTAINER, with resources under their own names; those of pods without a node are left out."""
    read = over_time(function, reader.select(name, reader.is_gpu), range_ms or evidence.range_ms)
    result = reader.vector(by(operator, _CONTAINER, reader.as_exported(read, _CONTAINER)), evidence.end_ms)
    columns = zip(*(column(result, label) for label in _CONTAINER), strict=True)
    for labels, value in zip(columns, numbers(result), strict=True):
        resource = reader.resource(labels[-1])
        if resource is None or not (labels[4] or name == ksm.INIT_REQUESTS):
            continue
        if not labels[0]:
            raise NotCovered(
                f"cluster {reader.cluster}: {name} has no label uid: kube-state-metrics is older than 2.0, "
                "or a relabelling drops it"
            )
        yield (*labels[:-1], resource), value


def _refuse_blindness(reader: ExistingReader, evidence: Evidence) -> None:
    """Raise NotCovered where no request of any pod is told, of whatever resource: no cluster is so idle."""
    any_of_them = over_time("last_over_time", reader.select(ksm.REQUESTS), evidence.range_ms)
    if not reader.vector(by("count", (), any_of_them), evidence.end_ms):
        raise NotCovered(
            f"cluster {reader.cluster}: there is no {ksm.REQUESTS} at all: kube-state-metrics does not export"
            " it, or it is dropped; gpucost doctor says what to set"
        )


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


def _start(claims: Mapping[str, float]) -> float | None:
    return next((claims[name] for name in _STARTS if name in claims), None)


def _ended(reader: ExistingReader, evidence: Evidence) -> Mapping[str, int] | None:
    """By uid: how many samples showed it ended; None where no phase of any pod is told."""
    phases = reader.select(ksm.PHASE, one_of("phase", ksm.ENDED_PHASES))
    counted = by("sum", ("uid",), over_time("sum_over_time", phases, evidence.range_ms))
    result = reader.vector(_of_gpus(reader, counted, evidence), evidence.end_ms)
    found = dict(zip(column(result, "uid"), map(int, numbers(result)), strict=True))
    return found or None


def _completed(reader: ExistingReader, evidence: Evidence) -> Mapping[str, int]:
    """As ``_ended``, by the completion times alone: where phases are not told, the best there is."""
    counted = over_time("count_over_time", reader.select(ksm.COMPLETED), evidence.range_ms)
    result = reader.vector(_of_gpus(reader, by("sum", ("uid",), counted), evidence), evidence.end_ms)
    return dict(zip(column(result, "uid"), map(int, numbers(result)), strict=True))


def _odd_spans(
    reader: ExistingReader,
    evidence: Evidence,
    requests: _Requests,
    odd: set[str],
    claims: Mapping[str, Mapping[str, float]],
    *,
    whole: bool,
) -> tuple[list[Span], list[Problem]]:
    """By all samples: what was there on both sides of a gap, and what contradicts itself."""
    if not odd:
        return [], []
    names = (ksm.REQUESTS, ksm.PHASE, ksm.COMPLETED)
    raw = reader.raw_where(names, ("uid",), odd, evidence.start_ms, evidence.end_ms)
    seen, ended = _sightings(reader, raw, evidence)
    shown = evidence.scrapes
    if not whole:
        # Not every scrape showed pods: what is missing in one that did not may have gone on.
        every = {at for each in seen.values() for at in each}
        shown = np.array(sorted({*every, evidence.end_ms}), dtype=np.int64)
    spans: list[Span] = []
    problems: list[Problem] = []
    for uid, resource in sorted(subject for subject in requests.units if subject[0] in odd):
        instants = sorted(seen.get(uid, ()))
        if not instants:
            continue
        (start,), (said,) = (
            to_millis([each]).tolist()
            for each in (_start(claims.get(uid, {})), claims.get(uid, {}).get(ksm.COMPLETED))
        )
        ends = [NONE if at not in ended[uid] else _end(said, at, instants, ended[uid]) for at in instants]
        for life in lives(instants, [start] * len(instants), ends, evidence):
            if life.doubt is not None:
                problems.append(Problem(life.doubt, reader.cluster, uid, f"pod: {life.why}"))
            end_ms, off_ms = _ending(life, said, seen[uid], evidence, shown)
            if life.start_ms < end_ms:
                units = requests.units[uid, resource]
                spans.append(Span(uid, resource, units, life.start_ms, end_ms, off_ms))
    return spans, problems


def _end(said: int, at: int, seen: Sequence[int], ended: set[int]) -> int:
    """What the object says, or half-way between the last scrape that showed it running and the next."""
    if said != NONE:
        return said
    first = min(ended)
    before = max((each for each in seen if each < first), default=first)
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
