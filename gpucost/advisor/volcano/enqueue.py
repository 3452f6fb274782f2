"""Who is let in: the action enqueue, and the votes of overcommit and of the quota plugin.

Sources: volcano, pkg/scheduler/actions/enqueue/enqueue.go, plugins/overcommit/overcommit.go,
framework/session_plugins.go (JobEnqueueable), v1.15.1.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from functools import cached_property

from gpucost.advisor.volcano.amounts import add_to, minus, plus, too_much
from gpucost.advisor.volcano.gang import Gang
from gpucost.advisor.volcano.order import Key, Turn, job_key, queue_key
from gpucost.advisor.volcano.queues import Queues, Refusal, reserved
from gpucost.advisor.volcano.session import World
from gpucost.cluster.scheduling import VolcanoConfig

FACTOR = "overcommit-factor"
DEFAULT_FACTOR = 1.2
NO_QUEUE = ""


class Enqueue:
    """One run of the action for jobs that are ``pending``. ``refused`` is why they stay out, by their place
    among these. ``without`` is the uid of a job that counts for nothing else."""

    def __init__(self, world: World, queues: Queues, pending: Sequence[Gang], without: str = "") -> None:
        self._world, self._queues = world, queues
        self._factors = factors(world.config)
        own = world.gangs.get(without)
        self._promised = minus(world.reserved, {} if own is None else reserved(own))
        self.pending = pending
        self.refused: dict[int, Refusal | None] = {}

    def run(self, until: Gang) -> Refusal | None:
        """Why ``until`` is not let in, None where it is. All that wait are asked, those before it first, and
        take their place; a job that is refused keeps nobody back."""
        if "enqueue" not in self._world.config.actions:
            return None
        by_queue = self._by_queue()
        heads = [(queue_key(name, self._queues), name) for name in by_queue]
        heapq.heapify(heads)
        while heads:
            _, name = heapq.heappop(heads)
            _, at = heapq.heappop(by_queue[name])
            gang = self.pending[at]
            refused = self.refused[at] = self.ask(gang)
            if gang is until and refused is not None:
                return refused
            if refused is None:
                self._let_in(gang)
            if by_queue[name]:
                heapq.heappush(heads, (queue_key(name, self._queues), name))
        return None

    def ask(self, gang: Gang) -> Refusal | None:
        """The plugins vote tier by tier: one that rejects decides; a tier that permits asks no further."""
        if gang.min_resources is None:
            # Not even a closed queue is asked (enqueue.go).
            return None
        for tier in self._world.config.tiers:
            permits = False
            for plugin in tier:
                if plugin == "overcommit":
                    refused = self._overcommit(gang)
                elif plugin in ("proportion", "capacity"):
                    refused = self._queues.enqueueable(gang)
                else:
                    continue
                if refused is not None:
                    return refused
                permits = True
            if permits:
                return None
        return None

    @cached_property
    def idle(self) -> dict[str, float]:
        """What overcommit has to give: the cluster times its factor, less what is used."""
        factor, total = self._factors, self._world.total
        most = {key: amount * factor.get(key, factor[FACTOR]) for key, amount in total.items()}
        return minus(most, self._world.used)

    def _overcommit(self, gang: Gang) -> Refusal | None:
        minimum = gang.minimum
        wanted, idle = plus(self._promised, minimum), self.idle
        short = too_much(wanted, idle, minimum)
        return Refusal("Overcommit", NO_QUEUE, FACTOR, short, wanted, idle) if short else None

    def _let_in(self, gang: Gang) -> None:
        add_to(self._promised, gang.minimum)
        self._queues.enqueued(gang)

    def _by_queue(self) -> dict[str, list[tuple[Key, int]]]:
        has_gangs = "gang" in self._world.config.plugins
        found: dict[str, list[tuple[Key, int]]] = {}
        for at, gang in enumerate(self.pending):
            if gang.queue in self._queues.attrs:
                key = job_key(Turn.of(gang, has_gangs), self._world.config, self._world.total)
                found.setdefault(gang.queue, []).append((key, at))
        for each in found.values():
            heapq.heapify(each)
        return found


def factors(config: VolcanoConfig) -> Mapping[str, float]:
    """By resource, and under ``overcommit-factor`` for all others; what is below 1 or no number is 1.2."""
    found = {FACTOR: DEFAULT_FACTOR}
    for key, text in config.arguments.get("overcommit", {}).items():
        name = key.removeprefix(f"{FACTOR}.")
        if key == FACTOR or name != key:
            found[name if name != key else FACTOR] = _factor(text)
    return found


def _factor(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        return DEFAULT_FACTOR
    return number if 1.0 <= number < 1e9 else DEFAULT_FACTOR
