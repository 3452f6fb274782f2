"""One job: what it held, interval by interval, at which prices, how well it used it, and what to change.

Everything on the page is of ``GET /v1/jobs/{uid}``, its receipt of ``GET /v1/jobs/{uid}/receipt``, its use
over time of ``GET /v1/allocations?step=``. A job of an inner scheduler (Slurm, Ray) is a job of its own kind
in the ledger, and is shown like any other. A name that several jobs have leads to a choice of them; a job
that only waits is in no ledger, and is found among those that wait now.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import Response
from pydantic.json_schema import SkipJsonSchema

from gpucost.access.principal import Principal
from gpucost.api.pages.page_layout import PageContent, PageFrame, content, shown
from gpucost.api.routes.live import queues_now
from gpucost.api.routes.requests import WholeNumber, refuse_unknown_parameters
from gpucost.api.server.authentication import Reader, authenticate
from gpucost.api.server.errors import ApiError, not_found
from gpucost.api.server.services import ApiServices, KnownServices, OneCluster
from gpucost.domain.errors import InputError
from gpucost.domain.scope import Scope
from gpucost.domain.time import DAY_MS, HOUR_MS, Month, Window, iso
from gpucost.reports.base import display
from gpucost.reports.base.page_addresses import job_page
from gpucost.reports.base.values import NOTHING, CostAmount, UsageSignal
from gpucost.reports.job.job_receipt import JobReceipt, ending_words, gpus_words
from gpucost.reports.job.job_report import JobMatch, JobReport, TraceLine
from gpucost.reports.job.job_waste import unexplained
from gpucost.reports.live.queues_now import WaitingJob
from gpucost.reports.month.allocations import AllocationRow
from gpucost.reports.render.html import DayChart, use_chart
from gpucost.reports.waste import waste_table
from gpucost.service.reporting.job_endings import ends_in
from gpucost.service.reporting.list_reports import allowed_jobs, jobs_named

router = APIRouter(
    dependencies=[Depends(authenticate), Depends(refuse_unknown_parameters)], include_in_schema=False
)

INTERVALS_A_PAGE = 100
_LONGEST_JOB = 2 * 253 + 1
_STEPS = {
    HOUR_MS: ("1h", "hour"),
    DAY_MS: ("1d", "day"),
    7 * DAY_MS: ("7d", "week"),
    28 * DAY_MS: ("28d", "4 weeks"),
}
_MOST_STEPS, _MOST_HOURS = 96, 96
_MOST_MONTHS = 12


@dataclass(frozen=True, slots=True)
class JobInterval:
    """One part of the cost, and the anchor of its row: the same for as long as the part begins then. ``step``
    divides ``within``, whole hours or days around it."""

    anchor: str
    line: TraceLine
    within: Window
    step: str


@dataclass(frozen=True, slots=True)
class HeldPart:
    """GPUs of one kind on one node, as the job held them in all."""

    cluster: str
    node: str
    model: str
    profile: str
    resource: str
    pods: int
    amount: CostAmount


@dataclass(frozen=True, slots=True)
class StepUse:
    """How the job used what it held, in steps of ``step``, as ``GET /v1/allocations`` calls it."""

    chart: DayChart
    step: str
    word: str


def intervals(report: JobReport) -> tuple[JobInterval, ...]:
    """All parts in their order, each with its anchor."""
    found = []
    for line in report.lines:
        step_ms = HOUR_MS if line.span.length_ms <= _MOST_HOURS * HOUR_MS else DAY_MS
        start_ms = line.span.start_ms // step_ms * step_ms
        end_ms = -(-line.span.end_ms // step_ms) * step_ms
        whole = report.window
        within = Window(max(start_ms, whole.start_ms), min(end_ms, whole.end_ms))
        found.append(JobInterval(interval_anchor(line), line, within, _STEPS[step_ms][0]))
    return tuple(found)


def interval_anchor(line: TraceLine) -> str:
    """By when it begins and of what it is: an end that moves on, or another part, changes nothing."""
    named = (line.span.start_ms, *(getattr(line, name) for name in _NAMED))
    return f"interval-{hashlib.sha256(repr(named).encode()).hexdigest()[:12]}"


_NAMED = ("cluster", "node", "pod", "resource", "model", "profile", "team", "rate_id")


def held_parts(lines: Sequence[TraceLine]) -> tuple[HeldPart, ...]:
    """By node and kind of GPU, the dearest first."""
    sums: dict[tuple[str, str, str, str, str], CostAmount] = defaultdict(lambda: NOTHING)
    pods: dict[tuple[str, str, str, str, str], set[str]] = defaultdict(set)
    for line in lines:
        key = (line.cluster, line.node, line.model, line.profile, line.resource)
        sums[key] += line.amount
        pods[key].add(line.pod)
    parts = [HeldPart(*key, len(pods[key]), amount) for key, amount in sums.items()]
    return tuple(sorted(parts, key=lambda each: (-(each.amount.nano or 0), -each.amount.board_ms, each.node)))


@router.get("/job")
async def show_job(
    request: Request,
    principal: Reader,
    known: KnownServices,
    job: Annotated[
        str,
        Query(min_length=1, max_length=_LONGEST_JOB, description="a job's uid, its name, or namespace/name"),
    ],
    cluster: OneCluster = None,
    progress: Annotated[
        str | SkipJsonSchema[None], Query(max_length=253, description="name of a progress metric")
    ] = None,
    page: Annotated[WholeNumber, Query(ge=1, le=1_000_000, description="page of its intervals")] = 1,
) -> Response:
    """One job, or those of a name to choose from. A job that the reader may not see is not found."""
    _, state = known.cluster_now

    def make() -> PageContent:
        return _job(known, principal, job, cluster, progress, page)

    frame = PageFrame(request, known, principal)
    asked = ("job", job, cluster, progress, page, None if state is None else state.at_ms)
    return await shown(frame, asked, make)


def _job(
    known: ApiServices, principal: Principal, job: str, cluster: str | None, progress: str | None, page: int
) -> PageContent:
    scope = known.reporting.of_cluster(principal.scope, cluster)
    clusters = known.ledger.job_clusters(scope, job)
    if len(clusters) == 1:
        return _one(known, principal, scope, job, progress, page)
    if clusters:
        return _choice(job, [(each, job_page(job, cluster=each)) for each in clusters], (), ())
    found = jobs_named(known.reporting, scope, job)
    matches = {(each.cluster, each.job_uid): each for each in reversed(found.jobs)}
    if len(matches) == 1:
        ((only, uid),) = matches
        return _one(known, principal, scope.within((only,)), uid, progress, page)
    waiting = _waiting(known, principal, cluster, *_named(job))
    if not matches and not waiting:
        words = (
            "no such job, or none that you may see; a job is in the ledger once the hour in which it began is"
            " over, and one that never held a GPU is in no ledger"
        )
        raise not_found("job", job, words, allowed_jobs(known.reporting, scope, job))
    return _choice(
        job, (), tuple(reversed(matches.values())), waiting, cut=found.cut, currency=found.currency
    )


def _choice(
    job: str,
    clusters: Sequence[tuple[str, str]],
    matches: Sequence[JobMatch],
    waiting: Sequence[WaitingJob],
    *,
    cut: bool = False,
    currency: str = "",
) -> PageContent:
    return content(
        f"Jobs called {display.name(job, 60)}",
        "job_choice.html.j2",
        job=job,
        clusters=clusters,
        matches=matches,
        several=len({each.cluster for each in matches}) > 1,
        waiting=waiting,
        cut=cut,
        currency=currency,
    )


def _named(job: str) -> tuple[str | None, str]:
    namespace, slash, name = job.rpartition("/")
    return (namespace if slash else None), name


def _waiting(
    known: ApiServices, principal: Principal, cluster: str | None, namespace: str | None, name: str
) -> tuple[WaitingJob, ...]:
    """Jobs of this name that wait now, of those that the reader may see; none where nothing is watched."""
    watched, state = known.cluster_now
    if state is None or cluster not in (None, watched):
        return ()
    try:
        found = queues_now(known, principal).waiting
    except ApiError:
        return ()
    return tuple(each for each in found if each.job == name and namespace in (None, each.namespace))


def _one(
    known: ApiServices, principal: Principal, scope: Scope, uid: str, progress: str | None, page: int
) -> PageContent:
    found = known.reporting.job(scope, uid, progress)
    if found is None:
        raise not_found("job", uid, "no such job")
    report, several = found.report, len(known.ledger.clusters(scope=principal.scope)) > 1
    receipt = _receipt(known, report)
    every = intervals(report)
    pages = max(1, -(-len(every) // INTERVALS_A_PAGE))
    if page > pages:
        raise InputError("page", page, f"1 to {pages}")
    cluster = ", ".join(report.clusters) if several else ""
    months = _months(report.span)
    is_over = [each.state == "resolved" or each.until is not None for each in report.findings]
    return content(
        f"{display.name(report.job, 60)}: what it held and cost",
        "job_page.html.j2",
        report=report,
        cluster=cluster,
        receipt=receipt,
        ending=ending_words(receipt),
        gpus=gpus_words(receipt),
        waiting=_waiting(known, principal, cluster or None, report.namespace, report.job),
        open_findings=[each for each, over in zip(report.findings, is_over, strict=True) if not over],
        past_findings=[each for each, over in zip(report.findings, is_over, strict=True) if over],
        unexplained=() if report.account is None else unexplained(report.account, report.findings),
        rows=every[(page - 1) * INTERVALS_A_PAGE : page * INTERVALS_A_PAGE],
        count=len(every),
        page=page,
        pages=pages,
        page_at=lambda number: job_page(uid, cluster=cluster, page=number, anchor="intervals"),
        parts=held_parts(report.lines),
        use=_use(known, scope.within(report.clusters), report),
        months=months,
        words=waste_table,
    )


def _receipt(known: ApiServices, report: JobReport) -> JobReceipt:
    watched, state = known.cluster_now
    asked = ", ".join(report.clusters), report.namespace, report.job_uid, report.job_kind
    end = ends_in(watched, state)(*asked)
    return known.reporting.receipt_of(report, end)


def _months(span: Window) -> tuple[Month, ...]:
    """The months in which it held GPUs, the newest first."""
    month, found = Month.of(span.end_ms - 1), list[Month]()
    while month.window.end_ms > span.start_ms and len(found) < _MOST_MONTHS:
        found.append(month)
        month = month.previous()
    return tuple(found)


def _use(known: ApiServices, scope: Scope, report: JobReport) -> StepUse | None:
    """In the shortest steps that are not too many, and that cut no window of the ledger."""
    for step_ms, (step, word) in _STEPS.items():
        if -(-report.window.length_ms // step_ms) > _MOST_STEPS:
            continue
        try:
            found = known.reporting.allocations(
                scope, report.window, (), step_ms=step_ms, filters={"job_uid": frozenset({report.job_uid})}
            )
        except InputError:
            continue
        chart = use_chart(_every_step(found.report.rows, report.window, step_ms), word)
        return None if chart is None else StepUse(chart, step, word)
    return None


def _every_step(
    rows: Sequence[AllocationRow], window: Window, step_ms: int
) -> dict[str, tuple[CostAmount, UsageSignal | None]]:
    """Steps by their beginning, those without use too."""
    by_start = {row.window.start_ms: row for row in rows}
    digits = 16 if step_ms < DAY_MS else 10
    found: dict[str, tuple[CostAmount, UsageSignal | None]] = {}
    start_ms = window.start_ms
    while start_ms < window.end_ms:
        row, name = by_start.get(start_ms), iso(start_ms)[:digits].replace("T", " ")
        found[name] = (NOTHING, None) if row is None else (row.held, row.utilisation.busy)
        start_ms = (start_ms // step_ms + 1) * step_ms
    return found
