"""The verdict on each feature, out of the facts of one cluster."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gpucost.contract import kube_state as ksm
from gpucost.contract.dcgm import DcgmField
from gpucost.contract.gpu_metrics import POD_BUSY
from gpucost.contract.opencost import CONTAINER_RUNNING
from gpucost.contract.probe import (
    KUBE_JOBS,
    KUEUE_QUEUES,
    KUEUE_QUOTAS,
    OPENCOST_PRICES,
    OWN_JOBS,
    OWN_STATE,
    VOLCANO_QUEUES,
    VOLCANO_QUOTAS,
    ClusterProbe,
    NodeSeries,
    PodSeries,
    SeriesPresence,
    TrialReading,
)
from gpucost.domain.text import counted
from gpucost.domain.time import HOUR_MS, Window, iso
from gpucost.reports.doctor.model import (
    COUNT,
    PRODUCTS,
    QUEUES,
    REPLICAS,
    DoctorFeature,
    DoctorRequirements,
    FeatureFinding,
    FeatureVerdict,
    annotations_in,
    labels_in,
)

YES, PART, NO, UNKNOWN = FeatureVerdict.YES, FeatureVerdict.PART, FeatureVerdict.NO, FeatureVerdict.UNKNOWN
_OWN = "from gpucost's own exporters"
_NOTHING = "there is no month's cost to divide"
_NOBODY = "nothing tells who holds the GPUs"
_NOW = " (now)"
_UNDATED = (DoctorFeature.COST, DoctorFeature.LIVE)
"""Features whose time is part of their verdict, or that are about the present only."""
_SOME = 4
_ENOUGH = 0.8
"""The part of held time that is enough: at the edges of half an hour, and of pods, a scrape or two are
missing."""
_MEASURED = {
    DoctorFeature.BUSY: "busy",
    DoctorFeature.SM: "sm",
    DoctorFeature.TENSOR: "tensor",
    DoctorFeature.MEMORY: "memory",
    DoctorFeature.ENERGY: "energy",
}
"""Kinds of measurement in a TrialReading."""
STARTS = (ksm.SCHEDULED, ksm.STARTED, ksm.CREATED)
_USE = {
    DoctorFeature.BUSY: (DcgmField.BUSY, DcgmField.GRAPHICS),
    DoctorFeature.SM: (DcgmField.SM,),
    DoctorFeature.TENSOR: (DcgmField.TENSOR,),
    DoctorFeature.MEMORY: (DcgmField.MEMORY_USED,),
    DoctorFeature.ENERGY: (DcgmField.ENERGY, DcgmField.POWER),
}


@dataclass(frozen=True, slots=True)
class ClusterCase:
    """One cluster, probed ``at_ms``, and the part of the month that is past."""

    probe: ClusterProbe
    asked: Window
    wanted: DoctorRequirements
    at_ms: int

    @property
    def trial(self) -> TrialReading | None:
        """The report on the last minutes, where it is made from kube-state-metrics."""
        found = self.probe.trial
        return None if self.is_own or found is None or not found.capacity_ms else found

    @property
    def is_later(self) -> bool:
        """Whether the cluster was probed after the month: what is there now says nothing of the month."""
        return self.at_ms > self.asked.end_ms

    def seen(self, kind: str) -> SeriesPresence | None:
        return (self.probe.seen or {}).get(kind)

    @property
    def state(self) -> SeriesPresence | None:
        """The series that say who held what: gpucost's collector or kube-state-metrics, whichever was there
        all the time, the collector first; else whichever was there longer."""
        found = [each for each in (self.seen("own"), self.seen("state")) if each is not None]
        return max(found, key=lambda each: (self.is_whole(each), each.instants), default=None)

    @property
    def is_own(self) -> bool:
        """Whether costs are computed from gpucost's collector."""
        own = self.seen("own")
        return own is not None and own is self.state

    @property
    def is_there_now(self) -> bool:
        """Whether either is scraped at the time of the probe."""
        return self.probe.has(OWN_STATE, ksm.NODE_CREATED, ksm.NODE_INFO)

    @property
    def slack_ms(self) -> int:
        """How much may be missing at either end of the month: an hour, and while it is young a tenth of
        it."""
        return min(HOUR_MS, max(self.wanted.max_gap_ms, self.asked.length_ms // 10))

    def is_whole(self, seen: SeriesPresence) -> bool:
        """Whether the series were there from the beginning to the end, but for ``slack_ms``."""
        starts = seen.first_ms <= self.asked.start_ms + self.slack_ms
        return starts and seen.last_ms >= self.asked.end_ms - self.slack_ms

    def bounds(self, seen: SeriesPresence) -> str:
        """The part of the month for which the series are there."""
        is_late = seen.first_ms > self.asked.start_ms + self.slack_ms
        begins = f"samples begin {iso(seen.first_ms)}" if is_late else ""
        is_early = seen.last_ms < self.asked.end_ms - self.slack_ms
        ends = f"samples end {iso(seen.last_ms)}" if is_early else ""
        return ", ".join(each for each in (begins, ends) if each)

    @property
    def all_bounds(self) -> tuple[str, ...]:
        return tuple(self.bounds(seen) for seen in (self.probe.seen or {}).values())


def share_of(part: int, whole: int) -> str:
    """The share in percent, never 0 % of something nor 100 % of less than all."""
    percent = 100 * part / max(whole, 1)
    if percent >= 99.5 and part < whole:
        return "more than 99 %"
    return f"{percent:.0f} %" if percent >= 1 or not part else "less than 1 %"


def judge(case: ClusterCase) -> dict[DoctorFeature, FeatureFinding]:
    """Every feature, in order."""
    cost = _dated(case, _cost(case))
    found = {DoctorFeature.COST: cost}
    if cost.verdict is NO:
        nothing = FeatureFinding(NO, _NOTHING)
        found |= dict.fromkeys(
            (DoctorFeature.TEAMS, DoctorFeature.QUEUES, DoctorFeature.JOBS, DoctorFeature.SHARING), nothing
        )
    else:
        found |= {
            DoctorFeature.TEAMS: _teams(case),
            DoctorFeature.QUEUES: _queues(case),
            DoctorFeature.JOBS: _jobs(case),
            DoctorFeature.SHARING: _sharing(case),
        }
    found |= {feature: _use(case, feature, fields) for feature, fields in _USE.items()}
    found |= {
        DoctorFeature.IDLE: FeatureFinding(NO, _NOBODY) if cost.verdict is NO else _idle(found),
        DoctorFeature.QUOTAS: _quotas(case),
        DoctorFeature.UNADVERTISED: _unadvertised(case),
        DoctorFeature.BROKEN: _broken(case),
        DoctorFeature.PRICES: _prices(case),
        DoctorFeature.COMPARE: _compare(case, cost),
        DoctorFeature.LIVE: _live(case),
    }
    return {
        feature: found[feature] if feature in _UNDATED else _dated(case, found[feature])
        for feature in DoctorFeature
    }


def _dated(case: ClusterCase, finding: FeatureFinding) -> FeatureFinding:
    """A defect of now may not have been there in the month: it is marked as of now."""
    is_of_now = case.is_later and finding.verdict in (PART, NO)
    says = finding.why
    if not is_of_now or says.endswith(_NOW) or says == _NOTHING or says in case.all_bounds:
        return finding
    return FeatureFinding(finding.verdict, says + _NOW)


def _cost(case: ClusterCase) -> FeatureFinding:
    if case.probe.seen is None:
        return FeatureFinding(UNKNOWN, "the server does not say since when there are series")
    if case.state is None:
        if case.is_there_now:
            return FeatureFinding(NO, f"no sample is of that month, though kube-state-metrics is there{_NOW}")
        if hidden := [each for each in (KUBE_JOBS, OWN_JOBS) if each in case.probe.others]:
            named = " and ".join(f"prometheus.{each}" for each in hidden)
            return FeatureFinding(
                NO, f"no job that {named} names has series of who holds what, and others have"
            )
        return FeatureFinding(NO, "no series of kube-state-metrics, nor of gpucost's collector")
    if case.is_own:
        return _covered(case, case.state, FeatureFinding(YES, _OWN))
    return _covered(case, case.state, _cost_of_kube_state(case))


def _covered(case: ClusterCase, seen: SeriesPresence, otherwise: FeatureFinding) -> FeatureFinding:
    if case.is_whole(seen) or otherwise.verdict is NO:
        return otherwise
    lacks = [otherwise.why] if otherwise.verdict is PART else []
    return FeatureFinding(PART, "; ".join((case.bounds(seen), *lacks)))


def _cost_of_kube_state(case: ClusterCase) -> FeatureFinding:
    pods, nodes = case.probe.pods, case.probe.nodes
    if pods is None or nodes is None:
        return FeatureFinding(UNKNOWN, "the server did not answer for requests or nodes")
    if not pods.pods and not nodes.nodes:
        return FeatureFinding(NO, "no node advertises GPUs and no pod requests any")
    if not pods.pods:
        return FeatureFinding(
            PART, f"no {ksm.REQUESTS} of GPUs: nobody held any of late, or the series is dropped"
        )
    if pods.with_uid < pods.pods:
        return FeatureFinding(NO, "requests have no label uid, so lifetimes cannot be told")
    lacks = [*_unseen(pods, nodes), *_unknown_models(case, nodes)]
    if case.probe.has(ksm.RESOURCE_CLAIMS):
        lacks.append("GPUs that pods have by DRA claims are not in it: no series says which")
    if lacks:
        return FeatureFinding(PART, "; ".join(lacks))
    if pods.names is None:
        return FeatureFinding(UNKNOWN, "whether times and phases of pods are there could not be read")
    return FeatureFinding(YES, "requests, lifetimes and capacity from kube-state-metrics")


def _unseen(pods: PodSeries, nodes: NodeSeries) -> list[str]:
    """What the cost leaves out because a series is missing."""
    lacks = []
    if pods.with_node < pods.pods and not pods.with_node:
        lacks.append("requests name no node")
    if not nodes.nodes:
        lacks.append("without kube_node_status_allocatable capacity is unknown")
    if pods.names is not None and ksm.PHASE not in pods.names:
        lacks.append("without kube_pod_status_phase a pod counts as ended once one of its containers has")
    if pods.names is not None and not pods.names.intersection(STARTS):
        lacks.append("without start times a pod begins at its first scrape")
    return lacks


def _unknown_models(case: ClusterCase, nodes: NodeSeries) -> list[str]:
    if case.trial is not None:
        return _unbilled(case.trial)
    if nodes.labels is not None and not labels_in(PRODUCTS, nodes.labels):
        return ["GPU models are unknown, so prices by model do not apply"]
    return []


def _unbilled(trial: TrialReading) -> list[str]:
    """What a report leaves without a price, or bills to no team."""
    lacks = []
    unknown = trial.unpriced.get("", 0)
    named = {model: ms for model, ms in trial.unpriced.items() if model and ms}
    if unknown:
        of = share_of(unknown, trial.capacity_ms)
        lacks.append(f"GPU models are unknown of {of} of the GPUs, so prices by model do not apply")
    if named:
        of = share_of(sum(named.values()), trial.capacity_ms)
        lacks.append(f"no price for {', '.join(sorted(named)[:_SOME])}: {of} of the GPUs")
    return [*lacks, *_unshared(trial)]


def _unshared(trial: TrialReading) -> list[str]:
    """MIG slices and shared GPUs that pods hold and that cost nothing."""
    lacks = []
    if trial.unshared_pods:
        pods = counted(trial.unshared_pods, "pod")
        lacks.append(f"nobody knows what part of a GPU {pods} held, so that is not billed")
    if trial.over_ms:
        of = share_of(trial.over_ms, trial.held_ms + trial.over_ms)
        lacks.append(f"{of} of what pods held is more than their nodes have, so that is not billed")
    return lacks


def _teams(case: ClusterCase) -> FeatureFinding:
    if case.is_own:
        return FeatureFinding(YES, _OWN)
    pods = case.probe.pods
    if pods is None or pods.labels is None:
        return FeatureFinding(UNKNOWN, "labels of pods could not be read")
    if case.trial is not None and case.trial.held_ms:
        return _named(case.trial)
    owners = case.wanted.owners
    exported = {
        kind: labels_in(keys, pods.labels | (pods.namespace_labels or frozenset()))
        or annotations_in(keys, pods.annotations or ())
        for kind, keys in (("team", owners.team), ("project", owners.project), ("user", owners.user))
    }
    found = ", ".join(f"{kind} from {keys[0]}" for kind, keys in exported.items() if keys)
    missing = [kind for kind, keys in exported.items() if not keys]
    if not missing:
        return FeatureFinding(YES, found)
    if pods.namespace_labels is None or pods.annotations is None:
        unread = f"whether namespaces or annotations name {', '.join(missing)} could not be read"
        return FeatureFinding(UNKNOWN, f"{found}; {unread}" if found else unread)
    says = f"no exported label names {', '.join(missing)}; rules by namespace work (teams.rules)"
    return FeatureFinding(PART, f"{found}; {says}" if found else says)


def _named(trial: TrialReading) -> FeatureFinding:
    """How much held time has a team, project or user. Rules by namespace need no label."""
    held = trial.held_ms
    shares = {kind: trial.named.get(kind, 0) for kind in ("team", "project", "user")}
    found = ", ".join(f"{kind} of {share_of(ms, held)}" for kind, ms in shares.items() if ms)
    missing = [kind for kind, ms in shares.items() if not ms]
    says = f"{found} of what pods hold" if found else ""
    if not missing:
        return FeatureFinding(YES if min(shares.values()) == held else PART, says)
    lacks = f"no exported label names {', '.join(missing)}; rules by namespace work (teams.rules)"
    return FeatureFinding(PART, f"{says}; {lacks}" if says else lacks)


def _queues(case: ClusterCase) -> FeatureFinding:
    if case.is_own:
        return FeatureFinding(YES, _OWN)
    pods = case.probe.pods
    if case.trial is not None and (of := case.trial.named.get("queue", 0)):
        share = f"of {share_of(of, case.trial.held_ms)} of what pods hold"
        return FeatureFinding(YES if of == case.trial.held_ms else PART, share)
    if pods is None or pods.labels is None:
        return FeatureFinding(UNKNOWN, "labels of pods could not be read")
    found = labels_in(QUEUES, pods.labels) or annotations_in(QUEUES, pods.annotations or ())
    if found and case.trial is not None and case.trial.held_ms:
        return FeatureFinding(NO, f"no pod that holds GPUs has a label or annotation {' or '.join(found)}")
    if found:
        return FeatureFinding(YES, f"from {', '.join(found)}")
    if pods.annotations is None:
        return FeatureFinding(UNKNOWN, "annotations of pods could not be read")
    return FeatureFinding(NO, "no exported label or annotation of pods names a queue")


def _jobs(case: ClusterCase) -> FeatureFinding:
    if case.is_own:
        return FeatureFinding(YES, _OWN)
    pods = case.probe.pods
    if pods is None or pods.names is None:
        return FeatureFinding(UNKNOWN, "owners of pods could not be read")
    if pods.pods and ksm.POD_OWNER not in pods.names:
        return FeatureFinding(NO, "no kube_pod_owner: each pod is a job of its own")
    lacking = [
        metric
        for kind, metric in (("Job", ksm.JOB_OWNER), ("ReplicaSet", ksm.REPLICASET_OWNER))
        if kind in pods.owners and metric not in pods.names
    ]
    if pods.unread.intersection(lacking):
        return FeatureFinding(UNKNOWN, "owners of jobs and replica sets could not be read")
    if lacking:
        return FeatureFinding(PART, f"jobs stop at the pods' own owners, without {' and '.join(lacking)}")
    return FeatureFinding(YES, "from owners; by namespace, kind and name, as uids are not told")


def _sharing(case: ClusterCase) -> FeatureFinding:
    if case.is_own:
        return FeatureFinding(YES, _OWN)
    nodes = case.probe.nodes
    if nodes is None or nodes.labels is None:
        return FeatureFinding(UNKNOWN, "labels of nodes could not be read")
    tells_replicas = bool(labels_in((REPLICAS,), nodes.labels))
    lacks = [] if case.trial is None else _unshared(case.trial)
    if not tells_replicas and (case.trial is None or case.trial.unsized_nodes):
        of = "" if case.trial is None else f" of {counted(case.trial.unsized_nodes, 'node')}"
        lacks.append(f"without label {REPLICAS} nobody knows how often a GPU{of} is shared")
    if lacks:
        return FeatureFinding(PART, "; ".join(lacks) if case.trial is not None else f"MIG yes; {lacks[0]}")
    gpus = case.probe.gpus
    if is_shared(case.probe) and gpus is not None and not gpus.replicas:
        return FeatureFinding(
            PART, "costs yes; use is that of one pod of several, without KUBERNETES_VIRTUAL_GPUS"
        )
    beside = f"label {REPLICAS}" if tells_replicas else "how many GPUs there are"
    return FeatureFinding(YES, f"from resource names and {beside}")


def is_shared(probe: ClusterProbe) -> bool:
    """Whether anything shows that GPUs are handed out several times."""
    nodes, gpus = probe.nodes, probe.gpus
    if gpus is not None and gpus.replicas:
        return True
    if nodes is None:
        return False
    by_name = any(name.endswith(".shared") for name in nodes.resources)
    return by_name or any(product.upper().endswith("-SHARED") for product in nodes.products)


def _use(case: ClusterCase, feature: DoctorFeature, fields: tuple[DcgmField, ...]) -> FeatureFinding:
    if case.probe.has(POD_BUSY.name):
        return FeatureFinding(YES, _OWN)
    gpus, seen = case.probe.gpus, case.seen("gpus")
    if gpus is None:
        return _of_others(case, feature, fields) or _no_rows(case)
    held = case.probe.pods.pods if case.probe.pods is not None else 0
    if held and not gpus.held:
        return FeatureFinding(NO, "no row of dcgm-exporter names a pod that holds the GPU")
    if case.trial is not None and case.trial.held_ms:
        return _measured(case, case.trial, feature, fields)
    rows = max((gpus.fields.get(each.value, 0) for each in fields), default=0)
    if feature is DoctorFeature.BUSY:  # MIG slices have the one, old exporters the other
        rows = min(gpus.rows, sum(gpus.fields.get(each.value, 0) for each in fields))
    if not rows:
        return FeatureFinding(NO, f"dcgm-exporter gives no {' or '.join(each.value for each in fields)}")
    kind = "GPUs and slices" if gpus.profiles else "GPUs"
    if rows < gpus.rows:
        return FeatureFinding(PART, f"of {rows} of {gpus.rows} {kind}")
    if seen is not None and not case.is_whole(seen):
        return FeatureFinding(PART, case.bounds(seen))
    unclear = [name for name in gpus.unclear_units if feature is DoctorFeature.BUSY]
    if unclear:
        return FeatureFinding(PART, f"whether {unclear[0]} is a ratio or a percentage cannot be told yet")
    return FeatureFinding(YES, f"of {rows} {kind}")


def _of_others(
    case: ClusterCase, feature: DoctorFeature, fields: tuple[DcgmField, ...]
) -> FeatureFinding | None:
    """By the exporters of other makers' GPUs; None where they do not tell it."""
    names = {each.value for each in fields}
    series = case.probe.other_gpus.series if case.probe.other_gpus is not None else ()
    found = next((each for each in series if not names.isdisjoint(each.fields)), None)
    if found is None:
        return None
    if case.trial is not None and case.trial.held_ms and case.trial.measured.get(_MEASURED[feature]):
        return _measured(case, case.trial, feature, fields)
    if not found.names_pods:
        return FeatureFinding(PART, f"of pods that have a whole node: {found.what} names none")
    if found.parts:
        return FeatureFinding(PART, f"{found.what}: of whole GPUs, and of the first partition of others")
    return FeatureFinding(YES, f"of {counted(found.devices, 'GPU')} by {found.what}")


def _measured(
    case: ClusterCase, trial: TrialReading, feature: DoctorFeature, fields: tuple[DcgmField, ...]
) -> FeatureFinding:
    """How much of what pods hold is measured; at its edges a scrape interval may be missing."""
    ms, seen = trial.measured.get(_MEASURED[feature], 0), case.seen("gpus")
    if not ms:
        return FeatureFinding(
            NO, f"dcgm-exporter gives no {' or '.join(each.value for each in fields)} of pods"
        )
    share = f"of {share_of(ms, trial.held_ms)} of what pods hold"
    if ms < _ENOUGH * trial.held_ms:
        return FeatureFinding(PART, share)
    if seen is not None and not case.is_whole(seen):
        return FeatureFinding(PART, case.bounds(seen))
    return FeatureFinding(YES, share)


def _no_rows(case: ClusterCase) -> FeatureFinding:
    seen = case.seen("gpus")
    if case.probe.gpus_unread:
        return FeatureFinding(UNKNOWN, "rows of dcgm-exporter could not be read")
    if seen is None:
        return FeatureFinding(NO, "no series of dcgm-exporter")
    return FeatureFinding(PART, f"in the month until {iso(seen.last_ms)}, no series of dcgm-exporter{_NOW}")


def _idle(found: Mapping[DoctorFeature, FeatureFinding]) -> FeatureFinding:
    busy, memory = found[DoctorFeature.BUSY], found[DoctorFeature.MEMORY]
    if UNKNOWN in (busy.verdict, memory.verdict):
        return busy if busy.verdict is UNKNOWN else memory
    if busy.verdict is YES and memory.verdict is YES:
        return FeatureFinding(YES, "busy time and memory are there")
    if NO in (busy.verdict, memory.verdict) and busy.verdict is memory.verdict:
        return FeatureFinding(NO, busy.why)
    lacking = busy if busy.verdict is not YES else memory
    name = "busy time" if lacking is busy else "memory"
    return FeatureFinding(NO if busy.verdict is NO else PART, f"{name}: {lacking.why}")


def _quotas(case: ClusterCase) -> FeatureFinding:
    if case.is_own:
        return FeatureFinding(YES, _OWN)
    probe = case.probe
    if probe.has(*KUEUE_QUOTAS) or probe.has(*VOLCANO_QUOTAS):
        return FeatureFinding(PART, "quotas and their use; which job waits only gpucost's collector tells")
    if probe.has(*KUEUE_QUEUES):
        return FeatureFinding(
            PART, "numbers of Kueue's workloads; no quotas, without enableClusterQueueResources"
        )
    if probe.has(*VOLCANO_QUEUES):
        return FeatureFinding(PART, "Volcano's queues; no GPU quotas")
    return FeatureFinding(NO, "no series of Kueue or Volcano")


def _unadvertised(case: ClusterCase) -> FeatureFinding:
    nodes = case.probe.nodes
    if case.is_own:
        return FeatureFinding(YES, _OWN)
    if nodes is None or nodes.labels is None:
        return FeatureFinding(UNKNOWN, "labels of nodes could not be read")
    trial = case.trial
    if trial is not None and trial.counted_nodes:
        of = f"of {trial.counted_nodes} of {counted(trial.nodes, 'node')}"
        says = f"how many GPUs there should be is known {of}"
        if trial.counted_nodes == trial.nodes:
            return FeatureFinding(YES, says)
        return FeatureFinding(PART, f"{says}; of the others capacity against allocatable")
    if trial is None and labels_in((COUNT,), nodes.labels):
        return FeatureFinding(YES, f"label {COUNT} against what is allocatable")
    if nodes.names is None:
        return FeatureFinding(UNKNOWN, f"no label {COUNT}; facts of nodes could not be read")
    if ksm.NODE_CAPACITY in nodes.names:
        return FeatureFinding(
            PART, f"capacity against allocatable; without label {COUNT} a lost GPU is not missed"
        )
    return FeatureFinding(NO, f"neither label {COUNT} nor kube_node_status_capacity")


def _broken(case: ClusterCase) -> FeatureFinding:
    gpus = case.probe.gpus
    if case.probe.has(POD_BUSY.name):
        return FeatureFinding(YES, _OWN)
    if gpus is None:
        return _no_rows(case)
    if DcgmField.XID.value in gpus.fields:
        return FeatureFinding(YES, "from the last XID of each GPU")
    return FeatureFinding(PART, "no XID is told: none has happened, or the field is not exported")


def _prices(case: ClusterCase) -> FeatureFinding:
    if case.trial is not None and case.trial.doubted:
        node, why = min(case.trial.doubted.items())
        return FeatureFinding(PART, f"of {counted(len(case.trial.doubted), 'node')}, such as {node}: {why}")
    if case.probe.has(OPENCOST_PRICES[0]):
        return FeatureFinding(YES, f"from {OPENCOST_PRICES[0]}")
    if case.probe.has(OPENCOST_PRICES[1]):
        return FeatureFinding(PART, f"{OPENCOST_PRICES[1]}, but no {OPENCOST_PRICES[0]}")
    return FeatureFinding(NO, "no series of OpenCost; the price book is used")


def _compare(case: ClusterCase, cost: FeatureFinding) -> FeatureFinding:
    prices = _prices(case)
    if prices.verdict is NO:
        return FeatureFinding(NO, "no series of OpenCost")
    if cost.verdict in (NO, UNKNOWN):
        return cost
    pods = case.probe.pods
    if (
        not case.is_own
        and pods is not None
        and pods.names is not None
        and CONTAINER_RUNNING not in pods.names
    ):
        return FeatureFinding(PART, f"without {CONTAINER_RUNNING} OpenCost bills no pod anything")
    return prices if cost.verdict is YES else cost


def _live(case: ClusterCase) -> FeatureFinding:
    if case.probe.has(OWN_STATE):
        return FeatureFinding(YES, "gpucost's collector runs")
    return FeatureFinding(NO, "needs gpucost's collector in the cluster")
