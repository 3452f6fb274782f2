"""The types of a diagnosis: what works, what does not, why, and what to turn on.

Also what gpucost reads by label, under its names in Kubernetes and in Prometheus.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from gpucost.cluster.objects.metadata import OwnerKeys
from gpucost.cluster.objects.node_labels import (
    AMD_DEVICE,
    AMD_PARTITIONS,
    INTEL_COUNT,
    INTEL_PRODUCT,
    PLACE_LABELS,
    label_keys,
)
from gpucost.cluster.views.ownership import (
    KUEUE_QUEUES,
    LINKS,
    VOLCANO_GROUPS,
    VOLCANO_QUEUES,
    WORKLOAD,
)
from gpucost.contract.kube_state import annotation_name, label_name
from gpucost.contract.probe import NodeSeries, PodSeries, UnansweredQuery


class FeatureVerdict(StrEnum):
    YES = "yes"
    PART = "in part"
    NO = "no"
    UNKNOWN = "not known"


class DoctorFeature(StrEnum):
    """The features of gpucost, in the order in which they are shown."""

    COST = "month's cost"
    TEAMS = "cost by team, project and user"
    QUEUES = "cost by queue"
    JOBS = "cost by job"
    SHARING = "MIG and shared GPUs"
    BUSY = "use of GPUs: busy"
    SM = "use of GPUs: SM"
    TENSOR = "use of GPUs: tensor"
    MEMORY = "use of GPUs: memory"
    ENERGY = "use of GPUs: energy"
    IDLE = "idle and oversized detectors"
    QUOTAS = "queue and quota detectors"
    UNADVERTISED = "nodes that advertise no GPUs"
    BROKEN = "broken GPUs"
    PRICES = "OpenCost prices"
    COMPARE = "comparison with OpenCost"
    LIVE = "live findings and advisor"


@dataclass(frozen=True, slots=True)
class FeatureFinding:
    """The verdict on one feature, and why in a sentence."""

    verdict: FeatureVerdict
    why: str


@dataclass(frozen=True, slots=True)
class SettingSnippet:
    """One way to set it: ``where`` it is set, and ``text``, to be copied as it is."""

    where: str
    text: str


@dataclass(frozen=True, slots=True)
class DiagnosisStep:
    """What to turn on, and what for. ``gains`` is empty for steps that only tidy up."""

    title: str
    settings: tuple[SettingSnippet, ...]
    gains: tuple[DoctorFeature, ...] = ()
    note: str = ""


@dataclass(frozen=True, slots=True)
class DiagnosisFact:
    """Something that was found, in words."""

    what: str
    found: str


@dataclass(frozen=True, slots=True)
class ClusterDiagnosis:
    """One cluster. ``can_tell`` is whether the cost of the month can be computed; ``first_whole`` is the
    first month that will be there as a whole, where the requested one has a part only."""

    cluster: str
    can_tell: bool
    features: Mapping[DoctorFeature, FeatureFinding]
    steps: tuple[DiagnosisStep, ...] = ()
    facts: tuple[DiagnosisFact, ...] = ()
    first_whole: str | None = None


@dataclass(frozen=True, slots=True)
class ServerDiagnosis:
    """``sentence`` is the verdict, ``command`` what to run next; where there is nothing to run yet it is
    empty, and ``first`` the number of the step to begin with, from 1; 0 for none."""

    url: str
    month: str
    can_tell: bool
    sentence: str
    command: str = ""
    first: int = 0
    clusters: tuple[ClusterDiagnosis, ...] = ()
    steps: tuple[DiagnosisStep, ...] = ()
    unread: tuple[UnansweredQuery, ...] = field(default=())

    @property
    def first_step(self) -> DiagnosisStep | None:
        return self.steps[self.first - 1] if self.first else None

    @property
    def turn_on(self) -> str:
        """The first setting of that step."""
        step = self.first_step
        return "" if step is None else step.settings[0].text


PRODUCT, COUNT, REPLICAS = "nvidia.com/gpu.product", "nvidia.com/gpu.count", "nvidia.com/gpu.replicas"
GPU_LABELS = (PRODUCT, COUNT, REPLICAS)
_MIG = "nvidia.com/mig-"
PRODUCTS = (PRODUCT, "amd.com/gpu.product-name", "gpu.intel.com/product", "cloud.google.com/gke-accelerator")
INSTANCE_TYPE = "node.kubernetes.io/instance-type"
PLACES = (
    *(INSTANCE_TYPE, "topology.kubernetes.io/region", "topology.kubernetes.io/zone"),
    *("karpenter.sh/capacity-type", "eks.amazonaws.com/capacityType", "cloud.google.com/gke-spot"),
)
"""Of the labels that are read, those that most clusters have; the others are in ``PLACE_LABELS``."""
assert set(PLACES) <= set(PLACE_LABELS)
QUEUES = (*KUEUE_QUEUES, *VOLCANO_QUEUES)


@dataclass(frozen=True, slots=True)
class DoctorRequirements:
    """``owners`` are the keys that name team, project and user; ``max_gap_ms`` is how far scrapes may lie
    apart; ``replica_labels`` are those set already."""

    owners: OwnerKeys = field(default_factory=OwnerKeys)
    max_gap_ms: int = 300_000
    replica_labels: tuple[str, ...] = ()

    @property
    def pod_keys(self) -> tuple[str, ...]:
        return (*self.owners.all, *QUEUES)


def labels_in(keys: Iterable[str], exported: Collection[str]) -> tuple[str, ...]:
    """Those of these label keys that are exported."""
    return tuple(key for key in keys if label_name(key) in exported)


def annotations_in(keys: Iterable[str], exported: Collection[str]) -> tuple[str, ...]:
    return tuple(key for key in keys if annotation_name(key) in exported)


@dataclass(frozen=True, slots=True)
class LabelAllowlist:
    """What to export of one kind of object: label ``keys``, both those that gpucost reads and those that are
    exported already; and ``others``, exported labels by their sanitised names, which cannot be turned back
    into keys. ``is_known`` is whether the exported labels could be read.
    """

    kind: str
    keys: tuple[str, ...]
    others: tuple[str, ...] = ()
    is_known: bool = True

    def __str__(self) -> str:
        return f"{self.kind}=[{','.join(self.keys)}]"


def slice_labels(nodes: NodeSeries, profiles: Iterable[str] = ()) -> tuple[str, ...]:
    """The labels in which GPU feature discovery says how many slices of each kind a node has and how often
    each is shared, under MIG strategy ``mixed``: for kinds that nodes hand out, and for ``profiles``."""
    kinds = {each.removesuffix(".shared") for each in nodes.resources if each.startswith(_MIG)}
    kinds |= {_MIG + each.replace("+", ".") for each in profiles}
    return tuple(f"{kind}.{fact}" for kind in sorted(kinds) for fact in ("count", "replicas"))


def maker_labels(nodes: NodeSeries) -> tuple[str, ...]:
    """The labels without which units of other makers' GPUs could be whole GPUs, parts or shared ones."""
    makers = {each.partition("/")[0] for each in nodes.resources}
    amd = (AMD_DEVICE, AMD_PARTITIONS[0]) if "amd.com" in makers else ()
    return (*amd, *((INTEL_COUNT, INTEL_PRODUCT) if "gpu.intel.com" in makers else ()))


