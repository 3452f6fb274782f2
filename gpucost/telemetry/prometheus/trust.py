"""Which scrape jobs and targets are believed, as queried from the server; what the others claim is a problem.

The settings can name the jobs that are believed. Otherwise the choice rests on what a target's owner does not
control: the name of the job, the namespace of the target, and who was there first (``scrape_claimants``). A
target that exports series of gpucost's exporters without their heartbeat is not believed.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpucost.contract import amd_exporter, dcgm, otel_hardware
from gpucost.contract import kube_state as ksm
from gpucost.contract.gpu_metrics import (
    GPU_EXPORTER_METRICS,
    HOLDER_COUNTERS,
    LAST_COLLECTION,
    NVML_UP,
    SOURCE_ERRORS,
    SOURCE_UP,
)
from gpucost.contract.metrics import (
    NODE_DOMAIN_RESERVED,
    NODE_METRICS,
    POD_GPU_REQUEST,
    POD_METRICS,
    STATE_UP,
)
from gpucost.contract.opencost import NODE_GPU, NODE_TOTAL
from gpucost.contract.probe import AMD_JOBS, GPU_JOBS, KUBE_JOBS, OTEL_JOBS, OWN_JOBS, ForeignJob
from gpucost.contract.queue_metrics import QUEUE_METRICS
from gpucost.domain.errors import DataProblem, DataProblemCode
from gpucost.domain.time import DAY_MS, HOUR_MS, MINUTE_MS, SECOND_MS, Window
from gpucost.telemetry.prometheus.promql import (
    PromQL,
    by,
    one_of,
    over_instants,
    over_time,
)
from gpucost.telemetry.prometheus.query_response import ResultSeries, whole_count
from gpucost.telemetry.prometheus.scrape_claimants import (
    ClaimantChoice,
    ClaimantKey,
    ClaimantStanding,
    JobInstance,
    ScrapeClaimant,
    called_like,
    claimants,
    first_come,
    of_settings,
    together,
)

if TYPE_CHECKING:
    from gpucost.telemetry.prometheus.cluster_reader import ClusterReader

_STEP_MS = 5 * MINUTE_MS
_MEMORY_MS = 400 * DAY_MS
_LOOKS = 60
_INSTANTS = 1_000
_MOST_JOBS = 50
_MOST_EDGES = 20
_MOST_TOLD = 20
_TARGET = ("job", "instance")
_POD = ("namespace", "pod", "exported_namespace", "exported_pod", "pod_namespace", "pod_name", "pod_uid")


@dataclass(frozen=True)
class SeriesKind:
    """Series that belong together. ``names`` are those that can change a number; a target belongs to the kind
    if it exports any of ``proof``. ``like`` are the usual names of their jobs. With ``is_whole`` each target
    reports the whole cluster, else some GPUs: ``subjects`` are labels that name them. A claim is measured by
    ``claimed``: GPUs by value, or else by rows."""

    what: str
    start: str
    setting: str
    names: tuple[str, ...]
    proof: tuple[str, ...]
    like: re.Pattern[str]
    is_whole: bool
    claimed: tuple[str, ...]
    subjects: tuple[str, ...] = ()
    is_strict: bool = False


_OF_BOTH = (SOURCE_UP, SOURCE_ERRORS)
_OURS = re.compile("gpucost|queue-collector")
_DCGM = tuple(each for name in dcgm.NAMES for each in (name, name.lower()))
_DCGM_BASE = tuple(
    each
    for each in _DCGM
    if dcgm.NAMES[each.upper()].field
    in (dcgm.DcgmField.BUSY, dcgm.DcgmField.GRAPHICS, dcgm.DcgmField.MEMORY_USED)
)

STATE = SeriesKind(
    "gpucost's queue collector",
    "gpucost_",
    OWN_JOBS,
    tuple(
        each.name for each in (STATE_UP, *POD_METRICS, *NODE_METRICS, NODE_DOMAIN_RESERVED, *QUEUE_METRICS)
    ),
    (STATE_UP.name,),
    _OURS,
    is_whole=True,
    claimed=(POD_GPU_REQUEST.name,),
    is_strict=True,
)
USE = SeriesKind(
    "gpucost's GPU exporter",
    "gpucost_",
    OWN_JOBS,
    tuple(each.name for each in GPU_EXPORTER_METRICS if each not in _OF_BOTH),
    (LAST_COLLECTION.name, NVML_UP.name, STATE_UP.name),
    _OURS,
    is_whole=False,
    claimed=tuple(each.name for each in HOLDER_COUNTERS.values()),
    subjects=("gpu_uuid", "pod_uid"),
)
KUBE = SeriesKind(
    "kube-state-metrics",
    "kube_",
    KUBE_JOBS,
    (*ksm.LASTING, ksm.REQUESTS, ksm.INIT_REQUESTS, ksm.NODE_CAPACITY, ksm.NODE_ALLOCATABLE),
    ksm.LASTING,
    re.compile("kube-?state|ksm|state-metrics"),
    is_whole=True,
    claimed=(ksm.REQUESTS,),
)
DCGM = SeriesKind(
    "dcgm-exporter",
    "DCGM_",
    GPU_JOBS,
    _DCGM,
    _DCGM,
    re.compile("dcgm"),
    is_whole=False,
    claimed=_DCGM_BASE,
    subjects=(*dcgm.UUID_LABELS, *_POD),
)
_AMD = tuple(name.lower() for name in amd_exporter.NAMES)
_AMD_BASE = tuple(
    each
    for each in _AMD
    if dcgm.DcgmField.POWER is amd_exporter.NAMES[each.upper()].field or each.endswith("_gfx_activity")
)
AMD = SeriesKind(
    "AMD's device-metrics-exporter",
    "gpu_",
    AMD_JOBS,
    _AMD,
    _AMD_BASE,
    re.compile("amd|rocm|metrics-exporter"),
    is_whole=False,
    claimed=_AMD_BASE,
    subjects=(*amd_exporter.KEYS[:2], *_POD),
)
_OTEL = tuple(name.lower() for name in otel_hardware.NAMES)
_OTEL_BASE = tuple(each for each in _OTEL if each.startswith("hw_gpu_"))
OTEL = SeriesKind(
    "OpenTelemetry's series of GPUs",
    "hw_",
    OTEL_JOBS,
    _OTEL_BASE,  # hw_power_watts is of other hardware too
    _OTEL_BASE,
    re.compile("otel|opentelemetry|openlit|gpu-collector"),
    is_whole=False,
    claimed=_OTEL_BASE,
    subjects=(*otel_hardware.KEYS, *otel_hardware.NODES),
)
DEVICE_KINDS = (AMD, OTEL)
"""Use of GPUs that is read beside gpucost's own series, too."""
OWN_KINDS, OTHER_KINDS = (STATE, USE), (KUBE, DCGM)
_KIND_OF = {name: kind for kind in (USE, STATE) for name in kind.names}
_KIND_OF |= dict.fromkeys(_AMD, AMD) | dict.fromkeys(_OTEL, OTEL)


