"""Small frames for tests: one node, a few pods, fixed dates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from gpucost.attribution.frames import ClusterFrames, conform, empty_frame
from gpucost.contract.frames import ALLOCATIONS, CAPACITY, HOLDER_COLUMNS, NODES, OBSERVED, SIGNALS, FrameSpec
from gpucost.domain.money import parse_nano
from gpucost.domain.rates import NodeFacts, Rate, RateSpan
from gpucost.domain.time import DAY_MS, HOUR_MS, Month, Window

OCTOBER = Month(2026, 10).window
START = OCTOBER.start_ms
H100 = "NVIDIA-H100-80GB-HBM3"


def pod(
    name: str,
    hours: tuple[float, float],
    count: int = 1,
    resource: str = "nvidia.com/gpu",
    node: str = "n1",
    **more: str,
) -> dict[str, Any]:
    """A pod that held ``count`` units from ``hours[0]`` to ``hours[1]`` after the start of October 2026."""
    row: dict[str, Any] = {column.name: "" for column in HOLDER_COLUMNS}
    row |= {"cluster": "c", "node": node, "namespace": "research", "pod": name, "pod_uid": f"uid-{name}"}
    row |= {"job": name, "job_uid": f"job-{name}", "job_kind": "Job", "resource": resource, "count": count}
    row |= {"start_ms": START + round(hours[0] * HOUR_MS), "end_ms": START + round(hours[1] * HOUR_MS)}
    return row | more


def node(name: str = "n1", boards: int = 8, product: str = H100, **more: Any) -> dict[str, Any]:
    row = {"cluster": "c", "node": name, "start_ms": START - DAY_MS, "end_ms": START + 90 * DAY_MS}
    row |= {"product": product, "boards": boards, "labels": "{}"}
    row |= dict.fromkeys(["instance_type", "capacity_type", "region", "zone", "pool"], "")
    return row | more


def units(count: int = 8, resource: str = "nvidia.com/gpu", name: str = "n1", **more: Any) -> dict[str, Any]:
    row = {"cluster": "c", "node": name, "resource": resource, "start_ms": START - DAY_MS}
    row |= {"end_ms": START + 90 * DAY_MS, "expected": count, "capacity": count, "allocatable": count}
    return row | {"replicas": 1, "schedulable": 1} | more


def signal(
    name: str, hours: tuple[float, float], observed: float, busy: float, node: str = "n1"
) -> dict[str, Any]:
    """``observed`` and ``busy`` are GPU-hours."""
    row = {
        "cluster": "c",
        "node": node,
        "pod_uid": f"uid-{name}",
        "start_ms": START + round(hours[0] * HOUR_MS),
    }
    row |= {"end_ms": START + round(hours[1] * HOUR_MS), "observed_ms": observed * HOUR_MS}
    nothing = float("nan")
    row |= {"busy_ms": busy * HOUR_MS, "sm_observed_ms": nothing, "sm_active_ms": nothing}
    return row | {"tensor_active_ms": nothing}


def build(
    pods: Sequence[Mapping[str, Any]] = (),
    nodes: Sequence[Mapping[str, Any]] = (),
    capacity: Sequence[Mapping[str, Any]] = (),
    observed: Sequence[tuple[float, float]] = ((-24, 24 * 90),),
    signals: Sequence[Mapping[str, Any]] = (),
) -> ClusterFrames:
    watched = [
        {"cluster": "c", "start_ms": START + round(a * HOUR_MS), "end_ms": START + round(b * HOUR_MS)}
        for a, b in observed
    ]
    return ClusterFrames(
        allocations=_frame(pods, ALLOCATIONS),
        nodes=_frame(nodes, NODES),
        capacity=_frame(capacity, CAPACITY),
        observed=_frame(watched, OBSERVED),
        signals=_frame(signals, SIGNALS),
    )


def _frame(rows: Sequence[Mapping[str, Any]], spec: FrameSpec) -> pd.DataFrame:
    return conform(pd.DataFrame(list(rows)), spec) if rows else empty_frame(spec)


def hours(start: float, end: float) -> Window:
    return Window(START + round(start * HOUR_MS), START + round(end * HOUR_MS))


class FlatRates:
    """One price for everything, with changes, in hours: ``FlatRates(("2.00", 0), ("3.00", 12))``."""

    def __init__(self, *steps: tuple[str, float]) -> None:
        self.steps = [(parse_nano(price), START + round(hour * HOUR_MS)) for price, hour in steps]

    def __call__(self, _: NodeFacts, window: Window) -> tuple[RateSpan, ...]:
        spans = []
        for i, (price, since) in enumerate(self.steps):
            until = self.steps[i + 1][1] if i + 1 < len(self.steps) else window.end_ms
            start = window.start_ms if i == 0 else max(since, window.start_ms)
            if start < min(until, window.end_ms):
                rate = Rate(f"flat-{i}-{price}", price, "USD", price, "model", "test", "2026-10-01")
                spans.append(RateSpan(start, min(until, window.end_ms), rate))
        return tuple(spans)


class NamespaceTeams:
    """The namespace is the team."""

    def assign(self, holders: pd.DataFrame, _: int) -> pd.Series[str]:
        label, namespace = (holders[name].astype("str") for name in ("team_label", "namespace"))
        return label.where(label != "", namespace)

    def placed(self, holders: pd.DataFrame, at_ms: int) -> pd.DataFrame:
        return pd.DataFrame({"team": self.assign(holders, at_ms), "rule": "namespace names the team"})

    def changes(self, _: Window) -> tuple[int, ...]:
        return ()
