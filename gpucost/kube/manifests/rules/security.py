"""What pods may do on their node (pkg/apis/core/validation: validatePodSpecSecurityContext,
ValidateSecurityContext)."""

from __future__ import annotations

import re

from gpucost.kube.manifests.rules.names import (
    SET,
    SUBDOMAIN_RULE,
    check_name,
    check_one_of,
    check_range,
    check_required,
    is_subdomain,
)
from gpucost.kube.manifests.rules.volumes import check_descending
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
