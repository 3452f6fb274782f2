"""What to do about GPUs that idle: one action per kind of work, ready to be used as written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gpucost.detectors.findings import Action
from gpucost.detectors.held import Piece, amount, kubectl, stop_command
from gpucost.domain.jobs import JobKind

_SCALED = {
    JobKind.DEPLOYMENT: "deployments.apps",
    JobKind.STATEFUL_SET: "statefulsets.apps",
    JobKind.REPLICA_SET: "replicasets.apps",
    JobKind.LEADER_WORKER_SET: "leaderworkersets.leaderworkerset.x-k8s.io",
}
_NOTEBOOK_STOP = "kubeflow-resource-stopped"
"""Kubeflow's notebook controller scales a notebook with this annotation to nothing, whatever its value."""


def stop(rows: Sequence[Piece], boards: float) -> Action:
    """End what idles as a whole. ``rows`` are what the job holds, or held last."""
    kind, name, namespace = rows[0].job_kind, rows[0].job, rows[0].namespace
    where = ("-n", namespace)
    if kind in _SCALED:
        patch = kubectl(*where, "scale", f"{_SCALED[JobKind(kind)]}/{name}", "--replicas=0")
        return Action("Scale it to zero until somebody needs it", patch, boards)
    if kind == JobKind.NOTEBOOK:
        resource = f"notebooks.kubeflow.org/{name}"
        patch = kubectl(*where, "annotate", resource, f"{_NOTEBOOK_STOP}=true", "--overwrite")
        return Action("Stop the notebook; its disk stays, and its owner can start it again", patch, boards)
    if kind in (JobKind.DAEMON_SET, JobKind.RAY_SERVICE, JobKind.RAY_CLUSTER, JobKind.OTHER):
        return Action(f"Ask its owner to stop this {kind}, or to let it shrink to zero when idle", "", boards)
    verb = "Delete it" if kind == JobKind.POD else "Suspend it"
    return Action(f"{verb}: it holds GPUs and does nothing", stop_command(rows), boards)


def over() -> Action:
    """It gave its GPUs back, or works again: only the next time can be better."""
    return Action("Have its next run end, or shrink, by itself when there is nothing to do")


def look(rows: Sequence[Piece]) -> Action:
    """Before anybody stops it, its owner should look at it."""
    last = max(rows, key=lambda row: (row.start_ms, row.pod))
    patch = kubectl("-n", last.namespace, "logs", last.pod, "--all-containers", "--tail=50")
    return Action("Look at what it waits for, and stop it if it will not go on", patch)


def shrink(
    rows: Sequence[Piece], idle_by_pod: Mapping[str, int], gpus_by_pod: Mapping[str, int], boards: float
) -> Action:
    """Ask for fewer GPUs: fewer per pod, or, where whole pods idle, fewer pods."""
    first = rows[0]
    busiest = max(gpus_by_pod[uid] - idle_by_pod.get(uid, 0) for uid in gpus_by_pod)
    whole = sum(idle_by_pod.get(uid, 0) == count for uid, count in gpus_by_pod.items())
    most = max(gpus_by_pod.values())
    if busiest < most:
        text = f"Ask for {amount(busiest, 'GPU')} per pod instead of {most}, or make it use them all"
        return Action(text, f'resources:\n  limits:\n    "{first.resource}": {busiest}', boards)
    if whole and first.job_kind in _SCALED:
        resource = f"{_SCALED[JobKind(first.job_kind)]}/{first.job}"
        left = len(gpus_by_pod) - whole
        patch = kubectl("-n", first.namespace, "scale", resource, f"--replicas={left}")
        return Action(f"Run {amount(left, 'replica')} instead of {len(gpus_by_pod)}", patch, boards)
    if whole:
        left = len(gpus_by_pod) - whole
        text = f"Run it with {amount(left, 'pod')} instead of {len(gpus_by_pod)}, or let the others work"
        return Action(text, "", boards)
    text = "Find out why these GPUs do nothing while the other pods of the job use all of theirs"
    return Action(text, "", boards)
