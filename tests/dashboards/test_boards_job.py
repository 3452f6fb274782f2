"""The Job dashboard on a real Prometheus: two replicas of the collector, and a pod's name that
comes again."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.support.board_answers import END, BoardAnswers, Samples, at
from tests.support.prometheus import create_blocks, needs_prometheus, running_prometheus

pytestmark = needs_prometheus

CHANGE = 30
"""The minute in which the first pod ends and another of its name begins."""
FIRST = 'namespace="lab",pod="train-0",pod_uid="u1"'
SECOND = 'namespace="lab",pod="train-0",pod_uid="u2"'
BOARD = 'node="n1",gpu_uuid="GPU-1"'


def seconds_since(begun: int, part: float = 1.0) -> Callable[[int], float]:
    return lambda minute: (minute - begun) * 60 * part


def samples() -> Samples:
    found = Samples()
    add = found.add
    for replica in ("a", "b"):
        by = f'instance="{replica}"'
        lives = ((FIRST, "train", 0, CHANGE + 10), (SECOND, "other", CHANGE, END))
        add("gpucost_state_up", by, 1)
        for pod, job, begun, gone in lives:
            info = f'{by},{pod},node="n1",job_kind="Job",job_name="{job}",job_uid="{job}-uid"'
            held = f'{by},{pod},node="n1",resource="nvidia.com/gpu"'
            add("gpucost_pod_owner_info", info, 1, begun, gone)
            add("gpucost_pod_gpu_request", held, 1, begun, gone)
        ended = f'{by},{FIRST},node="n1",resource="nvidia.com/gpu"'
        add("gpucost_pod_gpu_end_timestamp_seconds", ended, at(CHANGE) / 1000, CHANGE, CHANGE + 10)
    for pod, busy, begun, gone in ((FIRST, 0.5, 0, CHANGE), (SECOND, 1.0, CHANGE, END)):
        holder = f'instance="n1",holder="pod",{pod},{BOARD},method="exact"'
        for counter, part in (("held", 1.0), ("observed", 1.0), ("busy", busy)):
            value = seconds_since(begun, part)
            add(f"gpucost_pod_gpu_{counter}_seconds_total", holder, value, begun, gone)
        add("gpucost_pod_gpu_energy_joules_total", holder, seconds_since(begun, 300), begun, gone)
        add("gpucost_pod_gpu_share", f'instance="n1",{pod},{BOARD}', 1, begun, gone)
    add("gpucost_gpu_memory_used_bytes", f'instance="n1",{BOARD}', 2.0**30)
    add("gpucost_gpu_xid_events_total", f'instance="n1",{BOARD},xid="79"', 1, 20)
    return found


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    data = tmp_path_factory.mktemp("job-board") / "data"
    create_blocks(samples().text(), data)
    with running_prometheus(data) as found:
        yield found


def of_job(url: str, job: str) -> BoardAnswers:
    return BoardAnswers(url, "job", {"namespace": "lab", "job": job})


def test_no_query_fails_while_two_pods_of_one_name_are_there(url: str) -> None:
    assert of_job(url, "train").ask_all(at(CHANGE + 5)) > 20


def test_replicas_of_the_collector_hold_nothing_twice(url: str) -> None:
    assert of_job(url, "train").number("GPUs held", at(CHANGE - 5)) == 1


def test_a_pod_that_has_ended_holds_nothing_and_the_next_of_its_name_is_its_own_jobs(url: str) -> None:
    later = at(CHANGE + 7)
    assert of_job(url, "train").number("GPUs held", later) == 0
    assert of_job(url, "other").number("GPUs held", later) == 1


def test_use_is_that_of_the_jobs_own_pod(url: str) -> None:
    assert of_job(url, "train").number("Busy by GPU", at(CHANGE - 5)) == pytest.approx(0.5)
    assert of_job(url, "other").number("Busy by GPU", at(CHANGE + 7)) == pytest.approx(1.0)
    assert of_job(url, "train").of("Busy by GPU", at(CHANGE + 7)) == {}


def test_power_and_memory_are_those_of_the_board(url: str) -> None:
    board = of_job(url, "train")
    assert board.number("Power by board", at(CHANGE - 5)) == pytest.approx(300)
    assert board.number("Memory by GPU", at(CHANGE - 5)) == 2**30


def test_a_jobs_past_gpus_are_in_the_table_of_the_range(url: str) -> None:
    held = of_job(url, "train").number("GPUs of the job in the range", at(END - 1))
    assert held == pytest.approx(CHANGE / END, abs=0.05)


def test_an_error_that_happened_once_counts(url: str) -> None:
    """``increase`` would say 0: the series begins with the error."""
    (labels,) = of_job(url, "train").of("XID errors of the job's GPUs in the range", at(END - 1))
    assert ("xid", "79") in labels
    assert of_job(url, "train").number("XID errors of the job's GPUs in the range", at(END - 1)) == 1


def test_what_is_not_known_is_not_zero(url: str) -> None:
    assert of_job(url, "nobody").of("GPUs held", at(CHANGE)) == {}
