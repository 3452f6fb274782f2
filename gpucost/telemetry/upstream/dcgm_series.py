"""Sums of the samples of dcgm-exporter's series, by step.

A sample of a gauge stands for one scrape interval, the one before it: values are counts and sums of samples
times the interval, which is measured on each job's own samples; the part that reaches over the beginning of a
step belongs to the step before. Several names are one field, in units of their own; the members of an HA
pair, and jobs that scrape the same exporter, are copies, of which the one with more samples counts; series
that follow one another (a restarted exporter) are added.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import numpy.typing as npt

from gpucost.contract.dcgm import SCALES, DcgmField, DcgmName, DcgmUnit, UnitScale
from gpucost.domain.time import HOUR_MS, Window
from gpucost.telemetry.evidence.gauge_runs import MOST_POINTS, Floats
from gpucost.telemetry.prometheus.cluster_reader import points
from gpucost.telemetry.prometheus.promql import (
    PromQL,
    above,
    by,
    equals,
    over_time,
    without,
)
from gpucost.telemetry.prometheus.query_response import BEYOND, whole_count
from gpucost.telemetry.prometheus.sample_expressions import SeriesGrid
from gpucost.telemetry.prometheus.series_labels import Codes
from gpucost.telemetry.upstream.device_subjects import (
    NEEDLESS,
    DeviceSubject,
    SeriesLabels,
    SeriesPlace,
    SeriesSubjects,
    first_of,
    place_of,
)
from gpucost.telemetry.upstream.kube_reader import KubeStateReader
from gpucost.telemetry.upstream.series_facts import NOTHING, LabelsByNumber, NumberedFacts, NumbersInOrder

_SNAP_MS = 100
_FEW_STEPS = 48
# Corrupt samples are few, and searched for one by one; where they are many, their steps are left out whole.
_MOST_CORRUPT = 1_000


@dataclass(frozen=True)
class StepStatistics:
    """The series of one metric: labels and their numbers, and by function its results, (series, steps); NaN
    for none."""

    numbers: Codes
    places: Sequence[SeriesPlace]
    labels: Sequence[SeriesLabels]
    grids: Mapping[str, Floats]


@dataclass(frozen=True, slots=True)
class StepQuery:
    """A function of a series' samples in each step and ``before_ms`` before it; with ``over``, it is queried
    only where a value is above that bound, and at all only if there is one in all steps together."""

    function: str
    before_ms: int = 0
    over: int | None = None


@dataclass(frozen=True)
class DeviceReading:
    """One field by key and step: device time observed, and its sum in base units times milliseconds."""

    keys: Mapping[DeviceSubject, int]
    observed: Floats
    amount: Floats
    peak: Floats


@dataclass(frozen=True)
class DeviceLevels:
    """The mean of a gauge by key and step."""

    keys: Mapping[DeviceSubject, int]
    means: Floats

    def of(self, keys: Iterable[DeviceSubject]) -> Floats:
        """Of each of these; NaN for those that are not there."""
        rows = np.array([self.keys.get(key, -1) for key in keys], dtype=np.int64)
        return np.vstack((self.means, np.full((1, self.means.shape[1]), np.nan)))[rows]


@dataclass
class DcgmReader:
    """Reads fields of dcgm-exporter in ``steps``, which are of one length and follow one another."""

    reader: KubeStateReader
    steps: Sequence[Window]
    subjects: SeriesSubjects
    dropped: dict[DcgmField, float] = field(default_factory=dict)
    """Device time of samples with values that no device can have, by field."""
    untold_ms: float = 0.0
    """Device time of samples whose unit is unknown."""
    _intervals: dict[tuple[str, ...], float] = field(default_factory=dict)
    _scales: dict[str, dict[SeriesPlace, UnitScale | None]] = field(default_factory=dict)
    _most: int = 0
    _ahead: dict[object, StepStatistics] = field(default_factory=dict)
    _labels: LabelsByNumber = field(default_factory=LabelsByNumber)

    def __post_init__(self) -> None:
        # By number of labels.
        self._subjects = NumberedFacts(lambda number: self.subjects.of(self._labels.labels[number]))
        self._sources = NumberedFacts(lambda number: self.subjects.source("", self._labels.labels[number]))

    @property
    def length_ms(self) -> int:
        return self.steps[0].length_ms

    @property
    def interval_ms(self) -> float:
        """The longest scrape interval of all jobs; 0 when nothing was read."""
        return max(self._intervals.values(), default=0.0)

    def gauge(self, names: Iterable[str], keys: Collection[str] | None = None) -> DeviceReading:
        """Counts, sums and peaks of a gauge, in base units; with ``keys``, of the devices with these."""
        found = []
        for name in names:
            asked = self._asked_of_gauge(name)
            stats = self.stats(name, asked, keys)
            units = self._units(name, stats)
            self._repair(name, stats, units)
            self._scales[name] = dict(zip(stats.places, units, strict=True))
            rows = self._measured_rows(name, stats)
            intervals = self._intervals_of(name, stats, rows)
            if None in units:
                told = np.array([unit is not None for unit in units])[rows]
                for row, interval in zip(rows[~told].tolist(), intervals[~told].tolist(), strict=True):
                    if self._subjects.of(int(stats.numbers[row])).uids:
                        self.untold_ms += float(np.nansum(stats.grids["count"][row])) * interval
                rows, intervals = rows[told], intervals[told]
            per = np.array([scale.per if scale else np.nan for scale in units])[rows].reshape(-1, 1)
            every = intervals.reshape(-1, 1)
            count, total, peak = (stats.grids[each][rows] for each in asked)
            if self._meaning(name).field is DcgmField.POWER:
                # Every GPU draws power: 0 is what was not read.
                count = np.where(total > 0, count, np.nan)
            found.append(_DcgmRows(stats.numbers[rows], count * every, total * (every / per), peak / per))
        return self._merged(found)

    def gauges_ahead(self, names: Iterable[str]) -> None:
        """Ask for these gauges together; ``gauge`` then has the answers."""
        self._ask_ahead({name: self._asked_of_gauge(name) for name in names})

    def _asked_of_gauge(self, name: str) -> Mapping[str, StepQuery]:
        meant = self._meaning(name)
        # Peaks are needed where the values decide the unit, and for memory; else only where a sample is
        # corrupt.
        needs_peaks = meant.unit is None or meant.field is DcgmField.MEMORY_USED
        over = None if needs_peaks else int(SCALES[meant.unit or DcgmUnit.RATIO].highest)
        most = StepQuery("max_over_time", 0, over)
        return {"count": StepQuery("count_over_time"), "sum": StepQuery("sum_over_time"), "max": most}

    def counter(self, names: Sequence[str]) -> DeviceReading:
        """How much a counter rose, and for how long that was observed: from the last sample before a step to
        the last in it, of each series alone, so that a series under new labels is not counted as an increase.
        """
        found = []
        for name in names:
            scale = SCALES[self._meaning(name).unit or DcgmUnit.RATIO]
            if not self._intervals:
                counts = self.stats(name, {"count": StepQuery("count_over_time")})
                for at in range(len(counts.labels)):
                    self._interval(name, counts, at)
            edge = round(self.interval_ms)
            self._ask_ahead({each: _asked_of_counter(edge) for each in names[names.index(name) :]})
            stats = self.stats(name, _asked_of_counter(edge))
            rows = self._measured_rows(name, stats)
            every = self._intervals_of(name, stats, rows).reshape(-1, 1)
            rises, counts_of = (each[rows] for each in self._rises(name, stats, edge))
            rise, observed = rises / scale.per, counts_of * every
            seen = np.maximum(stats.grids["count"][rows] - 1, 0) * every
            # A counter that fell too often, or rose faster than any GPU can, proves nothing for its step.
            bad = np.isnan(rise) | (rise > SCALES[DcgmUnit.WATTS].highest * (observed + every))
            lost = np.nansum(np.where(bad, seen, seen - observed), axis=1).tolist()
            for number, lost_ms in zip(stats.numbers[rows].tolist(), lost, strict=True):
                self._drop(DcgmField.ENERGY, lost_ms if self._subjects.of(number).uids else 0)
            # Every GPU draws power: a counter that stands still is not being read.
            observed = np.where(bad | (rise <= 0), np.nan, observed)
            found.append(_DcgmRows(stats.numbers[rows], observed, rise, rise))
        return self._merged(found)

    def _rises(self, name: str, stats: StepStatistics, edge_ms: int) -> tuple[Floats, Floats]:
        """By series and step, how much a counter rose, and in how many intervals. Where it fell, as when the
        driver is reloaded, its samples are read one by one, and that interval alone is left out."""
        grids = stats.grids
        rises, counts = grids["max"] - grids["min"], np.maximum(grids["count"] - 1, 0)
        fell = grids["resets"] > 0
        rows = np.flatnonzero(fell.any(axis=1)).tolist()
        raw = self._raw(name, stats, rows, edge_ms) if 0 < int(fell.sum()) <= _MOST_CORRUPT else {}
        for row, step in np.argwhere(fell).tolist():
            window = self.steps[step]
            values = _inside(raw.get(row), Window(window.start_ms - edge_ms, window.end_ms))
            gained = np.diff(values)
            rises[row, step] = gained[gained >= 0].sum() if len(gained) else np.nan
            counts[row, step] = (gained >= 0).sum()
        return rises, counts

    def _meaning(self, name: str) -> DcgmName:
        return self.subjects.dialect.meaning(name)

    def _drop(self, what: DcgmField, ms: float) -> None:
        self.dropped[what] = self.dropped.get(what, 0.0) + ms

    def _merged(self, found: Sequence[_DcgmRows]) -> DeviceReading:
        """Series that follow one another added up, of copies the one with more samples; never more than the
        step."""
        numbers = [rows.numbers for rows in found]
        subjects = NumbersInOrder.of([self._subjects.codes(each) for each in numbers])
        # Those of another name are of another source.
        sources = NumbersInOrder.of(
            [self._sources.codes(each) * len(found) + at for at, each in enumerate(numbers)]
        )
        keys = self._keys(subjects)
        at = [*zip(sources.places, subjects.places, strict=True)]
        shape = (max(1, len(sources.values)), len(keys), len(self.steps))
        return DeviceReading(keys, *_added(found, at, shape, self.length_ms, self.interval_ms))

    def _keys(self, subjects: NumbersInOrder) -> dict[DeviceSubject, int]:
        """Subjects by their codes, numbered."""
        return {self._subjects.values[code]: at for at, code in enumerate(subjects.values.tolist())}

    def known_scale(self, name: str, labels: SeriesLabels) -> UnitScale | None:
        """The unit of a series that ``gauge`` read; None where it is unknown."""
        return self._scales.get(name, {}).get(place_of(labels))

    def known_interval(self, labels: SeriesLabels) -> float:
        """The scrape interval of the job of a series that was read; 0 where it is unknown."""
        return self._intervals.get(self.subjects.source("", labels), 0.0)

    def levels(self, names: Iterable[str]) -> DeviceLevels:
        """The mean of a gauge in each step, in base units; the largest of copies."""
        asked = {each: StepQuery(f"{each}_over_time") for each in ("count", "sum")}
        names = [*names]
        self._ask_ahead(dict.fromkeys(names, asked))
        found: list[tuple[Codes, Floats]] = []
        for name in names:
            scale = SCALES[self._meaning(name).unit or DcgmUnit.RATIO]
            stats = self.stats(name, asked)
            rows = self._measured_rows(name, stats)
            means = stats.grids["sum"][rows] / stats.grids["count"][rows]
            means = np.where(means <= scale.highest, means / scale.per, np.nan)
            found.append((self._subjects.codes(stats.numbers[rows]), means))
        subjects = NumbersInOrder.of([codes for codes, _ in found])
        largest = np.full((len(subjects.values), len(self.steps)), np.nan)
        for place, (_, means) in zip(subjects.places, found, strict=True):
            np.fmax.at(largest, place, means)
        return DeviceLevels(self._keys(subjects), largest)

    def stats(
        self, name: str, asked: Mapping[str, StepQuery], keys: Collection[str] | None = None
    ) -> StepStatistics:
        """The results of ``asked``, by name; with ``keys``, of the series of the devices with these."""
        if keys is not None:
            return self._asked_of([*self.reader.selections(name, self.subjects.dialect.keys, keys)], asked)
        found = self._ahead.pop(_question(name, asked), None)
        return found or self._asked_of([self.reader.select(name)], asked)

    def _ask_ahead(self, wanted: Mapping[str, Mapping[str, StepQuery]]) -> None:
        """Ask for ``stats`` of several names together."""
        new = {name: asked for name, asked in wanted.items() if _question(name, asked) not in self._ahead}
        selected = [[self.reader.select(name)] for name in new]
        for each in selected[:1]:
            self._at_once(*each)
        batch = self.reader.batch()
        found = {
            _question(name, asked): batch.add(partial(self._asked_of, each, asked))
            for (name, asked), each in zip(new.items(), selected, strict=True)
        }
        batch.ask()
        self._ahead |= {question: each.result() for question, each in found.items()}

    def _asked_of(self, selectors: Sequence[PromQL], asked: Mapping[str, StepQuery]) -> StepStatistics:
        read: dict[str, list[tuple[int, SeriesGrid]]] = {key: [] for key in asked}
        for selector in selectors:
            for key, ask in asked.items():
                found = [*self._answer(selector, ask)]
                read[key] += found
                if key == "count" and not any(len(grid.any_rows) for _, grid in found):
                    break  # nothing else is to be asked of what is not there
        return self._statistics(read)

    def _statistics(self, read: Mapping[str, Sequence[tuple[int, SeriesGrid]]]) -> StepStatistics:
        found = [(key, *one) for key, parts in read.items() for one in parts]
        # Functions of the same samples share their labels.
        tables = {id(grid.table): grid.table for _, _, grid in found}
        of = {key: self._labels.numbers(table) for key, table in tables.items()}
        seen = [of[id(grid.table)][grid.any_rows] for _, _, grid in found]
        # In the order of a server's answer, so that sums are of the same order whatever was asked.
        numbers = self._labels.in_order(np.unique(np.concatenate(seen))) if seen else NOTHING
        place = np.full(len(self._labels.labels), -1)
        place[numbers] = np.arange(len(numbers))
        grids = {key: np.full((len(numbers), len(self.steps)), np.nan) for key in read}
        for key, first, grid in found:
            own = place[of[id(grid.table)]]
            rows = np.flatnonzero(own >= 0)
            # DCGM reports nothing below 0.
            values = np.where(grid.present & (grid.values >= 0) & (grid.values < BEYOND), grid.values, np.nan)
            grids[key][own[rows], first : first + values.shape[1]] = values[rows]
        labels = self._labels
        listed = numbers.tolist()
        return StepStatistics(
            numbers, [labels.places[each] for each in listed], [labels.labels[each] for each in listed], grids
        )

    def _answer(self, selector: PromQL, ask: StepQuery) -> Iterator[tuple[int, SeriesGrid]]:
        # The very beginning of a step belongs to the step before.
        expression = over_time(ask.function, selector, self.length_ms - 1 + ask.before_ms)
        if ask.over is not None:
            if not self._is_any_above(selector, ask):
                return
            expression = above(expression, ask.over)
        # Containers of one pod are copies.
        yield from self._grids(without("max", NEEDLESS, expression), selector)

    def _is_any_above(self, selector: PromQL, ask: StepQuery) -> bool:
        """Whether the function of all samples together is above the bound for any series: if not, it is not
        in any step. One instant costs the server less than every step, and samples are read once anyway."""
        assert ask.over is not None
        if len(self.steps) == 1 or self.reader.is_sampled:
            return True
        start_ms, end_ms = self.steps[0].start_ms - ask.before_ms, self.steps[-1].end_ms
        found = above(over_time(ask.function, selector, end_ms - start_ms), ask.over)
        return bool(self.reader.vector(by("count", (), found), end_ms))

    def _grids(self, expression: PromQL, selector: PromQL) -> Iterator[tuple[int, SeriesGrid]]:
        """With the number of the first step of each."""
        most = self._at_once(selector)
        for at in range(0, len(self.steps), most):
            first, last = self.steps[at], self.steps[min(at + most, len(self.steps)) - 1]
            yield at, self.reader.grid(expression, first.end_ms, last.end_ms, self.length_ms)

    def _at_once(self, selector: PromQL) -> int:
        """How many steps are asked for at once: as many as the first series that are read allow."""
        if len(self.steps) > _FEW_STEPS and not self._most:
            self._most = self._most_steps(selector)
        return self._most or len(self.steps)

    def _most_steps(self, selector: PromQL) -> int:
        """How many steps keep an answer small, judged by the number of series at three instants."""
        half = (self.steps[-1].end_ms - self.steps[0].start_ms) // 2
        start = self.steps[0].start_ms
        found = self.reader.matrix(by("count", (), selector), start, start + 2 * half, half)
        series = max((whole_count(count) for one in found for count in points(one)[1]), default=0)
        return max(1, MOST_POINTS // max(series, 1))

    def _measured_rows(self, name: str, stats: StepStatistics) -> Codes:
        """The rows of GPUs whose values are measurements."""
        meant, is_measured = self._meaning(name).field, self.subjects.dialect.is_measured
        rows = np.flatnonzero(self._subjects.codes(stats.numbers) >= 0)
        wanted = [is_measured(meant, stats.labels[row]) for row in rows.tolist()]
        found: Codes = rows[np.array(wanted, dtype=np.bool_)]
        return found

    def _intervals_of(self, name: str, stats: StepStatistics, rows: Codes) -> Floats:
        """``_interval`` of each of these rows."""
        sources = NumbersInOrder.of([self._sources.codes(stats.numbers[rows])])
        (of,) = sources.places
        # The first row of each.
        first = [int(rows[np.argmax(of == at)]) for at in range(len(sources.values))]
        return np.array([self._interval(name, stats, row) for row in first], dtype=np.float64)[of]

    def _interval(self, name: str, stats: StepStatistics, at: int) -> float:
        """The scrape interval of the job of this series: the median distance between the samples of one of
        its series."""
        source = self._sources.of(int(stats.numbers[at]))
        if source not in self._intervals:
            codes = self._sources.codes(stats.numbers)
            alike = np.flatnonzero(codes == codes[at])
            counts = np.nan_to_num(stats.grids["count"][alike])
            row, step = np.unravel_index(int(counts.argmax()), counts.shape)
            measured = self._measured(name, stats.labels[int(alike[row])], self.steps[int(step)])
            if not measured:
                return 0.0
            self._intervals[source] = measured
        return self._intervals[source]

    def _measured(self, name: str, labels: SeriesLabels, step: Window) -> float:
        # In an order of its own: a server keeps the answers of queries by their text.
        exact = [equals(label, value) for label, value in sorted(labels.items())]
        start_ms = min(step.start_ms, step.end_ms - HOUR_MS)
        found = self.reader.raw(self.reader.select(name, *exact), start_ms, step.end_ms)
        gaps = [gap for each in found for gap in np.diff(points(each)[0]).tolist()]
        if not gaps:
            return 0.0
        median = float(np.median(gaps))
        return max(1.0, round(median / _SNAP_MS) * _SNAP_MS) if median >= _SNAP_MS else median

    def _units(self, name: str, stats: StepStatistics) -> list[UnitScale | None]:
        """The unit of each series; None where only the values could decide it, and do not."""
        unit = self._meaning(name).unit
        if unit is not None:
            return [SCALES[unit]] * len(stats.labels)
        targets = [(labels.get("job", ""), labels.get("instance", "")) for labels in stats.labels]
        told: dict[tuple[str, str], UnitScale | None] = {}
        for target in set(targets):
            rows = [row for row, each in enumerate(targets) if each == target]
            told[target] = _told(stats.grids["max"][rows], stats.grids["sum"][rows])
        return [told[target] for target in targets]

    def _repair(self, name: str, stats: StepStatistics, units: Sequence[UnitScale | None]) -> None:
        """Count and sum recomputed without the samples that no device can have."""
        highest = np.array([scale.highest if scale else np.inf for scale in units])[:, None]
        bad = stats.grids["max"] > highest if len(units) else np.zeros((0, 0), dtype=bool)
        rows = np.flatnonzero(bad.any(axis=1)).tolist() if len(units) else []
        if not rows:
            return
        intervals = {row: self._interval(name, stats, row) for row in rows}
        counted = {row: np.nansum(stats.grids["count"][row][bad[row]]) for row in rows}
        raw = self._raw(name, stats, rows) if int(bad.sum()) <= _MOST_CORRUPT else {}
        for row in rows:
            for step in np.flatnonzero(bad[row]).tolist():
                values = _inside(raw.get(row), self.steps[step])
                good = values[values <= highest[row]]
                stats.grids["count"][row, step] = len(good) or np.nan
                stats.grids["sum"][row, step] = good.sum() if len(good) else np.nan
                stats.grids["max"][row, step] = good.max() if len(good) else np.nan
            left = np.nansum(stats.grids["count"][row][bad[row]])
            if self.subjects.uids(stats.labels[row]):
                self._drop(self._meaning(name).field, float(counted[row] - left) * intervals[row])

    def _raw(
        self, name: str, stats: StepStatistics, rows: Collection[int], before_ms: int = 0
    ) -> dict[int, tuple[Floats, Floats]]:
        """Times and values of the series of these rows, from ``before_ms`` before the first step on."""
        place = {stats.places[row]: row for row in rows}
        keys = self.subjects.dialect.keys
        uuids = {first_of(stats.labels[row], keys) for row in rows}
        spelled = [each for each in keys if any(stats.labels[row].get(each) for row in rows)]
        start, end = self.steps[0].start_ms - before_ms, self.steps[-1].end_ms
        found: dict[int, tuple[Floats, Floats]] = {}
        for each in self.reader.raw_where(name, spelled, uuids, start, end):
            row = place.get(place_of(each["metric"]))
            if row is not None:
                times, values = points(each)
                found[row] = np.array(times, dtype=np.float64), np.array(values, dtype=np.float64)
        return found


def _question(name: str, asked: Mapping[str, StepQuery]) -> object:
    return name, *asked.items()


def _asked_of_counter(edge_ms: int) -> Mapping[str, StepQuery]:
    asked = {each: StepQuery(f"{each}_over_time", edge_ms) for each in ("count", "min", "max")}
    return {**asked, "resets": StepQuery("resets", edge_ms, 0)}


@dataclass(frozen=True, slots=True)
class _DcgmRows:
    """Series of one name: the numbers of their labels, and grids of (series, steps)."""

    numbers: Codes
    observed: Floats
    amount: Floats
    peak: Floats


def _added(
    found: Sequence[_DcgmRows],
    at: Sequence[tuple[Codes, Codes]],
    shape: tuple[int, int, int],
    length_ms: int,
    interval_ms: float,
) -> tuple[Floats, Floats, Floats]:
    """``at`` is the source and the subject of each row: observed time, amount and peak by subject and step.
    What follows one another is added up, of copies the one with more samples counts; never more than the
    step."""
    observed, amount = np.zeros(shape), np.zeros(shape)
    peak = np.full(shape, np.nan)
    for place, rows in zip(at, found, strict=True):
        known = np.isfinite(rows.observed) & np.isfinite(rows.amount)
        many, seen = np.where(known, rows.observed, 0.0), np.where(known, rows.amount, 0.0)
        if len(np.unique(place[0] * shape[1] + place[1])) == len(place[0]):
            # As below, and faster where each place is there once.
            observed[place] += many
            amount[place] += seen
            peak[place] = np.fmax(peak[place], rows.peak)
            continue
        np.add.at(observed, place, many)
        np.add.at(amount, place, seen)
        np.fmax.at(peak, place, rows.peak)
    _carry(observed, amount, length_ms, interval_ms)
    if len(observed) == 1:
        return observed[0], amount[0], peak[0]
    best = observed.argmax(axis=0)[None]
    observed, amount, peak = (np.take_along_axis(each, best, 0)[0] for each in (observed, amount, peak))
    return observed, amount, peak


def _carry(observed: Floats, amount: Floats, length_ms: int, interval_ms: float) -> None:
    """In place: time in excess of a step belongs to the time before it, at most one interval's worth.

    Where the interval does not divide the step, one step has a sample too many and others lack its time; to
    cut the one and leave the others short would lose a part of every sum.
    """
    over, over_amount = np.zeros(observed.shape[:-1]), np.zeros(observed.shape[:-1])
    for step in range(observed.shape[-1] - 1, -1, -1):
        total, summed = observed[..., step] + over, amount[..., step] + over_amount
        mean = summed / np.maximum(total, 1e-9)
        kept = np.minimum(total, length_ms)
        over = np.minimum(total - kept, interval_ms)
        over_amount = over * mean
        observed[..., step], amount[..., step] = kept, kept * mean


def _told(most: Floats, total: Floats) -> UnitScale | None:
    """Percent or ratio, decided by one target's values of a name that is used for both."""
    ratio = SCALES[DcgmUnit.RATIO]
    believable = most[np.isfinite(most) & (most <= SCALES[DcgmUnit.PERCENT].highest)]
    if (believable > ratio.highest).any():
        return SCALES[DcgmUnit.PERCENT]
    sums = total[np.isfinite(total)]
    if (believable % 1 != 0).any() or (sums % 1 != 0).any() or not sums.any():
        return ratio  # nothing but 0 is 0 in both
    return None


def _inside(samples: tuple[Floats, Floats] | None, step: Window) -> npt.NDArray[np.float64]:
    if samples is None:
        return np.empty(0)
    times, values = samples
    found: Floats = values[(times > step.start_ms) & (times <= step.end_ms)]
    return found
