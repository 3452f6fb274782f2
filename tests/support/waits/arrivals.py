"""Jobs that will be submitted during a wait: a stretch of the past, replayed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from random import Random

from gpucost.advisor.wait.simulation import JobArrival, JobArrivals
from gpucost.domain.errors import InputError


def as_before(past: Sequence[JobArrival], span_ms: int, horizon_ms: int) -> JobArrivals:
    """Each sample begins somewhere else in the ``span_ms`` of ``past`` (``at_ms`` from its start), and plays
    on for ``horizon_ms``, from the start again where it comes to the end. So bursts and sizes stay.

    Only jobs that overtake the target matter; leave the others out. The ids of a second round end in ``#2``.
    Raises InputError where the past does not lie within its span.
    """
    if span_ms < 1:
        raise InputError("span_ms", span_ms, "milliseconds above 0")
    for arrival in past:
        if not 0 <= arrival.at_ms < span_ms:
            raise InputError("at_ms", arrival.at_ms, f"from 0 to below the span of {span_ms} ms")
    rounds = -(-horizon_ms // span_ms) + 1

    def drawn(random: Random) -> list[JobArrival]:
        begin = random.randrange(span_ms)
        made = [
            JobArrival(
                at_ms, replace(arrival.run, id=arrival.run.id if not turn else f"{arrival.run.id}#{turn + 1}")
            )
            for turn in range(rounds)
            for arrival in past
            if 0 <= (at_ms := arrival.at_ms - begin + turn * span_ms) < horizon_ms
        ]
        return sorted(made, key=lambda arrival: (arrival.at_ms, arrival.run.id))

    return drawn
