"""The search for the cheapest change: what enumeration finds, in a tenth of the runs, and what it refuses."""

from __future__ import annotations

import json
from fractions import Fraction
from itertools import product
from pathlib import Path
from random import Random

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner, Result

from gpucost.advisor.replay.goal_search import (
    GoalTerm,
    SearchSpace,
    parse_goal,
    searched,
)
from gpucost.advisor.replay.history_record import ReplayHistory
from gpucost.advisor.replay.scenario_run import run_scenario
from gpucost.cli.application import app
from gpucost.cli.terminal.exit_codes import ExitCode
from gpucost.domain.errors import ConfigError, InputError
from gpucost.domain.time import HOUR_MS
from gpucost.reports.replay.goal_answer import goal_answer, goal_parts
from gpucost.reports.replay.run_views import views_of
from gpucost.reports.replay.scenario_figures import groups_of, wait_figures
from tests.advisor.replay_worlds import WINDOW, job, kueue_history

GOAL = (GoalTerm("p90", "all", "<=", Fraction(100)),)
Point = tuple[int, ...]


def text(*knobs: str) -> str:
    return "knobs:\n" + "".join(f"  - {each}\n" for each in knobs)


def busy(has_nodes: bool = False) -> ReplayHistory:
    """60 jobs of 8 GPUs in two queues, more than 16 GPUs can do."""
    random = Random(5)
    jobs = [
        job(f"j{n:03d}", random.randrange(240), random.randrange(20, 90), queue=random.choice("ab"))
        for n in range(60)
    ]
    return kueue_history(*jobs, has_nodes=has_nodes)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 3), st.randoms(use_true_random=False))
def test_it_finds_what_enumeration_finds_where_more_is_not_worse(knobs: int, random: Random) -> None:
    sizes = [random.randint(1, 7) for _ in range(knobs)]
    worths = [random.randint(0, 9) for _ in sizes]
    gains = [[0, *sorted(random.randint(0, 60) for _ in range(size - 1))] for size in sizes]
    points = list(product(*map(range, sizes)))

    def cost(point: Point) -> int:
        return sum(place * worth for place, worth in zip(point, worths, strict=True))

    def figures(point: Point) -> tuple[Fraction, ...]:
        return (Fraction(180 - sum(gain[place] for gain, place in zip(gains, point, strict=True))),)

    found = searched(points, cost, figures, GOAL)
    holding = [each for each in points if figures(each)[0] <= 100]
    if not holding:
        assert found.best is None
        return
    assert found.best is not None
    assert found.best.point == min(holding, key=lambda each: (cost(each), sum(each), each))
    assert len({each.point for each in found.played}) == len(found.played) <= len(points)


def quota(name: str, steps: list[int]) -> str:
    return f"{{kind: quota, queue: {name}, flavor: h100, steps: {steps}}}"


@pytest.mark.slow
def test_on_a_small_cluster_it_takes_a_tenth_of_the_runs() -> None:
    """15 x 15 quotas of two queues: what playing all 225 finds."""
    steps = [8 * n for n in range(15)]
    space = SearchSpace.parse(text(quota("a", steps), quota("b", steps)), "space.yaml")
    asked = "p90(a) <= 30m and p90(b) <= 1h"
    history, terms = busy(), parse_goal(asked)
    found = goal_answer(history, space, terms, asked)
    assert len(found.points) * 10 <= found.space == 225
    holding = []
    for point in space.points():
        views = views_of(run_scenario(history, space.change(point)), WINDOW)
        groups = groups_of(views.values(), WINDOW)
        waits = [wait_figures(groups["queue", name], WINDOW).p90_ms for name in "ab"]
        if waits[0] <= HOUR_MS // 2 and waits[1] <= HOUR_MS:
            holding.append((sum(point), point))
    assert found.best == space.words(min(holding)[1])
    # 8 GPUs at 2 USD for a day, each step.
    assert found.best_nano == min(holding)[0] * 8 * 24 * 2_000_000_000
    costs = [each.cost_nano for each in found.points]
    assert costs == sorted(costs)
    frontier = [each.figures[0] for each in found.points if each.on_frontier]
    assert frontier == sorted(frontier, reverse=True)
    hour = goal_answer(history, space, parse_goal("mean(all) <= 20m"), "mean(all) <= 20m").hour_nano
    assert hour is not None
    assert hour > 0
    shown = " ".join(str(part) for part in goal_parts(found, terms))
    assert found.best in shown


def test_which_nodes_could_go() -> None:
    """Four nodes for jobs that one can do: three could go, and that is worth their price."""
    history = kueue_history(*(job(f"j{n}", 60 * n, 30) for n in range(6)), nodes=4)
    space = SearchSpace.parse(text("{kind: nodes, pool: h100, steps: [-4, -3, -2, -1, 0]}"), "space.yaml")
    found = goal_answer(history, space, parse_goal("p99(all) <= 1s"), "p99(all) <= 1s")
    assert (found.best, found.best_nano) == ("nodes of h100 -3", -3 * 8 * 24 * 2_000_000_000)
    none = goal_answer(history, space, parse_goal("soon(all) > 100%"), "soon(all) > 100%")
    assert (none.best, none.best_nano) == ("", None)
    assert "Nothing of the space" in str(next(goal_parts(none, parse_goal("soon(all) > 100%"))))


