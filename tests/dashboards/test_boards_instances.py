"""Dashboards on a real Prometheus while the service is restarted: its instances export one waste ledger. And
a job of two teams, GPUs of which a part is held, and the forecast of a month."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.support.board_answers import END, BoardAnswers, Samples, at
from tests.support.prometheus import create_blocks, needs_prometheus, running_prometheus

pytestmark = needs_prometheus

NOW = at(END - 1)
RESTART = 30
"""The minute in which the second instance takes the place of the first."""
OVERLAP = 4
JOB = 'gpu_cluster="c",namespace="lab",job_kind="Job",job_name="train",job_uid="t"'


def total(minute: int) -> float:
    """Ten GPUs wasted for an hour; with the restart, a window that was assessed again counts for less."""
    return 500_000 + minute * 60 * 10 - (1_200 if minute >= RESTART else 0)


def times(part: float, value: Callable[[int], float]) -> Callable[[int], float]:
    return lambda minute: part * value(minute)


def samples() -> Samples:
    found = Samples()
    add = found.add
    for instance, begun, gone in (("a", 0, RESTART + OVERLAP), ("b", RESTART, END)):
        by = f'instance="{instance}",gpu_cluster="c"'
        for bucket, part in (("idle", 1.0), ("starved", 0.5), ("productive", 2.5)):
            labels = f'{by},bucket="{bucket}",owner_team="vision"'
            add("gpucost_waste_gpu_seconds_total", labels, times(part, total), begun, gone)
    for team, cost in (("vision", 30), ("speech", 12)):
        add("gpucost_job_cost_usd", f'instance="b",{JOB},owner_team="{team}"', cost)
    team = 'gpu_cluster="c",owner_team="vision"'
    add("gpucost_team_cost_usd", team, 100)
    add("gpucost_team_cost_per_hour_usd", team, 2)
    for edge, cost in (("low", 600), ("expected", 640), ("high", 700)):
        add("gpucost_team_month_end_usd", f'instance="b",edge="{edge}",owner_team="vision"', cost)
        about = 'budget="vision",subject_kind="team",subject="vision",period="2026-10"'
        add("gpucost_budget_expected_ratio", f'instance="b",edge="{edge}",{about}', cost / 500)
    for number, held, busy in ((0, 0.0, 0.0), (1, 0.25, 0.0), (2, 0.25, 0.5), (3, 1.0, 0.0), (4, 1.0, 0.9)):
        board = f'node="n1",gpu_uuid="GPU-{number}"'
        add("gpucost_gpu_up", board, 1)
        add("gpucost_gpu_info", f'{board},gpu_instance="",device_minor="{number}"', 1)
        for metric, labels, part in (
            ("gpucost_pod_gpu_held_seconds_total", f'{board},holder="pod",pod="p"', held),
            ("gpucost_gpu_busy_seconds_total", board, busy),
        ):
            add(metric, labels, times(part, lambda minute: minute * 60))
    return found


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    data = tmp_path_factory.mktemp("instances") / "data"
    create_blocks(samples().text(), data)
    with running_prometheus(data) as found:
        yield found


def by_bucket(board: BoardAnswers, panel: str, at_ms: int = NOW) -> dict[str, float]:
    return {labels[0][1]: value for labels, value in board.of(panel, at_ms).items()}


def test_the_waste_of_several_instances_is_that_of_one(url: str) -> None:
    in_overlap = at(RESTART + OVERLAP - 1)
    fleet, team = BoardAnswers(url, "fleet", {}), BoardAnswers(url, "team", {"team": "vision"})
    nodes = BoardAnswers(url, "nodes", {"node": ".*"})
    assert by_bucket(fleet, "Where the capacity goes", at(RESTART - 5))["idle"] == pytest.approx(10)
    for at_ms in (in_overlap, at(RESTART + OVERLAP)):
        assert by_bucket(fleet, "Where the capacity goes", at_ms)["idle"] <= 10.01
        assert by_bucket(nodes, "Free GPUs while somebody waits", at_ms)["starved"] <= 5.01
        assert by_bucket(team, "Wasted GPUs by bucket", at_ms)["idle"] <= 10.01


def test_a_total_that_is_a_little_less_after_a_restart_is_no_counter_from_0(url: str) -> None:
    team = BoardAnswers(url, "team", {"team": "vision"})
    assert 9 < by_bucket(team, "Wasted in the range shown")["idle"] <= 10
    fleet = BoardAnswers(url, "fleet", {})
    assert by_bucket(fleet, "Wasted in the range shown")["idle"] == pytest.approx(1 / 4)
    assert by_bucket(team, "Wasted GPUs by bucket", at(RESTART + OVERLAP + 10))["idle"] == pytest.approx(10)


def test_a_job_of_two_teams_costs_what_both_have_of_it(url: str) -> None:
    job = BoardAnswers(url, "job", {"namespace": "lab", "job": "train"})
    assert job.number("Cost this month", NOW) == 42


def test_a_board_of_which_a_part_is_held_is_not_free(url: str) -> None:
    states = BoardAnswers(url, "nodes", {"node": ".*"}).of("Map of GPUs", NOW)
    assert {dict(labels)["device_minor"]: state for labels, state in states.items()} == {
        "0": 0,
        "1": 3,
        "2": 4,
        "3": 1,
        "4": 2,
    }


def test_the_months_end_is_the_forecast_of_the_service(url: str) -> None:
    team = BoardAnswers(url, "team", {"team": "vision"})
    assert team.number("At month's end", NOW) == 640
    assert team.number("Budgets at their end", NOW) == pytest.approx(1.28)
