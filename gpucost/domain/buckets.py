"""Buckets: the class of a usage line, and where its capacity went.

``Bucket`` says who has a GPU unit: a pod, or one of the pseudo-holders of capacity that no pod holds.
``Waste`` says what became of it: the buckets of the waste ledger.
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
"""The prefix that no team's name may have: names with it stand for no holder, or for several teams
together."""
UNALLOCATED = "__unallocated__"
UNAVAILABLE = "__unavailable__"
UNKNOWN = "__unknown__"

HOLDER_OF_BUCKET = {
    Bucket.UNALLOCATED: UNALLOCATED,
    Bucket.UNAVAILABLE: UNAVAILABLE,
    Bucket.UNKNOWN: UNKNOWN,
}
HOLDERS_OF_NONE = frozenset(HOLDER_OF_BUCKET.values())
"""Names in the place of a team's for what nobody held: no team pays what is booked for them."""

# The team of a pod that no rule places: listed in reports, never dropped.
NO_TEAM = "__no_team__"
# On /metrics only: all teams beyond the limit, as one.
OTHER_TEAMS = "__other_teams__"


class Waste(StrEnum):
    """The buckets of the waste ledger. Every GPU-second of capacity is in exactly one; where several apply,
    in the first of this order."""

    UNAVAILABLE = "unavailable"
    """Not advertised, on a node that takes no work, or unhealthy, whether a pod held it or not."""
    GANG_STALL = "gang_stall"
    """Held by a gang that could not make progress because members were missing."""
    PREEMPTED = "preempted"
    """Held by work that was stopped before it finished and has to be repeated, and by its restart."""
    IDLE = "idle"
    """Held, and observed to do nothing."""
    OVERSIZED = "oversized"
    """The part of what was held that the work did not use."""
    STARVED = "starved"
    """Free while a pod waited that would have fitted."""
    STRANDED = "stranded"
    """Free in an NVLink domain of which ComputeDomains have a part, while a pod waited that needs more of it
    than they leave."""
    FRAGMENTED = "fragmented"
    """Free while a pod waited that did not fit."""
    NO_DEMAND = "no_demand"
    """Free, and no pod waited for it."""
    PRODUCTIVE = "productive"
    """Held, observed, and none of the above."""
    UNKNOWN = "unknown"
    """Not observed, or not yet assessed by the detectors."""

    @property
    def is_waste(self) -> bool:
        """Whether the capacity could have been of use. Time without demand is not wasted, nor is unknown
        time."""
        return self not in (Waste.NO_DEMAND, Waste.PRODUCTIVE, Waste.UNKNOWN)


ORDER = {waste: rank for rank, waste in enumerate(Waste)}

WASTE_WHEN_UNCLAIMED: dict[Bucket, Waste] = {
    Bucket.HELD: Waste.PRODUCTIVE,
    Bucket.UNALLOCATED: Waste.NO_DEMAND,
    Bucket.UNAVAILABLE: Waste.UNAVAILABLE,
    Bucket.UNKNOWN: Waste.UNKNOWN,
}
"""The waste bucket of the part of a usage line that no detector claims. Over-committed time is not capacity
and is in none."""
