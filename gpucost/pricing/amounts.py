"""Prices per GPU-hour from what people pay: per instance, per month, by purchase, by commitment.

All arithmetic is exact: functions return Fractions of nano-units, rounded once, half to even, when a Rate is
made. A month is 730 hours and a year 8,760, as in cloud price lists, whatever the calendar month.
``CURRENCIES`` are the ISO 4217 codes of money in use; test codes, metals and withdrawn currencies are left
out.

By default the whole node's price follows its GPUs: the holder of the GPUs blocks the node, whatever CPUs it
requests. A price-book row may say otherwise and divide by weights, as OpenCost does; then only the GPU part
is priced, and the rest of the bill is for a tool that bills CPUs and memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from gpucost.domain.errors import InputError
from gpucost.domain.money import NANO, round_half_even, split_by_weight

HOURS_PER_MONTH = 730
HOURS_PER_PERIOD = {"hour": 1, "day": 24, "month": HOURS_PER_MONTH}


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


def owned_node_hour(
    *,
    purchase: int,
    residual: int,
    months: int,
    power_watts: int,
    kwh_price: int,
    pue: int,
    hosting_per_month: int,
) -> Fraction:
    """Nano-units per node-hour of hardware that was bought.

    Straight-line amortisation over ``months``, plus power, plus hosting. Money is in nano-units, ``pue`` in
    units of 1e-9; power is the node's draw at the wall over PUE, billed whether busy or not.
    """
    amortised = Fraction(purchase - residual, months * HOURS_PER_MONTH)
    power = Fraction(power_watts, 1000) * kwh_price * Fraction(pue, NANO)
    return amortised + power + Fraction(hosting_per_month, HOURS_PER_MONTH)


_CODES = """
    AED AFN ALL AMD AOA ARS AUD AWG AZN BAM BBD BDT BHD BIF BMD BND BOB BRL BSD BTN BWP BYN BZD CAD CDF CHF
    CLP CNY COP CRC CUP CVE CZK DJF DKK DOP DZD EGP ERN ETB EUR FJD FKP GBP GEL GHS GIP GMD GNF GTQ GYD HKD
    HNL HTG HUF IDR ILS INR IQD IRR ISK JMD JOD JPY KES KGS KHR KMF KPW KRW KWD KYD KZT LAK LBP LKR LRD LSL
    LYD MAD MDL MGA MKD MMK MNT MOP MRU MUR MVR MWK MXN MYR MZN NAD NGN NIO NOK NPR NZD OMR PAB PEN PGK PHP
    PKR PLN PYG QAR RON RSD RUB RWF SAR SBD SCR SDG SEK SGD SHP SLE SOS SRD SSP STN SVC SYP SZL THB TJS TMT
    TND TOP TRY TTD TWD TZS UAH UGX USD UYU UZS VES VND VUV WST XAF XCD XCG XOF XPF YER ZAR ZMW ZWG
"""
CURRENCIES = frozenset(_CODES.split())


CostParts = dict[str, Fraction]
"""Amount or weight per kind of resource: ``gpu``, ``vcpu``, ``gib``."""


def split_by_ratio(node_nano: int, amounts: CostParts, weights: CostParts) -> dict[str, int]:
    """The node's price by resource, proportional to amount x weight; the parts add up to ``node_nano``.

    Raises InputError when a resource has no weight, or nothing weighs anything.
    """
    missing = sorted(amounts.keys() - weights.keys())
    if missing:
        raise InputError(f"weights.{missing[0]}", "missing", "a weight for every resource of the node")
    return split_by_weight(node_nano, {kind: amount * weights[kind] for kind, amount in amounts.items()})


def gpu_fraction(amounts: CostParts, weights: CostParts) -> Fraction:
    """The fraction of the node's price that its GPUs carry under a split by ratio."""
    whole = sum((amounts[kind] * weights[kind] for kind in amounts), Fraction(0))
    if whole <= 0:
        raise InputError("weights", weights, "weights of which at least one is above 0")
    return amounts["gpu"] * weights["gpu"] / whole


@dataclass(frozen=True, slots=True)
class ClusterCost:
    """A cluster's cost in parts, as in the OpenCost specification; all in nano-units.

    ``allocation_nano`` is billed by the hour whether used or not, ``usage_nano`` by what was consumed,
    ``overhead_nano`` is neither (a management fee); ``workload_nano`` is the part of the allocation cost that
    workloads hold. Raises InputError when they hold more than there is: that is over-commitment, a finding of
    its own, never a negative idle cost.
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
