"""A small cluster, written down row by row: what a rule is shown, and nothing else.

Times are minutes after T0 unless they end in ``_ms``. Nodes have whole H100 GPUs at 4 USD an hour.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import pandas as pd

from gpucost.attribution.frames import ClusterFrames, conform, empty_frame
from gpucost.attribution.teams import TeamRules
from gpucost.cluster.views.overview import ClusterOverview
from gpucost.contract.frames import FRAMES
from gpucost.detectors.inputs.detector_facts import ClusterHistory, DetectorFacts, GpuTimePrices
from gpucost.domain.rates import NodeFacts, Rate, RateSpan
from gpucost.domain.time import MINUTE_MS, Window, parse_instant

T0 = parse_instant("2026-10-06T00:00:00Z")
STEP = 5
"""Minutes of one step of activity."""
GPU = "nvidia.com/gpu"
H100 = "NVIDIA-H100-80GB-HBM3"
GIB = 1 << 30
IDLE_W, BUSY_W = 65.0, 550.0
CLUSTER = "c"


def at(minutes: float) -> int:
    return T0 + round(minutes * MINUTE_MS)


def four_dollars(facts: NodeFacts, window: Window) -> Sequence[RateSpan]:
    del facts
    rate = Rate("r1", 4_000_000_000, "USD", 4_000_000_000, "model", "test", "2026-10-01")
    return (RateSpan(window.start_ms, window.end_ms, rate),)


@dataclass
class World:
    """Rows of frames in the making. ``end`` is the now of the facts, in minutes after T0."""

    end: float
    zero_is_gap: bool = False
    rows: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    overview: ClusterOverview | None = None
    seen: list[tuple[float, float]] | None = None

    def add(self, frame: str, **row: Any) -> World:
        self.rows.setdefault(frame, []).append({"cluster": CLUSTER, **row})
        return self

    def node(
        self,
        name: str,
        boards: int = 8,
        *,
        start: float = 0,
        end: float | None = None,
        expected: int | None = None,
        allocatable: int | None = None,
        schedulable: int = 1,
        product: str = H100,
        resource: str = GPU,
        units: int | None = None,
        replicas: int = 1,
        pool: str = "",
        capacity: bool = True,
    ) -> World:
        """A node, and (unless ``capacity=False``: see ``counts``) what it advertises all the time."""
        end = self.end if end is None else end
        times = {"start_ms": at(start), "end_ms": at(end)}
        self.add(
            "nodes", node=name, **times, product=product, boards=boards, instance_type="p5", region="r",
            capacity_type="on-demand", zone="z", pool=pool, labels="{}",
        )  # fmt: skip
        have = boards if units is None else units
        if capacity:
            self.counts(
                name, start, end, have if expected is None else expected,
                have if allocatable is None else allocatable, schedulable, resource, replicas,
            )  # fmt: skip
        return self

    def counts(
        self,
        node: str,
        start: float,
        end: float,
        expected: int,
        allocatable: int,
        schedulable: int = 1,
        resource: str = GPU,
        replicas: int = 1,
    ) -> World:
        return self.add(
            "capacity", node=node, resource=resource, start_ms=at(start), end_ms=at(end), expected=expected,
            capacity=allocatable, allocatable=allocatable, replicas=replicas, schedulable=schedulable,
        )  # fmt: skip

    def pod(
        self,
        uid: str,
        node: str,
        start: float,
        end: float | None = None,
        units: int = 1,
        *,
        job: str = "",
        kind: str = "Job",
        team: str = "t1",
        namespace: str = "ns",
        queue: str = "",
        cluster_queue: str = "",
        resource: str = GPU,
        user: str = "",
    ) -> World:
        """A pod that holds ``units``; ``end`` None: until now. Its job is named after it unless given."""
        job = job or f"job-{uid}"
        return self.add(
            "allocations", node=node, namespace=namespace, pod=uid, pod_uid=uid, job_kind=kind, job=job,
            job_uid=f"uid-{job}", workload="", queue=queue, cluster_queue=cluster_queue, flavor="",
            team_label=team, project="", user=user, resource=resource, count=units, start_ms=at(start),
            end_ms=at(self.end if end is None else end),
        )  # fmt: skip

    def work(
        self,
        uid: str,
        node: str,
        gpu: str,
        levels: Iterable[float | None],
        *,
        start: float = 0,
        step: float = STEP,
        sm: float | None = 0.5,
        memory: float = 40 * GIB,
        memory_total: float = 80 * GIB,
        watts: float | None = None,
        share: float = 1.0,
        observed: float = 1.0,
    ) -> World:
        """Activity of one GPU of a pod: a busy level (0 to 1) per step from ``start`` on; None: no row.

        ``sm`` is the SM activity while busy (None: no such signal), ``observed`` the part of each step that
        was seen, ``watts`` the mean power (by default 65 W idle and 550 W busy, in proportion).
        """
        nan = float("nan")
        for n, level in enumerate(levels):
            if level is None:
                continue
            held = step * MINUTE_MS * share
            seen = held * observed
            power = IDLE_W + (BUSY_W - IDLE_W) * level if watts is None else watts
            self.add(
                "activity", node=node, gpu=gpu, pod_uid=uid, start_ms=at(start + n * step),
                end_ms=at(start + (n + 1) * step), held_ms=held, observed_ms=seen, busy_ms=seen * level,
                sm_observed_ms=nan if sm is None else seen,
                sm_active_ms=nan if sm is None else seen * level * sm,
                memory_used_bytes=memory, memory_total_bytes=memory_total, energy_j=power * held / 1000,
            )  # fmt: skip
        return self

    def served(
        self,
        uid: str,
        requests: Iterable[float | None],
        *,
        start: float = 0,
        step: float = STEP,
        metric: str = "vllm:request_success_total",
        received: bool = False,
    ) -> World:
        """What a counter of a pod rose by in each step (None: not read): requests, or bytes it received."""
        nan = float("nan")
        for n, amount in enumerate(requests):
            if amount is not None:
                self.add(
                    "serving", pod_uid=uid, metric=metric, start_ms=at(start + n * step),
                    end_ms=at(start + (n + 1) * step), requests=nan if received else amount,
                    received_bytes=amount if received else nan,
                )  # fmt: skip
        return self

    def waits(
        self,
        job: str,
        start: float,
        end: float | None = None,
        *,
        pods: int = 1,
        units: int = 1,
        min_pods: int | None = None,
        team: str = "t1",
        namespace: str = "ns",
        queue: str = "",
        cluster_queue: str = "",
        resource: str = GPU,
        products: str = "",
        layer: str = "quota",
        reason: str = "",
        kind: str = "Job",
        channel: str = "",
    ) -> World:
        return self.add(
            "demand", namespace=namespace, job_kind=kind, job=job, job_uid=f"uid-{job}", workload="",
            queue=queue, cluster_queue=cluster_queue, team_label=team, pod_set="", resource=resource,
            products=products, pods=pods, min_pods=pods if min_pods is None else min_pods, units=units,
            layer=layer,
            reason=reason, channel=channel, start_ms=at(start), end_ms=at(self.end if end is None else end),
        )  # fmt: skip

    def tray(
        self,
        node: str,
        clique: str = "rack",
        *,
        taken: tuple[tuple[float, float], ...] = (),
        job: str = "holds",
    ) -> World:
        """A node with a channel, which the ComputeDomain of a job has in stretches of minutes."""
        cuts = [0.0, *(edge for span in taken for edge in span), self.end]
        for n, (start, end) in enumerate(pairwise(cuts)):
            of = {"namespace": "ns", "domain": f"ns/{job}", "job": job, "job_uid": f"uid-{job}"}
            of = of if n % 2 else dict.fromkeys(of, "")
            if start < end:
                times = {"start_ms": at(start), "end_ms": at(end)}
                self.add("domains", node=node, clique=clique, reserved=n % 2, **of, **times)
        return self

    def quota(
        self,
        queue: str,
        nominal: float,
        used: float,
        start: float = 0,
        end: float | None = None,
        *,
        cohort: str = "",
        borrowing_limit: float | None = None,
        lending_limit: float | None = None,
        scheduler: str = "kueue",
        flavor: str = "f",
        resource: str = GPU,
    ) -> World:
        nan = float("nan")
        return self.add(
            "quotas", scheduler=scheduler, queue=queue, cohort=cohort, flavor=flavor, resource=resource,
            start_ms=at(start), end_ms=at(self.end if end is None else end), nominal=nominal, used=used,
            borrowing_limit=nan if borrowing_limit is None else borrowing_limit,
            lending_limit=nan if lending_limit is None else lending_limit,
        )  # fmt: skip

    def frames(self) -> ClusterFrames:
        rows = dict(self.rows)
        stretches = [(0.0, self.end)] if self.seen is None else self.seen
        rows["observed"] = [{"cluster": CLUSTER, "start_ms": at(a), "end_ms": at(b)} for a, b in stretches]
        made = {
            spec.name: conform(pd.DataFrame(rows[spec.name]), spec)
            if rows.get(spec.name)
            else empty_frame(spec)
            for spec in FRAMES
        }
        return ClusterFrames(**made)

    def facts(self, teams: TeamRules | None = None) -> DetectorFacts:
        window = Window(T0, at(self.end))
        history = ClusterHistory(
            self.frames(), window, teams or TeamRules.default(), zero_is_gap=self.zero_is_gap
        )
        return DetectorFacts(CLUSTER, history, GpuTimePrices(history, four_dollars), self.overview)


_SUMS = (
    *("held_ms", "observed_ms", "busy_ms", "sm_observed_ms", "sm_active_ms", "energy_j"),
    *("requests", "received_bytes"),
)
"""Amounts of a row, of which a part of it has its part."""


def read_of(world: World, start: float, end: float) -> DetectorFacts:
    """What is known of a world when only ``[start, end)`` minutes of it were read."""
    facts, window = world.facts(), Window(at(start), at(end))
    parts = {}
    for spec in FRAMES:
        frame = getattr(facts.history.frames, spec.name)
        if "start_ms" in frame.columns:
            frame = frame[(frame["start_ms"] < window.end_ms) & (frame["end_ms"] > window.start_ms)]
            edges = {
                name: frame[name].clip(window.start_ms, window.end_ms) for name in ("start_ms", "end_ms")
            }
            part = (edges["end_ms"] - edges["start_ms"]) / (frame["end_ms"] - frame["start_ms"])
            sums = {name: frame[name] * part for name in _SUMS if name in frame.columns}
            frame = frame.assign(**edges, **sums).reset_index(drop=True)
        parts[spec.name] = frame
    history = ClusterHistory(ClusterFrames(**parts), window, facts.history.teams)
    return DetectorFacts(facts.cluster, history, GpuTimePrices(history, four_dollars))


@dataclass(frozen=True, eq=False)
class Case:
    """What every rule must be tried with; ``test_ten.py`` runs the same tests over all of them.

    ``positive`` is the least that makes a finding of ``variant`` (exactly at the threshold, not beyond it);
    ``below`` the same with the measured value just under the threshold; ``short`` with one step less of time
    than needed; ``gap`` with its inputs missing for a part, so that it must answer that it lacks data.
    ``board_ms`` is what the finding of ``positive`` wastes, by arithmetic done by hand: counted, or, with
    ``is_view``, shown only; None for nothing at all. ``settings`` override fields of the rule's settings.
    """

    variant: str
    positive: Any
    below: Any
    short: Any
    gap: Any
    board_ms: int | None
    is_view: bool = False
    settings: Mapping[str, object] = field(default_factory=dict)
