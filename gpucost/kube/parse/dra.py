"""ResourceSlices and ResourceClaims of ``resource.k8s.io``: v1, v1beta2, and v1beta1 with its ``basic``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from gpucost.cluster.devices import COUNTER_SET
from gpucost.cluster.dra import Device, DeviceId, DeviceRequest, ResourceClaim, ResourceSlice
from gpucost.kube.parse.reading import Part, meta


def resource_slice(found: Mapping[str, Any]) -> ResourceSlice:
    """Raises Unreadable for an object without a uid or a name.

    A slice whose devices name their node one by one (``perDeviceNodeSelection``) has no node here.
    """
    part = Part(found)
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


def resource_claim(found: Mapping[str, Any]) -> ResourceClaim:
    """Raises Unreadable for an object without a uid or a name.

    Only pods are read from ``reservedFor``; it may name other consumers, such as PodGroups.
    """
    part = Part(found)
    identity, status = meta(part, frozenset()), part.part("status")
    results = status.part("allocation").part("devices").parts("results")
    reserved = tuple(
        each.text("uid")
        for each in status.parts("reservedFor")
        if each.text("resource") == "pods" and not each.text("apiGroup") and each.text("uid")
    )
    devices = tuple(_device_id(each) for each in results if not each.flag("adminAccess"))
    wanted = part.part("spec").part("devices").parts("requests")
    requests = tuple(_request(each) for each in wanted if not _exactly(each).flag("adminAccess"))
    return ResourceClaim(identity, devices, reserved, tuple(part.flaws), requests)


def _exactly(request: Part) -> Part:
    """v1beta1 has the fields of ``exactly`` in the request itself."""
    return request.part("exactly") if "exactly" in request else request


def _request(request: Part) -> DeviceRequest:
    """Of ``firstAvailable`` nobody knows which it will be."""
    exactly = _exactly(request)
    if "firstAvailable" in request or exactly.text("allocationMode") not in ("", "ExactCount"):
        return DeviceRequest(exactly.text("deviceClassName"), None)
    return DeviceRequest(exactly.text("deviceClassName"), exactly.count("count", 1))


def _device_id(result: Part) -> DeviceId:
    return DeviceId(result.text("driver"), result.text("pool"), result.text("device"))


def _devices(spec: Part, driver: str) -> Iterator[Device]:
    for listed in spec.parts("devices"):
        name = listed.text("name")
        device = listed.part("basic") if "basic" in listed else listed
        attributes = dict(_attributes(device.part("attributes"), f"{driver}/"))
        for consumed in device.parts("consumesCounters")[:1]:
            attributes[COUNTER_SET] = consumed.text("counterSet")
        if name:
            yield Device(name, attributes)


def _attributes(attributes: Part, domain: str) -> Iterator[tuple[str, str]]:
    """Text of text, numbers, flags and versions; lists, which later versions have, are left out."""
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
