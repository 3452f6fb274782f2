"""What one team pays for a month: its charges under the policy in force, its adjustments, its jobs and
queues, and how each figure is worked out again. It adds up what ``gpucost.charges`` says, and computes
nothing anew. Amounts are nano-units of the currency of the charges.
"""

from __future__ import annotations

import shlex
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from gpucost.charges.cell_charges import PLATFORM, ChargeAmount, ChargeKey, ChargeKind, part
from gpucost.charges.charge_account import ChargeAccount
from gpucost.domain.buckets import HOLDERS_OF_NONE
from gpucost.domain.money import NANO
from gpucost.domain.time import Month, Window
from gpucost.reports.base.unit_costs import JobUnitCost
from gpucost.reports.base.values import CostAmount
from gpucost.reports.month.budget_status import BudgetStatus
from gpucost.reports.month.inputs import AdjustmentFacts
from gpucost.reports.month.model import (
    MonthReport,
    StatementSummary,
    SummaryProof,
    SummarySpread,
    SummaryTeam,
    TeamBudget,
)
from gpucost.reports.month.provenance import UnobservedSpan

CHARGE_WORDS: Mapping[ChargeKind, str] = {
    ChargeKind.USED: "used",
    ChargeKind.BORROWED: "borrowed: held beyond the quota",
    ChargeKind.RESERVED_IDLE: "quota that stood idle",
    ChargeKind.ADMITTED_NOT_RUNNING: "admitted, not running",
    ChargeKind.QUOTA_LENT: "quota that others held",
    ChargeKind.LENT_CREDIT: "credit for lent quota",
    ChargeKind.NOBODYS_IDLE: "idle capacity of nobody",
    ChargeKind.UNAVAILABLE: "unavailable time",
    ChargeKind.UNKNOWN: "time not observed",
    ChargeKind.OVERHEAD: "overhead",
    ChargeKind.COMMITMENT: "contracts: what the same use costs more or less",
    ChargeKind.UNUSED_COMMITMENT: "contracts: paid for and not used",
    ChargeKind.DISCOUNT: "discount",
    ChargeKind.MARK_UP: "mark-up",
    ChargeKind.FLOOR: "up to the floor",
    ChargeKind.CAP: "above the cap",
}
"""What a kind of charge is called before people."""
_HELD = "gpucost allocations {month} --group-by job --filter team={team}"
_BOTH = f"{_HELD} has used and borrowed together, before borrowed_factor"
_POLICY = "the charge policy, docs/charges.md#how-it-is-computed"
_SPREAD = "section Shares of nobody's time, as docs/statements.md says"
_CONTRACTS = "gpucost commitments {month} --contracts FILE, in the row of the team"
_WHY: Mapping[ChargeKind, tuple[str, str]] = {
    ChargeKind.USED: ("held within the quota, or where there is none", _HELD),
    ChargeKind.BORROWED: ("held beyond the quota of its queue or team", _BOTH),
    ChargeKind.RESERVED_IDLE: ("its quota that no pod held", _POLICY),
    ChargeKind.ADMITTED_NOT_RUNNING: ("its quota kept for admitted work whose pods did not hold it", _POLICY),
    ChargeKind.QUOTA_LENT: ("its quota that others held", _POLICY),
    ChargeKind.LENT_CREDIT: ("what it gets back for that", _POLICY),
    ChargeKind.NOBODYS_IDLE: ("its share of idle capacity in no quota", _SPREAD),
    ChargeKind.UNAVAILABLE: ("its share of GPUs that were broken or cordoned", _SPREAD),
    ChargeKind.UNKNOWN: ("its share of time that was not observed", _SPREAD),
    ChargeKind.OVERHEAD: ("its share of what teams of the platform held", _SPREAD),
    ChargeKind.COMMITMENT: ("its use by the contracts, less the same at the prices below", _CONTRACTS),
    ChargeKind.UNUSED_COMMITMENT: ("its share of commitments that nobody used", _CONTRACTS),
    ChargeKind.DISCOUNT: ("off for work that may be interrupted", _POLICY),
    ChargeKind.MARK_UP: ("the mark-up on all its charges", _POLICY),
    ChargeKind.FLOOR: ("up to the least that it pays in a month", _POLICY),
    ChargeKind.CAP: ("what is above the most that it pays in a month", _POLICY),
}
_MOST_JOBS = 10
QUOTA_SUMS = (
    *("asked_board_ms", "nominal_board_ms", "used_board_ms", "idle_board_ms", "lent_board_ms"),
    *("borrowed_board_ms", "taken_board_ms", "unlent_board_ms", "idle_nano", "lent_nano"),
)


