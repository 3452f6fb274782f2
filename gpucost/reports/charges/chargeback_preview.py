"""A month under one or several charge policies: what each team would pay, and line by line why.

The first policy is what the others are compared with. ``build_preview`` adds up what ``gpucost.charges`` says
of the month under each policy; it computes nothing anew. Amounts are nano-units of the currency of the
charges, which all policies of a preview share.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gpucost.charges.cell_charges import PLATFORM, ChargeAmount, ChargeKind
from gpucost.charges.charge_account import ChargeAccount
from gpucost.domain.errors import InputError
from gpucost.domain.time import Month


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
class ChargebackPreview:
    """Teams in order of what the first policy charges them, the dearest first; ``kept`` is the platform.

    ``unpriced_board_ms`` of the month's capacity have no price, and are in no amount. ``moved_nano`` is half
    of the sum of all teams' (and the platform's) differences: the money that the last policy moves.
    """

    month: Month
    currency: str
    policies: tuple[PreviewPolicy, ...]
    teams: tuple[PreviewTeam, ...]
    kept: PreviewTeam
    unpriced_board_ms: int
    moved_nano: int


def build_preview(
    month: Month,
    names: Sequence[tuple[str, str]],
    accounts: Sequence[ChargeAccount],
    capacity: PreviewAmount | None,
    cost_centres: Mapping[str, str | None],
) -> ChargebackPreview:
    """The preview of ``accounts``, one for each of ``names`` (of the policy, and of its file).

    ``capacity`` is what the month cost by another sum than that of the charges; None takes theirs, where
    charges are in another currency. Raises InputError for policies of several currencies.
    """
    currencies = sorted({account.currency for account in accounts})
    if len(currencies) > 1:
        raise InputError("--policy", ", ".join(currencies), "policies that charge in one currency")
    sums = [account.by_team() for account in accounts]
    teams = [_team(team, sums, cost_centres) for team in sorted({*sums[0]}.union(*sums[1:]) - {PLATFORM})]
    teams.sort(key=lambda each: (-each.totals[0].nano, -each.totals[-1].nano, each.team))
    kept = _team(PLATFORM, sums, {})
    moved = sum(abs(each.difference_nano) for each in (*teams, kept))
    return ChargebackPreview(
        month=month,
        currency=currencies[0],
        policies=tuple(
            _policy(name, file, account, capacity)
            for (name, file), account in zip(names, accounts, strict=True)
        ),
        teams=tuple(teams),
        kept=kept,
        unpriced_board_ms=accounts[0].unpriced_ms,
        moved_nano=moved // 2,
    )


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
