"""Jobs whose pods are in more topology domains than they need, while fewer domains had room for them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from gpucost.attribution.apportion import Flags, Ints
from gpucost.cluster.objects.nodes import Node
from gpucost.cluster.objects.pods import Pod, PodTemplate
from gpucost.cluster.views.node_fit import is_evaluated, matches
from gpucost.cluster.views.overview import ClusterOverview
from gpucost.detectors.allocation_pieces import (
    LEAST_COVERAGE,
    AllocationPiece,
    amount,
    by_namespace,
    hours,
    lasting,
    pieces,
    since,
)
from gpucost.detectors.findings import (
    FindingAction,
    FindingDraft,
    FindingEvidence,
    FindingSubject,
    RuleDetection,
    SubjectKind,
    ViewTime,
    WastePattern,
    WithheldFinding,
)
from gpucost.detectors.inputs.detector_facts import DetectorFacts
from gpucost.detectors.rule_settings import ScopedSettings, TopologySpreadSettings
from gpucost.domain.jobs import WorkloadClass
from gpucost.domain.time import DAY_MS
from gpucost.settings.types import milliseconds

NAME = WastePattern.TOPOLOGY_SPREAD


@dataclass(frozen=True)
class _Job:
    """A job that runs now on several nodes, all of its pods asking for as many units of one resource."""

    rows: tuple[AllocationPiece, ...]
    start_ms: int

    @property
    def first(self) -> AllocationPiece:
        return self.rows[0]

    @property
    def units(self) -> int:
        return self.rows[0].units


class _Room:
    """Free units of one resource, at any instant, node by node."""

    def __init__(self, facts: DetectorFacts, resource: str, nodes: Sequence[Node]) -> None:
        self._facts = facts
        index = {node.meta.name: n for n, node in enumerate(nodes)}
        held = facts.history.held
        here = held[(held["resource"] == resource) & held["node"].isin(list(index))]
        self._node = here["node"].map(index).to_numpy(np.int64)
        self._start, self._end = (here[name].to_numpy(np.int64) for name in ("start_ms", "end_ms"))
        self._count = here["count"].to_numpy(np.int64)
        self._index = index
        usable = [node.allocatable.get(resource, 0) * node.is_schedulable for node in nodes]
        self.has = np.array(usable, dtype=np.int64)

    def free_at(self, instant_ms: int, job: Sequence[AllocationPiece]) -> Ints:
        """The free units as if these rows, the job's own, held nothing."""
        here: Flags = (self._start <= instant_ms) & (self._end > instant_ms)
        held = np.bincount(self._node[here], self._count[here], len(self.has)).astype(np.int64)
        for row in job:
            if row.start_ms <= instant_ms < row.end_ms:
                held[self._index[row.node]] -= row.units
        free: Ints = np.maximum(self.has - held, 0)
        return free


def run(facts: DetectorFacts, settings: ScopedSettings[TopologySpreadSettings]) -> RuleDetection:
    """Jobs that are spread over too many domains of some level now."""
    overview = facts.overview
    if overview is None:
        subject = FindingSubject(SubjectKind.CLUSTER, facts.cluster, facts.cluster)
        because = "nobody watches the cluster's objects, so labels of its nodes are not known"
        return RuleDetection(withheld=(WithheldFinding(NAME, subject, because, lacks_data=True),))
    nodes = tuple(overview.state.nodes.values())
    levels = _levels(overview, settings.default)
    drafts: list[FindingDraft] = []
    withheld: list[WithheldFinding] = []
    rooms: dict[str, _Room] = {}
    search = _SpreadSearch(overview, nodes, levels)
    for job in _jobs(facts, settings):
        worst = search.spread(job)
        if worst is None:
            continue
        resource = job.first.resource
        if resource not in rooms:
            rooms[resource] = _Room(facts, resource, nodes)
        found = search.avoidable(job, rooms[resource], _instant(facts, job), worst)
        if found is None:
            continue
        held_back = _guard(facts, overview, job)
        if held_back is not None:
            withheld.append(WithheldFinding(NAME, job.first.subject, held_back[0], held_back[1]))
        else:
            drafts.append(_draft(facts, overview, job, found))
    return RuleDetection(tuple(drafts), tuple(withheld))


def _levels(overview: ClusterOverview, settings: TopologySpreadSettings) -> tuple[str, ...]:
    """Those of the settings, then those of Kueue's Topology objects, but not of single nodes."""
    of_kueue = (level for each in overview.state.topologies.values() for level in each.levels)
    found = dict.fromkeys((*settings.levels, *of_kueue))
    return tuple(level for level in found if level != "kubernetes.io/hostname")


