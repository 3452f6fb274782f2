"""Series of gangs: what they need, what runs, and since when one is partial."""

from __future__ import annotations

from collections.abc import Sequence

from gpucost.cluster.gangs import Gang
from gpucost.contract import queue_metrics as m
from gpucost_queue_collector.lines import labels, line, sample

SPECS = (
    m.GANG_INFO,
    m.GANG_MIN_MEMBERS,
    m.GANG_RUNNING,
    m.GANG_PENDING,
    m.GANG_HELD_UNITS,
    m.GANG_PARTIAL_SINCE,
)


def write_gang(gang: Gang) -> Sequence[bytes]:
    """One text for each of SPECS."""
    identity = (gang.namespace, gang.name, gang.uid, gang.kind.value)
    written = labels(m.GANG_LABELS, identity)
    since_ms = gang.partial_since_ms
    held = (line(m.GANG_HELD_UNITS, (*identity, resource), n) for resource, n in gang.held.items())
    return (
        line(m.GANG_INFO, (*identity, gang.job.kind.value, gang.job.name, gang.job.uid, gang.queue), 1),
        sample(m.GANG_MIN_MEMBERS, written, gang.min_members),
        sample(m.GANG_RUNNING, written, gang.running),
        sample(m.GANG_PENDING, written, gang.pending),
        b"".join(held),
        b"" if since_ms is None else sample(m.GANG_PARTIAL_SINCE, written, since_ms / 1000),
    )
