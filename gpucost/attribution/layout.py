"""How the boards of a node are divided among its resources, at one moment.

The boards are cut into ``boards x den`` slots, ``den`` being the common denominator of all shares on the
node. Resources take slots in the order of their names, whatever is left is the remainder: the part of
the boards that no resource advertises (2/7 of a board that is sliced 3g + 2g).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
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
        return self.units >= 0

    @property
    def units(self) -> int:
        """What should exist; -1 when nothing says."""
        return max(self.expected, self.capacity, self.allocatable)


@dataclass(frozen=True, slots=True)
class KindLayout:
    """One resource: its units own slots ``[base, base + units x width)`` of ``den`` a board.

    ``units`` is what should exist, ``available`` what Kubernetes can hand out. Where nothing says how many
    there are, they are ``inferred`` from the boards that are left. Where nothing says how many boards there
    are either, the kind is ``elastic``: exactly what is held exists. It has boards and a denominator of its
    own, so that it never moves the others' slots. Attribution reports the time held of both.
    """

    unit: UnitKind
    units: int
    available: int
    width: int
    base: int
    den: int
    elastic: bool = False
    inferred: bool = False


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
    """Divide ``boards`` (-1 when unknown) of ``product`` among the resources of a node.

    ``held`` names the resources that pods hold there. One without a count gets what the others leave of the
    boards; where nothing says how many boards there are it is elastic. Together, resources never get more
    than the boards: what is held beyond that is over-committed. Resources whose share cannot be told (a MIG
    slice of an unknown board) are left out, and the rest of the boards is then unknown, with a problem.
    """
    boards = boards or -1  # a GPU node with 0 GPUs is one that nobody counted
    problems: list[tuple[ProblemCode, str]] = []
    rows = {row.resource: row for row in counts}
    units: list[tuple[UnitKind, ResourceCount]] = []
    for resource in sorted(rows.keys() | set(held), key=lambda name: (not _is_known(rows.get(name)), name)):
        row = rows.get(resource) or ResourceCount(resource, -1, -1, -1, 1)
        if _is_counted_in_parts(resource, rows):
            continue
        try:
            units.append((catalog.unit(resource, product, row.replicas, basis), row))
        except InputError as error:
            problems.append((ProblemCode.UNIT_UNKNOWN, str(error)))
    den = lcm(1, *(unit.share.denominator for unit, row in units if row.is_known or boards >= 0))
    slots = boards * den if boards >= 0 else None
    kinds: list[KindLayout] = []
    base = 0
    for unit, row in units:
        kind = _kind(unit, row, den, base, None if slots is None else slots - base)
        kinds.append(kind)
        base += kind.units * kind.width
    wanted = sum((unit.share * row.units for unit, row in units if row.is_known), Fraction(0))
    if boards < 0 and not any(kind.units for kind in kinds):
        problems.append((ProblemCode.COUNT_UNKNOWN, "nothing says how many GPUs the node has"))
    if 0 <= boards < wanted:
        detail = f"its resources stand for {wanted} boards, more than the {boards} it has"
        problems.append((ProblemCode.CAPACITY_EXCEEDS_BOARDS, detail))
    sliced = any(kind.unit.profile for kind in kinds if kind.units and not kind.inferred)
    is_blind = any(code is ProblemCode.UNIT_UNKNOWN for code, _ in problems)
    # What MIG geometry leaves over could be sliced, but nobody did; a board that is not advertised at all
    # is broken or forgotten.
    rest = Bucket.UNALLOCATED if sliced else Bucket.UNAVAILABLE
    return Layout(
        model=parse_product(product).model,
        boards=boards if boards >= 0 else ceil(base / den),
        den=den,
        kinds=tuple(sorted(kinds, key=lambda kind: kind.unit.resource)),
        remainder_base=base,
        remainder_bucket=Bucket.UNKNOWN if is_blind else rest,
        problems=tuple(problems),
    )


def _is_known(row: ResourceCount | None) -> bool:
    return row is not None and row.is_known


def _is_counted_in_parts(resource: str, rows: Mapping[str, ResourceCount]) -> bool:
    """HAMi hands out ``gpu`` as a mere number of tenants beside ``gpucores``, which are the real shares."""
    return resource == "nvidia.com/gpu" and _is_known(rows.get("nvidia.com/gpucores"))


def _kind(unit: UnitKind, row: ResourceCount, den: int, base: int, room: int | None) -> KindLayout:
    """``room`` is the number of slots that are left, None when nobody knows."""
    if not row.is_known and room is None:
        return KindLayout(unit, 0, 0, unit.share.numerator, 0, unit.share.denominator, elastic=True)
    width = unit.share.numerator * (den // unit.share.denominator)
    if not row.is_known:
        # Nothing advertises these units, so what nobody holds of them is not to be had.
        return KindLayout(unit, (room or 0) // width, 0, width, base, den, inferred=True)
    units = row.units if room is None else min(row.units, room // width)
    available = units if row.allocatable < 0 else min(row.allocatable, units)
    return KindLayout(unit, units, available, width, base, den)
