"""Where a report's numbers come from, and how exact they are. Facts of the ledger, no clock.

Provenance names windows, sources, rates and problems. ``method_rows`` says how each kind of number of a month
was made, on how much of the time, and by how much it may be off: where gpucost's own exporters run, time and
money are exact; from other exporters' series they are as exact as these are, and what these cannot show is
bounded: the bounds are problems of the source, and are listed here.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from enum import StrEnum
from fractions import Fraction
from itertools import groupby, pairwise

import pandas as pd

from gpucost.domain.buckets import Bucket, Waste
from gpucost.domain.errors import DataProblem, DataProblemCode, InputError
from gpucost.domain.rates import Rate
from gpucost.domain.time import Window, iso
from gpucost.reports.base.display import counted, duration, hours, name, percent, span_of_days, visible
from gpucost.reports.base.frame_sums import sums
from gpucost.reports.base.values import CostAmount, GpuUtilisation, ratio
from gpucost.reports.month.inputs import MonthInputs, WindowFacts

_MOST_SPANS = 20


@dataclass(frozen=True, slots=True)
class ClusterCoverage:
    """How much of the time is in the ledger, and how much of that was observed.

    ``until`` is where the ledger ends; ``gaps`` are the stretches before it that have no window.
    ``provisional`` are those whose windows are not settled, of a month that is not closed.
    """

    cluster: str
    windows: int
    settled: bool
    covered_ms: int
    missing_ms: int
    observed_ms: int
    observed: Fraction | None
    until: str
    gaps: tuple[Window, ...]
    provisional: tuple[Window, ...] = ()


@dataclass(frozen=True, slots=True)
class UnobservedSpan:
    """Where the unknown hours are: one window, or a run of windows in which nothing was observed at all."""

    cluster: str
    span: Window
    unobserved_ms: int


@dataclass(frozen=True, slots=True)
class RateUse:
    """One price-book row, and the GPU time that was rated by it. Prices are per GPU-hour."""

    rate_id: str
    price_nano: int
    list_price_nano: int
    discount: str
    pricing_category: str
    matched_by: str
    source: str
    retrieved: str
    rated: CostAmount


@dataclass(frozen=True, slots=True)
class PriceChange:
    """From ``at`` on, in a cluster, an hour of a GPU of this model and category cost another price. Known
    where one price ended before the next began; two that held at a time are of different capacity."""

    cluster: str
    model: str
    pricing_category: str
    at: str
    price_nano: int
    previous_price_nano: int


@dataclass(frozen=True, slots=True)
class ProblemRow:
    """A problem of the ledger's windows; one that occurs in several of them is one row."""

    code: str
    cluster: str
    subject: str
    detail: str
    board_ms: int | None


@dataclass(frozen=True, slots=True)
class ReportProvenance:
    """``state``: closed, settled (every window there and settled) or open. ``digest``: over the windows.

    ``unobserved`` are the longest spans that were not observed; ``unobserved_more`` counts the others.
    """

    state: str
    code_version: str
    digest: str
    month_version: int
    month_digest: str
    previous_digest: str
    closed_at: str | None
    closed_by: str
    close_reason: str
    sources: tuple[str, ...]
    window_code_versions: tuple[str, ...]
    clusters: tuple[ClusterCoverage, ...]
    unobserved: tuple[UnobservedSpan, ...]
    unobserved_more: int
    rates: tuple[RateUse, ...]
    price_changes: tuple[PriceChange, ...]


def provenance(inputs: MonthInputs, lines: pd.DataFrame) -> ReportProvenance:
    clusters = _clusters(inputs)
    facts = inputs.facts
    unobserved = unobserved_spans(inputs.windows)
    complete = bool(clusters) and all(item.settled and not item.missing_ms for item in clusters)
    return ReportProvenance(
        state="closed" if facts.closed else "settled" if complete else "open",
        code_version=inputs.code_version,
        digest=digest_of(inputs.windows),
        month_version=facts.version,
        month_digest=facts.digest,
        previous_digest=facts.previous_digest,
        closed_at=None if facts.closed_at_ms is None else iso(facts.closed_at_ms),
        closed_by=facts.author,
        close_reason=facts.reason,
        sources=tuple(sorted({item.source for item in inputs.windows})),
        window_code_versions=tuple(sorted({item.code_version for item in inputs.windows})),
        clusters=clusters,
        unobserved=unobserved[:_MOST_SPANS],
        unobserved_more=max(0, len(unobserved) - _MOST_SPANS),
        rates=rates_used(lines, inputs.rates),
        price_changes=price_changes(lines, inputs.rates),
    )


