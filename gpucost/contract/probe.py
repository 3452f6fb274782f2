"""What was found in a Prometheus, as facts: what ``gpucost doctor`` reads and diagnoses.

A fact that could not be read is None, and its query is in ``ServerProbe.unread``: unknown is not absent.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gpucost.contract.opencost import NODE_GPU, NODE_TOTAL
from gpucost.domain.time import Window

OWN_STATE = "gpucost_state_up"
KUBE_JOBS, OWN_JOBS, GPU_JOBS = "kube_state_metrics_jobs", "gpucost_jobs", "dcgm_exporter_jobs"
AMD_JOBS, OTEL_JOBS = "amd_exporter_jobs", "otel_gpu_jobs"
"""The settings that name the trusted scrape jobs."""
OPENCOST_PRICES = (NODE_GPU, NODE_TOTAL)
KUEUE_QUOTAS = (
    "kueue_cluster_queue_nominal_quota",
    "kueue_cluster_queue_borrowing_limit",
    "kueue_cluster_queue_lending_limit",
    "kueue_cluster_queue_resource_usage",
    "kueue_cluster_queue_resource_reservation",
    "kueue_cluster_queue_resource_pending",
)
"""Exported only with ``metrics.enableClusterQueueResources``."""
KUEUE_QUEUES = (
    "kueue_pending_workloads",
    "kueue_admitted_active_workloads",
    "kueue_cluster_queue_status",
    "kueue_local_queue_resource_usage",
    "kueue_local_queue_resource_reservation",
)
"""Exported by default."""
VOLCANO_QUOTAS = (
    "volcano_queue_allocated_scalar_resources",
    "volcano_queue_request_scalar_resources",
    "volcano_queue_deserved_scalar_resources",
    "volcano_queue_capacity_scalar_resources",
)
VOLCANO_QUEUES = ("volcano_queue_weight", "volcano_queue_share", "volcano_queue_overused")


@dataclass(frozen=True, slots=True)
class UnansweredQuery:
    """A query that the server did not answer, and what it replied."""

    what: str
    reason: str


@dataclass(frozen=True, slots=True)
class SeriesPresence:
    """When a kind of series was there: the seconds in which its first and its last sample ended, and in how
    many hours of the month there was one."""

    first_ms: int
    last_ms: int
    instants: int


@dataclass(frozen=True, slots=True)
class ScrapeJob:
    """A scrape job: its targets at the probe's instant, those that are down, and the time between scrapes."""

    job: str
    targets: int
    down: int
    interval_ms: int | None


@dataclass(frozen=True, slots=True)
class ScrapeGaps:
    """Scrapes of kube-state-metrics in the month, in cells of ``cell_ms``: how many cells have none."""

    asked_ms: int
    missing_ms: int
    longest_ms: int
    longest_from_ms: int
    cell_ms: int


@dataclass(frozen=True, slots=True)
class DuplicateSeries:
    """Series of ``exporter`` for the same subject: how many subjects, and the labels that tell them apart."""

    exporter: str
    subjects: int
    labels: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class UnbelievedJob:
    """A scrape job that exports series under kube-state-metrics' names and is not taken for it, and which
    series. ``is_opencost``: whether it exports OpenCost's prices too."""

    job: str
    names: tuple[str, ...]
    is_opencost: bool = False


@dataclass(frozen=True, slots=True)
class ForeignJob:
    """A scrape job of which some series are refused, and what they claim in a window: GPUs times
    milliseconds, None where they name no GPU. ``what`` the series would be, ``setting`` names the jobs to
    trust, ``believed`` are those jobs; ``namespaces`` are those of its targets, as far as ``up`` says.
    """

    job: str
    namespaces: tuple[str, ...]
    what: str
    setting: str
    believed: tuple[str, ...]
    gpu_ms: int | None

    def __str__(self) -> str:
        is_placed = self.namespaces and self.setting == OWN_JOBS
        home = " and its namespace in prometheus.gpucost_namespace" if is_placed else ""
        where = f" in namespace {', '.join(self.namespaces)}" if self.namespaces else ""
        who = f"those of {', '.join(self.believed)}" if self.believed else "none"
        elsewhere = " elsewhere" if self.job in self.believed else ""
        name = f"job {self.job}" if self.job else "a target without a job"
        return (
            f"{name}{where} gives series of {self.what} and is not taken for it: {who}{elsewhere} "
            f"are believed. If it is, name it in prometheus.{self.setting}{home}; if not, stop the target"
        )


