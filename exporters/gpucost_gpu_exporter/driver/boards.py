"""One physical GPU: what is kept of it between two looks, and one look at it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

import pynvml

from gpucost_gpu_exporter.driver import mig
from gpucost_gpu_exporter.driver.activity import Busy
from gpucost_gpu_exporter.driver.calls import (
    CORRUPT,
    LARGEST_COUNT,
    UNSUPPORTED,
    BoardLost,
    Look,
    Mishaps,
    Refused,
    call,
)
from gpucost_gpu_exporter.driver.gpm import Gpm
from gpucost_gpu_exporter.driver.memory import memory_bytes
from gpucost_gpu_exporter.driver.processes import ProcessShares, memory_by_pid, merged
from gpucost_gpu_exporter.driver.throttling import Throttling
from gpucost_gpu_exporter.readings import Activity, BoardReading, Part, ProcessReading, Signal

Missing = dict[str, str]
Result = TypeVar("Result")


class Board:
    """Known by its UUID for as long as the process lives. ``lost`` is why it does not answer, else empty."""

    def __init__(self, uuid: str, gpm: Gpm, last_us: int | None = None) -> None:
        self.uuid = uuid
        self.busy = Busy(last_us)
        self.lost = ""
        self._gpm = gpm
        self._throttling = Throttling()
        self._shares = ProcessShares(last_us)
        self._mishaps = Mishaps()
        self._instances = mig.MigInstances(uuid, gpm)
        self._handle: Any = None
        self._minor: int | None = None
        self._product = ""
        self._pci_bus_id = ""

    def listed(self, handle: Any) -> None:
        """The driver lists the board, by this handle."""
        self._handle, self.lost = handle, ""
        try:
            self._identify(handle)
        except BoardLost as failure:
            self.lost = failure.code

    def look(self, look: Look, no_xids: str = "") -> BoardReading:
        """What there is to know now. ``no_xids`` is why the board's events cannot be had, else empty."""
        missing = {Part.XID.value: no_xids} if no_xids else {}
        try:
            return self._read(look, missing) if not self.lost else self._lost(look)
        except Exception as error:
            self.lost = self._mishaps.code(self.uuid, error)
            return self._lost(look)

    def _identify(self, handle: Any) -> None:
        """What is refused is asked again the next time that boards are listed."""
        if not self._product:
            with suppress(Refused):
                self._product = call(pynvml.nvmlDeviceGetName, handle)
        if not self._pci_bus_id:
            with suppress(Refused):
                self._pci_bus_id = call(pynvml.nvmlDeviceGetPciInfo_v3, handle).busId
        if self._minor is None:
            with suppress(Refused):
                self._minor = call(pynvml.nvmlDeviceGetMinorNumber, handle)

    def _read(self, look: Look, missing: Missing) -> BoardReading:
        used_bytes, total_bytes = memory_bytes(look, self._handle, missing)
        is_mig = _attempt(missing, Part.MIG, mig.is_enabled, self._handle) or False
        return BoardReading(
            uuid=self.uuid,
            minor=self._minor,
            product=self._product,
            pci_bus_id=self._pci_bus_id,
            mig=is_mig,
            memory_used_bytes=used_bytes,
            memory_total_bytes=total_bytes,
            energy_mj=_attempt(missing, Part.ENERGY, _energy_mj, look, self._handle),
            throttled_ns=_attempt(missing, Part.THROTTLING, self._throttling.measure, look, self._handle)
            or {},
            xids=look.xids.get(self.uuid, ()),
            activity={} if is_mig else self._activity(look, missing),
            instances=self._instances.read(look, self._handle, missing) if is_mig else (),
            processes=self._processes(look, missing) if look.processes and not is_mig else None,
            missing=missing,
        )

    def _lost(self, look: Look) -> BoardReading:
        return BoardReading(
            uuid=self.uuid,
            minor=self._minor,
            product=self._product,
            pci_bus_id=self._pci_bus_id,
            lost=self.lost,
            xids=look.xids.get(self.uuid, ()),
        )

    def _activity(self, look: Look, missing: Missing) -> dict[str, Activity]:
        """Busy time by the driver's samples, by GPM only where those cannot be had; never a blend."""
        gpm = self._gpm.measure(look, (self.uuid,), self._handle, self._take)
        busy = _attempt(missing, Part.BUSY, self.busy.measure, look, self._handle)
        self._shares.keep_up(self.busy.last_us)
        # A passing failure is made up for by the samples after it, so GPM must not count that time too.
        if missing.get(Part.BUSY) in UNSUPPORTED and Signal.BUSY in gpm.activity:
            del missing[Part.BUSY]
        else:
            gpm.activity.pop(Signal.BUSY, None)
        missing |= {part: code for part, code in gpm.missing.items() if part != Part.BUSY}
        return gpm.activity | ({Signal.BUSY.value: busy} if busy else {})

    def _take(self, sample: Any) -> None:
        pynvml.nvmlGpmSampleGet(self._handle, sample)

    def _processes(self, look: Look, missing: Missing) -> tuple[ProcessReading, ...] | None:
        memory = _attempt(missing, Part.PROCESSES, memory_by_pid, self._handle)
        weights = _attempt(missing, Part.PROCESS_UTILIZATION, self._shares.weights, look, self._handle)
        return None if memory is None else merged(memory, weights)


def _attempt(
    missing: Missing, part: Part, function: Callable[..., Result], *arguments: object
) -> Result | None:
    """The function's answer, or None and the reason in ``missing``. Raises BoardLost, DriverGone."""
    try:
        return function(*arguments)
    except Refused as refusal:
        missing[part] = refusal.code
        return None


def _energy_mj(look: Look, handle: Any) -> int:
    energy_mj = int(call(pynvml.nvmlDeviceGetTotalEnergyConsumption, handle))
    if energy_mj > LARGEST_COUNT:
        look.drop()
        raise Refused(CORRUPT)
    return energy_mj
