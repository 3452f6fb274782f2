"""Records of Slurm, as sacct and slurmrestd write them: what is read of them, and what is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gpucost.domain.errors import InputError
from gpucost.telemetry.inner.inner_jobs import InnerJob
from gpucost.telemetry.inner.inner_source import read_slurm
from gpucost.telemetry.inner.slurm_records import NEEDED, expand_hostlist, read_sacct

S = 1_793_527_200  # 2026-11-01T10:00:00Z
HEADER = "|".join(NEEDED)
TRES = "billing=8,cpu=8,gres/gpu:h100=4,gres/gpu=4,mem=64G,node=2"


@pytest.mark.parametrize(
    ("text", "nodes"),
    [
        ("gpu-[01-03,7]", ["gpu-01", "gpu-02", "gpu-03", "gpu-7"]),
        ("login1,gpu-[9-11]", ["login1", "gpu-9", "gpu-10", "gpu-11"]),
        ("r[0-1]n[01-02]", ["r0n01", "r0n02", "r1n01", "r1n02"]),
        ("a[1-2]b", ["a1b", "a2b"]),
        ("gpu-[098-101]", ["gpu-098", "gpu-099", "gpu-100", "gpu-101"]),
        ("None assigned", []),
        ("(null)", []),
        ("", []),
    ],
)
def test_lists_of_nodes(text: str, nodes: list[str]) -> None:
    assert expand_hostlist(text, "NodeList") == tuple(nodes)


NO_LISTS = ("gpu-[1-", "gpu-[3-1]", "gpu-[a-b]", "gpu-1,", ",gpu", "gpu-[]", "a]b", "a b")
TOO_LONG = ("n[1-99999][1-9]", "n[0-99999999999]", "n[1-300][1-300]")


@pytest.mark.parametrize("text", [*NO_LISTS, *TOO_LONG])
def test_lists_that_are_none(text: str) -> None:
    with pytest.raises(InputError, match="NodeList"):
        expand_hostlist(text, "NodeList")


def line(**changes: str) -> str:
    found = {"JobID": "12", "User": "alice", "Account": "red", "State": "COMPLETED", "Start": str(S)}
    found |= {"End": str(S + 60), "NodeList": "gpu-[1-2]", "AllocTRES": TRES}
    return "|".join({**found, **changes}.values())


def test_a_job_of_sacct() -> None:
    found = read_slurm(f"{HEADER}\n{line()}\n", "f")
    job = InnerJob("12", "", "alice", "red", 4, ("gpu-1", "gpu-2"), S * 1000, (S + 60) * 1000, True)
    assert (found.jobs, found.refused) == ((job,), ())


@pytest.mark.parametrize(
    ("changes", "key", "end", "is_over"),
    [
        ({"State": "RUNNING", "End": "Unknown"}, "12", None, False),
        ({"JobID": "12_7"}, "12_7", S + 60, True),
        ({"JobID": "12+1", "State": "CANCELLED by 1000"}, "12+1", S + 60, True),
        ({"State": "OUT_OF_ME+"}, "12", S + 60, True),
        ({"State": "TIMEOUT", "End": "Unknown"}, "12", None, True),
        ({"End": "2026-11-01T10:01:00Z"}, "12", S + 60, True),
        ({"End": "2026-11-01T11:01:00+01:00"}, "12", S + 60, True),
    ],
)
def test_states_ids_and_times_of_sacct(
    changes: dict[str, str], key: str, end: int | None, is_over: bool
) -> None:
    [job] = read_sacct(f"{HEADER}\r\n{line(**changes)}\r\n", "f").jobs
    assert (job.key, job.end_ms, job.is_over) == (key, None if end is None else end * 1000, is_over)


@pytest.mark.parametrize(
    ("tres", "gpus"),
    [("gres/gpu=3", 3), ("gres/gpu:a100=2,gres/gpu:h100=1", 3), ("gres/gpu:a100=2,gres/gpu=3", 3)],
)
def test_gpus_are_the_total_or_those_of_all_types(tres: str, gpus: int) -> None:
    assert [job.gpus for job in read_sacct(f"{HEADER}\n{line(AllocTRES=tres)}", "f").jobs] == [gpus]


@pytest.mark.parametrize(
    "changes",
    [
        {"JobID": "12.batch"},
        {"JobID": "12.0", "AllocTRES": "gres/gpu=4"},
        {"JobID": "12_[8-9%2]", "State": "PENDING", "Start": "Unknown", "End": "Unknown", "AllocTRES": ""},
        {"State": "CANCELLED", "Start": "None", "NodeList": "None assigned"},
        {"AllocTRES": "cpu=8,mem=64G,node=1"},
        {"AllocTRES": "cpu=8,gres/gpu=0"},
    ],
)
def test_what_had_no_gpus_is_left_out(changes: dict[str, str]) -> None:
    assert read_sacct(f"{HEADER}\n{line(**changes)}", "f").jobs == ()
    assert read_sacct(f"{HEADER}\n{line(**changes)}", "f").refused == ()


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (f"{HEADER}\n{line(JobID='x')}", "f: line 2: JobID: 'x' is not allowed"),
        (f"{HEADER}\n\n{line(State='ASLEEP')}", "f: line 3: State: 'ASLEEP' is not allowed"),
        (f"{HEADER}\n{line(Start='2026-11-01T10:00:00')}", "f: line 2: Start: '2026-11-01T10:00:00'"),
        (f"{HEADER}\n{line(End=str(S - 1))}", f"f: line 2: end: {(S - 1) * 1000} is not allowed"),
        (f"{HEADER}\n{line(Start='1000000000')}", "an instant from 2010 to 2099"),
        (f"{HEADER}\n{line(NodeList='gpu-[1-')}", "f: line 2: NodeList: 'gpu-[1-' is not allowed"),
        (f"{HEADER}\n{line(NodeList='None assigned')}", "the nodes of 4 GPUs"),
        (f"{HEADER}\n{line(NodeList='a,a')}", "each node once"),
        (f"{HEADER}\n{line(AllocTRES='gres/gpu=many')}", "f: line 2: AllocTRES: 'gres/gpu=many'"),
        (f"{HEADER}\n{line(AllocTRES='gres/gpu')}", "f: line 2: AllocTRES: 'gres/gpu' is not allowed"),
        (f"{HEADER}\n{line(AllocTRES='gres/gpu=9999999')}", "f: line 2: GPUs: 9999999 is not allowed"),
        (f"{HEADER}\n{line(User='a' + chr(7))}", "f: line 2: user: 'a"),
        (f"{HEADER}\n{line()}|more", "f: line 2: 9 columns; allowed: 8 columns"),
        ("JobID|User\n1|a", "f: line 1: no column Account"),
        (
            f"{HEADER}|JobName\n{line()}|12",
            "f: line 1: 'JobName' is not allowed; allowed: columns without free",
        ),
        ("{", "f: line 1: is not JSON"),
        ("[]", "f:: is a list; allowed: an object with jobs"),
        ('{"jobs": 1}', "f: jobs: is a number; allowed: a list"),
    ],
)
def test_what_makes_no_sense_is_refused_with_its_place(text: str, told: str) -> None:
    found = read_slurm(text, "f")
    assert found.jobs == ()
    [sentence] = found.refused
    assert told in sentence


def test_a_line_that_is_wrong_leaves_the_others() -> None:
    found = read_slurm(f"{HEADER}\n{line(JobID='x')}\n{line(JobID='13')}\n", "f")
    assert [job.key for job in found.jobs] == ["13"]
    assert len(found.refused) == 1
    assert read_slurm("", "f").jobs == read_slurm("\n \n", "f").jobs == ()


def record(**changes: Any) -> dict[str, Any]:
    """As slurmrestd v0.0.41 answers; Slurm's own names."""
    unset = {"set": False, "infinite": False, "number": 0}
    found = {
        "job_id": 12,
        "array": {"job_id": 0, "task_id": unset, "task": ""},
        "het": {"job_id": 0, "job_offset": unset},
        "user": "alice",
        "account": "red",
        "name": "train|x",
        "nodes": "gpu-[1-2]",
        "state": {"current": ["COMPLETED"], "reason": "None"},
        "time": {"start": S, "end": S + 60, "submission": S - 9, "elapsed": 60},
        "tres": {
            "allocated": [
                {"type": "cpu", "name": "", "id": 1, "count": 8},
                {"type": "gres", "name": "gpu", "id": 1001, "count": 4},
                {"type": "gres", "name": "gpu:h100", "id": 1002, "count": 4},
            ],
            "requested": [],
        },
    }
    return {**found, **changes}


