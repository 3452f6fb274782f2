"""The report of one job: what it held, what it cost, and the trace from the sum to its parts."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import pandas as pd

from gpucost.domain.errors import InputError
from gpucost.domain.holders import Bucket
from gpucost.domain.money import NANO, plain, round_half_even
from gpucost.domain.rates import Rate
from gpucost.domain.time import HOUR_MS, SECOND_MS, Window
from gpucost.reports.display import duration, price, trimmed
from gpucost.reports.frame_sums import prepare, records, summed, total
from gpucost.reports.inputs import JOB_DIMS, JobInputs, ProgressFacts
from gpucost.reports.job_seen import JobSeen
from gpucost.reports.job_waste import JobAccount, JobFinding, JobLook, account, findings_about
from gpucost.reports.provenance import ProblemRow, RateUse, problem_rows, rates_used
from gpucost.reports.values import STEP, Amount, Utilisation

_TRACED = ("cluster", "node", "pod", "resource", "model", "profile", "team", "rate_id")
_SHARE = ("share_num", "share_den")


@dataclass(frozen=True, slots=True)
class ProgressCost:
    """Cost per unit of progress. None without progress, and where part of the time has no price."""

    name: str
    amount: Fraction
    per_unit_nano: int | None
    per_million_nano: int | None


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
    amount: Amount
    formula: str


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
    held: Amount
    overcommitted: Amount
    utilisation: Utilisation
    progress: tuple[ProgressCost, ...]
    rates: tuple[RateUse, ...]
    lines: tuple[TraceLine, ...]
    problems: tuple[ProblemRow, ...]
    account: JobAccount | None
    findings: tuple[JobFinding, ...]
    seen: JobSeen | None = None
    look: JobLook | None = None
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
    amount = total(held)

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
        progress=tuple(
            _progress(facts, amount.amount) for facts in sorted(inputs.progress, key=lambda f: f.name)
        ),
        rates=rates_used(held, inputs.rates),
        lines=_trace(held, inputs),
        problems=problem_rows(inputs.problems),
        account=_account(inputs),
        findings=findings_about(inputs.findings, inputs.scope),
        folded_days=inputs.folded_days,
    )


def _account(inputs: JobInputs) -> JobAccount | None:
    if inputs.waste is None or inputs.assessment is None:
        return None
    return account(inputs.waste, inputs.assessment)


def _progress(facts: ProgressFacts, held: Amount) -> ProgressCost:
    amount = Fraction(facts.amount)
    nano = None if held.unpriced_board_ms or amount <= 0 else held.nano
    if nano is None:
        return ProgressCost(facts.name, amount, None, None)
    return ProgressCost(facts.name, amount, _per(nano, amount), _per(nano * 1_000_000, amount))


def _per(nano: int, amount: Fraction) -> int:
    return round_half_even(nano * amount.denominator, amount.numerator)


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


def formula(amount: Amount, span: Window, share: Fraction, rate: Rate | None, currency: str) -> str:
    """``8 boards × 3.5 h × 6.88 USD/h = 192.64 USD``, ``1 unit × 2/7 board × 5 h × …`` for parts of boards.

    Units are told from board time, ``share`` of a board and span. Where no number of units held all of the
    span explains the time (a pod with gaps, several pods of one name), the GPU-hours stand in their place. A
    sum that differs from its formula by what was dealt to keep totals exact is shown as it is.
    """
    units = _units(amount.board_ms, span, share)
    if units is None:
        hours = trimmed(plain(round_half_even(amount.board_ms * NANO, HOUR_MS), 6))
        time = f"{hours} GPU-hours (time held differs from the span of {duration(span.length_ms)})"
    elif share == 1:
        time = f"{units} {'board' if units == 1 else 'boards'} × {duration(span.length_ms)}"
    else:
        time = f"{units} {'unit' if units == 1 else 'units'} × {share} board × {duration(span.length_ms)}"
    if rate is None or amount.nano is None:
        return f"{time}, no price"
    return f"{time} × {price(rate.nano_per_board_hour)} {currency}/h = {price(amount.nano)} {currency}"


def _units(board_ms: int, span: Window, share: Fraction) -> int | None:
    """The number of units whose time over the whole span this is, but for what dealing leaves; else None."""
    one = share * span.length_ms
    units = round(board_ms / one)
    # Whole boards are never dealt. Dealing a part moves milliseconds, by how often somebody came or went on
    # the node; a gap is longer, since Kubernetes writes times in whole seconds.
    left = 0 if share == 1 else max(units * share * SECOND_MS / 2, Fraction(board_ms, 1_000_000))
    return units if units and abs(units * one - board_ms) <= left else None