@dataclass(frozen=True, slots=True)
class StatementLine:
    """One kind of charge: ``why`` the team pays it, and ``again``: how it is worked out again."""

    kind: str
    board_ms: int
    nano: int
    why: str
    again: str


@dataclass(frozen=True, slots=True)
class StatementJob:
    """What the charges of one job come to: used and borrowed time, less its discount."""

    namespace: str
    job: str
    job_uid: str
    queue: str
    board_ms: int
    nano: int


@dataclass(frozen=True, slots=True)
class StatementPrice:
    """What a team held at one price of the price book: GPU-hours times ``price_nano`` (per GPU-hour, after
    ``discount``) is ``nano``, up to a nano-unit for each usage line. ``held`` is from the first to the last
    instant of it: where a price changed in the month, a model has several, one after the other."""

    model: str
    capacity_type: str
    rate_id: str
    price_nano: int
    list_price_nano: int
    discount: str
    source: str
    held: Window
    board_ms: int
    nano: int


@dataclass(frozen=True, slots=True)
class StatementRule:
    """What a team held because of one rule of the team rules, in its plain words; None where the ledger did
    not record it: in windows written by a release that did not know rules. ``nano`` is None where none of it
    has a price."""

    rule: str | None
    board_ms: int
    nano: int | None
    unpriced_board_ms: int


@dataclass(frozen=True, slots=True)
class StatementQuota:
    """What became of a quota of the team in the month, whoever's pods used it: ``used + idle + lent =
    nominal``, which counts no GPUs that were not there; ``asked`` does. ``borrowed`` is use beyond it, of
    which ``unlent`` came out of GPUs in no quota of the cohort; of what was lent, ``taken`` went to pods past
    all quotas of it: in a tree of cohorts the sums of the rest are equal. ``idle_nano`` and ``lent_nano`` are
    the cost of the time that stood idle and that others held, whoever pays it. ``queue`` is empty where the
    quota is for all that the team holds."""

    cluster: str
    model: str
    queue: str
    cohort: str
    asked_board_ms: int
    nominal_board_ms: int
    used_board_ms: int
    idle_board_ms: int
    lent_board_ms: int
    borrowed_board_ms: int
    taken_board_ms: int
    unlent_board_ms: int
    idle_nano: int
    lent_nano: int


@dataclass(frozen=True, slots=True)
class StatementShare:
    """What the team bears of time that is nobody's in one pool. It was dealt out in ``parts`` (hours, months,
    policies), in each by ``weight / all weights``; where there is one part, or all ratios are the same,
    ``board_ms = whole_board_ms x weight_ms / whole_weight_ms``, up to one for each part.

    Weights are GPU-milliseconds: of use, of quota, or with ``equally`` one GPU for each of those that share.
    The ``whole`` tells what the other teams bear together: None unless ``spread_seen_by`` says otherwise.
    """

    kind: str
    cluster: str
    model: str
    rule: str
    parts: int
    weight_ms: int
    board_ms: int
    nano: int
    whole_weight_ms: int | None
    whole_board_ms: int | None
    whole_nano: int | None


