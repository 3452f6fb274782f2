"""Counters of what every GPU did and what every holder had of it, and the weights by which it is apportioned.

Pure, in integers. The rules are those of docs/gpu-exporter.md, "Shared GPUs": NVML's per-process SM samples
are weights, not times (they come late, leave out short work and may add up to less or more than the GPU's own
figure), so what the GPU did is apportioned to them (``users``).

There is one way to add to the counters, ``GpuAccounts.add``, and it takes an amount of the GPU together with
those who share it: whatever is added to a GPU is apportioned to holders in the same step, so the parts cannot
drift from the whole. A measure that was never observed is absent, not 0.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from math import lcm
from typing import Any, NamedTuple, Self, TypeAlias

from gpucost.contract.gpu_metrics import AttributionMethod, GpuMeasure, HolderKind
from gpucost.domain.money import split_by_weight
from gpucost_gpu_exporter.metering.process_owners import OwnerKind, ProcessOwner
from gpucost_gpu_exporter.model.holdings import (
    SECOND_NS,
    DeviceHolding,
    DeviceKey,
    PodRef,
    dyadic,
)
from gpucost_gpu_exporter.model.readings import XidEvent

NO_POD = PodRef("", "", "")


class GpuUser(NamedTuple):
    """Who used a GPU: a pod, or one of the names for use without a pod, such as ``__unallocated__``."""

    holder: HolderKind
    pod: PodRef = NO_POD


UNALLOCATED = GpuUser(HolderKind.UNALLOCATED)
UNPARTITIONED = GpuUser(HolderKind.UNPARTITIONED)
SHARED_OVERHEAD = GpuUser(HolderKind.SHARED_OVERHEAD)
UNMANAGED = GpuUser(HolderKind.UNMANAGED)
UNKNOWN = GpuUser(HolderKind.UNKNOWN)

UserWeights: TypeAlias = Mapping[GpuUser, int | Fraction]


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """A process on a GPU: whose it is, and its SM weight (None where the driver has none)."""

    owner: ProcessOwner
    sm_weight: int | None


@dataclass(frozen=True, slots=True)
class GpuUserWeights:
    """Weights by which the use of a GPU is apportioned; at least one is above 0."""

    weights: UserWeights
    method: AttributionMethod


def held_shares(holdings: Sequence[DeviceHolding] | None) -> UserWeights:
    """The shares of a device, adding up to 1: of each pod, and what no pod holds.

    None, when the kubelet gives no answer, is all ``__unknown__``. Raises nothing: shares that add up to more
    than 1 leave nothing unallocated and are apportioned.
    """
    if holdings is None:
        return {UNKNOWN: Fraction(1)}
    shares: dict[GpuUser, int | Fraction] = {}
    for holding in holdings:
        who = GpuUser(HolderKind.POD, holding.pod)
        shares[who] = shares[who] + holding.share if who in shares else holding.share
    # In whole numbers: adding fractions up took a third of the exporter's time.
    scale = lcm(*(share.denominator for share in shares.values()))
    held = sum(share.numerator * (scale // share.denominator) for share in shares.values())
    return shares | {UNALLOCATED: Fraction(scale - held, scale)} if held < scale else shares


def process_weights(
    holdings: Sequence[DeviceHolding] | None, processes: Sequence[GpuProcess] | None
) -> dict[GpuUser, int] | None:
    """SM weights of the holders and of the others on the device; None where processes cannot be attributed to
    holders.

    Processes of a pod that does not hold the device, and those outside Kubernetes, are ``__unmanaged__``;
    those whose owner could not be found are ``__shared_overhead__``.
    """
    if holdings is None or processes is None:
        return None
    by_uid = {
        holding.pod.uid: GpuUser(HolderKind.POD, holding.pod) for holding in holdings if holding.pod.uid
    }
    is_served = any(_serves_others(process.owner, by_uid) for process in processes)
    if is_served or (holdings and not by_uid):
        return None
    weights: dict[GpuUser, int] = {}
    for process in processes:
        who = _user(process.owner, by_uid)
        weights[who] = weights.get(who, 0) + (process.sm_weight or 0)
    return weights


def users(holdings: Sequence[DeviceHolding] | None, weights: UserWeights | None) -> GpuUserWeights:
    """How the use of a device is apportioned to holders and others.

    ``weights`` are means of what ``process_weights`` gave in the last seconds. Without any above 0: equal
    shares for the units of those that have a process on the device, or of all holders when none has.
    """
    if holdings is None:
        return GpuUserWeights({UNKNOWN: 1}, AttributionMethod.NONE)
    shares = {who: share for who, share in held_shares(holdings).items() if who.holder is HolderKind.POD}
    weights = weights or {}
    others = {who: weight for who, weight in weights.items() if who not in shares and weight}
    if len(shares) == 1 and UNMANAGED not in others:
        return GpuUserWeights(dict.fromkeys(shares, 1), AttributionMethod.EXACT)
    if any(weights.values()):
        return GpuUserWeights(
            {who: weight for who, weight in weights.items() if weight}, AttributionMethod.WEIGHTED
        )
    if not shares:
        return GpuUserWeights(
            {UNMANAGED if UNMANAGED in weights else UNALLOCATED: 1}, AttributionMethod.EXACT
        )
    present = {who: share for who, share in shares.items() if who in weights}
    return GpuUserWeights(present or shares, AttributionMethod.EQUAL)


def _serves_others(owner: ProcessOwner, by_uid: Mapping[str, GpuUser]) -> bool:
    """Whether it is the MPS server, which works for all its clients, so that its use is attributed to none of
    them.

    One in a holder's own pod is that pod's use: any process can take the name.
    """
    return owner.kind is OwnerKind.MPS_SERVER and owner.pod_uid not in by_uid


def _user(owner: ProcessOwner, by_uid: Mapping[str, GpuUser]) -> GpuUser:
    if owner.kind is OwnerKind.UNREADABLE:
        return SHARED_OVERHEAD
    return UNMANAGED if owner.kind is OwnerKind.OUTSIDE else by_uid.get(owner.pod_uid, UNMANAGED)


# Otherwise a node that runs a thousand short jobs in ten minutes would have tens of thousands of series.
MOST_PODS = 1_000
LEAST_KEEP_NS = 120 * SECOND_NS


class CounterRow(NamedTuple):
    """One series of each holder counter."""

    who: GpuUser
    device: DeviceKey
    method: AttributionMethod


@dataclass(slots=True)
class PodLife:
    """When a pod's counters began (ms since 1970, ns since boot), and when it was last seen holding (ns)."""

    since_ms: int
    since_ns: int
    last_held_ns: int

    @property
    def times(self) -> tuple[int, int, int]:
        return self.since_ms, self.since_ns, self.last_held_ns


