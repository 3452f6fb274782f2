"""The Queues and Team dashboards on a real Prometheus: replicas that disagree for a moment, quota of other
things than GPUs, evictions that happen once, and work without a team's label."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.board_answers import END, BoardAnswers, Samples, at
from tests.support.prometheus import create_blocks, needs_prometheus, running_prometheus

pytestmark = needs_prometheus

NOW = at(END - 1)
W1 = 'namespace="lab",workload="job-train",workload_uid="w1"'
W2 = 'namespace="lab",workload="job-bare",workload_uid="w2"'
GPU_QUOTA = 'cluster_queue="research",flavor="h100",resource="nvidia.com/gpu"'
MEMORY_QUOTA = 'cluster_queue="research",flavor="h100",resource="memory"'


def samples() -> Samples:
    found = Samples()
    add = found.add
    for replica, queue, layer in (("a", "lab", "quota"), ("b", "lab-new", "placement")):
        by = f'instance="{replica}"'
        add("gpucost_state_up", by, 1)
        for quota, amount in ((GPU_QUOTA, 8), (MEMORY_QUOTA, 2.0**40)):
            add("gpucost_cluster_queue_nominal_quota", f"{by},{quota}", amount)
            add("gpucost_cluster_queue_reserved", f"{by},{quota}", amount * 1.5)
        add("gpucost_cluster_queue_borrowed", f"{by},{GPU_QUOTA}", 4)
        add("gpucost_cluster_queue_borrowed", f"{by},{MEMORY_QUOTA}", 2.0**39)
        for workload, name, team in ((W1, "train", ',owner_team="vision"'), (W2, "bare", "")):
            owner = f'queue="{queue}",cluster_queue="research",job_kind="Job",job_name="{name}"'
            add("gpucost_workload_info", f'{by},{workload},{owner},job_uid="{name}-uid"{team}', 1)
            held = f'{by},{workload},layer="{layer}",reason="{layer}-reason"'
            add("gpucost_workload_waiting", held, 1)
            add("gpucost_workload_queued_timestamp_seconds", f"{by},{workload}", at(0) / 1000)
            add("gpucost_workload_pod_set_pods", f'{by},{workload},pod_set="main"', 2)
            asked = f'{by},{workload},pod_set="main",resource="nvidia.com/gpu",nodes="all"'
            add("gpucost_workload_pod_set_units", asked, 4)
        add("gpucost_workload_evictions_total", f'{by},{W1},reason="Preempted"', 1, 20)
        # Five jobs of a crowded namespace in one row, which want seven GPUs together.
        others = 'job_kind="Other",job_name="__others__",job_uid="__others__:far:placement"'
        add("gpucost_job_waiting", f'{by},{others},layer="placement",reason=""', 5)
        add("gpucost_job_waiting_info", f'{by},{others},namespace="far",queue="far"', 1)
        add("gpucost_job_pod_set_pods", f'{by},{others},pod_set="nvidia.com/gpu"', 7)
        asked = f'{by},{others},pod_set="nvidia.com/gpu",resource="nvidia.com/gpu",nodes="unknown"'
        add("gpucost_job_pod_set_units", asked, 1)
    for namespace, team in (("lab", "vision"), ("elsewhere", "speech")):
        job = f'gpu_cluster="",namespace="{namespace}",job_kind="Job",job_name="old",job_uid="o"'
        add("gpucost_job_cost_usd", f'{job},owner_team="{team}"', 10)
    return found


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    data = tmp_path_factory.mktemp("queues-board") / "data"
    create_blocks(samples().text(), data)
    with running_prometheus(data) as found:
        yield found


@pytest.fixture
def queues(url: str) -> BoardAnswers:
    return BoardAnswers(url, "queues", {"queue": ".*", "resource": "nvidia.com/gpu"})


def of_team(url: str, team: str) -> BoardAnswers:
    return BoardAnswers(url, "team", {"team": team})


def test_no_query_fails_while_replicas_disagree(url: str, queues: BoardAnswers) -> None:
    assert queues.ask_all(NOW) > 40
    assert of_team(url, "vision").ask_all(NOW) > 20


def test_what_waits_counts_once_while_replicas_disagree(queues: BoardAnswers) -> None:
    assert queues.number("GPUs waiting", NOW) == 2 * (2 * 4) + 7
    assert len(queues.of("What waits now", NOW, "B")) == 2
    assert set(queues.of("What waits now", NOW, "B").values()) == {(END - 1) * 60}


def test_quota_of_memory_is_no_gpus(queues: BoardAnswers) -> None:
    assert queues.number("Borrowed", NOW) == 4
    assert queues.number("Quota reserved", NOW) == 1.5
    assert len(queues.of("Quota", NOW)) == 1


def test_an_eviction_that_happened_once_counts_once(queues: BoardAnswers) -> None:
    """``increase`` would say 0: the series begins with the eviction."""
    assert queues.of("Told to stop in the range, by reason", NOW) == {(("reason", "Preempted"),): 1}
    (labels,) = queues.of("Told to stop in the range shown", NOW)
    assert ("job_name", "train") in labels
    assert ("owner_team", "vision") in labels


def test_work_without_a_label_is_that_of_the_team_with_costs_in_its_namespace(url: str) -> None:
    assert of_team(url, "vision").number("GPUs waiting", NOW) == 16
    assert of_team(url, "speech").number("GPUs waiting", NOW) == 0


def test_nothing_waits_is_zero_only_while_a_collector_tells(url: str) -> None:
    assert of_team(url, "speech").number("Longest wait", NOW) == 0
    assert of_team(url, "speech").of("Longest wait", at(END + 30)) == {}
