"""How long jobs run, learnt from those that ended.

Similar jobs are pooled from the narrowest group to the widest: team, name pattern and size class; team and
name pattern; team and size class; team; size class; all. A group counts from three runs on. Its estimate for
runs longer than the elapsed time is mixed with that of the next wider group, which counts as two runs of the
group: many runs of its own outweigh it, and where the group has few runs that long, the wider one prevails.

Later runs count more: a run weighs half of one that is 40 runs newer in its group (160 in a team, 640 in a
size class, 2,560 overall), and after four half-lives it is forgotten, so that memory is bounded.

The cold start is free of scale: where no run that long is known, the elapsed time is the median of what is
left, P(left > r | e) = e / (e + r), with e at least ten minutes.

``RunTimePool`` holds the last runs of a group and draws from those that are longer than the elapsed time.
``name_pattern`` is a job's name without the parts that only distinguish runs of one job. ``PastUse`` is what
similar jobs used of their GPUs: the input of suggestions about size.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_right
from collections import deque
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate

from gpucost.domain.errors import InputError
from gpucost.domain.time import MINUTE_MS

HALF_LIVES = 4
"""A pool keeps this many half-lives of runs: older ones weigh less than a sixteenth of the newest."""

_LATER_IN = 50
"""A table is made anew once a fiftieth of the pool's weight has been added."""

_BELOW_ONE = 1.0 - 1e-9


@dataclass(frozen=True, slots=True)
class RunTimeTable:
    """Run times in rising order. ``cumulative[i]`` is the weight of all before the i-th, so it has one entry
    more; ``censored[i]`` says that the i-th still ran when it was last seen."""

    values: Sequence[int]
    cumulative: Sequence[float]
    censored: Sequence[bool]

    def draw_beyond(self, elapsed_ms: int, uniform: float, wider: float) -> tuple[int | None, float]:
        """The run that ``uniform`` in [0, 1) points to among those longer than ``elapsed_ms`` and something
        else that weighs ``wider``, and a uniform number to draw again with, where that is needed.

        It is for something else (None); or for a run that had not ended, which says only "longer than this":
        then the next draw is to be beyond it. That is the Kaplan-Meier estimate (redistribution to the right:
        Efron 1967). Negative: the run ended, nothing is left to draw.
        """
        cumulative = self.cumulative
        base = cumulative[bisect_right(self.values, elapsed_ms)]
        own = cumulative[-1] - base
        target = uniform * (own + wider)
        if target >= own:
            return None, min((target - own) / wider, _BELOW_ONE)
        target += base
        at = min(bisect_right(cumulative, target) - 1, len(self.values) - 1)
        if not self.censored[at]:
            return self.values[at], -1.0
        again = (target - cumulative[at]) / (cumulative[at + 1] - cumulative[at])
        return self.values[at], min(max(again, 0.0), _BELOW_ONE)


class RunTimePool:
    """Runs in the order they were learnt. The newest weighs 1, one ``half_life`` runs before it a half."""

    __slots__ = ("_half_life", "_new", "_runs", "_table", "learnt")

    def __init__(self, half_life: int) -> None:
        self._half_life = half_life
        self._runs: deque[tuple[int, bool]] = deque(maxlen=half_life * HALF_LIVES)
        self._table: RunTimeTable | None = None
        self._new = 0
        self.learnt = 0

    def __len__(self) -> int:
        return len(self._runs)

    def learn(self, run_ms: int, is_censored: bool) -> None:
        """The newest run."""
        self._runs.append((run_ms, is_censored))
        self._new += 1
        self.learnt += not is_censored

    def table(self) -> RunTimeTable:
        """The table as of the newest run; in large pools it may lag by a fiftieth of their weight."""
        if self._table is None or self._new > min(len(self._runs), self._half_life) // _LATER_IN:
            self._table = self._made()
            self._new = 0
        return self._table

    def _made(self) -> RunTimeTable:
        newest = len(self._runs) - 1
        rows = sorted(
            (run_ms, is_censored, 0.5 ** ((newest - at) / self._half_life))
            for at, (run_ms, is_censored) in enumerate(self._runs)
        )
        return RunTimeTable(
            [row[0] for row in rows],
            [0.0, *accumulate(row[2] for row in rows)],
            [row[1] for row in rows],
        )


LONGEST = 63
"""Characters of a pattern; what comes after them is cut off."""

_SEPARATORS = re.compile(r"([-_.])")
_DIGITS = re.compile(r"\d+")
# The characters of Kubernetes' suffixes: no vowels and no 0, 1, 3, so that no words come out
# (kubernetes/apimachinery: pkg/util/rand/rand.go).
_SUFFIX = re.compile(r"(?=.*[a-z])[bcdfghjklmnpqrstvwxz2456789]{5,10}\Z")
_SHORTEST_HASH = 5


