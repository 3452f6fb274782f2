"""One pod, and one node, on one day: OpenCost's figure, turned into ours one ingredient at a time.

What each replacement changes is the amount of its cause, so the amounts add up to the difference whatever
the figures are. All of it is in integers: nano-units and milliseconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from gpucost.contract.opencost import RESOLUTION_MS
from gpucost.domain.time import HOUR_MS
from gpucost.reports.opencost.causes import Cause


@dataclass(frozen=True, slots=True)
class NodePrice:
    """Nano-units per hour; None where there is none. ``gpu`` is OpenCost's for one GPU, ``whole`` the node's
    price divided by its boards."""

    gpu: int | None
    whole: int | None

    @property
    def split(self) -> int:
        """What OpenCost bills a unit by."""
        return self.gpu or 0

    @property
    def known(self) -> int:
        """As ``split``; where OpenCost has no price of a GPU, the whole one."""
        return self.gpu or self.whole or 0

    @property
    def followed(self) -> int:
        """The whole price, where it is known."""
        return self.known if self.whole is None else self.whole


@dataclass(frozen=True, slots=True)
class PodDay:
    """A pod on one node and day. ``billed_ms`` are OpenCost's unit-milliseconds, ``billed_run_ms`` the time
    it saw the pod run. Ours: units of resources that OpenCost knows (``unit_ms``), their boards
    (``board_ms``), the boards of all others (``other_board_ms``), of both what is over-committed
    (``over_ms``) and what has no price (``unpriced_ms``); ``wall_ms`` is from first to last."""

    billed_ms: int = 0
    billed_run_ms: int = 0
    unit_ms: int = 0
    board_ms: int = 0
    other_board_ms: int = 0
    over_ms: int = 0
    unpriced_ms: int = 0
    wall_ms: int = 0
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


def pod_figures(pod: PodDay, price: NodePrice) -> Figures:
    unit_ms, board_ms, other_ms = pod.unit_ms, pod.board_ms, pod.other_board_ms
    if pod.billed_ms and not unit_ms and other_ms:
        # Held by two names, of which OpenCost bills one: HAMi's cores are held as nvidia.com/gpu too.
        unit_ms, board_ms, other_ms = pod.billed_ms, other_ms, 0
    sampled, more = _rounding(pod, unit_ms)
    after = {Cause.COUNT_MISSING: pod.billed_ms, Cause.SAMPLING: pod.billed_ms + sampled}
    after |= {Cause.NOT_SEEN: after[Cause.SAMPLING] + max(0, more)}
    gone = min(0, more) if not unit_ms else 0
    after |= {Cause.HELD_NOTHING: after[Cause.NOT_SEEN] + gone, Cause.NOT_EXPLAINED: unit_ms}
    after |= {Cause.NOT_COUNTED: unit_ms + other_ms, Cause.UNITS: board_ms + other_ms}
    after |= {Cause.OVERCOMMITTED: pod.held_ms}
    figures = [cost(price.split, pod.billed_ms)]
    figures += [cost(price.split, after[cause]) for cause in after]
    return figures + _priced(price, pod.held_ms, pod.unpriced_ms, pod.list_nano, pod.nano)


def capacity_figures(node: NodeDay, price: NodePrice) -> Figures:
    """What the node's GPUs cost, held or not; less what pods have of it, it is the node's idle time."""
    all_ms = node.board_ms + node.other_board_ms
    counted = 0 if node.count_milli is None else node.count_milli
    known = (node.boards or 0) * 1000 if node.count_milli is None else node.count_milli
    seen = known * node.billed_node_ms // 1000
    more = known * node.node_ms // 1000 - seen
    limit = known * RESOLUTION_MS // 1000
    sampled = max(-limit, min(limit, more))
    rest = more - sampled
    after = [counted * node.billed_node_ms // 1000, seen, seen + sampled, seen + sampled + max(0, rest)]
    # Where nobody counts the boards, ours is what was held: no difference in units is known.
    ours = seen + more if node.boards is not None else all_ms - node.other_board_ms
    after += [after[-1], ours, ours + node.other_board_ms, all_ms, all_ms]
    figures = [cost(price.split, amount) for amount in after]
    return figures + _priced(price, all_ms, node.unpriced_ms, node.list_nano, node.nano)


def _priced(price: NodePrice, board_ms: int, unpriced_ms: int, list_nano: int, nano: int) -> Figures:
    """From the same time on, only prices change: the last five."""
    return [
        cost(price.known, board_ms),
        cost(price.followed, board_ms),
        cost(price.followed, board_ms - unpriced_ms),
        list_nano,
        nano,
    ]


def _rounding(pod: PodDay, unit_ms: int) -> tuple[int, int]:
    """What of the difference in time a resolution of five minutes can make, and the rest."""
    more = unit_ms - pod.billed_ms
    wall_ms, of = (pod.wall_ms, unit_ms) if pod.wall_ms else (pod.billed_run_ms, pod.billed_ms)
    limit = of * RESOLUTION_MS // wall_ms if wall_ms else 0
    if (not pod.billed_ms and more > limit) or not unit_ms:
        return 0, more  # nothing of it was sampled, or all of it was nothing
    sampled = max(-limit, min(limit, more))
    return sampled, more - sampled


def amounts(figures: Sequence[int]) -> dict[Cause, int]:
    """What each cause makes of the difference; together they are all of it."""
    pairs = pairwise(figures)
    return {cause: after - before for cause, (before, after) in zip(Cause, pairs, strict=True)}


def cost(nano_per_hour: int, length_ms: int) -> int:
    """Nano-units, rounded half up."""
    return (2 * nano_per_hour * length_ms + HOUR_MS) // (2 * HOUR_MS)
