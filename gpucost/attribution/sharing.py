"""Handing cost that belongs to nobody to somebody: idle capacity, common services, overhead.

All of it is integer arithmetic with the largest remainder: what is handed out adds up to what there was.
Sharing is always done over everybody, and filters come after it, so that looking at one team does not
change what it pays.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import TypeVar

from gpucost.domain.errors import InputError
from gpucost.domain.money import split_by_weight

Who = TypeVar("Who", bound=Hashable)
Pool = TypeVar("Pool", bound=Hashable)


def share_proportionally(
    held: Mapping[tuple[Who, Pool], int],
    idle: Mapping[Pool, int],
    weights: Mapping[Who, int] | None = None,
) -> tuple[dict[tuple[Who, Pool], int], dict[Pool, int]]:
    """Hand the idle cost of each pool to those who hold in it.

    A pool is what idles together: a GPU model in a cluster. ``held`` is what each holder pays in each
    pool; the idle part is proportional to it, or to ``weights`` (a quota, say) over all of ``weights``'
    holders, whether they held anything or not. Returns (shares, what is left): the idle cost of a pool
    that nobody held anything of, and has no weights, stays idle.
    """
    shares: dict[tuple[Who, Pool], int] = {}
    left: dict[Pool, int] = {}
    for pool, amount in idle.items():
        claims = dict(weights) if weights else {who: paid for (who, its), paid in held.items() if its == pool}
        if amount and sum(claims.values()) > 0:
            for who, part in split_by_weight(amount, claims).items():
                shares[(who, pool)] = part
        elif amount:
            left[pool] = amount
    return shares, left


def share_common(amount: int, over: Mapping[Who, int], *, evenly: bool = False) -> dict[Who, int]:
    """Hand ``amount`` (a shared namespace, overhead) to the keys of ``over``: evenly, or by their values."""
    if not over:
        raise InputError("share", amount, "at least one holder to share among")
    return split_by_weight(amount, dict.fromkeys(over, 1) if evenly else over)


def proportion(part: int, whole: int) -> Fraction | None:
    """The part of an asset that somebody used; None where there is no asset."""
    return Fraction(part, whole) if whole else None


@dataclass(frozen=True, slots=True)
class Use:
    """The cost of held time, told apart by what was seen: the three add up to the cost."""

    used_nano: int
    idle_nano: int
    unknown_nano: int


def use_of(cost_nano: int, board_ms: int, observed_ms: int | None, busy_ms: int | None) -> Use:
    """Split the cost of held time into busy, allocated-but-idle, and not observed.

    What was not observed is neither used nor idle. Raises InputError unless busy <= observed <= held.
    """
    if board_ms <= 0 or observed_ms is None or busy_ms is None:
        return Use(0, 0, cost_nano)
    if not 0 <= busy_ms <= observed_ms <= board_ms:
        raise InputError("busy_ms", (busy_ms, observed_ms, board_ms), "0 <= busy <= observed <= held")
    parts = split_by_weight(
        cost_nano,
        {"busy": busy_ms, "idle": observed_ms - busy_ms, "unknown": board_ms - observed_ms},
    )
    return Use(parts["busy"], parts["idle"], parts["unknown"])
