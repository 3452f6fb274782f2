"""PodGroups that stand beside jobs, and plain pods, alone and in groups."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from gpucost.cluster.jobs import JobObject
from gpucost.cluster.manifest import Document
from gpucost.cluster.ownership import COSCHEDULING_GROUP, KUEUE_GROUP, VOLCANO_GROUPS
from gpucost.cluster.pods import PodSet
from gpucost.cluster.volcano import PodGroup
from gpucost.domain.jobs import JobKind
from gpucost.kube.parse.job_shapes import pod_set_of
from gpucost.kube.parse.pod_groups import coscheduling_pod_group, native_pod_group
from gpucost.kube.parse.reading import Part, meta
from gpucost.kube.parse.volcano import volcano_pod_group

TOTAL = "kueue.x-k8s.io/pod-group-total-count"
_FAST = "kueue.x-k8s.io/pod-group-fast-admission"
_ROLE = "kueue.x-k8s.io/role-hash"
_WHOLE = re.compile("[0-9]{1,6}")
_PARSERS: Mapping[str, Callable[[Mapping[str, Any]], PodGroup]] = {
    "scheduling.volcano.sh": volcano_pod_group,
    "scheduling.x-k8s.io": coscheduling_pod_group,
    "scheduling.k8s.io": native_pod_group,
}


class Named(NamedTuple):
    """A group that a pod names: ``of_kueue`` says whether it is a pod group of Kueue, else a PodGroup."""

    name: str
    of_kueue: bool = False


class Beside(NamedTuple):
    """A PodGroup, and the document that it was read from."""

    group: PodGroup
    document: Document


def group_of(holder: Mapping[str, Any]) -> Named:
    """What a pod or a pod template names; an empty name for none."""
    metadata = Part(holder).part("metadata")
    labels, annotations = metadata.part("labels"), metadata.part("annotations")
    kueue = labels.text(KUEUE_GROUP) or annotations.text(KUEUE_GROUP)
    if kueue:
        return Named(kueue, True)
    native = Part(holder).part("spec").part("schedulingGroup").text("podGroupName")
    named = (annotations.text(key) for key in VOLCANO_GROUPS)
    return Named(next(filter(None, named), "") or labels.text(COSCHEDULING_GROUP) or native)


def is_pod_group(document: Mapping[str, Any]) -> bool:
    """Whether it is a PodGroup of a scheduler that is known."""
    return document.get("kind") == "PodGroup" and _group(document) in _PARSERS


def pod_groups(documents: Iterable[Document], default: str) -> dict[tuple[str, str], Beside]:
    """Those of a file by namespace and name; ``default`` is the namespace of those that name none."""
    found = {}
    for each in documents:
        if not is_pod_group(each):
            continue
        metadata = each.get("metadata")
        own = metadata if isinstance(metadata, dict) else {}
        name, namespace = own.get("name"), own.get("namespace") or default
        if isinstance(name, str) and isinstance(namespace, str) and name:
            identity = {**own, "uid": f"manifest/{name}", "namespace": namespace}
            group = _PARSERS[_group(each)]({**each, "metadata": identity, "status": {}})
            found[namespace, name] = Beside(group, each)
    return found


def _group(document: Mapping[str, Any]) -> str:
    return str(document.get("apiVersion")).partition("/")[0]


def pods_as_job(pods: list[dict[str, Any]], group: Named) -> tuple[JobObject, str]:
    """Pods with identity as one job. Also what is not known of them, in words; empty where all is.

    A pod group of Kueue says in every pod how many there will be. With fast admission one pod stands for all.
    """
    roots = [Part(each) for each in pods]
    pod_sets, count, unknown = _roles(roots, group.of_kueue), len(pods), ""
    total = _total(roots) if group.of_kueue else None
    if total is not None and _FAST in _annotations(roots[0]):
        pod_sets, count = [replace(pod_sets[0], count=total)], total
    elif total is not None and total > count:
        unknown = f"the pod group {group.name} is to have {total:,} pods, and {count:,} are given"
        count = total
    elif total is not None and total < count:
        _annotations(roots[0]).flaw(TOTAL, str(total), f"{count:,}, as many pods as are given")
    job = JobObject(
        meta(roots[0]),
        "v1",
        "Pod",
        JobKind.POD,
        pod_sets=tuple(pod_sets),
        gang_size=count,
        priority_class=next(filter(None, (each.template.priority_class for each in pod_sets)), ""),
        flaws=tuple(dict.fromkeys(flaw for each in roots for flaw in each.flaws)),
    )
    return job, unknown


def _roles(roots: list[Part], of_kueue: bool) -> list[PodSet]:
    """Equal pods are a pod set, in the order of their first. Kueue names each by a hash of its spec; here it
    is numbered, unless a pod says its hash."""
    found: list[PodSet] = []
    for root in roots:
        one = pod_set_of("", 1, root)
        at = next((at for at, each in enumerate(found) if replace(each, name="", count=1) == one), None)
        if at is None:
            name = f"role-{len(found) + 1}" if of_kueue or found else "main"
            found.append(replace(one, name=_annotations(root).text(_ROLE) or name))
        else:
            found[at] = replace(found[at], count=found[at].count + 1)
    return found


def _annotations(root: Part) -> Part:
    return root.part("metadata").part("annotations")


def _total(roots: list[Part]) -> int | None:
    """What all pods say alike; None, with a flaw, where one says nothing or another number."""
    first: str | None = None
    for each in roots:
        annotations = _annotations(each)
        said = annotations.text(TOTAL)
        if not _WHOLE.fullmatch(said) or not int(said):
            annotations.flaw(TOTAL, annotations.raw(TOTAL), "how many pods the group has, from 1 to 999,999")
            return None
        if first is not None and said != first:
            annotations.flaw(TOTAL, said, f"{first}, as the first pod of its group says")
            return None
        first = said
    return int(first or 0)
