"""Idle policies and grouping: exact, the same for every reader, and never a changed total."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpucost.domain.errors import InputError
from gpucost.domain.rates import Rate
from gpucost.domain.scope import Scope
from gpucost.domain.time import DAY_MS, HOUR_MS, Window
from gpucost.reports.base.values import NOTHING, CostAmount
from gpucost.reports.month.allocations import (
    AllocationQuery,
    AllocationRow,
    Allocations,
    IdlePolicy,
    allocate,
    split_amount,
)
from tests.reports.builders import A100, START_MS, frame, row, small_lines

DAY = Window(START_MS, START_MS + DAY_MS)
FLAT = Rate("flat", 2_500_000_000, "USD", 2_500_000_000, "model", "vector", "2026-10-01")


def allocations(
    lines: list[dict[str, Any]], *group_by: str, window: Window = DAY, **query: Any
) -> Allocations:
    """``lines`` are of the first day or step, where they do not say of which."""
    lines = [{"step_start_ms": window.start_ms} | line for line in lines]
    return allocate(AllocationQuery(window, group_by or ("team",), **query), frame(lines), "USD")


def by_team(result: Allocations) -> dict[str, AllocationRow]:
    return {item.group["team"]: item for item in result.rows}


def totals(result: Allocations) -> dict[str, int | None]:
    return {name: item.total.nano for name, item in by_team(result).items()}


def v15() -> list[dict[str, Any]]:
    """An 8-GPU node for a day at 2.50: team a holds 5 GPUs, team b one."""
    return [
        row(120, FLAT, team="a", job="a"),
        row(24, FLAT, team="b", job="b"),
        row(48, FLAT, bucket="unallocated"),
    ]


@pytest.mark.vector("V15")
def test_idle_apart_and_shared_by_time() -> None:
    apart = allocations(v15())
    assert totals(apart) == {"a": 300 * 10**9, "b": 60 * 10**9, "__unallocated__": 120 * 10**9}
    shared = allocations(v15(), idle=IdlePolicy.PROPORTIONAL)
    assert totals(shared) == {"a": 400 * 10**9, "b": 80 * 10**9}
    assert apart.total == shared.total == CostAmount(192 * HOUR_MS, 480 * 10**9)


@pytest.mark.vector("V12")
@pytest.mark.parametrize("policy", list(IdlePolicy))
def test_a_filter_and_a_scope_come_after_sharing(policy: IdlePolicy) -> None:
    query = {"idle": policy, "quotas": {"a": 1, "b": 3}}
    whole = by_team(allocations(v15(), **query))["b"]
    filtered = allocations(v15(), **query, filters={"team": frozenset({"b"})})
    scoped = allocations(v15(), **query, scope=Scope(frozenset({"b"})))
    assert filtered.rows == scoped.rows == (whole,)


@pytest.mark.vector("V13")
def test_idle_of_a_model_that_nobody_held_stays_idle() -> None:
    lines = [*v15(), row(10, A100, bucket="unallocated", model="A100-80GB")]
    shared = by_team(allocations(lines, idle=IdlePolicy.PROPORTIONAL))
    assert shared["__unallocated__"].unallocated == CostAmount(10 * HOUR_MS, 34_310_000_000)
    assert shared["a"].total.nano == 400 * 10**9


def test_idle_by_quota_reaches_a_team_that_held_nothing() -> None:
    shared = by_team(allocations(v15(), idle=IdlePolicy.BY_QUOTA, quotas={"a": 1, "c": 2, "d": Fraction(0)}))
    assert {name: item.shared_idle.nano for name, item in shared.items()} == {
        "a": 40 * 10**9,
        "b": 0,
        "c": 80 * 10**9,
    }
    assert shared["c"].held == NOTHING


def test_inside_a_team_its_quota_follows_the_time_its_jobs_held() -> None:
    lines = [
        row(3, FLAT, team="a", job="x"),
        row(1, FLAT, team="a", job="y"),
        row(4, FLAT, bucket="unallocated"),
    ]
    result = allocations(lines, "job", idle=IdlePolicy.BY_QUOTA, quotas={"a": 1})
    assert {item.group["job"]: item.shared_idle.board_ms for item in result.rows} == {
        "x": 3 * HOUR_MS,
        "y": HOUR_MS,
    }


def test_unavailable_and_unknown_time_is_never_shared() -> None:
    result = by_team(allocations(small_lines(), idle=IdlePolicy.PROPORTIONAL))
    assert result["__unavailable__"].total == CostAmount(5 * HOUR_MS, 34_400_000_000)
    assert result["__unknown__"].total == CostAmount(5 * HOUR_MS, 34_400_000_000)
    assert "__unallocated__" not in result
    assert result["nlp"].shared_idle.board_ms == 20 * HOUR_MS
    assert result["vision"].shared_idle.board_ms == 10 * HOUR_MS


def test_overcommitted_time_is_no_part_of_the_total() -> None:
    nlp = by_team(allocations(small_lines()))["nlp"]
    assert nlp.overcommitted == CostAmount(3 * HOUR_MS, 0)
    assert nlp.total == nlp.held


def test_nobody_has_a_name_in_every_dimension_of_the_holder() -> None:
    result = allocations(small_lines(), "job", "model")
    names = {(item.group["job"], item.group["model"]) for item in result.rows}
    assert {("__unallocated__", "A100-80GB"), ("__unallocated__", "H100"), ("__unknown__", "H100")} < names


def test_idle_without_a_price_is_shared_as_time() -> None:
    lines = [row(1, FLAT, team="a", job="a"), row(3, None, bucket="unallocated")]
    shared = by_team(allocations(lines, idle=IdlePolicy.PROPORTIONAL))["a"].shared_idle
    assert shared == CostAmount(3 * HOUR_MS, None, 3 * HOUR_MS)


def test_steps_are_cut_at_the_edges_of_the_window() -> None:
    window = Window(START_MS + HOUR_MS, START_MS + DAY_MS + HOUR_MS)
    lines = [
        row(1, team="a", job="a", step_start_ms=START_MS + HOUR_MS),
        row(2, team="a", job="a", step_start_ms=START_MS + DAY_MS),
    ]
    result = allocations(lines, window=window, step_ms=DAY_MS)
    assert [item.window for item in result.rows] == [
        Window(START_MS + HOUR_MS, START_MS + DAY_MS),
        Window(START_MS + DAY_MS, START_MS + DAY_MS + HOUR_MS),
    ]


@pytest.mark.parametrize("step_ms", [None, DAY_MS, 7 * DAY_MS])
def test_idle_time_is_shared_by_the_day_whatever_the_step(step_ms: int | None) -> None:
    lines = [
        row(1, FLAT, team="a", job="a", step_start_ms=START_MS),
        row(1, FLAT, bucket="unallocated", step_start_ms=START_MS),
        row(1, FLAT, team="b", job="b", step_start_ms=START_MS + DAY_MS),
    ]
    week = Window(START_MS, START_MS + 7 * DAY_MS)
    result = allocations(lines, window=week, step_ms=step_ms, idle=IdlePolicy.PROPORTIONAL)
    shared = {item.group["team"]: item.shared_idle.board_ms for item in result.rows}
    assert shared == {"a": HOUR_MS, "b": 0}


@pytest.mark.parametrize("policy", [IdlePolicy.PROPORTIONAL, IdlePolicy.BY_QUOTA])
@pytest.mark.parametrize("step_ms", [HOUR_MS, 36 * HOUR_MS, 1])
def test_a_step_that_cuts_a_shared_day_is_refused_by_name(policy: IdlePolicy, step_ms: int) -> None:
    with pytest.raises(InputError, match=r"step: .* whole days, such as 1d") as caught:
        AllocationQuery(DAY, ("team",), step_ms, policy, {"a": 1})
    assert caught.value.field == "step"
    assert AllocationQuery(DAY, ("team",), step_ms).read_step_ms == step_ms


@pytest.mark.parametrize("group_by", [("team",), ("team", "job"), ("team", "user")])
def test_the_last_nano_goes_to_a_team_before_it_goes_to_a_job(group_by: tuple[str, ...]) -> None:
    """6 of 10 ms are team a's, so the only nano is; by jobs, 4 of 10 ms are more than 3 and 3."""
    lines = [
        row(0, board_ms=3, nano=0, team="a", job="x", user="ada"),
        row(0, board_ms=3, nano=0, team="a", job="y", user="ben"),
        row(0, board_ms=4, nano=0, team="b", job="z", user="cat"),
        row(0, board_ms=1, nano=1, bucket="unallocated"),
    ]
    shared = {"a": NOTHING, "b": NOTHING}
    for item in allocations(lines, *group_by, idle=IdlePolicy.PROPORTIONAL).rows:
        shared[item.group["team"]] += item.shared_idle
    assert shared == {"a": CostAmount(1, 1), "b": NOTHING}


