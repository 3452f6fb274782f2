"""Changes of a replay, and what they do to small histories worked out by hand; identity, permutation."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import jsonschema_rs
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from gpucost.advisor.replay.fifo_nodes import NODE_LOST
from gpucost.advisor.replay.history_record import HistoryJob, JobRecord, ReplayHistory
from gpucost.advisor.replay.scenario_run import BASELINE, LoopMode, ScenarioRun, run_scenario
from gpucost.advisor.replay.what_if_change import WhatIfChange
from gpucost.cluster.objects.scheduler_config import KueueConfig
from gpucost.domain.errors import ConfigError, InputError
from gpucost.domain.time import HOUR_MS, MINUTE_MS, iso
from tests.advisor.replay_worlds import BEGIN_MS, FLAVOR, fifo_history, job, kueue_history


def change(text: str) -> WhatIfChange:
    return WhatIfChange.parse(text, "change.yaml")


def starts(run: ScenarioRun) -> dict[str, list[int]]:
    """Minutes of the window."""
    return {
        uid: [(each.at_ms - BEGIN_MS) // MINUTE_MS for each in story.admissions]
        for uid, story in run.outcome.stories.items()
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("quota: 3", "change.yaml:1: quota: unknown key; allowed: from, version, name, queues"),
        ("queues: [{name: a, quotas: [{flavor: f}]}]", "queues[0].quotas[0].nominal: missing"),
        ("queues: [{name: a, quotas: [{flavor: f, nominal: 1, add: 1}]}]", "one of nominal and add"),
        ("queues: [{name: a, quotas: [{flavor: f, nominal: -1}]}]", "a whole number of units, 0 or more"),
        (
            "queues: [{name: a, strategy: LIFO}]",
            "'LIFO' is not allowed; allowed: StrictFIFO or BestEffortFIFO",
        ),
        ("scheduler: {version: v0.3.0}", "a release whose rules are known: v0.12.0 to v0.19.2"),
        ("nodes: [{pool: p, speed: 0}]", "nodes[0].speed"),
        ("nodes: [{pool: p, speed: .inf}]", "nodes[0].speed"),
        ("queues: [{name: a, weight: .nan}]", "queues[0].weight"),
        ("queues: [{name: a, weight: -0.5}]", "queues[0].weight"),
        ("nodes: [{pool: p}]", "at least one of add, model, speed and price"),
        ("prices: [{gpu_hour: 2}]", "exactly one of model and pool"),
        ("priorities: [{queue: a}]", "one of set and add"),
        ("from: soon", "from: 'soon' is not allowed; allowed: a day such as 2026-10-01"),
        ("queues: [{name: a, from_ms: 3}]", "queues[0].from_ms: unknown key"),
    ],
)
def test_what_is_wrong_in_a_change_is_named(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        change(text)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("queues: [{name: c, weight: 2}]", "queues[0].name: 'c' is not allowed; allowed: a, b"),
        ("queues: [{name: a, quotas: [{flavor: l4, add: 1}]}]", "flavor: 'l4' is not allowed; allowed: h100"),
        ("nodes: [{pool: l4, add: 1}]", "nodes[0].pool: 'l4' is not allowed; allowed: h100"),
        ("prices: [{model: L4, gpu_hour: 1}]", "prices[0].model: 'L4' is not allowed; allowed: H100"),
        ("priorities: [{team: x, set: 1}]", "priorities[0].team: 'x' is not allowed; allowed: team-a"),
        ("scheduler: {rules: kueue}", "the history is of Kueue"),
        ("priorities: [{user: x, set: 1}]", "priorities[0].user: 'x' is not allowed; allowed: none: the"),
        ("priorities: [{job: space/k, set: 1}]", "allowed: the begin of the namespace/name of a job"),
        ("queues: [{name: a, cohort: al}]", "queues[0].cohort: 'al' is not allowed; allowed: all (did you"),
        ("cohorts: [{name: all, parent: top}]", "cohorts[0].parent: 'top' is not allowed; allowed: all"),
        (
            "cohorts: [{name: x, parent: all}, {name: all, parent: x}]",
            "cohorts[1].parent: 'x' is not allowed",
        ),
        ("cohorts: [{name: all, quotas: [{flavor: l4, nominal: 1}]}]", "quotas[0].flavor: 'l4' is not"),
        ("cohorts: [{name: all, quotas: [{flavor: h100, resource: cpu, nominal: 1}]}]", "resource: 'cpu' is"),
        (
            "queues: [{name: a, quotas: [{flavor: h100, add: -9}]}]",
            "add: -9 is not allowed; allowed: -8 or",
        ),
        (
            "nodes: [{pool: h100, add: -3}]",
            "nodes[0].add: -3 is not allowed; allowed: -2 or more: the pool",
        ),
        (
            "{from: 2026-11-01, queues: [{name: a, weight: 2}]}",
            "change: from: '2026-11-01T00:00:00Z' is not allowed; allowed: from 2026-10-01T00:00:00Z",
        ),
        ("nodes: [{pool: h100, add: 1, from: 2026-09-30}]", "nodes[0].from: '2026-09-30T00:00:00Z' is not"),
        ("scheduler: {fair_sharing: true, from: 2026-12-01}", "scheduler.from: '2026-12-01T00:00:00Z' is"),
    ],
)
def test_what_a_change_is_about_is_in_the_history(text: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        run_scenario(kueue_history(job("j1", 0, 10)), change(text))
    assert message in str(caught.value)
    with pytest.raises(InputError, match="rules: kueue makes queues of its pools"):
        run_scenario(fifo_history(job("j1", 0, 10)), change("queues: [{name: a, weight: 2}]"))


def test_quota_that_is_added_from_an_instant_on_admits_then() -> None:
    history = kueue_history(job("a1", 0, 120), job("b1", 0, 300, queue="b"), job("a2", 10, 60), nodes=3)
    assert starts(run_scenario(history)) == {"a1": [0], "a2": [120], "b1": [0]}
    more = change(
        f"queues: [{{name: a, from: {iso(BEGIN_MS + HOUR_MS)}, quotas: [{{flavor: h100, add: 8}}]}}]"
    )
    found = run_scenario(history, more)
    assert starts(found) == {"a1": [0], "a2": [60], "b1": [0]}
    ((at_ms, _),) = found.kueue_changes
    assert at_ms == BEGIN_MS + HOUR_MS


def test_without_nodes_quota_is_held_while_a_job_waits_for_them() -> None:
    jobs = job("a1", 0, 60), job("b1", 5, 60, queue="b")
    one = kueue_history(*jobs, nodes=1)
    assert starts(run_scenario(one)) == {"a1": [0], "b1": [60]}
    assert starts(run_scenario(replace(one, has_nodes=False))) == {"a1": [0], "b1": [5]}
    # Where only what fits gets quota, who comes later and fits takes it.
    alone = change("queues: [{name: b, cohort: ''}]")
    small = job("b2", 10, 20, gpus=4, queue="b")
    crowd = kueue_history(job("a1", 0, 60, gpus=4), jobs[1], small, nodes=1)
    assert starts(run_scenario(crowd, alone)) == {"a1": [0], "b1": [60], "b2": [120]}
    assert starts(run_scenario(replace(crowd, fits_first=True), alone)) == {"a1": [0], "b1": [60], "b2": [10]}


def test_a_node_that_is_lost_evicts_and_the_job_runs_again_when_it_is_back() -> None:
    lost = kueue_history(job("a1", 0, 60), nodes=1)
    steps = ((BEGIN_MS, 1), (BEGIN_MS + 30 * MINUTE_MS, 0), (BEGIN_MS + 90 * MINUTE_MS, 1))
    lost = replace(lost, pools={FLAVOR: replace(lost.pools[FLAVOR], steps=steps)})
    found = run_scenario(lost)
    assert starts(found) == {"a1": [0, 90]}
    (eviction,) = found.outcome.stories["a1"].evictions
    assert (eviction.at_ms, eviction.reason) == (BEGIN_MS + 30 * MINUTE_MS, NODE_LOST)
    assert found.outcome.stories["a1"].ended_ms == BEGIN_MS + 150 * MINUTE_MS
    plain = fifo_history(job("j1", 0, 60))
    taken = change(f"nodes: [{{pool: line, add: -1, from: {iso(BEGIN_MS + 30 * MINUTE_MS)}}}]")
    assert run_scenario(plain, taken).outcome.stories["j1"].evictions[0].reason == NODE_LOST


def test_priorities_speed_and_nodes() -> None:
    history = kueue_history(job("a1", 0, 60), job("b1", 0, 60, queue="b"), job("a2", 1, 60), job("a3", 2, 60))
    assert starts(run_scenario(history))["a3"] == [60]
    first = run_scenario(history, change("priorities: [{job: space/a3, set: 10}]"))
    # a3 comes before a2, and preempts a1, whose priority is lower.
    assert starts(first)["a3"] == [2]
    assert [each.by for each in first.outcome.stories["a1"].evictions] == ["a3"]
    fast = run_scenario(history, change("nodes: [{pool: h100, speed: 2}]"))
    assert starts(fast)["a2"] == [30]
    nodes = run_scenario(
        fifo_history(job("j1", 0, 60), job("j2", 5, 60)), change("nodes: [{pool: line, add: 1}]")
    )
    assert starts(nodes) == {"j1": [0], "j2": [5]}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", {"a1": [0, 90], "b1": [30]}),
        ("queues: [{name: a, quotas: [{flavor: h100, borrowing_limit: 4}]}]", {"a1": [], "b1": [30]}),
        ("queues: [{name: b, quotas: [{flavor: h100, lending_limit: 4}]}]", {"a1": [], "b1": [30]}),
        ("queues: [{name: b, cohort: ''}]", {"a1": [], "b1": [30]}),
        ("queues: [{name: b, preemption: {reclaim_within_cohort: Never}}]", {"a1": [0], "b1": [120]}),
        ("queues: [{name: a, stop: Hold}]", {"a1": [], "b1": [30]}),
        ("cohorts: [{name: all, quotas: [{flavor: h100, nominal: 8}]}]", {"a1": [0], "b1": [30]}),
    ],
)
def test_limits_cohorts_and_policies(text: str, expected: dict[str, list[int]]) -> None:
    """a1 wants what both queues have; an hour later b1 wants its own back."""
    history = kueue_history(job("a1", 0, 120, 16), job("b1", 30, 60, queue="b"), nodes=3)
    assert starts(run_scenario(history, change(text or "name: nothing"))) == expected


@pytest.mark.parametrize(
    ("text", "first"),
    [("", "a2"), ("scheduler: {fair_sharing: true}", "b1"), ("weight", "a2")],
)
def test_fair_sharing_and_weights(text: str, first: str) -> None:
    """All quota is the cohort's. When 2 GPUs come free a has 4 of 8 and b 2; a's job came first."""
    empty = "quotas: [{flavor: h100, nominal: 0}], preemption: {reclaim_within_cohort: Never}"
    none = f"queues: [{{name: a, {empty}%s}}, {{name: b, {empty}}}]"
    jobs = job("a0", 0, 300, 4), job("b0", 0, 300, 2, queue="b"), job("a1", 0, 60, 2)
    history = kueue_history(*jobs, job("a2", 10, 60, 2), job("b1", 20, 60, 2, queue="b"))
    cohort = "cohorts: [{name: all, quotas: [{flavor: h100, nominal: 8}]}]"
    weight = ", weight: 4" if text == "weight" else ""
    scheduler = "scheduler: {fair_sharing: true}" if text == "weight" else text
    found = starts(run_scenario(history, change("\n".join([none % weight, cohort, scheduler]))))
    assert found[first] == [60]
    assert found["b1" if first == "a2" else "a2"] == [120]


def test_a_pool_of_another_model_from_an_instant_on() -> None:
    noon = iso(BEGIN_MS + 12 * HOUR_MS)
    history = kueue_history(job("a1", 0, 60), job("a2", 13 * 60, 60))
    other = change(
        f"nodes: [{{pool: h100, model: H200, speed: 2, from: {noon}}}]\n"
        "prices: [{model: H200, gpu_hour: 3.5}, {model: H100, gpu_hour: 1.5}]"
    )
    found = run_scenario(history, other)
    pool = found.pools[FLAVOR]
    assert [pool.model_at(BEGIN_MS + hours * HOUR_MS) for hours in (0, 11, 12, 23)] == [
        *("H100", "H100", "H200", "H200")
    ]
    prices = [(each.at_ms, int(each.price)) for each in found.prices if each.price is not None]
    assert prices[-1] == (BEGIN_MS + 12 * HOUR_MS, 3_500_000_000)
    assert prices[-2] == (BEGIN_MS, 1_500_000_000)
    ends = [story.ended_ms for story in found.outcome.stories.values()]
    assert ends == [BEGIN_MS + HOUR_MS, BEGIN_MS + 13 * HOUR_MS + 30 * MINUTE_MS]


def test_rules_of_another_release() -> None:
    history = kueue_history(job("a1", 0, 60))
    found = run_scenario(history, change(f"scheduler: {{version: v0.16.0, from: {iso(BEGIN_MS + HOUR_MS)}}}"))
    assert found.kueue is not None
    assert found.kueue.config.version == "v0.19.2"
    ((_, config),) = found.kueue_changes
    assert isinstance(config, KueueConfig)
    assert config.version == "v0.16.0"


_VALID = """
name: all kinds
from: "2026-10-02"
queues:
  - name: a
    from: "2026-10-12T00:00:00Z"
    cohort: ""
    weight: 1.5
    stop: "None"
    strategy: StrictFIFO
    preemption: {within_cluster_queue: Never, max_priority_threshold: 3}
    quotas: [{flavor: h100, add: -4, borrowing_limit: unlimited, lending_limit: 8}]
