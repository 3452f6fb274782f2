"""The answer of a replay: waits, money that adds up, who lent whom, and what is not told apart."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given

from gpucost.advisor.replay.replay_timeline import PreemptionRing, RepeatedPreemption
from gpucost.advisor.replay.scenario_run import run_scenario
from gpucost.advisor.replay.what_if_change import WhatIfChange
from gpucost.advisor.verify.case_files import MOST_BYTES, decoded
from gpucost.advisor.verify.history_files import histories_of
from gpucost.charges.contract_terms import ContractBook
from gpucost.charges.policy_file import PolicyBook
from gpucost.cluster.objects.kueue import FlavorQuota, FlavorResource
from gpucost.domain.buckets import UNALLOCATED
from gpucost.domain.errors import ConfigError, InputError
from gpucost.domain.money import NANO
from gpucost.domain.time import DAY_MS, HOUR_MS, MINUTE_MS, SECOND_MS, Window
from gpucost.kube.dumps.dump import content_of
from gpucost.reports.base.document import to_json
from gpucost.reports.replay.run_views import recorded_views, views_of
from gpucost.reports.replay.scenario_answer import ReplayReport, WasteBuckets
from gpucost.reports.replay.scenario_figures import PlayedScenario, replay_report
from gpucost.reports.replay.scenario_money import hour_cells, scenario_money
from gpucost.service.replay.history_files import kueue_history as recorded_history
from tests.advisor.histories import HISTORIES
from tests.advisor.replay_worlds import BEGIN_MS, WINDOW, fifo_history, job, kueue_history
from tests.advisor.test_scenarios import JOBS, change, drawn

POLICY = """
version: 1
name: by quota
currency: USD
policies: [{base: use, idle_of_nobody: by_use, mark_up: 5}]
"""
CONTRACTS = """
version: 1
currency: USD
contracts:
  - id: r
    kind: reservation
    scope: {models: [H100]}
    start: 2026-10-01T00:00:00Z
    end: 2026-11-01T00:00:00Z
    gpus: 8
    price: 1.2
