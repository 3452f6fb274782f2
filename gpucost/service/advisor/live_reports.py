"""The cluster as it is now, as a caller may see it: queues, nodes, and the facts of ``gpucost state show``.

Made once for a state and a scope, and kept until the state changes: a page that asks every few seconds costs
nothing but its encoding.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import TypeVar, cast

from gpucost.domain.errors import InputError
from gpucost.domain.scope import Scope
from gpucost.domain.time import iso
from gpucost.kube.parse.collections import collections
from gpucost.ledger.stores.predictions import WaitPrediction
from gpucost.ledger.usage.job_index import JobQuery
from gpucost.reports.live.nodes_now import NodesNow, build_nodes, only_node
from gpucost.reports.live.queues_now import QueuesNow, StartEstimate, WaitingJob, build_queues, only_queue
from gpucost.reports.live.state_facts import StateFacts, facts
from gpucost.service.advisor.advisor_service import AdvisorService, AdvisorSnapshot

T = TypeVar("T")
_MOST_NAMED = 50
_MOST_KEPT = 256
"""Answers that are kept of one state; there are three for each scope that asks."""


class AdvisorTaken(Exception):
    """Too many ask the advisor now; trying again is safe."""


@dataclass(frozen=True, slots=True)
class LiveJobs:
    """Jobs of a cluster now: those that wait, and uids of those that hold GPUs. ``key`` changes with them."""

    cluster: str
    waiting: tuple[WaitingJob, ...]
    running: frozenset[str]
    key: int


def waiting_of(waiting: Iterable[WaitingJob], query: JobQuery, team: str | None) -> tuple[WaitingJob, ...]:
    """Those that ``query`` is about, as the ledger understands it."""
    namespace, slash, name = (query.name or "").rpartition("/")
    return tuple(
        each
        for each in waiting
        if (
            query.name is None
            or (name in (each.job, each.workload) and (not slash or namespace == each.namespace))
        )
        and (query.users is None or (each.user and each.user in query.users))
        and team in (None, each.team)
    )


class LiveReports:
    """Of the cluster that ``advising`` watches. ``foretold`` reads the predicted waits that are not over."""

    def __init__(self, advising: AdvisorService, foretold: Callable[[], Iterable[WaitPrediction]]) -> None:
        self._advising, self._foretold = advising, foretold
        self._lock = threading.Lock()
        self._of: AdvisorSnapshot | None = None
        self._kept: dict[Hashable, object] = {}

    @property
    def cluster(self) -> str:
        return self._advising.watched.cluster

    def queues(self, scope: Scope, queue: str | None = None) -> QueuesNow:
        """Raises NoState and AdvisorTaken; InputError for a ``queue`` that is not among those that the caller
        sees."""
        starts = tuple(each for each in self._foretold() if not each.is_decided)
        found = self._made(
            ("queues", scope.teams, starts),
            lambda snapshot: build_queues(
                self.cluster,
                snapshot.known.overview,
                snapshot.tenants.cluster_reader(scope.teams),
                self._advising.prices,
                {each.workload_uid: _start(each) for each in starts},
            ),
        )
        if queue is None:
            return found
        return _there(only_queue(found, queue), "queue", queue, [each.name for each in found.queues])

    def nodes(self, scope: Scope, node: str | None = None) -> NodesNow:
        """The same for nodes."""
        found = self._made(
            ("nodes", scope.teams),
            lambda snapshot: build_nodes(
                self.cluster,
                snapshot.known.overview,
                snapshot.tenants.cluster_reader(scope.teams),
                self._advising.prices,
            ),
        )
        if node is None:
            return found
        return _there(only_node(found, node), "node", node, [each.name for each in found.nodes])

    def jobs(self, scope: Scope) -> LiveJobs:
        """The jobs that wait and run. Raises NoState and AdvisorTaken."""
        waiting = self.queues(scope).waiting
        running = frozenset(pod.job_uid for node in self.nodes(scope).nodes for pod in node.pods)
        return LiveJobs(self.cluster, waiting, running, hash((repr(waiting), running)))

    def state(self, scope: Scope) -> StateFacts:
        """The facts of ``gpucost state show``. Raises NoState and AdvisorTaken."""
        return self._made(
            ("state", scope.teams),
            lambda snapshot: facts(
                snapshot.known.overview,
                snapshot.tenants.cluster_reader(scope.teams),
                expected=[each.name for each in collections()],
            ),
        )

    def _made(self, key: Hashable, make: Callable[[AdvisorSnapshot], T]) -> T:
        """What ``make`` makes of the current state; the state is for one thread at a time."""
        snapshot = self._advising.informed()
        with self._lock:
            if snapshot is not self._of or len(self._kept) >= _MOST_KEPT:
                self._of, self._kept = snapshot, {}
            if key not in self._kept:
                with self._advising.turns.one() as is_free:
                    if not is_free:
                        raise AdvisorTaken(str(self._advising.turns.most))
                    self._kept[key] = make(snapshot)
            return cast("T", self._kept[key])


def _start(foretold: WaitPrediction) -> StartEstimate:
    asked_ms = foretold.asked_ms
    p50, p90 = (
        None if wait_ms is None else iso(asked_ms + wait_ms) for wait_ms in (foretold.p50_ms, foretold.p90_ms)
    )
    return StartEstimate(iso(asked_ms), p50, p90)


def _there(found: T | None, field: str, name: str, names: Iterable[str]) -> T:
    if found is None:
        known = list(names)
        more = f" and {len(known) - _MOST_NAMED} more" if len(known) > _MOST_NAMED else ""
        allowed = f"{', '.join(known[:_MOST_NAMED])}{more}" if known else f"no {field}: you may see none"
        raise InputError(field, name, allowed)
    return found
