"""Histories in files: Parquet of one's own, logs in the Standard Workload Format, histories of Kueue.

Parquet: a folder with ``jobs.parquet`` and ``pools.parquet``, or the first alone with ``--gpus``. SWF: one
line for each job, 18 fields; processors are what GPUs are elsewhere. Kueue: the JSON that ``gpucost advisor
verify`` reads, one configuration of one history. What is wrong is refused with file, field and value.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pandas as pd

from gpucost.advisor.replay.history_record import (
    HistoryJob,
    JobRecord,
    KueueRecord,
    PoolRecord,
    ReplayHistory,
)
from gpucost.advisor.verify.history_files import HistoryConfiguration, SchedulerHistory, histories_of
from gpucost.domain.errors import ErrorRemark, InputError
from gpucost.domain.time import SECOND_MS, Window
from gpucost.kube.dumps.dump import content_of
from gpucost.reports.replay.run_views import is_gpu

JOB_COLUMNS: Mapping[str, tuple[type, bool]] = {
    "uid": (str, True),
    "created_ms": (int, True),
    "run_ms": (int, True),
    "gpus": (int, True),
    "queue": (str, True),
    "pool": (str, False),
    "name": (str, False),
    "team": (str, False),
    "user": (str, False),
    "priority": (int, False),
    "started_ms": (int, False),
    "ended_ms": (int, False),
    "keeps_progress": (bool, False),
    "is_censored": (bool, False),
}
"""Of jobs.parquet: the type, and whether it must be there. ``started_ms`` and ``ended_ms`` may be null."""
POOL_COLUMNS: Mapping[str, tuple[type, bool]] = {
    "pool": (str, True),
    "at_ms": (int, True),
    "nodes": (int, True),
    "gpus": (int, True),
    "model": (str, False),
    "gpu_hour_nano": (int, False),
}
"""Of pools.parquet: one row for each pool and change of its nodes; ``gpus`` of a node."""
_MOST_MS = 4_102_444_800_000
"""2100, and the longest run: beyond it no calendar can say when that is."""
_MOST_UNITS = 10**6
MOST_BYTES = 1 << 30
"""Of a log or a file of JSON, inflated."""
_BOUNDS: Mapping[str, tuple[int, int]] = {
    "created_ms": (0, _MOST_MS),
    "started_ms": (0, _MOST_MS),
    "ended_ms": (0, _MOST_MS),
    "run_ms": (0, _MOST_MS),
    "at_ms": (0, _MOST_MS),
    "gpus": (1, _MOST_UNITS),
    "nodes": (0, _MOST_UNITS),
    "gpu_hour_nano": (0, 10**18),
}
_NULLABLE = ("started_ms", "ended_ms", "gpu_hour_nano")
_SWF_FIELDS = 18
_ONE_POOL = "all"


def file_history(path: Path, gpus: int | None = None, configuration: str = "") -> ReplayHistory:
    """The history in ``path``, by what it is. Raises InputError."""
    if path.is_dir():
        return _parquet(path / "jobs.parquet", path / "pools.parquet", gpus)
    names = path.name.removesuffix(".gz")
    if names.endswith(".parquet"):
        return _parquet(path, path.with_name("pools.parquet"), gpus)
    if names.endswith(".swf"):
        return _swf(path, gpus)
    if names.endswith(".json"):
        return _kueue(path, configuration)
    raise InputError(
        "--history", str(path), "a folder, or a file that ends with .parquet, .swf or .json (or .gz)"
    )


def _parquet(jobs_file: Path, pools_file: Path, gpus: int | None) -> ReplayHistory:
    jobs = tuple(_job(row, at) for at, row in _table(jobs_file, JOB_COLUMNS))
    _once(jobs, jobs_file)
    if not jobs:
        raise InputError(str(jobs_file), ErrorRemark("empty"), "at least one job")
    begin_ms = min(each.created_ms for each in jobs)
    if gpus is not None:
        pools = {_ONE_POOL: PoolRecord(_ONE_POOL, 1, ((begin_ms, gpus),))}
        jobs = tuple(replace(each, pool=_ONE_POOL) for each in jobs)
    elif pools_file.exists():
        pools = _pools(pools_file)
    else:
        raise InputError("--gpus", ErrorRemark("missing"), f"a number of GPUs, or capacity in {pools_file}")
    for n, job in enumerate(jobs):
        if (job.pool or job.queue) not in pools:
            field = f"{jobs_file}: row {n + 1}: {'pool' if job.pool else 'queue'}"
            raise InputError(field, job.pool or job.queue, f"one of the pools: {', '.join(sorted(pools))}")
    limits = (
        () if any(each.record for each in jobs) else ("starts: the file has none, so there is no baseline",)
    )
    return ReplayHistory(
        jobs_file.parent.name if jobs_file.name == "jobs.parquet" else jobs_file.name,
        _window(jobs),
        jobs,
        pools,
        has_nodes=gpus is None,
        limits=limits,
    )


def _table(path: Path, columns: Mapping[str, tuple[type, bool]]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each row with where it stands; every column is checked."""
    try:
        frame = pd.read_parquet(path)
    except (OSError, ValueError, KeyError, TypeError) as error:  # the last two of metadata that are not ours
        raise InputError("--history", str(path), f"a Parquet file ({str(error)[:200]})") from None
    for name in map(str, frame.columns):
        if name not in columns:
            raise InputError(f"{path}: {name}", ErrorRemark("unknown column"), ", ".join(columns))
    for name, (_, is_needed) in columns.items():
        if is_needed and name not in frame.columns:
            raise InputError(f"{path}: {name}", ErrorRemark("missing column"), ", ".join(columns))
    names = [name for name in columns if name in frame.columns]
    for n, values in enumerate(zip(*(frame[name].tolist() for name in names), strict=True), 1):
        at = f"{path}: row {n}"
        yield (
            at,
            {
                name: _cell(f"{at}: {name}", name, value, columns[name][0])
                for name, value in zip(names, values, strict=True)
            },
        )


