"""Servers that idle: what their requests, their bytes, and the past gaps of servers say of them."""

from __future__ import annotations

from dataclasses import replace
from math import sqrt

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucost.detectors.findings import FindingDraft, RuleDetection, WithheldFinding
from gpucost.detectors.inputs.detector_facts import PastWork
from gpucost.detectors.rule_settings import IdleAllocationSettings, ScopedSettings, overridden
from gpucost.detectors.rules.idle_allocation import idle_allocation_rule
from gpucost.detectors.rules.idle_allocation.servers import (
    GapEnd,
    PastGaps,
    ReturnHazard,
    ServerGap,
)
from gpucost.domain.time import HOUR_MS, MINUTE_MS
from tests.detectors.case_idle_allocation import idle
from tests.detectors.worlds import STEP, World, at

HOUR = 60 // STEP


def server(minutes: int = 360) -> World:
    """Half an hour of work, then nothing for so long."""
    end = 35 + minutes
    world = World(end).node("n1").pod("p1", "n1", 5, job="web", kind="Deployment")
    return world.work("p1", "n1", "g0", [*[1.0] * 6, *idle(minutes)], start=5)


def detect(world: World, **settings: object) -> RuleDetection:
    return idle_allocation_rule.run(
        world.facts(), ScopedSettings(overridden(IdleAllocationSettings(), settings))
    )


def found(world: World, **settings: object) -> FindingDraft:
    (draft,) = detect(world, **settings).drafts
    return draft


def withheld(world: World, **settings: object) -> WithheldFinding:
    detection = detect(world, **settings)
    assert detection.drafts == ()
    (told,) = detection.withheld
    return told


def test_no_request_for_four_hours_and_idle() -> None:
    draft = found(server().served("p1", [9.0] * 6 + [0.0] * 72, start=5))
    assert draft.since_ms == at(35)
    assert "nobody called it for at least 4.0 h, by vllm:request_success_total" in draft.checked


def test_one_request_is_enough_and_time_counts_from_it() -> None:
    """At 2 h 30 min of 6 h, in a step of its own: 3 h 25 min are left, less than four hours."""
    calls = [9.0] * 6 + [0.0] * 30 + [1.0] + [0.0] * 41
    told = withheld(server().served("p1", calls, start=5))
    assert told.because.startswith("it was called meanwhile, last at 2026-10-06T03:10:00Z, by vllm:")
    assert not told.lacks_data
    later = found(server(420).served("p1", calls + [0.0] * 12, start=5))
    assert (later.since_ms, later.ended_ms) == (at(190), None)
    assert sum(each.end_ms - each.start_ms for each in later.episodes) == 265 * MINUTE_MS


def test_a_counter_of_the_workload_only_speaks_against_it() -> None:
    """It has a row only where something came; of its silence nothing follows."""
    metric = "nginx_ingress_controller_requests"
    world = server().served("p1", [None] * 40 + [2.0], start=5, metric=metric)
    assert "it was called meanwhile" in withheld(world).because
    told = withheld(server(600).served("p1", [None] * 9 + [2.0], start=5))
    assert "nothing says how many requests" in told.because


def test_a_counter_that_was_not_read_says_nothing() -> None:
    calls = [9.0] * 6 + [0.0] * 40 + [None] * 20 + [0.0] * 12
    told = withheld(server().served("p1", calls, start=5))
    assert told.because.startswith("nothing says how many requests it served, and after 6.0 h it may well")
    assert told.lacks_data


@pytest.mark.parametrize(
    ("busiest", "is_found"),
    [(120_000.0, True), (149_000.0, True), (151_000.0, False), (400_000.0, False)],
)
def test_bytes_count_above_the_pods_own_quiet_floor(busiest: float, is_found: bool) -> None:
    """Probes and scrapes are 50 kB in five minutes, 10 kB a minute; above 3 x 10 = 30, and 10 + 20 = 30, kB
    a minute, so 150 kB in a step, it is taken for a request."""
    received = [900_000.0] * 6 + [50_000.0] * 30 + [busiest] + [50_000.0] * 41
    detection = detect(server().served("p1", received, start=5, metric="rx", received=True))
    assert len(detection.drafts) == is_found
    if is_found:
        assert "nobody called it for at least 4.0 h, by rx" in detection.drafts[0].checked


def test_requests_are_believed_before_bytes() -> None:
    world = server().served("p1", [9.0] * 6 + [0.0] * 72, start=5)
    world.served("p1", [50_000.0] * 40 + [900_000.0] + [50_000.0] * 37, start=5, metric="rx", received=True)
    assert found(world).since_ms == at(35)


def test_without_a_signal_and_without_peers_it_is_withheld() -> None:
    told = withheld(server())
    assert told.because == (
        "nothing says how many requests it served, and after 6.0 h it may well work again within 24.0 h: no "
        "past gap of servers here was that long and followed as far; 10 % would do"
    )


