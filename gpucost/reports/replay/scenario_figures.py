"""The figures of a replay's answer (``scenario_answer``), from scenarios that were played."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import pairwise
from math import fsum

import numpy as np

from gpucost.advisor.replay.history_record import HistoryJob, PoolRecord, ReplayHistory
from gpucost.advisor.replay.replay_timeline import RestlessPreemption
from gpucost.advisor.replay.scenario_run import ScenarioRun
from gpucost.charges.contract_terms import ContractBook
from gpucost.charges.policy_file import PolicyBook
from gpucost.domain.buckets import UNALLOCATED, Waste
from gpucost.domain.time import DAY_MS, HOUR_MS, MINUTE_MS, SECOND_MS, Window, iso
from gpucost.reports.replay.free_time import claimed_by, pool_sums
from gpucost.reports.replay.run_views import (
    PoolRuns,
    QueueSums,
    RunView,
    pool_of,
    queue_sums,
    recorded_views,
    views_of,
)
from gpucost.reports.replay.scenario_answer import (
    BaselineError,
    ChangedJob,
    ClusterAnswer,
    GroupAnswer,
    ReplayReport,
    RestlessAnswer,
    ScenarioAnswer,
    TimelineStep,
    WaitDifference,
    WaitFigures,
    WasteBuckets,
)
from gpucost.reports.replay.scenario_money import (
    PaidTime,
    ScenarioMoney,
    capacity_units_ms,
    scenario_money,
)

SOON_MS = 5 * MINUTE_MS
DRAWS = 200
MOST_DRAWN = 4_000_000
"""Draws times jobs of one figure: of larger groups fewer draws are made, at least 40."""
MOST_JOBS = 20
MOST_RINGS = 3
SHORTEST_MS = 10 * SECOND_MS
"""Runs that are shorter count as long as this in slowdown."""
ALWAYS = (
    "jobs that were never submitted, because the queue was long, are in no replay",
    "run times of jobs that were killed are those until then; they would have run longer",
    "retries after failures are jobs of their own, as they were recorded",
    "waits for an autoscaler, for images and for admission checks are in none of the starts",
    "feature gates of newer schedulers, and rules that changed since, are not known",
    "a job runs as long as it was recorded, wherever it is put",
)


@dataclass(frozen=True)
class PlayedScenario:
    """A scenario as it was played: ``closed`` is None where there is no closed loop. ``policy`` and
    ``contracts`` are those that it is charged by."""

    run: ScenarioRun
    closed: ScenarioRun | None = None
    policy: PolicyBook | None = None
    contracts: ContractBook | None = None


def replay_report(
    history: ReplayHistory, played: Sequence[PlayedScenario], rules: str, seed: int = 1
) -> ReplayReport:
    """The first of ``played`` changes nothing; the others are compared with it."""
    figures = ReplayFigures(history, rules, seed)
    for each in played:
        figures.add(each)
    return figures.report()


class ReplayFigures:
    """A report that grows: scenarios are added one by one, the baseline first."""

    def __init__(self, history: ReplayHistory, rules: str, seed: int = 1) -> None:
        self._history, self._rules, self._seed = history, rules, seed
        self._base: _Measured | None = None
        self._error: BaselineError | None = None
        self._errors: Mapping[GroupKey, tuple[int, int, int, int]] = {}
        self._answers: list[ScenarioAnswer] = []

    def add(self, played: PlayedScenario) -> ScenarioAnswer:
        """Its answer: of the first alone, of others beside it."""
        measured = _Measured(self._history, played, self._base)
        if self._base is None:
            self._base = measured
            recorded, window = recorded_views(self._history), self._history.window
            if recorded:
                self._error = _baseline_error(measured, recorded)
                self._errors = _errors(measured, recorded, window)
        answer = measured.answer(self._errors, self._seed)
        self._answers.append(answer)
        measured.forget_stories()
        return answer

    def report(self, first: int | None = None) -> ReplayReport:
        """Of all that were added, or the first so many of them."""
        history = self._history
        return ReplayReport(
            history.name,
            history.cluster,
            history.window,
            history.currency,
            self._rules,
            len(history.jobs),
            self._seed,
            self._error,
            tuple(self._answers[:first]),
            (*history.limits, *ALWAYS),
        )


GroupKey = tuple[str, str]
ALL: GroupKey = ("all", "")


def groups_of(views: Iterable[RunView], window: Window) -> dict[GroupKey, list[RunView]]:
    """Jobs that came in the window: all, by queue, and by team."""
    found: dict[GroupKey, list[RunView]] = {ALL: []}
    queues: dict[GroupKey, list[RunView]] = defaultdict(list)
    teams: dict[GroupKey, list[RunView]] = defaultdict(list)
    for view in views:
        if window.start_ms <= view.job.created_ms < window.end_ms:
            found[ALL].append(view)
            if view.job.queue:
                queues["queue", view.job.queue].append(view)
            if view.job.team:
                teams["team", view.job.team].append(view)
    return {**found, **dict(sorted(queues.items())), **dict(sorted(teams.items()))}


def wait_figures(
    views: Sequence[RunView], window: Window, pools: Mapping[str, PoolRecord] | None = None
) -> WaitFigures:
    """``pools`` say what part of a GPU their units are; all of one without them."""
    waits = np.array([each.wait_ms(window) for each in views], dtype=np.int64)
    started = sum(each.start_ms is not None for each in views)
    soon = sum(each.start_ms is not None and each.wait_ms(window) <= SOON_MS for each in views)
    p50, p90, p99, mean = _figures(waits)
    share = Fraction(soon, len(views)) if views else None
    asked = ((each.wait_ms(window) * each.job.gpus, each.job) for each in views)
    pending = sum(units_ms * share_of(job, pools or {}) for units_ms, job in asked)
    return WaitFigures(len(views), started, p50, p90, p99, mean, share, round(pending))


def share_of(job: HistoryJob, pools: Mapping[str, PoolRecord]) -> Fraction | int:
    """What part of a GPU each of the job's units is."""
    pool = pools.get(pool_of(job, pools))
    return 1 if pool is None or pool.share == 1 else pool.share


