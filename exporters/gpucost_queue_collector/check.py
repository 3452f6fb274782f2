"""``gpucost-queue-collector --check``: what of the cluster can be read, asked once, for who installs it."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping

from gpucost.cluster.state import CollectionStatus
from gpucost.kube.watch import ClusterWatch
from gpucost_queue_collector.journal import summary
from gpucost_queue_collector.settings import PAGE

LONGEST_S = 60.0
_HEAD = ("COLLECTION", "VERSION", "OBJECTS", "PROBLEM")
NOT_INSTALLED = "not installed"
NO_ANSWER = "no answer yet"


def check(watch: ClusterWatch, longest_s: float = LONGEST_S) -> Iterator[str]:
    """The lines of a table of every collection, once each was answered or ``longest_s`` have passed; the last
    sums them up. ``watch`` must have been started; ``is_readable`` gives the verdict."""
    deadline = time.monotonic() + longest_s
    while not all(map(_is_answered, watch.statuses().values())) and time.monotonic() < deadline:
        time.sleep(0.02)
    statuses = watch.statuses()
    counts = watch.counts()
    rows = [_HEAD, *(_row(name, each, counts[name]) for name, each in statuses.items())]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
    yield summary(statuses)
    if not is_readable(statuses):
        yield f"What to do: {PAGE}, Collection errors."


def is_readable(statuses: Mapping[str, CollectionStatus]) -> bool:
    """Whether every collection was read, or is not there."""
    return all((each.synced or each.absent) and not each.problem for each in statuses.values())


def _is_answered(status: CollectionStatus) -> bool:
    return status.synced or status.absent or bool(status.problem)


def _row(name: str, status: CollectionStatus, count: int) -> tuple[str, str, str, str]:
    if status.problem:
        return name, "-", "-", status.problem
    if status.absent:
        return name, "-", "-", NOT_INSTALLED
    if not status.synced:
        return name, "-", "-", NO_ANSWER
    return name, status.version, str(count), ""