def _cell(field: str, name: str, value: Any, kind: type) -> Any:
    if value is None or (isinstance(value, float) and value != value):
        if name in _NULLABLE:
            return None
        raise InputError(field, ErrorRemark("null"), f"a value of type {kind.__name__}")
    if kind is int and isinstance(value, float) and value.is_integer():
        value = int(value)
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise InputError(field, value, f"a value of type {kind.__name__}")
    if name in _BOUNDS and isinstance(value, int):
        least, most = _BOUNDS[name]
        if not least <= value <= most:
            raise InputError(field, value, f"{least} or more" if value < least else f"at most {most}")
    return value


def _job(row: dict[str, Any], at: str) -> HistoryJob:
    started, ended = row.pop("started_ms", None), row.pop("ended_ms", None)
    if started is not None and started < row["created_ms"]:
        raise InputError(f"{at}: started_ms", started, "created_ms or later")
    if ended is not None and (started is None or ended < started):
        raise InputError(f"{at}: ended_ms", ended, "started_ms or later, of a job that started")
    record = None if started is None else JobRecord((started,), ended_ms=ended)
    return HistoryJob(**row, record=record)


def _pools(path: Path) -> dict[str, PoolRecord]:
    rows: dict[str, list[tuple[str, dict[str, Any]]]] = {}
    for at, row in _table(path, POOL_COLUMNS):
        rows.setdefault(row["pool"], []).append((at, row))
    found = {}
    for name, own in rows.items():
        first, last_ms = own[0][1], None
        for at, row in own:
            if last_ms is not None and row["at_ms"] <= last_ms:
                raise InputError(
                    f"{at}: at_ms", row["at_ms"], "later than that of the row before of this pool"
                )
            if row["gpus"] != first["gpus"]:
                raise InputError(f"{at}: gpus", row["gpus"], f"{first['gpus']}, as in the pool's first row")
            last_ms = row["at_ms"]
        price = first.get("gpu_hour_nano")
        steps = tuple((row["at_ms"], row["nodes"]) for _, row in own)
        found[name] = PoolRecord(
            name, first["gpus"], steps, first.get("model", ""), None if price is None else Fraction(price)
        )
    return found


def _once(jobs: tuple[HistoryJob, ...], path: Path) -> None:
    seen: set[str] = set()
    for n, each in enumerate(jobs, 1):
        if each.uid in seen:
            raise InputError(f"{path}: row {n}: uid", each.uid, "each uid once")
        seen.add(each.uid)


def _window(jobs: tuple[HistoryJob, ...]) -> Window:
    """From the first arrival until all is over that is known to be."""
    ends = [each.record.ended_ms for each in jobs if each.record is not None and each.record.ended_ms]
    begin_ms = min(each.created_ms for each in jobs)
    return Window(begin_ms, max([*ends, *(each.created_ms + each.run_ms for each in jobs), begin_ms + 1]))


def _swf(path: Path, gpus: int | None) -> ReplayHistory:
    heads: dict[str, str] = {}
    jobs: list[HistoryJob] = []
    skipped = 0
    for n, line in enumerate(content_of(path, MOST_BYTES).decode("utf-8", "replace").splitlines(), 1):
        text = line.strip()
        if text.startswith(";"):
            key, _, value = text.lstrip("; ").partition(":")
            heads.setdefault(key.strip(), value.strip())
        elif text:
            start_s = _number(f"{path}: UnixStartTime", heads.get("UnixStartTime", ""))
            job = _swf_job(f"{path}: line {n}", text.split(), start_s)
            skipped += job is None
            jobs += [] if job is None else [job]
    if not jobs:
        raise InputError("--history", str(path), "a log with at least one job that ran")
    head = "MaxProcs" if heads.get("MaxProcs") else "MaxNodes"
    whole = gpus if gpus is not None else _number(f"{path}: {head}", heads.get(head, ""))
    if whole < 1:
        raise InputError("--gpus", ErrorRemark("missing"), f"a number of processors: {path} has no MaxProcs")
    found = tuple(jobs)
    _once(found, path)
    pool = PoolRecord(_ONE_POOL, 1, ((min(each.created_ms for each in found), whole),))
    limits = [
        "rules: strict first in, first out over all processors; the log does not say which rules there were",
        "nodes: the log does not say where jobs ran, so that none is too fragmented",
    ]
    if skipped:
        limits.append(f"jobs: {skipped:,} without a run time or without processors are left out")
    return ReplayHistory(
        path.name, _window(found), found, {_ONE_POOL: pool}, has_nodes=False, limits=tuple(limits)
    )


