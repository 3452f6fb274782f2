"""The counters themselves: what every GPU did and what every holder had of it. Pure, in integers.

There is one way to add to them, ``Accounts.add``, and it takes an amount of the GPU together with those who
share it: whatever is added to a GPU is dealt to holders in the same step, so the parts cannot drift from
the whole. A measure that was never observed is absent, not 0.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, NamedTuple, Self

from gpucost.contract.gpu_metrics import Holder, Measure, Method
from gpucost.domain.money import split_by_weight
from gpucost_gpu_exporter.holdings import DeviceKey, Pod
from gpucost_gpu_exporter.quantities import SECOND_NS, dyadic
from gpucost_gpu_exporter.split import Who

# A node that runs a thousand short jobs in ten minutes would else have a page of ten thousands of series.
MOST_PODS = 1_000
LEAST_KEEP_NS = 120 * SECOND_NS


class Row(NamedTuple):
    """One series of each holder counter."""

    who: Who
    device: DeviceKey
    method: Method


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
class Accounts:
    """All counters of a node. ``gpus`` is in nanoseconds and millijoules, the rest in ticks and parts.

    ``retired`` is what the rows of pods that are gone had reached, by the device they were on.
    """

    gpus: dict[DeviceKey, dict[Measure, int]] = field(default_factory=dict)
    rows: dict[Row, dict[Measure, int]] = field(default_factory=dict)
    retired: dict[DeviceKey, dict[Measure, int]] = field(default_factory=dict)
    pods: dict[Pod, PodLife] = field(default_factory=dict)
    throttled_ns: dict[tuple[str, str], int] = field(default_factory=dict)
    xids: dict[tuple[str, int], int] = field(default_factory=dict)

    def add(self, gpu: DeviceKey, measure: Measure, base: int, shares: Mapping[Row, int | Fraction]) -> None:
        """Add ``base`` nanoseconds or millijoules to a GPU and deal them to ``shares``, to the last tick.

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

    def saw(self, pod: Pod, now_ms: int, now_ns: int) -> None:
        """``pod`` holds something now."""
        life = self.pods.setdefault(pod, PodLife(now_ms, now_ns, now_ns))
        life.last_held_ns = now_ns

    def retire(self, now_ns: int, keep_ns: int, most: int = MOST_PODS, least_ns: int = LEAST_KEEP_NS) -> None:
        """Move the rows of pods not seen for ``keep_ns`` to ``retired``; their sums stay.

        Of more than ``most`` pods those seen longest ago go sooner, but not within ``least_ns``.
        """
        excess: set[Pod] = set()
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
        for row in [row for row in self.rows if row.who.holder is Holder.POD and row.who.pod in gone]:
            retired = self.retired.setdefault(row.device, {})
            for measure, amount in self.rows.pop(row).items():
                retired[measure] = retired.get(measure, 0) + amount
        for pod in gone:
            del self.pods[pod]

    def differences(self) -> Iterator[tuple[str, Measure, int]]:
        """(board, measure, GPU minus holders and retired), where it is not 0: nowhere, ever.

        Energy is known of boards only, so all is added up by board.
        """
        left: dict[tuple[str, Measure], int] = {}
        for gpu, totals in self.gpus.items():
            for measure, base in totals.items():
                place = gpu.gpu_uuid, measure
                left[place] = left.get(place, 0) + dyadic(measure, base)
        parts = [(row.device, amounts) for row, amounts in self.rows.items()]
        for device, amounts in (*parts, *self.retired.items()):
            for measure, amount in amounts.items():
                place = device.gpu_uuid, measure
                left[place] = left.get(place, 0) - amount
        return ((uuid, measure, rest) for (uuid, measure), rest in left.items() if rest)

    def copy(self) -> Self:
        """A copy that further additions do not change."""
        return type(self)(
            gpus={gpu: dict(amounts) for gpu, amounts in self.gpus.items()},
            rows={row: dict(amounts) for row, amounts in self.rows.items()},
            retired={gpu: dict(amounts) for gpu, amounts in self.retired.items()},
            pods={pod: PodLife(*life.times) for pod, life in self.pods.items()},
            throttled_ns=dict(self.throttled_ns),
            xids=dict(self.xids),
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
                Row(Who(Holder(holder), Pod(*pod)), DeviceKey(uuid, gi), Method(method)): _amounts(amounts)
                for holder, *pod, uuid, gi, method, amounts in found["rows"]
            },
            retired={DeviceKey(uuid, gi): _amounts(amounts) for uuid, gi, amounts in found["retired"]},
            pods={Pod(*found_pod[:3]): PodLife(*map(int, found_pod[3:])) for found_pod in found["pods"]},
            throttled_ns={(uuid, reason): int(ns) for uuid, reason, ns in found["throttled_ns"]},
            xids={(uuid, int(xid)): int(count) for uuid, xid, count in found["xids"]},
        )


def _amounts(found: Mapping[str, int]) -> dict[Measure, int]:
    return {Measure(measure): int(amount) for measure, amount in found.items()}
