"""Sums of what was attributed, and the same sums by plain arithmetic over the script."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

import pandas as pd

from gpucost.attribution.attribute import attribute
from gpucost.attribution.frames import ClusterFrames
from gpucost.attribution.usage_lines import Attribution
from gpucost.domain.buckets import Bucket
from gpucost.domain.gpu import parse_product
from gpucost.domain.time import HOUR_MS, Window
from gpucost.pricing.price_book import PriceBook
from tests.support.existing.frames import states
from tests.support.existing.world import World
from tests.support.frames import NamespaceTeams

_PER_HOUR = {"H100": "6.88", "A100-80GB": "3.43", "T4": "0.98", "L4": "1.15"}
MEASURES = ("busy_ms", "sm_active_ms", "tensor_active_ms", "energy_mj", "observed_ms")
Key = tuple[str, ...]


def book() -> PriceBook:
    """A price for each model, the same all month."""
    rows = "".join(
        f"  - {{model: {model}, per: gpu, per_hour: {price}, source: test, retrieved: 2026-09-30}}\n"
        for model, price in _PER_HOUR.items()
    )
    return PriceBook.parse(
        f"version: 1\ncurrency: USD\nstale_after_days: 3650\nprices:\n{rows}", "prices.yaml"
    )


def attributed(frames: ClusterFrames, windows: Sequence[Window]) -> Attribution:
    return attribute(frames, windows, rates=book().rates, teams=NamespaceTeams())


@dataclass(frozen=True)
class Totals:
    """Usage lines by name: GPU time, money and use can be summed by any of their columns."""

    lines: pd.DataFrame

    @classmethod
    def of(cls, attribution: Attribution) -> Totals:
        return cls(attribution.flat())

    def by(self, measure: str, *columns: str) -> dict[Key, float]:
        """Sums of one measure; keys are texts, also of one column."""
        grouped = self.lines.groupby(list(columns), observed=True)[measure].sum()
        return {
            (key if isinstance(key, tuple) else (key,)): float(value)
            for key, value in grouped.items()
            if value
        }

    def held(self, measure: str, *columns: str) -> dict[Key, float]:
        return Totals(self.lines[self.lines["bucket"] == Bucket.HELD.value]).by(measure, *columns)


@dataclass(frozen=True)
class Truth:
    """GPU milliseconds, exact: what pods held, what nodes had, what of that could not be had."""

    held: Mapping[tuple[str, str, str, str], Fraction]  # by pod uid, team, node and model
    capacity: Mapping[tuple[str, str], Fraction]  # by node and model
    unavailable: Fraction

    def held_by(self, position: int) -> dict[Key, float]:
        sums: dict[Key, Fraction] = defaultdict(Fraction)
        for key, amount in self.held.items():
            sums[key[position],] += amount
        return {key: float(amount) for key, amount in sums.items()}

    @property
    def held_nano(self) -> float:
        return self._cost((key[3], amount) for key, amount in self.held.items())

    @property
    def capacity_nano(self) -> float:
        return self._cost((key[1], amount) for key, amount in self.capacity.items())

    @staticmethod
    def _cost(amounts: Iterable[tuple[str, Fraction]]) -> float:
        prices = {model: Fraction(price) * 10**9 for model, price in _PER_HOUR.items()}
        return float(sum((prices[model] * amount / HOUR_MS for model, amount in amounts), Fraction(0)))


def truth_of(world: World, window: Window) -> Truth:
    """Sums over the script, with none of gpucost's reading or attribution."""
    held: dict[tuple[str, str, str, str], Fraction] = defaultdict(Fraction)
    models = {node.name: parse_product(node.product).model for node in world.nodes}
    for pod in world.pods:
        offer = world.node(pod.node).offer(pod.resource)
        share = sum((gpu.share for gpu in pod.gpus), Fraction(0)) / offer.replicas
        for start_ms, end_ms, team in pod.spans(window.start_ms, window.end_ms):
            held[pod.uid, team or pod.namespace, pod.node, models[pod.node]] += share * (end_ms - start_ms)
    capacity = {
        (node.name, models[node.name]): Fraction(node.boards * window.overlap_ms(node.start_ms, node.end_ms))
        for node in world.nodes
        if node.boards
    }
    lost = sum(
        window.overlap_ms(start_ms, end_ms) * units
        for node in world.nodes
        for start_ms, end_ms, units in states(node, world.end_ms)
    )
    return Truth(dict(held), {key: value for key, value in capacity.items() if value}, Fraction(lost))
