"""Jobs as the dashboard of Ray answers ``GET /api/jobs/``: a list of JobDetails.

Read are ``submission_id`` (else ``job_id``), ``status``, ``start_time`` and ``end_time`` (ms), and of
``metadata`` the keys that the settings name for user, team and GPUs. Ray's answer does not tell what a job
holds (ray-project/ray, python/ray/dashboard/modules/job/pydantic_models.py: JobDetails has no resources), so
the key of the metadata counts, and ``entrypoint_num_gpus`` where a cron writes it into the record: the larger
of both, since Ray itself gives an entrypoint its GPUs, and whoever submits a job writes the metadata. What a
job has beyond its entrypoint, in tasks and actors, is on no record: it stays with the pod's holder unless
the metadata counts it. A job of which neither tells a number has an unknown one, not 0.

``start_time`` is when the job was submitted (job_manager.py), so time in Ray's own queue is part of it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from gpucost.domain.errors import InputError
from gpucost.telemetry.inner.inner_jobs import InnerJob, JobRecords, checked_job
from gpucost.telemetry.inner.record_folder import JsonPlace

_OVER = ("SUCCEEDED", "FAILED", "STOPPED")
_STATES = ("PENDING", "RUNNING", *_OVER)
_GPUS = re.compile(r"[0-9]{1,7}(\.0{1,6})?", re.ASCII)
_WHOLE = "a whole number of GPUs; a job with a part of a GPU is not divided from its pod's holder"


@dataclass(frozen=True, slots=True)
class MetadataKeys:
    """Keys of a job's metadata."""

    user: str
    team: str
    gpus: str


def read_ray_jobs(document: JsonPlace, keys: MetadataKeys) -> JobRecords:
    """The jobs of one answer that have GPUs, or may; one that makes no sense is refused, others count."""
    jobs: list[InnerJob] = []
    refused: list[str] = []
    try:
        records = document.items()
    except InputError as error:
        return JobRecords(refused=(str(error),))
    for record in records:
        try:
            jobs += _jobs(record, keys)
        except InputError as error:
            refused.append(str(error))
    return JobRecords(tuple(jobs), tuple(refused))


def _jobs(record: JsonPlace, keys: MetadataKeys) -> Iterator[InnerJob]:
    status = record.at("status")
    if status.text() not in _STATES:
        raise InputError(status.where, status.value, f"one of {', '.join(_STATES)}")
    start = record.at("start_time").number()
    metadata = record.at("metadata")
    numbers = (_gpus(record.at("entrypoint_num_gpus")), _gpus(metadata.at(keys.gpus)))
    gpus = max((each for each in numbers if each is not None), default=None)
    if status.value == "PENDING" or start is None or gpus == 0:
        return
    submitted = record.at("submission_id")
    key = (submitted if submitted.value else record.at("job_id")).text()
    user, team = metadata.at(keys.user).text(""), metadata.at(keys.team).text("")
    end = record.at("end_time").number() or None
    job = InnerJob(key, key, user, team, gpus, (), start, end, status.value in _OVER)
    yield checked_job(record.where, job)


def _gpus(place: JsonPlace) -> int | None:
    if place.value is None:
        return None
    value = place.value
    text = str(value) if isinstance(value, int | float | str) and not isinstance(value, bool) else ""
    if not _GPUS.fullmatch(text.strip()):
        raise InputError(place.where, value, _WHOLE)
    return int(float(text))