def _figures(waits: np.ndarray) -> tuple[int, int, int, int]:
    """p50, p90, p99 (nearest rank: a wait that there is) and the mean; 0 without any."""
    count = len(waits)
    if not count:
        return 0, 0, 0, 0
    ranks = [max(0, -(-count * part // 100) - 1) for part in (50, 90, 99)]
    ordered = np.partition(waits, sorted(set(ranks)))
    return (*(int(ordered[rank]) for rank in ranks), int(waits.sum()) // count)  # type: ignore[return-value]


def _errors(
    base: _Measured, recorded: Mapping[str, RunView], window: Window
) -> dict[GroupKey, tuple[int, int, int, int]]:
    """By group: how far each figure of the baseline is from what happened."""
    found = {}
    for key, views in base.groups.items():
        known = [each for each in views if each.job.uid in recorded]
        if not known:
            continue
        real = [recorded[each.job.uid].wait_ms(window) for each in known]
        pairs = zip(
            _figures(np.array([each.wait_ms(window) for each in known])),
            _figures(np.array(real)),
            strict=True,
        )
        p50, p90, p99, mean = (abs(replayed - happened) for replayed, happened in pairs)
        found[key] = p50, p90, p99, mean
    return found


def _baseline_error(base: _Measured, recorded: Mapping[str, RunView]) -> BaselineError:
    views, window, pools = base.views, base.window, base.played.run.pools
    both = [
        (views[uid], recorded[uid])
        for uid in recorded
        if uid in views and window.start_ms <= recorded[uid].job.created_ms < window.end_ms
    ]
    off = [abs((one.start_ms or window.end_ms) - (other.start_ms or window.end_ms)) for one, other in both]
    p50, p90, _, mean = _figures(np.array(off, dtype=np.int64))
    started = sorted(
        (other.start_ms, one.start_ms)
        for one, other in both
        if one.start_ms is not None and other.start_ms is not None
    )
    kept = sum(early[1] <= late[1] for early, late in pairwise(started))
    ledger, money = base.history.ledger, base.money
    return BaselineError(
        len(both),
        sum(not each for each in off),
        p50,
        p90,
        mean,
        Fraction(kept, len(started) - 1) if len(started) > 1 else None,
        wait_figures([other for _, other in both], window, pools),
        wait_figures([one for one, _ in both], window, pools),
        sum(each.evictions for each in recorded.values()),
        sum(views[uid].evictions for uid in recorded if uid in views),
        sum(_board_ms(each, window, pools) for each in recorded.values()),
        sum(_board_ms(views[uid], window, pools) for uid in recorded if uid in views),
        *(
            (None,) * 4
            if ledger is None or money.capacity.unpriced_ms
            else (ledger.held_nano, money.held.nano, ledger.nano, money.capacity.nano)
        ),
    )


def _board_ms(view: RunView, window: Window, pools: Mapping[str, PoolRecord], *, lost: bool = False) -> int:
    """GPU time in the window: of all its runs, or of those that have to be done again."""
    units_ms = sum(
        max(0, min(run.end_ms, window.end_ms) - max(run.start_ms, window.start_ms)) * view.job.gpus
        for run in view.runs
        if run.is_lost or not lost
    )
    return round(units_ms * share_of(view.job, pools))


class _Measured:
    """A scenario with all that is measured of it."""

    def __init__(self, history: ReplayHistory, played: PlayedScenario, base: _Measured | None) -> None:
        self.history, self.played, self.base = history, played, base
        self.window, run = history.window, played.run
        self.views = views_of(run, self.window)
        self.groups = groups_of(self.views.values(), self.window)
        self._members = _members(self.views.values())
        self._held: dict[str, PoolRuns] = {}
        self.sums = pool_sums(self.views.values(), run.pools, self.window)
        self._claims = claimed_by(self.sums, run.pools)
        everything = list(self.views.values())
        self.money: ScenarioMoney = scenario_money(
            everything,
            run.pools,
            run.prices,
            self.window,
            history.cluster,
            history.currency,
            played.policy,
            played.contracts,
        )
        self.queues: dict[str, QueueSums] = {}
        if run.kueue is not None:
            self.queues = queue_sums(everything, run.kueue, run.kueue_changes, run.pools, self.window)

    def answer(self, errors: Mapping[GroupKey, tuple[int, int, int, int]], seed: int) -> ScenarioAnswer:
        groups = [self._group(key, views, errors.get(key), seed) for key, views in self.groups.items()]
        remarks = list(self._remarks(groups))
        restless = self.played.run.outcome.restless
        closed, missing = self._closed()
        return ScenarioAnswer(
            self.played.run.name,
            self._cluster(),
            tuple(groups),
            () if self.base is None else tuple(self._changed()),
            tuple(remarks),
            None if restless is None else _restless(restless, self.views),
            closed,
            missing,
            tuple(self._timeline()),
        )

    def forget_stories(self) -> None:
        """Once it is answered: what others are compared with is in its views and its money."""
        outcome = self.played.run.outcome._replace(stories={})
        run = replace(self.played.run, outcome=outcome, jobs={})
        self.played = replace(self.played, run=run, closed=None)

    def _group(
        self, key: GroupKey, views: Sequence[RunView], error: tuple[int, int, int, int] | None, seed: int
    ) -> GroupAnswer:
        kind, name = key
        own = self._members[key]
        share = self._share
        money, quota = self.money, self.queues.get(name) if kind == "queue" else None
        paid = self._paid(key)
        nano = None if paid is None or paid.unpriced_ms or not self.sums else paid.nano
        before = None if self.base is None else self.base._paid(key)
        p50, p90, p99, mean = self._differences(key, views, error, seed)
        return GroupAnswer(
            kind,
            name,
            wait_figures(views, self.window, self.played.run.pools),
            paid.board_ms if paid is not None and self.sums else sum(share(each) for each in own),
            sum(share(each, lost=True) for each in own),
            *self._claimed(key),
            sum(each.evictions for each in own),
            None if quota is None else quota.nominal,
            None if quota is None else quota.borrowed,
            None if quota is None else quota.lent,
            nano,
            money.of_payers(kind, name, money.charged),
            money.of_payers(kind, name, money.effective),
            p50,
            p90,
            p99,
            mean,
            None if before is None or nano is None or before.unpriced_ms else nano - before.nano,
        )

    def _claimed(self, key: GroupKey) -> tuple[int, int]:
        """Starved and fragmented."""
        found = self._claims.get(key, {})
        return found.get(Waste.STARVED, 0), found.get(Waste.FRAGMENTED, 0)

    def _waste(self, held_ms: int, free_ms: int) -> WasteBuckets:
        """All of them are the capacity."""
        pools = self.played.run.pools
        lost = sum(self._share(each, lost=True) for each in self.views.values() if pool_of(each.job, pools))
        preempted = min(lost, held_ms)  # parts of GPUs are rounded for each run
        starved, fragmented = self._claimed(ALL)
        no_demand = free_ms - starved - fragmented
        return WasteBuckets(preempted, starved, fragmented, no_demand, held_ms - preempted)

    def _paid(self, key: GroupKey) -> PaidTime | None:
        """What a team, the jobs of a queue, or all held; None of other groups."""
        kind, name = key
        of = {"team": self.money.of_team, "queue": self.money.of_queue}.get(kind)
        if key == ALL:
            return self.money.held
        return None if of is None else of(name)

    def _share(self, view: RunView, *, lost: bool = False) -> int:
        return _board_ms(view, self.window, self.played.run.pools, lost=lost)

    def _differences(
        self, key: GroupKey, views: Sequence[RunView], error: tuple[int, int, int, int] | None, seed: int
    ) -> Sequence[WaitDifference | None]:
        if self.base is None:
            return [None] * 4
        pairs = [
            (self.base.views[each.job.uid].wait_ms(self.window), each.wait_ms(self.window))
            for each in views
            if each.job.uid in self.base.views
        ]
        if not pairs:
            return [None] * 4
        before, after = (np.array(each, dtype=np.int64) for each in zip(*pairs, strict=True))
        real = [new - old for old, new in zip(_figures(before), _figures(after), strict=True)]
        if np.array_equal(before, after):
            return [
                WaitDifference(0, 0, 0, None if error is None else each, told=False)
                for each in error or (0,) * 4
            ]
        drawn = _bootstrap(before, after, [seed, *(f"{key[0]} {key[1]}").encode()])
        found: list[WaitDifference | None] = []
        for n, ms in enumerate(real):
            low, high = drawn[n]
            off = None if error is None else error[n]
            told = ms != 0 and not low <= 0 <= high and (off is None or abs(ms) > off)
            found.append(WaitDifference(ms, low, high, off, told))
        return found

    def _cluster(self) -> ClusterAnswer:
        money, pools = self.money, self.played.run.pools
        capacity = money.capacity
        held = money.held.board_ms
        free = [paid for key, paid in money.parts.items() if key.team == UNALLOCATED]
        free_ms = sum(each.board_ms for each in free)
        known = [
            (each.partly_free * pools[name].share, (each.capacity - each.held) * pools[name].share)
            for name, each in self.sums.items()
            if each.knows_nodes and each.capacity > each.held and self.history.has_nodes
        ]
        unused = sum((whole for _, whole in known), Fraction(0))
        has_price = not capacity.unpriced_ms
        off_ms, off = money.difference
        return ClusterAnswer(
            capacity.board_ms,
            held,
            free_ms,
            money.over_ms,
            Fraction(held, capacity.board_ms) if capacity.board_ms else None,
            self._waste(held, free_ms),
            min(Fraction(1), sum((part for part, _ in known), Fraction(0)) / unused) if unused else None,
            self._jain(),
            self._slowdown(),
            capacity.nano if has_price else None,
            sum(each.nano for each in free) if has_price else None,
            money.kept,
            capacity.unpriced_ms,
            off_ms,
            off + money.charge_difference,
        )

    def _timeline(self) -> Iterator[TimelineStep]:
        window, pools = self.window, self.played.run.pools
        step_ms = DAY_MS if window.length_ms >= 7 * DAY_MS else HOUR_MS
        count = -(-window.length_ms // step_ms)
        held, waiting = [Fraction(0)] * count, [Fraction(0)] * count

        def add(sums: list[Fraction], start_ms: int, end_ms: int, gpus: Fraction | int) -> None:
            low, high = max(start_ms, window.start_ms), min(end_ms, window.end_ms)
            while low < high:
                at = (low - window.start_ms) // step_ms
                until = min(high, window.start_ms + (at + 1) * step_ms)
                sums[at] += gpus * (until - low)
                low = until

        for view in self.views.values():
            pool = pools.get(pool_of(view.job, pools))
            gpus = view.job.gpus if pool is None or pool.share == 1 else view.job.gpus * pool.share
            add(waiting, view.created_ms, view.created_ms + view.wait_ms(window), gpus)
            for run in view.runs:
                add(held, run.start_ms, run.end_ms, gpus)
        for at, part in enumerate(window.split(step_ms)):
            there = sum(capacity_units_ms(each, part) * each.share for each in pools.values())
            yield TimelineStep(iso(part.start_ms), int(held[at]), int(waiting[at]), int(there))

    def _jain(self) -> Fraction | None:
        """Of use over quota, by queue; of pools where there are no queues of Kueue."""
        sums = [(each.held, each.nominal) for each in self.queues.values()]
        sums = sums or [(each.held, each.capacity) for each in self.sums.values()]
        parts = [Fraction(held, own) for held, own in sums if own]
        if not any(parts):
            return None
        # As floats: fractions of many queues have denominators without end.
        values = [float(each) for each in parts]
        found = fsum(values) ** 2 / (len(values) * fsum(each * each for each in values))
        return Fraction(round(found * 1_000_000), 1_000_000)

    def _slowdown(self) -> Fraction | None:
        found = [
            (each.wait_ms(self.window) + each.job.run_ms) / max(each.job.run_ms, SHORTEST_MS)
            for each in self.groups[ALL]
        ]
        if not found:
            return None
        return Fraction(round(fsum(max(1.0, each) for each in found) / len(found) * 1_000_000), 1_000_000)

    def _closed(self) -> tuple[dict[str, WaitFigures], int]:
        """Waits of the closed loop, of the groups where they differ from the open one."""
        run = self.played.closed
        if run is None:
            return {}, 0
        views = views_of(run, self.window)
        found = {}
        for key, own in self.groups.items():
            came = [views[each.job.uid] for each in own if each.job.uid in views]
            inside = [each for each in came if each.created_ms < self.window.end_ms]
            figures = wait_figures(inside, self.window, self.played.run.pools)
            if figures != wait_figures(own, self.window, self.played.run.pools):
                found[" ".join(key).strip()] = figures
        return found, sum(
            each.job.uid not in views or views[each.job.uid].created_ms >= self.window.end_ms
            for each in self.groups[ALL]
        )

    def _changed(self) -> Iterable[ChangedJob]:
        assert self.base is not None
        before, window = self.base.views, self.window
        ranked = sorted(
            (
                (-abs(each.wait_ms(window) - before[uid].wait_ms(window)), uid)
                for uid, each in self.views.items()
                if uid in before and each.wait_ms(window) != before[uid].wait_ms(window)
            ),
        )
        for _, uid in ranked[:MOST_JOBS]:
            was, now = before[uid], self.views[uid]
            yield ChangedJob(
                uid,
                now.job.name or uid,
                now.job.team,
                now.job.queue,
                now.job.gpus,
                iso(now.created_ms),
                was.wait_ms(window),
                now.wait_ms(window),
                was.layer,
                now.layer,
                self.base.held_by(was),
                self.held_by(now),
            )

    def held_by(self, view: RunView) -> str:
        """The two teams that held most of its pool while it waited; empty where it did not wait."""
        until = self.window.end_ms if view.start_ms is None else view.start_ms
        if until <= view.created_ms:
            return ""
        pools = self.played.run.pools
        name = pool_of(view.job, pools)
        if name not in self._held:
            others = (each for each in self.views.values() if pool_of(each.job, pools) == name)
            self._held[name] = PoolRuns(others)
        sums = self._held[name].of_teams(view.created_ms, until, view.job.uid)
        ranked = sorted(sums.items(), key=lambda each: (-each[1], each[0]))[:2]
        length = until - view.created_ms
        return ", ".join(f"{team} {units / length:.1f} GPUs" for team, units in ranked)

    def _remarks(self, groups: Sequence[GroupAnswer]) -> Iterable[str]:
        change = self.played.run.change
        yield from self.money.remarks
        rings = self.played.run.outcome.rings
        for ring in sorted(rings, key=lambda each: each.from_ms - each.to_ms)[:MOST_RINGS]:
            told = _restless(RestlessPreemption(ring.from_ms, "", ring.pairs[:2]), self.views)
            yield f"preemption had no rest from {told.at} to {iso(ring.to_ms)}: {'; '.join(told.pairs)}"
        if len(rings) > MOST_RINGS:
            yield f"preemption had no rest {len(rings) - MOST_RINGS:,} more times, for shorter"
        if self.base is None:
            return
        if all(
            self.base.views[uid][1:5] == each[1:5]
            for uid, each in self.views.items()
            if uid in self.base.views
        ):
            yield "no start, run or eviction is another one than in the baseline"
        added = [each for each in change.nodes if (each.add or 0) > 0]
        if added and not any((each.add or 0) < 0 for each in change.nodes):
            for each in groups:
                differences = [one for one in (each.p90, each.mean) if one is not None]
                if any(one.told and one.ms > 0 for one in differences):
                    who = f"{each.kind} {each.name}".strip()
                    yield (
                        f"nodes were added, and {who} waits longer: each start decides anew who comes next "
                        "(Graham's anomaly)"
                    )
        limits = sum(each.add or 0 for each in change.nodes) < 0
        over = self.money.over_ms
        if over:
            yield (
                f"{over / HOUR_MS:,.1f} GPU-hours were held beyond what nodes give"
                + (" (nodes were taken away)" if limits else "")
                + "; they are counted as capacity"
            )
        paid_in = "" if self.played.policy is None else self.played.policy.file.currency
        if paid_in and self.history.currency not in ("", paid_in):
            yield f"charges by the policy are in {paid_in}, costs in {self.history.currency}"
        policy = self.played.policy
        if change.charges is None and policy is not None and not policy.is_plain and change.queues:
            yield "quotas of the charge policy are those of its file, not those of the change"


def _members(views: Iterable[RunView]) -> dict[GroupKey, list[RunView]]:
    """All jobs by group, also those that came before the window."""
    found: dict[GroupKey, list[RunView]] = defaultdict(list)
    for view in views:
        for key in (ALL, ("queue", view.job.queue), ("team", view.job.team)):
            found[key].append(view)
    return found


def _bootstrap(before: np.ndarray, after: np.ndarray, seed: Sequence[int]) -> list[tuple[int, int]]:
    """The 5th and the 95th of 100 of each figure's difference, when jobs are drawn anew."""
    count = len(before)
    draws = max(40, min(DRAWS, MOST_DRAWN // count))
    random = np.random.Generator(np.random.PCG64(np.random.SeedSequence(list(seed))))
    found = []
    for _ in range(draws):
        chosen = random.integers(0, count, count)
        found.append(
            [new - old for old, new in zip(_figures(before[chosen]), _figures(after[chosen]), strict=True)]
        )
    columns = [sorted(each) for each in zip(*found, strict=True)]
    return [(each[draws * 5 // 100], each[draws - 1 - draws * 5 // 100]) for each in columns]


def _restless(found: RestlessPreemption, views: Mapping[str, RunView]) -> RestlessAnswer:
    def who(uid: str) -> str:
        job = views[uid].job if uid in views else None
        return uid if job is None else f"{job.name or uid} ({job.queue})"

    pairs = tuple(
        f"{who(each.by)} preempts {who(each.victim)} ({each.reason}) {each.times:,} times"
        for each in found.pairs[:MOST_JOBS]
    )
    return RestlessAnswer(iso(found.at_ms), pairs)