def fleet(dead: int, back: int, days: int = 3) -> World:
    """Servers of an hour of work, then nothing for the rest; ``back`` of them work again after ten hours. The
    last one, ``web``, stops six hours before the end."""
    minutes = days * 24 * 60
    world = World(minutes)
    for n in range(dead + back):
        world.node(f"n{n}").pod(f"d{n}", f"n{n}", 5, job=f"d{n}", kind="Deployment")
        rest = idle(minutes - 65) if n < dead else [*idle(600), 1.0, *[0.5] * ((minutes - 670) // STEP)]
        world.work(f"d{n}", f"n{n}", f"g{n}", [*[1.0] * 12, *rest], start=5)
    world.node("nx").pod("web", "nx", 5, job="web", kind="Deployment")
    return world.work("web", "nx", "gx", [*[1.0] * ((minutes - 365) // STEP), *idle(360)], start=5)


def of_web(detection: RuleDetection) -> list[str]:
    return [each.because for each in detection.withheld if each.subject.name == "web"]


def test_by_what_became_of_servers_that_were_idle_as_long() -> None:
    """Wilson's upper end of 0 of n is z2 / (n + z2), z = 1.645: 10.13 % of 24, 9.76 % of 25."""
    z2 = 1.645**2
    assert z2 / (24 + z2) > 0.1 > z2 / (25 + z2)
    assert any("0 to 10 %; 10 % would do" in each for each in of_web(detect(fleet(24, 0))))
    detection = detect(fleet(25, 0))
    (draft,) = [each for each in detection.drafts if each.subject.name == "web"]
    assert draft.since_ms == at(3 * 24 * 60 - 360)
    assert (
        "nothing says how many requests it served; by what servers here did before, at most 10 % that were "
        "idle as long work again within 24.0 h" in draft.checked
    )
    assert of_web(detect(fleet(25, 3))) != []


def test_with_requests_a_fleet_that_comes_back_still_holds_it_back() -> None:
    """Of 12 that were idle for six hours 6 worked within a day: it is not called now, but will be."""
    world = fleet(6, 6)
    world.served("web", [0.0] * (3 * 24 * HOUR - 1), start=5)
    (because,) = of_web(detect(world))
    assert because.endswith("but 50 % of servers here that had been idle as long worked again within 24.0 h")


def gap(hours: float, end: GapEnd, job: int = 0) -> ServerGap:
    return ServerGap(job, 0, round(hours * HOUR_MS), end)


def test_hazard_by_hand() -> None:
    """Idle for 5 h, asked for 24: those that ended in work after 5 to 29 h count as back; one that ended
    later, or with its pods, or is open at 30 h, does not; one that is open at 20 h says nothing yet."""
    past = [gap(4, GapEnd.WORK), gap(6, GapEnd.WORK), gap(28, GapEnd.WORK), gap(40, GapEnd.WORK)]
    past += [gap(9, GapEnd.REMOVED), gap(30, GapEnd.OPEN), gap(20, GapEnd.OPEN), gap(5, GapEnd.WORK)]
    known = PastGaps(past).hazard(gap(5, GapEnd.OPEN, job=9), 24 * HOUR_MS)
    assert (known.gaps, known.worked) == (6, 3)
    z, half = 1.645, 1.645 * sqrt(0.25 / 6 + 1.645**2 / 144)
    assert known.high == pytest.approx((0.5 + z * z / 12 + half) / (1 + z * z / 6))
    assert known.low == pytest.approx((0.5 + z * z / 12 - half) / (1 + z * z / 6))
    long = PastGaps(past).hazard(gap(26, GapEnd.OPEN, job=9), 24 * HOUR_MS)
    assert (long.gaps, long.worked, long.ahead_ms) == (2, 2, 26 * HOUR_MS)
    nothing = PastGaps([]).hazard(gap(5, GapEnd.OPEN), HOUR_MS)
    assert (nothing.chance, nothing.low, nothing.high) == (1.0, 0.0, 1.0)


_GAPS = st.builds(
    ServerGap,
    st.integers(0, 3),
    st.integers(0, 3),
    st.integers(1, 60).map(HOUR_MS.__mul__),
    st.sampled_from(GapEnd),
)


@given(
    st.lists(_GAPS, max_size=30, unique_by=lambda each: (each.job, each.start_ms)),
    _GAPS,
    st.booleans(),
    st.integers(1, 60),
)
def test_a_hazard_is_a_count_over_all_gaps(
    past: list[ServerGap], other: ServerGap, is_own: bool, most: int
) -> None:
    """Gap by gap, as it is said of one: by what the sums must come to."""
    present = past[0] if is_own and past else replace(other, job=9)
    after = min(present.length_ms, most * HOUR_MS)
    ahead = max(24 * HOUR_MS, after)
    known = [each for each in past if each != present and each.length_ms >= after]
    followed = [each.length_ms >= after + ahead for each in known]
    counted = [n for n, each in enumerate(known) if followed[n] or each.end is not GapEnd.OPEN]
    worked = sum(known[n].end is GapEnd.WORK and not followed[n] for n in counted)
    assert PastGaps(past).hazard(present, 24 * HOUR_MS, most * HOUR_MS) == ReturnHazard(
        len(counted), worked, after, ahead
    )


def test_what_worked_again_is_no_finding_without_a_signal() -> None:
    world = World(400).node("n1").pod("p1", "n1", 5, job="web", kind="Deployment")
    world.work("p1", "n1", "g0", [*[1.0] * 6, *idle(300), *[1.0] * 13], start=5)
    told = withheld(world)
    assert told.because == "nothing says how many requests it served, and it worked again after 5.0 h"


HOURS_BEFORE = 14 * 24


def before(dead: int, back: int) -> PastWork:
    """Two weeks of hours before ``at(0)``: servers that work for an hour and never again, and some that do so
    after ten. ``web`` always works."""
    rows = list[dict[str, object]]()
    for n in range(dead + back):
        for hour in range(HOURS_BEFORE):
            works = hour == 0 or (n >= dead and hour > 10)
            rows.append(past_row(f"d{n}", hour, float(works)))
    rows += [past_row("uid-web", hour, 1.0) for hour in range(HOURS_BEFORE)]
    return PastWork(HOUR_MS, pd.DataFrame(rows))


def past_row(uid: str, hour: int, busy: float, seen: float = 1.0) -> dict[str, object]:
    held = float(HOUR_MS)
    return {
        "namespace": "ns", "job_uid": uid, "step_start_ms": at(60 * (hour - HOURS_BEFORE)), "board_ms": held,
        "observed_ms": seen * held, "busy_ms": busy * held, "sm_observed_ms": None, "sm_active_ms": None,
    }  # fmt: skip


@pytest.mark.parametrize(("dead", "back", "is_found"), [(25, 0, True), (24, 0, False), (25, 3, False)])
def test_the_ledger_remembers_what_a_day_of_history_cannot(dead: int, back: int, is_found: bool) -> None:
    world = server(360)
    facts = replace(world.facts(), past=before(dead, back))
    detection = idle_allocation_rule.run(facts, ScopedSettings(IdleAllocationSettings()))
    assert bool(detection.drafts) is is_found
    assert withheld(world).because.endswith(
        "no past gap of servers here was that long and followed as far; 10 % would do"
    )


def test_a_gap_that_began_before_the_history_is_as_long_as_it_was() -> None:
    """It did nothing for two weeks, and nothing in the six hours since: compared are others after a quarter
    of what is known, and no other was idle for so long."""
    world = World(360).node("n1").pod("web", "n1", 0, job="web", kind="Deployment")
    world.work("web", "n1", "g0", idle(360))
    rows = pd.DataFrame([past_row("uid-job", 0, 1.0), *(past_row("uid-web", n, 0.0) for n in range(336))])
    past = PastWork(HOUR_MS, rows)
    (told,) = idle_allocation_rule.run(
        replace(world.facts(), past=past), ScopedSettings(IdleAllocationSettings())
    ).withheld
    assert "after 342.0 h it may well work again within 85.5 h" in told.because


@pytest.mark.parametrize(
    ("steps", "rests"),
    [
        ("wqqqw", [(1, 4, "after", "before", "")]),
        ("qqw", [(0, 2, "", "before", "")]),
        ("wqq", [(1, 3, "after", "", "last")]),
        ("wq?qw", [(1, 2, "after", "", ""), (3, 4, "", "before", "")]),
        ("wq.qw", [(1, 2, "after", "", ""), (3, 4, "", "before", "")]),
        ("www", []),
    ],
)
def test_rests_of_the_past(steps: str, rests: list[tuple[int, int, str, str, str]]) -> None:
    """w: work; q: none; ?: not seen; a dot: it held nothing."""
    rows = [
        past_row("u", n, float(each == "w"), 0.5 if each == "?" else 1.0)
        for n, each in enumerate(steps)
        if each != "."
    ]
    start_ms = at(-60 * HOURS_BEFORE)
    past = PastWork(HOUR_MS, pd.DataFrame(rows))
    assert [
        (
            (each.start_ms - start_ms) // HOUR_MS,
            (each.end_ms - start_ms) // HOUR_MS,
            "after" * each.is_after_work,
            "before" * each.is_before_work,
            "last" * each.is_last,
        )
        for each in past.rests()
    ] == rests