def price_changes(lines: pd.DataFrame, rates: Mapping[str, Rate]) -> tuple[PriceChange, ...]:
    """By time. ``lines`` have ``cluster``, ``model`` and ``rate_id``; without the instants of what they
    summed up, no change is known."""
    if "first_ms" not in lines.columns:
        return ()
    rated = lines[(lines["rate_id"] != "") & lines["first_ms"].notna()]
    spans: dict[tuple[str, str, str, str], list[tuple[int, int, int]]] = {}
    grouped = rated.groupby(["cluster", "model", "rate_id"], observed=True).agg(
        first_ms=("first_ms", "min"), last_ms=("last_ms", "max")
    )
    for (cluster, model, rate_id), first_ms, last_ms in grouped.itertuples(name=None):
        rate = rates[rate_id]
        key = (str(cluster), str(model), rate.pricing_category, rate.matched_by)
        spans.setdefault(key, []).append((int(first_ms), int(last_ms), rate.nano_per_board_hour))
    changes = [
        (first_ms, PriceChange(*key[:3], iso(first_ms), price, before))
        for key, found in spans.items()
        for (_, ended_ms, before), (first_ms, _, price) in pairwise(sorted(found))
        if ended_ms <= first_ms and price != before
    ]
    return tuple(change for _, change in sorted(changes, key=lambda each: (each[0], astuple(each[1]))))


def _clusters(inputs: MonthInputs) -> tuple[ClusterCoverage, ...]:
    """The clusters as in the blockers of a close: a cluster with windows in the month before, and none in
    this one, misses all of it."""
    windows: dict[str, list[WindowFacts]] = {item.cluster: [] for item in inputs.previous_windows}
    for item in sorted(inputs.windows, key=_order):
        windows.setdefault(item.cluster, []).append(item)
    found = (coverage_of(cluster, windows[cluster], inputs.month.window) for cluster in sorted(windows))
    return tuple(replace(item, provisional=()) if inputs.facts.closed else item for item in found)


def read_of(clusters: Sequence[ClusterCoverage], month: Window) -> str:
    """How much of ``month`` the numbers cover, for the head of the report; empty where it is all of it."""
    if not any(item.missing_ms for item in clusters):
        return ""
    days = span_of_days(month.length_ms)
    if len(clusters) == 1:
        return f"{span_of_days(clusters[0].covered_ms)} of the month's {days} were read"
    least = min(clusters, key=lambda item: (item.covered_ms, item.cluster))
    share = percent(ratio(sum(item.covered_ms for item in clusters), len(clusters) * month.length_ms))
    said = f"least of {name(least.cluster)}: {span_of_days(least.covered_ms)}"
    return f"{share} of the month of {len(clusters)} clusters was read ({said})"


def provisional_of(clusters: Sequence[ClusterCoverage]) -> Window | None:
    """From the first instant that is provisional in any of ``clusters`` to the last; None where none is."""
    found = [each for item in clusters for each in item.provisional]
    return Window(min(each.start_ms for each in found), max(each.end_ms for each in found)) if found else None


def provisional_words(clusters: Sequence[ClusterCoverage]) -> str:
    """What is provisional, for the head of a report; empty where nothing is."""
    span = provisional_of(clusters)
    if span is None:
        return ""
    when = f"from {iso(span.start_ms)} to {iso(span.end_ms)}"
    return f"Provisional {when}: what happened then may not all be told yet"


def digest_of(windows: Iterable[WindowFacts]) -> str:
    """SHA-256 over cluster, bounds, version and digest of each window, in order: names the ledger's state."""
    digest = hashlib.sha256()
    for item in sorted(windows, key=_order):
        text = "\t".join(
            (repr(item.cluster), str(item.start_ms), str(item.end_ms), str(item.version), item.digest)
        )
        digest.update(f"{text}\n".encode())
    return digest.hexdigest()


def unobserved_spans(windows: Iterable[WindowFacts]) -> tuple[UnobservedSpan, ...]:
    """Every span that was not wholly observed, the longest unobserved time first."""
    spans: list[UnobservedSpan] = []
    for item in sorted(windows, key=_order):
        window = Window(item.start_ms, item.end_ms)
        found = UnobservedSpan(item.cluster, window, window.length_ms - item.observed_ms)
        if spans and _goes_on(spans[-1], found):
            before = spans.pop()
            span = Window(before.span.start_ms, item.end_ms)
            found = UnobservedSpan(item.cluster, span, span.length_ms)
        if found.unobserved_ms > 0:
            spans.append(found)
    return tuple(sorted(spans, key=lambda one: (-one.unobserved_ms, one.cluster, one.span)))


