"""Recorded decisions of the real Kueue, played on an API server: the cluster of a case, then what it decided.

Several cases share a server: the id of its case stands before every name, so that each is a cohort tree, or
trees, of its own. Only the heads that are named are decided about; all else stays as it was before the cycle.
"""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from gpucost.cluster.objects.metadata import parse_quantity
from tests.support.cluster.server import ClusterServer
from tests.support.objects import condition, kueue, metadata
from tests.support.recorded import KUEUE_SCHEDULER

Json = dict[str, Any]
_FLAVOR = re.compile(r"in flavor ([-.a-z0-9]+)")
NOW_MS = 1_791_633_600_000
"""2026-10-10T12:00:00Z, the second of every decision."""


def recorded_case(id_: str) -> PlayedCase:
    """Of the 300 recordings by its id (``kqs-014``)."""
    found = json.loads(gzip.decompress((KUEUE_SCHEDULER / "kueue-recorded.json.gz").read_bytes()))
    return PlayedCase(next(each for each in found["cases"] if each["id"] == id_))


class PlayedCase:
    """``case`` is a document in the schema of recorded cases (docs/advisor-cases.md)."""

    def __init__(self, case: Mapping[str, Any]) -> None:
        self.id: str = case["id"]
        self._case = case
        self._parts = {f"{each['namespace']}/{each['name']}": each for each in case["workloads"]}
        self.expected: Mapping[str, Json] = case["expected"]

    def key(self, workload: str) -> str:
        """``namespace/name`` on the server of ``namespace/name`` in the case."""
        namespace, name = workload.split("/")
        return f"{self._of(namespace)}/{self._of(name)}"

    def put(self, server: ClusterServer) -> None:
        """The cluster before the cycle."""
        for item in self._objects():
            server.put(item)

    def decide(self, server: ClusterServer, head: str, **otherwise: Any) -> None:
        """What Kueue did with ``head``, as it writes it: quota, evictions one by one and the reason, or the
        reason alone. ``otherwise`` are other expectations than those that were recorded."""
        decided: Json = {**self.expected[head], **otherwise}
        outcome = decided["outcome"]
        if outcome == "admitted":
            server.put(self._holding(head, decided["podSets"], NOW_MS))
            return
        for victim in decided.get("preempts") or () if outcome == "preempting" else ():
            if self.expected.get(victim, {}).get("outcome") != "being-evicted":
                server.put(self._preempted(victim, head))
        waiting = self._workload(head)
        reason = decided.get("quotaReservedReason") or "Pending"
        message = _FLAVOR.sub(lambda found: f"in flavor {self._of(found[1])}", decided["messageContains"])
        said = condition("QuotaReserved", False, reason, message, NOW_MS)
        server.put({**waiting, "status": {"conditions": [said]}})

    def _of(self, name: str) -> str:
        return f"{self.id}-{name}"

    def _objects(self) -> Iterator[Json]:
        case = self._case
        for each in case["resourceFlavors"]:
            taints = [(one["key"], one.get("value") or "", one["effect"]) for one in each["nodeTaints"]]
            yield kueue.resource_flavor(
                self._of(each["name"]),
                node_labels=each["nodeLabels"],
                taints=taints,
                tolerations=each["tolerations"],
            )
        for each in case["cohorts"]:
            parent = each.get("parentName")
            groups = [self._quotas(group) for group in each.get("resourceGroups") or ()]
            weight = each.get("fairSharingWeight")
            above = self._of(parent) if parent else ""
            yield kueue.cohort(self._of(each["name"]), parent=above, groups=groups, weight=weight)
        for each in case["clusterQueues"]:
            yield kueue.cluster_queue(
                self._of(each["name"]),
                cohort=self._of(each["cohortName"]) if each["cohortName"] else "",
                groups=[self._quotas(group) for group in each["resourceGroups"]],
                strategy=each["queueingStrategy"],
                preemption=_given(each["preemption"]),
                fungibility=_given(each["flavorFungibility"]),
                weight=each["fairSharingWeight"],
            )
        for namespace in sorted({each["namespace"] for each in case["workloads"]}):
            yield {"apiVersion": "v1", "kind": "Namespace", "metadata": metadata(self._of(namespace))}
        for namespace, queue in sorted(
            {(each["namespace"], each["clusterQueue"]) for each in case["workloads"]}
        ):
            yield kueue.local_queue(queue, self._of(queue), self._of(namespace))
        for key, each in self._parts.items():
            if each["role"] == "pending":
                yield self._workload(key)
            else:
                yield self._evicted(key) if each.get("alreadyEvicted") else self._held(key)

    def _quotas(self, group: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
        return {
            self._of(flavor["name"]): {
                each["name"]: (each["nominalQuota"], each["borrowingLimit"], each["lendingLimit"])
                for each in flavor["resources"]
            }
            for flavor in group["flavors"]
        }

    def _workload(self, key: str, **more: Any) -> Json:
        part = self._parts[key]
        namespace, name = self.key(key).split("/")
        return kueue.workload(
            name,
            namespace,
            queue=part["clusterQueue"],
            priority=part["priority"],
            pod_sets=[_pod_set(each) for each in part["podSets"]],
            created=NOW_MS + part["createdAtSecondsFromNow"] * 1000,
            uid=self._of(part["name"]),
            **more,
        )

    def _holding(self, key: str, pod_sets: list[Json], at_ms: int, *told: Json) -> Json:
        part = self._parts[key]
        requests = {each["name"]: each["requestsPerPod"] for each in part["podSets"]}
        assignments = [
            kueue.assignment(
                each["name"],
                {key: self._of(flavor) for key, flavor in each["flavors"].items()},
                {key: _times(requests[each["name"]].get(key, "1"), each["count"]) for key in each["flavors"]},
                each["count"],
            )
            for each in pod_sets
        ]
        given = [condition(kind, since=at_ms) for kind in ("QuotaReserved", "Admitted")]
        queue = self._of(part["clusterQueue"])
        return self._workload(key, cluster_queue=queue, assignments=assignments, conditions=[*given, *told])

    def _held(self, key: str, *told: Json) -> Json:
        """As it was before the cycle, and what it was told since."""
        held = self._parts[key]["reservation"]
        return self._holding(key, held["podSets"], NOW_MS + held["reservedAtSecondsFromNow"] * 1000, *told)

    def _evicted(self, key: str) -> Json:
        at_ms = NOW_MS + self._parts[key]["evictedAtSecondsFromNow"] * 1000
        return self._held(key, condition("Evicted", True, "Preempted", "", at_ms))

    def _preempted(self, key: str, by: str) -> Json:
        reason = self.expected[key].get("preemptedReason") or "InClusterQueue"
        uid = self._of(self._parts[by]["name"])
        said = f"Preempted to accommodate a workload (UID: {uid}, JobUID: UNKNOWN) due to {reason}"
        told = [
            condition("Evicted", True, "Preempted", said, NOW_MS),
            condition("Preempted", True, reason, said, NOW_MS),
        ]
        return self._held(key, *told)


def _pod_set(found: Mapping[str, Any]) -> Json:
    terms = found.get("requiredNodeAffinity")
    affinity = {
        "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {
                "nodeSelectorTerms": [{"matchExpressions": terms}]
            }
        }
    }
    pod = {
        "nodeSelector": found.get("nodeSelector"),
        "tolerations": found.get("tolerations"),
        "affinity": affinity if terms else None,
    }
    return kueue.pod_set(
        found["name"],
        found["count"],
        found["requestsPerPod"],
        min_count=found.get("minCount"),
        pod=_given(pod),
    )


def _given(found: Mapping[str, Any]) -> Json:
    """Without what is null, at any depth: the API server would refuse it."""
    return {
        key: _given(each) if isinstance(each, Mapping) else each
        for key, each in found.items()
        if each is not None
    }


def _times(quantity: str, count: int) -> str:
    """As Kueue counts it: thousandths for what has them, else whole."""
    amount = parse_quantity(quantity) * count
    return str(int(amount)) if amount.denominator == 1 else f"{int(amount * 1000)}m"
