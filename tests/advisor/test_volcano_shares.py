"""What queues deserve by weight, against properties and against a plain division in small steps."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpucost.advisor.volcano.queue_shares import (
    QueueClaim,
    deserved,
    flat,
    not_guaranteed,
    real_capability,
    total_guarantee,
    tree,
)
from gpucost.advisor.volcano.resource_amounts import counted
from gpucost.cluster.objects.volcano import VolcanoQueue
from tests.cluster.builders import GPU, meta

SLACK = 1e-6
SOME = st.fixed_dictionaries({GPU: st.integers(0, 40), "cpu": st.integers(0, 64_000)})


def claim(name: str, weight: int, request: int, guarantee: int = 0, most: float = float("inf")) -> QueueClaim:
    return QueueClaim(name, weight, {GPU: guarantee} if guarantee else {}, {GPU: most}, {GPU: request})


def gpus(total: int, *claims: QueueClaim) -> list[float]:
    found = deserved({GPU: total}, claims)
    return [round(found[each.name].get(GPU, 0.0), 6) for each in claims]


@pytest.mark.parametrize(("claims", "expected"), [
    ([claim("a", 1, 9), claim("b", 1, 9)], [4, 4]),
    ([claim("a", 3, 9), claim("b", 1, 9)], [6, 2]),
    ([claim("a", 3, 5), claim("b", 1, 9)], [5, 3]),
    ([claim("a", 1, 2), claim("b", 1, 3), claim("c", 1, 9)], [2, 3, 3]),
    ([claim("a", 1, 1), claim("b", 1, 2)], [1, 2]),
    ([claim("a", 1, 9, most=1), claim("b", 1, 9)], [1, 7]),
    ([claim("a", 1, 0), claim("b", 1, 9)], [0, 8]),
    ([claim("a", 1, 9, guarantee=6), claim("b", 1, 9, most=2)], [6, 2]),
    ([claim("a", 1, 1, guarantee=6), claim("b", 1, 9, most=2)], [6, 2]),
    ([claim("a", 0, 9), claim("b", 1, 9)], [0, 8]),
    ([claim("a", 0, 9)], [0]),
    ([], []),
])  # fmt: skip
def test_eight_gpus_by_weight(claims: list[QueueClaim], expected: list[float]) -> None:
    assert gpus(8, *claims) == expected


def test_a_thirds_of_what_does_not_divide() -> None:
    assert gpus(8, *(claim(name, 1, 9) for name in "abc")) == [2.666667] * 3


def test_one_resource_that_is_met_does_not_end_the_other() -> None:
    both = [
        QueueClaim("a", 1, {}, {}, {GPU: 1, "cpu": 9_000}),
        QueueClaim("b", 1, {}, {}, {GPU: 9, "cpu": 1_000}),
    ]
    found = deserved({GPU: 8, "cpu": 8_000}, both)
    assert {name: {key: round(value) for key, value in each.items()} for name, each in found.items()} == {
        "a": {GPU: 1, "cpu": 7_000},
        "b": {GPU: 7, "cpu": 1_000},
    }


@st.composite
def divisions(draw: st.DrawFn) -> tuple[dict[str, int], list[QueueClaim]]:
    total = draw(SOME)
    left = dict(total)
    claims = []
    for at in range(draw(st.integers(1, 6))):
        guarantee = {key: draw(st.integers(0, left[key])) if draw(st.booleans()) else 0 for key in left}
        left = {key: left[key] - guarantee[key] for key in left}
        claims.append((f"q{at}", draw(st.integers(1, 9)), guarantee, draw(SOME), draw(SOME)))
    made = []
    for name, weight, guarantee, limit, request in claims:
        real = {key: min(left[key] + guarantee[key], max(limit[key], guarantee[key])) for key in left}
        made.append(QueueClaim(name, weight, guarantee, real, request))
    return total, made


@settings(max_examples=150, deadline=None)
@given(divisions(), st.randoms(use_true_random=False))
def test_nobody_gets_too_much_or_too_little(
    division: tuple[dict[str, int], list[QueueClaim]], rng: random.Random
) -> None:
    total, claims = division
    found = deserved(total, claims)
    for key in total:
        # A guarantee comes on top of what a round gave the others, as in Volcano.
        most = total[key] + sum(each.guarantee[key] for each in claims)
        assert sum(each.get(key, 0.0) for each in found.values()) <= most + SLACK * (1 + most)
    for each in claims:
        for key in total:
            got = found[each.name].get(key, 0.0)
            assert got <= max(each.guarantee[key], min(each.request[key], each.real_capability[key])) + SLACK
            assert got >= each.guarantee[key] - SLACK
    shuffled = list(claims)
    rng.shuffle(shuffled)
    assert deserved(total, shuffled) == found


def poured(total: int, claims: list[QueueClaim], step: float = 0.005) -> list[float]:
    """In drops: each goes to the queue with the least for its weight that can still take it."""
    got = [0.0] * len(claims)
    for _ in range(round(total / step)):
        takers = [at for at, each in enumerate(claims) if got[at] + step <= _limit(each) + 1e-9]
        if not takers:
            break
        at = min(takers, key=lambda at: got[at] / claims[at].weight)
        got[at] += step
    return got


def _limit(each: QueueClaim) -> float:
    return min(each.request[GPU], each.real_capability[GPU])


@settings(max_examples=40, deadline=None)
@given(
    st.integers(0, 12),
    st.lists(st.tuples(st.integers(1, 5), st.integers(0, 12), st.integers(0, 12)), min_size=1, max_size=4),
)
def test_without_guarantees_it_is_water_in_vessels(total: int, drawn: list[tuple[int, int, int]]) -> None:
    claims = [claim(f"q{at}", weight, request, 0, most) for at, (weight, request, most) in enumerate(drawn)]
    found = deserved({GPU: total}, claims)
    assert sum(each.get(GPU, 0.0) for each in found.values()) <= total + SLACK
    for each, expected in zip(claims, poured(total, claims), strict=True):
        assert found[each.name].get(GPU, 0.0) == pytest.approx(expected, abs=0.02)


def queue(name: str, **amounts: int | str) -> VolcanoQueue:
    own = {key: {GPU: value} for key, value in amounts.items() if isinstance(value, int)}
    return VolcanoQueue(meta(name, ""), parent=str(amounts.get("parent", "")), **own)  # type: ignore[arg-type]


@pytest.mark.parametrize(("capability", "guarantee", "others", "expected"), [
    (None, None, 0, 8), (None, None, 3, 5), (None, 2, 3, 5), (4, None, 3, 4), (6, None, 3, 5),
    (0, None, 0, 0), (None, None, 9, 0),
])  # fmt: skip
def test_the_most_a_queue_can_have(
    capability: int | None, guarantee: int | None, others: int, expected: int
) -> None:
    amounts = {"capability": capability, "guarantee": guarantee}
    own = queue("a", **{key: value for key, value in amounts.items() if value is not None})
    free = not_guaranteed({GPU: 8}, total_guarantee([own, queue("b", guarantee=others)]))
    assert real_capability(own, free)[GPU] == expected


def test_a_capability_of_no_cpu_is_none() -> None:
    own = VolcanoQueue(meta("a", ""), capability={"cpu": 0, GPU: 0})
    assert real_capability(own, {"cpu": 9_000.0, GPU: 8.0}) == {"cpu": 9_000.0, GPU: 0.0}


@pytest.mark.parametrize(("deserves", "expected"), [(3, 3), (4, 4), (5, 4), (1, 2)])
def test_what_is_given_is_cut_off_and_not_below_the_guarantee(deserves: int, expected: int) -> None:
    queues = {"a": queue("a", deserved=deserves, capability=4, guarantee=2)}
    assert flat(queues, {GPU: 8.0})["a"].deserved[GPU] == expected


def test_children_share_what_their_parent_can_have() -> None:
    named = {
        "root": queue("root"),
        "org": queue("org", capability=6),
        "a": queue("a", parent="org", guarantee=2),
        "b": queue("b", parent="org", capability=9),
        "far": queue("far"),
    }
    attrs, broken = tree(named, {GPU: 8.0, "cpu": 1_000.0})
    assert broken is None
    assert {name: attr.real_capability.get(GPU) for name, attr in attrs.items()} == {
        "root": float("inf"), "org": 6, "a": 6, "b": 4, "far": float("inf"),
    }  # fmt: skip
    assert [name for name, attr in attrs.items() if attr.is_leaf] == ["a", "b", "far"]
    assert attrs["a"].ancestors == ("root", "org")


def test_what_of_minimum_resources_counts() -> None:
    written = {
        "cpu": 1, "memory": 2, GPU: 3, "pods": 4, "count/pods": 4, "requests.cpu": 1, "limits.cpu": 1,
        f"requests.{GPU}": 3, "hugepages-2Mi": 5,
    }  # fmt: skip
    assert counted(written) == {"cpu": 1, "memory": 2, GPU: 3, "pods": 4, "hugepages-2Mi": 5}
