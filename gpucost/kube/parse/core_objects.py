"""Parsers of namespaces, PriorityClasses, PodDisruptionBudgets, nodes, objects of ``resource.k8s.io``, and
NVIDIA's ComputeDomains.

Of slices and claims the versions v1, v1beta2, and v1beta1 with its ``basic`` are read; of DeviceTaintRules
v1, v1beta2 and v1alpha3.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from fractions import Fraction
from typing import Any

from gpucost.cluster.objects.jobs import Namespace, PriorityClass
from gpucost.cluster.objects.metadata import is_true
from gpucost.cluster.objects.node_labels import gpu_labels, node_place
from gpucost.cluster.objects.nodes import (
    CLOSING_CONDITIONS,
    MAINTENANCE_CONDITIONS,
    ComputeDomain,
    DeviceId,
    DeviceRequest,
    DeviceShare,
    DeviceTaintRule,
    Node,
    PublishedDevice,
    ResourceClaim,
    ResourceSlice,
    SplitGpu,
    Taint,
)
from gpucost.cluster.objects.pods import DisruptionBudget
from gpucost.kube.parse.fields import (
    ObjectPart,
    conditions,
    label_selector,
    meta,
    shared,
)

NEVER = "Never"
"""The preemptionPolicy of pods that preempt no other pod; every other value means that they may."""


def namespace(found: Mapping[str, Any]) -> Namespace:
    """Raises Unreadable for an object without a uid or a name."""
    part = ObjectPart(found)
    return Namespace(meta(part), tuple(part.flaws))


def priority_class(found: Mapping[str, Any]) -> PriorityClass:
    """A PriorityClass of ``scheduling.k8s.io/v1``; 0 with a flaw where its value is not valid.

    Raises Unreadable for an object without a uid or a name.
    """
    part = ObjectPart(found)
    identity = meta(part, frozenset())
    value = part.whole("value")
    if value is None and "value" not in part:
        part.flaw("value", None, "a whole number")
    return PriorityClass(
        identity,
        value or 0,
        part.flag("globalDefault"),
        never_preempts=part.text("preemptionPolicy") == NEVER,
        flaws=tuple(part.flaws),
    )


def disruption_budget(found: Mapping[str, Any]) -> DisruptionBudget:
    """A PodDisruptionBudget of ``policy/v1``. One without a status allows nothing yet, as for kube-scheduler.

    Raises Unreadable for an object without a uid or a name.
    """
    part = ObjectPart(found)
    identity = meta(part, frozenset())
    status = part.part("status")
    return DisruptionBudget(
        identity,
        label_selector(part.part("spec"), "selector"),
        status.count("disruptionsAllowed"),
        frozenset(status.part("disruptedPods")),
        tuple(part.flaws),
    )


SPLIT_GPUS = "hami.io/node-nvidia-register"
"""The annotation in which HAMi's device plugin lists a node's GPUs (Project-HAMi/HAMi, pkg/device)."""
_ANNOTATIONS = frozenset({SPLIT_GPUS})
_GPU = "nvidia.com/gpu"
_MOST_GPUS = 64
MOST_DEVICES = 32
"""As resource/v1 limits the results of an allocation (AllocationResultsMaxSize)."""
_POD_GROUPS = ("scheduling.k8s.io", "podgroups")


def node(found: Mapping[str, Any]) -> Node:
    """One node, with all of its labels and HAMi's annotation. Raises Unreadable without a uid or name."""
    root = ObjectPart(found)
    who = meta(root, _ANNOTATIONS)
    spec, status = root.part("spec"), root.part("status")

    def flaw(label: str, found: object, allowed: str) -> None:
        root.flaw(f"metadata.labels.{label}", found, allowed)

    capacity = shared(status.amounts("capacity"))
    gpus, place = gpu_labels(who.labels, flaw, capacity), node_place(who.labels, flaw)
    split, model = _split_gpus(root, who.annotations.get(SPLIT_GPUS, ""))
    tenants = {each.tenants for each in split}
    of_split = {_GPU: max(tenants)} if len(tenants) == 1 and max(tenants) > 1 else {}
    found_conditions = conditions(status)
    ready = found_conditions.get("Ready")
    return Node(
        meta=who,
        capacity=capacity,
        allocatable=shared(status.amounts("allocatable")),
        is_ready=ready is not None and ready.status is True,
        ready_since_ms=ready.since_ms if ready is not None and ready.status is True else None,
        is_cordoned=spec.flag("unschedulable"),
        product=gpus.product or model,
        instance_type=place.instance_type,
        capacity_type=place.capacity_type,
        region=place.region,
        zone=place.zone,
        pool=place.pool,
        boards=len(split) or gpus.boards,
        expected={_GPU: sum(each.tenants for each in split)} if split else gpus.expected,
        replicas=of_split if split else gpus.replicas,
        taints=tuple(_taints(spec)),
        flaws=tuple(root.flaws),
        split_gpus=split,
        drain=next((each for each in CLOSING_CONDITIONS if is_true(found_conditions, each)), ""),
        provider_id=spec.text("providerID"),
        maintenance=next((each for each in MAINTENANCE_CONDITIONS if is_true(found_conditions, each)), ""),
    )


