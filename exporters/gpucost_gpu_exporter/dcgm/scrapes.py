"""The texts of the node's dcgm-exporter: read line by line, for how long their values count, and where they
contradict themselves.

Pure. Prometheus's own parser refuses the whole text for one line like ``… ERROR - FAILED TO CONVERT TO
STRING``, which dcgm-exporter prints for fields that are no numbers; and label values are printed without
escaping, so a quote may stand inside one. Here one bad line costs that line and nothing else: the value is
what follows the last brace, and of the labels only those that identify the device are read. They are printed
first, before any that a user can choose.

dcgm-exporter collects every 30 s by default and prints the last value it has, without a time, so a value is
up to that much older than the scrape it came in. A ``DcgmState`` is never changed; a scrape makes the next
one. Missing is None, never 0.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import islice
from typing import TypeVar

from gpucost.contract.dcgm import (
    BLANK_TEXTS,
    BOARD_FIELDS,
    INSTANCE_LABELS,
    NAMES,
    RATIO_FIELDS,
    SCALES,
    UUID_LABELS,
    DcgmField,
    DcgmName,
    DcgmUnit,
    is_blank,
    unit_of,
)
from gpucost_gpu_exporter.model.holdings import DeviceKey
from gpucost_gpu_exporter.model.readings import GpuSignal

MAX_BYTES = 4 * 2**20
MAX_DEVICES = 1_024
MAX_NUMBER = 40
"""Characters of a number; dcgm-exporter prints 20 at most."""
NO_UNITS: Mapping[str, DcgmUnit] = {}

_NUMBER = re.compile(r"[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:e[+-]?\d+)?|[+-]?(?:nan|inf|infinity)", re.I | re.A)
_UUID = re.compile(r"[A-Za-z0-9-]{1,96}")
_INSTANCE = re.compile(r"\d{1,3}", re.A)
K = TypeVar("K")
V = TypeVar("V")

MAX_AGE_NS = 60 * 10**9
STUCK_AFTER = 3
STUCK_BUSY = 0.5
# Kept beyond the GPUs of the last scrape: far more than a node has.
MAX_ABSENT = 64
MAX_XIDS = 4_096

_PROFILED = (DcgmField.GRAPHICS, DcgmField.SM, DcgmField.TENSOR)
_BOARD_SIGNALS = {
    GpuSignal.BUSY: DcgmField.BUSY,
    GpuSignal.SM: DcgmField.SM,
    GpuSignal.TENSOR: DcgmField.TENSOR,
}
_SLICE_SIGNALS = {**_BOARD_SIGNALS, GpuSignal.BUSY: DcgmField.GRAPHICS}


class DcgmDropReason(StrEnum):
    """Why a line was not used."""

    UNPARSABLE = "unparsable"
    BLANK = "blank"
    NOT_FINITE = "not_finite"
    NEGATIVE = "negative"
    OUT_OF_RANGE = "out_of_range"
    UNIT_UNKNOWN = "unit_unknown"
    NO_UUID = "no_uuid"
    BAD_INSTANCE = "bad_instance"
    TOO_LARGE = "too_large"
    TOO_MANY_DEVICES = "too_many_devices"


@dataclass(frozen=True, slots=True)
class DcgmScrape:
    """One scrape. ``values`` are in base units, by device; a field without a believable row is absent.

    Activity is 0 to 1, on a MIG instance relative to the instance. Energy and power stand under the GPU only.
    ``dropped`` counts the lines thrown away; lines of families that are not in the table count only when they
    cannot be read at all. ``samples`` is the number of lines that are no comment. ``units`` is what is known
    so far about names whose unit differs between versions, for the next ``parse``.
    """

    values: Mapping[DeviceKey, Mapping[DcgmField, float]]
    dropped: Counter[DcgmDropReason]
    samples: int
    units: Mapping[str, DcgmUnit]

    @property
    def is_empty(self) -> bool:
        """True when dcgm-exporter answers 200 with nothing in it, as it does while it reloads or GPUs come
        and go."""
        return self.samples == 0


@dataclass(frozen=True, slots=True)
class _SampleRow:
    name: str
    meaning: DcgmName
    device: DeviceKey
    text: str


def parse(text: str, units: Mapping[str, DcgmUnit] = NO_UNITS) -> DcgmScrape:
    """Read a text. Never raises: what is wrong is dropped and counted.

    Rows of one device and field are collapsed to the largest: the copies per virtual GPU, HPC job or replica
    of an exporter equal each other, and since 4.8.2 rows per pod stand beside the device's own, of which they
    are a part. A last line without a line feed was cut off, and is dropped. ``units`` is what the scrape
    before returned.
    """
    if len(text) > MAX_BYTES:
        return DcgmScrape({}, Counter({DcgmDropReason.TOO_LARGE: 1}), 0, units)
    *whole, cut_off = text.split("\n")
    lines = [line for line in whole if line.strip() and not line.lstrip().startswith("#")]
    found = [_row(line) for line in lines]
    dropped = Counter(row for row in found if isinstance(row, DcgmDropReason))
    if cut_off.strip():
        dropped[DcgmDropReason.UNPARSABLE] += 1
    rows = [row for row in found if isinstance(row, _SampleRow)]
    learned = {**units, **_learn(rows)}
    values = _collapse(rows, learned, dropped)
    return DcgmScrape(values, dropped, len(lines) + bool(cut_off.strip()), learned)


def _row(line: str) -> _SampleRow | DcgmDropReason | None:
    """One line (name, labels, value, perhaps a time); None when its family is not in the table."""
    before, brace, after = line.rpartition("}")
    if brace:
        name, _, labels = before.partition("{")
    else:
        name, _, after = line.strip().partition(" ")
        labels = ""
    if after.strip() in BLANK_TEXTS:
        return DcgmDropReason.BLANK
    words = after.split()
    if not 1 <= len(words) <= 2 or not all(map(_is_number, words)):
        return DcgmDropReason.UNPARSABLE
    meaning = NAMES.get(name.strip().upper())
    if meaning is None:
        return None
    device = _device(labels, meaning.field)
    return device if isinstance(device, DcgmDropReason) else _checked(name, meaning, device, words[0])


def _is_number(word: str) -> bool:
    return len(word) <= MAX_NUMBER and _NUMBER.fullmatch(word) is not None


def _checked(name: str, meaning: DcgmName, device: DeviceKey, number: str) -> _SampleRow | DcgmDropReason:
    value = float(number)
    if not math.isfinite(value):
        return DcgmDropReason.NOT_FINITE
    if value < 0:
        return DcgmDropReason.NEGATIVE
    if is_blank(value):
        return DcgmDropReason.BLANK
    return _SampleRow(name.strip().upper(), meaning, device, number)


def _device(labels: str, field: DcgmField) -> DeviceKey | DcgmDropReason:
    uuid, instance = _label(labels, _UUID_LABEL), _label(labels, _INSTANCE_LABEL)
    if not _UUID.fullmatch(uuid):
        return DcgmDropReason.NO_UUID
    if instance and not _INSTANCE.fullmatch(instance):
        return DcgmDropReason.BAD_INSTANCE
    return DeviceKey(uuid, "" if field in BOARD_FIELDS else instance)


def _finder(names: Iterable[str]) -> re.Pattern[str]:
    return re.compile(rf'(?:^|,)\s*(?:{"|".join(names)})\s*=\s*"([^"]*)"')


_UUID_LABEL, _INSTANCE_LABEL = _finder(UUID_LABELS), _finder(INSTANCE_LABELS)


def _label(labels: str, finder: re.Pattern[str]) -> str:
    """The first value of a label; empty when it is absent, empty, or DCGM's word for absent."""
    found = finder.search(labels)
    return "" if found is None or found[1] in BLANK_TEXTS else found[1]


