"""What the GPU exporter's accounts and readings say, where nothing but a test asks."""

from __future__ import annotations

from collections.abc import Iterator

from gpucost.contract.dcgm import DcgmField
from gpucost.contract.gpu_metrics import GpuMeasure
from gpucost_gpu_exporter.dcgm.scrapes import DcgmState
from gpucost_gpu_exporter.metering.accounts import GpuAccounts
from gpucost_gpu_exporter.model.holdings import DeviceKey, dyadic


def power_w(known: DcgmState, gpu_uuid: str, now_ns: int) -> float | None:
    """Watts drawn by the whole GPU."""
    age_ns = known.age_ns(now_ns)
    is_fresh = age_ns is not None and age_ns <= known.max_age_ns
    return known.values.get(DeviceKey(gpu_uuid), {}).get(DcgmField.POWER) if is_fresh else None


def differences(accounts: GpuAccounts) -> Iterator[tuple[str, GpuMeasure, int]]:
    """(GPU, measure, GPU minus holders and retired), where it is not 0: nowhere, ever.

    Energy is known of GPUs only, so all is added up by GPU.
    """
    left: dict[tuple[str, GpuMeasure], int] = {}
    for gpu, totals in accounts.gpus.items():
        for measure, base in totals.items():
            place = gpu.gpu_uuid, measure
            left[place] = left.get(place, 0) + dyadic(measure, base)
    parts = [(row.device, amounts) for row, amounts in accounts.rows.items()]
    for device, amounts in (*parts, *accounts.retired.items()):
        for measure, amount in amounts.items():
            place = device.gpu_uuid, measure
            left[place] = left.get(place, 0) - amount
    return ((uuid, measure, rest) for (uuid, measure), rest in left.items() if rest)
