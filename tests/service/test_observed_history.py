"""The history of an observed month: from a recording and the cluster's objects, with topology requests."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from gpucost.advisor.replay.history_record import PoolRecord, ReplayHistory
from gpucost.advisor.replay.pool_changes import changed_pools
from gpucost.advisor.replay.scenario_run import run_scenario
from gpucost.advisor.replay.what_if_change import WhatIfChange
from gpucost.attribution.frames import conform
from gpucost.attribution.teams import TeamRules
from gpucost.cluster.objects.volcano import VolcanoQueue
from gpucost.contract.frames import DEMAND, QUOTAS
from gpucost.domain.errors import InputError
from gpucost.domain.time import HOUR_MS, Window
from gpucost.service.replay.ledger_prices import LedgerPrices, LedgerRateSpan
from gpucost.service.replay.observed_history import ObservedCluster
from gpucost.telemetry.recorded_source import RecordedSource, record
from tests.advisor import worlds
from tests.advisor.worlds import Topology, meta
from tests.cluster import builders
from tests.support.frames import START, build, node, pd, pod, units

DAY = Window(START, START + 24 * HOUR_MS)
TEAMS = "version: 1\nrules: [{namespace: research, team: vision}]\n"


def row_of(spec: Any, **values: object) -> dict[str, object]:
    plain = {each.name: "" if each.type.value == "str" else 0 for each in spec.columns}
    return {**plain, "cluster": "c", "start_ms": START, "end_ms": DAY.end_ms, **values}


def gang(
    name: str, hours: tuple[float, float], nodes: tuple[str, ...], count: int = 8
) -> list[dict[str, Any]]:
    """A job with a pod on each of ``nodes``."""
    own = {"job": name, "job_uid": name, "workload": f"job-{name}", "queue": "main", "cluster_queue": "ml"}
    return [pod(f"{name}-{n}", hours, count, node=at, flavor="h100", **own) for n, at in enumerate(nodes)]


@pytest.fixture
def history(tmp_path: Path) -> ReplayHistory:
    """Two racks of two nodes. ``small`` takes half a node; ``second`` comes at 1:00, wants three nodes of one
    rack, and starts at 2:00 nevertheless."""
    names = ("n0", "n1", "n2", "n3")
    frames = build(
        [
            *gang("small", (0.25, 2), ("n0",), 4),
            *gang("second", (2, 4), ("n1", "n2", "n3")),
        ],
        [node(each) for each in names],
        [units(8, name=each) for each in names],
    )
    waits = row_of(
        DEMAND, namespace="research", job="second", job_uid="second", resource="nvidia.com/gpu", pods=3,
        units=24, start_ms=START + HOUR_MS, end_ms=START + 2 * HOUR_MS, layer="quota",
        channel="kueue",
    )  # fmt: skip
    quota = row_of(
        QUOTAS, scheduler="kueue", queue="ml", flavor="h100", resource="nvidia.com/gpu", nominal=32.0,
        borrowing_limit=None, lending_limit=None, used=0.0,
    )  # fmt: skip
    frames = replace(
        frames,
        demand=conform(pd.DataFrame([waits]), DEMAND),
        quotas=conform(pd.DataFrame([quota]), QUOTAS),
    )
    record(tmp_path / "recording", frames)
    rack = {"required": "rack"}
    second = worlds.workload("job-second", "ml", 8, 3, namespace="research", topology=rack)
    state = worlds.state(
        *(worlds.node(each, labels={"rack": f"r{n // 2}", "other": "x"}) for n, each in enumerate(names)),
        second,
        worlds.flavor("h100", topology="racks"),
        worlds.queue("ml", 32),
        topologies=[Topology(meta("racks"), ("rack",))],
    )
    teams = TeamRules.parse(TEAMS, "teams.yaml")
    of = ObservedCluster(RecordedSource(tmp_path / "recording"), "c", DAY, teams, state=state)
    return of.history("2026-10-01")


def test_what_was_observed_is_a_history_with_its_topology(history: ReplayHistory) -> None:
    jobs = {each.uid: each for each in history.jobs}
    assert {uid: (each.gpus, each.queue, each.team) for uid, each in jobs.items()} == {
        "small": (4, "ml", "vision"),
        "second": (24, "ml", "vision"),
    }
    assert jobs["second"].created_ms == START + HOUR_MS
    (pool,) = history.pools.values()
    assert (pool.name, pool.gpus, pool.model) == ("h100", 8, "H100")
    assert pool.labels == ({"rack": "r0"}, {"rack": "r0"}, {"rack": "r1"}, {"rack": "r1"})
    assert [each.topology for uid in ("second", "small") for each in jobs[uid].pod_sets] == [
        {"required": "rack"},
        {"unconstrained": "true"},
    ]
    assert any(each.startswith("topology of h100") for each in history.limits)
    # No rack has three nodes; where none is known, there is room at once.
    assert not run_scenario(history).outcome.stories["second"].admissions
    plain = replace(history, pools={"h100": replace(pool, labels=())})
    story = run_scenario(plain).outcome.stories["second"]
    assert [each.at_ms for each in story.admissions] == [START + HOUR_MS]
    # Of nodes that are gone nobody knows where they stood; who asks for no domain stands there all the same.
    gone = replace(history, pools={"h100": replace(pool, labels=({}, {}, {}, {"rack": "r1"}))})
    anywhere = tuple(replace(each, topology={"unconstrained": "true"}) for each in jobs["second"].pod_sets)
    gone = replace(gone, jobs=(jobs["small"], replace(jobs["second"], pod_sets=anywhere)))
    story = run_scenario(gone).outcome.stories["second"]
    assert [each.at_ms for each in story.admissions] == [START + HOUR_MS]
    record_ = jobs["second"].record
    assert record_ is not None
    assert (record_.starts, record_.ended_ms) == ((START + 2 * HOUR_MS,), START + 4 * HOUR_MS)


def test_a_time_of_which_the_source_has_nothing_is_refused(tmp_path: Path) -> None:
    record(tmp_path / "recording", build([pod("p", (0, 1))], [node()], [units()]))
    later = Window(START + 400 * 24 * HOUR_MS, START + 401 * 24 * HOUR_MS)
    of = ObservedCluster(RecordedSource(tmp_path / "recording"), "c", later, TeamRules.parse(TEAMS, "t"))
    with pytest.raises(InputError, match="holds something"):
        of.history("2027-11")


def test_queues_and_gangs_of_volcano_are_in_the_history(tmp_path: Path) -> None:
    """One node of two is taken until 2:00. ``second`` waits since 1:00 with two pods and needs one; of what
    its queue deserves the source saw a step at 1:30."""
    own = {"job": "second", "job_uid": "second", "workload": "second", "queue": "batch"}
    first = {"job": "first", "job_uid": "first", "workload": "first", "queue": "batch"}
    frames = build(
        [
            pod("first-0", (0.25, 2), 8, node="n0", **first),
            *(pod(f"second-{n}", (2, 4), 8, node=f"n{n}", **own) for n in (0, 1)),
        ],
        [node(each) for each in ("n0", "n1")],
        [units(8, name=each) for each in ("n0", "n1")],
    )
    wait = row_of(
        DEMAND, namespace="research", job="second", job_uid="second", resource="nvidia.com/gpu", pods=2,
        units=16, start_ms=START + HOUR_MS, end_ms=START + 2 * HOUR_MS, layer="quota",
    )  # fmt: skip
    half_ms = START + 3 * HOUR_MS // 2
    seen = row_of(
        QUOTAS, scheduler="volcano", queue="batch", cohort="root", resource="nvidia.com/gpu", nominal=8.0,
        borrowing_limit=None, lending_limit=None, used=8.0,
    )  # fmt: skip
    quotas = [{**seen, "end_ms": half_ms}, {**seen, "start_ms": half_ms, "nominal": 16.0}]
    frames = replace(
        frames,
        demand=conform(pd.DataFrame([wait]), DEMAND),
        quotas=conform(pd.DataFrame(quotas), QUOTAS),
    )
    record(tmp_path / "recording", frames)
    group = builders.pod_group("second", 1, rest={"queue": "batch"}, namespace="research")
    known = builders.state(VolcanoQueue(builders.meta("batch", ""), weight=3, state="Open"), group)
    source, teams = RecordedSource(tmp_path / "recording"), TeamRules.parse(TEAMS, "teams.yaml")
    found = ObservedCluster(source, "c", DAY, teams, state=known).history("2026-10-01")
    assert found.kueue is None
    assert found.volcano is not None
    queue = found.volcano.queues["batch"]
    assert (queue.weight, queue.deserved) == (3, {"nvidia.com/gpu": 8})
    assert [(at_ms, each.deserved) for at_ms, each in found.volcano.changes] == [
        (half_ms, {"nvidia.com/gpu": 16})
    ]
    jobs = {each.uid: each for each in found.jobs}
    assert {uid: (each.queue, each.min_member) for uid, each in jobs.items()} == {
        "first": ("batch", 0),
        "second": ("batch", 1),
    }
    assert any(each.startswith("queues of Volcano: weights") for each in found.limits)

    def start_of(history: ReplayHistory) -> int:
        return run_scenario(history).outcome.stories["second"].admissions[0].at_ms

    assert start_of(found) == START + HOUR_MS
    whole = replace(found, jobs=(jobs["first"], replace(jobs["second"], min_member=0)))
    assert start_of(whole) == START + 2 * HOUR_MS


def test_a_pool_has_the_prices_of_its_nodes_over_time() -> None:
    """One node changes its rate at 10:00; another, of which there is half as much, is there from 10:00 on."""
    noon = START + 12 * HOUR_MS
    spans = {
        "n0": (
            LedgerRateSpan("old", START, START + 10 * HOUR_MS, 80),
            LedgerRateSpan("new", START + 10 * HOUR_MS, noon, 16),
        ),
        "n1": (LedgerRateSpan("other", START + 10 * HOUR_MS, noon, 8),),
    }
    prices = LedgerPrices(spans, {"old": 6, "new": 5, "other": 2}, None)
    assert prices.steps(["n0"]) == [(START, Fraction(6)), (START + 10 * HOUR_MS, Fraction(5))]
    assert prices.steps(["n0", "n1"]) == [(START, Fraction(6)), (START + 10 * HOUR_MS, Fraction(4))]
    assert prices.steps(["n2"]) == []
    later = ((START + 10 * HOUR_MS, Fraction(5)),)
    pool = PoolRecord("h100", 8, ((START, 1),), "H100", Fraction(6), later_prices=later)
    assert pool.mean_price(Window(START, noon)) == Fraction(6 * 10 + 5 * 2, 12)

    def told(text: str) -> list[tuple[int, int]]:
        found = changed_pools({"h100": pool}, WhatIfChange.parse(text, "change.yaml"), START)[1]
        return [((each.at_ms - START) // HOUR_MS, int(each.price or 0)) for each in found]

    assert told("name: nothing") == [(0, 6), (10, 5)]
    assert told("prices: [{pool: h100, gpu_hour: 3, from: 2026-10-01T08:00:00Z}]") == [(0, 6), (8, 3 * 10**9)]
    assert told("prices: [{model: H100, gpu_hour: 3, from: 2026-10-01T11:00:00Z}]")[-2:] == [
        (10, 5),
        (11, 3 * 10**9),
    ]
    assert told("nodes: [{pool: h100, add: 1, price: 3}]") == [(0, 6), (0, 3 * 10**9)]
