"""KIND/NAME as kubectl takes it: kinds in any case, their plurals, short names, and with their group."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import NamedTuple

from gpucost.domain.errors import InputError
from gpucost.domain.jobs import job_kind

SHORT: Mapping[str, str] = {
    "po": "Pod",
    "deploy": "Deployment",
    "sts": "StatefulSet",
    "rs": "ReplicaSet",
    "ds": "DaemonSet",
    "cj": "CronJob",
    "vcjob": "VolcanoJob",
    "vj": "VolcanoJob",
    "lws": "LeaderWorkerSet",
    "wl": "Workload",
    "pg": "PodGroup",
}
"""Those of Kubernetes, Volcano, Kueue and LeaderWorkerSet."""
_KINDS_OF_FIELDS = {"workloads": "Workload", "pod_groups": "PodGroup"}
_EXAMPLES = "KIND/NAME such as pytorchjob/train, vcjob/sim or workload/job-train-1a2b3"


class Named(NamedTuple):
    """``kind`` as gpucost has it: a JobKind, ``Workload`` (of Kueue) or ``PodGroup``."""

    kind: str
    name: str


def named(text: str, field: str = "KIND/NAME") -> Named:
    """``pytorchjobs.kubeflow.org/train`` -> PyTorchJob, train. Raises InputError."""
    kind, slash, name = text.partition("/")
    if not slash or not kind or not name or "/" in name:
        raise InputError(field, text, _EXAMPLES)
    found = _kinds().get(kind.lower())
    if found is None:
        raise InputError(field, text, f"a kind among {', '.join(sorted(set(_kinds().values())))}")
    return Named(found, name)


@cache
def _kinds() -> Mapping[str, str]:
    """By every name in lower case. Of two groups that share one, the first of the collections has it."""
    from gpucost.kube.collections import collections

    found = dict(SHORT)
    for each in collections():
        if each.field in ("jobs", "pods"):
            kind = job_kind(f"{each.group}/{each.versions[0]}" if each.group else "v1", each.kind).value
        elif each.field in _KINDS_OF_FIELDS:
            kind = _KINDS_OF_FIELDS[each.field]
        else:
            continue
        for name in (each.plural, each.kind.lower(), kind.lower()):
            found.setdefault(name, kind)
            if each.group:
                found.setdefault(f"{name}.{each.group}", kind)
    return found
