"""Reader of kube-state-metrics' series: which scrapes there were, which of them would have shown an object
(scrape groups), and which resources are GPUs.

``UpstreamSettings`` are the settings of this dialect beside prometheus.source_settings.

kube-state-metrics in shards (its docs, "Horizontal sharding") shows each object by one target only, replicas
show every object by all. Which of the two a cluster has follows from what the targets show: targets with the
same nodes and namespaces are one group, at once or one after the other, as before and after a restart.

Ends of objects that have no timestamp of their end are computed from how many scrapes showed them. A series
that was in every scrape from its beginning on, and then in none, was last seen in a scrape that can be
counted off. Its object ended between that scrape and the next: in the middle, give or take half of the
distance. So sums over many of them come out right, and the possible error is known.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from gpucost.cluster.objects.metadata import OwnerKeys
from gpucost.contract import kube_state as ksm
from gpucost.domain.gpu import ResourceCatalog, ShareBasis
from gpucost.domain.time import HOUR_MS, SECOND_MS, Window
from gpucost.telemetry.evidence import heartbeat
from gpucost.telemetry.evidence.evidence_rule import BoolArray, IntArray, ScrapeEvidence
from gpucost.telemetry.prometheus.api_client import PrometheusClient
from gpucost.telemetry.prometheus.cluster_reader import (
    ClusterReader,
    column,
    numbers,
    own_column,
    points,
    with_renamed,
)
from gpucost.telemetry.prometheus.promql import (
    PromQL,
    by,
    highest,
    one_of,
    one_of_or_like,
    other_than,
    over_time,
)
from gpucost.telemetry.prometheus.query_response import ResultSeries, whole_count
from gpucost.telemetry.prometheus.source_settings import PrometheusSourceSettings

TargetKey = tuple[str, ...]
"""Values of TARGET_LABELS."""

_ALIKE = 3 / 4
"""The part of the objects of the smaller of two targets above which the other must show them to be in the
same group. Where the number of shards changes, a new one has half of its objects from one that was there."""
_LOOKED_AT = 20


@dataclass(frozen=True, slots=True)
class UpstreamSettings:
    """``catalog`` decides what a GPU resource is; ``owners`` which labels and annotations of pods (and labels
    of their namespaces) name team, project and user; ``basis`` is the measure of a part of a GPU.
    ``custom_resources`` are series of owners of other kinds that kube-state-metrics was configured to give:
    kind, metric, and the label that holds the name."""

    catalog: ResourceCatalog = field(default_factory=ResourceCatalog)
    owners: OwnerKeys = field(default_factory=OwnerKeys)
    basis: ShareBasis = ShareBasis.COMPUTE
    custom_resources: tuple[tuple[str, str, str], ...] = ()


TARGET_LABELS = ("job", "instance")
NODE_LABELS = with_renamed(("node",))
_NOWHERE = " "
"""A value that no label has, so that a matcher of it matches nothing."""


class KubeStateReader(ClusterReader):
    """A ClusterReader whose heartbeats are the scrapes of kube-state-metrics.

    Prometheus writes ``up`` at each scrape of a target, with the time of that scrape. Where ``up`` was not
    kept (relabelled or federated series), the scrapes are those that show one node.
    """

    def __init__(
        self,
        client: PrometheusClient,
        settings: PrometheusSourceSettings,
        cluster: str,
        window: Window,
        existing: UpstreamSettings,
    ) -> None:
        super().__init__(client, settings, cluster, window)
        self.existing = existing

    @classmethod
    def beside(cls, reader: ClusterReader, existing: UpstreamSettings) -> KubeStateReader:
        """For what other exporters say of the same cluster and window, where pods and nodes are known from
        gpucost's own series."""
        found = cls(reader._client, reader.settings, reader.cluster, reader._window, existing)
        found._known = reader._known
        return found

    @cached_property
    def known(self) -> Mapping[str, str]:
        """GPU resources by their sanitised names."""
        return ksm.by_sanitised(self.existing.catalog.shares)

    @cached_property
    def is_gpu(self) -> PromQL:
        """The matcher of GPU resources."""
        return one_of_or_like("resource", sorted(self.known), ksm.PARTS)

    @property
    def of_gpus(self) -> tuple[PromQL, ...]:
        return (self.is_gpu,)

    def gpu_requests(self) -> PromQL:
        """Requests of GPUs by pods with a node. One selector for all who look at them, so that samples are
        read once; not to be taken first by several threads at once."""
        # Where the label has its own name, series of pods without a node need not be read at all.
        bound = () if "node" in self.renames else (other_than("node", ""),)
        return self.select(ksm.REQUESTS, self.is_gpu, *bound)

    def raw(self, selector: PromQL, start_ms: int, end_ms: int) -> list[ResultSeries]:
        found = super().raw(selector, start_ms, end_ms)
        if selector == self.heartbeat and not selector.startswith(ksm.UP):
            return _scrapes_of_target(found)
        return found

    def _lasting(self) -> list[str]:
        """Nodes that exist at the ends of the window; only those that exist at both, if there are any."""
        start, end = self.around
        range_ms = max(2 * HOUR_MS, self.settings.max_gap_ms)
        latest = over_time("last_over_time", self.select(ksm.NODE_CREATED), range_ms)
        there = [
            set(own_column(self.vector(latest, at), "node")) for at in (start + range_ms, max(end, range_ms))
        ]
        return sorted(there[0] & there[1])[:1] or sorted(min(each) for each in there if each)

    def is_whole(self, evidence: ScrapeEvidence, targets: Sequence[Sequence[str]] = ()) -> bool:
        """Whether some node was in every scrape of these targets, or of all: after a restart
        kube-state-metrics begins empty."""
        nodes = self.select(ksm.NODE_CREATED, *self.of_targets(targets))
        counted = by("sum", NODE_LABELS, over_time("count_over_time", nodes, evidence.range_ms))
        (most, *_) = *numbers(self.vector(by("max", (), counted), evidence.end_ms)), 0.0
        return whole_count(most) >= len(evidence.scrapes)

    def of_targets(self, targets: Sequence[Sequence[str]]) -> list[PromQL]:
        """Matchers for series of these targets, by the values of TARGET_LABELS; for all without any."""
        values = zip(*targets, strict=True)
        return [one_of(name, sorted({*each})) for name, each in zip(TARGET_LABELS, values, strict=False)]

    def exports(self, metric: str, evidence: ScrapeEvidence) -> bool:
        """Whether there may be samples of this metric in the evidence, or in the longer window. One request,
        which the server's index answers, tells it of all metrics that many clusters lack; not to be called
        first by several threads at once."""
        of_others = (each[1] for each in self.existing.custom_resources)
        optional = tuple(sorted({*ksm.OPTIONAL, *of_others}))
        if metric not in optional:
            return True

        reader = self.outer or self
        span = (evidence.start_ms, evidence.end_ms) if self.outer is None else self.outer.around

        def ask() -> frozenset[str]:
            return frozenset(reader.label_values("__name__", reader.select_of_all(optional), *span))

        return metric in reader.once(("exports", *span), ask)

    def resource(self, found: str) -> str | None:
        """The resource that a value of the label ``resource`` stands for; None if it is not a GPU."""
        return ksm.resource_name(found, self.known)

    @cached_property
    def heartbeat(self) -> PromQL:
        """``up`` of the targets that show nodes or namespaces; else the creation times of one node."""
        found = self.label_sets(self.select(ksm.LASTING))
        targets = sorted({tuple(labels.get(name, "") for name in TARGET_LABELS) for labels in found})
        up = self.select(ksm.UP, *self.of_targets(targets or [[_NOWHERE] * len(TARGET_LABELS)]))
        if not found or self.label_sets(up):
            return up
        return self.select(ksm.NODE_CREATED, one_of("node", self._lasting()))

    @property
    def heartbeat_name(self) -> str:
        return "up of kube-state-metrics"

    @property
    def _own(self) -> PromQL:
        # Of all jobs: which of them is believed may change within a longer window.
        return self.select_of_all((ksm.REQUESTS, ksm.NODE_CAPACITY), self.is_gpu)


