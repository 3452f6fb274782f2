"""The causes of differences between OpenCost's figures and ours, in the order in which they are removed.

For one pod, and one node, on one day, OpenCost's figure is turned into ours one ingredient at a time. The
effect of each replacement is the amount of its cause, so the amounts add up to the difference whatever the
figures are. All of it is in integers: nano-units and milliseconds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise

from gpucost.domain.time import HOUR_MS
from gpucost.reports.opencost.held_time import OpenCostHeldTime


class ComparisonCause(StrEnum):
    """One ingredient of the figure. Each is replaced in turn, in this order, by ours."""

    COUNT_MISSING = "count_missing"
    ALLOCATION = "allocation"
    RECREATED = "recreated"
    SAMPLING = "sampling"
    NOT_SEEN = "not_seen"
    LINGERED = "lingered"
    HELD_NOTHING = "held_nothing"
    NOT_COUNTED = "not_counted"
    UNITS = "units"
    OVERCOMMITTED = "overcommitted"
    DEFAULT_PRICE = "default_price"
    NO_OPENCOST_PRICE = "no_opencost_price"
    NODE_PRICE = "node_price"
    NO_PRICE = "no_price"
    PRICE = "price"
    DISCOUNT = "discount"


@dataclass(frozen=True, slots=True)
class CauseText:
    """``defect`` is its number in docs/opencost.md, empty where it has none; ``title`` is shown in tables."""

    defect: str
    title: str
    sentence: str

    @property
    def label(self) -> str:
        """``D1 node price split``."""
        return f"{self.defect} {self.title}".strip()


READ_MORE = "docs/opencost.md"

TEXTS: Mapping[ComparisonCause, CauseText] = {
    ComparisonCause.COUNT_MISSING: CauseText(
        "D9",
        "GPU count missing",
        "OpenCost has no node_gpu_count of a node and takes its capacity for nothing, or nothing says how "
        "many GPUs the node has.",
    ),
    ComparisonCause.ALLOCATION: CauseText(
        "",
        "other units",
        "OpenCost multiplies all of a pod's time by the mean of container_gpu_allocation in the window, "
        "which is 0 for pods without it once anybody has it; else by the requests of main containers, "
        "without init containers and sidecars.",
    ),
    ComparisonCause.RECREATED: CauseText(
        "",
        "one name, several pods",
        "OpenCost takes pods that had the same name for one, on the node of the last, and bills the time "
        "between them too.",
    ),
    ComparisonCause.SAMPLING: CauseText(
        "D16",
        "looks, not times",
        "OpenCost bills from its first look at a pod to its last, one look alone as one resolution: starts "
        "and ends are rounded, and jobs between two looks are not seen.",
    ),
    ComparisonCause.NOT_SEEN: CauseText(
        "",
        "held, not running",
        "A pod holds its GPUs from when it is placed until it ends, and a node is paid for as long as it is "
        "there; OpenCost counts what its looks show, and containers only while they run.",
    ),
    ComparisonCause.LINGERED: CauseText(
        "",
        "seen after the end",
        "At its last look (or at its first) the series that OpenCost reads said that the pod runs, or that "
        "the node is there, though it was over: its node was gone, or nothing marked the end of the series.",
    ),
    ComparisonCause.HELD_NOTHING: CauseText(
        "",
        "held nothing",
        "OpenCost bills a pod that held no GPU by our lines: finished, or still waiting for a node.",
    ),
    ComparisonCause.NOT_COUNTED: CauseText(
        "",
        "units not billed",
        "OpenCost bills nothing for MIG slices by profile, for .shared units and for other vendors' GPUs.",
    ),
    ComparisonCause.UNITS: CauseText(
        "D3",
        "units as GPUs",
        "OpenCost bills every slice or time-slice like a whole GPU; we bill its part of the GPU.",
    ),
    ComparisonCause.OVERCOMMITTED: CauseText(
        "D8",
        "more than there is",
        "What pods hold beyond the capacity of a node is billed by OpenCost, which makes idle negative; "
        "capacity is paid for once.",
    ),
    ComparisonCause.DEFAULT_PRICE: CauseText(
        "D2",
        "default price",
        "OpenCost has no price series of the node, or knows no node of the pod: it bills the default price "
        "that is configured, and such a node has no idle time there.",
    ),
    ComparisonCause.NO_OPENCOST_PRICE: CauseText(
        "D2",
        "no price in OpenCost",
        "OpenCost has no node_gpu_hourly_cost of the node, or 0: what runs there costs nothing.",
    ),
    ComparisonCause.NODE_PRICE: CauseText(
        "D1",
        "node price split",
        "OpenCost gives a part of the node's price to CPUs and memory; whoever holds the GPUs blocks all of "
        "the node, so we let the whole price follow them.",
    ),
    ComparisonCause.NO_PRICE: CauseText(
        "",
        "no price in ours",
        "Our price book has no price for this time: it is listed without a cost, never guessed.",
    ),
    ComparisonCause.PRICE: CauseText(
        "D2",
        "price",
        "OpenCost's price of the node (one default for every GPU, where it knows none), averaged over each "
        "day, against our list price at each instant.",
    ),
    ComparisonCause.DISCOUNT: CauseText(
        "D6", "discount", "OpenCost's discounts leave GPU prices alone; ours reduce them."
    ),
}


@dataclass(frozen=True, slots=True)
class NodePrice:
    """Nano-units per hour; None where there is none. ``gpu`` is OpenCost's for one GPU, ``whole`` the node's
    price divided by its GPUs, ``default`` what OpenCost bills where it has no series of the node: then the
    other two are None, and ``is_default`` says so."""

    gpu: int | None
    whole: int | None
    default: int = 0
    is_default: bool = False

    @property
    def split(self) -> int:
        """The price by which OpenCost bills a unit."""
        return self.default if self.is_default else self.gpu or 0

    @property
    def known(self) -> int:
        """As ``split``; where OpenCost has a price of 0 for a GPU, the whole one."""
        return self.gpu or self.whole or 0

    @property
    def followed(self) -> int:
        """The whole price, where it is known."""
        return self.known if self.whole is None else self.whole


@dataclass(frozen=True, slots=True)
class PodDay:
    """What was held under a pod's name on one node, by one team and on one day; ``time`` says how OpenCost's
    time becomes ours. Ours: units of resources that OpenCost knows (``unit_ms``), their GPUs (``board_ms``),
    the GPUs of all others (``other_board_ms``), of both what is over-committed (``over_ms``) and what has no
    price (``unpriced_ms``).
    """

    time: OpenCostHeldTime
    unit_ms: int = 0
    board_ms: int = 0
    other_board_ms: int = 0
    over_ms: int = 0
    unpriced_ms: int = 0
    list_nano: int = 0
    nano: int = 0

    @property
    def held_ms(self) -> int:
        """GPU-milliseconds for which there was capacity."""
        return self.board_ms + self.other_board_ms - self.over_ms


@dataclass(frozen=True, slots=True)
class NodeDay:
    """A node on one day. OpenCost's: GPU count (None: no series) in thousandths, and how long it saw the
    node. Ours: capacity in GPU-milliseconds, of resources that OpenCost knows and of others, the same in
    units, and what is not priced; ``node_ms`` is how long the node was there."""

    count_milli: int | None = None
    billed_node_ms: int = 0
    node_ms: int = 0
    board_ms: int = 0
    other_board_ms: int = 0
    boards: int | None = None
    unpriced_ms: int = 0
    list_nano: int = 0
    nano: int = 0


CostFigures = list[int]
"""OpenCost's figure, then the figure after each of ComparisonCause, in its order; the last is ours."""

