"""Why a span of time cost another amount than one before it: exact causes, down to patterns of jobs.

The change of each group (a team, a model, ...) is split in fractions and rounded together, so that causes
add up to it, to the nano-unit:

* missing data: both spans are first scaled, cluster by cluster, to what they would have cost had all of it
  been observed; a gap in telemetry is then no drop in spend, but a cause of its own;
* longer or shorter span: the span before is scaled to the length of the one of now;
* price: what the hours of now cost, less the same hours at the prices of before, of each cluster and model
  (a discount or another capacity type is a price, too);
* quantity, of each pattern of jobs at its mean cost of an hour before: more runs, wider runs (GPUs), longer
  runs; a pattern of which the span before, or the one of now, has nothing is one cause. Without jobs in
  the lines, and where data are missing, the three are one: hours;
* models: what is left of a pattern: hours that went to dearer or cheaper models;
* time that nobody held: idle rises or falls, GPUs are broken, time is unknown;
* adjustments of months, and the rate by which another currency is shown.

A group that held nothing before, or holds nothing now, is one cause. It is the price-volume-mix analysis of
management accounting, in a fixed order: price at the quantity of now, mix at the prices of before. What is
less than a nano-unit for each GPU-hour is rounding, and no price or model of its own.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from fractions import Fraction
from math import floor

import pandas as pd

from gpucost.advisor.wait.run_times import name_pattern
from gpucost.domain.buckets import HOLDER_OF_BUCKET, Bucket
from gpucost.domain.time import HOUR_MS
from gpucost.reports.base import display
from gpucost.reports.base.frame_sums import sums

WHOLE = Fraction(98, 100)
"""Least observed part of both spans for which runs are told from GPUs and from run times."""
MOST_PATTERNS = 5
"""Patterns of a group that are named, of each kind of cause; the others are one cause together."""
_JOBS = ("namespace", "job", "job_uid", "first_ms", "last_ms")
_ONE = Fraction(1)
_SERVES = Fraction(9, 10)
"""Part of a span in which a run is there that serves all the time."""


class CauseKind(StrEnum):
    """Why a cost changed."""

    PRICE = "price"
    HOURS = "hours"
    RUNS = "runs"
    GPUS = "gpus"
    LENGTH = "run_time"
    NEW_PATTERN = "new_pattern"
    GONE_PATTERN = "gone_pattern"
    MODELS = "models"
    NEW_TEAM = "new_team"
    GONE_TEAM = "gone_team"
    IDLE = "idle"
    UNAVAILABLE = "unavailable"
    MISSING_DATA = "missing_data"
    UNPRICED = "unpriced"
    SPAN = "span"
    ADJUSTMENT = "adjustment"
    EXCHANGE = "exchange_rate"
    QUOTA = "quota"
    QUOTA_USE = "quota_use"
    LENDING = "lending"
    QUOTA_PRICE = "quota_price"
    HELD_FACTOR = "held_factor"
    SHARED = "shared"
    CONTRACTS = "contracts"
    POLICY = "policy"


@dataclass(frozen=True, slots=True)
class ChangeCause:
    """One cause: ``nano`` of the change are by it, together with ``board_ms`` more or fewer GPU hours (0
    where it is about no hours). ``team`` is the group that it is of, by default a team; ``cluster`` and
    ``model`` are those of a price, ``pattern`` the jobs that it is about, namespace and name with ``*`` for
    what varies; else empty. ``before`` and ``now`` are what changed of them: runs, GPUs of a run, hours of a
    run, the observed part, days of the span. Time without a price is a cause of its own, at the price of the
    other span; where that has none either it is in no cause."""

    kind: str
    team: str
    cluster: str
    model: str
    board_ms: int
    nano: int
    pattern: str = ""
    before: Fraction | None = None
    now: Fraction | None = None


@dataclass(frozen=True, slots=True)
class SpanTime:
    """How much of a span there is: its length, and by cluster how long the ledger has windows, and how long
    it was observed. A cluster that is in neither counts as observed whole."""

    length_ms: int
    covered_ms: Mapping[str, int] = field(default_factory=dict)
    observed_ms: Mapping[str, int] = field(default_factory=dict)

    def part(self, cluster: str, *, held: bool) -> Fraction:
        """Observed, of what was held; covered, of what nobody held: above 0, at most 1."""
        known = self.observed_ms if held else self.covered_ms
        ms = known.get(cluster, self.length_ms)
        return Fraction(min(ms, self.length_ms), self.length_ms) if ms > 0 and self.length_ms else _ONE


@dataclass(frozen=True, slots=True)
class SpanLines:
    """One of two spans: ledger lines with ``cluster``, ``model``, ``bucket`` and the column by which they are
    grouped; with job and instants of it the quantity is told apart. ``time`` None: as if both were as long
    and observed whole. ``adjusted`` are nano-units by group, ``rate`` what one unit of the ledger's currency
    is in the one shown."""

    lines: pd.DataFrame
    time: SpanTime | None = None
    adjusted: Mapping[str, int] = field(default_factory=dict)
    rate: Fraction = _ONE


@dataclass(slots=True)
class _PatternSums:
    """What a pattern had on one model: GPU time with a price, and its cost; and GPU time without one."""

    ms: Fraction = Fraction(0)
    nano: Fraction = Fraction(0)
    unpriced: Fraction = Fraction(0)


_Cell = tuple[str, str, str, str]
"""Bucket, cluster, model, pattern."""


@dataclass(frozen=True, slots=True)
class _PatternRuns:
    """Jobs of a pattern, and how long each was there, added up."""

    count: int
    wall_ms: int


@dataclass(frozen=True, slots=True)
class _Side:
    """A span, by group."""

    cells: Mapping[str, Mapping[_Cell, _PatternSums]]
    runs: Mapping[tuple[str, str], _PatternRuns]


def change_causes(
    held: pd.DataFrame,
    previous: pd.DataFrame,
    time: SpanTime | None = None,
    time_before: SpanTime | None = None,
) -> tuple[ChangeCause, ...]:
    """The causes of all teams, the largest first whatever its sign; those of 0 are left out.

    ``held`` and ``previous`` are held lines of both months by ``team``, ``cluster`` and ``model`` at least.
    """
    rows = explain(SpanLines(held, time), SpanLines(previous, time_before))
    return largest_first(cause for causes in rows.values() for cause in causes)


def largest_first(causes: Iterable[ChangeCause]) -> tuple[ChangeCause, ...]:
    return tuple(
        sorted(
            causes,
            key=lambda each: (
                *(-abs(each.nano), each.team, each.kind, each.cluster, each.model, each.pattern),
            ),
        )
    )


def explain(now: SpanLines, before: SpanLines, by: str = "team") -> dict[str, tuple[ChangeCause, ...]]:
    """The causes of each group by the column ``by``, by name; of a group they add up to its change: lines and
    adjustments of now, in the currency shown, less those of before. Each amount is rounded half-even once."""
    has_jobs = all(set(_JOBS) <= set(each.lines.columns) for each in (now, before))
    side, other = _side(now, by, has_jobs=has_jobs), _side(before, by, has_jobs=has_jobs)
    prices, prices_now = _prices(other), _prices(side)
    groups = sorted({*side.cells, *other.cells, *now.adjusted, *before.adjusted})
    return {group: _of_group(group, now, before, side, other, (prices, prices_now)) for group in groups}


def _side(span: SpanLines, by: str, *, has_jobs: bool) -> _Side:
    lines = span.lines
    lines = lines.assign(_pattern=_patterns(lines) if has_jobs else "")
    if "bucket" not in lines.columns:
        lines = lines.assign(bucket=str(Bucket.HELD))
    cells: dict[str, dict[_Cell, _PatternSums]] = defaultdict(dict)
    keys = [by, "bucket", "cluster", "model", "_pattern"]
    for (group, bucket, cluster, model, pattern), found in sums(lines, keys).items():
        if bucket == Bucket.OVERCOMMITTED:
            continue
        nobody = HOLDER_OF_BUCKET.get(Bucket(bucket))
        name = str(group) if nobody is None or group else nobody
        cell = str(bucket), str(cluster), str(model), str(pattern) if nobody is None else ""
        own = cells[name].setdefault(cell, _PatternSums())
        own.ms += found.board_ms - found.unpriced_ms
        own.nano += found.nano or 0
        own.unpriced += found.unpriced_ms
    return _Side(cells, _runs(lines, by) if has_jobs else {})


def _patterns(lines: pd.DataFrame) -> list[str]:
    return [
        f"{namespace}/{name_pattern(job)}" if job else str(namespace)
        for namespace, job in zip(lines["namespace"].tolist(), lines["job"].tolist(), strict=True)
    ]


def _runs(lines: pd.DataFrame, by: str) -> dict[tuple[str, str], _PatternRuns]:
    held = lines[(lines["bucket"] == Bucket.HELD) & (lines["job_uid"] != "")]
    spans: dict[tuple[str, ...], tuple[int, int]] = {}
    columns = (by, "_pattern", "cluster", "job_uid", "first_ms", "last_ms")
    for group, pattern, cluster, uid, first, last in zip(
        *(held[each].tolist() for each in columns), strict=True
    ):
        key = str(group), str(pattern), str(cluster), str(uid)
        known = spans.get(key, (first, last))
        spans[key] = min(known[0], first), max(known[1], last)
    found: dict[tuple[str, str], _PatternRuns] = {}
    for (group, pattern, *_), (first, last) in spans.items():
        known_runs = found.get((group, pattern), _PatternRuns(0, 0))
        found[group, pattern] = _PatternRuns(
            known_runs.count + 1, known_runs.wall_ms + max(0, int(last) - int(first))
        )
    return found


def _prices(side: _Side) -> dict[tuple[str, str, str], Fraction]:
    """Nano-units of a GPU millisecond, by group (empty for all together), cluster and model."""
    totals: dict[tuple[str, str, str], _PatternSums] = defaultdict(_PatternSums)
    for group, cells in side.cells.items():
        for (_, cluster, model, _), found in cells.items():
            for key in ((group, cluster, model), ("", cluster, model)):
                totals[key].ms += found.ms
                totals[key].nano += found.nano
    return {key: each.nano / each.ms for key, each in totals.items() if each.ms}


def _of_group(
    group: str,
    now: SpanLines,
    before: SpanLines,
    side: _Side,
    other: _Side,
    prices: tuple[_Prices, _Prices],
) -> tuple[ChangeCause, ...]:
    """``prices`` are those of before and of now."""
    found, found_before = side.cells.get(group, {}), other.cells.get(group, {})
    paid, paid_before = (_paid(each) for each in (found, found_before))
    cells, cells_before = _priced(group, found, prices[::-1]), _priced(group, found_before, prices)
    adjusted, adjusted_before = now.adjusted.get(group, 0), before.adjusted.get(group, 0)
    target = round(paid * now.rate) + adjusted - round(paid_before * before.rate) - adjusted_before
    hours, hours_before = _hours(cells), _hours(cells_before)
    drafts: list[tuple[ChangeCause, Fraction]] = []

    def add(kind: CauseKind, amount: Fraction, ms: Fraction = Fraction(0), **said: object) -> None:
        cause = ChangeCause(kind, group, "", "", round(ms), 0)
        drafts.append((replace(cause, **said), amount))  # type: ignore[arg-type]

    add(CauseKind.ADJUSTMENT, Fraction(adjusted - adjusted_before))
    add(CauseKind.EXCHANGE, paid_before * (now.rate - before.rate), before=before.rate, now=now.rate)
    lacked = (paid - _paid(cells)) - (paid_before - _paid(cells_before))
    bare, bare_before = (_unpriced(each) for each in (found, found_before))
    add(CauseKind.UNPRICED, lacked * now.rate, bare - bare_before)
    paid, paid_before = _paid(cells), _paid(cells_before)
    if not hours_before or not hours:
        kind = CauseKind.GONE_TEAM if not hours else CauseKind.NEW_TEAM
        if hours or hours_before:
            add(_kind_of(cells or cells_before, kind), (paid - paid_before) * now.rate, hours - hours_before)
        return rounded_causes(group, drafts, target)
    scaled, scaled_before = _scaled(cells, now.time), _scaled(cells_before, before.time)
    missing = paid - _paid(scaled) - (paid_before - _paid(scaled_before))
    parts = [_least_part(each, span.time) for each, span in ((cells_before, before), (cells, now))]
    missed = hours - _hours(scaled) - (hours_before - _hours(scaled_before))
    add(CauseKind.MISSING_DATA, missing * now.rate, missed, before=parts[0], now=parts[1])
    longer = _longer(now.time, before.time)
    stretched = {
        key: _PatternSums(each.ms * longer, each.nano * longer) for key, each in scaled_before.items()
    }
    if now.time is not None and before.time is not None and longer != 1:
        days = [Fraction(each.time.length_ms, 24 * HOUR_MS) for each in (before, now) if each.time]
        add(
            CauseKind.SPAN,
            (_paid(stretched) - _paid(scaled_before)) * now.rate,
            _hours(stretched) - _hours(scaled_before),
            before=days[0],
            now=days[1],
        )
    before_ms = None if before.time is None else before.time.length_ms
    tells_runs = min(parts) >= WHOLE
    for cause, amount in _quantities(
        group,
        scaled,
        stretched,
        prices[0],
        (side.runs, other.runs) if tells_runs else ({}, {}),
        longer,
        before_ms,
    ):
        drafts.append((cause, amount * now.rate))
    return rounded_causes(group, drafts, target)


_Prices = Mapping[tuple[str, str, str], Fraction]


def _priced(
    group: str, cells: Mapping[_Cell, _PatternSums], prices: tuple[_Prices, _Prices]
) -> Mapping[_Cell, _PatternSums]:
    """As if all time had a price: that of its own span, the first, or else that of the other. Time that has
    one in neither is left out."""
    if not any(each.unpriced for each in cells.values()):
        return cells
    filled = {}
    for key, each in cells.items():
        _, cluster, model, _ = key
        known = (of.get((name, cluster, model)) for of in prices for name in (group, ""))
        price = next((one for one in known if one is not None), None)
        filled[key] = each
        if price is not None:
            filled[key] = _PatternSums(each.ms + each.unpriced, each.nano + each.unpriced * price)
    return filled


def _unpriced(cells: Mapping[_Cell, _PatternSums]) -> Fraction:
    return sum((each.unpriced for each in cells.values()), Fraction(0))


def _paid(cells: Mapping[_Cell, _PatternSums]) -> Fraction:
    return sum((each.nano for each in cells.values()), Fraction(0))


def _hours(cells: Mapping[_Cell, _PatternSums]) -> Fraction:
    return sum((each.ms for each in cells.values()), Fraction(0))


def _kind_of(cells: Mapping[_Cell, _PatternSums], held: CauseKind) -> CauseKind:
    """What a whole group is about: time that nobody held is no team that came or went."""
    buckets = {cell[0] for cell in cells}
    return held if str(Bucket.HELD) in buckets or len(buckets) != 1 else _OF_NOBODY[Bucket(buckets.pop())]


_OF_NOBODY = {
    Bucket.UNALLOCATED: CauseKind.IDLE,
    Bucket.UNAVAILABLE: CauseKind.UNAVAILABLE,
    Bucket.UNKNOWN: CauseKind.MISSING_DATA,
    Bucket.OVERCOMMITTED: CauseKind.HOURS,
}


def _scaled(cells: Mapping[_Cell, _PatternSums], time: SpanTime | None) -> dict[_Cell, _PatternSums]:
    """As if all of the span had been observed. Time that is unknown is not: it is what is missing."""
    if time is None:
        return dict(cells)
    found = {}
    for key, each in cells.items():
        part = time.part(key[1], held=key[0] == Bucket.HELD)
        found[key] = each if part == 1 else _PatternSums(each.ms / part, each.nano / part)
    return found


def _least_part(cells: Mapping[_Cell, _PatternSums], time: SpanTime | None) -> Fraction:
    if time is None:
        return _ONE
    return min((time.part(key[1], held=key[0] == Bucket.HELD) for key in cells), default=_ONE)


def _longer(time: SpanTime | None, before: SpanTime | None) -> Fraction:
    if time is None or before is None or not before.length_ms:
        return _ONE
    return Fraction(time.length_ms, before.length_ms)


def _quantities(
    group: str,
    now: Mapping[_Cell, _PatternSums],
    before: Mapping[_Cell, _PatternSums],
    prices: Mapping[tuple[str, str, str], Fraction],
    runs: tuple[Mapping[tuple[str, str], _PatternRuns], Mapping[tuple[str, str], _PatternRuns]],
    longer: Fraction,
    all_of_span: int | None,
) -> Iterable[tuple[ChangeCause, Fraction]]:
    """Price, quantity and mix of spans that are alike but for these."""
    by_price: dict[tuple[str, str], Fraction] = defaultdict(Fraction)
    ms_of: dict[tuple[str, str], Fraction] = defaultdict(Fraction)
    mixed: dict[tuple[str, str], Fraction] = defaultdict(Fraction)
    both: dict[tuple[str, str], list[_PatternSums]] = defaultdict(lambda: [_PatternSums(), _PatternSums()])
    for (bucket, cluster, model, pattern), each in now.items():
        old = prices.get((group, cluster, model), prices.get(("", cluster, model)))
        at_old = each.nano if old is None else each.ms * old
        by_price[cluster, model] += each.nano - at_old
        ms_of[cluster, model] += each.ms
        mixed[bucket, pattern] += at_old
        both[bucket, pattern][0].ms += each.ms
        both[bucket, pattern][0].nano += each.nano
    for (bucket, _, _, pattern), each in before.items():
        both[bucket, pattern][1].ms += each.ms
        both[bucket, pattern][1].nano += each.nano
    for (cluster, model), amount in sorted(by_price.items()):
        if abs(amount) * HOUR_MS < ms_of[cluster, model]:
            mixed[str(Bucket.HELD), ""] += amount  # sums that were rounded
            both[str(Bucket.HELD), ""][0].ms += 0
        else:
            yield ChangeCause(CauseKind.PRICE, group, cluster, model, 0, 0), amount
    drafts: list[tuple[ChangeCause, Fraction]] = []
    for (bucket, pattern), (new, old_sums) in sorted(both.items()):
        drafts += _of_pattern(
            ChangeCause(CauseKind.HOURS, group, "", "", round(new.ms - old_sums.ms), 0, pattern),
            Bucket(bucket),
            new.ms,
            old_sums,
            mixed[bucket, pattern],
            (runs[0].get((group, pattern)), runs[1].get((group, pattern))),
            longer,
            all_of_span,
        )
    yield from _few(drafts)


def _of_pattern(
    cause: ChangeCause,
    bucket: Bucket,
    ms: Fraction,
    old: _PatternSums,
    at_old: Fraction,
    runs: tuple[_PatternRuns | None, _PatternRuns | None],
    longer: Fraction,
    all_of_span: int | None,
) -> Iterable[tuple[ChangeCause, Fraction]]:
    """``ms`` of now, which cost ``at_old`` at the prices of before."""
    if bucket is not Bucket.HELD:
        yield replace(cause, kind=_OF_NOBODY[bucket]), at_old - old.nano
        return
    if not old.ms or not ms:
        kind = CauseKind.NEW_PATTERN if ms else CauseKind.GONE_PATTERN
        yield replace(cause, kind=kind if cause.pattern else CauseKind.HOURS), at_old - old.nano
        return
    mean = old.nano / old.ms
    mix = at_old - ms * mean
    quantity = ms * mean - old.nano
    if abs(mix) * HOUR_MS < ms:
        quantity, mix = quantity + mix, Fraction(0)
    yield replace(cause, kind=CauseKind.MODELS, board_ms=0), mix
    new, earlier = runs
    if new is None or earlier is None or not (new.wall_ms and earlier.wall_ms):
        yield cause, quantity
        return
    count, count_before = Fraction(new.count), earlier.count * longer
    gpus, gpus_before = ms / new.wall_ms, old.ms / (earlier.wall_ms * longer)
    wall, wall_before = Fraction(new.wall_ms, new.count), Fraction(earlier.wall_ms, earlier.count)
    if all_of_span is not None and wall_before > _SERVES * all_of_span:
        # What runs all the time runs longer in a longer span, and not more often.
        count_before, wall_before = Fraction(earlier.count), wall_before * longer
    by_runs = (count - count_before) * gpus_before * wall_before
    by_gpus = count * wall_before * (gpus - gpus_before)
    by_length = count * gpus * (wall - wall_before)
    for kind, by_ms, was, is_ in (
        (CauseKind.RUNS, by_runs, Fraction(earlier.count), count),
        (CauseKind.GPUS, by_gpus, gpus_before, gpus),
        (CauseKind.LENGTH, by_length, wall_before / HOUR_MS, wall / HOUR_MS),
    ):
        yield replace(cause, kind=kind, board_ms=round(by_ms), before=was, now=is_), by_ms * mean
    # What rounding of sums left is in the hours of the pattern.
    yield replace(cause, board_ms=0), quantity - (by_runs + by_gpus + by_length) * mean


def _few(drafts: Sequence[tuple[ChangeCause, Fraction]]) -> Iterable[tuple[ChangeCause, Fraction]]:
    """The largest patterns of each kind by name, the others together."""
    by_kind: dict[str, list[tuple[ChangeCause, Fraction]]] = defaultdict(list)
    for each in drafts:
        by_kind[each[0].kind].append(each)
    for found in by_kind.values():
        ranked = sorted(found, key=lambda each: (-abs(each[1]), each[0].pattern))
        yield from ranked[:MOST_PATTERNS]
        rest = ranked[MOST_PATTERNS:]
        if rest:
            ms = sum(cause.board_ms for cause, _ in rest)
            one = replace(rest[0][0], pattern="", board_ms=ms, before=None, now=None)
            yield one, sum((amount for _, amount in rest), Fraction(0))


def rounded_causes(
    group: str, drafts: Sequence[tuple[ChangeCause, Fraction]], target: int
) -> tuple[ChangeCause, ...]:
    """Causes in whole nano-units that add up to ``target``, largest first: each part rounded down, and what
    is left to those that lost most."""
    joined: dict[Hashable, tuple[ChangeCause, Fraction]] = {}
    for cause, amount in drafts:
        key = cause.kind, cause.cluster, cause.model, cause.pattern
        known = joined.get(key)
        if known is not None:
            cause = replace(known[0], board_ms=known[0].board_ms + cause.board_ms)
            amount += known[1]
        joined[key] = cause, amount
    parts = [(cause, amount) for cause, amount in joined.values() if amount]
    whole = [floor(amount) for _, amount in parts]
    left = target - sum(whole)
    order = sorted(range(len(parts)), key=lambda at: (whole[at] - parts[at][1], at))
    for at in order[: max(0, left)]:
        whole[at] += 1
    found = [replace(cause, nano=nano) for (cause, _), nano in zip(parts, whole, strict=True)]
    off = target - sum(whole)
    if off:  # amounts that were rounded before they came here
        found.append(ChangeCause(CauseKind.HOURS, group, "", "", 0, off))
    return largest_first(each for each in found if each.nano)


def cause_words(cause: ChangeCause) -> str:
    """What happened, without its amount and its group: ``312.0 GPU-hours more``."""
    more, less = _WORDS[CauseKind(cause.kind)]
    told = cause.board_ms or cause.nano if CauseKind(cause.kind) is CauseKind.HOURS else cause.nano
    decimals = _DECIMALS.get(CauseKind(cause.kind), 1)
    return (more if told >= 0 else less).format(
        hours=f"{display.hours(abs(cause.board_ms))} GPU-hours",
        model=display.name(cause.model),
        of=f" of {display.name(cause.pattern)}" if cause.pattern else "",
        change=_from_to(cause, decimals),
    )


def _from_to(cause: ChangeCause, decimals: int) -> str:
    """``: 3.1 before, 8.0 now``; empty where that is not known, as of several patterns together."""
    if cause.before is None or cause.now is None:
        return ""
    if CauseKind(cause.kind) is CauseKind.MISSING_DATA:
        return f": {display.percent(cause.before)} observed before, {display.percent(cause.now)} now"
    return f": {float(cause.before):,.{decimals}f} before, {float(cause.now):,.{decimals}f} now"


_DECIMALS = {CauseKind.RUNS: 0, CauseKind.EXCHANGE: 4}
_WORDS: Mapping[CauseKind, tuple[str, str]] = {
    CauseKind.PRICE: ("{model} cost more an hour", "{model} cost less an hour"),
    CauseKind.HOURS: ("{hours} more{of}", "{hours} less{of}"),
    CauseKind.RUNS: ("more runs{of}{change}", "fewer runs{of}{change}"),
    CauseKind.GPUS: ("more GPUs a run{of}{change}", "fewer GPUs a run{of}{change}"),
    CauseKind.LENGTH: ("longer runs{of}, in hours{change}", "shorter runs{of}, in hours{change}"),
    CauseKind.NEW_PATTERN: ("new jobs{of}, {hours}", "new jobs{of}, {hours}"),
    CauseKind.GONE_PATTERN: ("no more jobs{of}, {hours} before", "no more jobs{of}, {hours} before"),
    CauseKind.MODELS: ("dearer models{of}", "cheaper models{of}"),
    CauseKind.NEW_TEAM: ("nothing seen before, {hours} now", "nothing seen before, {hours} now"),
    CauseKind.GONE_TEAM: ("held {hours} before, nothing seen now", "held {hours} before, nothing seen now"),
    CauseKind.IDLE: ("idle rose, {hours} more", "idle fell, {hours} less"),
    CauseKind.UNAVAILABLE: ("more GPUs unavailable, {hours} more", "fewer GPUs unavailable, {hours} less"),
    CauseKind.MISSING_DATA: ("missing data{change}, {hours}", "missing data{change}, {hours}"),
    CauseKind.UNPRICED: ("less time without a price, {hours}", "more time without a price, {hours}"),
    CauseKind.SPAN: ("a longer span, in days{change}", "a shorter span, in days{change}"),
    CauseKind.ADJUSTMENT: ("adjustments", "adjustments"),
    CauseKind.EXCHANGE: ("the exchange rate{change}", "the exchange rate{change}"),
    CauseKind.QUOTA: ("more quota, in GPUs{change}", "less quota, in GPUs{change}"),
    CauseKind.QUOTA_USE: ("less of its quota used, {hours}", "more of its quota used, {hours}"),
    CauseKind.LENDING: ("less quota lent, {hours}", "more quota lent, {hours}"),
    CauseKind.QUOTA_PRICE: ("idle quota cost more an hour", "idle quota cost less an hour"),
    CauseKind.HELD_FACTOR: ("more for what it held, by the policy", "less for what it held, by the policy"),
    CauseKind.SHARED: ("a larger share of nobody's time", "a smaller share of nobody's time"),
    CauseKind.CONTRACTS: ("contracts", "contracts"),
    CauseKind.POLICY: (
        "discounts, mark-ups, floors and caps",
        "discounts, mark-ups, floors and caps",
    ),
}
