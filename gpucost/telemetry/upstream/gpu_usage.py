"""The use of GPUs by pod, device and step, for both signals and activity: out of dcgm-exporter, AMD's
exporter and OpenTelemetry's series (``contract.device_dialects``).

Busy time is GPU_UTIL, on MIG instances, which have none, the share of time that the graphics engine was
active. Activity is of the device, so of an instance of 3/7 of a GPU it counts 3/7. Energy is of the whole
GPU, also on the row of an instance: a pod's is the part of the GPU that it held. For a device that pods share
see ``device_claims``. What has no samples is NaN, never 0.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from gpucost.contract.dcgm import DcgmField
from gpucost.contract.device_dialects import DCGM, DIALECTS, DeviceDialect
from gpucost.domain.errors import DataProblem, DataProblemCode
from gpucost.domain.time import SECOND_MS, Window
from gpucost.telemetry.evidence.evidence_rule import BoolArray
from gpucost.telemetry.evidence.gauge_runs import Floats
from gpucost.telemetry.upstream.dcgm_series import DcgmReader, DeviceLevels, DeviceReading
from gpucost.telemetry.upstream.device_claims import (
    ClaimReadings,
    DeviceClaimKey,
    DeviceClaims,
    DeviceEnergy,
    DeviceSharer,
    SharedRowKind,
    kinds_of,
    limited,
    misplaced_ms,
    of_devices,
    recut,
    split,
)
from gpucost.telemetry.upstream.device_subjects import (
    ClusterHoldings,
    DcgmDevice,
    NodeHolders,
    SeriesSubjects,
    field_names,
    has_others,
)
from gpucost.telemetry.upstream.kube_reader import KubeStateReader

MIB = 1 << 20
LAG_MS = 30 * SECOND_MS
"""How old a value may be when it is scraped: by default dcgm-exporter reads GPUs every 30 s."""
_STUCK_BUSY, _STUCK_SCRAPES = 0.5, 3
_RATIOS = (DcgmField.BUSY, DcgmField.GRAPHICS, DcgmField.SM, DcgmField.TENSOR)
_GAUGES = (*_RATIOS, DcgmField.MEMORY_USED)
# The columns that a problem affects, where it does not affect all that it could.
_BUSY, _MEMORY, _ENERGY, _ACTIVITY = "busy time", "memory", "energy", "SM activity, tensor activity"
_ABOUT = {
    DcgmField.BUSY: _BUSY,
    DcgmField.GRAPHICS: _BUSY,
    DcgmField.SM: "SM activity",
    DcgmField.TENSOR: "tensor activity",
    DcgmField.MEMORY_USED: _MEMORY,
    DcgmField.ENERGY: _ENERGY,
    DcgmField.POWER: _ENERGY,
}
_CORRUPT = "samples of {} that no GPU can have are left out"
_UNTOLD = "nothing tells whether DCGM_FI_DEV_GPU_UTIL_RATIO is in percent: its values are left out"
_STUCK = "profiling metrics stood at 0 while the GPU was busy: SM and tensor activity are left out"
_NO_SHARE = "a MIG instance of a profile that is not known for its board: its use is left out"
_UNSPLIT = (
    "dcgm-exporter names one arbitrary pod on a shared GPU: nothing is known of their use; with "
    "KUBERNETES_VIRTUAL_GPUS=true it has a row for each"
)
_ARBITRARY = "{} names one arbitrary pod on a shared GPU: nothing is known of their use"
_OF_THE_GPU = (
    "activity of an AMD GPU in partitions is measured on the first one only, and for the GPU: what the pod "
    "there has of it may be others'"
)
_COPIED = (
    "use of a GPU that several pods share is split by what they held of it: sums of a GPU are right, but "
    "what one pod has of it may be another's"
)
_COPIED_MEMORY = "memory of a GPU that several pods share is split by what they held of it"
_CUT = (
    "energy of a board that is held in parts is split by what was held of it, whoever worked: nothing tells "
    "how much a board draws at rest"
)
_SAMPLED = "use at the edges of what pods held may be off by a scrape interval and the exporter's own"


@dataclass(frozen=True)
class ClaimMeasurement:
    """One field by claim and step: GPU milliseconds observed, NaN where none were, and its amount."""

    observed: Floats
    amount: Floats


@dataclass(frozen=True)
class ClaimUsage:
    """Per claim (rows of ``claims``) and step. Amounts of busy, SM and tensor time are GPU milliseconds, of
    memory MiB seconds, of energy millijoules; ``used`` and ``total`` are bytes of the device."""

    steps: Sequence[Window]
    claims: Sequence[DeviceClaimKey]
    nodes: Sequence[str]
    held: Floats
    busy: ClaimMeasurement
    sm: ClaimMeasurement
    tensor: ClaimMeasurement
    memory: ClaimMeasurement
    memory_total: Floats
    energy: ClaimMeasurement
    used: Floats
    total: Floats
    problems: Sequence[DataProblem]


def read_use(
    reader: KubeStateReader,
    window: Window,
    holdings: ClusterHoldings,
    step_ms: int,
    dialects: Sequence[DeviceDialect] = DIALECTS,
    known: Collection[str] = (),
) -> Iterator[ClaimUsage]:
    """In steps of equal length, which are aligned to the epoch and cut at the window's edges. A pod's use is
    that of the first of ``dialects`` which tells it; of pods in ``known`` it is told already."""
    told = set(known)
    for dialect in dialects:
        names = field_names(reader, window, dialect)
        if not names and dialect is not DCGM:
            continue
        found = set[str]()
        for _, group in groupby(window.split(step_ms), key=lambda step: step.length_ms):
            use = _Reading(reader, [*group], holdings.without(told), names, dialect, told).use()
            found |= {uid for _, uid in use.claims}
            yield use
        told |= found


class _Reading:
    """The reading of steps of one length."""

    def __init__(
        self,
        reader: KubeStateReader,
        steps: Sequence[Window],
        holdings: ClusterHoldings,
        names: Mapping[DcgmField, Sequence[str]],
        dialect: DeviceDialect,
        told: Collection[str],
    ) -> None:
        self._cluster = reader.cluster
        self._settings = reader.existing
        self._steps = steps
        self._whole = Window(steps[0].start_ms, steps[-1].end_ms)
        self._length = steps[0].length_ms
        self._dialect = dialect
        self._holdings = holdings = holdings if dialect is DCGM else holdings.by_partition()
        self._names = names
        self._holders: NodeHolders | None = None
        if not dialect.names_pods:
            every = [name for each in names.values() for name in each]
            self._holders = NodeHolders(reader, self._whole, holdings, dialect, every, told)
        self._subjects = SeriesSubjects(reader, holdings, self._whole, dialect, self._holders)
        self._read = DcgmReader(reader, steps, self._subjects)
        self._read.gauges_ahead(
            name for field in _GAUGES if field is not DcgmField.GRAPHICS for name in names.get(field, ())
        )
        self._gauges = {
            field: self._read.gauge(names.get(field, ()) if field is not DcgmField.GRAPHICS else ())
            for field in _GAUGES
        }
        if self._lacks_busy():
            self._gauges[DcgmField.GRAPHICS] = self._read.gauge(names.get(DcgmField.GRAPHICS, ()))
        self._energy = self._read_energy()
        readings = [*self._gauges.values(), self._energy]
        self._claims = DeviceClaims(
            (key for each in readings for key in each.keys),
            self._subjects,
            holdings,
            self._settings,
            steps,
        )
        for field in _GAUGES:
            wanted = names.get(field, ())
            self._gauges[field] = recut(self._read, wanted, self._gauges[field], self._claims)
        readings = [*self._gauges.values(), self._energy]
        self._kinds = kinds_of(self._claims, readings, self._length, self._read.interval_ms)
        self._rows: dict[DcgmDevice, list[int]] = {}
        for (device, _), row in self._claims.at.items():
            self._rows.setdefault(device, []).append(row)
        self._claimed = [*self._claims.of.values()]
        self._shares = np.array([each.share for each in self._claimed]).reshape(-1, 1)
        uids = [uid for _, uid in self._claims.of]
        pods = {uid: at for at, uid in enumerate(dict.fromkeys(uids))}
        self._of_pod = np.array([pods[uid] for uid in uids], dtype=np.int64)
        self._caps = np.array([self._claims.caps[uid] for uid in pods]).reshape(-1, len(steps))
        self._is_part = [self._subjects.parts(device) is not None for device, _ in self._claims.of]
        # By field, GPU time of use that was split, so that it may be another pod's.
        self._unsure: dict[DcgmField, Floats] = {}

    def use(self) -> ClaimUsage:
        used = {field: self._claims.of_reading(reading) for field, reading in self._gauges.items()}
        stuck = self._stuck(used)
        ratios = {field: self._ratio(field, used[field]) for field in _RATIOS}
        busy, graphics, sm, tensor = (ratios[field] for field in _RATIOS)
        dropped_ms = float(np.nansum(np.where(stuck, np.fmax(sm.observed, tensor.observed), 0.0)))
        sm, tensor = (
            ClaimMeasurement(*(np.where(stuck, np.nan, each) for each in (one.observed, one.amount)))
            for one in (sm, tensor)
        )
        # A device has one of the two; the share of time with a kernel running is the better one.
        lacks = np.isnan(busy.observed)
        busy = ClaimMeasurement(
            np.where(lacks, graphics.observed, busy.observed), np.where(lacks, graphics.amount, busy.amount)
        )
        memory, memory_total, peak, total = self._memory(used[DcgmField.MEMORY_USED])
        unsure = np.where(lacks, self._unsure[DcgmField.GRAPHICS], self._unsure[DcgmField.BUSY])
        energy, misplaced = self._energy_of(np.where(unsure > 0, np.nan, busy.amount))
        return ClaimUsage(
            self._steps,
            [*self._claims.of],
            [each.node for each in self._claims.of.values()],
            self._held(used),
            busy,
            sm,
            tensor,
            memory,
            memory_total,
            energy,
            peak,
            total,
            [
                *self._problems(dropped_ms),
                *self._split_problems(busy, misplaced, self._memory_unsure_ms(used, total)),
            ],
        )

    def _lacks_busy(self) -> bool:
        """Whether any device may have only the activity of its graphics engine, which is expensive to
        read."""
        graphics, busy = (self._names.get(field, ()) for field in (DcgmField.GRAPHICS, DcgmField.BUSY))
        if not graphics or not busy:
            return bool(graphics)
        devices: dict[DcgmDevice, int] = {}
        rows = [
            [devices.setdefault(key.device, len(devices)) for key in reading.keys]
            for reading in self._gauges.values()
        ]
        seen = np.zeros((2, len(devices), len(self._steps)))
        for (field, reading), of in zip(self._gauges.items(), rows, strict=True):
            np.maximum.at(seen[int(field is DcgmField.BUSY)], of, reading.observed)
        # What was read may tell it; only else the server is asked.
        if ((seen[0] > 0) & (seen[1] == 0)).any():
            return True
        return has_others(self._read.reader, self._whole, graphics, busy)

    def _read_energy(self) -> DeviceReading:
        """The energy counter; for GPUs without one, power times time, which has the same unit."""
        counted = self._read.counter(self._names.get(DcgmField.ENERGY, ()))
        boards = {key.device[0] for key, row in counted.keys.items() if counted.observed[row].any()}
        lacking = any(key.device[0] not in boards for each in self._gauges.values() for key in each.keys)
        names = self._names.get(DcgmField.POWER, ())
        if not lacking or not names:
            return counted
        power = self._read.gauge(names, self._without(boards, names))
        taken = [(counted, key, row) for key, row in counted.keys.items() if key.device[0] in boards]
        taken += [(power, key, row) for key, row in power.keys.items() if key.device[0] not in boards]
        grids = (
            np.array([getattr(of, name)[row] for of, _, row in taken]).reshape(-1, len(self._steps))
            for name in ("observed", "amount", "peak")
        )
        return DeviceReading({key: row for row, (_, key, _) in enumerate(taken)}, *grids)

    def _without(self, boards: Collection[str], names: Sequence[str]) -> Collection[str] | None:
        """Keys of the devices with series of ``names`` that are not of ``boards``; None where most are."""
        reader, labels = self._read.reader, self._dialect.keys
        span = self._whole.start_ms, self._whole.end_ms
        every = {key for label in labels for key in reader.label_values(label, reader.select(names), *span)}
        found = every - {key for device, key in self._subjects.keys.items() if device[0] in boards}
        return found if 2 * len(found) <= len(every) else None

    def _parts(self, used: ClaimReadings) -> Floats:
        """Per claim, its part of its device; 0 where the pod of a reading is unknown."""
        parts = np.ones(used.observed.shape)
        for device, kind in self._kinds.items():
            rows = self._rows.get(device, [])
            if kind is SharedRowKind.ARBITRARY:
                parts[rows] = 0.0
                continue
            claimed = [self._claimed[row] for row in rows]
            copies = np.maximum(used.copies[rows], 1.0)
            replicas = max((each.replicas for each in claimed), default=1)
            if replicas == 1:
                replicas = max(1, round(float((used.copies[rows]).sum(axis=0).max(initial=1.0))))
            for n, row in enumerate(rows):
                parts[row] = np.minimum(copies[n], max(claimed[n].count, 1)) / replicas
        return parts

    def _amounts(self, used: ClaimReadings, reading: DeviceReading, parts: Floats) -> tuple[Floats, Floats]:
        """Per claim, in the device's unit: copies of a shared device's value are split. Also, how much of it
        may be another pod's."""
        amounts, unsure = used.amount.copy(), np.zeros(used.amount.shape)
        if not self._kinds:
            return amounts, unsure
        own = of_devices(reading, self._kinds, self._read.interval_ms, self._length)
        for device, kind in self._kinds.items():
            rows = self._rows.get(device, [])
            if kind is SharedRowKind.ARBITRARY or not rows:
                continue
            if device in own:
                amounts[rows] = limited(used, rows, own[device])
            else:
                members = [DeviceSharer(self._claimed[row], row, parts[row]) for row in rows]
                amounts[rows], unsure[rows] = split(used, members, self._steps)
        return amounts, unsure

    def _ratio(self, field: DcgmField, used: ClaimReadings) -> ClaimMeasurement:
        parts = self._parts(used)
        amounts, unsure = self._amounts(used, self._gauges[field], parts)
        self._unsure[field] = unsure * self._shares
        amounts = np.minimum(amounts, used.observed)
        return self._capped(used.observed * parts * self._shares, amounts * self._shares)

    def _energy_of(self, busy: Floats) -> tuple[ClaimMeasurement, float]:
        """Energy split by what was held of a GPU, and how far that may be off, in GPU milliseconds."""
        used = self._claims.of_reading(self._energy)
        parts = self._parts(used) * self._shares
        boards = [uuid for (uuid, _), _ in self._claims.of]
        off_ms = misplaced_ms(
            boards, DeviceEnergy(used.amount, used.observed, parts, busy, self._claims.held)
        )
        return self._capped(used.observed * parts, used.amount * parts), off_ms

    def _memory_unsure_ms(self, used: Mapping[DcgmField, ClaimReadings], total: Floats) -> float:
        """GPU time of memory of shared devices that no row gives per pod, times the part in use."""
        of = used[DcgmField.MEMORY_USED]
        own = of_devices(
            self._gauges[DcgmField.MEMORY_USED], self._kinds, self._read.interval_ms, self._length
        )
        found = 0.0
        for device, kind in self._kinds.items():
            rows = self._rows.get(device, [])
            if kind is SharedRowKind.COPIES and device not in own and rows:
                in_use = of.amount[rows] / np.fmax(total[rows], 1.0)
                known = np.where(np.isnan(total[rows]), of.observed[rows], in_use)
                found += float((known * self._shares[rows]).max(axis=0).sum())
        return found

    def _memory(self, used: ClaimReadings) -> tuple[ClaimMeasurement, Floats, Floats, Floats]:
        """Memory measured; the memory that existed; the peak, and the total, of each device in bytes."""
        reading = self._gauges[DcgmField.MEMORY_USED]
        parts = self._parts(used)
        own = of_devices(reading, self._kinds, self._read.interval_ms, self._length) if self._kinds else {}
        amounts = used.amount * parts
        peak = used.peak.copy()
        most: dict[DcgmDevice, Floats] = {}
        for key, row in reading.keys.items():
            if key.device in self._kinds:
                most[key.device] = np.fmax(most.get(key.device, reading.peak[row]), reading.peak[row])
        for device, kind in self._kinds.items():
            rows = self._rows.get(device, [])
            if device in own and rows and kind is SharedRowKind.COPIES:
                amounts[rows] = limited(used, rows, own[device])
            if rows and device in most:
                peak[rows] = np.where(used.observed[rows] > 0, most[device], np.nan)
        total = self._totals(reading)
        per = SECOND_MS * MIB
        measured = self._capped(used.observed * parts * self._shares, amounts / per)
        known = np.isfinite(measured.observed)
        fits = measured.observed / np.maximum(used.observed * parts * self._shares, 1e-9)
        whole = np.where(known, total * used.observed * parts / per * fits, np.nan)
        return measured, whole, np.where(known, peak, np.nan), np.where(known, total, np.nan)

    def _totals(self, reading: DeviceReading) -> Floats:
        """Bytes of the device of each claim: the reported total, or the sum of used, free and reserved."""
        told, free, reserved = self._levels(reading)
        keys = [*reading.keys]
        devices: dict[DcgmDevice, int] = {}
        for key in (*keys, *free.keys, *told.keys):
            devices.setdefault(key.device, len(devices))
        nothing = np.full((len(devices) + 1, len(self._steps)), np.nan)
        of_device, whole = nothing.copy(), nothing
        np.fmax.at(of_device, [devices[key.device] for key in free.keys], free.means)
        used = np.where(reading.observed > 0, reading.amount / np.maximum(reading.observed, 1e-9), np.nan)
        of = np.array([devices[key.device] for key in keys], dtype=np.int64)
        # The device's own row, beside those of pods, may have used memory alone.
        is_alone = [not key.uids and key not in free.keys for key in keys]
        left = np.where(np.array(is_alone, dtype=np.bool_)[:, None], of_device[of], free.of(keys))
        np.fmax.at(whole, of, used + left + np.nan_to_num(reserved.of(keys)))
        for key, row in told.keys.items():
            at = devices[key.device]
            whole[at] = np.where(np.isfinite(told.means[row]), told.means[row], whole[at])
        # The last row is of devices without.
        rows = [devices.get(device, len(devices)) for device, _ in self._claims.of]
        return whole[np.array(rows, dtype=np.int64)]

    def _levels(self, reading: DeviceReading) -> tuple[DeviceLevels, DeviceLevels, DeviceLevels]:
        """The total, free and reserved memory of each device; free and reserved only where any device that
        was read lacks its total."""
        fields = DcgmField.MEMORY_TOTAL, DcgmField.MEMORY_FREE, DcgmField.MEMORY_RESERVED
        names = [self._names.get(field, ()) for field in fields]
        told = self._read.levels(names[0])
        known: dict[DcgmDevice, BoolArray] = {}
        none = np.zeros(len(self._steps), dtype=np.bool_)
        for key, row in told.keys.items():
            known[key.device] = known.get(key.device, none) | np.isfinite(told.means[row])
        seen = reading.observed > 0
        if all(known.get(key.device, none)[seen[row]].all() for key, row in reading.keys.items()):
            no_levels = self._read.levels(())
            return told, no_levels, no_levels
        return told, self._read.levels(names[1]), self._read.levels(names[2])

    def _held(self, used: Mapping[DcgmField, ClaimReadings]) -> Floats:
        """GPU time held of each device, where anything of it was read."""
        copies = np.fmax.reduce([each.copies for each in used.values()])
        longest = np.fmax.reduce([each.observed for each in used.values()])
        of_any = ClaimReadings(longest, longest, longest, copies)
        held: Floats = self._claims.held * self._parts(of_any) * self._shares
        return np.where(longest > 0, held, 0.0)

    def _capped(self, observed: Floats, amount: Floats) -> ClaimMeasurement:
        """At most what the pod's units were; NaN where nothing was observed."""
        totals = np.zeros(self._caps.shape)
        np.add.at(totals, self._of_pod, observed)
        fits = np.minimum(1.0, self._caps / np.maximum(totals, 1e-9))[self._of_pod].reshape(observed.shape)
        known = observed * fits > 0
        return ClaimMeasurement(
            np.where(known, observed * fits, np.nan), np.where(known, amount * fits, np.nan)
        )

    def _stuck(self, used: Mapping[DcgmField, ClaimReadings]) -> Floats:
        """Devices on which profiling metrics do not work: all of them are 0 while a kernel runs most of the
        time."""
        busy, graphics, sm, tensor = (used[field] for field in _RATIOS)
        enough = busy.observed >= _STUCK_SCRAPES * self._read.interval_ms
        is_busy = enough & (busy.amount > _STUCK_BUSY * np.maximum(busy.observed, 1.0))
        is_still = is_busy & ((sm.observed > 0) | (tensor.observed > 0))
        is_still &= (sm.amount == 0) & (tensor.amount == 0)
        names = self._names.get(DcgmField.GRAPHICS, ())
        if is_still.any() and names and not self._gauges[DcgmField.GRAPHICS].keys:
            # Only here the activity of the graphics engine matters too.
            read = recut(self._read, names, self._read.gauge(names), self._claims)
            graphics = self._claims.of_reading(read)
        found: Floats = is_still & (graphics.amount == 0) & ((graphics.observed > 0) | (sm.observed > 0))
        return found

    def _problems(self, stuck_ms: float) -> list[DataProblem]:
        corrupt: dict[str, float] = {}
        for field, ms in self._read.dropped.items():
            corrupt[_ABOUT[field]] = corrupt.get(_ABOUT[field], 0.0) + ms
        told = [
            *((_CORRUPT.format(self._dialect.what), about, ms) for about, ms in corrupt.items()),
            (_UNTOLD, _BUSY, self._read.untold_ms),
            (_STUCK, _ACTIVITY, stuck_ms),
        ]
        found = [
            self._problem(DataProblemCode.USE_DROPPED, text, ms, about) for text, about, ms in told if ms >= 1
        ]
        if self._claims.unknown:
            found.append(self._problem(DataProblemCode.USE_DROPPED, _NO_SHARE, None))
        unsplit, sampled = self._unsplit_ms(), self._sampled_ms()
        if unsplit >= 1:
            text = _UNSPLIT if self._dialect is DCGM else _ARBITRARY.format(self._dialect.what)
            found.append(self._problem(DataProblemCode.USE_UNSPLIT, text, unsplit))
        if sampled >= 1:
            found.append(self._problem(DataProblemCode.USE_SAMPLED, _SAMPLED, sampled))
        if self._holders is not None:
            found += self._holders.problems()
        return found

    def _split_problems(
        self, busy: ClaimMeasurement, energy_ms: float, memory_ms: float
    ) -> list[DataProblem]:
        """Problems for readings that were split by what was held, since no row gave them per pod."""
        busy_ms = max((float(each.sum()) for each in self._unsure.values()), default=0.0)
        first_ms = float(np.nansum(busy.observed[self._is_part]))
        told = [
            (_COPIED, f"{_BUSY}, {_ACTIVITY}", busy_ms),
            (_OF_THE_GPU, f"{_BUSY}, {_ACTIVITY}", first_ms),
            (_COPIED_MEMORY, _MEMORY, memory_ms),
            (_CUT, _ENERGY, energy_ms),
        ]
        return [
            self._problem(DataProblemCode.USE_UNSPLIT, text, ms, about) for text, about, ms in told if ms >= 1
        ]

    def _problem(
        self, code: DataProblemCode, detail: str, board_ms: float | None, about: str = ""
    ) -> DataProblem:
        ms = None if board_ms is None else round(board_ms)
        return DataProblem(code, self._cluster, about or self._cluster, detail, ms, self._whole.start_ms)

    def _unsplit_ms(self) -> float:
        """GPU time of holders of parts of devices whose readings cannot be assigned to one pod."""
        shares: dict[str, float] = {}
        split_up: set[str] = set()
        for (device, uid), claimed in self._claims.of.items():
            kind = self._kinds.get(device)
            if kind is SharedRowKind.ARBITRARY:
                shares[claimed.node] = max(shares.get(claimed.node, 0.0), claimed.share)
            elif kind is not None:
                split_up.add(uid)
        return sum(
            self._whole.overlap_ms(hold.start_ms, hold.end_ms)
            * hold.count
            * shares[hold.node]
            / hold.replicas
            for hold in self._holdings
            if hold.replicas > 1 and hold.node in shares and hold.pod_uid not in split_up
        )

    def _sampled_ms(self) -> float:
        """The scrape interval and the exporter's own at each end of what was held of a device, as GPU
        time."""
        each_ms = self._read.interval_ms + LAG_MS
        found = 0.0
        for (device, _), claimed in self._claims.of.items():
            if self._kinds.get(device) is SharedRowKind.ARBITRARY:
                continue
            edges = sum(
                self._whole.start_ms < edge < self._whole.end_ms
                for stretch in claimed.stretches
                for edge in stretch
            )
            found += edges * each_ms * claimed.share * min(claimed.count, claimed.replicas) / claimed.replicas
        return found
