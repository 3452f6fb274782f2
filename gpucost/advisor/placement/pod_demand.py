"""What is to be placed: equal pods, and what they ask of nodes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from gpucost.cluster.objects.kueue import ResourceFlavor, Topology
from gpucost.cluster.objects.metadata import Labels, Resources, added
from gpucost.cluster.objects.pods import PodSet, PodTemplate, Toleration
from gpucost.cluster.views.node_fit import is_evaluated

NO_DEVICES: Resources = {}


@dataclass(frozen=True)
class PlacementDemand:
    """``count`` equal pods of a pod set, of which at least ``least`` must be placed for the answer "it fits".

    ``labels`` and ``tolerations`` are of its ResourceFlavors: Kueue adds the labels to the node selector of
    the pods, and the tolerations to theirs (kueue, pkg/podset/podset.go, v0.19.2). ``levels`` are the node
    labels of its flavor's Topology, widest first, empty where it has none.

    ``topology`` is the request: ``required``: all pods in one domain of that level; ``preferred``: as few and
    as narrow domains as can be; ``unconstrained``: anywhere; ``group``: pod sets of one group share their
    domain; ``slice`` and ``slice_size``: each so many pods in one domain of that level. A level that is no
    level of ``levels`` fits nowhere; where there are no ``levels`` it is any node label, such as
    ``nvidia.com/gpu.clique``.

    ``devices`` are units that one pod asks for through claims, under the names of
    ``gpucost.cluster.views.device_claims`` (``gpu.nvidia.com``). A template that names claims, without
    ``devices``, is not evaluated. ``among`` are the only nodes it may use, by name; None for all.

    ``priority`` is that of its pods; with ``preempts`` kube-scheduler may preempt others for them.
    ``nominated`` are nodes on which it makes room for some of them already, each once per pod.
    """

    name: str
    count: int
    least: int
    template: PodTemplate
    labels: Labels = field(default_factory=dict)
    tolerations: tuple[Toleration, ...] = ()
    topology: Mapping[str, str] = field(default_factory=dict)
    levels: tuple[str, ...] = ()
    devices: Resources = field(default_factory=lambda: NO_DEVICES)
    among: frozenset[str] | None = None
    priority: int = 0
    preempts: bool = False
    nominated: tuple[str, ...] = ()

    @cached_property
    def asks(self) -> PodTemplate:
        """The template as the scheduler will see it: with what the flavor adds, and devices of claims."""
        if not (self.labels or self.tolerations or self.devices):
            return self.template
        return replace(
            self.template,
            requests=added(self.template.requests, self.devices),
            node_selector={**self.template.node_selector, **self.labels},
            tolerations=self.template.tolerations + self.tolerations,
        )

    @property
    def conflict(self) -> str:
        """A label that its own selector and its flavor ask to have different values; empty for none."""
        own = self.template.node_selector
        return min((key for key, value in self.labels.items() if own.get(key, value) != value), default="")

    @property
    def unknown(self) -> str:
        """Why it cannot be evaluated, empty where it can."""
        if not is_evaluated(self.asks):
            return "more than 100 rules decide where its pods fit: not evaluated"
        if self.template.claims and not self.devices:
            return "its pods ask for devices through claims of which nobody knows how many they give"
        if "slice" in self.topology and self.slice_size is None:
            return "its topology slices have no size"
        return ""

    @property
    def slice_size(self) -> int | None:
        """Pods per slice; None where no valid size is given."""
        text = self.topology.get("slice_size", "")
        return int(text) if text.isascii() and text.isdigit() and len(text) < 10 and int(text) else None


def of_pod_set(
    pod_set: PodSet,
    flavors: Iterable[ResourceFlavor] = (),
    topologies: Mapping[str, Topology] | None = None,
    count: int | None = None,
    devices: Resources = NO_DEVICES,
) -> PlacementDemand:
    """What a pod set asks of nodes with the flavors its resources were given; ``count`` after partial
    admission. ``topologies`` are by name; a topology of a flavor that is not among them has no known levels,
    and is left out."""
    given = tuple(flavors)
    known = topologies or {}
    levels = [known[each.topology].levels for each in given if each.topology in known]
    pods = pod_set.count if count is None else count
    return PlacementDemand(
        pod_set.name,
        pods,
        pods,
        pod_set.template,
        {key: value for each in given for key, value in each.node_labels.items()},
        tuple(each for flavor in given for each in flavor.tolerations),
        pod_set.topology,
        levels[0] if levels else (),
        devices,
    )
