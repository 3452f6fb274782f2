"""Pods of one window out of kube-state-metrics: a few aggregated queries, raw samples for the exceptions.

A pod holds what it requests from the time it was scheduled. It held until its completion time, once its phase
shows that it ended; where it disappeared without one, as deleted and evicted pods do, until half-way between
the last scrape that showed it running and the next.

The request of a pod is counted as the scheduler counts it: its containers together with its restartable init
containers (sidecars), or, if that is more, one of the other init containers with the sidecars before it
(KEP-753, "Resources calculation for scheduling and pod admission"). The order of init containers is not
exported: all sidecars are taken to come first. kube-state-metrics marks restartable ones from release 2.11
on.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from gpucost.contract import kube_state as ksm
from gpucost.domain.errors import DataProblem, DataProblemCode, NotCovered
from gpucost.domain.time import SECOND_MS
from gpucost.telemetry.evidence.evidence_rule import (
    NONE,
    IntArray,
    PresenceSpan,
    ScrapeEvidence,
    as_expected,
    lives,
)
from gpucost.telemetry.evidence.frame_rows import to_millis, unit_count
from gpucost.telemetry.prometheus.cluster_reader import own_label, points
from gpucost.telemetry.prometheus.promql import (
    PromQL,
    by,
    equals,
    one_of,
    over_time,
    where_any,
)
from gpucost.telemetry.prometheus.query_response import ResultSeries, whole_count
from gpucost.telemetry.upstream.kube_reader import (
    TARGET_LABELS,
    KubeStateReader,
    ScrapeGroup,
    ScrapeGroups,
    TargetKey,
    are_whole,
    endings,
)

_CONTAINER = ("uid", "namespace", "pod", "container", "node", "resource")

PodResourceKey = tuple[str, str]
"""Uid and resource."""


@dataclass(frozen=True, slots=True)
class PodName:
    namespace: str
    pod: str
    node: str


class PodRequests:
    """Requests of pods with a node, by uid and resource; the scrapes that showed them (with shards, of which
    targets); the pods that exist now, and those of which it is plain that they did not just go."""

    def __init__(self, reader: KubeStateReader, groups: ScrapeGroups) -> None:
        evidence = groups.evidence
        self.names: dict[str, PodName] = {}
        self.units: dict[PodResourceKey, int] = {}
        self.samples: dict[str, int] = {}
        self.targets: dict[str, set[TargetKey]] = defaultdict(set)
        self.problems: list[DataProblem] = []
        together: dict[PodResourceKey, float] = defaultdict(float)
        for key, value in _values(reader, ksm.REQUESTS, "last_over_time", "max", evidence):
            uid, namespace, pod, _, node, resource = key
            together[uid, resource] += value
            self.names[uid] = PodName(namespace, pod, node)
        if not together:
            _refuse_blindness(reader, evidence)
        self._add_init(reader, evidence, together)
        self._count(reader, groups)
        for subject, value in together.items():
            self._keep(reader, subject, value)
        # Of the last two scrapes, since one of them may be of another member of an HA pair.
        before = min(int(each.evidence.scrapes[-2:][0]) for each in groups.groups)
        range_ms = evidence.end_ms - before + 1
        found = [*_values(reader, ksm.REQUESTS, "count_over_time", "sum", evidence, range_ms)]
        self.here = frozenset(key[0] for key, _ in found)
        # In a big cluster some pod goes between these two nearly always.
        self.staying = frozenset(key[0] for key, count in found if count > 1) or self.here

    def _add_init(
        self, reader: KubeStateReader, evidence: ScrapeEvidence, together: dict[PodResourceKey, float]
    ) -> None:
        if not reader.exports(ksm.INIT_REQUESTS, evidence):
            return
        # A node is not in all of these series: the one of the pod's containers counts.
        found = [
            (key, value)
            for key, value in _values(reader, ksm.INIT_REQUESTS, "last_over_time", "max", evidence)
            if key[0] in self.names and value
        ]
        lasting = _sidecars(reader, evidence) if found else frozenset[tuple[str, str]]()
        sidecars: dict[PodResourceKey, float] = defaultdict(float)
        most: dict[PodResourceKey, float] = defaultdict(float)
        for key, value in found:
            subject, container = (key[0], key[-1]), (key[0], key[3])
            if container in lasting:
                sidecars[subject] += value
            else:
                most[subject] = max(most[subject], value)
        for subject in {*sidecars, *most}:
            together[subject] = sidecars[subject] + max(together[subject], most[subject])

    def _count(self, reader: KubeStateReader, groups: ScrapeGroups) -> None:
        """The samples of a container, over all targets; a pod exists as long as any of its containers."""
        further = TARGET_LABELS if groups.is_sharded else ()
        samples: dict[tuple[str, ...], int] = defaultdict(int)
        for key, value in _values(
            reader, ksm.REQUESTS, "count_over_time", "sum", groups.evidence, further=further
        ):
            own, target = key[: len(_CONTAINER)], key[len(_CONTAINER) :]
            samples[own] += whole_count(value)
            if target:
                self.targets[key[0]].add(target)
        for key, count in samples.items():
            self.samples[key[0]] = max(self.samples.get(key[0], 0), count)

    def _keep(self, reader: KubeStateReader, subject: PodResourceKey, value: float) -> None:
        units = unit_count(value)
        if units is None:
            why = f"pod: {value!r} units of {subject[1]}"
            self.problems.append(
                DataProblem(DataProblemCode.INTERVAL_REFUSED, reader.cluster, subject[0], why)
            )
        elif units:
            self.units[subject] = units


def _values(
    reader: KubeStateReader,
    name: str,
    function: str,
    operator: str,
    evidence: ScrapeEvidence,
    range_ms: int = 0,
    further: tuple[str, ...] = (),
) -> Iterator[tuple[tuple[str, ...], float]]:
    """Values by _CONTAINER, with resources under their own names, and by ``further`` labels; pods without a
    node are left out."""
    selector = reader.gpu_requests() if name == ksm.REQUESTS else reader.select(name, reader.is_gpu)
    read = over_time(function, selector, range_ms or evidence.range_ms)
    labels = (*_CONTAINER, *further)
    asked = by(operator, labels, reader.as_exported(read, _CONTAINER))
    columns, values = reader.columns(asked, evidence.end_ms, labels)
    for *found, value in zip(*columns, values, strict=True):
        resource = reader.resource(found[5])
        if resource is None or not (found[4] or name == ksm.INIT_REQUESTS):
            continue
        if not found[0]:
            raise NotCovered(
                f"cluster {reader.cluster}: {name} has no label uid: kube-state-metrics is older than 2.0, "
                "or a relabelling drops it"
            )
        yield (*found[:5], resource, *found[6:]), value


def _sidecars(reader: KubeStateReader, evidence: ScrapeEvidence) -> frozenset[tuple[str, str]]:
    """Uid and name of each restartable init container."""
    infos = reader.select(ksm.INIT_INFO, equals("restart_policy", "Always"))
    read = reader.as_exported(over_time("last_over_time", infos, evidence.range_ms), _CONTAINER)
    labels = ("uid", "container")
    columns, _ = reader.columns(by("group", labels, read), evidence.end_ms, labels)
    return frozenset(zip(*columns, strict=True))


def _refuse_blindness(reader: KubeStateReader, evidence: ScrapeEvidence) -> None:
    """Raise NotCovered where no series shows a request of any pod, of whatever resource: no cluster is that
    idle."""
    any_of_them = over_time("last_over_time", reader.select(ksm.REQUESTS), evidence.range_ms)
    if not reader.vector(by("count", (), any_of_them), evidence.end_ms):
        raise NotCovered(
            f"cluster {reader.cluster}: there is no {ksm.REQUESTS} at all: kube-state-metrics does not export"
            " it, or it is dropped; gpucost doctor says what to set"
        )


_STARTS = (ksm.SCHEDULED, ksm.STARTED, ksm.CREATED)
"""Which time says when a pod began to hold its units, the best first: the kubelet's start is a little later,
and the object's creation earlier, by the time that the pod waited."""


