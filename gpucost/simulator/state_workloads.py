"""Jobs, workloads and pods of the simulated cluster at one instant: those that run and those that wait.

Also the names, labels and sizes that the objects of the simulated cluster have in common.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from gpucost.cluster.objects.jobs import JobObject
from gpucost.cluster.objects.kueue import PodSetAssignment, Workload, WorkloadEviction
from gpucost.cluster.objects.metadata import (
    Conditions,
    Labels,
    ObjectMeta,
    StatusCondition,
    times,
)
from gpucost.cluster.objects.pods import (
    Pod,
    PodPhase,
    PodSet,
    PodTemplate,
    PodWaitReason,
    Toleration,
)
from gpucost.cluster.views.ownership import (
    JOB_UID,
    KUEUE_QUEUES,
    POD_SET,
    VOLCANO_GROUPS,
    WORKLOAD,
)
from gpucost.contract.queue_metrics import WaitLayer
from gpucost.domain.jobs import JobKind, OwnerReference, WorkloadClass, workload_class
from gpucost.domain.time import SECOND_MS
from gpucost.simulator.cluster import SimulatedCluster
from gpucost.simulator.history import layer_at, workload_name
from gpucost.simulator.injected_patterns import GIB
from gpucost.simulator.inventory import SimulatedNode
from gpucost.simulator.scheduler import BACKOFF_MS, PodPlacement, SimulatedOutcome
from gpucost.simulator.workloads import JobSubmission, stable_uid

POOL = "gpucost.io/pool"
ZONE = "topology.kubernetes.io/zone"
BLOCK, RACK = "cloud.provider.com/topology-block", "cloud.provider.com/topology-rack"
TAINT = "nvidia.com/gpu"
TOPOLOGY = "racks"

# By instance type: thousandths of a core, and bytes.
_SIZES = {
    "p5.48xlarge": (192_000, 2_000 * GIB),
    "p4de.24xlarge": (96_000, 1_100 * GIB),
    "dgx-a100": (256_000, 1_000 * GIB),
    "g6.12xlarge": (48_000, 180 * GIB),
}

# The API of each kind of job.
API = {
    JobKind.PYTORCH_JOB: "kubeflow.org/v1",
    JobKind.MPI_JOB: "kubeflow.org/v2beta1",
    JobKind.NOTEBOOK: "kubeflow.org/v1",
    JobKind.TRAIN_JOB: "trainer.kubeflow.org/v1alpha1",
    JobKind.VOLCANO_JOB: "batch.volcano.sh/v1alpha1",
    JobKind.JOB_SET: "jobset.x-k8s.io/v1alpha2",
    JobKind.JOB: "batch/v1",
    JobKind.CRON_JOB: "batch/v1",
    JobKind.RAY_CLUSTER: "ray.io/v1",
    JobKind.RAY_SERVICE: "ray.io/v1",
    JobKind.DEPLOYMENT: "apps/v1",
    JobKind.STATEFUL_SET: "apps/v1",
    JobKind.LEADER_WORKER_SET: "leaderworkerset.x-k8s.io/v1",
}
KIND_NAMES = {JobKind.VOLCANO_JOB: "Job", JobKind.CRON_JOB: "Job"}
"""Kinds as their objects are called, where that is another name; of a CronJob its Job."""

POD_GROUPED = (JobKind.VOLCANO_JOB, JobKind.MPI_JOB, JobKind.JOB_SET)
"""Kinds whose pods Volcano starts together, once Kueue has given them quota."""


def cores_and_memory(node: SimulatedNode) -> tuple[int, int]:
    """Thousandths of a core and bytes of a node."""
    return _SIZES[node.instance_type]


def meta(
    seed: int,
    kind: str,
    namespace: str,
    name: str,
    created_ms: int,
    labels: Labels,
    *,
    uid: str = "",
    annotations: Labels | None = None,
    owner: OwnerReference | None = None,
) -> ObjectMeta:
    """The identity of an object, with a uid of its kind and name unless it has one."""
    uid = uid or stable_uid(seed, f"{kind}/{namespace}/{name}")
    return ObjectMeta(uid, namespace, name, created_ms, labels, annotations or {}, owner)


_MAIN = "main"
# The part of its units' share of a node's cores and memory that a pod asks for.
_HOST_PART = 0.5


@dataclass
class SimulatedWork:
    """What is made for jobs. Each job has one workload for what runs, and one for what waits."""

    pods: list[Pod] = field(default_factory=list)
    jobs: list[JobObject] = field(default_factory=list)
    workloads: list[Workload] = field(default_factory=list)

    @classmethod
    def of(cls, cluster: SimulatedCluster, at_ms: int) -> SimulatedWork:
        maker = _Maker(cluster, at_ms)
        running: dict[str, list[tuple[PodPlacement, str, str]]] = {}
        here = sorted({*cluster.placed(at_ms, at_ms + 1), *cluster.missing(at_ms)})
        for pod, (name, uid) in ((cluster.placements[at], cluster.names[at]) for at in here):
            running.setdefault(pod.submission.job.uid, []).append((pod, name, uid))
        for pods in running.values():
            maker.running(pods, at_ms)
        free = cluster.free
        for wait in cluster.waits:
            if wait.start_ms <= at_ms < wait.end_ms:
                sub = wait.submission
                maker.waiting(sub, wait.start_ms, layer_at(sub, free[sub.pool, sub.resource], at_ms))
        for held in cluster.staged.waits:
            if held.wait.start_ms <= at_ms < held.wait.end_ms:
                maker.waiting(held.wait.submission, held.wait.start_ms, held.layer)
        return maker.work

    @classmethod
    def ended(cls, cluster: SimulatedCluster, from_ms: int, at_ms: int) -> SimulatedWork:
        """The objects of work that ended in ``(from_ms, at_ms]``, with its jobs and workloads as finished."""
        maker = _Maker(cluster, at_ms)
        for at in cluster.placed(from_ms, at_ms):
            pod = cluster.placements[at]
            if from_ms < pod.end_ms <= at_ms:
                maker.over(pod, *cluster.names[at])
        return maker.work


@dataclass(frozen=True, slots=True)
class _WorkloadLife:
    """What a workload went through before it waited, or ran, as it does now: an evicted one is the same one
    that waits again, and who starts a failed job anew makes a new one. ``evicted``: when, and why."""

    created_ms: int
    evicted: tuple[tuple[int, str], ...]

    @property
    def evictions(self) -> tuple[WorkloadEviction, ...]:
        reasons = Counter(reason for _, reason in self.evicted)
        return tuple(WorkloadEviction(reason, "", times) for reason, times in sorted(reasons.items()))

    def conditions(self, reserved_ms: int | None) -> Conditions:
        """As Kueue leaves them, for one that has its quota since ``reserved_ms``, None for one that waits:
        Evicted holds until quota is given again, and Requeued keeps the time of the first requeue."""
        if not self.evicted:
            return {}
        (first_ms, _), (last_ms, reason) = self.evicted[0], self.evicted[-1]
        evicted = StatusCondition(True, reason, "", last_ms)
        if reserved_ms is not None:
            evicted = StatusCondition(False, "QuotaReserved", "", reserved_ms)
        return {"Evicted": evicted, "Requeued": StatusCondition(True, reason, "", first_ms + SECOND_MS)}


class _Maker:
    def __init__(self, cluster: SimulatedCluster, at_ms: int) -> None:
        self.work = SimulatedWork()
        self._seed = cluster.seed
        self._evicted, self._failed = cluster.evicted, cluster.failed
        self._known: set[str] = set()
        moved = cluster.hand_over
        self._moved = {moved.job: moved.team} if at_ms >= moved.at_ms else {}
        first = {node.pool: node for node in reversed(cluster.nodes)}
        self._hosts = {
            (pool, offer.resource): (*cores_and_memory(node), sum(o.units for o in node.offers))
            for pool, node in first.items()
            for offer in node.offers
        }

    def running(self, pods: list[tuple[PodPlacement, str, str]], at_ms: int) -> None:
        sub = pods[0][0].submission
        since_ms = min(pod.start_ms for pod, _, _ in pods)
        for pod, name, uid in pods:
            self._pod(pod.submission, name, uid, "", pod if pod.start_ms <= at_ms else None, since_ms)
        self._job(sub, len(pods))
        if sub.job.team.queue:
            self._workload(sub, "", max(sub.pods, len(pods)), since_ms, has_quota=True)

    def over(self, pod: PodPlacement, name: str, uid: str) -> None:
        sub = pod.submission
        phase = PodPhase.SUCCEEDED if pod.outcome is SimulatedOutcome.SUCCEEDED else PodPhase.FAILED
        own = self._pod_meta(sub, name, uid, "", pod.start_ms)
        self.work.pods.append(
            Pod(own, phase, self._template(sub), pod.node, bound_ms=pod.start_ms, ended_ms=pod.end_ms)
        )
        if sub.job.uid in self._known:
            return
        self._job(sub, 0)
        if sub.job.team.queue:
            self._workload(sub, "", sub.pods, pod.start_ms, has_quota=True)
            last = self.work.workloads[-1]
            finished = StatusCondition(True, "Succeeded", "Job finished", pod.end_ms)
            self.work.workloads[-1] = replace(last, conditions={**last.conditions, "Finished": finished})

    def waiting(self, sub: JobSubmission, since_ms: int, layer: WaitLayer) -> None:
        suffix = f"-{sub.attempt}-{since_ms // 1000 % 1_000_000}"
        self._job(sub, 0)
        if sub.job.team.queue:
            self._workload(sub, suffix, sub.pods, since_ms, has_quota=layer is not WaitLayer.QUOTA)
        if layer is WaitLayer.QUOTA:
            return
        for index in range(sub.pods):
            name = f"{sub.job.name}{suffix}-{index}"
            self._pod(sub, name, stable_uid(self._seed, f"waiting/{name}"), suffix, None, since_ms)

    def _template(self, sub: JobSubmission) -> PodTemplate:
        cores, memory, units = self._hosts[sub.pool, sub.resource]
        part = _HOST_PART * sub.units / units
        requests = {"cpu": int(cores * part), "memory": int(memory * part), sub.resource: sub.units}
        return PodTemplate(requests, {POOL: sub.pool}, tolerations=(Toleration(TAINT, exists=True),))

    def _pod(
        self, sub: JobSubmission, name: str, uid: str, suffix: str, bound: PodPlacement | None, since_ms: int
    ) -> None:
        message = "0/19 nodes are available: insufficient free units on one node"
        start_ms = None if bound is None else bound.start_ms
        self.work.pods.append(
            Pod(
                self._pod_meta(sub, name, uid, suffix, since_ms),
                PodPhase.PENDING if bound is None else PodPhase.RUNNING,
                self._template(sub),
                node="" if bound is None else bound.node,
                bound_ms=start_ms,
                ready_ms=start_ms,
                waiting=PodWaitReason("Unschedulable", message, since_ms) if bound is None else None,
            )
        )

    def _pod_meta(self, sub: JobSubmission, name: str, uid: str, suffix: str, since_ms: int) -> ObjectMeta:
        job = sub.job
        labels = self._labels(sub)
        annotations = {}
        if job.team.queue:
            labels[POD_SET] = _MAIN
            annotations[WORKLOAD] = workload_name(sub) + suffix
        if job.kind in POD_GROUPED:
            annotations[VOLCANO_GROUPS[1]] = job.name
        owner = None if job.kind is JobKind.POD else self._owner(sub)
        return meta(
            self._seed, "pod", job.namespace, name, since_ms, labels,
            uid=uid, annotations=annotations, owner=owner,
        )  # fmt: skip

    def _owner(self, sub: JobSubmission) -> OwnerReference:
        """The object that owns the pods: those of a Deployment are owned by its ReplicaSet."""
        job = sub.job
        if job.kind is JobKind.DEPLOYMENT:
            return OwnerReference(
                "apps/v1", "ReplicaSet", f"{job.name}-7d9f", stable_uid(self._seed, f"rs/{job.name}")
            )
        return OwnerReference(API[job.kind], KIND_NAMES.get(job.kind, job.kind.value), job.name, job.uid)

    def _job(self, sub: JobSubmission, active: int) -> None:
        job = sub.job
        if job.uid in self._known or job.kind is JobKind.POD:
            return
        self._known.add(job.uid)
        self.work.jobs += list(self._objects(sub, active))

    def _objects(self, sub: JobSubmission, active: int) -> Iterator[JobObject]:
        job, pod_sets = sub.job, (PodSet(_MAIN, sub.pods, self._template(sub)),)
        kind = KIND_NAMES.get(job.kind, job.kind.value)
        is_gang = sub.pods > 1 and workload_class(job.kind) is WorkloadClass.BATCH
        owner = None
        if job.kind is JobKind.CRON_JOB:
            name = job.name.rpartition("-")[0]
            owner = OwnerReference("batch/v1", "CronJob", name, stable_uid(self._seed, f"cron/{name}"))
            if owner.uid not in self._known:
                self._known.add(owner.uid)
                own = meta(
                    self._seed, "", job.namespace, name, sub.submit_ms, self._labels(sub), uid=owner.uid
                )
                yield JobObject(own, owner.api_version, owner.kind, JobKind.CRON_JOB)
        own = meta(
            self._seed,
            "",
            job.namespace,
            job.name,
            sub.submit_ms,
            self._labels(sub),
            uid=job.uid,
            owner=owner,
        )
        job_kind = JobKind.JOB if job.kind is JobKind.CRON_JOB else job.kind
        size = sub.pods if is_gang else None
        yield JobObject(own, API[job.kind], kind, job_kind, pod_sets, size, active=active)
        if job.kind is JobKind.DEPLOYMENT:
            link = self._owner(sub)
            above = OwnerReference(API[job.kind], kind, job.name, job.uid)
            own = meta(
                self._seed,
                "",
                job.namespace,
                link.name,
                sub.submit_ms,
                self._labels(sub),
                uid=link.uid,
                owner=above,
            )
            yield JobObject(own, link.api_version, link.kind, JobKind.REPLICA_SET)

    def _workload(
        self, sub: JobSubmission, suffix: str, count: int, since_ms: int, *, has_quota: bool
    ) -> None:
        job, template = sub.job, self._template(sub)
        name = workload_name(sub) + suffix
        life = self._life(sub, since_ms)
        # Objects that are made anew under an old name have a uid of their own.
        again = "" if life.created_ms <= sub.submit_ms else f"/{life.created_ms}"
        own = meta(
            self._seed, "workload", job.namespace, name, life.created_ms, {JOB_UID: job.uid},
            uid=stable_uid(self._seed, f"workload/{job.namespace}/{name}{again}"),
            owner=None if job.kind is JobKind.POD else self._owner_of_workload(sub),
        )  # fmt: skip
        if not has_quota:
            message = f"insufficient unused quota for {sub.resource} in flavor {sub.pool}"
            reserved = StatusCondition(False, "Pending", message, since_ms)
            pod_sets = (PodSet(_MAIN, count, template),)
            self.work.workloads.append(
                Workload(
                    own,
                    pod_sets,
                    job.team.queue,
                    conditions={"QuotaReserved": reserved, **life.conditions(None)},
                    evictions=life.evictions,
                )
            )
            return
        reserved = StatusCondition(True, "QuotaReserved", "Quota reserved in ClusterQueue", since_ms)
        admitted = StatusCondition(True, "Admitted", "The workload is admitted", since_ms)
        usage = times({sub.resource: sub.units}, count)
        self.work.workloads.append(
            Workload(
                own,
                (PodSet(_MAIN, count, template),),
                job.team.queue,
                priority=1_000 if sub.urgent else 0,
                cluster_queue=job.team.cluster_queue,
                assignments=(PodSetAssignment(_MAIN, {sub.resource: sub.pool}, usage, count),),
                conditions={"QuotaReserved": reserved, "Admitted": admitted, **life.conditions(since_ms)},
                evictions=life.evictions,
            )
        )

    def _life(self, sub: JobSubmission, since_ms: int) -> _WorkloadLife:
        uid = sub.job.uid
        failed = [end_ms for end_ms in self._failed.get(uid, ()) if end_ms < since_ms]
        created_ms = min(since_ms, failed[-1] + BACKOFF_MS if failed else sub.submit_ms)
        evicted = (each for each in self._evicted.get(uid, ()) if created_ms <= each[0] <= since_ms)
        return _WorkloadLife(created_ms, tuple(sorted(evicted)))

    def _labels(self, sub: JobSubmission) -> dict[str, str]:
        job = sub.job
        found = {"gpucost.io/user": job.user}
        if job.labelled:
            team = self._moved.get(job.name, job.team.name)
            found |= {"gpucost.io/team": team, "gpucost.io/project": job.project}
        if job.team.queue:
            found[KUEUE_QUEUES[1]] = job.team.queue
        return found

    def _owner_of_workload(self, sub: JobSubmission) -> OwnerReference:
        kind = KIND_NAMES.get(sub.job.kind, sub.job.kind.value)
        return OwnerReference(API[sub.job.kind], kind, sub.job.name, sub.job.uid)