def _goes_on(before: UnobservedSpan, after: UnobservedSpan) -> bool:
    """Whether two adjacent stretches are both wholly unobserved."""
    touch = before.cluster == after.cluster and before.span.end_ms == after.span.start_ms
    return touch and all(one.unobserved_ms == one.span.length_ms for one in (before, after))


def rates_used(lines: pd.DataFrame, rates: Mapping[str, Rate]) -> tuple[RateUse, ...]:
    """Every rate of the lines, by id, with what it priced: over-committed time, costing nothing, is left out.
    Raises InputError for a rate id that has no rate."""
    used = []
    rated = lines[(lines["rate_id"] != "") & (lines["bucket"] != Bucket.OVERCOMMITTED)]
    for (rate_id,), found in sorted(sums(rated, ["rate_id"]).items()):
        if rate_id not in rates:
            raise InputError("rate_id", rate_id, "a rate that the ledger has a record of")
        rate = rates[rate_id]
        used.append(
            RateUse(
                rate_id,
                rate.nano_per_board_hour,
                rate.list_nano_per_board_hour,
                rate.discount,
                rate.pricing_category,
                rate.matched_by,
                rate.source,
                rate.retrieved,
                found.amount,
            )
        )
    return tuple(used)


def problem_rows(problems: Sequence[DataProblem]) -> tuple[ProblemRow, ...]:
    """The same problem of several windows as one row, in a fixed order."""

    def identity(problem: DataProblem) -> tuple[str, str, str, str]:
        return (problem.code.value, problem.cluster, problem.subject, problem.detail)

    rows = []
    for same, found in groupby(sorted(problems, key=identity), key=identity):
        known = [problem.board_ms for problem in found if problem.board_ms is not None]
        rows.append(ProblemRow(*same, sum(known) if known else None))
    return tuple(rows)


def _order(item: WindowFacts) -> tuple[str, int, int]:
    return (item.cluster, item.start_ms, item.end_ms)


def coverage_of(cluster: str, windows: Sequence[WindowFacts], month: Window) -> ClusterCoverage:
    """``windows`` of one cluster, in order and disjoint."""
    covered = [month.overlap_ms(item.start_ms, item.end_ms) for item in windows]
    gaps, reached = [], month.start_ms
    for item in windows:
        if item.start_ms > reached:
            gaps.append(Window(reached, item.start_ms))
        reached = max(reached, item.end_ms)
    observed_ms = sum(item.observed_ms for item in windows)
    return ClusterCoverage(
        cluster=cluster,
        windows=len(windows),
        settled=all(item.settled for item in windows),
        covered_ms=sum(covered),
        missing_ms=month.length_ms - sum(covered),
        observed_ms=observed_ms,
        observed=ratio(observed_ms, sum(covered)),
        until=iso(reached),
        gaps=tuple(gaps),
        provisional=_provisional(windows, month),
    )


def _provisional(windows: Sequence[WindowFacts], month: Window) -> tuple[Window, ...]:
    """Windows that are not settled, those that touch as one."""
    found: list[Window] = []
    for item in windows:
        part = None if item.settled else month.intersect(Window(item.start_ms, item.end_ms))
        if part is None:
            continue
        touches = bool(found) and found[-1].end_ms == part.start_ms
        start_ms = found.pop().start_ms if touches else part.start_ms
        found.append(Window(start_ms, part.end_ms))
    return tuple(found)


EXISTING_SOURCES = ("kube-state-metrics and dcgm-exporter in ", "kube-state-metrics in ")
"""How the names of sources that read upstream exporters begin; the latter where use was not read."""
BOUNDS = frozenset(
    {
        *(DataProblemCode.END_BOUNDED, DataProblemCode.SHORT_UNSEEN, DataProblemCode.USE_SAMPLED),
        DataProblemCode.USE_UNREAD,
    }
)
"""Problems that say how exact numbers are, and that need no action."""


class ReportNumber(StrEnum):
    HELD = "held time and cost"
    CAPACITY = "capacity"
    BUSY = "busy time"
    SM = "SM activity"
    TENSOR = "tensor activity"
    MEMORY = "memory"
    ENERGY = "energy"


