"""dcgm-exporter's text, read line by line: one bad line costs that line and nothing else. Pure.

Prometheus's own parser refuses the whole text for one line like ``… ERROR - FAILED TO CONVERT TO STRING``,
which dcgm-exporter prints for fields that are no numbers; and label values are printed without escaping, so a
quote may stand inside one. Here the value is what follows the last brace, and of the labels only those that
identify the device are read. They are printed first, before any that a user can choose.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

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

MAX_BYTES = 4 * 2**20
MAX_DEVICES = 1_024
MAX_NUMBER = 40
"""Characters of a number; dcgm-exporter prints 20 at most."""
NO_UNITS: Mapping[str, DcgmUnit] = {}

_NUMBER = re.compile(r"[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:e[+-]?\d+)?|[+-]?(?:nan|inf|infinity)", re.I | re.A)
_UUID = re.compile(r"[A-Za-z0-9-]{1,96}")
_INSTANCE = re.compile(r"\d{1,3}", re.A)


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
