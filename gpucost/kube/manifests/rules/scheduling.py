"""Where pods may run (pkg/apis/core/validation: ValidateTolerations, validateAffinity,
validateTopologySpreadConstraints)."""

from __future__ import annotations

import re

from gpucost.kube.manifests.rules.names import (
    LABEL_RULE,
    QUALIFIED_RULE,
    SUBDOMAIN_RULE,
    VALUE_RULE,
    check_name,
    check_one_of,
    check_range,
    is_dns_label,
    is_label_value,
    is_qualified,
    is_subdomain,
)
from gpucost.kube.manifests.rules.selectors import BARE, LISTED, check_operator, check_selector, check_values
from gpucost.kube.parse.reading import Part

_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
_EFFECTS = ("NoExecute", "NoSchedule", "PreferNoSchedule")
_WHOLE = re.compile("0|-?[1-9][0-9]{0,18}")
_COMPARED = ("Gt", "Lt")


def check_tolerations(spec: Part) -> None:
    for each in spec.parts("tolerations"):
        check_name(each, "key", is_qualified, QUALIFIED_RULE)
        operator, value, effect = each.text("operator"), each.text("value"), each.text("effect")
        if not each.text("key") and operator != "Exists":
            each.flaw("operator", operator or None, "Exists, where the key is empty: it matches all keys")
        if "tolerationSeconds" in each and effect != "NoExecute":
            each.flaw("effect", effect or None, "NoExecute, where tolerationSeconds is set")
        check_one_of(each, "effect", ("", *_EFFECTS))
        if operator == "Exists" and value:
            each.flaw("value", value, "none: value must be empty when operator is Exists")
        elif operator in ("", "Equal") and not is_label_value(value):
            each.flaw("value", value, VALUE_RULE)
        elif operator not in ("", "Equal", "Exists"):
            each.flaw("operator", operator, 'supported values: "Equal", "Exists"')


def check_affinity(spec: Part) -> None:
    affinity = spec.part("affinity")
    node = affinity.part("nodeAffinity")
    if _REQUIRED in node:
        terms = node.part(_REQUIRED).parts("nodeSelectorTerms")
        if not terms:
            node.part(_REQUIRED).flaw("nodeSelectorTerms", None, "at least one node selector term")
        for term in terms:
            _check_node_term(term)
    for each in node.parts(_PREFERRED):
        _check_weight(each)
        _check_node_term(each.part("preference"), is_preferred=True)
    for key in ("podAffinity", "podAntiAffinity"):
        for term in affinity.part(key).parts(_REQUIRED):
            _check_pod_term(term)
        for each in affinity.part(key).parts(_PREFERRED):
            _check_weight(each)
            _check_pod_term(each.part("podAffinityTerm"))


def _check_weight(preferred: Part) -> None:
    weight = preferred.whole("weight") or 0
    if not 1 <= weight <= 100:
        preferred.flaw("weight", weight, "in the range 1-100")


def _check_node_term(term: Part, is_preferred: bool = False) -> None:
    for each in term.parts("matchExpressions"):
        if each.text("operator") in _COMPARED:
            if len(each.texts("values")) != 1:
                each.flaw(
                    "values", list(each.texts("values")), "a single value, where the operator is Lt or Gt"
                )
        else:
            check_operator(each, LISTED, BARE)
        check_name(each, "key", is_qualified, QUALIFIED_RULE, is_required=True)
        if not is_preferred:
            check_values(each)
    for each in term.parts("matchFields"):
        values = each.texts("values")
        if each.text("operator") not in LISTED:
            each.flaw("operator", each.text("operator") or None, "a valid selector operator: In, NotIn")
        elif len(values) != 1:
            each.flaw("values", list(values), "only one value")
        if each.text("key") != "metadata.name":
            each.flaw("key", each.text("key") or None, "a valid field selector key: metadata.name")
        for index, value in enumerate(values):
            if not is_subdomain(value):
                each.flaw(f"values[{index}]", value, SUBDOMAIN_RULE)


def _check_pod_term(term: Part) -> None:
    check_selector(term, "labelSelector")
    check_selector(term, "namespaceSelector")
    for index, name in enumerate(term.texts("namespaces")):
        if not is_dns_label(name):
            term.flaw(f"namespaces[{index}]", name, LABEL_RULE)
    check_name(term, "topologyKey", is_qualified, QUALIFIED_RULE, is_required=True)
    _check_label_keys(term, ("matchLabelKeys", "mismatchLabelKeys"))


def _check_label_keys(part: Part, keys: tuple[str, ...]) -> None:
    for key in keys:
        found = part.texts(key)
        if found and "labelSelector" not in part:
            part.flaw(key, list(found), "none, where labelSelector is not set")
        for index, each in enumerate(found):
            if not is_qualified(each):
                part.flaw(f"{key}[{index}]", each, QUALIFIED_RULE)
    selector, matched = part.part("labelSelector"), part.texts("matchLabelKeys")
    told = {*selector.labels("matchLabels"), *(e.text("key") for e in selector.parts("matchExpressions"))}
    for index, each in enumerate(matched):
        if each in told or (len(keys) > 1 and each in part.texts(keys[1])):
            part.flaw(f"matchLabelKeys[{index}]", each, "keys that stand in no other selector of it")


def check_spreading(spec: Part) -> None:
    seen: set[tuple[str, str]] = set()
    for each in spec.parts("topologySpreadConstraints"):
        key, action = each.text("topologyKey"), each.text("whenUnsatisfiable")
        if (each.whole("maxSkew") or 0) < 1:
            each.flaw("maxSkew", each.whole("maxSkew"), "greater than 0")
        if not key:
            each.flaw("topologyKey", None, "a label of nodes: it can not be empty")
        check_one_of(each, "whenUnsatisfiable", ("DoNotSchedule", "ScheduleAnyway"), is_required=True)
        if (key, action) in seen:
            each.flaw("topologyKey", key, "each with the same whenUnsatisfiable once")
        seen.add((key, action))
        if "minDomains" in each:
            check_range(each, "minDomains", 1)
            if action != "DoNotSchedule":
                each.flaw(
                    "minDomains", each.whole("minDomains"), "none, unless whenUnsatisfiable is DoNotSchedule"
                )
        for policy in ("nodeAffinityPolicy", "nodeTaintsPolicy"):
            check_one_of(each, policy, ("Honor", "Ignore"))
        _check_label_keys(each, ("matchLabelKeys",))
        check_selector(each, "labelSelector")


def check_gates(spec: Part, key: str, field: str) -> None:
    """Scheduling gates and readiness gates."""
    seen: set[str] = set()
    for gate in spec.parts(key):
        name = gate.text(field)
        check_name(gate, field, is_qualified, QUALIFIED_RULE, is_required=True)
        if key == "schedulingGates" and name in seen:
            gate.flaw(field, name, "each gate once")
        seen.add(name)