@dataclass(frozen=True, slots=True)
class PodSeries:
    """What kube-state-metrics says of pods that request GPUs. ``labels`` and the like are label names as they
    stand in Prometheus; None where they could not be read. ``unread`` are names of series of which it is not
    known whether they exist, beside ``names``.
    """

    pods: int = 0
    with_uid: int = 0
    with_node: int = 0
    resources: tuple[str, ...] = ()
    namespaces: tuple[str, ...] = ()
    names: frozenset[str] | None = None
    owners: frozenset[str] = frozenset()
    labels: frozenset[str] | None = None
    annotations: frozenset[str] | None = None
    namespace_labels: frozenset[str] | None = None
    job_labels: frozenset[str] | None = None
    unread: frozenset[str] = frozenset()
    renamed: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class NodeSeries:
    """What kube-state-metrics says of nodes that advertise GPUs."""

    nodes: int = 0
    resources: tuple[str, ...] = ()
    names: frozenset[str] | None = None
    labels: frozenset[str] | None = None
    products: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class GpuSeries:
    """What dcgm-exporter says, by one of its fields: ``rows`` are GPUs and MIG slices, each once.

    ``fields`` counts the rows of each field (names of contract.dcgm.DcgmField). ``held`` are rows that name a
    pod, ``own_pod`` those that name the exporter's; ``replicas`` are copies of shared GPUs (``vgpu``).
    """

    rows: int
    held: int = 0
    own_pod: int = 0
    replicas: int = 0
    fields: Mapping[str, int] = field(default_factory=dict)
    metrics: tuple[str, ...] = ()
    labels: frozenset[str] = frozenset()
    profiles: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    versions: tuple[str, ...] = ()
    renamed: frozenset[str] = frozenset()
    unclear_units: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TrialReading:
    """A report on the last minutes, in GPU milliseconds: of all GPUs (``capacity_ms``), of what pods held,
    and held beyond what nodes have (``over_ms``), which is billed to no team.

    ``unpriced`` is time without a price, by GPU model, empty where that is not known; ``doubted`` says of
    prices by node why they should be checked; ``unshared_pods`` hold units whose share of a GPU is not known.
    ``named`` is held time of holders with a team, project, user or queue, ``measured`` held time with a
    measurement of each kind. Of ``nodes``, ``unsized_nodes`` hand out GPUs while their number of GPUs is
    unknown; for ``counted_nodes`` that number comes from something other than what they advertise.
    """

    held_ms: int
    capacity_ms: int
    over_ms: int = 0
    unpriced: Mapping[str, int] = field(default_factory=dict)
    doubted: Mapping[str, str] = field(default_factory=dict)
    unshared_pods: int = 0
    named: Mapping[str, int] = field(default_factory=dict)
    measured: Mapping[str, int] = field(default_factory=dict)
    nodes: int = 0
    unsized_nodes: int = 0
    counted_nodes: int = 0


@dataclass(frozen=True, slots=True)
class SharingSeries:
    """From gpucost's collector: how many objects each collection has, how many parts of shared GPUs pods
    have, by method (``domain.gpu.ShareMethod``), how many nodes take no pods, by cause
    (``UnavailableCause``), and how many pods hold unhealthy units. Of Kueue: workloads that MultiKueue sends
    elsewhere, by stage, and that came from a manager; LocalQueues that are ordered by what they used."""

    objects: Mapping[str, int] = field(default_factory=dict)
    parts: Mapping[str, int] = field(default_factory=dict)
    dispatched: Mapping[str, int] = field(default_factory=dict)
    arrived: int = 0
    by_usage: int = 0
    closed: Mapping[str, int] = field(default_factory=dict)
    unhealthy: int = 0


