"""Cost taken apart as the vectors of OpenCost and FinOps have it, where gpucost itself has no use for the
result: by resource, by commitment, by use, and idle cost handed out.

All of it is integer arithmetic with the largest remainder: what is handed out adds up to what there was.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import TypeVar

from gpucost.domain.errors import InputError
from gpucost.domain.money import round_half_even, split_by_weight
from gpucost.pricing.price_rows import HOURS_PER_MONTH, Commitment, CostParts

Who = TypeVar("Who", bound=Hashable)
Pool = TypeVar("Pool", bound=Hashable)


HOURS_PER_PERIOD = {"hour": 1, "day": 24, "month": HOURS_PER_MONTH}


def committed_gpus(commitment: Commitment) -> Fraction:
    """How many GPUs the commitment pays for around the clock."""
    return Fraction(commitment.gpu_hours, HOURS_PER_PERIOD[commitment.period])


@dataclass(frozen=True, slots=True)
class CommitmentSplit:
    """What a commitment's bill pays for; ``beyond_ms`` is GPU time used past it, at another price."""

    used_nano: int
    unused_nano: int
    beyond_ms: int


def split_commitment(billed_nano: int, committed_ms: int, used_ms: int) -> CommitmentSplit:
    """Divide one period's bill into used and unused, so that used + unused = billed exactly.

    ``committed_ms`` and ``used_ms`` are GPU milliseconds of the same period. Raises InputError when the
    bill or the use is negative or nothing was committed.
    """
    if billed_nano < 0 or used_ms < 0 or committed_ms <= 0:
        raise InputError(
            "commitment",
            (billed_nano, committed_ms, used_ms),
            "a bill and use of at least 0, a commitment above 0",
        )
    covered = min(used_ms, committed_ms)
    used = round_half_even(billed_nano * covered, committed_ms)
    return CommitmentSplit(used, billed_nano - used, used_ms - covered)


def split_by_ratio(node_nano: int, amounts: CostParts, weights: CostParts) -> dict[str, int]:
    """The node's price by resource, proportional to amount x weight; the parts add up to ``node_nano``.

    Raises InputError when a resource has no weight, or nothing weighs anything.
    """
    missing = sorted(amounts.keys() - weights.keys())
    if missing:
        raise InputError(f"weights.{missing[0]}", "missing", "a weight for every resource of the node")
    return split_by_weight(node_nano, {kind: amount * weights[kind] for kind, amount in amounts.items()})


@dataclass(frozen=True, slots=True)
class ClusterCost:
    """A cluster's cost taken apart as in the OpenCost specification; all in nano-units.

    ``allocation_nano`` is billed by the hour whether used or not, ``usage_nano`` by what was consumed,
    ``overhead_nano`` is neither (a management fee); ``workload_nano`` is the part of the allocation cost
    that workloads hold. Raises InputError when they hold more than there is: that is over-commitment,
    a finding of its own, never a negative idle.
    """

    allocation_nano: int
    usage_nano: int
    overhead_nano: int
    workload_nano: int

    def __post_init__(self) -> None:
        if not 0 <= self.workload_nano <= self.allocation_nano:
            raise InputError(
                "workload", self.workload_nano, f"0 to {self.allocation_nano}, the allocation cost"
            )

    @property
    def total_nano(self) -> int:
        return self.allocation_nano + self.usage_nano + self.overhead_nano

    @property
    def idle_nano(self) -> int:
        return self.allocation_nano - self.workload_nano

    @property
    def idle_ratio(self) -> Fraction | None:
        """Idle as a fraction of the allocation cost; None when nothing was billed by the hour."""
        return Fraction(self.idle_nano, self.allocation_nano) if self.allocation_nano else None


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
class CostByUse:
    """The cost of held time, told apart by what was seen: the three add up to the cost."""

    used_nano: int
    idle_nano: int
    unknown_nano: int


def use_of(cost_nano: int, board_ms: int, observed_ms: int | None, busy_ms: int | None) -> CostByUse:
    """Split the cost of held time into busy, allocated-but-idle, and not observed.

    What was not observed is neither used nor idle. Raises InputError unless busy <= observed <= held.
    """
    if board_ms <= 0 or observed_ms is None or busy_ms is None:
        return CostByUse(0, 0, cost_nano)
    if not 0 <= busy_ms <= observed_ms <= board_ms:
        raise InputError("busy_ms", (busy_ms, observed_ms, board_ms), "0 <= busy <= observed <= held")
    parts = split_by_weight(
        cost_nano,
        {"busy": busy_ms, "idle": observed_ms - busy_ms, "unknown": board_ms - observed_ms},
    )
    return CostByUse(parts["busy"], parts["idle"], parts["unknown"])