cohorts: [{name: all, parent: "", weight: 2, quotas: [{flavor: h100, nominal: 8}]}]
scheduler: {fair_sharing: true, version: v0.19.2}
priorities: [{team: team-a, add: 5}]
nodes: [{pool: h100, model: H200, speed: 1.4, price: 3.5}, {pool: h100, add: 2, model: B200, price: 6}]
prices: [{model: H100, gpu_hour: 2}]
charges: policy.yaml
commitments: contracts.yaml
"""


def test_the_schema_of_a_change_takes_what_is_a_change_and_nothing_else() -> None:
    schema = WhatIfChange.file_schema()
    takes = jsonschema_rs.Draft202012Validator(schema).is_valid
    assert takes(yaml.safe_load(_VALID))
    change(_VALID)
    for wrong in (
        "quota: 3",
        "queues: [{name: a, weight: -1}]",
        "queues: [{name: a, quotas: [{flavor: f, lending_limit: none}]}]",
        "queues: [{name: a, quotas: [{flavor: f, nominal: 1.5}]}]",
        "queues: [{quotas: []}]",
        "nodes: [{pool: p, speed: 0}]",
        "prices: [{pool: p, gpu_hour: -1}]",
        "version: 2",
    ):
        assert not takes(yaml.safe_load(wrong)), wrong
        with pytest.raises(ConfigError):
            change(wrong)


def test_pools_of_plain_fifo_become_queues_that_lend() -> None:
    plain = fifo_history(job("j1", 0, 60), job("j2", 5, 60), job("k1", 30, 10))
    other = replace(plain.pools["line"], name="other")
    jobs = (*plain.jobs[:2], replace(plain.jobs[2], pool="other", queue="other"))
    two = replace(plain, pools={**plain.pools, "other": other}, jobs=jobs)
    assert starts(run_scenario(two)) == {"j1": [0], "j2": [60], "k1": [30]}
    lend = run_scenario(two, change("scheduler: {rules: kueue, cohort: all}"))
    assert starts(lend) == {"j1": [0], "j2": [5], "k1": [60]}
    apart = run_scenario(two, change("scheduler: {rules: kueue}"))
    assert starts(apart) == {"j1": [0], "j2": [60], "k1": [30]}


def test_in_closed_loop_the_next_job_comes_after_the_last_one_ended() -> None:
    jobs = (
        job("j1", 0, 60, user="u", started=0),
        job("j2", 1, 60, user="v", started=60),
        job("j3", 130, 30, user="v", started=130),
    )
    history = fifo_history(*jobs)
    assert starts(run_scenario(history)) == {"j1": [0], "j2": [60], "j3": [130]}
    more = change("nodes: [{pool: line, add: 1}]")
    assert starts(run_scenario(history, more, LoopMode.OPEN)) == {"j1": [0], "j2": [1], "j3": [130]}
    # v thought for ten minutes after its job had ended, which is an hour earlier now.
    closed = run_scenario(history, more, LoopMode.CLOSED)
    assert starts(closed) == {"j1": [0], "j2": [1], "j3": [71]}
    assert closed.jobs["j3"].created_ms == BEGIN_MS + 71 * MINUTE_MS


def test_runs_without_length_at_one_instant_do_not_wait_for_each_other() -> None:
    record = JobRecord((BEGIN_MS,), ended_ms=BEGIN_MS)
    jobs = [replace(job(uid, 0, 0, user="u"), record=record) for uid in ("j1", "j2", "j3")]
    assert set(run_scenario(fifo_history(*jobs), BASELINE, LoopMode.CLOSED).jobs) == {"j1", "j2", "j3"}


JOBS = st.lists(
    st.tuples(
        st.integers(0, 40), st.integers(0, 50), st.sampled_from((1, 2, 4, 8)), st.sampled_from("ab"),
        st.sampled_from((0, 0, 10)),
    ),
    min_size=1,
    max_size=14,
)  # fmt: skip


def drawn(rows: list[tuple[int, int, int, str, int]], *, fits_first: bool = False) -> ReplayHistory:
    jobs: list[HistoryJob] = [
        job(f"j{n:02d}", at, runs, gpus, queue, priority=priority)
        for n, (at, runs, gpus, queue, priority) in enumerate(rows)
    ]
    return replace(kueue_history(*jobs), fits_first=fits_first)


@given(JOBS, st.booleans(), st.integers(0, 5))
def test_no_change_and_another_order_of_the_input_change_nothing(
    rows: list[tuple[int, int, int, str, int]], fits_first: bool, seed: int
) -> None:
    history = drawn(rows, fits_first=fits_first)
    first = run_scenario(history).outcome
    mixed = list(history.jobs)
    Random(seed).shuffle(mixed)
    assert run_scenario(replace(history, jobs=tuple(mixed))).outcome == first
    nothing = change(
        "queues: [{name: a, quotas: [{flavor: h100, nominal: 8}]}]\nnodes: [{pool: h100, add: 0}]"
    )
    assert run_scenario(history, nothing).outcome == first


@given(JOBS, st.booleans())
def test_nodes_never_hold_more_than_they_have(
    rows: list[tuple[int, int, int, str, int]], fits_first: bool
) -> None:
    history = drawn(rows, fits_first=fits_first)
    found = run_scenario(history)
    runs = []
    for uid, story in found.outcome.stories.items():
        stops = [each.at_ms for each in story.evictions]
        for n, begun in enumerate(story.admissions):
            last = n + 1 == len(story.admissions)
            before = None if last else story.admissions[n + 1].at_ms
            ends = [at for at in stops if at >= begun.at_ms and (before is None or at <= before)]
            end_ms = ends[0] if ends else story.ended_ms
            assert end_ms is not None
            runs.append((begun.at_ms, end_ms, found.jobs[uid].gpus))
    for at_ms, _, _ in runs:
        assert sum(gpus for start, end, gpus in runs if start <= at_ms < end) <= 16