SHARED_LINES = st.lists(
    st.tuples(
        st.integers(1, 10**7),
        st.integers(0, 10**11),
        st.sampled_from(["held", "held", "unallocated", "unknown"]),
        st.sampled_from(["a", "b", "c"]),
        st.sampled_from(["x", "y", "z"]),
        st.sampled_from(["H100", "L4"]),
        st.integers(0, 9),
    ),
    min_size=1,
    max_size=20,
)


@pytest.mark.fault(31)
@settings(max_examples=12, deadline=None)
@given(SHARED_LINES, st.sampled_from([IdlePolicy.PROPORTIONAL, IdlePolicy.BY_QUOTA]))
def test_a_team_pays_the_same_by_every_step_and_grouping(
    lines: list[tuple[int, int, str, str, str, str, int]], policy: IdlePolicy
) -> None:
    rows = [
        row(0, board_ms=ms, nano=nano, bucket=bucket, model=model, node=f"n-{job}")
        | ({"team": team, "job": job, "user": f"u-{job}"} if bucket == "held" else {})
        | {"step_start_ms": START_MS + day * DAY_MS}
        for ms, nano, bucket, team, job, model, day in lines
    ]
    window = Window(START_MS, START_MS + 10 * DAY_MS)
    query = {"idle": policy, "quotas": {"a": 3, "b": Fraction(5, 7), "d": 1}, "window": window}
    bills = []
    for group_by in (("team",), ("team", "job"), ("team", "node", "user", "model"), ("team", "bucket")):
        for step_ms in (None, DAY_MS, 3 * DAY_MS):
            bill: dict[str, CostAmount] = {}
            for item in allocations(rows, *group_by, step_ms=step_ms, **query).rows:
                team = item.group["team"]
                bill[team] = bill.get(team, NOTHING) + item.total
            bills.append(bill)
    assert all(bill == bills[0] for bill in bills)
    assert sum(bills[0].values(), NOTHING).nano == sum(nano for _, nano, *_ in lines)
    assert sum(bills[0].values(), NOTHING).board_ms == sum(ms for ms, *_ in lines)


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ({"group_by": ("teem",)}, "group_by: 'teem'"),
        ({"group_by": ("team", "team")}, "each dimension once"),
        ({"group_by": (), "filters": {"tame": frozenset()}}, "filter: 'tame'"),
        ({"group_by": (), "idle": IdlePolicy.BY_QUOTA}, "at least one team"),
        ({"group_by": (), "idle": IdlePolicy.BY_QUOTA, "quotas": {"a": 0}}, "at least one team"),
    ],
)
def test_a_wrong_query_is_refused_by_name(query: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        AllocationQuery(DAY, **query)


def test_a_query_says_what_to_ask_the_ledger_for() -> None:
    query = AllocationQuery(DAY, ("project",), filters={"node": frozenset({"n1"})})
    assert query.dims == ("cluster", "node", "model", "bucket", "project", "team")


LINES = st.lists(
    st.tuples(
        st.integers(1, 10**9),
        st.integers(0, 10**15) | st.none(),
        st.sampled_from(["held", "unallocated", "unavailable", "unknown"]),
        st.sampled_from(["a", "b", "c"]),
        st.sampled_from(["H100", "L4"]),
    ),
    max_size=12,
)


@pytest.mark.fault(31)
@settings(max_examples=20)
@given(
    LINES, st.sampled_from(list(IdlePolicy)), st.sampled_from([(), ("team",), ("model", "bucket"), ("job",)])
)
def test_no_policy_and_no_grouping_changes_a_total(
    lines: list[tuple[int, int | None, str, str, str]], policy: IdlePolicy, group_by: tuple[str, ...]
) -> None:
    rows = [
        row(0, board_ms=ms, nano=nano, unpriced_ms=ms if nano is None else 0, bucket=bucket, model=model)
        | ({"team": team, "job": team} if bucket == "held" else {})
        for ms, nano, bucket, team, model in lines
    ]
    query = AllocationQuery(DAY, group_by, idle=policy, quotas={"a": 2, "d": Fraction(1, 3)})
    found = frame(rows).assign(step_start_ms=START_MS)
    result = allocate(query, found, "USD")
    assert result.total.board_ms == sum(ms for ms, *_ in lines)
    assert result.total.nano or sum(nano or 0 for _, nano, *_ in lines) == 0
    assert result == allocate(query, found[::-1], "USD")
    assert all(item.total.board_ms > 0 or item.total.nano for item in result.rows)


@given(
    st.builds(CostAmount, st.integers(0, 10**15), st.integers(0, 10**18) | st.none(), st.integers(0, 10**15)),
    st.dictionaries(st.text(max_size=3), st.fractions(0, 100), min_size=1, max_size=6).filter(
        lambda weights: sum(weights.values()) > 0
    ),
)
def test_an_amount_splits_exactly(amount: CostAmount, weights: dict[str, Fraction]) -> None:
    parts = split_amount(amount, weights)
    assert sum(part.board_ms for part in parts.values()) == amount.board_ms
    assert sum(part.unpriced_board_ms for part in parts.values()) == amount.unpriced_board_ms
    if amount.nano is None:
        assert all(part.nano is None for part in parts.values())
    else:
        assert sum(part.nano or 0 for part in parts.values()) == amount.nano
    for key, part in parts.items():
        assert abs(part.board_ms - amount.board_ms * weights[key] / sum(weights.values())) < 1