"""


def answered(history, *changes: WhatIfChange) -> ReplayReport:  # type: ignore[no-untyped-def]
    played = [
        PlayedScenario(run_scenario(history)),
        *(PlayedScenario(run_scenario(history, each)) for each in changes),
    ]
    return replay_report(history, played, "rules")


def test_waits_shares_and_the_cluster_by_hand() -> None:
    history = fifo_history(
        job("j1", 0, 60, started=0), job("j2", 0, 30, 4, started=60), job("j3", 1, 600, 4, started=60)
    )
    report = answered(history, change("name: more\nnodes: [{pool: line, add: 1}]"))
    assert report.baseline is not None
    assert (report.baseline.exact, report.baseline.start_p90_ms, report.baseline.order) == (3, 0, 1)
    base, more = report.scenarios
    everyone = base.group("all", "")
    assert everyone is not None
    waits = everyone.waits
    assert (waits.jobs, waits.started, waits.soon) == (3, 3, Fraction(1, 3))
    assert (waits.p50_ms, waits.p90_ms) == (59 * MINUTE_MS, 60 * MINUTE_MS)
    assert waits.pending_board_ms == 4 * (60 + 59) * MINUTE_MS
    cluster = base.cluster
    assert cluster.capacity_board_ms == 8 * DAY_MS
    assert cluster.held_board_ms == (8 * 60 + 4 * 30 + 4 * 600) * MINUTE_MS
    assert cluster.capacity_nano == 8 * 24 * NANO  # 1 an hour
    # After the first hour four GPUs of a node in use are free, and from 1:30 on; all of it from 11:00 on.
    free = 8 * DAY_MS - cluster.held_board_ms
    assert cluster.fragmentation == Fraction(4 * (660 - 90) * MINUTE_MS, free)
    assert cluster.waste == WasteBuckets(0, 0, 0, free, cluster.held_board_ms)
    after = more.group("all", "")
    assert after is not None
    assert after.p90 is not None
    assert after.p90.ms == -60 * MINUTE_MS
    assert [each.uid for each in more.jobs] == ["j2", "j3"]
    assert (more.jobs[0].layer_before, more.jobs[0].layer_after) == ("placement", "")
    assert more.jobs[0].held_by_before == "team-a 8.0 GPUs"


def test_free_time_is_starved_where_who_waits_would_fit_and_fragmented_where_not() -> None:
    # Two nodes with two free GPUs each: a gang of four does not fit; who waits for quota would have.
    history = kueue_history(
        job("a1", 0, 120, 6), job("a2", 0, 120, 6, queue="b"), job("a3", 30, 60, 4), job("b1", 60, 60, 2, "b")
    )
    stopped = change("name: stop\nqueues: [{name: b, stop: Hold, from: 2026-10-01T00:01:00Z}]")
    _, found = answered(history, stopped).scenarios
    a, b, waste = found.group("queue", "a"), found.group("queue", "b"), found.cluster.waste
    assert a is not None
    assert b is not None
    assert b.waits.started == 1
    assert a.fragmented_board_ms == (4 * 30 + 2 * 60) * MINUTE_MS  # from 1:00 on b1 would take two of four
    assert (a.starved_board_ms, b.fragmented_board_ms) == (0, 0)
    assert b.starved_board_ms == 2 * (24 - 1) * HOUR_MS
    assert waste.starved_board_ms + waste.fragmented_board_ms == a.fragmented_board_ms + b.starved_board_ms
    assert sum(waste.by_bucket.values()) == found.cluster.capacity_board_ms


def test_nodes_of_another_model_stand_beside_the_old_ones_and_cost_their_own() -> None:
    history = kueue_history(job("a1", 0, 120, 16), job("b1", 0, 60, 8, queue="b"), nodes=2)
    text = (
        "nodes: [{pool: h100, add: 1, model: H200, price: 6, from: 2026-10-01T01:00:00Z}]\n"
        "prices: [{model: H100, gpu_hour: 1}, {model: H200, gpu_hour: 9, from: 2026-10-01T13:00:00Z}]"
    )
    _, found = answered(history, change(f"name: h200\n{text}")).scenarios
    cluster = found.cluster
    assert cluster.capacity_board_ms == (16 * 24 + 8 * 23) * HOUR_MS
    assert cluster.capacity_nano == (16 * 24 * 1 + 8 * 12 * 6 + 8 * 11 * 9) * NANO
    assert (cluster.conservation_board_ms, cluster.conservation_nano) == (0, 0)
    run = run_scenario(history, change(f"name: h200\n{text}"))
    cells = list(hour_cells(list(views_of(run, WINDOW).values()), run.pools, run.prices, WINDOW, "one"))
    by_model = {model: sum(each.nano for each in cells if each.model == model) for model in ("H100", "H200")}
    assert by_model == {"H100": 16 * 24 * NANO, "H200": (8 * 12 * 6 + 8 * 11 * 9) * NANO}
    with pytest.raises(InputError, match="price: missing"):
        run_scenario(history, change("nodes: [{pool: h100, add: 1, model: H200}]"))
    with pytest.raises(ConfigError, match="speed"):
        change("nodes: [{pool: h100, add: 1, model: H200, speed: 2}]")


def test_units_of_a_sliced_gpu_are_parts_of_it_in_every_figure() -> None:
    whole = fifo_history(job("j1", 0, 60, started=0), job("j2", 0, 30, 4, started=60))
    pool = replace(whole.pools["line"], share=Fraction(1, 4))
    report = answered(replace(whole, pools={"line": pool}))
    (found,) = report.scenarios
    everyone = found.group("all", "")
    assert report.baseline is not None
    assert everyone is not None
    held = (8 * 60 + 4 * 30) * MINUTE_MS // 4
    assert report.baseline.recorded_board_ms == report.baseline.replayed_board_ms == held
    assert everyone.board_ms == found.cluster.held_board_ms == held
    assert everyone.nano == held * NANO // HOUR_MS  # 1 an hour
    assert everyone.waits.pending_board_ms == report.baseline.recorded.pending_board_ms == 60 * MINUTE_MS


def test_what_is_borrowed_is_lent_and_preempted_runs_are_lost() -> None:
    history = kueue_history(
        job("a1", 0, 120, 16), job("b1", 60, 60, 8, queue="b"), job("a2", 0, 30, 8, priority=-1)
    )
    report = answered(history)
    (found,) = report.scenarios
    a, b = found.group("queue", "a"), found.group("queue", "b")
    assert a is not None
    assert b is not None
    # a1 runs on all 16 GPUs for an hour until b takes back its own; then it waits for b1 and starts anew.
    assert a.evictions == 1
    assert a.preempted_board_ms == 16 * HOUR_MS
    assert (a.borrowed_board_ms, a.lent_board_ms) == (b.lent_board_ms, b.borrowed_board_ms)
    assert a.borrowed_board_ms is not None
    assert a.borrowed_board_ms > 8 * HOUR_MS
    assert a.nominal_board_ms == 8 * DAY_MS


@given(JOBS)
def test_teams_and_what_nobody_held_are_the_capacity(rows: list[tuple[int, int, int, str, int]]) -> None:
    history = replace(drawn(rows), window=WINDOW)
    run = run_scenario(history, change("prices: [{model: H100, gpu_hour: 1.7, from: 2026-10-01T00:20:00Z}]"))
    views = list(views_of(run, WINDOW).values())
    policy = PolicyBook.parse(POLICY, "policy.yaml", {})
    money = scenario_money(views, run.pools, run.prices, WINDOW, "one", "USD", policy)
    assert money.difference == (0, 0)
    assert money.capacity.board_ms == 16 * DAY_MS
    assert money.charged is not None
    assert money.kept is not None
    assert money.charge_difference == 0
    free = money.of_team(UNALLOCATED)
    held = sum(money.of_team(team).board_ms for team in ("team-a", "team-b"))
    assert held + free.board_ms == money.capacity.board_ms
    assert held == sum((each.end_ms - each.start_ms) * view.job.gpus for view in views for each in view.runs)


def test_contracts_and_unknown_prices() -> None:
    run = run_scenario(kueue_history(job("a1", 0, 600, 8)))
    views = list(views_of(run, WINDOW).values())
    unpriced = scenario_money(views, run.pools, (), WINDOW, "one", "USD")
    assert unpriced.capacity.unpriced_ms == unpriced.capacity.board_ms
    book = ContractBook.parse(CONTRACTS, "contracts.yaml")
    bound = scenario_money(views, run.pools, run.prices, WINDOW, "one", "USD", None, book)
    assert bound.effective is not None
    # Eight GPUs for ten hours at the contract's price in place of 2 an hour; the platform has what is left of
    # it, and the other eight at 2.
    idle = (8 * 24 - 80) * 12 * NANO // 10 + 8 * 24 * 2 * NANO
    assert bound.effective == {"team-a": 80 * 12 * NANO // 10, "": idle}


def test_contracts_of_the_charge_policy_are_charged() -> None:
    """Eight GPUs for ten hours cost 160 by their price of 2; the contract makes 96 of it, and the owner of
    what was not used is the platform. A change's own contracts, at half the price, stand in their place."""
    run = run_scenario(kueue_history(job("a1", 0, 600, 8)))
    views = list(views_of(run, WINDOW).values())
    text = POLICY.replace("idle_of_nobody: by_use, mark_up: 5", "idle_of_nobody: platform")
    policy = PolicyBook.parse(
        f"{text}contracts_file: c.yaml\n", "policy.yaml", {}, lambda name: (CONTRACTS, name)
    )
    cheaper = ContractBook.parse(CONTRACTS.replace("1.2", "0.6"), "contracts.yaml")
    for own, price in ((None, 12), (cheaper, 6)):
        found = scenario_money(views, run.pools, run.prices, WINDOW, "one", "USD", policy, own)
        assert found.charged == {"team-a": 80 * price * NANO // 10}
        assert found.effective is not None
        assert found.effective["team-a"] == found.charged["team-a"]
        assert found.charge_difference == 0


def test_contracts_charge_whole_hours_of_a_window_that_cuts_them() -> None:
    """From 0:20 to 9:50 ten hours of the contract, at 1.2 each for 8 GPUs, of which 1 h 40 are used; all
    else of 16 GPUs costs 2 an hour. Thirds of an hour are rounded."""
    run = run_scenario(kueue_history(job("a1", 20, 100, 8)))
    cut = Window(BEGIN_MS + 20 * MINUTE_MS, BEGIN_MS + 590 * MINUTE_MS)
    views = list(views_of(run, cut).values())
    text = POLICY.replace("idle_of_nobody: by_use, mark_up: 5", "idle_of_nobody: platform")
    policy = PolicyBook.parse(text, "policy.yaml", {})
    book = ContractBook.parse(CONTRACTS, "contracts.yaml")
    found = scenario_money(views, run.pools, run.prices, cut, "one", "USD", policy, book)
    used = 8 * 100 * 12 * NANO // 600
    assert found.charged == {"team-a": used}
    assert found.effective is not None
    whole = 8 * 10 * 12 * NANO // 10 + (16 * 570 - 8 * 600) * 2 * NANO // 60
    assert abs(sum(found.effective.values()) - whole) <= 1
    assert found.charge_difference == 0


def test_a_policy_about_nothing_here_is_a_remark() -> None:
    run = run_scenario(kueue_history(job("a1", 0, 600, 8)))
    views = list(views_of(run, WINDOW).values())
    quota = "quotas: [{team: team-a, model: H1OO, gpus: 8}]"
    policy = PolicyBook.parse(f"{POLICY}{quota}\n", "policy.yaml", {})
    book = ContractBook.parse(CONTRACTS.replace("H100", "H2OO"), "contracts.yaml")
    found = scenario_money(views, run.pools, run.prices, WINDOW, "one", "USD", policy, book)
    assert [text.partition(":")[0] for text in found.remarks] == ["quota of team-a for H1OO", "contract r"]


def test_borrowed_and_lent_are_of_the_flavor_that_a_run_got() -> None:
    """Of a recording with three flavors, as a script apart from gpucost adds them up from its starts."""
    found = histories_of(decoded(content_of(HISTORIES, MOST_BYTES), HISTORIES.name), HISTORIES.name)
    history = next(each for each in found.histories if each.id == "kh-051")
    configuration = next(each for each in history.configurations if each.name == "A")
    [base] = answered(recorded_history(history, configuration, history.id)).scenarios
    borrowed = {
        each.name: round((each.borrowed_board_ms or 0) / HOUR_MS, 1)
        for each in base.groups
        if each.kind == "queue"
    }
    assert borrowed == {"team-a": 24.0, "team-b": 53.9, "team-c": 4.2, "team-d": 71.5, "team-e": 8.3}


def test_quota_is_that_of_gpus() -> None:
    """Not of CPUs and memory beside them."""
    history = kueue_history(job("a1", 0, 600, 8))
    assert history.kueue is not None
    [known] = [answered(history).scenarios[0].group("queue", "a")]
    queues = {
        uid: replace(each, quotas={**each.quotas, FlavorResource("node", "cpu"): FlavorQuota(384_000)})
        for uid, each in history.kueue.state.cluster_queues.items()
    }
    state = replace(history.kueue.state, cluster_queues=queues)
    more = replace(history, kueue=replace(history.kueue, state=state))
    assert answered(more).scenarios[0].group("queue", "a") == known


def test_a_difference_within_the_error_of_the_baseline_is_not_told_apart() -> None:
    jobs = [job(f"j{n:02d}", 10 * n, 30, started=10 * n + 200) for n in range(40)]
    more = change("name: more\nnodes: [{pool: line, add: 1}]")
    report = answered(fifo_history(*jobs), more)
    off = answered(fifo_history(*(replace(each, record=None) for each in jobs)), more)
    first, second = (each.scenarios[1].group("all", "") for each in (report, off))
    assert first is not None
    assert first.mean is not None
    assert second is not None
    assert second.mean is not None
    assert first.mean.ms == second.mean.ms < 0
    assert second.mean.told
    assert second.mean.error_ms is None
    assert first.mean.error_ms is not None
    assert first.mean.told == (abs(first.mean.ms) > first.mean.error_ms)
    assert second.mean.low_ms <= second.mean.ms <= second.mean.high_ms < 0


def test_nodes_that_make_waits_longer_are_reported() -> None:
    """On one node the long job never has room, and short ones run; with a second it starts and holds both."""
    short = [job(f"s{n:02d}", 2 + n, 5, 8) for n in range(30)]
    history = replace(kueue_history(job("long", 1, 900, 16), *short, nodes=1), fits_first=True)
    report = answered(history, change("name: more\nnodes: [{pool: h100, add: 1}]"))
    more = report.scenarios[1]
    everyone = more.group("all", "")
    assert everyone is not None
    assert everyone.mean is not None
    assert everyone.mean.ms > 0
    assert any("Graham's anomaly" in each for each in more.remarks)


def test_the_same_input_gives_the_same_bytes() -> None:
    history = kueue_history(*(job(f"j{n:02d}", n, 20, 8, "ab"[n % 2]) for n in range(20)))
    more = change("name: more\nnodes: [{pool: h100, add: 1}]")
    nothing = WhatIfChange(name="nothing")
    report = answered(history, nothing, more)
    assert to_json(report) == to_json(answered(history, nothing, more))
    same = report.scenarios[1]
    assert same.cluster == report.scenarios[0].cluster
    assert "no start, run or eviction is another one than in the baseline" in same.remarks
    assert not same.jobs


@pytest.mark.parametrize("minute", [0, 700])
def test_who_never_started_waited_until_the_end(minute: int) -> None:
    history = fifo_history(job("j1", 0, 3000), job("j2", minute, 10))
    (base,) = answered(history).scenarios
    everyone = base.group("all", "")
    assert everyone is not None
    assert everyone.waits.started == 1
    assert everyone.waits.p99_ms == WINDOW.end_ms - BEGIN_MS - minute * MINUTE_MS


def test_a_ring_that_something_ended_is_a_remark() -> None:
    history = kueue_history(job("j0", 0, 60), job("j1", 5, 60, queue="b"), has_nodes=False)
    run = run_scenario(history)
    pair = RepeatedPreemption("j1", "j0", "InCohortReclamation", 40)
    ring = PreemptionRing(BEGIN_MS, BEGIN_MS + HOUR_MS, (pair,))
    shown = replace(run, outcome=run.outcome._replace(rings=(ring,) * 5))
    report = replay_report(history, [PlayedScenario(shown)], "quota")
    first, *_, last = report.scenarios[0].remarks
    assert first == (
        "preemption had no rest from 2026-10-01T00:00:00Z to 2026-10-01T01:00:00Z: "
        "space/j1 (b) preempts space/j0 (a) (InCohortReclamation) 40 times"
    )
    assert last == "preemption had no rest 2 more times, for shorter"


def test_what_preemption_threw_away_is_what_the_real_scheduler_lost() -> None:
    """In every recorded configuration that comes to rest, whose GPU-seconds the recording itself counts."""
    found = decoded(content_of(HISTORIES, MOST_BYTES), HISTORIES.name)
    counts = {
        (history["id"], each["name"]): each["counts"]["lostGpuSeconds"]
        for history in found["histories"]
        for each in history["configurations"]
    }
    checked = 0
    for history in histories_of(found, HISTORIES.name).histories:
        for each in history.configurations:
            if each.unrest is not None:
                continue
            of = recorded_history(history, each, history.id)
            happened, replayed = recorded_views(of), views_of(run_scenario(of), of.window)
            for views in (happened, replayed):
                lost = sum(
                    (run.end_ms - run.start_ms) * view.job.gpus
                    for view in views.values()
                    for run in view.runs
                    if run.is_lost
                )
                assert lost == counts[history.id, each.name] * SECOND_MS, (history.id, each.name)
            runs_of = [
                {uid: [run._replace(flavors=()) for run in view.runs] for uid, view in views.items()}
                for views in (happened, replayed)
            ]
            assert runs_of[0] == runs_of[1]
            checked += counts[history.id, each.name] > 0
    assert checked