@lru_cache(maxsize=16_384)
def name_pattern(name: str) -> str:
    """``train-llm-20261103-x7k2p`` becomes ``train-llm-*``; empty stays empty.

    Parts (between ``-``, ``_`` and ``.``) that are numbers, hashes (five characters or more with a digit
    among them, after the first part) or Kubernetes' suffixes become ``*``, several in a row one. Digits in
    the other parts become ``*`` too (``v3`` is ``v*``). At most 63 characters.
    """
    parts = _SEPARATORS.split(name[: 4 * LONGEST].lower())
    made = [_part(part, is_first=at == 0) for at, part in enumerate(parts[::2])]
    text = made[0]
    for separator, part, before in zip(parts[1::2], made[1:], made, strict=False):
        if part != "*" or before != "*":
            text += separator + part
    return text[:LONGEST]


def _part(part: str, is_first: bool) -> str:
    has_digit = _DIGITS.search(part) is not None
    is_hash = has_digit and len(part) >= _SHORTEST_HASH
    if part.isdecimal() or (not is_first and (is_hash or _SUFFIX.match(part))):
        return "*"
    return _DIGITS.sub("*", part) if has_digit else part


LEAST_RUNS = 3
WIDER_COUNTS_AS = 2.0
FLOOR_MS = 10 * MINUTE_MS
"""The run time that a job without history is assumed to have behind it: half of such jobs end within ten
minutes more."""

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

    ``team`` is from its labels, which any user may write; ``owner`` is the team by the team rules, empty:
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
    """What is known of similar jobs. ``basis`` describes the group; ``runs`` is how many ended runs of the
    narrowest group were learnt, 0 without any history."""

    basis: str
    runs: int
    tables: tuple[RunTimeTable, ...]

    def remaining_ms(self, elapsed_ms: int, uniform: float, at_most_ms: int | None = None) -> int:
        """How much longer a job runs that has run for ``elapsed_ms``: the draw that ``uniform`` in [0, 1)
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
    """Run times of similar jobs. ``runs`` are in the order they ended, oldest first.

    Runs that have not ended (``is_censored``) count as Kaplan and Meier have it. Give them only together with
    all runs that started when they did, in the order of their start: the last that ended and all that still
    run, taken together, would hold too many long ones.
    """

    def __init__(self, runs: Iterable[PastRun] = ()) -> None:
        self._pools: dict[_Key, RunTimePool] = {}
        self._owners: dict[_Key, set[str]] = {}
        self._readers: frozenset[str] | None = None
        for run in runs:
            self._learn(run)

    def seen_by(self, teams: Collection[str]) -> RunTimes:
        """The same for readers of ``teams``: of groups of a team only those in which every run was theirs,
        and those over all teams. What is learnt later is shared by both."""
        found = RunTimes()
        found._pools, found._owners = self._pools, self._owners
        found._readers = frozenset(teams)
        return found

    def like(self, team: str, name: str, gpus: int) -> LikeJobs:
        """What is known of jobs of this team, name and size."""
        tables: list[RunTimeTable] = []
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
            pool = self._pools.pop(key, None) or RunTimePool(_HALF_LIVES.get(key[0], _HALF_LIFE))
            pool.learn(run.run_ms, run.is_censored)
            self._pools[key] = pool
            if key[0] not in _OF_ALL:
                self._owners.setdefault(key, set()).add(run.owner or run.team)
        while len(self._pools) > MOST_GROUPS:
            oldest = next(iter(self._pools))
            del self._pools[oldest]
            self._owners.pop(oldest, None)


def _groups(team: str, pattern: str, size: str) -> list[_Key]:
    """From the narrowest to the widest."""
    wider: list[_Key] = [("team-size", team, size), ("team", team), ("size", size), ("all",)]
    if not pattern:
        return wider
    return [("team-name-size", team, pattern, size), ("team-name", team, pattern), *wider]


def _says(key: _Key) -> str:
    """The description of a group: ``of team vision named train-llm-* on 1 GPU``."""
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


@dataclass(frozen=True, slots=True)
class PastUse:
    """GPU use of earlier runs of the same job, or of similar ones. ``model`` is the GPU they ran on
    (``gpucost.domain.gpu``), ``memory_bytes`` the 99th percentile of memory in use on one GPU of
    ``board_bytes``, ``sm_activity`` the 95th percentile of SM activity, 0 to 1. ``gpus`` is how many GPUs of
    one pod were used at all, None where that is not known. ``runs`` is how many runs it is from."""

    model: str
    board_bytes: float
    memory_bytes: float
    sm_activity: float
    gpus: int | None = None
    runs: int = 1
