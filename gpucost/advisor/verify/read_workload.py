"""The workloads of a recorded case, pending or with quota."""

from __future__ import annotations

from collections.abc import Mapping

from gpucost.advisor.verify.fields import Fields, fields, quantity_of, text
from gpucost.advisor.verify.schema import NOW_MS
from gpucost.cluster.kueue import Assignment, Workload
from gpucost.cluster.objects import Condition, Conditions, Meta
from gpucost.cluster.pods import PodSet, PodTemplate, Requirement, Toleration
from gpucost.domain.errors import InputError, Remark

PENDING = "pending"
HOLDING = "holding-quota"
EFFECTS = ("", "NoSchedule", "PreferNoSchedule", "NoExecute")
_PODS = "pods"
_OPERATORS = ("In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt")
_OLDER_MS = 3_600_000
"""How much older a workload without a time of creation is than all that have one."""


def workload(part: Fields, uid: str, queue: str, cluster_queue: str, oldest_ms: int) -> Workload:
    """``queue`` is its LocalQueue, ``cluster_queue`` where that leads. ``oldest_ms`` is the earliest creation
    that the case gives, ``NOW_MS`` where it gives none."""
    name, namespace = part.name("name"), part.text("namespace", "")
    role = part.one_of("role", (PENDING, HOLDING))
    created = part.seconds("createdAtSecondsFromNow")
    created_ms = oldest_ms - _OLDER_MS if created is None else NOW_MS + created
    sets = tuple(_pod_set(each) for each in part.objects("podSets"))
    _distinct([each.name for each in sets], part.at("podSets"))
    conditions, assignments = _reservation(part, role, sets)
    return Workload(
        Meta(uid, namespace, name, created_ms, {}, {}),
        sets,
        queue,
        part.whole("priority", 0),
        cluster_queue=cluster_queue if role == HOLDING else "",
        assignments=assignments,
        conditions={**conditions, **_evicted(part)},
    )


def tolerations(part: Fields) -> tuple[Toleration, ...]:
    return tuple(
        Toleration(
            each.text("key", ""),
            each.one_of("operator", ("Equal", "Exists"), "Equal") == "Exists",
            each.text("value", ""),
            each.one_of("effect", EFFECTS, ""),
        )
        for each in part.objects("tolerations")
    )


def _pod_set(part: Fields) -> PodSet:
    asked = part.raw("requestsPerPod")
    requests = {} if asked is None else part.mapping("requestsPerPod", lambda found, at: (found, at))
    affinity = tuple(
        Requirement(each.text("key"), each.one_of("operator", _OPERATORS), each.texts("values"))
        for each in part.objects("requiredNodeAffinity")
    )
    template = PodTemplate(
        {name: quantity_of(name, found, at) for name, (found, at) in requests.items()},
        part.mapping("nodeSelector", text),
        (affinity,) if affinity else (),
        tolerations(part),
    )
    count = part.whole("count", None, 0)
    return PodSet(part.text("name", "main"), count, template, part.whole_or_none("minCount", 0))


def _reservation(
    part: Fields, role: str, sets: tuple[PodSet, ...]
) -> tuple[Conditions, tuple[Assignment, ...]]:
    found, path = part.raw("reservation"), part.at("reservation")
    if role == PENDING:
        if found is not None:
            raise InputError(path, Remark("given"), f"none for role {PENDING}")
        return {}, ()
    with fields({} if found is None else found, path) as inner:
        since_ms = NOW_MS + (inner.seconds("reservedAtSecondsFromNow") or 0)
        assignments = tuple(_assignment(each, sets) for each in inner.objects("podSets"))
    named = [each.name for each in assignments]
    _distinct(named, path)
    if sorted(named) != sorted(each.name for each in sets):
        raise InputError(f"{path}.podSets", Remark(", ".join(named) or "missing"), "each pod set, once")
    held = {each: Condition(True, each, "", since_ms) for each in ("QuotaReserved", "Admitted")}
    return held, assignments


def _assignment(part: Fields, sets: tuple[PodSet, ...]) -> Assignment:
    name, count = part.name("name"), part.whole("count", None, 0)
    flavors = part.mapping("flavors", text)
    requests: Mapping[str, int] = next((each.template.requests for each in sets if each.name == name), {})
    usage = {resource: amount * count for resource, amount in requests.items()}
    if _PODS in flavors:
        usage[_PODS] = count
    return Assignment(name, flavors, usage, count)


def _evicted(part: Fields) -> Conditions:
    since = part.seconds("evictedAtSecondsFromNow")
    if not part.flag("alreadyEvicted"):
        if since is not None:
            raise InputError(
                part.at("evictedAtSecondsFromNow"), Remark("given"), "none unless alreadyEvicted"
            )
        return {}
    return {"Evicted": Condition(True, "Preempted", "", NOW_MS + (since or 0))}


def _distinct(names: list[str], path: str) -> None:
    for name in names:
        if names.count(name) > 1:
            raise InputError(path, name, "each name once")
