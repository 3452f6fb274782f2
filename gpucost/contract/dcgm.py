"""The names of DCGM's fields in dcgm-exporter's output, their units, and which values are plausible.

Three dialects (dcgm-exporter releases 1.x to 4.9): the classic ``DCGM_FI_*`` names; the lower-case ones of
1.x and of ``--use-old-namespace``; and the names in base units that 4.9 brought, which carry their unit
(``_BYTES``, ``_JOULES_TOTAL``, ``_RATIO``). Names are looked up without regard to case.

``DCGM_FI_DEV_GPU_UTIL_RATIO`` is the one name that does not determine its unit: in DCGM 4.6 it is another
spelling of field 203, a whole number of percent, and in 4.7 a field of its own from 0 to 1. ``unit_of``
decides.

Only fields of the GPU itself are in the table. On GPUs that share a module with a CPU (GH200, GB200) the
power of the module and of the CPU, and the CPU's memory, are other fields and stay out; memory is the frame
buffer (``FB_*``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum


class DcgmField(StrEnum):
    """What a value means, under whichever name it is exported. Values are in the base units that ``DcgmUnit``
    names."""

    BUSY = "busy"
    GRAPHICS = "graphics"
    SM = "sm"
    TENSOR = "tensor"
    MEMORY_USED = "memory_used"
    MEMORY_FREE = "memory_free"
    MEMORY_RESERVED = "memory_reserved"
    MEMORY_TOTAL = "memory_total"
    ENERGY = "energy"
    POWER = "power"
    XID = "xid"


class DcgmUnit(StrEnum):
    """The unit a name is exported in. Base units: ratio, bytes, millijoules (as NVML counts), watts."""

    RATIO = "ratio"
    PERCENT = "percent"
    BYTES = "bytes"
    MEBIBYTES = "mebibytes"
    MILLIJOULES = "millijoules"
    JOULES = "joules"
    MICROJOULES = "microjoules"
    WATTS = "watts"
    CODE = "code"


@dataclass(frozen=True, slots=True)
class UnitScale:
    """``per`` of the unit are one base unit; exported values above ``highest`` are corrupt."""

    per: float
    highest: float


@dataclass(frozen=True, slots=True)
class DcgmName:
    """What an exported name means. ``unit`` is None where only the values determine it."""

    field: DcgmField
    unit: DcgmUnit | None


# Activity of a MIG slice may be a little above 1 (NVIDIA/DCGM#152), corrupt percentages are far above 100
# (dcgm-exporter#418). 4 TiB of memory, 5 kW and ten years at 3 kW are above any GPU.
SCALES: Mapping[DcgmUnit, UnitScale] = {
    DcgmUnit.RATIO: UnitScale(1, 1.05),
    DcgmUnit.PERCENT: UnitScale(100, 100),
    DcgmUnit.BYTES: UnitScale(1, 2**42),
    DcgmUnit.MEBIBYTES: UnitScale(2**-20, 2**22),
    DcgmUnit.MILLIJOULES: UnitScale(1, 1e15),
    DcgmUnit.JOULES: UnitScale(1e-3, 1e12),
    DcgmUnit.MICROJOULES: UnitScale(1e3, 1e18),
    DcgmUnit.WATTS: UnitScale(1, 5000),
    DcgmUnit.CODE: UnitScale(1, 999),
}

NAMES: Mapping[str, DcgmName] = {
    "DCGM_FI_DEV_GPU_UTIL": DcgmName(DcgmField.BUSY, DcgmUnit.PERCENT),
    "DCGM_GPU_UTILIZATION": DcgmName(DcgmField.BUSY, DcgmUnit.PERCENT),
    "DCGM_FI_DEV_GPU_UTIL_RATIO": DcgmName(DcgmField.BUSY, None),
    "DCGM_FI_PROF_GR_ENGINE_ACTIVE": DcgmName(DcgmField.GRAPHICS, DcgmUnit.RATIO),
    "DCGM_FI_PROF_GR_ENGINE_UTIL_RATIO": DcgmName(DcgmField.GRAPHICS, DcgmUnit.RATIO),
    "DCGM_FI_PROF_SM_ACTIVE": DcgmName(DcgmField.SM, DcgmUnit.RATIO),
    "DCGM_FI_PROF_SM_UTIL_RATIO": DcgmName(DcgmField.SM, DcgmUnit.RATIO),
    "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE": DcgmName(DcgmField.TENSOR, DcgmUnit.RATIO),
    "DCGM_FI_PROF_TENSOR_UTIL_RATIO": DcgmName(DcgmField.TENSOR, DcgmUnit.RATIO),
    "DCGM_FI_DEV_FB_USED": DcgmName(DcgmField.MEMORY_USED, DcgmUnit.MEBIBYTES),
    "DCGM_FB_USED": DcgmName(DcgmField.MEMORY_USED, DcgmUnit.MEBIBYTES),
    "DCGM_FI_DEV_FB_USED_BYTES": DcgmName(DcgmField.MEMORY_USED, DcgmUnit.BYTES),
    "DCGM_FI_DEV_FB_FREE": DcgmName(DcgmField.MEMORY_FREE, DcgmUnit.MEBIBYTES),
    "DCGM_FB_FREE": DcgmName(DcgmField.MEMORY_FREE, DcgmUnit.MEBIBYTES),
    "DCGM_FI_DEV_FB_FREE_BYTES": DcgmName(DcgmField.MEMORY_FREE, DcgmUnit.BYTES),
    "DCGM_FI_DEV_FB_RESERVED": DcgmName(DcgmField.MEMORY_RESERVED, DcgmUnit.MEBIBYTES),
    "DCGM_FI_DEV_FB_RESERVED_BYTES": DcgmName(DcgmField.MEMORY_RESERVED, DcgmUnit.BYTES),
    "DCGM_FI_DEV_FB_TOTAL": DcgmName(DcgmField.MEMORY_TOTAL, DcgmUnit.MEBIBYTES),
    "DCGM_FB_TOTAL": DcgmName(DcgmField.MEMORY_TOTAL, DcgmUnit.MEBIBYTES),
    "DCGM_FI_DEV_FB_CAPACITY_BYTES": DcgmName(DcgmField.MEMORY_TOTAL, DcgmUnit.BYTES),
    "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION": DcgmName(DcgmField.ENERGY, DcgmUnit.MILLIJOULES),
    "DCGM_TOTAL_ENERGY_CONSUMPTION": DcgmName(DcgmField.ENERGY, DcgmUnit.MILLIJOULES),
    "DCGM_FI_DEV_GPU_ENERGY_JOULES_TOTAL": DcgmName(DcgmField.ENERGY, DcgmUnit.JOULES),
    "DCGM_FI_DEV_POWER_USAGE": DcgmName(DcgmField.POWER, DcgmUnit.WATTS),
    "DCGM_POWER_USAGE": DcgmName(DcgmField.POWER, DcgmUnit.WATTS),
    "DCGM_FI_DEV_BOARD_POWER_WATTS": DcgmName(DcgmField.POWER, DcgmUnit.WATTS),
    "DCGM_FI_DEV_XID_ERRORS": DcgmName(DcgmField.XID, DcgmUnit.CODE),
    "DCGM_XID_ERRORS": DcgmName(DcgmField.XID, DcgmUnit.CODE),
    "DCGM_FI_DEV_XID_ERROR": DcgmName(DcgmField.XID, DcgmUnit.CODE),
}

# These are of the whole GPU even on the row of a MIG slice.
BOARD_FIELDS = frozenset({DcgmField.ENERGY, DcgmField.POWER})
RATIO_FIELDS = frozenset({DcgmField.BUSY, DcgmField.GRAPHICS, DcgmField.SM, DcgmField.TENSOR})

UUID_LABELS = ("UUID", "uuid", "gpu_uuid")
INSTANCE_LABELS = ("GPU_I_ID", "gpu_i_id")
PROFILE_LABELS = ("GPU_I_PROFILE", "gpu_i_profile")
MODEL_LABELS = ("modelName", "model_name")

BLANK_TEXTS = frozenset({"<<<NULL>>>", "<<<NOT_FOUND>>>", "<<<NOT_SUPPORTED>>>", "<<<NOT_PERM>>>"})
_BLANK_INT32 = range(0x7FFFFFF0, 0x7FFFFFF4)
_BLANK_FP64 = range(2**47, 2**47 + 4)
_BLANK_INT64 = float(0x7FFFFFFFFFFFFFF0)  # as a float all four are the same number, 2**63


def is_blank(value: float) -> bool:
    """Whether a number is one of DCGM's codes for "no value" (dcgm_structs.h), exported as if it were a
    value."""
    return value in _BLANK_INT32 or value in _BLANK_FP64 or value == _BLANK_INT64


def unit_of(spelled: Iterable[str]) -> DcgmUnit | None:
    """The unit of one name's values in one scrape, as exported; None when they do not determine it.

    A fraction up to 1.05 is a ratio, because a percentage is a whole number; else a value above 1.05 is a
    percentage; else a decimal point is a ratio, because dcgm-exporter prints fields that are not whole
    numbers with six decimals and whole ones with none. ``1`` alone is ambiguous: 1 % or all of the time. The
    caller then uses the unit that the endpoint had last, and drops the value if there was none: 0 is 0 in
    both units, and a guess would be wrong by a factor of 100.
    """
    values = {text: float(text) for text in spelled}
    ratio, percent = SCALES[DcgmUnit.RATIO].highest, SCALES[DcgmUnit.PERCENT].highest
    if any(0 < value <= ratio and not value.is_integer() for value in values.values()):
        return DcgmUnit.RATIO
    if any(ratio < value <= percent for value in values.values()):
        return DcgmUnit.PERCENT
    if any("." in text and value <= ratio for text, value in values.items()):
        return DcgmUnit.RATIO
    return None