def _learn(rows: Iterable[_SampleRow]) -> dict[str, DcgmUnit]:
    spelled: dict[str, set[str]] = {}
    for row in rows:
        if row.meaning.unit is None:
            spelled.setdefault(row.name, set()).add(row.text)
    told = {name: unit_of(texts) for name, texts in spelled.items()}
    return {name: unit for name, unit in told.items() if unit is not None}


def _collapse(
    rows: Iterable[_SampleRow], units: Mapping[str, DcgmUnit], dropped: Counter[DcgmDropReason]
) -> dict[DeviceKey, dict[DcgmField, float]]:
    values: dict[DeviceKey, dict[DcgmField, float]] = {}
    for row in rows:
        if row.device not in values and len(values) >= MAX_DEVICES:
            dropped[DcgmDropReason.TOO_MANY_DEVICES] += 1
            continue
        value = _in_base_units(row, row.meaning.unit or units.get(row.name))
        if isinstance(value, DcgmDropReason):
            dropped[value] += 1
            continue
        of_device = values.setdefault(row.device, {})
        of_device[row.meaning.field] = max(value, of_device.get(row.meaning.field, 0.0))
    return values


def _in_base_units(row: _SampleRow, unit: DcgmUnit | None) -> float | DcgmDropReason:
    printed = float(row.text)
    if printed > SCALES[unit or DcgmUnit.PERCENT].highest:
        return DcgmDropReason.OUT_OF_RANGE
    if unit is None:
        return DcgmDropReason.UNIT_UNKNOWN if printed else 0.0
    value = printed / SCALES[unit].per
    return min(value, 1.0) if row.meaning.field in RATIO_FIELDS else value


