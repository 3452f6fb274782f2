"""What a report is made from: ledger frames, and the facts that say where they come from.

The service fills these from the ledger. One aggregate by MONTH_DIMS is enough for the whole month;
PREVIOUS_DIMS and DAY_DIMS are coarse. A frame may have more dimensions than named here, and its rows may come
in any order. ``compare`` says whether a month can be compared with the one before: only where the ledger
covers both alike.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

import pandas as pd

from gpucost.domain.errors import DataProblem
from gpucost.domain.rates import Rate
from gpucost.domain.scope import EVERYTHING, Scope
from gpucost.domain.time import Month, Window
from gpucost.reports.base.display import percent, visible
from gpucost.reports.base.unit_costs import ProgressFacts
from gpucost.reports.base.values import CostAmount
from gpucost.reports.month.change_causes import SpanTime
from gpucost.reports.waste.recommendations import KnownFinding
from gpucost.reports.waste.waste_report import WasteAssessment, WasteInputs

JOB_KEY = ("cluster", "namespace", "job_kind", "job", "job_uid")
MONTH_DIMS = (
    "cluster",
    "model",
    "profile",
    "basis",
    "bucket",
    "namespace",
    "job_kind",
    "job",
    "job_uid",
    "queue",
    "cluster_queue",
    "team",
    "project",
    "rate_id",
)
PREVIOUS_DIMS = ("cluster", "model", "bucket", "job_kind", "queue", "cluster_queue", "team", "project")
DAY_DIMS = ("bucket", "team")  # with a step of one day
JOB_DIMS = (
    "cluster",
    "node",
    "resource",
    "model",
    "profile",
    "share_num",
    "share_den",
    "bucket",
    "namespace",
    "pod",
    "pod_uid",
    "job_kind",
    "job",
    "job_uid",
    "queue",
    "cluster_queue",
    "team",
    "project",
    "user",
    "rate_id",
)


@dataclass(frozen=True, slots=True)
class WindowFacts:
    """One window of the ledger. ``observed_ms`` is the wall time of it in which the cluster was observed."""

    cluster: str
    start_ms: int
    end_ms: int
    version: int
    digest: str
    observed_ms: int
    settled: bool
    source: str
    code_version: str


@dataclass(frozen=True, slots=True)
class MonthFacts:
    """Whether the month is closed, and by whom. ``digest`` is the ledger's, empty while the month is open."""

    closed: bool = False
    version: int = 0
    digest: str = ""
    previous_digest: str = ""
    closed_at_ms: int | None = None
    author: str = ""
    reason: str = ""


@dataclass(frozen=True, slots=True)
class AdjustmentFacts:
    """One correction of a closed month: ``nano`` and ``board_ms`` may be negative."""

    team: str
    nano: int
    board_ms: int
    reason: str
    author: str
    reference: str
    job_uid: str = ""


@dataclass(frozen=True, slots=True)
class TeamAccount:
    """What the team rules say of a team: its cost centre, and nano-units of money for a calendar month, of
    all clusters; None where they say nothing."""

    cost_centre: str | None = None
    monthly_nano: int | None = None


@dataclass(frozen=True)
class MonthInputs:
    """Everything a MonthReport is built from.

    ``previous`` is None when the ledger has no previous month, ``days`` when no daily chart is wanted.
    ``previous_windows`` say how much of the previous month there is: without that, nothing is compared.
    ``capacity`` is the capacity that the ledger wrote down apart from the lines (the totals of its
    windows), where the caller has it: the report compares the lines with it. ``waste`` is the month's
    waste ledger, ``accounts`` are by team. Frames, problems and adjustments are read in ``scope``.
    """

    month: Month
    currency: str
    code_version: str
    lines: pd.DataFrame
    previous: pd.DataFrame | None = None
    days: pd.DataFrame | None = None
    scope: Scope = EVERYTHING
    facts: MonthFacts = field(default_factory=MonthFacts)
    windows: tuple[WindowFacts, ...] = ()
    previous_windows: tuple[WindowFacts, ...] = ()
    rates: Mapping[str, Rate] = field(default_factory=dict)
    problems: tuple[DataProblem, ...] = ()
    adjustments: tuple[AdjustmentFacts, ...] = ()
    capacity: CostAmount | None = None
    waste: WasteInputs | None = None
    accounts: Mapping[str, TeamAccount] = field(default_factory=dict)


