"""How often the ranges given so far held: counting only."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gpucost.domain.errors import InputError

LEAST = 20
"""Decided ranges that a queue needs to speak for itself; below it, all queues together do."""


@dataclass(frozen=True, slots=True)
class Given:
    """A range that was given, and what came of it: ``waited_ms`` so far, and whether it still waits.

    ``p50_ms`` and ``p90_ms`` are None where they lay beyond the horizon. Raises InputError for negatives.
    """

    queue: str
    p50_ms: int | None
    p90_ms: int | None
    waited_ms: int
    is_waiting: bool = False

    def __post_init__(self) -> None:
        for field in ("p50_ms", "p90_ms", "waited_ms"):
            value = getattr(self, field)
            if value is not None and value < 0:
                raise InputError(field, value, "milliseconds, 0 or more")


@dataclass(frozen=True, slots=True)
class Count:
    """``held`` of ``given`` ranges held. ``undecided`` still wait and may hold; ``without`` gave no number,
    because it lay beyond the horizon. Neither is among ``given``."""

    held: int
    given: int
    undecided: int
    without: int

    @property
    def share(self) -> float | None:
        """None where nothing is decided."""
        return self.held / self.given if self.given else None


@dataclass(frozen=True, slots=True)
class Calibration:
    """Of ``queue``, or of all queues (empty) where the queue has too few."""

    queue: str
    p50: Count
    p90: Count


def calibration(records: Iterable[Given], queue: str, least: int = LEAST) -> Calibration:
    """How often the wait was at most p50, and at most p90.

    A range that was given for a job which still waits counts as missed once the wait is longer than it, and
    is undecided until then. So while many wait, those missed are known before those held: read ``undecided``.
    """
    every = list(records)
    own = [record for record in every if record.queue == queue]
    counted = _counted(own, queue)
    return counted if counted.p90.given >= least else _counted(every, "")


def _counted(records: Sequence[Given], queue: str) -> Calibration:
    return Calibration(
        queue,
        _count([(record, record.p50_ms) for record in records]),
        _count([(record, record.p90_ms) for record in records]),
    )


def _count(pairs: Sequence[tuple[Given, int | None]]) -> Count:
    held = missed = undecided = without = 0
    for record, bound_ms in pairs:
        if bound_ms is None:
            without += 1
        elif record.waited_ms > bound_ms:
            missed += 1
        elif record.is_waiting:
            undecided += 1
        else:
            held += 1
    return Count(held, held + missed, undecided, without)