class DcgmProblem(StrEnum):
    """Why a signal of a device has no value."""

    MISSING = "missing"
    STALE = "stale"
    PROF_STUCK = "prof_stuck"


@dataclass(frozen=True, slots=True)
class FrameBufferMemory:
    """Bytes of the frame buffer. ``total`` is None when neither printed nor the sum of printed parts."""

    used_bytes: int | None
    total_bytes: int | None


@dataclass(frozen=True, slots=True)
class DcgmXidCounts:
    """How often a code newly showed on a GPU since this state began, and when last."""

    count: int
    last_ns: int


@dataclass(frozen=True, slots=True)
class DcgmState:
    """What is known after the scrapes so far; all instants are of the caller's clock, in ns.

    ``values`` are those of the last scrape that had any, at ``at_ns``: a row that was not in it is gone,
    while an empty answer takes nothing away and lets the last values grow old. ``xids`` is keyed by
    (GPU UUID, code). By GPU UUID, ``latched`` are the XID codes shown last, and ``strikes`` counts the
    scrapes in a row in which its profiling counters looked stuck. Of GPUs that are not in the last scrape
    the latest ``MAX_ABSENT`` are remembered.
    """

    max_age_ns: int = MAX_AGE_NS
    at_ns: int | None = None
    values: Mapping[DeviceKey, Mapping[DcgmField, float]] = field(default_factory=dict)
    units: Mapping[str, DcgmUnit] = field(default_factory=dict)
    xids: Mapping[tuple[str, int], DcgmXidCounts] = field(default_factory=dict)
    latched: Mapping[str, frozenset[int]] = field(default_factory=dict)
    strikes: Mapping[str, int] = field(default_factory=dict)

    def after(self, parsed: DcgmScrape, now_ns: int) -> DcgmState:
        """The state once this scrape has come in."""
        if not parsed.values:
            return replace(self, units=parsed.units)
        boards = _by_board(parsed.values)
        codes = {uuid: _codes(rows) for uuid, rows in boards.items()}
        strikes = {uuid: _strikes_after(self.strikes.get(uuid, 0), rows) for uuid, rows in boards.items()}
        return replace(
            self,
            at_ns=now_ns,
            values=parsed.values,
            units=parsed.units,
            xids=_counted(self.xids, self.latched, codes, now_ns),
            latched=_remembered(self.latched, codes, MAX_ABSENT),
            strikes=_remembered(self.strikes, strikes, MAX_ABSENT),
        )

    @property
    def devices(self) -> frozenset[DeviceKey]:
        """GPUs and MIG instances with a row of their own, not only the GPU's energy and power."""
        return frozenset(key for key, row in self.values.items() if row.keys() - BOARD_FIELDS)

    def age_ns(self, now_ns: int) -> int | None:
        """How long ago the values came in; None before the first."""
        return None if self.at_ns is None else max(0, now_ns - self.at_ns)

    def ratio(self, device: DeviceKey, signal: GpuSignal, now_ns: int) -> float | None:
        """The part of the time a device was active, 0 to 1; of a MIG instance, relative to it.

        Busy is ``GPU_UTIL`` on a GPU and the graphics engine's activity on a MIG instance, which has no
        ``GPU_UTIL``. None when there is a ``problem``.
        """
        if self.problem(device, signal, now_ns) is not None:
            return None
        return self.values[device][_field(device, signal)]

    def problem(self, device: DeviceKey, signal: GpuSignal, now_ns: int) -> DcgmProblem | None:
        """Why ``ratio`` has no value; None when it has one."""
        wanted = _field(device, signal)
        if wanted not in self.values.get(device, {}):
            return DcgmProblem.MISSING
        if not self._is_fresh(now_ns):
            return DcgmProblem.STALE
        if wanted in _PROFILED and self.strikes.get(device.gpu_uuid, 0) >= STUCK_AFTER:
            return DcgmProblem.PROF_STUCK
        return None

    def problems(self, now_ns: int) -> dict[tuple[DeviceKey, GpuSignal], DcgmProblem]:
        """Every signal of every device that has no value, and why."""
        pairs = ((device, signal) for device in self.devices for signal in GpuSignal)
        found = {pair: self.problem(*pair, now_ns) for pair in pairs}
        return {pair: problem for pair, problem in found.items() if problem is not None}

    def energy_mj(self, gpu_uuid: str, now_ns: int) -> int | None:
        """Millijoules of the whole GPU since its driver was loaded."""
        value = self._value(DeviceKey(gpu_uuid), DcgmField.ENERGY, now_ns)
        return None if value is None else round(value)

    def memory(self, device: DeviceKey, now_ns: int) -> FrameBufferMemory:
        """Memory of a GPU or MIG instance.

        The total is what is printed as such, else used, free and reserved together; without the reserved part
        it is not known (that part is 1 % to 2 % of a GPU, and old drivers count it as used).
        """
        used, total, *rest = (
            self._value(device, name, now_ns)
            for name in (
                DcgmField.MEMORY_USED,
                DcgmField.MEMORY_TOTAL,
                DcgmField.MEMORY_FREE,
                DcgmField.MEMORY_RESERVED,
            )
        )
        parts = [value for value in (used, *rest) if value is not None]
        if total is None and len(parts) == 3:
            total = sum(parts)
        return FrameBufferMemory(_whole(used), _whole(total))

    def _value(self, device: DeviceKey, name: DcgmField, now_ns: int) -> float | None:
        return self.values.get(device, {}).get(name) if self._is_fresh(now_ns) else None

    def _is_fresh(self, now_ns: int) -> bool:
        age = self.age_ns(now_ns)
        return age is not None and age <= self.max_age_ns


