"""A month under one or several charge policies: what each team would pay, and line by line why.

The first policy is what the others are compared with. Beside it stands what quota cost that its owners did
not hold, what came back for it, and who waited meanwhile. A preview adds up what ``gpucost.charges`` says,
and computes nothing anew. Amounts are nano-units of the currency of the charges.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from gpucost.charges.cell_charges import PLATFORM, ChargeAmount, ChargeKind
from gpucost.charges.charge_account import ChargeAccount, ChargePlace
from gpucost.charges.policy_file import PolicyBook
from gpucost.domain.errors import InputError
from gpucost.domain.money import round_half_even
from gpucost.domain.time import DAY_MS, Month, iso
from gpucost.reports.render.tables import Cells, CellType, ReportTable, typed_table


class PreviewGrouping(StrEnum):
    """What a preview has a line for."""

    TEAM = "team"
    COST_CENTRE = "cost-centre"


@dataclass(frozen=True, slots=True)
class PreviewAmount:
    """GPU time and money under one policy; credits, discounts and caps are negative."""

    board_ms: int
    nano: int


@dataclass(frozen=True, slots=True)
class PreviewLine:
    """One kind of charge of a team, under each policy. ``difference_nano`` is the last policy less the
    first."""

    kind: str
    amounts: tuple[PreviewAmount, ...]
    difference_nano: int


@dataclass(frozen=True, slots=True)
class PreviewTeam:
    """A team, or the platform: what it pays (keeps) under each policy, and the lines that add up to it."""

    team: str
    cost_centre: str | None
    totals: tuple[PreviewAmount, ...]
    difference_nano: int
    lines: tuple[PreviewLine, ...]


@dataclass(frozen=True, slots=True)
class PreviewPolicy:
    """A policy of the preview. ``charged + kept - capacity = difference``, which is 0 or the charges are
    wrong; the capacity is summed apart from them. ``digest`` is of every charge: the same charges, the same
    digest."""

    name: str
    file: str
    capacity: PreviewAmount
    charged: PreviewAmount
    kept: PreviewAmount
    difference: PreviewAmount
    digest: str


@dataclass(frozen=True, slots=True)
class PreviewWait:
    """GPU time for which a team waited."""

    team: str
    board_ms: int


@dataclass(frozen=True, slots=True)
class PreviewQuota:
    """Quota of a team that it pays for and did not hold, under the policy ``policy`` (its place in the list).

    ``idle`` is all of it, ``lent`` the part that others held, ``earned_nano`` what came back for that;
    ``a_day_nano`` and ``earned_a_day_nano`` are the same by the day, over ``observed_ms``, the time of the
    month that the ledger has of this model. ``waited_board_ms`` is GPU time of the model for which the team
    itself waited, ``beside`` for which the others of its cohorts did; None where nobody asked, or nothing
    says it.
    """

    policy: int
    team: str
    model: str
    observed_ms: int
    idle_board_ms: int
    idle_nano: int
    a_day_nano: int
    lent_board_ms: int
    earned_nano: int
    earned_a_day_nano: int
    waited_board_ms: int | None
    beside: tuple[PreviewWait, ...] | None


class WaitingDemand(NamedTuple):
    """GPU time for which pods of a team waited in a ClusterQueue. ``models`` would have done; empty: any."""

    team: str
    queue: str
    models: frozenset[str]
    board_ms: int


@dataclass(frozen=True)
class WaitingTime:
    """Who waited in the month; ``missing`` says why some or all of it is not known."""

    demand: tuple[WaitingDemand, ...]
    missing: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ChargebackPreview:
    """Teams in order of what the first policy charges them, the dearest first; ``kept`` is the platform.

    ``by`` cost centre, ``team`` is the name of one, and empty for all teams that have none.
    ``unpriced_board_ms`` of the month's capacity have no price, and are in no amount. ``moved_nano`` is half
    of the sum of all teams' (and the platform's) differences: the money that the last policy moves.
    ``quotas`` are those of which a part stood idle, by policy, the dearest first; ``waiting_missing`` says
    why some waiting beside them is not known. ``remarks`` are what in the policies nothing in the month
    belongs to.
    """

    month: Month
    currency: str
    policies: tuple[PreviewPolicy, ...]
    teams: tuple[PreviewTeam, ...]
    kept: PreviewTeam
    unpriced_board_ms: int
    moved_nano: int
    by: PreviewGrouping = PreviewGrouping.TEAM
    quotas: tuple[PreviewQuota, ...] = ()
    waiting_missing: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()


def build_preview(
    month: Month,
    names: Sequence[tuple[str, str]],
    accounts: Sequence[ChargeAccount],
    capacity: PreviewAmount | None,
    cost_centres: Mapping[str, str | None],
    grouping: PreviewGrouping = PreviewGrouping.TEAM,
    quotas: Sequence[PreviewQuota] = (),
    waiting_missing: Sequence[str] = (),
    remarks: Sequence[str] = (),
) -> ChargebackPreview:
    """The preview of ``accounts``, one for each of ``names`` (of the policy, and of its file).

    ``capacity`` is what the month cost by another sum than that of the charges; None takes theirs, where
    charges are in another currency. By cost centre, the teams of one are added up, and those without any
    stand under an empty name. Raises InputError for policies of several currencies.
    """
    currencies = sorted({account.currency for account in accounts})
    if len(currencies) > 1:
        raise InputError("--policy", ", ".join(currencies), "policies that charge in one currency")
    sums = [account.by_team() for account in accounts]
    if grouping is PreviewGrouping.COST_CENTRE:
        sums = [_by_cost_centre(each, cost_centres) for each in sums]
        cost_centres = {name: name or None for each in sums for name in each}
    teams = [_team(team, sums, cost_centres) for team in sorted({*sums[0]}.union(*sums[1:]) - {PLATFORM})]
    teams.sort(key=lambda each: (-each.totals[0].nano, -each.totals[-1].nano, each.team))
    kept = _team(PLATFORM, sums, {})
    moved = sum(abs(each.difference_nano) for each in (*teams, kept))
    return ChargebackPreview(
        month=month,
        currency=currencies[0],
        by=grouping,
        policies=tuple(
            _policy(name, file, account, capacity)
            for (name, file), account in zip(names, accounts, strict=True)
        ),
        teams=tuple(teams),
        kept=kept,
        unpriced_board_ms=accounts[0].unpriced_ms,
        moved_nano=moved // 2,
        quotas=tuple(quotas),
        waiting_missing=tuple(waiting_missing),
        remarks=tuple(remarks),
    )


def _by_cost_centre(
    sums: Mapping[str, Mapping[ChargeKind, ChargeAmount]], cost_centres: Mapping[str, str | None]
) -> dict[str, Mapping[ChargeKind, ChargeAmount]]:
    found: dict[str, dict[ChargeKind, ChargeAmount]] = defaultdict(lambda: defaultdict(ChargeAmount))
    for team, kinds in sums.items():
        name = team if team == PLATFORM else cost_centres.get(team) or ""
        for kind, amount in kinds.items():
            found[name][kind].add(amount.board_ms, amount.nano)
    return {name: dict(kinds) for name, kinds in found.items()}


_COLUMNS = {
    **dict.fromkeys(("month", "policy", "file", "day", "cluster", "model"), CellType.TEXT),
    **dict.fromkeys(("team", "cost_centre", "queue", "line", "currency"), CellType.TEXT),
    **dict.fromkeys(("board_ms", "nano"), CellType.INTEGER),
}


def preview_table(
    month: Month,
    names: Sequence[tuple[str, str]],
    accounts: Sequence[ChargeAccount],
    cost_centres: Mapping[str, str | None],
) -> ReportTable:
    """All charges as one flat table: a row for each policy, UTC day, pool, team, queue and line. The rows of
    a policy add up to the capacity; what the platform keeps is among them, under PLATFORM. What is spread
    over the month, floors and caps are of its first day."""
    return typed_table({"month": str(month)}, _COLUMNS, _table_rows(month, names, accounts, cost_centres))


def _table_rows(
    month: Month,
    names: Sequence[tuple[str, str]],
    accounts: Sequence[ChargeAccount],
    cost_centres: Mapping[str, str | None],
) -> Iterator[Cells]:
    for (name, file), account in zip(names, accounts, strict=True):
        sums: dict[tuple[ChargePlace, str, str, ChargeKind], ChargeAmount] = defaultdict(ChargeAmount)
        for line in account.lines:
            key = line.key
            sums[line.place, key.team, key.queue, key.kind].add(line.board_ms, line.nano)
        for (place, team, queue, kind), amount in sorted(sums.items()):
            yield {
                "month": str(month),
                "policy": name,
                "file": file,
                "day": iso(place.day_ms)[:10],
                "cluster": place.cluster,
                "model": place.model,
                "team": team,
                "cost_centre": cost_centres.get(team) or "",
                "queue": queue,
                "line": kind.value,
                "currency": account.currency,
                "board_ms": amount.board_ms,
                "nano": amount.nano,
            }


def idle_quotas(
    policy: int,
    account: ChargeAccount,
    book: PolicyBook,
    observed: Mapping[str, int],
    waiting: WaitingTime | None,
) -> list[PreviewQuota]:
    """What teams paid for quota that they did not hold, by team and model, the dearest first.

    ``observed`` is how long the ledger has the month, in milliseconds by model. A team waited beside a quota
    where it waited for that model in a queue, or as a team, with quota in the same tree of cohorts.
    """
    sums: dict[tuple[str, str], dict[ChargeKind, ChargeAmount]] = {}
    for line in account.lines:
        if line.key.kind in _OF_QUOTA and line.key.team != PLATFORM:
            own = sums.setdefault((line.key.team, line.place.model), {})
            own.setdefault(line.key.kind, ChargeAmount()).add(line.board_ms, line.nano)
    found = []
    for (team, model), own in sums.items():
        unused, admitted, lent, credit = (own.get(kind, ChargeAmount()) for kind in _OF_QUOTA)
        idle = ChargeAmount(unused.board_ms + admitted.board_ms, unused.nano + admitted.nano)
        span = observed[model]
        beside = None if waiting is None else _waits(team, model, book, waiting)
        others = None if beside is None else {name: time for name, time in beside.items() if name != team}
        found.append(
            PreviewQuota(
                policy=policy,
                team=team,
                model=model,
                observed_ms=span,
                idle_board_ms=idle.board_ms + lent.board_ms,
                idle_nano=idle.nano + lent.nano,
                a_day_nano=round_half_even((idle.nano + lent.nano) * DAY_MS, span),
                lent_board_ms=lent.board_ms,
                earned_nano=-credit.nano,
                earned_a_day_nano=round_half_even(-credit.nano * DAY_MS, span),
                waited_board_ms=None if beside is None else beside.get(team, 0),
                beside=None
                if others is None
                else tuple(
                    PreviewWait(name, time)
                    for name, time in sorted(others.items(), key=lambda each: (-each[1], each[0]))
                ),
            )
        )
    return sorted(found, key=lambda each: (-each.idle_nano, each.team, each.model))


_OF_QUOTA = (
    *(ChargeKind.RESERVED_IDLE, ChargeKind.ADMITTED_NOT_RUNNING),
    *(ChargeKind.QUOTA_LENT, ChargeKind.LENT_CREDIT),
)


def _waits(team: str, model: str, book: PolicyBook, waiting: WaitingTime) -> dict[str, int] | None:
    """GPU time of ``model`` that ``team`` and the others of its cohorts waited for; None where nothing is
    known."""
    if waiting.missing and not waiting.demand:
        return None
    quotas = [each for each in book.file.quotas if each.model == model]
    trees = {_root(each.cohort, book) for each in quotas if each.team == team and each.cohort}
    members = {each.account for each in quotas if each.cohort and _root(each.cohort, book) in trees}
    found: dict[str, int] = defaultdict(int)
    for each in waiting.demand:
        account = ("queue", each.queue) if each.queue else ("team", each.team)
        inside = account in members or ("team", each.team) in members
        if (each.team == team or inside) and (not each.models or model in each.models):
            found[each.team] += each.board_ms
    return found


def _root(cohort: str, book: PolicyBook) -> str:
    above = book.cohorts.get(cohort)
    return cohort if above is None or above.parent is None else _root(above.parent, book)


def _policy(name: str, file: str, account: ChargeAccount, capacity: PreviewAmount | None) -> PreviewPolicy:
    charged, kept = _amount(account.charged), _amount(account.kept)
    whole = _amount(account.capacity) if capacity is None else capacity
    difference = PreviewAmount(
        charged.board_ms + kept.board_ms - whole.board_ms, charged.nano + kept.nano - whole.nano
    )
    return PreviewPolicy(name, file, whole, charged, kept, difference, account.digest)


def _team(
    team: str,
    sums: Sequence[Mapping[str, Mapping[ChargeKind, ChargeAmount]]],
    cost_centres: Mapping[str, str | None],
) -> PreviewTeam:
    own = [found.get(team, {}) for found in sums]
    lines = []
    for kind in ChargeKind:
        amounts = tuple(_amount(found.get(kind, ChargeAmount())) for found in own)
        if any(each.board_ms or each.nano for each in amounts):
            lines.append(PreviewLine(kind.value, amounts, amounts[-1].nano - amounts[0].nano))
    totals = tuple(
        PreviewAmount(
            sum(line.amounts[n].board_ms for line in lines), sum(line.amounts[n].nano for line in lines)
        )
        for n in range(len(sums))
    )
    return PreviewTeam(team, cost_centres.get(team), totals, totals[-1].nano - totals[0].nano, tuple(lines))


def _amount(found: ChargeAmount) -> PreviewAmount:
    return PreviewAmount(found.board_ms, found.nano)