@dataclass(frozen=True, slots=True)
class PodSpan:
    """Units that a pod held; its end may be off by ``off_ms``."""

    uid: str
    resource: str
    units: int
    start_ms: int
    end_ms: int
    off_ms: int = 0


@dataclass(frozen=True)
class PodSpans:
    """Spans, not clipped, and names by uid."""

    spans: Sequence[PodSpan]
    names: Mapping[str, PodName]
    problems: Sequence[DataProblem]


@dataclass(frozen=True)
class _Told:
    """Timestamps of objects, and how many scrapes showed them ended, by uid."""

    claims: Mapping[str, Mapping[str, float]]
    ended: Mapping[str, int]

    def start_ms(self, uids: Sequence[str]) -> IntArray:
        claims = (self.claims.get(uid, {}) for uid in uids)
        return to_millis([next((of[name] for name in _STARTS if name in of), None) for of in claims])

    def completed_ms(self, uids: Sequence[str]) -> IntArray:
        return to_millis([self.claims.get(uid, {}).get(ksm.COMPLETED) for uid in uids])


def read_pods(reader: KubeStateReader, groups: ScrapeGroups) -> PodSpans:
    """All pods that held GPUs at some time of the evidence."""
    evidence = groups.evidence
    # Asked before several threads want to know it.
    reader.exports(ksm.INIT_REQUESTS, evidence)
    reader.gpu_requests()
    batch = reader.batch()
    of_requests = batch.add(partial(PodRequests, reader, groups))
    phases, claims = (
        batch.add(partial(_ended, reader, evidence)),
        batch.add(partial(_claims, reader, evidence, (ksm.SCHEDULED, ksm.COMPLETED))),
    )
    batch.ask()
    requests, by_phase, known = of_requests.result(), phases.result(), claims.result()
    if any(ksm.SCHEDULED not in known.get(uid, {}) for uid, _ in requests.units):
        others = _claims(reader, evidence, (ksm.STARTED, ksm.CREATED))
        known = {uid: {**known.get(uid, {}), **others.get(uid, {})} for uid in {*known, *others}}
    told = _Told(known, _completed(reader, evidence) if by_phase is None else by_phase)
    rows: dict[frozenset[TargetKey], list[PodResourceKey]] = defaultdict(list)
    for uid, resource in requests.units:
        rows[frozenset(requests.targets.get(uid, ()))].append((uid, resource))
    spans: list[PodSpan] = []
    problems: list[DataProblem] = []
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
    return PodSpans(spans, requests.names, [*requests.problems, *problems])