_OWN = {
    ReportNumber.HELD: "timestamps of the pods' own objects, whole milliseconds",
    ReportNumber.CAPACITY: "the nodes' own objects, as of each scrape",
    ReportNumber.BUSY: "counted on the node, about once a second",
    ReportNumber.SM: "counted on the node, about once a second",
    ReportNumber.TENSOR: "counted on the node, about once a second",
    ReportNumber.MEMORY: "looked at once a minute",
    ReportNumber.ENERGY: "the GPU's own counter",
}
_EXISTING = {
    ReportNumber.HELD: "requests, times of scheduling and completion of kube-state-metrics",
    ReportNumber.CAPACITY: "capacity and allocatable of kube-state-metrics, GPUs by dcgm-exporter",
    ReportNumber.BUSY: "a gauge of dcgm-exporter at each scrape",
    ReportNumber.SM: "a gauge of dcgm-exporter at each scrape",
    ReportNumber.TENSOR: "a gauge of dcgm-exporter at each scrape",
    ReportNumber.MEMORY: "a gauge of dcgm-exporter at each scrape",
    ReportNumber.ENERGY: "a counter of dcgm-exporter, or power at each scrape",
}
_ACTIVITY = (ReportNumber.BUSY, ReportNumber.SM, ReportNumber.TENSOR)
_USE = (*_ACTIVITY, ReportNumber.MEMORY, ReportNumber.ENERGY)
_ABOUT = {
    DataProblemCode.END_BOUNDED: (ReportNumber.HELD,),
    DataProblemCode.SHORT_UNSEEN: (ReportNumber.HELD,),
    DataProblemCode.USE_SAMPLED: _USE,
    DataProblemCode.USE_UNSPLIT: _USE,
    DataProblemCode.USE_DROPPED: _USE,
    DataProblemCode.USE_UNKNOWN: _USE,
    DataProblemCode.USE_UNREAD: (*_USE, ReportNumber.CAPACITY),
}
UNREAD = "not read"
"""The method of a number that was left out by whoever asked."""
_CAPACITY_OF_COST_ONLY = "capacity and allocatable of kube-state-metrics"


_MOST_CLUSTERS = 4
_NOT_TOLD = frozenset(
    {
        *(Waste.GANG_STALL, Waste.PREEMPTED, Waste.STARVED, Waste.STRANDED, Waste.FRAGMENTED),
        Waste.NO_DEMAND,
    }
)


def unreported_buckets(sources: Iterable[str]) -> frozenset[Waste]:
    """Buckets of the waste ledger for which none of ``sources`` has data."""
    found = set(sources)
    is_blind = bool(found) and all(source.startswith(EXISTING_SOURCES) for source in found)
    return _NOT_TOLD if is_blind else frozenset()


@dataclass(frozen=True, slots=True)
class MethodRow:
    """``coverage`` is the part of the held time that the number was measured on, None where nothing was; for
    held time and capacity, of the month. ``off_board_ms`` is GPU time by which the number may be off, None
    where no problem says that it is; ``notes`` give the reasons.
    """

    number: str
    method: str
    coverage: Fraction | None
    off_board_ms: int | None
    off: Fraction | None
    notes: tuple[str, ...]


def method_rows(
    sources: Iterable[str],
    found: GpuUtilisation,
    held_ms: int,
    covered: Fraction | None,
    problems: Sequence[DataProblem],
    clusters: Collection[str] = (),
    remarks: Mapping[ReportNumber, Sequence[str]] | None = None,
) -> tuple[MethodRow, ...]:
    """One row per number, in a fixed order. ``covered``: the part of the time that was observed; ``remarks``
    are notes beside those of ``problems``. With several ``clusters``, a note names its cluster, unless it is
    of all of them.
    """
    kinds = {source.startswith(EXISTING_SOURCES) for source in sources}
    if not kinds:
        return ()
    coverage: dict[ReportNumber, Fraction | None] = {
        ReportNumber.HELD: covered,
        ReportNumber.CAPACITY: covered,
        ReportNumber.BUSY: None if found.busy is None else found.busy.coverage,
        ReportNumber.SM: None if found.sm is None else found.sm.coverage,
        ReportNumber.TENSOR: None if found.tensor is None else found.tensor.coverage,
        ReportNumber.MEMORY: None if found.memory is None else found.memory.coverage,
        ReportNumber.ENERGY: None if found.energy is None else found.energy.coverage,
    }
    further = remarks or {}
    rows = (_row(number, kinds, coverage[number], held_ms, problems, clusters) for number in ReportNumber)
    return tuple(replace(row, notes=(*row.notes, *further.get(ReportNumber(row.number), ()))) for row in rows)


def is_use_unread(methods: Iterable[MethodRow]) -> bool:
    """Whether use was left out by whoever asked for the report."""
    return any(row.method == UNREAD for row in methods)


UNREAD_WORDS = "Use was not read (--cost-only): busy time, SM, memory and energy are unknown, and not 0"


