"""How long jobs run, learnt from those that ended.

Like jobs are pooled from the narrowest group to the widest: team, name pattern and size class; team and
name pattern; team and size class; team; size class; all. A group counts from three runs on. What it says of
runs longer than what has passed is mixed with what the next wider one says, which counts as two runs of the
group: many runs of its own drown it, and where it knows few runs that long, the wider one speaks.

Later runs count more: a run weighs half of one that is 40 runs newer in its group (160 in a team, 640 in a
size class, 2,560 overall), and after four half-lives it is forgotten, so that memory is bounded.

The cold start is free of scale: where nobody knows a run that long, what has passed is the median of what
is left, P(left > r | e) = e / (e + r), with e at least ten minutes.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from gpucost.advisor.wait.names import name_pattern
from gpucost.advisor.wait.pools import Pool, Table
from gpucost.domain.errors import InputError
from gpucost.domain.time import MINUTE_MS

LEAST_RUNS = 3
WIDER_COUNTS_AS = 2.0
FLOOR_MS = 10 * MINUTE_MS
"""What a job without history is taken to have run already: half of such end within ten minutes more."""

MOST_GROUPS = 20_000
"""Beyond it, the group that learnt nothing for the longest is forgotten; wider ones still know its runs."""

_HALF_LIFE = 40
_HALF_LIVES = {"team": 160, "size": 640, "all": 2_560}
_GRID = 400
_LONGEST_TAIL = 1e-4
"""The Pareto tail is cut where it leaves one in ten thousand."""

_OF_ALL = ("size", "all")
_Key = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PastRun:
    """One job that ended, or was observed until ``run_ms`` of run time and still ran (``is_censored``).

    ``team`` is what its labels said, which anybody may write; ``owner`` whose it is by the team rules, empty:
    ``team``. Raises InputError for a negative run time or number of GPUs.
    """

    team: str
    name: str
    gpus: int
    run_ms: int
    is_censored: bool = False
    owner: str = ""

    def __post_init__(self) -> None:
        if self.run_ms < 0:
            raise InputError("run_ms", self.run_ms, "milliseconds, 0 or more")
        if self.gpus < 0:
            raise InputError("gpus", self.gpus, "a number of GPUs, 0 or more")


def size_class(gpus: int) -> str:
    """``0``, ``1``, ``2``, ``3-4``, ``5-8``, ``9-16`` GPUs and so on: powers of two."""
    if gpus <= 2:
        return str(gpus)
    top = 1 << (gpus - 1).bit_length()
    return f"{top // 2 + 1}-{top}"


@dataclass(frozen=True, slots=True)
class LikeJobs:
    """What is known of jobs like one. ``basis`` says of whom; ``runs`` is how many ended runs of the
    narrowest group were learnt, 0 without any history."""

    basis: str
    runs: int
    tables: tuple[Table, ...]

    def remaining_ms(self, elapsed_ms: int, uniform: float, at_most_ms: int | None = None) -> int:
        """How much longer one runs that has run for ``elapsed_ms``: the draw that ``uniform`` in [0, 1)
        points to, at least 1 and at most ``at_most_ms`` (what its deadline leaves)."""
        left = self._run_ms(elapsed_ms, uniform) - elapsed_ms
        if at_most_ms is not None and left > at_most_ms:
            left = at_most_ms
        return left if left > 1 else 1

    def quantile_ms(self, q: float, elapsed_ms: int = 0, at_most_ms: int | None = None) -> int:
        """The ``q``-quantile of what is left, from 400 evenly spread draws.

        Raises InputError for a ``q`` that is not between 0 and 1.
        """
        if not 0.0 < q < 1.0:
            raise InputError("q", q, "a number between 0 and 1")
        draws = sorted(self.remaining_ms(elapsed_ms, (at + 0.5) / _GRID, at_most_ms) for at in range(_GRID))
        return draws[min(math.ceil(q * _GRID), _GRID) - 1]

    def median_ms(self) -> int | None:
        """Of the whole run of a new job; None without any history."""
        return self.quantile_ms(0.5) if self.runs else None

    def _run_ms(self, elapsed_ms: int, uniform: float) -> int:
        for table in self.tables:
            run_ms, uniform = table.draw_beyond(elapsed_ms, uniform, WIDER_COUNTS_AS)
            while run_ms is not None:
                if uniform < 0.0:
                    return run_ms
                elapsed_ms = run_ms
                run_ms, uniform = table.draw_beyond(elapsed_ms, uniform, WIDER_COUNTS_AS)
        passed = max(elapsed_ms, FLOOR_MS)
        beyond = passed / max(1.0 - uniform, _LONGEST_TAIL) - passed
        return elapsed_ms + int(beyond)


class RunTimes:
    """Run times of like jobs. ``runs`` are in the order they ended, oldest first.

    Runs that have not ended (``is_censored``) count as Kaplan and Meier have it. Give them only together with
    all runs that started when they did, in the order of their start: the last that ended and all that still
    run, taken together, would hold too many long ones.
    """

    def __init__(self, runs: Iterable[PastRun] = ()) -> None:
        self._pools: dict[_Key, Pool] = {}
        self._owners: dict[_Key, set[str]] = {}
        self._readers: frozenset[str] | None = None
        for run in runs:
            self._learn(run)

    def seen_by(self, teams: Collection[str]) -> RunTimes:
        """The same for readers of ``teams``: of groups of a team only those in which every run was theirs,
        and those over all teams. What is learnt later is known to both."""
        found = RunTimes()
        found._pools, found._owners = self._pools, self._owners
        found._readers = frozenset(teams)
        return found

    def like(self, team: str, name: str, gpus: int) -> LikeJobs:
        """What is known of jobs of this team, name and size."""
        tables: list[Table] = []
        basis, ended = "", 0
        for key in _groups(team, name_pattern(name), size_class(gpus)):
            pool = self._pools.get(key)
            if pool is None or len(pool) < LEAST_RUNS or not self._is_shown(key):
                continue
            tables.append(pool.table())
            if not basis and pool.learnt:
                ended = pool.learnt
                basis = f"{ended:,} ended runs {_says(key)}"
        return LikeJobs(
            basis or "no ended runs: what has passed is taken for what is left", ended, tuple(tables)
        )

    def _is_shown(self, key: _Key) -> bool:
        return self._readers is None or key not in self._owners or self._owners[key] <= self._readers

    def _learn(self, run: PastRun) -> None:
        for key in _groups(run.team, name_pattern(run.name), size_class(run.gpus)):
            pool = self._pools.pop(key, None) or Pool(_HALF_LIVES.get(key[0], _HALF_LIFE))
            pool.learn(run.run_ms, run.is_censored)
            self._pools[key] = pool
            if key[0] not in _OF_ALL:
                self._owners.setdefault(key, set()).add(run.owner or run.team)
        while len(self._pools) > MOST_GROUPS:
            oldest = next(iter(self._pools))
            del self._pools[oldest]
            self._owners.pop(oldest, None)


class LearningRunTimes(RunTimes):
    """Run times that go on learning; not to be shared between threads."""

    def learn(self, run: PastRun) -> None:
        """The run that ended last."""
        self._learn(run)


def _groups(team: str, pattern: str, size: str) -> list[_Key]:
    """From the narrowest to the widest."""
    wider: list[_Key] = [("team-size", team, size), ("team", team), ("size", size), ("all",)]
    if not pattern:
        return wider
    return [("team-name-size", team, pattern, size), ("team-name", team, pattern), *wider]


def _says(key: _Key) -> str:
    """How a group is named: ``of team vision named train-llm-* on 1 GPU``."""
    match key:
        case ("all",):
            return "of all teams"
        case ("size", size):
            return f"on {size} GPU{'' if size == '1' else 's'}"
        case ("team", team):
            return f"of team {team}"
        case ("team-name", team, pattern):
            return f"of team {team} named {pattern}"
        case _:
            return f"{_says((key[0].removesuffix('-size'), *key[1:-1]))} {_says(('size', key[-1]))}"


NO_HISTORY = RunTimes()
