"""The settings of every rule: one model per anti-pattern, with overrides for namespaces and queues, and what
all of them are together.

Here, and not beside the rules, so that settings are read without pandas: rules compute with frames.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Generic, TypeVar

from pydantic import Field

from gpucost.detectors.findings import WastePattern
from gpucost.domain.gpu import MEMORY_ROOM
from gpucost.domain.text import is_any
from gpucost.domain.time import HOUR_MS
from gpucost.settings.types import Duration, Names, SettingsGroup

LATELY_MS = 12 * HOUR_MS
"""What a rule derives about a GPU or a pod (the least power it drew, the rate it always receives) comes from
the half day (UTC) of a row and the one before, so that the result for a row does not depend on how much
history was read."""
_ZERO = timedelta(0)


class DetectorSettings(SettingsGroup):
    """What every rule has."""

    enabled: bool = True
    """Whether the rule runs. A bucket of the waste ledger whose rule does not run stays empty."""

    rehearsal: bool = False
    """Findings are listed and marked as rehearsal, but raise no alert and are posted nowhere."""


S = TypeVar("S", bound=DetectorSettings)


@dataclass(frozen=True)
class SettingsOverride(Generic[S]):
    """Other settings for what is in one of ``namespaces`` or ``queues`` (shell patterns; empty: any)."""

    namespaces: tuple[str, ...]
    queues: tuple[str, ...]
    settings: S

    def applies(self, namespace: str, queue: str) -> bool:
        return is_any(namespace, self.namespaces) and is_any(queue, self.queues)


@dataclass(frozen=True)
class ScopedSettings(Generic[S]):
    """A rule's settings, and those of the places where others hold: the first override that applies."""

    default: S
    overrides: Sequence[SettingsOverride[S]] = ()

    def at(self, namespace: str = "", queue: str = "") -> S:
        for override in self.overrides:
            if override.applies(namespace, queue):
                return override.settings
        return self.default


def overridden(settings: S, values: Mapping[str, object]) -> S:
    """``settings`` with some other values, checked like the rest. Raises pydantic's ValidationError."""
    known = {name: getattr(settings, name) for name in settings.model_fields_set}
    return type(settings).model_validate({**known, **values})


def _minutes(count: int) -> timedelta:
    return timedelta(minutes=count)


class NotAdvertisedSettings(DetectorSettings):
    """When GPUs that are not advertised are a finding."""

    after: Duration = Field(default=timedelta(minutes=10), ge=timedelta(minutes=1))
    """How long a node must advertise too few, without a break. Right after a restart of the kubelet counts
    are wrong for moments (kubernetes/kubernetes 114422), so a single look is never enough. Ours."""

    node_age: Duration = Field(default=timedelta(minutes=10), ge=timedelta(0))
    """How long a new node may take until its driver and device plugin are up. Ours; the time before does not
    count."""


class UnhealthyAllocatedSettings(DetectorSettings):
    """What counts as broken."""

    after: Duration = Field(default=timedelta(minutes=10), ge=timedelta(0))
    """How long a GPU must be broken and held, without a break. Ours: a driver that restarts takes less."""

    programs_xids: frozenset[int] = frozenset({13, 31, 43, 45, 68, 109})
    """Xid codes that a program causes, not the GPU. Those that NVIDIA's device plugin does not take for a
    failure (k8s-device-plugin, internal/rm/health.go)."""


class GangStallSettings(DetectorSettings):
    """When a gang is stalled."""

    after: Duration = Field(default=timedelta(minutes=10), ge=timedelta(minutes=1))
    """How long a gang must lack members, or one of its pods lag, without a break. Twice the five minutes
    after which Kueue's waitForPodsReady evicted by default in its v1beta1 configuration, and well before the
    thirty of v1beta2: so that the finding comes first."""

    image_pull: Duration = Field(default=timedelta(minutes=10), ge=timedelta(0))
    """How long a pod may be pulling its image without its gang counting as stalled. Ours: a large training
    image takes minutes on a node that has never had it."""

    low: float = Field(default=0.1, ge=0, lt=1)
    """Busy share of time, 0 to 1, below which every GPU of a straggler must be. Ours."""

    high: float = Field(default=0.8, gt=0, lt=1)
    """Busy share of time, 0 to 1, above which every GPU of more than half of the pods must be. Ours: ranks
    that wait in a collective spin, and look busy."""


