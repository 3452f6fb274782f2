"""Notices about waiting jobs, with the change by which the advisor expects them to start earlier."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from gpucost.advisor.request.scheduling_request import WORKLOAD, gpus_of
from gpucost.cluster.objects.kueue import Workload, WorkloadState
from gpucost.domain.buckets import NO_TEAM
from gpucost.domain.time import HOUR_MS, MINUTE_MS
from gpucost.notify.compose.advice import advice_key, of_advice, over
from gpucost.notify.compose.links import MessageLinks
from gpucost.notify.notices import Conversation, Notice, NoticeKind
from gpucost.service.advisor.advisor_service import AdvisorService, AdvisorSnapshot, NoState

WAITED_MS = 30 * MINUTE_MS
"""A job that waited this long gets a notice; most wait for less."""
AGAIN_MS = 6 * HOUR_MS
"""What would help changes with the queue: the advisor is asked again after this time."""
MOST_AT_ONCE = 2
"""A question with suggestions takes seconds of the core that answers requests."""
_GONE = (WorkloadState.INACTIVE, WorkloadState.FINISHED)


@dataclass(frozen=True, slots=True)
class _AskedAdvice:
    at_ms: int
    notice: Notice | None


class AdviceNotices:
    """The source of notices about one watched cluster. Without a current state it makes none."""

    def __init__(self, advising: AdvisorService, links: MessageLinks, currency: Callable[[], str]) -> None:
        self._advising = advising
        self._cluster = advising.watched.cluster
        self._links = links
        self._currency = currency
        self._asked: dict[str, _AskedAdvice] = {}

    def __call__(self, now_ms: int, told: Sequence[Conversation]) -> Iterator[Notice]:
        try:
            informed = self._advising.informed()
        except NoState:
            return
        state = informed.known.state
        if state.is_unread("workloads"):
            return
        waiting = {
            uid: each
            for uid, each in state.workloads.items()
            if each.state is WorkloadState.PENDING
            and any(gpus_of(pod_set, informed.known) for pod_set in each.pod_sets)
        }
        self._asked = {uid: asked for uid, asked in self._asked.items() if uid in waiting}
        self._ask(waiting, informed, now_ms)
        yield from (asked.notice for asked in self._asked.values() if asked.notice is not None)
        yield from self._over(told, state.workloads, now_ms)

    def _ask(self, waiting: dict[str, Workload], informed: AdvisorSnapshot, now_ms: int) -> None:
        due = [
            workload
            for uid, workload in waiting.items()
            if now_ms - workload.waiting_since_ms >= WAITED_MS
            and (uid not in self._asked or now_ms - self._asked[uid].at_ms >= AGAIN_MS)
        ]
        due.sort(key=lambda each: (each.meta.uid in self._asked, each.waiting_since_ms, each.meta.uid))
        for workload in due[:MOST_AT_ONCE]:
            with self._advising.turns.one() as is_ours:
                if not is_ours:
                    return  # requests of people are served first
                notice = self._answer(workload, informed)
            self._asked[workload.meta.uid] = _AskedAdvice(now_ms, notice)

    def _answer(self, workload: Workload, informed: AdvisorSnapshot) -> Notice | None:
        """None where nothing helps, or where another workload of its job is admitted first."""
        meta, tenants = workload.meta, informed.tenants
        team = tenants.team_of(workload)
        # The owning team reads it: it rests on that team's history, as the answers of the API.
        readers = None if team == NO_TEAM else frozenset({team})
        explained = self._advising.explain(WORKLOAD, meta.namespace, meta.name, informed, teams=readers)
        if explained is None or explained.advice is None:
            return None
        advice = replace(explained.advice, suggestions=explained.actions)
        return of_advice(
            advice,
            tenants.of_teams(frozenset({team}) - {NO_TEAM}),
            tenants.written_for(explained.subject.uid, meta.namespace),
            cluster=self._cluster,
            workload_uid=meta.uid,
            team=team,
            since_ms=workload.waiting_since_ms,
            links=self._links,
            currency=self._currency(),
        )

    def _over(
        self, told: Sequence[Conversation], workloads: Mapping[str, Workload], now_ms: int
    ) -> Iterator[Notice]:
        """Notices that end conversations about jobs that wait no more."""
        prefix = advice_key(self._cluster, "")
        open_now = (each for each in told if each.kind is NoticeKind.ADVICE and each.resolved_ms is None)
        own = {each.key: each for each in open_now if each.key.startswith(prefix)}
        for key, each in own.items():
            uid = key.removeprefix(prefix)
            workload = workloads.get(uid)
            if workload is not None and workload.state is WorkloadState.PENDING:
                continue
            yield over(
                cluster=self._cluster,
                workload_uid=uid,
                team=each.team,
                since_ms=each.posted_ms if workload is None else workload.waiting_since_ms,
                started_ms=None if workload is None or workload.state in _GONE else workload.admitted_ms,
                ended_ms=now_ms,
                namespace="" if workload is None else workload.meta.namespace,
                workload=uid if workload is None else workload.meta.name,
            )
