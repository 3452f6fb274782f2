"""The log about the API server: a few lines for an outage, not one for each of forty collections."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping

from gpucost.cluster.objects.state import CollectionStatus
from gpucost_queue_collector.collector import QueueCollector

logger = logging.getLogger(__name__)

REFLECTORS = logging.getLogger("gpucost.kube.watch.reflector")
ONE_OUTAGE_S = 60.0
NAMED = 6
"""Collections that are named for each reason; the others are counted."""


class FirstFailureFilter(logging.Filter):
    """Of the reflectors' messages, the first failure for each reason within ``ONE_OUTAGE_S``, with the
    server's words, and errors of our own. The rest is in the journal's summary."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._monotonic = monotonic
        self._said_s: dict[str, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno != logging.WARNING:
            return record.levelno > logging.WARNING
        reason, now_s = str(getattr(record, "reason", record.msg)), self._monotonic()
        said_s = self._said_s.get(reason)
        if said_s is not None and now_s - said_s < ONE_OUTAGE_S:
            return False
        self._said_s[reason] = now_s
        return True


class CollectionJournal:
    """Logs what has changed since the last call of ``tell``; for one thread."""

    def __init__(self, collector: QueueCollector) -> None:
        self._collector = collector
        self._told: object = None
        self._is_current: bool | None = None

    def tell(self) -> None:
        """Log changes. To be called after every refresh."""
        statuses = self._collector.watch.statuses()
        stand = {name: (bool(each.problem), each.absent, each.synced) for name, each in statuses.items()}
        if stand != self._told:
            is_down = any(each.problem for each in statuses.values())
            logger.log(logging.WARNING if is_down else logging.INFO, "%s", summary(statuses))
        self._told = stand
        self._tell_heartbeat(self._collector.is_current)

    def _tell_heartbeat(self, is_current: bool) -> None:
        if is_current and not self._is_current:
            logger.info("the view of pods and nodes is current: gpucost_state_up is 1")
        elif not is_current and self._is_current is not False:
            logger.warning("the view of pods and nodes is not current: gpucost_state_up is 0")
        self._is_current = is_current


def summary(statuses: Mapping[str, CollectionStatus]) -> str:
    """How many collections are read, are not installed, and cannot be read, and why."""
    absent = sum(each.absent and not each.problem for each in statuses.values())
    read = sum(each.synced and not each.absent and not each.problem for each in statuses.values())
    by_reason: dict[str, list[str]] = {}
    for name, each in statuses.items():
        if each.problem:
            by_reason.setdefault(each.problem, []).append(name)
    parts = [f"{read} collections are read, {absent} are not installed"]
    pending = len(statuses) - read - absent - sum(map(len, by_reason.values()))
    if pending:
        parts.append(f"{pending} have not been read yet")
    parts += [
        f"{len(names)} cannot be read: {reason} ({_named(names)})" for reason, names in by_reason.items()
    ]
    return "; ".join(parts)


def _named(names: list[str]) -> str:
    more = len(names) - NAMED
    return ", ".join(names[:NAMED]) + (f" and {more} more" if more > 0 else "")
