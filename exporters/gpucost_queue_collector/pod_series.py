"""Series of pods: the intervals in which they hold GPUs, whose they are, and who waits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from gpucost.cluster.objects import Resources
from gpucost.cluster.overview import Overview
from gpucost.cluster.ownership import Belonging
from gpucost.cluster.pods import Pod
from gpucost.cluster.waiting import pod_reason
from gpucost.contract.metrics import (
    POD_GPU_END,
    POD_GPU_REQUEST,
    POD_GPU_START,
    POD_OWNER_INFO,
    POD_RESOURCE_LABELS,
)
from gpucost.contract.queue_metrics import POD_GPU_WAITING, POD_GPU_WAITING_SINCE
from gpucost_queue_collector.lines import labels, line, sample

HELD = (POD_GPU_REQUEST, POD_GPU_START, POD_GPU_END, POD_OWNER_INFO)
WAITING = (POD_GPU_WAITING, POD_GPU_WAITING_SINCE)


class HeldPod(NamedTuple):
    """A pod that holds GPU ``units``, or held them until its end."""

    pod: Pod
    units: Resources
    belonging: Belonging


class WaitingPod(NamedTuple):
    """A pod that wants GPU ``units``, and why it does not get a node."""

    pod: Pod
    units: Resources


def held_pods(overview: Overview, before: Mapping[str, HeldPod]) -> dict[str, HeldPod]:
    """By uid. Of pods that ended, units and owners are as ``before``: their claims and jobs may be gone."""
    units, ownership = overview.units, overview.ownership
    bound = (pod for pod in overview.state.pods.values() if pod.is_bound)
    found = {pod.meta.uid: HeldPod(pod, held, ownership.of(pod)) for pod in bound if (held := units.of(pod))}
    for pod in overview.ended:  # newer than the state where the two differ
        uid = pod.meta.uid
        known = before.get(uid) or found.get(uid) or HeldPod(pod, units.of(pod), ownership.of(pod))
        found[uid] = known._replace(pod=pod)
    return {uid: held for uid, held in found.items() if held.units and (_has_held(held.pod) or uid in before)}


def _has_held(pod: Pod) -> bool:
    """Whether it held anything for any time. One that was shown holding needs its end all the same."""
    return pod.ended_ms != pod.bound_ms


def waiting_pods(overview: Overview) -> dict[str, WaitingPod]:
    """By uid."""
    pods = (pod for pod in overview.state.pods.values() if pod.bound_ms is None and not pod.has_ended)
    return {pod.meta.uid: WaitingPod(pod, wanted) for pod in pods if (wanted := overview.units.of(pod))}


def write_held(held: HeldPod) -> Sequence[bytes]:
    """One text for each of HELD."""
    pod = held.pod
    requests, starts, ends = [], [], []
    for resource, count in held.units.items():
        written = labels(
            POD_RESOURCE_LABELS, (pod.meta.namespace, pod.meta.name, pod.meta.uid, pod.node, resource)
        )
        requests.append(sample(POD_GPU_REQUEST, written, count))
        starts.append(sample(POD_GPU_START, written, (pod.bound_ms or 0) / 1000))
        if pod.ended_ms is not None:
            ends.append(sample(POD_GPU_END, written, pod.ended_ms / 1000))
    return b"".join(requests), b"".join(starts), b"".join(ends), _owner(held)


def _owner(held: HeldPod) -> bytes:
    pod, of = held.pod, held.belonging
    values = (
        pod.node,
        pod.meta.namespace,
        pod.meta.name,
        pod.meta.uid,
        of.job.kind.value,
        of.job.name,
        of.job.uid,
        of.workload,
        of.queue,
        of.cluster_queue,
        of.flavor,
        of.team,
        of.project,
        of.user,
    )
    return line(POD_OWNER_INFO, values, 1)


def write_waiting(waiting: WaitingPod) -> Sequence[bytes]:
    """One text for each of WAITING."""
    pod = waiting.pod
    identity = (pod.meta.namespace, pod.meta.name, pod.meta.uid)
    why = pod_reason(pod)
    wanted = [line(POD_GPU_WAITING, (*identity, resource, why), n) for resource, n in waiting.units.items()]
    return b"".join(wanted), line(POD_GPU_WAITING_SINCE, identity, pod.meta.created_ms / 1000)
