"""Documents in the schema of recorded cases (docs/advisor-cases.md), for tests that read, replay and write
them. The decisions in ``CASE`` follow from the rules by hand."""

from __future__ import annotations

import json
from copy import deepcopy
from typing import Any

from gpucost.advisor.verify.case_files import read_cases
from gpucost.advisor.verify.case_schema import SchedulerCase

GPU = "nvidia.com/gpu"
Document = dict[str, Any]


def quota(nominal: str = "8", resource: str = GPU, **limits: str | None) -> Document:
    return {"name": resource, "nominalQuota": nominal, **limits}


def queue(name: str, *flavors: Document, **fields: Any) -> Document:
    """Of one resource group for the GPUs of ``flavors``, else 8 of ``h100``."""
    given = list(flavors) or [{"name": "h100", "resources": [quota()]}]
    groups = [{"coveredResources": [GPU], "flavors": given}]
    return {"name": name, "resourceGroups": groups, **fields}


def waits(name: str, where: str | None, gpus: int, **fields: Any) -> Document:
    pods = {"name": "main", "count": 1, "requestsPerPod": {GPU: str(gpus)}}
    place = {"namespace": where or "nowhere", "clusterQueue": where}
    return {"name": name, **place, "role": "pending", "podSets": [pods], **fields}


def holds(name: str, where: str, gpus: int, **fields: Any) -> Document:
    given = {"podSets": [{"name": "main", "count": 1, "flavors": {GPU: "h100"}}]}
    return {**waits(name, where, gpus), "role": "holding-quota", "reservation": given, **fields}


def given(gpu: str = "h100", count: int = 1) -> list[Document]:
    """Pod sets of what is expected."""
    return [{"name": "main", "count": count, "flavors": {GPU: gpu}}]


CASE: Document = {
    "id": "one",
    "level": "one-scheduling-cycle",
    "tags": ["preempts", "admits"],
    "config": {"fairSharing": False, "preemptionStrategies": None},
    "cohorts": [{"name": "org"}],
    "clusterQueues": [
        queue("train", cohortName="org", preemption={"withinClusterQueue": "LowerPriority"}),
        queue("serve", cohortName="org"),
        queue("alone"),
    ],
    "workloads": [
        holds("low", "train", 8),
        waits("high", "train", 8, priority=100),
        holds("model", "serve", 8),
        waits("next", "serve", 4, createdAtSecondsFromNow=-10),
        waits("later", "serve", 2, createdAtSecondsFromNow=-5),
        waits("new", "alone", 4),
    ],
    "expected": {
        "train/low": {
            "outcome": "preempted",
            "preemptedBy": "train/high",
            "preemptedReason": "InClusterQueue",
        },
        "train/high": {
            "outcome": "preempting",
            "flavors": {GPU: "h100"},
            "podSets": given(),
            "borrowsFromCohort": False,
            "borrowingLevel": 0,
            "preempts": ["train/low"],
            "pendingClass": "needs-preemption",
            "requeuedTo": "heap",
            "quotaReservedReason": "WaitingForPreemptedWorkloads",
            "messageContains": "insufficient unused quota for nvidia.com/gpu in flavor h100, 8 more needed",
        },
        "serve/model": {"outcome": "keeps-running"},
        "serve/next": {
            "outcome": "pending",
            "nominated": {"mode": "Preempt", "podSets": given(), "borrowingLevel": 1},
            "pendingClass": "needs-preemption-no-candidates",
            "requeuedTo": "inadmissible",
            "quotaReservedReason": "WaitingForQuota",
        },
        "serve/later": {"outcome": "pending", "pendingClass": "waiting", "requeuedTo": "heap"},
        "alone/new": {
            "outcome": "admitted",
            "clusterQueue": "alone",
            "flavors": {GPU: "h100"},
            "podSets": given(),
            "borrowsFromCohort": False,
            "borrowingLevel": 0,
        },
    },
    "processingOrder": [["train/high", "serve/next"], ["alone/new"]],
}
"""Two queues of one cohort that are full, and one that is empty: every fact but those of a search."""

SEARCH: Document = {
    "id": "search",
    "level": "preemption-target-search",
    "clusterQueues": [queue("train", preemption={"withinClusterQueue": "LowerPriority"})],
    "workloads": [
        holds("gone", "train", 2, priority=5, alreadyEvicted=True),
        holds("low", "train", 2),
        holds("middle", "train", 4, priority=1),
        waits("high", "train", 4, priority=100),
    ],
    "givenFlavor": {GPU: "h100"},
    "expected": {
        "train/high": {"outcome": "preempting", "preempts": ["train/gone", "train/low"]},
        "train/gone": {"outcome": "being-evicted", "preemptedBy": "train/high"},
        "train/low": {"outcome": "preempted", "preemptedReason": "InClusterQueue"},
        "train/middle": {"outcome": "keeps-running"},
    },
}
"""A search for victims of a flavor that is given."""


def changed(document: Document, path: str, value: Any) -> Document:
    """A copy with ``value`` at ``path`` (``clusterQueues.0.name``)."""
    copy = deepcopy(document)
    inner: Any = copy
    *way, last = [int(each) if each.isdecimal() else each for each in path.split(".")]
    for each in way:
        inner = inner[each]
    inner[last] = value
    return copy


def content(*cases: Document, **fields: Any) -> bytes:
    return json.dumps({"schemaVersion": 1, "cases": list(cases), **fields}).encode()


def read(*cases: Document) -> tuple[SchedulerCase, ...]:
    return read_cases(content(*cases), "cases.json").cases
