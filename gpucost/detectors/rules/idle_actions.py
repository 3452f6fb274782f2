"""What to do about GPUs that idle: one action per kind of work, ready to be used as written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gpucost.cluster.commands import kubectl
from gpucost.detectors.findings import Action
from gpucost.detectors.held import Piece, amount, stop_action, with_names
from gpucost.detectors.rules.pod_templates import RESTART, Asker, ask
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
        return with_names(Action("Scale it to zero until somebody needs it", patch, boards), namespace, name)
    if kind == JobKind.NOTEBOOK:
        resource = f"notebooks.kubeflow.org/{name}"
        patch = kubectl(*where, "annotate", resource, f"{_NOTEBOOK_STOP}=true", "--overwrite")
        text = "Stop the notebook; its disk stays, and its owner can start it again"
        return with_names(Action(text, patch, boards), namespace, name)
    if kind in (JobKind.DAEMON_SET, JobKind.RAY_SERVICE, JobKind.RAY_CLUSTER, JobKind.OTHER):
        return Action(f"Ask its owner to stop this {kind} until somebody needs it", "", boards)
    if kind == JobKind.POD:
        return stop_action("It holds GPUs and does nothing", rows, boards)
    return stop_action("Suspend it: it holds GPUs and does nothing", rows, boards)


def over() -> Action:
    """It gave its GPUs back, or works again: only the next time can be better."""
    return Action("Have its next run end, or shrink, by itself when there is nothing to do")


def look(rows: Sequence[Piece]) -> Action:
    """Before anybody stops it, its owner should look at it."""
    last = max(rows, key=lambda row: (row.start_ms, row.pod))
    patch = kubectl("-n", last.namespace, "logs", last.pod, "--all-containers", "--tail=50")
    action = Action("Look at what it waits for, and stop it if it will not go on", patch)
    return with_names(action, last.namespace, last.pod)


def shrink(
    rows: Sequence[Piece], idle_by_pod: Mapping[str, int], gpus_by_pod: Mapping[str, int], boards: float
) -> Action:
    """Ask for fewer GPUs: fewer per pod, or, where whole pods idle, fewer pods."""
    last = max(rows, key=lambda row: (row.start_ms, row.pod))
    busiest = max(gpus_by_pod[uid] - idle_by_pod.get(uid, 0) for uid in gpus_by_pod)
    whole = sum(idle_by_pod.get(uid, 0) == count for uid, count in gpus_by_pod.items())
    most = max(gpus_by_pod.values())
    if busiest < most:
        who = Asker(last.job_kind, last.namespace, last.job, last.pod)
        text = f"Ask for {busiest} {last.resource} per pod instead of {most}"
        return ask(text, who, last.resource, busiest, boards)
    if whole and last.job_kind in _SCALED:
        resource = f"{_SCALED[JobKind(last.job_kind)]}/{last.job}"
        left = len(gpus_by_pod) - whole
        patch = kubectl("-n", last.namespace, "scale", resource, f"--replicas={left}")
        action = Action(f"Run {amount(left, 'replica')} instead of {len(gpus_by_pod)}", patch, boards)
        return with_names(action, last.namespace, last.job)
    if whole:
        left = len(gpus_by_pod) - whole
        text = f"Run it with {amount(left, 'pod')} instead of {len(gpus_by_pod)}. {RESTART}"
        return Action(text, "", boards)
    text = "Find out why these GPUs do nothing while the other pods of the job use all of theirs"
    return Action(text, "", boards)
