"""Containers, their probes and hooks (pkg/apis/core/validation: validateContainers, validateInitContainers,
validateProbe, validateLifecycle), and what they and their pods may do on their node
(validatePodSpecSecurityContext, ValidateSecurityContext).
"""

from __future__ import annotations

import re
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
from gpucost.kube.manifests.rules.volumes import (
    PULL_POLICIES,
    check_descending,
    check_field,
    check_mounts,
    check_resource_field,
)
from gpucost.kube.parse.fields import ObjectPart

_HIGHEST_ID = 2**31 - 1
_SEGMENT = "[a-z0-9]([-_a-z0-9]*[a-z0-9])?"
_SYSCTL = re.compile(rf"({_SEGMENT}[./])*{_SEGMENT}")
_PROFILES = ("Localhost", "RuntimeDefault", "Unconfined")
_NET, _IPC = ("net",), ("kernel.shm", "kernel.msg", "kernel.sem", "fs.mqueue.")
_NOT_ON_WINDOWS = (
    *("appArmorProfile", "seLinuxOptions", "seccompProfile", "fsGroup", "fsGroupChangePolicy", "sysctls"),
    *("runAsUser", "runAsGroup", "supplementalGroups", "supplementalGroupsPolicy", "seLinuxChangePolicy"),
    *("capabilities", "readOnlyRootFilesystem", "privileged", "allowPrivilegeEscalation", "procMount"),
)
PROBES = ("livenessProbe", "readinessProbe", "startupProbe")
_HANDLERS = ("exec", "httpGet", "tcpSocket", "grpc", "sleep")
_COUNTS = ("initialDelaySeconds", "timeoutSeconds", "periodSeconds", "successThreshold", "failureThreshold")
_GRACE_S = 30
_HIGHEST_PORT = 65535


def check_pod_security(spec: ObjectPart) -> None:
    """The security context of the pod as a whole."""
    context = spec.part("securityContext")
    for key in ("fsGroup", "runAsUser", "runAsGroup"):
        check_range(context, key, 0, _HIGHEST_ID)
    for index, group in enumerate(context.raw("supplementalGroups") or ()):
        if not 0 <= group <= _HIGHEST_ID:
            context.flaw(f"supplementalGroups[{index}]", group, f"between 0 and {_HIGHEST_ID}, inclusive")
    check_one_of(context, "fsGroupChangePolicy", ("Always", "OnRootMismatch"))
    check_one_of(context, "supplementalGroupsPolicy", ("Merge", "Strict"))
    check_one_of(context, "seLinuxChangePolicy", ("MountOption", "Recursive"))
    _check_profiles(context)
    _check_sysctls(spec, context)
    _check_host(spec)
    _check_system(spec, context)


def check_container_security(container: ObjectPart, spec: ObjectPart) -> None:
    """The security context of one container."""
    context = container.part("securityContext")
    for key in ("runAsUser", "runAsGroup"):
        check_range(context, key, 0, _HIGHEST_ID)
    check_one_of(context, "procMount", ("Default", "Unmasked"))
    if context.text("procMount") == "Unmasked" and spec.flag("hostUsers", True):
        context.flaw("procMount", "Unmasked", "Default, unless hostUsers is false")
    _check_profiles(context)
    _check_system(spec, context)
    if not context.flag("allowPrivilegeEscalation", True):
        added = context.part("capabilities").texts("add")
        if context.flag("privileged") or "CAP_SYS_ADMIN" in added:
            allowed = "true, where privileged is true or CAP_SYS_ADMIN is added"
            context.flaw("allowPrivilegeEscalation", False, allowed)


def _check_profiles(context: ObjectPart) -> None:
    for key in ("seccompProfile", "appArmorProfile"):
        if key not in context:
            continue
        profile = context.part(key)
        check_one_of(profile, "type", _PROFILES, is_required=True)
        if profile.text("type") != "Localhost":
            if "localhostProfile" in profile:
                own = profile.text("localhostProfile")
                profile.flaw("localhostProfile", own, "none, unless the type is Localhost")
        elif "localhostProfile" not in profile:
            profile.flaw("localhostProfile", None, "a profile, where the type is Localhost")
        elif key == "seccompProfile":
            check_descending(profile, "localhostProfile")
        else:
            _check_profile_name(profile)


def _check_profile_name(profile: ObjectPart) -> None:
    name = profile.text("localhostProfile")
    check_required(profile, "localhostProfile")
    if name != name.strip() or len(name) > 4095:
        profile.flaw("localhostProfile", name, "at most 4095 characters, not padded with whitespace")


def _check_sysctls(spec: ObjectPart, context: ObjectPart) -> None:
    seen: set[str] = set()
    for sysctl in context.parts("sysctls"):
        name = sysctl.text("name")
        plain = name.replace("/", ".")
        if len(name) > 253 or not _SYSCTL.fullmatch(name):
            sysctl.flaw("name", name or None, "lower-case letters, digits, -, _, . and /, at most 253")
        elif name in seen:
            sysctl.flaw("name", name, "each name once")
        if spec.flag("hostNetwork") and plain.startswith(_NET):
            sysctl.flaw("name", name, "none of the network, where hostNetwork is true")
        if spec.flag("hostIPC") and plain.startswith(_IPC):
            sysctl.flaw("name", name, "none of IPC, where hostIPC is true")
        seen.add(name)


def _check_host(spec: ObjectPart) -> None:
    if spec.flag("shareProcessNamespace") and spec.flag("hostPID"):
        spec.flaw("shareProcessNamespace", True, "false, where hostPID is true")
    if spec.flag("hostUsers", True):
        return
    for key in ("hostNetwork", "hostPID", "hostIPC"):
        if spec.flag(key):
            spec.flaw(key, True, "false, where hostUsers is false")


def _check_system(spec: ObjectPart, context: ObjectPart) -> None:
    """Fields that one operating system has and the other has not."""
    system = spec.part("os").text("name")
    if system == "linux" and "windowsOptions" in context:
        context.flaw("windowsOptions", SET, "none, of a linux pod")
    options = context.part("windowsOptions")
    check_name(options, "gmsaCredentialSpecName", is_subdomain, SUBDOMAIN_RULE)
    if options.flag("hostProcess") and not spec.flag("hostNetwork"):
        spec.flaw("hostNetwork", False, "true, of a pod with hostProcess containers")
    for key in _NOT_ON_WINDOWS if system == "windows" else ():
        if key in context:
            context.flaw(key, SET, "none, of a windows pod")


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