@dataclass(frozen=True, slots=True)
class StatementContracts:
    """Three views of what a team used: by the list, at the prices of its usage lines (``contracted``), and by
    the contracts of the policy, with its share of what was not used (``effective``, of which
    ``unused_nano``). ``unpriced_board_ms`` have no price, and count where a contract paid for them."""

    list_nano: int
    contracted_nano: int
    effective_nano: int
    unused_nano: int
    unpriced_board_ms: int


@dataclass(frozen=True, slots=True)
class TeamStatement:
    """What one team pays for a month: ``total_nano`` is the sum of ``lines`` and of the ``adjustments``.

    ``state`` is closed, settled or open, as in the month's report, whose ``digest`` names what the charges
    were computed from; ``charges_digest`` is of all teams' charges. ``jobs`` are the dearest, ``jobs_more``
    counts the others. ``prices`` add up to all that the team held and that has a price, by model and time.
    ``rules`` add up to all that the team held, ``nano`` to all of it that has a price, the dearest first.
    ``quotas`` are those of the policy that the team pays for, or would. ``shares`` add up to the charges for
    time that is nobody's, before any mark-up.
    ``avoidable`` is the waste that detectors found in what the team held, None where they
    have not looked; it is part of ``used``. ``not_observed`` is time of the cluster's GPUs, which is in no
    team's use.
    ``contracts`` is None where the policy has none, or none of the team's use.
    ``units`` are what a token, a request or a step cost, of the jobs that count them, in the ledger's
    currency: the word of the team's own pods, and in no charge.
    ``as_closed``: by the policy that the month was closed with, to the byte what was charged then.
    ``unpriced_board_ms`` of what the team held has no price, and is in no amount. Prices and rules are
    in ``ledger_currency``, all else in ``currency``, which the policy may charge in: adjustments are
    converted at the rate of the month's end.
    """

    month: Month
    team: str
    cost_centre: str | None
    currency: str
    ledger_currency: str
    policy: str
    state: str
    digest: str
    charges_digest: str
    lines: tuple[StatementLine, ...]
    adjustments: tuple[AdjustmentFacts, ...]
    charged_nano: int
    adjusted_nano: int
    total_nano: int
    total_board_ms: int
    budget: TeamBudget | None
    budgets: tuple[BudgetStatus, ...]
    jobs: tuple[StatementJob, ...]
    jobs_more: int
    prices: tuple[StatementPrice, ...]
    rules: tuple[StatementRule, ...]
    quotas: tuple[StatementQuota, ...]
    shares: tuple[StatementShare, ...]
    avoidable: CostAmount | None
    unpriced_board_ms: int
    not_observed: tuple[UnobservedSpan, ...]
    as_closed: bool = False
    contracts: StatementContracts | None = None
    units: tuple[JobUnitCost, ...] = ()

    @property
    def jobs_again(self) -> str:
        """The command that lists all jobs of the team, for a shell."""
        only = shlex.quote(f"team={self.team}")
        return f"gpucost allocations {self.month} --group-by job --filter {only}"

    @property
    def again(self) -> str:
        """The command that makes this statement again, for a shell."""
        return f"gpucost statement {self.month} --team {shlex.quote(self.team)}"


