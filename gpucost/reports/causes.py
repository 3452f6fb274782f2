"""What stands behind a bucket of the waste ledger: the anti-patterns that claim its time, and their pages."""

from __future__ import annotations

from collections.abc import Mapping

from gpucost.detectors.findings import Pattern
from gpucost.domain.waste import Waste

HELD: Mapping[Waste, Pattern] = {
    Waste.UNAVAILABLE: Pattern.UNHEALTHY_ALLOCATED,
    Waste.GANG_STALL: Pattern.GANG_STALL,
    Waste.PREEMPTED: Pattern.PREEMPTION_WASTE,
    Waste.IDLE: Pattern.IDLE_ALLOCATION,
    Waste.OVERSIZED: Pattern.OVERSIZED_REQUEST,
}
"""Of time that somebody held."""
OF_NOBODY: Mapping[Waste, Pattern] = {
    Waste.UNAVAILABLE: Pattern.NOT_ADVERTISED,
    Waste.STARVED: Pattern.QUOTA_STARVATION,
    Waste.FRAGMENTED: Pattern.FRAGMENTATION,
}
"""Of time that nobody held."""


def patterns_of(waste: Waste) -> tuple[Pattern, ...]:
    """The anti-patterns whose findings have time in this bucket; none of a bucket that is no waste."""
    return tuple(found[waste] for found in (HELD, OF_NOBODY) if waste in found)


def pattern_of(waste: Waste, *, is_held: bool) -> Pattern:
    """The anti-pattern behind wasted time that somebody held, or nobody. Raises KeyError for what is no
    waste."""
    return ({**OF_NOBODY, **HELD} if is_held else {**HELD, **OF_NOBODY})[waste]


def page_of(pattern: Pattern | str) -> str:
    """The page of a pattern, as a path in gpucost's documentation."""
    return f"docs/detectors/{pattern}.md"
