"""Forms of names, labels, selectors and metadata (apimachinery v0.36.3: pkg/util/validation/validation.go,
pkg/api/validate, pkg/api/validation/objectmeta.go, and pkg/apis/meta/v1/validation: ValidateLabelSelector).
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Iterable, Mapping

from gpucost.domain.errors import ErrorRemark
from gpucost.kube.parse.fields import ObjectPart

_LABEL = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_QUALIFIED = re.compile("([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]")
_VALUE = re.compile("(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?")
_DNS_LABEL = re.compile(_LABEL)
_SUBDOMAIN = re.compile(rf"{_LABEL}(\.{_LABEL})*")
_SEARCH = re.compile(r"[a-z0-9_]([-_a-z0-9]*[a-z0-9])?(\.[a-z0-9_]([-_a-z0-9]*[a-z0-9])?)*")
_VARIABLE = re.compile("[ -<>-~]+")
_KEY = re.compile("[-._a-zA-Z0-9]+")
_PORT = re.compile("(?=.*[a-z])(?!.*--)[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_PATH = re.compile(r"[A-Za-z0-9/\-._~%!$&'()*+,;=:]+")
_HEADER = re.compile("[-A-Za-z0-9]+")
LONGEST_NAME, LONGEST_LABEL = 253, 63
SET, BOTH = ErrorRemark("set"), ErrorRemark("both")
"""The message for fields that must not be set."""

LABEL_RULE = "lower-case letters, digits and -, with a letter or digit at both ends, at most 63"
SUBDOMAIN_RULE = (
    f"lower-case letters, digits, - and . with a letter or digit at both ends, at most {LONGEST_NAME}"
)
VALUE_RULE = "letters, digits, -, _ and . with a letter or digit at both ends, at most 63"
QUALIFIED_RULE = (
    "a name of letters, digits, -, _ and . (at most 63), after a DNS subdomain and / if it has a prefix"
)
VARIABLE_RULE = "printable ASCII characters other than ="
KEY_RULE = "letters, digits, -, _ and ., at most 253, neither . nor beginning with .."
PORT_RULE = "1 to 15 of lower-case letters, digits and single -, with a letter and no - at the ends"
HEADER_RULE = "letters, digits and -"


def is_dns_label(text: str) -> bool:
    """RFC 1123, as for a container's name."""
    return len(text) <= LONGEST_LABEL and _DNS_LABEL.fullmatch(text) is not None


def is_subdomain(text: str) -> bool:
    """RFC 1123, as for most objects' names."""
    return len(text) <= LONGEST_NAME and _SUBDOMAIN.fullmatch(text) is not None


def is_search_domain(text: str) -> bool:
    return len(text) <= LONGEST_NAME and _SEARCH.fullmatch(text) is not None


def is_label_value(text: str) -> bool:
    return len(text) <= LONGEST_LABEL and _VALUE.fullmatch(text) is not None


def is_qualified(text: str) -> bool:
    """``name`` or ``prefix/name``, as for the keys of labels and names of resources."""
    prefix, slash, name = text.rpartition("/")
    return (
        len(name) <= LONGEST_LABEL
        and _QUALIFIED.fullmatch(name) is not None
        and (not slash or is_subdomain(prefix))
    )


def is_variable(text: str) -> bool:
    """A name of an environment variable: since 1.34 anything that is printable."""
    return _VARIABLE.fullmatch(text) is not None


def is_key(text: str) -> bool:
    """A key of a ConfigMap or a Secret."""
    return (
        len(text) <= LONGEST_NAME
        and _KEY.fullmatch(text) is not None
        and text != "."
        and not text.startswith("..")
    )


def is_port_name(text: str) -> bool:
    return len(text) <= 15 and _PORT.fullmatch(text) is not None


def is_header(text: str) -> bool:
    return _HEADER.fullmatch(text) is not None


def is_domain_path(text: str) -> bool:
    """``domain/path``, as for the manager of a Job."""
    domain, slash, path = text.partition("/")
    return bool(slash) and is_subdomain(domain) and _PATH.fullmatch(path) is not None


def is_address(text: str) -> bool:
    """IPv4 or IPv6; numbers of IPv4 may begin with zeros, as in all older fields."""
    four = text.split(".")
    if len(four) == 4:
        return all(each.isascii() and each.isdigit() and int(each[-9:]) < 256 for each in four)
    try:
        ipaddress.IPv6Address(text)
    except ValueError:
        return False
    return "%" not in text


def check_name(
    part: ObjectPart, key: str, is_right: Callable[[str], bool], rule: str, is_required: bool = False
) -> bool:
    """Whether it is a valid name; a flaw where it is not, and where it is missing and required."""
    found = part.text(key)
    if found and is_right(found):
        return True
    if found or is_required:
        part.flaw(key, found or None, rule)
    return False


