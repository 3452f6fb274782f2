"""Which concrete GPUs a pod holds: the first that are free, as a device plugin would give them."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Mapping, Sequence

from gpucost.simulator.inventory import Node, Offer
from gpucost.simulator.scheduler import Placement
from gpucost.simulator.workloads import stable_uid

# MIG ids count from the largest profile on, as drivers do.
_FIRST_INSTANCE = {"nvidia.com/mig-3g.40gb": 1, "nvidia.com/mig-2g.20gb": 3, "nvidia.com/mig-1g.10gb": 9}
_Key = tuple[str, str]


def gpu_id(seed: int, node: Node, offer: Offer, slot: int) -> str:
    """The GPU behind a unit: the board's uuid, with its instance where the unit is a slice.

    ``slot`` counts units; shared boards take them in turn, and so do slices of mixed boards.
    """
    if offer.share == 1 or offer.replicas > 1:
        return board_uuid(seed, node.name, slot % node.boards)
    if "mig-" in offer.resource:
        return f"{board_uuid(seed, node.name, slot % node.boards)}/{_FIRST_INSTANCE[offer.resource]}"
    per_board = offer.units // node.boards
    return f"{board_uuid(seed, node.name, slot // per_board)}/{7 + slot % per_board}"


def board_uuid(seed: int, node: str, board: int) -> str:
    return f"GPU-{stable_uid(seed, f'{node}/board/{board}')}"


class Boards:
    """Slots of all pods and of lost boards, in order of time."""

    def __init__(self, nodes: Sequence[Node], placements: Sequence[Placement], extra: Placement) -> None:
        self.slots: list[tuple[int, ...]] = [()] * len(placements)
        """Per placement, in the order given: the slots of its units."""
        self.lost: dict[str, int] = {}
        """By node: the board that was lost for a while."""
        self._free: Mapping[_Key, list[int]] = {
            (node.name, offer.resource): list(range(offer.units)) for node in nodes for offer in node.offers
        }
        # What ends gives back before anything that begins at the same instant takes.
        events: list[tuple[int, int, int, Node | None]] = []
        for at, pod in enumerate(placements):
            if pod is extra:
                self.slots[at] = (0,)
                continue
            events += [(pod.start_ms, 2, at, None), (pod.end_ms, 0, at, None)]
        for node in nodes:
            events += [(spell.start_ms, 1, 0, node) for spell in node.spells if spell.lost]
            events += [(spell.end_ms, 0, 0, node) for spell in node.spells if spell.lost]
        for _, phase, at, node_lost in sorted(events, key=lambda event: event[:3]):
            if node_lost is not None:
                self._board(node_lost, is_lost=phase == 1)
            else:
                self._pod(placements[at], at, begins=phase == 2)

    def _pod(self, pod: Placement, at: int, *, begins: bool) -> None:
        free = self._free[pod.node, pod.submission.resource]
        if begins:
            self.slots[at] = tuple(heapq.heappop(free) for _ in range(pod.submission.units))
            return
        for slot in self.slots[at]:
            heapq.heappush(free, slot)

    def _board(self, node: Node, *, is_lost: bool) -> None:
        free = self._free[node.name, node.offers[0].resource]
        if is_lost:
            self.lost[node.name] = max(free)
            free.remove(self.lost[node.name])
            heapq.heapify(free)
        else:
            heapq.heappush(free, self.lost[node.name])


def of_pods(
    seed: int, nodes: Sequence[Node], placements: Sequence[Placement], boards: Boards
) -> list[tuple[str, ...]]:
    """GPU ids of the units of every placement."""
    offers = {(node.name, offer.resource): (node, offer) for node in nodes for offer in node.offers}
    known: dict[_Key, dict[int, str]] = defaultdict(dict)
    found = []
    for pod, slots in zip(placements, boards.slots, strict=True):
        key = (pod.node, pod.submission.resource)
        for slot in slots:
            if slot not in known[key]:
                known[key][slot] = gpu_id(seed, *offers[key], slot)
        found.append(tuple(known[key][slot] for slot in slots))
    return found
