"""What a replay is made from: arrivals, capacity over time, queues over time, and what really happened.

Every source (``gpucost.service.replay``) gives a ``ReplayHistory``; ``scenario_run`` plays it, with a change
or without. Times are milliseconds, UTC. What a source did not record stands in ``limits``, in words.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from itertools import pairwise
from typing import NamedTuple

from gpucost.advisor.kueue.requests import PodSetRequest
from gpucost.advisor.replay.kueue_replay import ReplayTimings
from gpucost.advisor.replay.replay_timeline import StoryEviction
from gpucost.cluster.objects.kueue import ClusterQueue
from gpucost.cluster.objects.scheduler_config import KueueConfig, VolcanoConfig
from gpucost.cluster.objects.state import ClusterState
from gpucost.cluster.objects.volcano import HyperNode, VolcanoQueue
from gpucost.domain.time import Window


@dataclass(frozen=True, slots=True)
class JobRecord:
    """What really became of a job: its starts, who stopped it, and its end (None: it had none, or nobody saw
    it)."""

    starts: tuple[int, ...]
    evictions: tuple[StoryEviction, ...] = ()
    ended_ms: int | None = None


@dataclass(frozen=True, slots=True)
class HistoryJob:
    """One arrival. ``run_ms`` is how long it runs once it may; where ``is_censored``, it was killed or still
    ran, so that this is the least. ``gpus`` is all it holds at once.

    ``queue`` is its ClusterQueue, or in plain FIFO its line; empty where none manages it. ``pool`` is where
    it ran, which counts where no quota decides it. ``record`` is None where nothing is known of it. Of a gang
    of Volcano ``min_member`` are the pods it needs to start (0: all), and ``topology`` is as of its PodGroup.
    """

    uid: str
    created_ms: int
    run_ms: int
    gpus: int
    queue: str
    pool: str = ""
    name: str = ""
    team: str = ""
    user: str = ""
    priority: int = 0
    pod_sets: tuple[PodSetRequest, ...] = ()
    keeps_progress: bool = False
    is_censored: bool = False
    record: JobRecord | None = None
    min_member: int = 0
    topology: Mapping[str, str] = field(default_factory=dict)


def with_shared_pod_sets(jobs: Iterable[HistoryJob]) -> tuple[HistoryJob, ...]:
    """The same jobs; equal pod sets of theirs are one object, since a hundred thousand jobs have few."""
    known: dict[Hashable, list[tuple[PodSetRequest, ...]]] = {}
    found = []
    for job in jobs:
        key = tuple((each.name, each.count, *sorted(each.each.items())) for each in job.pod_sets)
        alike = known.setdefault(key, [])
        one = next((each for each in alike if each == job.pod_sets), None)
        if one is None:
            alike.append(job.pod_sets)
        found.append(job if one is None else replace(job, pod_sets=one))
    return tuple(found)


class GuestNodes(NamedTuple):
    """Nodes of another model in a pool, from an instant on."""

    since_ms: int
    nodes: int
    model: str


@dataclass(frozen=True, slots=True)
class PoolRecord:
    """Equal nodes: ``steps`` are (instant, nodes from then on), ascending, the first at the begin.

    ``gpus`` are a node's (units, of sliced GPUs), each the ``share`` of a board. ``price`` is of a GPU-hour
    in nano-units, None where nobody knows; from the instants of ``later_prices`` on it is another. All nodes
    are of one ``model``, or from the instants of ``models`` on of another, save ``guests``, which are some of
    those of ``steps``. A job that has a flavor's quota is put on the pool that has it as ``flavor`` and
    ``resource``. ``labels`` are those of each node, as far as its flavor's topology is about them; empty
    where nobody knows. ``node_names`` are those of the nodes in their order, as far as they are known.
    """

    name: str
    gpus: int
    steps: tuple[tuple[int, int], ...]
    model: str = ""
    price: Fraction | None = None
    flavor: str = ""
    resource: str = ""
    share: Fraction = Fraction(1)
    models: tuple[tuple[int, str], ...] = ()
    guests: tuple[GuestNodes, ...] = ()
    labels: tuple[Mapping[str, str], ...] = ()
    later_prices: tuple[tuple[int, Fraction], ...] = ()
    node_names: tuple[str, ...] = ()

    def model_at(self, at_ms: int) -> str:
        """What its nodes are then."""
        return next((model for since_ms, model in reversed(self.models) if since_ms <= at_ms), self.model)

    def name_of(self, number: int) -> str:
        """Of a node by its place."""
        return self.node_names[number] if number < len(self.node_names) else f"{self.name} {number:06d}"

    def price_at(self, at_ms: int) -> Fraction | None:
        """Of a GPU-hour then."""
        return next(
            (price for since_ms, price in reversed(self.later_prices) if since_ms <= at_ms), self.price
        )

    def mean_price(self, window: Window) -> Fraction | None:
        """Of a GPU-hour, over a window."""
        if self.price is None:
            return None
        edges = sorted({window.start_ms, window.end_ms, *(at_ms for at_ms, _ in self.later_prices)})
        inside = [each for each in edges if window.start_ms <= each <= window.end_ms]
        parts = ((self.price_at(low) or Fraction(0)) * (high - low) for low, high in pairwise(inside))
        return sum(parts, Fraction(0)) / window.length_ms

    def guests_at(self, at_ms: int) -> dict[str, int]:
        """How many of its nodes are of which other model then, never more than there are."""
        left = next((nodes for since_ms, nodes in reversed(self.steps) if since_ms <= at_ms), 0)
        found: dict[str, int] = {}
        for each in self.guests:
            if each.since_ms <= at_ms:
                nodes = min(left, each.nodes)
                left -= nodes
                found[each.model] = found.get(each.model, 0) + nodes
        return found


@dataclass(frozen=True, slots=True)
class KueueRecord:
    """Queues, cohorts and flavors at the begin, and ClusterQueues as they were from an instant on."""

    state: ClusterState
    config: KueueConfig
    timings: ReplayTimings = field(default_factory=ReplayTimings)
    changes: tuple[tuple[int, ClusterQueue], ...] = ()


@dataclass(frozen=True, slots=True)
class VolcanoRecord:
    """Queues of Volcano by name at the begin, as they were from an instant on, and what else decides."""

    queues: Mapping[str, VolcanoQueue]
    config: VolcanoConfig
    hyper_nodes: tuple[HyperNode, ...] = ()
    changes: tuple[tuple[int, VolcanoQueue], ...] = ()


class LedgerCost(NamedTuple):
    """What the ledger has of the cluster and the window: all of its GPU time, and what pods held of it, in
    milliseconds and nano-units."""

    board_ms: int
    nano: int
    held_board_ms: int
    held_nano: int


@dataclass(frozen=True, slots=True)
class ReplayHistory:
    """``window`` is what is asked about: jobs created in it are counted, and GPU time in it. Without
    ``kueue`` and ``volcano`` (a history has one of them at most), each pool has a line of its own, strictly
    first in, first out.

    With ``has_nodes`` jobs must fit on nodes of the pools; else quota is all that holds them. With
    ``fits_first`` quota is given only to what fits on nodes too. ``limits`` are what the source did not
    record, in words. ``ledger`` is None where none was asked, or some of it has no price.
    """

    name: str
    window: Window
    jobs: tuple[HistoryJob, ...]
    pools: Mapping[str, PoolRecord] = field(default_factory=dict)
    kueue: KueueRecord | None = None
    volcano: VolcanoRecord | None = None
    has_nodes: bool = True
    fits_first: bool = False
    currency: str = ""
    cluster: str = ""
    ledger: LedgerCost | None = None
    limits: tuple[str, ...] = ()

    @property
    def is_recorded(self) -> bool:
        """Whether it is known what really happened."""
        return any(each.record is not None for each in self.jobs)