_UNTIL_DEFAULT = 1 + [*ComparisonCause].index(ComparisonCause.DEFAULT_PRICE)


def pod_figures(pod: PodDay, price: NodePrice) -> CostFigures:
    time, unit_ms, board_ms, other_ms = pod.time, pod.unit_ms, pod.board_ms, pod.other_board_ms
    if time.is_doubled:
        unit_ms, board_ms, other_ms = time.ours, other_ms, 0
    after = {ComparisonCause.COUNT_MISSING: time.billed, ComparisonCause.ALLOCATION: time.with_our_units}
    after |= {ComparisonCause.RECREATED: time.of_these_pods, ComparisonCause.SAMPLING: time.unrounded}
    after |= {
        ComparisonCause.NOT_SEEN: time.with_waits,
        ComparisonCause.LINGERED: time.ours,
        ComparisonCause.HELD_NOTHING: unit_ms,
    }
    after |= {ComparisonCause.NOT_COUNTED: unit_ms + other_ms, ComparisonCause.UNITS: board_ms + other_ms}
    after |= {ComparisonCause.OVERCOMMITTED: pod.held_ms}
    figures = [cost(price.split, time.billed)]
    figures += [cost(price.split, after[cause]) for cause in after]
    return figures + _priced(price, pod.held_ms, pod.unpriced_ms, pod.list_nano, pod.nano)


