"""A job as somebody would submit it, before it has a uid: what its manifest asks of which scheduler."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gpucost.cluster.jobs import JobObject
from gpucost.cluster.pods import PodSet
from gpucost.cluster.volcano import PodGroup

Document = Mapping[str, Any]
LONGEST_RUN = "kueue.x-k8s.io/max-exec-time-seconds"
"""Label of a job: after so many seconds Kueue stops it for good."""


@dataclass(frozen=True, slots=True)
class JobManifest:
    """One document of a file, or the pods of one group.

    ``job`` is read as the API server's object would be; its uid is ``manifest/<place>`` and its
    ``created_ms`` the instant it is asked about. ``queue`` is the LocalQueue of Kueue that it names, empty
    for none; ``kueue_priority_class`` the WorkloadPriorityClass it names. ``volcano_queue`` and ``scheduler``
    are Volcano's queue and the schedulerName of its pods, empty where nothing is said. ``document`` is what
    was read, for patches; ``place`` says where, for a person (``job.yaml, document 2``). ``checkpoints`` is
    what the manifest says of whether it can be stopped and go on, None where it says nothing.
    """

    job: JobObject
    queue: str = ""
    kueue_priority_class: str = ""
    volcano_queue: str = ""
    scheduler: str = ""
    deadline_s: int | None = None
    """The longest it may run (activeDeadlineSeconds, Kueue's max-exec-time-seconds); None for no limit."""
    checkpoints: bool | None = None
    document: Document = field(default_factory=dict, compare=False)
    place: str = ""
    quota_sets: tuple[PodSet, ...] = ()
    """Pod sets of one Workload that Kueue would make of it, in Kueue's order and with its names; empty: those
    of the job."""
    workloads: int = 1
    """How many such Workloads: one, but for kinds of which each pod or each group of pods has its own, and
    none for those that Kueue leaves alone."""
    group_name: str = ""
    """The PodGroup that its pods name, whether it is known or not."""
    pod_group: PodGroup | None = None
    """That PodGroup, where it stands beside the manifest. ``job.gang_size`` is its minimum then."""
    unknown: tuple[str, ...] = ()
    """What it wants and the manifest does not say, in words: with any of it, an answer would be a guess."""
    beside: tuple[Document, ...] = field(default=(), compare=False)
    """Documents it was read with: its PodGroup, the runtime of a TrainJob."""

    @property
    def name(self) -> str:
        return self.job.meta.name

    @property
    def namespace(self) -> str:
        return self.job.meta.namespace


@dataclass(frozen=True, slots=True)
class Manifests:
    """All of a file. ``skipped`` are documents that make no pods, in words, in the order of the file."""

    jobs: tuple[JobManifest, ...]
    skipped: tuple[str, ...] = ()