def _number(field: str, text: str) -> int:
    """The whole part of what a line of the head says; 0 where it says nothing."""
    if not text:
        return 0
    try:
        found = float(text.split()[0])
    except ValueError:
        found = math.nan
    if not abs(found) < _MOST_MS:
        raise InputError(field, text[:200], "a number that a log may have there")
    return int(found)


def _swf_job(at: str, fields: list[str], start_s: int) -> HistoryJob | None:
    """None for a job that never ran, or of which nothing is known."""
    if len(fields) != _SWF_FIELDS:
        raise InputError(at, ErrorRemark(f"{len(fields)} fields"), f"{_SWF_FIELDS} fields, as SWF has them")
    try:
        values = [float(each) for each in fields]
    except ValueError:
        raise InputError(at, " ".join(fields)[:200], "numbers only") from None
    if not all(abs(each) < _MOST_MS for each in values):
        raise InputError(at, " ".join(fields)[:200], "numbers only, none of them beyond any time")
    number, submit, wait, run, used = (int(each) for each in values[:5])
    processors = used if used > 0 else int(values[7])
    if submit < 0 or run < 0 or processors < 1:
        return None
    created_ms = (start_s + submit) * SECOND_MS
    started_ms = created_ms + max(0, wait) * SECOND_MS
    record = None if wait < 0 else JobRecord((started_ms,), ended_ms=started_ms + run * SECOND_MS)
    status, user, group = (int(each) for each in (values[10], values[11], values[12]))
    return HistoryJob(
        uid=f"{number:09d}",
        created_ms=created_ms,
        run_ms=run * SECOND_MS,
        gpus=processors,
        queue=_ONE_POOL,
        pool=_ONE_POOL,
        name=str(number),
        team=f"group {group}" if group >= 0 else "",
        user=f"user {user}" if user >= 0 else "",
        is_censored=status == 5,  # cancelled, maybe while it ran
        record=record,
    )


def _kueue(path: Path, configuration: str) -> ReplayHistory:
    try:
        decoded = json.loads(content_of(path, MOST_BYTES))
    except (ValueError, RecursionError):
        raise InputError("--history", str(path), "JSON") from None
    found = histories_of(decoded, path.name).histories
    names = {f"{each.id}/{one.name}": (each, one) for each in found for one in each.configurations}
    if not configuration and len(found) == 1:
        configuration = f"{found[0].id}/{found[0].configurations[0].name}"
    if configuration not in names:
        listed = ", ".join([*names][:20]) + (f" and {len(names) - 20} more" if len(names) > 20 else "")
        raise InputError("--configuration", configuration or ErrorRemark("missing"), listed)
    history, one = names[configuration]
    return kueue_history(history, one, configuration)


def kueue_history(history: SchedulerHistory, one: HistoryConfiguration, name: str) -> ReplayHistory:
    """One configuration of a recorded history, with what the scheduler did as its record."""
    jobs = []
    for arrival in history.arrivals:
        truth = one.truth[arrival.uid]
        gpus = sum(
            each.count * sum(amount for resource, amount in each.each.items() if is_gpu(resource))
            for each in arrival.ask.pod_sets
        )
        jobs.append(
            HistoryJob(
                uid=arrival.uid,
                created_ms=arrival.at_ms,
                run_ms=arrival.run_ms,
                gpus=gpus,
                queue=arrival.ask.queue,
                name=arrival.uid,
                team=arrival.ask.queue,
                priority=arrival.ask.priority,
                pod_sets=arrival.ask.pod_sets,
                keeps_progress=arrival.keeps_progress,
                record=JobRecord(
                    tuple(each.at_ms for each in truth.admissions), truth.evictions, truth.ended_ms
                ),
            )
        )
    record = KueueRecord(one.state, one.config, one.timings, one.changes)
    instants = [each.record.ended_ms for each in jobs if each.record and each.record.ended_ms]
    begin_ms = min(each.created_ms for each in jobs)
    window = Window(begin_ms, max([*instants, *(each.created_ms for each in jobs)]) + 1)
    limits = ("nodes: a recorded history has quota only",)
    return ReplayHistory(name, window, tuple(jobs), {}, record, has_nodes=False, limits=limits)
