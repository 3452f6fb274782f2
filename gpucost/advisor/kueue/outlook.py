"""What becomes of one workload if it asks now and nobody ends: admitted, by whose leaving, or waiting."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from gpucost.advisor.kueue.asks import Ask, in_order
from gpucost.advisor.kueue.cycle import STRICT, Processed
from gpucost.advisor.kueue.glance import Glance
from gpucost.advisor.kueue.modes import Mode
from gpucost.advisor.kueue.nominate import Nominee, nominate
from gpucost.advisor.kueue.results import Outcome
from gpucost.advisor.kueue.sandbox import MOST_CYCLES, Line, sandbox
from gpucost.advisor.kueue.snapshot import Snapshot
from gpucost.advisor.kueue.targets import Target
from gpucost.advisor.kueue.waiting import Lines, lines
from gpucost.cluster.cohorts import QuotaNode
from gpucost.cluster.kueue import FlavorResource
from gpucost.cluster.order import in_heap
from gpucost.cluster.scheduling import KueueConfig
from gpucost.cluster.state import ClusterState


@dataclass(frozen=True, slots=True)
class Outlook:
    """``admitted`` says whether quota is found, once ``victims`` have left; ``nominee`` is what was chosen
    in the end, None where its turn never came. ``fits_empty`` is whether quota would do if nobody else had
    any; ``blocker`` is the head that nobody passes in a StrictFIFO queue, by uid. ``is_settled`` is False
    where there were too many cycles to tell. ``ahead`` counts those before it in its line.
    """

    admitted: bool
    nominee: Nominee | None
    victims: tuple[Target, ...]
    fits_empty: bool
    ahead: int
    borrowed: Mapping[FlavorResource, int]
    message: str = ""
    reason: str = ""
    blocker: str = ""
    is_settled: bool = True
    cycles: int = 0


class KueueView:
    """A snapshot and its lines, made once for many questions. Not for two threads at once."""

    def __init__(self, state: ClusterState, config: KueueConfig) -> None:
        self.snapshot = Snapshot(state, config)
        self.glance = Glance(self.snapshot)
        self._lines: Lines = lines(self.snapshot)
        self._trees: dict[str, frozenset[str]] = {}

    def lines_of(self, queue: str) -> dict[str, Line]:
        """Fresh lines of all active queues in a queue's tree."""
        found = {}
        for name in self.tree(queue):
            if not self.snapshot.queues[name].is_active:
                continue
            line = found[name] = Line()
            is_strict = self.snapshot.queues[name].spec.strategy == STRICT
            for ask in self._lines.by_queue.get(name, ()):
                if ask.uid in self._lines.refused:
                    continue
                is_tried = not is_strict and not in_heap(self.snapshot.state.workloads[ask.uid])
                (line.parked if is_tried else line.heap).append(ask)
        return found

    def tree(self, queue: str) -> frozenset[str]:
        """Names of the queues that share quota with one, itself included."""
        found = self._trees.get(queue)
        if found is None:
            root = self.snapshot.queues[queue].node
            while root.parent is not None:
                root = root.parent
            found = frozenset(_queues_below(root))
            self._trees.update(dict.fromkeys(found, found))
        return found

    def outlook(self, ask: Ask, beside: Sequence[Ask] = ()) -> Outlook:
        """Of one that asks now, and ``beside`` it others of the same job. It may be in line already."""
        with self.guarded(ask.queue):
            return self._outlook(ask, beside)

    @contextmanager
    def guarded(self, queue: str) -> Iterator[None]:
        """Whatever goes wrong within, the usage of the queue's tree is as before: the next question must not
        pay for it."""
        nodes: list[QuotaNode] = [self.snapshot.queues[queue].node.path[-1]]
        for node in nodes:  # grows meanwhile
            nodes.extend(node.children)
        before = [dict(node.usage) for node in nodes]
        try:
            yield
        except BaseException:
            for node, usage in zip(nodes, before, strict=True):
                node.restore(usage)
            raise

    def _outlook(self, ask: Ask, beside: Sequence[Ask]) -> Outlook:
        lines_ = self.lines_of(ask.queue)
        line = lines_[ask.queue]
        own = {each.uid for each in (ask, *beside)}
        line.heap = [each for each in line.heap if each.uid not in own]
        line.parked = [each for each in line.parked if each.uid not in own]
        ahead = sum(in_order(each) < in_order(ask) for each in (*line.heap, *line.parked))
        line.heap = sorted([*line.heap, *beside, ask], key=in_order)
        with sandbox(self.snapshot, lines_) as box:
            last: Processed | None = None
            victims: list[Target] = []
            cycles, changed = 0, True
            while changed and cycles < MOST_CYCLES:
                done, changed = box.cycle()
                cycles += 1
                victims += [
                    target
                    for each in done
                    if each.outcome is Outcome.PREEMPTING and each.nominee.ask.uid in own
                    for target in each.nominee.targets
                ]
                mine = next((each for each in done if each.nominee.ask.uid == ask.uid), None)
                last = mine or last
                if mine is None:
                    continue
                if mine.outcome is Outcome.ADMITTED or mine.is_parked:
                    break
            admitted = last is not None and last.outcome is Outcome.ADMITTED
            head = lines_[ask.queue].head
            blocker = head.uid if last is None and head is not None else ""
        nominee = last.nominee if last is not None else None
        return Outlook(
            admitted,
            nominee,
            tuple(victims),
            admitted or self._fits_empty(ask),
            ahead,
            self._borrowed(nominee, victims) if nominee is not None and admitted else {},
            last.message if last is not None else "",
            last.reason if last is not None else "",
            blocker,
            not changed or admitted or (last is not None and last.is_parked),
            cycles,
        )

    def nominated_alone(self, ask: Ask) -> Nominee:
        """What would be chosen for it if nobody else had quota in its tree."""
        members = [
            member for name in self.tree(ask.queue) for member in self.snapshot.queues[name].members.values()
        ]
        with self.guarded(ask.queue), self.snapshot.without(members):
            return nominate(self.snapshot, ask)

    def _fits_empty(self, ask: Ask) -> bool:
        return self.nominated_alone(ask).assignment.mode is Mode.FIT

    def _borrowed(self, nominee: Nominee, victims: Iterable[Target]) -> dict[FlavorResource, int]:
        """What its queue uses beyond its own quota with it, and without its victims, of what it asks."""
        gone = [each.member for each in victims]
        borrowed = {}
        with self.snapshot.without(gone):
            for key, amount in nominee.assignment.usage.items():
                beyond = nominee.queue.node.usage.get(key, 0) + amount - nominee.queue.nominal(key)
                if beyond > 0:
                    borrowed[key] = min(beyond, amount)
        return borrowed


def _queues_below(node: QuotaNode) -> Iterable[str]:
    if node.is_queue:
        yield node.name
    for child in node.children:
        yield from _queues_below(child)
