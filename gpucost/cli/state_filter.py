"""The part of ``gpucost state show`` that somebody asks for: a namespace, a team, a queue, a job."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from gpucost.cli.state_facts import Facts, GangRow
from gpucost.cli.state_queues import QueueRow
from gpucost.cli.state_waiting import WaitingRow


@dataclass(frozen=True, slots=True)
class Filter:
    """Exact names; an empty one is not asked for. ``job`` may be the name of a workload."""

    namespace: str = ""
    team: str = ""
    queue: str = ""
    job: str = ""

    def __bool__(self) -> bool:
        return bool(self.words)

    @property
    def words(self) -> str:
        """As the options were written: ``--namespace a, --job b``."""
        given = (("namespace", self.namespace), ("team", self.team), ("queue", self.queue), ("job", self.job))
        return ", ".join(f"--{name} {value}" for name, value in given if value)

    def has_waiter(self, row: WaitingRow) -> bool:
        """Whether a row of those that wait is asked for."""
        return (
            self.namespace in ("", row.namespace)
            and self.team in ("", row.team)
            and self.queue in ("", row.queue)
            and self.job in ("", row.job, row.workload)
        )

    def has_gang(self, row: GangRow) -> bool:
        """Whether a partial gang is asked for, whatever its team."""
        return (
            self.namespace in ("", row.namespace)
            and self.queue in ("", row.queue)
            and self.job in ("", row.job, row.name)
        )


def narrowed(facts: Facts, wanted: Filter) -> Facts:
    """Who waits and which gangs are partial among those asked for, and the queues they are in. Totals stay
    those of the cluster; nodes and problems are left out."""
    waiting = [row for row in facts.waiting if wanted.has_waiter(row)]
    own = {(row.namespace, row.job) for row in waiting}
    gangs = [
        row
        for row in facts.partial_gangs
        if wanted.has_gang(row) and (not wanted.team or (row.namespace, row.job) in own)
    ]
    queues = {row.queue for row in waiting} | {row.queue for row in gangs} | {wanted.queue}
    return replace(
        facts,
        waiting=waiting,
        partial_gangs=gangs,
        queues=with_parents(facts.queues, lambda row: row.is_queue and row.name in queues),
        loans=[loan for loan in facts.loans if loan.borrower in queues],
        volcano_queues=[row for row in facts.volcano_queues if row.name in queues],
        short_nodes=[],
        problem_counts=[],
        problems=[],
    )


def with_parents(rows: Sequence[QueueRow], is_wanted: Callable[[QueueRow], bool]) -> list[QueueRow]:
    """Those that are wanted, and the cohorts above them."""
    kept: list[QueueRow] = []
    lowest = 0
    for row in reversed(rows):  # whatever is below a cohort comes before it
        if is_wanted(row) or (not row.is_queue and row.depth < lowest):
            kept.append(row)
            lowest = row.depth
    return kept[::-1]


def most_urgent(rows: Sequence[QueueRow], most: int) -> list[QueueRow]:
    """As many as fit into ``most`` lines with the cohorts above them, in the order of the tree: first those
    in which somebody waits, the longest first, then those that borrow, then the rest."""
    parents = _parents(rows)
    kept: set[int] = set()
    lines = 0
    for index in sorted(range(len(rows)), key=lambda index: _urgency(rows[index])):
        needed = {index, *parents[index]} - kept
        cost = sum(max(1, len(rows[each].quotas)) for each in needed)
        if lines + cost > most and kept:
            continue
        kept |= needed
        lines += cost
    return [row for index, row in enumerate(rows) if index in kept]


def _urgency(row: QueueRow) -> tuple[int, int]:
    """The lower, the more urgent; cohorts come with what is below them."""
    if not row.is_queue:
        return 4, 0
    if row.pending_units:
        return 0, row.oldest_ms or 0
    if any(quota.borrowed for quota in row.quotas):
        return 1, 0
    return (2 if row.trouble else 3), 0


def _parents(rows: Sequence[QueueRow]) -> list[tuple[int, ...]]:
    """Of each row the places of the cohorts above it."""
    found: list[tuple[int, ...]] = []
    above: list[int] = []
    for index, row in enumerate(rows):
        del above[row.depth :]
        found.append(tuple(above))
        above.append(index)
    return found
