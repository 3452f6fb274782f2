"""What jobs that run, or wait with a foretold start, will cost on the days that are left of a month.

How much longer a job runs is learnt from similar jobs (``gpucost.advisor.wait.run_times``): a fixed number of
equally likely times, so that the same history gives the same cost. A job that waits begins when the queue's
simulation says, which knows quotas and borrowing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction

from gpucost.advisor.wait.run_times import LikeJobs
from gpucost.domain.time import DAY_MS

DRAWS = 20
"""Equally likely times that a job goes on: the middles of as many equal parts of what is possible."""


@dataclass(frozen=True, slots=True)
class AheadJob:
    """A job that goes on from ``from_ms`` for one of ``left_ms`` milliseconds, at ``nano_per_ms``. The names
    are those by which it is counted; ``waits`` where it has not begun."""

    team: str
    project: str
    cluster_queue: str
    cluster: str
    from_ms: int
    left_ms: tuple[int, ...]
    nano_per_ms: Fraction
    waits: bool = False


def times_left(like: LikeJobs, elapsed_ms: int) -> tuple[int, ...]:
    """How much longer a job like these runs that has run for ``elapsed_ms``, in ``DRAWS`` likely times."""
    return tuple(like.remaining_ms(elapsed_ms, (at + 0.5) / DRAWS) for at in range(DRAWS))


def daily_cost(jobs: Iterable[AheadJob], first_ms: int, days: int) -> list[int]:
    """Nano-units that ``jobs`` are expected to cost on each of ``days`` from ``first_ms`` on."""
    found = [Fraction(0)] * days
    end_ms = first_ms + days * DAY_MS
    for job in jobs:
        for left_ms in job.left_ms:
            start_ms, stop_ms = max(job.from_ms, first_ms), min(job.from_ms + left_ms, end_ms)
            while start_ms < stop_ms:
                at = (start_ms - first_ms) // DAY_MS
                until_ms = min(stop_ms, first_ms + (at + 1) * DAY_MS)
                found[at] += job.nano_per_ms * Fraction(until_ms - start_ms, len(job.left_ms))
                start_ms = until_ms
    return [round(each) for each in found]


def cost_by_team(jobs: Iterable[AheadJob], first_ms: int, days: int) -> dict[str, Sequence[int]]:
    """``daily_cost`` of each team, by name."""
    own: dict[str, list[AheadJob]] = defaultdict(list)
    for job in jobs:
        own[job.team].append(job)
    return {team: daily_cost(each, first_ms, days) for team, each in sorted(own.items())}