def taken_from_idle(figures: CostFigures, price: NodePrice) -> CostFigures:
    """The part of a pod's figures that is subtracted from a node's idle cost. OpenCost subtracts nothing from
    the idle cost of a node that it does not know, or does not know the pod to be on."""
    return [0] * _UNTIL_DEFAULT + figures[_UNTIL_DEFAULT:] if price.is_default else figures


def capacity_figures(node: NodeDay, price: NodePrice, resolution_ms: int) -> CostFigures:
    """What the node's GPUs cost, held or not; minus the pods' part, it is the node's idle cost."""
    all_ms = node.board_ms + node.other_board_ms
    priced = _priced(price, all_ms, node.unpriced_ms, node.list_nano, node.nano)
    if price.is_default:
        return [0] * _UNTIL_DEFAULT + priced
    counted = 0 if node.count_milli is None else node.count_milli
    if node.boards is None:
        # Where the GPUs are not counted, ours is what was held: no difference in units is known.
        after = [counted * node.billed_node_ms // 1000, *[all_ms] * 10]
    else:
        known = node.boards * 1000 if node.count_milli is None else node.count_milli
        seen, there = (known * length // 1000 for length in (node.billed_node_ms, node.node_ms))
        # Up to one resolution at either end.
        limit = 2 * known * resolution_ms // 1000
        sampled = seen + max(-limit, min(limit, there - seen))
        after = [counted * node.billed_node_ms // 1000, seen, seen, seen, sampled, max(sampled, there)]
        after += [there, there, there + node.other_board_ms, all_ms, all_ms]
    return [cost(price.split, amount) for amount in after] + priced


def _priced(price: NodePrice, board_ms: int, unpriced_ms: int, list_nano: int, nano: int) -> CostFigures:
    """From here on the time is the same, and only prices change: the last six."""
    unpriced = cost(price.default, unpriced_ms)
    if price.is_default:
        return [list_nano + unpriced] * 3 + [list_nano, list_nano, nano]
    return [
        cost(price.split, board_ms),
        cost(price.known, board_ms),
        cost(price.followed, board_ms),
        cost(price.followed, board_ms - unpriced_ms),
        list_nano,
        nano,
    ]


def amounts(figures: Sequence[int]) -> dict[ComparisonCause, int]:
    """The part of the difference that each cause makes; together they are all of it."""
    pairs = pairwise(figures)
    return {cause: after - before for cause, (before, after) in zip(ComparisonCause, pairs, strict=True)}


def cost(nano_per_hour: int, length_ms: int) -> int:
    """Nano-units, rounded half up."""
    return (2 * nano_per_hour * length_ms + HOUR_MS) // (2 * HOUR_MS)