def _jobs(facts: DetectorFacts, settings: ScopedSettings[TopologySpreadSettings]) -> Iterator[_Job]:
    """Batch jobs that hold GPUs now on several nodes, all pods for long enough."""
    held = facts.history.held
    now = held[(held["end_ms"] >= facts.now_ms) & (held["workload_class"] == WorkloadClass.BATCH.value)]
    # A uid is what an owner reference claims: pods of another namespace are another job.
    spread = now.groupby(["namespace", "job_uid"], observed=True)["node"].transform("nunique") > 1
    of_uid = pieces(now[spread], "job_uid", set(now.loc[spread, "job_uid"].tolist())).values()
    for rows in (own for mixed in of_uid for own in by_namespace(mixed)):
        own = settings.at(rows[0].namespace, rows[0].queue)
        start_ms = max(row.start_ms for row in rows)
        is_even = len({(row.resource, row.units) for row in rows}) == 1
        if is_even and facts.now_ms - start_ms >= milliseconds(own.after):
            yield _Job(tuple(rows), start_ms)


def _instant(facts: DetectorFacts, job: _Job) -> int:
    """The instant at which free units count: the job's start; now, where that was before the history."""
    return job.start_ms if job.start_ms > facts.history.window.start_ms else facts.now_ms - 1


@dataclass(frozen=True, slots=True)
class _Found:
    """A job in ``domains`` (pods by domain) of ``level``, where ``needed`` would have done."""

    level: str
    domains: Mapping[str, int]
    needed: int
    instant_ms: int


