"""How the boards of a node are divided among its resources, at one moment.

The boards are cut into ``boards x den`` slots, ``den`` being the common denominator of all shares on the
node. Resources take slots in the order of their names, whatever is left is the remainder: the part of
the boards that no resource advertises (2/7 of a board that is sliced 3g + 2g).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import ceil, lcm

from gpucost.domain.errors import InputError
from gpucost.domain.gpu import ResourceCatalog, ShareBasis, UnitKind, parse_product
from gpucost.domain.holders import Bucket
from gpucost.domain.problems import ProblemCode

REMAINDER = "__remainder__"


@dataclass(frozen=True, slots=True)
class ResourceCount:
    """One row of the capacity frame: counts are units, -1 when unknown."""

    resource: str
    expected: int
    capacity: int
    allocatable: int
    replicas: int

    @property
    def is_known(self) -> bool:
        return max(self.expected, self.capacity, self.allocatable) >= 0


@dataclass(frozen=True, slots=True)
class KindLayout:
    """One resource: its units own slots ``[base, base + units x width)`` of ``den`` a board.

    ``units`` is what should exist, ``available`` what Kubernetes can hand out. ``elastic`` means that
    nothing says how many there are: then exactly what is held exists, and attribution reports the time. An
    elastic kind has boards and a denominator of its own, so that it never moves the others' slots.
    """

    unit: UnitKind
    units: int
    available: int
    width: int
    base: int
    den: int
    elastic: bool = False


@dataclass(frozen=True, slots=True)
class Layout:
    """The division of a node: ``slots`` of ``den`` a board, of which the kinds own the first ones."""

    model: str
    boards: int
    den: int
    kinds: tuple[KindLayout, ...]
    remainder_base: int
    remainder_bucket: Bucket
    problems: tuple[tuple[ProblemCode, str], ...] = ()

    @property
    def slots(self) -> int:
        return self.boards * self.den


def lay_out(
    product: str,
    boards: int,
    counts: Iterable[ResourceCount],
    held: Iterable[str],
    catalog: ResourceCatalog,
    basis: ShareBasis,
) -> Layout:
    """Divide ``boards`` (-1 when unknown, 0 for a node that is gone) of ``product`` among its resources.

    ``held`` names the resources that pods hold there: one without a count becomes elastic. Resources whose
    share cannot be told (a MIG slice of an unknown board) are left out, with a problem.
    """
    problems: list[tuple[ProblemCode, str]] = []
    rows = {row.resource: row for row in counts}
    units: list[tuple[UnitKind, ResourceCount | None]] = []
    for resource in sorted(rows.keys() | set(held)):
        row = rows.get(resource)
        try:
            unit = catalog.unit(resource, product, row.replicas if row else 1, basis)
        except InputError as error:
            problems.append((ProblemCode.UNIT_UNKNOWN, str(error)))
            continue
        units.append((unit, row))
    den = lcm(1, *(unit.share.denominator for unit, row in units if row and row.is_known))
    kinds, base = [], 0
    for unit, row in units:
        kind = _kind(unit, row, den, base)
        kinds.append(kind)
        base += kind.units * kind.width
    if boards < 0 and not any(kind.units for kind in kinds):
        problems.append((ProblemCode.COUNT_UNKNOWN, "nothing says how many GPUs the node has"))
    needed = ceil(base / den)
    if 0 <= boards < needed:
        detail = f"its resources stand for {base}/{den} boards, more than the {boards} it has"
        problems.append((ProblemCode.CAPACITY_EXCEEDS_BOARDS, detail))
    sliced = any(kind.unit.profile for kind in kinds)
    return Layout(
        model=parse_product(product).model,
        boards=max(boards, needed),
        den=den,
        kinds=tuple(kinds),
        remainder_base=base,
        # What MIG geometry leaves over could be sliced, but nobody did; a board that is not advertised
        # at all is broken or forgotten.
        remainder_bucket=Bucket.UNALLOCATED if sliced else Bucket.UNAVAILABLE,
        problems=tuple(problems),
    )


def _kind(unit: UnitKind, row: ResourceCount | None, den: int, base: int) -> KindLayout:
    if row is None or not row.is_known:
        return KindLayout(unit, 0, 0, unit.share.numerator, 0, unit.share.denominator, elastic=True)
    units = max(row.expected, row.capacity, row.allocatable)
    available = units if row.allocatable < 0 else row.allocatable
    width = unit.share.numerator * (den // unit.share.denominator)
    return KindLayout(unit, units, available, width, base, den)
