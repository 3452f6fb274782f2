"""Specs and templates of pods (pkg/apis/core/validation: ValidatePodSpec, ValidatePodTemplateSpec,
ValidatePodCreate), and where pods may run (ValidateTolerations, validateAffinity,
validateTopologySpreadConstraints)."""

from __future__ import annotations

import re
from collections.abc import Mapping

from gpucost.domain.errors import ErrorRemark
from gpucost.kube.manifests.rules.containers import (
    ContainerContext,
    all_containers,
    check_containers,
    check_pod_security,
)
from gpucost.kube.manifests.rules.names import (
    BARE,
    LABEL_RULE,
    LISTED,
    LONGEST_LABEL,
    QUALIFIED_RULE,
    SET,
    SUBDOMAIN_RULE,
    VALUE_RULE,
    check_annotations,
    check_labels,
    check_name,
    check_one_of,
    check_operator,
    check_range,
    check_selector,
    check_values,
    is_address,
    is_dns_label,
    is_label_value,
    is_qualified,
    is_search_domain,
    is_subdomain,
)
from gpucost.kube.manifests.rules.resources import check_overhead, check_pod_resources
from gpucost.kube.manifests.rules.volumes import check_volumes
from gpucost.kube.parse.fields import ObjectPart

_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
_EFFECTS = ("NoExecute", "NoSchedule", "PreferNoSchedule")
_COMPARED = ("Gt", "Lt")


def check_tolerations(spec: ObjectPart) -> None:
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


def check_affinity(spec: ObjectPart) -> None:
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


def _check_weight(preferred: ObjectPart) -> None:
    weight = preferred.whole("weight") or 0
    if not 1 <= weight <= 100:
        preferred.flaw("weight", weight, "in the range 1-100")


def _check_node_term(term: ObjectPart, is_preferred: bool = False) -> None:
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


def _check_pod_term(term: ObjectPart) -> None:
    check_selector(term, "labelSelector")
    check_selector(term, "namespaceSelector")
    for index, name in enumerate(term.texts("namespaces")):
        if not is_dns_label(name):
            term.flaw(f"namespaces[{index}]", name, LABEL_RULE)
    check_name(term, "topologyKey", is_qualified, QUALIFIED_RULE, is_required=True)
    _check_label_keys(term, ("matchLabelKeys", "mismatchLabelKeys"))


def _check_label_keys(part: ObjectPart, keys: tuple[str, ...]) -> None:
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


def check_spreading(spec: ObjectPart) -> None:
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


def check_gates(spec: ObjectPart, key: str, field: str) -> None:
    """Scheduling gates and readiness gates."""
    seen: set[str] = set()
    for gate in spec.parts(key):
        name = gate.text(field)
        check_name(gate, field, is_qualified, QUALIFIED_RULE, is_required=True)
        if key == "schedulingGates" and name in seen:
            gate.flaw(field, name, "each gate once")
        seen.add(name)


_RESTARTS = ("Always", "Never", "OnFailure")
_DELETION_COST = "controller.kubernetes.io/pod-deletion-cost"
_COST = re.compile("0|-?[1-9][0-9]{0,9}")
_MIRROR = "kubernetes.io/config.mirror"
_NONE: Mapping[str, ObjectPart] = {}


def check_pod(root: ObjectPart) -> None:
    """A plain pod."""
    spec = root.part("spec")
    _check_annotations(root)
    check_spec(spec, is_pod=True)
    if spec.parts("ephemeralContainers"):
        spec.flaw("ephemeralContainers", SET, "none: they cannot be set on create")
    if spec.text("nodeName") and spec.parts("schedulingGates"):
        spec.flaw("nodeName", spec.text("nodeName"), "none, while there are scheduling gates")
    for container in all_containers(spec):
        image = container.text("image")
        if image != image.strip():
            container.flaw("image", image, "no leading or trailing whitespace")
    if _MIRROR in root.part("metadata").labels("annotations") and not spec.text("nodeName"):
        spec.flaw("nodeName", None, f"a node, where the annotation {_MIRROR} is set")
    _check_admitted(spec)


def _check_admitted(spec: ObjectPart) -> None:
    """What the admission plugins that every API server enables refuse of a pod (plugin/pkg/admission:
    priority, runtimeclass), as far as it does not depend on other objects."""
    if spec.whole("priority") and not spec.text("priorityClassName"):
        allowed = "none: the integer value is computed from the PriorityClass"
        spec.flaw("priority", spec.whole("priority"), allowed)
    if spec.text("preemptionPolicy") == "Never" and not spec.text("priorityClassName"):
        spec.flaw("preemptionPolicy", "Never", "none: it is that of the PriorityClass")
    if "overhead" in spec and not spec.text("runtimeClassName"):
        spec.flaw("overhead", SET, "none, without a RuntimeClass that defines it")


def check_template(
    template: ObjectPart, runs_on: bool = False, added: Mapping[str, ObjectPart] | None = _NONE
) -> None:
    """A pod template; with ``runs_on`` one of a kind whose pods never end. ``added`` are volumes by name that
    its kind adds to it; None where they are not known."""
    metadata, spec = template.part("metadata"), template.part("spec")
    check_labels(metadata, "labels")
    check_annotations(metadata, "annotations")
    _check_annotations(template)
    check_spec(spec, added=added)
    if spec.parts("ephemeralContainers"):
        spec.flaw("ephemeralContainers", SET, "none: ephemeral containers are not allowed in a pod template")
    if runs_on:
        _check_always(spec)