def without_bounds(problems: Iterable[DataProblem]) -> list[DataProblem]:
    """The problems that need attention."""
    return [problem for problem in problems if problem.code not in BOUNDS]


def _row(
    number: ReportNumber,
    kinds: set[bool],
    coverage: Fraction | None,
    held_ms: int,
    problems: Sequence[DataProblem],
    clusters: Collection[str],
) -> MethodRow:
    methods = [table[number] for kind, table in ((False, _OWN), (True, _EXISTING)) if kind in kinds]
    about = [problem for problem in problems if number in _numbers_of(problem)]
    if coverage is None:  # what was never measured has no edges
        about = [problem for problem in about if problem.code is not DataProblemCode.USE_SAMPLED]
    if any(problem.code is DataProblemCode.USE_UNREAD for problem in about):
        of_cost_only = {_EXISTING[ReportNumber.CAPACITY]: _CAPACITY_OF_COST_ONLY}
        methods = [UNREAD] if number in _USE else [of_cost_only.get(each, each) for each in methods]
    known = [problem.board_ms for problem in about if problem.board_ms is not None]
    off_board_ms = sum(known) if known else None
    notes = _notes(about, clusters)
    off = None if off_board_ms is None else ratio(off_board_ms, held_ms)
    return MethodRow(number.value, "; ".join(methods), coverage, off_board_ms, off, notes)


def _notes(about: Sequence[DataProblem], clusters: Collection[str]) -> tuple[str, ...]:
    of: dict[str, set[str]] = {}
    for problem in about:
        of.setdefault(problem.detail, set()).add(problem.cluster)
    return tuple(
        detail if found.issuperset(clusters) else f"{_named(sorted(found))}: {detail}"
        for detail, found in sorted(of.items())
    )


def _named(clusters: Sequence[str]) -> str:
    more = len(clusters) - _MOST_CLUSTERS
    return ", ".join(clusters[:_MOST_CLUSTERS]) + (f" and {more} more" if more > 0 else "")


def _numbers_of(problem: DataProblem) -> Sequence[ReportNumber]:
    """The numbers that a problem is about: those of its code; where its subject names numbers (``memory``, or
    several), those alone."""
    numbers = _ABOUT.get(problem.code, ())
    subjects = problem.subject.split(", ")
    return [number for number in numbers if number.value in subjects] or numbers


@dataclass(frozen=True, slots=True)
class CloseWarning:
    """Something that cannot be put right once the month is closed: ``what`` it is in a word, and ``detail``
    with its amounts and times."""

    what: str
    detail: str


def close_warnings(
    found: ReportProvenance,
    *,
    unpriced_board_ms: int,
    waste_provisional: int,
    waste_missing: int,
    problems: Sequence[ProblemRow],
) -> tuple[CloseWarning, ...]:
    """What whoever closes a month should know of it, clusters and times in order; empty where nothing is.

    ``unpriced_board_ms`` is GPU time without a price; ``waste_provisional`` and ``waste_missing`` are windows
    of which the detectors have not had their last word, or none.
    """
    warnings = []
    for each in found.clusters:
        warnings += [
            CloseWarning("gap", f"{name(each.cluster)}: no window for {duration(gap.length_ms)}, {gap}")
            for gap in each.gaps
        ]
        warnings += [
            CloseWarning(
                "provisional", f"{name(each.cluster)}: what happened in {span} may not all be told yet"
            )
            for span in each.provisional
        ]
    warnings += [
        CloseWarning(
            "gap",
            f"{name(each.cluster)}: {duration(each.unobserved_ms)} of {each.span} not observed, no team's",
        )
        for each in found.unobserved
    ]
    if found.unobserved_more:
        warnings.append(
            CloseWarning("gap", f"{found.unobserved_more} more windows that were not observed whole")
        )
    if unpriced_board_ms:
        detail = f"{hours(unpriced_board_ms)} GPU-hours have no price and are in no amount"
        warnings.append(CloseWarning("unpriced", detail))
    if waste_provisional:
        detail = f"{counted(waste_provisional, 'window')}: detectors may still find other waste in them"
        warnings.append(CloseWarning("provisional", detail))
    if waste_missing:
        detail = f"{counted(waste_missing, 'window')} that no detector has looked at: waste is unknown there"
        warnings.append(CloseWarning("waste", detail))
    for row in problems:
        where = " ".join(filter(None, (name(row.cluster), name(row.subject))))
        of = "" if row.board_ms is None else f", {hours(row.board_ms)} GPU-hours"
        warnings.append(CloseWarning("problem", f"{row.code}{of}: {where}: {visible(row.detail)}"))
    return tuple(warnings)
