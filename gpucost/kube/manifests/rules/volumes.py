"""Volumes and their mounts (pkg/apis/core/validation: ValidateVolumes, ValidateVolumeMounts), and fields of
the pod that it can read in variables and files (validateObjectFieldSelector,
validateContainerResourceFieldSelector)."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping

from gpucost.cluster.objects.metadata import signed_quantity
from gpucost.kube.manifests.rules.names import (
    BOTH,
    LABEL_RULE,
    LONGEST_LABEL,
    QUALIFIED_RULE,
    SET,
    SUBDOMAIN_RULE,
    check_annotations,
    check_labels,
    check_name,
    check_one_of,
    check_range,
    check_required,
    check_selector,
    is_dns_label,
    is_qualified,
    is_subdomain,
)
from gpucost.kube.parse.fields import ObjectPart

_IN_FILES = (
    *("metadata.name", "metadata.namespace", "metadata.labels", "metadata.annotations", "metadata.uid"),
)
_IN_VARIABLES = (
    *("metadata.name", "metadata.namespace", "metadata.uid", "spec.nodeName", "spec.serviceAccountName"),
    *("status.hostIP", "status.hostIPs", "status.podIP", "status.podIPs"),
)
_RESOURCES = tuple(
    f"{which}.{name}" for which in ("limits", "requests") for name in ("cpu", "memory", "ephemeral-storage")
)
_HUGE = ("limits.hugepages-", "requests.hugepages-")
_ONE = re.compile(r"(metadata\.(?:labels|annotations))\['(.*)'\]")
_SIZES = frozenset(
    signed_quantity(f"1{suffix}") for suffix in ("", *"kMGTPE", *(f"{each}i" for each in "KMGTPE"))
)
_CPU = frozenset((signed_quantity("1"), signed_quantity("1m")))


def check_field(reference: ObjectPart, in_volume: bool = False) -> None:
    """A field of the pod."""
    version, path = reference.text("apiVersion", "v1") or "v1", reference.text("fieldPath")
    allowed = _IN_FILES if in_volume else _IN_VARIABLES
    if version != "v1":
        reference.flaw("apiVersion", version, "v1")
    elif not path:
        reference.flaw("fieldPath", None, "a field of the pod")
    elif one := _ONE.fullmatch(path):
        key = one[2].lower() if one[1].endswith("annotations") else one[2]
        if not is_qualified(key):
            reference.flaw("fieldPath", path, QUALIFIED_RULE)
    elif path not in allowed:
        reference.flaw("fieldPath", path, f"supported values: {', '.join(allowed)}")


def check_resource_field(reference: ObjectPart, in_volume: bool = False) -> None:
    """A resource of a container."""
    resource, divisor = reference.text("resource"), reference.text("divisor")
    if in_volume and not reference.text("containerName"):
        reference.flaw("containerName", None, "the name of a container")
    elif resource not in _RESOURCES and not resource.startswith(_HUGE):
        reference.flaw("resource", resource or None, f"supported values: {', '.join(_RESOURCES)}")
    if divisor and (amount := signed_quantity(divisor)):
        right = _CPU if resource.endswith(".cpu") else _SIZES
        if amount not in right and (resource in _RESOURCES or resource.startswith(_HUGE)):
            allowed = (
                "1m or 1" if right is _CPU else "1, 1k, 1M, 1G, 1T, 1P, 1E, 1Ki, 1Mi, 1Gi, 1Ti, 1Pi or 1Ei"
            )
            reference.flaw("divisor", divisor, allowed)


PULL_POLICIES = ("Always", "IfNotPresent", "Never")
_HIGHEST_MODE = 0o777
_MODE_RULE = "between 0 and 0777 (octal), both inclusive"
_HOST_PATHS = (
    *("", "DirectoryOrCreate", "Directory", "FileOrCreate", "File", "Socket", "CharDevice", "BlockDevice"),
)
_NEEDED: Mapping[str, tuple[str, ...]] = {
    "awsElasticBlockStore": ("volumeID",),
    "azureDisk": ("diskName", "diskURI"),
    "azureFile": ("secretName", "shareName"),
    "cephfs": (),
    "cinder": ("volumeID",),
    "configMap": ("name",),
    "flexVolume": ("driver",),
    "gcePersistentDisk": ("pdName",),
    "gitRepo": ("repository",),
    "glusterfs": ("endpoints", "path"),
    "hostPath": ("path",),
    "iscsi": ("targetPortal", "iqn"),
    "nfs": ("server", "path"),
    "persistentVolumeClaim": ("claimName",),
    "photonPersistentDisk": ("pdID",),
    "portworxVolume": ("volumeID",),
    "quobyte": ("registry", "volume"),
    "rbd": ("image",),
    "scaleIO": ("gateway", "system", "volumeName"),
    "secret": ("secretName",),
    "vsphereVolume": ("volumePath",),
}
"""Text that a source must have, by source."""
_KEY_TYPES = ("RSA3072", "RSA4096", "ECDSAP256", "ECDSAP384", "ECDSAP521", "ED25519")
_ACCESS_MODES = ("ReadOnlyMany", "ReadWriteMany", "ReadWriteOnce", "ReadWriteOncePod")
_CLAIMS = ("persistentVolumeClaim", "ephemeral")
_RECURSIVE = ("Disabled", "IfPossible", "Enabled")


def check_volumes(spec: ObjectPart, is_pod: bool) -> Mapping[str, ObjectPart]:
    """The volumes of a pod spec; returns the valid ones by name."""
    found: dict[str, ObjectPart] = {}
    for volume in spec.parts("volumes"):
        before = len(volume.flaws)
        _check_source(volume, is_pod)
        name = volume.text("name")
        check_name(volume, "name", is_dns_label, LABEL_RULE, is_required=True)
        if name in found:
            volume.flaw("name", name, "each name once")
        if len(volume.flaws) == before:
            found[name] = volume
    return found


def _check_source(volume: ObjectPart, is_pod: bool) -> None:
    """A volume without a source is an empty directory."""
    sources = [key for key in volume if key != "name" and key in volume]
    for more in sources[1:]:
        volume.flaw(more, SET, "one volume type only")
    for key in sources[:1]:
        source = volume.part(key)
        check_required(source, *_NEEDED.get(key, ()))
        check_mode(source, "defaultMode")
        check = _SOURCES.get(key)
        if check is not None:
            check(source)
        if key == "image":
            if is_pod:
                check_required(source, "reference")
            check_one_of(source, "pullPolicy", PULL_POLICIES)


def check_mode(part: ObjectPart, key: str) -> None:
    mode = part.whole(key)
    if mode is not None and not 0 <= mode <= _HIGHEST_MODE:
        part.flaw(key, mode, _MODE_RULE)


def check_descending(part: ObjectPart, key: str, is_local: bool = False) -> None:
    """A relative path that does not lead upwards; with ``is_local`` neither does its first name."""
    path = part.text(key)
    if path.startswith("/"):
        part.flaw(key, path, "a relative path")
    if ".." in path.split("/"):
        part.flaw(key, path, "a path without '..'")
    elif is_local and path.startswith(".."):
        part.flaw(key, path, "a path that does not start with '..'")


def _host_path(source: ObjectPart) -> None:
    if ".." in source.text("path").split("/"):
        source.flaw("path", source.text("path"), "a path without '..'")
    if source.text("type") not in _HOST_PATHS:
        check_one_of(source, "type", _HOST_PATHS)


def _git_repo(source: ObjectPart) -> None:
    check_descending(source, "directory")


def _nfs(source: ObjectPart) -> None:
    if source.text("path") and not source.text("path").startswith("/"):
        source.flaw("path", source.text("path"), "an absolute path")


def _partition(source: ObjectPart) -> None:
    check_range(source, "partition", 0, 255)


def _iscsi(source: ObjectPart) -> None:
    iqn = source.text("iqn")
    if iqn and not iqn.startswith(("iqn", "eui", "naa")):
        source.flaw("iqn", iqn, "a name that begins with iqn, eui or naa")
    check_range(source, "lun", 0, 255)
    has_chap = source.flag("chapAuthDiscovery") or source.flag("chapAuthSession")
    if has_chap and "secretRef" not in source:
        source.flaw("secretRef", None, "a secret for CHAP")


def _fc(source: ObjectPart) -> None:
    names, wide = source.texts("targetWWNs"), source.texts("wwids")
    if bool(names) == bool(wide):
        source.flaw("targetWWNs", list(names) or None, "either targetWWNs or wwids")
    elif names:
        if source.whole("lun") is None:
            source.flaw("lun", None, "a number, with targetWWNs")
        check_range(source, "lun", 0, 255)


def _monitors(source: ObjectPart) -> None:
    if not source.texts("monitors"):
        source.flaw("monitors", None, "at least one")


def _flocker(source: ObjectPart) -> None:
    name, uuid = source.text("datasetName"), source.text("datasetUUID")
    if bool(name) == bool(uuid):
        source.flaw("datasetName", name or None, "one of datasetName and datasetUUID")
    if "/" in name:
        source.flaw("datasetName", name, "a name without '/'")


def _azure_disk(source: ObjectPart) -> None:
    check_one_of(source, "cachingMode", ("None", "ReadOnly", "ReadWrite"))
    check_one_of(source, "kind", ("Shared", "Dedicated", "Managed"))
    uri, is_managed = source.text("diskURI"), source.text("kind") == "Managed"
    if uri and is_managed and not uri.startswith("/subscriptions/"):
        source.flaw("diskURI", uri, "/subscriptions/…, where the kind is Managed")
    elif uri and not is_managed and not uri.startswith("https://"):
        source.flaw("diskURI", uri, "https://…, where the kind is not Managed")


def _scale_io(source: ObjectPart) -> None:
    if "secretRef" not in source:
        source.flaw("secretRef", None, "a secret")


def _empty_dir(source: ObjectPart) -> None:
    limit = source.text("sizeLimit")
    if limit and signed_quantity(limit) < 0:
        source.flaw("sizeLimit", limit, "a valid resource quantity, not negative")


def _csi(source: ObjectPart) -> None:
    driver = source.text("driver")
    if not driver or len(driver) > LONGEST_LABEL or not is_subdomain(driver.lower()):
        source.flaw("driver", driver or None, f"a DNS subdomain of at most {LONGEST_LABEL}")
    if "nodePublishSecretRef" in source:
        check_name(
            source.part("nodePublishSecretRef"), "name", is_subdomain, SUBDOMAIN_RULE, is_required=True
        )


def _ephemeral(source: ObjectPart) -> None:
    if "volumeClaimTemplate" not in source:
        source.flaw("volumeClaimTemplate", None, "a template of a claim")
        return
    template = source.part("volumeClaimTemplate")
    check_labels(template.part("metadata"), "labels")
    check_annotations(template.part("metadata"), "annotations")
    check_claim(template.part("spec"))


def check_claim(spec: ObjectPart) -> None:
    """The spec of a claim of storage (ValidatePersistentVolumeClaimSpec)."""
    modes = spec.texts("accessModes")
    if not modes:
        spec.flaw("accessModes", None, "at least 1 access mode")
    for index, mode in enumerate(modes):
        if mode not in _ACCESS_MODES:
            spec.flaw(f"accessModes[{index}]", mode, f"supported values: {', '.join(_ACCESS_MODES)}")
    if "ReadWriteOncePod" in modes and len(modes) > 1:
        spec.flaw("accessModes", list(modes), "ReadWriteOncePod alone")
    check_selector(spec, "selector")
    storage = spec.part("resources").labels("requests").get("storage", "")
    if not storage or signed_quantity(storage) <= 0:
        spec.flaw("resources.requests[storage]", storage or None, "greater than zero")
    check_name(spec, "storageClassName", is_subdomain, SUBDOMAIN_RULE)
    check_one_of(spec, "volumeMode", ("Block", "Filesystem"))


def _items(source: ObjectPart) -> None:
    for item in source.parts("items"):
        check_required(item, "key", "path")
        check_descending(item, "path", is_local=True)
        check_mode(item, "mode")


def _downward(source: ObjectPart) -> None:
    for file in source.parts("items"):
        check_required(file, "path")
        check_descending(file, "path", is_local=True)
        check_mode(file, "mode")
        has_field, has_resource = "fieldRef" in file, "resourceFieldRef" in file
        if has_field == has_resource:
            file.flaw("", BOTH if has_field else None, "one of fieldRef and resourceFieldRef")
        elif has_field:
            check_field(file.part("fieldRef"), in_volume=True)
        else:
            check_resource_field(file.part("resourceFieldRef"), in_volume=True)


def _projected(source: ObjectPart) -> None:
    paths: set[str] = set()
    for each in source.parts("sources"):
        kinds = [key for key in each if key in each]
        if len(kinds) > 1:
            each.flaw("", kinds, "one volume type per source")
        for key in kinds:
            inner = each.part(key)
            _PROJECTED.get(key, _nothing)(inner)
            for path in _paths(inner, key):
                if path in paths:
                    source.flaw("sources", path, "each path once")
                paths.add(path)


def _paths(inner: ObjectPart, key: str) -> Iterable[str]:
    if key == "clusterTrustBundle":
        return (inner.text("path"),)
    if key == "podCertificate":
        return filter(None, map(inner.text, ("credentialBundlePath", "keyPath", "certificateChainPath")))
    return filter(None, (item.text("path") for item in inner.parts("items")))


def _nothing(_: ObjectPart) -> None:
    """For kinds without rules."""


def _named_items(source: ObjectPart) -> None:
    check_required(source, "name")
    _items(source)


def _token(source: ObjectPart) -> None:
    seconds = source.whole("expirationSeconds")
    if seconds is not None and not 600 <= seconds <= 1 << 32:
        source.flaw("expirationSeconds", seconds, "between 10 minutes and 2^32 seconds")
    check_required(source, "path")
    check_descending(source, "path", is_local=True)


def _trust_bundle(source: ObjectPart) -> None:
    has_name, has_signer = "name" in source, "signerName" in source
    if has_name == has_signer:
        source.flaw("", BOTH if has_name else None, "either name or signerName")
    elif has_name and "labelSelector" in source:
        source.flaw("labelSelector", SET, "none, where name is specified")
    check_selector(source, "labelSelector")
    check_required(source, "path")
    check_descending(source, "path", is_local=True)


def _certificate(source: ObjectPart) -> None:
    check_required(source, "signerName")
    check_one_of(source, "keyType", _KEY_TYPES, is_required=True)
    check_range(source, "maxExpirationSeconds", 3600)
    keys = ("credentialBundlePath", "keyPath", "certificateChainPath")
    if not any(map(source.text, keys)):
        source.flaw("", None, f"at least one of {', '.join(keys)}")
    for key in keys:
        check_descending(source, key, is_local=True)


_PROJECTED: Mapping[str, Callable[[ObjectPart], None]] = {
    "secret": _named_items,
    "configMap": _named_items,
    "downwardAPI": _downward,
    "serviceAccountToken": _token,
    "clusterTrustBundle": _trust_bundle,
    "podCertificate": _certificate,
}
_SOURCES: Mapping[str, Callable[[ObjectPart], None]] = {
    "awsElasticBlockStore": _partition,
    "azureDisk": _azure_disk,
    "cephfs": _monitors,
    "configMap": _items,
    "csi": _csi,
    "downwardAPI": _downward,
    "emptyDir": _empty_dir,
    "ephemeral": _ephemeral,
    "fc": _fc,
    "flocker": _flocker,
    "gcePersistentDisk": _partition,
    "gitRepo": _git_repo,
    "hostPath": _host_path,
    "iscsi": _iscsi,
    "nfs": _nfs,
    "projected": _projected,
    "rbd": _monitors,
    "scaleIO": _scale_io,
    "secret": _items,
}


def check_mounts(container: ObjectPart, volumes: Mapping[str, ObjectPart] | None) -> None:
    """``volumes`` are those of the pod; None where its kind adds volumes that are not known."""
    devices = {each.text("name"): each.text("devicePath") for each in container.parts("volumeDevices")}
    paths: set[str] = set()
    for mount in container.parts("volumeMounts"):
        name, path = mount.text("name"), mount.text("mountPath")
        check_required(mount, "mountPath")
        if not name or (volumes is not None and name not in volumes):
            mount.flaw("name", name or None, "the name of a volume in spec.volumes")
        if path in paths or path in devices.values():
            mount.flaw("mountPath", path, "each path once")
        if name in devices:
            mount.flaw("name", name, "a volume that is not in volumeDevices")
        paths.add(path)
        _check_mount(mount, container)
    mounts = {each.text("name"): each.text("mountPath") for each in container.parts("volumeMounts")}
    _check_devices(container, mounts, volumes)


def _check_mount(mount: ObjectPart, container: ObjectPart) -> None:
    if mount.text("subPathExpr") and mount.text("subPath"):
        mount.flaw("subPathExpr", mount.text("subPathExpr"), "subPath or subPathExpr, not both")
    check_descending(mount, "subPath")
    check_descending(mount, "subPathExpr")
    propagation = mount.text("mountPropagation")
    check_one_of(mount, "mountPropagation", ("Bidirectional", "HostToContainer", "None"))
    if propagation == "Bidirectional" and not container.part("securityContext").flag("privileged"):
        mount.flaw("mountPropagation", propagation, "Bidirectional in privileged containers only")
    recursive = mount.text("recursiveReadOnly")
    check_one_of(mount, "recursiveReadOnly", _RECURSIVE)
    if recursive in _RECURSIVE[1:]:
        if not mount.flag("readOnly"):
            mount.flaw("recursiveReadOnly", recursive, "Disabled, unless readOnly is true")
        if propagation not in ("", "None"):
            mount.flaw("recursiveReadOnly", recursive, "Disabled, unless mountPropagation is None")


def _check_devices(
    container: ObjectPart, mounts: Mapping[str, str], volumes: Mapping[str, ObjectPart] | None
) -> None:
    names: set[str] = set()
    paths: set[str] = set()
    for device in container.parts("volumeDevices"):
        name, path = device.text("name"), device.text("devicePath")
        check_required(device, "name", "devicePath")
        volume = None if volumes is None else volumes.get(name)
        if volumes is not None and (volume is None or not any(key in volume for key in _CLAIMS)):
            device.flaw("name", name, "a volume of a claim, in spec.volumes")
        if name in names or name in mounts:
            device.flaw("name", name, "each name once, and not in volumeMounts")
        if path in paths or path in mounts.values():
            device.flaw("devicePath", path, "each path once, and not in volumeMounts")
        if ".." in path.split("/"):
            device.flaw("devicePath", path, "a path without '..'")
        names.add(name)
        paths.add(path)