def allowlists(
    wanted: DoctorRequirements, pods: PodSeries | None, nodes: NodeSeries | None, profiles: Iterable[str] = ()
) -> tuple[LabelAllowlist, ...]:
    """Allowlists of labels: what should be exported, and what is exported and read. ``profiles`` are the MIG
    profiles in use."""
    pods, nodes = pods or PodSeries(), nodes or NodeSeries()
    owners = wanted.owners.all
    worth = (*GPU_LABELS, *slice_labels(nodes, profiles), *maker_labels(nodes), *PLACES)
    of_nodes = (*worth, *PRODUCTS, *label_keys(), *PLACE_LABELS)
    return (
        _allowlist("nodes", worth, of_nodes, nodes.labels),
        _allowlist("pods", (*wanted.pod_keys, WORKLOAD), (*wanted.pod_keys, *LINKS), pods.labels),
        _allowlist("jobs", (*owners, *KUEUE_QUEUES), (*owners, *LINKS), pods.job_labels),
        _allowlist("namespaces", owners, owners, pods.namespace_labels),
    )


def annotation_lists(wanted: DoctorRequirements, pods: PodSeries | None) -> LabelAllowlist:
    """Allowlists of annotations of pods: Volcano names queues and groups in them."""
    known = (*wanted.pod_keys, *LINKS)
    keys = (*VOLCANO_QUEUES[:1], *VOLCANO_GROUPS[:1], WORKLOAD)
    exported = None if pods is None else pods.annotations
    return _allowlist("pods", keys, known, exported, annotation_name)


def _allowlist(
    kind: str,
    keys: Iterable[str],
    known: Iterable[str],
    exported: Collection[str] | None,
    named: Callable[[str], str] = label_name,
) -> LabelAllowlist:
    there = exported or ()
    listed = tuple(dict.fromkeys((*keys, *(key for key in known if named(key) in there))))
    others = set(there) - {named(key) for key in listed}
    sanitised = sorted(name.removeprefix(named("")) for name in others)
    return LabelAllowlist(kind, listed, tuple(sanitised), exported is not None)
