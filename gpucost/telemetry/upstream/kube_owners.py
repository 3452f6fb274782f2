"""Owners of pods: jobs, queues, team, project and user, from kube-state-metrics' series of owners and labels.

The rule of choice is that of the collector (cluster.views.ownership): a nearer object goes before a farther
one, whichever key it has. Owners come without API group and uid here, so a job is identified by namespace,
kind and name: one that was recreated under the same name counts as the same.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cache, partial
from itertools import pairwise

from gpucost.cluster.views.ownership import (
    KUEUE_GROUP,
    KUEUE_QUEUES,
    MOST_OWNERS,
    VOLCANO_GROUPS,
    VOLCANO_QUEUES,
    WORKLOAD,
)
from gpucost.contract import kube_state as ksm
from gpucost.domain.jobs import OwnerReference, api_version_of, resolve_job
from gpucost.telemetry.evidence.evidence_rule import ScrapeEvidence
from gpucost.telemetry.prometheus.cluster_reader import own_value, points, with_renamed
from gpucost.telemetry.prometheus.promql import (
    PromQL,
    by,
    equals,
    over_time,
    where_any,
)
from gpucost.telemetry.upstream.kube_pods import PodName
from gpucost.telemetry.upstream.kube_reader import KubeStateReader

_FOREVER_MS = 1 << 62
_OWNER = ("owner_kind", "owner_name", "owner_is_controller")
_IS_CONTROLLER = equals("owner_is_controller", "true")
"""Of most jobs there is a series that says that they have no owner."""
KubeLabels = Mapping[str, str]
_LabelTimes = Sequence[tuple[int, int, KubeLabels]]
OwnerKey = tuple[str, str, str]
"""Namespace, kind and name of an owner."""
_Said = tuple[str, str, str, str, str]
"""Workload, queue, team, project and user."""
_NONE: KubeLabels = {}
_UNLABELLED: _LabelTimes = ((-_FOREVER_MS, _FOREVER_MS, _NONE),)


@dataclass(frozen=True, slots=True)
class OwnershipSpan:
    """The owner of a pod during ``[since_ms, until_ms)``; fields are empty where unknown."""

    since_ms: int
    until_ms: int
    job_kind: str
    job: str
    job_uid: str
    workload: str
    queue: str
    team_label: str
    project: str
    user: str


class PodOwners:
    """Answers for the pods of one window."""

    def __init__(self, reader: KubeStateReader, evidence: ScrapeEvidence, uids: Set[str]) -> None:
        self._reader, self._evidence, self._uids = reader, evidence, uids
        keys = reader.existing.owners
        self._keys = (keys.team, keys.project, keys.user, KUEUE_QUEUES, VOLCANO_QUEUES)
        self._links = (WORKLOAD, KUEUE_GROUP, *VOLCANO_GROUPS)
        self._labels = tuple(
            dict.fromkeys(ksm.label_name(key) for key in (*sum(self._keys, ()), *self._links))
        )
        self._annotations = tuple(
            dict.fromkeys(ksm.annotation_name(key) for key in (*sum(self._keys, ()), *self._links))
        )
        batch = reader.batch()
        of_pods = batch.add(lambda: _owners_of_pods(self._about(ksm.POD_OWNER, _OWNER, _IS_CONTROLLER)))
        of_owners = batch.add(self._owners_of_owners)
        of_namespaces = batch.add(self._labels_of_namespaces)
        of_jobs = [batch.add(partial(self._labels_of_kind, *each)) for each in self._kinds]
        annotated, labelled = batch.add(self._annotations_of_pods), batch.add(self._over_time)
        batch.ask()
        self._of_pods, self._of_owners = of_pods.result(), of_owners.result()
        self._of_namespaces = of_namespaces.result()
        self._of_jobs = {ref: labels for each in of_jobs for ref, labels in each.result().items()}
        self._annotated, self._labelled = annotated.result(), labelled.result()
        self._said: dict[tuple[object, ...], _Said] = {}

    def of(self, uid: str, name: PodName) -> Sequence[OwnershipSpan]:
        """The owner of the pod over time: nearly always one entry that is valid for ever."""
        chain = self._chain(uid, name)
        return [
            self._belonging(since, until, labels, uid, name, chain)
            for since, until, labels in self._labelled.get(uid, _UNLABELLED)
        ]

    def _belonging(
        self, since: int, until: int, labels: KubeLabels, uid: str, name: PodName, chain: Sequence[OwnerKey]
    ) -> OwnershipSpan:
        near = [labels, self._annotated.get(uid, _NONE)]
        near += (self._of_jobs[ref] for ref in chain if ref in self._of_jobs)
        # Most pods have the labels of many, which are one object, and no others.
        asked = (*map(id, near), name.namespace)
        said = self._said.get(asked)
        if said is None:
            said = self._said[asked] = self._said_by(near, name.namespace)
        job = resolve_job([OwnerReference("v1", "Pod", name.pod, uid), *map(_as_owner, chain)])
        return OwnershipSpan(since, until, job.kind.value, job.name, job.uid, *said)

    def _said_by(self, near: Sequence[KubeLabels], namespace: str) -> _Said:
        places = [*near, self._of_namespaces.get(namespace, _NONE)]
        team, project, user, kueue, volcano = self._keys
        queue = _first(near, kueue)
        links = (WORKLOAD, KUEUE_GROUP) if queue else self._links
        whose = _first(places, team), _first(places, project), _first(places, user)
        return _first(near[:2], links), queue or _first(near, volcano), *whose

    def _chain(self, uid: str, name: PodName) -> list[OwnerKey]:
        """Owners from the direct one outwards."""
        found: list[OwnerKey] = []
        owner = self._of_pods.get(uid)
        while owner is not None and len(found) < MOST_OWNERS:
            ref = (name.namespace, *owner)
            if ref in found:
                break
            found.append(ref)
            owner = self._of_owners.get(ref)
        return found

    def _owners_of_owners(self) -> Mapping[OwnerKey, tuple[str, str]]:
        found: dict[OwnerKey, tuple[str, str]] = {}
        for kind, metric, label in ksm.OWNERS_OF:
            for labels in self._all(metric, (*with_renamed(("namespace", label)), *_OWNER), _IS_CONTROLLER):
                owner = _owner(labels)
                if owner is not None:
                    found[own_value(labels, "namespace"), kind, own_value(labels, label)] = owner
        return found

    def _labels_of_namespaces(self) -> Mapping[str, KubeLabels]:
        found = self._all(ksm.NAMESPACE_LABELS, (*with_renamed(("namespace",)), *self._labels))
        return {own_value(labels, "namespace"): labels for labels in found}

    def _annotations_of_pods(self) -> Mapping[str, KubeLabels]:
        found = self._about(ksm.POD_ANNOTATIONS, self._annotations)
        return dict(found)

    @property
    def _kinds(self) -> Sequence[tuple[str, str, str]]:
        return *ksm.OWNER_LABELS, *self._reader.existing.custom_resources

    def _labels_of_kind(self, kind: str, metric: str, name: str) -> Mapping[OwnerKey, KubeLabels]:
        """Labels of the owners. Those of custom resources have the names that their configuration gave them:
        ``team`` is read as ``label_team``."""
        plain = {label.removeprefix("label_"): label for label in self._labels}
        own = () if (kind, metric, name) in ksm.OWNER_LABELS else tuple(plain)
        columns = tuple(dict.fromkeys((*with_renamed(("namespace", name)), *self._labels, *own)))
        found: dict[OwnerKey, KubeLabels] = {}
        for labels in self._all(metric, columns):
            said = {plain[each]: labels[each] for each in own if labels.get(each)}
            ref = own_value(labels, "namespace"), kind, own_value(labels, name)
            found[ref] = {**said, **labels}
        return found

    def _over_time(self) -> Mapping[str, _LabelTimes]:
        """By uid: the labels of a pod over time."""
        sets: dict[str, list[KubeLabels]] = defaultdict(list)
        for uid, labels in self._about(ksm.POD_LABELS, self._labels):
            sets[uid].append(labels)
        several = {uid for uid, found in sets.items() if len(found) > 1}
        known = {uid: [(-_FOREVER_MS, _FOREVER_MS, found[0])] for uid, found in sets.items()}
        return {**known, **self._changes(several)}

    def _changes(self, uids: Set[str]) -> Mapping[str, _LabelTimes]:
        """A change takes effect at the first scrape that shows it."""
        if not uids:
            return {}
        evidence = self._evidence
        raw = self._reader.raw_where(ksm.POD_LABELS, ("uid",), uids, evidence.start_ms, evidence.end_ms)
        seen: dict[str, dict[int, KubeLabels]] = defaultdict(dict)
        for series in raw:
            wanted = {name: series["metric"].get(name, "") for name in self._labels}
            for at in points(series)[0]:
                seen[series["metric"].get("uid", "")][at] = wanted
        found: dict[str, _LabelTimes] = {}
        for uid, labels in seen.items():
            times = sorted(labels)
            changes = [at for before, at in pairwise(times) if labels[before] != labels[at]]
            values = [labels[times[0]], *(labels[at] for at in changes)]
            since, until = [-_FOREVER_MS, *changes], [*changes, _FOREVER_MS]
            found[uid] = list(zip(since, until, values, strict=True))
        return found

    def _about(self, metric: str, labels: Sequence[str], *only: PromQL) -> Iterator[tuple[str, KubeLabels]]:
        """Uid and ``labels``, of those that are not empty, of the pods of this window; of the series that
        match ``only``. Equal ones are one object."""
        if not self._reader.exports(metric, self._evidence):
            return
        gpus = over_time("last_over_time", self._reader.gpu_requests(), self._evidence.range_ms)
        latest = over_time("last_over_time", self._reader.select(metric, *only), self._evidence.range_ms)
        grouped = by("group", ("uid", *labels), where_any(latest, gpus, ("uid",)))
        columns, _ = self._reader.columns(grouped, self._evidence.end_ms, ("uid", *labels))
        known: dict[tuple[str, ...], KubeLabels] = {}
        for uid, *values in zip(*columns, strict=True):
            if uid in self._uids:
                key = (*values,)
                if key not in known:
                    known[key] = {name: each for name, each in zip(labels, key, strict=True) if each}
                yield uid, known[key]

    def _all(self, metric: str, labels: Sequence[str], *only: PromQL) -> list[KubeLabels]:
        if not self._reader.exports(metric, self._evidence):
            return []
        latest = over_time("last_over_time", self._reader.select(metric, *only), self._evidence.range_ms)
        found = self._reader.vector(by("group", labels, latest), self._evidence.end_ms)
        return [series["metric"] for series in found]


def _owner(labels: KubeLabels) -> tuple[str, str] | None:
    """Kind and name of an owner that is a controller; None without one."""
    kind, name = labels.get("owner_kind", ""), labels.get("owner_name", "")
    is_one = kind not in ("", ksm.NOBODY) and labels.get("owner_is_controller") == "true"
    return (kind, name) if is_one else None


def _owners_of_pods(found: Iterable[tuple[str, KubeLabels]]) -> Mapping[str, tuple[str, str]]:
    owners = ((uid, _owner(labels)) for uid, labels in found)
    return {uid: owner for uid, owner in owners if owner is not None}


def _as_owner(ref: OwnerKey) -> OwnerReference:
    namespace, kind, name = ref
    return OwnerReference(api_version_of(kind), kind, name, f"{namespace}/{kind}/{name}")


def _first(places: Sequence[KubeLabels], keys: Sequence[str]) -> str:
    """The first value, by place and then by key, from a label or an annotation."""
    names = _names_of(tuple(keys))
    for place in places:
        if place and not names.isdisjoint(place):
            for key in keys:
                found = place.get(ksm.label_name(key)) or place.get(ksm.annotation_name(key))
                if found:
                    return found
    return ""


@cache
def _names_of(keys: tuple[str, ...]) -> frozenset[str]:
    """All names that the keys have as labels of series."""
    return frozenset(name for key in keys for name in (ksm.label_name(key), ksm.annotation_name(key)))
