"""Histories from files: Parquet, SWF and recorded histories of Kueue; what is wrong in them is named."""

from __future__ import annotations

import gzip
import re
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from gpucost.advisor.replay.scenario_run import run_scenario
from gpucost.domain.errors import InputError
from gpucost.service.replay.history_files import file_history
from gpucost.service.replay.public_traces import trace_folder, trace_history
from gpucost.service.replay.scenario_runner import played

JOB = {"uid": "j1", "created_ms": 1_000, "run_ms": 60_000, "gpus": 4, "queue": "a"}
POOL = {"pool": "a", "at_ms": 0, "nodes": 1, "gpus": 8}
SWF = """; Version: 2.2
; UnixStartTime: 1700000000
; MaxProcs: 8
 1 0 0 100 8 -1 -1 8 -1 -1 1 3 1 -1 1 1 -1 -1
 2 10 90 50 4 -1 -1 4 -1 -1 1 3 1 -1 1 1 -1 -1
 3 20 -1 -1 -1 -1 -1 4 -1 -1 5 3 1 -1 1 1 -1 -1
"""


def folder(path: Path, jobs: list[dict[str, Any]], pools: list[dict[str, Any]]) -> Path:
    pd.DataFrame(jobs).to_parquet(path / "jobs.parquet")
    pd.DataFrame(pools).to_parquet(path / "pools.parquet")
    return path


def test_a_folder_of_parquet(tmp_path: Path) -> None:
    later = {
        **JOB,
        "uid": "j2",
        "created_ms": 2_000,
        "gpus": 8,
        "started_ms": 61_000.0,
        "ended_ms": 121_000.0,
    }
    steps = [POOL, {**POOL, "at_ms": 500_000, "nodes": 2}]
    history = file_history(folder(tmp_path, [JOB, later], steps))
    assert history.pools["a"].steps == ((0, 1), (500_000, 2))
    assert [each.record is None for each in history.jobs] == [True, False]
    stories = run_scenario(history).outcome.stories
    assert stories["j2"].admissions[0].at_ms == 61_000
    alone = file_history(tmp_path / "jobs.parquet", gpus=12)
    assert run_scenario(alone).outcome.stories["j2"].admissions[0].at_ms == 2_000


@pytest.mark.parametrize(
    ("job", "pool", "message"),
    [
        ({"gpus": 0}, {}, "row 1: gpus: 0 is not allowed; allowed: 1 or more"),
        ({"run_ms": -1}, {}, "row 1: run_ms: -1"),
        ({"run_ms": 2**60}, {}, "is not allowed; allowed: at most 4102444800000"),
        ({"gpus": 2**62}, {}, "allowed: at most 1000000"),
        ({}, {"gpu_hour_nano": -5}, "row 1: gpu_hour_nano: -5 is not allowed; allowed: 0 or more"),
        ({"queue": "b"}, {}, "row 1: queue: 'b' is not allowed; allowed: one of the pools: a"),
        ({"size": 1}, {}, "size: unknown column; allowed: uid, created_ms"),
        ({"started_ms": 5}, {}, "row 1: started_ms: 5 is not allowed; allowed: created_ms or later"),
        ({"gpus": 1.5}, {}, "row 1: gpus: 1.5 is not allowed; allowed: a value of type int"),
        ({}, {"nodes": -1}, "row 1: nodes: -1"),
    ],
)
def test_what_is_wrong_in_parquet_is_named(
    tmp_path: Path, job: dict[str, Any], pool: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError) as caught:
        file_history(folder(tmp_path, [{**JOB, **job}], [{**POOL, **pool}]))
    assert message in str(caught.value)


def test_two_jobs_of_one_uid_and_files_that_are_missing(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="row 2: uid"):
        file_history(folder(tmp_path, [JOB, JOB], [POOL]))
    (tmp_path / "pools.parquet").unlink()
    pd.DataFrame([JOB]).to_parquet(tmp_path / "jobs.parquet")
    with pytest.raises(InputError, match="--gpus"):
        file_history(tmp_path)
    with pytest.raises(InputError, match="ends with"):
        file_history(tmp_path / "what.txt")


def test_a_log_in_the_standard_workload_format(tmp_path: Path) -> None:
    log = tmp_path / "log.swf.gz"
    log.write_bytes(gzip.compress(SWF.encode()))
    history = file_history(log)
    assert [each.uid for each in history.jobs] == ["000000001", "000000002"]
    assert any("1 without a run time" in each for each in history.limits)
    (base,) = played(history, ())
    assert base.closed is not None
    second = base.open.outcome.stories["000000002"].admissions[0].at_ms
    assert history.jobs[1].record is not None
    assert (second,) == history.jobs[1].record.starts  # the log's own: first in, first out
    log.write_bytes(gzip.compress(b"1 0 0\n"))
    with pytest.raises(InputError, match="line 1: 3 fields"):
        file_history(log)


@pytest.mark.parametrize("value", ["nan", "inf", "1e30"])
def test_a_log_with_numbers_that_are_none_is_refused(tmp_path: Path, value: str) -> None:
    log = tmp_path / "log.swf"
    log.write_text(SWF.replace(" 10 90 50 ", f" 10 90 {value} "), encoding="utf-8")
    with pytest.raises(InputError, match="line 5: '2 10 90"):
        file_history(log)


@pytest.mark.parametrize("head", ["UnixStartTime", "MaxProcs"])
@pytest.mark.parametrize("value", ["nan", "inf", "1e300", "yesterday"])
def test_a_head_with_numbers_that_are_none_is_refused(tmp_path: Path, head: str, value: str) -> None:
    log = tmp_path / "log.swf"
    log.write_text(re.sub(rf"{head}: \S+", f"{head}: {value}", SWF), encoding="utf-8")
    with pytest.raises(InputError, match=f"{head}: '{value}' is not allowed"):
        file_history(log)


def test_a_trace_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="GPUCOST_TRACES"):
        trace_folder(None, {"GPUCOST_TRACES": str(tmp_path / "none")})
    assert trace_folder(tmp_path, {}) == tmp_path
    with pytest.raises(InputError, match="is missing"):
        trace_history("philly", tmp_path)
    with pytest.raises(InputError, match="philly, helios"):
        trace_history("venus", tmp_path)