def _whole(value: float | None) -> int | None:
    return None if value is None else round(value)


def _field(device: DeviceKey, signal: GpuSignal) -> DcgmField:
    return (_SLICE_SIGNALS if device.gpu_instance else _BOARD_SIGNALS)[signal]


def _by_board(
    values: Mapping[DeviceKey, Mapping[DcgmField, float]],
) -> dict[str, list[Mapping[DcgmField, float]]]:
    boards: dict[str, list[Mapping[DcgmField, float]]] = {}
    for device, row in values.items():
        boards.setdefault(device.gpu_uuid, []).append(row)
    return boards


def _codes(rows: Iterable[Mapping[DcgmField, float]]) -> frozenset[int]:
    return frozenset(int(row[DcgmField.XID]) for row in rows if row.get(DcgmField.XID))


def _counted(
    before: Mapping[tuple[str, int], DcgmXidCounts],
    latched: Mapping[str, frozenset[int]],
    codes: Mapping[str, frozenset[int]],
    now_ns: int,
) -> dict[tuple[str, int], DcgmXidCounts]:
    """Count a code when no row of its GPU showed it before.

    The gauge keeps the last code for ever, so only a change is an event; what a GPU shows when it is first
    seen is of unknown age and does not count. All slices of a GPU repeat a code, some a scrape later, hence
    the comparison by GPU. The same code twice in a row looks like once.
    """
    counted: dict[tuple[str, int], DcgmXidCounts] = {}
    for uuid, shown in codes.items():
        for code in sorted(shown - latched.get(uuid, shown)):
            earlier = before.get((uuid, code))
            counted[uuid, code] = DcgmXidCounts(earlier.count + 1 if earlier else 1, now_ns)
    return _remembered(before, counted, MAX_XIDS)


def _remembered(before: Mapping[K, V], now: Mapping[K, V], most: int) -> dict[K, V]:
    """``now`` after the ``most`` latest others of ``before``: bounded, so that an endless supply of names
    fills no memory."""
    others = {key: value for key, value in before.items() if key not in now}
    return {**dict(islice(others.items(), max(0, len(others) - most), None)), **now}


def _strikes_after(before: int, rows: Iterable[Mapping[DcgmField, float]]) -> int:
    """How many scrapes in a row the profiling counters of a GPU were 0 while it was busy.

    After some weeks, or an XID 31, they read 0 until the exporter is restarted (dcgm-exporter#662). Once
    there are ``STUCK_AFTER``, only a value that is not 0 shows that they work again: an idle GPU proves
    nothing.
    """
    rows = list(rows)
    if any(row.get(name) for row in rows for name in _PROFILED):
        return 0
    busy = [row[DcgmField.BUSY] for row in rows if DcgmField.BUSY in row]
    is_profiled = any(name in row for row in rows for name in (DcgmField.GRAPHICS, DcgmField.SM))
    if before >= STUCK_AFTER or not busy or not is_profiled:
        return before
    return before + 1 if max(busy) > STUCK_BUSY else 0
