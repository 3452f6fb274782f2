"""How each kind of number of a month was made, on how much of the time, and by how much it may be off.

Where gpucost's own exporters run, time and money are exact; out of other exporters' series they are as exact
as these are, and what these cannot tell is bounded: the bounds are problems of the source, and stand here.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from fractions import Fraction

from gpucost.domain.problems import Problem, ProblemCode
from gpucost.domain.waste import Waste
from gpucost.reports.values import Utilisation, ratio

EXISTING_SOURCE = "kube-state-metrics and dcgm-exporter in "
"""How the names of sources of the second dialect begin."""
BOUNDS = frozenset({ProblemCode.END_BOUNDED, ProblemCode.SHORT_UNSEEN, ProblemCode.USE_SAMPLED})
"""Problems that say how exact numbers are, and nothing that could be mended."""


class Number(StrEnum):
    HELD = "held time and cost"
    CAPACITY = "capacity"
    BUSY = "busy time"
    SM = "SM activity"
    TENSOR = "tensor activity"
    MEMORY = "memory"
    ENERGY = "energy"


_OWN = {
    Number.HELD: "timestamps of the pods' own objects, whole milliseconds",
    Number.CAPACITY: "the nodes' own objects, as of each scrape",
    Number.BUSY: "counted on the node, about once a second",
    Number.SM: "counted on the node, about once a second",
    Number.TENSOR: "counted on the node, about once a second",
    Number.MEMORY: "looked at once a minute",
    Number.ENERGY: "the board's own counter",
}
_EXISTING = {
    Number.HELD: "requests, times of scheduling and completion of kube-state-metrics",
    Number.CAPACITY: "capacity and allocatable of kube-state-metrics, boards by dcgm-exporter",
    Number.BUSY: "a gauge of dcgm-exporter at each scrape",
    Number.SM: "a gauge of dcgm-exporter at each scrape",
    Number.TENSOR: "a gauge of dcgm-exporter at each scrape",
    Number.MEMORY: "a gauge of dcgm-exporter at each scrape",
    Number.ENERGY: "a counter of dcgm-exporter, or power at each scrape",
}
_ACTIVITY = (Number.BUSY, Number.SM, Number.TENSOR)
_USE = (*_ACTIVITY, Number.MEMORY, Number.ENERGY)
_ABOUT = {
    ProblemCode.END_BOUNDED: (Number.HELD,),
    ProblemCode.SHORT_UNSEEN: (Number.HELD,),
    ProblemCode.USE_SAMPLED: _USE,
    ProblemCode.USE_UNSPLIT: _USE,
    ProblemCode.USE_DROPPED: _USE,
}


_MOST_CLUSTERS = 4
_NOT_TOLD = frozenset({Waste.GANG_STALL, Waste.PREEMPTED, Waste.STARVED, Waste.FRAGMENTED, Waste.NO_DEMAND})


def not_told(sources: Iterable[str]) -> frozenset[Waste]:
    """Buckets of the waste ledger that none of ``sources`` says anything of."""
    found = set(sources)
    is_blind = bool(found) and all(source.startswith(EXISTING_SOURCE) for source in found)
    return _NOT_TOLD if is_blind else frozenset()


@dataclass(frozen=True, slots=True)
class MethodRow:
    """``coverage`` is the part of the held time that the number was measured on, None where nothing was; for
    held time and capacity, of the month. ``off_board_ms`` is board time by which the number may be off, None
    where nothing says that it is; ``notes`` say why.
    """

    number: str
    method: str
    coverage: Fraction | None
    off_board_ms: int | None
    off: Fraction | None
    notes: tuple[str, ...]


def method_rows(
    sources: Iterable[str],
    found: Utilisation,
    held_ms: int,
    covered: Fraction | None,
    problems: Sequence[Problem],
    clusters: Collection[str] = (),
    remarks: Mapping[Number, Sequence[str]] | None = None,
) -> tuple[MethodRow, ...]:
    """One row per number, in a fixed order. ``covered``: the part of the time that was observed; ``remarks``
    are notes beside those of ``problems``. Of several ``clusters``, a note says whose it is, unless it is of
    them all."""
    kinds = {source.startswith(EXISTING_SOURCE) for source in sources}
    if not kinds:
        return ()
    coverage: dict[Number, Fraction | None] = {
        Number.HELD: covered,
        Number.CAPACITY: covered,
        Number.BUSY: None if found.busy is None else found.busy.coverage,
        Number.SM: None if found.sm is None else found.sm.coverage,
        Number.TENSOR: None if found.tensor is None else found.tensor.coverage,
        Number.MEMORY: None if found.memory is None else found.memory.coverage,
        Number.ENERGY: None if found.energy is None else found.energy.coverage,
    }
    further = remarks or {}
    rows = (_row(number, kinds, coverage[number], held_ms, problems, clusters) for number in Number)
    return tuple(replace(row, notes=(*row.notes, *further.get(Number(row.number), ()))) for row in rows)


def without_bounds(problems: Iterable[Problem]) -> list[Problem]:
    """What is left to look at."""
    return [problem for problem in problems if problem.code not in BOUNDS]


def _row(
    number: Number,
    kinds: set[bool],
    coverage: Fraction | None,
    held_ms: int,
    problems: Sequence[Problem],
    clusters: Collection[str],
) -> MethodRow:
    methods = [table[number] for kind, table in ((False, _OWN), (True, _EXISTING)) if kind in kinds]
    about = [problem for problem in problems if number in _numbers_of(problem)]
    if coverage is None:  # what was never measured has no edges
        about = [problem for problem in about if problem.code is not ProblemCode.USE_SAMPLED]
    known = [problem.board_ms for problem in about if problem.board_ms is not None]
    off_board_ms = sum(known) if known else None
    notes = _notes(about, clusters)
    off = None if off_board_ms is None else ratio(off_board_ms, held_ms)
    return MethodRow(number.value, "; ".join(methods), coverage, off_board_ms, off, notes)


def _notes(about: Sequence[Problem], clusters: Collection[str]) -> tuple[str, ...]:
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


def _numbers_of(problem: Problem) -> Sequence[Number]:
    """Those of its code; where its subject names numbers (``memory``, or several), those alone."""
    numbers = _ABOUT.get(problem.code, ())
    subjects = problem.subject.split(", ")
    return [number for number in numbers if number.value in subjects] or numbers
