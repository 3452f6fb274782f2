"""What makes OpenCost's figures differ from ours: the causes, in the order in which they are taken away."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum


class Cause(StrEnum):
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
    """``defect`` is its number in docs/opencost.md, empty where it has none; ``title`` stands in tables."""

    defect: str
    title: str
    sentence: str

    @property
    def label(self) -> str:
        """``D1 node price split``."""
        return f"{self.defect} {self.title}".strip()


READ_MORE = "docs/opencost.md"

TEXTS: Mapping[Cause, CauseText] = {
    Cause.COUNT_MISSING: CauseText(
        "D9",
        "GPU count missing",
        "OpenCost has no node_gpu_count of a node and takes its capacity for nothing, or nothing says how "
        "many boards the node has.",
    ),
    Cause.ALLOCATION: CauseText(
        "",
        "other units",
        "OpenCost multiplies all of a pod's time by the mean of container_gpu_allocation in the window, "
        "which is 0 for pods without it once anybody has it; else by the requests of main containers, "
        "without init containers and sidecars.",
    ),
    Cause.RECREATED: CauseText(
        "",
        "one name, several pods",
        "OpenCost takes pods that had the same name for one, on the node of the last, and bills the time "
        "between them too.",
    ),
    Cause.SAMPLING: CauseText(
        "D16",
        "looks, not times",
        "OpenCost bills from its first look at a pod to its last, one look alone as one resolution: starts "
        "and ends are rounded, and jobs between two looks are not seen.",
    ),
    Cause.NOT_SEEN: CauseText(
        "",
        "held, not running",
        "A pod holds its GPUs from when it is placed until it ends, and a node is paid for as long as it is "
        "there; OpenCost counts what its looks show, and containers only while they run.",
    ),
    Cause.LINGERED: CauseText(
        "",
        "seen after the end",
        "At its last look (or at its first) the series that OpenCost reads said that the pod runs, or that "
        "the node is there, though it was over: its node was gone, or nothing marked the end of the series.",
    ),
    Cause.HELD_NOTHING: CauseText(
        "",
        "held nothing",
        "OpenCost bills a pod that held no GPU by our lines: finished, or still waiting for a node.",
    ),
    Cause.NOT_COUNTED: CauseText(
        "",
        "units not billed",
        "OpenCost bills nothing for MIG slices by profile, for .shared units and for other vendors' GPUs.",
    ),
    Cause.UNITS: CauseText(
        "D3",
        "units as boards",
        "OpenCost bills every slice or time-slice like a whole GPU; we bill its part of the board.",
    ),
    Cause.OVERCOMMITTED: CauseText(
        "D8",
        "more than there is",
        "What pods hold beyond the capacity of a node is billed by OpenCost, which makes idle negative; "
        "capacity is paid for once.",
    ),
    Cause.DEFAULT_PRICE: CauseText(
        "D2",
        "default price",
        "OpenCost has no price series of the node, or knows no node of the pod: it bills the default price "
        "that is configured, and such a node has no idle time there.",
    ),
    Cause.NO_OPENCOST_PRICE: CauseText(
        "D2",
        "no price in OpenCost",
        "OpenCost has no node_gpu_hourly_cost of the node, or 0: what runs there costs nothing.",
    ),
    Cause.NODE_PRICE: CauseText(
        "D1",
        "node price split",
        "OpenCost gives a part of the node's price to CPUs and memory; whoever holds the GPUs blocks all of "
        "the node, so we let the whole price follow them.",
    ),
    Cause.NO_PRICE: CauseText(
        "",
        "no price in ours",
        "Our price book has no price for this time: it is listed without a cost, never guessed.",
    ),
    Cause.PRICE: CauseText(
        "D2",
        "price",
        "OpenCost's price of the node (one default for every GPU, where it knows none), averaged over each "
        "day, against our list price at each instant.",
    ),
    Cause.DISCOUNT: CauseText(
        "D6", "discount", "OpenCost's discounts leave GPU prices alone; ours reduce them."
    ),
}
