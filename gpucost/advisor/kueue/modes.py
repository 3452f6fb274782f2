"""How well a flavor serves a request, and which of two is preferred.

Rules: kueue v0.19.2, pkg/scheduler/flavorassigner/flavorassigner.go (isPreferred, shouldTryNextFlavor).
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

from gpucost.cluster.kueue import Fungibility

PREEMPTION_FIRST = "PreemptionOverBorrowing"
TRY_NEXT = "TryNextFlavor"


class Mode(IntEnum):
    """From worst to best."""

    NO_FIT = 0
    NO_CANDIDATES = 1
    """Only preemption would help, and there is nobody to preempt."""
    PREEMPT = 2
    """By preempting workloads of the own queue, among others."""
    RECLAIM = 3
    """By preempting workloads of other queues only."""
    FIT = 4


class Grade(NamedTuple):
    """A mode, and how high in the tree quota is borrowed for it."""

    mode: Mode
    level: int


BEST = Grade(Mode.FIT, 0)
WORST = Grade(Mode.NO_FIT, 2**31)


def is_preferred(one: Grade, other: Grade, fungibility: Fungibility) -> bool:
    """Whether ``one`` is strictly better. By default the mode counts first and the level second, whatever the
    comment of the API says; with PreemptionOverBorrowing the level counts first."""
    if one.mode is Mode.NO_FIT or other.mode is Mode.NO_FIT:
        return one.mode is not Mode.NO_FIT
    if (one.mode is Mode.NO_CANDIDATES) != (other.mode is Mode.NO_CANDIDATES):
        return other.mode is Mode.NO_CANDIDATES
    if fungibility.preference == PREEMPTION_FIRST:
        return (-one.level, one.mode) > (-other.level, other.mode)
    return (one.mode, -one.level) > (other.mode, -other.level)


def tries_next(grade: Grade, fungibility: Fungibility) -> bool:
    """Whether the flavors after one of this grade are looked at too."""
    if grade.mode in (Mode.PREEMPT, Mode.RECLAIM) and fungibility.when_can_preempt == TRY_NEXT:
        return True
    if grade.level > 0 and fungibility.when_can_borrow == TRY_NEXT:
        return True
    return grade.mode <= Mode.NO_CANDIDATES
