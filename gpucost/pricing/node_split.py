"""How a node's price divides between its GPUs and the rest of it.

By default the whole node's price follows its GPUs: whoever holds them blocks the node, whatever CPUs it asks
for. A price-book row may say otherwise and divide by weights, as OpenCost does; then only the GPU part is
priced, and the rest of the bill is for a tool that bills CPUs and memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from gpucost.domain.errors import InputError
from gpucost.domain.money import split_by_weight

Parts = dict[str, Fraction]
"""Amount or weight per kind of resource: ``gpu``, ``vcpu``, ``gib``."""


def split_by_ratio(node_nano: int, amounts: Parts, weights: Parts) -> dict[str, int]:
    """The node's price by resource, proportional to amount x weight; the parts add up to ``node_nano``.

    Raises InputError when a resource has no weight, or nothing weighs anything.
    """
    missing = sorted(amounts.keys() - weights.keys())
    if missing:
        raise InputError(f"weights.{missing[0]}", "missing", "a weight for every resource of the node")
    return split_by_weight(node_nano, {kind: amount * weights[kind] for kind, amount in amounts.items()})


def gpu_fraction(amounts: Parts, weights: Parts) -> Fraction:
    """The fraction of the node's price that its GPUs carry under a split by ratio."""
    whole = sum((amounts[kind] * weights[kind] for kind in amounts), Fraction(0))
    if whole <= 0:
        raise InputError("weights", weights, "weights of which at least one is above 0")
    return amounts["gpu"] * weights["gpu"] / whole


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
