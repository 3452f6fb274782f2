"""Who has a GPU unit: a pod, or one of the holders that are nobody.

Where capacity went: the buckets of the waste ledger.
"""

from __future__ import annotations

from enum import StrEnum


class Bucket(StrEnum):
    """The class of a usage line. The first four partition capacity; the last stands beside it."""

    HELD = "held"
    UNALLOCATED = "unallocated"
    UNAVAILABLE = "unavailable"
    UNKNOWN = "unknown"
    OVERCOMMITTED = "overcommitted"

    @property
    def is_capacity(self) -> bool:
        """Over-committed time is asked for beyond what exists, so it is no part of capacity."""
        return self is not Bucket.OVERCOMMITTED


RESERVED = "__"
"""What no name of a team begins with: those that do are nobody's, or several teams together."""
UNALLOCATED = "__unallocated__"
UNAVAILABLE = "__unavailable__"
UNKNOWN = "__unknown__"

HOLDER_OF_BUCKET = {
    Bucket.UNALLOCATED: UNALLOCATED,
    Bucket.UNAVAILABLE: UNAVAILABLE,
    Bucket.UNKNOWN: UNKNOWN,
}

# The team of a pod that no rule places: listed in reports, never dropped.
NO_TEAM = "__no_team__"
# On /metrics only: all teams beyond the limit, as one.
OTHER_TEAMS = "__other_teams__"


class Waste(StrEnum):
    """Every GPU-second of capacity is in exactly one; where several apply, in the first of this order."""

    UNAVAILABLE = "unavailable"
    """Not advertised, on a node that takes no work, or unhealthy, whether somebody held it or not."""
    GANG_STALL = "gang_stall"
    """Held by a gang that could not get on because members were missing."""
    PREEMPTED = "preempted"
    """Held by work that was stopped before it finished, and has to be done again; and its restart."""
    IDLE = "idle"
    """Held, and seen to do nothing."""
    OVERSIZED = "oversized"
    """The part of what was held that the work had no use for."""
    STARVED = "starved"
    """Free while somebody waited whom it would have fitted."""
    FRAGMENTED = "fragmented"
    """Free while somebody waited whom it did not fit."""
    NO_DEMAND = "no_demand"
    """Free, and nobody waited for it."""
    PRODUCTIVE = "productive"
    """Held, observed, and none of the above."""
    UNKNOWN = "unknown"
    """Nobody observed it, or no detector has looked at it."""

    @property
    def is_waste(self) -> bool:
        """Whether somebody could have had it back. Time without demand is not wasted, nor is the unknown."""
        return self not in (Waste.NO_DEMAND, Waste.PRODUCTIVE, Waste.UNKNOWN)


ORDER = {waste: rank for rank, waste in enumerate(Waste)}

REST: dict[Bucket, Waste] = {
    Bucket.HELD: Waste.PRODUCTIVE,
    Bucket.UNALLOCATED: Waste.NO_DEMAND,
    Bucket.UNAVAILABLE: Waste.UNAVAILABLE,
    Bucket.UNKNOWN: Waste.UNKNOWN,
}
"""What time of a usage line is when no detector claims it. Over-committed time is no capacity: in none."""
