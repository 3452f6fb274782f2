"""The cheapest change that reaches a goal: what is wanted, what may be changed, and the search. Pure.

A *space* is a few knobs (quota, borrowing, lending, nodes), each with the steps it may take, the least first;
a point is one step of each. What a point costs is known before it is played: what is added, at its price for
the time of the history; so points have an order, and the cheapest that holds is asked for.

Playing all of them would do. Instead it is *taken for granted* that less of everything is not better: where a
point misses the goal, those below it in every knob do too, and where one holds, those above it do. That is a
heuristic: a queue of jobs may fare worse with more nodes (Graham). So each point that is chosen is played,
never inferred; and around the answer every cheaper neighbour is played as well. One that holds after all is
an *anomaly*: it is told, what was inferred from it is dropped, and the search goes on from it.

Of points that are left, that one is played next which settles the most of them, whichever way it goes; of
equal ones the cheapest. There is no chance in it: the same space and goal give the same runs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import product
from operator import ge, gt, le, lt
from typing import Annotated, Literal, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
from pydantic import Field, model_validator

from gpucost.advisor.replay.what_if_change import (
    NodeChange,
    QueueChange,
    QuotaChange,
    WhatIfChange,
)
from gpucost.domain.configfile import MISSING, ConfigModel, NanoAmount, Text, Version, load_yaml, wrong
from gpucost.domain.errors import ErrorRemark, InputError
from gpucost.domain.time import parse_duration

MOST_POINTS = 4_096
"""Of a space: above it, a search would look at too many for a person to wait for."""
UNLIMITED = "unlimited"
_TERM = re.compile(r"^\s*(p50|p90|p99|mean|soon)\s*\(\s*([^()\s]+)\s*\)\s*(<=|>=|<|>)\s*(\S+)\s*$")
_ALLOWED = (
    "p50, p90, p99 or mean of a queue, a team or all against a duration, or soon against a percentage; "
    "several joined by and: p90(vision) <= 1h and soon(all) >= 80%"
)
Places: TypeAlias = npt.NDArray[np.int64]
Flags: TypeAlias = npt.NDArray[np.bool_]
_COMPARE: Mapping[str, Callable[[Fraction, Fraction], bool]] = {"<=": le, ">=": ge, "<": lt, ">": gt}


class GoalTerm(NamedTuple):
    """``figure`` of ``group`` (a queue, a team, or ``all``) against ``bound``: milliseconds, or a share."""

    figure: str
    group: str
    compare: str
    bound: Fraction

    def holds(self, found: Fraction) -> bool:
        return _COMPARE[self.compare](found, self.bound)


def parse_goal(text: str, name: str = "--goal") -> tuple[GoalTerm, ...]:
    """All of them are to hold. Raises InputError."""
    found = []
    for part in re.split(r"\s+and\s+", text):
        matched = _TERM.match(part)
        if matched is None:
            raise InputError(name, text, _ALLOWED)
        figure, group, compare, bound = matched.groups()
        if figure == "soon":
            if not re.fullmatch(r"\d{1,3}(\.\d{1,6})?%", bound) or Fraction(bound[:-1]) > 100:
                raise InputError(name, text, "soon against a percentage from 0% to 100%, such as 80%")
            found.append(GoalTerm(figure, group, compare, Fraction(bound[:-1]) / 100))
        else:
            found.append(GoalTerm(figure, group, compare, Fraction(parse_duration(bound, name))))
    return tuple(found)


class SpaceKnob(ConfigModel):
    """What may be changed, in ``steps``, the least first, as in a change: units of quota that are added, a
    borrowing or lending limit, or nodes that are added (below 0: taken away)."""

    kind: Literal["quota", "borrowing", "lending", "nodes"] = Field(
        description="quota, borrowing, lending or nodes"
    )
    queue: Text | None = Field(None, description="name of a ClusterQueue")
    pool: Text | None = Field(None, description="name of a pool, for nodes")
    flavor: Text | None = Field(None, description="name of a ResourceFlavor")
    resource: Text = Field("nvidia.com/gpu", description="name of a resource, such as nvidia.com/gpu")
    steps: Annotated[tuple[int | str, ...], Field(min_length=1)] = Field(
        description="a list of whole numbers, ascending; a limit may end with unlimited"
    )
    gpu_hour: NanoAmount | None = Field(
        None,
        description="of one unit (of nodes: of a GPU), a plain decimal number; left out, the pool's price",
    )

    @model_validator(mode="after")
    def _is_whole(self) -> SpaceKnob:
        if self.kind == "nodes":
            if self.pool is None or self.queue is not None or self.flavor is not None:
                raise wrong(self.pool or MISSING, "pool for nodes, without queue and flavor", "pool")
        elif self.queue is None or self.flavor is None or self.pool is not None:
            raise wrong(self.queue or MISSING, f"queue and flavor for {self.kind}, without pool", "queue")
        numbers = [each for each in self.steps if each != UNLIMITED]
        is_limit = self.kind in ("borrowing", "lending")
        least = 0 if is_limit else -(10**6)
        for each in numbers:
            if not isinstance(each, int) or isinstance(each, bool) or not least <= each <= 10**9:
                raise wrong(
                    each, "a whole number" + (" of 0 or more, or unlimited" if is_limit else ""), "steps"
                )
        values = [int(each) for each in numbers]
        if values != sorted(set(values)):
            raise wrong(str(self.steps), "ascending, each once", "steps")
        if UNLIMITED in self.steps[:-1] or (UNLIMITED in self.steps and not is_limit):
            raise wrong(UNLIMITED, "the last step of a borrowing or lending limit", "steps")
        return self

    @property
    def name(self) -> str:
        """What it is called in answers."""
        return f"{self.kind} of {self.pool if self.kind == 'nodes' else self.queue}"


class SearchSpace(ConfigModel):
    """A file with the knobs of a search."""

    version: Version = Field(1, description="1, the version of this format")
    knobs: Annotated[tuple[SpaceKnob, ...], Field(min_length=1, max_length=8)] = Field(
        description="a list of up to 8 knobs"
    )

    @classmethod
    def parse(cls, text: str, file: str) -> SearchSpace:
        """Raises ConfigError with file, line, field, value and what is allowed."""
        return load_yaml(text, file, cls)

    @model_validator(mode="after")
    def _is_of_a_size(self) -> SearchSpace:
        names = [each.name for each in self.knobs]
        if len(set(names)) < len(names):
            raise wrong(ErrorRemark("a knob twice"), "each knob once", "knobs")
        points = 1
        for each in self.knobs:
            points *= len(each.steps)
        if points > MOST_POINTS:
            raise wrong(
                f"{points:,} points", f"at most {MOST_POINTS:,} points: fewer knobs or steps", "knobs"
            )
        return self

    def points(self) -> Iterator[tuple[int, ...]]:
        """Places of steps, one for each knob."""
        return product(*(range(len(each.steps)) for each in self.knobs))

    def change(self, point: Sequence[int]) -> WhatIfChange:
        """The scenario of a point; a step of 0 units or nodes changes nothing."""
        queues: dict[str, list[QuotaChange]] = {}
        nodes = []
        for knob, place in zip(self.knobs, point, strict=True):
            step = knob.steps[place]
            if knob.kind == "nodes":
                if step:
                    nodes.append(NodeChange(pool=str(knob.pool), add=int(step)))
                continue
            quota = {
                "quota": {"add": step},
                "borrowing": {"borrowing_limit": step},
                "lending": {"lending_limit": step},
            }[knob.kind]
            if step or knob.kind != "quota":
                found = QuotaChange.model_validate(
                    {"flavor": knob.flavor, "resource": knob.resource, **quota}
                )
                queues.setdefault(str(knob.queue), []).append(found)
        changed = tuple(QueueChange(name=name, quotas=tuple(quotas)) for name, quotas in queues.items())
        return WhatIfChange(name=self.words(point), queues=changed, nodes=tuple(nodes))

    def words(self, point: Sequence[int]) -> str:
        """A point for people."""
        said = []
        for knob, place in zip(self.knobs, point, strict=True):
            step = knob.steps[place]
            is_added = knob.kind in ("quota", "nodes") and isinstance(step, int)
            said.append(f"{knob.name} {step:+d}" if is_added and step else f"{knob.name} {step}")
        return ", ".join(said)


class PlayedPoint(NamedTuple):
    """A point that was played: its cost against nothing changed, in nano-units, its figures in the order of
    the goal, and whether they hold."""

    point: tuple[int, ...]
    cost: int
    figures: tuple[Fraction, ...]
    holds: bool


@dataclass(frozen=True, slots=True)
class SearchOutcome:
    """``best`` is the cheapest that holds, None where none of the space does. ``played`` are in the order in
    which they were; of ``points`` in all, those that are missing were inferred. ``anomalies`` held though a
    point above them did not."""

    best: PlayedPoint | None
    played: tuple[PlayedPoint, ...]
    points: int
    anomalies: tuple[tuple[int, ...], ...]

    def frontier(self, goal: Sequence[GoalTerm]) -> tuple[PlayedPoint, ...]:
        """Of those played, in which nothing cheaper does better in the first term of the goal."""
        sign = 1 if goal[0].compare in ("<=", "<") else -1
        found: list[PlayedPoint] = []
        for each in sorted(self.played, key=lambda one: (one.cost, sign * one.figures[0], one.point)):
            if not found or sign * each.figures[0] < sign * found[-1].figures[0]:
                found.append(each)
        return tuple(found)


def searched(
    points: Sequence[tuple[int, ...]],
    cost: Callable[[tuple[int, ...]], int],
    play: Callable[[tuple[int, ...]], tuple[Fraction, ...]],
    goal: Sequence[GoalTerm],
) -> SearchOutcome:
    """The cheapest of ``points`` that holds; of equal cost that with the smaller steps."""
    return _Search(points, cost, play, goal).run()


@dataclass
class _Search:
    points: Sequence[tuple[int, ...]]
    cost: Callable[[tuple[int, ...]], int]
    play: Callable[[tuple[int, ...]], tuple[Fraction, ...]]
    goal: Sequence[GoalTerm]
    found: dict[tuple[int, ...], PlayedPoint] = field(default_factory=dict)
    anomalies: list[tuple[int, ...]] = field(default_factory=list)

    def run(self) -> SearchOutcome:
        ordered = sorted(self.points, key=lambda each: (self.cost(each), sum(each), each))
        steps = np.array(ordered, dtype=np.int64)
        below: Flags = np.all(steps[:, None, :] <= steps[None, :, :], axis=2)
        """``below[a, b]``: a is below b in every knob, or b itself."""
        at = {point: place for place, point in enumerate(ordered)}
        while True:
            best = self._best(at)
            left = self._left(at, below, best, len(ordered))
            if len(left):
                inside = below[np.ix_(left, left)]
                # It misses: all below it are settled. It holds: all that come after it in the order are.
                missed, held = inside.sum(axis=0), len(left) - np.arange(len(left))
                self._played(ordered[left[int(np.argmax(np.minimum(missed, held)))]])
                continue
            if not self._has_anomaly(ordered, at, best):
                break
        chosen = None if best is None else self.found[ordered[best]]
        return SearchOutcome(chosen, tuple(self.found.values()), len(ordered), tuple(self.anomalies))

    def _best(self, at: Mapping[tuple[int, ...], int]) -> int | None:
        """The place of the cheapest that was played and holds."""
        return min((at[each.point] for each in self.found.values() if each.holds), default=None)

    def _left(self, at: Mapping[tuple[int, ...], int], below: Flags, best: int | None, count: int) -> Places:
        """Places of those that come before the best, and of which nothing is known or inferred."""
        open_ = np.ones(count if best is None else best, dtype=bool)
        held = [at[each.point] for each in self.found.values() if each.holds]
        for each in self.found.values():
            place = at[each.point]
            if place < len(open_):
                open_[place] = False
            if not each.holds and not below[held, place].any():  # else there is no inferring from it
                open_ &= ~below[: len(open_), place]
        return np.flatnonzero(open_)

    def _has_anomaly(
        self, ordered: Sequence[tuple[int, ...]], at: Mapping[tuple[int, ...], int], best: int | None
    ) -> bool:
        """Plays what comes before the best and is one step away from it, though it was inferred to miss; of
        a space in which none holds, what is one step below the top."""
        center = ordered[-1] if best is None else ordered[best]
        for knob, place in enumerate(center):
            for step in (place - 1, place + 1):
                near = (*center[:knob], step, *center[knob + 1 :])
                if near not in at or near in self.found or (best is not None and at[near] > best):
                    continue
                if self._played(near).holds:
                    self.anomalies.append(near)
                    return True
        return False

    def _played(self, point: tuple[int, ...]) -> PlayedPoint:
        figures = self.play(point)
        holds = all(term.holds(value) for term, value in zip(self.goal, figures, strict=True))
        found = self.found[point] = PlayedPoint(point, self.cost(point), figures, holds)
        return found