class _SpreadSearch:
    """Domains of the nodes at every level, as arrays."""

    def __init__(self, overview: ClusterOverview, nodes: Sequence[Node], levels: Sequence[str]) -> None:
        self._overview, self._nodes, self._levels = overview, nodes, levels
        self._index = {node.meta.name: n for n, node in enumerate(nodes)}
        self._domains: dict[str, tuple[Ints, list[str]]] = {}
        for level in levels:
            wider = _wider(overview, level)
            labels = ["/".join(node.labels.get(name, "") for name in wider) for node in nodes]
            has = [bool(node.labels.get(level)) for node in nodes]
            code, names = pd.factorize(np.array(labels, dtype=object))
            self._domains[level] = (np.where(has, code, -1).astype(np.int64), [str(each) for each in names])
        self._fits: dict[object, Flags] = {}

    def spread(self, job: _Job) -> Sequence[str] | None:
        """Levels at which the job is in several domains, and all of its nodes in one; None without any."""
        at = [self._index.get(row.node, -1) for row in job.rows]
        if -1 in at:
            return None
        codes = ((level, self._domains[level][0][at]) for level in self._levels)
        found = [level for level, code in codes if code.min() >= 0 and len(np.unique(code)) > 1]
        return found or None

    def avoidable(self, job: _Job, room: _Room, instant_ms: int, levels: Sequence[str]) -> _Found | None:
        """The widest level at which fewer domains had room for all of its pods."""
        at = np.array([self._index[row.node] for row in job.rows], dtype=np.int64)
        pods = len(at)
        free = room.free_at(instant_ms, job.rows)
        places = np.where(self._eligible(job, at), free // job.units, 0)
        for level in levels:
            code, names = self._domains[level]
            inside = code >= 0
            total = np.bincount(code[inside], places[inside], len(names)).astype(np.int64)
            enough = np.cumsum(np.sort(total)[::-1]) >= pods
            used, counts = np.unique(code[at], return_counts=True)
            if enough.any() and int(np.argmax(enough)) + 1 < len(used):
                domains = {names[n]: int(count) for n, count in zip(used, counts, strict=True)}
                return _Found(level, domains, int(np.argmax(enough)) + 1, instant_ms)
        return None

    def _eligible(self, job: _Job, at: Ints) -> Flags:
        """Nodes with the GPUs the job has, which its template admits where that is known."""
        products = frozenset(self._nodes[n].product for n in at.tolist())
        pod = self._overview.state.pods.get(job.first.pod_uid)
        template = pod.template if pod is not None and is_evaluated(pod.template) else PodTemplate({})
        selector = tuple(sorted(template.node_selector.items()))
        key = (products, pod is None, selector, template.affinity, template.tolerations)
        if key not in self._fits:
            admits = (
                node.product in products and (pod is None or matches(node, template)) for node in self._nodes
            )
            self._fits[key] = np.fromiter(admits, dtype=bool, count=len(self._nodes))
        return self._fits[key]


def _wider(overview: ClusterOverview, level: str) -> tuple[str, ...]:
    """The labels that name a domain of a level together: in Kueue's Topologies those of wider levels too."""
    for each in overview.state.topologies.values():
        if level in each.levels:
            return each.levels[: each.levels.index(level) + 1]
    return (level,)


def _of_kueue(overview: ClusterOverview) -> frozenset[str]:
    return frozenset(level for each in overview.state.topologies.values() for level in each.levels)


def _guard(facts: DetectorFacts, overview: ClusterOverview, job: _Job) -> tuple[str, bool] | None:
    """Why it is not a finding, and whether that is a lack of data."""
    coverage = facts.history.coverage(job.start_ms, facts.now_ms)
    if coverage < LEAST_COVERAGE:
        return f"the cluster was observed for only {coverage:.0%} of the time since the job's start", True
    pods = (overview.state.pods.get(row.pod_uid) for row in job.rows)
    if any(pod is not None and pod.template.has_pod_affinity for pod in pods):
        return "its pods have rules about other pods, which may ask for the spread", False
    return None


def _draft(facts: DetectorFacts, overview: ClusterOverview, job: _Job, found: _Found) -> FindingDraft:
    first = job.first
    boards = sum(row.boards for row in job.rows if row.boards == row.boards)
    shown = sorted(found.domains.items(), key=lambda each: (-each[1], each[0]))
    kept = sum(pods for _, pods in shown[: found.needed])
    outside = boards * (1 - kept / len(job.rows))
    length_ms = facts.now_ms - max(job.start_ms, facts.now_ms - DAY_MS)
    when = "when it started" if found.instant_ms == job.start_ms else "now"
    pods = [overview.state.pods.get(row.pod_uid) for row in job.rows]
    return FindingDraft(
        NAME,
        "spread",
        first.subject,
        job.start_ms,
        f"{first.namespace}/{first.job} runs in {len(shown)} domains of {found.level} since "
        f"{since(job.start_ms)}, for {lasting(facts.now_ms - job.start_ms)}, while {found.needed} had room "
        f"for "
        f"all of its {amount(len(job.rows), 'pod')} {when}.",
        (
            FindingEvidence("domains it is in", len(shown), found.level, "labels of its nodes"),
            FindingEvidence("domains it needs", found.needed, found.level, f"free GPUs {when}"),
            FindingEvidence(
                "pods by domain", ", ".join(f"{name}: {n}" for name, n in shown), "", "labels of its nodes"
            ),
            FindingEvidence(
                "outside the domains it needs", round(outside, 3), "GPUs", "gpucost_pod_gpu_request"
            ),
            FindingEvidence(
                "their time meanwhile", hours(outside * length_ms), "", "gpucost_pod_gpu_request"
            ),
        ),
        _action(overview, job, found, [pod for pod in pods if pod is not None]),
        "GPUs outside the domains the job needs × time; shown, not counted",
        team=first.team,
        queue=first.queue,
        user=first.user,
        view=(
            ViewTime(
                facts.now_ms - length_ms,
                facts.now_ms,
                outside * length_ms,
                tuple({row.node: None for row in job.rows}),
            ),
        ),
        checked=(
            f"fewer domains had room for all of its pods {when}, on nodes that admit them",
            "no rule of its pods asks for the spread",
        ),
    )


def _action(overview: ClusterOverview, job: _Job, found: _Found, pods: Sequence[Pod]) -> FindingAction:
    """Kueue's annotation where Kueue knows the level; else a preference for pods of the same job."""
    first = job.first
    if first.cluster_queue and found.level in _of_kueue(overview):
        text = "Ask Kueue to place the job's pods in as few domains as it can, in the template of its pods."
        patch = (
            f"metadata:\n  annotations:\n    kueue.x-k8s.io/podset-preferred-topology: {_quoted(found.level)}"
        )
        return FindingAction(text, patch)
    text = (
        "Let the job's pods prefer the domain of those that are there already, in the template of its pods."
    )
    key, value = _common_label(first.job, pods)
    lines = (
        "spec:",
        "  affinity:",
        "    podAffinity:",
        "      preferredDuringSchedulingIgnoredDuringExecution:",
        "        - weight: 100",
        "          podAffinityTerm:",
        f"            topologyKey: {_quoted(found.level)}",
        "            labelSelector:",
        "              matchLabels:",
        f"                {_quoted(key)}: {_quoted(value)}",
    )
    return FindingAction(text, "\n".join(lines))


def _common_label(job: str, pods: Sequence[Pod]) -> tuple[str, str]:
    """A label that all its pods have with the job's name; ``job-name``, as Jobs have it, without one."""
    shared = set(pods[0].meta.labels.items()) if pods else set()
    for pod in pods[1:]:
        shared &= set(pod.meta.labels.items())
    named = sorted(key for key, value in shared if value == job)
    return (named[0] if named else "batch.kubernetes.io/job-name", job)


def _quoted(text: str) -> str:
    """As a YAML scalar, whatever it contains: JSON is YAML."""
    return json.dumps(text)