def _scrapes_of_target(found: list[ResultSeries]) -> list[ResultSeries]:
    """One series for each target, with a 1 at each of its scrapes, whichever node it showed."""
    times: dict[tuple[tuple[str, str], ...], set[float]] = {}
    for one in found:
        labels = tuple(sorted(item for item in one["metric"].items() if item[0] not in NODE_LABELS))
        times.setdefault(labels, set()).update(at for at, _ in one["values"])
    return [
        {"metric": dict(labels), "values": [(at, "1") for at in sorted(each)]}
        for labels, each in times.items()
    ]


@dataclass(frozen=True, eq=False)
class ScrapeGroup:
    """Targets that show the same objects. ``is_whole``: every scrape of theirs showed all objects; ``shown``
    are the scrapes that showed any pods."""

    targets: frozenset[TargetKey]
    evidence: ScrapeEvidence
    is_whole: bool
    shown: IntArray


@dataclass(frozen=True)
class ScrapeGroups:
    """The groups of a window: ``evidence`` of all scrapes together, and of each group."""

    evidence: ScrapeEvidence
    groups: Sequence[ScrapeGroup]

    @property
    def is_sharded(self) -> bool:
        return len(self.groups) > 1

    def of(self, targets: Collection[TargetKey]) -> ScrapeGroup:
        """The group that would have shown an object which these targets showed."""
        found = [each for each in self.groups if not each.targets.isdisjoint(targets)] or self.groups
        return found[0] if len(found) == 1 else _together(self.evidence, found)

    def observed(self) -> list[Window]:
        """The time without a gap in any group."""
        found = [self.evidence.window]
        for group in self.groups:
            seen = [Window(*each) for each in group.evidence.stretches if each[0] < each[1]]
            found = [part for one in found for each in seen if (part := one.intersect(each))]
        return found