def build_statements(
    teams: Iterable[str],
    policy: str,
    account: ChargeAccount,
    report: MonthReport,
    cost_centres: Mapping[str, str | None],
    prices: Mapping[str, Sequence[StatementPrice]],
    rules: Mapping[str, Sequence[StatementRule]],
    *,
    as_closed: bool = False,
    contracts: Mapping[str, StatementContracts] | None = None,
    units: Mapping[str, tuple[JobUnitCost, ...]] | None = None,
    rate: int = NANO,
) -> tuple[TeamStatement, ...]:
    """The statements of ``teams``, in their order, out of the month's charges, its report, and what each team
    held at which prices, and by which rules. ``rate`` converts adjustments: nano-units of the currency of the
    charges for one unit of the ledger's.
    """
    sums, jobs, digest = account.by_team(), _jobs_by_team(account), account.digest
    rows = {each.row.group["team"]: each for each in report.teams}
    quotas, shares = _quotas_by_team(account), _shares_by_team(account)
    wasted = {} if report.waste is None else {each.team: each.wasted for each in report.waste.teams}
    found = []
    for team in teams:
        lines = tuple(_statement_lines(report.month, team, sums.get(team, {})))
        own_adjustments = (each for each in report.adjustments if each.team == team)
        adjustments = tuple(replace(each, nano=part(each.nano, rate)) for each in own_adjustments)
        charged, adjusted = sum(line.nano for line in lines), sum(each.nano for each in adjustments)
        row, own = rows.get(team), jobs.get(team, ())
        statement = TeamStatement(
            month=report.month,
            team=team,
            cost_centre=cost_centres.get(team),
            currency=account.currency,
            ledger_currency=report.currency,
            policy=policy,
            state=report.provenance.state,
            digest=report.provenance.month_digest or report.provenance.digest,
            charges_digest=digest,
            lines=lines,
            adjustments=adjustments,
            charged_nano=charged,
            adjusted_nano=adjusted,
            total_nano=charged + adjusted,
            total_board_ms=sum(line.board_ms for line in lines) + sum(each.board_ms for each in adjustments),
            budget=None if row is None else row.budget,
            budgets=tuple(each for each in report.budgets if (each.subject, each.of) == ("team", team)),
            jobs=tuple(own[:_MOST_JOBS]),
            jobs_more=max(0, len(own) - _MOST_JOBS),
            prices=tuple(sorted(prices.get(team, ()), key=_by_model_and_time)),
            rules=tuple(sorted(rules.get(team, ()), key=_dearest_rule_first)),
            quotas=quotas.get(team, ()),
            shares=shares.get(team, ()),
            avoidable=wasted.get(team),
            unpriced_board_ms=0 if row is None else row.row.held.unpriced_board_ms,
            not_observed=report.provenance.unobserved,
            as_closed=as_closed,
            contracts=None if contracts is None else contracts.get(team),
            units=() if units is None else units.get(team, ()),
        )
        found.append(statement)
    return tuple(found)


def _quotas_by_team(account: ChargeAccount) -> dict[str, tuple[StatementQuota, ...]]:
    found: dict[str, tuple[StatementQuota, ...]] = defaultdict(tuple)
    for key, use in account.quotas:
        amounts = {name: getattr(use, name) for name in QUOTA_SUMS}
        found[key.team] += (StatementQuota(key.cluster, key.model, key.queue, key.cohort, **amounts),)
    return found


def _shares_by_team(account: ChargeAccount) -> dict[str, tuple[StatementShare, ...]]:
    found: dict[str, tuple[StatementShare, ...]] = defaultdict(tuple)
    for key, use in account.spreads:
        seen = key.seen_by == "teams"
        for team, share in use.teams.items():
            found[team] += (
                StatementShare(
                    kind=key.kind.value,
                    cluster=key.cluster,
                    model=key.model,
                    rule=key.rule.value,
                    parts=use.parts,
                    weight_ms=round(share.weight_ms),
                    board_ms=share.amount.board_ms,
                    nano=share.amount.nano,
                    whole_weight_ms=round(use.weight_ms) if seen else None,
                    whole_board_ms=use.amount.board_ms if seen else None,
                    whole_nano=use.amount.nano if seen else None,
                ),
            )
    return found


def _dearest_rule_first(found: StatementRule) -> tuple[int, int, str]:
    return -(found.nano or 0), -found.board_ms, found.rule or ""


def _by_model_and_time(found: StatementPrice) -> tuple[str, str, int, str]:
    return found.model, found.capacity_type, found.held.start_ms, found.rate_id