def read(*records: dict[str, Any]) -> Any:
    return read_slurm(json.dumps({"jobs": records, "meta": {}, "errors": []}), "f")


def test_a_job_of_slurmrestd() -> None:
    job = InnerJob("12", "train|x", "alice", "red", 4, ("gpu-1", "gpu-2"), S * 1000, (S + 60) * 1000, True)
    assert read(record()).jobs == (job,)


@pytest.mark.parametrize(
    ("changes", "key", "ends", "is_over"),
    [
        ({"state": {"current": "COMPLETED"}}, "12", True, True),
        ({"state": {"current": ["RUNNING"]}, "time": {"start": S, "end": 0}}, "12", False, False),
        ({"state": {"current": ["COMPLETED", "COMPLETING"]}}, "12", True, False),
        ({"state": {"current": ["FAILED"]}, "time": {"start": S, "end": 0}}, "12", False, True),
        (
            {"array": {"job_id": 10, "task_id": {"set": True, "infinite": False, "number": 0}}},
            "10_0",
            True,
            True,
        ),
        ({"array": {"job_id": 10, "task_id": 3}}, "10_3", True, True),
        ({"het": {"job_id": 10, "job_offset": {"set": True, "number": 1}}}, "10+1", True, True),
        (
            {"time": {"start": {"set": True, "number": S}, "end": {"set": True, "number": S + 9}}},
            "12",
            True,
            True,
        ),
    ],
)
def test_forms_of_slurmrestd(changes: dict[str, Any], key: str, ends: bool, is_over: bool) -> None:
    [job] = read(record(**changes)).jobs
    assert (job.key, job.end_ms is not None, job.is_over) == (key, ends, is_over)