class PreemptionWasteSettings(DetectorSettings):
    """What counts as lost, and from when on it is a finding."""

    share: float = Field(default=0.02, gt=0, le=1)
    """Lost part of what a queue held in 24 hours, 0 to 1, from which on it is a finding. Ours."""

    least_gpu_hours: float = Field(default=8.0, gt=0)
    """GPU-hours a queue must have lost in 24 hours besides. Ours: what makes a finding of medium severity."""

    cycles: int = Field(default=3, ge=2)
    """How often a job must be evicted in 24 hours to be found by itself. Ours."""

    checkpoint_every: Duration = Field(default=timedelta(minutes=60), gt=timedelta(0))
    """How often a job writes a checkpoint, where nothing says: half of it is lost on average, at most half of
    the attempt. Ours: an hour is what training frameworks' examples write."""


class IdleAllocationSettings(DetectorSettings):
    """How long GPUs may do nothing, by what they are held for."""

    start_grace: Duration = Field(_minutes(10), ge=timedelta(0))
    """Time after a pod gets its GPUs that is never called idle: images, data, compilation. Ours;
    gpu-pruner has 5 minutes."""

    longest_start: Duration = Field(_minutes(30), ge=timedelta(0))
    """A pod whose GPUs have not worked yet is left alone until it is this old. Ours."""

    batch_from_start: Duration = Field(_minutes(60), ge=_minutes(5))
    """How long a batch job may idle that never used a GPU. JDS' first warning."""

    batch_stop_from_start: Duration = Field(_minutes(120), ge=_minutes(5))
    """From when on such a job should be suspended, and not only looked at. JDS cancels then."""

    batch: Duration = Field(_minutes(240), ge=_minutes(5))
    """How long a batch job may idle that has worked before, or whose start is not known. JDS' sliding
    warning."""

    batch_stop: Duration = Field(_minutes(300), ge=_minutes(5))
    """From when on such a job should be suspended. JDS cancels then."""

    interactive: Duration = Field(_minutes(60), ge=_minutes(5))
    """How long a notebook or an interactive cluster may idle. SageMaker's shortest."""

    serving: Duration = Field(_minutes(240), ge=_minutes(5))
    """How long a server may idle. On a real serving fleet work follows on 86 % of the stretches of 30 minutes
    without any, and still on 37 % of those of 240."""

    serving_risk: float = Field(0.1, gt=0, lt=1)
    """How likely a server may be to work again for it to be called idle. Where nothing counts its requests,
    the upper end of a 95 % interval must lie below it, by past gaps of servers of the same cluster. Ours."""

    serving_ahead: Duration = Field(_minutes(24 * 60), ge=_minutes(60))
    """Within which time it may not work again; as long as it has been idle where that is longer. What is
    known of servers (``detectors.history`` and ``detectors.past``) must be longer than both. Ours."""

    unknown: Duration = Field(_minutes(240), ge=_minutes(5))
    """How long a pod may idle of which nothing says what it is for: as patient as with servers. Ours."""

    partly: Duration = Field(_minutes(60), ge=_minutes(5))
    """How long some GPUs of a job may idle while others work; for servers it is ``serving`` where that is
    longer. Ours."""

    idle_watts: float | None = Field(None, gt=0)
    """Watts of a whole GPU at which its power contradicts that it idles. Unset: a level by model, such as
    100 W for an A100, 150 W for an H100 and 40 W for an L4; for others 100 W, or one and a half times the
    least it drew. gpu-pruner and ours."""

    def after(self, workload_class: str, from_start: bool) -> timedelta:
        """How long a whole job of a class may idle."""
        if workload_class == "batch":
            return self.batch_from_start if from_start else self.batch
        return {"interactive": self.interactive, "serving": self.serving}.get(workload_class, self.unknown)

    def stop_after(self, workload_class: str, from_start: bool) -> timedelta:
        if workload_class == "batch":
            return self.batch_stop_from_start if from_start else self.batch_stop
        return self.after(workload_class, from_start)

    def partly_after(self, workload_class: str) -> timedelta:
        return max(self.partly, self.serving) if workload_class == "serving" else self.partly

    @property
    def shortest(self) -> timedelta:
        return min(
            self.batch_from_start, self.batch, self.interactive, self.serving, self.unknown, self.partly
        )


