"""The smallest MIG slice of a board that a job would fit."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

from gpucost.domain.gpu import MIG_TABLES, ShareBasis, mig_share

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
    """The slice with the least compute, then the least memory, of which ``memory_p99`` takes at most ``room``
    and whose share of the SMs is at least ``sm_p95``. None where there is none below the whole board.

    A slice has its part of the memory slices, but no more than its name says: 1g.10gb is 10 GB.
    """
    table = MIG_TABLES.get(model)
    if table is None:
        return None
    found = list[tuple[Fraction, float, str]]()
    for profile, slices in table.memory_by_profile.items():
        match = _PROFILE.match(profile)
        if match is None or int(match["g"]) == table.compute_slices:
            continue
        compute = Fraction(int(match["g"]), table.compute_slices)
        memory = min(memory_total * slices / table.memory_slices, float(int(match["gb"]) * _GB))
        if memory_p99 <= room * memory and sm_p95 <= compute:
            found.append((compute, memory, profile))
    if not found:
        return None
    _, memory, profile = min(found)
    share = mig_share(model, profile, basis)
    return Fit(profile, share, memory) if share < 1 else None
