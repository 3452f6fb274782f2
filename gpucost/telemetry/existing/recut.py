"""Steps in which the mean of a row is not its pod's: read sample by sample.

The kubelet may name a pod long after it ended, and a name may be used again (as a StatefulSet does) within
one step. There the samples are told apart by when each pod held its units. These steps are few; where they
are not, what was read counts for each pod by the time it held.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np

from gpucost.contract.dcgm import UUID_LABELS
from gpucost.domain.time import MINUTE_MS, Window
from gpucost.telemetry.answers import needed
from gpucost.telemetry.evidence import BoolArray
from gpucost.telemetry.existing.claims import Claims
from gpucost.telemetry.existing.series import Reader, Reading
from gpucost.telemetry.existing.subjects import Key, Source
from gpucost.telemetry.history_runs import Floats
from gpucost.telemetry.reader import points

_MOST_CELLS = 5_000
_LINGER_MS = MINUTE_MS
"""How long labels stay as a rule: until the exporter asks the kubelet again, and is scraped."""
_Sums = dict[tuple[Key, str], dict[Source, tuple[float, float, float]]]


def recut(read: Reader, names: Sequence[str], reading: Reading, claims: Claims) -> Reading:
    """``reading``, with such steps of a key in keys of their own, one for each pod."""
    cells = _cells(reading, claims, 2 * read.interval_ms + _LINGER_MS)
    if not names or not cells or sum(map(len, cells.values())) > _MOST_CELLS:
        return reading
    keys = dict(reading.keys)
    found: dict[tuple[Key, int], tuple[float, float, float]] = {}
    grids = [reading.observed.copy(), reading.amount.copy(), reading.peak.copy()]
    for at, wanted in cells.items():
        for key in wanted:
            for grid, nothing in zip(grids, (0.0, 0.0, np.nan), strict=True):
                grid[keys[key], at] = nothing
        for (key, uid), sums in _read(read, names, read.steps[at], wanted, claims).items():
            own = Key(key.device, (uid,), key.vgpu)
            found[own, keys.setdefault(own, len(keys)) * len(read.steps) + at] = max(sums.values())
    more = len(keys) - len(reading.keys)
    grids = [
        np.vstack([grid, np.full((more, len(read.steps)), nothing)])
        for grid, nothing in zip(grids, (0.0, 0.0, np.nan), strict=True)
    ]
    for (_, place), values in found.items():
        for grid, value in zip(grids, values, strict=True):
            grid[divmod(place, len(read.steps))] = value
    return Reading(keys, *grids)


def _cells(reading: Reading, claims: Claims, slack_ms: float) -> Mapping[int, set[Key]]:
    """By step, the keys whose mean is nobody's."""
    cells: dict[int, set[Key]] = defaultdict(set)
    whose, rows = claims.rows_of(reading)
    seen = reading.observed
    total, holders = np.zeros(seen.shape), np.zeros(seen.shape)
    np.add.at(total, whose, claims.held[rows])
    np.add.at(holders, whose, claims.held[rows] > 0)
    outlived = (seen > total + slack_ms) & (total > 0)
    keys = [*reading.keys]
    for row, at in np.argwhere(outlived | ((holders > 1) & (seen > 0))).tolist():
        cells[at].add(keys[row])
    return cells


def _read(
    read: Reader, names: Sequence[str], step: Window, wanted: set[Key], claims: Claims
) -> Mapping[tuple[Key, str], Mapping[Source, tuple[float, float, float]]]:
    """Time observed, amount and peak in ``step`` of each key and pod, by source."""
    sums: _Sums = defaultdict(dict)
    uuids = {key.device[0] for key in wanted}
    for each in read.reader.raw_where(list(names), UUID_LABELS, uuids, step.start_ms, step.end_ms):
        labels, name = each["metric"], needed(each, "__name__", names)
        key = read.subjects.of(labels)
        scale, interval = read.known_scale(name, labels), read.known_interval(labels)
        if key not in wanted or key is None or scale is None:
            continue
        times, values = (np.array(column, dtype=np.float64) for column in points(each))
        inside = (times > step.start_ms) & (times <= step.end_ms) & (values <= scale.highest)
        for uid in key.uids:
            if (key.device, uid) not in claims.of:
                continue
            own = values[inside & _during(times, claims.of[key.device, uid].stretches)] / scale.per
            if len(own):
                source = read.subjects.source(name, labels)
                before = sums[key, uid].get(source, (0.0, 0.0, 0.0))
                sums[key, uid][source] = (
                    before[0] + len(own) * interval,
                    before[1] + float(own.sum()) * interval,
                    max(before[2], float(own.max())),
                )
    return sums


def _during(times: Floats, stretches: Sequence[tuple[int, int]]) -> BoolArray:
    found: BoolArray = np.zeros(len(times), dtype=np.bool_)
    for start, end in stretches:
        found |= (times > start) & (times <= end)
    return found