class OversizedRequestSettings(DetectorSettings):
    """Parts are 0 to 1. Utilisation is that of SMs: the busy signal is near 1 on healthy and on wasteful jobs
    alike."""

    least_run: Duration = Field(timedelta(minutes=61), ge=timedelta(minutes=5))
    """How long a job must have held its GPUs. JDS."""

    warm_up: Duration = Field(timedelta(minutes=10), ge=_ZERO)
    """Time after a pod's start that is not judged. Ours."""

    rest: Duration = Field(timedelta(minutes=60), ge=timedelta(minutes=5))
    """Rests of the whole job of at least this length are not judged here but by idle_allocation. Ours."""

    serving_history: Duration = Field(timedelta(hours=24), ge=_ZERO)
    """How long servers must have been seen: their load comes in bursts, once a day or more. Ours."""

    peak_room: float = Field(0.7, gt=0, le=1)
    """Part of the SMs that a server is told to do with, for its busiest step to take at most: bursts within a
    step of minutes are not seen. Ours."""

    serving_saves: float = Field(0.25, gt=0, le=1)
    """Part of what a server holds that it must be able to do without at its peak, to be told so. Ours."""

    least_replicas: int = Field(2, ge=1)
    """No fewer replicas are proposed: one may fail. Ours."""

    team_gpu_hours: float = Field(24.0, ge=0)
    """GPU-hours in seven days that a team's jobs which one variant finds must have held together, before any
    of them is reported; a shorter history needs its part of them. JDS, per user."""

    small_sm: float = Field(0.15, gt=0, le=1)
    """Mean SM activity up to which a job may fit a smaller part of a GPU. JDS has 15 to 20 %."""

    memory_room: float = Field(MEMORY_ROOM, gt=0, le=1)
    """Part of a slice's memory that the job's 99th percentile may take: JDS' margin of 20 %."""

    most_host_gib: float = Field(32.0, gt=0)
    """GiB of host memory per GPU above which a job is told to ask for less of it too. JDS."""

    most_cores: float = Field(12.0, gt=0)
    """Cores per GPU above which a job is told to ask for fewer of them too. JDS."""

    used_activity: float = Field(0.05, gt=0, le=1)
    """A GPU counts as used when its 95th percentile of activity is at least this. Ours."""

    unused_for: Duration = Field(timedelta(minutes=60), ge=timedelta(minutes=5))
    """How long at most half of a job's GPUs must have been used. Ours."""

    low_sm: float = Field(0.25, gt=0, le=1)
    """Mean SM activity of a team up to which it is shown. JDS; jobstats' red and black are 15 and 25 %."""

    target_sm: float = Field(0.5, gt=0, le=1)
    """Mean SM activity that a team could reach. JDS: half is "the cluster mean value"."""

    low_gpu_hours: float = Field(50.0, ge=0)
    """GPU-hours a team must have held for that. JDS."""

    low_part_of_cluster: float = Field(0.02, ge=0, le=1)
    """Part of the cluster's GPU-hours it must have held. JDS."""

    low_top: int = Field(15, ge=1)
    """How many teams are shown at most. JDS."""

    low_most_memory: float = Field(0.75, gt=0, le=1)
    """Jobs with more of the GPU memory in use than this, on average, are left out. Ours."""

    cores_over_ratio: float = Field(1.5, ge=1)
    """Cores per GPU, in shares of what the node has per GPU, above which a pod asks for too many. JDS: 18 of
    12."""

    memory_over_ratio: float = Field(1.05, ge=1)
    """The same for host memory. JDS: 250 of 240 GB."""

    half_memory: float = Field(0.5, gt=0, le=1)
    """Part of a large GPU's memory that a job may take and still be called a job for the smaller GPU of the
    family. Perlmutter: 55 % of the jobs that asked for 80 GB."""