def _split_gpus(root: ObjectPart, text: str) -> tuple[tuple[SplitGpu, ...], str]:
    """Those of HAMi's annotation, and their model where all have one; none, with a flaw, where any of it is
    not valid: a part would mislead."""
    if not text:
        return (), ""
    allowed = f"a JSON list of at most {_MOST_GPUS} GPUs with id, count and devmem"
    try:
        listed = json.loads(text)
        found = [SplitGpu(str(each["id"]), int(each["devmem"]), int(each["count"])) for each in listed]
        models = {str(each.get("type", "")).removeprefix("NVIDIA-") for each in listed}
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        found, models = [], set()
    is_valid = all(each.uuid and each.memory_mib > 0 and each.tenants > 0 for each in found)
    if not found or not is_valid or len(found) > _MOST_GPUS:
        root.flaw(f"metadata.annotations.{SPLIT_GPUS}", text, allowed)
        return (), ""
    return tuple(found), models.pop() if len(models) == 1 else ""


def resource_slice(found: Mapping[str, Any]) -> ResourceSlice:
    """Raises Unreadable for an object without a uid or a name.

    A slice whose devices name their node one by one (``perDeviceNodeSelection``) has no node here.
    """
    part = ObjectPart(found)
    identity, spec = meta(part, frozenset()), part.part("spec")
    driver, pool = spec.text("driver"), spec.part("pool")
    return ResourceSlice(
        identity,
        driver,
        pool.text("name"),
        pool.count("generation"),
        spec.text("nodeName"),
        tuple(_devices(spec, driver)),
        tuple(part.flaws),
    )


def device_taint_rule(found: Mapping[str, Any]) -> DeviceTaintRule:
    """Raises Unreadable for an object without a uid or a name."""
    part = ObjectPart(found)
    identity, spec = meta(part, frozenset()), part.part("spec")
    selector, taint = spec.part("deviceSelector"), spec.part("taint")
    return DeviceTaintRule(
        identity,
        _taint(taint),
        "deviceSelector" in spec,
        selector.text("driver"),
        selector.text("pool"),
        selector.text("device"),
        tuple(part.flaws),
    )


def compute_domain(found: Mapping[str, Any]) -> ComputeDomain:
    """Raises Unreadable for an object without a uid or a name.

    ``spec.numNodes`` is not read: it is deprecated, and no pod waits for it (NVIDIA/k8s-dra-driver-gpu,
    api/nvidia.com/resource/v1beta1/computedomain.go).
    """
    part = ObjectPart(found)
    identity = meta(part, frozenset())
    template = part.part("spec").part("channel").part("resourceClaimTemplate")
    return ComputeDomain(identity, template.text("name"), tuple(part.flaws))