@dataclass(frozen=True)
class JobInputs:
    """Everything a JobReport is built from.

    ``lines`` is an aggregate by JOB_DIMS filtered to the job; with a step it also has ``step_start_ms``, and
    the trace then has a line per step. ``window`` is the requested time. ``waste`` is the waste ledger of the
    job, with ``bucket`` among its dimensions, and ``assessment`` says how much of it was assessed; None where
    that is not wanted. ``scope`` is that of the reader. ``folded_days`` are the UTC days of ``window`` whose
    hours the ledger no longer has.
    """

    job_uid: str
    currency: str
    code_version: str
    window: Window
    lines: pd.DataFrame
    step_ms: int | None = None
    rates: Mapping[str, Rate] = field(default_factory=dict)
    progress: tuple[ProgressFacts, ...] = ()
    problems: tuple[DataProblem, ...] = ()
    waste: pd.DataFrame | None = None
    assessment: WasteAssessment | None = None
    findings: tuple[KnownFinding, ...] = ()
    scope: Scope = EVERYTHING
    folded_days: tuple[Window, ...] = ()


# A month that lacks more than seven hours of windows is not compared; the default of ledger.close_coverage.
ENOUGH = Fraction(99, 100)


@dataclass(frozen=True, slots=True)
class MonthComparison:
    """How much of both months the ledger's windows cover, in the cluster that is covered least.

    ``reason`` says why there is no change, and is empty where there is one. ``in_progress``: this month is
    whole up to where the ledger ends, so its change is that of a part against a whole.
    """

    covered: Fraction
    previous_covered: Fraction
    in_progress: bool
    reason: str

    @property
    def note(self) -> str:
        """The note beside a change, or in its place; empty for two whole months."""
        if self.in_progress and not self.reason:
            before = _percent(self.previous_covered)
            return f"so far: this month covered {_percent(self.covered)}, previous {before}"
        return self.reason


def compare(
    month: Month, windows: Sequence[WindowFacts], previous_windows: Sequence[WindowFacts]
) -> MonthComparison:
    """A cluster counts in both months when it has a window in either of them."""
    clusters = sorted({item.cluster for item in (*windows, *previous_windows)})
    covered, least = covered_least(month.window, windows, clusters)
    before, least_before = covered_least(month.previous().window, previous_windows, clusters)
    until = max((min(item.end_ms, month.window.end_ms) for item in windows), default=0)
    whole_so_far = bool(windows) and (
        covered_least(Window(month.window.start_ms, until), windows, clusters)[0] >= ENOUGH
    )
    reason = ""
    if not previous_windows:
        reason = "nothing of the previous month was read"
    elif before < ENOUGH:
        reason = f"previous month covered {_percent(before)}{least_before}"
    elif covered < ENOUGH and not whole_so_far:
        reason = f"this month covered {_percent(covered)}{least}"
    return MonthComparison(covered, before, covered < ENOUGH and whole_so_far, reason)


def span_time(windows: Sequence[WindowFacts], span: Window) -> SpanTime:
    """How much of ``span`` there is, up to its last window: what comes later is not missing yet."""
    end_ms = max((min(item.end_ms, span.end_ms) for item in windows), default=span.end_ms)
    covered: dict[str, int] = defaultdict(int)
    observed: dict[str, int] = defaultdict(int)
    for item in windows:
        inside = span.overlap_ms(item.start_ms, item.end_ms)
        covered[item.cluster] += inside
        observed[item.cluster] += item.observed_ms * inside // (item.end_ms - item.start_ms)
    return SpanTime(end_ms - span.start_ms, dict(covered), dict(observed))


def covered_least(
    time: Window, windows: Sequence[WindowFacts], clusters: Sequence[str]
) -> tuple[Fraction, str]:
    """The smallest covered part of ``time``, and the cluster it is of where there are several."""
    covered = dict.fromkeys(clusters, 0)
    for item in windows:
        covered[item.cluster] += time.overlap_ms(item.start_ms, item.end_ms)
    if not covered:
        return Fraction(0), ""
    least = min(clusters, key=lambda cluster: (covered[cluster], cluster))
    of_which = f" of cluster {visible(least)}" if len(clusters) > 1 else ""
    return Fraction(covered[least], time.length_ms), of_which


def _percent(part: Fraction) -> str:
    return percent(part, 1)
