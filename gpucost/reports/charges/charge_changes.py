"""Why teams are charged another amount than the month before: the causes of what they held, and on top of
them quota, lending and what else the charge policy makes of it, to the nano-unit.

What a team pays for quota that it does not hold is split as quota is (``quota_balance``):
``used + idle + lent = nominal``. At ``p``, what a millisecond of its idle quota cost before:

    idle now - idle before = (nominal now - nominal before) x p    quota
                           - (used now - used before) x p          quota use
                           - (lent now - lent before) x p          lending
                           + idle now x (its price now - p)        quota price

where the month before is first scaled to the length of the one of now (``span``). What lent quota itself is
charged and credited is part of lending. All other kinds of charges are causes as they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction

from gpucost.charges.cell_charges import PLATFORM, ChargeAmount, ChargeKind, QuotaUse
from gpucost.charges.charge_account import ChargeAccount
from gpucost.domain.time import Window
from gpucost.reports.base.values import NOTHING, CostAmount
from gpucost.reports.month.change_causes import (
    CauseKind,
    ChangeCause,
    largest_first,
    rounded_causes,
)
from gpucost.reports.month.span_change import ChangeRow, SpanChange

_HELD = (ChargeKind.USED, ChargeKind.BORROWED)
_IDLE = (ChargeKind.RESERVED_IDLE, ChargeKind.ADMITTED_NOT_RUNNING)
_LENT = (ChargeKind.QUOTA_LENT, ChargeKind.LENT_CREDIT)
_AS_THEY_ARE: Mapping[CauseKind, tuple[ChargeKind, ...]] = {
    CauseKind.SHARED: (
        *(ChargeKind.NOBODYS_IDLE, ChargeKind.UNAVAILABLE, ChargeKind.UNKNOWN, ChargeKind.OVERHEAD),
    ),
    CauseKind.CONTRACTS: (ChargeKind.COMMITMENT, ChargeKind.UNUSED_COMMITMENT),
    CauseKind.POLICY: (*(ChargeKind.DISCOUNT, ChargeKind.MARK_UP, ChargeKind.FLOOR, ChargeKind.CAP),),
}


@dataclass(frozen=True, slots=True)
class ChargedMonth:
    """A month under the policy that is in force for it: its ``title``, what of the month the ledger has, and
    the adjustments of each team, which are in no charge."""

    title: str
    account: ChargeAccount
    span: Window
    adjusted: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class _Side:
    """What a team is charged, by kind; its quotas together; its adjustments; and how long the month is."""

    kinds: Mapping[ChargeKind, ChargeAmount]
    quota: QuotaUse
    adjusted: int
    length_ms: int

    def nano(self, kinds: Iterable[ChargeKind]) -> int:
        return sum(self.kinds[kind].nano for kind in kinds if kind in self.kinds)

    @property
    def charged(self) -> int:
        return self.nano(self.kinds) + self.adjusted


def charged_change(used: SpanChange, now: ChargedMonth, before: ChargedMonth) -> SpanChange:
    """What teams are charged in ``now`` beside ``before``, adjustments included. ``used`` is the change of
    what they held in the same months, by team, in the currency of both accounts: its causes are among those
    here. What the platform keeps is in no row."""
    sides = _sides(now), _sides(before)
    held = {row.group: row for row in used.rows}
    rows = [
        _row(
            team,
            held.get(team),
            *(each.get(team, _nothing(of)) for each, of in zip(sides, (now, before), strict=True)),
        )
        for team in sorted({*sides[0], *sides[1]} - {PLATFORM})
        if used.teams_in_scope is None or team in used.teams_in_scope
    ]
    total, total_before = (
        sum((each for each in amounts), NOTHING)
        for amounts in ([row.now for row in rows], [row.before for row in rows])
    )
    return replace(
        used,
        total=total,
        total_before=total_before,
        change_nano=sum(row.change_nano for row in rows),
        rows=tuple(sorted(rows, key=lambda row: (-abs(row.change_nano), row.group))),
        causes=largest_first(cause for row in rows for cause in row.causes),
        notes=(*used.notes, f"Charged by {now.title}; the month before by {before.title}"),
    )


def _sides(month: ChargedMonth) -> dict[str, _Side]:
    found = {
        team: _Side(kinds, QuotaUse(), month.adjusted.get(team, 0), month.span.length_ms)
        for team, kinds in month.account.by_team().items()
    }
    for team, nano in month.adjusted.items():
        found.setdefault(team, replace(_nothing(month), adjusted=nano))
    for key, use in month.account.quotas:
        quota = found.setdefault(key.team, _nothing(month)).quota
        quota.nominal_board_ms += use.nominal_board_ms
        quota.used_board_ms += use.used_board_ms
        quota.idle_board_ms += use.idle_board_ms
        quota.lent_board_ms += use.lent_board_ms
    return found


def _nothing(month: ChargedMonth) -> _Side:
    return _Side({}, QuotaUse(), 0, month.span.length_ms)


def _row(team: str, held: ChangeRow | None, now: _Side, before: _Side) -> ChangeRow:
    drafts = [] if held is None else [(each, Fraction(each.nano)) for each in held.causes]
    paid, paid_before = (NOTHING, NOTHING) if held is None else (held.now, held.before)
    of_held = now.nano(_HELD) + now.adjusted - before.nano(_HELD) - before.adjusted
    drafts += _of_quota(team, now, before)
    others = {kind: now.nano(kinds) - before.nano(kinds) for kind, kinds in _AS_THEY_ARE.items()}
    others[CauseKind.HELD_FACTOR] = of_held - (0 if held is None else held.change_nano)
    drafts += [(_cause(kind, team), Fraction(nano)) for kind, nano in others.items()]
    change = now.charged - before.charged
    return ChangeRow(
        team,
        CostAmount(paid.board_ms, now.charged, paid.unpriced_board_ms),
        CostAmount(paid_before.board_ms, before.charged, paid_before.unpriced_board_ms),
        change,
        rounded_causes(team, drafts, change),
    )


def _of_quota(team: str, now: _Side, before: _Side) -> Iterable[tuple[ChangeCause, Fraction]]:
    longer = Fraction(now.length_ms, before.length_ms)
    idle, idle_before, lent, lent_before = (
        side.nano(kinds) for kinds in (_IDLE, _LENT) for side in (now, before)
    )
    new, old = now.quota, before.quota
    price = next(
        (
            Fraction(nano, use.idle_board_ms)
            for nano, use in ((idle_before, old), (idle, new))
            if use.idle_board_ms
        ),
        Fraction(0),
    )
    nominal = new.nominal_board_ms - old.nominal_board_ms * longer
    used = new.used_board_ms - old.used_board_ms * longer
    less_lent = new.lent_board_ms - old.lent_board_ms * longer
    parts = [
        (_cause(CauseKind.SPAN, team), (idle_before + lent_before) * (longer - 1)),
        (
            _cause(
                CauseKind.QUOTA,
                team,
                before=Fraction(old.nominal_board_ms, before.length_ms),
                now=Fraction(new.nominal_board_ms, now.length_ms),
            ),
            nominal * price,
        ),
        (_cause(CauseKind.QUOTA_USE, team, used), -used * price),
        (_cause(CauseKind.LENDING, team, less_lent), lent - lent_before * longer - less_lent * price),
    ]
    rest = idle - idle_before + lent - lent_before - sum((amount for _, amount in parts), Fraction(0))
    return [*parts, (_cause(CauseKind.QUOTA_PRICE, team), rest)]


def _cause(
    kind: CauseKind,
    team: str,
    ms: Fraction = Fraction(0),
    *,
    before: Fraction | None = None,
    now: Fraction | None = None,
) -> ChangeCause:
    return ChangeCause(kind, team, "", "", round(ms), 0, before=before, now=now)
