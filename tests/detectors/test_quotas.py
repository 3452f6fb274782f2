"""Series of quota, use and waiting: what arrays say in one go is what every minute says by itself."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucost.detectors.inputs.queue_quotas import (
    QueueKind,
    QueuePlace,
    QueueQuotas,
    StepFunction,
    combined,
    difference,
    free_units,
    least,
    pending,
)
from gpucost.detectors.inputs.unmet_demand import with_since
from gpucost.detectors.rules.quota_starvation.waiting_queues import waiting_queues
from gpucost.domain.time import MINUTE_MS
from tests.detectors.worlds import GPU, T0, World, at

END = 60
MINUTES = np.arange(END)


def _edges(*minutes: float) -> np.ndarray:  # type: ignore[type-arg]  # integers
    return np.array([at(minute) for minute in minutes], np.int64)


def _per_minute(series: StepFunction) -> list[float]:
    return series.at([at(minute) for minute in MINUTES]).tolist()


spans = st.lists(
    st.tuples(st.integers(0, END - 1), st.integers(1, END), st.integers(0, 9)).map(
        lambda each: (each[0], min(END, each[0] + each[1]), each[2])
    ),
    max_size=8,
)


def _naive(stretches: list[tuple[int, int, int]]) -> np.ndarray:  # type: ignore[type-arg]  # integers
    return sum(
        (amount * ((start <= MINUTES) & (end > MINUTES)) for start, end, amount in stretches),
        np.zeros(END, np.int64),
    )


def _series(stretches: list[tuple[int, int, int]]) -> StepFunction:
    start, end, amount = np.array(stretches, np.int64).reshape(-1, 3).T
    return StepFunction.summed(T0 + start * MINUTE_MS, T0 + end * MINUTE_MS, amount.astype(float))


@given(one=spans, other=spans)
def test_sums_differences_and_minima_are_those_of_every_minute(
    one: list[tuple[int, int, int]], other: list[tuple[int, int, int]]
) -> None:
    a, b = _series(one), _series(other)
    x, y = _naive(one), _naive(other)
    assert _per_minute(a) == x.tolist()
    assert _per_minute(least(a, b)) == np.minimum(x, y).tolist()
    assert _per_minute(difference(a, b)) == np.maximum(x - y, 0).tolist()
    assert _per_minute(combined(lambda p, q: p + q, a, b)) == (x + y).tolist()
    assert a.integral(at(7), at(41)) == x[7:41].sum() * MINUTE_MS
    assert a.most(at(7), at(41)) == x[7:41].max()
    starts, ends = a.stretches(at(7), at(41))
    inside = np.zeros(END, bool)
    for start, end in zip((starts - T0) // MINUTE_MS, (ends - T0) // MINUTE_MS, strict=True):
        inside[start:end] = True
    assert inside.tolist() == ((x > 0) & (MINUTES >= 7) & (MINUTES < 41)).tolist()
    assert (starts[1:] > ends[:-1]).all()


@given(one=spans, known=spans, part=st.sampled_from([0.05, 0.5, 0.95, 1.0]))
def test_a_quantile_is_that_of_the_minutes_that_are_known(
    one: list[tuple[int, int, int]], known: list[tuple[int, int, int]], part: float
) -> None:
    found = _series(one).quantile(part, at(0), at(END), _series(known))
    values = _naive(one)[_naive(known) > 0]
    if not len(values):
        assert np.isnan(found)
        return
    # The least value that is not exceeded in ``part`` of the minutes.
    wanted = next(v for v in sorted(set(values)) if (values <= v).sum() >= part * len(values) - 1e-9)
    assert found == wanted


@dataclass(frozen=True)
class _Row:
    queue: str
    start: int
    end: int
    nominal: int
    used: int
    lending: int | None


rows_of_queues = st.lists(
    st.builds(
        _Row,
        queue=st.sampled_from(["a", "b", "c"]),
        start=st.integers(0, 40),
        end=st.integers(41, END),
        nominal=st.integers(0, 8),
        used=st.integers(0, 12),
        lending=st.none() | st.integers(0, 8),
    ),
    max_size=3,
    unique_by=lambda row: row.queue,
)


@given(rows=rows_of_queues, gap=st.tuples(st.integers(0, 30), st.integers(31, END)), held=spans, asks=spans)
def test_what_others_leave_idle_is_what_every_minute_says(
    rows: list[_Row],
    gap: tuple[int, int],
    held: list[tuple[int, int, int]],
    asks: list[tuple[int, int, int]],
) -> None:
    world = World(END, seen=[(0, gap[0]), (gap[1], END)]).node("n1").node("n2", schedulable=0)
    for row in rows:
        world.quota(
            row.queue, row.nominal, row.used, row.start, row.end, lending_limit=row.lending, cohort="x"
        )
    for n, (start, end, units) in enumerate(held):
        world.pod(f"p{n}", "n1", start, end, units)
    for n, (start, end, pods) in enumerate(asks):
        world.waits(f"j{n}", start, end, pods=pods, cluster_queue="a")
    history = world.facts().history
    quotas = QueueQuotas.of(history)
    seen = (gap[0] > MINUTES) | (gap[1] <= MINUTES)

    def naive(queues: str, amount: str) -> np.ndarray:  # type: ignore[type-arg]  # integers
        return _naive([(r.start, r.end, _amount(r, amount)) for r in rows if r.queue in queues]) * seen

    place = QueuePlace(QueueKind.CLUSTER_QUEUE, "a")
    mine, others = quotas.mine(place, GPU), quotas.others(place, GPU)
    for name in ("nominal", "used", "unused", "lendable", "borrowed"):
        measure = getattr(quotas, name)
        assert _per_minute(measure(mine)) == naive("a", name).tolist()
        assert _per_minute(measure(others)) == naive("bc", name).tolist()
    free = np.maximum(8 - _naive(held), 0) * seen
    assert _per_minute(free_units(history, GPU)) == free.tolist()
    demand = with_since(history.frames.demand)
    waits = _naive(asks) * seen
    assert _per_minute(pending(history, demand)) == waits.tolist()
    for queue in waiting_queues(history, demand):
        idle = np.minimum(naive("bc", "unused"), free)
        assert _per_minute(queue.could_have) == np.minimum(waits, idle).tolist()
    lendable = naive("abc", "lendable")
    part = np.divide(naive("a", "lendable"), lendable, out=np.zeros(END), where=lendable > 0)
    lent = np.minimum(naive("a", "lendable"), part * naive("bc", "borrowed"))
    assert _per_minute(quotas.lent(place, GPU)) == pytest.approx(lent.tolist())


def _amount(row: _Row, name: str) -> int:
    unused = max(row.nominal - row.used, 0)
    return {
        "nominal": row.nominal,
        "used": row.used,
        "unused": unused,
        "lendable": unused if row.lending is None else min(unused, row.lending),
        "borrowed": max(row.used - row.nominal, 0),
    }[name]


def test_what_is_not_known_is_neither_unused_nor_borrowed() -> None:
    nan = float("nan")
    world = World(END).node("n1").quota("a", nan, 3).quota("b", 5, nan)
    quotas = QueueQuotas.of(world.facts().history)
    a, b = (quotas.mine(QueuePlace(QueueKind.CLUSTER_QUEUE, name), GPU) for name in "ab")
    assert _per_minute(quotas.unused(a | b)) == [0] * END
    assert _per_minute(quotas.known(a | b)) == [0] * END
    # Use without any quota is borrowed, all of it.
    assert _per_minute(quotas.borrowed(a)) == [3] * END
    assert _per_minute(quotas.borrowed(b)) == [0] * END


def test_queues_of_two_schedulers_with_one_name_are_two() -> None:
    world = World(END).node("n1").quota("a", 4, 0).quota("a", 2, 0, scheduler="volcano", flavor="")
    quotas = QueueQuotas.of(world.facts().history)
    assert [str(place) for place in quotas.queues(GPU)] == ["ClusterQueue a", "Volcano queue a"]
    unused = quotas.unused(quotas.mine(QueuePlace(QueueKind.VOLCANO_QUEUE, "a"), GPU))
    assert unused.at(_edges(0)).tolist() == [2]


def test_an_over_committed_node_has_nothing_free_and_takes_nothing_from_others() -> None:
    world = World(END).node("n1", 2).node("n2", 4).pod("p", "n1", 0, 30, units=5)
    free = free_units(world.facts().history, GPU)
    assert free.at(_edges(0, 29, 30)).tolist() == [4, 4, 6]
