"""The MIG slices of a board that a job would fit, the smallest first."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

from gpucost.domain.gpu import MIG_TABLES, ShareBasis, mig_share

MEMORY_ROOM = 0.8
"""Part of a slice's memory that the job's 99th percentile may take: JDS' margin of 20 %."""
_GB = 10**9
_PROFILE = re.compile(r"(?P<g>\d)g\.(?P<gb>\d+)gb\Z")


@dataclass(frozen=True, slots=True)
class Fit:
    """``share`` is what the slice is of a board by the basis of the report, ``memory`` its bytes."""

    profile: str
    share: Fraction
    memory: float


def smallest_fit(
    model: str, memory_total: float, memory_p99: float, sm_p95: float, room: float, basis: ShareBasis
) -> Fit | None:
    """The first of ``fits``, if it is less than a board by the basis of the report."""
    found = next(fits(model, memory_total, memory_p99, sm_p95, room, basis), None)
    return found if found is not None and found.share < 1 else None


def fits(
    model: str,
    memory_total: float,
    memory_p99: float,
    sm_p95: float,
    room: float,
    basis: ShareBasis = ShareBasis.COMPUTE,
) -> Iterator[Fit]:
    """Slices with the least compute first, then the least memory, of which ``memory_p99`` takes at most
    ``room`` and whose share of the SMs is at least ``sm_p95``; the whole board is none.

    A slice has its part of the memory slices, but no more than its name says: 1g.10gb is 10 GB.
    """
    table = MIG_TABLES.get(model)
    if table is None:
        return
    found = list[tuple[Fraction, float, str]]()
    for profile, slices in table.memory_by_profile.items():
        match = _PROFILE.match(profile)
        if match is None or int(match["g"]) == table.compute_slices:
            continue
        compute = Fraction(int(match["g"]), table.compute_slices)
        memory = min(memory_total * slices / table.memory_slices, float(int(match["gb"]) * _GB))
        if memory_p99 <= room * memory and sm_p95 <= compute:
            found.append((compute, memory, profile))
    for _, memory, profile in sorted(found):
        yield Fit(profile, mig_share(model, profile, basis), memory)
