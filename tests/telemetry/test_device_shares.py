"""A device that several pods have at the same time: its parts, at every moment, and what is left of it."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucost.domain.errors import DataProblemCode
from gpucost.domain.gpu import ShareMethod
from gpucost.domain.time import HOUR_MS
from gpucost.telemetry.evidence.device_shares import UNITS, PodShare, _part, divide

GPU = "gpu.nvidia.com"
CAPACITY, FRACTION, TIME, CLAIM, UNKNOWN = (
    ShareMethod.CAPACITY,
    ShareMethod.FRACTION,
    ShareMethod.TIME,
    ShareMethod.CLAIM,
    ShareMethod.UNKNOWN,
)
Part = Fraction


def pod(uid: str, start: int, end: int, count: int = 1, user: str = "") -> tuple[object, ...]:
    """A row of frames.ALLOCATIONS."""
    holder = ("team", f"pod-{uid}", uid, "Pod", uid, uid, "", "", "", "", "", "", user)
    return ("c", "n", *holder, GPU, count, start, end)


def node(start: int, end: int, units: int = 2, allocatable: int | None = None) -> tuple[object, ...]:
    """A row of frames.CAPACITY."""
    there = units if allocatable is None else allocatable
    return ("c", "n", GPU, start, end, units, units, there, 1, 1)


def share(claim: str, method: ShareMethod, part: object = 1, device: str = "gpu-0") -> PodShare:
    return PodShare(device, claim, method, Fraction(str(part)))


def divided(
    pods: list[tuple[object, ...]],
    shares: dict[str, list[PodShare]],
    nodes: list[tuple[object, ...]] | None = None,
) -> tuple[dict[Any, Any], dict[Any, Any], list[Any]]:
    """(pod, resource, start, end) -> part of a GPU; (resource, start, end) -> (GPUs, those allocatable);
    problems."""
    rows, capacity, problems = divide(
        pods, [node(0, 100)] if nodes is None else nodes, {(uid, GPU): each for uid, each in shares.items()}
    )
    replicas = {(row[2], row[3], row[4]): row[8] for row in capacity}

    def size(resource: Any, start: Any, end: Any) -> Any:
        of = {n for (name, a, b), n in replicas.items() if name == resource and a < end and start < b}
        assert len(of) <= 1
        return max(of, default=1)

    parts = {
        (row[4], row[15], row[17], row[18]): Fraction(row[16], size(row[15], row[17], row[18]))  # type: ignore[call-overload]
        for row in rows
    }
    assert len(parts) == len(rows)
    sizes = {
        (row[2], row[3], row[4]): (Fraction(row[6], row[8]), Fraction(row[7], row[8]))  # type: ignore[call-overload]
        for row in capacity
    }
    assert len(sizes) == len(capacity)
    return parts, sizes, problems


def test_consumed_capacity_is_the_part_and_the_rest_is_free() -> None:
    """10 and 70 of 80 GiB: an eighth from 10 on, seven eighths from 30 to 60."""
    shares = {"a": [share("ca", CAPACITY, "0.125")], "b": [share("cb", CAPACITY, "0.875")]}
    parts, sizes, problems = divided([pod("a", 10, 90), pod("b", 30, 60)], shares)
    by_capacity = f"{GPU}.dra-capacity"
    assert parts == {
        ("a", by_capacity, 10, 90): Part(1, 8),
        ("b", by_capacity, 30, 60): Part(7, 8),
    }
    assert sizes == {
        (GPU, 0, 10): (2, 2),
        (GPU, 10, 30): (1, 1),
        (GPU, 30, 60): (1, 1),
        (GPU, 60, 90): (1, 1),
        (GPU, 90, 100): (2, 2),
        (by_capacity, 10, 30): (1, 1),
        (by_capacity, 30, 60): (1, 1),
        (by_capacity, 60, 90): (1, 1),
    }
    assert problems == []


def test_without_amounts_those_who_have_it_at_the_same_time_have_equal_parts() -> None:
    """One alone has the whole GPU, under its own name."""
    shares = {uid: [share(f"c{uid}", TIME)] for uid in "abc"}
    parts, sizes, _ = divided([pod("a", 0, 60), pod("b", 20, 80), pod("c", 40, 60)], shares)
    by_time = f"{GPU}.dra-time"
    assert parts == {
        ("a", GPU, 0, 20): 1,
        ("a", by_time, 20, 40): Part(1, 2),
        ("b", by_time, 20, 40): Part(1, 2),
        ("a", by_time, 40, 60): Part(1, 3),
        ("b", by_time, 40, 60): Part(1, 3),
        ("c", by_time, 40, 60): Part(1, 3),
        ("b", GPU, 60, 80): 1,
    }
    assert {key: size for key, size in sizes.items() if key[0] == GPU} == {
        (GPU, 0, 20): (2, 2),
        (GPU, 20, 40): (1, 1),
        (GPU, 40, 60): (1, 1),
        (GPU, 60, 100): (2, 2),
    }


def test_pods_of_one_claim_have_equal_parts_of_its_part() -> None:
    """Two pods share 3/4, one has 1/4 of its own: 3/8, 3/8 and 1/4."""
    shares = {
        "a": [share("ca", CAPACITY, "0.75")],
        "b": [share("ca", CAPACITY, "0.75")],
        "c": [share("cb", CAPACITY, "0.25")],
    }
    parts, _, _ = divided([pod(uid, 0, 100) for uid in "abc"], shares)
    assert [parts[uid, f"{GPU}.dra-capacity", 0, 100] for uid in "abc"] == [
        Part(3, 8),
        Part(3, 8),
        Part(1, 4),
    ]


def test_a_whole_claim_of_several_pods() -> None:
    shares = {uid: [share("ca", CLAIM)] for uid in "abc"}
    parts, _, _ = divided([pod("a", 0, 50), pod("b", 0, 50), pod("c", 50, 100)], shares)
    assert parts == {
        ("a", f"{GPU}.dra-claim", 0, 50): Part(1, 2),
        ("b", f"{GPU}.dra-claim", 0, 50): Part(1, 2),
        ("c", GPU, 50, 100): 1,
    }


def test_amounts_first_and_the_rest_in_equal_parts() -> None:
    shares = {
        "a": [share("ca", CAPACITY, "0.5")],
        "b": [share("cb", TIME)],
        "c": [share("cc", TIME)],
    }
    parts, _, _ = divided([pod(uid, 0, 100) for uid in "abc"], shares)
    assert [parts[uid, f"{GPU}.dra-capacity", 0, 100] for uid in "abc"] == [
        Part(1, 2),
        Part(1, 4),
        Part(1, 4),
    ]


@pytest.mark.parametrize(
    ("shares", "expected", "is_odd"),
    [
        # Stale amounts of one that is going beside those of one that is coming.
        ({"a": (CAPACITY, "0.75"), "b": (CAPACITY, "0.75")}, (Part(1, 2), Part(1, 2)), True),
        ({"a": (CAPACITY, "1"), "b": (CAPACITY, "0.5")}, (Part(2, 3), Part(1, 3)), True),
        # Nothing is left for those without an amount: the second tenant is not zero, and no part grows.
        ({"a": (CAPACITY, "1"), "b": (TIME, "1")}, (Part(1, 2), Part(1, 2)), True),
        (
            {"a": (FRACTION, "0.8"), "b": (FRACTION, "0.2"), "c": (UNKNOWN, "1")},
            (Part(8, 15), Part(2, 15), Part(1, 3)),
            True,
        ),
        # Two claims that each have the whole device.
        ({"a": (CLAIM, "1"), "b": (CLAIM, "1")}, (Part(1, 2), Part(1, 2)), False),
    ],
)
def test_a_device_never_adds_up_to_more_than_one(shares: Any, expected: Any, is_odd: bool) -> None:
    given_out = {uid: [share(f"c{uid}", *of)] for uid, of in shares.items()}
    parts, _, problems = divided([pod(uid, 0, 100) for uid in shares], given_out)
    assert tuple(parts.values()) == expected
    assert [each.board_ms for each in problems] == ([100] if is_odd else [])


def test_devices_of_its_own_stay_whole_and_several_shares_of_one_add_up() -> None:
    """A pod of three devices: one of its own, one shared, one of which it has two shares."""
    shares = {
        "a": [
            share("ca", TIME),
            share("cb", CAPACITY, "0.25", "gpu-1"),
            share("cd", CAPACITY, "0.5", "gpu-1"),
        ],
        "b": [share("cc", TIME)],
    }
    parts, sizes, _ = divided([pod("a", 0, 100, 3), pod("b", 0, 100)], shares, [node(0, 100, 4)])
    assert parts == {
        ("a", GPU, 0, 100): 1,
        ("a", f"{GPU}.dra-time", 0, 100): Part(1, 2),
        ("b", f"{GPU}.dra-time", 0, 100): Part(1, 2),
        ("a", f"{GPU}.dra-capacity", 0, 100): Part(3, 4),
    }
    assert sizes == {
        (GPU, 0, 100): (2, 2),
        (f"{GPU}.dra-time", 0, 100): (1, 1),
        (f"{GPU}.dra-capacity", 0, 100): (1, 1),
    }


def test_parts_of_which_nobody_says_what_they_are_parts_of_are_a_problem_with_their_gpu_time() -> None:
    """Alone too: it is charged the whole of a GPU of which it may have a part."""
    shares = {"a": [share("ca", UNKNOWN)], "b": [share("cb", CAPACITY, "0.25")]}
    parts, _, [problem] = divided([pod("a", 0, 100), pod("b", 40, 60)], shares)
    assert parts["a", GPU, 0, 40] == 1
    assert parts["a", f"{GPU}.unknown-part", 40, 60] == Part(3, 4)
    assert (problem.code, problem.subject, problem.board_ms) == (DataProblemCode.SHARE_UNKNOWN, "n", 100)
    assert "team/pod-a, team/pod-b" in problem.detail


def test_parts_that_are_not_known_are_a_problem_of_each_hour_with_the_pods_of_that_hour() -> None:
    """So windows have the same problems, however many of them are read at once."""
    shares = {"a": [share("ca", UNKNOWN)], "b": [share("cb", UNKNOWN)]}
    _, _, problems = divided([pod("a", 10, 2 * HOUR_MS + 5), pod("b", HOUR_MS, HOUR_MS + 7)], shares)
    assert [(each.at_ms, each.board_ms, "team/pod-b" in each.detail) for each in problems] == [
        (10, HOUR_MS - 10, False),
        (HOUR_MS, HOUR_MS, True),
        (2 * HOUR_MS, 5, False),
    ]


def test_a_problem_names_a_few_pods_and_is_one_for_a_device() -> None:
    pods = [pod(f"u{n}", n, n + 10) for n in range(50)]
    _, _, [problem] = divided(pods, {f"u{n}": [share(f"c{n}", UNKNOWN)] for n in range(50)})
    assert "and 44 more" in problem.detail
    assert (problem.board_ms, len(problem.detail) < 400) == (59, True)


def test_a_change_of_attributes_moves_no_millisecond() -> None:
    shares = {"a": [share("ca", TIME)], "b": [share("cb", TIME)]}
    parts, _, _ = divided([pod("a", 0, 30), pod("a", 30, 100, user="x"), pod("b", 0, 100)], shares)
    held = {
        uid: sum(part * (key[3] - key[2]) for key, part in parts.items() if key[0] == uid) for uid in "ab"
    }
    assert held == {"a": 50, "b": 50}


def test_a_node_that_has_lost_devices_has_no_more_than_is_left() -> None:
    """What is held of the others is over-committed."""
    shares = {"a": [share("ca", TIME)], "b": [share("cb", TIME)]}
    pods = [pod("a", 0, 100), pod("b", 0, 100)]
    _, sizes, _ = divided(pods, shares, [node(0, 100, 8, 1)])
    assert sizes == {(GPU, 0, 100): (7, 0), (f"{GPU}.dra-time", 0, 100): (1, 1)}
    _, sizes, _ = divided(pods, shares, [node(0, 50, 1), node(50, 80, 0)])
    assert sizes == {
        (GPU, 0, 50): (0, 0),
        (GPU, 50, 80): (0, 0),
        (f"{GPU}.dra-time", 0, 50): (1, 1),
        (f"{GPU}.dra-time", 50, 80): (0, 0),
    }


def test_the_smallest_part_is_a_unit_and_parts_still_add_up() -> None:
    small = {f"u{n}": Part(1, 1_000_000) for n in range(200)}
    parts = {**small, "big": 1 - sum(small.values(), Part(0)), "third": Part(0)}
    shares = {uid: [PodShare("gpu-0", uid, CAPACITY, part)] for uid, part in parts.items() if part}
    rows, _, _ = divide(
        [pod(uid, 0, 100) for uid in shares],
        [node(0, 100)],
        {(uid, GPU): each for uid, each in shares.items()},
    )
    units = {str(row[4]): int(str(row[16])) for row in rows}
    assert sum(units.values()) == UNITS
    assert {units[uid] for uid in small} == {1}


@pytest.mark.parametrize("amounts", [(10**10, 2 * 10**10), (1, 3), (7 * 10**9, 11 * 10**9, 13**8), (5,) * 6])
def test_amounts_that_fill_a_device_are_known_however_odd_they_are(amounts: tuple[int, ...]) -> None:
    """Of 80 GiB in bytes: as they come from Prometheus, their sum may be a little more or less than 1."""
    whole = 80 * 2**30
    consumed = [*amounts, whole - sum(amounts)]
    told = [
        (name, _part(CAPACITY.value, each / whole)) for name, each in zip("abcdefg", consumed, strict=False)
    ]
    shares = {name: [PodShare("gpu-0", name, *part)] for name, part in told}
    parts, _, problems = divided([pod(name, 0, 100) for name in shares], shares)
    assert problems == []
    assert sum(parts.values()) == 1
    for name, each in zip(shares, consumed, strict=True):
        assert abs(parts[name, f"{GPU}.dra-capacity", 0, 100] - Part(each, whole)) < Part(7, UNITS)
    # Nothing is left for one without an amount.
    shares["z"] = [share("z", TIME)]
    _, _, [problem] = divided([pod(name, 0, 100) for name in shares], shares)
    assert problem.code is DataProblemCode.SHARE_UNKNOWN


def test_of_two_accounts_of_one_share_the_order_is_no_matter() -> None:
    pods = [pod("a", 0, 100), pod("b", 0, 100)]
    one, other = share("ca", CAPACITY, "0.125"), share("cb", CAPACITY, "0.875")
    parts, _, _ = divided(pods, {"a": [one], "b": [other]})
    assert [parts[uid, f"{GPU}.dra-capacity", 0, 100] for uid in "ab"] == [Part(1, 8), Part(7, 8)]


TIMES = st.tuples(st.integers(0, 99), st.integers(1, 100)).filter(lambda each: each[0] < each[1])
SHARES = st.builds(
    PodShare,
    device=st.sampled_from(["gpu-0", "gpu-1"]),
    claim=st.sampled_from(["c1", "c2", "c3"]),
    method=st.sampled_from(list(ShareMethod)),
    part=st.fractions(Fraction(1, 100), 1, max_denominator=100),
)
PODS = st.lists(st.tuples(TIMES, st.lists(SHARES, max_size=3)), max_size=6)


@given(PODS)
def test_every_moment_of_every_device_is_given_out_once(pods: list[Any]) -> None:
    """What is held and what there is, in parts of GPUs, at every moment; who has a device has some of it."""
    rows = [
        pod(f"u{i}", *times, len({each.device for each in shares})) for i, (times, shares) in enumerate(pods)
    ]
    rows = [row for row in rows if row[16]]
    shares = {(f"u{i}", GPU): shares for i, (_, shares) in enumerate(pods)}
    found, capacity, _ = divide(rows, [node(0, 100)], shares)
    for at in range(100):
        there = {row[2]: row for row in capacity if row[3] <= at < row[4]}  # type: ignore[operator]
        assert sum(Fraction(row[6], row[8]) for row in there.values()) == 2  # type: ignore[call-overload]
        now = [row for row in found if row[17] <= at < row[18]]  # type: ignore[operator]
        for resource, row in there.items():
            held = sum(int(str(each[16])) for each in now if each[15] == resource)
            assert held <= row[6]  # type: ignore[operator]
        users = {row[4] for row in rows if row[17] <= at < row[18]}  # type: ignore[operator]
        assert {row[4] for row in now} == users


def test_thousands_of_pods_on_a_device_are_divided_by_rounded_times() -> None:
    """1,000 pods that come 3.5 s apart and stay until the hour is over: half a million parts by the second.
    Others that have it for a second each stay exact."""
    hour, second = 3_600_000, 1_000
    long = [pod(f"s{n}", n * 3_500, hour) for n in range(1_000)]
    shares = {row[4]: [share(f"c-{row[4]}", TIME)] for row in long}
    rows, _, [problem] = divide(
        long, [node(0, hour)], {(str(uid), GPU): each for uid, each in shares.items()}
    )
    assert problem.code is DataProblemCode.SHARE_UNKNOWN
    # Of no instant: the pipeline then reads windows alone, so that none depends on its batch.
    assert (problem.board_ms, problem.at_ms) == (hour, None)
    assert "held by 1000 pods" in problem.detail
    assert {row[4] for row in rows} == set(shares), "nobody has it for nothing"
    for at in range(0, hour, 7 * 60 * second):
        assert sum(int(str(row[16])) for row in rows if row[17] <= at < row[18]) == UNITS  # type: ignore[operator]
    short = [pod(f"s{n}", n * 3_500, n * 3_500 + second) for n in range(300)]
    rows, _, problems = divide(
        short, [node(0, hour)], {(str(uid), GPU): each for uid, each in shares.items()}
    )
    assert (len(rows), problems) == (300, [])
