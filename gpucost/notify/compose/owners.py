"""Who owns what a notice is about."""

from __future__ import annotations

from gpucost.domain.holders import NO_TEAM, UNALLOCATED, UNAVAILABLE, UNKNOWN

_NOBODY = frozenset((NO_TEAM, UNALLOCATED, UNAVAILABLE, UNKNOWN))


def owner(team: str) -> str:
    """The team, or empty, which is the platform: for what belongs to no team."""
    return "" if team in _NOBODY else team