@pytest.mark.parametrize(
    "changes",
    [
        {"state": {"current": ["PENDING"]}, "time": {"start": 0, "end": 0}},
        {"state": {"current": ["PENDING", "REQUEUED"]}},
        {"tres": {"allocated": [{"type": "cpu", "name": "", "count": 8}]}},
        {"tres": {}},
        {"time": {"start": 0, "end": S}},
    ],
)
def test_what_had_no_gpus_by_slurmrestd_is_left_out(changes: dict[str, Any]) -> None:
    assert read(record(**changes)).jobs == read(record(**changes)).refused == ()


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"state": {"current": ["ASLEEP"]}}, "f: jobs[1].state.current: ['ASLEEP'] is not allowed"),
        ({"state": {}}, "f: jobs[1].state.current: is null"),
        ({"state": {"current": [1]}}, "f: jobs[1].state.current[0]: 1 is not allowed"),
        ({"time": []}, "f: jobs[1].time: is a list; allowed: an object with start"),
        ({"time": {"start": "now"}}, "f: jobs[1].time.start: 'now' is not allowed; allowed: a whole number"),
        ({"time": {"start": S, "end": True}}, "f: jobs[1].time.end: True is not allowed"),
        ({"time": {"start": S - 9, "end": S + 60, "elapsed": 60}}, "f: jobs[1].time.start: "),
        ({"nodes": None}, "f: jobs[1].nodes: None is not allowed; allowed: the nodes of 4 GPUs"),
        ({"nodes": 5}, "f: jobs[1].nodes: 5 is not allowed; allowed: text"),
        ({"job_id": None}, "f: jobs[1].job_id: None is not allowed"),
        (
            {"tres": {"allocated": [{"type": "gres", "name": "gpu", "count": -1}]}},
            "f: jobs[1].tres.allocated[0].count: -1 is not allowed",
        ),
    ],
)
def test_what_slurmrestd_cannot_answer_is_refused(changes: dict[str, Any], told: str) -> None:
    found = read(record(), record(**changes))
    assert len(found.jobs) == 1
    [sentence] = found.refused
    assert told in sentence