class QuotaStarvationSettings(DetectorSettings):
    """When a queue starves beside idle GPUs."""

    after: Duration = Field(default=timedelta(minutes=15), ge=timedelta(minutes=1))
    """How long a job must wait, and its queue see free GPUs that would fit, without a break. Ours: schedulers
    work in seconds and clusters that grow bring a node in minutes; what lasts longer stays."""

    warm_up: Duration = Field(default=timedelta(minutes=15), ge=timedelta(0))
    """How long the GPUs of a node that has just come do not count as idle. Ours: drivers, images and the
    scheduler's next round take that long where an autoscaler adds nodes."""

    reserved_queues: Names = ()
    """Queues whose unused quota is kept free on purpose ("hard reservation"): where nothing else would help
    those that wait, the finding is for information only and counts no waste. None by default."""


class FragmentationSettings(DetectorSettings):
    """When free GPUs count as fragmented."""

    after: Duration = Field(default=timedelta(minutes=15), ge=timedelta(minutes=1))
    """How long a job must wait, and be blocked by the places of free GPUs only. Ours, the same as for quota
    starvation: below it, schedulers and autoscalers may still be at work."""

    pause: Duration = Field(default=timedelta(minutes=10), ge=timedelta(0))
    """Interruptions shorter than this do not end a stretch in which a job is blocked. Ours: as long as a
    finding may be gone and still be the same."""

    gauge_share: float = Field(default=0.10, ge=0, le=1)
    """Part of all GPUs, 0 to 1, that must be fragments to the typical pod for the gauge to speak. Ours:
    BestFit stays below 13.4 % in the FGD authors' runs and falls with load, random placement has 14 to 16."""

    gauge_after: Duration = Field(default=timedelta(hours=1), ge=timedelta(minutes=5))
    """How long that must hold, with somebody waiting. Ours."""

    spread_after: Duration = Field(default=timedelta(minutes=61), ge=timedelta(minutes=1))
    """How long a job must be on more nodes than it needs. Job Defense Shield looks at no job younger than
    this."""

    repack_after: Duration = Field(default=timedelta(hours=1), ge=timedelta(minutes=1))
    """How long the pods to move must have run. Ours: what is younger may soon be gone by itself."""

    repack_nodes: int = Field(default=1, ge=1)
    """How many nodes must get empty for a re-packing to be proposed. Ours."""


class CpuOnlyPodsSettings(DetectorSettings):
    """When pods without GPUs are in the way."""

    after: Duration = Field(default=timedelta(minutes=15), ge=timedelta(0))
    """How long they must have been there. Ours: short jobs leave by themselves."""

    least_gpus: float = Field(default=1.0, gt=0)
    """Free GPUs of one node that they keep from being used. Ours."""

    taint: str = Field(default="nvidia.com/gpu=present:NoSchedule", pattern=r"^[^\s=:]+(=[^\s:]*)?:\w+$")
    """The taint to put on nodes with GPUs. What cloud providers put on theirs, and what the admission plugin
    ExtendedResourceToleration of Kubernetes lets pods with GPUs through, by its key."""


class TopologySpreadSettings(DetectorSettings):
    """What a domain is, and how long a job must be spread over too many."""

    after: Duration = Field(default=timedelta(minutes=61), ge=timedelta(0))
    """How long all pods of a job must have run. Job Defense Shield's: jobs of more than an hour."""

    levels: Names = ("topology.kubernetes.io/zone", "nvidia.com/gpu.clique")
    """Node labels whose values are domains, from the widest to the narrowest. Those that Kubernetes and GPU
    Feature Discovery set; add your labels of blocks and racks. Levels of Kueue's Topologies count too."""


class ReservedUnusedSettings(DetectorSettings):
    """When quota counts as unused."""

    min_history: Duration = Field(default=timedelta(days=7), ge=timedelta(days=1))
    """How much time the quantile is over, up to now; with less history nothing is said. A week, so that it
    has a weekend and the days of a weekly rhythm. Ours."""

    season: Duration = Field(default=timedelta(days=28), ge=timedelta(days=1))
    """How far back use must have been low as well, as far as the history reaches: who needs it for a release
    each month is no finding. Ours: four weeks."""

    min_age: Duration = Field(default=timedelta(days=14), ge=timedelta(0))
    """How old a queue must be, where its age can be seen: new teams take a while to move in. Ours."""

    quantile: float = Field(default=0.95, gt=0, le=1)
    """The part of the time, 0 to 1, that use must stay below. Ours: peaks of an hour a day do not count."""

    part: float = Field(default=0.5, gt=0, lt=1)
    """Below this part of the nominal quota, 0 to 1, it counts as unused. Ours: at half, a queue could lose
    a third and still have room to spare."""

    min_units: float = Field(default=8, ge=1)
    """Units of quota below which a queue is let be. Ours: one node of eight GPUs."""

    headroom: float = Field(default=1.2, ge=1)
    """What the proposed quota is of the quantile, rounded up. Ours."""

    waited: Duration = Field(default=timedelta(minutes=15), ge=timedelta(minutes=1))
    """A queue whose own work waited this long needs its quota; and others that waited so long while free
    GPUs would have fitted them were hurt by it. As in quota_starvation."""

    reserved_queues: Names = ()
    """Queues whose unused quota is kept on purpose, for people on call or a reservation. None by default."""


