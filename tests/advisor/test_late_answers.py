"""An answer that must be there by some instant: what was found by then, and a word about the rest."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import count

from gpucost.advisor.advise import advise
from gpucost.advisor.model.answers import SEARCH_STOPPED, WaitEstimate
from gpucost.advisor.wait.run_times import NO_HISTORY
from gpucost.advisor.wait.simulation import (
    SimulatedRun,
    WaitSampling,
    WaitSimulationInput,
    simulate,
)
from gpucost.reports.render.advice_text import search_note
from tests.advisor import suggesting, worlds
from tests.support.waits.fifo import FifoJob, fifo

SAMPLING = WaitSampling(20, 10_000_000, seed=1)


def scene() -> WaitSimulationInput:
    running = [SimulatedRun(f"r{at}", "t", "n", 1, 60_000 * (at + 1)) for at in range(2)]
    held = {each.id: ((at, 1),) for at, each in enumerate(running)}
    waiting = [SimulatedRun("asked", "t", "n", 1)]
    return WaitSimulationInput("asked", running, waiting, fifo(2, 1, held, [FifoJob("asked", 1)]))


def after(looks: int) -> Callable[[], bool]:
    """Late from this look at the clock on."""
    seen = count()
    return lambda: next(seen) >= looks


def waited(samples: int, looks: int) -> WaitEstimate:
    found = simulate(scene(), NO_HISTORY, replace(SAMPLING, samples=samples), after(looks))
    assert found is not None
    return found


def test_samples_end_when_it_is_late() -> None:
    assert waited(20, 100).samples == 20
    assert waited(20, 7).samples == 7


def test_without_any_sample_there_is_no_wait() -> None:
    assert simulate(scene(), NO_HISTORY, SAMPLING, after(0)) is None


def test_the_first_samples_are_spread_as_all_are() -> None:
    """The first is a middling one; in rising order it would be the least of all."""
    first, whole = waited(20, 1).p50_ms, waited(20, 100).p50_ms
    assert first is not None
    assert whole is not None
    assert 0.4 < first / whole < 2.5


def test_suggestions_stop_when_it_is_late_and_the_answer_says_so() -> None:
    known = suggesting.knowledge(
        worlds.queue("ml", 8), worlds.local_queue("batch", "ml", "ml"), worlds.node("n1")
    )
    manifest = suggesting.read(suggesting.job(queue="mian"))
    whole = advise(manifest, known)
    settings = replace(known.settings, budget_s=5.0)
    late = advise(manifest, replace(known, settings=settings, is_late=lambda: True))
    assert whole.suggestions
    assert late.suggestions == ()
    assert "suggestions stopped after 5 s" in late.assumptions
    assert not any("stopped" in each for each in whole.assumptions)
    assert (late.decision, late.says) == (whole.decision, whole.says)


def test_a_search_that_was_cut_short_says_so_beside_the_changes() -> None:
    said = search_note(("parked", f"{SEARCH_STOPPED} after 5 s"))
    assert said.startswith("The search for changes stopped after 5 s: there may be others.")
    assert search_note(("parked", "the simulation of the wait stopped after 5 s")) == ""