def _counted(
    group: ScrapeGroup, rows: Sequence[PodResourceKey], requests: PodRequests, told: _Told
) -> tuple[list[PodSpan], set[str]]:
    """Spans of the pods for which counting samples is enough, and the uids of all the others."""
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
    # The last scrapes may be too early to show what ended just now.
    lasting = np.array([uid in requests.staying for uid in uids], dtype=np.bool_) & (ended_samples == 0)
    whole = group.is_whole and are_whole(start_ms, open_samples, lasting & (start_ms > 0), evidence)
    gone = endings(start_ms, open_samples, evidence, whole=whole)
    vanished = gone.told & ~plain & (end_ms == NONE) & (start_ms > 0) & (gone.end_ms >= start_ms)
    # Ended before any of its series was read, and the time of the end is unknown.
    over = (open_samples == 0) & (ended_samples > 0) & (end_ms == NONE) & (start_ms < evidence.start_ms)
    spans: list[PodSpan] = []
    odd: set[str] = set()
    for at, (uid, resource) in enumerate(rows):
        units = requests.units[uid, resource]
        if plain[at]:
            until = int(end_ms[at]) if ended_samples[at] else evidence.window.end_ms
            spans.append(PodSpan(uid, resource, units, int(start_ms[at]), until))
        elif over[at]:
            continue
        # A pod that exists at the very end, but was not in all scrapes before, was missing at an unknown
        # time.
        elif vanished[at] and (ended_samples[at] or uid not in requests.here):
            end, off = int(gone.end_ms[at]), int(gone.off_ms[at])
            spans.append(PodSpan(uid, resource, units, int(start_ms[at]), end, off))
        else:
            odd.add(uid)
    return spans, odd


def _never_began(
    reader: KubeStateReader, evidence: ScrapeEvidence, requests: PodRequests, told: _Told
) -> frozenset[str]:
    """Uids of pods that the kubelet refused (``UnexpectedAdmissionError``, ``OutOfnvidia.com/gpu``): ended in
    all scrapes, without a time of their end, and refused by their status reason, or no container of theirs
    ever had a status. The latter is not used where no pod has such series."""
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
    asked = _of_gpus(reader, by("group", ("uid",), began), evidence)
    (shown,), _ = reader.columns(asked, evidence.end_ms, ("uid",))
    refusals = reader.select(ksm.STATUS_REASON, one_of("reason", ksm.REFUSALS))
    latest = by("max", ("uid",), over_time("last_over_time", refusals, evidence.range_ms))
    (uids,), said = reader.columns(_of_gpus(reader, latest, evidence), evidence.end_ms, ("uid",))
    refused = {uid for uid, is_so in zip(uids, said, strict=True) if is_so == 1}
    without = ended - {*shown} if shown else frozenset()
    return frozenset(ended & refused | without)


