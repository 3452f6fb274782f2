"""Why a month cost another amount than the one before: price, kind of GPU and hours, of each team.

The change of a team is split exactly, in nano-units, so that the causes add up to it:

* price: what the hours of now cost at the prices of now, less the same at those of before, of each cluster
  and model that the team held in both months (a discount or another capacity type is a price, too);
* hours: what the hours of now would have cost at the team's mean cost of an hour before, less what it was;
* models: the rest: hours that went to dearer or cheaper models.

A team that held nothing before, or holds nothing now, is one cause. It is the price-volume-mix analysis of
management accounting; products are rounded half-even once, and the rest takes the
difference; what is less than a nano-unit for each GPU-hour is rounding, and no price or model of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

import pandas as pd

from gpucost.domain.money import round_half_even
from gpucost.domain.time import HOUR_MS
from gpucost.reports.base import display
from gpucost.reports.base.frame_sums import sums
from gpucost.reports.base.values import NOTHING, CostAmount

_KEYS = ("team", "cluster", "model")
_Cells = Mapping[tuple[str, str], CostAmount]


class CauseKind(StrEnum):
    """Why a team's cost changed."""

    PRICE = "price"
    HOURS = "hours"
    MODELS = "models"
    NEW_TEAM = "new_team"
    GONE_TEAM = "gone_team"


@dataclass(frozen=True, slots=True)
class ChangeCause:
    """One cause: ``nano`` of the change are by it, together with ``board_ms`` more or fewer GPU hours (0 for
    a price and for models). ``cluster`` and ``model`` are those of a price, else empty. Time without a price
    is in no cause."""

    kind: str
    team: str
    cluster: str
    model: str
    board_ms: int
    nano: int


def change_causes(held: pd.DataFrame, previous: pd.DataFrame) -> tuple[ChangeCause, ...]:
    """The causes, the largest first whatever its sign; those of 0 are left out.

    ``held`` and ``previous`` are held lines of both months by ``team``, ``cluster`` and ``model`` at least.
    """
    now, before = _by_team(held), _by_team(previous)
    causes = [
        cause
        for team in sorted({*now, *before})
        for cause in _of_team(team, now.get(team, {}), before.get(team, {}))
        if cause.nano
    ]
    return tuple(
        sorted(causes, key=lambda each: (-abs(each.nano), each.team, each.kind, each.cluster, each.model))
    )


def _by_team(lines: pd.DataFrame) -> dict[str, dict[tuple[str, str], CostAmount]]:
    found: dict[str, dict[tuple[str, str], CostAmount]] = {}
    for (team, cluster, model), measures in sums(lines, list(_KEYS)).items():
        amount = measures.amount
        priced = CostAmount(amount.board_ms - amount.unpriced_board_ms, amount.nano or 0)
        found.setdefault(str(team), {})[str(cluster), str(model)] = priced
    return found


def _of_team(team: str, now: _Cells, before: _Cells) -> list[ChangeCause]:
    all_now, all_before = (sum(cells.values(), NOTHING) for cells in (now, before))
    hours, change = all_now.board_ms - all_before.board_ms, (all_now.nano or 0) - (all_before.nano or 0)
    if not all_before.board_ms or not all_now.board_ms:
        kind = CauseKind.NEW_TEAM if not all_before.board_ms else CauseKind.GONE_TEAM
        return [ChangeCause(kind, team, "", "", hours, change)]
    causes = [
        ChangeCause(
            CauseKind.PRICE, team, *cell, 0, (amount.nano or 0) - _scaled(before[cell], amount.board_ms)
        )
        for cell, amount in now.items()
        if cell in before and before[cell].board_ms
    ]
    causes = [cause for cause in causes if not _is_rounding(cause.nano, now[cause.cluster, cause.model])]
    by_hours = _scaled(all_before, all_now.board_ms) - (all_before.nano or 0)
    rest = change - by_hours - sum(cause.nano for cause in causes)
    if _is_rounding(rest, all_now):
        by_hours, rest = by_hours + rest, 0
    causes.append(ChangeCause(CauseKind.HOURS, team, "", "", hours, by_hours))
    causes.append(ChangeCause(CauseKind.MODELS, team, "", "", 0, rest))
    return causes


def _is_rounding(nano: int, amount: CostAmount) -> bool:
    """Prices are whole nano-units: less than one for each GPU-hour comes from sums that were rounded."""
    return abs(nano) * HOUR_MS < amount.board_ms


def _scaled(amount: CostAmount, board_ms: int) -> int:
    """What ``board_ms`` would have cost at the mean cost of ``amount``."""
    return round_half_even((amount.nano or 0) * board_ms, amount.board_ms)


def cause_words(cause: ChangeCause) -> str:
    """What happened, without its amount and its team: ``312.0 GPU-hours more``."""
    hours, more = display.hours(abs(cause.board_ms)), cause.board_ms > 0
    match CauseKind(cause.kind):
        case CauseKind.PRICE:
            dearer = "more" if cause.nano > 0 else "less"
            return f"{display.name(cause.model)} cost {dearer} an hour"
        case CauseKind.HOURS:
            return f"{hours} GPU-hours {'more' if more else 'less'}"
        case CauseKind.MODELS:
            return f"{'dearer' if cause.nano > 0 else 'cheaper'} models"
        case CauseKind.NEW_TEAM:
            return f"held nothing the month before, {hours} GPU-hours now"
        case CauseKind.GONE_TEAM:
            return f"held {hours} GPU-hours the month before, nothing now"
