"""Jobs as slurmrestd answers ``GET /slurmdb/v0.0.4x/jobs``, and as ``sacct --json`` writes them.

Read are ``jobs[]`` with ``job_id``, ``array``, ``het``, ``user``, ``account``, ``name``, ``nodes``,
``state.current``, ``time.start``, ``time.end`` (seconds since 1970, 0 for none) and ``tres.allocated``.

Rules: SchedMD/slurm, src/plugins/data_parser/v0.0.39 to v0.0.46/parsers.c (JOB; UINT32_NO_VAL: a number that
may be unset is ``{set, infinite, number}``; the state is a list since v0.0.40, a text before). Some releases
of v0.0.38 said when a job could have begun in place of when it began (commit 5df85553a1): a job that is over
whose ``time.elapsed`` does not fit is refused.
"""

from __future__ import annotations

from collections.abc import Iterator

from gpucost.domain.errors import InputError
from gpucost.telemetry.inner.inner_jobs import InnerJob, JobRecords, checked_job
from gpucost.telemetry.inner.record_folder import JsonPlace
from gpucost.telemetry.inner.slurm_notation import OVER, RUNS, STATES, WAITS, expand_hostlist, gpus_of


def read_slurmrestd(document: JsonPlace) -> JobRecords:
    """The jobs of one answer that were given GPUs; one that makes no sense is refused, the others count."""
    jobs: list[InnerJob] = []
    refused: list[str] = []
    try:
        records = document.at("jobs").items()
    except InputError as error:
        return JobRecords(refused=(str(error),))
    for record in records:
        try:
            jobs += _jobs(record)
        except InputError as error:
            refused.append(str(error))
    return JobRecords(tuple(jobs), tuple(refused))


def _jobs(record: JsonPlace) -> Iterator[InnerJob]:
    states = _states(record.at("state", "current"))
    start = record.at("time", "start").number()
    gpus = gpus_of(_tres(record.at("tres", "allocated")))
    # While it cleans up a job has both states, of how it ended and of what it does.
    runs = bool(states & RUNS)
    if not start or not gpus or (states & WAITS and not runs):
        return
    at = record.at("nodes")
    nodes = expand_hostlist(at.text(""), at.where)
    if not nodes:
        raise InputError(at.where, at.value, f"the nodes of {gpus} GPUs")
    end = record.at("time", "end").number()
    _check_start(record, start, end)
    job = InnerJob(
        key=_key(record),
        name=record.at("name").text(""),
        user=record.at("user").text(""),
        team=record.at("account").text(""),
        gpus=gpus,
        nodes=nodes,
        start_ms=start * 1000,
        end_ms=end * 1000 if end else None,
        is_over=not runs,
    )
    yield checked_job(record.where, job)


def _check_start(record: JsonPlace, start: int, end: int | None) -> None:
    """as_mysql_jobacct_process.c: elapsed is end less start less suspended."""
    elapsed, suspended = (record.at("time", name).number() or 0 for name in ("elapsed", "suspended"))
    if end and elapsed and abs(end - start - suspended - elapsed) > 1:
        at = record.at("time", "start")
        raise InputError(
            at.where, start, f"when it began: {elapsed} s, and what it was suspended, before {end}"
        )


def _states(place: JsonPlace) -> frozenset[str]:
    found = [place.text()] if isinstance(place.value, str) else [each.text() for each in place.items()]
    states = frozenset(found)
    if not states & (OVER | RUNS | WAITS):
        raise InputError(place.where, place.value, STATES)
    return states


def _tres(place: JsonPlace) -> Iterator[tuple[str, int]]:
    """``{"type": "gres", "name": "gpu:h100", "count": 4}`` as sacct writes it: gres/gpu:h100, 4."""
    for each in place.items() if place.value is not None else ():
        if each.at("type").text() == "gres":
            count = each.at("count")
            number = count.number()
            if number is None or number < 0:
                raise InputError(count.where, count.value, "a whole number of at least 0")
            yield f"gres/{each.at('name').text('')}", number


def _key(record: JsonPlace) -> str:
    """As sacct writes it: 12, 12_3 of an array, 12+1 of a heterogeneous job."""
    number = record.at("job_id").number()
    if number is None:
        raise InputError(f"{record.where}.job_id", None, "a whole number")
    array, task = record.at("array", "job_id").number(), record.at("array", "task_id").number()
    if array and task is not None:
        return f"{array}_{task}"
    het, offset = record.at("het", "job_id").number(), record.at("het", "job_offset").number()
    return f"{het}+{offset}" if het and offset is not None else str(number)