def kind_of(name: str) -> SeriesKind | None:
    """The kind of a metric; None for a metric that any job may export."""
    if name.startswith(KUBE.start):
        return KUBE
    return DCGM if name.upper() in dcgm.NAMES else _KIND_OF.get(name)


def chosen(reader: ClusterReader, kind: SeriesKind) -> ClaimantChoice:
    """The claimants that are believed around the reader's window, and the others with such series. Raises
    SourceError."""
    jobs = reader.once(("jobs", kind.start), lambda: reader.label_values("job", _every(reader, kind)))
    targets = _proven(reader, kind, jobs)
    known = sorted({job for job, _ in targets})
    up = reader.label_sets(reader.select_of_all(ksm.UP, one_of("job", known)), _since(reader, kind))
    proven = claimants(targets, up)
    named = reader.settings_jobs(kind.start)
    home = reader.settings.own_namespace if kind in OWN_KINDS else ""
    if named or any(each.namespace == home for each in proven if home):
        believed = of_settings(proven, named, home)
    else:
        believed = _first(reader, kind, called_like(proven, kind.like))
    refused = [each for each in proven if each not in believed]
    trusted = {each.job for each in believed}
    return ClaimantChoice(tuple(believed), (*refused, *_unproven(reader, kind, jobs, targets, trusted)))


def _since(reader: ClusterReader, kind: SeriesKind) -> int:
    """The time from which claimants count: the one that was there before stays believed, also while it is
    down."""
    start, _ = reader.around
    return max(0, start - reader.settings.max_outage_ms) if kind.is_whole else start


