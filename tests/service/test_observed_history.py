"""The history of an observed month: from a recording and the cluster's objects, with topology requests."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpucost.advisor.replay.history_record import ReplayHistory
from gpucost.advisor.replay.scenario_run import run_scenario
from gpucost.attribution.frames import conform
from gpucost.attribution.teams import TeamRules
from gpucost.contract.frames import DEMAND, QUOTAS
from gpucost.domain.errors import InputError
from gpucost.domain.time import HOUR_MS, Window
from gpucost.service.replay.observed_history import ObservedCluster
from gpucost.telemetry.recorded_source import RecordedSource, record
from tests.advisor import worlds
from tests.advisor.worlds import Topology, meta
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
