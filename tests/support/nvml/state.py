"""The state file of the stand-in library: ``key=value`` lines in the byte order of their keys.

Keys of a device start with its UUID, so a handle, which the library keeps as a UUID, finds its values by
itself. Lists are one value: entries apart by a space, the numbers of an entry by a colon, ``-`` for one that
the driver does not know.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from tests.support.nvml.boards import (
    FakeBoard,
    FakeComputeInstance,
    FakeInstance,
    FakeProcess,
    GpmCounters,
    ProcessKind,
)

NO_INSTANCE = 0xFFFFFFFF
ENERGY_FIELD = 83
PlacedProcess = tuple[FakeProcess, int, int]


def render(entries: Mapping[str, str]) -> str:
    """The text of a state file."""
    return "".join(f"{key}={entries[key]}\n" for key in sorted(entries))


def replace_file(path: Path, text: str) -> None:
    """Replace the file by rename.

    Its modification time is a count of the writes: the library sees a change by time, inode and size, and
    the clock of a file system is too coarse for two writes in a row.
    """
    fresh = path.with_name(f"{path.name}.new")
    fresh.write_text(text, encoding="ascii")
    try:
        count = path.stat().st_mtime_ns + 1
    except FileNotFoundError:
        count = 1
    os.utime(fresh, ns=(count, count))
    fresh.replace(path)


def board_entries(index: int, board: FakeBoard) -> dict[str, str]:
    """All that the state says of one GPU and its MIG devices."""
    uuid = board.uuid
    minor = index if board.minor is None else board.minor
    entries = {
        f"board.{index}": uuid,
        f"{uuid}.index": str(index),
        f"{uuid}.lost": str(int(board.lost)),
        f"{uuid}.name": board.product,
        f"{uuid}.minor": str(minor),
        f"{uuid}.pci": board.pci_bus_id or f"00000000:{index + 1:02X}:00.0",
        f"{uuid}.memory": _memory(board),
        f"{uuid}.clock_reasons": str(board.clock_reasons),
        f"{uuid}.event_types": str(board.event_types),
        f"{uuid}.samples": " ".join([f"{at}:{percent}" for at, percent in board.samples]),
        f"{uuid}.process_samples": " ".join(
            [f"{at}:{pid}:{sm}:{memory}" for at, pid, sm, memory in board.process_samples]
        ),
        f"{uuid}.no_process_samples_is_success": str(int(board.no_process_samples_is_success)),
    }
    if board.watts is not None:
        entries[f"{uuid}.power_mw"] = str(round(board.watts * 1000))
    if board.mig is not None:
        entries[f"{uuid}.mig"] = str(int(board.mig))
        entries[f"{uuid}.mig_slots"] = str(board.mig_slices)
        entries[f"{uuid}.mig_generation"] = str(board.mig_generation)
    entries.update(_gpm(uuid, board.gpm))
    entries.update(_fields(board))
    entries.update(_processes(uuid, _board_processes(board)))
    for place, instance, device in _mig_devices(board):
        entries[f"{uuid}.mig.{place}"] = device.uuid
        entries.update(_mig_entries(board, instance, device))
    for instance in board.instances:
        prefix = f"{uuid}.instance.{instance.gpu_instance}"
        entries[f"{prefix}.profile"] = instance.profile
        entries.update(_gpm(prefix, instance.gpm))
    return entries


def _mig_entries(board: FakeBoard, instance: FakeInstance, device: FakeComputeInstance) -> dict[str, str]:
    uuid = device.uuid
    shown = [
        (process, instance.gpu_instance, process.compute_instance)
        for process in instance.processes
        if process.compute_instance == device.compute_instance
    ]
    multiprocessors = board.multiprocessors * device.slices // board.mig_slices
    megabytes = instance.memory_total_bytes >> 20
    return {
        f"{uuid}.parent": board.uuid,
        f"{uuid}.name": f"{board.product} MIG {instance.profile}",
        f"{uuid}.memory": _memory(instance),
        f"{uuid}.instance": str(instance.gpu_instance),
        f"{uuid}.compute_instance": str(device.compute_instance),
        f"{uuid}.attributes": f"{multiprocessors}:{instance.slices}:{device.slices}:{megabytes}",
        **_processes(uuid, shown),
    }


def _mig_devices(board: FakeBoard) -> Iterator[tuple[int, FakeInstance, FakeComputeInstance]]:
    devices = [(instance, device) for instance in board.instances for device in instance.compute_instances]
    taken = {device.index for _, device in devices}
    free = (place for place in range(len(devices) + len(taken)) if place not in taken)
    for instance, device in devices:
        yield next(free) if device.index is None else device.index, instance, device


def _board_processes(board: FakeBoard) -> list[PlacedProcess]:
    """The list of the GPU shows the processes of its MIG instances too, each with where it is."""
    found = [(process, NO_INSTANCE, NO_INSTANCE) for process in board.processes]
    for instance in board.instances:
        for process in instance.processes:
            found.append((process, instance.gpu_instance, process.compute_instance))
    return found


def _processes(prefix: str, processes: Iterable[PlacedProcess]) -> dict[str, str]:
    lists: dict[str, list[str]] = {kind: [] for kind in ProcessKind}
    for process, instance, compute in processes:
        memory = "-" if process.memory_bytes is None else process.memory_bytes
        lists[process.kind].append(f"{process.pid}:{memory}:{instance}:{compute}")
    return {f"{prefix}.processes.{kind}": " ".join(entries) for kind, entries in lists.items()}


def _memory(device: FakeBoard | FakeInstance) -> str:
    return f"{device.memory_total_bytes}:{device.memory_reserved_bytes}:{device.memory_used_bytes}"


def _gpm(prefix: str, counters: GpmCounters | None) -> dict[str, str]:
    if counters is None:
        return {}
    active = f"{counters.graphics_ns}:{counters.sm_ns}:{counters.tensor_ns}"
    return {f"{prefix}.gpm": f"{counters.elapsed_ns}:{active}"}


def _fields(board: FakeBoard) -> dict[str, str]:
    values = dict(board.throttled_ns)
    if board.energy_mj is not None:
        values[ENERGY_FIELD] = board.energy_mj
    entries = {f"{board.uuid}.field.{name}": str(value) for name, value in values.items()}
    errors = {f"{board.uuid}.field_error.{name}": str(error) for name, error in board.field_errors.items()}
    return entries | errors