def check_labels(part: ObjectPart, key: str) -> None:
    """A mapping of labels."""
    for name, value in part.labels(key).items():
        if not is_qualified(name):
            part.flaw(f"{key}[{name}]", name, QUALIFIED_RULE)
        if not is_label_value(value):
            part.flaw(f"{key}[{name}]", value, VALUE_RULE)


def check_annotations(part: ObjectPart, key: str) -> None:
    """Names as those of labels in lower case; 256 KiB for all together."""
    found: Mapping[str, str] = part.labels(key)
    for name in found:
        if not is_qualified(name.lower()):
            part.flaw(f"{key}[{name}]", name, QUALIFIED_RULE)
    size = sum(len(name.encode()) + len(value.encode()) for name, value in found.items())
    if size > _MOST_ANNOTATIONS:
        part.flaw(key, ErrorRemark(f"{size:,} bytes"), f"at most {_MOST_ANNOTATIONS:,} bytes")


_MOST_ANNOTATIONS = 256 << 10


def check_one_of(part: ObjectPart, key: str, allowed: Iterable[str], is_required: bool = False) -> None:
    """Text that must be one of the given values, where it is present."""
    found = part.text(key)
    if found not in allowed and (found or is_required or key in part):
        part.flaw(
            key, found or None, "supported values: " + ", ".join(f'"{each}"' for each in sorted(allowed))
        )


def check_required(part: ObjectPart, *keys: str) -> None:
    """Text that must not be empty."""
    for key in keys:
        if not part.text(key):
            part.flaw(key, None, "a value: it is required")


def check_range(part: ObjectPart, key: str, least: int, most: int | None = None) -> None:
    """A whole number, where it is present."""
    found = part.whole(key)
    if found is not None and (found < least or (most is not None and found > most)):
        allowed = f"greater than or equal to {least}" if most is None else f"between {least} and {most}"
        part.flaw(key, found, f"{allowed}, inclusive" if most is not None else allowed)


GENERATED = "xxxxx"
"""In place of the suffix that the API server generates after generateName."""
_LONGEST_PREFIX = 58
_FINALIZERS = ("kubernetes", "orphan", "foregroundDeletion")


def name_of(metadata: ObjectPart) -> str:
    """The name that an object will have; empty where it has none."""
    prefix = metadata.text("generateName")[:_LONGEST_PREFIX]
    return metadata.text("name") or (f"{prefix}{GENERATED}" if prefix else "")


def check_metadata(root: ObjectPart, is_label: bool = False) -> str:
    """Checks the metadata and returns the name that it will have. With ``is_label`` names of the kind are DNS
    labels."""
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


LISTED, BARE = ("In", "NotIn"), ("Exists", "DoesNotExist")


def check_selector(part: ObjectPart, key: str) -> None:
    """A selector, where it is present."""
    selector = part.part(key)
    check_labels(selector, "matchLabels")
    for each in selector.parts("matchExpressions"):
        check_operator(each, LISTED, BARE)
        check_name(each, "key", is_qualified, QUALIFIED_RULE, is_required=True)
        check_values(each)


def check_operator(expression: ObjectPart, listed: tuple[str, ...], bare: tuple[str, ...]) -> None:
    """Values must be present for operators that take them, and only for those."""
    operator, values = expression.text("operator"), expression.texts("values")
    if operator in listed:
        if not values:
            expression.flaw("values", None, "values, where the operator is In or NotIn")
    elif operator in bare:
        if values:
            expression.flaw("values", list(values), "none, where the operator is Exists or DoesNotExist")
    else:
        expression.flaw(
            "operator", operator or None, f"a valid selector operator: {', '.join(listed + bare)}"
        )


def check_values(expression: ObjectPart) -> None:
    for index, value in enumerate(expression.texts("values")):
        if not is_label_value(value):
            expression.flaw(f"values[{index}]", value, VALUE_RULE)


def selects(selector: ObjectPart, labels: Mapping[str, str]) -> bool:
    """Whether it matches ``labels``; an empty selector matches all, and so does an invalid one."""
    if any(labels.get(key) != value for key, value in selector.labels("matchLabels").items()):
        return False
    return all(_holds(each, labels) for each in selector.parts("matchExpressions"))


def _holds(expression: ObjectPart, labels: Mapping[str, str]) -> bool:
    value, values = labels.get(expression.text("key")), expression.texts("values")
    operator = expression.text("operator")
    if operator == "In":
        return value in values
    if operator == "NotIn":
        return value not in values
    return (value is not None) == (operator == "Exists") if operator in BARE else True