def _proven(reader: ClusterReader, kind: SeriesKind, jobs: Sequence[str]) -> set[JobInstance]:
    """Targets with the series that prove the kind. Where there is a series for every node or GPU, only the
    index is queried, job by job; with very many jobs, all at once at a few instants."""
    since, proofs = _since(reader, kind), reader.select_of_all(kind.proof)
    if kind in OWN_KINDS:
        return {_labels_target(each) for each in reader.label_sets(proofs, since)}
    jobs = reader.label_values("job", proofs, since) if kind is KUBE else jobs
    if len(jobs) > _MOST_JOBS:
        _, end = reader.around
        step = max(_STEP_MS, (end - since) // _INSTANTS)
        seen = over_instants("count_over_time", by("group", _TARGET, proofs), end - since, step)
        return {_target(each) for each in reader.vector(seen, end)}
    return {
        (job, each)
        for job in jobs
        for each in reader.label_values(
            "instance", reader.select_of_all(kind.proof, one_of("job", [job])), since
        )
    }


def _instances(reader: ClusterReader, kind: SeriesKind, job: str) -> list[str]:
    every = _every(reader, kind, one_of("job", [job]))
    return reader.once(("instances", kind.start, job), lambda: reader.label_values("instance", every))


def _every(reader: ClusterReader, kind: SeriesKind, *matchers: PromQL) -> PromQL:
    """A selector of all series of the kind, short where no other names share the prefix."""
    if kind in OWN_KINDS:
        return reader.named_like(kind.start, *matchers)
    return reader.select_of_all(kind.names, *matchers)


def _unproven(
    reader: ClusterReader,
    kind: SeriesKind,
    jobs: Sequence[str],
    proven: Collection[JobInstance],
    trusted: Collection[str],
) -> list[ScrapeClaimant]:
    """Targets that export series with these prefixes and lack the proof. Many names of kube-state-metrics are
    also exported by others, so of these only whole jobs are considered."""
    known = {job for job, _ in proven}
    if kind is KUBE and not known:
        return []  # without a scrape of kube-state-metrics no window is read
    found = []
    for job in jobs:
        if job not in known:
            found.append(ScrapeClaimant(job, "", frozenset()))
        elif kind in OWN_KINDS and job in trusted:
            others = {each for each in _instances(reader, kind, job) if (job, each) not in proven}
            found += [ScrapeClaimant(job, "", frozenset(others))] if others else []
    return found


def _first(reader: ClusterReader, kind: SeriesKind, found: Sequence[ScrapeClaimant]) -> list[ScrapeClaimant]:
    parties = together(found)
    if len(parties) < 2:
        return list(found)
    standings = _standings(reader, kind, parties)
    gap_ms = reader.settings.max_gap_ms
    return first_come(parties, standings, is_whole=kind.is_whole, gap_ms=gap_ms, is_strict=kind.is_strict)


def _standings(
    reader: ClusterReader, kind: SeriesKind, parties: Sequence[tuple[ScrapeClaimant, ...]]
) -> list[ClaimantStanding]:
    """The standing of each party: by the day over all that the server remembers, and closely around the first
    and the last day of each party and around the window; the same few queries for all parties, however many.
    """
    start, end = reader.around
    look = _TrustCheck(reader, kind, parties)
    days = look.at(end - _MEMORY_MS, end, DAY_MS)
    # A party younger than a day is seen on none of these days.
    near = look.at(start - DAY_MS, end, _STEP_MS)
    edges = {edge for each in days if each for edge in (min(each), max(each) + DAY_MS)}
    closely = [look.at(edge - DAY_MS, min(edge, end), _STEP_MS) for edge in sorted(edges)[:_MOST_EDGES]]
    is_lost = any(not (each or other) for each, other in zip(days, near, strict=True))
    briefly = look.at(_since(reader, kind), end, HOUR_MS) if is_lost else []
    found = []
    for at, party in enumerate(parties):
        seen: dict[int, int] = {}
        for part in (days, near, *closely, *([briefly] if briefly else [])):
            seen |= part[at]
        keys = frozenset[ClaimantKey]() if kind.is_whole or not seen else _keys(reader, kind, party)
        sizes = seen or {end: 0}
        found.append(ClaimantStanding(min(sizes), max(sizes), max(sizes.values()), keys))
    return found


class _TrustCheck:
    """How many series each of several parties exports, at instants."""

    def __init__(
        self, reader: ClusterReader, kind: SeriesKind, parties: Sequence[tuple[ScrapeClaimant, ...]]
    ) -> None:
        jobs = [each.job for party in parties for each in party]
        self._reader, self._number = reader, len(parties)
        # Instances are many: they are part of the query only where one job has several parties.
        self._labels = _TARGET if len(set(jobs)) < len(jobs) else _TARGET[:1]
        self._party_of = {
            (each.job, one) if len(self._labels) > 1 else (each.job,): at
            for at, party in enumerate(parties)
            for each in party
            for one in each.instances
        }
        series = reader.select_of_all(_steady(kind), one_of("job", sorted(set(jobs))))
        self._counted = by("count", self._labels, series)

    def at(self, start: int, end: int, step: int) -> list[dict[int, int]]:
        """By party: instants back from ``end`` in steps, and the number of series at each."""
        first = end - (end - max(start, 0)) // step * step
        found: list[dict[int, int]] = [{} for _ in range(self._number)]
        for each in self._reader.matrix(self._counted, first, end, step):
            at = self._party_of.get(tuple(each["metric"].get(label, "") for label in self._labels))
            if at is None:
                continue
            for instant, value in each["values"]:
                when = round(instant * 1000)
                found[at][when] = found[at].get(when, 0) + whole_count(float(value))
        return found


def _steady(kind: SeriesKind) -> tuple[str, ...]:
    """A selector of few series that each target exports at every scrape."""
    return {DCGM.what: _DCGM_BASE, KUBE.what: (ksm.NODE_CREATED,)}.get(kind.what, kind.proof)


def _keys(reader: ClusterReader, kind: SeriesKind, party: Sequence[ScrapeClaimant]) -> frozenset[ClaimantKey]:
    """The GPUs or pods that a party reports."""
    start, end = reader.around
    rows = by("group", kind.subjects, reader.select_of_all(kind.names, *_matchers(party)))
    found = reader.vector(over_instants("count_over_time", rows, end - start, _STEP_MS), end)
    keys: set[ClaimantKey] = set()
    for each in found:
        labels = each["metric"]
        keys |= {("gpu", labels[name]) for name in (*dcgm.UUID_LABELS, "gpu_uuid") if labels.get(name)}
        if kind in DEVICE_KINDS:
            device = tuple(labels[name] for name in kind.subjects if labels.get(name) and name not in _POD)
            keys |= {("device", *device)} if device else set()
            if kind is OTEL:  # its labels of pods are the collector's own
                continue
        pod = labels.get("exported_pod") or labels.get("pod_name") or labels.get("pod", "")
        place = labels.get("exported_namespace") or labels.get("pod_namespace") or labels.get("namespace", "")
        keys |= {("pod", place, pod)} if pod else set()
        keys |= {("uid", labels["pod_uid"])} if labels.get("pod_uid") else set()
    return frozenset(keys)


def _matchers(party: Iterable[ScrapeClaimant]) -> tuple[PromQL, ...]:
    """Matchers of all targets of the parties; of whole jobs where instances are not known."""
    party = list(party)
    instances = sorted({one for each in party for one in each.instances})
    jobs = one_of("job", sorted({each.job for each in party}))
    return (jobs, one_of("instance", instances)) if instances else (jobs,)


def strangers(reader: ClusterReader, window: Window, kinds: Iterable[SeriesKind]) -> list[ForeignJob]:
    """Jobs with such series in ``window`` that are not believed, by most GPU time. Raises SourceError."""
    found: dict[tuple[str, str], ForeignJob] = {}
    for kind in kinds:
        choice = reader.choice(kind)
        if not choice.refused:
            continue
        kept = {(each.job, one) for each in choice.believed for one in each.instances}
        gives, claims = _claims(reader, kind, choice, window, kept)
        for job in sorted(gives):
            places = {each.namespace for each in choice.refused if each.job == job} - {""}
            believed = tuple(sorted({each.job for each in choice.believed}))
            one = ForeignJob(job, tuple(sorted(places)), kind.what, kind.setting, believed, claims.get(job))
            before = found.get((job, kind.setting))
            found[job, kind.setting] = one if before is None else _both(before, one)
    return sorted(found.values(), key=lambda each: (-(each.gpu_ms or 0), each.job, each.what))


def _both(one: ForeignJob, other: ForeignJob) -> ForeignJob:
    """Two refusals of one job, merged: both mean the same GPUs."""
    amounts = [each.gpu_ms for each in (one, other) if each.gpu_ms is not None]
    places = tuple(sorted({*one.namespaces, *other.namespaces}))
    believed = tuple(sorted({*one.believed, *other.believed}))
    what = f"{one.what} and of {other.what}"
    return ForeignJob(one.job, places, what, one.setting, believed, max(amounts, default=None))


def _claims(
    reader: ClusterReader,
    kind: SeriesKind,
    choice: ClaimantChoice,
    window: Window,
    kept: Collection[JobInstance],
) -> tuple[set[str], dict[str, int]]:
    """Refused jobs that give any such series, and the GPU time that they claim, by job."""
    named = {each.job for each in choice.refused}
    if kind is KUBE:
        named -= _opencost(reader, window, one_of("job", sorted(named)))
    if not named:
        return set(), {}
    of_refused = one_of("job", sorted(named))
    every = reader.select_of_all(kind.names, of_refused)
    there = over_time("last_over_time", every, window.length_ms)
    gives = reader.vector(by("count", _TARGET, there), window.end_ms)
    jobs = {each["metric"].get("job", "") for each in gives if _target(each) not in kept}
    if not jobs:
        return set(), {}
    rows = reader.select_of_all(kind.claimed, of_refused, *(reader.of_gpus if kind is KUBE else ()))
    held = (
        by("sum", _TARGET, rows)
        if kind.is_whole
        else by("count", _TARGET, by("group", (*_TARGET, *kind.subjects), rows))
    )
    every_ms = min(MINUTE_MS, max(SECOND_MS, window.length_ms // _LOOKS // SECOND_MS * SECOND_MS))
    summed = reader.vector(over_instants("sum_over_time", held, window.length_ms, every_ms), window.end_ms)
    claims: dict[str, int] = {}
    for each in summed:
        if _target(each) not in kept:
            job = each["metric"].get("job", "")
            claims[job] = claims.get(job, 0) + round(float(each["value"][1]) * every_ms)
    return jobs, claims


def _opencost(reader: ClusterReader, window: Window, of_jobs: PromQL) -> set[str]:
    """Jobs that export OpenCost's prices: OpenCost has ``kube_*`` of its own, which gpucost does not read
    (opencost 1.112, pkg/metrics/kubemetrics.go)."""
    prices = over_time(
        "last_over_time", reader.select_of_all((NODE_GPU, NODE_TOTAL), of_jobs), window.length_ms
    )
    return {
        each["metric"].get("job", "") for each in reader.vector(by("count", ("job",), prices), window.end_ms)
    }


def _target(series: ResultSeries) -> JobInstance:
    return _labels_target(series["metric"])


def _labels_target(labels: Mapping[str, str]) -> JobInstance:
    return labels.get("job", ""), labels.get("instance", "")


def kinds_read(reader: ClusterReader, dialect: str) -> tuple[SeriesKind, ...]:
    """The kinds of series that are read for the setting ``gpucost``, ``existing`` or ``auto`` (what
    exists)."""
    if dialect == "auto":
        own = reader.choice(STATE).believed
        return (*OWN_KINDS, *(() if own else OTHER_KINDS), *device_kinds(reader))
    return (*(OWN_KINDS if dialect == "gpucost" else OTHER_KINDS), *device_kinds(reader))


def device_kinds(reader: ClusterReader) -> tuple[SeriesKind, ...]:
    """Those of DEVICE_KINDS that any job has series of near the reader's window: one query, since most
    clusters have GPUs of one maker."""
    every = reader.select_of_all((*_AMD, *_OTEL))
    names = reader.once(("names", "devices"), lambda: reader.label_values("__name__", every))
    return tuple(kind for kind in DEVICE_KINDS if any(_KIND_OF.get(name) is kind for name in names))


def refusals(reader: ClusterReader, window: Window, kinds: Iterable[SeriesKind]) -> list[DataProblem]:
    """A problem for each job of which series are refused; with very many jobs, for those that claim most. The
    GPU time of a problem is the GPU time that the job claims, each unit counted as a GPU."""
    return [
        DataProblem(
            DataProblemCode.SERIES_REFUSED, reader.cluster, each.job, str(each), each.gpu_ms, window.start_ms
        )
        for each in strangers(reader, window, kinds)[:_MOST_TOLD]
    ]