@dataclass(frozen=True, slots=True)
class DeviceSeries:
    """What an exporter of another maker (``what``) says of GPUs: how many rows there are, how many of them of
    partitions, how many with a pod, and which fields (names of contract.dcgm.DcgmField)."""

    what: str
    devices: int
    parts: int = 0
    held: int = 0
    fields: tuple[str, ...] = ()
    names_pods: bool = True


@dataclass(frozen=True, slots=True)
class OtherGpus:
    """GPUs of other makers than NVIDIA: units of nodes by resource, and who tells their use."""

    units: Mapping[str, int] = field(default_factory=dict)
    series: tuple[DeviceSeries, ...] = ()


@dataclass(frozen=True, slots=True)
class ClusterProbe:
    """One cluster. ``series`` counts the series of each name that was queried at the probe's instant;
    ``seen`` says when, in the month, kinds of series were there (keys: ``state``, ``gpus``, ``own``).
    ``gpus`` is None where there are none, and where ``gpus_unread`` not known. ``jobs`` are the scrape jobs
    that export series of kube-state-metrics and of gpucost, by the setting that would choose among them, with
    how many nodes (series) each gives; ``others`` are, for a setting that names only jobs without such
    series, those that have them, most first; ``unbelieved`` are jobs whose series of kube-state-metrics'
    names are not counted, ``strangers`` those of which a report uses nothing, with what they claimed in the
    last day. ``sharing`` is None without a collector, and where it could not be read. ``trial`` is a report
    on the last minutes, None where it was not or could not be read. ``at_ms`` is the cluster's own instant,
    None for that of all. ``schedulers`` are versions by scheduler, as its own metrics have them.
    """

    cluster: str
    series: Mapping[str, int] = field(default_factory=dict)
    seen: Mapping[str, SeriesPresence] | None = None
    pods: PodSeries | None = None
    nodes: NodeSeries | None = None
    gpus: GpuSeries | None = None
    gpus_unread: bool = False
    doubles: tuple[DuplicateSeries, ...] = ()
    scrapes: tuple[ScrapeJob, ...] = ()
    gaps: ScrapeGaps | None = None
    jobs: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    others: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    unbelieved: tuple[UnbelievedJob, ...] = ()
    strangers: tuple[ForeignJob, ...] = ()
    trial: TrialReading | None = None
    at_ms: int | None = None
    sharing: SharingSeries | None = None
    schedulers: Mapping[str, str] = field(default_factory=dict)
    other_gpus: OtherGpus | None = None

    def has(self, *names: str) -> bool:
        """Whether any of these names has a series."""
        return any(self.series.get(name) for name in names)


@dataclass(frozen=True, slots=True)
class InnerRecords:
    """What the files of an inner scheduler of the settings say: how many runs of jobs with GPUs, the instant
    of the latest file (None without one), and what was refused, a sentence each."""

    cluster: str
    name: str
    kind: str
    path: str
    runs: int
    as_of_ms: int | None
    refused: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ServerProbe:
    """One server, probed ``at_ms`` for the ``month``, of which the past part is ``asked``.

    ``retention`` is what the server reports (``15d``), None where it reports none; ``targets`` are all that
    it scrapes, of every job.
    """

    url: str
    now_ms: int
    at_ms: int
    month: str
    asked: Window
    retention: str | None = None
    targets: int = 0
    clusters: tuple[ClusterProbe, ...] = ()
    unread: tuple[UnansweredQuery, ...] = ()
    inner: tuple[InnerRecords, ...] = ()

    @property
    def is_of_later(self) -> bool:
        """Whether there are series now, and there were none in the month."""
        is_now = self.at_ms == self.now_ms and bool(self.clusters)
        return is_now and all(each.seen == {} for each in self.clusters)
