"""Run times learnt from history: who is pooled with whom, what is left, runs that still go on, no history."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucost.advisor.wait import run_times
from gpucost.advisor.wait.run_times import (
    FLOOR_MS,
    HALF_LIVES,
    LONGEST,
    NO_HISTORY,
    PastRun,
    RunTimePool,
    RunTimes,
    name_pattern,
    size_class,
)
from gpucost.domain.errors import InputError
from gpucost.domain.time import HOUR_MS, MINUTE_MS
from tests.support.waits.run_times import AdaptiveRunTimes


@pytest.mark.parametrize(
    ("name", "pattern"),
    [
        ("train-llm-20261103-x7k2p", "train-llm-*"),
        ("train-llm-20261104-9zqwv", "train-llm-*"),
        ("train-llm", "train-llm"),
        ("resnet50-run-3", "resnet*-run-*"),
        ("eval.v3_b", "eval.v*_b"),
        ("llama2-worker-bcdfg", "llama*-worker-*"),
        ("sweep-1-2-3-4", "sweep-*"),
        ("7-train", "*-train"),
        ("Train-LLM-1", "train-llm-*"),
        ("", ""),
        ("---", "---"),
    ],
)
def test_what_tells_runs_apart_is_not_part_of_the_pattern(name: str, pattern: str) -> None:
    assert name_pattern(name) == pattern


@given(st.text(max_size=2_000))
def test_a_pattern_of_anything_is_bounded_and_its_own_pattern(name: str) -> None:
    pattern = name_pattern(name)
    assert len(pattern) <= LONGEST
    if "*" not in name and len(name) < LONGEST // 2:
        assert not any(character in "0123456789" for character in pattern)


@pytest.mark.parametrize(
    ("gpus", "is_class"),
    [
        (0, "0"),
        (1, "1"),
        (2, "2"),
        (3, "3-4"),
        (4, "3-4"),
        (5, "5-8"),
        (8, "5-8"),
        (9, "9-16"),
        (128, "65-128"),
    ],
)
def test_sizes_are_powers_of_two(gpus: int, is_class: str) -> None:
    assert size_class(gpus) == is_class


def _runs(team: str, name: str, gpus: int, *run_ms: int) -> list[PastRun]:
    return [PastRun(team, name, gpus, each) for each in run_ms]


HISTORY = RunTimes(
    [
        *_runs("audio", "tts-1", 8, *[9 * HOUR_MS] * 200),
        *_runs("vision", "eval-1", 1, *[5 * MINUTE_MS] * 200),
        *_runs("vision", "train-llm-20261103-x7k2p", 4, *[3 * HOUR_MS] * 200),
        *_runs("vision", "train-llm-20261104-b4cde", 1, *[HOUR_MS] * 200),
    ]
)


@pytest.mark.parametrize(
    ("team", "name", "gpus", "median_ms", "basis"),
    [
        (
            "vision",
            "train-llm-9",
            4,
            3 * HOUR_MS,
            "200 ended runs of team vision named train-llm-* on 3-4 GPUs",
        ),
        ("vision", "train-llm-9", 1, HOUR_MS, "200 ended runs of team vision named train-llm-* on 1 GPU"),
        ("vision", "train-llm-9", 64, HOUR_MS, "400 ended runs of team vision named train-llm-*"),
        ("vision", "new", 4, 3 * HOUR_MS, "200 ended runs of team vision on 3-4 GPUs"),
        ("vision", "new", 64, HOUR_MS, "600 ended runs of team vision"),
        ("nlp", "new", 8, 9 * HOUR_MS, "200 ended runs on 5-8 GPUs"),
        ("nlp", "new", 64, HOUR_MS, "800 ended runs of all teams"),
    ],
)
def test_the_narrowest_group_speaks_and_is_named(
    team: str, name: str, gpus: int, median_ms: int, basis: str
) -> None:
    like = HISTORY.like(team, name, gpus)
    assert like.basis == basis
    assert like.median_ms() == median_ms


def test_two_runs_are_not_a_group_yet_three_are() -> None:
    wide = _runs("vision", "b", 8, *[HOUR_MS] * 50)
    two = RunTimes([*wide, *_runs("vision", "a", 1, MINUTE_MS, MINUTE_MS)])
    three = RunTimes([*wide, *_runs("vision", "a", 1, *[MINUTE_MS] * 3)])
    assert two.like("vision", "a", 1).basis == "52 ended runs of team vision"
    assert three.like("vision", "a", 1).basis == "3 ended runs of team vision named a on 1 GPU"
    assert two.like("vision", "a", 1).median_ms() == HOUR_MS
    assert three.like("vision", "a", 1).median_ms() == MINUTE_MS


def test_what_is_left_is_of_the_runs_that_were_longer() -> None:
    like = RunTimes(_runs("t", "n", 1, *[MINUTE_MS] * 80, *[10 * HOUR_MS] * 80)).like("t", "n", 1)
    assert like.quantile_ms(0.5, elapsed_ms=2 * MINUTE_MS) == 10 * HOUR_MS - 2 * MINUTE_MS
    assert like.quantile_ms(0.5, elapsed_ms=9 * HOUR_MS) == HOUR_MS


def test_beyond_everything_known_what_has_passed_is_the_median_of_what_is_left() -> None:
    like = HISTORY.like("vision", "train-llm-9", 1)
    assert like.quantile_ms(0.5, elapsed_ms=100 * HOUR_MS) == pytest.approx(100 * HOUR_MS, rel=0.01)


@pytest.mark.parametrize("elapsed_ms", [FLOOR_MS, HOUR_MS, 1_000 * HOUR_MS])
@pytest.mark.parametrize("q", [0.1, 0.5, 0.9])
def test_the_cold_start_is_free_of_scale(elapsed_ms: int, q: float) -> None:
    like = NO_HISTORY.like("t", "n", 1)
    assert like.quantile_ms(q, elapsed_ms) == pytest.approx(elapsed_ms * q / (1 - q), rel=0.02)


def test_without_history_there_is_a_floor_and_no_median_run() -> None:
    like = NO_HISTORY.like("t", "n", 1)
    assert like.quantile_ms(0.5, 0) == pytest.approx(FLOOR_MS, rel=0.02)
    assert (like.median_ms(), like.runs) == (None, 0)
    assert like.basis == "no ended runs: what has passed is taken for what is left"


def test_newer_runs_count_more() -> None:
    slower = RunTimes(_runs("t", "n", 1, *[MINUTE_MS] * 100, *[HOUR_MS] * 60)).like("t", "n", 1)
    faster = RunTimes(_runs("t", "n", 1, *[HOUR_MS] * 100, *[MINUTE_MS] * 60)).like("t", "n", 1)
    assert slower.median_ms() == HOUR_MS
    assert faster.median_ms() == MINUTE_MS


def _share_beyond(draw: Callable[[float], int], ms: int) -> float:
    draws = 20_000
    return sum(draw((at + 0.5) / draws) > ms for at in range(draws)) / draws


def _kaplan_meier(runs: list[PastRun], beyond_ms: int) -> float:
    """The product-limit estimate by the book: at each end, so many of those at risk."""
    survive = 1.0
    for end_ms in sorted({run.run_ms for run in runs if not run.is_censored and run.run_ms <= beyond_ms}):
        ended = sum(run.run_ms == end_ms and not run.is_censored for run in runs)
        survive *= 1 - ended / sum(run.run_ms >= end_ms for run in runs)
    return survive


def test_runs_that_have_not_ended_count_as_kaplan_and_meier_have_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """With neither recency nor a wider group; one in two is cut off while it runs."""
    monkeypatch.setattr(run_times, "WIDER_COUNTS_AS", 1e-9)
    monkeypatch.setattr(run_times, "RunTimePool", lambda _: RunTimePool(10**8))
    random = Random(11)
    times = [(random.randint(1, 40) * HOUR_MS, random.randint(1, 40) * HOUR_MS) for _ in range(80)]
    # A censored run that is as long as one that ended outlived it: so it comes after it.
    runs = [PastRun("t", "n", 1, min(end, cut), is_censored=cut < end) for end, cut in times]
    like = RunTimes(runs).like("t", "n", 1)
    assert 20 < like.runs < 60
    draws = sorted(like.remaining_ms(0, (at + 0.5) / 200_000) for at in range(200_000))
    for hours in range(1, max(run.run_ms for run in runs if not run.is_censored) // HOUR_MS):
        share = 1 - bisect_right(draws, hours * HOUR_MS) / len(draws)
        assert share == pytest.approx(_kaplan_meier(runs, hours * HOUR_MS), abs=5e-4), hours


def test_a_deadline_bounds_what_is_left() -> None:
    like = HISTORY.like("vision", "train-llm-9", 4)
    assert like.quantile_ms(0.9, 0, at_most_ms=HOUR_MS) == HOUR_MS
    assert like.quantile_ms(0.5, 0, at_most_ms=0) == 1


_HISTORIES = st.lists(
    st.builds(
        PastRun,
        st.sampled_from(["a", "b"]),
        st.sampled_from(["", "x", "y-1"]),
        st.integers(0, 16),
        st.integers(0, 10**12),
        st.booleans(),
    ),
    max_size=60,
)


@given(_HISTORIES, st.integers(0, 10**12), st.floats(0, 1, exclude_max=True))
def test_a_draw_is_never_in_the_past_and_the_same_for_the_same_number(
    runs: list[PastRun], elapsed_ms: int, uniform: float
) -> None:
    like = RunTimes(runs).like("a", "x", 1)
    left = like.remaining_ms(elapsed_ms, uniform)
    assert left >= 1
    assert left == RunTimes(runs).like("a", "x", 1).remaining_ms(elapsed_ms, uniform)


@given(_HISTORIES, st.integers(0, 10**9))
def test_quantiles_rise(runs: list[PastRun], elapsed_ms: int) -> None:
    like = RunTimes(runs).like("a", "x", 1)
    assert (
        like.quantile_ms(0.1, elapsed_ms)
        <= like.quantile_ms(0.5, elapsed_ms)
        <= like.quantile_ms(0.9, elapsed_ms)
    )


def test_draws_follow_the_quantiles() -> None:
    random = Random(7)
    runs = [int(math.exp(random.gauss(15, 1))) for _ in range(150)]
    like = RunTimes(_runs("t", "n", 1, *runs)).like("t", "n", 1)
    median = like.quantile_ms(0.5, 10**6)
    assert _share_beyond(lambda uniform: like.remaining_ms(10**6, uniform), median) == pytest.approx(
        0.5, abs=0.01
    )


def test_it_goes_on_learning() -> None:
    learning = AdaptiveRunTimes(_runs("t", "n", 1, *[HOUR_MS] * 5))
    for _ in range(50):
        learning.learn(PastRun("t", "n", 1, MINUTE_MS))
    assert learning.like("t", "n", 1).median_ms() == MINUTE_MS
    assert learning.like("t", "n", 1).basis.startswith("55 ended runs")
    every = _runs("t", "n", 1, *[HOUR_MS] * 5, *[MINUTE_MS] * 50)
    assert learning.like("t", "n", 1) == RunTimes(every).like("t", "n", 1)


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """In runs per group, and in groups: the wider ones still know what a forgotten one had learnt."""
    pool = RunTimePool(40)
    for _ in range(1_000):
        pool.learn(1, False)
    assert (len(pool), pool.learnt) == (40 * HALF_LIVES, 1_000)
    monkeypatch.setattr(run_times, "MOST_GROUPS", 30)
    letters = "abcdefghijklmnop"
    names = [f"{one}{two}" for one in letters for two in letters]
    history = RunTimes([run for name in names for run in _runs("t", name, 1, *[HOUR_MS] * 3)])
    assert history.like("t", names[-1], 1).basis == "3 ended runs of team t named pp on 1 GPU"
    assert history.like("t", names[0], 1).basis == "768 ended runs of team t on 1 GPU"


@pytest.mark.parametrize(("field", "gpus", "run_ms"), [("run_ms", 1, -1), ("gpus", -1, 1)])
def test_nonsense_is_refused_by_field(field: str, gpus: int, run_ms: int) -> None:
    with pytest.raises(InputError) as raised:
        PastRun("t", "n", gpus, run_ms)
    assert raised.value.field == field


@pytest.mark.parametrize("q", [0.0, 1.0, -1.0, 2.0, math.nan])
def test_a_quantile_lies_between_0_and_1(q: float) -> None:
    with pytest.raises(InputError, match=r"q: .*; allowed: a number between 0 and 1"):
        NO_HISTORY.like("t", "n", 1).quantile_ms(q)


def test_readers_see_groups_that_are_all_theirs_and_those_of_all() -> None:
    """Any user may write the label of a team: one run of another team hides its group."""
    mixed = [PastRun("audio", "tts-2", 8, HOUR_MS, owner=owner) for owner in ("audio", "audio", "vision")]
    learning = AdaptiveRunTimes([*_runs("vision", "eval-1", 1, *[MINUTE_MS] * 5), *mixed])
    found = learning.seen_by({"vision"})
    assert found.like("vision", "eval-1", 1).basis == "5 ended runs of team vision named eval-* on 1 GPU"
    assert found.like("audio", "tts-2", 8).basis == "3 ended runs on 5-8 GPUs"
    assert learning.seen_by({"audio"}).like("audio", "tts-2", 8).basis == "3 ended runs on 5-8 GPUs"
    assert learning.seen_by({"audio"}).like("vision", "eval-1", 64).basis == "8 ended runs of all teams"
    assert learning.seen_by(()).like("vision", "eval-1", 1).basis == "5 ended runs on 1 GPU"
    both = learning.seen_by({"audio", "vision"})
    assert both.like("audio", "tts-2", 8) == learning.like("audio", "tts-2", 8)
    learning.learn(PastRun("vision", "eval-1", 1, MINUTE_MS))
    assert found.like("vision", "eval-1", 1).runs == 6
