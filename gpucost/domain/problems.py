"""Facts that a number could not be computed from: printed beside it, never replaced by 0 or a default."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum


class ProblemCode(StrEnum):
    PRICE_MISSING = "price_missing"
    PRICE_DOUBTFUL = "price_doubtful"
    COUNT_UNKNOWN = "count_unknown"
    UNIT_UNKNOWN = "unit_unknown"
    NODE_UNKNOWN = "node_unknown"
    OVERCOMMITTED = "overcommitted"
    CAPACITY_EXCEEDS_BOARDS = "capacity_exceeds_boards"
    INTERVAL_REFUSED = "interval_refused"
    END_UNKNOWN = "end_unknown"
    TEAM_UNKNOWN = "team_unknown"
    NOT_OBSERVED = "not_observed"
    DUPLICATE_SOURCE = "duplicate_source"
    SERIES_REFUSED = "series_refused"
    NOT_CONSERVED = "not_conserved"
    # Of sources that see less than the objects: how far a number may be off.
    END_BOUNDED = "end_bounded"
    SHORT_UNSEEN = "short_unseen"
    USE_SAMPLED = "use_sampled"
    USE_UNSPLIT = "use_unsplit"
    USE_DROPPED = "use_dropped"


@dataclass(frozen=True, slots=True, order=True)
class Problem:
    """One problem: ``subject`` is what it is about (a node, a pod uid, a model), ``detail`` a sentence.

    ``board_ms`` is the board time touched, or None where it cannot be said; of a bound, the most by which a
    number may be off. ``at_ms`` is an instant of what it is about, where a source says which: it then stands
    with the window of that instant, however many are read at once.
    """

    code: ProblemCode
    cluster: str
    subject: str
    detail: str
    board_ms: int | None = None
    at_ms: int | None = field(default=None, compare=False)
