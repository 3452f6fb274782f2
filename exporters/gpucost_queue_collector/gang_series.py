"""Series of gangs: what they need, what runs, and since when one is partial.

While a gang stays partial its since never gets earlier, and becomes later only where its pods show that it
was whole in between: what told of the loss may be forgotten long before the gang is whole again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from gpucost.cluster.gangs import Gang
from gpucost.contract import queue_metrics as m
from gpucost.domain.jobs import Job, JobKind
from gpucost_queue_collector.lines import labels, line, sample
from gpucost_queue_collector.namespace_limit import OTHERS, NamespaceLimit, others_uid

SPECS = (
    m.GANG_INFO,
    m.GANG_MIN_MEMBERS,
    m.GANG_RUNNING,
    m.GANG_PENDING,
    m.GANG_HELD_UNITS,
    m.GANG_PARTIAL_SINCE,
)


class Stalls:
    """Remembers since when gangs are partial, for as long as they are."""

    def __init__(self) -> None:
        self._since: dict[str, int] = {}

    def find(self, gangs: Iterable[Gang], at_ms: int) -> Mapping[str, Gang]:
        """By uid, as they are at ``at_ms``. Where nothing says since when one is partial, it is since it was
        first found so."""
        found = {gang.uid: gang for gang in gangs}
        self._since = {
            uid: _since(gang, self._since.get(uid), at_ms) for uid, gang in found.items() if gang.is_partial
        }
        for uid, since_ms in self._since.items():
            if found[uid].partial_since_ms != since_ms:
                found[uid] = replace(found[uid], partial_since_ms=since_ms)
        return found


def _since(gang: Gang, before_ms: int | None, at_ms: int) -> int:
    since_ms = gang.partial_since_ms
    if before_ms is None:
        return at_ms if since_ms is None else since_ms
    return since_ms if since_ms is not None and since_ms > before_ms and gang.was_whole else before_ms


def _others(gangs: Sequence[Gang]) -> Mapping[str, Gang]:
    """Sums. That some of them are partial is not said: which, nobody could tell."""
    first, held = gangs[0], Counter[str]()
    for each in gangs:
        held.update(each.held)
    uid = others_uid(first.namespace)
    one = replace(
        first,
        name=OTHERS,
        uid=uid,
        job=Job(JobKind.OTHER, OTHERS, uid),
        queue="",
        min_members=sum(each.min_members for each in gangs),
        running=sum(each.running for each in gangs),
        pending=sum(each.pending for each in gangs),
        held=dict(sorted(held.items())),
        is_partial=False,
        partial_since_ms=None,
    )
    return {uid: one}


# Those that hold GPUs first: what they waste when they are partial is somebody's.
LIMIT = NamespaceLimit[Gang](
    lambda gang: gang.namespace, lambda gang: (int(not any(gang.held.values())), gang.uid), _others
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
