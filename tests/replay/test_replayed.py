"""Real traces through the replay: the starts, the waits and the capacity that were recorded."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import NamedTuple

import pandas as pd
import pytest

from benchmarks.support.philly import DEFAULT_TRACES
from gpucost.advisor.replay.fifo_nodes import FifoAsk, FifoReplay, PoolNodes
from gpucost.advisor.replay.replay_timeline import ReplayArrival, play
from gpucost.domain.time import HOUR_MS, MINUTE_MS, SECOND_MS
from tests.support.shared import needs_shared

PHILLY, HELIOS = DEFAULT_TRACES / "philly-vc", DEFAULT_TRACES / "helios-earth-vc"
MINUTES = 44_640
PENDING_GPU_HOURS = 45_671.62


@pytest.mark.slow
@needs_shared("traces/philly-vc")
def test_strict_fifo_gives_the_recorded_starts() -> None:
    rows = pd.read_csv(PHILLY / "replay_fifo.csv.gz", dtype={"vc": "str"})
    reference = json.loads((PHILLY / "reference.json").read_text(encoding="utf-8"))
    nodes = {vc: int(each["nodes"]) for vc, each in reference["replay"]["by_vc"].items()}
    columns = (rows[name].tolist() for name in ("vc", "num_gpus", "submit_s", "run_s"))
    arrivals = [
        ReplayArrival(f"{row:06d}", submit * SECOND_MS, run * SECOND_MS, FifoAsk(vc, gpus))
        for row, (vc, gpus, submit, run) in enumerate(zip(*columns, strict=True))
    ]
    outcome = play(arrivals, FifoReplay(nodes, 8))
    started = [each.admissions[0].at_ms // SECOND_MS for each in outcome.stories.values()]
    recorded = dict(zip((each.uid for each in arrivals), rows["start_s"].tolist(), strict=True))
    assert started == [recorded[uid] for uid in outcome.stories]
    placed = {uid: each.admissions[0].given for uid, each in outcome.stories.items()}
    assert [_written(placed[each.uid]) for each in arrivals] == rows["nodes"].tolist()
    assert (rows["wait_s"] > 0).sum() > 7_000


def _written(given: object) -> str:
    assert isinstance(given, tuple)
    return "|".join(f"{node}:{gpus}" for node, gpus in given)


class _Recorded(NamedTuple):
    arrivals: list[ReplayArrival[FifoAsk]]
    changes: list[tuple[int, PoolNodes]]


@pytest.mark.slow
@needs_shared("traces/helios-earth-vc")
def test_waits_under_the_recorded_capacity_add_up_to_what_was_pending() -> None:
    """A GPU that somebody asks for is a job; a virtual cluster gives as many as ran in each minute."""
    rows = pd.read_csv(HELIOS / "vc_minutes_rle.csv.gz", dtype={"vc": "str"})
    recorded = _Recorded([], [])
    for vc, own in rows.sort_values("minute", kind="stable").groupby("vc"):
        columns = own[["minute", "running_gpu_num", "pending_gpu_num"]].itertuples(index=False, name=None)
        _demand(str(vc), columns, recorded)
    changes = sorted(recorded.changes, key=lambda each: each[0])
    pools = dict.fromkeys(rows["vc"].unique().tolist(), 0)
    outcome = play(recorded.arrivals, FifoReplay(pools, None), changes)
    waits = {uid: each.admissions for uid, each in outcome.stories.items()}
    end_ms = MINUTES * MINUTE_MS
    waited = sum(
        (waits[each.uid][0].at_ms if waits[each.uid] else end_ms) - each.at_ms for each in recorded.arrivals
    )
    assert round(waited / HOUR_MS, 2) == PENDING_GPU_HOURS
    assert not any(each.evictions for each in outcome.stories.values())


def _demand(vc: str, minutes: Iterator[tuple[int, int, int]], recorded: _Recorded) -> None:
    """Who runs ends in the order of starting, who waits starts in the order of coming; where fewer run and
    fewer wait than before, so many more of those that ran have ended as then began to."""
    waiting: list[str] = []
    running: list[str] = []
    came: dict[str, int] = {}
    began: dict[str, int] = {}
    number = 0
    for minute, runs, waits in [*minutes, (MINUTES, 0, 0)]:
        at_ms = minute * MINUTE_MS
        is_over = minute == MINUTES
        more = runs + waits - len(running) - len(waiting)
        ended = list(running) if is_over else running[: max(0, -more, len(running) - runs)]
        del running[: len(ended)]
        for uid in ended:
            recorded.arrivals.append(ReplayArrival(uid, came[uid], at_ms - began[uid], FifoAsk(vc, 1)))
        if is_over:
            recorded.arrivals.extend(
                ReplayArrival(uid, came[uid], MINUTE_MS, FifoAsk(vc, 1)) for uid in waiting
            )
            return
        for _ in range(more + len(ended)):
            uid = f"{at_ms:012d} {vc} {number:06d}"
            number += 1
            came[uid] = at_ms
            waiting.append(uid)
        started = waiting[: max(0, runs - len(running))]
        del waiting[: len(started)]
        running += started
        began.update(dict.fromkeys(started, at_ms))
        assert (len(running), len(waiting)) == (runs, waits)
        recorded.changes.append((at_ms, PoolNodes(vc, runs)))
