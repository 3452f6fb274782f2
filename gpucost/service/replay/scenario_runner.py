"""Scenarios side by side: the baseline first, then each change, on several processes where that pays.

What no change touches is not played again: prices, policies and contracts move no job. The order of results
is that of the changes, whoever is ready first; the same input gives the same results on any number of
processes.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass, replace
from enum import StrEnum
from multiprocessing import active_children, get_context
from signal import SIG_IGN, SIGINT, signal
from typing import NamedTuple

from gpucost.advisor.replay.history_record import HistoryJob, ReplayHistory
from gpucost.advisor.replay.scenario_run import (
    BASELINE,
    LoopMode,
    ScenarioRun,
    check_change,
    has_users,
    run_scenario,
)
from gpucost.advisor.replay.tree_replay import TreeMemory
from gpucost.advisor.replay.what_if_change import WhatIfChange

FEW_JOBS = 5_000
"""Below it, a process takes longer to start than to play."""
MOST_TRIED = 20_000
"""Jobs up to which every rule of holding is tried, to find that which repeats best what happened."""


class HoldRule(StrEnum):
    """What holds a job: quota and then nodes (Kueue), quota for what fits on nodes too (Kueue with
    topologies), quota alone, or nodes alone."""

    AFTER = "after"
    TOGETHER = "together"
    QUOTA = "quota"
    NODES = "nodes"


HOLD_WORDS = {
    HoldRule.AFTER: "quota first, then room on nodes, while quota is held",
    HoldRule.TOGETHER: "quota for what has room on nodes too",
    HoldRule.QUOTA: "quota alone; nodes always have room",
    HoldRule.NODES: "room on nodes alone; quota holds nobody",
}


@dataclass(frozen=True, slots=True)
class PlayedPair:
    """A scenario in open loop and, where the history has users, in closed loop."""

    open: ScenarioRun
    closed: ScenarioRun | None


def held_by(history: ReplayHistory, rule: HoldRule) -> ReplayHistory:
    """The history under a rule of holding."""
    match rule:
        case HoldRule.AFTER:
            return replace(history, has_nodes=True, fits_first=False)
        case HoldRule.TOGETHER:
            return replace(history, has_nodes=True, fits_first=True)
        case HoldRule.QUOTA:
            return replace(history, has_nodes=False)
        case HoldRule.NODES:
            return replace(history, kueue=None)


def rules_of(history: ReplayHistory, changes: Sequence[WhatIfChange]) -> tuple[HoldRule, ...]:
    """The rules that could hold in it, and under which every change means something."""
    if history.kueue is None or not history.has_nodes:
        return ()
    found = [HoldRule.AFTER, HoldRule.TOGETHER]
    if not any(each.nodes for each in changes):
        found.append(HoldRule.QUOTA)
    if not any(each.queues or each.cohorts or each.scheduler for each in changes):
        found.append(HoldRule.NODES)
    return tuple(found)


def best_rule(history: ReplayHistory, rules: Sequence[HoldRule], tried: Callable[[], None]) -> HoldRule:
    """That under which starts differ least from those that were recorded, on average; of equal ones the
    first. ``tried`` is called after each. Where nothing is recorded, or there are many jobs, the first."""
    if not history.is_recorded or len(history.jobs) > MOST_TRIED:
        return rules[0]
    # With numpy, which processes that only play do not need.
    from gpucost.reports.replay.run_views import recorded_views, views_of

    recorded, window = recorded_views(history), history.window
    errors = []
    for rule in rules:
        views = views_of(run_scenario(held_by(history, rule)), window)
        errors.append(
            sum(abs(views[uid].wait_ms(window) - each.wait_ms(window)) for uid, each in recorded.items())
        )
        tried()
    return rules[errors.index(min(errors))]


def played(
    history: ReplayHistory,
    changes: Sequence[WhatIfChange],
    *,
    with_closed: bool = True,
    processes: int = 1,
    done: Callable[[str], None] = lambda _: None,
) -> Iterator[PlayedPair]:
    """The baseline, then each of ``changes``, as soon as all before it are there. ``done`` is told the name
    of each. Raises InputError before anything is played, for what a change is about and the history has not.
    """
    for change in changes:
        check_change(history, change)
    closes = with_closed and has_users(history)
    scenarios = [BASELINE, *changes]
    moving = [each for each in scenarios[1:] if each.moves_jobs]
    if processes > 1 and moving and len(history.jobs) >= FEW_JOBS:
        yield from _in_processes(history, scenarios, closes, processes, done)
        return
    base: PlayedPair | None = None
    memory = TreeMemory()
    for change in scenarios:
        pair = base and _unmoved(history, base, change)
        pair = pair or _pair(history, change, closes, memory)
        base = base or pair
        done(change.name)
        yield pair


def _pair(history: ReplayHistory, change: WhatIfChange, closes: bool, memory: TreeMemory) -> PlayedPair:
    closed = run_scenario(history, change, LoopMode.CLOSED) if closes else None
    return PlayedPair(run_scenario(history, change, memory=memory), closed)


def _unmoved(history: ReplayHistory, base: PlayedPair, change: WhatIfChange) -> PlayedPair | None:
    """The baseline under another name, other prices and models, where no job moves; else None."""
    if change.moves_jobs:
        return None
    pools, prices = check_change(history, change)

    def renamed(run: ScenarioRun) -> ScenarioRun:
        return replace(run, change=change, pools=pools, prices=prices)

    return PlayedPair(renamed(base.open), None if base.closed is None else renamed(base.closed))


_KEPT: list[tuple[ReplayHistory, bool, TreeMemory]] = []
"""Of a worker process: what it plays, which it was given once, and what became of trees in it."""


def _keep(history: ReplayHistory, closes: bool) -> None:
    signal(SIGINT, SIG_IGN)  # Ctrl-C is for who started it, who then ends this
    _KEPT.append((history, closes, TreeMemory()))


class _SentRun(NamedTuple):
    """A run on its way between processes: of jobs that are those of the history only their place in it."""

    run: ScenarioRun
    jobs: tuple[HistoryJob | int, ...]


def _sent(run: ScenarioRun, history: ReplayHistory) -> _SentRun:
    places = {each.uid: place for place, each in enumerate(history.jobs)}
    placed = ((places[uid], job) for uid, job in run.jobs.items())
    told = tuple(place if history.jobs[place] is job else job for place, job in placed)
    return _SentRun(replace(run, jobs={}), told)


def _received(sent: _SentRun, history: ReplayHistory) -> ScenarioRun:
    jobs = (history.jobs[each] if isinstance(each, int) else each for each in sent.jobs)
    return replace(sent.run, jobs={each.uid: each for each in jobs})


def _play_kept(change: WhatIfChange) -> bytes:
    """As bytes, which are a third of the objects, and may lie for long until they are asked for."""
    history, closes, memory = _KEPT[-1]
    pair = _pair(history, change, closes, memory)
    return pickle.dumps([each and _sent(each, history) for each in (pair.open, pair.closed)])


def _pair_of(sent: bytes, history: ReplayHistory) -> PlayedPair:
    opened, closed = pickle.loads(sent)
    return PlayedPair(_received(opened, history), closed and _received(closed, history))


def _in_processes(
    history: ReplayHistory,
    scenarios: Sequence[WhatIfChange],
    closes: bool,
    processes: int,
    done: Callable[[str], None],
) -> Iterator[PlayedPair]:
    # A fork would inherit the threads and locks of progress bars.
    others = active_children()
    pool = ProcessPoolExecutor(processes, get_context("spawn"), _keep, (history, closes))
    ahead = {n for n, each in enumerate(scenarios) if not n or each.moves_jobs}
    pending: dict[int, Future[bytes]] = {}
    last_unmoved = max((n for n, each in enumerate(scenarios) if n and not each.moves_jobs), default=0)
    base: PlayedPair | None = None
    try:
        for number, change in enumerate(scenarios):
            # What is finished and not asked for yet takes as much memory as the jobs: little is played ahead.
            for each in sorted(ahead)[: processes + 1 - len(pending)]:
                pending[each] = pool.submit(_play_kept, scenarios[each])
                ahead.remove(each)
            if number in pending:
                pair = _pair_of(pending.pop(number).result(), history)
            else:
                assert base is not None
                unmoved = _unmoved(history, base, change)
                assert unmoved is not None
                pair = unmoved
            base = (base or pair) if number < last_unmoved else None
            done(change.name)
            yield pair
            del pair  # while the next is waited for, nobody here needs it
    except BaseException:
        for process in active_children():
            if process not in others:
                process.terminate()
        raise
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
