"""How GPUs divide among resources, and what is said when the numbers do not fit together."""

from __future__ import annotations

from fractions import Fraction

import pytest

from gpucost.attribution.segments import NodeLayout, ResourceCount, lay_out
from gpucost.domain.buckets import Bucket
from gpucost.domain.errors import DataProblemCode
from gpucost.domain.gpu import ResourceCatalog, ShareBasis
from tests.support.frames import H100


def layout(
    boards: int, *counts: ResourceCount, product: str = H100, held: tuple[str, ...] = ()
) -> NodeLayout:
    return lay_out(product, boards, counts, held, ResourceCatalog(), ShareBasis.COMPUTE)


def count(resource: str, units: int, allocatable: int | None = None, replicas: int = 1) -> ResourceCount:
    return ResourceCount(resource, units, units, units if allocatable is None else allocatable, replicas)


def test_slots_of_mixed_kinds_follow_one_another_and_leave_a_remainder() -> None:
    found = layout(2, count("nvidia.com/mig-2g.20gb", 1), count("nvidia.com/gpu", 1))
    assert (found.den, found.slots, found.remainder_base) == (7, 14, 9)
    assert [(kind.unit.resource, kind.base, kind.width) for kind in found.kinds] == [
        ("nvidia.com/gpu", 0, 7),
        ("nvidia.com/mig-2g.20gb", 7, 2),
    ]
    assert found.remainder_bucket is Bucket.UNALLOCATED


def test_a_board_that_nothing_advertises_is_unavailable() -> None:
    found = layout(8, count("nvidia.com/gpu", 7))
    assert found.slots - found.remainder_base == 1
    assert found.remainder_bucket is Bucket.UNAVAILABLE


def test_units_are_what_should_exist_and_available_is_what_is_advertised() -> None:
    [kind] = layout(8, ResourceCount("nvidia.com/gpu", 8, 7, 6, 1)).kinds
    assert (kind.units, kind.available) == (8, 6)
    [kind] = layout(8, ResourceCount("nvidia.com/gpu", -1, 8, -1, 1)).kinds
    assert (kind.units, kind.available) == (8, 8)


def test_replicas_of_slices_multiply_their_denominators() -> None:
    [kind] = layout(1, count("nvidia.com/mig-1g.10gb", 14, replicas=2)).kinds
    assert kind.unit.share == Fraction(1, 14)
    assert layout(1, count("nvidia.com/mig-1g.10gb", 14, replicas=2)).remainder_base == 14


@pytest.mark.parametrize(
    ("found", "code", "words"),
    [
        (layout(-1), DataProblemCode.COUNT_UNKNOWN, "how many GPUs the node has"),
        (
            layout(1, count("nvidia.com/gpu", 2)),
            DataProblemCode.CAPACITY_EXCEEDS_BOARDS,
            "more than the 1 it has",
        ),
        (layout(1, count("nvidia.com/mig-9g.99gb", 1)), DataProblemCode.UNIT_UNKNOWN, "9g.99gb on H100"),
        (layout(1, count("example.com/fpga", 1)), DataProblemCode.UNIT_UNKNOWN, "example.com/fpga"),
        (
            layout(1, count("nvidia.com/gpu", 4), product=f"{H100}-SHARED"),
            DataProblemCode.UNIT_UNKNOWN,
            "replica count",
        ),
    ],
)
def test_what_does_not_fit_together_is_said(found: NodeLayout, code: DataProblemCode, words: str) -> None:
    [(said, detail)] = found.problems
    assert said is code
    assert words in detail


def test_a_resource_without_a_count_gets_what_the_others_leave_and_no_more() -> None:
    held = ("nvidia.com/mig-1g.10gb", "nvidia.com/mig-3g.40gb")
    counted, inferred = layout(2, count("nvidia.com/mig-1g.10gb", 7), held=held).kinds
    assert (counted.base, counted.den, counted.inferred) == (0, 7, False)
    assert (inferred.base, inferred.units, inferred.available, inferred.inferred) == (7, 2, 0, True)
    _, nothing = layout(1, count("nvidia.com/mig-1g.10gb", 7), held=held).kinds
    assert nothing.units == 0


def test_where_nobody_counted_the_boards_either_exactly_what_is_held_exists() -> None:
    held = ("nvidia.com/mig-1g.10gb", "nvidia.com/mig-3g.40gb")
    counted, elastic = layout(-1, count("nvidia.com/mig-1g.10gb", 7), held=held).kinds
    assert (counted.base, counted.den) == (0, 7)
    assert (elastic.base, elastic.units, elastic.elastic) == (0, 0, True)


def test_resources_never_get_more_than_the_boards() -> None:
    [kind] = layout(1, count("nvidia.com/gpu", 2)).kinds
    assert (kind.units, kind.available) == (1, 1)


def test_hami_counts_cores_and_not_tenants_as_well() -> None:
    found = layout(1, count("nvidia.com/gpu", 10), count("nvidia.com/gpucores", 100))
    assert [kind.unit.resource for kind in found.kinds] == ["nvidia.com/gpucores"]
    assert (found.slots, found.remainder_base, found.problems) == (100, 100, ())


def test_what_is_left_of_a_board_with_an_unknown_slice_is_unknown() -> None:
    assert layout(1, count("nvidia.com/mig-9g.99gb", 1)).remainder_bucket is Bucket.UNKNOWN
