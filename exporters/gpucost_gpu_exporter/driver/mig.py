"""The MIG instances of a board. Read anew at each look: handles and ids are reused when a board is recut."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial
from itertools import groupby
from typing import Any, NamedTuple

import pynvml

from gpucost_gpu_exporter.driver.calls import Look, Refused, call
from gpucost_gpu_exporter.driver.gpm import Gpm
from gpucost_gpu_exporter.driver.memory import memory_bytes
from gpucost_gpu_exporter.driver.processes import memory_by_pid, merged
from gpucost_gpu_exporter.readings import InstanceReading, Part, ProcessReading

_PROFILE = re.compile(r"MIG (?:\d+c\.)?(\d+g\.\S+)")


class _Compute(NamedTuple):
    """One compute instance; its handle is good until the board is recut. Slices are of its GPU instance."""

    gpu_instance: int
    compute_instance: int
    uuid: str
    handle: Any
    gpu_slices: int
    slices: int
    memory_mb: int


def is_enabled(handle: Any) -> bool:
    """Whether the board is cut by MIG now. Raises Refused when the driver would not say, BoardLost."""
    try:
        current, _ = call(pynvml.nvmlDeviceGetMigMode, handle)
    except Refused as refusal:
        if refusal.code in {"NOT_SUPPORTED", "FUNCTION_NOT_FOUND"}:
            return False
        raise
    return bool(current == pynvml.NVML_DEVICE_MIG_ENABLE)


class MigInstances:
    """The instances of one board. Several compute instances in one GPU instance are one reading."""

    def __init__(self, board_uuid: str, gpm: Gpm) -> None:
        self._board_uuid = board_uuid
        self._gpm = gpm
        self._profiles: dict[tuple[object, ...], str] = {}

    def read(self, look: Look, board: Any, missing: dict[str, str]) -> tuple[InstanceReading, ...]:
        """All instances by id; what could not be read of the list itself goes to ``missing``."""
        try:
            of_slices = int(call(pynvml.nvmlDeviceGetMaxMigDeviceCount, board))
        except Refused as refusal:
            missing[Part.MIG] = refusal.code
            return ()
        found = sorted(_compute_instances(board, of_slices, missing), key=lambda compute: compute[:2])
        profiles = {_shape(compute): self._profile(compute) for compute in found}
        self._profiles = profiles
        return tuple(
            self._instance(look, board, list(parts), of_slices)
            for _, parts in groupby(found, key=lambda compute: compute.gpu_instance)
        )

    def _instance(self, look: Look, board: Any, parts: list[_Compute], of_slices: int) -> InstanceReading:
        first = parts[0]
        device_id = (self._board_uuid, first.gpu_instance, first.gpu_slices, *(part.uuid for part in parts))
        take = partial(pynvml.nvmlGpmMigSampleGet, board, first.gpu_instance)
        gpm = self._gpm.measure(look, device_id, board, take)
        missing = gpm.missing
        used_bytes, total_bytes = memory_bytes(look, first.handle, missing)
        return InstanceReading(
            gpu_instance=first.gpu_instance,
            compute_instances={part.uuid: part.slices for part in parts},
            slices=first.gpu_slices,
            of_slices=of_slices,
            profile=self._profiles[_shape(first)],
            memory_used_bytes=used_bytes,
            memory_total_bytes=total_bytes,
            activity=gpm.activity,
            processes=_processes(look, parts, missing),
            missing=missing,
        )

    def _profile(self, compute: _Compute) -> str:
        """``3g.40gb`` of ``NVIDIA H100 80GB HBM3 MIG 1c.3g.40gb``; empty when the driver does not say."""
        known = self._profiles.get(_shape(compute))
        if known:
            return known
        try:
            match = _PROFILE.search(call(pynvml.nvmlDeviceGetName, compute.handle))
        except Refused:
            return ""
        return match[1] if match else ""


def _shape(compute: _Compute) -> tuple[object, ...]:
    return (compute.uuid, compute.gpu_slices, compute.slices, compute.memory_mb)


def _compute_instances(board: Any, count: int, missing: dict[str, str]) -> Iterator[_Compute]:
    """NVML numbers them with gaps, so every index is tried."""
    for index in range(count):
        try:
            handle = call(pynvml.nvmlDeviceGetMigDeviceHandleByIndex, board, index)
            yield _compute(handle)
        except Refused as refusal:
            if refusal.code != "NOT_FOUND":
                missing[Part.MIG] = refusal.code


def _compute(handle: Any) -> _Compute:
    attributes = call(pynvml.nvmlDeviceGetAttributes_v2, handle)
    return _Compute(
        gpu_instance=call(pynvml.nvmlDeviceGetGpuInstanceId, handle),
        compute_instance=call(pynvml.nvmlDeviceGetComputeInstanceId, handle),
        uuid=call(pynvml.nvmlDeviceGetUUID, handle),
        handle=handle,
        gpu_slices=attributes.gpuInstanceSliceCount,
        slices=attributes.computeInstanceSliceCount,
        memory_mb=attributes.memorySizeMB,
    )


def _processes(
    look: Look, parts: list[_Compute], missing: dict[str, str]
) -> tuple[ProcessReading, ...] | None:
    if not look.processes:
        return None
    missing[Part.PROCESS_UTILIZATION] = "NOT_SUPPORTED"
    memory: dict[int, int | None] = {}
    try:
        for part in parts:
            memory |= memory_by_pid(part.handle)
    except Refused as refusal:
        missing[Part.PROCESSES] = refusal.code
        return None
    return merged(memory, None)
