"""Switches that were set by hand: suspend of a job, stopPolicy of a queue, spec.active of a Workload."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from gpucost.advisor.kueue.job_workloads import SUSPENDED, suspend_path
from gpucost.advisor.model.answers import SuggestedChange, SuggestedChangeKind
from gpucost.advisor.request.context import AdvisorContext
from gpucost.advisor.suggest.candidates import SuggestionCandidate, SuggestionCase
from gpucost.advisor.suggest.patches import (
    drop,
    get,
    put,
    text_of,
)
from gpucost.advisor.suggest.what_if import with_queues
from gpucost.cluster.objects.kueue import Workload
from gpucost.cluster.objects.metadata import Conditions
from gpucost.cluster.views.commands import CLUSTER_QUEUES, is_plain, kubectl
from gpucost.cluster.views.quota import QUEUE_INACTIVE

STOP_POLICY = "spec.stopPolicy"
_GOES = "None"
_STOPPED = "Stopped"
"""Reason of a queue's Active condition where its stopPolicy is why it is False (kueue v0.19.2)."""
_LOCAL_QUEUES = "localqueues.v1beta2.kueue.x-k8s.io"
_WORKLOADS = "workloads.kueue.x-k8s.io"


def suspends(case: SuggestionCase) -> Iterator[SuggestionCandidate | None]:
    """For a job whose suspend no queue lifts: lift it."""
    if case.advice.reason != SUSPENDED:
        return
    path = suspend_path(case.manifest.job.job_kind)
    is_flag = get(case.manifest.document, path) is True

    def edit(document: dict[str, Any]) -> None:
        if is_flag:
            put(document, path, False)
        else:
            drop(document, path)

    says = f"{path[-1]}: false, so that it may start" if is_flag else f"without the annotation {path[-1]}"
    yield case.of_manifest(says, edit, same_work=True)


def stop_policies(case: SuggestionCase) -> Iterator[SuggestionCandidate | None]:
    """For a queue that the answer names as stopped: resume it. One object only, the first that is stopped."""
    if case.advice.reason != QUEUE_INACTIVE:
        return
    stopped = next((each for each in case.advice.evidence if each.field == STOP_POLICY), None)
    kind, _, name = stopped.object.partition("/") if stopped is not None else ("", "", "")
    namespace = case.manifest.namespace if kind == "localqueue" else ""
    known = _going_on(case.known, namespace, name)
    if stopped is None or known is None:
        return
    collection = _LOCAL_QUEUES if namespace else CLUSTER_QUEUES
    what = "LocalQueue" if namespace else "ClusterQueue"
    says = f"let {what} {name} go on: stopPolicy {_GOES} instead of {stopped.value}"
    change = _switch(collection, namespace, name, f"{kind}/{name}", "stopPolicy", _GOES)
    yield case.of_cluster(says, change, known, "somebody stopped it on purpose: ask first")


def _going_on(known: AdvisorContext, namespace: str, name: str) -> AdvisorContext | None:
    state = known.state
    if namespace:
        local = state.local_queue_by_name.get((namespace, name))
        if local is None:
            return None
        active = replace(local, stop_policy=_GOES, conditions=_without_stop(local.conditions))
        return with_queues(known, local_queues=[active])
    queue = state.cluster_queue_by_name.get(name)
    if queue is None:
        return None
    goes = replace(queue, stop_policy=_GOES, conditions=_without_stop(queue.conditions))
    return with_queues(known, cluster_queues=[goes])


def _without_stop(conditions: Conditions) -> Conditions:
    """The conditions once Kueue no longer reports the queue as inactive because it is stopped."""
    return {name: each for name, each in conditions.items() if (name, each.reason) != ("Active", _STOPPED)}


def activation(workload: Workload) -> SuggestedChange:
    """Lets its Workload queue again: for those who may change Workloads."""
    name, namespace = workload.meta.name, workload.meta.namespace
    return _switch(_WORKLOADS, namespace, name, f"workload/{name}", "active", True)


def _switch(
    collection: str, namespace: str, name: str, target: str, field: str, value: object
) -> SuggestedChange:
    """Without a command where a name is not a valid Kubernetes name."""
    patch: Mapping[str, object] = {"spec": {field: value}}
    written = json.dumps(patch, separators=(",", ":"))
    where = ("-n", namespace) if namespace else ()
    is_safe = is_plain(name) and (not namespace or is_plain(namespace))
    command = kubectl(*where, "patch", collection, name, "--type=merge", "-p", written) if is_safe else ""
    operations = ({"op": "replace", "path": f"/spec/{field}", "value": value},)
    return SuggestedChange(SuggestedChangeKind.CLUSTER, target, text_of(patch), operations, command)
