"""One pod, and one node, on one day: OpenCost's figure, turned into ours one ingredient at a time.

What each replacement changes is the amount of its cause, so the amounts add up to the difference whatever
the figures are. All of it is in integers: nano-units and milliseconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from gpucost.domain.time import HOUR_MS
from gpucost.reports.opencost.causes import Cause
from gpucost.reports.opencost.lives import HeldTime


@dataclass(frozen=True, slots=True)
class NodePrice:
    """Nano-units per hour; None where there is none. ``gpu`` is OpenCost's for one GPU, ``whole`` the node's
    price divided by its boards, ``default`` what OpenCost bills where it has no series of the node: then the
    other two are None, and ``is_default`` says so."""

    gpu: int | None
    whole: int | None
    default: int = 0
    is_default: bool = False

    @property
    def split(self) -> int:
        """What OpenCost bills a unit by."""
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
    time becomes ours. Ours: units of resources that OpenCost knows (``unit_ms``), their boards
    (``board_ms``), the boards of all others (``other_board_ms``), of both what is over-committed
    (``over_ms``) and what has no price (``unpriced_ms``)."""

    time: HeldTime
    unit_ms: int = 0
    board_ms: int = 0
    other_board_ms: int = 0
    over_ms: int = 0
    unpriced_ms: int = 0
    list_nano: int = 0
    nano: int = 0

    @property
    def held_ms(self) -> int:
        """Board-milliseconds that capacity was there for."""
        return self.board_ms + self.other_board_ms - self.over_ms


@dataclass(frozen=True, slots=True)
class NodeDay:
    """A node on one day. OpenCost's: GPU count (None: no series) in thousandths, and how long it saw the
    node. Ours: capacity in board-milliseconds, of resources that OpenCost knows and of others, the same in
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


Figures = list[int]
"""OpenCost's figure, then the figure after each of Cause, in its order; the last is ours."""

_UNTIL_DEFAULT = 1 + [*Cause].index(Cause.DEFAULT_PRICE)


def pod_figures(pod: PodDay, price: NodePrice) -> Figures:
    time, unit_ms, board_ms, other_ms = pod.time, pod.unit_ms, pod.board_ms, pod.other_board_ms
    if time.is_doubled:
        unit_ms, board_ms, other_ms = time.ours, other_ms, 0
    after = {Cause.COUNT_MISSING: time.billed, Cause.ALLOCATION: time.with_our_units}
    after |= {Cause.RECREATED: time.of_these_pods, Cause.SAMPLING: time.unrounded}
    after |= {Cause.NOT_SEEN: time.with_waits, Cause.LINGERED: time.ours, Cause.HELD_NOTHING: unit_ms}
    after |= {Cause.NOT_COUNTED: unit_ms + other_ms, Cause.UNITS: board_ms + other_ms}
    after |= {Cause.OVERCOMMITTED: pod.held_ms}
    figures = [cost(price.split, time.billed)]
    figures += [cost(price.split, after[cause]) for cause in after]
    return figures + _priced(price, pod.held_ms, pod.unpriced_ms, pod.list_nano, pod.nano)


def taken_from_idle(figures: Figures, price: NodePrice) -> Figures:
    """What of a pod's figures a node's idle time is less. OpenCost takes nothing off the idle time of a node
    that it does not know, or does not know the pod to be on."""
    return [0] * _UNTIL_DEFAULT + figures[_UNTIL_DEFAULT:] if price.is_default else figures


def capacity_figures(node: NodeDay, price: NodePrice, resolution_ms: int) -> Figures:
    """What the node's GPUs cost, held or not; less what pods have of it, it is the node's idle time."""
    all_ms = node.board_ms + node.other_board_ms
    priced = _priced(price, all_ms, node.unpriced_ms, node.list_nano, node.nano)
    if price.is_default:
        return [0] * _UNTIL_DEFAULT + priced
    counted = 0 if node.count_milli is None else node.count_milli
    if node.boards is None:
        # Where nobody counts the boards, ours is what was held: no difference in units is known.
        after = [counted * node.billed_node_ms // 1000, *[all_ms] * 10]
    else:
        known = node.boards * 1000 if node.count_milli is None else node.count_milli
        seen, there = (known * length // 1000 for length in (node.billed_node_ms, node.node_ms))
        # Up to a look at either end.
        limit = 2 * known * resolution_ms // 1000
        sampled = seen + max(-limit, min(limit, there - seen))
        after = [counted * node.billed_node_ms // 1000, seen, seen, seen, sampled, max(sampled, there)]
        after += [there, there, there + node.other_board_ms, all_ms, all_ms]
    return [cost(price.split, amount) for amount in after] + priced


def _priced(price: NodePrice, board_ms: int, unpriced_ms: int, list_nano: int, nano: int) -> Figures:
    """From the same time on, only prices change: the last six."""
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


def amounts(figures: Sequence[int]) -> dict[Cause, int]:
    """What each cause makes of the difference; together they are all of it."""
    pairs = pairwise(figures)
    return {cause: after - before for cause, (before, after) in zip(Cause, pairs, strict=True)}


def cost(nano_per_hour: int, length_ms: int) -> int:
    """Nano-units, rounded half up."""
    return (2 * nano_per_hour * length_ms + HOUR_MS) // (2 * HOUR_MS)
