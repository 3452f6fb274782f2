"""Records of Ray, as its dashboard answers: what is read of them, and what is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gpucost.telemetry.inner.inner_jobs import InnerJob
from gpucost.telemetry.inner.inner_source import ray_parser
from gpucost.telemetry.inner.ray_jobs import MetadataKeys

MS = 1_793_527_200_000
READ = ray_parser(MetadataKeys("user", "team", "num_gpus"))


def record(**changes: Any) -> dict[str, Any]:
    """JobDetails of Ray 2.x."""
    found = {
        "type": "SUBMISSION",
        "job_id": "02000000",
        "submission_id": "raysubmit_a",
        "driver_info": {"id": "02000000", "node_ip_address": "10.0.0.5", "pid": "77"},
        "status": "SUCCEEDED",
        "entrypoint": "python train.py",
        "message": "Job finished successfully.",
        "error_type": None,
        "start_time": MS,
        "end_time": MS + 60_000,
        "metadata": {"user": "erin", "team": "green", "num_gpus": "2"},
        "runtime_env": {},
        "driver_exit_code": 0,
    }
    return {**found, **changes}


def read(*records: dict[str, Any]) -> Any:
    return READ(json.dumps(records), "f")


def test_a_job_of_ray() -> None:
    job = InnerJob("raysubmit_a", "raysubmit_a", "erin", "green", 2, (), MS, MS + 60_000, True)
    assert read(record()).jobs == (job,)


@pytest.mark.parametrize(
    ("changes", "gpus"),
    [
        ({"entrypoint_num_gpus": 1}, 2),
        ({"metadata": {"user": "erin"}, "entrypoint_num_gpus": 1.0}, 1),
        ({"metadata": None}, None),
        ({"metadata": {}}, None),
        ({"metadata": {"num_gpus": "3.0"}}, 3),
        # Ray gives the entrypoint its GPUs, whatever the job's author says.
        ({"metadata": {"num_gpus": "0"}, "entrypoint_num_gpus": 4}, 4),
    ],
)
def test_gpus_are_those_of_the_metadata_or_of_the_entrypoint_if_these_are_more(
    changes: dict[str, Any], gpus: int | None
) -> None:
    assert [job.gpus for job in read(record(**changes)).jobs] == [gpus]


def test_a_driver_has_an_id_of_its_own() -> None:
    [job] = read(record(type="DRIVER", submission_id=None, status="RUNNING", end_time=0)).jobs
    assert (job.key, job.end_ms, job.is_over) == ("02000000", None, False)


@pytest.mark.parametrize(
    "changes",
    [{"status": "PENDING"}, {"start_time": None}, {"metadata": {"num_gpus": "0"}}],
)
def test_what_has_no_gpus_is_left_out(changes: dict[str, Any]) -> None:
    assert read(record(**changes)).jobs == read(record(**changes)).refused == ()


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"status": "ASLEEP"}, "f: [1].status: 'ASLEEP' is not allowed; allowed: one of PENDING, RUNNING"),
        ({"start_time": "x"}, "f: [1].start_time: 'x' is not allowed"),
        ({"metadata": {"num_gpus": "0.5"}}, "f: [1].metadata.num_gpus: '0.5' is not allowed"),
        ({"metadata": {"num_gpus": "-1"}}, "f: [1].metadata.num_gpus: '-1' is not allowed"),
        ({"metadata": {"num_gpus": "2", "team": 5}}, "f: [1].metadata.team: 5 is not allowed; allowed: text"),
        ({"metadata": []}, "f: [1].metadata: is a list; allowed: an object"),
        ({"submission_id": None, "job_id": None}, "f: [1].job_id: None is not allowed"),
        ({"submission_id": "a\nb"}, "f: [1]: id: 'a\\nb' is not allowed"),
        ({"end_time": MS - 1}, f"f: [1]: end: {MS - 1} is not allowed"),
    ],
)
def test_what_makes_no_sense_is_refused_with_its_place(changes: dict[str, Any], told: str) -> None:
    found = read(record(), record(**changes))
    assert len(found.jobs) == 1
    [sentence] = found.refused
    assert told in sentence


def test_what_is_no_list_is_refused() -> None:
    assert READ("{}", "f").refused == ("f:: is an object; allowed: a list",)
    assert READ("oops", "f").refused == ("f: line 1: is not JSON; allowed: one JSON document",)
    assert READ(" ", "f").refused == ()