def test_a_cheaper_neighbour_that_reaches_it_after_all_is_told() -> None:
    """More is worse here, once: 3 holds, 4 does not, 5 to 9 do."""
    holds = {3, *range(5, 10)}
    found = searched(
        [(n,) for n in range(10)],
        lambda point: point[0],
        lambda point: (Fraction(0 if point[0] in holds else 200),),
        GOAL,
    )
    assert found.best is not None
    assert found.best.point in ((3,), (5,))
    if found.anomalies:
        assert found.anomalies == ((3,),)
    beside = {1, 4, 5, 6, 7, 8, 9}
    near = searched(
        [(n, m) for n in range(10) for m in range(2)],
        lambda point: 2 * point[0] + point[1],
        lambda point: (Fraction(0 if point[0] in beside and (point[0] > 1 or not point[1]) else 200),),
        GOAL,
    )
    assert near.best is not None
    assert all(each.cost >= near.best.cost for each in near.played if each.holds)


@pytest.mark.parametrize(
    "goal", ["", "p90(a)", "p91(a) <= 1h", "p90(a) = 1h", "p90(a) <= 1", "soon(a) >= 0.8", "soon(a) > 101%"]
)
def test_a_goal_that_makes_no_sense_is_refused(goal: str) -> None:
    with pytest.raises(InputError):
        parse_goal(goal)


@pytest.mark.parametrize(
    "knob",
    [
        "{kind: quota, queue: a, steps: [0]}",
        "{kind: quota, queue: a, flavor: f, pool: p, steps: [0]}",
        "{kind: nodes, queue: a, steps: [0]}",
        "{kind: nodes, pool: p, steps: [1, 0]}",
        "{kind: nodes, pool: p, steps: [0, unlimited]}",
        "{kind: lending, queue: a, flavor: f, steps: [-1]}",
        "{kind: lending, queue: a, flavor: f, steps: [unlimited, 8]}",
        "{kind: lending, queue: a, flavor: f, steps: [many]}",
        "{kind: nodes, pool: p, steps: []}",
        f"{{kind: nodes, pool: p, steps: {list(range(5000))}}}",
        "{kind: nodes, pool: p, steps: [0], more: 1}",
    ],
)
def test_a_space_that_makes_no_sense_is_refused(knob: str) -> None:
    with pytest.raises(ConfigError):
        SearchSpace.parse(text(knob), "space.yaml")


def test_names_that_the_history_has_not_are_refused() -> None:
    history = kueue_history(job("j", 0, 30))
    space = SearchSpace.parse(text(quota("a", [0, 8])), "space.yaml")
    for goal in ("p90(c) <= 1h",):
        with pytest.raises(InputError, match="queue or team"):
            goal_answer(history, space, parse_goal(goal), goal)
    for knob in (quota("c", [0, 8]), "{kind: nodes, pool: none, steps: [0, 1]}"):
        with pytest.raises(InputError):
            goal_answer(history, SearchSpace.parse(text(knob), "f"), parse_goal("p90(all) <= 1h"), "")


def test_limits_are_knobs_too() -> None:
    space = SearchSpace.parse(
        text("{kind: lending, queue: a, flavor: h100, steps: [0, 8, unlimited]}", quota("a", [0, 8])), "s"
    )
    change = space.change((2, 1))
    assert change.name == "lending of a unlimited, quota of a +8"
    (queue,) = change.queues
    assert [(each.lending_limit, each.add) for each in queue.quotas] == [("unlimited", None), (None, 8)]


def test_the_command_prints_the_frontier_and_the_same_bytes_again(tmp_path: Path) -> None:
    jobs = [
        {
            "uid": f"j{n:02d}", "created_ms": n * 60_000, "run_ms": 600_000, "gpus": 8, "queue": "a",
            "team": "vision", "user": "u", "started_ms": n * 600_000, "ended_ms": (n + 1) * 600_000,
        }
        for n in range(12)
    ]  # fmt: skip
    pd.DataFrame(jobs).to_parquet(tmp_path / "jobs.parquet")
    pools = [
        {"pool": "a", "at_ms": 0, "nodes": 1, "gpus": 8, "model": "H100", "gpu_hour_nano": 2_000_000_000}
    ]
    pd.DataFrame(pools).to_parquet(tmp_path / "pools.parquet")
    (tmp_path / "space.yaml").write_text(text("{kind: nodes, pool: a, steps: [0, 1, 2, 3, 4]}"))

    def run(*more: str) -> Result:
        options = ["--history", str(tmp_path), "--space", str(tmp_path / "space.yaml"), *more]
        return CliRunner().invoke(app, ["replay", *options])

    shown = run("--goal", "p90(vision) <= 30m")
    assert shown.exit_code == ExitCode.OK, shown.output
    assert "The cheapest that reaches p90(vision) <= 30m: nodes of a +" in " ".join(shown.output.split())
    told = run("--goal", "p90(vision) <= 30m", "--format", "json")
    assert told.stdout == run("--goal", "p90(vision) <= 30m", "--format", "json").stdout
    assert json.loads(told.stdout)["schema"] == "gpucost/GoalAnswer/v1"
    assert run().exit_code == ExitCode.USAGE
    assert run("--goal", "p90(vision) <= 30m", "--format", "csv").exit_code == ExitCode.USAGE
