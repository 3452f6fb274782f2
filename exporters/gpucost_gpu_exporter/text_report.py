"""Reports for a person at a node's shell (``--once``): what is missing, and what happened. Pure.

``sentences`` puts the codes of ``missing_parts`` into words; ``render`` is a table of what happened between
two snapshots.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from gpucost.contract.gpu_metrics import AttributionMethod, GpuMeasure, HolderKind
from gpucost_gpu_exporter.metering.accounts import GpuUser
from gpucost_gpu_exporter.metering.gpu_state import MeteredDevice
from gpucost_gpu_exporter.metering.missing_parts import MissingPart
from gpucost_gpu_exporter.metric_families import ExporterSnapshot, GpuView
from gpucost_gpu_exporter.model.holdings import DeviceKey, exported
from gpucost_gpu_exporter.settings import variable

# The order of reports: the parts that explain the most come first.
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


def sentences(lacks: Iterable[MissingPart]) -> Iterator[str]:
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


def _order(lack: MissingPart) -> tuple[int, MissingPart]:
    parts = list(_PARTS)
    return parts.index(lack.part) if lack.part in parts else len(parts), lack


def _where(devices: Sequence[DeviceKey]) -> str:
    names = [device_name(device) for device in devices if any(device)]
    if len(names) > 1:
        return f" on {len(names)} GPUs or MIG instances"
    return f" on {names[0]}" if names else ""


_HEAD = ("GPU", "WHAT", "HELD BY", "SHARE", "BUSY", "SM", "TENSOR", "POWER", "METHOD")
_UNKNOWN = "-"
_RATIOS = (
    (GpuMeasure.BUSY, GpuMeasure.OBSERVED),
    (GpuMeasure.SM_ACTIVE, GpuMeasure.SM_OBSERVED),
    (GpuMeasure.TENSOR_ACTIVE, GpuMeasure.TENSOR_OBSERVED),
)


@dataclass(frozen=True, slots=True)
class _CounterIncreases:
    """What the counters rose by between the two snapshots, in ``seconds``, by device and holder."""

    rises: Mapping[DeviceKey, Mapping[GpuUser, Mapping[GpuMeasure, int]]]
    methods: Mapping[tuple[DeviceKey, GpuUser], Sequence[AttributionMethod]]
    seconds: float

    def of_device(self, key: DeviceKey, measure: GpuMeasure) -> int:
        return sum(rise.get(measure, 0) for rise in self.rises.get(key, {}).values())

    def of_board(self, uuid: str, measure: GpuMeasure) -> int:
        return sum(self.of_device(key, measure) for key in self.rises if key.gpu_uuid == uuid)


def render(before: ExporterSnapshot, after: ExporterSnapshot) -> str:
    """A line per GPU or MIG instance and holder, then a line for all that is missing. Ends in a newline.

    SHARE is of the GPU; BUSY, SM and TENSOR are of the GPU or MIG instance, so the holders of a shared one
    add up to it; ``-`` stands for what is not known. Whether counters would survive a restart is left out:
    ``--once`` keeps none.
    """
    look = _look(before, after)
    rows = [line for board in after.boards for line in _board(look, board)]
    table = _aligned([_HEAD, *rows]) if rows else "no GPUs found\n"
    lacks = [lack for lack in after.lacks if lack.part != "state_file"]
    return table + "".join(f"{sentence}\n" for sentence in sentences(lacks))


def _look(before: ExporterSnapshot, after: ExporterSnapshot) -> _CounterIncreases:
    rises: dict[DeviceKey, dict[GpuUser, dict[GpuMeasure, int]]] = {}
    methods: dict[tuple[DeviceKey, GpuUser], list[AttributionMethod]] = {}
    for row, amounts in after.accounts.rows.items():
        then = before.accounts.rows.get(row, {})
        rise = {measure: amount - then.get(measure, 0) for measure, amount in amounts.items()}
        if any(rise.values()):
            methods.setdefault((row.device, row.who), []).append(row.method)
            found = rises.setdefault(row.device, {}).setdefault(row.who, {})
            found |= {measure: found.get(measure, 0) + amount for measure, amount in rise.items()}
    return _CounterIncreases(rises, methods, (after.at_ms - before.at_ms) / 1000)


def _board(look: _CounterIncreases, board: GpuView) -> Iterator[Sequence[str]]:
    uuid, product = board.seen.uuid, board.seen.product
    for device in board.devices:
        yield from _device(look, device.key, f"{product}{_profile(device)}{_lost(board)}")
    shown = {device.key for device in board.devices}
    if not shown or DeviceKey(uuid) in look.rises.keys() - shown:
        yield from _device(look, DeviceKey(uuid), f"{product}{_lost(board)}")


def _profile(device: MeteredDevice) -> str:
    profile = getattr(device.reading, "profile", "")
    return f" {profile}" if profile else ""


def _lost(board: GpuView) -> str:
    return f" LOST: {board.lost}" if board.lost else ""


def _device(look: _CounterIncreases, key: DeviceKey, what: str) -> Iterator[Sequence[str]]:
    found = sorted(look.rises.get(key, {}), key=lambda who: (who.holder is not HolderKind.POD, who))
    name = device_name(key)
    for cells in [_holder(look, key, who) for who in found] or [(_UNKNOWN,) * (len(_HEAD) - 2)]:
        yield name, what, *cells
        name = what = ""


def _holder(look: _CounterIncreases, key: DeviceKey, who: GpuUser) -> Sequence[str]:
    rise, pod = look.rises[key][who], who.pod
    name = f"{pod.namespace}/{pod.name}" if who.holder is HolderKind.POD else who.holder.value
    held, whole = rise.get(GpuMeasure.HELD, 0), look.of_board(key.gpu_uuid, GpuMeasure.HELD)
    share = f"{held / whole:.3g}" if held else _UNKNOWN
    ratios = [_ratio(look, key, rise, active, observed) for active, observed in _RATIOS]
    methods = ", ".join(sorted(look.methods[key, who]))
    return name, share, *ratios, _power(look, key, rise), methods


def _ratio(
    look: _CounterIncreases,
    key: DeviceKey,
    rise: Mapping[GpuMeasure, int],
    active: GpuMeasure,
    observed: GpuMeasure,
) -> str:
    whole = look.of_device(key, observed)
    return f"{rise[active] / whole:.0%}" if active in rise and whole else _UNKNOWN


def _power(look: _CounterIncreases, key: DeviceKey, rise: Mapping[GpuMeasure, int]) -> str:
    joules = rise.get(GpuMeasure.ENERGY)
    # A GPU that is on always draws something: where its energy did not rise, it was not read.
    if joules is None or not look.seconds or not look.of_board(key.gpu_uuid, GpuMeasure.ENERGY):
        return _UNKNOWN
    return f"{exported(GpuMeasure.ENERGY, joules) / look.seconds:.0f} W"


def _aligned(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEAD))]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)
    return "".join(f"{line.rstrip()}\n" for line in lines)