def _check_always(spec: ObjectPart) -> None:
    policy = spec.text("restartPolicy")
    if policy not in ("", "Always"):
        spec.flaw("restartPolicy", policy, 'supported values: "Always"')
    if "activeDeadlineSeconds" in spec:
        spec.flaw("activeDeadlineSeconds", spec.whole("activeDeadlineSeconds"), "none, of this kind")


def _check_annotations(root: ObjectPart) -> None:
    metadata = root.part("metadata")
    cost = metadata.labels("annotations").get(_DELETION_COST)
    if cost is not None and (not _COST.fullmatch(cost) or not -(2**31) <= int(cost) < 2**31):
        metadata.flaw(f"annotations[{_DELETION_COST}]", cost, "a 32 bit integer")


def check_spec(
    spec: ObjectPart, is_pod: bool = False, added: Mapping[str, ObjectPart] | None = _NONE
) -> None:
    """The spec of a pod, and with fewer checks that of a template; ``added`` as in ``check_template``."""
    volumes = check_volumes(spec, is_pod)
    claims = _check_claims(spec)
    check_containers(ContainerContext(spec, None if added is None else {**volumes, **added}, claims))
    check_pod_resources(spec)
    check_overhead(spec)
    check_pod_security(spec)
    check_labels(spec, "nodeSelector")
    check_affinity(spec)
    check_tolerations(spec)
    check_spreading(spec)
    check_gates(spec, "schedulingGates", "name")
    check_gates(spec, "readinessGates", "conditionType")
    _check_choices(spec)
    _check_names(spec)
    _check_network(spec)
    if "activeDeadlineSeconds" in spec:
        check_range(spec, "activeDeadlineSeconds", 1, 2**31 - 1)


def _check_choices(spec: ObjectPart) -> None:
    check_one_of(spec, "restartPolicy", ("", *_RESTARTS))
    check_one_of(spec, "dnsPolicy", ("", "ClusterFirst", "ClusterFirstWithHostNet", "Default", "None"))
    check_one_of(spec, "preemptionPolicy", ("Never", "PreemptLowerPriority"))
    if "os" in spec:
        check_one_of(spec.part("os"), "name", ("linux", "windows"), is_required=True)


def _check_names(spec: ObjectPart) -> None:
    for key in ("serviceAccountName", "serviceAccount", "nodeName", "priorityClassName", "runtimeClassName"):
        check_name(
            spec, key, is_subdomain, SUBDOMAIN_RULE, is_required=key == "runtimeClassName" and key in spec
        )
    for key in ("hostname", "subdomain"):
        check_name(spec, key, is_dns_label, LABEL_RULE)
    if "hostnameOverride" in spec:
        name = spec.text("hostnameOverride")
        if len(name) > LONGEST_LABEL + 1 or not is_subdomain(name):
            spec.flaw("hostnameOverride", name or None, f"a DNS subdomain of at most {LONGEST_LABEL + 1}")
        for key in ("setHostnameAsFQDN", "hostNetwork"):
            if spec.flag(key):
                spec.flaw("hostnameOverride", name, f"none, where {key} is true")


def _check_claims(spec: ObjectPart) -> frozenset[str]:
    """Names of the resource claims."""
    names: set[str] = set()
    for claim in spec.parts("resourceClaims"):
        name = claim.text("name")
        check_name(claim, "name", is_dns_label, LABEL_RULE, is_required=True)
        if name in names:
            claim.flaw("name", name, "each name once")
        names.add(name)
        given = [key for key in ("resourceClaimName", "resourceClaimTemplateName") if key in claim]
        if len(given) != 1:
            claim.flaw("", given or None, "one of resourceClaimName and resourceClaimTemplateName")
        for key in given:
            check_name(claim, key, is_subdomain, SUBDOMAIN_RULE, is_required=True)
    return frozenset(filter(None, names))


def _check_network(spec: ObjectPart) -> None:
    for container in spec.parts("containers") if spec.flag("hostNetwork") else ():
        for port in container.parts("ports"):
            host = port.whole("hostPort")
            if host and host != port.whole("containerPort"):
                port.flaw("hostPort", host, "the same as containerPort, where hostNetwork is true")
    for alias in spec.parts("hostAliases"):
        if not is_address(alias.text("ip")):
            alias.flaw("ip", alias.text("ip") or None, "an IP address")
        for index, name in enumerate(alias.texts("hostnames")):
            if not is_subdomain(name):
                alias.flaw(f"hostnames[{index}]", name, SUBDOMAIN_RULE)
    _check_dns(spec)


def _check_dns(spec: ObjectPart) -> None:
    config = spec.part("dnsConfig")
    servers, searches = config.texts("nameservers"), config.texts("searches")
    if spec.text("dnsPolicy") == "None" and not servers:
        config.flaw("nameservers", None, "at least one DNS nameserver, where dnsPolicy is None")
    if len(servers) > 3:
        config.flaw("nameservers", ErrorRemark(f"{len(servers)} servers"), "at most 3")
    for index, server in enumerate(servers):
        if not is_address(server):
            config.flaw(f"nameservers[{index}]", server, "an IP address")
    if len(searches) > 32 or len(" ".join(searches)) > 2048:
        config.flaw(
            "searches",
            ErrorRemark(f"{len(searches)} paths"),
            "at most 32, and 2048 characters of all together",
        )
    for index, search in enumerate(searches):
        if search != "." and not is_search_domain(search.removesuffix(".")):
            config.flaw(f"searches[{index}]", search, SUBDOMAIN_RULE)
    for option in config.parts("options"):
        if not option.text("name"):
            option.flaw("name", None, "a name: it must not be empty")
