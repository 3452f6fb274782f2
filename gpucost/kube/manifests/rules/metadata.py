"""Names, labels and owners of objects (apimachinery v0.36.3, pkg/api/validation/objectmeta.go)."""

from __future__ import annotations

from gpucost.kube.manifests.rules.names import (
    LABEL_RULE,
    QUALIFIED_RULE,
    SUBDOMAIN_RULE,
    check_annotations,
    check_labels,
    check_required,
    is_dns_label,
    is_qualified,
    is_subdomain,
)
from gpucost.kube.parse.reading import Part

GENERATED = "xxxxx"
"""In the place of what the API server makes up after generateName."""
_LONGEST_PREFIX = 58
_FINALIZERS = ("kubernetes", "orphan", "foregroundDeletion")


def name_of(metadata: Part) -> str:
    """The name that an object will have; empty where it says none."""
    prefix = metadata.text("generateName")[:_LONGEST_PREFIX]
    return metadata.text("name") or (f"{prefix}{GENERATED}" if prefix else "")


def check_metadata(root: Part, is_label: bool = False) -> str:
    """The name that it will have. With ``is_label`` names of the kind are labels of DNS."""
    metadata = root.part("metadata")
    name = name_of(metadata)
    is_right, rule = (is_dns_label, LABEL_RULE) if is_label else (is_subdomain, SUBDOMAIN_RULE)
    if not name:
        metadata.flaw("name", None, "a name, or generateName")
    elif metadata.text("name") and not is_right(name):
        metadata.flaw("name", name, rule)
    prefix = metadata.text("generateName")
    if prefix and not is_right(f"{prefix[:-1]}a" if prefix.endswith("-") else prefix):
        metadata.flaw("generateName", prefix, rule)
    namespace = metadata.text("namespace")
    if namespace and not is_dns_label(namespace):
        metadata.flaw("namespace", namespace, LABEL_RULE)
    check_labels(metadata, "labels")
    check_annotations(metadata, "annotations")
    for index, finalizer in enumerate(metadata.texts("finalizers")):
        if not is_qualified(finalizer) or ("/" not in finalizer and finalizer not in _FINALIZERS):
            metadata.flaw(f"finalizers[{index}]", finalizer, f"{', '.join(_FINALIZERS)}, or {QUALIFIED_RULE}")
    for owner in metadata.parts("ownerReferences"):
        check_required(owner, "apiVersion", "kind", "name", "uid")
    return name
