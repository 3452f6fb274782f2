"""What a source still has of a job: sums per GPU done by hand, and waits that are one where they touch."""

from __future__ import annotations

from fractions import Fraction
from math import nan

import pandas as pd

from gpucost.domain.time import HOUR_MS, MINUTE_MS, Window
from gpucost.reports.job.job_report import JobLiveView, live_view
from tests.detectors.worlds import GIB, T0, World, at

UID = "uid-train"


def look(world: World, uid: str = UID) -> JobLiveView:
    return live_view(uid, [(Window(T0, at(world.end)), world.frames())])


def world(end: float = 60) -> World:
    return World(end=end).node("n1").pod("p", "n1", 0, units=2, job="train")


def test_each_gpu_has_its_own_sums() -> None:
    """Twelve steps of five minutes: one GPU works half of each, the other only in the first three."""
    found = world().work("p", "n1", "GPU-a", [0.5] * 12, watts=300, memory=20 * GIB)
    found.work("p", "n1", "GPU-b", [1.0] * 3 + [0.0] * 9, sm=None)
    a, b = look(found).gpus
    assert (a.gpu, a.node, a.pod, a.held_board_ms, a.idle_board_ms) == ("GPU-a", "n1", "p", HOUR_MS, 0)
    assert a.busy is not None
    assert (a.busy.mean, a.busy.coverage) == (Fraction(1, 2), 1)
    assert a.sm is not None
    assert a.sm.mean == Fraction(1, 4)
    assert (a.memory_peak_mib, a.memory_total_mib) == (20 * 1024, 80 * 1024)
    assert a.energy is not None
    assert (a.energy.mj, a.energy.mean_w) == (300 * HOUR_MS, 300)
    assert (b.idle_board_ms, b.sm) == (45 * MINUTE_MS, None)


def test_what_was_not_observed_is_no_idle_gpu() -> None:
    found = world().work("p", "n1", "GPU-a", [0.0] * 12, observed=0.0)
    [use] = look(found).gpus
    assert (use.busy, use.idle_board_ms, use.held_board_ms) == (None, None, HOUR_MS)


def test_a_gpu_without_memory_and_energy_has_none() -> None:
    found = world().work("p", "n1", "GPU-a", [1.0], memory=nan, memory_total=nan, watts=nan)
    [use] = look(found).gpus
    assert (use.memory_peak_mib, use.memory_total_mib, use.energy) == (None, None, None)


def test_the_gpus_of_others_are_not_shown() -> None:
    found = world().pod("q", "n1", 0, job="other").work("q", "n1", "GPU-c", [1.0] * 12)
    assert look(found).gpus == ()
    assert [use.gpu for use in look(found, "uid-other").gpus] == ["GPU-c"]


def test_waits_that_touch_and_are_alike_are_one() -> None:
    found = world(200).waits("train", 0, 30, reason="r").waits("train", 30, 45, reason="r")
    found.waits("train", 45, 60, reason="s", layer="placement").waits("other", 0, 100)
    waits = look(found).waits
    assert [(wait.span.length_ms // MINUTE_MS, wait.layer, wait.reason) for wait in waits] == [
        (45, "quota", "r"),
        (15, "placement", "s"),
    ]
    assert look(found).waited_ms == HOUR_MS


def test_pod_sets_that_wait_at_the_same_time_wait_once() -> None:
    found = world(200).waits("train", 0, 60).waits("train", 30, 90, units=2)
    assert (len(look(found).waits), look(found).waited_ms) == (2, 90 * MINUTE_MS)


def test_rows_may_be_categories_as_a_recording_gives_them() -> None:
    made = world().work("p", "n1", "GPU-a", [0.5] * 12).frames()
    made.activity["pod_uid"] = pd.Categorical(made.activity["pod_uid"])
    made.activity["gpu"] = pd.Categorical(made.activity["gpu"], categories=["GPU-a", "GPU-gone"])
    assert [use.gpu for use in live_view(UID, [(Window(T0, at(60)), made)]).gpus] == ["GPU-a"]


def test_a_source_without_anything_is_no_error() -> None:
    found = live_view(UID, [], ["why"])
    assert (found.gpus, found.waits, found.waited_ms, found.notes) == ((), (), 0, ("why",))
