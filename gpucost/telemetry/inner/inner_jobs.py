"""What an inner scheduler says of one job: who had how many GPUs, where, from when to when."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import pairwise

from gpucost.domain.configfile import is_name
from gpucost.domain.errors import InputError
from gpucost.domain.time import EARLIEST_MS, LATEST_MS

MOST_GPUS = 1_000_000
MOST_NAME = 253
_NAME = "1 to 253 characters, no control characters, no blanks at the ends"


@dataclass(frozen=True, slots=True)
class InnerJob:
    """One run of one job. ``key`` is the scheduler's id of the job, ``team`` the account or team it names.

    ``gpus`` are those of all ``nodes`` together, None where the record does not tell; without nodes, of all
    pods of the scheduler. ``end_ms`` is None while it runs, and where ``is_over`` without an end on record.
    """

    key: str
    name: str
    user: str
    team: str
    gpus: int | None
    nodes: tuple[str, ...]
    start_ms: int
    end_ms: int | None
    is_over: bool


@dataclass(frozen=True, slots=True)
class JobRecords:
    """What was read of one file: its jobs that had GPUs, and what is wrong with others, a sentence each."""

    jobs: tuple[InnerJob, ...] = ()
    refused: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class KnownRun:
    """A run as all files together say: it had its GPUs until ``end_ms``, and perhaps until ``doubt_ms``,
    after which it cannot have had them, or other things say so."""

    job: InnerJob
    end_ms: int
    doubt_ms: int


@dataclass(frozen=True, slots=True)
class KnownRuns:
    """All runs in order of their start. Nothing is known after ``as_of_ms``; None where there is no file."""

    runs: tuple[KnownRun, ...] = ()
    as_of_ms: int | None = None
    refused: tuple[str, ...] = ()


def known_runs(files: Iterable[tuple[int, JobRecords]]) -> KnownRuns:
    """Files, each with the instant at which it was written, as one.

    Of several records of one run (one job, one start) the one in the latest file counts, and of one file the
    last. A run that goes on lasts until the latest of all files, if that file has it; else until the last
    file that has it, and perhaps until the latest. One that is over without an end perhaps from its start on.
    None lasts beyond the next start of its job, which Slurm put back into its queue or started anew.
    """
    found = sorted(files, key=lambda each: each[0])
    as_of = found[-1][0] if found else None
    latest: dict[tuple[str, int], tuple[int, InnerJob]] = {}
    refused: dict[str, None] = {}
    for at_ms, records in found:
        latest.update({(job.key, job.start_ms): (at_ms, job) for job in records.jobs})
        refused.update(dict.fromkeys(records.refused))
    again = {(a[0], a[1]): b[1] for a, b in pairwise(sorted(latest)) if a[0] == b[0]}
    runs = [_known(job, at_ms, as_of or 0, again.get(key)) for key, (at_ms, job) in latest.items()]
    runs.sort(key=lambda run: (run.job.start_ms, run.job.key))
    return KnownRuns(tuple(run for run in runs if run.doubt_ms > run.job.start_ms), as_of, tuple(refused))


def _known(job: InnerJob, at_ms: int, as_of_ms: int, again_ms: int | None) -> KnownRun:
    latest_ms = max(as_of_ms, job.start_ms) if again_ms is None else min(as_of_ms, again_ms)
    if job.end_ms is not None:
        return KnownRun(job, job.end_ms, job.end_ms)
    if job.is_over:
        return KnownRun(job, job.start_ms, latest_ms)
    return KnownRun(job, min(max(at_ms, job.start_ms), latest_ms), latest_ms)


def checked_job(field: str, job: InnerJob) -> InnerJob:
    """``job``, its user and team without blanks around them, if it makes sense. Raises InputError, which
    names the part of the record after ``field``. Whoever submits a job writes its name: it is cut, and loses
    what is no character (halves of surrogate pairs), but costs the job nothing."""
    name = job.name[:MOST_NAME].encode(errors="ignore").decode()
    found = replace(job, name=name, user=job.user.strip(), team=job.team.strip())
    for part, text in (("id", found.key), ("user", found.user), ("team", found.team)):
        if (text or part == "id") and not is_name(text):
            raise InputError(f"{field}: {part}", text, _NAME)
    if not EARLIEST_MS <= found.start_ms < LATEST_MS:
        raise InputError(f"{field}: start", found.start_ms, "an instant from 2010 to 2099")
    if found.end_ms is not None and not found.start_ms <= found.end_ms < LATEST_MS:
        raise InputError(f"{field}: end", found.end_ms, "an instant from the start to 2099")
    if found.gpus is not None and not 0 < found.gpus <= MOST_GPUS:
        raise InputError(f"{field}: GPUs", found.gpus, f"1 to {MOST_GPUS:,}")
    if len(set(found.nodes)) < len(found.nodes):
        raise InputError(f"{field}: nodes", ",".join(found.nodes), "each node once")
    return found