class MonopolySettings(DetectorSettings):
    """When a tenant has too much."""

    window: Duration = Field(default=timedelta(hours=24), ge=timedelta(hours=1))
    """What use is added up over, up to now. Ours: a day, so that a short burst is none."""

    share: float = Field(default=0.5, gt=0, lt=1)
    """The part of all allocated GPU time, 0 to 1, above which a tenant may be too large. Ours; no source has
    one. For comparison: the largest of Helios' virtual clusters has 0.33."""

    over_entitlement: float = Field(default=1.2, ge=1)
    """How many times its entitlement (its part of the nominal quota, 0 to 1) that must be, besides. Ours."""

    pending_gpu_hours: float = Field(default=1.0, gt=0)
    """GPU-hours that others must have waited for and that would fit into what it borrows. Ours."""

    waited: Duration = Field(default=timedelta(minutes=60), ge=timedelta(minutes=1))
    """How long they must have waited without a break. Ours: loans are given back when jobs end."""

    agreed: Names = ()
    """Queues, or teams where there are no queues, that may have that much: by a reservation, or because the
    cluster is there for them. None by default."""


class NvlinkDomainSettings(DetectorSettings):
    """When the free part of an NVLink domain is stranded."""

    after: Duration = Field(default=timedelta(minutes=15), ge=timedelta(minutes=1))
    """For how long, taken together, jobs must have waited for more of an NVLink domain than ComputeDomains
    leave of it. Ours, the same as for fragmentation."""


SETTINGS_BY_PATTERN: Mapping[WastePattern, type[DetectorSettings]] = {
    WastePattern.NOT_ADVERTISED: NotAdvertisedSettings,
    WastePattern.UNHEALTHY_ALLOCATED: UnhealthyAllocatedSettings,
    WastePattern.GANG_STALL: GangStallSettings,
    WastePattern.PREEMPTION_WASTE: PreemptionWasteSettings,
    WastePattern.IDLE_ALLOCATION: IdleAllocationSettings,
    WastePattern.OVERSIZED_REQUEST: OversizedRequestSettings,
    WastePattern.QUOTA_STARVATION: QuotaStarvationSettings,
    WastePattern.NVLINK_DOMAIN: NvlinkDomainSettings,
    WastePattern.FRAGMENTATION: FragmentationSettings,
    WastePattern.CPU_ONLY_PODS: CpuOnlyPodsSettings,
    WastePattern.TOPOLOGY_SPREAD: TopologySpreadSettings,
    WastePattern.RESERVED_UNUSED: ReservedUnusedSettings,
    WastePattern.MONOPOLY: MonopolySettings,
}
"""In the order in which the rules run."""


@dataclass(frozen=True)
class RuleSettings:
    """The settings of every rule; one that is not named has its defaults."""

    given: Mapping[WastePattern, ScopedSettings[Any]] = field(default_factory=dict)

    def of(self, pattern: WastePattern) -> ScopedSettings[Any]:
        found = self.given.get(pattern)
        return ScopedSettings(SETTINGS_BY_PATTERN[pattern]()) if found is None else found

    def only(self, patterns: Collection[WastePattern]) -> RuleSettings:
        """These settings with every other rule switched off."""
        return RuleSettings(
            {
                pattern: self.of(pattern) if pattern in patterns else ScopedSettings(model(enabled=False))
                for pattern, model in SETTINGS_BY_PATTERN.items()
            }
        )
