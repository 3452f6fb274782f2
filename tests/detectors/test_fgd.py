"""The FGD measure against the vectors of its authors' own unit tests, and against the definition in words."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucost.detectors.rules.fragmentation.fgd_gauge import (
    FragmentationMeasure,
    FragmentClass,
    TaskShape,
    TypicalPods,
)
from tests.support.placement import score

# (milli-CPU, milli-GPU per GPU, GPUs, type, weight in percent) of the authors' two lists
# (kubernetes-scheduler-simulator, pkg/utils/frag_test.go). Their weights do not add up to 100 %.
MIXED = [
    (6000, 465, 1, "", 9.33), (8000, 440, 1, "2080", 9.15), (8000, 475, 1, "T4", 8.76),
    (8000, 440, 1, "P100", 8.72), (2000, 465, 1, "", 8.68), (12000, 900, 1, "", 8.65),
    (4000, 900, 1, "", 8.43), (16000, 678, 1, "T4", 8.36), (8000, 500, 1, "", 8.29),
    (6000, 511, 1, "", 8.11), (14000, 1000, 2, "2080", 0.54), (4000, 1000, 1, "2080", 0.43),
    (32000, 1000, 2, "T4", 0.43), (16000, 1000, 1, "V100M16", 0.40), (64000, 1000, 2, "", 0.40),
    (10000, 1000, 2, "", 0.40), (11400, 1000, 1, "T4", 0.36), (16000, 1000, 1, "T4", 0.36),
    (4000, 1000, 2, "", 0.36), (14000, 1000, 2, "V100M16", 0.36), (8000, 1000, 4, "", 0.36),
    (16000, 1000, 2, "", 0.32), (2000, 1000, 1, "T4", 0.32), (6000, 1000, 1, "", 0.32),
    (4000, 1000, 1, "", 0.32), (5000, 1000, 1, "", 0.32), (32000, 1000, 4, "V100M16", 0.32),
    (32000, 1000, 2, "", 0.32), (24000, 1000, 8, "2080", 0.32), (40000, 1000, 4, "", 0.29),
    (32000, 1000, 8, "", 0.29), (32000, 1000, 1, "T4", 0.29), (16000, 1000, 1, "", 0.25),
    (7000, 1000, 1, "V100M16", 0.25), (24000, 1000, 1, "T4", 0.25),
]  # fmt: skip
WITH_CPU_TASKS = [
    (15700, 1000, 1, "", 28.69), (11900, 1000, 1, "", 18.93), (11400, 1000, 1, "", 12.27),
    (1000, 0, 0, "", 7.36), (18710, 1000, 1, "", 4.85), (8200, 1000, 1, "", 3.79),
    (16400, 1000, 1, "", 3.31), (9810, 1000, 1, "", 1.97), (15200, 1000, 1, "", 1.87),
    (11200, 1000, 1, "", 1.81), (14200, 1000, 1, "", 1.76), (12000, 0, 0, "", 1.65),
    (14900, 1000, 1, "", 1.39), (60200, 1000, 4, "", 1.23), (64200, 1000, 8, "", 1.07),
    (32200, 1000, 4, "", 1.01), (17400, 1000, 2, "", 0.91), (30200, 1000, 2, "", 0.69),
    (16000, 1000, 1, "", 0.64), (15000, 1000, 1, "", 0.59), (64000, 1000, 8, "", 0.53),
    (15000, 0, 0, "", 0.53), (11910, 1000, 1, "", 0.53), (120200, 1000, 8, "", 0.48),
    (11300, 1000, 1, "", 0.37), (30000, 1000, 2, "", 0.32), (9800, 1000, 1, "", 0.32),
    (8000, 1000, 1, "", 0.32), (2000, 1000, 1, "", 0.27), (2000, 80, 1, "", 0.27),
    (1000, 1000, 1, "", 0.27),
]  # fmt: skip
ONE = MIXED[:1]


def typical(rows: list[tuple[int, int, int, str, float]]) -> TypicalPods:
    shapes = tuple(TaskShape(cpu, gpu, count, (kind,) if kind else ()) for cpu, gpu, count, kind, _ in rows)
    return TypicalPods(shapes, np.array([weight for *_, weight in rows]), 100.0)


def of_node(shapes: TypicalPods, cpu: int, gpus: list[int], kind: str) -> FragmentationMeasure:
    left, gpu = np.array([cpu]), np.array([gpus])
    found = FragmentationMeasure.of(shapes, left, gpu, [kind], 1000 * len(gpus))
    assert shapes.of_nodes(left, gpu, shapes.allowed([kind]))[0] == pytest.approx(found.total, rel=1e-12)
    return found


@pytest.mark.parametrize(
    ("rows", "cpu", "gpus", "kind", "expected"),
    [
        (MIXED, 1000, [200, 1000, 1000, 500], "1080", 2566.62),
        (MIXED, 1000, [1000] * 4, "1080", 3802.40),
        (MIXED, 1000, [1000] * 8, "1080", 7604.80),
        (ONE, 1000, [200, 1000, 1000, 500], "1080", 251.91),
        (WITH_CPU_TASKS, 64_000, [1000] * 8, "P100", 887.20),
        (WITH_CPU_TASKS, 32_000, [1000] * 4 + [0] * 4, "P100", 554.4),
        (WITH_CPU_TASKS, 0, [1000] * 4 + [0] * 4, "P100", 4000.0),
    ],
)
def test_the_authors_vectors(
    rows: list[tuple[int, int, int, str, float]], cpu: int, gpus: list[int], kind: str, expected: float
) -> None:
    # Theirs are given to 0.01; the last one's weights add up to 100.00 within rounding of the list.
    assert of_node(typical(rows), cpu, gpus, kind).total == pytest.approx(expected, abs=0.01)


def test_classes() -> None:
    """One shape of each kind on a node with 2 cores, and GPUs of 0.2 and 1 left."""
    rows = {
        TaskShape(4000, 1000, 2): FragmentClass.LACKS_BOTH,
        TaskShape(2000, 1000, 2): FragmentClass.LACKS_GPU,
        TaskShape(4000, 1000, 1): FragmentClass.LACKS_CPU,
        TaskShape(2000, 0, 0): FragmentClass.CPU_TASK_FITS,
        TaskShape(4000, 0, 0): FragmentClass.CPU_TASK_LACKS_CPU,
        TaskShape(2000, 100, 1, ("A10",)): FragmentClass.OTHER_TYPE,
    }
    for shape, kind in rows.items():
        found = of_node(TypicalPods((shape,), np.ones(1), 1.0), 2000, [200, 1000], "T4")
        assert found.milli(kind) == found.total == found.idle == 1200
    fits = of_node(
        TypicalPods((TaskShape(2000, 500, 1, ("A10", "T4")),), np.ones(1), 1.0), 2000, [200, 1000], "T4"
    )
    assert fits.milli(FragmentClass.LACKS_GPU) == fits.total == 200
    assert fits.milli(FragmentClass.USABLE) == 1000
    assert (fits.ratio, fits.amount, fits.of_cpu_tasks) == (200 / 1200, 0.1, 0)


def test_typical_shapes_are_the_popular_ones() -> None:
    small, large, rare = TaskShape(1, 500, 1), TaskShape(8, 1000, 8), TaskShape(2, 1000, 1)
    pods = {small: 90, large: 6, rare: 4}
    kept = TypicalPods.of(pods)
    assert kept.shapes == (small, large)
    assert (kept.weights.tolist(), kept.total) == ([90, 6], 96)
    by_gpus = TypicalPods.of(pods, by_gpus=True)
    assert by_gpus.shapes == (large, small)  # 48, 45 and 4 GPUs: the last is beyond 95 %
    assert TypicalPods.of({}).shapes == ()
    nothing = FragmentationMeasure.of(TypicalPods.of({}), np.array([1]), np.array([[1000]]), ["T4"], 1000)
    assert (nothing.total, nothing.idle) == (0, 1000)


def test_scores_are_whole_and_50_where_nothing_changes() -> None:
    before = np.array([0.0, 1000.0, 0.0, 100.0])
    after = np.array([0.0, 0.0, 1000.0, 100.0])
    assert score(before, after).tolist() == [50.0, 73.0, 26.0, 50.0]


def in_words(shape: TaskShape, cpu: int, gpus: list[int], kind: str) -> int:
    """The definition, one case after the other."""
    fits = shape.gpu > 0 and cpu >= shape.cpu and (not shape.types or kind in shape.types)
    fits = fits and sum(left >= shape.gpu for left in gpus) >= shape.count
    return sum(left for left in gpus if left < shape.gpu) if fits else sum(gpus)


SHAPES = st.builds(
    lambda cpu, gpu, count, types: TaskShape(cpu, gpu, count if gpu else 0, types if gpu else ()),
    st.integers(0, 8),
    st.sampled_from([0, 100, 500, 1000]),
    st.integers(1, 4),
    st.sampled_from([(), ("A",), ("A", "B")]),
)
NODES = st.tuples(
    st.integers(0, 8),
    st.lists(st.sampled_from([0, 100, 400, 1000]), min_size=4, max_size=4),
    st.sampled_from("ABC"),
)


@given(
    st.dictionaries(SHAPES, st.integers(1, 9), min_size=1, max_size=6),
    st.lists(NODES, min_size=1, max_size=5),
)
def test_many_nodes_at_once_are_each_node_in_words(
    pods: dict[TaskShape, int], nodes: list[tuple[int, list[int], str]]
) -> None:
    all_of_them = TypicalPods.of(pods, coverage=1.0)
    cpu, gpu = np.array([node[0] for node in nodes]), np.array([node[1] for node in nodes])
    types = [node[2] for node in nodes]
    expected = [
        sum(count * in_words(shape, *node) for shape, count in pods.items()) / sum(pods.values())
        for node in nodes
    ]
    found = all_of_them.of_nodes(cpu, gpu, all_of_them.allowed(types))
    assert found.tolist() == pytest.approx(expected)
    whole = FragmentationMeasure.of(all_of_them, cpu, gpu, types, 1000 * gpu.size)
    assert whole.idle == pytest.approx(gpu.sum())
    assert whole.total == pytest.approx(sum(expected))
    assert 0 <= whole.amount <= whole.ratio <= 1 + 1e-12
