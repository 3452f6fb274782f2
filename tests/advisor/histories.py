"""Histories of the real Kueue scheduler as the writes that a watch of an API server would have received.

``conventions`` in their file says what a history holds. It does not record the order of decisions within one
second: here evictions of others come first, then quota that comes back, then admissions, by name; last the
evictions of workloads that were admitted in the same second.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from gpucost.advisor.verify.case_files import read_cases
from gpucost.advisor.verify.decision_follower import WorkloadWrite
from gpucost.cluster.objects.kueue import PodSetAssignment, Workload
from gpucost.cluster.objects.metadata import StatusCondition, times
from gpucost.cluster.objects.scheduler_config import KueueConfig
from gpucost.cluster.objects.state import ClusterState
from tests.support.recorded import KUEUE_SCHEDULER

HISTORIES = KUEUE_SCHEDULER / "histories.json.gz"
START_MS = 1_792_800_000_000


class Step(NamedTuple):
    """One write, and the queues as they are then."""

    write: WorkloadWrite
    state: ClusterState


class History(NamedTuple):
    """One configuration of a history: who comes, and what became of them."""

    id: str
    config: KueueConfig
    traps: tuple[str, ...]
    found: Mapping[str, Any]
    arrivals: list[Mapping[str, Any]]


def histories(place: Path) -> Iterator[History]:
    for each in json.loads(gzip.decompress(place.read_bytes()))["histories"]:
        for found in each["configurations"]:
            settings = found["settings"]
            strategies = settings["preemptionStrategies"]
            config = KueueConfig("v0.19.2", settings["fairSharing"], is_read=True)
            if strategies:
                config = replace(config, strategies=tuple(strategies))
            yield History(
                f"{each['id']}/{found['name']}", config, tuple(found["traps"]), found, each["arrivals"]
            )


def steps(history: History) -> Iterator[Step]:
    """Of all that happened, in order of time."""
    cluster = dict(history.found["cluster"])
    arrivals = {each["name"]: each for each in history.arrivals}
    first = _state(history, cluster)
    workloads = first.workloads
    changes = sorted(history.found["changes"], key=lambda each: each["at"])
    now: dict[str, Workload] = {}
    for at_s, rank, name, what in sorted(_happened(history), key=lambda each: each[:3]):
        while changes and changes[0]["at"] <= at_s:
            changed = changes.pop(0)["object"]
            queues = [
                changed if each["name"] == changed["name"] else each for each in cluster["clusterQueues"]
            ]
            cluster = {**cluster, "clusterQueues": queues}
            first = _state(history, cluster)
        del rank
        at_ms = START_MS + at_s * 1000
        each = now.get(name) or _arrived(workloads[name], arrivals[name])
        now[name] = _after(each, what, at_ms)
        yield Step(WorkloadWrite(at_ms, name, None, now[name]), first)


def _happened(history: History) -> Iterator[tuple[int, int, str, Mapping[str, Any]]]:
    settings = history.found["settings"]
    for each in history.arrivals:
        yield each["createdSecond"], 2, each["name"], {"what": "came"}
    for each in history.found["truth"]:
        for one in each["admissions"]:
            yield one["at"], 5, each["name"], {"what": "admitted", **one}
        for at, one in enumerate(each["evictions"]):
            is_at_once = one["at"] == each["admissions"][at]["at"]
            yield one["at"], 6 if is_at_once else 3, each["name"], {"what": "evicted", **one}
            gone_s = one["at"] + settings["terminationSeconds"]
            rank = (7 if is_at_once else 4) if gone_s == one["at"] else 1
            yield gone_s, rank, each["name"], {"what": "gone"}
        if each["finished"] is not None:
            yield each["finished"], 0, each["name"], {"what": "finished"}


def _state(history: History, cluster: Mapping[str, Any]) -> ClusterState:
    """The cluster with all that ever come, waiting."""
    settings = history.found["settings"]
    waiting = [
        {
            **{key: each[key] for key in ("name", "priority")},
            "namespace": each["queue"],
            "clusterQueue": each["queue"],
            "role": "pending",
            "createdAtSecondsFromNow": 0,
            "podSets": each["podSets"],
        }
        for each in history.arrivals
    ]
    case = {
        "id": history.id,
        "config": {
            "fairSharing": settings["fairSharing"],
            "preemptionStrategies": settings["preemptionStrategies"],
        },
        **{key: cluster[key] for key in ("resourceFlavors", "cohorts", "clusterQueues")},
        "workloads": waiting,
        "expected": {},
    }
    (found,) = read_cases(json.dumps({"cases": [case]}).encode(), history.id).cases
    return found.state


def _arrived(each: Workload, arrival: Mapping[str, Any]) -> Workload:
    return replace(each, meta=replace(each.meta, created_ms=START_MS + arrival["createdSecond"] * 1000))


def _after(each: Workload, what: Mapping[str, Any], at_ms: int) -> Workload:
    """As Kueue writes it."""
    conditions = dict(each.conditions)
    match what["what"]:
        case "came":
            return each
        case "admitted":
            told = {"Evicted", "Preempted"} & conditions.keys()
            conditions |= {kind: StatusCondition(False, "QuotaReserved", "", at_ms) for kind in told}
            conditions |= {
                kind: StatusCondition(True, kind, "", at_ms) for kind in ("QuotaReserved", "Admitted")
            }
            counts = what.get("counts") or {}
            assignments = tuple(
                PodSetAssignment(
                    pods.name,
                    what["flavors"][pods.name],
                    times(pods.template.requests, counts.get(pods.name, pods.count)),
                    counts.get(pods.name, pods.count),
                )
                for pods in each.pod_sets
            )
            return replace(
                each, conditions=conditions, cluster_queue=each.meta.namespace, assignments=assignments
            )
        case "evicted":
            is_preempted = what["by"] is not None
            reason = "Preempted" if is_preempted else what["reason"]
            conditions["Evicted"] = StatusCondition(True, reason, "", at_ms)
            if is_preempted:
                said = f"Preempted to accommodate a workload (UID: {what['by']}, JobUID: x) due to it"
                conditions["Preempted"] = StatusCondition(True, what["reason"], said, at_ms)
        case "gone":
            conditions |= {
                kind: StatusCondition(False, "Pending", "", at_ms) for kind in ("QuotaReserved", "Admitted")
            }
            return replace(each, conditions=conditions, cluster_queue="", assignments=())
        case _:
            conditions["Finished"] = StatusCondition(True, "Succeeded", "", at_ms)
    return replace(each, conditions=conditions)