def read_groups(reader: KubeStateReader, window: Window) -> ScrapeGroups:
    """Raises what ``heartbeat.read_evidence`` raises."""
    evidence, series = heartbeat.read_evidence(reader, window)
    scrapes = _scrapes(series, evidence)
    objects = _objects(reader, evidence) if len(scrapes) > 1 else {}
    parts = _alike(sorted(scrapes), objects)
    if len(parts) < 2:
        parts = [frozenset(scrapes)]
    return ScrapeGroups(evidence, [_group(reader, evidence, part, scrapes) for part in parts])


def _group(
    reader: KubeStateReader,
    evidence: ScrapeEvidence,
    targets: frozenset[TargetKey],
    scrapes: Mapping[TargetKey, tuple[IntArray, IntArray]],
) -> ScrapeGroup:
    """One group. A target that is not scraped at the very end is, as elsewhere, not known to be gone."""
    own, named = evidence, list[TargetKey]()
    if targets != scrapes.keys():
        named = sorted(targets)
        beats, every = (np.concatenate([scrapes[key][at] for key in named]) for at in (0, 1))
        edges = [evidence.start_ms, evidence.end_ms]
        beats = np.unique(np.concatenate((beats, edges)))
        stale = frozenset(every.tolist()) - frozenset(beats.tolist())
        own = replace(evidence, beats=beats, scrapes=np.sort(every), stale=stale)
    is_whole = reader.is_whole(own, named)
    shown = own.scrapes if is_whole else _shown(reader, own, named)
    return ScrapeGroup(targets, own, is_whole, shown)


def _together(evidence: ScrapeEvidence, groups: Sequence[ScrapeGroup]) -> ScrapeGroup:
    """All targets as one group: an object is seen if any of them showed it."""
    beats, scrapes, shown = (
        np.concatenate(each)
        for each in zip(
            *((one.evidence.beats, one.evidence.scrapes, one.shown) for one in groups), strict=True
        )
    )
    scrapes = np.sort(scrapes)
    stale = frozenset(scrapes.tolist()) - frozenset(beats.tolist())
    own = replace(evidence, beats=np.unique(beats), scrapes=scrapes, stale=stale)
    targets = frozenset(key for one in groups for key in one.targets)
    return ScrapeGroup(targets, own, is_whole=False, shown=np.unique(shown))


def _scrapes(
    series: Iterable[ResultSeries], evidence: ScrapeEvidence
) -> dict[TargetKey, tuple[IntArray, IntArray]]:
    """By target, within the evidence: the heartbeats that were 1, and all scrapes, one for each series."""
    times: dict[TargetKey, list[tuple[int, float]]] = defaultdict(list)
    for one in series:
        key = tuple(one["metric"].get(label, "") for label in TARGET_LABELS)
        inside = zip(*points(one), strict=True)
        times[key] += [each for each in inside if evidence.start_ms <= each[0] <= evidence.end_ms]
    return {
        key: (
            np.array([at for at, up in found if up >= 1], dtype=np.int64),
            np.array([at for at, _ in found], dtype=np.int64),
        )
        for key, found in times.items()
        if found
    }


