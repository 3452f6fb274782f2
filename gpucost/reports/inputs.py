"""What a report is made from: ledger frames, and the facts that say where they come from.

The service fills these from the ledger. One aggregate by MONTH_DIMS feeds the whole month; PREVIOUS_DIMS and
DAY_DIMS are coarse. A frame may have more dimensions than named here, and its rows may come in any order.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction

import pandas as pd

from gpucost.domain.problems import Problem
from gpucost.domain.rates import Rate
from gpucost.domain.scope import EVERYTHING, Scope
from gpucost.domain.time import Month, Window
from gpucost.reports.to_do import KnownFinding
from gpucost.reports.values import Amount
from gpucost.reports.waste import Assessment, WasteInputs

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
class ProgressFacts:
    """How far a job came: ``amount`` of whatever ``name`` counts (``steps``, ``epochs``, ``tokens``)."""

    name: str
    amount: int | float | Fraction


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
    problems: tuple[Problem, ...] = ()
    adjustments: tuple[AdjustmentFacts, ...] = ()
    capacity: Amount | None = None
    waste: WasteInputs | None = None
    accounts: Mapping[str, TeamAccount] = field(default_factory=dict)


@dataclass(frozen=True)
class JobInputs:
    """Everything a JobReport is built from.

    ``lines`` is an aggregate by JOB_DIMS filtered to the job; with a step it also has ``step_start_ms``,
    and the trace then has a line per step. ``window`` is the time that was asked for. ``waste`` is the waste
    ledger of the job, with ``bucket`` among its dimensions, and ``assessment`` says how much of it was looked
    at; None where that is not wanted. ``scope`` is that of the reader. ``folded_days`` are the UTC days of
    ``window`` of which the ledger has no hours any more.
    """

    job_uid: str
    currency: str
    code_version: str
    window: Window
    lines: pd.DataFrame
    step_ms: int | None = None
    rates: Mapping[str, Rate] = field(default_factory=dict)
    progress: tuple[ProgressFacts, ...] = ()
    problems: tuple[Problem, ...] = ()
    waste: pd.DataFrame | None = None
    assessment: Assessment | None = None
    findings: tuple[KnownFinding, ...] = ()
    scope: Scope = EVERYTHING
    folded_days: tuple[Window, ...] = ()
