"""Who has a GPU unit: a pod, or one of the holders that are nobody."""

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
