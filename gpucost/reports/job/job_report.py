"""The report of one job: what it held, what it cost, and the trace from the sum to its parts.

``live_view`` adds what a source still has of the job: each GPU that it held, and what it waited for. The
ledger keeps sums; single GPUs and waits are history, available for as long as the source retains it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import pandas as pd

from gpucost.attribution.frames import ClusterFrames
from gpucost.attribution.segments import union
from gpucost.detectors.inputs.activity_table import ActivityTable, Floats
from gpucost.domain.buckets import Bucket
from gpucost.domain.errors import InputError
from gpucost.domain.money import NANO, plain, round_half_even
from gpucost.domain.rates import Rate
from gpucost.domain.time import HOUR_MS, SECOND_MS, Window
from gpucost.reports.base.display import duration, price, trimmed
from gpucost.reports.base.frame_sums import (
    prepare,
    records,
    summed,
    total,
)
from gpucost.reports.base.unit_costs import ProgressCost, idle_share, unit_cost
from gpucost.reports.base.values import (
    STEP,
    CostAmount,
    EnergyUsage,
    GpuUtilisation,
    MeasureSums,
    UsageSignal,
)
from gpucost.reports.job.job_waste import (
    JobAccount,
    JobDetectionView,
    JobFinding,
    account,
    findings_about,
)
from gpucost.reports.live.queues_now import WaitingJob
from gpucost.reports.month.inputs import JOB_DIMS, JobInputs
from gpucost.reports.month.provenance import (
    ProblemRow,
    RateUse,
    problem_rows,
    rates_used,
)

_MIB = 1 << 20
_SIGNALS = ("observed_ms", "busy_ms", "sm_observed_ms", "sm_active_ms")
_SUMMED = (*_SIGNALS, "held_ms", "energy_j")
_WAIT_KEYS = ("cluster", "layer", "reason", "cluster_queue", "queue", "pod_set", "resource", "pods", "units")


@dataclass(frozen=True, slots=True)
class GpuUse:
    """One GPU while one pod of the job held it. ``idle_board_ms`` is time in steps in which no kernel ever
    ran; None, as every other signal, where nothing was observed."""

    cluster: str
    node: str
    gpu: str
    pod: str
    held_board_ms: int
    idle_board_ms: int | None
    busy: UsageSignal | None
    sm: UsageSignal | None
    memory_peak_mib: int | None
    memory_total_mib: int | None
    energy: EnergyUsage | None


@dataclass(frozen=True, slots=True)
class JobWait:
    """A stretch in which pods of the job waited. ``layer`` is ``quota``, ``placement`` or ``device``, empty
    where that is not known; ``units`` are per pod."""

    span: Window
    cluster: str
    queue: str
    layer: str
    reason: str
    pod_set: str
    resource: str
    pods: int
    units: int


@dataclass(frozen=True, slots=True)
class JobLiveView:
    """What the source has in ``spans``; ``notes`` say what is missing, and why. ``waited_ms`` is wall time in
    which any of its pods waited."""

    spans: tuple[Window, ...]
    gpus: tuple[GpuUse, ...]
    waits: tuple[JobWait, ...]
    waited_ms: int
    notes: tuple[str, ...]


def live_view(
    job_uid: str, looks: Sequence[tuple[Window, ClusterFrames]], notes: Iterable[str] = ()
) -> JobLiveView:
    """What ``looks`` (stretches that do not overlap, and their frames) contain of the job."""
    gpus = [use for _, frames in looks for use in _gpus(job_uid, frames)]
    waits = [wait for _, frames in looks for wait in _waits(job_uid, frames)]
    starts, ends = union([wait.span.start_ms for wait in waits], [wait.span.end_ms for wait in waits])
    return JobLiveView(
        spans=tuple(sorted({window for window, _ in looks}, key=lambda each: each.start_ms)),
        gpus=tuple(sorted(gpus, key=lambda use: (use.cluster, use.node, use.pod, use.gpu))),
        waits=tuple(sorted(waits, key=lambda wait: (wait.span.start_ms, wait.pod_set, wait.reason))),
        waited_ms=int((ends - starts).sum()),
        notes=tuple(notes),
    )


def _gpus(job_uid: str, frames: ClusterFrames) -> list[GpuUse]:
    allocations = frames.allocations
    mine = allocations[allocations["job_uid"] == job_uid]
    pods = dict(zip(mine["pod_uid"].astype("str"), mine["pod"].astype("str"), strict=True))
    rows = frames.activity
    activity = ActivityTable.of(rows[rows["pod_uid"].isin(list(pods))])
    if not len(activity):
        return []
    sums = {name: _whole(activity.sums(name)) for name in _SUMMED}
    held_ms = activity.values["held_ms"]
    metered = _whole(_added(np.where(np.isnan(activity.values["energy_j"]), 0.0, held_ms), activity))
    idle = _whole(_added(np.where(activity.is_idle, held_ms, 0.0), activity))
    was_seen = _added(activity.is_observed.astype(np.float64), activity) > 0
    peak, size = (_largest_mib(activity, name) for name in ("memory_used_bytes", "memory_total_bytes"))
    found = []
    columns = (activity.series[name].tolist() for name in ("cluster", "node", "gpu", "pod_uid"))
    for n, (cluster, node, gpu, uid) in enumerate(zip(*columns, strict=True)):
        joules = sums["energy_j"][n]
        use = MeasureSums(
            board_ms=sums["held_ms"][n] or 0,
            nano=None,
            unpriced_ms=0,
            **{name: sums[name][n] for name in _SIGNALS},
            energy_observed_ms=metered[n],
            energy_mj=None if joules is None else joules * 1000,
        )
        level = use.utilisation
        found.append(
            GpuUse(
                *(cluster, node, gpu, pods[uid], use.board_ms),
                idle_board_ms=idle[n] if was_seen[n] else None,
                busy=level.busy,
                sm=level.sm,
                memory_peak_mib=peak[n],
                memory_total_mib=size[n],
                energy=level.energy,
            )
        )
    return found


def _waits(job_uid: str, frames: ClusterFrames) -> list[JobWait]:
    """Adjacent stretches that are equal in everything else are joined."""
    rows = frames.demand
    stretches: dict[tuple[Any, ...], list[tuple[int, int]]] = defaultdict(list)
    for *key, start, end in rows[rows["job_uid"] == job_uid][[*_WAIT_KEYS, "start_ms", "end_ms"]].itertuples(
        index=False
    ):
        stretches[tuple(key)].append((start, end))
    found = []
    for (cluster, layer, reason, cluster_queue, queue, *rest), times in stretches.items():
        starts, ends = union([start for start, _ in times], [end for _, end in times])
        for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
            found.append(JobWait(Window(start, end), cluster, cluster_queue or queue, layer, reason, *rest))
    return found


def _added(values: Floats, activity: ActivityTable) -> Floats:
    total: Floats = np.add.reduceat(values, activity.begin[:-1])
    return total


def _largest_mib(activity: ActivityTable, name: str) -> list[int | None]:
    return _whole(np.fmax.reduceat(activity.values[name], activity.begin[:-1]) / _MIB)


def _whole(values: Floats) -> list[int | None]:
    return [None if np.isnan(value) else round(value) for value in values.tolist()]


_TRACED = ("cluster", "node", "pod", "resource", "model", "profile", "team", "rate_id")
_SHARE = ("share_num", "share_den")


@dataclass(frozen=True, slots=True)
class TraceLine:
    """One part of the cost: a pod on a node at one rate. ``formula`` can be computed by hand."""

    span: Window
    cluster: str
    node: str
    pod: str
    resource: str
    model: str
    profile: str
    team: str
    rate_id: str
    price_nano: int | None
    amount: CostAmount
    formula: str


@dataclass(frozen=True, slots=True)
class JobMatch:
    """A job that was asked for. ``held`` is from the first ledger window with a line of it to the last;
    ``amount`` is what it held in all. A job that was of several teams is there for each.

    ``user`` is empty where its pods name nobody, or several. ``state`` is ``running`` while it holds GPUs, as
    the watched cluster says (``JobMatches.watched``), of others as the last window of their ledger does; then
    ``done``."""

    cluster: str
    namespace: str
    job: str
    job_kind: str
    job_uid: str
    team: str
    held: Window
    amount: CostAmount
    user: str = ""
    state: str = ""


@dataclass(frozen=True, slots=True)
class JobMatches:
    """The jobs called ``name`` (empty: all), of those that the reader may see: those that held GPUs last come
    first. ``cut`` says that there are more of them.

    ``users`` are the names that were asked for (null: anybody's), ``since`` when they must have held GPUs
    (null: whenever). ``waiting`` are jobs that wait now in the cluster ``watched``, the longest first; null
    where no cluster is watched, or it is not known what waits there.
    """

    name: str
    currency: str
    jobs: tuple[JobMatch, ...]
    cut: bool
    users: tuple[str, ...] | None = None
    since: str | None = None
    waiting: tuple[WaitingJob, ...] | None = None
    watched: str | None = None


@dataclass(frozen=True, slots=True)
class JobReport:
    """A job so far. ``window`` is what was asked for, ``span`` from the first to the last held instant.

    ``account`` says where its time went; ``seen`` and ``look`` are None where the source was not asked.
    ``folded_days`` are known as whole UTC days only.
    """

    job_uid: str
    job: str
    job_kind: str
    namespace: str
    currency: str
    code_version: str
    window: Window
    span: Window
    clusters: tuple[str, ...]
    teams: tuple[str, ...]
    projects: tuple[str, ...]
    users: tuple[str, ...]
    queues: tuple[str, ...]
    cluster_queues: tuple[str, ...]
    models: tuple[str, ...]
    nodes: tuple[str, ...]
    pods: tuple[str, ...]
    held: CostAmount
    overcommitted: CostAmount
    utilisation: GpuUtilisation
    progress: tuple[ProgressCost, ...]
    rates: tuple[RateUse, ...]
    lines: tuple[TraceLine, ...]
    problems: tuple[ProblemRow, ...]
    account: JobAccount | None
    findings: tuple[JobFinding, ...]
    seen: JobLiveView | None = None
    look: JobDetectionView | None = None
    folded_days: tuple[Window, ...] = ()


def build_job(inputs: JobInputs) -> JobReport:
    """The report of ``inputs``; the same for any order of rows.

    Raises InputError when the job has no usage in the lines, and for a rate id without a rate.
    """
    steps = () if inputs.step_ms is None else (STEP,)
    lines = prepare(inputs.lines, (*JOB_DIMS, *steps, "first_ms", "last_ms"), "lines")
    held = lines[lines["bucket"] == Bucket.HELD]
    if held.empty:
        raise InputError("job_uid", inputs.job_uid, "the uid of a job with usage in the ledger")
    amount, found = total(held), _account(inputs)
    idle = None if found is None else idle_share((row.waste, row.amount.board_ms) for row in found.buckets)

    def distinct(column: str) -> tuple[str, ...]:
        return tuple(sorted(value for value in held[column].unique() if value))

    def only(column: str) -> str:
        return ", ".join(distinct(column))

    return JobReport(
        job_uid=inputs.job_uid,
        job=only("job"),
        job_kind=only("job_kind"),
        namespace=only("namespace"),
        currency=inputs.currency,
        code_version=inputs.code_version,
        window=inputs.window,
        span=Window(int(held["first_ms"].min()), int(held["last_ms"].max())),
        clusters=distinct("cluster"),
        teams=distinct("team"),
        projects=distinct("project"),
        users=distinct("user"),
        queues=distinct("queue"),
        cluster_queues=distinct("cluster_queue"),
        models=distinct("model"),
        nodes=distinct("node"),
        pods=distinct("pod"),
        held=amount.amount,
        overcommitted=total(lines[lines["bucket"] == Bucket.OVERCOMMITTED]).amount,
        utilisation=amount.utilisation,
        progress=tuple(unit_cost(facts, idle) for facts in sorted(inputs.progress, key=lambda f: f.name)),
        rates=rates_used(held, inputs.rates),
        lines=_trace(held, inputs),
        problems=problem_rows(inputs.problems),
        account=found,
        findings=findings_about(inputs.findings, inputs.scope),
        folded_days=inputs.folded_days,
    )


def _account(inputs: JobInputs) -> JobAccount | None:
    if inputs.waste is None or inputs.assessment is None:
        return None
    return account(inputs.waste, inputs.assessment)


def _trace(held: pd.DataFrame, inputs: JobInputs) -> tuple[TraceLine, ...]:
    steps = [] if inputs.step_ms is None else [STEP]
    keys = [*steps, *_TRACED, *_SHARE]
    frame = summed(held, keys).sort_values(["first_ms", "last_ms", *keys])
    lines = []
    for row, found in zip(frame.to_dict("records"), records(frame), strict=True):
        span = Window(int(row["first_ms"]), int(row["last_ms"]))
        rate = inputs.rates.get(row["rate_id"])
        lines.append(
            TraceLine(
                span=span,
                **{column: row[column] for column in _TRACED},
                price_nano=None if rate is None else rate.nano_per_board_hour,
                amount=found.amount,
                formula=formula(
                    found.amount, span, Fraction(row["share_num"], row["share_den"]), rate, inputs.currency
                ),
            )
        )
    return tuple(lines)


def formula(amount: CostAmount, span: Window, share: Fraction, rate: Rate | None, currency: str) -> str:
    """``8 GPUs × 3.5 h × 6.88 USD/h = 192.64 USD``, ``1 unit × 2/7 GPU × 5 h × …`` for parts of GPUs.

    The number of units follows from GPU time, ``share`` of a GPU and span. Where no number of units that held
    all of the span explains the time (a pod with gaps, several pods of one name), the GPU-hours are shown
    instead. A sum that differs from its formula because of apportioning is shown as it is.
    """
    units = _units(amount.board_ms, span, share)
    if units is None:
        hours = trimmed(plain(round_half_even(amount.board_ms * NANO, HOUR_MS), 6))
        time = f"{hours} GPU-hours (time held differs from the span of {duration(span.length_ms)})"
    elif share == 1:
        time = f"{units} {'GPU' if units == 1 else 'GPUs'} × {duration(span.length_ms)}"
    else:
        time = f"{units} {'unit' if units == 1 else 'units'} × {share} GPU × {duration(span.length_ms)}"
    if rate is None or amount.nano is None:
        return f"{time}, no price"
    return f"{time} × {price(rate.nano_per_board_hour)} {currency}/h = {price(amount.nano)} {currency}"


def _units(board_ms: int, span: Window, share: Fraction) -> int | None:
    """The number of units whose time over the whole span this is, but for the remainder of apportioning; else
    None."""
    one = share * span.length_ms
    units = round(board_ms / one)
    # Whole GPUs are never apportioned. Apportioning a part moves milliseconds, once for each pod that came or
    # went on the node; a gap is longer, since Kubernetes writes times in whole seconds.
    left = 0 if share == 1 else max(units * share * SECOND_MS / 2, Fraction(board_ms, 1_000_000))
    return units if units and abs(units * one - board_ms) <= left else None