def _objects(reader: KubeStateReader, evidence: ScrapeEvidence) -> Mapping[TargetKey, set[tuple[str, str]]]:
    """By target, the nodes and namespaces that it showed."""
    latest = over_time("last_over_time", reader.select(ksm.LASTING), evidence.range_ms)
    labels = (*TARGET_LABELS, *with_renamed(("node", "namespace")))
    result = reader.vector(by("group", labels, latest), evidence.end_ms)
    keys = zip(*(column(result, label) for label in TARGET_LABELS), strict=True)
    shown = zip(own_column(result, "node"), own_column(result, "namespace"), strict=True)
    found: dict[TargetKey, set[tuple[str, str]]] = defaultdict(set)
    for key, each in zip(keys, shown, strict=True):
        found[key].add(each)
    return found


def _alike(
    targets: Iterable[TargetKey], objects: Mapping[TargetKey, set[tuple[str, str]]]
) -> list[frozenset[TargetKey]]:
    parts: list[frozenset[TargetKey]] = []
    for key in targets:
        mine = objects.get(key, set())
        same = [part for part in parts if any(_is_alike(mine, objects.get(each, set())) for each in part)]
        parts = [part for part in parts if part not in same]
        parts.append(frozenset({key}).union(*same))
    return parts


def _is_alike(one: Collection[object], other: Collection[object]) -> bool:
    least = min(len(one), len(other))
    return least > 0 and len({*one} & {*other}) > _ALIKE * least


def _shown(reader: KubeStateReader, evidence: ScrapeEvidence, targets: Sequence[TargetKey]) -> IntArray:
    """Scrapes that showed pods, by the pods that most scrapes showed: after a restart kube-state-metrics
    shows nothing, or nodes before pods, while it is up."""
    pods = reader.select(ksm.CREATED, *reader.of_targets(targets))
    counted = by("sum", ("uid",), over_time("count_over_time", pods, evidence.range_ms))
    most = column(reader.vector(highest(counted, _LOOKED_AT), evidence.end_ms), "uid")
    raw = reader.raw_where(ksm.CREATED, ("uid",), most, evidence.start_ms, evidence.end_ms)
    instants = [at for each in raw for at in points(each)[0]]
    found = np.intersect1d(evidence.scrapes, np.array(instants, dtype=np.int64))
    return np.union1d(found, [evidence.end_ms])


SHOWN_WITHIN_MS = 3 * SECOND_MS
"""How long after its own time, which is in whole seconds, an object may not be shown yet."""


@dataclass(frozen=True, slots=True)
class SubjectEndings:
    """Per subject: whether an end could be determined, the end, and by how much it may be off; in
    milliseconds."""

    told: BoolArray
    end_ms: IntArray
    off_ms: IntArray


def endings(
    start_ms: IntArray, open_samples: IntArray, evidence: ScrapeEvidence, *, whole: bool
) -> SubjectEndings:
    """Ends of subjects that began at ``start_ms`` and were seen, not yet ended, in so many scrapes.

    Only within one stretch of observation of which every scrape was ``whole``: else counting proves nothing;
    nor does it where a scrape came so shortly after the start that it may have been too early. A subject that
    was seen in all scrapes to the last has no end here.
    """
    scrapes = evidence.scrapes
    first = np.searchsorted(scrapes, start_ms, "left")
    last = first + open_samples - 1
    is_plain = whole and len(evidence.stretches) == 1 and not evidence.stale
    soon = np.searchsorted(scrapes, start_ms + SHOWN_WITHIN_MS, "left") > first
    told = ~soon & (open_samples > 0) & (last < len(scrapes) - 1) & is_plain
    at = np.clip(last, 0, max(len(scrapes) - 2, 0))
    if len(scrapes) < 2:
        nothing = np.zeros(len(start_ms), dtype=np.int64)
        return SubjectEndings(np.zeros(len(start_ms), dtype=np.bool_), nothing, nothing)
    before, after = scrapes[at], scrapes[at + 1]
    off = -(-(after - before) // 2) + SECOND_MS  # starts are in whole seconds, rounded down
    return SubjectEndings(told, before + (after - before) // 2, off)


def are_whole(
    start_ms: IntArray, open_samples: IntArray, lasting: BoolArray, evidence: ScrapeEvidence
) -> bool:
    """Whether subjects that exist at the very end (``lasting``) were in all scrapes since they began.

    After a restart kube-state-metrics shows nothing, or nodes before pods, while it is up: a subject that is
    missing then did not end.
    """
    due = evidence.scrapes_between(start_ms + SHOWN_WITHIN_MS, np.full(len(start_ms), evidence.end_ms + 1))
    return bool((open_samples >= due)[lasting].all())
