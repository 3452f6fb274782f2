"""What the exporter lacks, in words for a person: the codes of ``conditions`` said plainly. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from gpucost_gpu_exporter.conditions import Lack
from gpucost_gpu_exporter.holdings import DeviceKey
from gpucost_gpu_exporter.settings import variable

# In this order: what explains the most comes first.
_PARTS: Mapping[str, str] = {
    "driver": "the GPU driver",
    "gpu": "everything",
    "kubelet": "who holds the GPUs",
    "allocatable": "what the kubelet can hand out",
    "holders": "who holds some of the GPUs",
    "pods": "UIDs of pods, and whether they have ended",
    "host_pids": "whose the processes on shared GPUs are",
    "busy": "busy time",
    "sm_active": "SM activity",
    "tensor_active": "tensor activity",
    "memory": "memory",
    "energy": "energy",
    "throttling": "throttled time",
    "xid": "XID events",
    "processes": "processes",
    "process_utilization": "SM share of each process",
    "mig": "MIG instances",
    "dcgm": "dcgm-exporter",
    "state_file": "where counters survive a restart",
}

_REASONS: Mapping[str, str] = {
    "LIBRARY_NOT_FOUND": "libnvidia-ml.so.1 is not here; in a container, the driver was not injected",
    "DRIVER_NOT_LOADED": "its kernel module is not loaded",
    "NO_GPUS": "it lists no GPU",
    "NO_DRIVER": "the driver does not answer",
    "HUNG": f"it did not answer within {variable('driver_timeout')} (30 s at least when it is first asked)",
    "EXITED": "the process that asks it ended by itself; the log says more",
    "PROTOCOL": "the process that asks it sent what cannot be read",
    "STUCK": "processes that were killed are still inside it",
    "GPU_IS_LOST": "it does not answer any more (fell off the bus); look for XID 79 in the kernel's log",
    "GONE": "the driver no longer lists it",
    "NOT_SUPPORTED": "not supported by this GPU and driver",
    "LIB_RM_VERSION_MISMATCH": "the driver was upgraded; reboot, or reload its kernel module",
    "NOT_FOUND": "the driver no longer lists it",
    "RESET_REQUIRED": "the GPU must be reset before it can be used again",
    "UNKNOWN": "the driver reports an unknown error",
    "TIMEOUT": "the driver gave up waiting for the GPU",
    "INVALID_ARGUMENT": "the driver does not accept the question; it may be too old for it",
    "IRQ_ISSUE": "the driver has a problem with the GPU's interrupts or power; look at the kernel's log",
    "IN_USE": "the GPU is in use by something that shuts others out",
    "UNINITIALIZED": "the driver was unloaded or loaded anew meanwhile; it is asked again",
    "INTERNAL": "a mistake of this exporter in reading it; the log says more",
    "CORRUPT": "what the driver says cannot be true",
    "NO_PERMISSION": "the driver shows it to privileged processes only",
    "FUNCTION_NOT_FOUND": "the driver is too old to have it",
    "no_socket": f"the kubelet's socket is not at {variable('kubelet_socket')}",
    "refused": "nobody listens on the kubelet's socket",
    "permission": "no permission for the kubelet's socket: let this user in, or run as root",
    "timeout": "no answer in time",
    "rate_limited": "the kubelet was asked too often",
    "unimplemented": "the kubelet is too old to say it",
    "too_large": "the answer is larger than what is read",
    "failed": "the kubelet refused",
    "unknown_device": "a pod was given a device that no GPU seen here answers to",
    "replicas_guessed": "how many replicas a shared GPU has is guessed from what is held",
    "disputed": "several pods claim a device that only one can hold",
    "oversubscribed": "the claims on a GPU add up to more than it",
    "not_configured": f"{variable('state_dir')} is empty",
    "not_writable": f"{variable('state_dir')} cannot be written",
    "not_readable": f"the file in {variable('state_dir')} cannot be read",
    "not_locked": f"the file system of {variable('state_dir')} has no locks",
    "no_boot_id": "the kernel does not name its boot, so counters could not be told from those before it",
    "starting": "not asked yet",
    "missing": "it does not print it",
    "stale": "its last values are too old",
    "prof_stuck": "its profiling counters stand at 0 while the GPU is busy; restart it",
    "unreachable": "it does not answer",
    "http_status": "it answered with an error",
    "bad_answer": "it answered what is not HTTP",
    "empty": "it has no metrics",
    "no_values": "it has no metric of a GPU",
    "internal": "a mistake of this exporter; the log says more",
    "not_host_pid_namespace": "needs hostPID: true",
}

_REASONS_OF_PARTS: Mapping[tuple[str, str], str] = {
    ("pods", "off"): f"no API server is asked ({variable('kubernetes')})",
    ("pods", "unreachable"): "the API server does not answer",
    ("pods", "forbidden"): "not allowed to list and watch pods on this node: check the role",
    ("pods", "uid_unknown"): "the kubelet lists a pod that the API server does not show on this node: "
    f"is {variable('node')} the node's name?",
    ("host_pids", "proc_unreadable"): f"the host's /proc cannot be read at {variable('proc_root')}",
    ("host_pids", "off"): f"{variable('processes')} is false",
}


def sentences(lacks: Iterable[Lack]) -> Iterator[str]:
    """A line for each thing that is missing and why, with the codes that metrics and documents use.

    What is missing on several GPUs or MIG instances for one reason is one line.
    """
    grouped: dict[tuple[str, str], list[DeviceKey]] = {}
    for lack in sorted(lacks, key=_order):
        grouped.setdefault((lack.part, lack.reason), []).append(lack.device)
    for (part, reason), devices in grouped.items():
        what = f"{_PARTS.get(part, part)}{_where(devices)}"
        why = _REASONS_OF_PARTS.get((part, reason)) or _REASONS.get(reason) or _unknown(reason)
        yield f"missing: {what}: {why} ({part} {reason})"


def device_name(device: DeviceKey) -> str:
    """``GPU-…``, and for a MIG instance ``GPU-…:3``."""
    return ":".join(part for part in device if part)


def _unknown(reason: str) -> str:
    """The codes of the driver are in capitals, all others are not."""
    return f"NVML error {reason}" if reason.isupper() else "see the log"


def _order(lack: Lack) -> tuple[int, Lack]:
    parts = list(_PARTS)
    return parts.index(lack.part) if lack.part in parts else len(parts), lack


def _where(devices: Sequence[DeviceKey]) -> str:
    names = [device_name(device) for device in devices if any(device)]
    if len(names) > 1:
        return f" on {len(names)} GPUs or MIG instances"
    return f" on {names[0]}" if names else ""