def resource_claim(found: Mapping[str, Any]) -> ResourceClaim:
    """Raises Unreadable for an object without a uid or a name.

    Pods and PodGroups of ``scheduling.k8s.io`` are read from ``reservedFor``, no other consumers.
    """
    part = ObjectPart(found)
    identity, status = meta(part, frozenset()), part.part("status")
    given = status.part("allocation").part("devices").parts("results")
    results = [each for each in given if not each.flag("adminAccess")]
    reserved = [
        ((each.text("apiGroup"), each.text("resource")), each.text("uid"))
        for each in status.parts("reservedFor")
    ]
    pods = tuple(uid for kind, uid in reserved if uid and kind == ("", "pods"))
    groups = tuple(uid for kind, uid in reserved if uid and kind == _POD_GROUPS)
    devices = tuple(dict.fromkeys(map(_device_id, results)))
    shares = tuple(_share(each) for each in results if each.text("shareID"))
    wanted = part.part("spec").part("devices").parts("requests")
    requests = tuple(_request(each) for each in wanted if not _exactly(each).flag("adminAccess"))
    named = tuple((_device_id(each), name) for each in results if (name := each.text("request")))
    return ResourceClaim(identity, devices, pods, tuple(part.flaws), requests, shares, groups, named)


def _exactly(request: ObjectPart) -> ObjectPart:
    """v1beta1 has the fields of ``exactly`` in the request itself."""
    return request.part("exactly") if "exactly" in request else request


def _request(request: ObjectPart) -> DeviceRequest:
    """With ``firstAvailable`` it is unknown which request it will be."""
    exactly = _exactly(request)
    if "firstAvailable" in request or exactly.text("allocationMode") not in ("", "ExactCount"):
        return DeviceRequest(exactly.text("deviceClassName"), None)
    count = exactly.count("count", 1)
    if count > MOST_DEVICES:
        exactly.flaw("count", count, f"at most {MOST_DEVICES}, as many devices as a claim can be given")
        return DeviceRequest(exactly.text("deviceClassName"), None)
    return DeviceRequest(exactly.text("deviceClassName"), count)


def _device_id(result: ObjectPart) -> DeviceId:
    return DeviceId(result.text("driver"), result.text("pool"), result.text("device"))


def _share(result: ObjectPart) -> DeviceShare:
    """Capacities are named as the device has them: qualified by a domain that is not its driver's."""
    device = _device_id(result)
    return DeviceShare(
        device, result.text("shareID"), _unqualified(result.exact_amounts("consumedCapacity"), device.driver)
    )


def _unqualified(amounts: Mapping[str, Fraction], driver: str) -> dict[str, Fraction]:
    return {name.removeprefix(f"{driver}/"): amount for name, amount in amounts.items()}


def _devices(spec: ObjectPart, driver: str) -> Iterator[PublishedDevice]:
    for listed in spec.parts("devices"):
        name = listed.text("name")
        device = listed.part("basic") if "basic" in listed else listed
        attributes = dict(_attributes(device.part("attributes"), f"{driver}/"))
        counters = (each.text("counterSet") for each in device.parts("consumesCounters"))
        if name:
            yield PublishedDevice(
                name,
                attributes,
                dict(_capacity(device.part("capacity"), f"{driver}/")),
                tuple(sorted(filter(None, counters))),
                tuple(_taints(device)),
            )


def _capacity(capacity: ObjectPart, domain: str) -> Iterator[tuple[str, Fraction]]:
    for name in capacity:
        found = capacity.part(name)
        amount = found.exact_amount("value", "", found.raw("value")) if "value" in found else None
        if amount is not None:
            yield name.removeprefix(domain), amount


def _taints(part: ObjectPart) -> Iterator[Taint]:
    for each in part.parts("taints"):
        yield _taint(each)


def _taint(part: ObjectPart) -> Taint:
    return Taint(part.text("key"), part.text("value"), part.text("effect"))


def _attributes(attributes: ObjectPart, domain: str) -> Iterator[tuple[str, str]]:
    """Text, numbers, flags and versions as text; lists, which later versions have, are left out."""
    for name in attributes:
        value = attributes.part(name)
        short = name.removeprefix(domain)
        if "string" in value or "version" in value:
            text = value.text("string") or value.text("version")
        elif "int" in value:
            number = value.whole("int")
            text = "" if number is None else str(number)
        elif "bool" in value:
            text = "true" if value.flag("bool") else "false"
        else:
            continue
        yield short, text
