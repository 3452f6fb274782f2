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

from fractions import Fraction

from gpucost.domain.errors import InputError
from gpucost.domain.money import NANO

HOURS_PER_MONTH = 730


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


def gpu_fraction(amounts: CostParts, weights: CostParts) -> Fraction:
    """The fraction of the node's price that its GPUs carry under a split by ratio."""
    whole = sum((amounts[kind] * weights[kind] for kind in amounts), Fraction(0))
    if whole <= 0:
        raise InputError("weights", weights, "weights of which at least one is above 0")
    return amounts["gpu"] * weights["gpu"] / whole
