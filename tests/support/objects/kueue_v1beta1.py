"""The same facts in v1beta1: what an API server with Kueue's conversion webhook gives for a v1beta2 object.

Written from the CRDs, apart from the parsers, so that each can show the other wrong.
"""

from __future__ import annotations

from copy import deepcopy
from typing import Any

VERSION = "kueue.x-k8s.io/v1beta1"
_SOURCES = {
    "WorkloadPriorityClass": "kueue.x-k8s.io/workloadpriorityclass",
    "PriorityClass": "scheduling.k8s.io/priorityclass",
}


def as_v1beta1(found: dict[str, Any], *, old_words: bool = True) -> dict[str, Any]:
    """A copy of a v1beta2 object in v1beta1. With ``old_words`` a ClusterQueue says ``Borrow`` and
    ``Preempt``, and lists its checks where they are for all flavors."""
    old = deepcopy(found) | {"apiVersion": VERSION}
    if old["kind"] == "ClusterQueue":
        _cluster_queue(old["spec"], old_words)
    elif old["kind"] == "LocalQueue":
        _renamed(old.get("status", {}), "flavorsUsage", "flavorUsage")
    elif old["kind"] == "Workload":
        _workload(old["spec"], old.get("status", {}))
    elif old["kind"] == "AdmissionCheck":
        old["spec"]["retryDelayMinutes"] = 15
    return old


def _cluster_queue(spec: dict[str, Any], old_words: bool) -> None:
    _renamed(spec, "cohortName", "cohort")
    spec.pop("concurrentAdmissionPolicy", None)
    checks = spec.get("admissionChecksStrategy", {}).get("admissionChecks", [])
    if not old_words:
        return
    if checks and not any("onFlavors" in each for each in checks):
        del spec["admissionChecksStrategy"]
        spec["admissionChecks"] = [each["name"] for each in checks]
    fungibility = spec.get("flavorFungibility", {})
    for key, word in (("whenCanBorrow", "Borrow"), ("whenCanPreempt", "Preempt")):
        if fungibility.get(key) == "MayStopSearch":
            fungibility[key] = word


def _workload(spec: dict[str, Any], status: dict[str, Any]) -> None:
    reference = spec.pop("priorityClassRef", None)
    if reference:
        spec["priorityClassName"] = reference["name"]
        spec["priorityClassSource"] = _SOURCES[reference["kind"]]
    _renamed(status, "accumulatedPastExecutionTimeSeconds", "accumulatedPastExexcutionTimeSeconds")
    for each in status.get("admission", {}).get("podSetAssignments", []):
        if "topologyAssignment" in each:
            topology = each["topologyAssignment"]
            domains = [domain for each in topology["slices"] for domain in _domains(each)]
            each["topologyAssignment"] = {"levels": topology["levels"], "domains": domains}


def _domains(found: dict[str, Any]) -> list[dict[str, Any]]:
    domains = []
    for index in range(found["domainCount"]):
        counts = found["podCounts"]
        values = [_value(level, index) for level in found["valuesPerLevel"]]
        count = counts["universal"] if "universal" in counts else counts["individual"][index]
        domains.append({"values": values, "count": count})
    return domains


def _value(level: dict[str, Any], index: int) -> str:
    if "universal" in level:
        return str(level["universal"])
    each = level["individual"]
    return str(each.get("prefix", "") + each["roots"][index] + each.get("suffix", ""))


def _renamed(part: dict[str, Any], new: str, old: str) -> None:
    if new in part:
        part[old] = part.pop(new)
