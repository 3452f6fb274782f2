"""Who used a GPU, out of who holds it and whose processes ran on it. Pure.

The rules are those of docs/gpu-exporter.md, "Shared GPUs": NVML's per-process SM samples are weights, not
times (they come late, leave out short work and may add up to less or more than the GPU's own figure), so
what the GPU did is dealt in proportion to them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import lcm
from typing import NamedTuple, TypeAlias

from gpucost.contract.gpu_metrics import Holder, Method
from gpucost_gpu_exporter.holdings import Holding, Pod
from gpucost_gpu_exporter.processes import Owner, OwnerKind

NO_POD = Pod("", "", "")


class Who(NamedTuple):
    """A holder: a pod, or nobody in particular."""

    holder: Holder
    pod: Pod = NO_POD


UNALLOCATED = Who(Holder.UNALLOCATED)
UNPARTITIONED = Who(Holder.UNPARTITIONED)
SHARED_OVERHEAD = Who(Holder.SHARED_OVERHEAD)
UNMANAGED = Who(Holder.UNMANAGED)
UNKNOWN = Who(Holder.UNKNOWN)

Weights: TypeAlias = Mapping[Who, int | Fraction]


@dataclass(frozen=True, slots=True)
class Process:
    """A process on a GPU: whose it is, and its SM weight (None where the driver has none)."""

    owner: Owner
    sm_weight: int | None


@dataclass(frozen=True, slots=True)
class Users:
    """Weights by which the use of a GPU is dealt; at least one is above 0."""

    weights: Weights
    method: Method


def held_shares(holdings: Sequence[Holding] | None) -> Weights:
    """The shares of a device, adding up to 1: of each pod, and what nobody holds.

    None, when the kubelet does not say, is all ``__unknown__``. Raises nothing: shares that add up to more
    than 1 leave nothing unallocated and are dealt in proportion.
    """
    if holdings is None:
        return {UNKNOWN: Fraction(1)}
    shares: dict[Who, int | Fraction] = {}
    for holding in holdings:
        who = Who(Holder.POD, holding.pod)
        shares[who] = shares[who] + holding.share if who in shares else holding.share
    # In whole numbers: adding fractions up took a third of the exporter's time.
    scale = lcm(*(share.denominator for share in shares.values()))
    held = sum(share.numerator * (scale // share.denominator) for share in shares.values())
    return shares | {UNALLOCATED: Fraction(scale - held, scale)} if held < scale else shares


def process_weights(
    holdings: Sequence[Holding] | None, processes: Sequence[Process] | None
) -> dict[Who, int] | None:
    """SM weights of the holders and of the others on the device; None where no process can be told apart.

    Processes of a pod that does not hold the device, and those outside Kubernetes, are ``__unmanaged__``;
    those whose owner could not be found are ``__shared_overhead__``.
    """
    if holdings is None or processes is None:
        return None
    by_uid = {holding.pod.uid: Who(Holder.POD, holding.pod) for holding in holdings if holding.pod.uid}
    is_served = any(_serves_others(process.owner, by_uid) for process in processes)
    if is_served or (holdings and not by_uid):
        return None
    weights: dict[Who, int] = {}
    for process in processes:
        who = _user(process.owner, by_uid)
        weights[who] = weights.get(who, 0) + (process.sm_weight or 0)
    return weights


def users(holdings: Sequence[Holding] | None, weights: Weights | None) -> Users:
    """How the use of a device is dealt among holders and others.

    ``weights`` are means of what ``process_weights`` gave in the last seconds. Without any above 0: equal
    shares for the units of those that have a process on the device, or of all holders when none has.
    """
    if holdings is None:
        return Users({UNKNOWN: 1}, Method.NONE)
    shares = {who: share for who, share in held_shares(holdings).items() if who.holder is Holder.POD}
    weights = weights or {}
    others = {who: weight for who, weight in weights.items() if who not in shares and weight}
    if len(shares) == 1 and UNMANAGED not in others:
        return Users(dict.fromkeys(shares, 1), Method.EXACT)
    if any(weights.values()):
        return Users({who: weight for who, weight in weights.items() if weight}, Method.WEIGHTED)
    if not shares:
        return Users({UNMANAGED if UNMANAGED in weights else UNALLOCATED: 1}, Method.EXACT)
    present = {who: share for who, share in shares.items() if who in weights}
    return Users(present or shares, Method.EQUAL)


def _serves_others(owner: Owner, by_uid: Mapping[str, Who]) -> bool:
    """The MPS server works for all its clients, so its use says nothing about any of them.

    One in a holder's own pod is that pod's use: any process can take the name.
    """
    return owner.kind is OwnerKind.MPS_SERVER and owner.pod_uid not in by_uid


def _user(owner: Owner, by_uid: Mapping[str, Who]) -> Who:
    if owner.kind is OwnerKind.UNREADABLE:
        return SHARED_OVERHEAD
    return UNMANAGED if owner.kind is OwnerKind.OUTSIDE else by_uid.get(owner.pod_uid, UNMANAGED)
