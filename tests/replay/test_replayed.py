"""Real traces through the replay: the starts, the waits and the capacity that were recorded, as ``gpucost
replay --trace`` reads and answers them."""

from __future__ import annotations

import pandas as pd
import pytest

from benchmarks.support.philly import DEFAULT_TRACES
from gpucost.advisor.replay.scenario_run import run_scenario
from gpucost.domain.time import HOUR_MS
from gpucost.reports.replay.scenario_figures import PlayedScenario, replay_report
from gpucost.service.replay.public_traces import trace_history
from tests.support.shared import needs_shared

PENDING_GPU_HOURS = 45_671.62


@pytest.mark.slow
@needs_shared("traces/philly-vc")
def test_strict_fifo_gives_the_recorded_starts() -> None:
    rows = pd.read_csv(DEFAULT_TRACES / "philly-vc" / "replay_fifo.csv.gz", dtype={"vc": "str"})
    history = trace_history("philly", DEFAULT_TRACES)
    run = run_scenario(history)
    report = replay_report(history, [PlayedScenario(run)], "rules")
    assert report.baseline is not None
    assert report.baseline.exact == report.baseline.jobs == len(rows)
    placed = [_written(run.outcome.stories[each.uid].admissions[0].given) for each in history.jobs]
    assert placed == rows["nodes"].tolist()
    assert (rows["wait_s"] > 0).sum() > 7_000
    assert report.scenarios[0].cluster.conservation_board_ms == 0


def _written(given: object) -> str:
    assert isinstance(given, tuple)
    return "|".join(f"{node}:{gpus}" for node, gpus in given)


@pytest.mark.slow
@needs_shared("traces/helios-earth-vc")
def test_waits_under_the_recorded_capacity_add_up_to_what_was_pending() -> None:
    """A GPU that somebody asks for is a job; a virtual cluster gives as many as ran in each minute."""
    history = trace_history("helios", DEFAULT_TRACES)
    run = run_scenario(history)
    (base,) = replay_report(history, [PlayedScenario(run)], "rules").scenarios
    everyone = base.group("all", "")
    assert everyone is not None
    assert round(everyone.waits.pending_board_ms / HOUR_MS, 2) == PENDING_GPU_HOURS
    assert not any(each.evictions for each in run.outcome.stories.values())
