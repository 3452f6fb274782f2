"""Receipts of jobs that have ended: which jobs have, and the notices of them. Nothing is sent here.

A job has ended once it held no GPU for an hour in settled windows of the ledger. How it ended comes from the
watched cluster, whose jobs are looked at in every turn since they may be deleted soon after their end, and
from the source. Which receipts are due follows from the ledger alone, and the key of one is its job and the
day on which it ended: so a restart, or a second replica, tells none twice.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from gpucost.cluster.objects.kueue import Workload
from gpucost.cluster.objects.state import ClusterState
from gpucost.cluster.views.ownership import workload_by_job
from gpucost.domain.errors import InputError, SourceError
from gpucost.domain.scope import EVERYTHING
from gpucost.domain.time import DAY_MS, HOUR_MS, MINUTE_MS, Window, iso
from gpucost.ledger.db.records import LedgerState
from gpucost.ledger.ledger import Ledger
from gpucost.ledger.usage.job_index import NamedJob
from gpucost.notify.compose.links import MessageLinks
from gpucost.notify.compose.receipt import day_key, day_notice, receipt_key, receipt_notice
from gpucost.notify.notices import Conversation, Notice
from gpucost.reports.base.values import NOTHING, CostAmount
from gpucost.reports.digest.week_builder import scope_of
from gpucost.reports.job.job_receipt import NO_END, DayReceipts, JobEndFacts, JobReceipt
from gpucost.service.detection.job_inspection import BEFORE_MS
from gpucost.service.reporting.job_endings import (
    END_FRAMES,
    NEAR_MS,
    end_in_cluster,
    end_in_history,
    joined_end,
)
from gpucost.service.reporting.report_service import ReportService
from gpucost.telemetry.interval_source import IntervalSource

QUIET_MS = HOUR_MS
"""A job that held no GPU for this long has ended: between two attempts it may hold none for minutes."""
NEWS_MS = DAY_MS
"""A receipt is due for this long after the end of its job, by the time of the ledger."""
OLD_MS = 7 * DAY_MS
"""What ended longer ago is no news, even where the ledger has only now got there."""
MOST_AT_ONCE = 3
"""Receipts that are made in a turn: each reads what the ledger has of a job."""
MOST_OF_A_DAY = 20
"""Jobs of a day with a receipt of their own in its message, the dearest; the others are added up."""
_LOOK_EVERY_MS = MINUTE_MS
_LONGEST_LOOK_MS = 3 * DAY_MS
"""The most history that is read for the ends of jobs: it is that of a whole cluster."""


@dataclass(frozen=True, slots=True)
class EndedJob:
    """A job of a team that held its last GPU at ``last_ms``, and what it held in all."""

    found: NamedJob
    last_ms: int

    @property
    def day(self) -> str:
        return iso(self.last_ms)[:10]

    @property
    def key(self) -> str:
        return receipt_key(self.found.cluster, self.found.job_uid, self.day, self.found.team)

    @property
    def order(self) -> tuple[int, int, str]:
        """The dearest first."""
        return -(self.found.nano or 0), -self.found.board_ms, self.key


@dataclass
class JobEndings:
    """How jobs ended: what the watched cluster showed of each since the start, and what the source has.

    ``state`` is the current state of ``cluster``, None where there is none.
    """

    cluster: str = ""
    state: Callable[[], ClusterState | None] = lambda: None
    source: IntervalSource | None = None
    _seen: dict[str, tuple[int, JobEndFacts]] = field(default_factory=dict)
    _looked: ClusterState | None = None
    _workloads: Mapping[tuple[str, str], Workload] | None = None
    """Those of the state that was looked at, by their jobs; None until one of its jobs is asked about."""

    def watch(self, now_ms: int) -> None:
        """Remember the jobs that have ended in the cluster, for as long as their receipt may be due."""
        state = self.state()
        if state is None or state is self._looked:
            return
        self._looked, self._workloads = state, None
        self._seen = {uid: each for uid, each in self._seen.items() if each[0] > now_ms - OLD_MS}
        for uid, job in state.jobs.items():
            if job.ended_ms is not None and uid not in self._seen:
                self._seen[uid] = now_ms, self._end_in(state, job.meta.namespace, uid, job.job_kind)

    def of(self, jobs: Sequence[EndedJob]) -> Mapping[str, JobEndFacts]:
        """By key, what is known of the ends of jobs of one cluster. Errors of the source are not raised."""
        cluster = jobs[0].found.cluster
        of_history = self._of_history(cluster, jobs)
        return {
            each.key: joined_end(self._of_cluster(cluster, each), of_history.get(each.found.job_uid, NO_END))
            for each in jobs
        }

    def _of_cluster(self, cluster: str, job: EndedJob) -> JobEndFacts:
        if cluster != self.cluster:
            return NO_END
        _, seen = self._seen.get(job.found.job_uid, (0, NO_END))
        if seen is not NO_END or self._looked is None:
            return seen
        found = job.found
        return self._end_in(self._looked, found.namespace, found.job_uid, found.job_kind)

    def _end_in(self, looked: ClusterState, namespace: str, job_uid: str, kind: str) -> JobEndFacts:
        if self._workloads is None:
            self._workloads = workload_by_job(looked.workloads.values())
        return end_in_cluster(looked, namespace, job_uid, kind, self._workloads)

    def _of_history(self, cluster: str, jobs: Sequence[EndedJob]) -> dict[str, JobEndFacts]:
        last_ms = max(each.last_ms for each in jobs) + NEAR_MS
        first_ms = min(each.found.held.start_ms for each in jobs) - BEFORE_MS
        asked = Window(max(first_ms, last_ms - _LONGEST_LOOK_MS), last_ms)
        try:
            covered = None if self.source is None else self.source.covered(cluster)
            window = None if covered is None else covered.intersect(asked)
            if self.source is None or window is None:
                return {}
            frames = self.source.history(cluster, window, only=END_FRAMES)
        except (SourceError, InputError):
            return {}
        found = {}
        for each in jobs:
            of = (each.found.job_uid, each.last_ms, window.start_ms)
            found[each.found.job_uid] = end_in_history(frames.evictions, frames.demand, *of)
        return found


class ReceiptNotices:
    """The source of notices about jobs that have ended: one for each job, or ``daily`` one for each team.
    Raises LedgerError.

    ``least_nano`` is the least floor of any route that takes receipts: for jobs below it none is made.
    ``users`` are those that routes name, who get a daily one of their own. What is due is made once, the
    untold first, and yielded in every turn until it is due no more: one channel may get it later than
    another.
    """

    def __init__(
        self,
        reporting: ReportService,
        links: MessageLinks,
        endings: JobEndings,
        *,
        daily: bool,
        least_nano: int = 0,
        users: frozenset[str] = frozenset(),
    ) -> None:
        self._reporting = reporting
        self._ledger: Ledger = reporting.ledger
        self._links = links
        self._endings = endings
        self._daily = daily
        self._least_nano = least_nano
        self._users = users
        self._looked_ms: int | None = None
        self._known: dict[tuple[str, str, int], tuple[EndedJob, ...]] = {}
        self._due: dict[str, EndedJob] = {}
        self._ends: dict[str, JobEndFacts] = {}
        self._day = ""
        self._made: dict[str, tuple[Notice, ...]] = {}

    def __call__(self, now_ms: int, told: Sequence[Conversation]) -> Iterator[Notice]:
        self._endings.watch(now_ms)
        if self._looked_ms is None or not 0 <= now_ms - self._looked_ms < _LOOK_EVERY_MS:
            self._look(now_ms)
        known = {each.key for each in told}
        if self._daily:
            self._make_days(known)
        else:
            self._make_receipts(known)
        for made in self._made.values():
            yield from made

    def _look(self, now_ms: int) -> None:
        ended = self._ended(now_ms)
        if self._daily:
            day = self._due_day(now_ms)
            if day != self._day:
                self._day, self._made = day, {}
            self._due = {each.key: each for each in ended if each.day == day}
            wanted = [each for team in self._teams() for each in self._of_team(team)[:MOST_OF_A_DAY]]
        else:
            wanted = [each for each in ended if (each.found.nano or self._least_nano) >= self._least_nano]
            self._due = {each.key: each for each in wanted}
            self._made = {key: made for key, made in self._made.items() if key in self._due}
        self._look_up(wanted)
        self._looked_ms = now_ms

    def _look_up(self, jobs: Iterable[EndedJob]) -> None:
        """How ``jobs`` ended, as far as that was not looked up before: the source is asked once a look."""
        before, self._ends = self._ends, {}
        missing: dict[str, list[EndedJob]] = defaultdict(list)
        for each in jobs:
            if each.key in before:
                self._ends[each.key] = before[each.key]
            else:
                missing[each.found.cluster].append(each)
        for some in missing.values():
            self._ends |= self._endings.of(some)

    # --- which jobs have ended ------------------------------------------------------------------------

    def _ended(self, now_ms: int) -> list[EndedJob]:
        before, self._known = self._known, {}
        for cluster in self._ledger.clusters():
            settled_ms = self._settled_ms(cluster)
            if settled_ms is None:
                continue
            back_ms = 3 * DAY_MS if self._daily else NEWS_MS + QUIET_MS
            runs = self._ledger.runs(EVERYTHING, cluster, Window(settled_ms - back_ms, settled_ms))
            last_ms: dict[str, int] = {}
            for run in runs:
                last_ms[run.job_uid] = max(run.last_ms, last_ms.get(run.job_uid, 0))
            since_ms = max(settled_ms - back_ms, now_ms - OLD_MS)
            over = {uid: end for uid, end in last_ms.items() if since_ms <= end <= settled_ms - QUIET_MS}
            new = {uid for uid, end in over.items() if (cluster, uid, end) not in before}
            named: dict[str, list[EndedJob]] = defaultdict(list)
            for job in self._ledger.jobs_of(EVERYTHING, cluster, new):
                named[job.job_uid].append(EndedJob(job, over[job.job_uid]))
            for uid, end in over.items():
                key = cluster, uid, end
                self._known[key] = tuple(named[uid]) if uid in new else before[key]
        return [job for jobs in self._known.values() for job in jobs]

    def _settled_ms(self, cluster: str) -> int | None:
        """The end of what is settled of its last days; None where that is nothing."""
        extent = self._ledger.extent(cluster)
        if extent is None:
            return None
        last = Window(max(extent.start_ms, extent.end_ms - OLD_MS), extent.end_ms)
        open_ms = [
            each.window.start_ms
            for each in self._ledger.windows(last, cluster)
            if each.state is LedgerState.OPEN
        ]
        settled_ms = min(open_ms, default=extent.end_ms)
        return settled_ms if settled_ms > last.start_ms else None

    def _due_day(self, now_ms: int) -> str:
        """Yesterday, once every cluster that has anything of it is settled an hour beyond it; else the day
        before."""
        today_ms = now_ms // DAY_MS * DAY_MS
        for cluster in self._ledger.clusters():
            extent, settled_ms = self._ledger.extent(cluster), self._settled_ms(cluster)
            has_some = extent is not None and extent.end_ms > today_ms - DAY_MS
            if has_some and (settled_ms or 0) < today_ms + QUIET_MS:
                return iso(today_ms - 2 * DAY_MS)[:10]
        return iso(today_ms - DAY_MS)[:10]

    # --- their receipts -------------------------------------------------------------------------------

    def _make_receipts(self, told: set[str]) -> None:
        """Some of those that are missing: a receipt is none where the job holds GPUs again."""
        missing = [each for key, each in self._due.items() if key not in self._made]
        missing.sort(key=lambda each: (each.key in told, -each.last_ms, each.key))
        for job in missing[:MOST_AT_ONCE]:
            receipt, found = self._receipt(job), job.found
            self._made[job.key] = (
                ()
                if receipt is None
                else (receipt_notice(receipt, self._links, cluster=found.cluster, team=found.team),)
            )

    def _make_days(self, told: set[str]) -> None:
        missing = [team for team in self._teams() if team not in self._made]
        missing.sort(key=lambda team: (day_key(self._day, team) in told, team))
        for team in missing[:1]:
            self._made[team] = tuple(self._day_notices(team))

    def _day_notices(self, team: str) -> Iterator[Notice]:
        jobs = self._of_team(team)
        made = (self._receipt(each) for each in jobs[:MOST_OF_A_DAY])
        receipts = tuple(each for each in made if each is not None)
        held = sum((_amount(each.found) for each in jobs), NOTHING)
        found = DayReceipts(self._day, team, self._reporting.currency, len(jobs), held, receipts)
        yield day_notice(found, self._links)
        for user in sorted(self._users):
            own = tuple(each for each in receipts if user in each.users)
            if own:
                held = sum((each.held for each in own), NOTHING)
                personal = replace(found, count=len(own), held=held, receipts=own)
                yield day_notice(personal, self._links, user=user)

    def _teams(self) -> list[str]:
        return sorted({each.found.team for each in self._due.values()})

    def _of_team(self, team: str) -> list[EndedJob]:
        """The dearest first."""
        return sorted(
            (each for each in self._due.values() if each.found.team == team), key=lambda job: job.order
        )

    def _receipt(self, job: EndedJob) -> JobReceipt | None:
        """As its team reads it; None where the job holds GPUs again."""
        scope = scope_of(job.found.team).within((job.found.cluster,))
        answer = self._reporting.job(scope, job.found.job_uid)
        if answer is None or answer.report.span.end_ms > job.last_ms:
            return None
        return self._reporting.receipt_of(answer.report, self._ends.get(job.key, NO_END))


def _amount(job: NamedJob) -> CostAmount:
    return CostAmount(job.board_ms, job.nano, job.unpriced_ms)