@dataclass(slots=True)
class GpuAccounts:
    """All counters of a node. ``gpus`` is in nanoseconds and millijoules, the rest in ticks and parts.

    ``retired`` is what the rows of pods that are gone had reached, by the device they were on.
    """

    gpus: dict[DeviceKey, dict[GpuMeasure, int]] = field(default_factory=dict)
    rows: dict[CounterRow, dict[GpuMeasure, int]] = field(default_factory=dict)
    retired: dict[DeviceKey, dict[GpuMeasure, int]] = field(default_factory=dict)
    pods: dict[PodRef, PodLife] = field(default_factory=dict)
    throttled_ns: dict[tuple[str, str], int] = field(default_factory=dict)
    xids: Counter[XidEvent] = field(default_factory=Counter)

    def add(
        self, gpu: DeviceKey, measure: GpuMeasure, base: int, shares: Mapping[CounterRow, int | Fraction]
    ) -> None:
        """Add ``base`` nanoseconds or millijoules to a GPU and apportion them to ``shares``, to the last
        tick.

        ``base`` may be 0: then the counters begin to exist, at 0. Raises InputError for weights that are
        negative or all 0, ValueError for a negative amount; nothing has changed then.
        """
        if base < 0:
            raise ValueError(f"{measure} of {gpu}: {base} is negative")
        totals = self.gpus.setdefault(gpu, {})
        before = totals.get(measure, 0)
        rise = dyadic(measure, before + base) - dyadic(measure, before)
        if len(shares) == 1:
            parts = dict.fromkeys(shares, rise)
        else:
            order = sorted(shares)
            dealt = split_by_weight(rise, dict(enumerate(shares[row] for row in order)))
            parts = {row: dealt[index] for index, row in enumerate(order)}
        totals[measure] = before + base
        for row, part in parts.items():
            amounts = self.rows.setdefault(row, {})
            amounts[measure] = amounts.get(measure, 0) + part

    def saw(self, pod: PodRef, now_ms: int, now_ns: int) -> None:
        """Note that ``pod`` holds something now."""
        life = self.pods.setdefault(pod, PodLife(now_ms, now_ns, now_ns))
        life.last_held_ns = now_ns

    def retire(self, now_ns: int, keep_ns: int, most: int = MOST_PODS, least_ns: int = LEAST_KEEP_NS) -> None:
        """Move the rows of pods not seen for ``keep_ns`` to ``retired``; their sums stay.

        Of more than ``most`` pods those seen longest ago are moved sooner, but not within ``least_ns``.
        """
        excess: set[PodRef] = set()
        if len(self.pods) > most:
            oldest = sorted(self.pods, key=lambda pod: (self.pods[pod].last_held_ns, pod))
            excess = set(oldest[: len(oldest) - most])
        gone = {
            pod
            for pod, life in self.pods.items()
            if now_ns - life.last_held_ns > (min(least_ns, keep_ns) if pod in excess else keep_ns)
        }
        if not gone:
            return
        for row in [row for row in self.rows if row.who.holder is HolderKind.POD and row.who.pod in gone]:
            retired = self.retired.setdefault(row.device, {})
            for measure, amount in self.rows.pop(row).items():
                retired[measure] = retired.get(measure, 0) + amount
        for pod in gone:
            del self.pods[pod]

    def copy(self) -> Self:
        """A copy that further additions do not change."""
        return type(self)(
            gpus={gpu: dict(amounts) for gpu, amounts in self.gpus.items()},
            rows={row: dict(amounts) for row, amounts in self.rows.items()},
            retired={gpu: dict(amounts) for gpu, amounts in self.retired.items()},
            pods={pod: PodLife(*life.times) for pod, life in self.pods.items()},
            throttled_ns=dict(self.throttled_ns),
            xids=Counter(self.xids),
        )

    def to_json(self) -> dict[str, Any]:
        """Lists and plain values; ``from_json`` is the inverse."""
        return {
            "gpus": [[*gpu, amounts] for gpu, amounts in self.gpus.items()],
            "rows": [
                [row.who.holder, *row.who.pod, *row.device, row.method, amounts]
                for row, amounts in self.rows.items()
            ],
            "retired": [[*gpu, amounts] for gpu, amounts in self.retired.items()],
            "pods": [[*pod, *life.times] for pod, life in self.pods.items()],
            "throttled_ns": [[*place, ns] for place, ns in self.throttled_ns.items()],
            "xids": [[*place, count] for place, count in self.xids.items()],
        }

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Self:
        """Raises KeyError, TypeError or ValueError for what ``to_json`` did not write."""
        return cls(
            gpus={DeviceKey(uuid, gi): _amounts(amounts) for uuid, gi, amounts in found["gpus"]},
            rows={
                CounterRow(
                    GpuUser(HolderKind(holder), PodRef(*pod)), DeviceKey(uuid, gi), AttributionMethod(method)
                ): _amounts(amounts)
                for holder, *pod, uuid, gi, method, amounts in found["rows"]
            },
            retired={DeviceKey(uuid, gi): _amounts(amounts) for uuid, gi, amounts in found["retired"]},
            pods={PodRef(*found_pod[:3]): PodLife(*map(int, found_pod[3:])) for found_pod in found["pods"]},
            throttled_ns={(uuid, reason): int(ns) for uuid, reason, ns in found["throttled_ns"]},
            xids=Counter({XidEvent(uuid, int(xid)): int(count) for uuid, xid, count in found["xids"]}),
        )


def _amounts(found: Mapping[str, int]) -> dict[GpuMeasure, int]:
    return {GpuMeasure(measure): int(amount) for measure, amount in found.items()}
