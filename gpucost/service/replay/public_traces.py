"""Public traces as histories, so that a replay can be tried anywhere: Microsoft's Philly, SenseTime's Helios.

They are read where they lie (``--traces DIR``, else GPUCOST_TRACES, else ``../shared/traces``) and never
copied. Both are of plain first in, first out: each virtual cluster is a pool with a line of its own.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import pandas as pd

from gpucost.advisor.replay.history_record import HistoryJob, JobRecord, PoolRecord, ReplayHistory
from gpucost.domain.errors import InputError
from gpucost.domain.time import DAY_MS, MINUTE_MS, SECOND_MS, Window, parse_instant

TRACES_ENV = "GPUCOST_TRACES"
TRACES = ("philly", "helios")
PLACES = ("../shared/traces", "shared/traces")
_PHILLY_MS = parse_instant("2017-10-01T00:00:00Z")
_HELIOS_MS = parse_instant("2020-05-01T00:00:00Z")
_PHILLY_DAYS, _HELIOS_MINUTES = 61, 44_640
_GPUS_PER_NODE = 8
_SHARED_LIMITS = (
    "users and priorities: the trace has none, so there is no closed loop",
    "prices: the trace has none; --price says one",
)


def trace_folder(named: Path | None, environ: Mapping[str, str]) -> Path:
    """Where traces lie. Raises InputError for a folder that is none."""
    if named is not None or environ.get(TRACES_ENV):
        folder = named or Path(environ[TRACES_ENV])
        if not folder.is_dir():
            field = "--traces" if named is not None else TRACES_ENV
            raise InputError(field, str(folder), "a folder with the traces, such as DIR/philly-vc")
        return folder
    found = next((Path(place) for place in PLACES if Path(place).is_dir()), None)
    if found is None:
        allowed = f"a folder with the traces; {', '.join(PLACES)} and {TRACES_ENV} were looked for"
        raise InputError("--traces", "", allowed)
    return found


def trace_history(name: str, folder: Path) -> ReplayHistory:
    """Raises InputError for a trace that is not there, or cannot be read."""
    if name not in TRACES:
        raise InputError("--trace", name, ", ".join(TRACES))
    read, own = (_philly, "philly-vc") if name == "philly" else (_helios, "helios-earth-vc")
    place = folder / own
    try:
        return read(place)
    except FileNotFoundError as error:
        raise InputError(
            "--trace", name, f"a trace that lies in {place} ({error.filename} is missing)"
        ) from None
    except (OSError, ValueError, KeyError) as error:
        raise InputError("--trace", name, f"files as the README of {place} has them ({error})") from None


def _philly(folder: Path) -> ReplayHistory:
    rows = pd.read_csv(folder / "replay_fifo.csv.gz", dtype={"vc": "str", "job": "str"})
    reference = json.loads((folder / "reference.json").read_text(encoding="utf-8"))
    names = ("job", "vc", "num_gpus", "submit_s", "start_s", "run_s")
    jobs = [
        HistoryJob(
            uid=f"{row:06d}",
            created_ms=_PHILLY_MS + submit * SECOND_MS,
            run_ms=run * SECOND_MS,
            gpus=gpus,
            queue=vc,
            pool=vc,
            name=job,
            team=vc,
            record=JobRecord(
                (_PHILLY_MS + start * SECOND_MS,), ended_ms=_PHILLY_MS + (start + run) * SECOND_MS
            ),
        )
        for row, (job, vc, gpus, submit, start, run) in enumerate(
            zip(*(rows[name].tolist() for name in names), strict=True)
        )
    ]
    pools = {
        vc: PoolRecord(vc, _GPUS_PER_NODE, ((_PHILLY_MS, int(each["nodes"])),), "V100")
        for vc, each in reference["replay"]["by_vc"].items()
    }
    limits = (
        "starts: arrivals, sizes and run times are the trace's, starts those of a strict FIFO replay of it",
        *_SHARED_LIMITS,
    )
    window = Window(_PHILLY_MS, _PHILLY_MS + _PHILLY_DAYS * DAY_MS)
    return ReplayHistory("philly", window, tuple(jobs), pools, cluster="philly", limits=limits)


def _helios(folder: Path) -> ReplayHistory:
    rows = pd.read_csv(folder / "vc_minutes_rle.csv.gz", dtype={"vc": "str"})
    jobs: list[HistoryJob] = []
    pools = {}
    columns = ["minute", "running_gpu_num", "pending_gpu_num"]
    for vc, own in rows.sort_values("minute", kind="stable").groupby("vc"):
        steps = dict(own[["minute", "running_gpu_num"]].itertuples(index=False, name=None))
        begun = tuple((_HELIOS_MS + minute * MINUTE_MS, int(runs)) for minute, runs in sorted(steps.items()))
        pools[str(vc)] = PoolRecord(str(vc), 1, begun)
        jobs += _pieces(str(vc), own[columns].itertuples(index=False, name=None))
    limits = (
        "jobs: the trace has counts of each minute; a GPU that somebody asks for is a job of its own here",
        "capacity: a virtual cluster gives as many GPUs as ran in each minute, no more",
        *_SHARED_LIMITS,
    )
    window = Window(_HELIOS_MS, _HELIOS_MS + _HELIOS_MINUTES * MINUTE_MS)
    return ReplayHistory(
        "helios", window, tuple(jobs), pools, has_nodes=False, cluster="helios-earth", limits=limits
    )


def _pieces(vc: str, minutes: Iterable[tuple[int, int, int]]) -> Iterator[HistoryJob]:
    """One for each GPU asked for. Who runs ends in the order of starting, who waits starts in the order of
    coming; where fewer run and fewer wait than before, so many more of those that ran have ended."""
    waiting: list[str] = []
    running: list[str] = []
    came: dict[str, int] = {}
    began: dict[str, int] = {}
    number = 0

    def job(uid: str, run_ms: int, record: JobRecord, *, is_censored: bool) -> HistoryJob:
        return HistoryJob(uid, came[uid], run_ms, 1, vc, vc, uid, vc, is_censored=is_censored, record=record)

    for minute, runs, waits in [*minutes, (_HELIOS_MINUTES, 0, 0)]:
        at_ms = _HELIOS_MS + minute * MINUTE_MS
        is_over = minute == _HELIOS_MINUTES
        more = runs + waits - len(running) - len(waiting)
        ended = list(running) if is_over else running[: max(0, -more, len(running) - runs)]
        del running[: len(ended)]
        for uid in ended:
            yield job(uid, at_ms - began[uid], JobRecord((began[uid],), ended_ms=at_ms), is_censored=is_over)
        if is_over:
            for uid in waiting:
                yield job(uid, MINUTE_MS, JobRecord(()), is_censored=True)
            return
        for _ in range(more + len(ended)):
            uid = f"{minute:05d} {vc} {number:06d}"
            number += 1
            came[uid] = at_ms
            waiting.append(uid)
        started = waiting[: max(0, runs - len(running))]
        del waiting[: len(started)]
        running += started
        began.update(dict.fromkeys(started, at_ms))
