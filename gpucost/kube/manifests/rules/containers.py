"""Containers, their probes and hooks (pkg/apis/core/validation: validateContainers, validateInitContainers,
validateProbe, validateLifecycle)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from gpucost.domain.errors import ErrorRemark
from gpucost.kube.manifests.rules.names import (
    HEADER_RULE,
    KEY_RULE,
    LABEL_RULE,
    PORT_RULE,
    SET,
    SUBDOMAIN_RULE,
    VARIABLE_RULE,
    check_name,
    check_one_of,
    check_range,
    check_required,
    is_dns_label,
    is_header,
    is_key,
    is_port_name,
    is_subdomain,
    is_variable,
)
from gpucost.kube.manifests.rules.resources import check_resources
from gpucost.kube.manifests.rules.security import check_container_security
from gpucost.kube.manifests.rules.volumes import (
    PULL_POLICIES,
    check_field,
    check_mounts,
    check_resource_field,
)
from gpucost.kube.parse.fields import ObjectPart

PROBES = ("livenessProbe", "readinessProbe", "startupProbe")
_HANDLERS = ("exec", "httpGet", "tcpSocket", "grpc", "sleep")
_COUNTS = ("initialDelaySeconds", "timeoutSeconds", "periodSeconds", "successThreshold", "failureThreshold")
_GRACE_S = 30
_HIGHEST_PORT = 65535


def check_probe(container: ObjectPart, key: str, spec: ObjectPart) -> None:
    """One of ``PROBES``, where it is present."""
    if key not in container:
        return
    probe = container.part(key)
    _check_handler(probe, _HANDLERS[:-1], spec)
    for each in _COUNTS:
        check_range(probe, each, 0)
    grace = probe.whole("terminationGracePeriodSeconds")
    if key == "readinessProbe":
        if grace is not None:
            probe.flaw("terminationGracePeriodSeconds", grace, "none, of a readiness probe")
    else:
        check_range(probe, "terminationGracePeriodSeconds", 1)
        if (probe.whole("successThreshold") or 1) != 1:
            probe.flaw("successThreshold", probe.whole("successThreshold"), "1")


def check_lifecycle(container: ObjectPart, spec: ObjectPart) -> None:
    """The hooks that run when a container starts and stops."""
    lifecycle = container.part("lifecycle")
    for key in ("postStart", "preStop"):
        if key in lifecycle:
            _check_handler(lifecycle.part(key), _HANDLERS, spec)


def _check_handler(holder: ObjectPart, kinds: tuple[str, ...], spec: ObjectPart) -> None:
    given = [key for key in kinds if key in holder]
    if len(given) != 1:
        holder.flaw("", given or None, f"one of {', '.join(kinds)}")
    for key in given[:1]:
        handler = holder.part(key)
        if key == "exec" and not handler.texts("command"):
            handler.flaw("command", None, "a command: it is required")
        elif key == "sleep":
            _check_sleep(handler, spec)
        elif key != "exec":
            _check_port(handler)
        if key == "httpGet":
            check_one_of(handler, "scheme", ("", "HTTP", "HTTPS"))
            for header in handler.parts("httpHeaders"):
                if not is_header(header.text("name")):
                    header.flaw("name", header.text("name") or None, HEADER_RULE)


def _check_sleep(handler: ObjectPart, spec: ObjectPart) -> None:
    grace = spec.whole("terminationGracePeriodSeconds")
    check_range(handler, "seconds", 0, max(_GRACE_S if grace is None else grace, 0))


def _check_port(handler: ObjectPart) -> None:
    port = handler.raw("port")
    if isinstance(port, str):
        if not is_port_name(port):
            handler.flaw("port", port, PORT_RULE)
    elif not 1 <= (port or 0) <= _HIGHEST_PORT:
        handler.flaw("port", port, f"between 1 and {_HIGHEST_PORT}, inclusive")


_SOURCES = ("fieldRef", "resourceFieldRef", "configMapKeyRef", "secretKeyRef", "fileKeyRef")
_MESSAGES = ("FallbackToLogsOnError", "File")
_HIGHEST_CONTAINER_PORT = 65535
_MOST_RULES, _MOST_CODES = 20, 255


class ContainerContext(NamedTuple):
    """What containers refer to: ``volumes`` is None where their kind adds volumes that are not known."""

    spec: ObjectPart
    volumes: Mapping[str, ObjectPart] | None
    claims: frozenset[str]


def check_containers(around: ContainerContext) -> None:
    """Containers and init containers of a pod spec."""
    containers, first = around.spec.parts("containers"), around.spec.parts("initContainers")
    if not containers:
        around.spec.flaw("containers", None, "at least one container")
    for container in (*containers, *first):
        _check_common(container, around)
    for container in containers:
        _check_probes(container, around.spec)
        _check_restart_rules(container)
    _check_names(containers, first)
    _check_host_ports(containers)
    for container in first:
        _check_first(container, around.spec)
        _check_host_ports((container,))


def _check_names(containers: Iterable[ObjectPart], first: Iterable[ObjectPart]) -> None:
    seen: set[str] = set()
    for container in (*containers, *first):
        name = container.text("name")
        if name and name in seen:
            container.flaw("name", name, "each name once in a pod")
        seen.add(name)


def _check_common(container: ObjectPart, around: ContainerContext) -> None:
    check_name(container, "name", is_dns_label, LABEL_RULE, is_required=True)
    if not container.text("image"):
        container.flaw("image", None, "an image: it is required")
    check_one_of(container, "terminationMessagePolicy", ("", *_MESSAGES))
    check_one_of(container, "imagePullPolicy", ("", *PULL_POLICIES))
    _check_ports(container)
    for each in container.parts("env"):
        _check_variable(each, around.volumes)
    for each in container.parts("envFrom"):
        _check_variables_from(each)
    check_mounts(container, around.volumes)
    check_resources(container, around.claims)
    _check_resizes(container, around.spec)
    check_container_security(container, around.spec)


def _check_ports(container: ObjectPart) -> None:
    names: set[str] = set()
    for port in container.parts("ports"):
        name = port.text("name")
        if check_name(port, "name", is_port_name, PORT_RULE) and name in names:
            port.flaw("name", name, "each name once")
        names.add(name)
        if not port.whole("containerPort"):
            port.flaw("containerPort", None, f"between 1 and {_HIGHEST_CONTAINER_PORT}, inclusive")
        for key in ("containerPort", "hostPort"):
            if port.whole(key):
                check_range(port, key, 1, _HIGHEST_CONTAINER_PORT)
        check_one_of(port, "protocol", ("", "SCTP", "TCP", "UDP"))


def _check_host_ports(containers: Iterable[ObjectPart]) -> None:
    seen = set()
    for container in containers:
        for port in container.parts("ports"):
            number = port.whole("hostPort")
            key = (port.text("protocol") or "TCP", port.text("hostIP"), number)
            if number and key in seen:
                port.flaw("hostPort", number, "each port of a host once")
            seen.add(key)


def _check_variable(variable: ObjectPart, volumes: Mapping[str, ObjectPart] | None) -> None:
    check_name(variable, "name", is_variable, VARIABLE_RULE, is_required=True)
    if "valueFrom" not in variable:
        return
    source = variable.part("valueFrom")
    given = [key for key in _SOURCES if key in source]
    if len(given) != 1:
        variable.flaw("valueFrom", given or None, f"one of {', '.join(_SOURCES)}")
    elif variable.text("value"):
        variable.flaw("valueFrom", given[0], "none, where value is not empty")
    for key in given:
        _check_variable_source(source.part(key), key, volumes)


def _check_variable_source(reference: ObjectPart, key: str, volumes: Mapping[str, ObjectPart] | None) -> None:
    if key == "fieldRef":
        check_field(reference)
    elif key == "resourceFieldRef":
        check_resource_field(reference)
    elif key == "fileKeyRef":
        check_name(reference, "key", is_variable, VARIABLE_RULE, is_required=True)
        check_required(reference, "path")
        volume = None if volumes is None else volumes.get(reference.text("volumeName"))
        if volumes is not None and (volume is None or "emptyDir" not in volume):
            reference.flaw("volumeName", reference.text("volumeName") or None, "a volume that is an emptyDir")
    else:
        check_name(reference, "name", is_subdomain, SUBDOMAIN_RULE, is_required=True)
        check_name(reference, "key", is_key, KEY_RULE, is_required=True)


def _check_variables_from(source: ObjectPart) -> None:
    check_name(source, "prefix", is_variable, VARIABLE_RULE)
    given = [key for key in ("configMapRef", "secretRef") if key in source]
    if len(given) != 1:
        source.flaw("", given or None, "one of configMapRef and secretRef")
    for key in given:
        check_name(source.part(key), "name", is_subdomain, SUBDOMAIN_RULE, is_required=True)


def _check_resizes(container: ObjectPart, spec: ObjectPart) -> None:
    seen: set[str] = set()
    for policy in container.parts("resizePolicy"):
        name, restart = policy.text("resourceName"), policy.text("restartPolicy")
        check_one_of(policy, "resourceName", ("cpu", "memory"), is_required=True)
        check_one_of(policy, "restartPolicy", ("NotRequired", "RestartContainer"), is_required=True)
        if name in seen:
            policy.flaw("resourceName", name, "each resource once")
        if spec.text("restartPolicy") == "Never" and restart != "NotRequired":
            policy.flaw("restartPolicy", restart, "NotRequired, where the pod's restartPolicy is Never")
        seen.add(name)


def _check_probes(container: ObjectPart, spec: ObjectPart) -> None:
    for key in PROBES:
        check_probe(container, key, spec)
    check_lifecycle(container, spec)


def _check_first(container: ObjectPart, spec: ObjectPart) -> None:
    """An init container; one that always restarts runs beside the others and may have what they have."""
    _check_restart_rules(container)
    if container.text("restartPolicy") == "Always":
        _check_probes(container, spec)
        return
    for key in ("lifecycle", *PROBES):
        if key in container:
            container.flaw(key, SET, "none, of an init container without restartPolicy Always")
    for policy in container.parts("resizePolicy"):
        if policy.text("restartPolicy") == "RestartContainer":
            policy.flaw("restartPolicy", "RestartContainer", "NotRequired, of an init container")


def _check_restart_rules(container: ObjectPart) -> None:
    rules = container.parts("restartPolicyRules")
    check_one_of(container, "restartPolicy", ("Always", "Never", "OnFailure"), is_required=bool(rules))
    if len(rules) > _MOST_RULES:
        container.flaw("restartPolicyRules", ErrorRemark(f"{len(rules):,} rules"), f"at most {_MOST_RULES}")
    for rule in rules:
        check_one_of(rule, "action", ("Restart", "RestartAllContainers"), is_required=True)
        if "exitCodes" not in rule:
            rule.flaw("exitCodes", None, "exit codes: they are required")
            continue
        codes = rule.part("exitCodes")
        check_one_of(codes, "operator", ("In", "NotIn"), is_required=True)
        held = codes.raw("values") or []
        if len(held) > _MOST_CODES:
            codes.flaw("values", ErrorRemark(f"{len(held):,} values"), f"at most {_MOST_CODES}")


def all_containers(spec: ObjectPart) -> Iterator[ObjectPart]:
    """Init containers included."""
    yield from spec.parts("initContainers")
    yield from spec.parts("containers")
