"""A search for the cheapest change that reaches a goal: its scenarios played, and the answer as a report; in
a terminal a table with a chart.

Costs are against nothing changed, over the window: nodes that are added or taken away at the price of their
GPUs; quota at the price of its GPUs where nothing but quota holds a job (then quota is what there is), or at
what its knob says. Limits of borrowing and lending cost nothing unless their knob says so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

from rich.console import RenderableType
from rich.text import Text

from gpucost.advisor.replay.goal_search import (
    UNLIMITED,
    GoalTerm,
    PlayedPoint,
    SearchOutcome,
    SearchSpace,
    SpaceKnob,
    searched,
)
from gpucost.advisor.replay.history_record import ReplayHistory
from gpucost.advisor.replay.scenario_run import BASELINE, check_change, run_scenario
from gpucost.advisor.replay.tree_replay import TreeMemory
from gpucost.advisor.replay.what_if_change import WhatIfChange
from gpucost.domain.errors import ErrorRemark, InputError
from gpucost.domain.money import round_half_even
from gpucost.domain.time import HOUR_MS, Window
from gpucost.reports.base import display
from gpucost.reports.render.terminal_parts import bar, new_table
from gpucost.reports.replay.run_views import views_of
from gpucost.reports.replay.scenario_answer import WaitFigures
from gpucost.reports.replay.scenario_figures import ALL, GroupKey, groups_of, wait_figures

WIDTH = 24


@dataclass(frozen=True, slots=True)
class GoalPoint:
    """A scenario that was played. ``figures`` are in the order of the goal: waits in milliseconds, shares in
    millionths. ``is_best`` is the answer; ``on_frontier`` that nothing cheaper does better in the first."""

    change: str
    cost_nano: int
    figures: tuple[int, ...]
    holds: bool
    is_best: bool
    on_frontier: bool


@dataclass(frozen=True, slots=True)
class GoalAnswer:
    """``points`` ascend by cost. ``hour_nano`` is what an hour less of the first wait costs, between the
    answer and the next cheaper one of the frontier; None where there is none, or the first is a share."""

    history: str
    window: Window
    currency: str
    goal: str
    baseline: tuple[int, ...]
    space: int
    best: str
    best_nano: int | None
    hour_nano: int | None
    anomalies: tuple[str, ...]
    points: tuple[GoalPoint, ...]


def goal_answer(
    history: ReplayHistory,
    space: SearchSpace,
    goal: Sequence[GoalTerm],
    text: str,
    played: Callable[[], None] = lambda: None,
) -> GoalAnswer:
    """``text`` is the goal as it was asked for; ``played`` is called after each scenario. Raises InputError
    for what the space or the goal is about and the history has not, and for a price that nobody knows."""
    worths = [_worth(history, knob) for knob in space.knobs]
    for knob in space.knobs:
        check_change(
            history, space.change([len(each.steps) - 1 if each is knob else 0 for each in space.knobs])
        )
    groups = [_group(history, term) for term in goal]
    memory = TreeMemory()

    def figures(change: WhatIfChange) -> tuple[Fraction, ...]:
        run = run_scenario(history, change, memory=memory)
        views = groups_of(views_of(run, history.window).values(), history.window)
        played()
        return tuple(
            _figure(term, wait_figures(views.get(key, []), history.window))
            for term, key in zip(goal, groups, strict=True)
        )

    def cost(point: tuple[int, ...]) -> int:
        total = Fraction(0)
        for knob, place, worth in zip(space.knobs, point, worths, strict=True):
            step = knob.steps[place]
            total += worth * (step if isinstance(step, int) else 0)
        return round_half_even(total.numerator, total.denominator)

    baseline = figures(BASELINE)
    outcome = searched(tuple(space.points()), cost, lambda point: figures(space.change(point)), goal)
    return _told(history, space, goal, text, baseline, outcome)


def _worth(history: ReplayHistory, knob: SpaceKnob) -> Fraction:
    """Nano-units of one unit, or one node, more."""
    hours = Fraction(history.window.length_ms, HOUR_MS)
    if knob.kind == "nodes":
        pool = history.pools.get(str(knob.pool))
        if pool is None:
            raise InputError("pool", knob.pool, ", ".join(sorted(history.pools)) or "a history with pools")
        price = Fraction(knob.gpu_hour) if knob.gpu_hour is not None else pool.mean_price(history.window)
        if price is None:
            raise InputError(
                "gpu_hour", ErrorRemark("missing"), f"a price of pool {knob.pool}, here or with --price"
            )
        return price * pool.gpus * pool.share * hours
    if knob.gpu_hour is not None:
        if UNLIMITED in knob.steps:
            raise InputError("gpu_hour", ErrorRemark(UNLIMITED), "steps that are numbers, where they cost")
        return knob.gpu_hour * hours
    if knob.kind != "quota" or history.has_nodes:
        return Fraction(0)
    of = [
        each
        for each in history.pools.values()
        if (each.flavor, each.resource) == (knob.flavor, knob.resource)
    ]
    mean = of[0].mean_price(history.window) if of else None
    return Fraction(0) if mean is None else mean * of[0].share * hours


def _group(history: ReplayHistory, term: GoalTerm) -> GroupKey:
    if term.group == ALL[0]:
        return ALL
    queues, teams = {each.queue for each in history.jobs}, {each.team for each in history.jobs}
    if term.group in queues:
        return "queue", term.group
    if term.group in teams:
        return "team", term.group
    known = sorted({*queues, *teams, ALL[0]} - {""})
    more = f" and {len(known) - 20:,} more" if len(known) > 20 else ""
    raise InputError("--goal", term.group, f"a queue or team of the history: {', '.join(known[:20])}{more}")


def _figure(term: GoalTerm, found: WaitFigures) -> Fraction:
    if term.figure == "soon":
        return Fraction(1) if found.soon is None else found.soon
    waits = {"p50": found.p50_ms, "p90": found.p90_ms, "p99": found.p99_ms, "mean": found.mean_ms}
    return Fraction(waits[term.figure])


def _plain(goal: Sequence[GoalTerm], figures: Sequence[Fraction]) -> tuple[int, ...]:
    return tuple(
        round(value * 1_000_000) if term.figure == "soon" else int(value)
        for term, value in zip(goal, figures, strict=True)
    )


def _told(
    history: ReplayHistory,
    space: SearchSpace,
    goal: Sequence[GoalTerm],
    text: str,
    baseline: Sequence[Fraction],
    outcome: SearchOutcome,
) -> GoalAnswer:
    frontier = outcome.frontier(goal)
    best = outcome.best
    points = tuple(
        GoalPoint(
            space.words(each.point),
            each.cost,
            _plain(goal, each.figures),
            each.holds,
            each is best,
            each in frontier,
        )
        for each in sorted(outcome.played, key=lambda one: (one.cost, one.point))
    )
    return GoalAnswer(
        history.name,
        history.window,
        history.currency,
        text,
        _plain(goal, baseline),
        outcome.points,
        "" if best is None else space.words(best.point),
        None if best is None else best.cost,
        _hour(goal, best, frontier),
        tuple(space.words(each) for each in outcome.anomalies),
        points,
    )


def _hour(goal: Sequence[GoalTerm], best: PlayedPoint | None, frontier: Sequence[PlayedPoint]) -> int | None:
    if best is None or goal[0].figure == "soon":
        return None
    cheaper = [each for each in frontier if each.cost < best.cost and each.figures[0] > best.figures[0]]
    if not cheaper:
        return None
    less = cheaper[-1].figures[0] - best.figures[0]
    found = (best.cost - cheaper[-1].cost) * HOUR_MS / less
    return round_half_even(found.numerator, found.denominator)


def goal_parts(found: GoalAnswer, goal: Sequence[GoalTerm]) -> Iterator[RenderableType]:
    """The answer in words, then the frontier as a table with a chart of the first figure."""
    unit = found.currency or "units"
    if found.best_nano is None:
        yield Text(f"Nothing of the space reaches {display.visible(found.goal)}.")
    else:
        said = f"The cheapest that reaches {display.visible(found.goal)}: {found.best or 'nothing changed'}, "
        said += f"{unit} {display.signed_money(found.best_nano)} over the window."
        if found.hour_nano is not None:
            said += f" An hour less of {goal[0].figure}({goal[0].group}) costs {unit} "
            said += f"{display.money(found.hour_nano)} there."
        yield Text(said)
    table = new_table("Frontier: nothing cheaper does better")
    table.add_column(unit, justify="right")
    for term in goal:
        table.add_column(f"{term.figure}({display.visible(term.group)})", justify="right")
    table.add_column("")
    table.add_column("holds")
    table.add_column("change")
    shown = [each for each in found.points if each.on_frontier or each.is_best]
    most = max([each.figures[0] for each in shown] + [1])
    for each in shown:
        cells = [_cell(term, value) for term, value in zip(goal, each.figures, strict=True)]
        holds = "this" if each.is_best else "yes" if each.holds else "no"
        chart = bar(Fraction(each.figures[0], most), WIDTH)
        table.add_row(display.signed_money(each.cost_nano), *cells, chart, holds, Text(each.change))
    table.caption = (
        f"Nothing changed: {', '.join(map(_cell, goal, found.baseline))}. {len(found.points):,} of "
        f"{found.space:,} points were played; of the others it is taken for granted that less of everything "
        "is not better."
    )
    yield table
    if found.anomalies:
        yield Text(
            f"Not so here: {'; '.join(found.anomalies)} reached it, though more did not (Graham's anomaly): "
            "cheaper ones farther away are not ruled out."
        )


def _cell(term: GoalTerm, value: int) -> str:
    if term.figure == "soon":
        return display.percent(Fraction(value, 1_000_000), 1)
    return (
        display.duration(value // 60_000 * 60_000)
        if value >= HOUR_MS
        else display.duration(value // 1000 * 1000)
    )