def _missing(reader: KubeStateReader, evidence: ScrapeEvidence, metric: str, instead: str) -> DataProblem:
    detail = f"{metric} is not there for all pods: {instead}"
    code, start_ms = DataProblemCode.NOT_OBSERVED, evidence.window.start_ms
    return DataProblem(code, reader.cluster, "kube-state-metrics", detail, None, start_ms)


def _of_gpus(reader: KubeStateReader, expression: PromQL, evidence: ScrapeEvidence) -> PromQL:
    """The part of ``expression``, which has uids, that is of pods with GPUs."""
    gpus = over_time("last_over_time", reader.gpu_requests(), evidence.range_ms)
    return where_any(expression, gpus, ("uid",))


def _claims(
    reader: KubeStateReader, evidence: ScrapeEvidence, names: Sequence[str]
) -> Mapping[str, Mapping[str, float]]:
    """By uid: each of these timestamps of its object, by metric."""
    latest = over_time("last_over_time", reader.select(names), evidence.range_ms)
    asked = _of_gpus(reader, by("max", ("__name__", "uid"), latest), evidence)
    (of, uids), values = reader.columns(asked, evidence.end_ms, ("__name__", "uid"))
    claims: dict[str, dict[str, float]] = defaultdict(dict)
    for name, uid, value in zip(of, uids, values, strict=True):
        claims[uid][name] = value
    return claims


def _ended(reader: KubeStateReader, evidence: ScrapeEvidence) -> Mapping[str, int] | None:
    """By uid: how many samples showed it ended; None where no phase of any pod is exported."""
    phases = reader.select(ksm.PHASE, one_of("phase", ksm.ENDED_PHASES))
    counted = by("sum", ("uid",), over_time("sum_over_time", phases, evidence.range_ms))
    (uids,), values = reader.columns(_of_gpus(reader, counted, evidence), evidence.end_ms, ("uid",))
    return dict(zip(uids, map(whole_count, values), strict=True)) or None


def _completed(reader: KubeStateReader, evidence: ScrapeEvidence) -> Mapping[str, int]:
    """As ``_ended``, by the completion times alone: the best there is where phases are not exported."""
    counted = over_time("count_over_time", reader.select(ksm.COMPLETED), evidence.range_ms)
    asked = _of_gpus(reader, by("sum", ("uid",), counted), evidence)
    (uids,), values = reader.columns(asked, evidence.end_ms, ("uid",))
    return dict(zip(uids, map(whole_count, values), strict=True))


def _odd_spans(
    reader: KubeStateReader, group: ScrapeGroup, requests: PodRequests, odd: set[str], told: _Told
) -> tuple[list[PodSpan], list[DataProblem]]:
    """By all samples: pods that were seen on both sides of a gap, and pods whose samples contradict their
    timestamps."""
    if not odd:
        return [], []
    evidence = group.evidence
    told_by = (
        (ksm.REQUESTS, reader.is_gpu),
        (ksm.PHASE, one_of("phase", ksm.ENDED_PHASES)),
        (ksm.COMPLETED,),
    )
    raw = [
        series
        for name, *matchers in told_by
        for series in reader.raw_where(name, ("uid",), odd, evidence.start_ms, evidence.end_ms, *matchers)
    ]
    seen, ended = _sightings(reader, raw, evidence)
    # A pod that is missing in a scrape that showed no pods may have gone on.
    shown = np.union1d(group.shown, sorted({at for each in seen.values() for at in each}))
    spans: list[PodSpan] = []
    problems: list[DataProblem] = []
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
                problems.append(DataProblem(life.doubt, reader.cluster, uid, f"pod: {life.why}"))
            end_ms, off_ms = _ending(life, said, seen[uid], evidence, shown)
            if life.start_ms < end_ms:
                units = requests.units[uid, resource]
                spans.append(PodSpan(uid, resource, units, life.start_ms, end_ms, off_ms))
    return spans, problems


def _end(said: int, start: int, at: int, seen: Sequence[int], ended: set[int]) -> int:
    """The object's own end, or half-way between the last scrape that showed it running, or else its start,
    and the next scrape."""
    if said != NONE:
        return said
    first = min(ended)
    before = max((each for each in seen if each < first), default=min(start, first) if start > 0 else first)
    return min(at, (before + first) // 2)


def _ending(
    life: PresenceSpan, said: int, seen: Collection[int], evidence: ScrapeEvidence, shown: IntArray
) -> tuple[int, int]:
    """The end of a life, and by how much it may be off: as where samples are counted, and all of a gap.
    ``shown`` are the scrapes that showed which pods existed."""
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
    reader: KubeStateReader, raw: Sequence[ResultSeries], evidence: ScrapeEvidence
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