@dataclass(frozen=True, slots=True)
class MonthStatements:
    """The statements of some teams, and the summary of every team's."""

    statements: tuple[TeamStatement, ...]
    summary: StatementSummary


def build_summary(
    account: ChargeAccount,
    capacity: ChargeAmount,
    policy: str,
    report: MonthReport,
    adjustments: Iterable[AdjustmentFacts],
    cost_centres: Mapping[str, str | None],
    remarks: tuple[str, ...] = (),
    rate: int = NANO,
) -> StatementSummary:
    """``capacity`` is what the month cost by another sum than that of the charges; ``adjustments`` are of
    every team, converted by ``rate`` as in ``build_statements``, and of what nobody held, which is the
    platform's."""
    sums = account.by_team()
    adjusted: dict[str, list[AdjustmentFacts]] = defaultdict(list)
    for each in adjustments:
        if each.team not in HOLDERS_OF_NONE:
            adjusted[each.team].append(replace(each, nano=part(each.nano, rate)))
    rows = []
    for team in {*sums, *adjusted} - {PLATFORM}:
        amounts, own = sums.get(team, {}).values(), adjusted.get(team, ())
        charged, more = sum(each.nano for each in amounts), sum(each.nano for each in own)
        board_ms = sum(each.board_ms for each in (*amounts, *own))
        rows.append(SummaryTeam(team, cost_centres.get(team), board_ms, charged, more, charged + more))
    spreads = tuple(
        SummarySpread(
            kind=key.kind.value,
            cluster=key.cluster,
            model=key.model,
            rule=key.rule.value,
            parts=use.parts,
            weight_ms=round(use.weight_ms),
            board_ms=use.amount.board_ms,
            nano=use.amount.nano,
        )
        for key, use in account.spreads
    )
    charged_all, kept = account.charged, account.kept
    proof = SummaryProof(
        charged_all.board_ms,
        charged_all.nano,
        kept.board_ms,
        kept.nano,
        capacity.board_ms,
        capacity.nano,
        charged_all.board_ms + kept.board_ms - capacity.board_ms,
        charged_all.nano + kept.nano - capacity.nano,
    )
    return StatementSummary(
        month=report.month,
        currency=account.currency,
        policy=policy,
        state=report.provenance.state,
        digest=report.provenance.month_digest or report.provenance.digest,
        charges_digest=account.digest,
        teams=tuple(sorted(rows, key=lambda each: (-each.total_nano, each.team))),
        proof=proof,
        spreads=spreads,
        remarks=remarks,
        ledger_currency=report.currency,
    )


def _statement_lines(
    month: Month, team: str, sums: Mapping[ChargeKind, ChargeAmount]
) -> Iterator[StatementLine]:
    for kind, amount in sums.items():
        if amount.board_ms or amount.nano:
            why, again = _WHY[kind]
            if again == _HELD and ChargeKind.BORROWED in sums:
                again = _BOTH
            # The command is for a shell, and a team's name may come from a label.
            command = again.format(month=month, team=shlex.quote(team))
            yield StatementLine(kind.value, amount.board_ms, amount.nano, why, command)


def _jobs_by_team(account: ChargeAccount) -> dict[str, list[StatementJob]]:
    """The jobs of every team, the dearest first."""
    sums: dict[ChargeKey, ChargeAmount] = {}
    for line in account.lines:
        if line.key.job_uid:
            key = line.key._replace(kind=ChargeKind.USED)
            sums.setdefault(key, ChargeAmount()).add(line.board_ms, line.nano)
    found: dict[str, list[StatementJob]] = defaultdict(list)
    for key, amount in sums.items():
        job = StatementJob(key.namespace, key.job, key.job_uid, key.queue, amount.board_ms, amount.nano)
        found[key.team].append(job)
    for jobs in found.values():
        jobs.sort(key=lambda each: (-each.nano, each.namespace, each.job, each.job_uid, each.queue))
    return found
