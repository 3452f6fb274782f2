"""Volcano's corner of the simulated cluster: it starts the pods of some kinds of jobs together."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gpucost.cluster.jobs import JobObject
from gpucost.cluster.ownership import VOLCANO_GROUPS
from gpucost.cluster.pods import Pod
from gpucost.cluster.volcano import GroupKind, PodGroup, VolcanoQueue
from gpucost.domain.jobs import Owner
from gpucost.simulator.inventory import GPU
from gpucost.simulator.state_names import POD_GROUPED, meta

ROOT, QUEUE = "root", "batch"


def volcano_queues(seed: int, created_ms: int) -> list[VolcanoQueue]:
    """The root, and one queue below it; what is allocated is counted from pods."""
    root = VolcanoQueue(meta(seed, "volcanoqueue", "", ROOT, created_ms, {}), state="Open")
    batch = VolcanoQueue(
        meta(seed, "volcanoqueue", "", QUEUE, created_ms, {}),
        weight=4,
        capability={GPU: 48},
        deserved={GPU: 24},
        guarantee={GPU: 8},
        parent=ROOT,
        state="Open",
    )
    return [root, batch]


def pod_groups(seed: int, jobs: Iterable[JobObject], pods: Sequence[Pod]) -> list[PodGroup]:
    """One for each job of those kinds that Kueue has let make its pods, running once one of them is."""
    members: dict[tuple[str, str], list[Pod]] = {}
    for pod in pods:
        name = pod.meta.annotations.get(VOLCANO_GROUPS[1])
        if name is not None:
            members.setdefault((pod.meta.namespace, name), []).append(pod)
    return [
        _group(seed, job, mine)
        for job in jobs
        if job.job_kind in POD_GROUPED and (mine := members.get((job.meta.namespace, job.meta.name)))
    ]


def _group(seed: int, job: JobObject, pods: Sequence[Pod]) -> PodGroup:
    running = sum(pod.is_bound for pod in pods)
    own = job.meta
    return PodGroup(
        meta(
            seed, "podgroup", own.namespace, own.name, own.created_ms, own.labels,
            owner=Owner(job.api_version, job.kind, own.name, own.uid),
        ),
        GroupKind.VOLCANO,
        min_member=job.gang_size or job.pods_wanted,
        queue=QUEUE,
        phase="Running" if running else "Inqueue",
        running=running,
    )  # fmt: skip
